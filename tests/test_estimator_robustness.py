"""GPRegressor where users of other libraries came to grief: odd tables, extreme numbers, bad input."""

# Settings are unpacked from dictionaries, and learned state has no declaration: a type checker can follow neither.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportOptionalMemberAccess=false
# pyright: reportAssignmentType=false

import jax
import numpy as np
import oracles as o
import pandas as pd
import pytest
from fits import COLLAPSED, EACH, EXACT, METHODS, SVGP, D, N, fit_each, new_rows, smooth, table
from scipy.stats import binom

from pseudopoint import GPRegressor

pytestmark = pytest.mark.edge


@pytest.fixture(scope="module")
def fitted():
    """One fit of each method, for tests that only look."""
    return fit_each()


# --- Odd tables and extreme numbers ---


def test_a_constant_column_changes_nothing(fitted):
    X, y = table()
    rows, _ = new_rows()
    model = GPRegressor(**EXACT, effort="fast").fit(np.column_stack([X, np.full(N, 7.0)]), y)
    for constant in (7.0, -1e9):
        mean = model.predict(np.column_stack([rows, np.full(len(rows), constant)]))
        np.testing.assert_allclose(mean, fitted["exact"].predict(rows), rtol=1e-6)


def test_inputs_that_are_all_constant_predict_the_mean():
    _, y = table()
    model = GPRegressor(**EXACT, effort="fast").fit(np.ones((N, D)), y)
    mean, std = model.predict(np.ones((3, D)), return_std=True)
    np.testing.assert_allclose(mean, y.mean(), rtol=1e-4)
    np.testing.assert_allclose(std, y.std(), rtol=0.05)


@pytest.mark.parametrize(
    ("method", "dtype", "share"),
    [
        ("exact", "float64", 0.01),
        ("exact", "float32", 0.02),
        ("collapsed", "float64", 0.05),
        ("collapsed", "float32", 0.1),
        ("svgp", "float64", 0.2),
    ],
)
def test_a_target_without_noise_is_learned_and_its_error_known(method, dtype, share):
    # The variance then runs away from the noise, until rounding is larger than what is left of the variance.
    X, _ = table()
    rows, _ = new_rows(200)
    settings = METHODS[method] | {"learning_rate": 0.05, "dtype": dtype}
    if method != "exact":
        settings["max_iter"] = 200
    model = GPRegressor(**settings, effort="fast").fit(X, smooth(X))
    mean, std = model.predict(rows, return_std=True)
    errors = mean - smooth(rows)
    assert np.sqrt(np.mean(errors**2)) < share * smooth(rows).std()
    assert np.sqrt(np.mean((errors / std) ** 2)) < 3
    assert np.isfinite(model.bound_) and model.bound_vfe_ <= model.bound_ <= model.upper_bound_


def test_in_float32_a_bound_stays_a_bound_where_there_is_no_noise():
    X, _ = table()
    settings = COLLAPSED | {"kernel": "rbf", "num_inducing": N, "max_iter": 200, "dtype": "float32"}
    model = GPRegressor(**settings, effort="fast").fit(X, smooth(X))
    assert model.bound_vfe_ <= model.bound_ <= model.upper_bound_


def test_duplicate_inducing_points_are_one():
    X, y = table()
    model = GPRegressor(**COLLAPSED | {"inducing": np.vstack([X[:8], X[:3]])}, effort="fast").fit(X, y)
    assert model.inducing_points_.shape == (8, 2) and np.isfinite(model.predict(X)).all()
    assert "only 8 of 11 inducing points" in " ".join(model.notes_)


def test_more_inducing_points_than_rows_are_as_many_as_rows():
    X, y = table()
    settings = COLLAPSED | {"num_inducing": 10 * N, "learn_inducing": False, "max_iter": 5}
    model = GPRegressor(**settings, effort="fast").fit(np.vstack([X, X]), np.append(y, y + 1))
    assert len(model.inducing_points_) == N and f"only {N} of {10 * N} inducing points" in " ".join(model.notes_)
    assert np.isfinite(model.predict(X)).all()


def test_batches_of_one_row_fit():
    X, y = table()
    model = GPRegressor(**SVGP | {"batch_size": 1, "max_iter": 100}, effort="fast").fit(X, y)
    assert model.n_rejected_ == 0 and model.score(X, y) > 0.8


