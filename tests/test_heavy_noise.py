"""Noise that depends on x and has heavy tails: its bound against integration, when a fit takes it, and what follows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats
from test_choices import chosen
from test_noise import METHODS, everything

from pseudopoint import GPRegressor
from pseudopoint.data import dataset
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian, Heteroscedastic, HeteroscedasticStudentT
from pseudopoint.optimise.fullbatch import FitError
from pseudopoint.params import cast
from pseudopoint.recipes import Settings, fit_model, noise_choice
from pseudopoint.recipes.heavy_noise import promised, with_heavy_tails
from pseudopoint.recipes.noise import fit_noise
from pseudopoint.recipes.prior import LengthscalePrior

pytestmark = pytest.mark.edge

PLAIN: dict[str, Any] = {"kernel": "matern52", "input_warp": "none", "target_warp": "none"}
TAILS = "depends on x, heavy tails"


def table(n, seed=0, degrees=3.0):
    """Noise of the scale 0.1 to 1 as the first column goes from −2 to 2, Student's or normal."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    f, scale = np.sin(2 * X[:, 0]) + X[:, 1], 10 ** ((X[:, 0] - 2) / 4)
    return X, f + scale * (rng.standard_t(degrees, n) if np.isfinite(degrees) else rng.normal(size=n)), f, scale


@pytest.fixture(scope="module")
def varying():
    """The fit under normal noise, the rows, and what the fit with heavy tails is made of."""
    X, y, *_ = table(120)
    with jax.enable_x64(True):
        data = dataset(X, (y - y.mean()) / y.std(), dtype="float64")
        settings = Settings(**METHODS["exact"], effort="fast")
        kernel = cast(Matern52(np.full(2, 1.4), 1.0), np.float64)
        prior = LengthscalePrior.around(kernel, settings)
        found = fit_noise(fit_model(kernel, Gaussian(0.1), data, settings), data, settings, prior)
    return found, data, settings, prior


def of_precision(squared, scale2, r, degrees):
    """E log N(y; f, scale²/ρ) − KL[q(ρ) ‖ p(ρ)] by quadrature, for E (y − f)² and q(ρ) = Gamma(a, a/r)."""
    a, h = 0.5 * (degrees + 1), 0.5 * degrees
    q: Any = stats.gamma(a, scale=r / a)
    p: Any = stats.gamma(h, scale=1 / h)
    of = lambda rho: 0.5 * np.log(rho / (2 * np.pi * scale2)) - 0.5 * rho * squared / scale2
    whole = lambda rho: q.pdf(rho) * (of(rho) + p.logpdf(rho) - q.logpdf(rho))
    return integrate.quad(whole, 0, 60 * r, points=[0.1 * r, r, 5 * r], limit=200)[0]


def test_the_bound_is_that_of_the_evidence_of_both_functions_and_of_the_precisions(varying):
    """E log p(y | f, g, ρ) − KL[q(ρ)] − KL[q(f)] − KL[q(g)], the last two as in test_noise.py."""
    found, data, settings, prior = varying
    with jax.enable_x64(True):
        fitted, turns, _ = with_heavy_tails(found, data, settings, prior)
        f: Any = turns.f.predictor
        g: Any = turns.g.predictor
        (mean, m), (variance, v) = (np.stack(both) for both in zip(f(data.X), g(data.X), strict=True))
        K, Kg = np.asarray(f.kernel(data.X, data.X)), np.asarray(g.kernel(g.Zv, g.Zv))
        likelihood: Any = fitted.model.likelihood
        moments = jnp.stack([mean, m]), jnp.stack([variance, v])
        student = float(np.sum(likelihood.expectation(*moments, data.y)))
    s, y = float(likelihood.scale), np.asarray(data.y)
    # E log N at a fixed ρ has −log s − m for the log of the scale and e^{−2m + 2v} for its inverse square.
    inverse = s**2 * np.exp(2 * m - 2 * v)
    squared = (y - mean) ** 2 + variance
    rows = zip(squared, inverse, np.asarray(turns.precision), strict=True)
    of_rows = sum(of_precision(*row, turns.degrees) for row in rows) - v.sum()
    whole = K + np.diag(inverse / turns.precision + 1e-8)
    alpha = np.asarray(f.alpha)
    np.testing.assert_allclose(alpha, np.linalg.solve(whole, y), rtol=1e-4, atol=1e-4)
    of_f = alpha @ K @ alpha - np.trace(np.linalg.solve(whole, K))
    of_f += np.linalg.slogdet(whole)[1] - np.log(np.diag(whole - K)).sum()
    of_g = np.asarray(g.alpha) @ Kg @ np.asarray(g.alpha) + np.sum(np.asarray(g.s) - 1 - np.log(np.asarray(g.s)))
    np.testing.assert_allclose(fitted.bound, of_rows - 0.5 * of_f - 0.5 * of_g, rtol=1e-5)
    assert fitted.bound < student - 0.5 * of_f - 0.5 * of_g  # Jensen's inequality, over ρ
    assert fitted.bound > found.fitted.bound and fitted.upper == np.inf
    np.testing.assert_allclose(np.mean(turns.precision), 1.0, rtol=1e-3)  # where scale and ν are the best ones


