"""Noise that depends on x, by two Gaussian processes in turn: what it finds, when it pays, and the fitted model."""

import pickle
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone

from pseudopoint import GPRegressor
from pseudopoint.bounds import leave_one_out, loo_log_density
from pseudopoint.data import dataset
from pseudopoint.kernels import RBF, Matern52
from pseudopoint.likelihoods import Gaussian, Heteroscedastic
from pseudopoint.params import cast
from pseudopoint.posteriors import Joined
from pseudopoint.recipes import Settings, fit_model
from pseudopoint.recipes.noise import fit_noise
from pseudopoint.recipes.prior import LengthscalePrior

pytestmark = pytest.mark.edge

N = 500
SMALL = {"num_inducing": 20, "inducing": "kmeans", "initial": "robust"}
METHODS = {"exact": {"method": "exact", "initial": "robust"}, "collapsed": {"method": "collapsed"} | SMALL}


def sd(X):
    """From 0.1 to 1 as the first column goes from −2 to 2."""
    return 10 ** ((X[:, 0] - 2) / 4)


def table(n=N, seed=0, deviation=sd):
    """A smooth function with noise, in units of its own."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    f = np.sin(2 * X[:, 0]) + X[:, 1]
    return X, f + deviation(X) * rng.normal(size=n), f


@pytest.fixture(scope="module")
def fits():
    X, y, _ = table()
    return {
        name: GPRegressor(likelihood="heteroscedastic", **given, effort="fast").fit(X, y)
        for name, given in METHODS.items()
    }


EACH = pytest.mark.parametrize("name", METHODS)
BOTH = ("heteroscedastic", "heteroscedastic_student_t")


@EACH
def test_noise_that_depends_on_x_is_found(fits, name):
    X, y, f = table(4000, seed=1)
    model = fits[name]
    assert model.method_ == name and model.likelihood_.latents == 2
    mean, std = model.predict(X, return_std=True)
    _, of_f = model.predict_latent(X, return_std=True)
    noise = np.sqrt(std**2 - of_f[:, 0] ** 2)
    assert np.mean(np.abs(np.log(noise / sd(X)))) < np.log(1.25)
    truth, ours = stats.norm.logpdf(y, f, sd(X)).mean(), model.log_density(X, y).mean()
    one = GPRegressor(**METHODS[name], effort="fast").fit(*table()[:2]).log_density(X, y).mean()
    assert ours > truth - 0.08 and ours > one + 0.2
    assert np.mean((mean - f) ** 2) < 0.02


@EACH
@pytest.mark.parametrize("side", [-1, 1])
def test_intervals_cover_where_noise_is_small_and_where_it_is_large(fits, name, side):
    X, y, _ = table(4000, seed=2)
    X, y = X[side * X[:, 0] > 1], y[side * X[:, 0] > 1]
    low, high = fits[name].predict_interval(X, 0.9).T
    assert abs(np.mean((y > low) & (y < high)) - 0.9) < 0.05


def selected(deviation, method="collapsed", **options):
    """The fit of `fit_noise` on top of one with one variance, as a search uses it."""
    X, y, _ = table(deviation=deviation)
    with jax.enable_x64(True):
        data = dataset(X, (y - y.mean()) / y.std(), dtype="float64")
        settings = Settings(**METHODS[method], effort="fast")
        kernel = cast(Matern52(np.full(2, 1.4), 1.0), np.float64)
        first = fit_model(kernel, Gaussian(0.1), data, settings)
        return first, fit_noise(first, data, settings, LengthscalePrior.around(kernel, settings), **options), data


def test_rows_left_out_choose_noise_that_depends_on_x_only_where_it_does():
    _, found, _ = selected(sd)
    assert found.pays and found.varying - found.constant > 0.2 * N
    assert not found.misses
    first, found, _ = selected(lambda X: np.full(len(X), 0.4))
    assert not found.pays and abs(found.varying - found.constant) < 0.02 * N
    assert found.error > 0 and found.fitted.bound < first.upper + 0.1 * N


def test_f_is_fitted_once_where_a_sample_of_rows_shows_no_gain():
    first, found, _ = selected(lambda X: np.full(len(X), 0.4), if_it_may_pay=True)
    assert found.fitted is first and not found.pays
    assert found.error > 0 and abs(found.varying - found.constant) < 0.02 * N
    first, found, _ = selected(sd, if_it_may_pay=True)
    assert found.fitted is not first and found.pays


def test_what_a_sample_of_rows_tells_is_beside_the_log_density_of_all_rows(monkeypatch):
    monkeypatch.setattr("pseudopoint.recipes.noise.ROWS", N // 5)
    first, found, data = selected(lambda X: np.full(len(X), 0.4), if_it_may_pay=True)
    with jax.enable_x64(True):
        left = leave_one_out(first.predictor, first.model.likelihood, data, False)
        density = loo_log_density(first.model.likelihood, data, left)
    assert found.fitted is first and found.error > 0
    np.testing.assert_allclose(found.constant, np.sum(density), rtol=1e-9)


def test_the_bound_is_that_of_the_evidence_of_both():
    """E log p(y | f, g) − KL[q(f)] − KL[q(g)], from the predictors: with α = K̃⁻¹y and S = K − KK̃⁻¹K, K̃ = K + Σ,
    2 KL[q(f)] = αᵀKα − tr K̃⁻¹K + log |K̃| − log |Σ|, and 2 KL[q(g)] = αᵀKα + Σ (s − 1 − log s)."""
    _, found, data = selected(sd, "exact")
    fitted: Any = found.fitted
    f, g = fitted.predictor.parts
    with jax.enable_x64(True):
        y = np.asarray(data.y)
        moments = [np.stack(both) for both in zip(f(data.X), g(data.X), strict=True)]
        fit = float(np.sum(fitted.model.likelihood.expectation(*map(jax.numpy.asarray, moments), data.y)))
        K, Kg = np.asarray(f.kernel(data.X, data.X)), np.asarray(g.kernel(g.Zv, g.Zv))
    (_, mean), (_, variance) = moments
    noise = float(fitted.model.likelihood.scale) ** 2 * np.exp(2 * (mean - variance)) + 1e-8
    whole, alpha = K + np.diag(noise), np.asarray(f.alpha)
    np.testing.assert_allclose(alpha, np.linalg.solve(whole, y), rtol=1e-4, atol=1e-4)
    of_f = alpha @ K @ alpha - np.trace(np.linalg.solve(whole, K)) + np.linalg.slogdet(whole)[1] - np.log(noise).sum()
    s, alpha = np.asarray(g.s), np.asarray(g.alpha)
    of_g = alpha @ Kg @ alpha + np.sum(s - 1 - np.log(s))
    np.testing.assert_allclose(fitted.bound, fit - 0.5 * of_f - 0.5 * of_g, rtol=1e-5)
    assert fitted.vfe <= fitted.bound and fitted.upper == np.inf
    assert "with one variance" in fitted.notes[-1]


@EACH
def test_a_file_holds_it_bit_for_bit(fits, name, tmp_path):
    X, y, _ = table(60, seed=3)
    model = fits[name]
    model.save(tmp_path / "model.gp")
    for again in (GPRegressor.load(tmp_path / "model.gp"), pickle.loads(pickle.dumps(model))):
        assert type(again.predictor_) is Joined
        for ours, theirs in zip(everything(again, X, y), everything(model, X, y), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert not hasattr(clone(model), "predictor_")


def everything(model, X, y):
    """All that a fitted model predicts."""
    yield from model.predict(X, return_std=True)
    yield from model.predict_latent(X, return_std=True)
    yield model.predict(X, return_cov=True)[1]
    yield model.predict_interval(X)
    yield model.log_density(X, y)
    yield model.sample_y(X, 3)
    yield model.paths(2, random_state=0)(X)


@EACH
def test_draws_have_the_moments_of_f(fits, name):
    X = table(20, seed=4)[0]
    mean, std = (x[:, 0] for x in fits[name].predict_latent(X, return_std=True))
    for draws in (fits[name].sample_y(X, 4000).T, fits[name].paths(1500, random_state=0, features=4096)(X)):
        np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.02)
        # Waves stand for the prior: an error of k/√features in variances (`sampling.paths`).
        np.testing.assert_allclose(draws.std(axis=0), std, rtol=0.15, atol=0.01)


@EACH
def test_kernel_and_points_are_those_of_f(fits, name):
    model = fits[name]
    assert model.kernel_.lengthscale.shape == (2,) and model.mean_.shape == (2,)
    assert isinstance(model.likelihood_, Heteroscedastic)
    assert (model.inducing_points_ is None) == (name == "exact")


def test_fits_are_deterministic_and_know_no_units():
    X, y, _ = table(200)
    new = table(50, seed=5)[0]
    fit = lambda X, y: GPRegressor(likelihood="heteroscedastic", **METHODS["collapsed"], effort="fast").fit(X, y)
    model, again, moved = fit(X, y), fit(X, y), fit(1e3 + 40 * X, 7 - 300 * y)
    np.testing.assert_array_equal(model.predict_interval(new), again.predict_interval(new))
    mean, std = model.predict(new, return_std=True)
    moved_mean, moved_std = moved.predict(1e3 + 40 * new, return_std=True)
    np.testing.assert_allclose((7 - moved_mean) / 300, mean, atol=1e-3)
    np.testing.assert_allclose(moved_std / 300, std, rtol=1e-2)


def test_a_kernel_object_is_in_the_units_of_the_table():
    X, y, _ = table(200)
    X = 1e3 + 40 * X
    model = GPRegressor(RBF(50.0), likelihood="heteroscedastic", **METHODS["collapsed"], effort="fast").fit(X, y)
    by_name = GPRegressor("rbf", likelihood="heteroscedastic", **METHODS["collapsed"], effort="fast").fit(X, y)
    std, other = (fit.predict(X, return_std=True)[1] for fit in (model, by_name))
    assert np.mean(np.abs(np.log(std / other))) < 0.1


@pytest.mark.parametrize("likelihood", BOTH)
def test_a_weight_is_a_repetition(likelihood):
    X, y, _ = table(150)
    weight = np.tile([1.0, 2.0, 3.0], 50)
    whole = np.repeat(np.arange(150), weight.astype(int))
    fit = lambda *rows: GPRegressor(likelihood=likelihood, **METHODS["collapsed"], effort="fast").fit(*rows)
    weighted, repeated = fit(X, y, weight), fit(X[whole], y[whole])
    np.testing.assert_allclose(weighted.predict(X, return_std=True), repeated.predict(X, return_std=True), rtol=1e-6)


@pytest.mark.parametrize("target", ["constant", "smooth", "zeros"])
@pytest.mark.parametrize("likelihood", BOTH)
@EACH
def test_targets_without_noise_end_in_finite_numbers(name, likelihood, target):
    X = table(80)[0]
    y = {"constant": np.full(80, 3.0), "smooth": np.sin(X[:, 0]), "zeros": np.maximum(X[:, 0], 0)}[target]
    model = GPRegressor(likelihood=likelihood, **METHODS[name], effort="fast").fit(X, y)
    assert all(np.isfinite(part).all() for part in model.predict(X, return_std=True))
    assert np.abs(model.predict(X) - y).max() < 0.2


def test_minibatches_and_known_noise_are_as_before():
    X, y, _ = table(60)
    model = GPRegressor(likelihood="heteroscedastic", method="svgp", max_iter=5, **SMALL, effort="fast").fit(X, y)
    assert model.method_ == "svgp" and type(model.predictor_) is not Joined
    with pytest.raises(ValueError, match="noise_variance has no meaning"):
        GPRegressor(likelihood="heteroscedastic", effort="fast").fit(X, y, noise_variance=np.ones(60))
