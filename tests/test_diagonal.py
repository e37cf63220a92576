"""The O(M) posterior against dense formulas with explicit inverses."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

import diagonal_oracles as d
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles as o
import pytest
from conformance import finite_differences
from diagonal_checks import SHIFTS, M, N, elbo_oracle, everything, given, random_shift, shifted, steps
from lattice import LENGTHSCALE, NOISE, VARIANCE, close
from lattice import elbo as lattice_elbo
from model_files import assert_same

from pseudopoint import bounds
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.optimise.minibatch import (
    DiagonalPrecisionNaturalGradient,
    Optax,
)
from pseudopoint.params import cast, trainable
from pseudopoint.persistence import load, save
from pseudopoint.posteriors import DiagonalPrecision, DirectPrecision, LogPrecision, Model, SoftplusPrecision

# --- the family ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", SHIFTS)
def test_divergence_moments_and_bound_are_those_of_the_dense_gaussian(shift):
    p, (mu, g) = given(), random_shift()
    dense = p.dense()
    m, S = d.moments(dense.Kuu, mu, g)
    model = shifted(p, mu, g, shift)
    divergence, cov, *_ = everything(model, p.Xs)
    close(divergence, o.gauss_kl(m, S, 0 * m, dense.Kuu), 1e-12)
    close(divergence, d.kl(dense.Kuu, mu, g), 1e-12)
    close(cov, S, 1e-13)
    ours = lattice_elbo(model, p.data(), p.Xs)
    close(ours.moments, o.sparse_predict(dense.Ksu, dense.Kss_diag, dense.Kuu, m, S), 1e-12)
    close(ours.vfe, elbo_oracle(p, dense.Kuu, dense.Kuf, dense.Kff_diag, dense.noise, m, S), 1e-12)
    # No residual is left to shrink, though it is there.
    assert ours.tight == ours.vfe and (dense.Kff_diag - np.diag(o.nystrom(dense.Kuf, dense.Kuu))).mean() > 0.1


def test_the_joint_covariance_and_its_diagonal():
    p, (mu, g) = given(), random_shift()
    dense = p.dense()
    *_, variance, joint = everything(shifted(p, mu, g), p.Xs)
    _, S = d.moments(dense.Kuu, mu, g)
    A = np.linalg.solve(dense.Kuu, dense.Ksu.T)
    prior = o.matern52(np.asarray(p.Xs), np.asarray(p.Xs), LENGTHSCALE, VARIANCE)
    close(joint, prior - A.T @ (dense.Kuu - S) @ A, 1e-12)
    close(np.diag(joint), variance, 1e-14)


def test_gradients_equal_finite_differences_of_the_dense_bound():
    p, (mu, g) = given(), random_shift()

    def oracle(mu, g, lengthscale, variance, noise, Z):
        moved = p._replace(Z=Z)
        dense = moved.dense(lengthscale, variance, noise)
        return elbo_oracle(moved, dense.Kuu, dense.Kuf, dense.Kff_diag, dense.noise, *d.moments(dense.Kuu, mu, g))

    def ours(mu, g, lengthscale, variance, noise, Z):
        model = Model(Matern52(lengthscale, variance), Gaussian(noise), DiagonalPrecision(Z, LogPrecision(mu, g), 0.0))
        return bounds.elbo(model, p.data(), N).value

    at = [np.asarray(x) for x in (mu, g, LENGTHSCALE, VARIANCE, NOISE, p.Z)]
    for slope, truth in zip(jax.jit(jax.grad(ours, range(6)))(*at), finite_differences(oracle, at, 1e-3), strict=True):
        close(slope, truth, 1e-7)


def test_jitter_is_added_to_the_pseudo_noise_and_to_nothing_else():
    p, (mu, g) = given(), random_shift()
    model = shifted(p, mu, 1e9 * g, jitter=1e-3)
    close(everything(model, p.Xs)[1], d.moments(p.dense().Kuu, mu, 1 / (1e-9 / g + 1e-3 * VARIANCE))[1], 1e-12)
    close(jax.jit(lambda m: m.posterior.project(m.kernel).predictor().jitter)(model), 1e-3 * VARIANCE, 1e-15)


def test_duplicate_points_need_no_jitter():
    # K is singular and has no Cholesky factor; n points in one place are one of n times the precision.
    p, (mu, g) = given(), random_shift()
    Z = np.concatenate([p.Z, p.Z[:2], p.Z[:2]])
    many = p._replace(Z=Z)
    g_many = np.concatenate([g, g[:2], g[:2]])
    mu_many = np.concatenate([mu, np.ones(4)])
    once = np.concatenate([3 * g[:2], g[2:]]), np.concatenate([mu[:2] + 2, mu[2:]])
    assert not np.isfinite(np.asarray(jnp.linalg.cholesky(many.dense().Kuu))).all()
    model, single = shifted(many, mu_many, g_many), shifted(p, once[1], once[0])
    ours, truth = lattice_elbo(model, p.data(), p.Xs), lattice_elbo(single, p.data(), p.Xs)
    close(ours.vfe, truth.vfe, 1e-12)
    close(ours.moments, truth.moments, 1e-12)
    after, info = steps(DiagonalPrecisionNaturalGradient, 1.0, shifted(many, mu_many, g_many, jitter=None), p.data())
    assert not info.rejected.any() and np.isfinite(after.posterior.q.g).all()
    assert info.bound[-1] > info.bound[0]


def test_extremes_of_g_are_the_prior_and_certainty():
    p, (mu, _) = given(), random_shift()
    for g, S in ((1e-12, p.dense().Kuu), (1e12, np.zeros((M, M)))):
        model = shifted(p, mu, np.full(M, g))
        divergence, cov, _, variance, _ = everything(model, p.Xs)
        close(cov, S, 1e-10)
        assert (variance > 0).all() and np.isfinite(divergence)
    with pytest.raises(ValueError, match="positive"):
        LogPrecision(mu, np.zeros(M))


# --- ordinary gradients, and files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", SHIFTS)
def test_ordinary_gradients_move_g_through_its_bijector_and_it_stays_positive(shift):
    p = given()
    start = shifted(p, np.zeros(M), np.full(M, 0.3), shift)
    held = (lambda m: m.kernel, lambda m: m.likelihood, lambda m: m.posterior.Z)
    model, info = steps(lambda _: Optax(optax.adam(0.1), held), 1.0, start, p.data())
    assert info.bound[-1] > info.bound[0] + 10 and (model.posterior.q.g > 0).all() and not info.rejected.any()


@pytest.mark.parametrize("shift", SHIFTS)
def test_bijectors_there_and_back(shift):
    values = np.array([1e-9, 1e-3, 0.5, 3.0, 60.0, 1e6])
    every = trainable(cast(shift(np.zeros(6), values), jnp.float64))
    np.testing.assert_allclose(every.rebuild(every.vector).g, values, rtol=1e-7 if shift is not DirectPrecision else 0)
    slope = jax.jacobian(lambda v: every.rebuild(v).g)(every.vector)[:, 6:]
    formula = {LogPrecision: values, SoftplusPrecision: -np.expm1(-values), DirectPrecision: np.ones(6)}[shift]
    np.testing.assert_allclose(np.diag(slope), formula, rtol=1e-6)
    assert (every.rebuild(every.vector.at[6:].set(-1e3)).g > 0).all()
    with pytest.raises(ValueError, match="positive"):
        shift(np.zeros(1), -np.ones(1))


def test_model_and_predictor_come_back_from_a_file(tmp_path):
    p = given()
    model = shifted(p, *random_shift(), SoftplusPrecision)
    for thing in (model, jax.jit(lambda m: m.posterior.project(m.kernel).predictor())(model)):
        save(tmp_path / "model.safetensors", thing, kind="test")
        assert_same(thing, load(tmp_path / "model.safetensors", kind="test"))