def test_what_rows_left_out_promise_is_the_gain_of_the_best_student_t_density_over_a_normal_one(varying):
    found, data, *_ = varying
    with jax.enable_x64(True):
        gain = promised(found, data)
        f, g = found.without_rows
        rng = np.random.default_rng(0)
        draws = g.mean + np.sqrt(g.variance) * rng.normal(size=(4000, len(data)))
        spread = np.sqrt(f.variance + found.turns.scale**2 * np.exp(2 * draws))
        share = stats.norm.cdf((np.asarray(data.y) - f.mean) / spread).mean(axis=0)
    z = stats.norm.ppf(np.clip(share, 1e-6, 1 - 1e-6))
    nu, centre, scale = stats.t.fit(z, floc=0)
    direct = np.sum(stats.t.logpdf(z, nu, centre, scale) - stats.norm.logpdf(z))
    assert abs(gain - direct) < 0.2 and gain > 2


@pytest.fixture(scope="module")
def fits():
    X, y, *_ = table(500)
    by_name = {
        name: GPRegressor(likelihood="heteroscedastic_student_t", **given, effort="fast").fit(X, y)
        for name, given in METHODS.items()
    }
    return by_name | {"auto": GPRegressor(**PLAIN).fit(X, y)}


@pytest.mark.parametrize("name", ["exact", "collapsed", "auto"])
def test_scale_and_tails_are_found(fits, name):
    X, y, f, scale = table(4000, seed=1)
    model, likelihood = fits[name], fits[name].likelihood_
    assert isinstance(likelihood, HeteroscedasticStudentT) and model.method_ == ("exact" if name == "auto" else name)
    assert 2.2 < float(likelihood.degrees) < 6
    truth = np.mean(stats.t.logpdf((y - f) / scale, 3) - np.log(scale))
    normal = GPRegressor(likelihood="heteroscedastic", **METHODS["exact"], effort="fast").fit(*table(500)[:2])
    assert model.log_density(X, y).mean() > max(truth - 0.06, normal.log_density(X, y).mean() + 0.05)
    assert np.mean((model.predict(X) - f) ** 2) < 0.02
    for side in (-1, 1):
        rows = side * X[:, 0] > 1
        low, high = model.predict_interval(X[rows], 0.9).T
        assert abs(np.mean((y[rows] > low) & (y[rows] < high)) - 0.9) < 0.05


def test_a_default_fit_takes_heavy_tails_where_errors_have_them_and_nowhere_else(fits):
    model, normal = fits["auto"], GPRegressor(**PLAIN).fit(*table(500, degrees=np.inf)[:2])
    assert chosen(model, "noise") == TAILS and any("heavy tails besides" in note for note in model.notes_)
    assert chosen(normal, "noise") == "depends on x" and TAILS not in normal.selection_["choice"]


def test_of_both_fits_the_one_that_predicts_rows_left_out_better_by_enough_stays(varying, monkeypatch):
    found, data, settings, prior = varying
    monkeypatch.setattr(noise_choice, "fit_noise", lambda *_, **__: found)
    monkeypatch.setattr(noise_choice, "promised", lambda *_: 100.0)

    def fit(density=0.0, heavy=with_heavy_tails):
        given = (lambda *_: (heavy_fit, found.turns, found.varying + density)) if density else heavy
        monkeypatch.setattr(noise_choice, "with_heavy_tails", given)
        return noise_choice.with_noise_that_pays(found.turns.f, data, settings, prior, None, fails).fitted

    with jax.enable_x64(True):
        heavy_fit = fit()
        fits = [heavy_fit, fit(noise_choice.WORTH * len(data) + 0.1), fit(noise_choice.WORTH * len(data) - 0.1)]
        fits.append(fit(heavy=fails))
        monkeypatch.setattr(noise_choice, "promised", lambda *_: noise_choice.WORTH * len(data) - 0.1)
        fits.append(fit())
    told = [[trial.choice for trial in fitted.trials if trial.chosen] for fitted in fits]
    assert told == [[TAILS], [TAILS], *[["depends on x"]] * 3]
    assert [len(fitted.trials) for fitted in fits] == [3, 3, 3, 2, 2]
    assert "cannot be factorised" in fits[3].notes[-1]
    for fitted, likelihood in zip(fits, [HeteroscedasticStudentT] * 2 + [Heteroscedastic] * 3, strict=True):
        assert isinstance(fitted.model.likelihood, likelihood)


