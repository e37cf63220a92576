"""Pseudo-points with any Gaussian q, whitened or not."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..gaussians import AbstractGaussian
from ..kernels import AbstractKernel
from ..linalg import Factor, Scalar, quad_diag
from .base import (
    AbstractPosterior,
    AbstractProjection,
    Marginals,
    Points,
    Predictor,
    directions,
    features,
    log_standard_normal,
    prior_factor,
)

__all__ = ["AtRows", "Collapsed", "Projection", "Unwhitened", "Whitened"]


class Projection(AbstractProjection):
    """q(f) through whitened features aᵢ = L⁻¹k_ui; m and S are those of v = L⁻¹u:
        E f(x) = aᵀm        V f(x) = aᵀSa + (k(x, x) − ‖a‖²).
    `log_prior` is E_q[log p(u)], `q` has the entropy of q(u), which a natural step never asks for.
    """

    shared: ClassVar[tuple[str, ...]] = ("kernel", "Z", "Kuu")
    stacks: ClassVar[bool] = True
    kernel: AbstractKernel
    Z: Float[Array, "M D"]
    Kuu: Factor
    mean: Float[Array, " M"]
    cov: Float[Array, "M M"]
    log_prior: Scalar
    q: AbstractGaussian

    @property
    def divergence(self) -> Scalar:
        """KL[q(u) ‖ p(u)]."""
        return -self.log_prior - self.q.entropy()

    def marginals(self, X: Float[Array, "N D"]) -> Marginals:
        """q(f) at the rows of X."""
        A, residual = features(self.kernel, self.Kuu, self.Z, X)
        return Marginals(self.mean @ A, quad_diag(self.cov, A), residual)

    def moments(self, X: Float[Array, "N D"]) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """aᵀm and k(x, x) + aᵀ(S − I)a."""
        return self.Kuu.moments(self.kernel(self.Z, X), self.kernel.diag(X), self.mean, self.cov)

    def predictor(self) -> Predictor:
        """α = L⁻ᵀm, W = QᵀL⁻¹ with S = Q diag(s) Qᵀ."""
        alpha, along = self.Kuu.inverse.T @ self.mean, directions(self.cov, self.Kuu.inverse)
        return Predictor(self.kernel, self.Z, alpha, self.Z, *along, self.Kuu.jitter, True)


class Collapsed(eqx.Module):
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
        Z = jnp.asarray(self.Z)
        return _whitened(kernel, Z, prior_factor(kernel, Z, self.jitter), self.q)

    def at(self, kernel: AbstractKernel, X: Float[Array, "N D"]) -> "AtRows":
        """With K_uu, its factor and K_uf."""
        Z = jnp.asarray(self.Z)
        values = KnownKernel(kernel(Z, X), kernel.diag(X))
        Kuu = prior_factor(kernel, Z, self.jitter)
        return AtRows(Z=Z, q=self.q, Kuu=Kuu, values=values, jitter=self.jitter)


class KnownKernel(AbstractKernel):
    """The values of a kernel between certain points and rows, which it gives whatever it is asked for."""

    cross: Float[Array, "M N"]
    prior: Float[Array, " N"]

    def __call__(self, X: Float[Array, "M D"], Z: Float[Array, "N D"]) -> Float[Array, "M N"]:
        """[k(xᵢ, zⱼ)]."""
        return self.cross

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """[k(xᵢ, xᵢ)]."""
        return self.prior


class AtRows(AbstractPosterior):
    """`Whitened` by one kernel at the rows of one table, where all that q has no part in is known. It predicts nothing
    else."""

    Z: Points
    q: AbstractGaussian
    Kuu: Factor
    values: KnownKernel
    jitter: float | None = eqx.field(static=True, default=None)

    def project(self, kernel: AbstractKernel) -> Projection:
        """As `Whitened`; the kernel is that of the values, and is not asked again."""
        return _whitened(self.values, self.Z, self.Kuu, self.q)


def _whitened(kernel, Z, Kuu, q) -> Projection:
    mean, cov = jnp.asarray(q.mean), q.covariance()
    return Projection(kernel, Z, Kuu, mean, cov, log_standard_normal(mean, cov), q)


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
        log_prior = log_standard_normal(mean, cov) - Kuu.half_logdet()
        return Projection(kernel, Z, Kuu, mean, cov, log_prior, self.q)
