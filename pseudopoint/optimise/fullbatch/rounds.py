"""L-BFGS-B in rounds: numbers in units of the bound's curvature, a start in float32, and an early end."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ...params import cast
from ..result import OptimiseResult
from .lbfgs import CONVERGED, LIMIT, descend, remaining
from .objective import Objective

__all__ = ["ROUND", "lbfgsb_in_rounds", "units"]

ROUND = 16  # iterations of the first round; each later one has twice as many as the one before
FLAT = 1e-4  # of the greatest curvature: the least that a unit is made from


def lbfgsb_in_rounds(
    objective: Objective,
    *,
    max_iter: int = 200,
    probe: Any = None,
    float32_start: Callable[[Any], bool] | None = None,
    box: tuple[Any, Any] | None = None,
    min_gain: float = 0.0,
    window: int | None = None,
) -> OptimiseResult:
    """Minimises the objective by L-BFGS-B in rounds of 16, 32, 64, … iterations. Not in the papers.

    Each round measures its `units` on `probe`, rows that represent all. Thousands of coordinates of pseudo-points may
    be twenty times as stiff as the hyperparameters, or the other way round, and 20 pairs do not show that to L-BFGS-B.
    Without `probe` there are no units, and one round is the whole run.

    Rounds are in float32 as long as `float32_start` is true of the model with which they begin. The rest, and what
    float32 cannot resolve, is in the model's own precision. Where `max_iter` ends a run before, the bound is that of
    float32, unless the objective has a `resume`, whose part of the model is then of the model's own precision too.

    `max_iter` and `box` are those of `lbfgsb`. A round has also converged when, after its first 20 iterations, 10
    iterations together gain less than `min_gain` in units of the bound; with `window`, when so many iterations gain
    less, in whatever rounds. Raises FitError when the start is not finite.
    """
    length = max_iter if probe is None else ROUND
    ends: dict[str, Any] = {"box": box, "min_gain": min_gain, "window": window}

    def rounds(proceed: Callable[[Any], bool]) -> int:
        nonlocal length
        while True:
            unit = 1.0 if probe is None else units(objective, cast(probe, objective.numbers.dtype))
            status = descend(objective, max_iter, length=length, unit=unit, **ends)
            length *= 2
            if status != LIMIT or _spent(objective, max_iter) or not proceed(objective.best_model()):
                return status

    ended = False
    if (
        float32_start is not None
        and float32_start(objective.numbers.model)
        and np.isfinite(objective.start_in_float32()[0])
    ):
        rounds(float32_start)
        ended = _spent(objective, max_iter)
    if not ended or objective.resume is not None:
        objective.start()
    return objective.result(not ended and rounds(lambda model: True) == CONVERGED)


def _spent(objective: Objective, max_iter: int) -> bool:
    return min(remaining(objective, max_iter).values()) <= 0


def units(objective: Objective, data: Any) -> Float[np.ndarray, " P"]:
    """|Hⱼⱼ|^-¼ of the bound's Hessian H at the best point, one for all numbers of a kind, with geometric mean 1.

    A kind is a field of the model, or a column of a field that is a matrix. The mean of diag H over the n numbers of a
    kind is E vᵀHv/n with random signs v (Hutchinson 1990), here of one draw. Hv is a difference of two gradients, so
    the cost is one gradient per field and one more.
    With |H|^-½ a quadratic bound would have the same curvature along all numbers. The square root of that is better,
    because curvature changes during the fit: a noise variance that has to fall by decades is stiff at first.
    """
    x, numbers, rng = objective.best, objective.numbers, np.random.default_rng(0)
    leaves, h = jax.tree.leaves(numbers.model), float(np.finfo(numbers.dtype).eps) ** 0.25
    gradient, curvature, start = objective.gradient_on(data, x), np.full(len(x), np.nan), 0
    for shape in (np.shape(leaves[i]) for i in numbers.leaf_indices):
        part = slice(start, start := start + int(np.prod(shape)))
        if part.start == part.stop:  # such as the gaps between the edges of an ordinal target of two levels
            continue
        v = np.zeros_like(x)
        v[part] = rng.choice([-1.0, 1.0], part.stop - part.start)
        vHv = (v * (objective.gradient_on(data, x + h * v) - gradient) / h)[part].reshape(shape)
        rows = tuple(range(vHv.ndim - 1)) if vHv.ndim > 1 else None
        curvature[part] = np.broadcast_to(np.abs(vHv.mean(axis=rows)), shape).ravel()
    known = np.isfinite(curvature)
    greatest = curvature[known].max(initial=0)
    if greatest == 0:
        return np.ones_like(x)
    unit = np.where(known, np.maximum(curvature, FLAT * greatest), greatest) ** -0.25
    return unit / np.exp(np.mean(np.log(unit)))
