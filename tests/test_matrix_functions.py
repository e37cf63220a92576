"""Exponential, logarithm and eigenvectors of a symmetric matrix, and their derivatives."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lattice import close
from scipy.linalg import expm, logm

from pseudopoint.linalg import eigh, exp_symmetric, log_symmetric

M = 5
rng = np.random.default_rng(3)
V = np.linalg.qr(rng.normal(size=(M, M)))[0]
E, G = rng.normal(size=(2, M, M))  # a direction and a cotangent, neither symmetric
half = lambda A: 0.5 * (A + A.T)

# Eigenvalues of the argument of the exponential; exp of them are those of the logarithm's.
SPECTRA = {
    "apart": [-2.0, -0.3, 0.1, 1.0, 2.5],
    "all one": [0.0] * 5,
    "all equal": [0.7] * 5,
    "two and three": [-1.0, -1.0, 1.5, 1.5, 1.5],
    "close": [0.3, 0.3 + 1e-14, 0.3 + 1e-9, 0.3 + 1e-5, 0.31],
    "tiny": [-18.0, -18.0, -17.5, -17.0, -17.0],  # covariances of 1e-8
}
FUNCTIONS = {"exp": (exp_symmetric, expm, lambda x: x), "log": (log_symmetric, logm, np.exp)}
EACH = pytest.mark.parametrize("spectrum", SPECTRA)
BOTH = pytest.mark.parametrize("name", FUNCTIONS)


def argument(name, spectrum):
    """A symmetric to the last bit; V scales exactly where all eigenvalues are equal."""
    values = FUNCTIONS[name][2](np.array(SPECTRA[spectrum]))
    return values[0] * np.eye(M) if np.ptp(values) == 0 else half((V * values) @ V.T)


@jax.jit
def both(A, E, G):
    """Value, forward and reverse derivative of both functions."""

    def of(f):
        value, forward = jax.jvp(f, (A,), (E,))
        return f(A), value, forward, jax.vjp(f, A)[1](G)[0]

    return {"exp": of(exp_symmetric), "log": of(log_symmetric)}


def relative(ours, truth, tolerance):
    close(np.asarray(ours) / np.abs(truth).max(), truth / np.abs(truth).max(), tolerance)


@BOTH
@EACH
def test_value_and_derivative_are_those_of_the_dense_matrix_function(name, spectrum):
    A, truth = argument(name, spectrum), FUNCTIONS[name][1]
    # SciPy's logarithm wants a matrix near 1: log A = log A/c + log c, D log(A) = D log(A/c)/c
    c, shift = (np.trace(A) / M, np.log(np.trace(A) / M)) if name == "log" else (1.0, 0.0)
    value, again, forward, reverse = both(A, E, G)[name]
    close(value, truth(A / c) + shift * np.eye(M), 1e-13)
    close(again, value, 0)
    # f([[A, E], [0, A]]) = [[f(A), D f(A)[E]], [0, f(A)]]  (Mathias 1996; Higham, Functions of Matrices, (3.16))
    block = lambda E: truth(np.block([[A / c, half(E)], [np.zeros((M, M)), A / c]]))[:M, M:] / c
    relative(forward, block(E), 3e-13)
    relative(reverse, block(G), 3e-13)  # D f(A) is its own adjoint


def test_exp_and_log_undo_each_other_and_so_do_their_derivatives():
    for spectrum in SPECTRA:
        _, _, change, _ = both(argument("exp", spectrum), E, G)["exp"]
        A = argument("log", spectrum)
        back = both(A, change, G)["log"]
        close(back[0], argument("exp", spectrum), 1e-13)
        close(back[2], half(E), 1e-12)


@BOTH
def test_only_the_symmetric_part_is_read(name):
    A = argument(name, "apart")
    for mine, plain in zip(both(A + E - E.T, E, G)[name], both(A, half(E), G)[name], strict=True):
        close(mine, plain, 1e-13)


@pytest.mark.parametrize("smallest", [-1.0, -1e-3, 0.0, np.nan, np.inf])
def test_the_logarithm_of_what_is_not_positive_definite_is_nan(smallest):
    assert np.isnan(both(np.diag([smallest, 1.0, 2.0, 2.0, 3.0]), E, G)["log"][0]).all()


def test_the_derivative_of_the_exponential_neither_overflows_nor_cancels_far_apart():
    # (e⁰ − e⁻¹⁶⁰⁰)/1600 between the outer two: sinh(800) would be infinite.
    forward = both(np.diag([0.0, -1600.0, -800.0, 1.0, 700.0]), E, G)["exp"][2]
    assert np.isfinite(forward).all()
    close(forward[0, 1], half(E)[0, 1] / 1600, 1e-15)


def test_under_vmap_they_go_one_after_another():
    # As the Cholesky factor: two batched LAPACK calls at once hang XLA on two cores.
    stack = np.stack([argument("exp", "apart"), argument("exp", "all equal")])
    slope = lambda A: jax.grad(lambda A: jnp.sum(G * log_symmetric(exp_symmetric(A))))(A)
    several = jax.jit(jax.vmap(slope))
    close(several(stack), np.stack([half(G)] * 2), 1e-12)
    program = str(jax.make_jaxpr(several)(stack))
    factorised = re.findall(r"([^\n]*) = eigh\b", program)
    assert factorised and not [line for line in factorised if "[2," in line]


def test_eigenvectors_are_those_of_numpy_and_their_derivative_is_that_of_finite_differences():
    A = argument("exp", "apart")
    several = jnp.stack([A, 2 * A])
    values, Q = jax.jit(jax.vmap(eigh))(several)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(several), atol=1e-14)
    np.testing.assert_allclose((Q * values[:, None]) @ Q.mT, several, atol=1e-14)
    # Of things that do not change with the signs of eigenvectors.
    f = jax.jit(lambda A: (lambda at: (at[1] ** 2 @ jnp.arange(5.0)) @ G[0] + jnp.cos(at[0]) @ G[1])(eigh(A)))
    slope = jax.jit(lambda A: jax.jvp(f, (A,), (E,))[1])(A)
    np.testing.assert_allclose(slope, (f(A + 1e-5 * E) - f(A - 1e-5 * E)) / 2e-5, rtol=1e-8)
    np.testing.assert_allclose(np.vdot(jax.jit(jax.grad(f))(A), E), slope, rtol=1e-12)


def test_no_derivative_of_eigenvectors_is_made_up_where_eigenvalues_coincide():
    assert not np.isfinite(jax.jit(jax.grad(lambda A: jnp.sum(eigh(A)[1] ** 2 @ jnp.arange(5.0))))(np.eye(5))).all()
