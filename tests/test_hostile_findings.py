"""What hostile cases found (`tests/hostile.py`), each by its symptom."""

# Settings are wrong on purpose, and learned state has no declaration.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportOperatorIssue=false

import numpy as np
import pandas as pd
import pytest
from hostile_tables import ARROW, parquet_bytes

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.estimators.notes import single_precision
from pseudopoint.kernels import RBF
from pseudopoint.metrics import interval, r2, rmse
from pseudopoint.starts.inducing import kmeans
from pseudopoint.tables import TableError, read_table

N = 12
BRIEF = {"max_iter": 2, "initial": "robust"}
HUGE = 10**400


def rows(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 2))
    return X, X[:, 0] + 0.1 * rng.normal(size=N)


@pytest.fixture(scope="module")
def fitted():
    return GPRegressor(**BRIEF, effort="fast").fit(*rows())


def sentence(error) -> bool:
    text = str(error.value)
    return "\n" not in text and len(text) < 300


# --- Settings ---

ARRAY = np.array([True, False])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("method", ARRAY, r"method=array\(\[ True, False\]\) is unknown: use one of auto, exact"),
        ("scale_inputs", ARRAY, "scale_inputs=.* is unknown: use one of auto, True, False"),
        ("scale_inputs", "word", "scale_inputs='word' is unknown: use one of auto, True, False"),
        ("scale_inputs", 1, "scale_inputs=1 is unknown"),
        ("scale_inputs", {}, "scale_inputs={} is unknown"),
        ("learn_inducing", "no", "learn_inducing='no' must be True or False"),
        ("scale_target", "no", "scale_target='no' must be True or False"),
        ("scale_target", ARRAY, "scale_target=.* must be True or False"),
        ("lengthscale_prior", HUGE, None),
        ("initial_noise", HUGE, "initial_noise=1000.* must be a positive number"),
        ("learning_rate", HUGE, "learning_rate=1000.* must be a positive number"),
        ("random_state", -1, "random_state=-1 must be a whole number from 0"),
        ("random_state", 2**70, "random_state=1180591620717411303424 must be a whole number"),
        ("kernel", {}, "kernel={} is unknown: use one of auto, matern52, .*, or an object"),
        ("kernel", ARRAY, r"kernel=array\(\[ True, False\]\) is unknown"),
        ("likelihood", np.eye(2), r"likelihood=array\(.* is unknown: use one of auto, gaussian"),
        ("inducing", object, "inducing must hold real numbers only"),
        ("inducing", np.array([["a", "b"]]), "inducing must hold real numbers only"),
        ("inducing", np.ones((2, 2)) + 1j, "inducing must hold real numbers only"),
        ("inducing", [[0.0], [1.0, 0.0]], "inducing must hold real numbers only"),
    ],
)
def test_a_setting_of_a_strange_type_ended_in_a_type_error_or_was_taken_for_true(name, value, message):
    model = GPRegressor(**BRIEF | {"method": "collapsed", "num_inducing": 3} | {name: value}, effort="fast")
    if message is None:  # more than infinity is infinity: no prior
        model.fit(*rows())
        return
    with pytest.raises(ValueError, match=message) as error:
        model.fit(*rows())
    assert sentence(error)


def test_numpys_true_and_false_are_true_and_false():
    X, y = rows()
    plain = GPRegressor(RBF(), **BRIEF, scale_inputs=True, effort="fast").fit(X * [1, 9], y)
    same = GPRegressor(RBF(), **BRIEF, scale_inputs=np.True_, effort="fast").fit(X * [1, 9], y)
    np.testing.assert_array_equal(same.predict(X), plain.predict(X))
    GPRegressor(
        **BRIEF, learn_inducing=np.False_, scale_target=np.False_, initial_noise=np.float32(0.1), effort="fast"
    ).fit(X, y)


# --- Questions ---


