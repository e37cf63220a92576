"""Posteriors and their predictions, against dense formulas in the prior covariances themselves."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import oracles as o
import pytest

from pseudopoint.bounds import collapsed, elbo, marginal
from pseudopoint.data import dataset
from pseudopoint.gaussians import MeanChol, MeanCovariance, MeanPrecision
from pseudopoint.kernels import RBF, AbstractKernel, Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.linalg import default_jitter
from pseudopoint.params import Number, positive
from pseudopoint.posteriors import (
    Collapsed,
    Exact,
    Model,
    Predictor,
    Unwhitened,
    Whitened,
    prior_factor,
)

N, M, D, S = 12, 5, 2, 7
LENGTHS, VARIANCE, NOISE, JITTER = np.array([0.8, 1.3]), 1.7, 0.2, 1e-8
rng = np.random.default_rng(4)
X, Z, X_test = rng.normal(size=(N, D)), rng.normal(size=(M, D)), rng.normal(size=(S, D))
X_test[:3] = Z[:3]  # three of the test points are pseudo-points
y, extra, weight = np.sin(X.sum(1)), rng.uniform(0.0, 0.5, N), rng.integers(1, 4, N).astype(float)
R = rng.normal(size=(M, M))
MEAN, COV = rng.normal(size=M), R @ R.T / M + 0.1 * np.eye(M)
DATA = (X, y, weight, extra)


def k(A, B):
    return o.matern52(A, B, LENGTHS, VARIANCE)


def with_jitter(K):
    return K + JITTER * np.trace(K) / len(K) * np.eye(len(K))


KUU = with_jitter(k(Z, Z))
L = np.linalg.cholesky(KUU)
KERNEL = Matern52(LENGTHS, VARIANCE)


def model(posterior=None, kernel: AbstractKernel = KERNEL):
    return Model(kernel, Gaussian(NOISE), posterior or Exact())


def everything(predictor, X):
    """Mean, variance and joint covariance of f."""
    return *predictor(X), predictor.covariance(X)


predict = jax.jit(everything)


@jax.jit
def bound_and_predictions(model, data, X):
    """elbo (VFE and tight), then mean, variance and joint covariance of f."""
    bound = elbo(model, data, N)
    return bound.standard, bound.value, *everything(model.predictor(), X)


@cache
def data():
    return dataset(*DATA)


POSTERIORS = {
    "whitened": lambda m, S: Whitened(Z, MeanChol(m, np.linalg.cholesky(S))),
    "whitened, mean and precision": lambda m, S: Whitened(Z, MeanPrecision(m, np.linalg.inv(S))),
    "unwhitened": lambda m, S: Unwhitened(Z, MeanChol(L @ m, L @ np.linalg.cholesky(S))),
    "unwhitened, mean and covariance": lambda m, S: Unwhitened(Z, MeanCovariance(L @ m, L @ S @ L.T)),
}


@cache
def fixed(name):
    """Every posterior at the same q: v ~ N(MEAN, COV), u = Lv."""
    return bound_and_predictions(model(POSTERIORS[name](MEAN, COV)), data(), X_test)


# --- the families ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POSTERIORS)
def test_predictions_are_those_of_the_dense_formula(name):
    _, _, mean, variance, _ = fixed(name)
    truth = o.sparse_predict(k(X_test, Z), np.diag(k(X_test, X_test)), KUU, L @ MEAN, L @ COV @ L.T)
    np.testing.assert_allclose((mean, variance), truth, rtol=1e-9)


@pytest.mark.parametrize("name", POSTERIORS)
def test_the_joint_covariance_is_that_of_the_dense_formula_and_has_the_variances_on_its_diagonal(name):
    _, _, _, variance, joint = fixed(name)
    A = np.linalg.solve(KUU, k(Z, X_test)).T
    np.testing.assert_allclose(
        joint, k(X_test, X_test) - A @ k(Z, X_test) + A @ L @ COV @ L.T @ A.T, rtol=1e-8, atol=1e-9
    )
    np.testing.assert_allclose(np.diag(joint), variance, rtol=1e-12)
    np.testing.assert_allclose(joint, joint.T, rtol=0, atol=1e-14)
    assert np.linalg.eigvalsh(joint).min() > -1e-14


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("name", POSTERIORS)
def test_the_elbo_is_that_of_the_dense_formula(name, tight):
    # A row of weight w is w rows; the noise of a row adds to that of the likelihood. Weights multiply the tight term
    # within the logarithm, not outside: w rows at one x share one residual.
    Kff, Kuf, noise = np.diag(k(X, X)), k(Z, X), NOISE + extra
    q, ones = (L @ MEAN, L @ COV @ L.T), np.ones(N)
    rows = [
        o.elbo_gaussian(Kff[[i]], Kuf[:, [i]], KUU, *q, noise[[i]], y[[i]]) + o.gauss_kl(*q, 0 * MEAN, KUU)
        for i in range(N)
    ]
    truth = weight @ rows - o.gauss_kl(*q, 0 * MEAN, KUU)
    if tight:
        x = weight * (Kff - np.diag(o.nystrom(Kuf, KUU))) / noise
        truth += 0.5 * ones @ (x - np.log1p(x))
    np.testing.assert_allclose(fixed(name)[int(tight)], truth, rtol=1e-10)


def test_whitened_and_unwhitened_are_one_posterior_at_matching_moments():
    for name in POSTERIORS:
        for ours, truth in zip(fixed(name), fixed("whitened"), strict=True):
            np.testing.assert_allclose(ours, truth, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ["whitened", "unwhitened"])
def test_at_the_prior_predictions_are_the_prior_and_the_divergence_is_zero(name):
    value, _, mean, variance, joint = bound_and_predictions(
        model(POSTERIORS[name](np.zeros(M), np.eye(M))), data(), X_test
    )
    np.testing.assert_allclose(mean, 0.0, atol=1e-15)
    np.testing.assert_allclose(variance, VARIANCE, rtol=1e-12)
    np.testing.assert_allclose(joint, k(X_test, X_test), rtol=0, atol=1e-12)
    noise = NOISE + extra
    fit = weight @ (-0.5 * np.log(2 * np.pi * noise) - 0.5 * (y**2 + VARIANCE) / noise)
    np.testing.assert_allclose(value, fit, rtol=1e-12)


# --- collapsed and exact ---------------------------------------------------------------------------------------------


def test_the_collapsed_posterior_predicts_from_the_optimal_q():
    predictor = collapsed(model(Collapsed(Z)), data()).predictor()
    mean, variance, joint = predict(predictor, X_test)
    q = o.optimal_q(k(Z, X), KUU, (NOISE + extra) / weight, y)
    truth = o.sparse_predict(k(X_test, Z), np.diag(k(X_test, X_test)), KUU, *q)
    np.testing.assert_allclose((mean, variance), truth, rtol=1e-8)
    np.testing.assert_allclose(np.diag(joint), variance, rtol=1e-9)
    np.testing.assert_allclose(predictor.jitter, JITTER * VARIANCE, rtol=1e-14)


def test_the_exact_posterior_and_evidence_are_those_of_repeated_rows():
    solution = marginal(model(), data())
    value = solution.value
    mean, variance, joint = predict(solution.predictor(), X_test)
    i = np.repeat(np.arange(N), weight.astype(int))
    np.testing.assert_allclose(value, o.exact_log_evidence(k(X[i], X[i]), (NOISE + extra)[i], y[i]), rtol=1e-10)
    truth = o.exact_posterior(k(X[i], X[i]), k(X_test, X[i]), np.diag(k(X_test, X_test)), (NOISE + extra)[i], y[i])
    np.testing.assert_allclose((mean, variance), truth, rtol=1e-10)
    np.testing.assert_allclose(np.diag(joint), variance, rtol=1e-12)


# --- the predictor ---------------------------------------------------------------------------------------------------


def test_a_predictor_is_its_formula_also_with_two_sets_of_points():
    Zm, Zv, alpha = X[:4], Z, rng.normal(size=4)
    W, s = rng.normal(size=(M, M)) / 10, rng.uniform(0, 2, M)
    mean, variance, joint = predict(Predictor(KERNEL, Zm, alpha, Zv, W, s, np.array(0.0)), X_test)
    Kvx = k(Zv, X_test)
    truth = k(X_test, X_test) - Kvx.T @ W.T @ W @ Kvx + Kvx.T @ W.T @ np.diag(s) @ W @ Kvx
    np.testing.assert_allclose(mean, k(X_test, Zm) @ alpha, rtol=1e-12)
    np.testing.assert_allclose(variance, np.diag(truth), rtol=1e-12)
    np.testing.assert_allclose(joint, truth, rtol=1e-11, atol=1e-12)


COUNT = []


class Counted(AbstractKernel):
    """A kernel that notes how often it is asked for a matrix."""

    inner: RBF
    scale: Number = positive(default=1.0)

    def __call__(self, X, Z):
        COUNT.append((X.shape[0], Z.shape[0]))
        return self.scale * self.inner(X, Z)

    def diag(self, X):
        return self.scale * self.inner.diag(X)


def test_a_prediction_takes_one_kernel_matrix():
    # The points of mean and variance are the same; a second kernel matrix would double the cost of every prediction.
    predictor = jax.eval_shape(lambda *at: collapsed(*at).predictor(), model(Collapsed(Z), Counted(RBF())), data())
    COUNT.clear()
    jax.eval_shape(lambda predictor, X: predictor(X), predictor, jax.ShapeDtypeStruct((S, D), jnp.float64))
    assert COUNT == [(M, S)]


# --- extremes --------------------------------------------------------------------------------------------------------

DUPLICATES = Z.copy()
DUPLICATES[1], DUPLICATES[3] = Z[0], Z[2] + 1e-9
BIG = Matern52(LENGTHS, 1e4)


@pytest.mark.parametrize("kernel", [KERNEL, BIG], ids=["", "variance 1e4"])
@pytest.mark.parametrize("points", [Z, DUPLICATES, X_test[:M]], ids=["distinct", "duplicates", "test points"])
def test_variances_are_positive_and_at_most_the_prior(kernel, points):
    of = collapsed(model(Collapsed(points), kernel), data())
    mean, variance, joint = predict(of.predictor(), X_test)
    prior = float(kernel.variance)
    assert np.isfinite(mean).all() and np.isfinite(joint).all()
    assert (variance > 0).all()
    assert (variance <= prior * (1 + 1e-7)).all()
    np.testing.assert_allclose(np.diag(joint), variance, rtol=0, atol=1e-12 * prior)


@pytest.mark.parametrize("name", ["whitened", "unwhitened"])
@pytest.mark.parametrize("points", [Z, DUPLICATES], ids=["distinct", "duplicates"])
@pytest.mark.parametrize("scale", [1.0, 1e-9], ids=["wide q", "narrow q"])
def test_variances_are_positive_for_any_q(name, points, scale):
    q = MeanChol(MEAN, scale * np.linalg.cholesky(COV))
    posterior = Whitened(points, q) if name == "whitened" else Unwhitened(points, q)
    value, tight, mean, variance, _ = bound_and_predictions(model(posterior, BIG), data(), X_test)
    assert np.isfinite((value, tight)).all() and np.isfinite(mean).all()
    assert (variance > 0).all()


@pytest.mark.parametrize("family", [Whitened, Unwhitened])
def test_a_posterior_that_is_sure_of_one_direction_still_predicts(family):
    # S = LLᵀ is positive definite for every L without zeros on its diagonal, but it cannot be factorised again.
    chol = np.tril(np.ones((M, M)))
    chol[2, 2] = 1e-9
    _, _, mean, variance, joint = bound_and_predictions(model(family(Z, MeanChol(MEAN, chol))), data(), X_test)
    A = np.linalg.solve(L, k(Z, X_test)).T if family is Whitened else np.linalg.solve(KUU, k(Z, X_test)).T
    residual = VARIANCE - np.sum(np.linalg.solve(L, k(Z, X_test)) ** 2, axis=0)
    np.testing.assert_allclose(mean, A @ MEAN, rtol=1e-9)
    np.testing.assert_allclose(variance, residual + np.sum((A @ chol) ** 2, axis=1), rtol=1e-7)
    assert np.isfinite(joint).all()


def test_at_a_pseudo_point_the_variance_is_that_of_q():
    # u is f(Z): with S → 0 what is left is the jitter.
    tiny = Unwhitened(X_test[:M], MeanCovariance(np.zeros(M), 1e-6 * np.eye(M)))
    variance = bound_and_predictions(model(tiny), data(), X_test)[3]
    np.testing.assert_allclose(variance[:M], 1e-6 + JITTER * VARIANCE, rtol=1e-4)


def test_the_jitter_is_relative_recorded_and_that_of_the_dtype_unless_it_is_given():
    @jax.jit
    def used(kernel):
        return [prior_factor(kernel, jnp.asarray(Z), jitter).jitter for jitter in (None, 1e-4, 0.0)]

    np.testing.assert_allclose(used(KERNEL), [default_jitter(jnp.float64) * VARIANCE, 1e-4 * VARIANCE, 0.0], rtol=1e-14)
    np.testing.assert_allclose(used(BIG), [default_jitter(jnp.float64) * 1e4, 1.0, 0.0], rtol=1e-14)
