"""Faults of estimators that readers found, each with its relatives: kernels under outliers, warps, wrappers, likelihood
objects, masks, huge numbers, large weights, dates as labels."""

import inspect
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jaxtyping import Float

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.data import Standardiser, dataset, times_drawn
from pseudopoint.estimators import predictive
from pseudopoint.estimators.choosing import searched
from pseudopoint.estimators.serving import evaluate
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import (
    Gaussian,
    Heteroscedastic,
    HeteroscedasticStudentT,
    Offset,
    StudentT,
    Warped,
)
from pseudopoint.likelihoods.base import AbstractLikelihood
from pseudopoint.names import KERNELS, Settings
from pseudopoint.params import Number, positive
from pseudopoint.posteriors import Model
from pseudopoint.processes import computing
from pseudopoint.recipes.candidates import Sample, State
from pseudopoint.recipes.categories import Ties
from pseudopoint.recipes.prior import LengthscalePrior
from pseudopoint.recipes.race import Race
from pseudopoint.recipes.search import _Search
from pseudopoint.tables.learning import Moments
from pseudopoint.warps import Logarithm

pytestmark = [pytest.mark.edge, pytest.mark.usefixtures("brief_search")]
rng = np.random.default_rng(0)
X = rng.normal(size=(80, 2))
LINE = X @ [1.0, 2.0] + 0.1 * rng.normal(size=80)
OUTLIERS = LINE + np.where(np.arange(80) % 8 == 0, 8 * rng.standard_cauchy(80), 0)
FAST: dict[str, Any] = {"effort": "fast", "max_iter": 5}


# --- Kernels under outliers ---


def test_a_linear_kernel_is_fitted_to_a_target_with_outliers():
    model = GPRegressor("linear", max_iter=3).fit(X, OUTLIERS)
    assert "heavy tails" in model.selection_["choice"] and np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "auto"])
def test_a_candidate_moves_to_every_kernel_and_back(kernel):
    race = Race(Sample.of_rows(_rows(X, LINE), np.zeros(2), 0.0), GPRegressor()._settings())
    with computing("float64"):
        began = State("matern52", Model(Matern52(np.array([0.3, 4.0]), 2.0), Gaussian(0.1)), (None, None), None)
        there = race.moved(began, name=kernel)
        back = race.moved(there, name="matern52").model.kernel
    if kernel == "linear":  # without lengthscales, so that the other kernel starts at its first ones
        jax.tree.map(np.testing.assert_allclose, back, race.base(began))
    elif there.model.kernel.scales is not None:
        jax.tree.map(np.testing.assert_allclose, back, began.model.kernel)
    else:
        np.testing.assert_allclose(back.lengthscale, [0.3, 4.0])


def _rows(X, y, weight=None):
    with computing("float64"):
        return dataset(X, y, np.ones(len(X)) if weight is None else weight, dtype="float64")


# --- Warps ---

Z = np.linspace(-2, 2, 7)
WARP = Logarithm(1.0, -0.3)


@pytest.mark.parametrize(
    ("likelihood", "f"),
    [
        (StudentT(0.1, 2.1), 0.3 * Z),
        (Heteroscedastic(0.2), np.stack([0.3 * Z, 0.1 * Z])),
        (HeteroscedasticStudentT(0.2, 2.1), np.stack([0.3 * Z, 0.1 * Z])),
    ],
)
def test_a_constant_of_zero_changes_nothing_under_a_warp(likelihood, f):
    constant = np.zeros(likelihood.latents if likelihood.latents > 1 else ())
    one, other = (Warped(inner, WARP) for inner in (likelihood, Offset(likelihood, constant)))
    spread = np.full_like(f, 0.1)
    with jax.enable_x64(True):
        for ask in (
            lambda w: w.moments(f),
            lambda w: w.predict(f, spread),
            lambda w: w.without_noise(jnp.asarray(f), spread),
        ):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), ask(one), ask(other))


def test_what_changes_the_function_of_a_likelihood_changes_all_that_takes_it():
    """Whatever method of a likelihood takes f or its mean, an `Offset` adds its constant there."""
    takes = {
        name
        for name, method in inspect.getmembers(AbstractLikelihood, inspect.isfunction)
        if {"f", "mean"} & set(inspect.signature(method).parameters)
    }
    # `latent` gives what an estimator adds the constant to.
    assert "normal" in takes and takes - {"latent"} <= set(vars(Offset))