@EACH
def test_float32_end_to_end(fitted, settings):
    (X, y), (rows, truth) = table(), new_rows(200)
    model = GPRegressor(**settings, dtype="float32", effort="fast").fit(X, y)
    kinds = {leaf.dtype for part in (model.predictor_, model.kernel_) for leaf in jax.tree.leaves(part)}
    assert kinds == {np.dtype(np.float32)}
    single, double = (
        {"rmse": np.sqrt(np.mean((m.predict(rows) - truth) ** 2)), "density": m.log_density(rows, truth)}
        for m in (model, fitted[settings["method"]])
    )
    np.testing.assert_allclose(single["rmse"], double["rmse"], rtol=0.02)
    np.testing.assert_allclose(single["density"].mean(), double["density"].mean(), atol=0.02)
    assert np.isfinite(single["density"]).all() and np.isfinite(model.sample_y(rows[:25], 2)).all()
    assert model.bound_vfe_ <= model.bound_ <= model.upper_bound_


def test_declared_noise_takes_trust_from_bad_rows():
    X, y = table(noise=0.05)
    bad = np.arange(N) % 4 == 0
    rng = np.random.default_rng(2)
    spoiled = np.where(bad, y + 30 * rng.normal(size=N), y)
    rows, truth = table(seed=9, n=200, noise=0.0)
    errors = {}
    for name, noise in {"declared": np.where(bad, 900.0, 0.0), "silent": np.zeros(N)}.items():
        model = GPRegressor(**EXACT, effort="fast").fit(X, spoiled, noise_variance=noise)
        errors[name] = np.sqrt(np.mean((model.predict(rows) - truth) ** 2))
    assert errors["declared"] < 0.3 * errors["silent"]


@pytest.mark.parametrize("settings", [EXACT, COLLAPSED | {"num_inducing": 30}], ids=["exact", "collapsed"])
def test_intervals_hold_what_they_promise_on_data_from_a_gaussian_process(settings):
    # Functions of the model's own kind; most of a test row's variance is noise of its own, so that rows count singly.
    n, trials, inside = 150, 0, 0
    for seed in range(5):
        rng = np.random.default_rng([11, seed])
        X = rng.uniform(0, 6, size=(n + 100, D))
        covariance = o.matern52(X, X, np.array([1.5, 3.0]), 1.0) + 1e-9 * np.eye(n + 100)
        y = np.linalg.cholesky(covariance) @ rng.normal(size=n + 100) + 0.7 * rng.normal(size=n + 100)
        low, high = GPRegressor(**settings, effort="fast").fit(X[:n], y[:n]).predict_interval(X[n:], 0.9).T
        inside, trials = inside + int(((low <= y[n:]) & (y[n:] <= high)).sum()), trials + 100
    assert binom.ppf(0.005, trials, 0.9) <= inside <= binom.ppf(0.995, trials, 0.9)


# --- Bad input ---


def spoil(array, where, value):
    array = array.copy()
    array[where] = value
    return array


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named_by_column_and_row(fitted, value):
    X, y = table()
    name = "NaN" if np.isnan(value) else "infinity"
    remedy = "drop those rows or impute the values"
    with pytest.raises(ValueError, match=rf"target contains {name}.* in 2 of 40 rows, first in row 7: {remedy}"):
        GPRegressor(effort="fast").fit(X, spoil(y, [7, 9], value))
    bad = spoil(X, (3, 1), value)
    with pytest.raises(ValueError, match=rf"column 1 contains {name}.* in 1 of 40 rows, first in row 3: {remedy}"):
        GPRegressor(effort="fast").fit(bad, y)
    if not np.isnan(value):  # a gap in a table is filled
        with pytest.raises(ValueError, match="column 'mass' is infinite in row 3"):
            GPRegressor(effort="fast").fit(pd.DataFrame(bad, columns=["length", "mass"]), y)
    with pytest.raises(ValueError, match=rf"column 1 contains {name}.*first in row 3"):
        fitted["exact"].predict(bad)


