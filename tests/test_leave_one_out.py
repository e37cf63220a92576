"""Rows left out in closed form: against a refit without each of them, in NumPy."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import oracles as o
import pytest
from scipy import stats

from pseudopoint.bounds import LeftOut, collapsed, leave_one_out, loo_log_density, marginal, marginal_on_host
from pseudopoint.data import Dataset, padded
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Gaussian, LogScale
from pseudopoint.optimise.fullbatch import converge
from pseudopoint.params import cast
from pseudopoint.posteriors import Collapsed, Exact, Model, Whitened
from pseudopoint.recipes.families import prior_q

N, D, M = 12, 2, 5
LENGTHSCALE, VARIANCE, SIGMA2 = np.array([0.8, 1.7]), 1.3, 0.2


def rows(seed=0, noise=0.3):
    """A small table with weights and noise of its own."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(N, D)), rng.normal(size=N)
    return Dataset(X, y, rng.integers(1, 4, size=N).astype(float), rng.uniform(0, noise, N))


def model_of(posterior, variance=SIGMA2):
    return cast(Model(RBF(LENGTHSCALE, VARIANCE), Gaussian(variance), posterior), np.float64)


def k(X, Z):
    return o.rbf(X, Z, LENGTHSCALE, VARIANCE)


def exact_posterior(X, y, variance, at):
    """Mean and variance of f at one row, from rows with these noise variances (Rasmussen and Williams 2.25, 2.26)."""
    K, kx = k(X, X) + np.diag(variance), k(X, at)
    return (kx.T @ np.linalg.solve(K, y))[0], (k(at, at) - kx.T @ np.linalg.solve(K, kx))[0, 0]


def sparse_posterior(X, y, variance, at, Z):
    """The same of the best q(u) at Z (Titsias 2009, (10))."""
    Kuu, Kuf, ku = k(Z, Z), k(Z, X), k(Z, at)
    B = Kuu + Kuf / variance @ Kuf.T
    mean = (ku.T @ np.linalg.solve(B, Kuf @ (y / variance)))[0]
    return mean, (k(at, at) - ku.T @ np.linalg.solve(Kuu, ku) + ku.T @ np.linalg.solve(B, ku))[0, 0]


def refitted(posterior, data, *more):
    """`posterior` at each row without one copy of it."""
    found = []
    for i in range(N):
        weight = data.weight - np.minimum(data.weight, 1) * (np.arange(N) == i)
        rest = weight > 0
        variance = (SIGMA2 + data.noise[rest]) / weight[rest]
        found.append(posterior(data.X[rest], data.y[rest], variance, data.X[i : i + 1], *more))
    return LeftOut(*np.array(found).T)


def same(ours, theirs, rtol=1e-9):
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(ours.variance, theirs.variance, rtol=rtol)


@pytest.mark.parametrize("bound", [marginal, marginal_on_host])
def test_exact_rows_left_out_are_those_of_a_refit(bound):
    data, model = rows(), model_of(Exact())
    same(
        leave_one_out(bound(model, data).predictor(), model.likelihood, data, exact=True),
        refitted(exact_posterior, data),
    )


def test_sparse_rows_left_out_are_those_of_a_refit():
    data, Z = rows(), rows(1).X[:M]
    model = model_of(Collapsed(jnp.asarray(Z), 0.0))
    left = leave_one_out(collapsed(model, data).predictor(), model.likelihood, data)
    same(left, refitted(sparse_posterior, data, Z), 1e-7)


def test_exact_and_sparse_agree_where_the_points_are_the_rows():
    data = rows()
    exact, sparse = model_of(Exact()), model_of(Collapsed(jnp.asarray(data.X), 0.0))
    same(
        leave_one_out(collapsed(sparse, data).predictor(), sparse.likelihood, data),
        leave_one_out(marginal(exact, data).predictor(), exact.likelihood, data, exact=True),
        1e-5,
    )


