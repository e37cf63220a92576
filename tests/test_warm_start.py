"""`warm_start=True`: a second fit starts where the first ended, and refuses what does not belong to it."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.estimators.warm import learned_by
from pseudopoint.params import cast
from pseudopoint.processes import computing

pytestmark = pytest.mark.edge

rng = np.random.default_rng(3)
X = rng.normal(size=(60, 2))
Y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=60)
FAST: dict[str, Any] = {"effort": "fast", "max_iter": 6, "initial": "robust", "inducing": "kmeans", "num_inducing": 6}


@pytest.fixture(scope="module", params=["exact", "collapsed"])
def fitted(request):
    return GPRegressor(method=request.param, **FAST).fit(X[:50], Y[:50])


def again(model, **more):
    copy = model._copy()
    return copy.set_params(warm_start=True, **more)


def test_a_second_fit_starts_where_the_first_ended(fitted, monkeypatch):
    def never(*given):
        raise AssertionError("a search was made")

    monkeypatch.setattr("pseudopoint.estimators.base.searched", never)
    model = again(fitted, effort="balanced", likelihood="gaussian", max_iter=2).fit(X[:50], Y[:50])
    assert model.bound_ >= fitted.bound_ - 1e-6 and model.standardiser_ is fitted.standardiser_
    np.testing.assert_array_equal(model.centre_.lengthscale, fitted.centre_.lengthscale)
    more = again(model, num_inducing=8).fit(X, Y)
    assert more.standardiser_ is fitted.standardiser_
    assert more.inducing_points_ is None or len(more.inducing_points_) == 8


@pytest.mark.parametrize("labels", [np.where(Y > 0, "up", "down"), np.digitize(Y, [-0.5, 0.5])])
def test_the_q_that_was_learned_is_where_steps_start(labels):
    model = GPClassifier(method="svgp", **FAST).fit(X, labels)
    warm = again(model)
    known, settings = learned_by(warm), warm._settings()
    assert known is not None
    with computing("float64"):
        start = known.model(settings, known.scaling, False, "float64")
        at = jnp.asarray(known.scaling.inputs(X))
        for ours, theirs in zip(start.predictor()(at), cast(model.predictor_, np.float64)(at), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8)
    warm.set_params(max_iter=2, learning_rate=1e-6).fit(X, labels)
    np.testing.assert_allclose(warm.predict_latent(X), model.predict_latent(X), atol=1e-2)
    with pytest.raises(ValueError, match="starts from a fit with the classes"):
        warm.fit(X, np.where(Y > 0, "a", "b"))


def test_where_q_starts_is_not_forgotten_because_points_are_not_in_sorted_order():
    labels = np.where(Y > 0, "up", "down")
    model = GPClassifier(method="svgp", **FAST).fit(X, labels)
    points = model.inducing_points_
    assert not np.array_equal(points, np.unique(points, axis=0))
    warm = again(model, max_iter=1, learning_rate=1e-6).fit(X, labels)
    np.testing.assert_allclose(warm.inducing_points_, points, atol=1e-5)
    np.testing.assert_allclose(warm.history_["bound"][0], model.bound_, rtol=1e-3)


def test_other_columns_are_refused_and_the_model_stays(fitted):
    model = again(fitted)
    before = model.predict(X)
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    for word, rows, y in (
        ("3 features", np.zeros((5, 3)), Y[:5]),
        ("a fit to an array, and X is a table of a, b", table, Y),
        ("is for one output", X, np.column_stack([Y, Y])),
    ):
        with pytest.raises(ValueError, match=word):
            model.fit(rows, y)
    np.testing.assert_array_equal(model.predict(X), before)
    with pytest.raises(ValueError, match="warm_start='yes' must be True or False"):
        GPRegressor(warm_start="yes").fit(X, Y)  # pyright: ignore[reportArgumentType]


def test_a_table_keeps_its_encoder():
    table = pd.DataFrame({"a": X[:, 0], "city": np.where(X[:, 1] > 0, "Oslo", "Rome")})
    model = GPRegressor(method="collapsed", warm_start=True, **FAST).fit(table[:50], Y[:50])
    encoder = model.encoder_
    later = table[30:].assign(city="Oslo")
    model.fit(later, pd.Series(Y[30:], name="y"))
    assert model.encoder_.columns == encoder.columns and model.n_features_in_ == 2
    with pytest.raises(ValueError, match="X is a table of a, town"):
        model.fit(table.rename(columns={"city": "town"}), Y)


LEARNED: dict[str, dict[str, Any]] = {
    "student_t": {"likelihood": "student_t", "effort": "fast"},
    "heteroscedastic": {"likelihood": "heteroscedastic", "effort": "fast"},
    "heteroscedastic_student_t": {"likelihood": "heteroscedastic_student_t", "effort": "fast"},
    "target_warp='log'": {"target_warp": "log", "effort": "balanced"},
}


@pytest.mark.parametrize("name", LEARNED)
def test_known_noise_was_ignored_where_the_last_fit_learned_another_likelihood(name):
    y, noise = np.exp(Y), np.full(60, 4.0)
    model = GPRegressor("rbf", **FAST | LEARNED[name]).fit(X, y)
    model.set_params(likelihood="auto", target_warp="auto", effort="fast", warm_start=True)
    model.fit(X, y, noise_variance=noise)
    cold = GPRegressor("rbf", **FAST).fit(X, y, noise_variance=noise)
    assert any("began anew" in note and "noise_variance" in note for note in model.notes_)
    assert model.likelihood_.name == cold.likelihood_.name
    np.testing.assert_allclose(model.predict(X), cold.predict(X), rtol=1e-6, atol=1e-6)
    again = model.fit(X, y, noise_variance=noise)  # whose last fit knew the noise, so that it is warm
    assert not any("began anew" in note for note in again.notes_)


@pytest.mark.filterwarnings("error")
def test_a_target_that_the_learned_warp_cannot_take_was_said_to_be_nan():
    y = np.exp(Y)
    model = GPRegressor("rbf", **FAST | LEARNED["target_warp='log'"]).fit(X, y)
    y[3] = 0.0
    model.set_params(target_warp="auto", effort="fast", warm_start=True).fit(X, y)
    assert any("began anew" in note and "has no value for the target 0" in note for note in model.notes_)
    np.testing.assert_allclose(model.predict(X), GPRegressor("rbf", **FAST).fit(X, y).predict(X), atol=1e-6)


def test_the_first_batches_of_a_second_fit_do_not_forget_q():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (1500, 2))
    y = np.argmax(np.sin(3 * X @ rng.normal(size=(2, 4))) + 0.5 * rng.gumbel(size=(1500, 4)), axis=1)
    settings: dict[str, Any] = {"method": "svgp", "batch_size": 64, "max_iter": 300, "num_inducing": 20}
    model = GPClassifier("rbf", warm_start=True, **settings).fit(X, y)
    last = np.mean(model.history_["bound"][-3:])
    assert model.fit(X, y).history_["bound"][0] > last - 20  # by steps that begin at 1 it is 40 nats lower
