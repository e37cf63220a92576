"""Cholesky factors, inverses and solutions of one system."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .products import lower_product, lower_transposed_product

__all__ = ["Scalar", "cholesky", "inverse_of_chol", "invert", "refined_inverse", "solve_positive", "solve_square"]


Scalar = Float[Array, ""]

# Up to QUICK rows LAPACK's solve is quick, beyond SLOW it is slow. In between a quarter of the whole will do: halves of
# halves gain nothing, and a first fit feels what they take to compile.
QUICK, SLOW = 100, 130


# A batched LAPACK call shares its work out on XLA's thread pool and waits. Where every thread of the pool is such a
# waiter (two calls at once on two cores), nobody works: the program hangs (seen with jaxlib 0.10.2). So under vmap,
# factorisations go one after another.


@jax.custom_batching.sequential_vmap
def _cholesky(K):
    return jnp.linalg.cholesky(K, symmetrize_input=False)


@jax.custom_batching.sequential_vmap
def _inverse_of_chol(L):
    return _by_halves(L, min(max(QUICK, -(-len(L) // 4)), SLOW))


def _by_halves(L, leaf):
    # [A 0; B C]⁻¹ = [A⁻¹ 0; −C⁻¹BA⁻¹ C⁻¹]: products do the work, two to three times faster than LAPACK's solve.
    M = len(L)
    if leaf >= M:
        return lax.linalg.triangular_solve(L, jnp.eye(M, dtype=L.dtype), left_side=True, lower=True)
    h = M // 2
    A, C = _by_halves(L[:h, :h], leaf), _by_halves(L[h:, h:], leaf)
    return jnp.block([[A, jnp.zeros((h, M - h), L.dtype)], [C @ (-L[h:, :h] @ A), C]])


@jax.custom_jvp
def cholesky(K: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Lower L with LLᵀ = K, NaN where K is not positive definite."""
    return _cholesky(K)


@cholesky.defjvp
def _cholesky_jvp(primals, tangents):
    # L̇ = L Φ(L⁻¹ K̇ L⁻ᵀ), Φ = lower triangle with halved diagonal
    L = cholesky(*primals)
    inverse = inverse_of_chol(L)
    S = inverse @ (0.5 * (tangents[0] + tangents[0].T)) @ inverse.T
    return L, L @ (jnp.tril(S) - 0.5 * jnp.diag(jnp.diagonal(S)))


@jax.custom_jvp
def inverse_of_chol(L: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """L⁻¹ of a lower triangular L."""
    return _inverse_of_chol(L)


@inverse_of_chol.defjvp
def _inverse_of_chol_jvp(primals, tangents):
    # −L⁻¹ L̇ L⁻¹
    inverse = inverse_of_chol(*primals)
    return inverse, -inverse @ jnp.tril(tangents[0]) @ inverse


def refined_inverse(L: Float[Array, "M M"], inverse: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """W + (I − WL)W for W ≈ L⁻¹: one step of Newton's method (Schulz 1933), two products of triangles. No
    derivatives.

    Products on halves leave WL − I at up to 1e-4 where cond(LLᵀ) is 1e13, and Wk is off by as much of k. After a step
    Wk is as exact as a triangular solve.
    """
    off = jnp.eye(len(L), dtype=L.dtype) - lower_product(inverse, L)
    return inverse + lower_product(jnp.tril(off), inverse)


@partial(jnp.vectorize, signature="(m,m)->(m,m),()")
def invert(P: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Scalar]:
    """P⁻¹ and ½ log |P⁻¹| of one positive definite matrix, or of several along leading axes; NaN where it is not."""
    L = cholesky(P)
    inverse = inverse_of_chol(L)
    return lower_transposed_product(inverse, inverse), -jnp.sum(jnp.log(jnp.diagonal(L)))


@partial(jnp.vectorize, signature="(m,m),(m)->(m)")
def solve_positive(P: Float[Array, "M M"], b: Float[Array, " M"]) -> Float[Array, " M"]:
    """P⁻¹b of one positive definite matrix, or of several along leading axes; NaN where it is not. No derivatives."""
    return _solve_positive(P, b)


@jax.custom_batching.sequential_vmap
def _solve_positive(P, b):
    L = jnp.linalg.cholesky(P, symmetrize_input=False)
    solve = partial(lax.linalg.triangular_solve, L, left_side=True, lower=True)
    return solve(solve(b[:, None]), transpose_a=True)[:, 0]


def solve_square(A: Float[Array, "M M"], b: Float[Array, " M"]) -> Float[Array, " M"]:
    """A⁻¹ b of any square A, by LU with pivots: for what is not symmetric. NaN or infinite where A is singular."""
    return jnp.linalg.solve(A, b)