BAD_SETTINGS = [
    ("method", "exac", "'exac' is unknown: use one of auto, exact, laplace, collapsed, svgp"),
    ("bound", "titsias", "'titsias' is unknown: use one of tight, vfe"),
    ("initial", "zero", "'zero' is unknown: use one of .*robust, ulapane"),
    ("dtype", "float16", "'float16' is unknown: use one of auto, float64, float32"),
    ("kernel", "se", "'se' is unknown: use one of auto, matern52, .*rbf.* or an object"),
    ("inducing", "kmean", "'kmean' is unknown: use one of auto, kmeans, rpcholesky, greedy, random"),
    ("inducing", np.zeros((3, 5)), "inducing.* 5 .*2"),
    ("inducing", np.zeros(3), "inducing"),
    ("inducing", np.full((3, 2), np.nan), "inducing.*NaN"),
    ("num_inducing", 0, "num_inducing=0 must be"),
    ("num_inducing", -5, "num_inducing=-5 must be"),
    ("num_inducing", 2.5, "num_inducing=2.5 must be"),
    ("num_inducing", "many", "num_inducing='many' must be"),
    ("max_iter", 0, "max_iter=0 must be"),
    ("max_iter", 1.5, "max_iter=1.5 must be"),
    ("batch_size", -1, "batch_size=-1 must be"),
    ("batch_size", 0.5, "batch_size=0.5 must be"),
    ("learning_rate", 0.0, "learning_rate=0.0 must be"),
    ("learning_rate", np.nan, "learning_rate=nan must be"),
    ("learning_rate", np.inf, "learning_rate=inf must be"),
    ("lengthscale_prior", 0.0, r"lengthscale_prior=0.0 must be a positive number; infinity \(inf\) is no prior"),
    ("lengthscale_prior", np.nan, "lengthscale_prior=nan must be"),
    ("lengthscale_prior", None, "lengthscale_prior=None must be"),
    ("initial_noise", -0.1, "initial_noise=-0.1 must be"),
    ("initial_noise", np.inf, "initial_noise=inf must be"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD_SETTINGS)
def test_a_bad_setting_is_one_clear_sentence(name, value, message):
    settings = {"method": "svgp", "num_inducing": 5, "max_iter": 2} | {name: value}
    with pytest.raises(ValueError, match=message) as error:
        GPRegressor(**settings, effort="fast").fit(*table())
    assert "\n" not in str(error.value) and type(error.value) is ValueError


@pytest.mark.parametrize("settings", [{}, COLLAPSED, SVGP, {"likelihood": "student_t"}, {"likelihood": "ordinal"}])
@pytest.mark.parametrize("value", [3.0, 0.0, -1e200])
def test_a_target_without_variation_is_predicted_and_said(settings, value):
    X, y = table()
    seen = np.arange(N) < N - 5
    weight = None if value == 3.0 else seen.astype(float)
    model = GPRegressor(**settings, effort="fast").fit(X, np.where(seen | (value == 3.0), value, 2 * value + 1), weight)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, value, rtol=1e-6, atol=1e-6)
    few_steps = settings == SVGP
    assert np.isfinite(std).all() and (std <= (0.6 if few_steps else 0.01) * max(abs(value), 1)).all()
    assert f"the target is {value:g} in every row" in model.notes_[-1]


def test_weights_and_noises_that_make_no_sense_are_refused():
    X, y = table()
    with pytest.raises(ValueError, match="(?i)sample.weight"):
        GPRegressor(effort="fast").fit(X, y, np.zeros(N))
    with pytest.raises(ValueError, match="[Nn]egative"):
        GPRegressor(effort="fast").fit(X, y, spoil(np.ones(N), 2, -1.0))
    with pytest.raises(ValueError, match="noise_variance must be zero or positive"):
        GPRegressor(effort="fast").fit(X, y, noise_variance=spoil(np.ones(N), 2, -1.0))
    for bad in (np.ones(N - 1), spoil(np.ones(N), 2, np.nan)):
        with pytest.raises(ValueError, match="sample_weight"):
            GPRegressor(effort="fast").fit(X, y, bad)
        with pytest.raises(ValueError, match="noise_variance"):
            GPRegressor(effort="fast").fit(X, y, noise_variance=bad)


def test_questions_that_make_no_sense_are_refused(fitted):
    model, (rows, y) = fitted["exact"], new_rows()
    for level in (0.0, 1.0, -0.5, 90.0, np.nan):
        with pytest.raises(ValueError, match="level=.*between 0 and 1"):
            model.predict_interval(rows, level)
    for bad in (y[:-1], np.stack([y, y], axis=1)):
        with pytest.raises(ValueError, match=r"must be \(25,\) for these rows"):
            model.log_density(rows, bad)
    with pytest.raises(ValueError, match="3 features.*expecting 2"):
        model.predict(np.ones((4, 3)))
