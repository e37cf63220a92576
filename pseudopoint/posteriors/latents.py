"""Several latent functions through the same pseudo-points."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..kernels import AbstractKernel
from ..linalg import Scalar
from ..params import Number
from .base import AbstractPosterior, Marginals, Points, Predictor

__all__ = ["IndependentLatents", "Predictors", "Projections"]


class IndependentLatents(AbstractPosterior):
    """C independent latent functions through the same pseudo-points: what is each one's `own` has a leading axis C.

    They share the kernel, and so one factorisation; or they have `separate` ones, and every number of the kernel has
    the leading axis too. Formulas stay those of one function: the axis is a vmap.
    """

    base: AbstractPosterior
    separate: bool = eqx.field(static=True, default=False)

    @property
    def one(self) -> Any:
        """The family of each function, its own fields with a leading axis C."""
        return self.base

    @property
    def num_latents(self) -> int:
        """C."""
        return len(jax.tree.leaves(self.base.q)[0])

    @property
    def points(self) -> tuple:
        """Those of all functions."""
        return self.base.points

    # Any: `trainable` walks models of numbers that stand for places.
    @property
    def Z(self) -> Any:
        """The pseudo-points of all."""
        return self.base.Z

    @property
    def q(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All q, with a leading axis C."""
        return self.base.q

    @property
    def jitter(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As for one."""
        return self.base.jitter

    def project(self, kernel: AbstractKernel) -> "Projections":
        """C projections."""
        base, names = self.base, self.base.own
        select = lambda posterior: [getattr(posterior, name) for name in names]

        def parts(own, kernel):
            p = eqx.tree_at(select, base, own).project(kernel)
            return _split(p, p.shared)

        axis = 0 if self.separate else None
        return Projections(*jax.vmap(parts, (0, axis), (axis, 0))(select(base), kernel), self.separate)

    def at(self, kernel: AbstractKernel, X: Float[Array, "N D"]) -> "IndependentLatents":
        """With what all functions of one kernel share."""
        return self if self.separate else eqx.tree_at(lambda p: p.base, self, self.base.at(kernel, X))


def _split(tree, names):
    """What is named, and all else: two trees of the same form, each with None where the other has something."""
    select = lambda tree: [getattr(tree, name) for name in names]
    nowhere, everywhere = (lambda tree, x=x: jax.tree.map(lambda _: x, tree) for x in (False, True))
    return eqx.partition(tree, eqx.tree_at(select, nowhere(tree), everywhere(select(tree))))


class AbstractSeveral(eqx.Module):
    """C things of one class: what they `share` (unless separate), and each one's `own`, with a leading axis C."""

    share: eqx.AbstractVar[Any]
    own: eqx.AbstractVar[Any]
    separate: eqx.AbstractVar[bool]

    def map(self, function: Callable[..., Any], out_axes: Any = 0, also: tuple = ()) -> Any:
        """The function of each, and of what else each has, `also` with a leading axis C; its values have one too."""
        axes = (0 if self.separate else None, 0, *(0 for _ in also))
        of = lambda share, own, *also: function(eqx.combine(share, own), *also)
        return jax.vmap(of, axes, out_axes)(self.share, self.own, *also)


class Projections(AbstractSeveral):
    """C projections."""

    share: Any
    own: Any
    separate: bool = eqx.field(static=True)

    @property
    def log_prior(self) -> Scalar:
        """The sum of all."""
        return jnp.sum(self.map(lambda p: p.log_prior))

    @property
    def divergence(self) -> Scalar:
        """The sum of all."""
        return jnp.sum(self.map(lambda p: p.divergence))

    def marginals(self, X: Float[Array, "N D"]) -> Marginals:
        """Those of all, [C, N]."""
        each = eqx.combine(self.share, self.own)
        if self.separate or not each.stacks:
            return Marginals(*self.map(lambda p: tuple(p.marginals(X))))
        mean, explained, residual = each.marginals(X)
        return Marginals(mean, explained, jnp.broadcast_to(residual, mean.shape))

    def moments(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "C N"], Float[Array, "C N"]]:
        """As `marginals`, whose slope in K_uu is one for all functions together; by `moments` it is one for each."""
        return self.marginals(X).moments

    def predictor(self) -> "Predictors":
        """C predictors."""
        split = lambda p: _split(p.predictor(), Predictor.common)
        share, own = self.map(split, (0 if self.separate else None, 0))
        return Predictors(share, own, self.separate)


class Predictors(AbstractSeveral):
    """C predictors."""

    share: Any
    own: Any
    separate: bool = eqx.field(static=True)

    @property
    def Zv(self) -> Points:
        """The pseudo-points."""
        points = eqx.combine(self.share, self.own).Zv
        return points if points.ndim == 2 else points[0]

    @property
    def s(self) -> Float[Number, "C M2"]:
        """The shares of the prior's variance, of each."""
        return eqx.combine(self.share, self.own).s

    @property
    def jitter(self) -> Float[Number, ""]:
        """The largest jitter that was used."""
        return np.asarray(np.max(eqx.combine(self.share, self.own).jitter))

    def __call__(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "C N"], Float[Array, "C N"]]:
        """Means and variances of all f at the rows of X, each [C, N]."""
        return self.map(lambda predictor: predictor(X))

    def moved(self, kernel: AbstractKernel, to: Callable[[Any], Any]) -> "Predictors":
        """As `Predictor.moved`, where all of them have one kernel."""
        nowhere = jax.tree.map(lambda _: None, kernel)  # what is shared nobody owns: the same form, without numbers
        own = eqx.tree_at(lambda p: p.kernel, self.own, nowhere, is_leaf=lambda x: x is None)
        return eqx.tree_at(lambda p: (p.share, p.own), self, (self.share.moved(kernel, to), own))

    def prior(self, X: Float[Array, "N D"]) -> Float[Array, "C N"]:
        """Variances before any data, as `Predictor.prior`."""
        return self.map(lambda predictor: predictor.prior(X))

    def covariance(self, X: Float[Array, "N D"]) -> Float[Array, "C N N"]:
        """Joint covariances, as `Predictor.covariance`."""
        return self.map(lambda predictor: predictor.covariance(X))

    def each(self, function: Callable[[Predictor], Any], common: tuple[str, ...]) -> "Predictors":
        """`function` of each predictor, on the host: modules of one class, whose fields `common` functions of one
        kernel share."""
        C = len(jax.tree.leaves(self.own)[0])
        one = lambda tree, c: jax.tree.map(lambda x: x[c], tree)
        share = lambda c: one(self.share, c) if self.separate else self.share
        each = [function(eqx.combine(share(c), one(self.own, c))) for c in range(C)]
        shares, owns = zip(*(_split(module, common) for module in each), strict=True)
        stacked = lambda trees: jax.tree.map(lambda *x: np.stack(x), *trees)
        return Predictors(stacked(shares) if self.separate else shares[0], stacked(owns), self.separate)
