"""Several latent functions, through the same pseudo-points or each through its own."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..kernels import AbstractKernel
from ..linalg import Scalar
from ..params import Number
from .base import AbstractPosterior, AbstractProjection, AbstractWrapper, Marginals, Points, Predictor

__all__ = ["IndependentLatents", "Joined", "Predictors", "Projections"]


class IndependentLatents(AbstractWrapper):
    """C independent latent functions with the same pseudo-points. The fields `base.own` have a leading axis C.

    They share one kernel and so one basis, or have `separate` kernels, whose numbers then have the leading axis too.
    The formulas are those of one function under `jax.vmap`.
    """

    base: AbstractPosterior
    separate: bool = eqx.field(static=True, default=False)

    @property
    def num_latents(self) -> int:
        return len(jax.tree.leaves(self.q)[0])

    def basis(self, kernel: AbstractKernel) -> Any:
        """The basis of all functions; with separate kernels C of them, with a leading axis."""
        return jax.vmap(self.base.basis)(kernel) if self.separate else self.base.basis(kernel)

    def on(self, basis: Any) -> "Projections":
        own = lambda posterior: [getattr(posterior, name) for name in posterior.own]

        def project(numbers, basis):
            projection = eqx.tree_at(own, self.base, numbers).on(basis)
            return eqx.tree_at(_basis, projection, None)  # vmap would give the shared basis a leading axis

        projections = jax.vmap(project, (0, 0 if self.separate else None))(own(self.base), basis)
        return Projections(eqx.tree_at(_basis, projections, basis, is_leaf=lambda x: x is None), self.separate)


_basis = lambda projection: projection.basis


class Projections(AbstractProjection):
    """C projections. Every number of `base` has a leading axis C, except for a shared basis."""

    base: AbstractProjection
    separate: bool = eqx.field(static=True)
    basis = property(lambda self: self.base.basis)

    def map(self, function: Callable[..., Any], also: tuple = (), out_axes: Any = 0) -> Any:
        """function(projection, *also) for each projection, under vmap: `also` and the values have a leading axis C."""
        axes = jax.tree.map(lambda _: 0, self.base)
        axes = axes if self.separate else eqx.tree_at(_basis, axes, None)
        return jax.vmap(function, (axes, *(0 for _ in also)), out_axes)(self.base, *also)

    @property
    def log_prior(self) -> Scalar:
        """The sum over all functions."""
        return jnp.sum(self.map(lambda p: p.log_prior))

    @property
    def divergence(self) -> Scalar:
        """The sum over all functions."""
        return jnp.sum(self.map(lambda p: p.divergence))

    def rows(self, X: Float[Array, "N D"]) -> Any:
        """Rows for the basis; with separate kernels C of them, with a leading axis."""
        return self.map(lambda p: p.rows(X)) if self.separate else self.base.rows(X)

    def marginals_at(self, rows: Any) -> Marginals:
        """q(f) of all functions, [C, N]. Their gradient in a shared K_uu is computed once for all; that of the cheaper
        `moments_at` of each function would be computed C times, so moments come from here too."""
        if self.separate:
            return self.map(lambda p, rows: p.marginals_at(rows), (rows,))
        if not self.base.stacks:
            return self.map(lambda p: p.marginals_at(rows))
        mean, explained, residual = self.base.marginals_at(rows)
        return Marginals(mean, explained, jnp.broadcast_to(residual, mean.shape))

    def predictor(self) -> "Predictors":
        split = lambda p: _split(p.predictor(), Predictor.common)
        share, own = self.map(split, out_axes=(0 if self.separate else None, 0))
        return Predictors(share, own, self.separate)


def _split(tree, names):
    """The named fields, and all others: two trees of the same form, each with None in the place of the other's."""
    select = lambda tree: [getattr(tree, name) for name in names]
    nowhere, everywhere = (lambda tree, x=x: jax.tree.map(lambda _: x, tree) for x in (False, True))
    return eqx.partition(tree, eqx.tree_at(select, nowhere(tree), everywhere(select(tree))))