@pytest.mark.parametrize("bound", [marginal, marginal_on_host])
def test_a_row_of_weight_zero_is_predicted_as_it_is(bound):
    data, model = rows(), model_of(Exact())
    more = padded(data, N + 3)
    predictor = bound(model, more).predictor()
    left = leave_one_out(predictor, model.likelihood, more, exact=True)
    same(LeftOut(*(x[:N] for x in left)), refitted(exact_posterior, data))
    mean, variance = (np.asarray(x)[0] for x in predictor(jnp.asarray(data.X[:1])))
    np.testing.assert_allclose(left.mean[N:], mean)
    np.testing.assert_allclose(left.variance[N:], variance)


def test_the_log_density_is_that_of_one_copy_of_the_row():
    data, model = rows(), model_of(Exact())
    left = leave_one_out(marginal(model, data).predictor(), model.likelihood, data, exact=True)
    truth = stats.norm.logpdf(data.y, left.mean, np.sqrt(left.variance + SIGMA2 + data.noise))
    np.testing.assert_allclose(loo_log_density(model.likelihood, data, left), truth)


def test_blocks_of_rows_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    X, model = rng.normal(size=(700, D)), model_of(Collapsed(jnp.asarray(rows().X[:M])))
    data = Dataset(X, X[:, 0], np.ones(700), np.zeros(700))
    predictor = collapsed(model, data).predictor()
    whole = leave_one_out(predictor, model.likelihood, data)
    monkeypatch.setattr(importlib.import_module("pseudopoint.bounds.leave_one_out"), "BLOCK", 1)
    same(leave_one_out(predictor, model.likelihood, data), whole, 1e-12)


@pytest.mark.parametrize("exact", [True, False])
def test_without_noise_what_is_left_is_at_most_the_prior(exact):
    X = np.vstack([rows().X, [[50.0, 50.0]]])  # the last row alone tells of f there: 1 − t is lost in rounding
    data = Dataset(X, np.sin(X[:, 0]), np.ones(N + 1), np.zeros(N + 1))
    model = model_of(Exact() if exact else Collapsed(jnp.asarray(X)), 1e-12)
    bound = marginal if exact else collapsed
    left = leave_one_out(bound(model, data).predictor(), model.likelihood, data, exact)
    assert np.isfinite(left).all() and (left.variance >= 0).all()
    assert (left.variance <= VARIANCE * (1 + 1e-6)).all()
    np.testing.assert_allclose(left.variance[-1], VARIANCE, rtol=1e-4)
    np.testing.assert_allclose(left.mean[-1], 0, atol=1e-3 if exact else 1)


def test_a_site_of_another_likelihood_is_removed():
    """P − wβaaᵀ and θ₁ − w(α + βμ)a, with a = L⁻¹k(Z, x), at the best q."""
    data, Z = rows(noise=0.05), rows(1).X[:M]
    kernel, likelihood = RBF(LENGTHSCALE, 0.5), LogScale(0.7)
    model = cast(Model(kernel, likelihood, Whitened(jnp.asarray(Z), prior_q(jnp.asarray(Z)), 0.0)), np.float64)
    model = jax.jit(lambda model, data: converge(model, data, tolerance=1e-12))(model, data)
    left = leave_one_out(model.predictor(), model.likelihood, data)
    L = np.linalg.cholesky(o.rbf(Z, Z, LENGTHSCALE, 0.5))
    A, q = np.linalg.solve(L, o.rbf(Z, data.X, LENGTHSCALE, 0.5)), model.posterior.q
    d = 0.5 - np.sum(A**2, axis=0)
    m, P = np.asarray(q.mean), np.asarray(q.precision)
    mean, variance = A.T @ m, np.sum(A * np.linalg.solve(P, A), axis=0) + d
    slope, half = (np.asarray(x) for x in model.likelihood.at(data).expectation_gradients(mean, variance, data.y))
    for i, (a, weight) in enumerate(zip(A.T, data.weight, strict=True)):
        w = min(weight, 1)  # one copy
        beta = -2 * half[i]
        S = np.linalg.inv(P - w * beta * np.outer(a, a))
        theta = P @ m - w * (slope[i] + beta * mean[i]) * a
        np.testing.assert_allclose(left.mean[i], a @ S @ theta, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(left.variance[i], a @ S @ a + d[i], rtol=1e-6)
