"""Predictions of f + m(x), from those of f."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from ..means import AbstractMean
from ..params import Number

__all__ = ["WithMean", "PathsWithMean"]


class WithMean(eqx.Module):
    """A predictor `base` of f, and a mean function: it obeys the contract of `Predictor` as far as estimators need it.
    Covariances, and what `map` sees, are those of f."""

    base: Any
    mean: AbstractMean
    stacked = property(lambda self: self.base.stacked)
    leading = property(lambda self: self.base.leading)
    Zv = property(lambda self: self.base.Zv)
    s = property(lambda self: self.base.s)
    jitter = property(lambda self: self.base.jitter)

    def __call__(self, X: Float[Number, "N D"]) -> tuple[Float[Array, "*C N"], Float[Array, "*C N"]]:
        """Mean and variance of f + m at the rows of X."""
        mean, variance = self.base(X)
        return mean + self.mean(X), variance  # pyright: ignore[reportArgumentType]

    def map(self, function: Callable[..., Any], also: tuple = ()) -> Any:
        """`Predictor.map`."""
        return self.base.map(function, also)

    def padded(self, count: int) -> "WithMean":
        """`Predictor.padded`."""
        return WithMean(self.base.padded(count), self.mean)

    def prior(self, X: Float[Number, "N D"]) -> Float[Array, "*C N"]:
        """`Predictor.prior`."""
        return self.base.prior(X)

    def covariance(self, X: Float[Number, "N D"]) -> Float[Array, "*C N N"]:
        """`Predictor.covariance`."""
        return self.base.covariance(X)

    def each(self, function: Callable[[Any], Any], common: tuple[str, ...]) -> "WithMean":
        """`function` of the predictors of f."""
        return WithMean(self.base.each(function, common), self.mean)

    def around(self, paths: Any) -> "PathsWithMean":
        """Functions f + m from functions f."""
        return PathsWithMean(paths, self.mean)


class PathsWithMean(eqx.Module):
    """Drawn functions f + m from drawn functions f."""

    paths: Any
    mean: AbstractMean

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "*C S N"]:
        """All functions at the rows of X."""
        return self.paths(X) + self.mean(X)[..., None, :]
