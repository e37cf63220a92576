"""What near rows tell beyond a fit with pseudo-points (`recipes.near_rows`, `posteriors.NearRows`; methods o)."""

import pickle
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from pseudopoint import GPRegressor, to_onnx
from pseudopoint.estimators.near import refuse_near_rows
from pseudopoint.kernels import Matern32
from pseudopoint.likelihoods import Gaussian, Heteroscedastic, HeteroscedasticStudentT, StudentT, WithNearRows, quantile
from pseudopoint.posteriors import NearRows
from pseudopoint.recipes import near_rows

pytestmark = pytest.mark.usefixtures("brief_search")

SMALL: dict[str, Any] = {
    **{"method": "collapsed", "num_inducing": 20, "max_iter": 10},
    **{"target_warp": "none", "input_warp": "none"},
}


def some_near(count=8, N=40, D=3, noise=0.2):
    rng = np.random.default_rng(0)
    weight = rng.integers(1, 4, N).astype(float)
    X, z = rng.normal(size=(N, D)), rng.normal(size=N)
    kernel = Matern32(np.array([0.5, 1.0, 2.0]), 0.7)
    return NearRows(kernel=kernel, noise=np.asarray(noise), X=X, z=z, y=z, weight=weight, count=count)


def matern32(X, Z, near):
    r = np.sqrt(3 * np.sum(((X[:, None] - Z) / near.kernel.lengthscale) ** 2, axis=-1))
    return float(near.kernel.variance) * (1 + r) * np.exp(-r)


def oracle(near, x, rows):
    """η and ν by dense algebra (methods o)."""
    X, weight = near.X[rows], near.weight[rows]
    C, k = matern32(X, X, near) + np.diag(near.noise / weight), matern32(x[None], X, near)[0]
    solved = np.linalg.solve(C, np.column_stack([near.z[rows], k]))
    return k @ solved[:, 0], float(near.kernel.variance) - k @ solved[:, 1]


def nearest(near, x, but=None):
    distance = np.sum(((near.X - x) / near.kernel.lengthscale) ** 2, axis=1)
    distance[near.weight == 0] = np.inf
    distance[[] if but is None else [but]] = np.inf
    return np.argsort(distance)[: near.count]


def test_moments_are_those_of_dense_algebra_at_the_nearest_rows():
    near = some_near()
    X = np.random.default_rng(1).normal(size=(5, 3))
    mean, variance = near(X)
    for i, x in enumerate(X):
        rows = nearest(near, x)
        assert set(np.asarray(near.nearest(X)[i]).tolist()) == set(rows.tolist())
        np.testing.assert_allclose((mean[i], variance[i]), oracle(near, x, rows), rtol=1e-10)


def test_all_rows_near_are_the_exact_process():
    near = some_near(count=40)
    X = np.random.default_rng(1).normal(size=(5, 3))
    mean, variance = near(X)
    for i, x in enumerate(X):
        np.testing.assert_allclose((mean[i], variance[i]), oracle(near, x, np.arange(40)), rtol=1e-9)


def test_rows_of_no_weight_and_the_row_itself_are_never_near():
    near = some_near()
    weight = np.ones(len(near.weight))
    weight[::2] = 0
    near = replace(near, weight=weight)
    rows = np.arange(1, 11, 2)
    found = np.asarray(near.nearest(near.X[rows], rows))
    assert (found % 2 == 1).all() and not (found == rows[:, None]).any()
    np.testing.assert_array_equal(np.sort(found), np.sort([nearest(near, near.X[row], row) for row in rows]))


def test_padding_changes_no_moment():
    near, more = some_near(), 9
    longer = replace(near, X=np.pad(near.X, ((0, more), (0, 0))), z=np.pad(near.z, (0, more)),
                     y=np.pad(near.y, (0, more)), weight=np.pad(near.weight, (0, more)))  # fmt: skip
    X = np.random.default_rng(1).normal(size=(5, 3))
    np.testing.assert_array_equal(near(X), longer(X))


