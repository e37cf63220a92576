"""Gaussians: one conformance suite for all coordinates, and what is special to one of them."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

from functools import partial
from inspect import isabstract, isclass
from itertools import permutations
from typing import Any, NamedTuple

import equinox as eqx
import gaussian_oracles as g
import jax
import jax.numpy as jnp
import numpy as np
import oracles as o
import pytest
from conformance import GAUSSIAN_CHECKS, GAUSSIAN_EXEMPTIONS, GAUSSIANS
from gaussian_checks import assert_close, from_natural, moments, natural
from scipy.linalg import logm

from pseudopoint import gaussians
from pseudopoint.gaussians import (
    AbstractGaussian,
    AbstractViaNatural,
    Expectation,
    MeanChol,
    MeanCovariance,
    MeanLog,
    MeanPrecision,
    Natural,
    NaturalChol,
    NaturalLog,
)

CASES = [
    pytest.param(name, check, id=f"{name}-{check.__name__}")
    for name in GAUSSIANS
    for check in GAUSSIAN_CHECKS
    if check.__name__ not in GAUSSIAN_EXEMPTIONS.get(name, ())
]


@pytest.mark.parametrize("name, check", CASES)
def test_conformance(name, check):
    check(GAUSSIANS[name])


def test_every_gaussian_of_the_package_is_in_the_conformance_list():
    public = vars(gaussians).values()
    classes = {c for c in public if isclass(c) and issubclass(c, AbstractGaussian) and not isabstract(c)}
    # Not a coordinate system of all Gaussians: see test_mean_diagonal.py.
    assert set(GAUSSIANS.values()) == classes - {gaussians.MeanDiagonal}


@pytest.mark.parametrize("first, second", list(permutations(GAUSSIANS, 2)))
def test_any_coordinates_may_be_reached_from_any_others(first, second):
    theta = natural(*moments())
    through = from_natural(GAUSSIANS[second], from_natural(GAUSSIANS[first], theta).theta)
    assert_close(through.q, from_natural(GAUSSIANS[second], theta).q, rtol=1e-10)


m, S = moments()


def test_the_fields_are_the_coordinates():
    theta = natural(m, S)
    q = {name: from_natural(cls, theta).q for name, cls in GAUSSIANS.items()}
    assert_close(q["mean_covariance"].cov, S, rtol=1e-12)
    assert_close(q["mean_chol"].chol, np.linalg.cholesky(S), rtol=1e-12)
    assert_close(q["mean_precision"].precision, np.linalg.inv(S), rtol=1e-12)
    assert_close(q["mean_log"].log, logm(S), rtol=1e-12)
    assert_close(q["natural"].theta2, -0.5 * np.linalg.inv(S), rtol=1e-12)
    assert_close(q["natural_chol"].chol, np.linalg.cholesky(0.5 * np.linalg.inv(S)), rtol=1e-12)
    assert_close(q["natural_log"].log, logm(0.5 * np.linalg.inv(S)), rtol=1e-12)
    assert_close(q["expectation"].eta2, S + np.outer(m, m), rtol=1e-12)
    for name, of in q.items():
        vector = of.theta1 if name.startswith("natural") else of.mean
        assert_close(vector, theta.theta1 if name.startswith("natural") else m, rtol=1e-12)


@jax.jit
def reads(q):
    return q.covariance(), q.to_natural(), q.half_logdet()


def test_only_the_lower_triangle_of_chol_is_read():
    L = np.linalg.cholesky(S)
    dirty = L + np.triu(np.full((6, 6), np.nan), 1)
    for cls in (MeanChol, NaturalChol):
        assert_close(reads(cls(m, dirty)), reads(cls(m, L)), rtol=1e-15)


def test_the_sign_of_a_column_of_chol_is_free():
    # An optimiser may cross zero on the diagonal; the covariance does not mind.
    L = np.linalg.cholesky(S)
    for cls in (MeanChol, NaturalChol):
        turned = cls(m, L * np.array([1, -1, 1, 1, -1, -1]))
        assert_close(reads(turned), reads(cls(m, L)), rtol=1e-12)


@pytest.mark.parametrize("gamma", [0.1, 1.0])
@pytest.mark.parametrize("name", GAUSSIANS)
def test_a_step_in_natural_parameters_is_the_natural_gradient(name, gamma):
    # θ + γ ∂L/∂η, with ∂L/∂η from ∂L/∂(m, S) (Salimbeni (10)), is what an explicit Fisher matrix gives.
    small, cov = m[:4], S[:4, :4]
    rng = np.random.default_rng(0)
    dm, R = rng.normal(size=4), 0.3 * rng.normal(size=(4, 4))
    dS = -R @ R.T
    theta = natural(small, cov)
    stepped = type(theta)(theta.theta1 + gamma * (dm - 2 * dS @ small), theta.theta2 + gamma * dS)
    of = from_natural(GAUSSIANS[name], stepped)
    assert_close((of.q.mean, of.covariance), o.fisher_natural_gradient_step(small, cov, dm, dS, gamma), rtol=1e-9)


def test_the_entropy_has_the_derivative_of_its_coordinates():
    # ½ log |S|: ½ S⁻¹ in S, −½ S in P, and 1/Lᵢᵢ on the diagonal of L
    slope = jax.jit(jax.grad(lambda q: q.entropy()))
    P, L = np.linalg.inv(S), np.linalg.cholesky(S)
    assert_close(slope(MeanCovariance(m, S)).cov, 0.5 * P, rtol=1e-11)
    assert_close(slope(MeanPrecision(m, P)).precision, -0.5 * S, rtol=1e-11)
    assert_close(slope(MeanChol(m, L)).chol, np.diag(1 / np.diag(L)), rtol=1e-13)


def test_expectations_keep_what_a_sum_keeps():
    # S = H₂ − mmᵀ has the rounding error of H₂, and with it all that follows from S.
    for scale in (1.0, 1e-8, 1e8):
        m, S = moments(scale=scale)
        of, lost = from_natural(Expectation, natural(m, S)), 1e-15 * (m @ m + np.trace(S))
        np.testing.assert_allclose(of.covariance, S, rtol=0, atol=lost)
        # ½ d log |S| = ½ tr S⁻¹dS
        np.testing.assert_allclose(of.half_logdet, 0.5 * np.linalg.slogdet(S)[1], rtol=1e-13, atol=60 * lost / scale)
    assert np.abs(from_natural(Expectation, natural(*moments(scale=1e-8))).covariance / 1e-8 - S / 1e8).max() > 1e-12


@pytest.mark.parametrize("cls", [MeanLog, NaturalLog])
def test_logarithms_lose_digits_as_the_condition_grows(cls):
    units = np.array([1.0, 1e-2, 10.0, 1.0, 1e-3, 0.1])
    far = S * np.outer(units, units)
    of = from_natural(cls, natural(units * m, far))
    scaled = np.abs(of.covariance / np.outer(units, units) - S).max()
    assert 1e-14 < scaled < 1e-16 * np.linalg.cond(far)  # the smallest entries have no more digits than that
    assert_close(of.covariance, far, rtol=1e-15 * np.linalg.cond(far))
    # Inverse and determinant do not pass through S: they are as good as the logarithm.
    np.testing.assert_allclose(of.half_logdet, 0.5 * np.linalg.slogdet(far)[1], rtol=1e-15 * np.linalg.cond(far))


SYMMETRIC = [name for name in GAUSSIANS if "chol" not in name]


@pytest.mark.parametrize("name", SYMMETRIC)
def test_symmetric_coordinates_are_read_symmetrised(name):
    q = from_natural(GAUSSIANS[name], natural(m, S)).q
    skew = np.random.default_rng(1).normal(size=(6, 6))
    turned = jax.tree.map(lambda x: x + skew - skew.T if x.ndim == 2 else x, q)
    assert_close(reads(turned)[:1], reads(q)[:1], rtol=1e-12)
    assert_close(reads(turned)[2], reads(q)[2], rtol=1e-12)


class MeanScales(AbstractViaNatural):
    """(m, C): S = CᵀC with upper triangular C. A coordinate system is its maps, and nothing else."""

    eta1: Any
    upper: Any

    def to_natural(self):
        inverse = jnp.linalg.inv(jnp.triu(self.upper))
        P = inverse @ inverse.T
        return Natural(P @ self.eta1, -0.5 * P)

    @staticmethod
    def from_natural(theta):
        q = MeanCovariance.from_natural(theta)
        return MeanScales(q.mean, jnp.linalg.cholesky(q.cov).T)


@pytest.mark.parametrize("check", GAUSSIAN_CHECKS, ids=lambda check: check.__name__)
def test_a_new_coordinate_system_takes_its_maps_and_nothing_else(check):
    check(MeanScales)


# --- Derivatives, against explicit Fisher matrices -------------------------------------------------------------------

A, B, C = np.random.default_rng(2).normal(size=(3, 3, 3))


def loss_in(xp):
    """A function of (m, S) that no symmetry helps."""
    return lambda m, S: xp.sin(A[0] @ m) + m @ B @ m + xp.sum(C * S) + (A[1] @ S @ A[1]) ** 2 + xp.cos(m @ S @ A[2])


class Derivatives(NamedTuple):
    """∂L/∂ξ, the natural gradient, and this pushed back to θ; ∂L/∂η."""

    q: Any
    ordinary: Any
    natural: Any
    pushed: Any
    slope: Any


@partial(jax.jit, static_argnums=0)
def derivatives(cls, thetas):
    loss = lambda q: loss_in(jnp)(q.mean, q.covariance())

    def one(theta):
        q = cls.from_natural(theta)
        ng, mean = gaussians.natural_gradient(loss, q), jnp.asarray(q.mean)
        _, pushed = jax.jvp(lambda q: q.to_natural(), (q,), (ng,))
        slope = gaussians.to_expectation_slope(mean, jax.grad(loss)(MeanCovariance(mean, q.covariance())))
        return Derivatives(q, jax.grad(loss)(q), ng, pushed, slope)

    return jax.vmap(one)(thetas)


# Three Gaussians at once: any one, N(0, I), where logarithms have equal eigenvalues, and one of jitter's size.
TRIPLE = [(m[:3], S[:3, :3]), (np.zeros(3), np.eye(3)), (1e-4 * m[3:], 1e-8 * S[3:, 3:])]
THETAS = jax.tree.map(lambda *leaves: np.stack(leaves), *[natural(*pair) for pair in TRIPLE])
WHICH = pytest.mark.parametrize("which", range(3), ids=["any", "prior", "tiny"])


def halves(name, tree, which):
    """Vector and matrix of one of the three, the matrix as it is."""
    vector, matrix = (np.asarray(leaf)[which] for leaf in jax.tree.leaves(tree))
    np.testing.assert_allclose(matrix, np.tril(matrix) if "chol" in name else matrix.T, rtol=1e-12, atol=0)
    return vector, matrix


@WHICH
@pytest.mark.parametrize("name", GAUSSIANS)
def test_ordinary_and_natural_gradients_are_those_of_explicit_matrices(name, which):
    of = derivatives(GAUSSIANS[name], THETAS)
    xi = g.pack(*halves(name, of.q, which))
    vector, matrix = halves(name, of.ordinary, which)
    folded = matrix if "chol" in name else matrix + matrix.T - np.diag(np.diag(matrix))
    parts = lambda packed: (packed[:3], packed[3:])
    assert_close(parts(g.pack(vector, folded)), parts(g.gradient(loss_in(np), name, xi)), rtol=1e-12)
    ours = parts(g.pack(*halves(name, of.natural, which)))
    assert_close(ours, parts(g.natural_gradient(loss_in(np), name, xi)), rtol=1e-11)  # F(ξ)⁻¹ ∂L/∂ξ
    assert_close(ours, parts(g.pushed_gradient(loss_in(np), name, xi)), rtol=1e-11)  # (∂ξ/∂θ) ∂L/∂η


@WHICH
@pytest.mark.parametrize("name", GAUSSIANS)
def test_all_coordinates_mean_the_same_direction(name, which):
    of = derivatives(GAUSSIANS[name], THETAS)
    truth = derivatives(Natural, THETAS).slope
    assert_close(*(jax.tree.map(lambda x: x[which], tree) for tree in (of.pushed, truth)), rtol=1e-10)


def test_the_fisher_matrix_is_the_covariance_of_the_statistics():
    # F = ∂η/∂θ = Cov[t(u)]  (Salimbeni, below (6)), and the oracle's own Fisher matrix is that one.
    mean, cov = TRIPLE[0]
    once = np.where(g.pack(np.ones(3), np.eye(3)) == 1, 1.0, 0.5)  # θᵢⱼ = 2Θᵢⱼ off the diagonal

    def eta(theta):
        half = jnp.zeros((3, 3)).at[np.tril_indices(3)].set((once * theta)[3:])
        q = Expectation.from_natural(Natural(theta[:3], half + jnp.tril(half, -1).T))
        return jnp.concatenate([q.eta1, q.eta2[np.tril_indices(3)]])

    theta, F = g.natural_of(mean, cov), g.statistics_covariance(mean, cov)
    for jacobian in (jax.jacfwd, jax.jacrev):
        assert_close(jax.jit(jacobian(eta))(theta), F, rtol=1e-12)
    assert_close(g.fisher("natural", once * theta), F / np.outer(once, once), rtol=1e-12)


@pytest.mark.parametrize("cls", [MeanChol, NaturalChol])
def test_a_straight_step_is_the_same_from_a_root_of_any_signs(cls):
    q = from_natural(cls, natural(m, S)).q
    turned = eqx.tree_at(lambda q: q.chol, q, q.chol * np.array([1, -1, 1, 1, -1, -1]))
    step = jax.jit(lambda q: gaussians.step_along(q, Natural(m, -S), 0.1))
    assert_close(step(turned), step(q), rtol=1e-12)
    assert_close(jax.tree.map(jnp.subtract, step(q), q), jax.tree.map(lambda x: 0.1 * x, forward(q)), rtol=1e-10)


forward = jax.jit(lambda q: gaussians.forward(q, Natural(m, -S)))
