"""Real targets with outliers."""

from abc import abstractmethod
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, log_ndtr, ndtr
from jaxtyping import Float
from scipy.special import ndtr as normal_cdf
from scipy.special import stdtr

from ..params import Number, positive
from .base import AbstractLikelihood, Moments, PerRow, Slopes
from .quadrature import expect_inverse, expect_log1p

__all__ = ["Laplace", "StudentT"]

QUARTILE = 0.6745  # of a standard normal variable
# Nodes of log ρ: the logarithm of what is beyond them, their number and largest step, and the log of a weight that
# matters to a distribution function.
TAIL, RHOS, STEP, LEAST_LOG = 20.0, 96, 0.45, -21.0


def precisions(xp: Any, degrees: Any) -> tuple[Any, Any]:
    """log ρ and log weights for ρ ~ Gamma(h, h), h = ν/2, over which Student-t noise is a mixture of normal ones: the
    trapezoidal rule in log ρ, whose density is analytic. Of rows far away ρ is small. `xp` is jax.numpy or numpy."""
    h = 0.5 * degrees
    x = xp.log1p(xp.sqrt(2 * TAIL / h) + TAIL / h) - xp.minimum(STEP, 0.9 / xp.sqrt(h)) * xp.arange(RHOS)
    log_weight = h * (x - xp.expm1(x))
    top = xp.max(log_weight)
    return x, log_weight - top - xp.log(xp.sum(xp.exp(log_weight - top)))


def likely_precisions(degrees: Any) -> list[tuple[float, float]]:
    """ρ and weights, but for those that matter to no distribution function."""
    log_rho, log_weight = precisions(np, degrees)
    matter = log_weight > LEAST_LOG
    return list(zip(np.exp(log_rho[matter]), np.exp(log_weight[matter]), strict=True))


