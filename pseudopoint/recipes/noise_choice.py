"""Which noise a Gaussian fit has in the end: of one variance, depending on x, with heavy tails, or both; by the log
densities of rows left out."""

import logging
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from ..bounds import gain_over_normal, leave_one_out
from ..data import Dataset
from ..likelihoods import AbstractLikelihood
from ..optimise.fullbatch import FitError
from .growth import Ended, with_more_points
from .heavy_noise import promised, with_heavy_tails
from .noise import VaryingNoise, fit_noise, given_noise, with_points_of_f
from .prior import LengthscalePrior
from .settings import Fitted, HeavyTails, Settings, Trial
from .starts import Warm
from .tails import DEGREES_AT_START, noise_variance
from .widening import of_one_variance

FEWEST = 50  # rows from which their noise is studied
# Nats a row by which noise of both kinds has to exceed what was taken before, as promised and as found: where that is
# true, rows left out still favour the richer model by a little.
WORTH = 0.02
LOG = logging.getLogger(__name__)


def noise_is_open(settings: Settings, method: str, likelihood: AbstractLikelihood, data: Dataset) -> bool:
    """Whether the noise of a fit is to be found out: the settings leave the likelihood and the optimiser open and have
    no priors, it is Gaussian without a mean function, no noise is known, and rows and target are enough to tell."""
    left_open = settings.likelihood == "auto" and settings.effort != "fast" and settings.optimiser == "auto"
    left_open = left_open and not settings.priors
    plain = likelihood.gaussian_noise is not None and likelihood.mean_function is None
    whole = method in ("exact", "collapsed") and settings.posterior == "whitened" and settings.dtype != "float32"
    enough = len(data) >= FEWEST and np.ptp(np.asarray(data.y)) > 0 and not np.any(np.asarray(data.noise) > 0)
    return left_open and plain and whole and bool(enough)


def with_noise_that_pays(
    normal: Fitted,
    data: Dataset,
    settings: Settings,
    prior: LengthscalePrior,
    warm: Warm | None,
    by_tails: Callable[[Warm], Ended],
) -> Ended:
    """Of the fit `normal`, under Gaussian noise of one variance, and those with noise that depends on x, with heavy
    tails if a search has found such, and with both, the one that predicts rows left out best; with what was compared in
    `trials`. `by_tails` fits with heavy tails, from what was found.

    Each is made only where it promises more than the one that was taken before it.
    """
    best, varying = _depending_on_x(normal, data, settings, prior)
    if warm is not None and warm.tails is not None:
        best = with_tails_that_pay(normal, best, data, warm.tails, lambda: by_tails(warm))
    least = WORTH * data.total_weight
    if varying is None or varying.varying + promised(varying, data) <= _taken(best) + least:
        return best
    both = lambda: _both(varying, data, settings, prior)
    return _tried(best, "heavy tails of noise that depends on x", both, least)


def _depending_on_x(normal: Fitted, data: Dataset, settings, prior) -> tuple[Ended, VaryingNoise | None]:
    """The fit with noise that depends on x where that pays, else as it is."""
    LOG.info("trying noise that depends on x")
    began = time.perf_counter()
    more = lambda fitted, M: with_more_points(fitted, data, settings, prior, M)
    as_it_is = Ended(normal, more, partial(of_one_variance, normal, data))
    try:
        varying = fit_noise(normal, data, settings, prior, if_it_may_pay=True)
    except FitError:
        return as_it_is, None
    seconds, pays = time.perf_counter() - began, varying.pays
    trials = (
        Trial("noise", "one variance", varying.constant, not pays, 0.0),
        Trial("noise", "depends on x", varying.varying, pays, seconds),
    )
    if not pays:
        return as_it_is._replace(fitted=normal._replace(trials=trials)), None
    return _in_turn(varying.fitted._replace(trials=trials), varying.turns, data, settings, prior), varying


def _both(varying: VaryingNoise, data: Dataset, settings: Settings, prior) -> Ended:
    began = time.perf_counter()
    fitted, turns, density = with_heavy_tails(varying, data, settings, prior)
    trial = Trial("noise", "depends on x, heavy tails", density, True, time.perf_counter() - began)
    return _in_turn(fitted._replace(trials=(trial,)), turns, data, settings, prior)


def _in_turn(fitted: Fitted, turns, data: Dataset, settings: Settings, prior) -> Ended:
    more = lambda fitted, M: with_points_of_f(fitted, turns, data, settings, prior, M)
    return Ended(fitted, more, partial(given_noise, turns, data))


def with_tails_that_pay(
    normal: Fitted, best: Ended, data: Dataset, tails: HeavyTails, fit: Callable[[], Ended]
) -> Ended:
    """Of `best`, the fit `normal` under one variance or what it became under noise that depends on x, and a `fit` under
    Student-t noise the one that predicts rows left out better, with the trials of both.

    The second fit is made only where it promises more. What it promises to gain over one variance is what it gained in
    the search, for each row, or what a Student-t density gains for the errors of rows left out of `normal`, if that is
    more.
    """
    constant = next((trial.evidence for trial in best.fitted.trials if trial.choice == "one variance"), -np.inf)
    gain = max(tails.gain * data.total_weight, _gain_for_rows_left_out(normal, data))
    if np.isfinite(taken := _taken(best)) and constant + gain <= taken:
        promise = f"heavy tails promise to gain less, {gain / data.total_weight:.3f} nats a row over one variance"
        return _with_note(best, f"noise: {promise}, and were not fitted")
    return _tried(best, "heavy tails", fit)


def _taken(best: Ended) -> float:
    """The log density of rows left out of what was taken: not the highest, for that may have been refused."""
    return next((trial.evidence for trial in best.fitted.trials if trial.chosen), -np.inf)


def _tried(best: Ended, what: str, fit: Callable[[], Ended], least: float = 0.0) -> Ended:
    """A `fit`, of one trial, where its density exceeds what was taken by more than `least`, else `best`; with the
    trials of both."""
    LOG.info("fitting under %s", what)
    try:
        other = fit()
    except FitError as error:
        return _with_note(best, f"noise: {what} were left out, because their fit failed: {error}")
    (trial,) = other.fitted.trials
    wins = trial.evidence > _taken(best) + least
    kept = tuple(before._replace(chosen=before.chosen and not wins) for before in best.fitted.trials)
    better = other if wins else best
    return better._replace(fitted=better.fitted._replace(trials=(*kept, trial._replace(chosen=wins))))


def _with_note(ended: Ended, note: str) -> Ended:
    return ended._replace(fitted=ended.fitted._replace(notes=(*ended.fitted.notes, note)))


def _gain_for_rows_left_out(fitted: Fitted, data: Dataset) -> float:
    """What the best Student-t density gains over the best normal one for the standardised errors of rows left out."""
    model, y = fitted.model, np.asarray(data.y, float)
    left = leave_one_out(fitted.predictor, model.likelihood, data, not model.posterior.points)
    squared = (y - left.mean) ** 2 / (left.variance + noise_variance(model))
    return gain_over_normal(squared, np.asarray(data.weight, float), DEGREES_AT_START)