def test_latent_functions_of_a_warped_target_are_in_its_units_without_the_noise():
    y = np.exp(np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=80))
    model = GPRegressor("rbf", target_warp="log", input_warp="none", max_iter=20).fit(X, y)
    f, std = model.predict_latent(X, return_std=True)
    np.testing.assert_allclose(model.predict_latent(X), f)
    mean, wider = model.predict(X, return_std=True)
    assert (std < wider).all() and np.corrcoef(f, np.exp(np.sin(2 * X[:, 0])))[0, 1] > 0.95
    np.testing.assert_allclose(f, mean, rtol=0.05)
    s, (inner, warp) = model.standardiser_, model.likelihood_.warped
    m, v = evaluate(model, predictive.latent, X[:5])
    with computing("float64"):
        drawn = np.asarray(warp.inverse(m + np.sqrt(v) * rng.standard_normal((100_000, 5))))
    at = s.target_mean + s.target_scale * drawn
    np.testing.assert_allclose(at.mean(axis=0), f[:5], rtol=0.01)
    np.testing.assert_allclose(at.std(axis=0), std[:5], rtol=0.03)
    assert inner.gaussian_noise is not None


def test_of_noise_that_depends_on_x_the_first_function_is_in_units_of_a_warped_target():
    y = np.exp(np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=80))
    for name in ("heteroscedastic", "heteroscedastic_student_t"):
        model = GPRegressor("rbf", target_warp="log", input_warp="none", likelihood=name, max_iter=20).fit(X, y)
        f, std = model.predict_latent(X, return_std=True)
        assert f.shape == std.shape == (80, 2)
        assert np.corrcoef(f[:, 0], np.exp(np.sin(2 * X[:, 0])))[0, 1] > 0.95
        np.testing.assert_allclose(f[:, 0], model.predict(X), rtol=0.1)


def test_draws_with_noise_are_targets_under_a_warp():
    y = np.exp(np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=80))
    model = GPRegressor("rbf", target_warp="log", input_warp="none", likelihood="gaussian", max_iter=20).fit(X, y)
    drawn = model.sample_y(X[:6], 40_000, noise=True)
    mean, std = model.predict(X[:6], return_std=True)
    np.testing.assert_allclose(drawn.mean(axis=1), mean, rtol=0.01)
    np.testing.assert_allclose(drawn.std(axis=1), std, rtol=0.03)


# --- Likelihood objects ---


class Fixed(Gaussian):
    """Noise that is known."""

    learned: ClassVar[bool] = False
    variance: Float[Number, ""] = positive(1e-8, learn="learned")


@pytest.mark.parametrize("method", ["auto", "exact", "collapsed"])
@pytest.mark.parametrize("variance", [0.5, 0.001])
def test_a_search_leaves_a_likelihood_object_as_it_is(method, variance):
    model = GPRegressor(likelihood=Fixed(variance), method=method, max_iter=5, near_rows=False).fit(X, LINE)
    assert model.selection_["part"][0] == "start" and isinstance(model.likelihood_, Fixed)
    np.testing.assert_allclose(float(model.likelihood_.variance), variance)


def test_a_fit_of_a_gaussian_object_starts_from_its_own_noise():
    settings = GPRegressor(likelihood=Gaussian(0.3))._settings()
    scaling = Standardiser.learn(X, LINE, np.ones(80), True, True)
    data = _rows(scaling.inputs(X), scaling.target(LINE))
    found = searched(settings, Gaussian(0.3), data, scaling, True, whole=True)
    assert found is not None and np.asarray(found.model.likelihood.gaussian_noise) == 0.3


# --- Rows part by part ---


def hidden(values, where):
    return np.ma.masked_array(values, where)


def test_what_a_mask_hides_is_refused_part_by_part_as_in_memory(tmp_path):
    y, where = LINE.copy(), np.arange(80) < 5
    y[where] = -999
    both = np.stack([where, where], axis=1)
    for arrays in ((X, hidden(y, where)), (hidden(X, both), LINE)):
        for options in ({}, {"checkpoint": tmp_path / "here"}):
            with pytest.raises(ValueError, match="contains NaN"):
                GPRegressor(**FAST).fit(*arrays, **options)
    text = np.where(LINE > 0, "a", "b").astype(object)
    gaps: Any = text.copy()
    gaps[where] = None
    for labels in (hidden((LINE > 0).astype(int), where), hidden(text, where), gaps, pd.Series(gaps)):
        for options in ({}, {"checkpoint": tmp_path / "there"}):
            with pytest.raises(ValueError, match="no label in 5 of 80 rows|contains NaN"):
                GPClassifier(**FAST).fit(X, labels, **options)


def test_targets_part_by_part_may_have_the_forms_that_they_have_in_memory(tmp_path):
    of_column = GPRegressor(**FAST).fit(X, LINE[:, None], checkpoint=tmp_path / "a")
    of_vector = GPRegressor(**FAST).fit(X, LINE, checkpoint=tmp_path / "b")
    np.testing.assert_array_equal(of_column.predict(X), of_vector.predict(X))
    of_truth = GPRegressor(**FAST).fit(X, LINE > 0, checkpoint=tmp_path / "c")
    assert np.mean(of_truth.predict(X[LINE > 1])) > 0.5
    with pytest.raises(ValueError, match="several types"):
        GPClassifier(**FAST).fit(X, np.array(["a", 1] * 40, object), checkpoint=tmp_path / "d")


