"""Laplace's approximation: dense oracle, exact GP, scikit-learn, finite differences; and data that invite trouble."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

import jax
import jax.numpy as jnp
import numpy as np
import oracles as o
import pytest
from conformance import finite_differences
from lattice import close, exact, problem, repeated
from scipy.special import expit
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF as SklearnRBF
from sklearn.gaussian_process.kernels import ConstantKernel

from pseudopoint import bounds
from pseudopoint.bounds.laplace import laplace
from pseudopoint.data import dataset
from pseudopoint.kernels import RBF, Constant, Matern52
from pseudopoint.likelihoods import Bernoulli, Poisson, StudentT
from pseudopoint.params import cast
from pseudopoint.posteriors import Model

LENGTHS, VARIANCE = np.array([0.8, 1.3]), 1.7
P = problem(5)
F = np.sin(2 * P.X[:, 0]) + P.X[:, 1]
LABELS = (np.random.default_rng(8).uniform(size=len(F)) < expit(F)).astype(float)
COUNTS = np.random.default_rng(9).poisson(2 * np.exp(F)).astype(float)
OUTLIERS = np.where(np.arange(len(F)) % 6 == 0, P.y + 4, P.y)
CASES = {
    "logit": (Bernoulli(link="logit"), LABELS),
    "probit": (Bernoulli(link="probit"), LABELS),
    "poisson": (Poisson(1.5), COUNTS),
    "student": (StudentT(0.3, 3.0), OUTLIERS),
}
EACH = pytest.mark.parametrize("name", CASES)


def model(likelihood, kernel=None, dtype=jnp.float64):
    return cast(Model(kernel or Matern52(LENGTHS, np.asarray(VARIANCE)), likelihood), dtype)


# Compiled once for each likelihood and shape.


@jax.jit
def fit(model, data, Xs):
    """Value and predictions, and the value's gradient in the model."""
    solved = lambda model: (lambda solution: (solution.value, solution.predictor()))(laplace(model, data))
    (value, predictor), gradient = jax.value_and_grad(solved, has_aux=True)(model)
    return value, predictor(Xs), predictor.alpha, gradient


