"""Predictions of collections of Dask: one task for each partition, computed when they are asked for."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from sklearn.base import is_regressor
from sklearn.metrics import accuracy_score, r2_score

from .checks import in_days
from .frames import is_lazy

__all__ = ["ScoresPartitions", "over_partitions"]


class ScoresPartitions:
    """`score`, which scikit-learn has for arrays, for collections of Dask too."""

    def score(self, X, y, sample_weight=None):
        """R² of a regression, accuracy of classes. Of a collection of Dask, one number a row is held in memory."""
        y = in_days(y) if is_regressor(self) and not is_lazy(y) else y
        if not is_lazy(X):
            return super().score(X, y, sample_weight)  # pyright: ignore[reportAttributeAccessIssue]
        predicted = self.predict(X)  # pyright: ignore[reportAttributeAccessIssue]
        y, predicted = (np.asarray(each.compute() if is_lazy(each) else each) for each in (y, predicted))
        return (r2_score if is_regressor(self) else accuracy_score)(y, predicted, sample_weight=sample_weight)


def over_partitions(method: Callable) -> Callable:
    """The method, which for a dask DataFrame or array X [N, D] returns lazy dask arrays, as many as it returns arrays.

    How many rows a partition of a DataFrame has is not known before it is computed.
    """

    @wraps(method)
    def of_any(self, X, *rest, **options):
        return _lazily(method.__name__, self, X, rest, options) if is_lazy(X) else method(self, X, *rest, **options)

    return of_any


def _lazily(name: str, model: Any, X: Any, rest: tuple, options: dict[str, Any]) -> Any:
    from dask import array
    from dask.delayed import delayed

    likes = getattr(model, name)(model.typical(1), *rest, **options)  # their number, shapes and types
    several = isinstance(likes, tuple)
    shaped = hasattr(X, "chunks")
    pieces = X.rechunk({1: -1}).to_delayed()[:, 0].tolist() if shaped else X.to_delayed()
    rows = X.chunks[0] if shaped else (np.nan,) * len(pieces)
    run, at = delayed(_predicted), delayed(model, traverse=False)
    parts = [run(at, name, piece, rest, options) for piece in pieces]

    def joined(like: np.ndarray, of: Callable) -> Any:
        blocks = zip(parts, rows, strict=True)
        one = [array.from_delayed(of(part), (n, *like.shape[1:]), like.dtype) for part, n in blocks]
        return array.concatenate(one, allow_unknown_chunksizes=True)

    if several:
        return tuple(joined(like, lambda part, k=k: part[k]) for k, like in enumerate(likes))
    return joined(likes, lambda part: part)


def _predicted(model: Any, name: str, X: Any, rest: tuple, options: dict[str, Any]) -> Any:
    return getattr(model, name)(X, *rest, **options)
