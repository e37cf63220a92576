"""Coordinate systems of one Gaussian q = N(m, S).

The fields of a class are its coordinates ξ; two maps tie it to the natural parameters θ = (S⁻¹m, −½S⁻¹), the centre of
the star (Salimbeni et al. 2018, section 4). With their names for those that they consider:

    Natural           θ₁ = S⁻¹m, Θ₂ = −½S⁻¹              natural
    NaturalChol       θ₁ and L,  LLᵀ = −Θ₂               natural-sqrt
    NaturalLog        θ₁ and L,  exp(L) = −Θ₂            natural-log
    Expectation       η₁ = m,    H₂ = S + mmᵀ
    MeanCovariance    m and S                            mean/var
    MeanChol          m and L,   LLᵀ = S                 mean/var-sqrt
    MeanLog           m and L,   exp(L) = S              mean/var-log
    MeanPrecision     m and P = S⁻¹

Matrices are full arrays of M² numbers. Symmetric ones are read symmetrised and triangular ones below the diagonal, so
that an ordinary gradient keeps them what they are. With the others a step may end where no Gaussian is (entropy NaN);
with square roots and logarithms it cannot. No jitter enters any map: 1e-6 on a covariance of 1e-4 would be a different
posterior.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..linalg import (
    Scalar,
    cholesky,
    exp_symmetric,
    inverse_of_chol,
    invert,
    log_symmetric,
    lower_transposed_product,
    square,
    symmetric,
)
from ..params import Number

__all__ = [
    "AbstractGaussian",
    "AbstractViaNatural",
    "Expectation",
    "MeanChol",
    "MeanCovariance",
    "MeanLog",
    "MeanPrecision",
    "Natural",
    "NaturalChol",
    "NaturalLog",
    "forward",
    "natural_gradient",
    "step_along",
    "to_expectation_slope",
]

# Several latent functions have a leading axis; the maps work on one, and are vmapped.
Vector = Float[Number, "*C M"]
Matrix = Float[Number, "*C M M"]


Q = TypeVar("Q", bound="AbstractGaussian")


class AbstractGaussian(eqx.Module):
    """N(m, S) in some coordinates."""

    # A field of some classes and a property of others, which a type checker would take for an argument of those.
    if TYPE_CHECKING:

        @property
        def mean(self) -> Any:
            """m."""
            ...

    else:
        mean: eqx.AbstractVar[Vector]

    @abstractmethod
    def covariance(self) -> Float[Array, "M M"]:
        """S."""

    @abstractmethod
    def half_logdet(self) -> Scalar:
        """½ log |S|."""

    @abstractmethod
    def to_natural(self) -> "Natural":
        """ξ ↦ θ."""

    @staticmethod
    @abstractmethod
    def from_natural(theta: "Natural") -> "AbstractGaussian":
        """θ ↦ ξ."""

    def entropy(self) -> Scalar:
        """½ log |2πe S|; NaN where S is not positive definite."""
        return 0.5 * self.mean.shape[0] * (1 + jnp.log(2 * jnp.pi)) + self.half_logdet()


class AbstractViaNatural(AbstractGaussian):
    """Coordinates that are their two maps: all else follows from θ, with P = −2Θ₂."""

    @property
    def mean(self) -> Float[Array, " M"]:
        """P⁻¹θ₁."""
        theta = self.to_natural()
        return invert(theta.precision())[0] @ theta.theta1

    def covariance(self) -> Float[Array, "M M"]:
        """P⁻¹."""
        return invert(self.to_natural().precision())[0]

    def half_logdet(self) -> Scalar:
        """−Σ log chol(P)ᵢᵢ."""
        return -_log_diagonal(cholesky(self.to_natural().precision()))


class Natural(AbstractViaNatural):
    """θ₁ = S⁻¹m [M] and Θ₂ = −½S⁻¹ [M, M]: a natural step of size 1 solves what is conjugate."""

    theta1: Vector
    theta2: Matrix

    def precision(self) -> Float[Array, "M M"]:
        """P = −2Θ₂."""
        return jnp.asarray(-2 * symmetric(self.theta2))

    def to_natural(self) -> "Natural":
        """θ."""
        return self

    @staticmethod
    def from_natural(theta: "Natural") -> "Natural":
        """θ."""
        return theta


class NaturalChol(AbstractGaussian):
    """ξ = (θ₁, L), −Θ₂ = LLᵀ, so P = 2LLᵀ. Only the lower triangle of `chol` is read."""

    theta1: Vector
    chol: Matrix

    @property
    def mean(self) -> Float[Array, " M"]:
        """½ L⁻ᵀL⁻¹θ₁."""
        inverse = inverse_of_chol(jnp.tril(self.chol))
        return 0.5 * (inverse.T @ (inverse @ self.theta1))

    def covariance(self) -> Float[Array, "M M"]:
        """½ L⁻ᵀL⁻¹."""
        inverse = inverse_of_chol(jnp.tril(self.chol))
        return 0.5 * lower_transposed_product(inverse, inverse)

    def half_logdet(self) -> Scalar:
        """−Σ log √2|Lᵢᵢ|."""
        return -_log_diagonal(jnp.sqrt(2.0) * self.chol)

    def to_natural(self) -> Natural:
        """Θ₂ = −LLᵀ."""
        L = jnp.tril(self.chol)
        return Natural(jnp.asarray(self.theta1), -L @ L.T)

    @staticmethod
    def from_natural(theta: Natural) -> "NaturalChol":
        """L = chol(P/2)."""
        return NaturalChol(theta.theta1, cholesky(0.5 * theta.precision()))


class NaturalLog(AbstractGaussian):
    """ξ = (θ₁, L), −Θ₂ = exp(L), so P = 2 exp(L)."""

    theta1: Vector
    log: Matrix

    @property
    def mean(self) -> Float[Array, " M"]:
        """½ exp(−L)θ₁."""
        return self.covariance() @ self.theta1

    def covariance(self) -> Float[Array, "M M"]:
        """½ exp(−L)."""
        return 0.5 * exp_symmetric(-self.log)

    def half_logdet(self) -> Scalar:
        """−½ (tr L + M log 2)."""
        return -0.5 * (jnp.trace(self.log) + self.log.shape[0] * jnp.log(2.0))

    def to_natural(self) -> Natural:
        """Θ₂ = −exp(L)."""
        return Natural(jnp.asarray(self.theta1), -exp_symmetric(self.log))

    @staticmethod
    def from_natural(theta: Natural) -> "NaturalLog":
        """L = log(P/2)."""
        return NaturalLog(theta.theta1, log_symmetric(0.5 * theta.precision()))


class Expectation(AbstractViaNatural):
    """η₁ = m and H₂ = S + mmᵀ, the means of u and uuᵀ. Where |m|² is far above S, the sum has lost digits of S."""

    eta1: Vector
    eta2: Matrix

    def to_natural(self) -> Natural:
        """S = H₂ − mmᵀ."""
        return MeanCovariance(self.eta1, symmetric(self.eta2) - jnp.outer(self.eta1, self.eta1)).to_natural()

    @staticmethod
    def from_natural(theta: Natural) -> "Expectation":
        """H₂ = S + mmᵀ."""
        q = MeanCovariance.from_natural(theta)
        return Expectation(q.mean, q.cov + jnp.outer(q.mean, q.mean))


class MeanCovariance(AbstractGaussian):
    """ξ = (m, S): the coordinates in which an expectation is differentiated. An S that is `known` to be symmetric is
    read as it is: to read it across, and its slope, takes a twentieth of a natural step."""

    mean: Vector
    cov: Matrix
    known: bool = eqx.field(static=True, default=False)

    def covariance(self) -> Float[Array, "M M"]:
        """S."""
        return jnp.asarray(self.cov if self.known else symmetric(self.cov))

    def half_logdet(self) -> Scalar:
        """Σ log chol(S)ᵢᵢ."""
        return _log_diagonal(cholesky(symmetric(self.cov)))

    def to_natural(self) -> Natural:
        """(S⁻¹m, −½S⁻¹)."""
        precision = invert(symmetric(self.cov))[0]
        return Natural(precision @ self.mean, -0.5 * precision)

    @staticmethod
    def from_natural(theta: Natural) -> "MeanCovariance":
        """S = (−2Θ₂)⁻¹, m = Sθ₁."""
        cov = invert(theta.precision())[0]
        return MeanCovariance(cov @ theta.theta1, cov)


class MeanChol(AbstractGaussian):
    """ξ = (m, L), S = LLᵀ: the coordinates for ordinary gradients. Only the lower triangle of `chol` is read."""

    mean: Vector
    chol: Matrix

    def covariance(self) -> Float[Array, "M M"]:
        """LLᵀ."""
        return square(jnp.tril(self.chol))

    def half_logdet(self) -> Scalar:
        """Σ log |Lᵢᵢ|."""
        return _log_diagonal(self.chol)

    def to_natural(self) -> Natural:
        """S⁻¹ = L⁻ᵀL⁻¹."""
        inverse = inverse_of_chol(jnp.tril(self.chol))
        precision = lower_transposed_product(inverse, inverse)
        return Natural(precision @ self.mean, -0.5 * precision)

    @staticmethod
    def from_natural(theta: Natural) -> "MeanChol":
        """L = chol((−2Θ₂)⁻¹), m = LLᵀθ₁."""
        L = cholesky(invert(theta.precision())[0])
        return MeanChol(L @ (L.T @ theta.theta1), L)


class MeanLog(AbstractGaussian):
    """ξ = (m, L), S = exp(L): to ordinary gradients, scales of 1e-6 and 1e6 are alike."""

    mean: Vector
    log: Matrix

    def covariance(self) -> Float[Array, "M M"]:
        """exp(L)."""
        return exp_symmetric(self.log)

    def half_logdet(self) -> Scalar:
        """½ tr L."""
        return 0.5 * jnp.trace(self.log)

    def to_natural(self) -> Natural:
        """S⁻¹ = exp(−L)."""
        precision = exp_symmetric(-self.log)
        return Natural(precision @ self.mean, -0.5 * precision)

    @staticmethod
    def from_natural(theta: Natural) -> "MeanLog":
        """L = −log P, m = P⁻¹θ₁."""
        precision = theta.precision()
        return MeanLog(invert(precision)[0] @ theta.theta1, -log_symmetric(precision))


class MeanPrecision(AbstractGaussian):
    """ξ = (m, P), P = S⁻¹: the coordinates in which a natural step is a weighted average (methods d.1)."""

    mean: Vector
    precision: Matrix

    def covariance(self) -> Float[Array, "M M"]:
        """P⁻¹."""
        return invert(symmetric(self.precision))[0]

    def half_logdet(self) -> Scalar:
        """−Σ log chol(P)ᵢᵢ."""
        return -_log_diagonal(cholesky(symmetric(self.precision)))

    def to_natural(self) -> Natural:
        """(Pm, −½P)."""
        P = jnp.asarray(symmetric(self.precision))
        return Natural(P @ self.mean, -0.5 * P)

    @staticmethod
    def from_natural(theta: Natural) -> "MeanPrecision":
        """P = −2Θ₂, m = P⁻¹θ₁."""
        precision = theta.precision()
        return MeanPrecision(invert(precision)[0] @ theta.theta1, precision)


def _log_diagonal(L):
    # A root's diagonal may be negative; a failed Cholesky factor is NaN.
    return jnp.sum(jnp.log(jnp.abs(jnp.diagonal(L))))


def forward(q: Q, direction: Natural) -> Q:
    """(∂ξ/∂θ) Δθ: how the coordinates of q change as θ goes in a direction (Salimbeni et al. 2018, (10)).

    By forward mode: no Jacobian is formed, and no Fisher matrix is inverted. A root's columns are taken with the signs
    that `from_natural` gives them, a positive diagonal.
    """
    return _push(q, direction)[1]


def step_along(q: Q, direction: Natural, gamma: Any) -> Q:
    """ξ + γ (∂ξ/∂θ) Δθ: a straight step in q's own coordinates (Salimbeni et al. 2018, (5) and (10)).

    ξ is read anew from θ: a root whose diagonal has crossed zero is another one of the same q, with another direction.
    """
    return jax.tree.map(lambda xi, change: xi + gamma * change, *_push(q, direction))


def _push(q, direction):
    # Any: the class is q's own.
    cls: Any = type(q)
    return jax.jvp(cls.from_natural, (q.to_natural(),), (direction,))


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
