"""Predictive variances wide enough for rows that no number of the model has seen.

Kernel and noise are fitted to the same rows as f. Where rows are few for the numbers that are fitted, the errors of new
rows are larger than the variances say. Rows left out with kernel and noise held (`bounds.leave_one_out`) do not show
it. So f is fitted anew without each of a few folds, kernel and noise too, and the log density of the folds' rows,
    Σᵢ wᵢ log E p(yᵢ | fᵢ; s²c)   under   fᵢ ~ N(mᵢ, c vᵢ),
tells the best factor c of all variances (methods h.6). With c k for the kernel k and c σ² for the noise, E f is as
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
from .prior import LengthscalePrior
from .refit import refit
from .settings import Fitted, Settings, Trial

# Folds are left out of fits of at most so many rows, for each takes seconds, and of at most so many for each number of
# kernel and noise: beyond that c is expected within a few hundredths of 1.
ROWS, ROWS_A_NUMBER = 1500, 30
FOLDS = 5
ITERATIONS = 50  # of the fit without a fold, from where the fit of all rows ended
WIDEST = 10.0  # the largest c
SHOWN = 2.0  # nats that c has to gain
LOG = logging.getLogger(__name__)


class GivenNoise(NamedTuple):
    """What a fit of f was in the end: a Gaussian one, of rows with noise variances or weights of their own.

    `observed` is the likelihood of y, and `again` the whole fit, of a Gaussian fit of f and a factor of the variances
    that are not in it. `beside` gives the moments of a second function without each row. `learned` says that the
    Gaussian noise is learned with f, and not that of the rows.
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


def widened(fitted: Fitted, given: GivenNoise, data: Dataset, settings: Settings, prior: LengthscalePrior) -> Fitted:
    """The fit with all variances times the best c ≥ 1, where that gains two nats for the rows of the folds; with both
    log densities in its trials. A fit with pseudo-points, or of many rows, is returned as it is."""
    few = len(data) <= min(ROWS, ROWS_A_NUMBER * trainable(given.f.model).size)
    if given.f.model.posterior.points or not few:
        return fitted
    LOG.info("fitting without each of %d folds", FOLDS)
    began = time.perf_counter()
    try:
        density = _left_out(given, data, settings, prior)
        found: Any = minimize_scalar(lambda log: -density(np.exp(log)), bounds=(0, np.log(WIDEST)), method="bounded")
        factor, before, after = float(np.exp(found.x)), density(1.0), -float(found.fun)
        wins = after > before + SHOWN
        wide = given.again(_times(given, factor, settings, prior), factor) if wins else fitted
    except FitError as error:
        return fitted._replace(notes=(*fitted.notes, f"variance: folds were not left out, as a fit failed: {error}"))
    trials = (
        Trial("variance", "as fitted", before, not wins, 0.0),
        Trial("variance", f"times {factor:.3g}", after, wins, time.perf_counter() - began),
    )
    total = data.total_weight
    note = (
        f"variance: log density of a row of {FOLDS} folds left out {before / total:.3f}, "
        f"with all variances times {factor:.3g} {after / total:.3f}"
    )
    return fitted.refitted(wide)._replace(notes=(*fitted.notes, note), trials=(*fitted.trials, *trials))


def _left_out(given: GivenNoise, data: Dataset, settings: Settings, prior) -> Callable[[float], float]:
    """The sum of log densities of rows left out, as a function of c."""
    folds, weight = folds_of(given.f, data), np.asarray(given.rows.weight)
    beside = given.beside and given.beside()
    noise, parts = np.inf if given.learned else 0.0, []
    for fold in range(FOLDS):
        # Rows of weight zero cost nothing, and all fits have the shape of the first.
        others, rows = replace(given.rows, weight=np.where(folds == fold, 0, weight)), np.flatnonzero(folds == fold)
        found = refit(given.f.model, others, settings, prior, ITERATIONS, noise, reach=np.inf)
        of_f = LeftOut(*marginals_of_rows(found.predictor, take(data, rows)))
        of_g = () if beside is None else (LeftOut(beside.mean[rows], beside.variance[rows]),)
        parts.append((found.model, take(data, rows), of_f, of_g))

    def density(factor: float) -> float:
        total = 0.0
        for model, rows, of_f, of_g in parts:
            likelihood = cast(given.observed(model, factor), data.X.dtype)
            each = loo_log_density(likelihood, rows, of_f._replace(variance=factor * of_f.variance), *of_g)
            total += float(np.asarray(rows.weight, float) @ each)
        return total

    return density


def folds_of(fitted: Fitted, data: Dataset) -> np.ndarray:
    """The fold of each row, [N]: rows in the order of their targets go to the folds in turn, so that each has its share
    of low and high ones, in whatever order the table is."""
    mean, _ = marginals_of_rows(fitted.predictor, data)
    order = np.lexsort((mean, np.asarray(data.y)))
    folds = np.empty(len(data), int)
    folds[order] = np.arange(len(data)) % FOLDS
    return folds


def _times(given: GivenNoise, factor: float, settings: Settings, prior: LengthscalePrior) -> Fitted:
    """The Gaussian fit of f with all variances times c."""
    model, rows = given.f.model, given.rows
    noise = Gaussian(np.asarray(model.likelihood.gaussian_noise) * factor)
    wide = cast(Model(model.kernel.times(factor), noise, model.posterior), rows.X.dtype)
    rows = replace(rows, noise=np.asarray(rows.noise) * np.asarray(factor, rows.X.dtype))
    return refit(wide, rows, settings, prior, 0)
