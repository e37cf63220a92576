"""What a search tries: the sample of rows, a candidate, and where a search ended."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..data import Dataset, dataset, take, times_drawn
from ..kernels import AbstractKernel
from ..posteriors import Model
from ..starts.warps import Warps, penalty
from .categories import Ties
from .settings import HeavyTails, Trial


def in_order(data: Dataset) -> np.ndarray:
    """The rows by their targets and, where those are equal, by their distances from the middle, [N]: an order that does
    not depend on that of rows and columns, except among rows that are alike in both."""
    return np.lexsort((np.round(np.sum(np.asarray(data.X) ** 2, axis=1), 9), np.asarray(data.y)))


def sample_of(data: Dataset, size: int, seed: int) -> Dataset:
    """At most `size` rows, whatever the order of rows and columns: drawn from those `in_order`."""
    order, weight = in_order(data), np.asarray(data.weight)
    times = times_drawn(weight[order], size, seed) if len(data) > size else None
    if times is None:
        return take(data, order[np.sort(np.random.default_rng(seed).permutation(len(data))[:size])])
    return replace(take(data, order[times > 0]), weight=times[times > 0].astype(weight.dtype))


class Found(NamedTuple):
    """The model where a search ended, its warps (one or None for each column; one or None of the target), and trials.

    `base` is the kernel at its first lengthscales, around which their prior is.
    """

    name: str
    base: AbstractKernel
    model: Model
    inputs: Warps
    target: Any
    trials: tuple[Trial, ...]
    tails: HeavyTails | None = None


class State(NamedTuple):
    """A candidate: kernel by name, model, warps, the log evidence of the sample with the Jacobian (−∞ until it is
    known), and the lengthscales that columns share."""

    name: str
    model: Any
    inputs: Warps
    target: Any
    evidence: float = -np.inf
    ties: Ties | None = None

    def anew(self, **changes: Any) -> "State":
        """Another candidate, whose evidence is not known."""
        return self._replace(**{"evidence": -np.inf} | changes)


class Sample(NamedTuple):
    """The sample: standardised inputs and target, weights, known noise, where the user's zeros lie among them, and the
    coordinates of the classes that the target counts, if it does."""

    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, " N"]
    weight: Float[np.ndarray, " N"]
    noise: Float[np.ndarray, " N"]
    zeros: Float[np.ndarray, " D"]
    zero: float
    levels: Float[np.ndarray, "C K"] | None = None

    @classmethod
    def of_rows(cls, few: Dataset, zeros, zero: float, levels=None) -> "Sample":
        """The rows of a standardised sample."""
        X, y, weight, noise = (np.asarray(x, float) for x in (few.X, few.y, few.weight, few.noise))
        return cls(X, y, weight, noise, zeros, zero, levels)

    def columns(self, warp: Any = None) -> Float[np.ndarray, "N K"]:
        """The target after this warp in a column, or the coordinates of the rows' classes."""
        if self.levels is not None:
            return self.levels[self.y.astype(int)]
        return (self.y if warp is None else warp(self.y))[:, None]

    def inputs(self, warps: Warps) -> Float[np.ndarray, "N D"]:
        """The inputs after these warps."""
        return np.column_stack([x if w is None else w(x) for x, w in zip(self.X.T, warps, strict=True)])

    def of(self, state: State) -> Dataset:
        """The rows as the model of a candidate sees them."""
        y = self.y if self.levels is not None else self.columns(state.target)[:, 0]
        return dataset(self.inputs(state.inputs), y, self.weight, self.noise, dtype=np.float64)

    def gain(self, warp: Any) -> float:
        """Σ wᵢ log w′(yᵢ), less the penalty of the numbers of the warp."""
        return 0.0 if warp is None else float(self.weight @ warp.log_slope(self.y)) - penalty(warp, len(self.y))
