"""Squared distances between all pairs of rows, each of its own two rows alone."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

__all__ = ["middle", "squared_distance"]

DIRECT = 3  # columns up to which differences cost no more than a product
VAGUE = 1e-3  # an error of a squared distance that matters
WITNESSES = 9  # rows that tell where the middle is


def squared_distance(X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
    """‖xᵢ − zⱼ‖², of xᵢ and zⱼ alone: no other row changes it, however far away.

    Up to three columns it is the sum of squared differences, which costs no more there. Beyond, it is one matrix
    product, (xᵢ, ‖xᵢ‖², 1) · (−2zⱼ, 1, ‖zⱼ‖²), about a centre of X: so X is what stays, pseudo-points or the rows of
    training, and Z what comes and goes. Its error is a few ε(‖xᵢ‖² + ‖zⱼ‖²) about that centre, below which a distance
    is zero: a row's distance to itself is exactly 0. The derivative is that of the product in either case, two
    products and no other pass over N × M numbers; it is 0 between two rows in nearly one place that is so far away
    that nothing but rounding would be left of it. A difference is cut where the sum of its squares would overflow.
    """
    D, info = X.shape[1], jnp.finfo(X.dtype)
    largest = float(info.max)
    X, Z = jnp.clip(X, -largest / 4, largest / 4), jnp.clip(Z, -largest / 4, largest / 4)
    cut = lambda difference: jnp.clip(difference, -((largest / D) ** 0.5) / 8, (largest / D) ** 0.5 / 8)
    centre = lax.stop_gradient(middle(X))
    x, z = cut(X - centre), cut(Z - centre)
    xx, zz = jnp.sum(x**2, axis=1), jnp.sum(z**2, axis=1)
    left = jnp.column_stack([x, xx, jnp.ones_like(xx)])
    right = jnp.column_stack([-2 * z, jnp.ones_like(zz), zz])
    product, rounding = left @ right.T, (8 + D**0.5) * float(info.eps) * (xx[:, None] + zz)
    if D <= DIRECT:
        value = sum((cut(X[:, d, None] - Z[:, d]) ** 2 for d in range(D)), jnp.zeros_like(product))
    else:
        value = jnp.where(product < rounding, 0.0, product)
    near = (value <= rounding) & (rounding > VAGUE)
    return _valued(jnp.where(near, 0.0, product), lax.stop_gradient(value))


def middle(X: Float[Array, "N D"]) -> Float[Array, " D"]:
    """A place amid the rows, which far ones do not move: in every column the median of nine rows, evenly spaced."""
    count = min(WITNESSES, len(X))
    if count == 0:
        return jnp.zeros_like(X, shape=X.shape[1:])
    rows = np.linspace(0, len(X) - 1, count).astype(int)
    return jnp.sort(X[rows], axis=0)[(count - 1) // 2]  # one of them, not the mean of two


@jax.custom_jvp
def _valued(r2, value):
    """`value`, with the derivative of `r2`: the same number, from a sum that loses fewer digits."""
    return value


@_valued.defjvp
def _valued_jvp(primals, tangents):
    return _valued(*primals), tangents[0]
