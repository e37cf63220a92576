"""Products of matrices whose derivatives are cheaper than those that JAX would make."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .blocked import symmetric_product

__all__ = ["dots", "gram", "outer", "quad_diag", "square", "symmetric"]

# On CPUs, for matrices of more than LARGE numbers, XLA sums down the columns three times as slowly as it multiplies by
# ones, and sums over 17,000 columns at once four times as slowly as over pieces of PIECE columns.
LARGE, PIECE = 2**20, 2048


def symmetric(A: Float[Array | np.ndarray, "M M"]) -> Float[Array | np.ndarray, "M M"]:
    """½(A + Aᵀ): the symmetric matrix that M² free numbers stand for."""
    return 0.5 * (A + A.T)


def dots(A: Float[Array, "M N"], B: Float[Array, "*C M N"]) -> Float[Array, "*C N"]:
    """aᵢᵀbᵢ for every column."""
    both = A * B
    return jnp.ones(len(A), A.dtype) @ both if _long(A) else jnp.sum(both, axis=-2)


def _long(A):
    return A.shape[1] >= 2 * PIECE and A.size > LARGE


@jax.custom_jvp
def square(L: Float[Array, "M K"]) -> Float[Array, "M M"]:
    """LLᵀ. Its gradient (G + Gᵀ)L is one product, where JAX's own takes two."""
    return symmetric_product(L, L)


@square.defjvp
def _square_jvp(primals, tangents):
    half = tangents[0] @ primals[0].T
    return square(*primals), half + half.T


@jax.custom_vjp
def quad_diag(S: Float[Array, "*C M M"], A: Float[Array, "M B"]) -> Float[Array, "*C B"]:
    """aᵢᵀ S aᵢ for every column aᵢ of A and one or C symmetric S. Symmetry saves one product in the derivative."""
    return _quad_diag_fwd(S, A)[0]


def _quad_diag_fwd(S, A):
    T = S @ A
    return dots(A, T), (A, T)


def _quad_diag_bwd(residuals, g):
    # S̄ = A diag(g) Aᵀ,  Ā = 2 S A diag(g), summed over several S
    A, T = residuals
    if g.ndim == 1:
        return plain_gram(A, g), 2 * T * g
    # By a scan: on CPUs, XLA takes 20 times as long for a sum over the first axis.
    total = lax.scan(lambda total, part: (total + part[0] * part[1], None), jnp.zeros_like(A), (T, 2 * g))[0]
    return jax.vmap(plain_gram, (None, 0))(A, g), total


quad_diag.defvjp(_quad_diag_fwd, _quad_diag_bwd)


def plain_gram(A: Float[Array, "M B"], weight: Float[Array | np.ndarray, " B"]) -> Float[Array, "M M"]:
    """`gram` for use in derivative rules: its own rule has no forward mode."""
    if not _long(A):
        return symmetric_product(A * weight, A)
    pieces, rest = divmod(A.shape[1], PIECE)

    def piece(start, size):
        a, w = (lax.dynamic_slice_in_dim(x, start, size, axis=-1) for x in (A, weight))
        return symmetric_product(a * w, a)

    first = piece(pieces * PIECE, rest)
    return lax.scan(lambda total, i: (total + piece(i * PIECE, PIECE), None), first, jnp.arange(pieces))[0]


@jax.custom_vjp
def gram(A: Float[Array, "M B"], weight: Float[Array, " B"]) -> Float[Array, "M M"]:
    """Σᵢ wᵢ aᵢaᵢᵀ over the columns of A, shape [M, M]: the adjoint of `quad_diag`, with the same saving."""
    return plain_gram(A, weight)


def _gram_bwd(residuals, G):
    # With the symmetric part G of the cotangent:  Ā = 2 G A diag(w),  w̄ᵢ = aᵢᵀ G aᵢ
    A, weight = residuals
    T = (0.5 * (G + G.T)) @ A
    return 2 * T * weight, dots(A, T)


gram.defvjp(lambda A, weight: (plain_gram(A, weight), (A, weight)), _gram_bwd)


def outer(a: Float[Array, "M *C"], b: Float[Array, "N *C"]) -> Float[Array, "M N"]:
    """abᵀ of two vectors, or of two matrices of C columns."""
    return jnp.outer(a, b) if a.ndim == 1 else a @ b.T
