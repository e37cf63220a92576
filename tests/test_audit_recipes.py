"""What a review of the recipes found, each by its symptom."""

from dataclasses import replace
from importlib import import_module

import jax
import numpy as np
import pytest

from pseudopoint import FitError, GPClassifier, GPRegressor
from pseudopoint.data import dataset
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Gaussian, Softmax
from pseudopoint.params import cast
from pseudopoint.posteriors import Collapsed, Model
from pseudopoint.recipes import Settings, fit_model, methods
from pseudopoint.recipes.keeping import Nothing
from pseudopoint.recipes.streamed import fit_rows

pytestmark = [pytest.mark.edge, pytest.mark.usefixtures("brief_search")]

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=40)
LABELS = np.where(Y > 0, "up", "down")


def test_rows_that_stand_for_many_were_few_for_float32():
    with jax.enable_x64(True):
        data = dataset(X, np.digitize(Y, [-0.5, 0.5]), dtype="float64")
        model = cast(Model(RBF(1.0), Softmax(3), Collapsed(X[:5])), np.float64)
        assert methods._float32_first(model, data, Settings())
        assert not methods._float32_first(model, replace(data, weight=1e9 * data.weight), Settings())


def test_a_laplace_model_was_updated_to_any_number_of_points(monkeypatch):
    model = GPClassifier(method="laplace", effort="fast", max_iter=3).fit(X[:30], LABELS[:30])
    monkeypatch.setattr(import_module("pseudopoint.recipes.update"), "MOST_POINTS", 35)
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match="30 rows without inducing points cannot take 10 more.*method='collapsed'"):
        model.update(X[30:], LABELS[30:])
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert len(model.update(X[30:35], LABELS[30:35]).predictor_.Zv) == 35


@pytest.mark.parametrize("optimiser", ["NGD+Adam", "Adam", "L-BFGS"])
def test_an_optimiser_by_name_said_that_it_failed_and_not_why(optimiser):
    settings = Settings(optimiser=optimiser, inducing="random", num_inducing=5, max_iter=2)
    with jax.enable_x64(True), pytest.raises(FitError, match=r"(rejected|not finite .*): the target contain NaN"):
        fit_model(RBF(1.0), Gaussian(0.1), dataset(X, np.nan * Y, dtype="float64"), settings)


@pytest.mark.parametrize("method", ["collapsed", "svgp"])
def test_a_streamed_fit_said_that_it_failed_and_not_why(method):
    settings = Settings(method=method, inducing="random", num_inducing=5, max_iter=2, effort="fast", initial="robust")
    with jax.enable_x64(True):
        few, rows = (dataset(X, y, dtype="float64") for y in (Y, np.inf * Y))
        with pytest.raises(FitError, match=r"(rejected|not finite at .*): the covariance"):
            fit_rows(cast(RBF(1.0), np.float64), Gaussian(0.1), rows, few, settings, Nothing())


def test_rows_of_no_weight_stayed_in_a_large_table(monkeypatch):
    """Here a log of the target was refused, because a row that does not count is negative."""
    y, weight = np.exp(2 * Y), np.ones(40)
    y[3], weight[3] = -1.0, 0.0
    fit = lambda *rows: GPRegressor("rbf", target_warp="log", likelihood="gaussian", effort="balanced").fit(*rows)
    few = fit(X, y, weight)
    monkeypatch.setattr("pseudopoint.estimators.base.MERGED_ROWS", 10)
    many = fit(X, y, weight)
    np.testing.assert_allclose(many.predict(X), few.predict(X), rtol=1e-4)
