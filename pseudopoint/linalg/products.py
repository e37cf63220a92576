"""Products of matrices whose derivatives are cheaper than those that JAX would make."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

__all__ = ["gram", "quad_diag", "square", "symmetric", "transposed_product"]


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


@jax.custom_jvp
def square(L: Float[Array, "M K"]) -> Float[Array, "M M"]:
    """LLᵀ. The slope in L is one product, (G + Gᵀ)L, where JAX's own are two."""
    return L @ L.T


@square.defjvp
def _square_jvp(primals, tangents):
    half = tangents[0] @ primals[0].T
    return square(*primals), half + half.T


@jax.custom_vjp
def quad_diag(S: Float[Array, "M M"], A: Float[Array, "M B"]) -> Float[Array, " B"]:
    """aᵢᵀ S aᵢ for every column aᵢ of A and symmetric S, shape [B]. Symmetry saves one product in the derivative."""
    return jnp.sum(A * (S @ A), axis=0)


def _quad_diag_fwd(S, A):
    T = S @ A
    return jnp.sum(A * T, axis=0), (A, T)


def _quad_diag_bwd(residuals, g):
    # S̄ = A diag(g) Aᵀ,  Ā = 2 S A diag(g)
    A, T = residuals
    return (A * g) @ A.T, 2 * T * g


quad_diag.defvjp(_quad_diag_fwd, _quad_diag_bwd)


@jax.custom_vjp
def gram(A: Float[Array, "M B"], weight: Float[Array, " B"]) -> Float[Array, "M M"]:
    """Σᵢ wᵢ aᵢaᵢᵀ over the columns of A, shape [M, M]: the adjoint of `quad_diag`, with the same saving."""
    return (A * weight) @ A.T


def _gram_fwd(A, weight):
    return (A * weight) @ A.T, (A, weight)


def _gram_bwd(residuals, G):
    # With the symmetric part G of the cotangent:  Ā = 2 G A diag(w),  w̄ᵢ = aᵢᵀ G aᵢ
    A, weight = residuals
    T = (0.5 * (G + G.T)) @ A
    return 2 * T * weight, jnp.sum(A * T, axis=0)


gram.defvjp(_gram_fwd, _gram_bwd)
