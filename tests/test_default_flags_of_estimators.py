"""Every kind of estimator, compiled as users' programs are: it fits, predicts well, and is the same from its file."""

import numpy as np
import pytest

from pseudopoint import GPClassifier, GPRegressor

pytestmark = [pytest.mark.default_flags, pytest.mark.edge]
X = np.random.default_rng(0).uniform(0, 6, size=(80, 1))
F = np.sin(X[:, 0])
NEW = np.linspace(0.3, 5.7, 25)[:, None]
SPARSE = {"num_inducing": 12, "inducing": "kmeans", "initial": "robust"}
NOISE = 0.1 * np.random.default_rng(1).normal(size=len(X))
REGRESSORS = {
    "exact": ({"method": "exact", "max_iter": 30}, F + NOISE, np.sin),
    "collapsed": ({"method": "collapsed", "max_iter": 30} | SPARSE, F + NOISE, np.sin),
    "svgp": ({"method": "svgp", "max_iter": 300, "batch_size": 32} | SPARSE, F + NOISE, np.sin),
    "laplace": (
        {"method": "laplace", "likelihood": "poisson", "max_iter": 20},
        np.random.default_rng(2).poisson(np.exp(1 + F)).astype(float),
        lambda x: np.exp(1 + np.sin(x)),
    ),
}
CLASSIFIERS = {
    "laplace": ({"method": "laplace", "max_iter": 20}, (F > 0).astype(int)),
    "softmax": (
        {"method": "collapsed", "max_iter": 3} | SPARSE,
        np.array(["low", "mid", "top"])[np.digitize(F, [-0.5, 0.5])],
    ),
}


@pytest.mark.parametrize("name", REGRESSORS)
def test_a_regressor_learns_and_comes_back_from_its_file(tmp_path, name):
    settings, y, truth = REGRESSORS[name]
    model = GPRegressor(**settings, effort="fast").fit(X, y)
    mean, std = model.predict(NEW, return_std=True)
    error = mean - truth(NEW[:, 0])
    assert np.sqrt(np.mean(error**2)) < 0.25 * np.std(truth(NEW[:, 0])) and (std > 0).all()
    model.save(tmp_path / "m")
    again = GPRegressor.load(tmp_path / "m")
    for one, other in zip((mean, std), again.predict(NEW, return_std=True), strict=True):
        assert one.tobytes() == other.tobytes()
    assert again.predict_interval(NEW).tobytes() == model.predict_interval(NEW).tobytes()


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_learns_and_comes_back_from_its_file(tmp_path, name):
    settings, y = CLASSIFIERS[name]
    model = GPClassifier(**settings, effort="fast").fit(X, y)
    assert model.score(X, y) > 0.93
    p = model.predict_proba(NEW)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    model.save(tmp_path / "m")
    assert GPClassifier.load(tmp_path / "m").predict_proba(NEW).tobytes() == p.tobytes()
