"""What every bound returns."""

import equinox as eqx
import numpy as np
from jax.tree_util import Partial

from ..linalg import Scalar

__all__ = ["AbstractBound", "Bound", "Solution"]


class AbstractBound(eqx.Module):
    """A lower bound on log p(y) in nats: `value`, and `standard` ≤ `value`, which charges for the variance that the
    pseudo-points leave open as the papers do. Where a method has one form they are equal."""

    value: eqx.AbstractVar[Scalar]
    standard: eqx.AbstractVar[Scalar]

    def choose(self, tight: bool) -> Scalar:
        """`value` if `tight`, else `standard`. A compiled program computes only the one that it uses."""
        return self.value if tight else self.standard


class Bound(AbstractBound):
    """That of a given q."""

    value: Scalar
    standard: Scalar


def _unknown() -> float:
    return np.inf


class Solution(AbstractBound):
    """That of the best q, which is known in closed form. `predictor()` is the predictor of this q, and `upper()` an
    upper bound on log p(y), infinite where none is known: neither costs anything unless it is called."""

    value: Scalar
    standard: Scalar
    predictor: Partial
    upper: Partial = Partial(_unknown)
