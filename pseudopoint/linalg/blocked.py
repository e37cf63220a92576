"""Products with triangular and symmetric matrices, in blocks that leave out what is zero, known or not needed."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

__all__ = ["lower_product", "lower_transposed_product", "symmetric_product", "transposed_product", "tril_product"]

# Rows of a block. With n = M // ROWS blocks a product takes (n + 1)/2n of the work. On CPUs, copies of smaller blocks
# cost what they save (`benchmarks/ours.py`).
ROWS = 250


@jax.custom_jvp
def transposed_product(A: Float[Array, "K M"], B: Float[Array, "K N"]) -> Float[Array, "M N"]:
    """AᵀB. The barrier copies Aᵀ: on CPUs, a product whose left factor is stored transposed takes twice the time."""
    return lax.optimization_barrier(A.T) @ B


@transposed_product.defjvp
def _transposed_product_jvp(primals, tangents):
    # Without the barrier, whose transpose would undo the copy.
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
    """ABᵀ on its diagonal and below; the upper triangle is unspecified."""
    M = len(A)
    blocks = [jnp.pad(A[start:end] @ B[:end].T, ((0, 0), (0, M - end))) for start, end in _blocks(M)]
    return jnp.concatenate(blocks)


def symmetric_product(A: Float[Array, "*C M N"], B: Float[Array, "*C M N"]) -> Float[Array, "*C M M"]:
    """ABᵀ if it is symmetric: a block above the diagonal is the transpose of one below."""
    blocks = _blocks(A.shape[-2])
    lower = [[A[..., i:j, :] @ B[..., k:l, :].mT for k, l in blocks if k <= i] for i, j in blocks]
    return jnp.block(
        [[lower[r][c] if c <= r else lower[c][r].mT for c in range(len(blocks))] for r in range(len(blocks))]
    )
