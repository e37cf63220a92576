"""Ordinary gradients: gradient descent, Adam and whatever else optax has."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import optax

from ...bounds import elbo
from ...data import Dataset
from ...params import trainable
from ...posteriors import Model
from .base import AbstractStepper, Guard, Info, Rows, all_finite, climbed

__all__ = ["Optax", "OptaxState"]


class OptaxState(NamedTuple):
    """The state of the optax optimiser, and the guard."""

    rest: Any
    guard: Guard


class Optax(AbstractStepper):
    """Ordinary gradients for everything, q included: give q in coordinates such as `MeanChol`."""

    optimiser: optax.GradientTransformation = eqx.field(static=True)
    frozen: tuple[Callable, ...] = eqx.field(static=True, default=())
    tight: bool = eqx.field(static=True, default=True)

    def init(self, model: Model, num_data: int) -> OptaxState:
        """The state before the first step."""
        every = trainable(model, *self.frozen)
        return OptaxState(self.optimiser.init(every.parts), Guard.start(every.dtype))

    def step(
        self, model: Model, state: OptaxState, batch: Dataset, num_data: int, rows: Rows | None = None
    ) -> tuple[Model, OptaxState, Info]:
        """One step up the batch's estimate of the bound."""
        every = trainable(model, *self.frozen)
        objective = lambda parts: elbo(every.rebuild(parts), batch, num_data).choose(self.tight)
        value, gradient = jax.value_and_grad(objective)(every.parts)
        moved, parts, rest, norm = climbed(self.optimiser, every, gradient, state.rest, state.guard)
        # The optimiser's state is finite where the gradient's square is, the model where its free numbers are.
        good = all_finite((value, norm, parts)) & state.guard.is_plausible(norm)
        (model, rest), guard = state.guard.accept_or_revert(good, (moved, rest), (model, state.rest), norm)
        info = Info(value, norm, state.guard.scale, ~good)
        return model, OptaxState(rest, guard), info
