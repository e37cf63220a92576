"""Quasi-Newton: SciPy's L-BFGS-B on the unconstrained numbers of a model."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize

from ...compilation import CompileMode
from ...params import Trainable, cast
from ..result import Progress
from .objective import Objective, OptimiseResult
from .units import units

__all__ = ["lbfgsb"]

PAIRS = 20
ROUND = 16  # iterations of the first round; every other has twice as many as the one before
PATIENCE = 10  # iterations that together gain enough, or are the last; not while a round still gathers its pairs


def lbfgsb(
    bound: Callable,
    free: Trainable,
    data: Any,
    *,
    carry: Any = None,
    max_iter: int = 200,
    progress: Progress | None = None,
    scale: float = 1.0,
    probe: Any = None,
    coarse: Callable[[Any], bool] | None = None,
    box: tuple[Any, Any] | None = None,
    enough: float = 0.0,
    compile_mode: CompileMode = None,
) -> OptimiseResult:
    """Maximises `bound(model, data)` over the free numbers of a model by L-BFGS-B with 20 pairs.

    The objective is divided by `scale` (pass the number of rows) so that tolerances mean the same for every table.
    Where it is not finite, the optimiser is shown a bowl around the best point so far, which its line search leaves at
    once: the step is rejected and shortened. Raises FitError when the very first point is not finite. `bound` must be a
    named function: it is compiled once for each function and shape.

    With a `carry`, the bound is a function of (model, data, carry) and returns its value and the next carry: where an
    inner loop ended, for the next one to begin.

    With `probe`, rows that are enough to tell, it goes in rounds of 16, 32, 64, … iterations, each in the `units` of
    where it begins. Of thousands of coordinates of pseudo-points and a few hyperparameters one kind may be twenty times
    as stiff as the other, either way round, and 20 pairs do not tell the optimiser. Not in the papers; without `probe`
    the method is the plain one.

    With `coarse`, a function of the model, rounds are in float32 as long as it is true where they begin; what is left,
    and what float32 does not see any more, is in the model's own precision.

    `box` = (lower, upper), vectors [P], bounds the unconstrained numbers; the start lies inside. `compile_mode` is that
    of the bound's `program`.

    It has converged where an iteration gains less than 1e-9 of the objective or no component of the gradient exceeds
    1e-6, and where 10 iterations of a round that has its 20 pairs have gained less than `enough` together, in units of
    the bound.
    """
    climb = Objective(
        bound, free, data, carry=carry, scale=scale, progress=progress, total=max_iter, compile_mode=compile_mode
    )
    length = max_iter if probe is None else ROUND
    if coarse is not None and coarse(free.model) and climb.coarsen():
        _, length = _rounds(climb, probe, length, coarse, box, enough)
        if not _goes_on(climb):
            return climb.maximum(False)
    climb.refine()
    result, _ = _rounds(climb, probe, length, lambda model: True, box, enough)
    return climb.maximum(result.status == 0)


def _rounds(climb: Objective, probe: Any, length: int, serves: Callable[[Any], bool], box: Any, enough: float):
    """Rounds until one converges or fails, iterations end, or the model is none that this serves; the last, and the
    length of the next."""
    while True:
        unit = np.ones_like(climb.best) if probe is None else units(climb, cast(probe, climb.free.dtype))
        left = _left(climb)
        limits = left | {"maxiter": min(length, left["maxiter"])}
        result, length = _round(climb, unit, limits, box, enough), 2 * length
        if not (result.status == 1 and _goes_on(climb) and serves(climb.model())):
            return result, length


def _left(climb: Objective) -> dict[str, int]:
    return {"maxiter": climb.total - len(climb.history), "maxfun": 4 * climb.total + 20 - climb.count}


def _goes_on(climb: Objective) -> bool:
    return min(_left(climb).values()) > 0


def _round(climb: Objective, unit: np.ndarray, limits: dict, box: Any, enough: float) -> scipy.optimize.OptimizeResult:
    """L-BFGS-B from the best point so far, on z of ξ = start + unit · z."""
    start, lowest = climb.best.copy(), [climb.lowest]

    def walled(z):
        x = start + unit * z
        value, gradient = climb(x)
        away = x - climb.best
        value, gradient = (value, gradient) if np.isfinite(value) else (climb.lowest + 1.0 + away @ away, 2 * away)
        return value, unit * gradient

    def settled():
        return len(lowest) > PAIRS and (lowest[-1 - PATIENCE] - lowest[-1]) * climb.scale < enough

    def noted(z):
        climb.record(start + unit * z)
        lowest.append(climb.lowest)
        if settled():
            raise StopIteration

    sides = box and list(zip(*((np.asarray(side, float) - start) / unit for side in box), strict=True))
    result = scipy.optimize.minimize(
        walled,
        np.zeros_like(start),
        jac=True,
        method="L-BFGS-B",
        bounds=sides,
        callback=noted,
        options={"maxcor": PAIRS, "ftol": 1e-9, "gtol": 1e-6, **limits},
    )
    result.status = 0 if settled() else result.status  # SciPy's versions have numbers of their own for it
    return result
