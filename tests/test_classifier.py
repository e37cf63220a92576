"""GPClassifier: the scikit-learn contract, probabilities that are right, files, and what went wrong elsewhere."""

# Settings are unpacked from dictionaries, and learned state has no declaration: a type checker can follow neither.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportAssignmentType=false, reportOperatorIssue=false

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pseudopoint import GPClassifier
from pseudopoint.likelihoods import Bernoulli, Gaussian, RobustMax
from pseudopoint.optimise.fullbatch import FitError

LAPLACE = {"method": "laplace"}
COLLAPSED = {"method": "collapsed", "num_inducing": 8, "max_iter": 15}
SVGP = {"method": "svgp", "num_inducing": 8, "batch_size": 16, "max_iter": 60}
TWO = {"laplace": LAPLACE, "collapsed": COLLAPSED, "svgp": SVGP}
MORE = {"collapsed": COLLAPSED | {"max_iter": 5}, "svgp": SVGP} | {"robustmax": SVGP | {"likelihood": "robustmax"}}
N = 60


def two_classes(n=N, seed=0):
    """Labels drawn with P("yes") = σ(3 sin 2x₁ + x₂/10)."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2)) * [1, 30] + [5, -100]
    p = expit(3 * np.sin(2 * (X[:, 0] - 5)) + (X[:, 1] + 100) / 10)
    return X, np.where(rng.uniform(size=n) < p, "yes", "no"), p


def three_classes(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.array(["ash", "birch", "cedar"])[
        np.digitize(X[:, 0] + 0.5 * X[:, 1] + 0.2 * rng.normal(size=n), [-0.5, 0.5])
    ]


@pytest.fixture(scope="module")
def fitted():
    two = {name: GPClassifier(**settings, effort="fast").fit(*two_classes()[:2]) for name, settings in TWO.items()}
    return two | {
        "three_" + name: GPClassifier(**settings, effort="fast").fit(*three_classes())
        for name, settings in MORE.items()
    }


NAMES = [*TWO, *("three_" + name for name in MORE)]
EVERY = pytest.mark.parametrize("name", NAMES)


def rows_of(name):
    return three_classes(40, 9) if name.startswith("three") else two_classes(40, 9)[:2]


# --- The contract ---


@parametrize_with_checks([GPClassifier(max_iter=12, effort="fast")])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_pipeline_grid_search_and_clone():
    X, y, _ = two_classes(3 * N // 2)  # of which folds leave N
    pipeline = make_pipeline(StandardScaler(), GPClassifier(**COLLAPSED, effort="fast"))
    grid = {"gpclassifier__max_iter": [5, 15]}
    search = GridSearchCV(pipeline, grid, cv=3, error_score="raise", refit=False).fit(X, y)
    assert search.best_score_ > 0.7 and pipeline.fit(X[:N], y[:N]).predict(X).shape == (len(X),)
    assert clone(GPClassifier(**SVGP, effort="fast")).get_params()["batch_size"] == 16


@EVERY
def test_probabilities_are_of_the_labels_and_sum_to_one(fitted, name):
    model, (X, y) = fitted[name], rows_of(name)
    p = model.predict_proba(X)
    assert list(model.classes_) == sorted(set(y)) and p.shape == (40, len(model.classes_))
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    assert (p > 0).all() and (model.predict(X) == model.classes_[p.argmax(axis=1)]).all()
    codes = np.searchsorted(model.classes_, y)
    np.testing.assert_allclose(model.log_density(X, y), np.log(p[np.arange(40), codes]), rtol=1e-8)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), p, rtol=1e-8)
    assert model.score(X, y) > 0.6 and np.isfinite(model.bound_)
    assert model.log_density(X[:1], np.array(["oak"]))[0] == -np.inf


def test_probabilities_are_near_the_truth_and_the_same_by_every_method():
    X, y, _ = two_classes(600)
    rows, _, truth = two_classes(200, 5)
    models = [
        GPClassifier(**settings, effort="fast").fit(X, y)
        for settings in (LAPLACE, COLLAPSED | {"num_inducing": 40}, SVGP | {"num_inducing": 40, "max_iter": 400})
    ]
    for model in models:
        p = model.predict_proba(rows)[:, 1]
        assert np.sqrt(np.mean((p - truth) ** 2)) < 0.1
        assert np.abs(p - models[1].predict_proba(rows)[:, 1]).mean() < 0.04


@pytest.mark.parametrize("labels", [[False, True], [0, 1], [3.0, -1.0], ["b", "a"], [np.str_("x"), np.str_("yy")]])
def test_labels_of_any_type_come_back(labels):
    X, y, _ = two_classes()
    y = np.array(labels)[(y == "yes").astype(int)]
    model = GPClassifier(**SVGP | {"max_iter": 3}, effort="fast").fit(X, y)
    assert model.predict(X).dtype == y.dtype and set(model.predict(X)) <= set(labels)
    assert list(GPClassifier(**SVGP | {"max_iter": 3}, effort="fast").fit(X, y.tolist()).classes_) == list(
        model.classes_
    )


def test_tables_are_the_arrays_they_hold(fitted):
    X, y, _ = two_classes()
    frame = pd.DataFrame(X, columns=["length", "mass"])
    model = GPClassifier(**COLLAPSED, effort="fast").fit(frame, pd.Series(y).astype("category"))
    assert np.array_equal(model.predict_proba(frame), fitted["collapsed"].predict_proba(X))


@pytest.mark.parametrize("name", ["laplace", "collapsed"])
def test_weight_two_is_a_row_seen_twice_and_weight_zero_a_row_not_seen(name):
    X, y, _ = two_classes()
    weight = np.arange(N) % 3.0
    once = GPClassifier(**TWO[name], effort="fast").fit(X, y, weight)
    often = GPClassifier(**TWO[name], effort="fast").fit(
        np.repeat(X, weight.astype(int), axis=0), np.repeat(y, weight.astype(int))
    )
    assert np.array_equal(once.predict_proba(X), often.predict_proba(X))


def test_one_seed_gives_one_model():
    X, y = three_classes()
    first, second = (GPClassifier(**SVGP, random_state=3, effort="fast").fit(X, y).predict_proba(X) for _ in range(2))
    assert np.array_equal(first, second)


@EVERY
def test_a_fresh_process_predicts_bit_for_bit_the_same(fitted, name, tmp_path):
    model, (X, _) = fitted[name], rows_of(name)
    model.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "X.npy", X)
    if name != "three_svgp":  # one process is enough
        again = GPClassifier.load(tmp_path / "model.safetensors")
        assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
        assert list(again.classes_) == list(model.classes_) and again.predict(X).tolist() == model.predict(X).tolist()
        return
    code = f"""
