"""Factors and their derivatives, against NumPy and against automatic differentiation of the plain formulas."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import finite_differences

from pseudopoint.linalg import (
    default_jitter,
    explain_failure,
    factorise,
    gram,
    inverse_of_chol,
    quad_diag,
    solve_square,
)

RNG = np.random.default_rng(3)
ROOT = RNG.normal(size=(5, 5))
PD = ROOT @ ROOT.T + 0.1 * np.eye(5)
B, b = RNG.normal(size=(5, 4)), RNG.normal(size=5)


def with_smallest_eigenvalue(value):
    """A matrix of mean diagonal 1, not diagonal."""
    Q = np.linalg.qr(ROOT)[0]
    K = (Q * np.array([value, 0.5, 1.0, 1.5, 2.0 - value])) @ Q.T
    return (K + K.T) / 2


SINGULAR = with_smallest_eigenvalue(-3e-7)
HOPELESS = with_smallest_eigenvalue(-0.3)
NAN = PD.copy()
NAN[2, :] = NAN[:, 2] = np.nan  # what one row with NaN makes of a covariance matrix
factor = jax.jit(factorise, static_argnums=1)


# --- factorise -------------------------------------------------------------------------------------------------------


def test_a_positive_definite_matrix_is_factorised_exactly():
    F = factor(PD, 0.0)
    assert F.jitter == 0
    np.testing.assert_array_equal(F.K, PD)
    np.testing.assert_allclose(F.L, np.linalg.cholesky(PD), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(F.inverse, np.linalg.inv(np.linalg.cholesky(PD)), rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(F.inverse, np.tril(F.inverse))


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_jitter_is_relative_to_the_mean_of_the_diagonal(scale):
    F = factor(scale * PD, 1e-6)
    np.testing.assert_allclose(F.jitter, 1e-6 * scale * np.trace(PD) / 5, rtol=1e-14)
    np.testing.assert_allclose(F.K, scale * (PD + 1e-6 * np.trace(PD) / 5 * np.eye(5)), rtol=1e-14)
    np.testing.assert_allclose(F.L @ F.L.T, F.K, rtol=1e-13)


@pytest.mark.parametrize("eigenvalue, used", [(-5e-9, 1e-8), (-5e-8, 1e-7), (-3e-7, 1e-6), (-5e-4, 1e-3)])
def test_jitter_rises_tenfold_until_it_suffices_and_is_reported(eigenvalue, used):
    K = with_smallest_eigenvalue(eigenvalue)
    F = factor(K, 1e-8)
    np.testing.assert_allclose(F.jitter, used, rtol=1e-12)
    np.testing.assert_allclose(F.K, K + used * np.eye(5), rtol=1e-14)
    np.testing.assert_allclose(F.L @ F.L.T, F.K, rtol=1e-14, atol=1e-15)


def test_jitter_rises_five_times_at_most():
    assert np.isnan(factor(with_smallest_eigenvalue(-5e-3), 1e-8).L[-1, -1])


def test_jitter_starts_at_rounding_when_none_was_asked_for():
    F = factor(np.ones((5, 5)), 0.0)
    assert 0 < F.jitter <= 1e-14
    np.testing.assert_allclose(F.L @ F.L.T, np.ones((5, 5)), rtol=1e-14)


@pytest.mark.parametrize("K", [HOPELESS, NAN, np.zeros((5, 5))])
def test_what_cannot_be_factorised_is_nan_and_does_not_raise(K):
    F = factor(K, 1e-8)
    assert np.isnan(F.half_logdet())
    assert np.isnan(F.quadratic(jnp.asarray(b)))


def test_infinity_does_not_pass_for_a_number():
    assert not np.isfinite(factor(np.where(np.isnan(NAN), np.inf, PD), 1e-8).half_logdet())


def test_matrices_of_one_batch_keep_their_own_jitter():
    batch = np.stack([PD, SINGULAR, np.ones((5, 5)), NAN, HOPELESS])
    F = jax.jit(jax.vmap(lambda K: factorise(K, 1e-8)))(batch)
    alone = [factor(K, 1e-8) for K in batch]
    np.testing.assert_allclose(F.jitter, [f.jitter for f in alone], rtol=1e-14)
    np.testing.assert_allclose(F.inverse[:3], np.stack([f.inverse for f in alone[:3]]), rtol=1e-7, atol=1e-10)
    assert np.isnan(F.L[3:, -1, -1]).all()


def test_float32_stays_float32_and_escalates_too():
    F = factor(SINGULAR.astype(np.float32), 1e-8)
    assert {leaf.dtype for leaf in jax.tree.leaves(F)} == {jnp.dtype(jnp.float32)}
    assert 1e-7 < F.jitter < 2e-5
    np.testing.assert_allclose(F.L @ F.L.T, F.K, rtol=0, atol=1e-6)


def test_the_default_jitter_is_that_of_the_precision():
    assert (default_jitter(jnp.float64), default_jitter(np.dtype("float32"))) == (1e-8, 1e-5)


# --- what a factor gives ---------------------------------------------------------------------------------------------


def test_a_factor_gives_what_numpy_gives():
    F = factor(PD, 0.0)
    np.testing.assert_allclose(F.whiten(jnp.asarray(B)), np.linalg.solve(np.linalg.cholesky(PD), B), rtol=1e-12)
    np.testing.assert_allclose(F.half_logdet(), 0.5 * np.linalg.slogdet(PD)[1], rtol=1e-13)
    np.testing.assert_allclose(F.quadratic(jnp.asarray(b)), b @ np.linalg.solve(PD, b), rtol=1e-12)
    np.testing.assert_allclose(F.solve(jnp.asarray(b)), np.linalg.solve(PD, b), rtol=1e-12)
    np.testing.assert_allclose(inverse_of_chol(F.L) @ F.L, np.eye(5), atol=1e-14)


def test_quad_diag_and_gram_are_their_formulas_and_adjoint():
    w = np.array([0.3, -1.2, 0.7, 2.0])
    np.testing.assert_allclose(quad_diag(jnp.asarray(PD), jnp.asarray(B)), np.diag(B.T @ PD @ B), rtol=1e-13)
    np.testing.assert_allclose(gram(jnp.asarray(B), jnp.asarray(w)), B @ np.diag(w) @ B.T, rtol=1e-13, atol=1e-14)


def test_quad_diag_of_several_is_that_of_each_and_so_are_its_slopes():
    rng = np.random.default_rng(0)
    S, A, g = (jnp.asarray(rng.normal(size=shape)) for shape in ((3, 5, 5), (5, 7), (3, 7)))
    S = S + S.mT
    every = lambda S, A: jnp.stack([jnp.sum(A * (part @ A), axis=0) for part in S])
    (ours, pull), (theirs, by_jax) = (jax.vjp(f, S, A) for f in (quad_diag, every))
    np.testing.assert_allclose(ours, theirs, rtol=1e-13)
    for slope, other in zip(pull(g), by_jax(g), strict=True):
        np.testing.assert_allclose(slope, other, rtol=1e-12)
    # A slope of a slope, forward over reverse: rules use nothing that has only one of them.
    second = lambda f: jax.jvp(jax.grad(lambda A: jnp.sum(jnp.sin(f(S, A)))), (A,), (A,))[1]
    np.testing.assert_allclose(second(quad_diag), second(every), rtol=1e-10)
    one = lambda f: jax.jvp(jax.grad(lambda A: jnp.sum(jnp.sin(f(A, g[0])))), (A,), (A,))[1]
    np.testing.assert_allclose(one(gram), one(lambda A, w: (A * w) @ A.T), rtol=1e-10)
    # A cotangent of many is no sum of them.
    many = jnp.stack([g, 2 * g])
    np.testing.assert_allclose(jax.vmap(pull)(many)[1], jax.vmap(by_jax)(many)[1], rtol=1e-12)


def test_a_square_system_is_solved_without_symmetry_and_differentiated_in_its_right_hand_side():
    A = np.eye(5) + ROOT
    np.testing.assert_allclose(solve_square(jnp.asarray(A), jnp.asarray(b)), np.linalg.solve(A, b), rtol=1e-12)
    slopes = jax.jacrev(lambda b: solve_square(jnp.asarray(A), b))(jnp.asarray(b))
    np.testing.assert_allclose(slopes, np.linalg.inv(A), rtol=1e-12, atol=1e-13)


# --- derivatives -----------------------------------------------------------------------------------------------------

W, w, G = RNG.normal(size=(5, 4)), RNG.normal(size=4), RNG.normal(size=(5, 5))
NAMES = ("whiten", "half_logdet", "quadratic", "solve", "quad_diag", "gram", "bound")


def ours(K, B, b, w):
    """One number for each function of the module, and one that composes them as a collapsed bound does."""
    F = factorise(K, 0.1)
    A = F.whiten(B)
    inner = factorise(jnp.eye(5) + gram(A, w**2))
    bound = inner.quadratic(b) + inner.half_logdet() + w @ quad_diag(inner.K, A)
    alone = jnp.sum(W * A), F.half_logdet(), F.quadratic(b), G[0] @ F.solve(b)
    return jnp.stack((*alone, w @ quad_diag(K, B), jnp.sum(G * gram(B, w)), bound))


def plain(K, B, b, w, level):
    """The same by NumPy, at the jitter that was used."""
    jittered = K + level * np.mean(np.diag(K)) * np.eye(5)
    A = np.linalg.solve(np.linalg.cholesky(jittered), B)
    inner = np.eye(5) + A @ np.diag(w**2) @ A.T
    bound = b @ np.linalg.solve(inner, b) + 0.5 * np.linalg.slogdet(inner)[1] + w @ np.diag(A.T @ inner @ A)
    half_logdet, quadratic = 0.5 * np.linalg.slogdet(jittered)[1], b @ np.linalg.solve(jittered, b)
    diagonal, outer = w @ np.diag(B.T @ K @ B), np.sum(G * (B @ np.diag(w) @ B.T))
    solution = G[0] @ np.linalg.solve(jittered, b)
    return np.array([np.sum(W * A), half_logdet, quadratic, solution, diagonal, outer, bound])


@jax.jit
def value_and_gradients(K, B, b, w):
    return ours(K, B, b, w), jax.jacrev(ours, (0, 1, 2, 3))(K, B, b, w)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("K, used", [(PD, 0.1), (HOPELESS, 1.0)], ids=["first", "escalated"])
def test_derivatives_are_those_of_finite_differences_at_the_jitter_that_was_used(name, K, used):
    # The jitter is relative, so it has a derivative too; 0.1 makes it count. 0.1 is too little for HOPELESS.
    row = NAMES.index(name)
    value, slopes = value_and_gradients(K, B, b, w)
    formula = lambda K, B, b, w: plain((K + K.T) / 2, B, b, w, used)[row]
    np.testing.assert_allclose(value[row], formula(K, B, b, w), rtol=1e-12)
    for slope, truth in zip(slopes, finite_differences(formula, (K, B, b, w)), strict=True):
        np.testing.assert_allclose(slope[row], truth, rtol=1e-8, atol=1e-9)  # in K symmetric, as K is


# --- explain_failure -------------------------------------------------------------------------------------------------


def test_nan_is_named_with_its_rows():
    text = explain_failure(np.where(np.diag([1, 0, 0, 1, 0]), np.inf, PD), "K_uu")
    assert "K_uu holds NaN or infinity in 2 of 5 rows" in text
    assert "positive definite" not in text


def test_one_row_with_nan_is_counted_once():
    # It spoils its row of the covariance matrix and its column, which meets all other rows.
    assert "in 1 of 5 rows" in explain_failure(NAN, "K_uu")


def test_a_matrix_that_is_not_positive_definite_is_named_with_its_eigenvalues():
    text = explain_failure(HOPELESS, "K_uu")
    assert "K_uu (5 × 5) is not positive definite: smallest eigenvalue -3.00e-01, largest 2.30e+00" in text
    assert "NaN" not in text and "pair" not in text


def test_the_nearest_pair_of_points_is_named():
    points = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 3.0], [5.0, 4e-3], [9.0, 9.0]])
    text = explain_failure(HOPELESS, "K_uu", points)
    assert "nearest pair of points 1 and 3 at distance 4.00e-03" in text
    points[4] = points[2]
    assert "nearest pair of points 2 and 4 at distance 0.00e+00" in explain_failure(HOPELESS, "K_uu", points)


def test_one_point_has_no_nearest_pair():
    assert "pair" not in explain_failure(-np.eye(1), "K_uu", np.zeros((1, 2)))


def test_a_remedy_is_given():
    for K in (NAN, HOPELESS):
        assert explain_failure(K, "K_uu").endswith(".")
        assert ";" in explain_failure(K, "K_uu")


def test_an_explanation_needs_memory_of_the_order_of_the_matrix():
    # It is asked for when a fit has failed, on 1,000 points of 784 columns for instance: not the place for 13 GB.
    M, D = 120, 500
    tracemalloc.start()
    explain_failure(-np.eye(M), "K_uu", np.random.default_rng(0).normal(size=(M, D)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 8 * M * (M + D)
