"""Pseudo-points with any Gaussian q, whitened or not."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..gaussians import AbstractGaussian
from ..kernels import AbstractKernel
from ..linalg import Scalar, quad_diag
from .base import (
    AbstractPosterior,
    AbstractProjection,
    Marginals,
    Points,
    PointsBasis,
    Predictor,
    directions,
    log_standard_normal,
    prior_factor,
    whitened_features,
)

__all__ = ["Projection", "Unwhitened", "Whitened"]


class Projection(AbstractProjection):
    """q(f) through whitened features aᵢ = L⁻¹k_ui; m and S are those of v = L⁻¹u:
        E f(x) = aᵀm        V f(x) = aᵀSa + (k(x, x) − ‖a‖²).
    `log_prior` is E_q[log p(u)]. The entropy of q(u) is that of the field `q`; natural steps do not compute it.
    """

    stacks: ClassVar[bool] = True
    basis: PointsBasis
    mean: Float[Array, " M"]
    cov: Float[Array, "M M"]
    log_prior: Scalar
    q: AbstractGaussian

    @property
    def divergence(self) -> Scalar:
        return -self.log_prior - self.q.entropy()

    def marginals_at(self, rows: Any) -> Marginals:
        """aᵀm, aᵀSa and dᵢ."""
        A, residual = whitened_features(self.basis.Kuu, *rows)
        return Marginals(self.mean @ A, quad_diag(self.cov, A), residual)

    def moments_at(self, rows: Any) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """aᵀm and k(x, x) + aᵀ(S − I)a."""
        Kux, prior = rows
        return self.basis.Kuu.moments(Kux, prior, self.mean, self.cov)

    def predictor(self) -> Predictor:
        """α = L⁻ᵀm, W = QᵀL⁻¹ with S = Q diag(s) Qᵀ."""
        at = self.basis
        alpha, along = at.Kuu.inverse.T @ self.mean, directions(self.cov, at.Kuu.inverse)
        return Predictor(at.kernel, at.Z, alpha, at.Z, *along, at.Kuu.jitter, True)


def _basis(kernel, posterior) -> PointsBasis:
    Z = jnp.asarray(posterior.Z)
    return PointsBasis(kernel, Z, prior_factor(kernel, Z, posterior.jitter))


class Whitened(AbstractPosterior):
    """q is the distribution of v = L⁻¹u, whose prior is N(0, I). This is better conditioned than q(u), and q(u) follows
    the prior when the kernel changes."""

    Z: Points
    q: AbstractGaussian
    jitter: float | None = eqx.field(static=True, default=None)

    def basis(self, kernel: AbstractKernel) -> PointsBasis:
        """One factorisation, of K_uu."""
        return _basis(kernel, self)

    def on(self, basis: PointsBasis) -> Projection:
        """E_q[log p(v)] = −½(tr S + ‖m‖²) − ½M log 2π."""
        mean, cov = jnp.asarray(self.q.mean), self.q.covariance()
        return Projection(basis, mean, cov, log_standard_normal(mean, cov), self.q)


class Unwhitened(AbstractPosterior):
    """q is the distribution of u = f(Z), as the papers write it (Kobe 2.25)."""

    Z: Points
    q: AbstractGaussian
    jitter: float | None = eqx.field(static=True, default=None)

    def basis(self, kernel: AbstractKernel) -> PointsBasis:
        """One factorisation, of K_uu."""
        return _basis(kernel, self)

    def on(self, basis: PointsBasis) -> Projection:
        """v = L⁻¹u: mean L⁻¹m, covariance L⁻¹SL⁻ᵀ, and log p(u) = log p(v) − ½ log |K_uu|."""
        Kuu = basis.Kuu
        mean = Kuu.whiten(jnp.asarray(self.q.mean)[:, None])[:, 0]
        cov = Kuu.whiten(Kuu.whiten(self.q.covariance()).T)
        return Projection(basis, mean, cov, log_standard_normal(mean, cov) - Kuu.half_logdet(), self.q)
