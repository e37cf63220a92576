"""Heavy tails: Student-t noise, learned by Gaussian fits whose rows have weights, each the expected precision of its
noise (Tipping and Lawrence 2005; methods h.4).

Two steps alternate. Given q(f), σ², ν and the precisions E ρᵢ have their best values (`bounds.scale_mixture`). Given
these, Σ wᵢ E ρᵢ = Σ wᵢ, so that the bound in all else is that of a Gaussian likelihood for rows of the weights wᵢ E ρᵢ:
an exact or collapsed fit. No step lowers the bound.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..bounds import (
    best_scale_and_degrees,
    expected_precisions,
    expected_squares,
    gain_over_normal,
    leave_one_out,
    loo_log_density,
    marginals_of_rows,
    mixture_terms,
)
from ..data import Dataset
from ..likelihoods import NOISE_FLOOR, Gaussian, StudentT
from ..params import cast
from ..posteriors import Model
from .growth import Ended, with_more_points
from .noise import misses
from .prior import LengthscalePrior
from .refit import refit
from .settings import Fitted, Settings, Trial, most_iterations
from .starts import Warm
from .widening import GivenNoise

DEGREES_AT_START = 4.0
SHOWN = 2.0  # nats that heavy tails have to gain
FEW = 600  # rows of which the first precisions of all are learned
ROUNDS, REFIT = 3, 6  # of both steps on all rows, and iterations of each
SETTLING = 8  # rounds with kernel and pseudo-points as they are

PerRow = Float[np.ndarray, " N"]


class Tails(NamedTuple):
    """A fit under Gaussian noise of the variance σ²/E ρᵢ for each row, ν, and E ρᵢ."""

    gaussian: Fitted
    degrees: float
    precision: PerRow

    @property
    def variance(self) -> float:
        """σ²."""
        return noise_variance(self.gaussian.model)

    def more(self, data: Dataset) -> float:
        """What the bound of the mixture has beside that of the Gaussian fit."""
        return mixture_terms(self.precision, np.asarray(data.weight, float), self.variance, self.degrees)

    def fitted(self, data: Dataset) -> Fitted:
        """The fit under Student-t noise, with the q(f) of the Gaussian fit."""
        model, more = self.gaussian.model, self.more(data)
        likelihood = cast(StudentT(self.variance**0.5, self.degrees), data.X.dtype)
        return self.gaussian._replace(
            model=Model(model.kernel, likelihood, model.posterior),
            bound=self.gaussian.bound + more,
            vfe=self.gaussian.vfe + more,
            upper=np.inf,
        )

    def of_new_rows(self, data: Dataset) -> PerRow:
        """E ρᵢ of rows that were not fitted, where the variance of f counts as noise."""
        mean, variance = marginals_of_rows(self.gaussian.predictor, data)
        squared = (np.asarray(data.y, float) - mean) ** 2
        return expected_precisions(squared, self.variance + np.maximum(variance, 0), self.degrees)

    def given(self, data: Dataset) -> GivenNoise:
        """What the fit was in the end."""
        observed = lambda model, factor: StudentT((factor * noise_variance(model)) ** 0.5, self.degrees)
        again = lambda gaussian, factor: self._replace(gaussian=gaussian).fitted(data)
        return GivenNoise(self.gaussian, weighted(data, self.precision), observed, again)

    def left_out(self, data: Dataset) -> float:
        """Σ wᵢ of the log densities of rows left out, under the precisions of the others; −∞ where f `misses` them."""
        model = self.gaussian.model
        noise = np.asarray(self.variance / self.precision, data.X.dtype)
        floor = cast(Gaussian(NOISE_FLOOR), data.X.dtype)
        exact = not model.posterior.points
        left = leave_one_out(self.gaussian.predictor, floor, replace(data, noise=noise), exact)
        if misses(data, left.mean):
            return -np.inf
        log_density = loo_log_density(self.fitted(data).model.likelihood, data, left)
        return float(np.asarray(data.weight, float) @ log_density)


def shows_tails(inverse: Float[np.ndarray, "N N"], y: PerRow, weight: PerRow) -> bool:
    """Whether a Student-t density describes the standardised errors of rows left out, [K⁻¹y]ᵢ/√[K⁻¹]ᵢᵢ, better than a
    normal one does. Outliers show there, whatever the fit makes of them."""
    return gain_over_normal((inverse @ y) ** 2 / np.diag(inverse), weight, DEGREES_AT_START) > SHOWN


def weighted(data: Dataset, precision: PerRow) -> Dataset:
    """Rows of the weights wᵢ E ρᵢ."""
    return replace(data, weight=np.asarray(np.asarray(data.weight) * precision, data.X.dtype))


def alternate(
    fitted: Fitted,
    data: Dataset,
    settings: Settings,
    prior: LengthscalePrior,
    degrees: float,
    rounds: int,
    iterations: int,
) -> Tails:
    """So many rounds from an exact or collapsed Gaussian fit, whose rows may have had weights, and then the best σ², ν
    and q once more."""
    weight, precision = np.asarray(data.weight, float), np.ones(len(data))
    for left in reversed(range(rounds + 1)):
        model = fitted.model
        squared = expected_squares(fitted.predictor, data)
        noise, degrees = best_scale_and_degrees(squared, weight, noise_variance(model), degrees)
        precision = expected_precisions(squared, noise, degrees)
        model = Model(model.kernel, cast(Gaussian(noise), data.X.dtype), model.posterior)
        found = refit(model, weighted(data, precision), settings, prior, iterations if left else 0)
        fitted = fitted.refitted(found)
    return Tails(fitted, degrees, precision)


def fit_tails(run, start: Model, data: Dataset, settings: Settings, prior, progress, warm: Warm) -> Ended:
    """The fit under Student-t noise by `run`, the exact or collapsed method, from hyperparameters and ν of a search.

    Its trial is the sum over rows of the log densities of rows left out. Raises FitError.
    """
    degrees = DEGREES_AT_START if warm.tails is None else warm.tails.degrees
    precision = _first_precisions(warm.model, data, settings, prior, degrees)
    first = run(start, weighted(data, precision), settings, prior, progress, warm)
    most = most_iterations(settings, len(data), len(first.model.posterior.Z)) // 10 + 1
    tails = alternate(first, data, settings, prior, degrees, ROUNDS, min(REFIT, most))
    density, fitted = tails.left_out(data), tails.fitted(data)
    note = (
        f"noise: heavy tails, {tails.degrees:.2g} degrees of freedom; "
        f"log density of a row left out {density / data.total_weight:.3f}"
    )
    trial = Trial("noise", "heavy tails", density, True, 0.0)

    def more(fitted: Fitted, M: int) -> Fitted:
        gaussian = with_more_points(tails.gaussian, weighted(data, tails.precision), settings, prior, M)
        if gaussian is tails.gaussian:
            return fitted
        found = alternate(gaussian, data, settings, prior, tails.degrees, 0, 0).fitted(data)
        return found._replace(notes=(*fitted.notes, *gaussian.notes[len(tails.gaussian.notes) :]), trials=fitted.trials)

    return Ended(fitted._replace(notes=(*fitted.notes, note), trials=(trial,)), more, partial(tails.given, data))


def _first_precisions(
    warm: Model, data: Dataset, settings: Settings, prior: LengthscalePrior, degrees: float
) -> PerRow:
    """E ρᵢ by the exact posterior of a few rows under these hyperparameters."""
    few = data.sample(FEW, settings.seed)
    tails = alternate(refit(warm, few, settings, prior, 0), few, settings, prior, degrees, SETTLING, 0)
    return tails.of_new_rows(data)


def noise_variance(model: Model) -> float:
    """σ²."""
    noise: Any = model.likelihood.gaussian_noise
    return float(noise)