def test_the_slope_of_the_density_of_rows_left_out():
    near, rows = some_near(), np.arange(12)
    near = replace(near, weight=near.weight / 4)  # of a row seen more than once the others stay near
    nearest_rows = near_rows._nearest(near, rows)
    vector = np.log([0.3 / 0.7, 0.7, 1.2, 2.5])
    value, slope = near_rows._slopes(vector, near, rows, nearest_rows)
    at = lambda v: float(near_rows._slopes(v, near, rows, nearest_rows)[0])
    steps = 1e-5 * np.eye(4)
    np.testing.assert_allclose(slope, [(at(vector + e) - at(vector - e)) / 2e-5 for e in steps], rtol=1e-6, atol=1e-9)
    moved = near_rows._at(vector, near)
    assert float(moved.noise) == pytest.approx(0.3) and float(moved.kernel.variance) == pytest.approx(0.7)
    found = [oracle(moved, near.X[row], np.asarray(nearest_rows[row])) for row in rows]
    densities = [norm.logpdf(near.z[row], m, np.sqrt(v + 0.3)) for row, (m, v) in zip(rows, found, strict=True)]
    np.testing.assert_allclose(value, -np.average(densities, weights=near.weight[rows]), rtol=1e-10)


# Of one row: base likelihood, moments of its latent functions.
BASES = {
    "gaussian": (Gaussian(0.3), [0.4], [0.2]),
    "student_t": (StudentT(0.3, 4.0), [0.4], [0.2]),
    "heteroscedastic": (Heteroscedastic(0.3), [0.4, -0.2], [0.2, 0.3]),
    "both": (HeteroscedasticStudentT(0.3, 5.0), [0.4, -0.2], [0.2, 0.1]),
}
ETA, NU, NOISE = 0.8, 0.1, 0.3


def row_of(name) -> Any:
    base, mean, variance = BASES[name]
    with_h = lambda values, last: np.array([*values, last])[:, None]
    own = (jnp.array(v)[:, None] if len(mean) > 1 else jnp.array(v) for v in (mean, variance))
    f = jnp.asarray(with_h(mean, ETA)), jnp.asarray(with_h(variance, NU))
    return base, tuple(own), WithNearRows(base, np.asarray(NOISE)), f


@pytest.mark.parametrize("name", BASES)
def test_a_moved_density_integrates_to_one_and_has_its_moments(name):
    base, own, moved, f = row_of(name)
    density = jax.jit(lambda y: jnp.exp(moved.log_density(f[0], f[1], jnp.full(1, y)))[0])
    centre = float(moved.normal(*f).mean[0])
    integral: Any = lambda function: sum(
        quad(lambda y: float(density(y)) * function(y), *ends, epsabs=1e-9, limit=200)[0]
        for ends in ((-60, centre - 3), (centre - 3, centre), (centre, centre + 3), (centre + 3, 60))
    )
    assert integral(lambda y: 1) == pytest.approx(1, abs=1e-4)
    mean, variance = (float(x[0]) for x in moved.predict(*f))
    assert integral(lambda y: y) == pytest.approx(mean, abs=1e-3)
    plain, tau = base.predict(*own), np.sqrt(NU + NOISE)
    assert variance == pytest.approx(tau**2 * float(plain.variance[0]), rel=1e-10)
    assert mean == pytest.approx(float(plain.mean[0]) + ETA * np.sqrt(float(base.normal(*own).variance[0])), rel=1e-10)
    below = quad(lambda y: float(density(y)), -60, centre - 1, limit=200)[0]
    below += quad(lambda y: float(density(y)), centre - 1, centre + 0.5, limit=200)[0]
    on_host: Any = tuple(map(np.asarray, f))
    assert float(moved.predictive_cdf(*on_host, np.full(1, centre + 0.5))[0]) == pytest.approx(below, abs=1e-4)
    ends = [quantile(moved, on_host[0], on_host[1], p)[0] for p in (0.05, 0.95)]
    found = [moved.predictive_cdf(*on_host, np.full(1, y))[0] for y in ends]
    np.testing.assert_allclose(found, [0.05, 0.95], atol=1e-6)


