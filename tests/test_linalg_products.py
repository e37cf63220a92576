"""Products in blocks of a triangle: what NumPy says, at sizes of one block and of several, with less work."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from operations import operations

from pseudopoint.linalg import (
    dots,
    factorise,
    gram,
    lower_product,
    lower_root,
    lower_transposed_product,
    quad_diag,
    square,
    tril_product,
)
from pseudopoint.linalg.blocked import ROWS, symmetric_product
from pseudopoint.linalg.products import LARGE, PIECE

SIZES = [0, 1, 7, 2 * ROWS - 1, 2 * ROWS, 3 * ROWS + 1]
N = 3


def problem(M):
    rng = np.random.default_rng(M)
    L = np.tril(rng.normal(size=(M, M))) + 3 * np.eye(M)
    return jnp.asarray(L), jnp.asarray(rng.normal(size=(M, N))), jnp.asarray(rng.uniform(0.5, 2.0, N))


@pytest.mark.parametrize("M", SIZES)
def test_blocks_give_what_the_whole_gives(M):
    L, B, weight = problem(M)
    close = lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
    close(lower_product(L, B), L @ B)
    close(lower_transposed_product(L, B), L.T @ B)
    close(jnp.tril(tril_product(B, 2 * B)), np.tril(2 * B @ B.T))
    close(symmetric_product(B, 2 * B), 2 * B @ B.T)
    several = jnp.stack([B, 3 * B])
    close(symmetric_product(several, several), several @ several.mT)
    close(square(L), L @ L.T)
    close(gram(B, weight), (B * weight) @ B.T)


@pytest.mark.parametrize("columns", [2 * PIECE, 2 * PIECE + 5])
def test_of_many_columns_sums_in_pieces_are_those_of_all_at_once(columns):
    rng = np.random.default_rng(0)
    M = LARGE // (2 * PIECE) + 1
    A, weight, S = rng.normal(size=(M, columns)), rng.uniform(0.5, 2.0, columns), rng.normal(size=(2, M, M))
    A, weight, S = jnp.asarray(A), jnp.asarray(weight), jnp.asarray(S + S.mT)
    close = lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9 * np.max(np.abs(theirs)))
    close(dots(A, A[::-1]), np.sum(A * A[::-1], axis=0))
    close(quad_diag(S, A), np.sum(A * (S @ A), axis=1))
    value, pull = jax.vjp(gram, A, weight)
    close(value, (A * weight) @ A.T)
    for slope, expected in zip(pull(S[0]), (2 * S[0] @ A * weight, np.sum(A * (S[0] @ A), axis=0)), strict=True):
        close(slope, expected)
    close(jax.vjp(quad_diag, S, A)[1](jnp.stack([weight, 2 * weight]))[0], [(A * weight) @ A.T, 2 * (A * weight) @ A.T])


def test_a_product_in_three_blocks_takes_two_thirds_of_the_work():
    M, n = 3 * ROWS, 3
    L, B, _ = problem(M)
    share = (n + 1) / (2 * n)
    for product, pair in ((lower_product, (L, B)), (lower_transposed_product, (L, B)), (tril_product, (B, B))):
        whole = M * M * N
        assert operations(product, *pair)["products"] == pytest.approx(share * whole)
    assert operations(square, L)["products"] == pytest.approx(share * M**3)


def test_a_lower_root_has_the_norms_of_its_matrix_also_where_they_are_small():
    rng = np.random.default_rng(0)
    A, V = rng.normal(size=(6, 6)), np.linalg.qr(rng.normal(size=(6, 6)))[0]
    A = A * np.logspace(0, -12, 6) @ V.T  # AᵀA has eigenvalues down to 1e-24, V's columns nearly their vectors
    T = lower_root(A)
    assert not np.triu(T, 1).any()
    for v in V.T:
        np.testing.assert_allclose(np.linalg.norm(T @ v), np.linalg.norm(A @ v), rtol=1e-2, atol=0)
    np.testing.assert_array_equal(lower_root(T), T)


@jax.jit
def plain(K, B, prior, mean, cov):
    """`whiten` and `moments` with JAX's own derivatives, through the Cholesky factor."""
    A = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(K), B, lower=True)
    return A, mean @ A, prior + jnp.sum(A * ((cov - jnp.eye(len(cov))) @ A), axis=0)


@jax.jit
def ours(K, B, prior, mean, cov):
    factor = factorise(K)
    return factor.whiten(B), *factor.moments(B, prior, mean, cov)


def test_slopes_in_blocks_are_those_of_jax():
    M = 2 * ROWS + 1
    L, B, prior = problem(M)
    rng = np.random.default_rng(1)
    K = L @ L.T / M + np.eye(M)
    arguments = (K, B, prior + 1e3, jnp.asarray(rng.normal(size=M)), K / 5)
    (values, pull), (expected, of_jax) = (jax.vjp(f, *arguments) for f in (ours, plain))
    for value, other in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-9, atol=1e-9)
    cotangents = tuple(jnp.asarray(rng.normal(size=value.shape)) for value in values)
    for slope, other in zip(pull(cotangents), of_jax(cotangents), strict=True):
        # K and S are symmetric: only that part of a slope means anything.
        slope, other = ((s + s.T) / 2 if s.shape == (M, M) else s for s in (slope, other))
        np.testing.assert_allclose(slope, other, rtol=0, atol=1e-9 * np.abs(other).max())
