"""More pseudo-points in the end. Kernel and noise are learned with few points, for an evaluation costs N M²; a function
that these do not follow needs more of them (Burt et al. 2020). They are added where the variance that the others leave
unexplained is largest, and all numbers climb for a few iterations more. Under a likelihood without a closed form q
begins where it is, with the prior of the added points: q(f) is the same, so that the bound never falls.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..bounds import collapsed
from ..compilation import program
from ..data import Dataset, near_rows
from ..gaussians import MeanPrecision
from ..optimise.fullbatch import FitError
from ..optimise.named import held_points
from ..posteriors import Collapsed, Model, Whitened
from ..starts.inducing import added
from .ends import at_once, finish, finish_profile
from .objectives import OfBound, float32_leads, maximise, maximise_profile, padded_to_bucket
from .precision import FLOAT32_NOTE, resolved_in_float32
from .prior import LengthscalePrior
from .settings import WORK, Fitted, Settings, points_may_grow
from .widening import GivenNoise

# Iterations with more points: for as much work, more points gain more; what work is left there, more iterations do.
FEWEST, MOST_ITERATIONS = 5, 10
SHARE = 0.6  # of the work that `effort` allows
SEARCH_OF_Q = 6  # evaluations of a bound in closed form that one costs with the search for its best q
# How many points there may be: predictions take M² for each row, and a model file holds M² numbers.
MOST = {"balanced": 1000, "thorough": 2000}
ENOUGH = 2.0  # times as many points, or they are not worth their time
ROWS_A_POINT = 2  # at least
# Points are enough where upper and lower bound differ by less, in nats a row; and under other likelihoods where the
# residual variance costs less, in nats of all rows. It costs little where few points have led to a smooth function.
GAP, COST = 0.02, 2.0
ROWS = 5000  # of which points are drawn
LOG = logging.getLogger(__name__)


class Ended(NamedTuple):
    """A fit, and the function that gives it more pseudo-points, (fit, number of points) ↦ fit; `given` makes what
    `widened` reads, where variances may be widened."""

    fitted: Fitted
    more: Callable[[Fitted, int], Fitted]
    given: Callable[[], GivenNoise] | None = None


def as_it_is(fitted: Fitted, M: int) -> Fitted:
    """No points more."""
    return fitted


def most_points(fitted: Fitted, data: Dataset, settings: Settings, method: str) -> int:
    """How many pseudo-points the fit is to have in the end: as many as it has where they are enough, or no more are
    affordable."""
    M = len(fitted.model.posterior.Z)
    most = affordable_points(fitted.model, len(data), settings, method)
    return most if most > M and _unexplained(fitted, data) else M


def affordable_points(model: Model, N: int, settings: Settings, method: str) -> int:
    """How many pseudo-points a fit of N rows may have in the end: as many as the model has where the user has chosen
    their number, or fewer than `ENOUGH` times as many are affordable. After minibatches any more points will do, for
    the iterations on all rows are worth their time by themselves."""
    M, closed = len(model.posterior.Z), model.posterior.closed_form
    if M == 0 or not points_may_grow(settings):
        return M
    affordable = min(MOST[settings.effort], N // ROWS_A_POINT, int(np.sqrt(_work(closed, settings) / (FEWEST * N))))
    if not closed:  # the features of all rows are in memory together
        affordable = min(affordable, M * at_once(model) // N)
    return affordable if affordable >= (M + 1 if method == "svgp" else ENOUGH * M) else M


def _work(closed: bool, settings: Settings) -> float:
    """Multiplications and additions of the bound's evaluations, N M² each."""
    return SHARE * WORK[settings.effort] / (1 if closed else SEARCH_OF_Q)


def _iterations(start: Model, N: int, settings: Settings) -> int:
    work = _work(start.posterior.closed_form, settings)
    return int(np.clip(work / (N * len(start.posterior.Z) ** 2), FEWEST, MOST_ITERATIONS))


def _unexplained(fitted: Fitted, data: Dataset) -> bool:
    """Whether there is something that more points may explain."""
    if fitted.model.posterior.closed_form:
        return fitted.upper - fitted.bound > GAP * len(data)
    return float(program(_cost_of_residuals, "brief")(fitted.model, padded_to_bucket(data))) > COST


