"""One factor of all variances, so that they hold for rows that kernel and noise were not fitted to.

Kernel and noise are fitted to the same rows as f. Where rows are few for the numbers that are fitted, the errors of new
rows are larger than the variances say. Rows left out with these numbers held (`bounds.leave_one_out`) do not show it.
So f and its kernel are fitted again without each of a few folds, and the log density of the folds' rows,
    Σᵢ wᵢ log E p(yᵢ | fᵢ; s²c)   under   fᵢ ~ N(mᵢ, c vᵢ),
is maximised in the factor c of all variances (methods h.6). With c k for the kernel k and c σ² for the noise, E f is as
before and V f is c times as large: the model stays a Gaussian process.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from ..bounds import LeftOut, loo_log_density, marginals_of_rows
from ..data import Dataset, take
from ..likelihoods import AbstractLikelihood, Gaussian
from ..optimise.fullbatch import FitError
from ..params import cast, trainable
from ..posteriors import Model
from .candidates import in_order
from .prior import LengthscalePrior
from .refit import refit
from .settings import Fitted, Settings, Trial

FOLDS = 5
# The fits without a fold take about as long as the fit itself. With more rows for each number, c is near 1.
ROWS, ROWS_A_NUMBER = 1500, 30
ITERATIONS = 50  # of the fit without a fold, from where the fit of all rows ended
WIDEST = 4.0  # the largest c: variances that are too small by more have another cause
SHOWN = 2.0  # nats that c has to gain
LOG = logging.getLogger(__name__)


class GivenNoise(NamedTuple):
    """The Gaussian fit `f` that a fit ended with, its `rows`, which may have noise variances or weights of their own,
    and how the rest follows from it.

    `observed(model, c)` is the likelihood of y, with c times the noise, where the Gaussian fit has this model.
    `again(f, c)` is the whole fit, where the Gaussian one is f, whose variances have been multiplied by c.
    `beside()` is a second function without each row, where there is one. `learned` says whether the noise variance of
    `f` is learned; if not, the rows have their own.
    """

    f: Fitted
    rows: Dataset
    observed: Callable[[Model, float], AbstractLikelihood]
    again: Callable[[Fitted, float], Fitted]
    beside: Callable[[], LeftOut] | None = None
    learned: bool = True


def of_one_variance(normal: Fitted, data: Dataset) -> GivenNoise:
    """That of a fit under Gaussian noise of one variance."""
    observed = lambda model, factor: Gaussian(np.asarray(model.likelihood.gaussian_noise) * factor)
    return GivenNoise(normal, data, observed, lambda f, factor: f)


def widened(
    fitted: Fitted, given: Callable[[], GivenNoise], data: Dataset, settings: Settings, prior: LengthscalePrior
) -> Fitted:
    """The fit with all variances times the best c, 1 ≤ c ≤ `WIDEST`, where that gains two nats for the rows of the
    folds; with both log densities in its trials. A fit with pseudo-points, or of many rows, is returned as it is."""
    if fitted.model.posterior.points or len(data) > ROWS:
        return fitted
    known = given()
    if len(data) > ROWS_A_NUMBER * trainable(known.f.model).size:
        return fitted
    LOG.info("fitting without each of %d folds", FOLDS)
    began = time.perf_counter()
    try:
        density = _left_out(known, data, settings, prior)
        found: Any = minimize_scalar(lambda log: -density(np.exp(log)), bounds=(0, np.log(WIDEST)), method="bounded")
        factor, before, after = float(np.exp(found.x)), density(1.0), -float(found.fun)
        wins = after > before + SHOWN
        wide = known.again(_times(known, factor, settings, prior), factor) if wins else fitted
    except FitError as error:
        note = f"variance: as fitted, because the fit without a fold, or with more variance, failed: {error}"
        return fitted._replace(notes=(*fitted.notes, note))
    trials = (
        Trial("variance", "as fitted", before, not wins, 0.0),
        Trial("variance", f"times {factor:.3g}", after, wins, time.perf_counter() - began),
    )
    note = (
        f"variance: log density of a row left out with its fold {before / data.total_weight:.3f}, with all variances "
        f"times {factor:.3g} {after / data.total_weight:.3f}, {'taken' if wins else 'not taken'}"
    )
    return fitted.refitted(wide)._replace(notes=(*fitted.notes, note), trials=(*fitted.trials, *trials))


def _left_out(given: GivenNoise, data: Dataset, settings: Settings, prior) -> Callable[[float], float]:
    """The sum of log densities of rows left out, as a function of c."""
    folds, weight = folds_of(data), np.asarray(given.rows.weight)
    beside, noise = given.beside and given.beside(), np.inf if given.learned else 0.0
    iterations, parts = min(ITERATIONS, settings.max_iter or ITERATIONS), []
    for fold in range(FOLDS):
        # Rows of weight zero, so that all fits have the shape of the first. How far the kernel may go has no limit, for
        # the fit begins where that of all rows ended, and has to forget the fold.
        others, rows = replace(given.rows, weight=np.where(folds == fold, 0, weight)), np.flatnonzero(folds == fold)
        found = refit(given.f.model, others, settings, prior, iterations, noise, reach=np.inf)
        of_f = LeftOut(*marginals_of_rows(found.predictor, take(data, rows)))
        of_g = () if beside is None else (LeftOut(beside.mean[rows], beside.variance[rows]),)
        # The variance under weights w E ρ is that of the mean weight 1 once it is multiplied by Σ w E ρ/Σ w.
        mean_weight = float(np.sum(others.weight) / np.sum(np.asarray(data.weight)[folds != fold]))
        parts.append((found.model, mean_weight, take(data, rows), of_f, of_g))

    def density(factor: float) -> float:
        total = 0.0
        for model, mean_weight, rows, of_f, of_g in parts:
            likelihood = cast(given.observed(model, factor * mean_weight), data.X.dtype)
            each = loo_log_density(likelihood, rows, of_f._replace(variance=factor * of_f.variance), *of_g)
            total += float(np.asarray(rows.weight, float) @ each)
        return total

    return density


def folds_of(data: Dataset) -> np.ndarray:
    """The fold of each row, [N]. Rows `in_order` go to the folds in turn, so that each has its share of low and high
    targets, whatever the order of rows and columns is."""
    folds = np.empty(len(data), int)
    folds[in_order(data)] = np.arange(len(data)) % FOLDS
    return folds


def _times(given: GivenNoise, factor: float, settings: Settings, prior: LengthscalePrior) -> Fitted:
    """The Gaussian fit of f with all variances times c."""
    model, rows = given.f.model, given.rows
    noise = Gaussian(np.asarray(model.likelihood.gaussian_noise) * factor)
    wide = cast(Model(model.kernel.times(factor), noise, model.posterior), rows.X.dtype)
    rows = replace(rows, noise=np.asarray(rows.noise) * np.asarray(factor, rows.X.dtype))
    return refit(wide, rows, settings, prior, 0)
