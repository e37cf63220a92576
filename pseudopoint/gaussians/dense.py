"""Coordinate systems of one Gaussian q = N(m, S).

The fields of a class are its coordinates ξ. Two maps connect them to the natural parameters θ = (S⁻¹m, −½S⁻¹), through
which every other pair of coordinates is connected (Salimbeni et al. 2018, section 4, whose names stand on the right):

    Natural           θ₁ = S⁻¹m, Θ₂ = −½S⁻¹              natural
    NaturalChol       θ₁ and L,  LLᵀ = −Θ₂               natural-sqrt
    NaturalLog        θ₁ and L,  exp(L) = −Θ₂            natural-log
    Expectation       η₁ = m,    H₂ = S + mmᵀ
    MeanCovariance    m and S                            mean/var
    MeanChol          m and L,   LLᵀ = S                 mean/var-sqrt
    MeanLog           m and L,   exp(L) = S              mean/var-log
    MeanPrecision     m and P = S⁻¹

Matrices are full arrays of M² numbers. Only the symmetric part, or the lower triangle, is read, so that an ordinary
gradient stays within these coordinates. A step in the coordinates without square root or logarithm may end where no
Gaussian is (its entropy is NaN). No map adds jitter: 1e-6 on a covariance of 1e-4 would be a different posterior.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import linalg
from ..linalg import Scalar, cholesky, exp_symmetric, inverse_of_chol, invert, log_symmetric, symmetric
from ..params import Number

__all__ = ["AbstractGaussian", "AbstractViaNatural", "Expectation", "MeanChol", "MeanCovariance", "MeanLog"]
__all__ += ["MeanPrecision", "Natural", "NaturalChol", "NaturalLog", "forward", "natural_gradient", "step_along"]
__all__ += ["to_expectation_slope"]

# Several latent functions have a leading axis; the maps work on one, and are vmapped.
Vector = Float[Number, "*C M"]
Matrix = Float[Number, "*C M M"]
Q = TypeVar("Q", bound="AbstractGaussian")


class AbstractGaussian(eqx.Module):
    """N(m, S) in some coordinates ξ. What a class does not give follows from θ, with P = −2Θ₂."""

    # A field of some classes and a property of others, which a type checker would take for an argument of those.
    if TYPE_CHECKING:

        @property
        def mean(self) -> Any:
            """m."""
            ...

    else:
        mean: eqx.AbstractVar[Vector]

    @abstractmethod
    def to_natural(self) -> "Natural":
        """ξ ↦ θ."""

    @staticmethod
    @abstractmethod
    def from_natural(theta: "Natural") -> "AbstractGaussian":
        """θ ↦ ξ."""

    def covariance(self) -> Float[Array, "M M"]:
        """S."""
        return invert(self.to_natural().precision())[0]

    def half_logdet(self) -> Scalar:
        """½ log |S|."""
        return -_log_diagonal(cholesky(self.to_natural().precision()))

    def entropy(self) -> Scalar:
        """½ log |2πe S|; NaN where S is not positive definite."""
        return 0.5 * self.mean.shape[0] * (1 + jnp.log(2 * jnp.pi)) + self.half_logdet()


class AbstractViaNatural(AbstractGaussian):
    """Coordinates that consist of their two maps: the mean follows from θ, too."""

    @property
    def mean(self) -> Float[Array, " M"]:
        """P⁻¹θ₁."""
        theta = self.to_natural()
        return invert(theta.precision())[0] @ theta.theta1


class Natural(AbstractViaNatural):
    """θ₁ = S⁻¹m [M] and Θ₂ = −½S⁻¹ [M, M]. A natural step of size 1 solves a conjugate problem."""

    theta1: Vector
    theta2: Matrix

    def precision(self) -> Float[Array, "M M"]:
        """P = −2Θ₂."""
        return jnp.asarray(-2 * symmetric(self.theta2))

    def to_natural(self) -> "Natural":
        return self

    @staticmethod
    def from_natural(theta: "Natural") -> "Natural":
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
        return 0.5 * _inverse_of_square(self.chol)

    def half_logdet(self) -> Scalar:
        return -_log_diagonal(jnp.sqrt(2.0) * self.chol)

    def to_natural(self) -> Natural:
        L = jnp.tril(self.chol)
        return Natural(jnp.asarray(self.theta1), -L @ L.T)

    @staticmethod
    def from_natural(theta: Natural) -> "NaturalChol":
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
        return 0.5 * exp_symmetric(-self.log)

    def half_logdet(self) -> Scalar:
        return -0.5 * (jnp.trace(self.log) + self.log.shape[0] * jnp.log(2.0))

    def to_natural(self) -> Natural:
        return Natural(jnp.asarray(self.theta1), -exp_symmetric(self.log))

    @staticmethod
    def from_natural(theta: Natural) -> "NaturalLog":
        return NaturalLog(theta.theta1, log_symmetric(0.5 * theta.precision()))


class Expectation(AbstractViaNatural):
    """η₁ = m and H₂ = S + mmᵀ, the means of u and uuᵀ. If |m|² is far above S, the sum has lost digits of S."""

    eta1: Vector
    eta2: Matrix

    def to_natural(self) -> Natural:
        return MeanCovariance(self.eta1, symmetric(self.eta2) - jnp.outer(self.eta1, self.eta1)).to_natural()

    @staticmethod
    def from_natural(theta: Natural) -> "Expectation":
        q = MeanCovariance.from_natural(theta)
        return Expectation(q.mean, q.cov + jnp.outer(q.mean, q.mean))


class MeanCovariance(AbstractGaussian):
    """ξ = (m, S): the coordinates in which an expectation is differentiated.

    With `known`, S is symmetric and is read as it is, which saves a twentieth of a natural step.
    """

    mean: Vector
    cov: Matrix
    known: bool = eqx.field(static=True, default=False)

    def covariance(self) -> Float[Array, "M M"]:
        return jnp.asarray(self.cov if self.known else symmetric(self.cov))

    def half_logdet(self) -> Scalar:
        return _log_diagonal(cholesky(symmetric(self.cov)))

    def to_natural(self) -> Natural:
        return _natural(self.mean, invert(symmetric(self.cov))[0])

    @staticmethod
    def from_natural(theta: Natural) -> "MeanCovariance":
        cov = invert(theta.precision())[0]
        return MeanCovariance(cov @ theta.theta1, cov)


class MeanChol(AbstractGaussian):
    """ξ = (m, L), S = LLᵀ: the coordinates for ordinary gradients. Only the lower triangle of `chol` is read."""

    mean: Vector
    chol: Matrix

    def covariance(self) -> Float[Array, "M M"]:
        return linalg.square(jnp.tril(self.chol))

    def half_logdet(self) -> Scalar:
        return _log_diagonal(self.chol)

    def to_natural(self) -> Natural:
        return _natural(self.mean, _inverse_of_square(self.chol))

    @staticmethod
    def from_natural(theta: Natural) -> "MeanChol":
        L = cholesky(invert(theta.precision())[0])
        return MeanChol(L @ (L.T @ theta.theta1), L)


class MeanLog(AbstractGaussian):
    """ξ = (m, L), S = exp(L): ordinary gradients treat scales of 1e-6 and 1e6 alike."""

    mean: Vector
    log: Matrix

    def covariance(self) -> Float[Array, "M M"]:
        return exp_symmetric(self.log)

    def half_logdet(self) -> Scalar:
        return 0.5 * jnp.trace(self.log)

    def to_natural(self) -> Natural:
        return _natural(self.mean, exp_symmetric(-self.log))

    @staticmethod
    def from_natural(theta: Natural) -> "MeanLog":
        precision = theta.precision()
        return MeanLog(invert(precision)[0] @ theta.theta1, -log_symmetric(precision))


class MeanPrecision(AbstractGaussian):
    """ξ = (m, P), P = S⁻¹: the coordinates in which a natural step is a weighted average (methods d.1)."""

    mean: Vector
    precision: Matrix

    def to_natural(self) -> Natural:
        return _natural(self.mean, jnp.asarray(symmetric(self.precision)))

    @staticmethod
    def from_natural(theta: Natural) -> "MeanPrecision":
        precision = theta.precision()
        return MeanPrecision(invert(precision)[0] @ theta.theta1, precision)


def _natural(mean, precision):
    return Natural(precision @ mean, -0.5 * precision)


def _inverse_of_square(chol):
    """(LLᵀ)⁻¹ = L⁻ᵀL⁻¹ for the lower triangle L."""
    inverse = inverse_of_chol(jnp.tril(chol))
    return linalg.lower_transposed_product(inverse, inverse)


def _log_diagonal(L):
    # A root's diagonal may be negative; a failed Cholesky factor is NaN.
    return jnp.sum(jnp.log(jnp.abs(jnp.diagonal(L))))


def forward(q: Q, direction: Natural) -> Q:
    """(∂ξ/∂θ) Δθ: the change of q's coordinates as θ moves in a direction (Salimbeni et al. 2018, (10)).

    By forward mode: no Jacobian is formed, and no Fisher matrix is inverted. The columns of a root have the signs that
    `from_natural` gives them, with a positive diagonal.
    """
    return _coordinates_and_change(q, direction)[1]


def step_along(q: Q, direction: Natural, gamma: Any) -> Q:
    """ξ + γ (∂ξ/∂θ) Δθ: a straight step in q's own coordinates (Salimbeni et al. 2018, (5) and (10)).

    ξ is computed from θ: a root whose diagonal has crossed zero is replaced by the root with a positive one.
    """
    return jax.tree.map(lambda xi, change: xi + gamma * change, *_coordinates_and_change(q, direction))


def _coordinates_and_change(q, direction):
    # Any: the class is q's own.
    cls: Any = type(q)
    return jax.jvp(cls.from_natural, (q.to_natural(),), (direction,))


def natural_gradient(loss: Callable[[Any], Scalar], q: Q) -> Q:
    """The natural gradient (∂ξ/∂θ) ∂L/∂η of any function of q, in q's own coordinates: F(ξ)⁻¹ ∂L/∂ξ.

    η = (m, S + mmᵀ) are the expectation parameters; ∂L/∂η₁ = ∂L/∂m − 2 (∂L/∂S) m and ∂L/∂η₂ = ∂L/∂S are the same
    in all coordinates. `loss` is called with `MeanCovariance(m, S)`.
    """
    mean, cov = jnp.asarray(q.mean), q.covariance()
    slope = jax.grad(loss)(MeanCovariance(mean, cov))
    return forward(q, to_expectation_slope(mean, slope))


def to_expectation_slope(mean: Float[Array, " M"], slope: MeanCovariance) -> Natural:
    """∂L/∂η from ∂L/∂m and ∂L/∂S: a direction of θ."""
    dS = 0.5 * (slope.cov + slope.cov.T)
    return Natural(slope.mean - 2 * dS @ mean, dS)
