"""Pseudo-points whose precision is the prior's plus a diagonal: 2M numbers instead of M + M(M + 1)/2.

Opper and Archambeau 2009 at Z = X; Panos et al. 2018 and Kobe 2021 (3.5) to (3.7) for any Z.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..kernels import AbstractKernel
from ..linalg import Factor, Scalar, default_jitter, dots, factorise
from ..params import Number, clipped, positive, real, softplus
from .base import AbstractBasis, AbstractPosterior, AbstractProjection, Marginals, Points, Predictor

__all__ = [
    "AbstractPrecisionCoordinates",
    "AbstractWeights",
    "CovarianceBasis",
    "DirectPrecision",
    "LogPrecision",
    "PseudoObservations",
    "DiagonalPrecision",
    "DiagonalPrecisionProjection",
    "SoftplusPrecision",
]

Vector = Float[Number, "*C M"]


class AbstractPrecisionCoordinates(eqx.Module):
    """q(u) = N(Kμ, (K⁻¹ + diag g)⁻¹), g > 0, of a `DiagonalPrecision`: g, [M], and μ or what gives it.

    The classes differ in what stays as it is while K moves, and in how an ordinary optimiser moves g; natural steps
    take g as it is. They raise ValueError where a given g is not positive.
    """

    g: eqx.AbstractVar[Vector]

    @abstractmethod
    def weights(self, K: Float[Array, "M M"], g: Vector, B: Factor) -> Vector:
        """μ, where B = I + G^½KG^½ and `g` has the posterior's jitter."""

    @abstractmethod
    def moved(
        self, mu: Vector, g: Vector, K: Float[Array, "*K M M"], jittered: Vector
    ) -> "AbstractPrecisionCoordinates":
        """The same coordinates of another μ and g, `jittered` by the posterior."""


class PseudoObservations(AbstractPrecisionCoordinates):
    """θ and g = exp(ξ): q(u) ∝ p(u) Πᵢ exp(θᵢuᵢ − ½gᵢuᵢ²), the prior and Gaussian observations θᵢ/gᵢ of variance 1/gᵢ.

    With both held q follows the prior as hyperparameters move and stays near its optimum; with μ held it does not (see
    `optimise.minibatch.diagonal`). They are natural parameters of the family, θ = S⁻¹m = (I + GK)μ (Kobe 2021, 3.5,
    in other coordinates; for a dense G, Adam, Chang, Khan and Solin 2021); at g → 0 θ is μ.
    """

    theta: Vector = real()
    g: Vector = positive()

    def weights(self, K: Float[Array, "M M"], g: Vector, B: Factor) -> Vector:
        """(I + GK)⁻¹θ = θ − G^½B⁻¹G^½Kθ."""
        theta, root = jnp.asarray(self.theta), jnp.sqrt(g)
        return theta - root * B.solve(root * (K @ theta))

    def moved(
        self, mu: Vector, g: Vector, K: Float[Array, "*K M M"], jittered: Vector
    ) -> "AbstractPrecisionCoordinates":
        """θ = (I + GK)μ."""
        return eqx.tree_at(lambda q: (q.theta, q.g), self, (mu + jittered * (K @ mu[..., None])[..., 0], g))


class AbstractWeights(AbstractPrecisionCoordinates):
    """μ itself, as Kobe has it."""

    mu: eqx.AbstractVar[Vector]

    def weights(self, K: Float[Array, "M M"], g: Vector, B: Factor) -> Vector:
        """μ."""
        return jnp.asarray(self.mu)

    def moved(
        self, mu: Vector, g: Vector, K: Float[Array, "*K M M"], jittered: Vector
    ) -> "AbstractPrecisionCoordinates":
        """μ and g."""
        return eqx.tree_at(lambda q: (q.mu, q.g), self, (mu, g))


class LogPrecision(AbstractWeights):
    """g = exp(ξ): a step is a relative change."""

    mu: Vector = real()
    g: Vector = positive()


class SoftplusPrecision(AbstractWeights):
    """g = log(1 + exp(ξ)), as Kobe proposes for likelihoods that are not Gaussian: linear for large g."""

    mu: Vector = real()
    g: Vector = softplus()


class DirectPrecision(AbstractWeights):
    """g = max(ξ, 1e-10): g itself, without a constraint as Kobe has it, but a step cannot end at or below zero."""

    mu: Vector = real()
    g: Vector = clipped(1e-10)


class CovarianceBasis(AbstractBasis):
    """Points Z, K = K_uu without jitter and without a factor, and the jitter for G⁻¹."""

    kernel: AbstractKernel
    Z: Float[Array, "M D"]
    K: Float[Array, "M M"]
    jitter: Scalar

    def rows(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "M N"], Float[Array, " N"]]:
        """k(Z, X) and kᵢᵢ."""
        return self.kernel(self.Z, X), self.kernel.diag(X)


