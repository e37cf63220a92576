"""Products of matrices: cheaper derivatives than JAX would make, and less work where a triangle is zero or is not asked
for."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

__all__ = [
    "dots",
    "gram",
    "lower_product",
    "lower_transposed_product",
    "quad_diag",
    "square",
    "symmetric",
    "symmetric_product",
    "transposed_product",
    "tril_product",
]

# Of a block of a triangle: with n = M // ROWS blocks a product takes (n + 1)/2n of the work. On CPUs, with fewer rows,
# copies take what that saves (`benchmarks/ours.py`).
ROWS = 250

# Of a matrix of more numbers, XLA takes three times as long for a sum down its columns as for ones times it, and four
# times as long for a sum over 17,000 columns at once as for one over pieces of so many (on CPUs).
LARGE, PIECE = 2**20, 2048


def symmetric(A: Float[Array | np.ndarray, "M M"]) -> Float[Array | np.ndarray, "M M"]:
    """½(A + Aᵀ): how a symmetric matrix is read of M² free numbers."""
    return 0.5 * (A + A.T)


@jax.custom_jvp
def transposed_product(A: Float[Array, "K M"], B: Float[Array, "K N"]) -> Float[Array, "M N"]:
    """AᵀB. On CPUs a product takes twice the time where its left factor is read across its rows; the barrier makes it a
    copy."""
    return lax.optimization_barrier(A.T) @ B


@transposed_product.defjvp
def _transposed_product_jvp(primals, tangents):
    # Not through the barrier, whose transpose would read across again.
    (A, B), (dA, dB) = primals, tangents
    return transposed_product(A, B), dA.T @ B + A.T @ dB


def _blocks(M: int) -> list[tuple[int, int]]:
    n = max(1, M // ROWS)
    edges = [M * i // n for i in range(n + 1)]
    return list(zip(edges[:-1], edges[1:], strict=True))


def lower_product(L: Float[Array, "M M"], B: Float[Array, "M N"]) -> Float[Array, "M N"]:
    """LB of a lower triangular L, whose upper triangle holds zeros."""
    return jnp.concatenate([L[start:end, :end] @ B[:end] for start, end in _blocks(len(L))])


def lower_transposed_product(L: Float[Array, "M M"], B: Float[Array, "M N"]) -> Float[Array, "M N"]:
    """LᵀB of a lower triangular L, whose upper triangle holds zeros."""
    return jnp.concatenate([transposed_product(L[start:, start:end], B[start:]) for start, end in _blocks(len(L))])


def tril_product(A: Float[Array, "M N"], B: Float[Array, "M N"]) -> Float[Array, "M M"]:
    """ABᵀ on its diagonal and below; above stands what no one may read."""
    M = len(A)
    blocks = [jnp.pad(A[start:end] @ B[:end].T, ((0, 0), (0, M - end))) for start, end in _blocks(M)]
    return jnp.concatenate(blocks)


def symmetric_product(A: Float[Array, "*C M N"], B: Float[Array, "*C M N"]) -> Float[Array, "*C M M"]:
    """ABᵀ where it is symmetric: of two blocks beside the diagonal one is the other's transpose."""
    blocks = _blocks(A.shape[-2])
    lower = [[A[..., i:j, :] @ B[..., k:l, :].mT for k, l in blocks if k <= i] for i, j in blocks]
    whole = [[row[c] if c <= r else lower[c][r].mT for c in range(len(blocks))] for r, row in enumerate(lower)]
    return jnp.block(whole)


def dots(A: Float[Array, "M N"], B: Float[Array, "*C M N"]) -> Float[Array, "*C N"]:
    """aᵢᵀbᵢ for every column."""
    both = A * B
    return jnp.ones(len(A), A.dtype) @ both if _long(A) else jnp.sum(both, axis=-2)


def _long(A):
    return A.shape[1] >= 2 * PIECE and A.size > LARGE


@jax.custom_jvp
def square(L: Float[Array, "M K"]) -> Float[Array, "M M"]:
    """LLᵀ. The slope in L is one product, (G + Gᵀ)L, where JAX's own are two."""
    return symmetric_product(L, L)


@square.defjvp
def _square_jvp(primals, tangents):
    half = tangents[0] @ primals[0].T
    return square(*primals), half + half.T


@jax.custom_vjp
def quad_diag(S: Float[Array, "*C M M"], A: Float[Array, "M B"]) -> Float[Array, "*C B"]:
    """aᵢᵀ S aᵢ for every column aᵢ of A and symmetric S, one or several, [B] or [C, B]. Symmetry saves one product
    in the derivative."""
    return _quad_diag_fwd(S, A)[0]


def _quad_diag_fwd(S, A):
    T = S @ A
    return dots(A, T), (A, T)


def _quad_diag_bwd(residuals, g):
    # S̄ = A diag(g) Aᵀ,  Ā = 2 S A diag(g), or the sum of those
    A, T = residuals
    if g.ndim == 1:
        return plain_gram(A, g), 2 * T * g
    # One after another: XLA takes 20 times as long for a sum over the first axis (on CPUs).
    total = lax.scan(lambda total, part: (total + part[0] * part[1], None), jnp.zeros_like(A), (T, 2 * g))[0]
    return jax.vmap(plain_gram, (None, 0))(A, g), total


quad_diag.defvjp(_quad_diag_fwd, _quad_diag_bwd)


def plain_gram(A: Float[Array, "M B"], weight: Float[Array | np.ndarray, " B"]) -> Float[Array, "M M"]:
    """`gram` without its rule, which has no forward mode: for use in rules."""
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


def _gram_fwd(A, weight):
    return plain_gram(A, weight), (A, weight)


def _gram_bwd(residuals, G):
    # With the symmetric part G of the cotangent:  Ā = 2 G A diag(w),  w̄ᵢ = aᵢᵀ G aᵢ
    A, weight = residuals
    T = (0.5 * (G + G.T)) @ A
    return 2 * T * weight, dots(A, T)


gram.defvjp(_gram_fwd, _gram_bwd)
