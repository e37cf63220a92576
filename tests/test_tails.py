"""Heavy tails: the bound of the scale mixture against integration and Student-t's own, and when a fit takes them."""

from typing import Any

import jax
import numpy as np
import pytest
from scipy import optimize, stats
from test_choices import chosen

from pseudopoint import GPRegressor
from pseudopoint.bounds.scale_mixture import (
    DEGREES,
    best_scale_and_degrees,
    expected_precisions,
    gain_over_normal,
    mixture_terms,
)
from pseudopoint.data import dataset
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian, StudentT
from pseudopoint.optimise.fullbatch import FitError
from pseudopoint.params import cast
from pseudopoint.posteriors import Model
from pseudopoint.recipes.growth import Ended, as_it_is
from pseudopoint.recipes.noise_choice import _gain_for_rows_left_out, with_tails_that_pay
from pseudopoint.recipes.prior import LengthscalePrior
from pseudopoint.recipes.refit import refit
from pseudopoint.recipes.settings import HeavyTails, Trial

pytestmark = pytest.mark.edge

PLAIN: dict[str, Any] = {"kernel": "matern52", "input_warp": "none", "target_warp": "none"}


def gaussian(K, y, noise):
    """log N(y; 0, K + Σ), and mean, covariance of f."""
    G = K + np.diag(noise)
    return (
        stats.multivariate_normal.logpdf(y, np.zeros(len(y)), G),
        K @ np.linalg.solve(G, y),
        K - K @ np.linalg.solve(G, K),
    )


@pytest.mark.parametrize("N", [1, 2, 3])
def test_the_bound_is_below_that_of_student_t_and_this_below_the_evidence(N):
    x, y, sigma2, nu = np.arange(N) * 0.7, np.array([0.4, 3.0, -0.2])[:N], 0.3, 3.0
    K = 1.2 * np.exp(-0.5 * (x[:, None] - x) ** 2)
    weight, precision = np.ones(N), np.ones(N)
    mean, S, squared = weight, K, weight
    for _ in range(200):
        _, mean, S = gaussian(K, y, sigma2 / precision)
        squared = (y - mean) ** 2 + np.diag(S)
        precision = expected_precisions(squared, sigma2, nu)
    # A row of weight ρ has the density N(y; f, σ²)^ρ.
    of_weights = gaussian(K, y, sigma2 / precision)[0]
    of_weights += np.sum(0.5 * np.log(2 * np.pi * sigma2 / precision) - 0.5 * precision * np.log(2 * np.pi * sigma2))
    bound = of_weights + mixture_terms(precision, weight, sigma2, nu)
    kl = 0.5 * (np.trace(np.linalg.solve(K, S)) + mean @ np.linalg.solve(K, mean) - N)
    kl += 0.5 * (np.linalg.slogdet(K)[1] - np.linalg.slogdet(S)[1])
    student: Any = stats.t(nu, scale=sigma2**0.5)
    at_distance = np.sum(student.logpdf(np.sqrt(squared)))
    np.testing.assert_allclose(bound, at_distance - kl, rtol=1e-8)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    std = np.sqrt(np.diag(S))
    elbo = sum(weights @ student.logpdf(b - m - s * nodes) for b, m, s in zip(y, mean, std, strict=True))
    elbo = elbo / np.sqrt(2 * np.pi) - kl
    axes = np.meshgrid(*[np.linspace(-7, 7, 141)] * N, indexing="ij")
    f = np.stack([axis.ravel() for axis in axes], axis=1)
    log = stats.multivariate_normal.logpdf(f, np.zeros(N), K).reshape(-1) + np.sum(student.logpdf(y - f), axis=1)
    evidence = np.log(np.sum(np.exp(log))) + N * np.log(0.1)
    assert bound < elbo < evidence < bound + 0.25 * N


def test_scale_and_degrees_are_those_of_highest_density_and_precisions_have_the_mean_one():
    rng = np.random.default_rng(0)
    squared, weight = rng.standard_t(3, 400) ** 2 * 0.5 + 0.01, rng.integers(1, 4, 400).astype(float)
    variance, degrees = best_scale_and_degrees(squared, weight, 1.0, 10.0)
    value = lambda s2, nu: weight @ stats.t.logpdf(np.sqrt(squared), nu, scale=np.sqrt(s2))
    near = [value(variance * a, degrees * b) for a in (0.98, 1, 1.02) for b in (0.98, 1, 1.02)]
    assert max(near) <= value(variance, degrees) + 1e-6 and DEGREES[0] < degrees < 10
    np.testing.assert_allclose(weight @ expected_precisions(squared, variance, degrees), weight.sum(), rtol=1e-4)


