"""More rows for a fitted model: the q of an update is that of all rows, and nothing else about the model changes."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import gammaln

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.bounds import collapsed, marginal
from pseudopoint.data import dataset
from pseudopoint.params import cast
from pseudopoint.posteriors import Collapsed, Exact, Model
from pseudopoint.processes import computing
from pseudopoint.recipes import add_points

pytestmark = pytest.mark.edge

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * X[:, 1] + 0.2 * rng.normal(size=60)
WEIGHT = rng.uniform(0.5, 2, 60)
OLD, NEW, AT = slice(0, 40), slice(40, 60), rng.normal(size=(25, 2))
FAST = {"effort": "fast", "max_iter": 5, "initial": "robust", "inducing": "kmeans"}


def make(method, **more):
    return GPRegressor(method=method, num_inducing=8, **FAST | more)


def of_all_rows(model):
    """Bound and moments of f of all rows with the hyperparameters and points of a model, in one closed form."""
    s, points = model.standardiser_, model.inducing_points_
    with computing("float64"):
        posterior = Exact() if points is None else Collapsed(s.inputs(points))
        bound = marginal if points is None else collapsed
        core = Model(model.kernel_, model.likelihood_, posterior)
        at = bound(core, dataset(s.inputs(X), s.target(Y), WEIGHT, dtype="float64"))
        mean, variance = map(np.asarray, at.predictor()(jnp.asarray(s.inputs(AT))))
        return float(at.value), float(at.standard), mean * s.target_scale + s.target_mean, variance


@pytest.fixture(scope="module", params=["exact", "collapsed"])
def fitted(request):
    return make(request.param).fit(X[OLD], Y[OLD], WEIGHT[OLD])


def test_an_update_under_gaussian_noise_is_the_posterior_of_all_rows(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    model = GPRegressor.load(tmp_path / "model")
    for part in (slice(40, 47), slice(47, 60)):
        assert model.update(X[part], Y[part], WEIGHT[part]) is model
    value, standard, mean, variance = of_all_rows(fitted)
    np.testing.assert_allclose(model.predict_latent(AT), mean, rtol=1e-9, atol=1e-11)
    std = model.predict_latent(AT, return_std=True)[1] / model.standardiser_.target_scale
    np.testing.assert_allclose(std**2, variance, rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose([model.bound_, model.bound_vfe_], [value, standard], atol=1e-9)
    assert np.isinf(model.upper_bound_) or model.upper_bound_ == model.bound_
    assert "updated with 13 rows" in model.notes_[-1]


def test_rows_at_once_and_twice_the_weight_are_the_same_update(fitted):
    copies = [GPRegressor.__new__(GPRegressor) for _ in range(2)]
    for copy in copies:
        copy.__dict__.update(fitted.__dict__)
    twice = np.concatenate([X[NEW]] * 2), np.concatenate([Y[NEW]] * 2)
    a, b = copies[0].update(X[NEW], Y[NEW], np.full(20, 2.0)), copies[1].update(*twice)
    np.testing.assert_allclose(a.predict(AT), b.predict(AT), rtol=1e-9)


def test_new_points_change_nothing_by_themselves_and_then_serve_rows_elsewhere():
    model = make("collapsed").fit(X[OLD], Y[OLD])
    far, target = X[NEW] + 6, Y[NEW]
    with computing("float64"):
        p, rows = cast(model.predictor_, np.float64), jnp.asarray(AT)
        for ours, before in zip(add_points(p, AT + 1, 4)(rows), p(rows), strict=True):
            np.testing.assert_allclose(ours, before, atol=1e-6)
    plain = model._copy().update(far, target)
    model.update(far, target, new_inducing=6)
    assert model.inducing_points_.shape == (14, 2)
    np.testing.assert_array_less(
        model.predict(far, return_std=True)[1].mean(), 0.9 * plain.predict(far, True)[1].mean()
    )
    assert model.bound_ > plain.bound_


def test_an_update_of_counts_is_the_best_q_by_a_dense_oracle():
    """max E_q Σ log Poisson(y | e^f) − KL[q ‖ old q] over all N(m, LLᵀ) of z, in NumPy and SciPy."""
    counts = np.random.default_rng(1).poisson(np.exp(Y))
    given: dict[str, Any] = FAST | {"num_inducing": 3}
    model = GPRegressor(likelihood="poisson", method="collapsed", **given).fit(X[OLD], counts[OLD])
    p, s = model.predictor_, model.standardiser_
    with computing("float64"):
        of = lambda rows: jnp.asarray(s.inputs(rows))
        K = lambda rows: np.asarray(p.kernel(jnp.asarray(p.Zv), of(rows)))
        prior = lambda rows: np.asarray(p.kernel.diag(of(rows)))
        Knew, Kat, kat, knew = K(X[NEW]), K(AT), prior(AT), prior(X[NEW])
    level = np.log(float(model.likelihood_.scale)) + (0.0 if model.mean_ is None else float(model.mean_))
    lower = np.tril_indices(3)

    def moments(z, Kux, k):
        L = np.zeros((3, 3))
        L[lower] = z[3:]
        w = p.W @ Kux
        phi = np.sqrt(p.s)[:, None] * w
        return p.alpha @ Kux + z[:3] @ phi, np.sum((L.T @ phi) ** 2, 0) + k - np.sum(w**2, 0), L

    def loss(z):
        mean, variance, L = moments(z, Knew, knew)
        y, f = counts[NEW], mean + level
        fit = np.sum(y * f - np.exp(f + variance / 2) - gammaln(y + 1))
        kl = 0.5 * (np.sum(L**2) + z[:3] @ z[:3] - 3) - np.sum(np.log(np.abs(np.diag(L))))
        return kl - fit

    start = np.concatenate([np.zeros(3), np.eye(3)[lower]])
    best = minimize(loss, start, method="BFGS", options={"gtol": 1e-7})
    before = model.bound_
    model.update(X[NEW], counts[NEW])
    mean, variance, _ = moments(best.x, Kat, kat)
    ours = model.predict_latent(AT, return_std=True)
    np.testing.assert_allclose(ours[0], mean + (0.0 if model.mean_ is None else float(model.mean_)), atol=1e-5)
    np.testing.assert_allclose(ours[1] ** 2, variance, rtol=1e-4)
    np.testing.assert_allclose(model.bound_ - before, -best.fun, atol=1e-6)


@pytest.mark.parametrize("method", ["laplace", "svgp"])
def test_classes_are_updated_by_every_method(method):
    labels = np.where(Y > 0, "up", "down")
    model = GPClassifier(method=method, num_inducing=6, **FAST).partial_fit(X[OLD], labels[OLD], classes=["down", "up"])
    before = model.log_density(X[NEW], labels[NEW]).mean()
    model.partial_fit(X[NEW], labels[NEW])
    assert model.log_density(X[NEW], labels[NEW]).mean() > before
    with pytest.raises(ValueError, match="'other' in row 1 .*, a class that the fit did not see"):
        model.update(X[:2], ["up", "other"])


def test_three_classes_keep_what_they_share():
    labels = np.digitize(Y, [-0.5, 0.5])
    model = GPClassifier(num_inducing=6, **FAST).fit(X[OLD], labels[OLD])
    before = model.log_density(X[NEW], labels[NEW]).mean()
    model.update(X[NEW], labels[NEW], new_inducing=2)
    assert model.log_density(X[NEW], labels[NEW]).mean() > before and len(model.inducing_points_) == 8
    assert np.asarray(model.predictor_.Zv).ndim == 2


def test_what_cannot_be_an_update_is_refused_and_leaves_the_model(fitted):
    before = fitted.predict(AT)
    for word, X_, y_, more in (
        ("3 features", np.zeros((2, 3)), [0, 1], {}),
        ("inconsistent numbers", X[:3], [0, 1], {}),
        ("NaN", X[:2], [0, np.nan], {}),
        ("as an array", X[:2], "y", {}),
        ("exposure has no meaning", X[:2], [0, 1], {"exposure": [1, 1]}),
        ("new_inducing=-1 must be", X[:2], [0, 1], {"new_inducing": -1}),
    ):
        with pytest.raises(ValueError, match=word):
            fitted.update(X_, y_, **more)
    np.testing.assert_array_equal(fitted.predict(AT), before)
    with pytest.raises(ValueError, match="none of class 'c'"):
        GPClassifier().partial_fit(X[:4], list("abab"), classes=list("abc"))