def fails(*_):
    raise FitError("a covariance matrix cannot be factorised")


@pytest.mark.parametrize("name", METHODS)
def test_a_file_holds_it_bit_for_bit(fits, name, tmp_path):
    X, y, *_ = table(40, seed=3)
    fits[name].save(tmp_path / "model.gp")
    again = GPRegressor.load(tmp_path / "model.gp")
    for ours, theirs in zip(everything(again, X, y), everything(fits[name], X, y), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_minibatches_learn_it_too():
    X, y, *_ = table(200)
    settings: dict[str, Any] = {"method": "svgp", "num_inducing": 15, "max_iter": 400, "effort": "fast"}
    model = GPRegressor(likelihood="heteroscedastic_student_t", **settings).fit(X, y)
    assert model.likelihood_.name == "HeteroscedasticStudentT"
    X, y, f, scale = table(2000, seed=1)
    normal = GPRegressor("rbf", likelihood="gaussian", **settings).fit(*table(200)[:2])
    assert model.log_density(X, y).mean() > normal.log_density(X, y).mean() + 0.2
    assert np.mean(np.abs(model.predict(X) - f) < 0.5) > 0.9 and 2.1 < float(model.likelihood_.parts()[0].degrees) < 10


def test_new_rows_have_precisions_of_their_own():
    """The fixed point in NumPy: f given new rows of the noise s² e^{2m − 2v}/E ρᵢ, and E ρᵢ given f."""
    X, y, *_ = table(160)
    fit = GPRegressor("rbf", likelihood="heteroscedastic_student_t", **METHODS["exact"], effort="fast")
    model = fit.fit(X[:130], y[:130])
    new, target = X[130:], y[130:].copy()
    target[0] += 8.0  # an outlier, which is not believed
    s, likelihood, (f, g) = model.standardiser_, model.likelihood_, model.predictor_.parts
    with jax.enable_x64(True):
        rows = np.asarray(s.inputs(new))
        kernel = lambda A, B: np.asarray(f.kernel(jnp.asarray(A), jnp.asarray(B)))
        w = np.asarray(f.W) @ kernel(f.Zv, rows)
        K = kernel(rows, rows) - w.T @ ((1 - np.asarray(f.s))[:, None] * w)
        mean = np.asarray(f.alpha) @ kernel(f.Zm, rows)
        m, v = map(np.asarray, cast(g, np.float64)(jnp.asarray(rows)))
    level = 0.0 if model.mean_ is None else np.asarray(model.mean_)[0]
    own, nu = float(likelihood.scale) ** 2 * np.exp(2 * (m - v)), float(likelihood.degrees)
    e, r = np.asarray(s.target(target)) - level - mean, np.ones(30)
    at, cov = np.zeros(30), K
    for _ in range(100):
        r = (nu + 1) / (nu + ((e - at) ** 2 + np.diag(cov)) / own)
        gain = K @ np.linalg.inv(K + np.diag(own / r))
        at, cov = gain @ e, K - gain @ K
    before = model.bound_
    model.update(new, target)
    # Σ {E log N(y; f, own/ρ) − KL[q(ρ)]} less v, and KL[q(f) ‖ old q(f)].
    squared = (e - at) ** 2 + np.diag(cov)
    more = sum(of_precision(*row, nu) for row in zip(squared, own, r, strict=True)) - v.sum()
    more -= 0.5 * (np.trace(np.linalg.solve(K, cov)) + at @ np.linalg.solve(K, at) - 30)
    more -= 0.5 * (np.linalg.slogdet(K)[1] - np.linalg.slogdet(cov)[1])
    np.testing.assert_allclose(model.bound_ - before, more, atol=1e-3)
    expected = (mean + at + level) * s.target_scale + s.target_mean
    np.testing.assert_allclose(model.predict_latent(new)[:, 0], expected, rtol=1e-3, atol=1e-3)
    assert r[0] < 0.1
