"""Folds of rows left out in closed form: against refits without them, in NumPy and by the estimators' predictions."""

# pyright: reportArgumentType=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from test_leave_one_out import SIGMA2, D, M, N, exact_posterior, model_of, rows, sparse_posterior

from pseudopoint import GPRegressor
from pseudopoint.bounds import LeftOut, collapsed, folds_left_out, leave_one_out, marginal, marginal_on_host
from pseudopoint.data import Dataset
from pseudopoint.posteriors import Collapsed, Exact

FOLDS = np.array(["a", "b", "b", "c", "a", "c", "c", "d", "a", "b", "c", "e"])


def without_folds(posterior, data, *more):
    found = []
    for i in range(N):
        rest = FOLDS != FOLDS[i]
        variance = (SIGMA2 + data.noise[rest]) / data.weight[rest]
        found.append(posterior(data.X[rest], data.y[rest], variance, data.X[i : i + 1], *more))
    return LeftOut(*np.array(found).T)


def same(ours, theirs, rtol):
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(ours.variance, theirs.variance, rtol=rtol)


@pytest.mark.parametrize("bound", [marginal, marginal_on_host])
def test_exact_folds_left_out_are_those_of_a_refit(bound):
    data, model = rows(), model_of(Exact())
    left = folds_left_out(bound(model, data).predictor(), model, data, FOLDS, exact=True)
    same(left, without_folds(exact_posterior, data), 1e-8)


def test_sparse_folds_left_out_are_those_of_a_refit():
    data, Z = rows(), rows(1).X[:M]
    model = model_of(Collapsed(jnp.asarray(Z), 0.0))
    left = folds_left_out(collapsed(model, data).predictor(), model, data, FOLDS)
    same(left, without_folds(sparse_posterior, data, Z), 1e-8)


@pytest.mark.parametrize("exact", [True, False])
def test_folds_of_one_row_are_rows_left_out(exact):
    data = rows()
    data = Dataset(data.X, data.y, np.ones(N), data.noise)
    model = model_of(Exact() if exact else Collapsed(jnp.asarray(rows(1).X[:M]), 0.0))
    predictor = (marginal if exact else collapsed)(model, data).predictor()
    left = folds_left_out(predictor, model, data, np.arange(N), exact)
    same(left, leave_one_out(predictor, model.likelihood, data, exact), 1e-9)


# --- The estimators ---


def table(n=40):
    rng = np.random.default_rng(3)
    X = rng.uniform(0.5, 4, (n, D))
    return X, np.exp(np.sin(X[:, 0]) + X[:, 1] / 3 + 0.2 * rng.normal(size=n)), rng.integers(1, 3, n).astype(float)


_covariance = jax.jit(lambda kernel, A, B: kernel(A, B))


def refit(model, X, y, weight, rest):
    """Mean and variance of the scaled, warped target at all rows, from those of `rest`, hyperparameters held."""
    s, k, likelihood = model.standardiser_, model.kernel_, model.likelihood_
    covariance = lambda A, B: np.asarray(_covariance(k, A, B))
    inner, warp = likelihood.warped or (likelihood, None)
    t = s.target(y) if warp is None else np.asarray(warp(s.target(y)))
    noise, A = float(inner.gaussian_noise), s.inputs(X)
    Kss = np.full(len(X), float(k.variance))
    if model.inducing_points_ is None:
        K = covariance(A[rest], A[rest]) + np.diag(noise / weight[rest])
        Ksf = covariance(A, A[rest])
        return Ksf @ np.linalg.solve(K, t[rest]), Kss - np.sum(Ksf.T * np.linalg.solve(K, Ksf.T), axis=0) + noise, t
    Z = s.inputs(model.inducing_points_)
    Kuu = covariance(Z, Z) + float(model.predictor_.jitter) * np.eye(len(Z))
    Kuf, ku = covariance(Z, A[rest]), covariance(Z, A)
    B = Kuu + Kuf * (weight[rest] / noise) @ Kuf.T
    mean = ku.T @ np.linalg.solve(B, Kuf @ (t[rest] * weight[rest] / noise))
    variance = Kss - np.sum(ku * np.linalg.solve(Kuu, ku), axis=0) + np.sum(ku * np.linalg.solve(B, ku), axis=0)
    return mean, variance + noise, t


@pytest.mark.parametrize("method, warp", [("exact", "none"), ("collapsed", "none"), ("exact", "log")])
def test_densities_are_those_of_refits_with_hyperparameters_held(method, warp):
    X, y, weight = table()
    effort = (
        {"effort": "fast"} if warp == "none" else {"kernel": "matern52", "target_warp": "log", "input_warp": "none"}
    )
    settings = {"method": method, "max_iter": 2, "num_inducing": 8, "initial": "robust"} | effort
    model = GPRegressor(**settings).fit(X, y, weight)
    folds, s = np.arange(len(y)) % 4, model.standardiser_
    loo, kfold = model.loo_log_density(X, y, weight), model.kfold_log_density(X, y, folds, weight)
    slope = 0 if model.likelihood_.warped is None else np.asarray(model.likelihood_.warped[1].log_slope(s.target(y)))
    for i in (0, 7, 21):
        one = weight - np.minimum(weight, 1) * (np.arange(len(y)) == i)
        for found, rest, w in ((loo, one > 0, one), (kfold, folds != folds[i], weight)):
            mean, variance, t = refit(model, X, y, w, rest)
            truth = stats.norm.logpdf(t, mean, np.sqrt(variance)) + slope - np.log(s.target_scale)
            np.testing.assert_allclose(found[i], truth[i], rtol=1e-8, atol=1e-8)


def test_what_has_no_closed_form_is_refused():
    X, y, weight = table()
    model = GPRegressor(effort="fast", initial="robust", likelihood="gamma", method="laplace", max_iter=1).fit(X, y)
    with pytest.raises(ValueError, match="rows left out in closed form are for a Gaussian likelihood"):
        model.loo_log_density(X, y)
    model = GPRegressor(effort="fast", initial="robust", method="exact", max_iter=1).fit(X, y)
    for folds, message in (([1, 2], "2 names, but X has 40 rows"), ([1] * 40, "one name only")):
        with pytest.raises(ValueError, match=message):
            model.kfold_log_density(X, y, folds)
    with pytest.raises(ValueError, match="zero in some rows"):
        model.kfold_log_density(X, y, np.arange(40), weight - 1)
