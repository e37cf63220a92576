"""Tables given to estimators as they are: the same model as from a file, whatever library the table is of."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from pseudopoint import GPClassifier, GPRegressor, TableTransformer
from pseudopoint.commands import fit_table, predict_table
from pseudopoint.tables import TableError

pytestmark = pytest.mark.edge
QUICK: dict[str, Any] = {"effort": "fast", "method": "exact", "max_iter": 2, "initial": "robust"}
N = 40


def table() -> pd.DataFrame:
    """A column of every kind that a table may have, and a target with gaps."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=N).round(3)
    moments = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, N), "D")
    with_gaps = pd.Series(rng.integers(1, 6, N), dtype="Int64").mask(np.arange(N) % 7 == 0)
    return pd.DataFrame(
        {
            "size": numbers,
            "count": rng.integers(0, 9, N).astype(np.int16),
            "town": rng.choice(["Oslo", "Bergen"], N),
            "sort": pd.Categorical(rng.choice(["x", "y", "z"], N)),
            "new": rng.choice([True, False], N),
            "day": moments,
            "rooms": with_gaps,
            "open": pd.Series(rng.random(N) < 0.5, dtype="boolean").mask(np.arange(N) % 5 == 0),
            "gap": np.where(np.arange(N) % 6 == 0, np.nan, rng.random(N)),
            "price": np.where(np.arange(N) == 3, np.nan, 2 * numbers + rng.normal(size=N).round(3)),
        }
    )


@pytest.fixture(scope="module")
def frame():
    return table()


@pytest.fixture(scope="module")
def fitted(frame):
    return GPRegressor(**QUICK).fit(frame.drop(columns="price"), frame["price"])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_by_file_and_by_frame_gives_the_same_model(frame, fitted, tmp_path, suffix):
    path, file, out = (tmp_path / name for name in (f"table{suffix}", "model", "predictions.csv"))
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    result = fit_table(path, "price", test_fraction=0.0, out=file, **QUICK)
    assert result["features"] == fitted.encoder_.feature_names
    expected = fitted.predict(frame.drop(columns="price"))
    loaded = GPRegressor.load(file)
    np.testing.assert_array_equal(loaded.predict(frame), expected)  # with the target, and columns by name
    np.testing.assert_array_equal(loaded.predict(frame[frame.columns[::-1]]), expected)
    predict_table(file, path, out)
    np.testing.assert_allclose(pd.read_csv(out)["price_mean"], expected, rtol=1e-12)


def test_polars_and_arrow_are_read_as_pandas_is(frame, fitted):
    polars = pl.from_pandas(frame)
    expected = fitted.predict(frame.drop(columns="price"))
    arrow = polars.to_arrow()
    for X, y in (
        (polars.drop("price"), polars["price"]),
        (arrow.drop_columns("price"), arrow["price"]),
        (frame.drop(columns="price").convert_dtypes(dtype_backend="pyarrow"), frame["price"]),
    ):
        model = GPRegressor(**QUICK).fit(X, y)
        assert model.encoder_.feature_names == fitted.encoder_.feature_names
        assert list(model.feature_names_in_) == list(fitted.feature_names_in_)
        np.testing.assert_array_equal(model.predict(X), expected)
        np.testing.assert_array_equal(fitted.predict(X), expected)


@pytest.mark.parametrize(
    "cells, features",
    [
        (["a", "b"] * 20, ["c=a", "c=b"]),
        (pd.Categorical([1, 2] * 20), ["c=1", "c=2"]),
        (pd.array([1, None] * 20, "Int64"), ["c", "c_missing"]),
        (pd.array([True, None] * 20, "boolean"), ["c", "c_missing"]),
        (pd.date_range("2024-01-01", periods=N), ["c"]),
        (pd.date_range("2024-01-01", periods=N, tz="UTC"), ["c"]),
        (pd.timedelta_range("1 day", periods=N), ["c"]),
        (np.arange(N), ["c"]),
        ([str(i) for i in range(N)], ["c"]),
        (["1,5", "2,5"] * 20, ["c"]),
    ],
)
def test_each_kind_of_column_is_encoded(cells, features):
    assert TableTransformer().fit(pd.DataFrame({"c": cells})).get_feature_names_out().tolist() == features


def test_what_a_fit_made_of_a_table_is_said(frame, fitted):
    assert fitted.n_features_in_ == 9 and list(fitted.feature_names_in_) == [*frame.columns[:-1]]
    said = " ".join(fitted.notes_)
    assert "1 rows were dropped because their target is missing" in said and "column 'rooms': 6 rows of 39" in said


