"""A mean function of the latent functions, for every likelihood."""

from typing import Any, ClassVar

from jaxtyping import Float

from ..means import AbstractMean
from ..params import Number
from .base import AbstractLikelihood, Latent, Moments, Rows
from .offset import Offset

__all__ = ["Around"]


def _same(name: str) -> Any:
    """The attribute of the likelihood inside."""
    return property(lambda self: getattr(self.likelihood, name))


class Around(AbstractLikelihood):
    """p(y | f + m(x)): f keeps its prior mean of zero, and the numbers of the mean function m are learned.

    `at` rows it is an `Offset` by m of each, which all that takes a likelihood at rows computes with. What is in closed
    form subtracts m from the target of Gaussian noise (`bounds.residuals`). Without rows, f is what the likelihood
    inside has, f + m(x).
    """

    likelihood: AbstractLikelihood
    mean: AbstractMean

    concave = _same("concave")
    majorised = _same("majorised")
    additive = _same("additive")
    varying_noise = _same("varying_noise")
    shrinks = _same("shrinks")
    smooth = _same("smooth")
    curvature = _same("curvature")
    support = _same("support")
    ordered = _same("ordered")
    rates = _same("rates")
    has_constant: ClassVar[bool] = True

    name = _same("name")  # pyright: ignore[reportIncompatibleMethodOverride]
    latents = _same("latents")  # pyright: ignore[reportIncompatibleMethodOverride]
    classes = _same("classes")  # pyright: ignore[reportIncompatibleMethodOverride]
    gaussian_noise = _same("gaussian_noise")  # pyright: ignore[reportIncompatibleMethodOverride]

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

    def log_prob(self, f: Latent, y: Rows) -> Rows:
        """That of the likelihood inside, of f + m(x)."""
        return self.likelihood.log_prob(f, y)

    def moments(self, f: Latent) -> Moments:
        """Those of the likelihood inside, of f + m(x)."""
        return self.likelihood.moments(f)
