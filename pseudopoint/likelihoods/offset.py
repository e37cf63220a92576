"""A constant mean of the latent functions, for every likelihood that has no number of its own for it."""

from typing import Any

import numpy as np
from jaxtyping import Array, Float

from ..params import Number, real
from .base import AbstractLikelihood, Latent, Moments, Rows, Slopes

__all__ = ["Offset"]


class Offset(AbstractLikelihood):
    """p(y | f + c): f keeps its prior mean of zero, and f + c has the constant c, learned like any other number.

    A Gaussian process falls back to its prior far from all rows: with c that is the base rate of a class, or the usual
    size of an amount, and not f = 0. In the likelihood the constant needs nothing of bounds, steppers and posteriors.
    `constant` is one number, or one for each latent function.
    """

    likelihood: AbstractLikelihood
    constant: Float[Number, ""] | Float[Number, " C"] = real()

    @classmethod
    def around(cls, likelihood: AbstractLikelihood, y: np.ndarray, weight: np.ndarray) -> AbstractLikelihood:
        """The likelihood with the constant that the target y [N] suggests; itself where it has its own."""
        return likelihood if likelihood.has_constant else cls(likelihood, likelihood.base_level(y, weight))

    # What a class says of itself: that of the likelihood inside.
    concave = property(lambda self: self.likelihood.concave)  # pyright: ignore[reportAssignmentType]
    majorised = property(lambda self: self.likelihood.majorised)  # pyright: ignore[reportAssignmentType]
    shrinks = property(lambda self: self.likelihood.shrinks)  # pyright: ignore[reportAssignmentType]
    smooth = property(lambda self: self.likelihood.smooth)  # pyright: ignore[reportAssignmentType]
    curvature = property(lambda self: self.likelihood.curvature)  # pyright: ignore[reportAssignmentType]
    additive = property(lambda self: self.likelihood.additive)  # pyright: ignore[reportAssignmentType]
    support = property(lambda self: self.likelihood.support)  # pyright: ignore[reportAssignmentType]
    has_constant = property(lambda self: True)  # pyright: ignore[reportAssignmentType]

    @property
    def name(self) -> str:
        """That of the likelihood inside."""
        return self.likelihood.name

    @property
    def latents(self) -> int:
        """The number of latent functions."""
        return self.likelihood.latents

    @property
    def classes(self) -> int:
        """K, of a likelihood of classes."""
        return self.likelihood.classes  # pyright: ignore[reportAttributeAccessIssue]

    def at(self, noise: Rows) -> "Offset":
        """The likelihood of rows that carry known noise variance of their own."""
        return Offset(self.likelihood.at(noise), self.constant)

    def _moved(self, f: Latent) -> Any:
        if self.latents == 1:
            return f + self.constant
        return f + self.constant.reshape((-1,) + (1,) * (f.ndim - 1))

    def log_prob(self, f: Latent, y: Rows) -> Rows:
        """log p(y | f + c)."""
        return self.likelihood.log_prob(self._moved(f), y)

    def moments(self, f: Latent) -> Moments:
        """Mean and variance of y given f."""
        return self.likelihood.moments(self._moved(f))

    def cdf(self, f: Latent, y: Rows) -> Rows:
        """P(Y ≤ y | f + c)."""
        return self.likelihood.cdf(self._moved(f), y)

    def peak_hint(self, y: Rows) -> tuple[Rows, Rows]:
        """Where in f the likelihood of y changes: c below where it does without c; for one latent function."""
        centre, width = self.likelihood.peak_hint(y)
        return centre - self.constant, width

    def expectation(self, mean: Latent, variance: Latent, y: Rows) -> Rows:
        """E[log p(y | f + c)]."""
        return self.likelihood.expectation(self._moved(mean), variance, y)

    def log_density(self, mean: Latent, variance: Latent, y: Rows) -> Rows:
        """log E[p(y | f + c)]."""
        return self.likelihood.log_density(self._moved(mean), variance, y)

    def log_probabilities(self, mean: Latent, variance: Latent) -> Float[Array, "K ..."]:
        """log P(y = k) for every class k, of a likelihood of classes."""
        return self.likelihood.log_probabilities(self._moved(mean), variance)  # pyright: ignore[reportAttributeAccessIssue]

    def predict(self, mean: Latent, variance: Latent) -> Moments:
        """Mean and variance of y."""
        return self.likelihood.predict(self._moved(mean), variance)

    def predictive_cdf(self, mean: Latent, variance: Latent, y: Rows) -> Rows:
        """P(Y ≤ y)."""
        return self.likelihood.predictive_cdf(self._moved(mean), variance, y)

    def shrinkage(self, residual: Rows, weight: Rows) -> Rows:
        """v*, in which the constant has no part."""
        return self.likelihood.shrinkage(residual, weight)

    def expectation_gradients(self, mean: Latent, variance: Latent, y: Rows) -> Slopes:
        """∂/∂mean and ∂/∂variance of `expectation`."""
        return self.likelihood.expectation_gradients(self._moved(mean), variance, y)

    def majoriser(self, mean: Latent, variance: Latent, y: Rows, slopes: Slopes) -> Latent:
        """The curvature with which a step of the mean goes up."""
        return self.likelihood.majoriser(self._moved(mean), variance, y, slopes)
