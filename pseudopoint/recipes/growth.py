"""More pseudo-points in the end. Kernel and noise are learned with few points, for an evaluation costs N M²; a function
that these do not follow needs more of them (Burt et al. 2020). They are added where the variance that the others leave
unexplained is largest, and all numbers climb for a few iterations more.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..bounds import collapsed
from ..data import Dataset, near_rows
from ..optimise.fullbatch import FitError
from ..optimise.named import held_points
from ..posteriors import Collapsed, Model
from ..starts.inducing import added
from .ends import finish
from .objectives import OfBound, maximise
from .prior import LengthscalePrior
from .settings import WORK, Fitted, Settings, points_may_grow
from .starts import float32_start_on_sample

ITERATIONS = 5  # with more points: for as much work, more points gain more than more iterations
SHARE = 0.5  # of the work that `effort` allows
# How many points there may be: predictions take M² for each row, and a model file holds M² numbers.
MOST = {"balanced": 1000, "thorough": 2000}
ENOUGH = 2.0  # times as many points, or they are not worth their time
ROWS_A_POINT = 5  # at least
GAP = 0.02  # nats a row between the upper and the lower bound, below which points are enough
ROWS = 5000  # of which points are drawn
LOG = logging.getLogger(__name__)


class Ended(NamedTuple):
    """A fit, and the function that gives it more pseudo-points: (fit, number of points) ↦ fit."""

    fitted: Fitted
    more: Callable[[Fitted, int], Fitted]


def as_it_is(fitted: Fitted, M: int) -> Fitted:
    """No points more."""
    return fitted


def most_points(fitted: Fitted, data: Dataset, settings: Settings) -> int:
    """How many pseudo-points the fit is to have in the end: as many as it has where the user has chosen their number,
    the bounds say that they are enough, or the rows are too many for more."""
    M, N = len(fitted.model.posterior.Z), len(data)
    if M == 0 or not points_may_grow(settings) or not fitted.upper - fitted.bound > GAP * N:
        return M
    by_work = int(np.sqrt(SHARE * WORK[settings.effort] / (ITERATIONS * N)))
    affordable = min(MOST[settings.effort], N // ROWS_A_POINT, by_work)
    return affordable if affordable >= ENOUGH * M else M


def with_more_points(
    fitted: Fitted, data: Dataset, settings: Settings, prior: LengthscalePrior, M: int, hold_noise: bool = False
) -> Fitted:
    """The collapsed fit with at most M pseudo-points; as it is where that does not raise its bound."""
    LOG.info("adding inducing points, at most %d in all", M)
    model = fitted.model
    few = data.sample(ROWS, settings.seed)
    X = np.asarray(few.X)[np.asarray(few.weight) > 0]
    Z = added(model.kernel, np.asarray(model.posterior.Z), X[near_rows(X)], M, settings.seed)
    if len(Z) < ENOUGH * len(model.posterior.Z):  # nothing is left to explain
        return fitted
    start = Model(model.kernel, model.likelihood, Collapsed(np.asarray(Z, data.X.dtype)))
    likelihood: tuple[Callable[[Any], Any], ...] = (lambda model: model.likelihood,) if hold_noise else ()
    held, objective = (*held_points(settings), *likelihood), OfBound(collapsed, settings.tight)
    float32_start = float32_start_on_sample(model.kernel, data, settings)
    try:
        result = maximise(objective, prior, start, data, ITERATIONS, None, *held, float32_start=float32_start)
        more = finish(collapsed, result, data, settings, fitted.notes)
    except FitError:
        return fitted
    if not more.bound > fitted.bound:
        return fitted
    note = f"inducing points: {len(model.posterior.Z)} to learn kernel and noise, {len(Z)} in the end"
    return fitted.refitted(more)._replace(notes=(*fitted.notes, note))
