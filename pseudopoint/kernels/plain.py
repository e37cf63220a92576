"""Kernels of no distance: lines and independent noise."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..params import positive
from .base import AbstractKernel, Positive, Scale, with_variance

__all__ = ["Linear", "White"]


class Linear(AbstractKernel):
    """Σ_d variance_d x_d z_d. `variance` is a scalar or one per column."""

    variance: Scale = positive(default=1.0)
    times = with_variance

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        return (X * self.variance) @ Z.T

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Σ_d variance_d x_d²."""
        return jnp.sum(self.variance * X**2, axis=1)


class White(AbstractKernel):
    """variance · 1[x = z]: independent noise that belongs to the function, not to the observation."""

    variance: Positive = positive(default=1.0)
    times = with_variance
    equality: ClassVar[bool] = True

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        return self.variance * jnp.all(X[:, None, :] == Z[None, :, :], axis=-1).astype(X.dtype)

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """variance · 1."""
        return self.variance * jnp.ones_like(X[:, 0])
