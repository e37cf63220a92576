"""A real target that is a monotone function of one with normal noise."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.polynomial.hermite_e import hermevander

from ..warps import AbstractWarp
from .base import AbstractLikelihood, Latent, Moments, PerRow
from .quadrature import rule

__all__ = ["Warped"]

NODES, WEIGHTS = rule(40)
DEGREES = 24  # of the Hermite series of a covariance; of e^(sz) the terms are s²ᵏ/k!


class Warped(AbstractLikelihood):
    """p(y | f) = p(w(y) | f) w′(y): `likelihood` describes the warped target w(y) (Snelson et al. 2003).

    The fit needs no bound of its own: it is that of w(y), whose log evidence differs from that of y by Σ log w′(yᵢ).
    Log densities, distribution functions and quantiles are exact. Mean, variance and covariance of y are those of a
    normal w(y): of a logarithm in closed form, of other warps by quadrature. Where noise depends on x or is Student's,
    w(y) is a mixture of normals, for which the mean of an exponential is infinite: there they are those of a normal
    w(y) in its place (`normal`).
    """

    likelihood: AbstractLikelihood
    warp: AbstractWarp

    @property
    def concave(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.likelihood.concave

    @property
    def name(self) -> str:
        return self.likelihood.name

    @property
    def latents(self) -> int:
        return self.likelihood.latents

    @property
    def warped(self) -> tuple[AbstractLikelihood, AbstractWarp]:
        """The likelihood of w(y), and w."""
        return self.likelihood, self.warp

    def log_prob(self, f: Latent, y: PerRow) -> PerRow:
        """log p(w(y) | f) + log w′(y); −∞ where w has no value."""
        return self._of_target(self.likelihood.log_prob(f, self.warp(y)), y)

    def log_density(self, mean: Latent, variance: Latent, y: PerRow) -> PerRow:
        """log E p(w(y) | f) + log w′(y)."""
        return self._of_target(self.likelihood.log_density(mean, variance, self.warp(y)), y)

    def _of_target(self, density, y):
        slope = self.warp.log_slope(y)
        known = jnp.isfinite(slope)
        return jnp.where(known, density + jnp.where(known, slope, 0), -jnp.inf)

    def moments(self, f: Latent) -> Moments:
        """Mean and variance of w⁻¹(f + ε)."""
        return self._integrated(*self.likelihood.normal(f, jnp.zeros_like(f)))

    def predict(self, mean: Latent, variance: Latent) -> Moments:
        """Mean and variance of w⁻¹(f + ε) for f ~ N(mean, variance)."""
        return self._integrated(*self.likelihood.normal(mean, variance))

    def without_noise(self, mean: Latent, variance: Latent) -> Moments:
        """Mean and variance of w⁻¹(f) for latent functions f, [N] or [C, N], of several for the first; the constant
        mean that an `Offset` inside adds is included."""
        if (constant := self.likelihood.parts()[1]) is not None:
            mean = mean + jnp.reshape(constant, (-1, 1) if mean.ndim > 1 else ())
        if mean.ndim == 1:
            return self._integrated(mean, variance)
        first = self._integrated(mean[0], variance[0])
        return Moments(jnp.vstack([first.mean, mean[1:]]), jnp.vstack([first.variance, variance[1:]]))

    def _integrated(self, mean, variance) -> Moments:
        """Of w(y) ~ N(mean, variance)."""
        at = mean[..., None] + jnp.sqrt(variance)[..., None] * jnp.asarray(NODES, mean.dtype)
        y, weights = self.warp.inverse(at), jnp.asarray(WEIGHTS, mean.dtype)
        first = y @ weights
        moments = Moments(first, (y - first[..., None]) ** 2 @ weights)
        if (exponential := self.warp.exponential()) is None:
            return moments
        a, b, c, everywhere = exponential
        expected = jnp.exp(a + b * mean + b**2 * variance / 2)
        lognormal = Moments(expected - c, expected**2 * jnp.expm1(b**2 * variance))
        return jax.tree.map(partial(jnp.where, everywhere), lognormal, moments)

    def cdf(self, f: Latent, y: PerRow) -> PerRow:
        """P(Y ≤ y | f) of w(y)."""
        return self.likelihood.cdf(f, self.warp(y))

    def predictive_cdf(self, mean: Latent, variance: Latent, y: PerRow) -> PerRow:
        """P(Y ≤ y) of w(y)."""
        return self.likelihood.predictive_cdf(mean, variance, self.warp(y))

    def latent(self, mean: Latent, variance: Latent) -> tuple[Latent, Latent]:
        """Those of w(y)."""
        return self.likelihood.latent(mean, variance)

    def covariance(
        self, mean: Float[np.ndarray, " N"], covariance: Float[np.ndarray, "N N"]
    ) -> Float[np.ndarray, "N N"]:
        """The covariance of y where w(y) is jointly normal with these, the noise included.

        With w⁻¹(μᵢ + sᵢξ) = Σₖ cᵢₖ Heₖ(ξ)/√k! and the correlation ρ of two normal numbers, E Heₖ(ξ) Heₗ(ξ′) = k! ρᵏ
        where k = l and 0 otherwise (Mehler), so that Cov(yᵢ, yⱼ) = Σₖ cᵢₖ cⱼₖ ρᵢⱼᵏ over k ≥ 1.
        """
        exponential = self.warp.exponential()
        if exponential is not None and exponential[3]:
            a, b, *_ = exponential
            expected = np.exp(a + b * mean + b**2 * np.diagonal(covariance) / 2)
            return expected[:, None] * expected * np.expm1(b**2 * covariance)
        std = np.sqrt(np.diagonal(covariance))
        y = np.asarray(self.warp.inverse(mean[:, None] + std[:, None] * NODES))
        norms = np.cumprod(np.r_[1.0, np.sqrt(np.arange(1, DEGREES))])
        coefficients = (y * WEIGHTS) @ (hermevander(NODES, DEGREES - 1) / norms)
        correlation = covariance / std[:, None] / std
        total, power = np.zeros_like(covariance), np.ones_like(covariance)
        for c in coefficients.T[1:]:
            power = power * correlation
            total += c[:, None] * c * power
        np.fill_diagonal(total, ((y - coefficients[:, :1]) ** 2) @ WEIGHTS)
        return total
