"""Predictions of collections of Dask: one task for each partition, computed when they are asked for."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, r2_score

from .checks import in_days
from .frames import is_lazy

__all__ = ["ScoresExposures", "ScoresPartitions", "over_partitions"]


class ScoresPartitions:
    """`score` as scikit-learn has it for arrays, for collections of Dask too."""

    def score(self, X, y, sample_weight=None):
        """Accuracy. Of a collection of Dask, one number a row is held in memory."""
        return _scored(accuracy_score, self, X, y, sample_weight)


class ScoresExposures:
    """`score` of a regression, for collections of Dask too, and for counts over exposures."""

    def score(self, X, y, sample_weight=None, *, exposure=None):
        """R² of `predict(X, exposure=exposure)`: `exposure` [N] is that of counts, 1 by default. Of a collection of
        Dask, one number a row is held in memory."""
        y = y if is_lazy(y) else in_days(y)
        return _scored(r2_score, self, X, y, sample_weight, exposure=exposure)


def _scored(measure: Callable, model: Any, X: Any, y: Any, sample_weight: Any, **given: Any) -> float:
    y, predicted = (each.compute() if is_lazy(each) else each for each in (y, model.predict(X, **given)))
    return measure(y, predicted, sample_weight=sample_weight)


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
