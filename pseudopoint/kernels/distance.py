"""Squared distances between all pairs of rows, each a function of its two rows alone."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

__all__ = ["Anchored", "anchored", "middle", "squared_distance", "squared_distance_from"]

DIRECT = 3  # columns up to which differences cost no more than a product
VAGUE = 1e-3  # an error of a squared distance that matters
SAMPLED = 9  # rows whose median is the middle


class Anchored(NamedTuple):
    """Rows X and all that `squared_distance` computes of them alone: with x = X − centre, ‖x‖² and (x, ‖x‖², 1)."""

    rows: Float[Array, "N D"]
    centre: Float[Array, " D"]
    squares: Float[Array, " N"]
    left: Float[Array, "N D+2"]


def anchored(X: Float[Array, "N D"]) -> Anchored:
    """Rows prepared for many calls of `squared_distance_from`."""
    X = _finite(X)
    centre = lax.stop_gradient(middle(X))
    x = _cut(X - centre, X.shape[1])
    xx = jnp.sum(x**2, axis=1)
    return Anchored(X, centre, xx, jnp.column_stack([x, xx, jnp.ones_like(xx)]))


def squared_distance(X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
    """‖xᵢ − zⱼ‖² [N, M]. It depends on xᵢ and zⱼ alone: no other row changes it.

    Up to three columns the value is the sum of squared differences, which costs no more there. Beyond, it is one matrix
    product, (xᵢ, ‖xᵢ‖², 1) · (−2zⱼ, 1, ‖zⱼ‖²), about a centre amid the rows X. So let X be the rows that many calls
    share, such as pseudo-points or training rows. The product's error is a few ε(‖xᵢ‖² + ‖zⱼ‖²) about that centre. A
    smaller value counts as zero, so a row's distance to itself is exactly 0.

    The derivative is that of the product in either case: two products and no other pass over N × M numbers. It is 0
    between two rows that are nearly equal and so far from the centre that only rounding would be left of it. A
    difference is cut where the sum of its squares would overflow.
    """
    return squared_distance_from(anchored(X), Z)


def squared_distance_from(X: Anchored, Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
    """`squared_distance` of rows X that are prepared: X = `anchored(rows)`."""
    Z, D = _finite(Z), Z.shape[1]
    z = _cut(Z - X.centre, D)
    zz = jnp.sum(z**2, axis=1)
    right = jnp.column_stack([-2 * z, jnp.ones_like(zz), zz])
    product, rounding = X.left @ right.T, (8 + D**0.5) * float(jnp.finfo(Z.dtype).eps) * (X.squares[:, None] + zz)
    if D <= DIRECT:
        value = sum((_cut(X.rows[:, d, None] - Z[:, d], D) ** 2 for d in range(D)), jnp.zeros_like(product))
    else:
        value = jnp.where(product < rounding, 0.0, product)
    near = (value <= rounding) & (rounding > VAGUE)
    return _valued(jnp.where(near, 0.0, product), lax.stop_gradient(value))


def _finite(X):
    """X, cut so that the difference of two numbers does not overflow."""
    largest = float(jnp.finfo(X.dtype).max)
    return jnp.clip(X, -largest / 4, largest / 4)


def _cut(difference, D):
    """The difference, cut so that the sum of D such squares, a few times over, does not overflow."""
    bound = (float(jnp.finfo(difference.dtype).max) / D) ** 0.5 / 8
    return jnp.clip(difference, -bound, bound)


def middle(X: Float[Array, "N D"]) -> Float[Array, " D"]:
    """A centre of the rows that a few far rows do not move: in each column the median of nine evenly spaced rows."""
    count = min(SAMPLED, len(X))
    if count == 0:
        return jnp.zeros_like(X, shape=X.shape[1:])
    rows = np.linspace(0, len(X) - 1, count).astype(int)
    return jnp.sort(X[rows], axis=0)[(count - 1) // 2]  # one of them, not the mean of two


@jax.custom_jvp
def _valued(r2, value):
    """`value` with the derivative of `r2`: the same number, of which `value` has the fewer rounding errors."""
    return value


@_valued.defjvp
def _valued_jvp(primals, tangents):
    return _valued(*primals), tangents[0]
