"""What a review of the recipes found, each by its symptom."""

from dataclasses import replace
from importlib import import_module

import jax
import numpy as np
import pytest

from pseudopoint import GPClassifier
from pseudopoint.data import dataset
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Softmax
from pseudopoint.params import cast
from pseudopoint.posteriors import Collapsed, Model
from pseudopoint.recipes import Settings, methods

pytestmark = pytest.mark.edge

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
