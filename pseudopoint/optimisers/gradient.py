"""Ordinary gradients: gradient descent, Adam and whatever else optax has."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ..bounds import elbo
from ..data import Dataset
from ..params import free
from ..posteriors import Model
from .base import AbstractStepper, Guard, Info, Rows, all_finite

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
        vector = free(model, *self.frozen).vector
        return OptaxState(self.optimiser.init(vector), Guard.start(vector.dtype))

    def step(
        self, model: Model, state: OptaxState, batch: Dataset, num_data: int, rows: Rows | None = None
    ) -> tuple[Model, OptaxState, Info]:
        """One step up the batch's estimate of the bound."""
        every = free(model, *self.frozen)
        objective = lambda vector: elbo(every.rebuild(vector), batch, num_data, self.tight)[0]
        value, gradient = jax.value_and_grad(objective)(every.vector)
        updates, rest = self.optimiser.update(-gradient, state.rest, every.vector)
        vector = every.vector + state.guard.scale * jnp.asarray(updates)
        # The optimiser's state is finite where the gradient's square is, the model where the vector is.
        norm = jnp.linalg.norm(gradient)
        good = all_finite((value, norm, vector))
        (model, rest), guard = state.guard.keep(good, (every.rebuild(vector), rest), (model, state.rest))
        info = Info(value, norm, state.guard.scale, ~good)
        return model, OptaxState(rest, guard), info