import numpy as np
from pseudopoint import GPClassifier
model = GPClassifier.load(r"{tmp_path / "model.safetensors"}")
np.save(r"{tmp_path / "p.npy"}", model.predict_proba(np.load(r"{tmp_path / "X.npy"}")))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert np.array_equal(np.load(tmp_path / "p.npy"), model.predict_proba(X))


# --- What went wrong elsewhere ---


def test_no_probability_is_clipped():
    X = np.linspace(-3, 3, 80)[:, None]
    model = GPClassifier(max_iter=50, effort="fast").fit(X, X[:, 0] > 0.1)
    assert model.predict_proba([[-2.0]])[0, 1] < 5e-4 and model.predict_proba([[2.0]])[0, 1] > 1 - 5e-4  # GPflow: 1e-3


def test_a_class_that_hardly_any_minibatch_holds_is_learned():
    X, _ = make_blobs(400, centers=[[0, 0], [4, 0]], random_state=0)
    X, rare = np.vstack([X, [[0, 9.0], [0.2, 9.1]]]), np.array(["rare"] * 2)
    y = np.concatenate([np.where(X[:400, 0] > 2, "right", "left"), rare])
    model = GPClassifier(**SVGP | {"num_inducing": 20, "batch_size": 8, "max_iter": 300}, effort="fast").fit(X, y)
    assert model.n_rejected_ == 0 and model.predict([[0, 9.0]])[0] == "rare"
    assert model.predict_proba([[0.0, 0.0]])[0, list(model.classes_).index("rare")] < 0.1


def test_separable_classes_and_extreme_settings_end_in_numbers():
    X, y = make_blobs(120, centers=3, cluster_std=0.01, random_state=0)
    for settings in (
        SVGP | {"learning_rate": 10.0},
        SVGP | {"batch_size": 1, "dtype": "float32"},
        SVGP | {"likelihood": "robustmax", "learning_rate": 1.0},
    ):
        p = GPClassifier(**settings, effort="fast").fit(1e6 * X, y).predict_proba(1e6 * X)
        assert np.isfinite(p).all() and np.allclose(p.sum(axis=1), 1)


def test_one_class_is_predicted_and_said():
    X, y, _ = two_classes()
    for labels, weight in ((np.full(N, "yes"), None), (y, (y == "yes").astype(float))):
        model = GPClassifier(likelihood="softmax", effort="fast").fit(X, labels, weight)
        assert model.predict(X).tolist() == ["yes"] * N and (model.predict_proba(X) == 1).all()
        assert model.predict_proba(X).shape == (N, 1) and (model.log_density(X, np.full(N, "yes")) == 0).all()
        assert "holds one class only, 'yes'" in model.notes_[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"likelihood": "gaussian"}, "likelihood='gaussian' is unknown: use one of auto, logit, probit"),
        ({"likelihood": Gaussian(0.1)}, "Gaussian is not for classes: use GPRegressor"),
        ({"likelihood": Bernoulli()}, "for 2 classes, but the target has 3"),
        ({"likelihood": "probit"}, "for two classes, but the target has 3: use 'auto'"),
        ({"likelihood": RobustMax(4)}, "for 4 classes, but the target has 3"),
        ({"method": "exact"}, "needs a Gaussian likelihood"),
        ({"method": "laplace"}, "needs one latent function"),
        ({"num_inducing": 0}, "num_inducing=0 must be"),
    ],
)
def test_a_bad_setting_is_one_clear_sentence(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        GPClassifier(**settings, effort="fast").fit(*three_classes())
    assert "\n" not in str(error.value)


def test_a_number_with_many_values_is_no_class():
    X, _, _ = two_classes()
    with pytest.raises(ValueError, match="(?i)unknown label type"):
        GPClassifier(effort="fast").fit(X, X[:, 0])


def test_laplace_and_the_other_methods_refuse_what_they_cannot_do():
    X, y, _ = two_classes()
    with pytest.raises(FitError):
        GPClassifier(method="exact", effort="fast").fit(X, y)
