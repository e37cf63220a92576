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
from pseudopoint.estimators import predictive
from pseudopoint.estimators.serving import evaluate
from pseudopoint.likelihoods import NOISE_FLOOR
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


def of_prior(p, inputs):
    """Mean and covariance [N, N] of the process that a predictor is, and w(X)ᵀ√s, in NumPy."""
    kernel = lambda A, B: np.asarray(p.kernel(jnp.asarray(A), jnp.asarray(B)))
    w = np.asarray(p.W) @ kernel(p.Zv, inputs)
    s = np.asarray(p.s)
    cov = kernel(inputs, inputs) - w.T @ ((1 - s)[:, None] * w)
    return np.asarray(p.alpha) @ kernel(p.Zm, inputs), cov, w.T * s**0.5


def test_where_noise_depends_on_x_f_is_conditioned_on_the_new_rows_under_the_old_noise():
    model = GPRegressor("rbf", likelihood="heteroscedastic", method="exact", **FAST).fit(X[OLD], Y[OLD])
    s, (f, g) = model.standardiser_, model.predictor_.parts
    with computing("float64"):
        both = np.asarray(s.inputs(np.concatenate([X[NEW], AT])))
        mean, K, _ = of_prior(f, both)
        at_g, variance = map(np.asarray, cast(g, np.float64)(jnp.asarray(both[:20])))
    noise = float(model.likelihood_.scale) ** 2 * np.exp(2 * (at_g - variance)) + NOISE_FLOOR
    level = 0.0 if model.mean_ is None else np.asarray(model.mean_)[0]
    new, at = slice(0, 20), slice(20, None)
    gain = np.linalg.solve(K[new, new] + np.diag(noise), np.asarray(s.target(Y[NEW])) - level - mean[new])
    model.update(X[NEW], Y[NEW])
    expected = (mean[at] + K[at, new] @ gain + level) * s.target_scale + s.target_mean
    np.testing.assert_allclose(model.predict_latent(AT)[:, 0], expected, rtol=1e-8, atol=1e-9)


def test_a_mean_with_more_points_than_the_variance_is_updated_in_the_directions_of_the_variance():
    model = GPRegressor("rbf", posterior="orthogonal", num_inducing=6, num_mean_inducing=9, **FAST).fit(X[OLD], Y[OLD])
    p, s, noise = model.predictor_, model.standardiser_, float(model.likelihood_.gaussian_noise)
    with computing("float64"):
        (mean, _, phi), (before, _, phi_at) = (of_prior(p, np.asarray(s.inputs(rows))) for rows in (X[NEW], AT))
    B = np.eye(phi.shape[1]) + phi.T @ phi / noise
    z = np.linalg.solve(B, phi.T @ (np.asarray(s.target(Y[NEW])) - mean) / noise)
    model.update(X[NEW], Y[NEW])
    expected = (before + phi_at @ z) * s.target_scale + s.target_mean
    np.testing.assert_allclose(model.predict_latent(AT), expected, rtol=1e-7, atol=1e-9)


def test_points_may_be_added_where_noise_depends_on_x(tmp_path):
    model = make("collapsed", likelihood="heteroscedastic").fit(X[OLD], Y[OLD])
    (f, noise), far = model.predictor_.parts, X[NEW] + 6
    model.update(far, Y[NEW], new_inducing=6)
    assert model.inducing_points_.shape == (14, 2) and len(f.Zv) == 8
    np.testing.assert_array_equal(model.predictor_.parts[1].alpha, noise.alpha)  # the noise is held
    assert np.mean((model.predict(far) - Y[NEW]) ** 2) < 0.5 * np.var(Y[NEW])
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(GPRegressor.load(tmp_path / "model").predict(far), model.predict(far))


def test_a_warped_target_is_updated_as_what_it_is_warped_to():
    settings: dict[str, Any] = {"input_warp": "none", "target_warp": "log", "likelihood": "gaussian", "method": "exact"}
    model = GPRegressor("matern52", **settings).fit(X[OLD], np.exp(Y[OLD]))
    s, (inner, warp) = model.standardiser_, model.likelihood_.warped
    new = np.asarray(s.target(np.exp(Y[NEW])))
    with computing("float64"):
        mean, K, _ = of_prior(model.predictor_, np.asarray(s.inputs(np.concatenate([X[NEW], AT]))))
    e = np.asarray(warp(new)) - mean[:20]
    noisy = K[:20, :20] + float(inner.gaussian_noise) * np.eye(20)
    more = -0.5 * (e @ np.linalg.solve(noisy, e) + np.linalg.slogdet(2 * np.pi * noisy)[1])
    more += np.sum(warp.log_slope(new))
    before = model.bound_
    for question in (model.update, model.loo_log_density):  # of another noise for w(y) in each row
        with pytest.raises(ValueError, match="noise_variance does not go together with the warp of the target"):
            question(X[NEW], np.exp(Y[NEW]), noise_variance=np.ones(20))
    model.update(X[NEW], np.exp(Y[NEW]))
    expected = mean[20:] + K[20:, :20] @ np.linalg.solve(noisy, e)
    f, _ = evaluate(model, predictive.latent, AT)
    np.testing.assert_allclose(f, expected, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(model.bound_ - before, more, rtol=1e-8)


def test_an_exposure_of_new_rows_is_so_many_rows_of_the_rate():
    """E = 2 for all rows of the same count per unit is twice the weight, but for a constant: a Poisson count y over E
    has the likelihood E log-density terms y log λ − Eλ."""
    counts = np.random.default_rng(1).poisson(np.exp(Y))
    given: dict[str, Any] = FAST | {"num_inducing": 3}
    fitted = GPRegressor(likelihood="poisson", method="collapsed", **given).fit(X[OLD], counts[OLD])
    one, two = fitted._copy(), fitted._copy()
    one.update(X[NEW], 2 * counts[NEW], exposure=np.full(20, 2.0))
    two.update(X[NEW], counts[NEW], np.full(20, 2.0))
    np.testing.assert_allclose(one.predict_latent(AT), two.predict_latent(AT), rtol=1e-6, atol=1e-8)
    y = counts[NEW]
    constant = np.sum(2 * y * np.log(2) - gammaln(2 * y + 1) + 2 * gammaln(y + 1))
    np.testing.assert_allclose(one.bound_ - two.bound_, constant, atol=1e-6)


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