def test_one_huge_number_of_a_table_is_no_crash():
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": LINE})
    frame.loc[0, "a"] = 1.7e308
    model = GPRegressor(**FAST).fit(frame, "y")
    assert np.isfinite(model.predict(frame[["a", "b"]])).all()


@pytest.mark.parametrize("size", [1.0, 1e200, 1.5e308, 1e-200])
def test_moments_of_parts_are_those_of_all_whatever_their_size(size):
    values, weight = size * rng.uniform(-1, 1, 90), rng.integers(0, 3, 90).astype(float)
    parts = [Moments.of(values[i : i + 30], weight[i : i + 30]) for i in (0, 30, 60)]
    found = parts[0] + parts[1] + parts[2]
    scaled = values / size
    mean = np.average(scaled, weights=weight)
    np.testing.assert_allclose(found.mean / size, mean, rtol=1e-12)
    np.testing.assert_allclose(
        found.spread / size, np.sqrt(np.average((scaled - mean) ** 2, weights=weight)), rtol=1e-12
    )
    assert found.count == weight.sum() and found.most == values.max() and found.least == values.min()
    assert (Moments() + found, found + Moments()) == (found, found)


# --- The prior of a search of several columns ---


def test_several_columns_that_are_one_are_searched_as_one_with_as_many_rows_each():
    """Evidence of K equal columns is K times that of one; the prior of lengthscales and their Occam factor count
    once."""
    codes = rng.integers(0, 6, 60)
    categories = (codes[:, None] == np.arange(6)).astype(float)
    inputs = (categories - categories.mean(axis=0)) / categories.std(axis=0)
    y = np.sin(codes) + 0.3 * rng.normal(size=60)
    settings = GPRegressor()._settings()
    ties = Ties(tuple([0] * 6), categories.std(axis=0) / np.sqrt(np.sum(categories.var(axis=0))))
    found = []
    for K in (1, 4):
        levels = np.repeat(np.unique(y)[:, None], K, axis=1)
        sample = Sample.of_rows(_rows(inputs, np.searchsorted(np.unique(y), y).astype(float)), np.zeros(6), 0.0, levels)
        with computing("float64"):
            search = _Search(Race(sample, settings), None, 50)
            state = search.start()
            bound, prior, host = search.race.objective(state)
            penalty = float(prior.penalty(state.model.kernel)) * K
            ours = penalty_of(state, search, settings)
            np.testing.assert_allclose(penalty, ours, rtol=1e-9)
            found.append((state.evidence + ours, search._occam(search.race.moved(state, ties=ties), ties)))
    (one, occam_of_one), (four, occam_of_four) = found
    assert abs(four - 4 * one) < 0.15 * abs(4 * one) and occam_of_four > occam_of_one


def penalty_of(state, search, settings: Settings) -> float:
    return float(LengthscalePrior.around(search.race.base(state), settings).penalty(state.model.kernel))


# --- Weights and labels ---


@pytest.mark.parametrize("weight", [1e20, 2.0**53, 3.0, 0.5])
def test_weights_of_any_size_are_those_of_alike_rows(weight):
    weights = np.full(30, weight)
    times = times_drawn(weights, 10, 0)
    assert times is None if weight != 3.0 else times is not None and times.sum() == 10


def test_rows_of_huge_whole_weights_are_fitted():
    more = rng.normal(size=(700, 2))
    plain: Any = {"input_warp": "none", "target_warp": "none", "likelihood": "gaussian", "method": "collapsed"}
    model = GPRegressor("rbf", num_inducing=9, max_iter=3, near_rows=False, **plain)
    assert model.fit(more, more[:, 0], sample_weight=np.full(700, 1e20)).score(more, more[:, 0]) > 0.9


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
def test_labels_that_are_dates_are_known_in_every_unit(unit):
    days = np.where(LINE > 0, np.datetime64("2024-01-01"), np.datetime64("2024-02-01"))
    model = GPClassifier(**FAST).fit(X, days)
    np.testing.assert_array_equal(model.log_density(X, days.astype(f"datetime64[{unit}]")), model.log_density(X, days))
    assert np.isfinite(model.log_density(X, pd.Series(days))).all()
    for other in ("2024-03-01", "2024-01-01T12"):
        assert model.log_density(X[:1], np.array([other], "datetime64[h]")) == -np.inf
        with pytest.raises(ValueError, match="class that the fit did not see"):
            model.update(X[:1], np.array([other], "datetime64[h]"))
