"""A Gaussian of M independent variables: 2M numbers."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..linalg import Scalar, invert
from ..params import positive
from .dense import AbstractGaussian, Natural, Vector

__all__ = ["MeanDiagonal"]


class MeanDiagonal(AbstractGaussian):
    """m and the diagonal p > 0 of P = S⁻¹, which an ordinary optimiser sees as log p.

    It is mean-field in v for `Whitened`, and a diagonal S in u for `Unwhitened`. `from_natural` maps any Gaussian to
    the nearest of these in KL[q ‖ ·]: its mean, and the diagonal of its *precision* (Bishop 2006, 10.1.2). Along a
    natural gradient of the dense q, that map gives
        Δm = S ∂L/∂m,        Δp = −2 diag(∂L/∂S),
    the natural gradient within the family, whose Fisher matrix diag(p, ½p⁻²) is diagonal. So `ForwardNaturalGradient`
    works unchanged: p ← (1 − γ)p + γ diag(P*). Near the optimum the mean's step is Jacobi's iteration for P*m = P*m*,
    which converges if γ < 2/λmax(diag(P*)⁻¹P*): γ = 2/M always does, γ = 1 may not.
    """

    mean: Vector
    precision: Vector = positive()

    def covariance(self) -> Float[Array, "M M"]:
        return jnp.diag(1 / jnp.asarray(self.precision))

    def half_logdet(self) -> Scalar:
        """−½ Σ log pᵢ; NaN where some pᵢ is negative."""
        return -0.5 * jnp.sum(jnp.log(jnp.asarray(self.precision)))

    def to_natural(self) -> Natural:
        p = jnp.asarray(self.precision)
        return Natural(p * self.mean, -0.5 * jnp.diag(p))

    @staticmethod
    def from_natural(theta: Natural) -> "MeanDiagonal":
        """m = P⁻¹θ₁ and the diagonal of P = −2Θ₂: exact only if P is diagonal."""
        P = theta.precision()
        return MeanDiagonal(invert(P)[0] @ theta.theta1, jnp.diagonal(P))
