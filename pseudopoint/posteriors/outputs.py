"""Predictions of several outputs by the predictor of one function of (x, output)."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..params import Number
from .base import Points

__all__ = ["OfOutputs", "at_outputs"]


def at_outputs(X: Float[Number, "N D"], count: int) -> Float[Array, "PN D1"]:
    """The rows (x, p) of all outputs p = 0, …, P − 1, output by output, [P N, D + 1]."""
    index = jnp.repeat(jnp.arange(count, dtype=X.dtype), len(X))
    return jnp.column_stack([jnp.tile(X, (count, 1)), index])


class OfOutputs(eqx.Module):
    """P outputs at rows X [N, D], from `base`, which predicts one function at rows (x, p) (`kernels.Coregionalised`).

    It obeys the contract of `Predictors`, but outputs depend on each other: `base` at `at_outputs` rows has their joint
    covariance.
    """

    stacked: ClassVar[bool] = True

    base: Any
    count: int = eqx.field(static=True)

    @property
    def leading(self) -> tuple[int, ...]:
        """(P,), the leading axis of predictions."""
        return (self.count,)

    def __call__(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "P N"], Float[Array, "P N"]]:
        """Mean and variance of every output at the rows of X, each [P, N]."""
        mean, variance = self.base(at_outputs(X, self.count))
        return mean.reshape(self.count, -1), variance.reshape(self.count, -1)

    def joint(self, X: Float[Array, "N D"]) -> Float[Array, "P N P N"]:
        """Joint covariance of all outputs at the rows of X."""
        K = self.base.covariance(at_outputs(X, self.count))
        return K.reshape(2 * (self.count, len(X)))

    def drawn(self, draw: Callable, X: Float[Array, "N D"], normal: Float[Array, "P S N"]) -> Float[Array, "P S N"]:
        """Joint draws of all outputs, by `draw` of one function from normal numbers [S, rows]."""
        P, S, N = normal.shape
        flat = draw(self.base, at_outputs(X, P), jnp.moveaxis(normal, 0, 1).reshape(S, P * N))
        return jnp.moveaxis(flat.reshape(S, P, N), 1, 0)

    @property
    def Zv(self) -> Points:
        """The pseudo-points, [M, D + 1]."""
        return self.base.Zv

    @property
    def s(self) -> Float[Number, " M"]:
        """`Predictor.s`."""
        return self.base.s

    @property
    def jitter(self) -> Float[Number, ""]:
        """The jitter that was used."""
        return self.base.jitter

    def padded(self, count: int) -> "OfOutputs":
        """`Predictor.padded`."""
        return OfOutputs(self.base.padded(count), self.count)

    def each(self, function: Callable[[Any], Any], common: tuple[str, ...]) -> "OfOutputs":
        """`function` of the predictor."""
        return OfOutputs(function(self.base), self.count)