def test_heavy_tails_gain_over_normal_ones_what_their_densities_say():
    rng, weight = np.random.default_rng(3), np.ones(4000)
    r = rng.standard_t(3, 4000)
    direct = np.sum(stats.t.logpdf(r, 3) - stats.norm.logpdf(r, scale=np.sqrt(np.mean(r**2))))
    assert direct < gain_over_normal(r**2, weight, 4.0) < direct + 5
    assert abs(gain_over_normal(rng.normal(size=4000) ** 2, weight, 4.0)) < 2


def test_many_degrees_are_normal_noise():
    squared, weight = np.array([0.1, 2.0, 0.5]), np.ones(3)
    terms = mixture_terms(expected_precisions(squared, 0.5, 1e7), weight, 0.5, 1e7)
    np.testing.assert_allclose(terms, 0, atol=1e-5)


def test_the_normal_variable_under_a_warp_has_the_quartiles_of_the_noise():
    for nu in (2.1, 3.0, 10.0):
        mean, variance = StudentT(0.4, nu).normal(np.zeros(1), np.zeros(1))
        np.testing.assert_allclose(0.6745 * np.sqrt(variance), stats.t.ppf(0.75, nu, scale=0.4), rtol=0.04)


def table(outliers, seed=0, n=200):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    e = np.where(rng.random(n) < outliers, 3.0, 0.1) * rng.normal(size=n)
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + e


@pytest.fixture(scope="module")
def fits():
    return {outliers: GPRegressor(**PLAIN).fit(*table(outliers)) for outliers in (0.0, 0.08)}


def test_heavy_tails_are_taken_where_there_are_outliers_and_nowhere_else(fits):
    heavy, clean = fits[0.08], fits[0.0]
    assert chosen(heavy, "noise") == "heavy tails" and "heavy tails" in str(chosen(heavy, "tails"))
    assert chosen(clean, "tails") == "normal noise" and clean.likelihood_.gaussian_noise is not None
    assert isinstance(heavy.likelihood_, StudentT) and "degrees of freedom" in heavy.notes_[-1]
    assert heavy.method_ == "exact" and heavy.upper_bound_ == np.inf


def test_predictions_have_its_tails(fits, tmp_path):
    X, y = table(0.08, seed=1, n=1000)
    model, normal = fits[0.08], GPRegressor(**PLAIN, likelihood="gaussian").fit(*table(0.08))
    assert model.log_density(X, y).mean() > normal.log_density(X, y).mean() + 0.3
    low, high = model.predict_interval(X, 0.9).T
    assert abs(np.mean((y > low) & (y < high)) - 0.9) < 0.04
    model.save(tmp_path / "model")
    loaded = GPRegressor.load(tmp_path / "model")
    assert np.array_equal(loaded.predict_interval(X[:20]), model.predict_interval(X[:20]))