class AbstractAdditive(AbstractLikelihood):
    """y = f + scale · t, with the density of t symmetric about 0. `scale` is one number, or one a row."""

    additive: ClassVar[bool] = True
    scale: PerRow = positive(1e-4, default=0.3)

    @abstractmethod
    def _spread(self) -> Any:
        """The variance of y given f."""

    def base_level(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The median of y."""
        order = np.argsort(y)
        below = np.cumsum(weight[order])
        return np.asarray(y[order][np.searchsorted(below, 0.5 * below[-1])])

    def moments(self, f: PerRow) -> Moments:
        return Moments(f, self._spread() + jnp.zeros_like(f))

    def predict(self, mean: PerRow, variance: PerRow) -> Moments:
        return Moments(mean, variance + self._spread())

    def peak_hint(self, y: PerRow) -> tuple[PerRow, PerRow]:
        return y, self.scale + jnp.zeros_like(y)


class StudentT(AbstractAdditive):
    """y = f + ς t, ς = scale, t Student's with `degrees` = ν > 2 degrees of freedom (3 in Salimbeni et al. 2018,
    5.5)."""

    degrees: Float[Number, ""] = positive(2.01, most=1e8, default=3.0)

    def noise_times(self, factor: float) -> "StudentT":
        """With √factor ς."""
        return StudentT(np.asarray(self.scale) * factor**0.5, self.degrees)

    def _spread(self):
        """ς² ν/(ν − 2)."""
        return self.scale**2 * self.degrees / (self.degrees - 2)

    def _highest(self):
        """log p(y | y)."""
        nu = self.degrees
        return gammaln(0.5 * (nu + 1)) - gammaln(0.5 * nu) - 0.5 * jnp.log(jnp.pi * nu) - jnp.log(self.scale)

    def log_prob(self, f: PerRow, y: PerRow) -> PerRow:
        """log Γ(½(ν + 1)) − log Γ(½ν) − ½ log πνς² − ½(ν + 1) log(1 + (y − f)²/(νς²))."""
        return self._highest() - 0.5 * (self.degrees + 1) * jnp.log1p(((y - f) / self.scale) ** 2 / self.degrees)

    def expectation(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """log p(y | y) − ½(ν + 1) E log(1 + (y − f)²/(νς²)), in closed form (`expect_log1p`)."""
        scale = jnp.sqrt(self.degrees) * self.scale
        return self._highest() - 0.5 * (self.degrees + 1) * expect_log1p(y - mean, variance, scale)

    def normal(self, mean: PerRow, variance: PerRow) -> Moments:
        """mean, variance + ς² (1 + (z² + 1)/(4ν))² with z = 0.6745: normal noise with the quartiles of this noise
        (Abramowitz and Stegun 1964, 26.7.5)."""
        quartiles = self.scale * (1 + (QUARTILE**2 + 1) / (4 * self.degrees))
        return Moments(mean, variance + quartiles**2)

    def cdf(self, f: PerRow, y: PerRow) -> PerRow:
        return stdtr(self.degrees, (y - f) / self.scale)

    def predictive_cdf(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """E Φ((y − mean)/√(variance + ς²/ρ)) over ρ ~ Gamma(ν/2, ν/2)  (Tipping and Lawrence 2005)."""
        noise, parts = self.scale**2, likely_precisions(self.degrees)
        return sum(weight * normal_cdf((y - mean) / np.sqrt(variance + noise / rho)) for rho, weight in parts)

    def majoriser(self, mean: PerRow, variance: PerRow, y: PerRow, slopes: Slopes) -> PerRow:
        """ω = E[(ν + 1)/(νς² + (y − f)²)], the precision of the scale mixture (methods d.3)."""
        return (self.degrees + 1) * expect_inverse(y - mean, variance, jnp.sqrt(self.degrees) * self.scale)


class Laplace(AbstractAdditive):
    """p(y | f) = exp(−|y − f|/b)/(2b), b = scale."""

    concave: ClassVar[bool] = True
    majorised: ClassVar[bool] = True
    smooth: ClassVar[bool] = False

    def noise_times(self, factor: float) -> "Laplace":
        """With √factor b."""
        return Laplace(np.asarray(self.scale) * factor**0.5)

    def _spread(self):
        return 2 * self.scale**2

    def log_prob(self, f: PerRow, y: PerRow) -> PerRow:
        """−log 2b − |y − f|/b."""
        return -jnp.log(2 * self.scale) - jnp.abs(y - f) / self.scale

    def expectation(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """−log 2b − E|y − f|/b, with E|x| = r(2Φ(r/s) − 1) + 2s φ(r/s) for x ~ N(r, s²)."""
        s, r = _std(variance), y - mean
        z = r / s
        density = jnp.exp(-0.5 * z**2) / jnp.sqrt(2 * jnp.pi)
        return -jnp.log(2 * self.scale) - (r * (2 * ndtr(z) - 1) + 2 * s * density) / self.scale

    def majoriser(self, mean: PerRow, variance: PerRow, y: PerRow, slopes: Slopes) -> PerRow:
        """ω = (2Φ(r/s) − 1)/(b r), r = y − μ: the curvature of the parabola in μ that touches E|y − f|/b from above (de
        Leeuw and Lange 2009)."""
        s = _std(variance)
        r = jnp.maximum(jnp.abs(y - mean), 1e-6 * s)
        return (2 * ndtr(r / s) - 1) / (self.scale * r)

    def log_density(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """log of the normal-Laplace density: with c = v/(2b²), the sum of two halves e^{c ± r/b} Φ(∓r/s − s/b)/(2b)."""
        s, r, b = _std(variance), y - mean, self.scale
        halves = [sign * r / b + log_ndtr(-sign * r / s - s / b) for sign in (1, -1)]
        return 0.5 * (s / b) ** 2 - jnp.log(2 * b) + jnp.logaddexp(*halves)

    def cdf(self, f: PerRow, y: PerRow) -> PerRow:
        """½ e^{(y − f)/b}, or one minus ½ e^{−(y − f)/b}."""
        t = (y - f) / self.scale
        half = 0.5 * np.exp(-np.abs(t))
        return np.where(t > 0, 1 - half, half)


def _std(variance):
    return jnp.sqrt(jnp.maximum(variance, 1e-20))
