"""Inverses, solutions, and products with slopes of their own, against NumPy and against JAX's own derivatives."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import finite_differences

from pseudopoint.linalg import (
    cholesky,
    factorise,
    gram,
    inverse_of_chol,
    invert,
    quad_diag,
    solve_positive,
    square,
    symmetric,
    transposed_product,
)

EPS = np.finfo(float).eps
rng = np.random.default_rng(4)


def covariance(M, jitter=1e-8):
    """Of M points on a line, with the jitter alone for a smallest eigenvalue."""
    x = np.linspace(0, 5, M)
    return np.exp(-0.5 * (x[:, None] - x) ** 2) + jitter * np.eye(M)


# --- L⁻¹ by halves ---------------------------------------------------------------------------------------------------


@jax.jit
def with_derivatives(L, E, G):
    """Value, forward and reverse derivative of L⁻¹, and those of JAX's solve with a triangle."""

    def of(f):
        return *jax.jvp(f, (L,), (E,)), jax.vjp(f, L)[1](G)[0]

    eye = jnp.eye(len(L))
    return of(inverse_of_chol), of(lambda L: jax.lax.linalg.triangular_solve(L, eye, left_side=True, lower=True))


@pytest.mark.parametrize("M", [101, 200, 201])  # halves of 50 and 51; 100 and 100; 100, and 50 and 51
def test_an_inverse_by_halves_is_that_of_numpy_and_has_the_derivatives_of_a_solve(M):
    L, (E, G) = np.linalg.cholesky(covariance(M)), rng.normal(size=(2, M, M))
    ours, plain = with_derivatives(L, E, G)
    # Where points are in order −C⁻¹(BA⁻¹) loses the most. Its bound to first order, over M roundings (Higham 2002,
    # §14.2): M ε ‖C⁻¹‖‖B‖‖A⁻¹‖ ≤ M ε cond(L) ‖L⁻¹‖. Of that M a machine shows from 4 to 22, as its roundings fall.
    # Cholesky's own error in L is larger still, ε cond(L)². A derivative holds L⁻¹ twice.
    bound = M * EPS * np.linalg.cond(L)
    truth = np.linalg.inv(L)
    assert np.abs(ours[0] - truth).max() < bound * np.abs(truth).max()
    np.testing.assert_array_equal(ours[0], np.tril(ours[0]))
    for mine, other in zip(ours[1:], plain[1:], strict=True):
        assert np.abs(mine - other).max() < 2 * bound * np.abs(other).max()
        assert not np.triu(mine, 1).any()


def test_what_stands_above_the_diagonal_is_not_read():
    M = 101
    L, (E, G) = np.linalg.cholesky(covariance(M)), rng.normal(size=(2, M, M))
    for mine, other in zip(with_derivatives(L + np.triu(G, 1), E, G)[0], with_derivatives(L, E, G)[0], strict=True):
        np.testing.assert_array_equal(mine, other)


# --- inverses and solutions ------------------------------------------------------------------------------------------


def test_inverses_of_several_matrices_and_their_determinants_are_those_of_numpy():
    P = rng.normal(size=(2, 3, 4, 4))
    P = P @ P.swapaxes(-1, -2) + np.eye(4)
    P[1, 2] -= 30 * np.eye(4)  # negative definite
    inverse, half_logdet = jax.jit(invert)(P)
    assert np.isnan(inverse[1, 2]).all() and np.isnan(half_logdet[1, 2])
    good = np.isfinite(half_logdet)
    assert good.sum() == 5
    np.testing.assert_allclose(inverse[good], np.linalg.inv(P[good]), rtol=0, atol=1e-14)
    np.testing.assert_allclose(half_logdet[good], -0.5 * np.linalg.slogdet(P[good])[1], rtol=1e-13)


def test_the_derivatives_of_an_inverse_and_its_determinant_are_those_of_finite_differences():
    P, G = covariance(4, 1.0), rng.normal(size=(4, 4))

    def value(of):
        return lambda P: (lambda inverse, half_logdet: (G * inverse).sum() + half_logdet)(*of(0.5 * (P + P.T)))

    slope = jax.jit(jax.grad(value(invert)))(P)
    truth = finite_differences(value(lambda P: (np.linalg.inv(P), -0.5 * np.linalg.slogdet(P)[1])), (P,))
    np.testing.assert_allclose(slope, truth[0], rtol=0, atol=1e-10)


