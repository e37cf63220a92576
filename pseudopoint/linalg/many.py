"""Many small matrices, one after another.

LAPACK's functions for a batch of matrices, as jaxlib 0.10 has them, hold a thread of XLA's pool until other threads
have done their share. Two batches at the same time, of one program or of two threads of a service, can wait for each
other for ever. For single matrices they do not wait.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

__all__ = ["inverses", "solutions"]


def solutions(A: Float[Array, "B M M"], right: Float[Array, "B M K"]) -> Float[Array, "B M K"]:
    """A⁻¹ right of each positive definite A. It has no derivative."""
    one = lambda pair: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(pair[0]), True), pair[1])
    return lax.map(one, (lax.stop_gradient(A), lax.stop_gradient(right)))


@jax.custom_jvp
def inverses(A: Float[Array, "B M M"]) -> Float[Array, "B M M"]:
    """A⁻¹ of each positive definite A, with the derivative −A⁻¹ dA A⁻¹, which takes no factor."""
    return solutions(A, jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape))


@inverses.defjvp
def _inverses_jvp(primals, tangents):
    inverse = inverses(*primals)
    return inverse, -inverse @ tangents[0] @ inverse
