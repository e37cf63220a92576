"""What full-batch optimisers share: a bound as a function of one vector, the best point so far, and the records."""

import time
from functools import partial
from typing import Any

import jax
import numpy as np

from ...compilation import CompileMode, program
from ...params import cast
from ..result import FitError, OptimiseResult, Record

__all__ = ["Objective"]


def _value_and_gradient(bound, free, vector, data, carry):
    def objective(x):
        model = free.rebuild(x)
        return (bound(model, data), None) if carry is None else bound(model, data, carry)

    (value, carry), gradient = jax.value_and_grad(objective, has_aux=True)(free.split(vector))
    return value, gradient, carry


def evaluated(compile_mode: CompileMode, *at: Any) -> tuple[Any, Any, Any]:
    """The bound, its gradient an array a field, and the next carry, by a program compiled in that compile_mode."""
    return program(_value_and_gradient, compile_mode, (0,))(*at)


def _flat(parts):
    """End to end, as SciPy has them."""
    return np.concatenate([np.zeros(0), *(np.ravel(part) for part in parts)], dtype=float)


@partial(jax.jit, static_argnums=0)
def _value(bound, free, vector, data):
    return -bound(free.rebuild(vector), data)


def _rebuilt(free, vector):
    """The model of a vector: one program, where every operation by itself would be one."""
    return free.rebuild(vector)


class Objective:
    """A bound as a function to be minimised, of the unconstrained numbers in SciPy's float64, divided by `scale`. It
    remembers the best point whose gradient it knows, and what happened. `compile_mode` is that of its `program`.
    """

    def __init__(
        self, bound, free, data, *, carry=None, scale=1.0, progress=None, total=0, compile_mode: CompileMode = None
    ):
        self.bound, self.free, self.data, self.scale = bound, free, data, scale
        self.compile_mode: CompileMode = compile_mode
        self.fine = free, data
        self.best_carry = carry
        self.progress, self.total = progress, total
        self.lowest, self.best, self.norm = np.inf, _flat(free.parts), np.nan
        self.count, self.rejected = 0, 0
        self.history: list[Record] = []
        self.start, self.previous = time.perf_counter(), self.best

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """−bound/scale and its gradient; infinity and zeros where either is not finite."""
        self.count += 1
        vector = jax.numpy.asarray(x, self.free.dtype)
        value, gradient, carry = evaluated(self.compile_mode, self.bound, self.free, vector, self.data, self.best_carry)
        value, gradient = -float(value) / self.scale, -_flat(gradient) / self.scale
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            self.rejected += 1
            return np.inf, np.zeros_like(gradient)
        if value < self.lowest:
            self.lowest, self.best, self.norm = value, x.copy(), float(np.linalg.norm(gradient))
            self.best_carry = carry
        return value, gradient

    def value(self, x: np.ndarray) -> float:
        """−bound/scale alone, for a third of the work; infinity where it is not finite. There is no carry."""
        self.count += 1
        vector = jax.numpy.asarray(x, self.free.dtype)
        value = float(_value(self.bound, self.free, vector, self.data)) / self.scale
        if not np.isfinite(value):
            self.rejected += 1
            return np.inf
        return value

    def slope(self, x: np.ndarray, data: Any) -> np.ndarray:
        """The gradient of −bound on other rows, which counts for nothing."""
        vector = jax.numpy.asarray(x, self.free.dtype)
        return -_flat(evaluated(self.compile_mode, self.bound, self.free, vector, data, self.best_carry)[1])

    def first(self) -> tuple[float, np.ndarray]:
        """At the start. Raises FitError where it is not finite."""
        value, gradient = self(self.best)
        if not np.isfinite(value):
            raise FitError("the bound is not finite at the initial hyperparameters")
        return value, gradient

    def coarsen(self) -> bool:
        """Evaluations are in float32 from now on, the start's first; whether it is finite."""
        self.free, self.data, self.best_carry = cast((self.free, self.data, self.best_carry), np.float32)
        return bool(np.isfinite(self(self.best)[0]))

    def refine(self) -> None:
        """Evaluations are in the model's own precision from now on, the best point's first: what float32 took for its
        bound may never be seen again. Raises FitError where it is not finite."""
        (self.free, self.data), self.lowest = self.fine, np.inf
        self.best_carry = cast(self.best_carry, self.free.dtype)
        self.first()

    def record(self, x: np.ndarray, step_size: float | None = None, norm: float | None = None) -> None:
        """An iteration has ended at x. The step is the way it made, and the norm that of the best point's gradient, but
        for optimisers that know better.
        """
        step = float(np.linalg.norm(x - self.previous)) if step_size is None else step_size
        norm = self.norm if norm is None else norm
        self.previous = x.copy()
        seconds = time.perf_counter() - self.start
        bound = -self.lowest * self.scale
        self.history.append(Record(len(self.history) + 1, bound, norm, step, self.rejected, seconds, self.total))
        if self.progress is not None:
            self.progress(self.history[-1])

    def model(self) -> Any:
        """The best model seen."""
        free, _ = self.fine
        return program(_rebuilt, "once")(free, jax.numpy.asarray(self.best, free.dtype))

    def maximum(self, converged: bool) -> OptimiseResult:
        """The best model seen, and how it was found."""
        bound, history = -self.lowest * self.scale, tuple(self.history)
        carry = cast(self.best_carry, self.fine[0].dtype)
        return OptimiseResult(self.model(), carry, bound, history, self.count, self.rejected, converged)
