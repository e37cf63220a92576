"""What every bound returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import numpy as np
from jax.tree_util import Partial

from ..linalg import Scalar

__all__ = ["AbstractBound", "Bound", "Chosen", "Solution"]


class AbstractBound(eqx.Module):
    """A lower bound on log p(y), in nats, in two forms: the tight one (Titsias 2025) as `value` and the usual one as
    `standard` ≤ `value`. Methods with one form return it as both."""

    value: eqx.AbstractVar[Scalar]
    standard: eqx.AbstractVar[Scalar]

    def choose(self, tight: bool) -> Scalar:
        """`value` if `tight`, else `standard`. A compiled program does not compute the other one."""
        return self.value if tight else self.standard


@dataclass(frozen=True)
class Chosen:
    """One form of a bound, as a function (model, rows) ↦ nats. Instances of the same form are equal, so that it is
    compiled once."""

    bound: Callable[[Any, Any], AbstractBound]
    tight: bool

    def __call__(self, model: Any, rows: Any) -> Scalar:
        """The bound's `value` if tight, else `standard`."""
        return self.bound(model, rows).choose(self.tight)


class Bound(AbstractBound):
    """The bound of a given q."""

    value: Scalar
    standard: Scalar


def _unknown() -> float:
    return np.inf


class Solution(AbstractBound):
    """The bound of the best q, which is known in closed form.

    `predictor()` returns the `Predictor` of this q, and `upper()` an upper bound on log p(y), which is infinite if none
    is known. Both are computed only when they are called.
    """

    value: Scalar
    standard: Scalar
    predictor: Partial
    upper: Partial = Partial(_unknown)
