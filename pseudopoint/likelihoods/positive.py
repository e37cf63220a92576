"""Counts and positive amounts, whose mean is scale · e^f."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Float
from scipy.special import betainc, gammainc, gammaincc

from ..params import Number, positive
from .base import AbstractLikelihood, Moments, Rows, Slopes

__all__ = ["Exponential", "Gamma", "NegativeBinomial", "Poisson"]


def _lognormal(mean, variance):
    """E e^f and V e^f."""
    first = jnp.exp(mean + 0.5 * variance)
    return first, first**2 * jnp.expm1(variance)


def _exp(f):
    """e^f in NumPy, finite."""
    return np.exp(np.clip(f, -700, 700))


def _logarithmic_mean(a, b):
    """(a − b)/(log a − log b), between the geometric and the arithmetic mean."""
    near = jnp.abs(a - b) < 1e-4 * b
    safe = jnp.where(near, 2 * b, a)
    return jnp.where(near, 0.5 * (a + b), (safe - b) / (jnp.log(safe) - jnp.log(b)))


def _above(u):
    return jnp.maximum(u, _logarithmic_mean(jnp.clip(u, 1e-30, 1.0), 1.0))


class Poisson(AbstractLikelihood):
    """y ~ Poisson(scale · e^f), y = 0, 1, 2, …"""

    concave: ClassVar[bool] = True
    majorised: ClassVar[bool] = True
    has_constant: ClassVar[bool] = True  # log scale
    support: ClassVar[str] = "counts"
    scale: Float[Number, ""] = positive(default=1.0)

    def log_prob(self, f: Rows, y: Rows) -> Rows:
        """y log λ − λ − log y!, λ = scale · e^f."""
        return y * (f + jnp.log(self.scale)) - self.scale * jnp.exp(f) - gammaln(y + 1)

    def moments(self, f: Rows) -> Moments:
        """λ, λ."""
        rate = self.scale * jnp.exp(f)
        return Moments(rate, rate)

    def expectation(self, mean: Rows, variance: Rows, y: Rows) -> Rows:
        """y(μ + log scale) − scale · e^{μ + v/2} − log y!"""
        return y * (mean + jnp.log(self.scale)) - self.scale * jnp.exp(mean + 0.5 * variance) - gammaln(y + 1)

    def majoriser(self, mean: Rows, variance: Rows, y: Rows, slopes: Slopes) -> Rows:
        """E λ, or where y is larger, their logarithmic mean: Newton's step from far below would go to e^y."""
        rate = self.scale * jnp.exp(mean + 0.5 * variance)
        return _logarithmic_mean(jnp.maximum(y, rate), rate)

    def predict(self, mean: Rows, variance: Rows) -> Moments:
        """E λ, E λ + V λ."""
        first, spread = _lognormal(mean, variance)
        return Moments(self.scale * first, self.scale * first + self.scale**2 * spread)

    def cdf(self, f: Rows, y: Rows) -> Rows:
        """Γ(y + 1, λ)/Γ(y + 1), continued between whole y."""
        return gammaincc(y + 1, self.scale * _exp(f))

    def peak_hint(self, y: Rows) -> tuple[Rows, Rows]:
        """log(y/scale), 1/√y."""
        return jnp.log((y + 0.5) / self.scale), 1 / jnp.sqrt(y + 0.5)


class NegativeBinomial(AbstractLikelihood):
    """Counts with mean λ = scale · e^f and variance λ + λ²/shape: Poisson in the limit of a large shape."""

    concave: ClassVar[bool] = True
    has_constant: ClassVar[bool] = True  # log scale
    support: ClassVar[str] = "counts"
    scale: Float[Number, ""] = positive(default=1.0)
    shape: Float[Number, ""] = positive(1e-3, default=2.0)

    def _rate(self, f):
        return self.scale * jnp.exp(f)

    def log_prob(self, f: Rows, y: Rows) -> Rows:
        """log Γ(y + r) − log Γ(r) − log y! + y log λ − y log r − (y + r) log(1 + λ/r)."""
        r = self.shape
        log_odds = f + jnp.log(self.scale / r)
        return gammaln(y + r) - gammaln(r) - gammaln(y + 1) + y * log_odds - (y + r) * jax.nn.softplus(log_odds)

    def moments(self, f: Rows) -> Moments:
        """λ, λ + λ²/r."""
        rate = self._rate(f)
        return Moments(rate, rate + rate**2 / self.shape)

    def predict(self, mean: Rows, variance: Rows) -> Moments:
        """E λ, E λ + E λ²/r + V λ."""
        first, spread = _lognormal(mean, variance)
        first, spread = self.scale * first, self.scale**2 * spread
        return Moments(first, first + (spread + first**2) / self.shape + spread)

    def cdf(self, f: Rows, y: Rows) -> Rows:
        """I_p(r, y + 1), p = r/(r + λ), continued between whole y."""
        return betainc(self.shape, y + 1, self.shape / (self.shape + self.scale * _exp(f)))

    def peak_hint(self, y: Rows) -> tuple[Rows, Rows]:
        """log(y/scale), √(1/y + 1/r)."""
        return jnp.log((y + 0.5) / self.scale), jnp.sqrt(1 / (y + 0.5) + 1 / self.shape)


