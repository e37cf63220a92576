"""Two steppers that take turns on every batch."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ...data import Dataset
from ...posteriors import Model
from .base import AbstractStepper, Info, Rows, with_q

__all__ = ["Alternate", "AlternateState"]


class AlternateState(NamedTuple):
    """The states of both."""

    first: Any
    second: Any


class Alternate(AbstractStepper):
    """On each batch a step of the first stepper, then one of the second from where the first arrived.

    `Alternate(NaturalGradient(γ), Optax(adam, frozen=(lambda m: m.posterior.q,)))` is Salimbeni et al. (2018, 5.3): a
    natural step on q, then Adam on all else. `NaturalGradient(γ, rest=adam)` makes both steps from the same point, in
    one pass over the batch instead of two. Where one stands still so does the other: both gradients are 0 there. On the
    way the hyperparameters see q before its step there, and after it here; with γ = 1, all rows and a Gaussian
    likelihood they follow the gradient of the collapsed bound here, and lag one step behind there.

    q belongs to one of the two, and its coordinates are that one's; the other holds it (`frozen`) and takes it in any.
    Nothing is converted: steppers remember things about q (P⁻¹, sites, averages of its gradient) that would be wrong
    after a step of the other's. So where both have moved q, the second's change of q is dropped, and the step counts as
    rejected.
    """

    first: AbstractStepper
    second: AbstractStepper

    def init(self, model: Model, num_data: int) -> AlternateState:
        """Both before their first steps. Raises what they raise, as for a q in coordinates that one does not move."""
        return AlternateState(self.first.init(model, num_data), self.second.init(model, num_data))

    def step(
        self, model: Model, state: AlternateState, batch: Dataset, num_data: int, rows: Rows | None = None
    ) -> tuple[Model, AlternateState, Info]:
        """Both steps; bound, gradient and step size are the first's. It counts as rejected if one of them was."""
        middle, first, info = self.first.step(model, state.first, batch, num_data, rows)
        end, second, then = self.second.step(middle, state.second, batch, num_data, rows)
        clash = _differ(model.posterior.q, middle.posterior.q) & _differ(middle.posterior.q, end.posterior.q)
        q = jax.tree.map(lambda a, b: jnp.where(clash, a, b), middle.posterior.q, end.posterior.q)
        rejected = info.rejected | then.rejected | clash
        return with_q(end, q), AlternateState(first, second), info._replace(rejected=rejected)


def _differ(a, b):
    return jnp.stack([(x != y).any() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]).any()