@pytest.mark.parametrize("level", [[0.5], "0.9", None, 1j])
def test_a_level_that_is_no_number_ended_in_a_type_error(fitted, level):
    with pytest.raises(ValueError, match="level=.* must lie between 0 and 1") as error:
        fitted.predict_interval(rows()[0], level)
    assert sentence(error)


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "poisson", "beta", "gamma"])
def test_an_interval_of_nearly_all_probability_was_infinite(likelihood):
    X, _ = rows()
    y = np.arange(N) % 3 if likelihood == "poisson" else np.linspace(0.1, 0.9, N)
    model = GPRegressor(likelihood=likelihood, **BRIEF, effort="fast").fit(X, y)
    for level in (np.nextafter(1, 0), 1 - 1e-12, 1e-16, 5e-324):
        ends = model.predict_interval(X, level)
        assert np.isfinite(ends).all() and (ends[:, 0] <= ends[:, 1]).all(), level


def test_intervals_of_moments_are_finite_up_to_the_last_probability_below_one():
    low, high = interval(np.zeros(1), np.ones(1), float(np.nextafter(1, 0)))
    assert high[0] == -low[0] and 8 < high[0] < 9


@pytest.mark.parametrize("value", [0, -1, 2.5, "many", None, [3]])
@pytest.mark.parametrize("name", ["n", "features"])
def test_a_number_of_draws_that_is_none_ended_in_an_error_of_numpy_or_jax(fitted, name, value):
    X, _ = rows()
    with pytest.raises(ValueError, match=f"{name}=.* must be a positive whole number"):
        fitted.paths(**{name: value})
    if name == "n":
        with pytest.raises(ValueError, match="n_samples=.* must be a positive whole number"):
            fitted.sample_y(X, value)


@pytest.mark.parametrize("y", [["u"] * N, [None] * N, [1j] * N, [HUGE] * N, [np.nan] * N, [[1.0, 2.0]] * N])
def test_a_log_density_of_what_is_no_number_is_refused_by_us(fitted, y):
    with pytest.raises(ValueError, match="y must hold real numbers|target contains NaN|y has shape") as error:
        fitted.log_density(rows()[0], y)
    assert sentence(error)


@pytest.mark.parametrize("of", [np.asarray, pd.DataFrame, list], ids=["array", "table", "list"])
def test_a_target_of_one_column_ended_in_errors_of_python_and_numpy(fitted, of):
    X, y = rows()
    column, folds = of(y[:, None].tolist()), np.arange(N) % 3
    np.testing.assert_array_equal(fitted.log_density(X, column), fitted.log_density(X, y))
    np.testing.assert_array_equal(fitted.loo_log_density(X, column), fitted.loo_log_density(X, y))
    np.testing.assert_array_equal(fitted.kfold_log_density(X, column, folds), fitted.kfold_log_density(X, y, folds))
    model = lambda: fitted._copy()
    np.testing.assert_array_equal(model().update(X, column).predict(X), model().update(X, y).predict(X))
    with pytest.raises(ValueError, match="target contains NaN in 1 of 12 rows, first in row 0"):
        fitted.update(X, of([[np.nan], *y[1:, None].tolist()]))
    for ask in (fitted.loo_log_density, fitted.log_density, fitted.update):
        with pytest.raises(ValueError, match=r"y has shape \(12, 2\)"):
            ask(X, of(np.column_stack([y, y]).tolist()))
    labels = np.where(y > 0, "no", "yes")
    classes, column = GPClassifier(**BRIEF, effort="fast").fit(X, labels), of(labels[:, None].tolist())
    np.testing.assert_array_equal(classes.log_density(X, column), classes.log_density(X, labels))
    assert classes.update(X, column).predict_proba(X).shape == (N, 2)


def test_counts_of_one_column_with_exposures_ended_in_a_type_error():
    X, y = rows()
    counts, E = np.floor(np.exp(y)), np.arange(1.0, N + 1)
    model = GPRegressor(likelihood="poisson", **BRIEF, effort="fast").fit(X, counts, exposure=E)
    expected = model._copy().update(X, counts, exposure=E).predict(X)
    np.testing.assert_array_equal(model.update(X, counts[:, None], exposure=E).predict(X), expected)


