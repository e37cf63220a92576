"""How q(u) becomes q(f), and the one thing that predicts.

A posterior family owns pseudo-points and says what q(u) at them is; `project` brings any of them to one form, q(f)
through whitened features aᵢ = L⁻¹k_ui, which is all that bounds and predictions need:
    E f(x) = aᵀm        V f(x) = aᵀSa + (k(x, x) − ‖a‖²).
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .gaussians import AbstractGaussian
from .kernels import AbstractKernel
from .likelihoods import AbstractLikelihood
from .linalg import Factor, Scalar, default_jitter, factorise, quad_diag
from .params import Number

__all__ = [
    "AbstractPosterior",
    "InducingPoints",
    "Latents",
    "Marginals",
    "Model",
    "Predictor",
    "Predictors",
    "Projection",
    "Projections",
    "Unwhitened",
    "Whitened",
]

Points = Float[Number, "M D"]


class Predictor(eqx.Module):
    """A fitted posterior, ready to predict; it holds every factor and needs no training data.

    E f(x) = k(x, Zm) α        V f(x) = k(x, x) − ‖D k(Zv, x)‖² + ‖U k(Zv, x)‖²

    `shared` says that Zm and Zv are the same points, so that k(·, x) is computed once.
    """

    kernel: AbstractKernel
    Zm: Float[Number, "M1 D"]
    alpha: Float[Number, " M1"]
    Zv: Float[Number, "M2 D"]
    down: Float[Number, "M2 M2"]
    up: Float[Number, "K M2"]
    jitter: Float[Number, ""]
    shared: bool = eqx.field(static=True, default=False)

    def __call__(self, X: Float[Array, "N D"]) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Mean and variance of f at the rows of X, each [N].

        D comes of a covariance with jitter, so k − ‖Dk‖² is at least of the jitter's size; the maximum is for rounding.
        """
        Kvx = self.kernel(self.Zv, X)
        Kmx = Kvx if self.shared else self.kernel(self.Zm, X)
        residual = self.kernel.diag(X) - jnp.sum((self.down @ Kvx) ** 2, axis=0)
        return Kmx.T @ self.alpha, jnp.maximum(residual, 0) + jnp.sum((self.up @ Kvx) ** 2, axis=0)

    def covariance(self, X: Float[Array, "N D"]) -> Float[Array, "N N"]:
        """Joint covariance of f at the rows of X, [N, N]: for drawing functions, never for error bars."""
        Kvx = self.kernel(self.Zv, X)
        down, up = self.down @ Kvx, self.up @ Kvx
        return self.kernel(X, X) - down.T @ down + up.T @ up


class Marginals(NamedTuple):
    """q(fᵢ) = N(mean, explained + residual): aᵢᵀm, aᵢᵀSaᵢ and dᵢ = kᵢᵢ − ‖aᵢ‖², each [N]."""

    mean: Float[Array, " N"]
    explained: Float[Array, " N"]
    residual: Float[Array, " N"]


class Projection(eqx.Module):
    """q(f) through whitened features; m and S = RRᵀ (`root`) are those of v = L⁻¹u. `log_prior` is E_q[log p(u)]."""

    kernel: AbstractKernel
    Z: Float[Array, "M D"]
    Kuu: Factor
    mean: Float[Array, " M"]
    cov: Float[Array, "M M"]
    root: Float[Array, "M M"]
    log_prior: Scalar

    def marginals(self, X: Float[Array, "N D"]) -> Marginals:
        """q(f) at the rows of X."""
        A, residual = features(self.kernel, self.Kuu, self.Z, X)
        return Marginals(A.T @ self.mean, quad_diag(self.cov, A), residual)

    def predictor(self) -> Predictor:
        """α = L⁻ᵀm, D = L⁻¹, U = RᵀL⁻¹."""
        inverse = self.Kuu.inverse
        up = self.root.T @ inverse
        return Predictor(self.kernel, self.Z, inverse.T @ self.mean, self.Z, inverse, up, self.Kuu.jitter, True)


def features(
    kernel: AbstractKernel, Kuu: Factor, Z: Float[Array, "M D"], X: Float[Array, "N D"]
) -> tuple[Float[Array, "M N"], Float[Array, " N"]]:
    """A = L⁻¹K_uf [M, N] and the residual dᵢ = kᵢᵢ − ‖aᵢ‖² ≥ 0 [N]."""
    A = Kuu.whiten(kernel(Z, X))
    return A, jnp.maximum(kernel.diag(X) - jnp.sum(A**2, axis=0), 0)


def prior_factor(kernel: AbstractKernel, Z: Float[Array, "M D"], jitter: float | None) -> Factor:
    """K_uu + εI = LLᵀ: the one place where the prior of pseudo-points is factorised."""
    return factorise(kernel(Z, Z), default_jitter(Z.dtype) if jitter is None else jitter)


class AbstractPosterior(eqx.Module):
    """A family of approximate posteriors over functions. `jitter` is relative; None takes the default of the dtype."""

    Z: eqx.AbstractVar[Points]
    q: eqx.AbstractVar[AbstractGaussian]
    jitter: eqx.AbstractVar[float | None]

    @abstractmethod
    def project(self, kernel: AbstractKernel) -> "Projection | Projections":
        """q(f) and E_q[log p(u)], with one factorisation."""

    def entropy(self) -> Scalar:
        """½ log |2πe S|."""
        return self.q.entropy()


class InducingPoints(eqx.Module):
    """Pseudo-points whose q(u) is the best one, integrated out: the posterior of `bounds.collapsed`."""

    Z: Points
    jitter: float | None = eqx.field(static=True, default=None)