def same(a, b, tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        close(x, y, tolerance)


@jax.jit
def residual(model, data, alpha):
    """∇log p(y | f) − α at f = Kα, in units of W + 1 for every row: about the error of f."""
    f = model.kernel(data.X, data.X) @ alpha
    slope = lambda f, y: jax.grad(lambda f: model.likelihood.log_prob(f[None], y[None])[0])(f)
    g, H = jax.vmap(slope)(f, data.y), jax.vmap(jax.grad(slope))(f, data.y)
    return (g - alpha) / (1 + jnp.abs(H))


# --- Against other ways to the same numbers ---


@pytest.mark.parametrize("variance", [0.1, 1.7, 100.0])
def test_value_and_predictions_equal_the_oracle(variance):
    k = lambda A, B: o.matern52(A, B, LENGTHS, variance)
    Kff, Ksf = k(P.X, P.X), k(np.asarray(P.Xs), P.X)
    value, mode, W = o.laplace_logit(Kff, 2 * LABELS - 1)
    ours = model(Bernoulli(link="logit"), Matern52(LENGTHS, np.asarray(variance)))
    ours_value, predictions, alpha, _ = fit(ours, dataset(P.X, LABELS), P.Xs)
    close(ours_value, value, 1e-8)
    close(Kff @ np.asarray(alpha), mode, 1e-8)
    close(predictions, o.laplace_predict(Kff, Ksf, np.full(len(Ksf), variance), mode, W), 1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_under_a_gaussian_likelihood_it_is_the_exact_gp(weighted):
    p = problem(6, weighted=weighted)
    value, predictions, _, gradient = fit(p.model(), p.data(), p.Xs)
    same((value, predictions), exact(p.model(), p.data(), p.Xs), 1e-9)
    same(gradient, jax.jit(jax.grad(lambda model: bounds.marginal(model, p.data()).value))(p.model()), 1e-9)


@pytest.mark.parametrize("lengthscale, variance", [(0.7, 1.0), (2.0, 30.0)])
def test_the_value_is_that_of_scikit_learn(lengthscale, variance):
    kernel = ConstantKernel(variance, "fixed") * SklearnRBF(lengthscale, "fixed")
    peer = GaussianProcessClassifier(kernel, optimizer=None).fit(P.X, LABELS)
    ours = model(Bernoulli(link="logit"), RBF(np.asarray(lengthscale), np.asarray(variance)))
    close(fit(ours, dataset(P.X, LABELS), P.Xs)[0], peer.log_marginal_likelihood(), 1e-6)


# --- Derivatives, weights ---


@EACH
def test_gradients_are_those_of_finite_differences(name):
    likelihood, y = CASES[name]
    kernel = Matern52(LENGTHS, np.asarray(VARIANCE)) + Constant(np.asarray(0.4))
    ours, data = model(likelihood, kernel), dataset(P.X, y)
    _, _, alpha, gradient = fit(ours, data, P.Xs)
    close(residual(ours, data, alpha), np.zeros_like(y), 1e-9)
    truth = finite_differences(lambda model: fit(model, data, P.Xs)[0], (ours,))
    for slope, difference in zip(jax.tree.leaves(gradient), truth, strict=True):
        np.testing.assert_allclose(slope, difference, rtol=1e-5, atol=1e-7)


@EACH
def test_a_weight_is_a_repetition(name):
    likelihood, y = CASES[name]
    p = problem(5, weighted=True)._replace(y=y)
    several = repeated(p)
    once = fit(model(likelihood), dataset(p.X, y, p.weight), p.Xs)
    again = fit(model(likelihood), dataset(several.X, several.y), p.Xs)
    same((once[0], once[1], once[3]), (again[0], again[1], again[3]), 1e-8)


def test_a_row_without_weight_is_not_there():
    weight = np.arange(len(F)) % 3 - 0.0
    kept = weight > 0
    some = fit(model(Bernoulli(link="logit")), dataset(P.X, LABELS, weight), P.Xs)
    rest = fit(model(Bernoulli(link="logit")), dataset(P.X[kept], LABELS[kept], weight[kept]), P.Xs)
    same((some[0], some[1], some[3]), (rest[0], rest[1], rest[3]), 1e-10)


# --- Data that invite trouble ---

EXTREME = {
    "separable": (Bernoulli(link="logit"), (P.X[:, 0] > 0).astype(float), 1e4),
    "separable_probit": (Bernoulli(link="probit"), (P.X[:, 0] > 0).astype(float), 1e4),
    "huge_variance": (Bernoulli(link="logit"), LABELS, 1e8),
    "one_class": (Bernoulli(link="logit"), np.ones_like(F), 1e4),
    "large_counts": (Poisson(1.0), np.round(1e5 * np.exp(F)), 30.0),
    "no_counts": (Poisson(1.0), np.zeros_like(F), 30.0),
    "far_outliers": (StudentT(0.1, 3.0), np.where(OUTLIERS > P.y, 1e3, P.y), 1.7),
}


@pytest.mark.parametrize("name", EXTREME)
def test_extreme_data_end_at_the_mode_in_both_precisions(name):
    likelihood, y, variance = EXTREME[name]
    both = []
    for dtype in (np.float64, np.float32):
        with jax.enable_x64(dtype is np.float64):
            ours = model(likelihood, RBF(np.asarray(0.9), np.asarray(variance)), dtype)
            data = dataset(P.X, y, dtype=dtype)
            result = fit(ours, data, jnp.asarray(np.asarray(P.Xs), dtype))
            assert {x.dtype for x in jax.tree.leaves(result)} == {jnp.dtype(dtype)}
            assert all(np.isfinite(x).all() for x in jax.tree.leaves(result))
            close(residual(ours, data, result[2]), np.zeros_like(y), 1e-9 if dtype is np.float64 else 1e-3)
            both.append(result[0])
    close(both[1], both[0], 2e-2)


def test_a_model_that_overflowed_is_nan_and_ends():
    kernel = cast(RBF(np.asarray(1.0), np.asarray(1.7)), jnp.float64)
    overflowed = jax.tree.map(lambda x: x * np.nan, kernel)
    assert np.isnan(fit(model(Bernoulli(link="logit"), overflowed), dataset(P.X, LABELS), P.Xs)[0])