@pytest.mark.parametrize(
    ("likelihood", "impossible", "asked"),
    [
        ("poisson", [-1.0, 1.5], "counts 0, 1, 2"),
        ("negative_binomial", [-1.0, 0.5], "counts 0, 1, 2"),
        ("gamma", [0.0, -1.0], "numbers above 0"),
        ("exponential", [0.0], "numbers above 0"),
        ("beta", [0.0, 1.0, 1.1], "proportions between 0 and 1"),
    ],
)
def test_the_density_of_an_impossible_target_blamed_far_rows_or_was_a_number(likelihood, impossible, asked):
    X, y = rows()
    target = 1 / (1 + np.exp(-y)) if likelihood == "beta" else np.floor(np.exp(y)) + 1
    model = GPRegressor(likelihood=likelihood, **BRIEF, effort="fast").fit(X, target)
    assert np.isfinite(model.log_density(X, target)).all()
    for value in impossible:
        y = target.copy()
        y[4] = value
        with pytest.raises(ValueError, match=f"the target holds {value:g} in row 4 .*is for {asked}"):
            model.log_density(X, y)


@pytest.mark.parametrize("label", [0.5, None, ("a", 1), b"no", np.datetime64("2020-01-01")])
def test_the_density_of_a_label_of_another_type_ended_in_a_type_error(label):
    X, y = rows()
    model = GPClassifier(**BRIEF, effort="fast").fit(X, np.where(y > 0, "no", "yes"))
    others = np.empty(N, object)
    others[:] = ["yes", *[label] * (N - 1)]
    density = model.log_density(X, others)
    assert np.isfinite(density[0]) and np.isneginf(density[1:]).all()


# --- Numbers ---


@pytest.mark.parametrize("D", [1, 4])
@pytest.mark.parametrize("far", [9.97e36, 1e12, -1e300])
def test_two_far_rows_in_one_place_stopped_the_fit_at_its_start(far, D):
    X = np.random.default_rng(2).normal(size=(2 * N, D))
    y = np.sin(2 * X[:, 0])
    spoiled = np.vstack([X, np.full((2, D), far)])
    settings = {"max_iter": 10, "initial": "robust"}
    plain = GPRegressor(**settings, effort="fast").fit(X, y)
    model = GPRegressor(**settings, effort="fast").fit(
        spoiled, [*y, 0.1, -0.1]
    )  # differing targets: the rows are not merged
    assert model.n_iter_ >= 5 and model.history_["gradient_norm"].max() < 1e3
    assert np.abs(model.predict(X) - plain.predict(X)).mean() < 0.1 * y.std()


@pytest.mark.parametrize("method", ["fit", "predict"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (HUGE, "X or y holds a whole number beyond 1.8e308"),
        (np.longdouble(10) ** 400, "column 1 contains infinity .* first in row 3"),
    ],
)
def test_numbers_beyond_double_ended_in_an_overflow_error_or_a_warning(fitted, method, value, message):
    X, y = rows()
    X = X.astype(object if isinstance(value, int) else np.longdouble)
    X[3, 1] = value
    with pytest.raises(ValueError, match=message) as error:
        _ = GPRegressor(**BRIEF, effort="fast").fit(X, y) if method == "fit" else fitted.predict(X)
    assert sentence(error)


def test_a_target_beyond_double_is_refused_without_a_warning():
    X, y = rows()
    with pytest.raises(ValueError, match="target contains infinity"):
        GPRegressor(**BRIEF, effort="fast").fit(X, y.astype(np.longdouble) * np.longdouble(10) ** 400)
    with pytest.raises(ValueError, match="whole number beyond"):
        GPRegressor(**BRIEF, effort="fast").fit(X, [HUGE, *y[1:]])
    for large in (1.7e308, -1.7e308):
        with pytest.raises(ValueError, match=r"the target holds -?1.7e\+308 in row 2 \(1 such rows\)"):
            GPRegressor(**BRIEF, effort="fast").fit(X, np.where(np.arange(N) == 2, large, y))


