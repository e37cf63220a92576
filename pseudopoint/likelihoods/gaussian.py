"""Real targets with normal noise, whose variance is constant or depends on x; and residuals, which tell of that."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from ..params import Number, positive, real
from .base import AbstractLikelihood, Moments, PerRow, Slopes
from .quadrature import expect_bounded, log_expect

__all__ = ["NOISE_FLOOR", "Gaussian", "GaussianPerOutput", "Heteroscedastic", "LogScale"]

NOISE_FLOOR = 1e-8


def _log_normal(y, mean, variance):
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

    def at(self, rows: Any) -> "Gaussian":
        """σ² + noiseᵢ."""
        return Gaussian(self.variance + rows.noise)

    def log_prob(self, f: PerRow, y: PerRow) -> PerRow:
        """−½ log 2πσ² − (y − f)²/(2σ²)."""
        return _log_normal(y, f, self.variance)

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
        return _log_normal(y, mean, variance + self.variance)

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


Two = Float[Number, "2 ..."]


class Heteroscedastic(AbstractLikelihood):
    """y = f₁ + ε, ε ~ N(0, scale² e^{2f₂}): a second latent function is the log standard deviation of the noise."""

    additive: ClassVar[bool] = True
    concave: ClassVar[bool] = True  # in f₁ and in f₂, each by itself
    majorised: ClassVar[bool] = True
    varying_noise: ClassVar[bool] = True
    scale: Float[Number, ""] = positive(1e-4, default=0.3)

    def base_level(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The mean of y, and 0, as the noise has its scale."""
        return np.array([np.average(y, weights=weight), 0.0])

    @property
    def latents(self) -> int:
        return 2

    def log_prob(self, f: Two, y: PerRow) -> PerRow:
        """log N(y; f₁, s² e^{2f₂})."""
        return -0.5 * jnp.log(2 * jnp.pi * self.scale**2) - f[1] - 0.5 * self._misfit((y - f[0]) ** 2, -2 * f[1])

    def _misfit(self, squared, exponent):
        return squared / self.scale**2 * jnp.exp(exponent)

    def moments(self, f: Two) -> Moments:
        """f₁, s² e^{2f₂}."""
        return Moments(f[0], self.scale**2 * jnp.exp(2 * f[1]))

    def expectation(self, mean: Two, variance: Two, y: PerRow) -> PerRow:
        """−½ log 2πs² − μ₂ − ((y − μ₁)² + v₁) e^{−2μ₂ + 2v₂}/(2s²), exactly."""
        misfit = self._misfit((y - mean[0]) ** 2 + variance[0], 2 * variance[1] - 2 * mean[1])
        return -0.5 * jnp.log(2 * jnp.pi * self.scale**2) - mean[1] - 0.5 * misfit

    def majoriser(self, mean: Two, variance: Two, y: PerRow, slopes: Slopes) -> Two:
        """ω = [E e^{−2f₂}/s², max(β₂, 2)], with β₁ = E e^{−2f₂}/s² itself and β₂ = 2 E (y − f₁)² e^{−2f₂}/s².

        2 is the expected Fisher information of a log standard deviation. If a residual happens to be small, β₂ is
        nearly 0, and a step of the mean with it would be far too long.
        """
        precision = self._misfit(jnp.ones_like(y), 2 * variance[1] - 2 * mean[1])
        misfit = self._misfit((y - mean[0]) ** 2 + variance[0], 2 * variance[1] - 2 * mean[1])
        return jnp.stack([precision, jnp.maximum(2 * misfit, 2)])

    def log_density(self, mean: Two, variance: Two, y: PerRow) -> PerRow:
        """log E N(y; μ₁, v₁ + s² e^{2f₂}) over f₂."""
        given = lambda f2: _log_normal(y, mean[0], variance[0] + self.scale**2 * jnp.exp(2 * f2))
        return log_expect(given, mean[1], variance[1], *self._where(mean, y))

    def _where(self, mean, y):
        centre = jnp.log(jnp.abs(y - mean[0]) + 1e-3 * self.scale) - jnp.log(self.scale)
        return centre, jnp.ones_like(y)

    def predict(self, mean: Two, variance: Two) -> Moments:
        """μ₁, v₁ + s² e^{2μ₂ + 2v₂}."""
        return Moments(mean[0], variance[0] + self.scale**2 * jnp.exp(2 * mean[1] + 2 * variance[1]))

    def predictive_cdf(self, mean: Two, variance: Two, y: PerRow) -> PerRow:
        """E Φ((y − μ₁)/√(v₁ + s² e^{2f₂})) over f₂."""
        std = lambda f2: np.sqrt(variance[0] + self.scale**2 * np.exp(2 * f2))
        given = lambda f2: ndtr((y - mean[0]) / std(f2))
        return expect_bounded(given, mean[1], variance[1], *self._where(mean, y))


class LogScale(AbstractLikelihood):
    """e ~ N(0, known + scale² e^{2f}): what a residual e tells of f, the log standard deviation of its noise.

    `known` is the variance of e that is not noise, such as that of the function of which e is a residual: 0, or one
    number per row after `at`. Not learned. log p(e | f) is flat where the noise is far below it.
    """

    scale: Float[Number, ""] = positive(1e-4, default=0.3)
    known: Float[Number, ""] | Float[Number, " N"] = real(learn="learn_known", default=0.0)
    learn_known: ClassVar[bool] = False

    def at(self, rows: Any) -> "LogScale":
        """known + noiseᵢ."""
        return LogScale(self.scale, self.known + rows.noise)

    def _noise(self, f: PerRow) -> PerRow:
        return self.scale**2 * jnp.exp(2 * f)

    def log_prob(self, f: PerRow, y: PerRow) -> PerRow:
        """log N(e; 0, known + s² e^{2f}), in logarithms: e^{2f} may overflow."""
        tiny = float(jnp.finfo(jnp.result_type(f)).tiny)
        log_variance = jnp.logaddexp(jnp.log(self.known + tiny), 2 * (f + jnp.log(self.scale)))
        return -0.5 * (jnp.log(2 * jnp.pi) + log_variance + y**2 * jnp.exp(-log_variance))

    def moments(self, f: PerRow) -> Moments:
        """0, known + s² e^{2f}."""
        return Moments(jnp.zeros_like(f), self.known + self._noise(f))

    def cdf(self, f: PerRow, y: PerRow) -> PerRow:
        """Φ(e/√(known + s² e^{2f}))."""
        return ndtr(y / np.sqrt(self.known + self.scale**2 * np.exp(2 * f)))

    def peak_hint(self, y: PerRow) -> tuple[PerRow, PerRow]:
        """Where the noise would be as large as the residual."""
        return jnp.log(jnp.abs(y) + 1e-3 * self.scale) - jnp.log(self.scale), jnp.ones_like(y)

    def predict(self, mean: PerRow, variance: PerRow) -> Moments:
        """0, known + s² e^{2μ + 2v}."""
        return Moments(jnp.zeros_like(mean), self.known + self._noise(mean + variance))

    def majoriser(self, mean: PerRow, variance: PerRow, y: PerRow, slopes: Slopes) -> PerRow:
        """ω = max(|β|, 2r²), r the share of the noise in the variance of e at the mean of f: 2r² is the expected Fisher
        information, −E ∂² log p(e | f)/∂f². If a residual happens to be small, |β| is far below it."""
        noise = self._noise(mean)
        return jnp.maximum(jnp.abs(2 * slopes[1]), 2 * (noise / (self.known + noise)) ** 2)
