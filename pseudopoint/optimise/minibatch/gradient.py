"""Ordinary gradients: gradient descent, Adam and whatever else optax has."""

from collections.abc import Callable

import jax

from ...bounds import elbo
from ...posteriors import Model
from ..transformation import GradientTransformation
from .schedules import FULL
from .step import AbstractRule, Context, Proposal, VariationalStep

__all__ = ["Optax", "OrdinaryRule"]


class OrdinaryRule(AbstractRule):
    """No numbers of its own: the optax optimiser moves q like all other numbers, along the gradient of the bound."""

    name = "Optax"

    def init(self, model: Model, num_data: int) -> tuple:
        return ()

    def update(self, state: tuple, at: Context) -> Proposal:
        objective = lambda parts: elbo(at.hyper.rebuild(parts), at.batch, at.num_data).choose(at.tight)
        return Proposal((), (), *jax.value_and_grad(objective)(at.hyper.parts))


def Optax(optimiser: GradientTransformation, frozen: tuple[Callable, ...] = (), tight: bool = True) -> VariationalStep:
    """An optax step on all numbers of the model, q included: give q in coordinates such as `MeanChol`."""
    return VariationalStep(OrdinaryRule(), FULL, optimiser, frozen, tight)
