"""Variances times one factor: what the whole model is then, that rows left out choose it, and when it is looked for."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from test_choices import chosen

from pseudopoint import GPRegressor
from pseudopoint.bounds import leave_one_out
from pseudopoint.data import dataset, take
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.optimise.fullbatch import FitError
from pseudopoint.params import cast
from pseudopoint.posteriors import Model
from pseudopoint.recipes import Settings, fit_model, methods, widening
from pseudopoint.recipes.growth import Ended
from pseudopoint.recipes.heavy_noise import with_heavy_tails
from pseudopoint.recipes.methods import _fit_exact
from pseudopoint.recipes.noise import fit_noise, given_noise
from pseudopoint.recipes.prior import LengthscalePrior
from pseudopoint.recipes.settings import HeavyTails
from pseudopoint.recipes.starts import Warm
from pseudopoint.recipes.tails import fit_tails
from pseudopoint.recipes.widening import FOLDS, folds_of, of_one_variance, widened

N, C = 60, 1.7
SETTINGS: Any = Settings(method="exact", initial="robust", likelihood="gaussian")
KERNEL = Matern52(np.full(2, 1.4), 1.0)
PRIOR = LengthscalePrior.around(KERNEL, SETTINGS)


def table(columns=2, n=N, seed=0):
    """A function of one column, with outliers, and columns that mean nothing."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, columns))
    return X, np.sin(2 * X[:, 0]) + (0.1 + 0.2 * (X[:, 0] > 0)) * rng.standard_t(4, n)


def made():
    """The fit of each kind of noise."""
    X, y = table()
    data = dataset(X, (y - y.mean()) / y.std(), dtype="float64")
    normal = fit_model(KERNEL, Gaussian(0.1), data, SETTINGS)
    varying: Any = fit_noise(normal, data, SETTINGS, PRIOR)
    both, turns, _ = with_heavy_tails(varying, data, SETTINGS, PRIOR)
    warm = Warm(normal.model, HeavyTails(4.0, 0.0))
    start = cast(Model(KERNEL, Gaussian(0.1)), np.float64)
    return data, {
        "one variance": Ended(normal, lambda fitted, M: fitted, of_one_variance(normal, data)),
        "depends on x": Ended(
            varying.fitted, lambda fitted, M: fitted, given_noise(varying.fitted, varying.turns, data)
        ),
        "heavy tails": fit_tails(_fit_exact, start, data, SETTINGS, PRIOR, None, warm),
        "both": Ended(both, lambda fitted, M: fitted, given_noise(both, turns, data)),
    }


@pytest.fixture(scope="module")
def fits():
    with jax.enable_x64(True):
        return made()


def wide(given):
    return given.again(widening._times(given, C, SETTINGS, PRIOR), C)


def dense(given):
    """Covariance of the targets that f was fitted to, and of f."""
    K = np.asarray(given.f.model.kernel(jnp.asarray(given.rows.X), jnp.asarray(given.rows.X)))
    noise = np.asarray(given.f.model.likelihood.gaussian_noise) + np.asarray(given.rows.noise)
    return K, K + np.diag(np.broadcast_to(noise, len(K)) / np.asarray(given.rows.weight))


