"""A mean function of the latent functions, for every likelihood."""

from typing import Any

from jaxtyping import Float

from ..means import AbstractMean
from ..params import Number
from .base import AbstractLikelihood, Latent, Moments, PerRow
from .offset import Offset
from .wrapper import AbstractWrapper

__all__ = ["Around"]


class Around(AbstractWrapper):
    """p(y | f + m(x)): f keeps its prior mean of zero, and the numbers of the mean function m are learned.

    `at` rows it is an `Offset` by m of each, which all that takes a likelihood at rows computes with. What is in closed
    form subtracts m from the target of Gaussian noise (`bounds.residuals`). Without rows, f is what the likelihood
    inside has, f + m(x).
    """

    likelihood: AbstractLikelihood
    mean: AbstractMean

    @property
    def mean_function(self) -> AbstractMean:
        return self.mean

    def parts(self) -> tuple[AbstractLikelihood, None]:
        """The likelihood inside; no constant."""
        return self.likelihood, None

    def latent_mean(self, X: Float[Number, "N D"]) -> Latent:
        """m(X)."""
        return self.mean(X)  # pyright: ignore[reportArgumentType]

    def at(self, rows: Any) -> Offset:
        """p(y | f + mᵢ)."""
        return Offset(self.likelihood.at(rows), self.mean(rows.X))

    def log_prob(self, f: Latent, y: PerRow) -> PerRow:
        """That of the likelihood inside, of f + m(x)."""
        return self.likelihood.log_prob(f, y)

    def moments(self, f: Latent) -> Moments:
        """Those of the likelihood inside, of f + m(x)."""
        return self.likelihood.moments(f)
