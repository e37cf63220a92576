"""A sum of functions of one column each."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ..params import positive
from .base import AbstractKernel, Scale, with_variance

__all__ = ["Additive"]


class Additive(AbstractKernel):
    """Σ_d variance_d exp(−½ (x_d − z_d)²/lengthscale_d²): f is a sum of one smooth function of each column (Duvenaud,
    Nickisch and Rasmussen 2011, first order).

    What is learned of one column at some place holds for all values of the others, so that few rows determine many
    columns. As a `Sum` of `RBF(…).on(d)` it would be as many programs as columns; here it is one loop.
    """

    lengthscale: Scale = positive(default=1.0)
    variance: Scale = positive(default=1.0)
    times = with_variance

    def ard(self, D: int) -> AbstractKernel:
        wide = [np.broadcast_to(np.asarray(x), (D,)) for x in (self.lengthscale, self.variance)]
        return eqx.tree_at(lambda k: [k.lengthscale, k.variance], self, wide)

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)]; memory O(NM), also for the derivative."""
        lengthscale, variance = (jnp.broadcast_to(x, X.shape[1:]) for x in (self.lengthscale, self.variance))
        return _sum_of_columns(X / lengthscale, Z / lengthscale, variance)

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Σ_d variance_d · 1."""
        return jnp.sum(jnp.broadcast_to(self.variance, X.shape[1:])) * jnp.ones_like(X[:, 0])


@jax.custom_vjp
def _sum_of_columns(
    X: Float[Array, "N D"], Z: Float[Array, "M D"], variance: Float[Array, " D"]
) -> Float[Array, "N M"]:
    """Σ_d v_d exp(−½ δ²), δ = x_d − z_d."""

    def add(total, column):
        x, z, v = column
        return total + v * jnp.exp(-0.5 * (x[:, None] - z) ** 2), None

    return lax.scan(add, jnp.zeros((X.shape[0], Z.shape[0]), X.dtype), (X.T, Z.T, variance))[0]


def _forward(X, Z, variance):
    return _sum_of_columns(X, Z, variance), (X, Z, variance)


def _backward(given, G):
    """Of Σᵢⱼ GᵢⱼKᵢⱼ: −Σⱼ G v δ e^{−½δ²} in x, the opposite sum over i in z, and ΣΣ G e^{−½δ²} in v.

    One exponential a pair and column gives all three.
    """

    def slopes(_, column):
        x, z, v = column
        delta = x[:, None] - z
        weights = G * jnp.exp(-0.5 * delta**2)
        moved = v * weights * delta
        return None, (-jnp.sum(moved, axis=1), jnp.sum(moved, axis=0), jnp.sum(weights))

    of_X, of_Z, of_variance = lax.scan(slopes, None, tuple(x.T for x in given))[1]
    return of_X.T, of_Z.T, of_variance


_sum_of_columns.defvjp(_forward, _backward)
