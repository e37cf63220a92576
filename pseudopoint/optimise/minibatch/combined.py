"""Steppers made of other steppers: two that take turns, and one whose posterior has columns drawn for every step."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from ...data import Count, Dataset
from ...posteriors import Model
from .energy import with_q
from .step import AbstractStepper, Info, Places

__all__ = ["Alternate", "AlternateState", "SampledColumns"]


class AlternateState(NamedTuple):
    """The states of both."""

    first: Any
    second: Any


class Alternate(AbstractStepper):
    """On each batch a step of the first stepper, then one of the second from where the first arrived.

    `Alternate(Optax(adam, frozen=(lambda m: m.posterior.q,)), NaturalGradient(γ))` is Salimbeni et al. (2018, 5.3): a
    step of Adam on all but q, then a natural one on q. `NaturalGradient(γ, hyper_optimiser=adam)` makes both steps
    from the same point, in one pass over the batch instead of two. Both have the same fixed points, where both
    gradients are 0. On the way, q starts from the new hyperparameters here and from the old ones there: with γ = 1,
    all rows and a Gaussian likelihood q is at its best after every step here, and lags one step behind there.

    One of the two moves q, in the coordinates that it needs; the other holds q (`frozen`) and accepts any coordinates.
    Steppers remember things about q (P⁻¹, sites, averages of its gradient) that would be wrong after a step of the
    other. So where both have moved q, the second change of q is dropped, and the step counts as rejected.
    """

    first: AbstractStepper
    second: AbstractStepper

    def init(self, model: Model, num_data: int) -> AlternateState:
        """Both before their first steps. Raises what they raise."""
        return AlternateState(self.first.init(model, num_data), self.second.init(model, num_data))

    def step(
        self, model: Model, state: AlternateState, batch: Dataset, num_data: Count, rows: Places | None = None
    ) -> tuple[Model, AlternateState, Info]:
        """Both steps; bound, gradient and step size are the first's. It counts as rejected if one of them was."""
        middle, first, info = self.first.step(model, state.first, batch, num_data, rows)
        end, second, then = self.second.step(middle, state.second, batch, num_data, rows)
        clash = _differ(model.posterior.q, middle.posterior.q) & _differ(middle.posterior.q, end.posterior.q)
        q = jax.tree.map(lambda a, b: jnp.where(clash, a, b), middle.posterior.q, end.posterior.q)
        rejected = info.rejected | then.rejected | clash
        return with_q(end, q), AlternateState(first, second), info._replace(rejected=rejected)


class SampledColumns(AbstractStepper):
    """Any stepper, with the quadratic term of a in every step estimated from `count` columns, drawn anew without
    replacement (Salimbeni, Cheng, Boots and Deisenroth 2018, appendix A.3): O(G · count) instead of O(G²), unbiased.

    It is for posteriors with `columns`, trained by `Optax` or `NaturalGradient`; `OrthogonalNaturalGradient` forms C
    anyway. The columns depend on (seed, step) alone.
    """

    stepper: AbstractStepper
    count: int = eqx.field(static=True)
    seed: int = eqx.field(static=True, default=0)

    def init(self, model: Model, num_data: int) -> tuple[Any, Any]:
        """The stepper's state, and the number of steps."""
        return self.stepper.init(model, num_data), jnp.zeros((), int)

    def step(
        self, model: Model, state: Any, batch: Dataset, num_data: Count, rows: Places | None = None
    ) -> tuple[Model, Any, Info]:
        """The stepper's step. The model comes back without columns; `info.bound` is an estimate."""
        inner, steps = state
        key = jax.random.fold_in(jax.random.key(self.seed), steps)
        columns = jax.random.choice(key, model.posterior.one.O.shape[0], (self.count,), replace=False)
        model, inner, info = self.stepper.step(_with_columns(model, columns), inner, batch, num_data, rows)
        return _with_columns(model, None), (inner, steps + 1), info


def _differ(a, b):
    return jnp.stack([(x != y).any() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]).any()


def _with_columns(model, columns):
    return eqx.tree_at(lambda m: m.posterior.one.columns, model, columns, is_leaf=lambda x: x is None)
