"""Targets whose predictions are changed by what rows nearby tell of them."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..params import Number
from .base import AbstractLikelihood, Latent, Moments, PerRow
from .bounded import AbstractClasses

__all__ = ["WithNearClasses", "WithNearRows"]


class WithNearRows(AbstractLikelihood):
    """The prediction of `likelihood` under another location and scale: with its centre m and its width s (those of
    `normal`), and the last latent function h ~ N(η, ν) of `posteriors.NearRows`,
        p(y) = p₀(m + (y − m − sη)/τ)/τ,    τ² = ν + noise,
    p₀ the predictive density of `likelihood` (methods o). Of a normal prediction that is y = m + s(h + ε) with
    ε ~ N(0, noise); of a mixture of normals every part is moved and narrowed alike, so that heavy tails stay.

    It predicts, and is not fitted: m and s depend on the distribution of the latent functions, and not on their values.
    """

    additive: ClassVar[bool] = True
    likelihood: AbstractLikelihood
    noise: Float[Number, ""]

    @property
    def name(self) -> str:
        return self.likelihood.name

    @property
    def latents(self) -> int:
        return self.likelihood.latents + 1

    def log_prob(self, f: Latent, y: PerRow) -> PerRow:
        """`log_density` where all latent functions are known."""
        return self.log_density(f, jnp.zeros_like(f), y)

    def moments(self, f: Latent) -> Moments:
        """`predict` where all latent functions are known."""
        return self.predict(f, jnp.zeros_like(f))

    def log_density(self, mean: Latent, variance: Latent, y: PerRow) -> PerRow:
        """log p₀(m + (y − m − sη)/τ) − log τ."""
        before, shift, factor = self._moved(mean, variance)
        y = self._before(before, shift, factor, y)
        return self.likelihood.log_density(before[0], before[1], y) - jnp.log(factor)

    def predict(self, mean: Latent, variance: Latent) -> Moments:
        """Mean plus sη, and τ² times the variance."""
        before, shift, factor = self._moved(mean, variance)
        return self._scaled(self.likelihood.predict(*before), shift, factor)

    def normal(self, mean: Latent, variance: Latent) -> Moments:
        """m + sη, τ²s²."""
        before, shift, factor = self._moved(mean, variance)
        return self._scaled(self.likelihood.normal(*before), shift, factor)

    def predictive_cdf(self, mean: Latent, variance: Latent, y: PerRow) -> PerRow:
        """P₀(Y ≤ m + (y − m − sη)/τ)."""
        before, shift, factor = jax.tree.map(np.asarray, self._moved(mean, variance))
        y = np.asarray(self._before(before, shift, factor, y))
        return self.likelihood.predictive_cdf(before[0], before[1], y)

    def latent(self, mean: Latent, variance: Latent) -> tuple[Latent, Latent]:
        """Mean and variance of the latent functions without h, of which the first is moved: m + sη and s²ν + t v, where
        v is its variance in the fit and t = noise. What remains of s²τ² is t times the noise of `likelihood`."""
        (mean_before, variance_before), shift, _ = self._moved(mean, variance)
        added = self.likelihood.normal(mean_before, variance_before).variance * variance[-1]
        if self.likelihood.latents == 1:
            return mean_before + shift, added + self.noise * variance_before
        first = jnp.arange(self.likelihood.latents)[:, None] == 0
        spread = jnp.where(first, added + self.noise * variance_before, variance_before)
        return mean_before + first * shift, spread

    def _moved(self, mean, variance):
        """Mean and variance of the latent functions of `likelihood`; sη; τ."""
        several = self.likelihood.latents > 1
        before = (mean[:-1], variance[:-1]) if several else (mean[0], variance[0])
        spread = self.likelihood.normal(*before).variance
        return before, jnp.sqrt(spread) * mean[-1], jnp.sqrt(variance[-1] + self.noise)

    def _before(self, before, shift, factor, y):
        centre = self.likelihood.normal(*before).mean
        return centre + (y - centre - shift) / factor

    def _scaled(self, moments: Moments, shift, factor) -> Moments:
        return Moments(moments.mean + shift, factor**2 * moments.variance)


class WithNearClasses(AbstractClasses):
    """P(y = c) ∝ P₀(y = c) exp h_c, P₀ the prediction of `likelihood`, and h the last latent functions, one for each
    class (`posteriors.NearClasses`; methods o). It predicts, and is not fitted."""

    likelihood: Any  # of classes, perhaps with a constant mean

    @property
    def name(self) -> str:
        return self.likelihood.name

    @property
    def classes(self) -> int:
        return self.likelihood.classes

    @property
    def latents(self) -> int:
        return self.likelihood.latents + self.classes

    def log_prob(self, f: Latent, y: PerRow) -> PerRow:
        """`log_density` where all latent functions are known."""
        return self.log_density(f, jnp.zeros_like(f), y)

    def log_density(self, mean: Latent, variance: Latent, y: PerRow) -> PerRow:
        """log P(y)."""
        log_p = self.log_probabilities(mean, variance)
        return jnp.take_along_axis(log_p, y.astype(int)[None], axis=0)[0]

    def log_probabilities(self, mean: Latent, variance: Latent) -> Latent:
        """log P₀(y = c) + h_c, normalised."""
        log_p = self.likelihood.log_probabilities(*self.latent(mean, variance))
        return jax.nn.log_softmax(log_p + mean[-self.classes :], axis=0)

    def latent(self, mean: Latent, variance: Latent) -> tuple[Latent, Latent]:
        """Mean and variance of the latent functions of the fit, which stay."""
        of_fit = slice(self.likelihood.latents) if self.likelihood.latents > 1 else 0
        return mean[of_fit], variance[of_fit]