def test_a_normal_prediction_stays_normal():
    base, own, moved, f = row_of("gaussian")
    s = np.sqrt(own[1] + 0.3)
    y = np.array([1.3])
    np.testing.assert_allclose(
        moved.log_density(*f, y), norm.logpdf(y, own[0] + s * ETA, s * np.sqrt(NU + NOISE)), rtol=1e-12
    )
    mean, variance = moved.latent(*f)
    np.testing.assert_allclose((mean, variance), (own[0] + s * ETA, s**2 * NU + NOISE * own[1]), rtol=1e-12)
    left = base.noise_times(NOISE).predict(mean, variance)  # what is not of f is noise
    np.testing.assert_allclose(left, moved.predict(*f), rtol=1e-12)


@pytest.mark.parametrize("name", BASES)
def test_a_likelihood_with_less_noise(name):
    base, own, _, _ = row_of(name)
    less, plain = base.noise_times(0.25).moments(own[0]), base.moments(own[0])
    np.testing.assert_allclose(less.mean, plain.mean)
    np.testing.assert_allclose(less.variance, plain.variance / 4)


@pytest.mark.parametrize("name", ["heteroscedastic", "both"])
def test_only_the_first_latent_function_is_moved(name):
    base, own, moved, f = row_of(name)
    mean, variance = moved.latent(*f)
    spread = base.normal(*own).variance
    np.testing.assert_allclose(mean, own[0] + np.array([[1], [0]]) * np.sqrt(spread) * ETA)
    np.testing.assert_allclose(variance, [spread * NU + NOISE * own[1][0], own[1][1]])


def test_scores_of_normal_predictions_are_standardised_errors_and_those_of_outliers_are_bounded():
    y, moments = np.array([0.1, -2.0, 1e6]), (np.zeros(3), np.full(3, 0.2))
    z = near_rows.scores(Gaussian(0.3), moments, y)
    np.testing.assert_allclose(z[:2], y[:2] / np.sqrt(0.5), rtol=1e-8)
    assert 5 < z[2] < 10
    heavy = near_rows.scores(StudentT(0.3, 4.0), moments, np.array([0.0, 3.0, 30.0]))
    np.testing.assert_allclose(heavy[0], 0, atol=1e-7)
    assert heavy[1] < heavy[2] < 6


# --- Fits ------------------------------------------------------------------------------------------------------------


def rough(X):
    """Smooth from far, rough from near."""
    return np.sin(2 * X[:, 0]) + 0.7 * np.sign(np.sin(25 * X[:, 0]) * np.sin(25 * X[:, 1]))


def rows_of(seed, count):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (count, 2))
    return X, 5 + 3 * (rough(X) + 0.05 * rng.normal(size=count))


@pytest.fixture(scope="module")
def table():
    return rows_of(0, 1200)


@pytest.fixture(scope="module")
def new_rows():
    return rows_of(1, 500)


@pytest.fixture(scope="module")
def model(table):
    return GPRegressor(**SMALL).fit(*table)


@pytest.fixture(scope="module")
def plain(table):
    return GPRegressor(**SMALL, near_rows=False).fit(*table)


def latent(fitted, X):
    """Mean and standard deviation of f."""
    return tuple(each if each.ndim == 1 else each[:, 0] for each in fitted.predict_latent(X, return_std=True))


def test_near_rows_are_taken_where_errors_beside_each_other_are_alike(model, plain, new_rows):
    X, y = new_rows
    assert model.near_rows_ is not None and plain.near_rows_ is None
    error = [np.sqrt(np.mean((each.predict(X) - y) ** 2)) for each in (model, plain)]
    assert error[0] < 0.8 * error[1]
    assert model.log_density(X, y).mean() > plain.log_density(X, y).mean() + 0.2
    low, high = model.predict_interval(X, 0.9).T
    assert 0.84 < np.mean((low <= y) & (y <= high)) < 0.95
    parts = list(zip(model.selection_["part"], model.selection_["choice"], model.selection_["chosen"], strict=True))
    assert ("near rows", "the 64 nearest", True) in parts and ("near rows", "none", False) in parts
    assert any(note.startswith("near rows: log density of a row by the others near it") for note in model.notes_)


