"""One factor of all variances: what the whole model is then, that rows left out choose it, and when it is sought."""

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
from pseudopoint.estimators import predictive
from pseudopoint.estimators.serving import evaluate
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import NOISE_FLOOR, Gaussian
from pseudopoint.optimise.fullbatch import FitError
from pseudopoint.params import cast
from pseudopoint.posteriors import Model
from pseudopoint.recipes import Settings, fit_model, methods, widening
from pseudopoint.recipes.heavy_noise import with_heavy_tails
from pseudopoint.recipes.methods import _fit_exact
from pseudopoint.recipes.noise import fit_noise, given_noise
from pseudopoint.recipes.prior import LengthscalePrior
from pseudopoint.recipes.settings import HeavyTails
from pseudopoint.recipes.starts import Warm
from pseudopoint.recipes.tails import fit_tails
from pseudopoint.recipes.widening import FOLDS, WIDEST, folds_of, of_one_variance, widened

N, C = 62, 1.7
SETTINGS: Any = Settings(method="exact", initial="robust", likelihood="gaussian")
KERNEL = Matern52(np.full(2, 1.4), 1.0)
PRIOR = LengthscalePrior.around(KERNEL, SETTINGS)
PLAIN: dict[str, Any] = {"kernel": "matern52", "input_warp": "none", "target_warp": "none"}


