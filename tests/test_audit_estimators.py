"""Estimators read once more: what they said of a target, a partition, an exposure or a scale and was not so."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import warnings
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pseudopoint import GPClassifier, GPRegressor, TableTransformer
from pseudopoint.kernels import RBF

pytestmark = [pytest.mark.edge, pytest.mark.usefixtures("brief_search")]

rng = np.random.default_rng(5)
X = rng.normal(size=(60, 2))
Y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=60)
FAST: dict[str, Any] = {"effort": "fast", "max_iter": 6, "initial": "robust", "inducing": "kmeans", "num_inducing": 6}
COUNTS = np.random.default_rng(1).poisson(np.exp(Y)).astype(float)
EXPOSURE = rng.uniform(0.5, 3, 60)


def test_an_update_of_a_warped_target_whose_noise_varies_failed():
    model = GPRegressor("rbf", likelihood="heteroscedastic", target_warp="log", method="collapsed", num_inducing=6)
    model.fit(X[:40], np.exp(Y[:40]))
    s, (inner, warp), twin, new = model.standardiser_, model.likelihood_.warped, model._copy(), np.exp(Y[40:])
    twin.likelihood_, twin.mean_ = inner.parts()  # of the warped target itself
    assert twin.mean_ is not None
    scaled = np.asarray(s.target(new))
    twin.update(X[40:], np.asarray(warp(scaled)) * s.target_scale + s.target_mean)
    before, bound = model.log_density(X[40:], new).mean(), model.bound_
    model.update(X[40:], new)
    assert model.log_density(X[40:], new).mean() > before
    for ours, theirs in zip(model.predictor_.parts, twin.predictor_.parts, strict=True):
        np.testing.assert_allclose(ours.alpha, theirs.alpha, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(model.bound_ - bound, twin.bound_ - bound + np.sum(warp.log_slope(scaled)), rtol=1e-6)


def test_a_draw_of_an_ordinal_target_is_the_mean_of_its_levels_given_f():
    levels = np.array([1.0, 2.0, 10.0])[np.digitize(Y, [-0.05, 0.05])]
    for dtype, unit in (("float64", 1.0), ("float32", 1e60)):
        model = GPRegressor(likelihood="ordinal", dtype=dtype, **FAST).fit(X, unit * levels)
        mean = model.predict(X[:10]) / unit
        draws = model.sample_y(X[:10], 4000) / unit
        np.testing.assert_allclose(draws.mean(axis=1), mean, atol=0.15)
        paths = model.paths(500, 0)(X[:10]) / unit
        np.testing.assert_allclose(paths.mean(axis=0), mean, atol=0.6)
        low, high = model.predict_interval(X).T
        assert np.isin([low, high], model.levels_).all()


def test_partitions_without_rows_and_their_exposures_are_predicted():
    dd, da = pytest.importorskip("dask.dataframe"), pytest.importorskip("dask.array")
    table = pd.DataFrame(X, columns=["a", "b"])
    model = GPRegressor(likelihood="poisson", **FAST).fit(table, COUNTS, exposure=EXPOSURE)
    parts = dd.from_pandas(table.assign(E=EXPOSURE, y=COUNTS), npartitions=3, sort=False)
    rows, columns = table.index > 25, ["a", "b"]
    few = parts.map_partitions(lambda part: part[part.index > 25])  # of the first partition nothing is left
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        mean, std = model.predict(few[columns], True)
        ends = model.predict_interval(few[columns], 0.8)
        moved = model.predict(few[columns], exposure=few["E"])
    expected = model.predict(table[rows], return_std=True)
    np.testing.assert_allclose([mean.compute(), std.compute()], expected)
    np.testing.assert_allclose(ends.compute(), model.predict_interval(table[rows], 0.8))
    np.testing.assert_allclose(moved.compute(), model.predict(table[rows], exposure=EXPOSURE[rows]))
    score = model.score(few[columns], few["y"], exposure=few["E"])
    assert score == pytest.approx(model.score(table[rows], COUNTS[rows], exposure=EXPOSURE[rows]))
    with pytest.raises(ValueError, match="exposure of a collection of Dask is one too"):
        model.predict(few[columns], exposure=EXPOSURE[rows])
    with pytest.raises(ValueError, match="exposure of a collection of Dask is one too"):
        model.predict(few[columns], exposure=da.from_array(EXPOSURE, chunks=7))
    plain = GPRegressor(**FAST).fit(X, Y)
    with pytest.raises(ValueError, match="return_cov"):
        plain.predict(da.from_array(X, chunks=(25, 2)), False, True)
    with pytest.raises(ValueError, match="no meaning for the likelihood"):
        plain.predict(da.from_array(X, chunks=(25, 2)), exposure=da.from_array(EXPOSURE, chunks=25))


@pytest.mark.parametrize("settings", [{"effort": "balanced"}, FAST | {"outputs": "coregionalised"}])
def test_a_fit_of_several_outputs_is_the_same_in_any_order_of_rows(settings, monkeypatch):
    monkeypatch.setitem(import_module("pseudopoint.recipes.search").SAMPLE, "balanced", 40)
    several = np.column_stack([Y, np.cos(X[:, 1]), Y + X[:, 1]])
    several[3, 0] = np.nan
    order = np.random.default_rng(0).permutation(60)
    settings = settings | {"max_iter": 3, "num_inducing": 5, "method": "collapsed"}
    one, other = GPRegressor(**settings).fit(X, several), GPRegressor(**settings).fit(X[order], several[order])
    np.testing.assert_allclose(one.predict(X), other.predict(X), rtol=1e-9, atol=1e-9)
    assert one.selection_["choice"] == other.selection_["choice"]


def test_a_kernel_object_does_not_start_from_lengthscales_in_standard_deviations():
    wide = X * 1000
    model = GPRegressor("rbf", method="exact", effort="fast", warm_start=True).fit(wide, Y)
    model.set_params(kernel=RBF(1.0, 700.0), max_iter=1).fit(wide, Y)
    assert any("began anew" in note and "units" in note for note in model.notes_)
    cold = GPRegressor(RBF(1.0, 700.0), method="exact", effort="fast", max_iter=1).fit(wide, Y)
    np.testing.assert_allclose(model.predict(wide), cold.predict(wide))
    model.fit(wide, Y)
    assert not any("began anew" in note for note in model.notes_)
    bound = model.bound_
    model.set_params(kernel="rbf").fit(wide, Y)
    assert model.bound_ >= bound - 1e-6


def test_an_exposure_has_no_meaning_for_any_prediction_of_a_gaussian_model():
    model = GPRegressor(**FAST).fit(X, Y)
    for predict in (model.predict, model.predict_interval):
        with pytest.raises(ValueError, match="no meaning for the likelihood"):
            predict(X, exposure=EXPOSURE)


def test_equal_counts_over_different_exposures_are_no_constant_target():
    model = GPRegressor(likelihood="poisson", **FAST).fit(X, np.ones(60), exposure=EXPOSURE)
    assert not any("in every row" in note for note in model.notes_)
    assert any("in every row" in note for note in GPRegressor(likelihood="poisson", **FAST).fit(X, np.ones(60)).notes_)


@pytest.mark.parametrize("unit", [1e-170, 1e170])
def test_known_noise_is_that_of_any_unit(unit):
    scaled = 0.25 * np.full(60, unit) ** 2 if unit < 1 else np.full(60, 1e300)
    settings = FAST | {"method": "collapsed", "initial_noise": 0.01}
    model = GPRegressor("rbf", **settings).fit(X[:40], unit * Y[:40])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        left = model.loo_log_density(X[:40], unit * Y[:40], noise_variance=scaled[:40])
        after = model._copy().update(X[40:], unit * Y[40:], noise_variance=scaled[40:])
    plain = model._copy().update(X[40:], unit * Y[40:])
    assert np.isfinite(left).all() and np.isfinite(after.bound_)
    np.testing.assert_allclose(after.predict(X), plain.predict(X), rtol=1e-9)


def test_a_transformer_that_cannot_learn_stays_as_it_was():
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    model = TableTransformer().fit(table)
    before = dict(vars(model))
    with pytest.raises(ValueError):
        model.fit(pd.DataFrame({"c": [np.inf, 1.0], "d": [1.0, 2.0], "e": [1.0, 3.0]}))
    assert {key: id(value) for key, value in vars(model).items()} == {key: id(value) for key, value in before.items()}
    np.testing.assert_array_equal(model.transform(table), X)


def test_columns_named_by_numbers_are_no_names_after_a_checkpoint_either(tmp_path):
    model = GPRegressor(method="collapsed", **FAST).fit(pd.DataFrame(X), Y, checkpoint=tmp_path / "a")
    named = GPRegressor(method="collapsed", **FAST)
    named.fit(pd.DataFrame(X, columns=["u", "v"]), Y, checkpoint=tmp_path / "b")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(pd.DataFrame(X))
        named.predict(pd.DataFrame(X, columns=["u", "v"]))
    pl = pytest.importorskip("polars")
    polars = GPRegressor(method="collapsed", **FAST).fit(pl.DataFrame(X, ["u", "v"]), Y, checkpoint=tmp_path / "c")
    assert polars.feature_names_in_.tolist() == ["u", "v"]
    assert not hasattr(model, "feature_names_in_") and named.feature_names_in_.tolist() == ["u", "v"]


def test_a_target_taken_for_constant_is_said_to_be(tmp_path):
    y = 1e9 + 1e-4 * Y
    said = "counts as constant"
    for model in (GPRegressor(**FAST).fit(X, y), GPRegressor(**FAST).fit(X, y, checkpoint=tmp_path / "c")):
        assert any(said in note and "subtract" in note for note in model.notes_)
    model = GPRegressor(**FAST).fit(X, np.column_stack([Y, y]))
    assert any(said in note and "output y1" in note for note in model.notes_)
    for other in (np.full(60, 1e9), 1e9 + Y):
        assert not any(said in note for note in GPRegressor(**FAST).fit(X, other).notes_)


@pytest.mark.parametrize(
    "settings, unit", [({}, 1e200), ({}, 1e-200), ({"scale_target": False}, 1e90), ({"likelihood": "ordinal"}, 1e200)]
)
def test_effects_are_those_of_any_unit(settings, unit):
    target = np.digitize(Y, [-0.4, 0.4]) + 1.0 if settings.get("likelihood") else Y
    with np.errstate(over="ignore"):  # of the gradient's norm, without a scale
        model = GPRegressor("rbf", **FAST | settings).fit(X, unit * target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model.effects(X)
    of_one = GPRegressor("rbf", **FAST | settings | {"scale_target": True}).fit(X, target).effects(X)
    assert found.effects[0].total > 0.5 and np.isfinite(found.effects[0].std).all() and found.effects[0].std.max() > 0
    if settings.get("scale_target", True):
        for ours, theirs in zip(found.effects, of_one.effects, strict=True):
            np.testing.assert_allclose([ours.first, ours.total], [theirs.first, theirs.total], rtol=1e-6)
            np.testing.assert_allclose([ours.mean / unit, ours.std / unit], [theirs.mean, theirs.std], rtol=1e-6)


def test_a_table_is_encoded_once_for_its_rows_left_out(monkeypatch):
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    model, calls = GPRegressor(method="exact", **FAST).fit(table, Y), []
    inputs = GPRegressor._inputs
    monkeypatch.setattr(GPRegressor, "_inputs", lambda self, X: calls.append(1) or inputs(self, X))
    model.loo_log_density(table, Y, noise_variance=np.full(60, 0.1))
    model.kfold_log_density(table, Y, np.arange(60) % 3, noise_variance=np.full(60, 0.1))
    assert len(calls) == 2
    for noise, word in ((np.zeros(3), "noise_variance has shape"), (np.full(60, -1.0), "zero or positive")):
        with pytest.raises(ValueError, match=word):
            model.loo_log_density(table, Y, noise_variance=noise)


def test_one_class_is_refused_part_by_part_as_fit_says(tmp_path):
    assert "part by part it is refused" in " ".join(str(GPClassifier.fit.__doc__).split())
    with pytest.raises(ValueError, match="one class only"):
        GPClassifier(**FAST).fit(X, np.zeros(60, int), checkpoint=tmp_path / "d")


@pytest.mark.parametrize(
    "missing",
    [
        np.array([None, "a", "b"] * 20, object),
        np.array([np.nan, "a", "b"] * 20, object),
        np.array([np.nan, 1.0, 0.0] * 20),
        pd.Series([pd.NA, "a", "b"] * 20, dtype="string"),
        pd.Series([pd.NA, 1, 2] * 20, dtype="Int64"),
        pd.Series([pd.NA, True, False] * 20, dtype="boolean"),
        pd.Categorical([None, "p", "q"] * 20),
        [None, "a", "b"] * 20,
    ],
    ids=lambda y: f"{type(y).__name__}-{getattr(y, 'dtype', '')}",
)
def test_rows_without_a_label_are_named_in_arrays_and_left_out_of_tables(missing):
    with pytest.raises(ValueError, match="the target has no label in 20 of 60 rows, first in row 0: drop those rows"):
        GPClassifier(**FAST).fit(X, missing)
    model = GPClassifier(**FAST).fit(pd.DataFrame(X), pd.Series(missing))
    assert len(model.classes_) == 2 and "20 rows were dropped" in model.notes_[0]


def test_labels_that_are_objects_are_whole_numbers_or_one_type():
    numbers = GPClassifier(**FAST).fit(X, np.array([3, 1] * 30, object))
    assert numbers.classes_.tolist() == [1, 3]
    with pytest.raises(ValueError, match=r"labels are of several types \(int, text\), which do not sort"):
        GPClassifier(**FAST).fit(X, np.array([1, "a"] * 30, object))


TABLE = pd.DataFrame(X, columns=["a", "b"]).assign(c=np.where(X[:, 1] > 0, "u", "v"))
CLASSES = np.digitize(Y, [-0.5, 0.5])
OF_ONE_TARGET = {
    "gaussian": (GPRegressor(**FAST), Y),
    "student_t": (GPRegressor(likelihood="student_t", **FAST), Y),
    "heteroscedastic": (GPRegressor(likelihood="heteroscedastic", **FAST), Y),
    "heteroscedastic_student_t": (GPRegressor(likelihood="heteroscedastic_student_t", **FAST), Y),
    "outputs": (GPRegressor(**FAST), np.column_stack([Y, X[:, 1]])),
    "bernoulli": (GPClassifier(**FAST), CLASSES > 1),
    "softmax": (GPClassifier(**FAST), CLASSES),
}
QUESTIONS: dict[str, Any] = {
    "predict": lambda m, X, y: m.predict(X),
    "with std": lambda m, X, y: m.predict(X, return_std=True),
    "interval": lambda m, X, y: m.predict_interval(X),
    "latent": lambda m, X, y: m.predict_latent(X),
    "latent with std": lambda m, X, y: m.predict_latent(X, return_std=True),
    "density": lambda m, X, y: m.log_density(X, y),
    "draws": lambda m, X, y: m.sample_y(X, 2),
    "paths": lambda m, X, y: np.moveaxis(m.paths(2, 0)(X), 1, 0),
    "probabilities": lambda m, X, y: m.predict_proba(X),
}
OF_CLASSES = ("predict", "latent", "latent with std", "density", "probabilities")


@pytest.mark.parametrize("kind", OF_ONE_TARGET)
def test_of_a_table_without_rows_each_prediction_has_the_shape_of_one_but_for_rows(kind):
    model, y = OF_ONE_TARGET[kind]
    model.fit(TABLE, y)
    refused = "paths" if model.outputs_ is not None else ""
    asked = OF_CLASSES if isinstance(model, GPClassifier) else set(QUESTIONS) - {"probabilities", refused}
    for name in asked:
        some, none = (QUESTIONS[name](model, TABLE[:n], y[:n]) for n in (3, 0))
        some, none = (x if isinstance(x, tuple) else (x,) for x in (some, none))
        assert [x.shape for x in none] == [(0, *x.shape[1:]) for x in some], name
        assert [x.dtype for x in none] == [x.dtype for x in some], name
    mean, _ = model.predict_latent(TABLE, return_std=True)
    np.testing.assert_allclose(model.predict_latent(TABLE), mean, rtol=1e-9, atol=1e-12)
    asks = [lambda: model.fit(TABLE[:0], y[:0])]
    if not refused:
        asks += [lambda: model.effects(TABLE[:0]), lambda: model.update(TABLE[:0], y[:0])]
    for ask in asks:
        with pytest.raises(ValueError, match="no rows"):
            ask()


def test_the_joint_covariance_of_no_rows_is_empty():
    for kind in ("gaussian", "student_t", "outputs"):
        model, y = OF_ONE_TARGET[kind]
        mean, covariance = model.fit(TABLE, y).predict(TABLE[:0], return_cov=True)
        assert covariance.shape == (*mean.shape, *mean.shape)
