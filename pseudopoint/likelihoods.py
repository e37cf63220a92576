"""p(y | f): what is observed, given the latent function."""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .params import Number, positive

__all__ = ["AbstractLikelihood", "Gaussian", "Moments"]

Rows = Float[Array, " N"]
NOISE_FLOOR = 1e-8


class Moments(NamedTuple):
    """Predictive mean and variance of y, each [N]."""

    mean: Rows
    variance: Rows


class AbstractLikelihood(eqx.Module):
    """One row of y depends on one value of f. All methods work on rows, [N] → [N]."""

    @abstractmethod
    def at(self, noise: Rows) -> "AbstractLikelihood":
        """The likelihood of rows that carry known noise variance of their own."""

    @abstractmethod
    def log_prob(self, f: Rows, y: Rows) -> Rows:
        """log p(y | f)."""

    @abstractmethod
    def expectation(self, mean: Rows, variance: Rows, y: Rows) -> Rows:
        """E[log p(y | f)] for f ~ N(mean, variance): the data's term in every variational bound."""

    @abstractmethod
    def log_density(self, mean: Rows, variance: Rows, y: Rows) -> Rows:
        """log E[p(y | f)] for f ~ N(mean, variance): the predictive log density."""

    @abstractmethod
    def predict(self, mean: Rows, variance: Rows) -> Moments:
        """Mean and variance of y for f ~ N(mean, variance)."""

    @abstractmethod
    def shrinkage(self, residual: Rows, weight: Rows) -> Rows:
        """v* ∈ (0, 1]: by how much the tight bound shrinks the residual variance dᵢ (methods a.1). 1 where unknown."""


class Gaussian(AbstractLikelihood):
    """y = f + ε, ε ~ N(0, variance). `variance` is σ², or one number per row after `at`."""

    variance: Float[Number, ""] | Float[Number, " N"] = positive(NOISE_FLOOR, default=0.1)

    def at(self, noise: Rows) -> "Gaussian":
        """σ² + noiseᵢ."""
        return Gaussian(self.variance + noise)

    def log_prob(self, f: Rows, y: Rows) -> Rows:
        """−½ log 2πσ² − (y − f)²/(2σ²)."""
        return -0.5 * (jnp.log(2 * jnp.pi * self.variance) + (y - f) ** 2 / self.variance)

    def expectation(self, mean: Rows, variance: Rows, y: Rows) -> Rows:
        """log N(y; mean, σ²) − variance/(2σ²)  (Kobe 2.25)."""
        return self.log_prob(mean, y) - 0.5 * variance / self.variance

    def log_density(self, mean: Rows, variance: Rows, y: Rows) -> Rows:
        """log N(y; mean, variance + σ²)."""
        return Gaussian(variance + self.variance).log_prob(mean, y)

    def predict(self, mean: Rows, variance: Rows) -> Moments:
        """mean, variance + σ²."""
        return Moments(mean, variance + self.variance)

    def shrinkage(self, residual: Rows, weight: Rows) -> Rows:
        """v* = 1/(1 + wᵢdᵢ/σ²), the optimum in closed form (Titsias 2025; methods a.1, a.2)."""
        return 1 / (1 + weight * residual / self.variance)