@pytest.mark.parametrize("labels", [[1e300, -1e300], [5e-324, 1.7e308]])
def test_labels_that_are_huge_numbers_warn_of_nothing(labels):
    X, _ = rows()
    with pytest.raises(ValueError, match="Unknown label type: continuous"):  # scikit-learn's, which casts them
        GPClassifier(**BRIEF, effort="fast").fit(X, np.array(labels)[np.arange(N) % 2])


def test_classes_as_many_as_rows_printed_a_warning_of_scikit_learn_at_the_command_line():
    X, _ = rows()
    model = GPClassifier(**BRIEF, method="svgp", num_inducing=3, effort="fast").fit(X, np.arange(N).astype(str))
    assert f"the target has {N} classes in {N} rows" in " ".join(model.notes_)
    assert "classes in" not in " ".join(GPClassifier(**BRIEF, effort="fast").fit(X, np.arange(N) % 2).notes_)


@pytest.mark.parametrize("where", ["X", "y", "sample_weight", "noise_variance", "rows"])
def test_masked_numbers_were_taken_for_numbers(fitted, where):
    X, y = rows()
    hidden = np.zeros(N, bool)
    hidden[4] = True
    arrays = {"X": X, "y": y, "sample_weight": np.ones(N), "noise_variance": np.ones(N)}
    if where == "rows":
        with pytest.raises(ValueError, match="column 0 contains NaN .* first in row 4"):
            fitted.predict(np.ma.masked_array(X, np.column_stack([hidden, ~hidden & False])))
        return
    mask = np.column_stack([hidden, hidden]) if where == "X" else hidden
    arrays[where] = np.ma.masked_array(arrays[where], mask)
    with pytest.raises(ValueError, match="NaN|zero or positive"):
        GPRegressor(**BRIEF, effort="fast").fit(**arrays)
    arrays[where] = np.ma.masked_array(arrays[where].data, np.zeros_like(mask))  # nothing is hidden
    GPRegressor(**BRIEF, effort="fast").fit(**arrays)


@pytest.mark.parametrize(
    ("dtype", "weight"),
    [("float64", 1e300), ("float64", 1.7e308), ("float32", 1e30), ("float64", 5e-324), ("float32", 1e-45)],
)
def test_weights_too_large_or_small_to_add_up_ended_in_a_warning_or_a_division_by_zero(dtype, weight):
    with pytest.raises(ValueError, match=r"sample_weight sums to .* divide the weights by their mean"):
        GPRegressor(**BRIEF, dtype=dtype, effort="fast").fit(*rows(), np.full(N, weight))


@pytest.mark.parametrize("unit", [1e-300, 1e-170, 1e170, 1e300])
def test_scores_of_targets_of_any_size_overflowed_with_a_warning(unit):
    y, mean = np.array([1.0, 2.0, 4.0]), np.array([1.5, 2.0, 3.0])
    assert rmse(unit * y, unit * mean) == pytest.approx(unit * rmse(y, mean), rel=1e-12, abs=0)
    assert r2(unit * y, unit * mean) == pytest.approx(r2(y, mean), rel=1e-12)


@pytest.mark.parametrize("noise", [1e300, 1e-300, 1.0])
@pytest.mark.parametrize("unit", [1e-300, 1.0, 1e300])
def test_known_noise_of_any_size_beside_the_target_warns_of_nothing(noise, unit):
    X, y = rows()
    model = GPRegressor(**BRIEF, effort="fast").fit(X, unit * y, noise_variance=np.full(N, noise))
    assert np.isfinite(model.predict(X, return_std=True)).all()


