"""Full-batch optimisation: SciPy's L-BFGS-B on the unconstrained numbers of a model."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.optimize

from .history import Progress, Record
from .params import Free

__all__ = ["FitError", "Maximum", "lbfgsb"]


class FitError(ValueError):
    """A fit that cannot go on; the message names the cause and a remedy."""


class Maximum(NamedTuple):
    """The best model seen. `undone` counts trial points that were not finite and were stepped back from."""

    model: Any
    carry: Any
    bound: float
    history: tuple[Record, ...]
    evaluations: int
    undone: int
    converged: bool


@partial(jax.jit, static_argnums=0)
def _value_and_gradient(bound, free, vector, data, carry):
    def objective(x):
        model = free.rebuild(x)
        return (bound(model, data), None) if carry is None else bound(model, data, carry)

    (value, carry), gradient = jax.value_and_grad(objective, has_aux=True)(vector)
    return -value, -gradient, carry


def lbfgsb(
    bound: Callable,
    free: Free,
    data: Any,
    *,
    carry: Any = None,
    max_iter: int = 200,
    progress: Progress | None = None,
    scale: float = 1.0,
) -> Maximum:
    """Maximises `bound(model, data)` over the free numbers of a model by L-BFGS-B with 20 pairs.

    The objective is divided by `scale` (pass the number of rows) so that tolerances mean the same for every table.
    Where it is not finite, the optimiser is shown a bowl around the best point so far, which its line search leaves at
    once: the step is undone and shortened. Raises FitError when the very first point is not finite. `bound` must be a
    named function: it is compiled once for each function and shape.

    With a `carry`, the bound is a function of (model, data, carry) and returns its value and the next carry: where an
    inner loop ended, for the next one to begin.
    """
    climb = _Climb(bound, free, data, carry, scale, progress, max_iter)
    start = np.asarray(free.vector, float)
    if not np.isfinite(climb(start)[0]) or climb.undone:
        raise FitError("the bound is not finite at the initial hyperparameters")
    result = scipy.optimize.minimize(
        climb,
        start,
        jac=True,
        method="L-BFGS-B",
        callback=climb.record,
        options={"maxiter": max_iter, "maxcor": 20, "maxfun": 4 * max_iter + 20, "ftol": 1e-9, "gtol": 1e-6},
    )
    model = free.rebuild(jax.numpy.asarray(climb.best, free.vector.dtype))
    return Maximum(
        model,
        climb.best_carry,
        -climb.lowest * scale,
        tuple(climb.history),
        climb.count,
        climb.undone,
        result.status == 0,
    )


class _Climb:
    """The objective as SciPy sees it, remembering the best point and what happened."""

    def __init__(self, bound, free, data, carry, scale, progress, total):
        self.bound, self.free, self.data, self.scale = bound, free, data, scale
        self.best_carry = carry
        self.progress, self.total = progress, total
        self.lowest, self.best, self.norm = np.inf, np.asarray(free.vector, float), np.nan
        self.count, self.undone = 0, 0
        self.history: list[Record] = []
        self.start, self.previous = time.perf_counter(), self.best

    def __call__(self, x):
        self.count += 1
        vector = jax.numpy.asarray(x, self.free.vector.dtype)
        value, gradient, carry = _value_and_gradient(self.bound, self.free, vector, self.data, self.best_carry)
        value, gradient = float(value) / self.scale, np.asarray(gradient, float) / self.scale
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            self.undone += 1
            away = x - self.best
            return (self.lowest if np.isfinite(self.lowest) else 0.0) + 1.0 + away @ away, 2 * away
        if value < self.lowest:
            self.lowest, self.best, self.norm = value, x.copy(), float(np.linalg.norm(gradient))
            self.best_carry = carry
        return value, gradient

    def record(self, x):
        step = float(np.linalg.norm(x - self.previous))
        self.previous = x.copy()
        seconds = time.perf_counter() - self.start
        bound = -self.lowest * self.scale
        self.history.append(Record(len(self.history) + 1, bound, self.norm, step, self.undone, seconds, self.total))
        if self.progress is not None:
            self.progress(self.history[-1])
