"""Quasi-Newton: SciPy's L-BFGS-B on the unconstrained numbers of a model."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize

from ..history import Progress
from ..params import Free
from .base import Climb, Maximum

__all__ = ["lbfgsb"]


def lbfgsb(
    bound: Callable,
    free: Free,
    data: Any,
    *,
    carry: Any = None,
    max_iter: int = 200,
    progress: Progress | None = None,
    scale: float = 1.0,
    moving: np.ndarray | None = None,
) -> Maximum:
    """Maximises `bound(model, data)` over the free numbers of a model by L-BFGS-B with 20 pairs; only over the `moving`
    ones of them, where these are given as flags [P].

    The objective is divided by `scale` (pass the number of rows) so that tolerances mean the same for every table.
    Where it is not finite, the optimiser is shown a bowl around the best point so far, which its line search leaves at
    once: the step is undone and shortened. Raises FitError when the very first point is not finite. `bound` must be a
    named function: it is compiled once for each function and shape.

    With a `carry`, the bound is a function of (model, data, carry) and returns its value and the next carry: where an
    inner loop ended, for the next one to begin.
    """
    climb = Climb(bound, free, data, carry=carry, scale=scale, progress=progress, total=max_iter)
    climb.first()
    start, moves = climb.best.copy(), np.ones(len(climb.best), bool) if moving is None else moving

    def whole(part):
        x = start.copy()
        x[moves] = part
        return x

    def walled(part):
        x = whole(part)
        value, gradient = climb(x)
        away = x - climb.best
        value, gradient = (value, gradient) if np.isfinite(value) else (climb.lowest + 1.0 + away @ away, 2 * away)
        return value, gradient[moves]

    result = scipy.optimize.minimize(
        walled,
        start[moves],
        jac=True,
        method="L-BFGS-B",
        callback=lambda part: climb.record(whole(part)),
        options={"maxiter": max_iter, "maxcor": 20, "maxfun": 4 * max_iter + 20, "ftol": 1e-9, "gtol": 1e-6},
    )
    return climb.maximum(result.status == 0)
