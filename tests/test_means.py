"""Mean functions: a dense fit of maximum evidence, every likelihood and method, and all that predicts."""

# Parts of fitted models are reached by name, which a type checker cannot follow.
# pyright: reportAttributeAccessIssue=false

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from conformance import MEANS
from jaxtyping import Array, Float
from scipy import optimize, stats

from pseudopoint import RBF, GPClassifier, GPRegressor
from pseudopoint.means import AbstractMean, LinearMean
from pseudopoint.params import Number, real

pytestmark = pytest.mark.edge

FAST = {"effort": "fast", "lengthscale_prior": np.inf}
FAR = np.array([[30.0], [2.0]])


class Kink(AbstractMean):
    """slope · max(x, 0), a user's own."""

    slope: Float[Number, ""] = real(default=1.0)

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return self.slope * jnp.maximum(X[:, 0], 0)


def rows(N=30):
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, 5, N))[:, None]
    return X, 2 * X[:, 0] + np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=N)


@pytest.fixture(scope="module")
def exact():
    return GPRegressor("rbf", mean="linear", **FAST).fit(*rows())


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_has_a_row_of_numbers_for_each_function(name):
    mean, expected = MEANS[name]
    X = np.random.default_rng(0).normal(size=(5, 2))
    np.testing.assert_allclose(mean(jnp.asarray(X, jnp.float32)), expected(X), rtol=1e-5, atol=1e-6)


def test_an_exact_fit_has_the_greatest_evidence(exact):
    X, y = rows()
    x, z = (X - X.mean()) / X.std(), (y - y.mean()) / y.std()

    def loss(t):
        l, v, n = np.exp(t[:3])
        K = v * np.exp(-0.5 * (x - x.T) ** 2 / l**2) + n * np.eye(len(x))
        return -stats.multivariate_normal(t[3] * x[:, 0] + t[4], K).logpdf(z)

    best = optimize.minimize(loss, [-1, -1, -2, 1, 0], method="BFGS")
    np.testing.assert_allclose(exact.bound_, -best.fun, atol=1e-6)
    learned = exact.mean_function_
    np.testing.assert_allclose([*learned.weights, learned.constant], best.x[3:], rtol=2e-3)
    l, v, n = np.exp(best.x[:3])
    k = lambda a, b: v * np.exp(-0.5 * (a - b.T) ** 2 / l**2)
    at = (FAR - X.mean()) / X.std()
    off = z - best.x[3] * x[:, 0] - best.x[4]
    mean = best.x[3] * at[:, 0] + best.x[4] + k(at, x) @ np.linalg.solve(k(x, x) + n * np.eye(len(x)), off)
    np.testing.assert_allclose(exact.predict(FAR), y.mean() + y.std() * mean, rtol=1e-3)


def test_all_that_predicts_has_the_mean(exact, tmp_path):
    X, y = rows()
    mean, std = exact.predict(FAR, return_std=True)
    np.testing.assert_allclose(exact.predict_latent(FAR), mean)
    np.testing.assert_allclose(exact.predict(FAR, return_cov=True)[0], mean)
    np.testing.assert_allclose(exact.predict_interval(FAR).mean(axis=1), mean)
    np.testing.assert_allclose(exact.sample_y(FAR, 400).mean(axis=1), mean, atol=0.25)
    np.testing.assert_allclose(exact.paths(400, 0)(FAR).mean(axis=0), mean, atol=0.3)
    np.testing.assert_allclose(exact.log_density(FAR, mean), stats.norm(mean, std).logpdf(mean))
    curve = exact.effects(X).effects[0].mean
    assert curve[-1] - curve[0] > 8
    exact.save(tmp_path / "m.gp")
    np.testing.assert_array_equal(GPRegressor.load(tmp_path / "m.gp").predict(FAR), mean)