def test_columns_and_levels_near_the_largest_number_warn_of_nothing():
    X, y = rows()
    largest = np.sign(X) * np.finfo(float).max
    signs, plain = (GPRegressor(**BRIEF, effort="fast").fit(inputs, y) for inputs in (np.sign(X), largest))
    np.testing.assert_allclose(plain.predict(largest), signs.predict(np.sign(X)), rtol=1e-6)
    sparse = GPRegressor(**BRIEF, method="collapsed", num_inducing=3, effort="fast").fit(largest + X, y)
    assert np.isfinite(sparse.inducing_points_).all()
    assert single_precision(largest) == []
    levels = GPRegressor(likelihood="ordinal", **BRIEF, effort="fast").fit(
        X, np.array([-1e300, 0.5, 1e300])[np.arange(N) % 3]
    )
    mean, std = levels.predict(X, return_std=True)
    assert np.isfinite(mean).all() and np.isfinite(std).all() and (std <= 1e300).all()


@pytest.mark.parametrize("settings", [{"scale_target": False}, {"likelihood": "gamma"}, {"likelihood": "poisson"}])
def test_a_target_whose_squares_overflow_is_refused_where_it_is_not_standardised(settings):
    X, y = rows()
    with pytest.raises(ValueError, match=r"the target holds .*e\+299, but at most 1e\+100 .* in a larger unit"):
        GPRegressor(**BRIEF, **settings, effort="fast").fit(X, np.floor(1e298 * (10 + np.abs(y))))


@pytest.mark.parametrize("method", ["collapsed", "svgp"])
def test_a_kernel_object_with_three_classes_could_be_fitted_but_not_predict(method):
    X, y = rows()
    classes = np.array(["a", "b", "c"])[np.arange(N) % 3]
    model = GPClassifier(RBF([1.0, 2.0]), **BRIEF, method=method, num_inducing=5, effort="fast").fit(X, classes)
    p = model.predict_proba(X)
    scaled = X * np.array([1024.0, 0.125])  # and it is in the units of X
    other = GPClassifier(RBF([1024.0, 0.25]), **BRIEF, method=method, num_inducing=5, effort="fast").fit(
        scaled, classes
    )
    assert p.shape == (N, 3) and np.isfinite(p).all()
    np.testing.assert_allclose(other.predict_proba(scaled), p, rtol=1e-6)


def test_an_ordinal_target_of_two_levels_warned_of_an_empty_mean():
    X, y = rows()
    model = GPRegressor(likelihood="ordinal", **BRIEF, effort="fast").fit(X, y > 0)
    mean, std = model.predict(X, return_std=True)
    assert (0 <= mean).all() and (mean <= 1).all() and np.isfinite(std).all()


def test_a_kernel_of_huge_variance_warns_of_nothing():
    X, y = rows()
    try:
        model = GPRegressor(RBF(1.0, 1e300), **BRIEF, effort="fast").fit(X, y)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert np.isfinite(model.predict(X, return_std=True)).all()


def test_fewer_clusters_than_points_warn_of_nothing():
    X, _ = rows()
    centres = kmeans(X, 3, 0, np.full(N, 5e-324))
    np.testing.assert_array_equal(centres, kmeans(X, 3, 0, np.ones(N)))
    centres = kmeans(X, 3, 0, np.where(np.arange(N) == 0, 1.0, 5e-324))
    assert np.isfinite(centres).all()
    assert 1 <= len(centres) <= 3 and len(np.unique(centres, axis=0)) == len(centres)


# --- Tables: open ---


def test_a_parquet_file_with_a_byte_too_many_was_refused_in_two_lines(tmp_path):
    columns = [ARROW[name](np.random.default_rng(0), 24) for name in ("classes", "double")]
    whole = parquet_bytes(columns, ["x", "y"])
    (tmp_path / "t.parquet").write_bytes(whole[: len(whole) // 2] + b"\0" + whole[len(whole) // 2 :])
    with pytest.raises(TableError) as error:
        read_table(tmp_path / "t.parquet")
    assert sentence(error)


def test_a_null_byte_in_the_name_of_a_table_was_an_error_of_python():
    with pytest.raises(TableError):
        read_table("a\0b.csv")
