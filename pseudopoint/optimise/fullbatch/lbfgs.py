"""L-BFGS-B, SciPy's quasi-Newton method (Byrd, Lu, Nocedal and Zhu 1995)."""

from typing import Any

import numpy as np
import scipy.optimize

from ..result import OptimiseResult
from .objective import Objective

__all__ = ["lbfgsb"]

PAIRS = 20  # differences of points and of gradients that approximate the Hessian
WINDOW = 10  # iterations over which a gain is measured against `min_gain`
FLOAT32_TRIALS = 6  # trial points of an iteration in float32, beyond which rounding is all that is left to find
CONVERGED, LIMIT, FAILED = 0, 1, 2  # as SciPy numbers the reasons to stop


class _Rounding(Exception):
    """A line search has found nothing above rounding."""


def lbfgsb(objective: Objective, *, max_iter: int = 200, box: tuple[Any, Any] | None = None) -> OptimiseResult:
    """Minimises the objective by L-BFGS-B with 20 pairs, from where its numbers start.

    It has converged when an iteration gains less than 1e-9 of the objective or no component of the gradient exceeds
    1e-6. `box` = (lower, upper), vectors [P], bounds the unconstrained numbers; the start lies inside. A trial point
    that is not finite is rejected and the step shortened. At most 4 max_iter + 20 evaluations are made. Raises FitError
    when the start is not finite.
    """
    objective.start()
    return objective.result(descend(objective, max_iter, box=box) == CONVERGED)


def remaining(objective: Objective, max_iter: int, length: int | None = None) -> dict[str, int]:
    """SciPy's limits: what is left of `max_iter` iterations, at most `length`, and of 4 max_iter + 20 evaluations."""
    left = max_iter - len(objective.history)
    return {"maxiter": min(left, length or left), "maxfun": 4 * max_iter + 20 - objective.evaluations}


def descend(
    objective: Objective,
    max_iter: int,
    *,
    length: int | None = None,
    unit: Any = 1.0,
    box: tuple[Any, Any] | None = None,
    min_gain: float = 0.0,
    window: int | None = None,
) -> int:
    """L-BFGS-B from the best point x₀ so far, on z of x = x₀ + unit · z; returns why it stopped.

    It stops after `length` iterations, or after `max_iter` in the whole history. Once it has its 20 pairs, or half as
    many as there are numbers, it has also converged when 10 iterations together gain less than `min_gain` in units of
    the bound; with `window`, when so many iterations do, of whatever rounds, and of precisions that agree.
    """
    start, levels, before = objective.best.copy(), objective.levels, len(objective.levels)
    least, span = (1, window) if window else (max(WINDOW, min(PAIRS, len(start) // 2)), WINDOW)
    most = FLOAT32_TRIALS if objective.numbers.dtype == np.float32 else np.inf

    def finite(z):
        if objective.trials >= most:  # SciPy would try as often again along the gradient
            raise _Rounding
        value, gradient = objective(x := start + unit * z)
        if not np.isfinite(value):  # a bowl about the best point, which makes the line search come back
            away = x - objective.best
            value, gradient = objective.lowest + 1.0 + away @ away, 2 * away
        return value, unit * gradient

    def settled():
        many = len(levels) > max(span, before + least - 1)
        return many and (levels[-1 - span] - levels[-1]) * objective.scale < min_gain

    def record(z):
        objective.record(start + unit * z, max_iter)
        if settled():
            raise StopIteration

    bounds = box and list(zip(*((np.asarray(side, float) - start) / unit for side in box), strict=True))
    options = {"maxcor": PAIRS, "ftol": 1e-9, "gtol": 1e-6, **remaining(objective, max_iter, length)}
    given = {"jac": True, "method": "L-BFGS-B", "bounds": bounds, "callback": record, "options": options}
    try:
        result = scipy.optimize.minimize(finite, np.zeros_like(start), **given)
    except _Rounding:
        return FAILED
    return CONVERGED if settled() else int(result.status)  # SciPy's versions number a StopIteration differently
