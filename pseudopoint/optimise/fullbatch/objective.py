"""A bound as a function of one vector: what all full-batch optimisers share."""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from ...compilation import CompileMode, program
from ...params import Trainable, cast
from ..result import FitError, OptimiseResult, Progress, Record

__all__ = ["Objective", "evaluate"]

AGREE = 1e-5  # values of two precisions that differ by less, in units of f


def evaluate(function: Callable, has_aux: bool, model: Any, data: Any) -> tuple[Any, Any]:
    """(value, aux) of an objective; aux is None if it has none."""
    return function(model, data) if has_aux else (function(model, data), None)


def _value_and_gradient(function, has_aux, numbers, vector, data):
    """The value, its gradient as one array per field, and aux."""
    of_parts = lambda parts: evaluate(function, has_aux, numbers.rebuild(parts), data)
    (value, aux), gradient = jax.value_and_grad(of_parts, has_aux=True)(numbers.split(vector))
    return value, gradient, aux


@partial(jax.jit, static_argnums=(0, 1))
def _negative_value(function, has_aux, numbers, vector, data):
    return -evaluate(function, has_aux, numbers.rebuild(vector), data)[0]


def _rebuilt(numbers, vector):
    return numbers.rebuild(vector)


def _flat(parts) -> np.ndarray:
    """One float64 vector, as SciPy takes it."""
    return np.concatenate([np.zeros(0), *(np.ravel(part) for part in parts)], dtype=float)