def test_rows_without_a_target_are_dropped_from_weights_and_noise_too(frame):
    X, y = frame[["size", "town"]], frame["price"]
    weight, noise = np.arange(N) + 1.0, np.arange(N) / N
    there = y.notna()
    model = GPRegressor(**QUICK).fit(X, y, weight, noise_variance=noise)
    rest = GPRegressor(**QUICK).fit(X[there], y[there], weight[there], noise_variance=noise[there])
    np.testing.assert_array_equal(model.predict(X), rest.predict(X))
    with pytest.raises(ValueError, match="the target holds -1 in row 9"):
        bad = pd.Series(np.where(np.arange(N) == 9, -1.0, 2.0)).mask(np.arange(N) < 4)
        GPRegressor(**QUICK, likelihood="poisson").fit(X, bad)


def test_labels_of_classes_stay_what_they_are(frame):
    X = frame[["size", "town"]]
    for labels in (frame["new"], frame["count"] % 2, frame["town"].astype("category"), frame["open"]):
        settings: dict[str, Any] = QUICK | {"method": "laplace"}
        model = GPClassifier(**settings).fit(X, labels)
        assert model.classes_.tolist() == sorted(set(labels.dropna()))
    assert "8 rows were dropped because their target is missing" in model.notes_


def test_columns_in_predictions_are_those_of_the_fit(frame, fitted):
    X = frame.drop(columns="price")
    with pytest.raises(ValueError, match="same order"):
        fitted.predict(X[X.columns[::-1]])
    with pytest.raises(ValueError, match="unseen at fit time"):
        fitted.predict(frame)
    with pytest.warns(UserWarning, match=r"'town': categories not seen in training in 40 rows \('Rome'\)"):
        fitted.predict(X.assign(town="Rome"))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        np.testing.assert_array_equal(fitted.predict(X.to_numpy(object)), fitted.predict(X))
    with pytest.raises(TableError, match="column 'size' is infinite in row 2"):
        fitted.predict(X.assign(size=np.where(np.arange(N) == 2, np.inf, 1)))


def test_a_model_of_a_table_is_saved_and_served(frame, fitted, tmp_path):
    X = frame.drop(columns="price")
    fitted.save(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = GPRegressor.load(tmp_path / "model").warm_up()
    assert loaded.encoder_ == fitted.encoder_ and loaded.columns_ == fitted.columns_
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    again = GPRegressor(**QUICK).fit(X, frame["price"]).fit(np.eye(5), np.arange(5.0))  # nothing of the table is left
    assert again.encoder_ is None and np.shape(again.predict(np.eye(5))) == (5,)


def test_a_table_goes_through_cross_validation_and_numbers_as_names(frame):
    there = frame[frame["price"].notna()]
    scores = cross_val_score(GPRegressor(**QUICK), there[["size", "town"]], there["price"], cv=2)
    assert np.isfinite(scores).all()
    X = frame[["size", "count"]].set_axis([0, 1], axis=1)
    model = GPRegressor(**QUICK).fit(X, frame[["price"]])
    assert not hasattr(model, "feature_names_in_")
    np.testing.assert_array_equal(model.predict(X.to_numpy()), model.predict(X))


@pytest.mark.parametrize(
    "y, message",
    [
        (None, "requires y to be passed"),
        (np.ones((N, 2, 2)), "dim 3"),
        (np.ones(3), "inconsistent numbers of samples"),
        (["a"] * N, "not numeric: row 0 holds 'a'"),
        ([np.nan] * N, "missing in every row"),
    ],
)
def test_a_target_that_does_not_fit_a_table_is_refused(frame, y, message):
    with pytest.raises(ValueError, match=message):
        GPRegressor(**QUICK).fit(frame[["size"]], y)


@parametrize_with_checks([TableTransformer()])
def test_scikit_learn_contract_of_the_transformer(estimator, check):
    check(estimator)


def test_the_transformer_in_a_pipeline_gives_the_model_of_the_estimator(frame, fitted):
    there = frame[frame["price"].notna()]
    encode = TableTransformer().set_output(transform="pandas")
    model = make_pipeline(encode, GPRegressor(**QUICK)).fit(there.drop(columns="price"), there["price"])
    names = fitted.encoder_.feature_names
    X = frame.drop(columns="price")
    assert encode.get_feature_names_out().tolist() == names == encode.transform(X).columns.tolist()
    np.testing.assert_allclose(model.predict(X), fitted.predict(X), rtol=1e-12)
