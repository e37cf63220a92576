"""Real targets with noise that depends on x, which may have heavy tails; and residuals, which tell of that."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Float
from scipy.special import ndtr

from ..params import Number, positive, real
from .base import AbstractLikelihood, Moments, PerRow, Slopes
from .gaussian import log_normal
from .quadrature import expect, log_expect
from .robust import StudentT, likely_precisions, precisions

__all__ = ["Heteroscedastic", "HeteroscedasticStudentT", "LogScale"]

Two = Float[Number, "2 ..."]
# Nodes of f₂: in densities of heavy tails, how many standard deviations they reach, and their number; in distribution
# functions, the same, the step in f₂, and the largest standard deviation for which it is so short.
REACH, NODES = 8.0, 61
CDF_REACH, CDF_STEP, MOST_STD = 5.5, 0.25, 100.0
FARTHEST = 40.0  # f₂ up to which squares of a scale are numbers in float32


class Heteroscedastic(AbstractLikelihood):
    """y = f₁ + ε, ε ~ N(0, scale² e^{2f₂}): a second latent function is the log standard deviation of the noise."""

    additive: ClassVar[bool] = True
    concave: ClassVar[bool] = True  # in f₁ and in f₂, each by itself
    majorised: ClassVar[bool] = True
    varying_noise: ClassVar[bool] = True
    scale: Float[Number, ""] = positive(1e-4, default=0.3)

    def noise_times(self, factor: float) -> "Heteroscedastic":
        """With √factor s."""
        return Heteroscedastic(np.asarray(self.scale) * factor**0.5)

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
        given = lambda f2: log_normal(y, mean[0], variance[0] + self.scale**2 * jnp.exp(2 * f2))
        return log_expect(given, mean[1], variance[1], *self._where(mean, y))

    def _where(self, mean, y):
        centre = jnp.log(jnp.abs(y - mean[0]) + 1e-3 * self.scale) - jnp.log(self.scale)
        return centre, jnp.ones_like(y)

    def predict(self, mean: Two, variance: Two) -> Moments:
        """μ₁, v₁ + s² e^{2μ₂ + 2v₂}."""
        return Moments(mean[0], variance[0] + self.scale**2 * jnp.exp(2 * mean[1] + 2 * variance[1]))

    def predictive_cdf(self, mean: Two, variance: Two, y: PerRow) -> PerRow:
        """E Φ((y − μ₁)/√(v₁ + s² e^{2f₂})) over f₂."""
        f2, weights = _log_scales(mean[1], variance[1])
        return np.tensordot(weights, ndtr((y - mean[0]) / np.sqrt(variance[0] + self.scale**2 * np.exp(2 * f2))), 1)


class HeteroscedasticStudentT(AbstractLikelihood):
    """y = f₁ + s e^{f₂} t, s = scale, t Student's with `degrees` = ν > 2 degrees of freedom: a second latent function
    is the log scale of noise with heavy tails (a mixture: Tipping and Lawrence 2005; methods h.5)."""

    additive: ClassVar[bool] = True
    varying_noise: ClassVar[bool] = True
    heavy_tails: ClassVar[bool] = True
    scale: Float[Number, ""] = positive(1e-4, default=0.3)
    degrees: Float[Number, ""] = positive(2.01, most=1e8, default=4.0)

    def noise_times(self, factor: float) -> "HeteroscedasticStudentT":
        """With √factor s."""
        return HeteroscedasticStudentT(np.asarray(self.scale) * factor**0.5, self.degrees)

    def base_level(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The median of y, and 0, as the noise has its scale."""
        return np.array([StudentT(self.scale, self.degrees).base_level(y, weight), 0.0])

    @property
    def latents(self) -> int:
        return 2

    def _given(self, f2: PerRow) -> StudentT:
        return StudentT(self.scale * jnp.exp(jnp.clip(f2, -FARTHEST, FARTHEST)), self.degrees)

    def log_prob(self, f: Two, y: PerRow) -> PerRow:
        """log T(y; f₁, s e^{f₂}, ν), the density of `StudentT`."""
        return self._given(f[1]).log_prob(f[0], y)

    def moments(self, f: Two) -> Moments:
        """f₁, s² e^{2f₂} ν/(ν − 2)."""
        return self._given(f[1]).moments(f[0])

    def expectation(self, mean: Two, variance: Two, y: PerRow) -> PerRow:
        """E over f₂, by Gauss–Hermite, of the closed form over f₁."""
        return expect(lambda f2: self._given(f2).expectation(mean[0], variance[0], y), mean[1], variance[1])

    def majoriser(self, mean: Two, variance: Two, y: PerRow, slopes: Slopes) -> Two:
        """ω = [E of the precision of the scale mixture, max(β₂, 2ν/(ν + 3))]; the latter is the expected Fisher
        information of a log scale (as in `Heteroscedastic`)."""
        precision = lambda f2: self._given(f2).majoriser(mean[0], variance[0], y, slopes)
        least = 2 * self.degrees / (self.degrees + 3)
        return jnp.stack([expect(precision, mean[1], variance[1]), jnp.maximum(-2 * slopes[1][1], least)])

    def log_density(self, mean: Two, variance: Two, y: PerRow) -> PerRow:
        """log E N(y; μ₁, v₁ + s² e^{2f₂}/ρ) over f₂ and ρ ~ Gamma(ν/2, ν/2), by the trapezoidal rule in f₂ and log ρ,
        in f₂ as far up as a row far away asks for: to five digits where v₂ ≤ 1 and ν ≤ 10, to fewer beyond."""
        std = jnp.sqrt(jnp.maximum(variance[1], 1e-12))
        away = jnp.log1p(jnp.abs(y - mean[0]) / self._given(mean[1]).scale) / std
        most = REACH + jnp.minimum((self.degrees + 1) * std, away)
        share = jnp.linspace(0, 1, NODES, dtype=std.dtype).reshape((-1,) + (1,) * jnp.ndim(std))
        x = -REACH + (REACH + most) * share
        noise = self.scale**2 * jnp.exp(2 * jnp.clip(mean[1] + std * x, -FARTHEST, FARTHEST))
        given = lambda log_rho: log_normal(y, mean[0], variance[0] + noise * jnp.exp(-log_rho)) - 0.5 * x**2
        log_rho, log_weight = precisions(jnp, self.degrees)
        of_rho = lax.map(lambda at: logsumexp(given(at), axis=0), log_rho.astype(std.dtype))
        log_weight = log_weight.reshape((-1,) + (1,) * jnp.ndim(std)).astype(std.dtype)
        return logsumexp(of_rho + log_weight, axis=0) - logsumexp(-0.5 * x**2, axis=0)

    def predict(self, mean: Two, variance: Two) -> Moments:
        """μ₁, v₁ + s² e^{2μ₂ + 2v₂} ν/(ν − 2)."""
        return self._given(mean[1] + variance[1]).predict(mean[0], variance[0])

    def normal(self, mean: Two, variance: Two) -> Moments:
        """Of `StudentT` with the scale at which its variance would be that of `predict`."""
        return self._given(mean[1] + variance[1]).normal(mean[0], variance[0])

    def predictive_cdf(self, mean: Two, variance: Two, y: PerRow) -> PerRow:
        """P(Y ≤ y) = E Φ((y − μ₁)/√(v₁ + s² e^{2f₂}/ρ)) over f₂ and ρ."""
        f2, weights = _log_scales(mean[1], variance[1])
        e, noise, parts = y - mean[0], self.scale**2 * np.exp(2 * f2), likely_precisions(self.degrees)
        return sum(w * np.tensordot(weights, ndtr(e / np.sqrt(variance[0] + noise / rho)), 1) for rho, w in parts)


def _log_scales(mean: PerRow, variance: PerRow) -> tuple[np.ndarray, np.ndarray]:
    """f₂ ~ N(mean, variance) for distribution functions: nodes [Q, ...] and weights [Q] of the trapezoidal rule. As
    functions of f₂ they grow nowhere within π/4 of the real line, so that the error is about e^{−π²/(2 CDF_STEP)}."""
    std = np.sqrt(np.maximum(variance, 0))
    step = CDF_STEP / np.clip(np.max(std, initial=0), CDF_STEP, MOST_STD)
    x = np.arange(-CDF_REACH, CDF_REACH + step, step)
    return mean + np.multiply.outer(x, std), np.exp(-0.5 * x**2) / np.sum(np.exp(-0.5 * x**2))


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
