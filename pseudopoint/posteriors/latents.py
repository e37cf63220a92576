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
from .base import AbstractPosterior, AbstractProjection, AbstractWrapper, Marginals, Points, Predictor

__all__ = ["IndependentLatents", "Predictors", "Projections"]


class IndependentLatents(AbstractWrapper):
    """C independent latent functions through the same pseudo-points: what is each one's `own` has a leading axis C.

    They share the kernel, and so one basis; or they have `separate` ones, and every number of the kernel has the
    leading axis too. Formulas stay those of one function: the axis is a vmap.
    """

    base: AbstractPosterior
    separate: bool = eqx.field(static=True, default=False)

    @property
    def num_latents(self) -> int:
        """C."""
        return len(jax.tree.leaves(self.q)[0])

    def basis(self, kernel: AbstractKernel) -> Any:
        """That of all; of separate kernels C, with a leading axis."""
        return jax.vmap(self.base.basis)(kernel) if self.separate else self.base.basis(kernel)

    def on(self, basis: Any) -> "Projections":
        """C projections."""
        own = lambda posterior: [getattr(posterior, name) for name in posterior.own]

        def project(numbers, basis):
            projection = eqx.tree_at(own, self.base, numbers).on(basis)
            return eqx.tree_at(_basis, projection, None)  # which has its axis, or none, already

        projections = jax.vmap(project, (0, 0 if self.separate else None))(own(self.base), basis)
        return Projections(eqx.tree_at(_basis, projections, basis, is_leaf=lambda x: x is None), self.separate)


_basis = lambda projection: projection.basis


class Projections(AbstractProjection):
    """C projections: every number of `base` has a leading axis C, but for those of the basis unless separate."""

    base: AbstractProjection
    separate: bool = eqx.field(static=True)
    basis = property(lambda self: self.base.basis)

    def map(self, function: Callable[..., Any], also: tuple = (), out_axes: Any = 0) -> Any:
        """The function of each projection, and of what else each has, `also` with a leading axis C; as its values."""
        axes = jax.tree.map(lambda _: 0, self.base)
        axes = axes if self.separate else eqx.tree_at(_basis, axes, None)
        return jax.vmap(function, (axes, *(0 for _ in also)), out_axes)(self.base, *also)

    @property
    def log_prior(self) -> Scalar:
        """The sum of all."""
        return jnp.sum(self.map(lambda p: p.log_prior))

    @property
    def divergence(self) -> Scalar:
        """The sum of all."""
        return jnp.sum(self.map(lambda p: p.divergence))

    def rows(self, X: Float[Array, "N D"]) -> Any:
        """Those of the basis; of separate kernels C, with a leading axis."""
        return self.map(lambda p: p.rows(X)) if self.separate else self.base.rows(X)

    def marginals_at(self, rows: Any) -> Marginals:
        """Those of all, [C, N]. The slope of these in K_uu is one for all functions; those of each moments would be C,
        so that `moments_at` is not that of each."""
        if self.separate:
            return self.map(lambda p, rows: p.marginals_at(rows), (rows,))
        if not self.base.stacks:
            return self.map(lambda p: p.marginals_at(rows))
        mean, explained, residual = self.base.marginals_at(rows)
        return Marginals(mean, explained, jnp.broadcast_to(residual, mean.shape))

    def predictor(self) -> "Predictors":
        """C predictors."""
        split = lambda p: _split(p.predictor(), Predictor.common)
        share, own = self.map(split, out_axes=(0 if self.separate else None, 0))
        return Predictors(share, own, self.separate)


def _split(tree, names):
    """What is named, and all else: two trees of the same form, each with None where the other has something."""
    select = lambda tree: [getattr(tree, name) for name in names]
    nowhere, everywhere = (lambda tree, x=x: jax.tree.map(lambda _: x, tree) for x in (False, True))
    return eqx.partition(tree, eqx.tree_at(select, nowhere(tree), everywhere(select(tree))))


class Predictors(eqx.Module):
    """C predictors: what they `share` (unless separate), and each one's `own`, with a leading axis C."""

    share: Any
    own: Any
    separate: bool = eqx.field(static=True)

    @property
    def leading(self) -> tuple[int, ...]:
        """(C,): the leading axes of what it predicts."""
        return (len(jax.tree.leaves(self.own)[0]),)

    def map(self, function: Callable[..., Any], also: tuple = ()) -> Any:
        """The function of each, and of what else each has, `also` with a leading axis C; its values have one too."""
        axes = (0 if self.separate else None, 0, *(0 for _ in also))
        of = lambda share, own, *also: function(eqx.combine(share, own), *also)
        return jax.vmap(of, axes)(self.share, self.own, *also)

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