def test_the_fit_itself_is_the_same_with_and_without(model, plain, table):
    assert model.bound_ == plain.bound_
    X = jnp.asarray(table[0][:5])
    of_f = lambda fitted: np.asarray(jax.tree.map(jnp.asarray, fitted.predictor_)(X))
    np.testing.assert_array_equal(of_f(model), of_f(plain))


def test_predictions_are_those_of_the_formula(model, plain, new_rows):
    """p(y) = p₀(m + (y − m − sη)/τ)/τ by dense algebra."""
    assert plain.likelihood_.gaussian_noise is not None  # s is the standard deviation of predictions
    X, y = new_rows[0][:20], new_rows[1][:20]
    near, scaled = model.near_rows_, model.standardiser_.inputs(X)
    eta, nu = np.transpose([oracle(near, x, nearest(near, x)) for x in scaled])
    tau = np.sqrt(nu + near.noise)
    centre, width = plain.predict(X, return_std=True)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, centre + width * eta, rtol=1e-6)
    np.testing.assert_allclose(std, width * tau, rtol=1e-6)
    np.testing.assert_allclose(model.log_density(X, y), norm.logpdf(y, mean, std), rtol=1e-6)
    of_f = latent(model, X)[1] ** 2
    expected = width**2 * nu + float(near.noise) * latent(plain, X)[1] ** 2
    np.testing.assert_allclose(of_f, expected, rtol=1e-6)


def test_far_from_all_rows_the_prediction_is_that_of_the_fit(model, plain):
    X = np.array([[30.0, -30.0], [1e6, 1e6]])
    np.testing.assert_allclose(model.predict(X, return_std=True), plain.predict(X, return_std=True), rtol=1e-6)
    np.testing.assert_allclose(model.predict_interval(X), plain.predict_interval(X), rtol=1e-5)


def test_a_smooth_function_does_without():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (1200, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=1200)
    smooth = GPRegressor(**SMALL).fit(X, y)
    assert smooth.near_rows_ is None
    assert not dict(zip(smooth.selection_["choice"], smooth.selection_["chosen"], strict=True))["the 64 nearest"]


def test_draws_have_the_moments_of_predictions(model, new_rows):
    X = new_rows[0][:30]
    mean, std = latent(model, X)
    for drawn in (model.sample_y(X, 4000).T, model.paths(4000, 0)(X)):
        np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=5 * std.max() / np.sqrt(4000))
        np.testing.assert_allclose(drawn.std(axis=0), std, rtol=0.1)
    noisy = model.sample_y(X, 6000, noise=True)
    np.testing.assert_allclose(noisy.std(axis=1), model.predict(X, return_std=True)[1], rtol=0.06)


def test_under_a_warp_the_mean_of_draws_is_the_prediction(table, new_rows):
    warped = GPRegressor(**SMALL).set_params(target_warp="log").fit(table[0], np.exp(0.3 * table[1]))
    assert warped.near_rows_ is not None and warped.likelihood_.warped is not None
    X = new_rows[0][:20]
    mean = warped.predict(X)
    for drawn in (warped.sample_y(X, 6000).T, warped.paths(6000, 0)(X)):
        error = drawn.std(axis=0) / np.sqrt(6000)
        assert (np.abs(drawn.mean(axis=0) - mean) < 6 * error).all()


def test_joint_covariances_are_those_of_draws(model, new_rows):
    X = new_rows[0][:30]
    mean, covariance = model.predict(X, return_cov=True)
    again, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, again)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-9)
    assert np.linalg.eigvalsh(covariance).min() > 0
    of_draws, off = np.cov(model.sample_y(X, 20_000)), ~np.eye(30, dtype=bool)
    assert np.abs(covariance[off]).max() > 0.1 * np.diag(of_draws).max()
    np.testing.assert_allclose(of_draws[off], covariance[off], atol=0.05 * np.diag(of_draws).max())


