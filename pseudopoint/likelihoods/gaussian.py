"""Real targets with normal noise of one variance, or one for each output."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from ..params import Number, positive
from .base import AbstractLikelihood, Moments, PerRow

__all__ = ["NOISE_FLOOR", "Gaussian", "GaussianPerOutput"]

NOISE_FLOOR = 1e-8


def log_normal(y, mean, variance):
    return -0.5 * (jnp.log(2 * jnp.pi * variance) + (y - mean) ** 2 / variance)


class Gaussian(AbstractLikelihood):
    """y = f + ε, ε ~ N(0, variance). `variance` is σ², or after `at` one number a row."""

    additive: ClassVar[bool] = True
    concave: ClassVar[bool] = True
    shrinks: ClassVar[bool] = True
    variance: PerRow = positive(NOISE_FLOOR, default=0.1)

    @property
    def gaussian_noise(self) -> PerRow:
        """σ²."""
        return self.variance

    def noise_times(self, factor: float) -> "Gaussian":
        """With `factor` σ²."""
        return Gaussian(np.maximum(np.asarray(self.variance) * factor, NOISE_FLOOR))

    def at(self, rows: Any) -> "Gaussian":
        """σ² + noiseᵢ."""
        return Gaussian(self.variance + rows.noise)

    def log_prob(self, f: PerRow, y: PerRow) -> PerRow:
        """−½ log 2πσ² − (y − f)²/(2σ²)."""
        return log_normal(y, f, self.variance)

    def moments(self, f: PerRow) -> Moments:
        """f, σ²."""
        return Moments(f, self.variance + jnp.zeros_like(f))

    def cdf(self, f: PerRow, y: PerRow) -> PerRow:
        """Φ((y − f)/σ)."""
        return ndtr((y - f) / np.sqrt(self.variance))

    def expectation(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """log N(y; mean, σ²) − variance/(2σ²)  (Kobe 2.25)."""
        return self.log_prob(mean, y) - 0.5 * variance / self.variance

    def log_density(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """log N(y; mean, variance + σ²)."""
        return log_normal(y, mean, variance + self.variance)

    def predict(self, mean: PerRow, variance: PerRow) -> Moments:
        """mean, variance + σ²."""
        return Moments(mean, variance + self.variance)

    def predictive_cdf(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """Φ((y − mean)/√(variance + σ²))."""
        return ndtr((y - mean) / np.sqrt(variance + self.variance))

    def shrinkage(self, residual: PerRow, weight: PerRow) -> PerRow:
        """v* = 1/(1 + wᵢdᵢ/σ²), the optimum in closed form (Titsias 2025; methods a.1, a.2)."""
        return 1 / (1 + weight * residual / self.variance)


def _of_outputs(name: str) -> Any:
    """The method of `Gaussian`, with the variance of each output for arrays whose leading axis is that of outputs."""

    def method(self, mean, *others):
        return getattr(Gaussian(self._leading(mean)), name)(mean, *others)

    return method


class GaussianPerOutput(AbstractLikelihood):
    """y_p = f_p + ε_p, ε_p ~ N(0, variance_p), for P outputs: f and y are [P, N], and a [N] is for P = 1.

    `at` the rows (x, p) of stacked outputs, whose last column is p, it is a `Gaussian` with a variance for each row.
    """

    additive: ClassVar[bool] = True
    concave: ClassVar[bool] = True
    variance: Float[Number, " P"] = positive(NOISE_FLOOR)

    @property
    def gaussian_noise(self) -> PerRow:
        """σ²_p of each output, [P]."""
        return self.variance

    def at(self, rows: Any) -> Gaussian:
        """σ²_p + noiseᵢ at rows (x, p)."""
        return Gaussian(jnp.asarray(self.variance)[rows.X[..., -1].astype(int)] + rows.noise)

    log_prob = _of_outputs("log_prob")
    moments = _of_outputs("moments")
    cdf = _of_outputs("cdf")
    expectation = _of_outputs("expectation")
    log_density = _of_outputs("log_density")
    predict = _of_outputs("predict")
    predictive_cdf = _of_outputs("predictive_cdf")

    def _leading(self, f: PerRow) -> Any:
        return self.variance.reshape((-1,) + (1,) * (np.ndim(f) - 1))
