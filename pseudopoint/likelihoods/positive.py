"""Counts and positive amounts, with mean scale · e^f."""

from abc import abstractmethod
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Float
from scipy.special import betainc, gammainc, gammaincc

from ..params import Number, positive
from .base import AbstractLikelihood, Moments, PerRow, Slopes

__all__ = ["Exponential", "Gamma", "NegativeBinomial", "Poisson"]


def _exp(f):
    """e^f in NumPy, finite."""
    return np.exp(np.clip(f, -700, 700))


def _logarithmic_mean(a, b):
    """(a − b)/(log a − log b), between the geometric and the arithmetic mean."""
    near = jnp.abs(a - b) < 1e-4 * b
    safe = jnp.where(near, 2 * b, a)
    return jnp.where(near, 0.5 * (a + b), (safe - b) / (jnp.log(safe) - jnp.log(b)))


class AbstractScaled(AbstractLikelihood):
    """y ≥ 0 with mean m = scale · e^f. Its variance is linear in m and m²."""

    concave: ClassVar[bool] = True
    has_constant: ClassVar[bool] = True  # log scale
    scale: Float[Number, ""] = positive(default=1.0)

    @abstractmethod
    def _spread(self, m: PerRow, squared: PerRow) -> PerRow:
        """The variance of y, given m and m²; or its expectation, given those of m and m²."""

    def moments(self, f: PerRow) -> Moments:
        m = self.scale * jnp.exp(f)
        return Moments(m, self._spread(m, m**2))

    def predict(self, mean: PerRow, variance: PerRow) -> Moments:
        """E m, and E V(y | f) + V m."""
        m = self.scale * jnp.exp(mean + 0.5 * variance)
        squared = m**2 * jnp.expm1(variance)  # V m
        return Moments(m, self._spread(m, squared + m**2) + squared)

    def peak_hint(self, y: PerRow) -> tuple[PerRow, PerRow]:
        """log(y/scale), and the relative standard deviation of y there."""
        y = y + 0.5 if self.support == "counts" else y
        return jnp.log(y / self.scale), jnp.sqrt(self._spread(1 / y, jnp.ones_like(y)))


class Poisson(AbstractScaled):
    """y ~ Poisson(λ), λ = scale · e^f, y = 0, 1, 2, …"""

    majorised: ClassVar[bool] = True
    rates: ClassVar[bool] = True
    support: ClassVar[str] = "counts"

    def _spread(self, m: PerRow, squared: PerRow) -> PerRow:
        return m

    def log_prob(self, f: PerRow, y: PerRow) -> PerRow:
        """y log λ − λ − log y!"""
        return self.expectation(f, jnp.zeros_like(f), y)

    def expectation(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """y(μ + log scale) − scale · e^{μ + v/2} − log y!"""
        return y * (mean + jnp.log(self.scale)) - self.scale * jnp.exp(mean + 0.5 * variance) - gammaln(y + 1)

    def majoriser(self, mean: PerRow, variance: PerRow, y: PerRow, slopes: Slopes) -> PerRow:
        """E λ, or the logarithmic mean of E λ and y where y is larger: Newton's step from far below would go to e^y."""
        rate = self.scale * jnp.exp(mean + 0.5 * variance)
        return _logarithmic_mean(jnp.maximum(y, rate), rate)

    def cdf(self, f: PerRow, y: PerRow) -> PerRow:
        """Γ(y + 1, λ)/Γ(y + 1), continued between whole y."""
        return gammaincc(y + 1, self.scale * _exp(f))


class NegativeBinomial(AbstractScaled):
    """Counts with mean λ = scale · e^f and variance λ + λ²/r, r = shape: Poisson in the limit of a large shape."""

    support: ClassVar[str] = "counts"
    shape: Float[Number, ""] = positive(1e-3, most=1e8, default=2.0)

    def _spread(self, m: PerRow, squared: PerRow) -> PerRow:
        return m + squared / self.shape

    def log_prob(self, f: PerRow, y: PerRow) -> PerRow:
        """log Γ(y + r) − log Γ(r) − log y! + y log λ − y log r − (y + r) log(1 + λ/r)."""
        r = self.shape
        log_odds = f + jnp.log(self.scale / r)
        return gammaln(y + r) - gammaln(r) - gammaln(y + 1) + y * log_odds - (y + r) * jax.nn.softplus(log_odds)

    def cdf(self, f: PerRow, y: PerRow) -> PerRow:
        """I_p(r, y + 1), p = r/(r + λ), continued between whole y."""
        return betainc(self.shape, y + 1, self.shape / (self.shape + self.scale * _exp(f)))


class AbstractAmount(AbstractScaled):
    """y > 0 whose log density is linear in f and e^{−f}."""

    majorised: ClassVar[bool] = True
    support: ClassVar[str] = "positive"

    def log_prob(self, f: PerRow, y: PerRow) -> PerRow:
        return self.expectation(f, jnp.zeros_like(f), y)

    def _ratio(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """u = E y/m."""
        return y / self.scale * jnp.exp(0.5 * variance - mean)

    def _majoriser(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """u, or the logarithmic mean of u and 1 where u < 1: Newton's step from far above would go to −1/u."""
        u = self._ratio(mean, variance, y)
        return jnp.maximum(u, _logarithmic_mean(jnp.clip(u, 1e-30, 1.0), 1.0))


class Gamma(AbstractAmount):
    """Positive y with mean m = scale · e^f and variance m²/α, α = shape."""

    shape: Float[Number, ""] = positive(1e-3, default=2.0)

    def _spread(self, m: PerRow, squared: PerRow) -> PerRow:
        return squared / self.shape

    def expectation(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """α log α − log Γ(α) + (α − 1) log y − α(μ + log scale) − α E y/m."""
        alpha = self.shape
        constant = alpha * jnp.log(alpha) - gammaln(alpha) + (alpha - 1) * jnp.log(y)
        return constant - alpha * (mean + jnp.log(self.scale)) - alpha * self._ratio(mean, variance, y)

    def majoriser(self, mean: PerRow, variance: PerRow, y: PerRow, slopes: Slopes) -> PerRow:
        return self.shape * self._majoriser(mean, variance, y)

    def cdf(self, f: PerRow, y: PerRow) -> PerRow:
        """γ(α, αy/m)/Γ(α)."""
        return gammainc(self.shape, self.shape * y / self.scale * _exp(-f))


class Exponential(AbstractAmount):
    """Positive y, exponentially distributed with mean m = scale · e^f."""

    def _spread(self, m: PerRow, squared: PerRow) -> PerRow:
        return squared

    def expectation(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """−μ − log scale − E y/m."""
        return -mean - jnp.log(self.scale) - self._ratio(mean, variance, y)

    def majoriser(self, mean: PerRow, variance: PerRow, y: PerRow, slopes: Slopes) -> PerRow:
        return self._majoriser(mean, variance, y)

    def cdf(self, f: PerRow, y: PerRow) -> PerRow:
        """1 − e^{−y/m}."""
        return -np.expm1(-y / self.scale * _exp(-f))
