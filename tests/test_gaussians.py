"""Gaussians: one conformance suite for all coordinates, and what is special to one of them."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

from inspect import isabstract
from itertools import permutations

import jax
import numpy as np
import oracles as o
import pytest
from conformance import GAUSSIAN_CHECKS, GAUSSIANS, assert_close, from_natural, moments, natural

from pseudopoint import gaussians
from pseudopoint.gaussians import AbstractGaussian, MeanChol, MeanCovariance, MeanPrecision


@pytest.mark.parametrize("check", GAUSSIAN_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", GAUSSIANS)
def test_conformance(name, check):
    check(GAUSSIANS[name])


def test_every_gaussian_of_the_package_is_in_the_conformance_list():
    public = [getattr(gaussians, name) for name in gaussians.__all__]
    classes = {c for c in public if issubclass(c, AbstractGaussian) and not isabstract(c)}
    assert set(GAUSSIANS.values()) == classes


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


@jax.jit
def reads(q):
    return q.covariance(), q.to_natural(), q.half_logdet()


def test_only_the_lower_triangle_of_chol_is_read():
    L = np.linalg.cholesky(S)
    dirty = L + np.triu(np.full((6, 6), np.nan), 1)
    assert_close(reads(MeanChol(m, dirty)), reads(MeanChol(m, L)), rtol=1e-15)


def test_the_sign_of_a_column_of_chol_is_free():
    # An optimiser may cross zero on the diagonal; the covariance does not mind.
    L = np.linalg.cholesky(S)
    turned = MeanChol(m, L * np.array([1, -1, 1, 1, -1, -1]))
    assert_close(reads(turned), reads(MeanChol(m, L)), rtol=1e-12)


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