KINDS = ("one variance", "depends on x", "heavy tails", "both")


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_leaves_the_mean_and_is_one_of_all_variances_and_of_the_bound(fits, kind):
    data, ended = fits[0], fits[1][kind]
    new = jnp.asarray(table(seed=1)[0])
    before, after = ended.fitted, wide(ended.given)
    moments = [np.asarray(each.predictor(new)) for each in (before, after)]
    _, G = dense(ended.given)
    (mean, variance), (same, times) = moments
    of_f = (0,) if mean.ndim > 1 else ()
    np.testing.assert_allclose(same, mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(times[of_f], C * variance[of_f], rtol=1e-7)
    if of_f:
        np.testing.assert_allclose(times[1], variance[1], rtol=1e-12)  # g is as before
    scale = lambda fit: getattr(fit.model.likelihood, "scale", None) or np.sqrt(fit.model.likelihood.gaussian_noise)
    np.testing.assert_allclose(scale(after), np.sqrt(C) * scale(before), rtol=1e-10)
    # log N(y; 0, cG) of rows that are seen wᵢ times
    y, weight = np.asarray(data.y), np.asarray(ended.given.rows.weight)
    change = -0.5 * weight.sum() * np.log(C) + 0.5 * (1 - 1 / C) * y @ np.linalg.solve(G, y)
    if kind == "heavy tails":  # whose own terms have the factor log σ² of weights that differ from 1
        change += 0.5 * (weight.sum() - N) * np.log(C)
    np.testing.assert_allclose(after.bound - before.bound, change, rtol=1e-6, atol=1e-6)


def by_hand(kind, given, data, factor, held):
    """The log density of row i of a fold given the other folds, kernel and noise as they are: dense."""
    K, G = dense(given)
    y, folds, model = np.asarray(data.y), held, given.f.model
    total = 0.0
    for fold in range(FOLDS):
        out, kept = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        gain = np.linalg.solve(G[np.ix_(kept, kept)], K[np.ix_(kept, out)]).T
        mean = gain @ y[kept]
        variance = factor * (np.diag(K)[out] - np.sum(gain * K[np.ix_(out, kept)], axis=1))
        likelihood, dof = given.observed(model, factor), np.inf
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        weights = weights / weights.sum()
        scale = (
            np.sqrt(np.asarray(likelihood.gaussian_noise)) if kind == "one variance" else np.asarray(likelihood.scale)
        )
        if kind in ("heavy tails", "both"):
            dof = float(likelihood.degrees)
        for m, v, i in zip(mean, variance, out, strict=True):
            f = m + np.sqrt(v) * nodes
            if given.beside is None:
                density = weights @ stats.t.pdf(y[i], dof, f, scale)
            else:
                g = given.beside()
                at = scale * np.exp(g.mean[i] + np.sqrt(g.variance[i]) * nodes)
                density = weights @ stats.t.pdf(y[i], dof, f, at[:, None]).T @ weights
            total += np.log(density)
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_maximised_is_the_density_of_folds_left_out(fits, kind, monkeypatch):
    """With no iterations, against dense algebra and quadrature."""
    monkeypatch.setattr(widening, "ITERATIONS", 0)
    data, given = fits[0], fits[1][kind].given
    density, folds = widening._left_out(given, data, SETTINGS, PRIOR), folds_of(given.f, data)
    for factor in (1.0, C):
        np.testing.assert_allclose(density(factor), by_hand(kind, given, data, factor, folds), rtol=2e-4)


def test_each_fold_has_its_share_of_targets_in_whatever_order_they_come(fits):
    data, normal = fits[0], fits[1]["one variance"].fitted
    order = np.random.default_rng(1).permutation(N)
    folds, again = folds_of(normal, data), folds_of(normal, take(data, order))
    np.testing.assert_array_equal(again, folds[order])
    np.testing.assert_array_equal(np.bincount(folds), np.full(FOLDS, N // FOLDS))
    ranked = folds[np.argsort(np.asarray(data.y))]
    assert all(set(ranked[i : i + FOLDS]) == set(range(FOLDS)) for i in range(0, N, FOLDS))


@pytest.mark.edge
def test_few_rows_of_many_columns_get_variances_that_hold_for_new_rows(monkeypatch):
    X, y = table(20, 80)
    new, truth = table(20, 3000, 1)
    plain: Any = {"kernel": "matern52", "input_warp": "none", "target_warp": "none"}
    model = GPRegressor(**plain).fit(X, y)
    monkeypatch.setattr(methods, "widened", lambda fitted, *_: fitted)
    before = GPRegressor(**plain).fit(X, y)
    assert str(chosen(model, "variance")).startswith("times ") and chosen(before, "variance") is None
    np.testing.assert_allclose(model.predict(new), before.predict(new), rtol=1e-6, atol=1e-8)
    held = [
        np.mean([low <= z <= high for z, (low, high) in zip(truth, fit.predict_interval(new, 0.9), strict=True)])
        for fit in (before, model)
    ]
    assert held[0] < held[1] < 0.96 and held[1] > 0.8
    assert model.log_density(new, truth).mean() > before.log_density(new, truth).mean() + 0.02
    assert any(note.startswith("variance: log density of a row of 5 folds") for note in model.notes_)


@pytest.mark.edge
@pytest.mark.parametrize("options", [{"likelihood": "gaussian"}, {"effort": "fast"}, {"method": "collapsed"}], ids=str)
def test_it_is_left_to_fits_whose_noise_is_open_and_exact(options):
    X, y = table(10)
    assert "variance" not in GPRegressor(kernel="matern52", **options).fit(X, y).selection_["part"]


@pytest.mark.parametrize(("rows", "looks"), [(4, False), (16, True)])
def test_folds_are_left_out_where_rows_are_few_for_the_numbers_that_are_fitted(fits, rows, looks, monkeypatch):
    """Kernel and noise have four numbers here."""
    monkeypatch.setattr(widening, "ROWS_A_NUMBER", rows)
    data, ended = fits[0], fits[1]["one variance"]
    after = widened(ended.fitted, ended.given, data, SETTINGS, PRIOR)
    assert bool(after.trials) == looks and (after is ended.fitted) != looks


def test_a_fold_whose_fit_fails_leaves_the_fit_as_it_was_and_says_so(fits, monkeypatch):
    def fails(*_, **__):
        raise FitError("of a reason")

    monkeypatch.setattr(widening, "refit", fails)
    data, ended = fits[0], fits[1]["depends on x"]
    after = widened(ended.fitted, ended.given, data, SETTINGS, PRIOR)
    assert after.model is ended.fitted.model and after.trials == ended.fitted.trials
    assert "of a reason" in after.notes[-1]


def test_rows_left_out_with_numbers_held_do_not_show_what_folds_show():
    """So that leaving one row out, which costs nothing, cannot take the place of the folds."""
    X, y = table(20, 80)
    data = dataset(X, (y - y.mean()) / y.std(), dtype="float64")
    kernel = cast(Matern52(np.full(20, 4.0), 1.0), np.float64)
    fitted = fit_model(kernel, Gaussian(0.1), data, SETTINGS)
    given, prior = of_one_variance(fitted, data), LengthscalePrior.around(kernel, SETTINGS)
    left = leave_one_out(fitted.predictor, fitted.model.likelihood, data, True)
    noise = float(np.asarray(fitted.model.likelihood.gaussian_noise))
    held = stats.norm.logpdf(np.asarray(data.y), left.mean, np.sqrt(left.variance + noise)).sum()
    assert widening._left_out(given, data, SETTINGS, prior)(1.0) < held - 5
