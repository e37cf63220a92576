"""A Gaussian of M independent variables: 2M numbers."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..linalg import Scalar, invert
from ..params import positive
from .dense import AbstractGaussian, Natural, Vector

__all__ = ["MeanDiagonal"]


class MeanDiagonal(AbstractGaussian):
    """m and the diagonal p > 0 of P = S⁻¹ (which an ordinary optimiser sees as log p): mean-field in v for `Whitened`,
    a diagonal S in u for `Unwhitened`.

    `from_natural` takes any Gaussian to the nearest of these in KL[q ‖ ·]: its mean, and the diagonal of its
    *precision* (Bishop 2006, 10.1.2). Pushed along a natural gradient of the dense q, that map gives
        Δm = S ∂L/∂m,        Δp = −2 diag(∂L/∂S),
    which is the natural gradient within the family, whose Fisher matrix diag(p, ½p⁻²) couples nothing. So
    `ForwardNaturalGradient` steps it as it is: p ← (1 − γ)p + γ diag(P*). Near its end the mean's step is that of
    Jacobi's iteration for P*m = P*m*, and needs γ < 2/λmax(diag(P*)⁻¹P*): 2/M is always safe, 1 need not be.
    """

    mean: Vector
    precision: Vector = positive()

    def covariance(self) -> Float[Array, "M M"]:
        """diag(1/p)."""
        return jnp.diag(1 / jnp.asarray(self.precision))

    def half_logdet(self) -> Scalar:
        """−½ Σ log pᵢ; NaN where some pᵢ is negative."""
        return -0.5 * jnp.sum(jnp.log(jnp.asarray(self.precision)))

    def to_natural(self) -> Natural:
        """(p∘m, −½ diag p)."""
        p = jnp.asarray(self.precision)
        return Natural(p * self.mean, -0.5 * jnp.diag(p))

    @staticmethod
    def from_natural(theta: Natural) -> "MeanDiagonal":
        """m = P⁻¹θ₁ and the diagonal of P = −2Θ₂: exact only where P is diagonal."""
        P = theta.precision()
        return MeanDiagonal(invert(P)[0] @ theta.theta1, jnp.diagonal(P))
