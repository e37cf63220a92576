"""Cholesky factors, inverses and solutions of one system."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .blocked import lower_product, lower_transposed_product

__all__ = ["Scalar", "cholesky", "inverse_of_chol", "invert", "refined_inverse", "solve_positive", "solve_square"]

Scalar = Float[Array, ""]

# Rows up to which a triangular inverse uses LAPACK's solve and is not halved: a quarter of the matrix, within these
# limits. Smaller blocks gain nothing, and take longer to compile.
QUICK, SLOW = 100, 130

# Under vmap, factorisations run one after another. A batched LAPACK call shares its work out on XLA's thread pool and
# waits. If every thread of the pool waits so (two calls on two cores), the program hangs (seen with jaxlib 0.10.2).


def _by_halves(L, leaf):
    # [A 0; B C]⁻¹ = [A⁻¹ 0; −C⁻¹BA⁻¹ C⁻¹]: products are two to three times faster than LAPACK's solve.
    M = len(L)
    if leaf >= M:
        return lax.linalg.triangular_solve(L, jnp.eye(M, dtype=L.dtype), left_side=True, lower=True)
    h = M // 2
    A, C = _by_halves(L[:h, :h], leaf), _by_halves(L[h:, h:], leaf)
    return jnp.block([[A, jnp.zeros((h, M - h), L.dtype)], [C @ (-L[h:, :h] @ A), C]])


@jax.custom_jvp
@jax.custom_batching.sequential_vmap
def cholesky(K: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Lower L with LLᵀ = K, NaN where K is not positive definite."""
    return jnp.linalg.cholesky(K, symmetrize_input=False)


@cholesky.defjvp
def _cholesky_jvp(primals, tangents):
    # L̇ = L Φ(L⁻¹ K̇ L⁻ᵀ), Φ = lower triangle with halved diagonal
    L = cholesky(*primals)
    inverse = inverse_of_chol(L)
    S = inverse @ (0.5 * (tangents[0] + tangents[0].T)) @ inverse.T
    return L, L @ (jnp.tril(S) - 0.5 * jnp.diag(jnp.diagonal(S)))


@jax.custom_jvp
@jax.custom_batching.sequential_vmap
def inverse_of_chol(L: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """L⁻¹ of a lower triangular L."""
    return _by_halves(L, min(max(QUICK, -(-len(L) // 4)), SLOW))


@inverse_of_chol.defjvp
def _inverse_of_chol_jvp(primals, tangents):
    # −L⁻¹ L̇ L⁻¹
    inverse = inverse_of_chol(*primals)
    return inverse, -inverse @ jnp.tril(tangents[0]) @ inverse


def refined_inverse(L: Float[Array, "M M"], inverse: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """W + (I − WL)W for W ≈ L⁻¹: one step of Newton's method (Schulz 1933). No derivatives.

    `inverse_of_chol` leaves WL − I at up to 1e-4 if cond(LLᵀ) is 1e13, and Wk has that relative error. After the step
    Wk is as exact as a triangular solve.
    """
    off = jnp.eye(len(L), dtype=L.dtype) - lower_product(inverse, L)
    return inverse + lower_product(jnp.tril(off), inverse)


@partial(jnp.vectorize, signature="(m,m)->(m,m),()")
def invert(P: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Scalar]:
    """P⁻¹ and ½ log |P⁻¹| of one or more (leading axes) positive definite matrices; NaN where one is not."""
    L = cholesky(P)
    inverse = inverse_of_chol(L)
    return lower_transposed_product(inverse, inverse), -jnp.sum(jnp.log(jnp.diagonal(L)))


@partial(jnp.vectorize, signature="(m,m),(m)->(m)")
@jax.custom_batching.sequential_vmap
def solve_positive(P: Float[Array, "M M"], b: Float[Array, " M"]) -> Float[Array, " M"]:
    """P⁻¹b of one or more (leading axes) positive definite matrices; NaN where one is not. No derivatives."""
    L = jnp.linalg.cholesky(P, symmetrize_input=False)
    solve = partial(lax.linalg.triangular_solve, L, left_side=True, lower=True)
    return solve(solve(b[:, None]), transpose_a=True)[:, 0]


def solve_square(A: Float[Array, "M M"], b: Float[Array, " M"]) -> Float[Array, " M"]:
    """A⁻¹b of any square A, by LU with pivots; NaN or infinite if A is singular."""
    return jnp.linalg.solve(A, b)
