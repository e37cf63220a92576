"""Predictions of collections of Dask: one task for each partition, computed when they are asked for."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, r2_score

from .checks import in_days
from .frames import is_lazy


class ScoresPartitions:
    """`score` as scikit-learn has it for arrays, for collections of Dask too."""

    def score(self, X, y, sample_weight=None):
        """Accuracy. Of a collection of Dask, one number a row is held in memory."""
        return _scored(accuracy_score, self, X, y, sample_weight)


class ScoresExposures:
    """`score` of a regression, for collections of Dask too, and for counts over exposures."""

    def score(self, X, y, sample_weight=None, *, exposure=None):
        """R² of `predict(X, exposure=exposure)`: `exposure` [N] is that of counts, 1 by default. Of a collection of
        Dask, whose exposure is one too, of as many partitions, one number a row is held in memory."""
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
        if not is_lazy(X):
            return method(self, X, *rest, **options)
        given = signature(method).bind(self, X, *rest, **options).arguments
        return _lazily(method, self, X, {name: given[name] for name in given if name not in ("self", "X")})

    return of_any


def _lazily(method: Callable, model: Any, X: Any, options: dict[str, Any]) -> Any:
    from dask import array
    from dask.delayed import delayed

    if options.get("return_cov"):
        raise ValueError("return_cov is of rows in memory: X is a collection of Dask, so ask for return_std")
    exposure = options.pop("exposure", None)
    shaped = hasattr(X, "chunks")
    pieces = X.rechunk({1: -1}).to_delayed()[:, 0].tolist() if shaped else X.to_delayed()
    rows = X.chunks[0] if shaped else (np.nan,) * len(pieces)
    shares = [None] * len(pieces) if exposure is None else list(exposure.to_delayed()) if is_lazy(exposure) else []
    if len(shares) != len(pieces):
        raise ValueError("the exposure of a collection of Dask is one too, of as many partitions, each of as many rows")
    one = {} if exposure is None else {"exposure": np.ones(1)}
    likes = model.of_typical(1, lambda row: method(model, row, **options, **one))  # their number, shapes and types
    several = isinstance(likes, tuple)
    none = tuple(like[:0] for like in likes) if several else likes[:0]
    run, at = delayed(_predicted), delayed(model, traverse=False)
    parts = [run(at, method.__name__, *each, options, none) for each in zip(pieces, shares, strict=True)]

    def joined(like: np.ndarray, of: Callable) -> Any:
        blocks = zip(parts, rows, strict=True)
        one = [array.from_delayed(of(part), (n, *like.shape[1:]), like.dtype) for part, n in blocks]
        return array.concatenate(one, allow_unknown_chunksizes=True)

    if several:
        return tuple(joined(like, lambda part, k=k: part[k]) for k, like in enumerate(likes))
    return joined(likes, lambda part: part)


def _predicted(model: Any, name: str, X: Any, exposure: Any, options: dict[str, Any], none: Any) -> Any:
    """Of a partition; `none` is what there is of one without rows."""
    given = {} if exposure is None else {"exposure": exposure}
    return getattr(model, name)(X, **options, **given) if len(X) else none