def test_a_row_left_out_is_predicted_with_the_mean(exact):
    X, y = rows()
    x, z = exact.standardiser_.inputs(X), exact.standardiser_.target(y)
    kernel, noise, (i, j) = exact.kernel_, float(exact.likelihood_.variance), (7, np.arange(30) != 7)
    K = np.asarray(kernel(jnp.asarray(x), jnp.asarray(x)), float) + noise * np.eye(30)
    off = z - np.asarray(exact.mean_function_(jnp.asarray(x)))
    w = np.linalg.solve(K[j][:, j], K[j, i])
    density = stats.norm(w @ off[j], np.sqrt(K[i, i] - w @ K[j, i])).logpdf(off[i]) - np.log(y.std())
    np.testing.assert_allclose(exact.loo_log_density(X, y)[i], density, rtol=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "collapsed", "num_inducing": 30},
        {"method": "svgp", "max_iter": 300, "num_inducing": 30},
        {"posterior": "orthogonal", "num_inducing": 15, "num_mean_inducing": 15},
        {"checkpoint": True, "num_inducing": 30},
        {"likelihood": "student_t", "method": "laplace"},
        {"likelihood": "student_t", "num_inducing": 30},
        {"kernel": RBF(1.0)},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_every_fit_returns_to_the_line_far_away(settings, exact, tmp_path):
    folder = tmp_path if settings.get("checkpoint") else None
    given: dict[str, Any] = {"kernel": "rbf"} | {
        name: value for name, value in settings.items() if name != "checkpoint"
    }
    given = FAST | given
    model = GPRegressor(mean="linear", **given).fit(*rows(), checkpoint=folder)
    np.testing.assert_allclose(model.predict(FAR), exact.predict(FAR), rtol=0.1)


def test_a_constant_a_mean_of_a_user_classes_and_counts():
    X, y = rows()
    shifted = GPRegressor("rbf", mean="constant", scale_target=False, **FAST).fit(X, y + 100)
    assert abs(shifted.predict([[1e3]])[0] - 105) < 5
    kink = GPRegressor("rbf", mean=Kink(0.5), **FAST).fit(X, y)
    assert kink.mean_function_.slope != 0.5 and kink.predict([[30.0]])[0] > 10 > kink.predict([[-30.0]])[0]
    classes = np.digitize(X[:, 0] + np.sin(9 * X[:, 0]), [1.5, 3])
    three = GPClassifier("rbf", mean="linear", priors="weights=Normal(0, 1)", max_iter=10, **FAST).fit(X, classes)
    assert three.mean_function_.weights.shape == (3, 1) and three.predict_proba([[30.0]])[0, 2] > 0.7
    rate = GPRegressor("rbf", mean="linear", likelihood="poisson", max_iter=20, **FAST)
    counts = rate.fit(X, np.round(np.exp(y / 4)))
    assert counts.predict([[8.0]])[0] > 15 and counts.mean_function_.constant == 0
    without = GPRegressor("rbf", mean="zero", likelihood="student_t", method="laplace", **FAST).fit(X, y)
    assert without.mean_ is None and without.mean_function_ is None


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"mean": "quadratic"}, "mean='quadratic' is unknown: use one of auto, zero, constant, linear, or an object"),
        ({"mean": np.sin}, "is unknown: use one of auto, zero, constant, linear, or an object"),
        ({"mean": LinearMean(np.ones(3))}, "the mean LinearMean cannot be computed"),
        ({"mean": LinearMean(np.ones((2, 1)), np.zeros(2))}, r"must give finite numbers of shape \(2,\)"),
        ({"mean": "linear", "target_warp": "log"}, "target_warp='log' does not go together with mean='linear'"),
        ({"mean": "linear", "likelihood": "heteroscedastic"}, "is for noise of one variance"),
    ],
)
def test_what_no_model_can_have_is_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        GPRegressor(**settings).fit(*rows())
    with pytest.raises(ValueError, match="mean='linear'"):
        GPRegressor(mean="linear").fit(np.zeros((4, 1)), np.ones((4, 2)))