def test_rows_of_which_half_are_zero_do_not_have_noise_about_zero():
    """Student-t noise of any small scale about f = 0 has a high density there, and f would tell nothing of the mean."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (600, 4))
    y = np.where(rng.random(600) < 0.5, 0, np.maximum(X[:, 0] + X[:, 1], 0) * np.exp(0.2 * rng.normal(size=600)))
    model = GPRegressor(**PLAIN).fit(X[:300], y[:300])
    assert not isinstance(model.likelihood_, StudentT)
    assert np.mean((model.predict(X[300:]) - y[300:]) ** 2) < 0.9 * np.var(y[300:])  # 1.17 where that is not asked for


@pytest.mark.parametrize("method", ["collapsed", "svgp"])
def test_other_methods_and_a_warp_have_heavy_tails_too(method):
    X, y = table(0.08)
    settings: dict[str, Any] = PLAIN | {"target_warp": "log" if method == "collapsed" else "none"}
    model = GPRegressor(**settings, method=method, num_inducing=40, max_iter=60).fit(X, np.exp(y))
    likelihood = model.likelihood_ if model.likelihood_.warped is None else model.likelihood_.warped[0]
    assert isinstance(likelihood, StudentT) and model.method_ == method
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite([mean, std]).all() and np.isfinite(model.log_density(X, np.exp(y))).all()


def exact(X, y):
    """The exact fit of rows by a kernel and a noise variance as they are, and the rows."""
    data, model = dataset(X, y, dtype="float64"), cast(Model(Matern52(np.ones(2), 1.0), Gaussian(0.1)), np.float64)
    settings: Any = GPRegressor()._settings()
    return refit(model, data, settings, LengthscalePrior.around(model.kernel, settings), 0), data


def trials(taken, *evidence):
    """A fit with the trials of its noise, of which that number is taken, and the rows."""
    with jax.enable_x64(True):
        fitted, data = exact(*table(0.08))
    pairs = enumerate(zip(CHOICES, evidence, strict=False))
    made = [Trial("noise", choice, value, i == taken, 0.0) for i, (choice, value) in pairs]
    return Ended(fitted._replace(trials=tuple(made)), as_it_is), data


CHOICES = ("one variance", "depends on x")


@pytest.mark.parametrize(
    ("evidence", "taken", "gain", "fits_it", "heavy_wins"),
    [
        ((-90.0, -80.0), 1, 0.0, True, True),  # the errors of rows left out gain more, by far
        ((-90.0, -60.0), 1, 0.0, True, False),
        ((-90.0, 5000.0), 1, 0.1, False, False),
        ((-90.0, 5000.0), 1, 30.0, True, False),  # 200 rows gained 6,000 in the search
        ((-90.0, 5000.0), 0, 0.1, True, True),  # noise that depends on x predicts some rows badly, and was not taken
        ((), 0, 0.1, True, True),  # it could not be fitted
    ],
)
def test_heavy_tails_are_fitted_where_they_promise_more_than_the_noise_that_was_taken(
    evidence, taken, gain, fits_it, heavy_wins
):
    best, data = trials(taken, *evidence)
    calls, heavy_trial = [], Trial("noise", "heavy tails", -70.0, True, 0.0)
    heavy = Ended(best.fitted._replace(bound=1.0, trials=(heavy_trial,)), lambda fitted, M: fitted)
    with jax.enable_x64(True):
        ended = with_tails_that_pay(best.fitted, best, data, HeavyTails(3.0, gain), lambda: calls.append(1) or heavy)
    told = [trial.choice for trial in ended.fitted.trials if trial.chosen]
    assert len(calls) == fits_it and told == ["heavy tails" if heavy_wins else CHOICES[taken]]
    assert (ended.fitted.bound == 1.0) == heavy_wins and ended.more is (heavy if heavy_wins else best).more
    assert fits_it or "heavy tails promise to gain less" in ended.fitted.notes[-1]
    assert len(ended.fitted.trials) == len(evidence) + fits_it


def test_a_fit_that_fails_under_heavy_tails_leaves_the_one_under_normal_noise_and_says_so():
    best, data = trials(1, -90.0, -80.0)

    def fails():
        raise FitError("a covariance matrix cannot be factorised")

    with jax.enable_x64(True):
        ended = with_tails_that_pay(best.fitted, best, data, HeavyTails(3.0, 0.0), fails)
    assert ended.fitted.trials == best.fitted.trials and ended.more is best.more
    assert "cannot be factorised" in ended.fitted.notes[-1]


def test_what_rows_left_out_promise_is_the_gain_of_their_errors():
    """The exact model without each row by itself, and the best densities of both kinds for the standardised errors."""
    X, y = table(0.08, n=40)
    with jax.enable_x64(True):
        fitted, data = exact(X, y)
        promised = _gain_for_rows_left_out(fitted, data)
        K = np.asarray(fitted.model.kernel(data.X, data.X)) + 0.1 * np.eye(40)
    errors = []
    for i, others in enumerate(np.flatnonzero(~row) for row in np.eye(40, dtype=bool)):
        k = np.linalg.solve(K[np.ix_(others, others)], K[others, i])
        errors.append((y[i] - k @ y[others]) / np.sqrt(K[i, i] - k @ K[others, i]))
    of_tails = lambda numbers: -stats.t.logpdf(errors, np.exp(numbers[1]), scale=np.exp(numbers[0])).sum()
    heavy = -optimize.minimize(of_tails, [0.0, 1.0], bounds=[(-5, 5), np.log(DEGREES)]).fun
    normal = stats.norm.logpdf(errors, scale=np.sqrt(np.mean(np.square(errors)))).sum()
    assert promised == pytest.approx(heavy - normal, abs=0.01)


def test_noise_that_depends_on_x_spares_the_fit_under_heavy_tails():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, 2))
    y = np.sin(3 * X[:, 1]) + np.exp(-2 + 2 * X[:, 0]) * rng.normal(size=600)
    model = GPRegressor(**PLAIN).fit(X, y)
    assert "heavy tails" in str(chosen(model, "tails")) and chosen(model, "noise") == "depends on x"
    tried = np.array(model.selection_["choice"])[np.array(model.selection_["part"]) == "noise"]
    assert list(tried) == list(CHOICES) and any("promise to gain" in note for note in model.notes_)