class Whitened(AbstractPosterior):
    """q is that of v = L⁻¹u, whose prior is N(0, I): better conditioned, and u follows the kernel as it learns."""

    Z: Points
    q: AbstractGaussian
    jitter: float | None = eqx.field(static=True, default=None)

    def project(self, kernel: AbstractKernel) -> Projection:
        """E_q[log p(v)] = −½(tr S + ‖m‖²) − ½M log 2π."""
        Z, mean, cov = jnp.asarray(self.Z), jnp.asarray(self.q.mean), self.q.covariance()
        Kuu, log_prior = prior_factor(kernel, Z, self.jitter), _log_standard_normal(mean, cov)
        return Projection(kernel, Z, Kuu, mean, cov, self.q.root(), log_prior)


class Unwhitened(AbstractPosterior):
    """q is that of u = f(Z) itself, as the papers write it (Kobe 2.25)."""

    Z: Points
    q: AbstractGaussian
    jitter: float | None = eqx.field(static=True, default=None)

    def project(self, kernel: AbstractKernel) -> Projection:
        """v = L⁻¹u: mean L⁻¹m, covariance L⁻¹SL⁻ᵀ, and log p(u) = log p(v) − ½ log |K_uu|."""
        Z = jnp.asarray(self.Z)
        Kuu = prior_factor(kernel, Z, self.jitter)
        mean = Kuu.whiten(jnp.asarray(self.q.mean)[:, None])[:, 0]
        cov = Kuu.whiten(Kuu.whiten(self.q.covariance()).T)
        root = Kuu.whiten(self.q.root())
        return Projection(kernel, Z, Kuu, mean, cov, root, _log_standard_normal(mean, cov) - Kuu.half_logdet())


class Latents(AbstractPosterior):
    """C independent latent functions through the same pseudo-points: the q of `each` has a leading axis C.

    They share the kernel, and so one factorisation; or they have `separate` ones, and every number of the kernel has
    the leading axis too. Formulas stay those of one function: the axis is a vmap.
    """

    each: AbstractPosterior
    separate: bool = eqx.field(static=True, default=False)

    # Any: `free` walks models of numbers that stand for places.
    @property
    def Z(self) -> Any:
        """The pseudo-points of all."""
        return self.each.Z

    @property
    def q(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All q, with a leading axis C."""
        return self.each.q

    @property
    def jitter(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As for one."""
        return self.each.jitter

    def project(self, kernel: AbstractKernel) -> "Projections":
        """C projections."""

        def parts(q, kernel):
            p = eqx.tree_at(lambda each: each.q, self.each, q).project(kernel)
            return (p.kernel, p.Z, p.Kuu), (p.mean, p.cov, p.root, p.log_prior)

        axis = 0 if self.separate else None
        return Projections(*jax.vmap(parts, (0, axis), (axis, 0))(self.q, kernel), self.separate)

    def entropy(self) -> Scalar:
        """The sum of all."""
        return jnp.sum(jax.vmap(lambda q: q.entropy())(self.q))


class Projections(eqx.Module):
    """C projections. What they `share` (kernel, Z, Kuu), unless separate, and each one's `own`, axis C first."""

    share: tuple
    own: tuple
    separate: bool = eqx.field(static=True)

    def _map(self, function, out_axes: Any = 0):
        axes = (0 if self.separate else None, 0)
        return jax.vmap(lambda share, own: function(Projection(*share, *own)), axes, out_axes)(self.share, self.own)

    @property
    def log_prior(self) -> Scalar:
        """The sum of all."""
        return jnp.sum(self.own[-1])

    def marginals(self, X: Float[Array, "N D"]) -> Marginals:
        """Those of all, [C, N]."""
        return Marginals(*self._map(lambda p: tuple(p.marginals(X))))

    def predictor(self) -> "Predictors":
        """C predictors."""

        def parts(projection):
            p = projection.predictor()
            return (p.kernel, p.Zm, p.Zv, p.down, p.jitter), (p.alpha, p.up)

        share, own = self._map(parts, (0 if self.separate else None, 0))
        return Predictors(share, own, self.separate)


class Predictors(eqx.Module):
    """C predictors: what they `share` (kernel, Zm, Zv, D, jitter), unless separate, and each one's `own` (α, U)."""

    share: tuple
    own: tuple
    separate: bool = eqx.field(static=True)

    def _map(self, function):
        def one(share, own):
            (kernel, Zm, Zv, down, jitter), (alpha, up) = share, own
            return function(Predictor(kernel, Zm, alpha, Zv, down, up, jitter, True))

        return jax.vmap(one, (0 if self.separate else None, 0))(self.share, self.own)

    @property
    def Zv(self) -> Points:
        """The pseudo-points."""
        return self.share[2][0] if self.separate else self.share[2]

    @property
    def jitter(self) -> Float[Number, ""]:
        """The largest jitter that was used."""
        return np.asarray(np.max(self.share[4]))

    def __call__(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "C N"], Float[Array, "C N"]]:
        """Means and variances of all f at the rows of X, each [C, N]."""
        return self._map(lambda predictor: predictor(X))

    def covariance(self, X: Float[Array, "N D"]) -> Float[Array, "C N N"]:
        """Joint covariances, as `Predictor.covariance`."""
        return self._map(lambda predictor: predictor.covariance(X))


def _log_standard_normal(mean, cov):
    return -0.5 * (jnp.trace(cov) + mean @ mean) - 0.5 * mean.shape[0] * jnp.log(2 * jnp.pi)


class Model(eqx.Module):
    """Prior, observation and approximate posterior: everything that is learned. `posterior` is None for an exact GP."""

    kernel: AbstractKernel
    likelihood: AbstractLikelihood
    posterior: Any = None
