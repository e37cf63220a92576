"""Kernels whose columns share numbers, such as the 0/1 columns of one column of categories."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..params import positive
from .base import AbstractKernel, AbstractOfRows, Scale

__all__ = ["Tied"]


class Tied(AbstractOfRows):
    """`kernel` of scale ∘ x, where column d has the number `groups[d]` of every field of the kernel that has one number
    a column: G lengthscales for D columns. `scale` is not learned.

    For the 0/1 columns of a column of categories, a stationary kernel with one lengthscale ℓ is a kernel of categories:
    r² = 2 scale² 1[a ≠ b]/ℓ², for RBF variance · exp(−scale² 1[a ≠ b]/ℓ²). So
    `Tied(Matern52(np.ones(2)), (0, 1, 1, 1, 1))` has a lengthscale for column 0, and one for a column of
    four categories. A sum or product has its parts tied one by one.
    """

    kernel: AbstractKernel
    groups: tuple[int, ...] = eqx.field(static=True)
    scale: Scale = positive(default=1.0, learn="learned")
    learned: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if sorted(set(self.groups)) != list(range(len(set(self.groups)))):
            raise ValueError(f"groups={self.groups} must number the groups of the columns 0, 1, 2, … without a gap")

    @property
    def scales(self) -> tuple[Any, Any] | None:
        """Those of the kernel inside: one lengthscale a group."""
        return self.kernel.scales

    def widths(self, D: int) -> np.ndarray | None:
        """A lengthscale for each of the D columns."""
        inside = self.kernel.widths(self.inner_columns(D))
        return None if inside is None else inside[list(self.groups)] / np.asarray(self.scale)

    def inner_columns(self, D: int) -> int:
        if D != len(self.groups):
            raise ValueError(f"a kernel ties {len(self.groups)} columns, but the inputs have {D}")
        return max(self.groups, default=-1) + 1

    def wide(self) -> AbstractKernel:
        """The kernel of scale ∘ x with all its numbers, one for each of D columns."""
        fields = [field.name for field in dataclasses.fields(self.kernel) if field.type == Scale]
        numbers = {name: getattr(self.kernel, name) for name in fields}
        shared = {name: jnp.asarray(x)[np.asarray(self.groups)] for name, x in numbers.items() if np.ndim(x)}
        at = lambda kernel: [getattr(kernel, name) for name in shared]
        return eqx.tree_at(at, self.kernel, list(shared.values())) if shared else self.kernel

    def times(self, factor: float) -> AbstractKernel:
        """Of the kernel inside where that keeps its fields, which `wide` reads."""
        alike = jax.tree.structure(self.kernel.times(factor)) == jax.tree.structure(self.kernel)
        return super().times(factor) if alike else AbstractKernel.times(self, factor)

    def seen(self, X: Float[Array, "N D"]) -> Float[Array, "N K"]:
        return X * self.scale