def test_a_solution_leaves_a_residual_of_rounding_whatever_the_condition():
    P, b = np.stack([covariance(60), covariance(60, 1.0), -np.eye(60)]), rng.normal(size=(3, 60))
    x = np.asarray(jax.jit(solve_positive)(P, b))
    assert np.linalg.cond(P[0]) > 1e9 and np.isnan(x[2]).all()
    np.testing.assert_allclose(x[1], np.linalg.solve(P[1], b[1]), rtol=1e-12)
    # ‖Px − b‖ ≤ c ε ‖P‖ ‖x‖ of a backward stable method, which the product with an inverse is not.
    for A, y, solution in zip(P[:2], b, x, strict=False):
        assert np.linalg.norm(A @ solution - y) < 10 * EPS * np.linalg.norm(A, 2) * np.linalg.norm(solution)


# --- products with slopes of their own -------------------------------------------------------------------------------

FORMULAS = {
    "square": (square, lambda L: L @ L.T, [(5, 3)]),
    "transposed_product": (transposed_product, lambda A, B: A.T @ B, [(5, 3), (5, 4)]),
    # It takes S for symmetric.
    "quad_diag": (lambda S, A: quad_diag(symmetric(S), A), lambda S, A: jnp.diag(A.T @ S @ A), [(5, 5), (5, 4)]),
    "gram": (gram, lambda A, w: A @ jnp.diag(w) @ A.T, [(5, 4), (4,)]),
}
FORWARD = ("square", "transposed_product")  # the others have reverse mode alone


@pytest.mark.parametrize("name", FORMULAS)
def test_a_product_has_the_derivatives_of_its_formula_also_under_vmap(name):
    ours, plain, shapes = FORMULAS[name]
    arguments = [rng.normal(size=(2, *shape)) for shape in shapes]
    directions = [rng.normal(size=argument.shape[1:]) for argument in arguments]
    cotangent = rng.normal(size=jax.eval_shape(plain, *(a[0] for a in arguments)).shape)

    def all_of(f):
        def at(*x):
            slopes = lambda *x: jax.vjp(f, *x)[1](cotangent)
            along = lambda *x: sum(jnp.vdot(d, s) for d, s in zip(directions, slopes(*x), strict=True))
            second = jax.grad(along, tuple(range(len(x))))
            forward = jax.jvp(f, x, tuple(directions))[1] if name in FORWARD else ()
            return f(*x), slopes(*x), second(*x), forward

        return at

    several = jax.jit(lambda *x: (jax.vmap(all_of(ours))(*x), jax.vmap(all_of(plain))(*x)))
    for mine, formula in zip(*map(jax.tree.leaves, several(*arguments)), strict=True):
        np.testing.assert_allclose(mine, formula, rtol=0, atol=1e-13)


# --- under vmap ------------------------------------------------------------------------------------------------------


def test_two_calls_under_vmap_at_once_factorise_one_matrix_after_another():
    # Batched LAPACK calls of one program wait for each other on two cores (seen with jaxlib 0.10.2).
    M = 101

    def slope(K, b):
        F = factorise(K, 1e-6)
        value = lambda K: jnp.sum(inverse_of_chol(cholesky(K))) + jnp.sum(invert(K)[0]) + factorise(K).quadratic(b)
        return F.half_logdet() + jnp.sum(solve_positive(F.K, b)), jax.grad(value)(K)

    several = jax.jit(lambda K, b: (jax.vmap(slope)(K, b), jax.vmap(slope)(2 * K, b)))
    K, b = np.stack([covariance(M, 0.1), covariance(M, 0.2)]), rng.normal(size=(2, M))
    program = str(jax.make_jaxpr(several)(K, b))
    factorised = re.findall(r"([^\n]*) = (?:cholesky|triangular_solve)\b", program)
    assert len(factorised) >= 10 and not [line for line in factorised if "[2," in line]
    for call, scale in zip(several(K, b), (1, 2), strict=True):
        for c in range(2):
            alone = jax.jit(slope)(scale * K[c], b[c])
            for mine, other in zip(jax.tree.leaves(call), jax.tree.leaves(alone), strict=True):
                np.testing.assert_allclose(mine[c], other, rtol=1e-10, atol=1e-9)
