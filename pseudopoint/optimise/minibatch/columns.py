"""Steps with the quadratic term of a decoupled mean estimated from a few columns."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from ...data import Dataset
from ...posteriors import Model
from .step import AbstractStepper, Info, Rows

__all__ = ["SampledColumns"]


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
        self, model: Model, state: Any, batch: Dataset, num_data: int, rows: Rows | None = None
    ) -> tuple[Model, Any, Info]:
        """The stepper's step. The model comes back without columns; `info.bound` is an estimate."""
        inner, steps = state
        key = jax.random.fold_in(jax.random.key(self.seed), steps)
        columns = jax.random.choice(key, model.posterior.one.O.shape[0], (self.count,), replace=False)
        model, inner, info = self.stepper.step(_with_columns(model, columns), inner, batch, num_data, rows)
        return _with_columns(model, None), (inner, steps + 1), info


def _with_columns(model, columns):
    return eqx.tree_at(lambda m: m.posterior.one.columns, model, columns, is_leaf=lambda x: x is None)
