"""Posterior families through the estimators: every one fits, predicts, is saved, and is refused where it cannot be."""

import numpy as np
import pytest

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.recipes import FAMILIES, methods

rng = np.random.default_rng(4)
X = rng.uniform(-2, 2, (150, 2))
signal = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
y = signal + 0.1 * rng.normal(size=150)
QUICK = {"num_inducing": 12, "num_mean_inducing": 15, "batch_size": 50, "kernel": "rbf", "random_state": 1}
OTHERS = [name for name in FAMILIES if name != "whitened"]


@pytest.mark.parametrize("name", OTHERS)
def test_every_family_fits_a_regression_and_predicts_alike_when_loaded(name, tmp_path):
    model = GPRegressor(posterior=name, method="svgp", max_iter=400, **QUICK, effort="fast").fit(X, y)
    assert model.method_ == "svgp" and model.reason_ == f"posterior={name!r}" and model.n_rejected_ == 0
    # Ordinary gradients are slow for the decoupled family, as its second paper says (Salimbeni et al. 2018, 4).
    assert model.score(X, y) > (0.5 if name == "decoupled" else 0.95)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(model.bound_) and model.bound_vfe_ <= model.bound_ + 1e-9
    assert 0.8 < np.mean(np.abs(y - mean) < 1.96 * std) <= 1.0
    model.save(tmp_path / "m")
    again = GPRegressor.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(X, return_std=True), (mean, std))


def test_the_orthogonal_family_has_a_collapsed_bound_for_a_gaussian_likelihood():
    few = {"num_inducing": 5, "max_iter": 60, "kernel": "rbf"}
    model = GPRegressor(posterior="orthogonal", num_mean_inducing=15, **few, effort="fast").fit(X, y)
    fewer = GPRegressor(method="collapsed", initial="robust", **few, effort="fast").fit(X, y)
    assert model.method_ == "collapsed" and model.score(X, y) > 0.98
    assert model.bound_vfe_ <= model.bound_ <= model.upper_bound_
    assert model.bound_ > fewer.bound_ + 5  # more points for the mean are worth something
    assert any("15 more points" in note for note in model.notes_)


@pytest.mark.parametrize("name", OTHERS)
def test_every_family_fits_two_classes(name):
    model = GPClassifier(posterior=name, max_iter=300, **QUICK, effort="fast").fit(X, signal > 0)
    assert model.score(X, signal > 0) > 0.93 and model.n_rejected_ == 0


@pytest.mark.parametrize("name", ["diagonal", "orthogonal", "solve"])
def test_and_three(name, tmp_path):
    labels = np.digitize(signal, [-0.5, 0.5])
    model = GPClassifier(posterior=name, max_iter=200, **QUICK, effort="fast").fit(X, labels)
    assert model.score(X, labels) > 0.85 and model.predict_proba(X[:3]).shape == (3, 3)
    model.save(tmp_path / "m")
    again = GPClassifier.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_the_points_of_the_mean_have_natural_steps_for_several_latent_functions_too():
    # Z alone is too little: −144.5 nats without O. Adam would have moved a by no more than 20 steps of 3e-6.
    labels = np.digitize(signal, [-0.5, 0.5])
    few = QUICK | {"num_inducing": 3, "max_iter": 20, "learning_rate": 1e-6}
    model = GPClassifier(posterior="orthogonal", **few, effort="fast").fit(X, labels)
    assert np.abs(model.predictor_.own.alpha[:, 3:]).max() > 0.1
    assert model.bound_ > -140 and model.n_rejected_ == 0


def test_a_noise_that_varies_is_a_second_latent_function():
    model = GPRegressor(posterior="orthogonal", likelihood="heteroscedastic", max_iter=300, **QUICK, effort="fast").fit(
        X, y
    )
    mean, std = model.predict(X, return_std=True)
    assert model.score(X, y) > 0.95 and 0.8 < np.mean(np.abs(y - mean) < 1.96 * std) <= 1.0


def test_counts_and_an_optimiser_by_name():
    counts = rng.poisson(np.exp(signal))
    model = GPRegressor(
        posterior="orthogonal", likelihood="poisson", optimiser="Adam", max_iter=300, **QUICK, effort="fast"
    )
    assert model.fit(X, counts).score(X, counts) > 0.3


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"posterior": "dense"}, "posterior='dense' is unknown: use one of whitened, unwhitened"),
        ({"posterior": "diagonal", "method": "exact"}, "is for method='svgp', not 'exact'"),
        ({"posterior": "solve", "method": "collapsed"}, "is for method='svgp', not 'collapsed'"),
        ({"posterior": "diagonal", "optimiser": "NGD"}, "no Gaussian q in coordinates"),
        ({"posterior": "orthogonal", "num_mean_inducing": 0}, "num_mean_inducing=0 must be a positive whole number"),
    ],
)
def test_what_cannot_be_is_said(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        GPRegressor(**{"max_iter": 2, "num_inducing": 5} | settings, effort="fast").fit(X, y)


@pytest.mark.parametrize("name", ["diagonal", "orthogonal", "solve", "hybrid"])
def test_a_last_epoch_never_lowers_the_bound_and_goes_on_with_what_was_averaged(name, monkeypatch):
    seen, settle = [], methods.settle
    monkeypatch.setattr(methods, "settle", lambda *given, **options: seen.append(settle(*given, **options)) or seen[-1])
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, 2))
    y = np.sin(5 * X[:, 0]) + 0.3 * rng.normal(size=600) > 0
    model = GPClassifier("rbf", posterior=name, batch_size=30, max_iter=150, num_inducing=15).fit(X, y)
    before, after = (fitted.bound for fitted in seen)
    assert model.bound_ == max(before, after) and after > before
