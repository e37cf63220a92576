"""Counts over an exposure are Poisson with E times the rate: against the likelihood itself, row by row."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import stats
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

from pseudopoint import GPRegressor
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Poisson
from pseudopoint.tables import TableError

pytestmark = pytest.mark.edge
rng = np.random.default_rng(3)
X = rng.uniform(0, 6, (40, 1))
E = rng.integers(1, 40, 40) * 25.0
Y = rng.poisson(E * 0.02 * np.exp(np.sin(X[:, 0]))).astype(float)
EXACT = {"kernel": RBF(1.0, 0.7), "method": "laplace", "effort": "fast", "lengthscale_prior": np.inf}


def mode(K, y, E, scale):
    """The mode of p(f | y) and Laplace's log evidence for y ~ Poisson(E · scale · e^f), by Newton's method on f
    (Rasmussen and Williams 2006, 3.32)."""
    f = np.zeros(len(y))
    for _ in range(60):
        rate = E * scale * np.exp(f)
        f = np.linalg.solve(np.eye(len(y)) + K * rate, K @ (rate * f + y - rate))
    rate = E * scale * np.exp(f)
    evidence = stats.poisson.logpmf(y, rate).sum() - 0.5 * f @ np.linalg.solve(K, f)
    return f, evidence - 0.5 * np.linalg.slogdet(np.eye(len(y)) + K * rate)[1]


@pytest.fixture(scope="module")
def model():
    return GPRegressor(likelihood="poisson", max_iter=30, **EXACT).fit(X, Y, exposure=E)


def test_the_evidence_is_that_of_the_counts_and_the_rate_is_per_unit(model):
    K = np.asarray(RBF(float(model.kernel_.lengthscale), float(model.kernel_.variance)).variance) * np.exp(
        -0.5 * ((X - X.T) / float(model.kernel_.lengthscale)) ** 2
    )
    f, evidence = mode(K + 1e-9 * np.eye(len(X)), Y, E, float(model.likelihood_.scale))
    np.testing.assert_allclose(model.bound_, evidence, rtol=1e-5)
    np.testing.assert_allclose(model.predict_latent(X), f, atol=1e-4)
    np.testing.assert_allclose(model.history_["bound"][-1], evidence, rtol=1e-4)
    assert np.corrcoef(model.predict(X), np.exp(np.sin(X[:, 0])))[0, 1] > 0.97
    assert 0.01 < float(model.likelihood_.scale) < 0.04


def test_predictions_integrate_the_shifted_function(model):
    f, std = model.predict_latent(X[:4], return_std=True)
    at = E[:4]
    draws = rng.normal(f, std, (200_000, 4))
    rate = at * float(model.likelihood_.scale) * np.exp(draws)
    mean, deviation = model.predict(X[:4], return_std=True, exposure=at)
    np.testing.assert_allclose(mean, at * model.predict(X[:4]), rtol=1e-12)
    np.testing.assert_allclose(mean, rate.mean(axis=0), rtol=5e-3)
    np.testing.assert_allclose(deviation**2, rate.mean(axis=0) + rate.var(axis=0), rtol=3e-2)
    density = stats.poisson.pmf(Y[:4], rate).mean(axis=0)
    np.testing.assert_allclose(np.exp(model.log_density(X[:4], Y[:4], exposure=at)), density, rtol=2e-2)
    lower, upper = model.predict_interval(X[:4], exposure=at).T
    inside = stats.poisson.cdf(upper, rate).mean(axis=0) - stats.poisson.cdf(lower - 1, rate).mean(axis=0)
    assert (inside > 0.895).all() and (lower < upper).all()


def test_a_row_cut_in_two_is_the_same_and_an_object_starts_per_unit(model):
    half = lambda a: np.r_[a, a[:5]]
    cut, y = half(E), half(Y)
    cut[:5], cut[-5:] = 0.4 * E[:5], 0.6 * E[:5]
    y[:5], y[-5:] = np.floor(0.5 * Y[:5]), np.ceil(0.5 * Y[:5])
    settings = EXACT | {"likelihood": Poisson(0.02), "max_iter": 30}
    other = GPRegressor(**settings).fit(half(X), y, exposure=cut)
    np.testing.assert_allclose(other.predict(X), model.predict(X), rtol=2e-2)


def test_bad_exposures_are_one_sentence(model):
    for exposure, words in ((np.zeros(40), "exposure holds 0 in row 0"), (E[:3], "shape"), (["a"] * 40, "exposure")):
        with pytest.raises(ValueError, match=words):
            GPRegressor(likelihood="poisson").fit(X, Y, exposure=exposure)
    for likelihood in ("gaussian", "negative_binomial"):
        with pytest.raises(ValueError, match="no meaning for the likelihood"):
            GPRegressor(likelihood=likelihood).fit(X, Y, exposure=E)


def test_score_is_of_counts_over_their_exposures_also_in_cross_validation(model, tmp_path):
    assert model.score(X, Y, exposure=E) == r2_score(Y, model.predict(X, exposure=E)) > 0.5
    assert model.score(X, Y) == r2_score(Y, model.predict(X)) < 0
    weight = np.arange(1.0, 41)
    expected = r2_score(Y, model.predict(X, exposure=E), sample_weight=weight)
    assert model.score(X, Y, weight, exposure=E) == expected
    with pytest.raises(ValueError, match="exposure has shape"):
        model.score(X, Y, exposure=E[:3])
    with sklearn.config_context(enable_metadata_routing=True):
        counts = GPRegressor(likelihood="poisson", max_iter=5, **EXACT)
        counts.set_fit_request(exposure=True).set_score_request(exposure=True)
        folds = KFold(2, shuffle=True, random_state=0)
        scores = cross_val_score(counts, X, Y, cv=folds, params={"exposure": E}, error_score="raise")
        found = GridSearchCV(counts, {"max_iter": [5]}, cv=folds, error_score="raise").fit(X, Y, exposure=E)
        found.best_estimator_.save(tmp_path / "m")
    assert GPRegressor.load(tmp_path / "m").score(X, Y, exposure=E) == found.best_estimator_.score(X, Y, exposure=E)
    assert scores.min() > 0.5
    assert found.best_score_ == pytest.approx(scores.mean(), abs=1e-9)


def test_the_command_line_reads_the_column_of_exposures_in_every_table(tmp_path):
    from pseudopoint.commands import fit_table, predict_table, score_table

    table = pd.DataFrame({"x": X[:, 0], "hours": E, "calls": Y})
    table.to_csv(tmp_path / "t.csv", index=False)
    settings = {"likelihood": "poisson", "kernel": "rbf", "effort": "fast", "method": "laplace", "max_iter": 5}
    files = {"out": tmp_path / "m", "report": tmp_path / "r.html"}
    result = fit_table(tmp_path / "t.csv", "calls", exposure="hours", **settings, **files)
    assert result["features"] == ["x"] and result["test"]["rmse"] < result["test"]["rmse_of_mean"]
    predict_table(tmp_path / "m", tmp_path / "t.csv", tmp_path / "p.csv")
    model = GPRegressor.load(tmp_path / "m")
    found = pd.read_csv(tmp_path / "p.csv")["calls_mean"]
    np.testing.assert_allclose(found, model.predict(X, exposure=E), rtol=1e-9)
    scored = score_table(tmp_path / "m", tmp_path / "t.csv")
    np.testing.assert_allclose(scored["log_density"], model.log_density(X, Y, exposure=E).mean(), rtol=1e-9)
    table.assign(hours=0.0).to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(TableError, match="the exposure 'hours' holds 0 in row 1"):
        predict_table(tmp_path / "m", tmp_path / "bad.csv", tmp_path / "p.csv")
    table.assign(hours="long").to_csv(tmp_path / "bad.csv", index=False)
    for role in ("exposure", "weight"):
        with pytest.raises(TableError, match=f"the {role} 'hours' is not numeric: row .* holds 'long'; write a number"):
            fit_table(tmp_path / "bad.csv", "calls", **settings, **{role + "s" * (role == "weight"): "hours"})
    with pytest.raises(ValueError, match="a column of its own"):
        fit_table(tmp_path / "t.csv", "calls", exposure="calls", **settings)