class Objective:
    """f(x) = −function(model, data)/scale, of the trainable numbers x of a model in float64, to be minimised.

    `function` is a named function, since it is compiled once for each function and shape. It returns the bound, or with
    `has_aux` the pair (bound, aux), as for `jax.value_and_grad`; the aux of the best point is part of the result. An
    inner loop starts from where it ended at the best point so far if `resume(model, aux)` puts that into the model of
    the next evaluation (with the same shapes). Pass the number of rows as `scale`, so that tolerances mean the same for
    every table. `compile_mode` is that of `compilation.program`.

    `compute(numbers, vector, data)` takes the place of the compiled program where the host sums over rows: it returns
    the bound, its gradient as one array for each field, and aux. `keep` is called with the objective after every
    iteration; `restore` goes on from what it kept.

    With `before`, the function is given `before(model, data)` in place of the data at every evaluation: a part of the
    work that the host does outside of a compiled program.

    An objective belongs to one run of an optimiser: it keeps the best point whose gradient is known, and the history.
    """

    def __init__(
        self,
        function: Callable,
        numbers: Trainable,
        data: Any,
        *,
        has_aux: bool = False,
        resume: Callable[[Any, Any], Any] | None = None,
        scale: float = 1.0,
        progress: Progress | None = None,
        compile_mode: CompileMode = None,
        before: Callable[[Any, Any], Any] | None = None,
        compute: Callable[[Any, Any, Any], tuple[Any, Any, Any]] | None = None,
        keep: Callable[["Objective"], None] | None = None,
    ):
        self.compute, self.keep = compute, keep
        self.function, self.has_aux, self.resume, self.before = function, has_aux, resume, before
        self.given = numbers, data
        self.numbers, self.data, self.scale, self.progress = numbers, data, scale, progress
        self.compile_mode: CompileMode = compile_mode
        self.lowest, self.best, self.gradient_norm, self.aux = np.inf, _flat(numbers.parts), np.nan, None
        self.evaluations, self.rejected, self.trials = 0, 0, 0  # the last since an iteration ended
        self.history: list[Record] = []
        self.levels: list[float] = []  # the lowest value before each iteration, as far as precisions agree, and now
        self.began, self.previous = time.perf_counter(), self.best

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """f(x) and ∇f(x); infinity and zeros where either is not finite."""
        self.evaluations, self.trials = self.evaluations + 1, self.trials + 1
        value, gradient, aux = self._evaluate(x, self.data)
        value, gradient = -float(value) / self.scale, -_flat(gradient) / self.scale
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            self.rejected += 1
            return np.inf, np.zeros_like(gradient)
        if value < self.lowest:
            self.lowest, self.best, self.gradient_norm = value, x.copy(), float(np.linalg.norm(gradient))
            self._keep(aux)
        return value, gradient

    def _evaluate(self, x, data):
        vector, data = self._given(x, data)
        if self.compute is not None:
            return self.compute(self.numbers, vector, data)
        run = program(_value_and_gradient, self.compile_mode, (0, 1))
        return run(self.function, self.has_aux, self.numbers, vector, data)

    def _given(self, x, data):
        """What a program takes: x in the model's precision, and the data."""
        vector = jax.numpy.asarray(x, self.numbers.dtype)
        if self.before is None:
            return vector, data
        return vector, self.before(program(_rebuilt, "once")(self.numbers, vector), data)

    def _keep(self, aux):
        self.aux = aux
        if self.resume is not None:
            self.numbers = dataclasses.replace(self.numbers, model=self.resume(self.numbers.model, aux))

    def value(self, x: np.ndarray) -> float:
        """f(x) alone, for about a third of the work; infinity where it is not finite."""
        self.evaluations += 1
        vector, data = self._given(x, self.data)
        value = float(_negative_value(self.function, self.has_aux, self.numbers, vector, data)) / self.scale
        if not np.isfinite(value):
            self.rejected += 1
            return np.inf
        return value

    def gradient_on(self, data: Any, x: np.ndarray) -> np.ndarray:
        """scale · ∇f(x) on other rows; neither counted nor kept."""
        return -_flat(self._evaluate(x, data)[1])

    def start(self) -> tuple[float, np.ndarray]:
        """f and ∇f at the best point so far, in the model's own precision, which later evaluations keep to.

        After evaluations in float32 their lowest value is forgotten: rounding may have put it out of reach. Raises
        FitError where f or ∇f is not finite.
        """
        value, gradient = self._restart(*self.given)
        if not np.isfinite(value):
            raise FitError("the bound is not finite at the initial hyperparameters", bare=True)
        return value, gradient

    def start_in_float32(self) -> tuple[float, np.ndarray]:
        """The same in float32; infinity and zeros where f or ∇f is not finite there."""
        return self._restart(*cast(self.given, np.float32))

    def _restart(self, numbers, data):
        before, self.numbers, self.data, self.lowest = self.lowest, numbers, data, np.inf
        if self.aux is not None:
            self._keep(cast(self.aux, numbers.dtype))
        value, gradient = self(self.best)
        self.trials = 0
        self.levels = [*(self.levels[:-1] if abs(value - before) < AGREE else []), value]
        return value, gradient

    def record(self, x: np.ndarray, total: int, *, step_size: float | None = None, norm: float | None = None) -> None:
        """Adds the iteration that ended at x, of at most `total`, to the history.

        By default its step size is the distance from the previous x, and its norm that of the best point's gradient.
        """
        step = float(np.linalg.norm(x - self.previous)) if step_size is None else step_size
        norm = self.gradient_norm if norm is None else norm
        self.previous, self.trials = x.copy(), 0
        seconds, bound = time.perf_counter() - self.began, -self.lowest * self.scale
        self.levels.append(self.lowest)
        self.history.append(Record(len(self.history) + 1, bound, norm, step, self.rejected, seconds, total))
        if self.keep is not None:
            self.keep(self)
        if self.progress is not None:
            self.progress(self.history[-1])

    def restore(self, best: np.ndarray, history: list[Record], evaluations: int, rejected: int) -> None:
        """Goes on from the best point and the history of a run that was stopped."""
        self.best = self.previous = np.asarray(best, float)
        self.history, self.evaluations, self.rejected = history, evaluations, rejected
        self.began -= history[-1].seconds if history else 0.0

    def best_model(self) -> Any:
        """The model of the best point so far, in its own precision."""
        numbers, _ = self.given
        model = program(_rebuilt, "once")(numbers, jax.numpy.asarray(self.best, numbers.dtype))
        return model if self.resume is None else self.resume(model, cast(self.aux, numbers.dtype))

    def result(self, converged: bool) -> OptimiseResult:
        """The best model seen, and how it was found."""
        numbers, _ = self.given
        bound, history, aux = -self.lowest * self.scale, tuple(self.history), cast(self.aux, numbers.dtype)
        return OptimiseResult(self.best_model(), aux, bound, history, self.evaluations, self.rejected, converged)
