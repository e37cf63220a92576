"""Coordinate systems of one Gaussian q = N(m, S).

The fields of a class are its coordinates ξ; three maps tie it to the natural parameters θ = (S⁻¹m, −½S⁻¹). No jitter
enters any of them: 1e-6 on a covariance of 1e-4 would be a different posterior.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .linalg import Scalar, cholesky, inverse_of_chol
from .params import Number

__all__ = ["AbstractGaussian", "MeanChol", "MeanCovariance", "MeanPrecision", "Natural", "forward", "natural_gradient"]

# Several latent functions have a leading axis; the maps work on one, and are vmapped.
Vector = Float[Number, "*C M"]
Matrix = Float[Number, "*C M M"]


Q = TypeVar("Q", bound="AbstractGaussian")


class Natural(NamedTuple):
    """θ₁ = S⁻¹m [M] and Θ₂ = −½ S⁻¹ [M, M]."""

    theta1: Vector
    theta2: Matrix


class AbstractGaussian(eqx.Module):
    """N(m, S) in some coordinates."""

    mean: eqx.AbstractVar[Vector]

    @abstractmethod
    def covariance(self) -> Float[Array, "M M"]:
        """S."""

    @abstractmethod
    def root(self) -> Float[Array, "M M"]:
        """R with S = RRᵀ."""

    @abstractmethod
    def half_logdet(self) -> Scalar:
        """½ log |S|."""

    @abstractmethod
    def to_natural(self) -> Natural:
        """ξ ↦ θ."""

    @staticmethod
    @abstractmethod
    def from_natural(theta: Natural) -> "AbstractGaussian":
        """θ ↦ ξ."""

    def entropy(self) -> Scalar:
        """½ log |2πe S|."""
        return 0.5 * self.mean.shape[0] * (1 + jnp.log(2 * jnp.pi)) + self.half_logdet()


class MeanCovariance(AbstractGaussian):
    """ξ = (m, S): the coordinates in which an expectation is differentiated."""

    mean: Vector
    cov: Matrix

    def covariance(self) -> Float[Array, "M M"]:
        """S."""
        return jnp.asarray(self.cov)

    def root(self) -> Float[Array, "M M"]:
        """chol(S)."""
        return cholesky(self.cov)

    def half_logdet(self) -> Scalar:
        """Σ log chol(S)ᵢᵢ."""
        return _half_logdet(cholesky(self.cov))

    def to_natural(self) -> Natural:
        """(S⁻¹m, −½S⁻¹)."""
        precision = _inverse(self.cov)
        return Natural(precision @ self.mean, -0.5 * precision)

    @staticmethod
    def from_natural(theta: Natural) -> "MeanCovariance":
        """S = (−2Θ₂)⁻¹, m = Sθ₁."""
        cov = _inverse(-2 * theta.theta2)
        return MeanCovariance(cov @ theta.theta1, cov)


class MeanChol(AbstractGaussian):
    """ξ = (m, L), S = LLᵀ: the coordinates for ordinary gradients. Only the lower triangle of `chol` is read."""

    mean: Vector
    chol: Matrix

    def covariance(self) -> Float[Array, "M M"]:
        """LLᵀ."""
        L = self.root()
        return L @ L.T

    def root(self) -> Float[Array, "M M"]:
        """L."""
        return jnp.tril(self.chol)

    def half_logdet(self) -> Scalar:
        """Σ log |Lᵢᵢ|."""
        return jnp.sum(jnp.log(jnp.abs(jnp.diagonal(self.chol))))

    def to_natural(self) -> Natural:
        """S⁻¹ = L⁻ᵀL⁻¹."""
        inverse = inverse_of_chol(jnp.tril(self.chol))
        precision = inverse.T @ inverse
        return Natural(precision @ self.mean, -0.5 * precision)

    @staticmethod
    def from_natural(theta: Natural) -> "MeanChol":
        """L = chol((−2Θ₂)⁻¹), m = LLᵀθ₁."""
        L = cholesky(_inverse(-2 * theta.theta2))
        return MeanChol(L @ (L.T @ theta.theta1), L)


class MeanPrecision(AbstractGaussian):
    """ξ = (m, P), P = S⁻¹: the coordinates in which a natural step is a weighted average (methods d.1)."""

    mean: Vector
    precision: Matrix

    def covariance(self) -> Float[Array, "M M"]:
        """P⁻¹."""
        return _inverse(self.precision)

    def root(self) -> Float[Array, "M M"]:
        """L⁻ᵀ."""
        return inverse_of_chol(cholesky(self.precision)).T

    def half_logdet(self) -> Scalar:
        """−Σ log chol(P)ᵢᵢ."""
        return -_half_logdet(cholesky(self.precision))

    def to_natural(self) -> Natural:
        """(Pm, −½P)."""
        return Natural(self.precision @ self.mean, -0.5 * jnp.asarray(self.precision))

    @staticmethod
    def from_natural(theta: Natural) -> "MeanPrecision":
        """P = −2Θ₂, m = P⁻¹θ₁."""
        precision = -2 * theta.theta2
        return MeanPrecision(_inverse(precision) @ theta.theta1, precision)


def _inverse(S):
    inverse = inverse_of_chol(cholesky(S))
    return inverse.T @ inverse


def _half_logdet(L):
    return jnp.sum(jnp.log(jnp.diagonal(L)))


def forward(q: Q, direction: Natural) -> Q:
    """(∂ξ/∂θ) Δθ: how the coordinates of q change as θ goes in a direction (Salimbeni et al. 2018, (10)).

    By forward mode: no Jacobian is formed, and no Fisher matrix is inverted.
    """
    # Any: the class is q's own.
    cls: Any = type(q)
    _, tangent = jax.jvp(cls.from_natural, (q.to_natural(),), (direction,))
    return tangent


def natural_gradient(loss: Callable[[Any], Scalar], q: Q) -> Q:
    """The natural gradient (∂ξ/∂θ) ∂L/∂η of any function of q, in q's own coordinates: F(ξ)⁻¹ ∂L/∂ξ.

    η = (m, S + mmᵀ) are the expectation parameters; ∂L/∂η₁ = ∂L/∂m − 2 (∂L/∂S) m and ∂L/∂η₂ = ∂L/∂S are the same
    whatever the coordinates. `loss` is called with `MeanCovariance(m, S)`.
    """
    mean, cov = jnp.asarray(q.mean), q.covariance()
    slope = jax.grad(loss)(MeanCovariance(mean, cov))
    return forward(q, to_expectation_slope(mean, slope))


def to_expectation_slope(mean: Float[Array, " M"], slope: MeanCovariance) -> Natural:
    """∂L/∂η from ∂L/∂m and ∂L/∂S: a direction of θ."""
    dS = 0.5 * (slope.cov + slope.cov.T)
    return Natural(slope.mean - 2 * dS @ mean, dS)
