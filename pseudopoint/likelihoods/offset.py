"""A constant mean of the latent functions, for every likelihood that has no parameter of its own for it."""

from typing import Any

import numpy as np
from jaxtyping import Float

from ..params import Number, real
from .base import AbstractLikelihood, Latent, PerRow
from .wrapper import AbstractWrapper

__all__ = ["Offset"]


def _moved(name: str) -> Any:
    """The method of the likelihood inside, with f + c for its first argument f (or its mean)."""

    def method(self, f, *others):
        return getattr(self.likelihood, name)(self._plus_constant(f), *others)

    return method


class Offset(AbstractWrapper):
    """p(y | f + c): f keeps its prior mean of zero, and the constant c is learned.

    Far from all rows a Gaussian process returns to its prior. With c that is the base rate of a class, or the usual
    size of an amount. In the likelihood, the constant needs nothing of bounds, steppers and posteriors. `constant` is
    one number, or one for each latent function; at rows with a mean function (`Around`), also one for each row.
    """

    likelihood: AbstractLikelihood
    constant: Float[Number, ""] | Float[Number, " C"] | Float[Number, "C N"] = real()

    @classmethod
    def around(cls, likelihood: AbstractLikelihood, y: np.ndarray, weight: np.ndarray) -> AbstractLikelihood:
        """The likelihood with the constant that the target y [N] suggests; itself if it has its own, or has Gaussian
        noise: then the target is centred, because with an offset there is no closed form."""
        if likelihood.has_constant or likelihood.gaussian_noise is not None:
            return likelihood
        return cls(likelihood, likelihood.base_level(y, weight))

    log_prob = _moved("log_prob")
    moments = _moved("moments")
    cdf = _moved("cdf")
    expectation = _moved("expectation")
    log_density = _moved("log_density")
    log_probabilities = _moved("log_probabilities")
    predict = _moved("predict")
    normal = _moved("normal")
    predictive_cdf = _moved("predictive_cdf")
    expectation_gradients = _moved("expectation_gradients")
    majoriser = _moved("majoriser")

    def parts(self) -> tuple[AbstractLikelihood, PerRow | None]:
        """The likelihood inside, and c."""
        return self.likelihood, self.constant

    def with_parts(self, likelihood: AbstractLikelihood, constant: PerRow | None) -> AbstractLikelihood:
        return Offset(likelihood, constant)

    def noise_times(self, factor: float) -> "Offset":
        return Offset(self.likelihood.noise_times(factor), self.constant)

    def at(self, rows: Any) -> "Offset":
        return Offset(self.likelihood.at(rows), self.constant)

    def shrinkage(self, residual: PerRow, weight: PerRow) -> PerRow:
        return self.likelihood.shrinkage(residual, weight)

    def peak_hint(self, y: PerRow) -> tuple[PerRow, PerRow]:
        """That of the likelihood inside, less c; for one latent function."""
        centre, width = self.likelihood.peak_hint(y)
        return centre - self.constant, width

    def _plus_constant(self, f: Latent) -> Any:
        if self.latents == 1 or self.constant.ndim > 1:
            return f + self.constant
        return f + self.constant.reshape((-1,) + (1,) * (f.ndim - 1))