class DiagonalPrecisionProjection(AbstractProjection):
    """q(f) of q(u) = N(Kμ, S), S = (K⁻¹ + G)⁻¹, from the factor of B = I + G^½KG^½ = LLᵀ alone. With D = L⁻¹G^½,
        (K + G⁻¹)⁻¹ = DᵀD,        S = K − (DK)ᵀDK                                   (Kobe 3.5)
        E f(x) = k(x, Z)μ,        V f(x) = k(x, x) − ‖D k(Z, x)‖²                   (Kobe 3.6, its erratum).
    B is K + G⁻¹ with both sides scaled by G^½: no eigenvalue is below 1, also where K is singular or g → 0.
    """

    basis: CovarianceBasis
    mu: Float[Array, " M"]
    g: Float[Array, " M"]
    B: Factor

    @property
    def divergence(self) -> Scalar:
        """KL[q ‖ p] = ½ μᵀKμ − ½ tr((K + G⁻¹)⁻¹K) + ½ log |K + G⁻¹| − ½ log |G⁻¹|                   (Kobe 3.7)
        = ½ μᵀKμ − ½ (M − tr B⁻¹) + ½ log |B|, for G^½KG^½ = B − I. K⁻¹ and log |K| have cancelled.
        """
        K, M = self.basis.K, len(self.mu)
        # tr B⁻¹ = ‖L⁻¹‖²
        trace = jnp.sum(self.B.whiten(jnp.eye(M, dtype=K.dtype)) ** 2)
        return 0.5 * (self.mu @ (K @ self.mu) - (M - trace)) + self.B.half_logdet()

    def marginals_at(self, rows: Any) -> Marginals:
        """V f comes as a whole, so all of it counts as explained and the residual is 0: there is nothing for the tight
        bound to shrink, and both values of `bounds.elbo` are the standard bound.
        """
        Kux, prior = rows
        down = self.B.whiten(jnp.sqrt(self.g)[:, None] * Kux)
        # Beneath what the difference resolves a variance is rounding error, and at 0 its root has no derivative.
        variance = jnp.maximum(prior - dots(down, down), jnp.finfo(Kux.dtype).eps * prior)
        return Marginals(Kux.T @ self.mu, variance, jnp.zeros_like(variance))

    def predictor(self) -> Predictor:
        """α = μ, W = L⁻¹G^½, s = 0."""
        at, W = self.basis, self.B.inverse * jnp.sqrt(self.g)
        return Predictor(at.kernel, at.Z, self.mu, at.Z, W, jnp.zeros_like(self.g), at.jitter, True)

    def covariance(self) -> Float[Array, "M M"]:
        """S = K − (DK)ᵀDK of q(u)."""
        K = self.basis.K
        DK = (self.B.inverse * jnp.sqrt(self.g)) @ K
        return K - DK.T @ DK


class DiagonalPrecision(AbstractPosterior):
    """q(u) = N(Kμ, (K⁻¹ + diag g)⁻¹): the efficient O(M) parameterisation (Kobe 2021, 3.5).

    The best mean of any Gaussian q is in it; the best covariance is where Z = X, and otherwise nearly so if each row
    has few pseudo-points near. `q` is an `AbstractPrecisionCoordinates`. The jitter ε (relative to the mean of K's
    diagonal k̄) is added to G⁻¹, which makes of g the pseudo-precision g/(1 + εk̄g) ≤ 1/(εk̄): K itself has none, and 0
    is allowed.
    """

    Z: Points
    q: AbstractPrecisionCoordinates
    jitter: float | None = eqx.field(static=True, default=None)

    def basis(self, kernel: AbstractKernel) -> CovarianceBasis:
        """No factorisation: that of B depends on q."""
        Z = jnp.asarray(self.Z)
        K = kernel(Z, Z)
        jitter = (default_jitter(Z.dtype) if self.jitter is None else self.jitter) * jnp.mean(jnp.diagonal(K))
        return CovarianceBasis(kernel, Z, K, jitter)

    def on(self, basis: CovarianceBasis) -> DiagonalPrecisionProjection:
        """One factorisation, of I + G^½KG^½."""
        K, g = basis.K, jnp.asarray(self.q.g)
        # (G⁻¹ + εk̄)⁻¹
        g = g / (1 + basis.jitter * g)
        root = jnp.sqrt(g)
        # Where rounding alone has pushed an eigenvalue of K below −1/g, B takes a jitter: the divergence is then too
        # large, so that a bound stays one.
        B = factorise(jnp.eye(len(g), dtype=K.dtype) + root[:, None] * K * root)
        return DiagonalPrecisionProjection(basis, self.q.weights(K, g, B), g, B)