def _cost_of_residuals(model: Model, data: Dataset):
    """What the residual variance dᵢ of rows costs the bound, to first order, nats: −Σ wᵢ dᵢ ∂E log p(yᵢ | fᵢ)/∂V fᵢ."""
    mean, explained, residual = model.posterior.project(model.kernel).marginals(data.X)
    _, slope = model.likelihood.at(data).expectation_gradients(mean, explained + residual, data.y)
    return -jnp.sum(data.weight * residual * slope)


def with_more_points(
    fitted: Fitted,
    data: Dataset,
    settings: Settings,
    prior: LengthscalePrior,
    M: int,
    hold_noise: bool = False,
) -> Fitted:
    """The fit with at most M pseudo-points; as it is where that does not raise its bound."""
    LOG.info("adding inducing points, at most %d in all", M)
    model, few = fitted.model, data.sample(ROWS, settings.seed)
    X = np.asarray(few.X)[np.asarray(few.weight) > 0]
    Z = added(model.kernel, np.asarray(model.posterior.Z), X[near_rows(X)], M, settings.seed)
    if len(Z) < min(M, ENOUGH * len(model.posterior.Z)):  # nothing is left to explain
        return fitted
    Z = np.asarray(Z, data.X.dtype)
    try:
        if model.posterior.closed_form:
            more = _climbed(fitted, Z, data, settings, prior, hold_noise)
        else:
            more = _climbed_with_q(fitted, Z, data, settings, prior)
    except FitError:
        return fitted
    if not more.bound > fitted.bound:
        return fitted
    note = f"inducing points: {len(model.posterior.Z)} to learn kernel and noise, {len(Z)} in the end"
    return fitted.refitted(more)._replace(notes=tuple(dict.fromkeys([*fitted.notes, *more.notes, note])))


def _climbed(fitted: Fitted, Z, data: Dataset, settings: Settings, prior: LengthscalePrior, hold_noise: bool) -> Fitted:
    """The fit by the collapsed bound that goes on with these points."""
    start = Model(fitted.model.kernel, fitted.model.likelihood, Collapsed(Z))
    likelihood: tuple[Callable[[Any], Any], ...] = (lambda model: model.likelihood,) if hold_noise else ()
    held, objective = (*held_points(settings), *likelihood), OfBound(collapsed, settings.tight)
    # Where many points are near each other the bound in float32 may be far off; and no later round would mend it.
    in_float32 = settings.float32_start and float32_leads(objective, prior, start, data, *held)
    options = {"float32_start": (lambda model: True) if in_float32 else None}
    result = maximise(objective, prior, start, data, _iterations(start, len(data), settings), None, *held, **options)
    return finish(collapsed, result, data, settings, (FLOAT32_NOTE,) * in_float32)


def _climbed_with_q(fitted: Fitted, Z, data: Dataset, settings: Settings, prior: LengthscalePrior) -> Fitted:
    """The fit by the bound at its best q that goes on with these points, of which the first are its own."""
    model = fitted.model
    start = Model(model.kernel, model.likelihood, Whitened(jnp.asarray(Z), beside_prior(model.posterior.q, len(Z))))
    resolved = settings.float32_start and resolved_in_float32(start, data.total_weight)
    float32_start = (lambda model: True) if resolved else None
    count, held = _iterations(start, len(data), settings), held_points(settings)
    found = maximise_profile(prior, start, data, count, None, *held, float32_start=float32_start)
    return finish_profile(*found, (FLOAT32_NOTE,) * resolved)


def beside_prior(q: MeanPrecision, M: int) -> MeanPrecision:
    """q of the first whitened variables, and N(0, I) of the others, M in all. With v = L⁻¹u and L triangular, v of the
    first points does not know of the others, so that q(f) stays what it is."""
    few = len(q.mean)
    precision = jnp.eye(M, dtype=q.precision.dtype).at[:few, :few].set(q.precision)
    return MeanPrecision(jnp.pad(q.mean, (0, M - few)), precision)