def test_the_order_of_rows_changes_nothing(model, table, new_rows):
    order = np.random.default_rng(2).permutation(len(table[1]))
    again = GPRegressor(**SMALL).fit(table[0][order], table[1][order])
    np.testing.assert_allclose(again.predict(new_rows[0]), model.predict(new_rows[0]), rtol=1e-6)


def test_twice_the_weight_is_half_the_noise():
    near = some_near()
    doubled = replace(near, weight=2 * near.weight, noise=np.asarray(2 * near.noise))
    X = np.random.default_rng(1).normal(size=(5, 3))
    np.testing.assert_allclose(doubled(X), near(X), rtol=1e-12)


def same(first, second, rows):
    np.testing.assert_array_equal(first.predict(rows[0]), second.predict(rows[0]))
    np.testing.assert_array_equal(first.log_density(*rows), second.log_density(*rows))


def test_a_saved_model_predicts_bit_for_bit(model, new_rows, tmp_path):
    model.save(tmp_path / "model.safetensors")
    same(GPRegressor.load(tmp_path / "model.safetensors"), model, new_rows)


def test_an_update_makes_new_rows_near(model, new_rows, tmp_path):
    X, y = new_rows
    model.predict(X)  # what is kept for predictions must not outlive the update
    updated = model._copy().update(X[:400], y[:400])
    near = updated.near_rows_
    seen = near.weight > 0
    assert np.sum(seen) == 1600
    for rows, share in ((slice(400), 0.7), (slice(400, None), 1.05)):
        errors = [np.mean((each.predict(X[rows]) - y[rows]) ** 2) for each in (updated, model)]
        assert errors[0] < share * errors[1]
    np.testing.assert_array_equal(near.kernel.lengthscale, model.near_rows_.kernel.lengthscale)
    moments = np.asarray(jax.tree.map(jnp.asarray, updated.predictor_)(jnp.asarray(near.X[seen])))
    np.testing.assert_allclose(near.z[seen], near_rows.scores(updated.likelihood_, moments, near.y[seen]), atol=1e-6)
    same(pickle.loads(pickle.dumps(updated)), updated, new_rows)
    updated.save(tmp_path / "model.safetensors")
    same(GPRegressor.load(tmp_path / "model.safetensors"), updated, new_rows)
    with pytest.raises(ValueError, match="near_rows=False"):
        updated.update(X[400:], y[400:], noise_variance=np.full(100, 0.1))


def test_a_second_fit_under_warm_start_learns_them_again(model, table):
    again = model._copy().set_params(warm_start=True).fit(table[0][:1100], table[1][:1100])
    assert again.near_rows_ is not None
    assert again.set_params(near_rows=False).fit(*table).near_rows_ is None


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel": "matern52"},
        {"likelihood": "gaussian"},
        {"effort": "fast"},
        {"near_rows": False},
        {"scale_inputs": False},
        {"num_inducing": 101},
    ],
)
def test_what_leaves_them_out(settings, table):
    X, y = table[0][:400], table[1][:400]
    fitted = GPRegressor(**SMALL | {"max_iter": 2} | settings).fit(X, y)
    assert fitted.near_rows_ is None
    assert "near rows" not in (fitted.selection_ or {"part": []})["part"]


def test_what_is_not_known_of_such_a_model_is_refused(model, plain, table, tmp_path):
    with pytest.raises(ValueError, match="this is not known for a model .* near_rows=False"):
        refuse_near_rows(model, "this is not known")
    with pytest.raises(ValueError, match="rows left out .* near_rows=False"):
        model.loo_log_density(*table)
    with pytest.raises(ValueError, match="near_rows=False"):
        to_onnx(model, tmp_path / "model.onnx")
    assert plain.loo_log_density(*table).shape == (1200,)


def test_a_setting_that_is_no_truth_value_is_refused(table):
    with pytest.raises(ValueError, match="near_rows"):
        GPRegressor().set_params(near_rows="yes").fit(*table)