class Predictors(eqx.Module):
    """C predictors: the fields `Predictor.common` in `share` (with a leading axis C if separate), all others in `own`,
    with a leading axis C."""

    stacked: ClassVar[bool] = True

    share: Any
    own: Any
    separate: bool = eqx.field(static=True)

    @property
    def leading(self) -> tuple[int, ...]:
        """(C,), the leading axes of predictions."""
        return (len(jax.tree.leaves(self.own)[0]),)

    def map(self, function: Callable[..., Any], also: tuple = ()) -> Any:
        """function(predictor, *also) for each predictor, under vmap: `also` and the values have a leading axis C."""
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
        """`Predictor.s` of each."""
        return eqx.combine(self.share, self.own).s

    @property
    def jitter(self) -> Float[Number, ""]:
        """The largest jitter that was used."""
        return np.asarray(np.max(eqx.combine(self.share, self.own).jitter))

    def __call__(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "C N"], Float[Array, "C N"]]:
        """Mean and variance of every f at the rows of X, each [C, N]."""
        return self.map(lambda predictor: predictor(X))

    def like(self, each: Predictor) -> "Predictors":
        """Predictors of `each`, all of whose numbers have a leading axis C, that share what these do."""
        share, own = _split(each, Predictor.common)
        return Predictors(share if self.separate else jax.tree.map(lambda x: x[0], share), own, self.separate)

    def moved(self, kernel: AbstractKernel, to: Callable[[Any], Any]) -> "Predictors":
        """`Predictor.moved` of predictors with one kernel."""
        nowhere = jax.tree.map(lambda _: None, kernel)  # `own` has None where `share` has numbers
        own = eqx.tree_at(lambda p: p.kernel, self.own, nowhere, is_leaf=lambda x: x is None)
        return eqx.tree_at(lambda p: (p.share, p.own), self, (self.share.moved(kernel, to), own))

    def prior(self, X: Float[Array, "N D"]) -> Float[Array, "C N"]:
        """`Predictor.prior` of each."""
        return self.map(lambda predictor: predictor.prior(X))

    def covariance(self, X: Float[Array, "N D"]) -> Float[Array, "C N N"]:
        """`Predictor.covariance` of each."""
        return self.map(lambda predictor: predictor.covariance(X))

    def around(self, paths: Any) -> Any:
        """Drawn functions as they are: f has no mean function here."""
        return paths

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


class Joined(eqx.Module):
    """Predictors of C independent latent functions, each with its own kernel and points, of which there may be
    different numbers. The first is that of the mean of a target.

    It obeys the contract of `Predictors`; and it joins any callables of rows, such as what `served` makes of each, or
    paths.
    """

    stacked: ClassVar[bool] = False

    parts: tuple[Any, ...]

    @property
    def leading(self) -> tuple[int, ...]:
        """(C,), the leading axes of predictions."""
        return (len(self.parts),)

    def __call__(self, X: Float[Array, "N D"]) -> Any:
        """What each part returns for the rows of X, stacked: of predictors mean and variance of every f, [C, N]."""
        return jax.tree.map(lambda *each: jnp.stack(each), *(part(X) for part in self.parts))

    def map(self, function: Callable[..., Any], also: tuple = ()) -> "Joined":
        """function(predictor, *also) for each predictor, joined: `also` has a leading axis C."""
        return Joined(tuple(function(part, *(x[c] for x in also)) for c, part in enumerate(self.parts)))

    @property
    def Zv(self) -> Points:
        """The pseudo-points of the first."""
        return self.parts[0].Zv

    @property
    def s(self) -> Float[Number, " M"]:
        """`Predictor.s` of all, end to end."""
        return np.concatenate([part.s for part in self.parts])

    @property
    def jitter(self) -> Float[Number, ""]:
        """The largest jitter that was used."""
        return np.asarray(np.max([part.jitter for part in self.parts]))

    def padded(self, count: int) -> "Joined":
        """`Predictor.padded` of the first, which alone may have a point at each row."""
        return Joined((self.parts[0].padded(count), *self.parts[1:]))

    def moved(self, kernel: AbstractKernel, to: Callable[[Any], Any]) -> "Joined":
        """`Predictor.moved`: `kernel` is that of the first; the others get the one inside of theirs, an `InUnits`."""
        first, *others = self.parts
        return Joined((first.moved(kernel, to), *(part.moved(part.kernel.kernel, to) for part in others)))

    def prior(self, X: Float[Array, "N D"]) -> Float[Array, "C N"]:
        """`Predictor.prior` of each."""
        return jnp.stack([part.prior(X) for part in self.parts])

    def covariance(self, X: Float[Array, "N D"]) -> Float[Array, "C N N"]:
        """`Predictor.covariance` of each."""
        return jnp.stack([part.covariance(X) for part in self.parts])

    def around(self, paths: Any) -> Any:
        """Drawn functions as they are: f has no mean function here."""
        return paths

    def each(self, function: Callable[[Any], Any], common: tuple[str, ...]) -> "Joined":
        """`function` of each predictor."""
        return Joined(tuple(function(part) for part in self.parts))
