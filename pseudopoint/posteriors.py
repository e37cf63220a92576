"""How q(u) becomes q(f), and the one thing that predicts.

A posterior family owns pseudo-points and says what q(u) at them is; `project` brings any of them to one form, q(f)
through whitened features aᵢ = L⁻¹k_ui, which is all that bounds and predictions need:
    E f(x) = aᵀm        V f(x) = aᵀSa + (k(x, x) − ‖a‖²).
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .gaussians import AbstractGaussian
from .kernels import AbstractKernel
from .likelihoods import AbstractLikelihood
from .linalg import Factor, Scalar, default_jitter, factorise, quad_diag
from .params import Number

__all__ = [
    "AbstractPosterior",
    "InducingPoints",
    "Marginals",
    "Model",
    "Predictor",
    "Projection",
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
    def project(self, kernel: AbstractKernel) -> Projection:
        """q(f) and E_q[log p(u)], with one factorisation."""


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


def _log_standard_normal(mean, cov):
    return -0.5 * (jnp.trace(cov) + mean @ mean) - 0.5 * mean.shape[0] * jnp.log(2 * jnp.pi)


class Model(eqx.Module):
    """Prior, observation and approximate posterior: everything that is learned. `posterior` is None for an exact GP."""

    kernel: AbstractKernel
    likelihood: AbstractLikelihood
    posterior: Any = None