def table(columns=2, n=N, seed=0):
    """A function of one column, with outliers, and columns that mean nothing."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, columns))
    return X, np.sin(2 * X[:, 0]) + (0.1 + 0.2 * (X[:, 0] > 0)) * rng.standard_t(4, n)


def made():
    """Rows, some of which count twice; and the fit of each kind of noise, with what is known of it."""
    X, y = table()
    data = dataset(X, (y - y.mean()) / y.std(), 1.0 + (np.arange(N) % 5 == 0), dtype="float64")
    normal = fit_model(KERNEL, Gaussian(0.1), data, SETTINGS)
    varying: Any = fit_noise(normal, data, SETTINGS, PRIOR)
    both, turns, _ = with_heavy_tails(varying, data, SETTINGS, PRIOR)
    warm, start = Warm(normal.model, HeavyTails(4.0, 0.0)), cast(Model(KERNEL, Gaussian(0.1)), np.float64)
    tails = fit_tails(_fit_exact, start, data, SETTINGS, PRIOR, None, warm)
    assert tails.given is not None
    fits = {
        "one variance": (normal, of_one_variance(normal, data)),
        "depends on x": (varying.fitted, given_noise(varying.turns, data)),
        "heavy tails": (tails.fitted, tails.given()),
        "both": (both, given_noise(turns, data)),
    }
    return data, fits


@pytest.fixture(scope="module")
def fits():
    with jax.enable_x64(True):
        return made()


def wide(fitted, given, data):
    return widened(fitted, lambda: given, data, SETTINGS, PRIOR)


def dense(given):
    """Covariances of f and of the targets that it was fitted to."""
    X = jnp.asarray(given.rows.X)
    K = np.asarray(given.f.model.kernel(X, X))
    noise = np.asarray(given.f.model.likelihood.gaussian_noise) + np.asarray(given.rows.noise)
    return K, K + np.diag(np.broadcast_to(noise, len(K)) / np.asarray(given.rows.weight))


KINDS = ("one variance", "depends on x", "heavy tails", "both")


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_leaves_the_mean_and_is_one_of_all_variances_and_of_the_bound(fits, kind):
    data, (before, given) = fits[0], fits[1][kind]
    after = given.again(widening._times(given, C, SETTINGS, PRIOR), C)
    new = jnp.asarray(table(seed=1)[0])
    (mean, variance), (same, times) = ([np.asarray(x) for x in each.predictor(new)] for each in (before, after))
    of_f = (0,) if mean.ndim > 1 else ()
    np.testing.assert_allclose(same, mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(times[of_f], C * variance[of_f], rtol=1e-7)
    if of_f:
        np.testing.assert_allclose(times[1], variance[1], rtol=1e-12)  # g is as before
    scale = lambda fit: getattr(fit.model.likelihood, "scale", None) or np.sqrt(fit.model.likelihood.gaussian_noise)
    np.testing.assert_allclose(scale(after), np.sqrt(C) * scale(before), rtol=1e-10)
    # log N(y; 0, cG) of rows that are seen wᵢ times: by the weights of the rows, whatever those of the fit are.
    y, weight = np.asarray(data.y), np.asarray(data.weight)
    change = -0.5 * weight.sum() * np.log(C) + 0.5 * (1 - 1 / C) * y @ np.linalg.solve(dense(given)[1], y)
    np.testing.assert_allclose(after.bound - before.bound, change, rtol=1e-6, atol=1e-6)


def by_hand(kind, given, data, factor):
    """The log densities of rows given the other folds, kernel and noise as they are."""
    (K, G), y, folds = dense(given), np.asarray(data.y), folds_of(data)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights, total = weights / weights.sum(), 0.0
    for fold in range(FOLDS):
        out, kept = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        gain = np.linalg.solve(G[np.ix_(kept, kept)], K[np.ix_(kept, out)]).T
        mean, variance = gain @ y[kept], factor * (np.diag(K)[out] - np.sum(gain * K[np.ix_(out, kept)], axis=1))
        # Of weights E ρ, whose mean over all rows is 1, and not over these.
        share = float(np.sum(given.rows.weight[kept]) / np.sum(data.weight[kept]))
        likelihood = given.observed(given.f.model, factor * share)
        scale = np.sqrt(likelihood.gaussian_noise) if kind == "one variance" else np.asarray(likelihood.scale)
        degrees = float(likelihood.degrees) if kind in ("heavy tails", "both") else np.inf
        for m, v, i in zip(mean, variance, out, strict=True):
            f = m + np.sqrt(v) * nodes
            if given.beside is None:
                density = weights @ stats.t.pdf(y[i], degrees, f, scale)
            else:
                g = given.beside()
                at = scale * np.exp(g.mean[i] + np.sqrt(g.variance[i]) * nodes)
                density = weights @ stats.t.pdf(y[i], degrees, f, at[:, None]).T @ weights
            total += np.asarray(data.weight)[i] * np.log(density)
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_maximised_is_the_density_of_folds_left_out(fits, kind, monkeypatch):
    """With no iterations, against dense algebra and quadrature."""
    monkeypatch.setattr(widening, "ITERATIONS", 0)
    data, given = fits[0], fits[1][kind][1]
    density = widening._left_out(given, data, SETTINGS, PRIOR)
    for factor in (1.0, C):
        tolerance = 1e-8 if kind == "one variance" else 2e-4
        np.testing.assert_allclose(density(factor), by_hand(kind, given, data, factor), rtol=tolerance)


@pytest.mark.parametrize("max_iter", [None, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_fold_the_kernel_is_fitted_again_and_noise_where_it_has_one_scale(fits, kind, max_iter, monkeypatch):
    again, ends, limits = widening.refit, [], []

    def watched(model, rows, settings, prior, iterations, *rest, **options):
        limits.append(iterations)
        ends.append(again(model, rows, settings, prior, iterations, *rest, **options))
        return ends[-1]

    monkeypatch.setattr(widening, "refit", watched)
    data, given = fits[0], fits[1][kind][1]
    widening._left_out(given, data, SETTINGS._replace(max_iter=max_iter), PRIOR)
    assert limits == [max_iter or widening.ITERATIONS] * FOLDS
    lengthscales = np.stack([end.model.kernel.lengthscale for end in ends])
    assert np.all(np.ptp(lengthscales, axis=0) > 1e-3)
    noise = [float(end.model.likelihood.gaussian_noise) for end in ends]
    learned = kind in ("one variance", "heavy tails")
    # The floor is a limit, which a learned number is never exactly at.
    assert np.ptp(noise) > 1e-3 * noise[0] if learned else np.ptp(noise) == 0 and noise[0] < 2 * NOISE_FLOOR, noise


def test_each_fold_has_its_share_of_targets_in_whatever_order_rows_and_columns_come(fits):
    data = fits[0]
    order = np.random.default_rng(1).permutation(N)
    moved = take(data, order)
    folds, again = folds_of(data), folds_of(dataset(moved.X[:, ::-1], moved.y, moved.weight, dtype="float64"))
    np.testing.assert_array_equal(again, folds[order])
    ranked = folds[np.argsort(np.asarray(data.y))]
    assert all(set(ranked[i : i + FOLDS]) == set(range(FOLDS)) for i in range(0, N - FOLDS, FOLDS))
    equal = dataset(data.X, np.round(data.y), data.weight, dtype="float64")
    other = dataset(moved.X[:, ::-1], np.round(moved.y), moved.weight, dtype="float64")
    np.testing.assert_array_equal(folds_of(other), folds_of(equal)[order])


@pytest.mark.parametrize(
    ("peak", "gain", "factor"), [(0.5, 9.0, None), (3.0, 1.9, None), (3.0, 2.1, 3.0), (50.0, 60.0, WIDEST)]
)
def test_the_factor_is_from_one_to_four_and_has_to_gain_two_nats(fits, peak, gain, factor, monkeypatch):
    size = gain / np.log(peak) ** 2
    monkeypatch.setattr(widening, "_left_out", lambda *_: lambda c: -size * np.log(c / peak) ** 2)
    data, (before, given) = fits[0], fits[1]["one variance"]
    after = wide(before, given, data)
    before_after: list[Any] = [fit.model.likelihood for fit in (before, after)]
    times = float(before_after[1].variance / before_after[0].variance)
    np.testing.assert_allclose(times, factor or 1.0, rtol=1e-3)
    taken = [trial.choice for trial in after.trials if trial.chosen]
    assert taken == [f"times {factor:.3g}" if factor else "as fitted"]
    assert after.notes[-1].endswith(", taken" if factor else ", not taken")


@pytest.mark.edge
@pytest.mark.parametrize("warp", ["none", "log"])
def test_few_rows_of_many_columns_get_variances_that_hold_for_new_rows(warp, monkeypatch):
    of = np.exp if warp == "log" else np.asarray
    (X, y), (new, truth) = table(20, 80), table(20, 3000, 1)
    options: dict[str, Any] = PLAIN | {"target_warp": warp}
    model = GPRegressor(**options).fit(X, of(y))
    with monkeypatch.context() as patch:
        patch.setattr(methods, "widened", lambda fitted, *_: fitted)
        before = GPRegressor(**options).fit(X, of(y))
    assert str(chosen(model, "variance")).startswith("times ") and chosen(before, "variance") is None
    held = []
    for fit in (before, model):
        low, high = fit.predict_interval(new, 0.9).T
        held.append(np.mean((low <= of(truth)) & (of(truth) <= high)))
    assert held[0] < held[1] < 0.96 and held[1] > 0.8
    assert model.log_density(new, of(truth)).mean() > before.log_density(new, of(truth)).mean() + 0.02
    means_of_f = [evaluate(fit, predictive.latent, new)[0] for fit in (model, before)]
    np.testing.assert_allclose(*means_of_f, rtol=1e-6, atol=1e-8)
    # The mean of a target without a warp stays; that of a logarithm grows with the variance.
    means = [np.log(np.abs(fit.predict(new))) for fit in (before, model)]
    assert np.allclose(means[1], means[0], atol=1e-6) if warp == "none" else np.all(means[1] > means[0])


@pytest.mark.edge
def test_a_second_fit_that_starts_where_the_first_ended_is_as_wide():
    X, y = table(20, 80)
    model = GPRegressor(**PLAIN).set_params(warm_start=True).fit(X, y)
    first, ends = chosen(model, "variance"), model.predict_interval(X)
    again = model.fit(X, y)
    assert first is not None and str(chosen(again, "variance")).startswith("times ")
    np.testing.assert_allclose(again.predict_interval(X), ends, atol=0.1 * y.std())


@pytest.mark.edge
@pytest.mark.parametrize("options", [{"likelihood": "gaussian"}, {"effort": "fast"}, {"method": "collapsed"}], ids=str)
def test_it_is_left_to_fits_whose_noise_is_open_and_exact(options):
    X, y = table(10)
    assert "variance" not in GPRegressor(kernel="matern52", **options).fit(X, y).selection_["part"]


@pytest.mark.parametrize(
    ("name", "value", "looks"), [("ROWS_A_NUMBER", 15, False), ("ROWS", 61, False), ("ROWS", 62, True)]
)
def test_folds_are_left_out_where_rows_are_few_for_the_numbers_that_are_fitted(fits, name, value, looks, monkeypatch):
    """Kernel and noise have four numbers here."""
    monkeypatch.setattr(widening, name, value)
    data, (before, given) = fits[0], fits[1]["one variance"]
    after = wide(before, given, data)
    assert bool(after.trials) == looks and (after is before) != looks


def test_a_fold_whose_fit_fails_leaves_the_fit_as_it_was_and_says_so(fits, monkeypatch):
    def fails(*_, **__):
        raise FitError("of a reason")

    monkeypatch.setattr(widening, "refit", fails)
    data, (before, given) = fits[0], fits[1]["depends on x"]
    after = wide(before, given, data)
    assert after.model is before.model and after.trials == before.trials
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
