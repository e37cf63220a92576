"""Predictions of several outputs, which depend on each other or have one variance between them."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..params import Number

__all__ = ["AbstractOutputs", "AlikeOutputs", "MixedOutputs", "at_outputs"]


def at_outputs(X: Float[Number, "N D"], count: int) -> Float[Array, "PN D1"]:
    """The rows (x, p) of all outputs p = 0, …, P − 1, output by output, [P N, D + 1]."""
    index = jnp.repeat(jnp.arange(count, dtype=X.dtype), len(X))
    return jnp.column_stack([jnp.tile(X, (count, 1)), index])


class AbstractOutputs(eqx.Module):
    """P = `count` outputs at rows X [N, D], from a predictor `base`; the contract of `Predictors` as far as serving
    needs it, and the joint distribution of the outputs."""

    stacked: ClassVar[bool] = True

    base: eqx.AbstractVar[Any]
    count: eqx.AbstractVar[int]
    leading = property(lambda self: (self.count,))  # axes of predictions
    Zv = property(lambda self: self.base.Zv)
    s = property(lambda self: self.base.s)
    jitter = property(lambda self: self.base.jitter)

    @abstractmethod
    def __call__(self, X: Float[Number, "N D"]) -> tuple[Float[Array, "P N"], Float[Array, "P N"]]:
        """Mean and variance of every output at the rows of X, each [P, N]."""

    @abstractmethod
    def joint(self, X: Float[Number, "N D"]) -> Float[Array, "P N P N"]:
        """Joint covariance of all outputs at the rows of X."""

    @abstractmethod
    def drawn(self, draw: Callable, X: Float[Number, "N D"], normal: Float[Number, "P S N"]) -> Float[Array, "P S N"]:
        """Joint draws of all outputs, by `draw` of one predictor, rows and normal numbers."""

    def padded(self, count: int) -> "AbstractOutputs":
        """`Predictor.padded`."""
        return eqx.tree_at(lambda p: p.base, self, self.base.padded(count))

    def each(self, function: Callable[[Any], Any], common: tuple[str, ...]) -> "AbstractOutputs":
        """`function` of the predictor."""
        return eqx.tree_at(lambda p: p.base, self, function(self.base))


class MixedOutputs(AbstractOutputs):
    """Outputs of one function of rows (x, p) that `base` predicts (`kernels.Coregionalised`)."""

    base: Any
    count: int = eqx.field(static=True)

    def __call__(self, X: Float[Number, "N D"]) -> tuple[Float[Array, "P N"], Float[Array, "P N"]]:
        """Those of `base` at all rows (x, p)."""
        mean, variance = self.base(at_outputs(X, self.count))
        return mean.reshape(self.count, -1), variance.reshape(self.count, -1)

    def joint(self, X: Float[Number, "N D"]) -> Float[Array, "P N P N"]:
        """The covariance of all rows (x, p)."""
        return self.base.covariance(at_outputs(X, self.count)).reshape(2 * (self.count, len(X)))

    def drawn(self, draw: Callable, X: Float[Number, "N D"], normal: Float[Number, "P S N"]) -> Float[Array, "P S N"]:
        P, S, N = normal.shape
        flat = draw(self.base, at_outputs(X, P), np.moveaxis(normal, 0, 1).reshape(S, P * N))
        return jnp.moveaxis(flat.reshape(S, P, N), 1, 0)


class AlikeOutputs(AbstractOutputs):
    """Independent outputs of one kernel, noise and set of points: `base` has α [P, M], and one variance for all."""

    base: Any
    count: int = eqx.field(static=True)

    def __call__(self, X: Float[Number, "N D"]) -> tuple[Float[Array, "P N"], Float[Array, "P N"]]:
        """P means and one variance."""
        mean, variance = self.base(X)
        return mean, jnp.broadcast_to(variance, mean.shape)

    def joint(self, X: Float[Number, "N D"]) -> Float[Array, "P N P N"]:
        """Zero between outputs."""
        eye = jnp.eye(self.count, dtype=X.dtype)
        return eye[:, None, :, None] * self.base.covariance(X)[None, :, None, :]

    def drawn(self, draw: Callable, X: Float[Number, "N D"], normal: Float[Number, "P S N"]) -> Float[Array, "P S N"]:
        return draw(self.base, X, normal)