class Gamma(AbstractLikelihood):
    """Positive y with mean scale · e^f and variance mean²/shape."""

    concave: ClassVar[bool] = True
    majorised: ClassVar[bool] = True
    has_constant: ClassVar[bool] = True  # log scale
    support: ClassVar[str] = "positive"
    scale: Float[Number, ""] = positive(default=1.0)
    shape: Float[Number, ""] = positive(1e-3, default=2.0)

    def log_prob(self, f: Rows, y: Rows) -> Rows:
        """α log α − log Γ(α) + (α − 1) log y − α log m − αy/m, m = scale · e^f."""
        return self._linear(f, jnp.exp(-f), y)

    def _linear(self, f, inverse, y):
        alpha, log_scale = self.shape, jnp.log(self.scale)
        constant = alpha * jnp.log(alpha) - gammaln(alpha) + (alpha - 1) * jnp.log(y)
        return constant - alpha * (f + log_scale) - alpha * y / self.scale * inverse

    def moments(self, f: Rows) -> Moments:
        """m, m²/α."""
        mean = self.scale * jnp.exp(f)
        return Moments(mean, mean**2 / self.shape)

    def expectation(self, mean: Rows, variance: Rows, y: Rows) -> Rows:
        """As `log_prob`, with E e^{−f} = e^{−μ + v/2}."""
        return self._linear(mean, jnp.exp(0.5 * variance - mean), y)

    def majoriser(self, mean: Rows, variance: Rows, y: Rows, slopes: Slopes) -> Rows:
        """α max(u, logarithmic mean of u and 1), u = E y/m: Newton's step from far above would go to −1/u."""
        return self.shape * _above(y / self.scale * jnp.exp(0.5 * variance - mean))

    def predict(self, mean: Rows, variance: Rows) -> Moments:
        """E m, E m²/α + V m."""
        first, spread = _lognormal(mean, variance)
        first, spread = self.scale * first, self.scale**2 * spread
        return Moments(first, (spread + first**2) / self.shape + spread)

    def cdf(self, f: Rows, y: Rows) -> Rows:
        """γ(α, αy/m)/Γ(α)."""
        return gammainc(self.shape, self.shape * y / self.scale * _exp(-f))

    def peak_hint(self, y: Rows) -> tuple[Rows, Rows]:
        """log(y/scale), 1/√α."""
        return jnp.log(y / self.scale), 1 / jnp.sqrt(self.shape) + jnp.zeros_like(y)


class Exponential(AbstractLikelihood):
    """Positive y, exponentially distributed with mean scale · e^f."""

    concave: ClassVar[bool] = True
    majorised: ClassVar[bool] = True
    has_constant: ClassVar[bool] = True  # log scale
    support: ClassVar[str] = "positive"
    scale: Float[Number, ""] = positive(default=1.0)

    def log_prob(self, f: Rows, y: Rows) -> Rows:
        """−log m − y/m, m = scale · e^f."""
        return -f - jnp.log(self.scale) - y / self.scale * jnp.exp(-f)

    def moments(self, f: Rows) -> Moments:
        """m, m²."""
        mean = self.scale * jnp.exp(f)
        return Moments(mean, mean**2)

    def expectation(self, mean: Rows, variance: Rows, y: Rows) -> Rows:
        """−μ − log scale − y/scale · e^{−μ + v/2}."""
        return -mean - jnp.log(self.scale) - y / self.scale * jnp.exp(0.5 * variance - mean)

    def majoriser(self, mean: Rows, variance: Rows, y: Rows, slopes: Slopes) -> Rows:
        """As for `Gamma` with α = 1."""
        return _above(y / self.scale * jnp.exp(0.5 * variance - mean))

    def predict(self, mean: Rows, variance: Rows) -> Moments:
        """E m, E m² + V m."""
        first, spread = _lognormal(mean, variance)
        first, spread = self.scale * first, self.scale**2 * spread
        return Moments(first, 2 * spread + first**2)

    def cdf(self, f: Rows, y: Rows) -> Rows:
        """1 − e^{−y/m}."""
        return -np.expm1(-y / self.scale * _exp(-f))

    def peak_hint(self, y: Rows) -> tuple[Rows, Rows]:
        """log(y/scale), 1."""
        return jnp.log(y / self.scale), jnp.ones_like(y)
