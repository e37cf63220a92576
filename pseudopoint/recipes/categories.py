"""Columns of categories: one lengthscale each in place of one for each of their 0/1 columns, where evidence says so."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..data import Standardiser
from ..kernels import AbstractKernel, Tied

FEWEST = 3  # categories: with two, the 0/1 columns are one column and its negative


class Ties(NamedTuple):
    """The lengthscale that each of D standardised columns has, by its number, and what the columns are multiplied by.

    The 0/1 columns of categories with shares p are standardised by √(p(1 − p)), which would put rare categories far
    from all others. They are multiplied by √(p(1 − p))/S, S² = Σ p(1 − p), the probability that two random rows differ.
    So ‖x − z‖² = 2 · 1[a ≠ b]/S², whose mean over pairs of rows is 2, as for any other standardised column (methods m).
    """

    groups: tuple[int, ...]
    scale: Float[np.ndarray, " D"]

    @classmethod
    def of(cls, categories: Sequence[Sequence[int]], scaling: Standardiser) -> "Ties | None":
        """Of the places of the 0/1 columns of each column of categories; None where none has three that vary."""
        if max((np.sum(scaling.varies[list(places)]) for places in categories), default=0) < FEWEST:
            return None
        spread = np.where(scaling.varies, scaling.scale, 0.0)
        first, scale = np.arange(len(spread)), np.ones(len(spread))
        for places in map(list, categories):
            first[places], total = min(places), np.sqrt(np.sum(spread[places] ** 2))
            scale[places] = np.where(spread[places] > 0, spread[places] / (total or 1.0), 1.0)
        _, groups = np.unique(first, return_inverse=True)
        return cls(tuple(groups.tolist()), scale)

    @property
    def num_groups(self) -> int:
        """G, the number of columns of the table."""
        return max(self.groups) + 1

    @property
    def shared(self) -> np.ndarray:
        """Which of the G lengthscales are of several columns."""
        return np.bincount(self.groups) > 1

    def of_kernel(self, kernel: Any) -> AbstractKernel:
        """A kernel by name of G columns, or each part of its sum, tied."""
        parts = (kernel,) if kernel.scales is not None else kernel.kernels
        return sum(Tied(part, self.groups, self.scale) for part in parts)  # pyright: ignore[reportReturnType]

    def merged(self, lengthscale: Any) -> np.ndarray:
        """The G lengthscales (Σ 1/ℓ²)^(−½) of D, with which two random rows are as far from each other: the squared
        distance of standardised columns has the mean Σ 2/ℓ²."""
        return np.bincount(self.groups, weights=np.asarray(lengthscale, float) ** -2.0) ** -0.5


def occam(curvature: Float[np.ndarray, "P P"], spread: float) -> float:
    """½ log |I + s²H|, nats: by how much the highest evidence over P numbers ξ ~ N(·, s²), less ½ ‖ξ − ·‖²/s², exceeds
    the evidence with ξ integrated out, by Laplace's approximation (methods m). `curvature` is H + I/s².

    A direction in which the evidence has less curvature than none counts as one of none.
    """
    return 0.5 * float(np.sum(np.log(np.maximum(spread**2 * np.linalg.eigvalsh(curvature), 1.0))))
