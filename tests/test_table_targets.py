"""Tables: the target, of numbers or of classes."""

import decimal
import json

import numpy as np
import pandas as pd
import pytest
from table_helpers import encode, nan, write

from pseudopoint.tables import (
    TableEncoder,
    TableError,
    class_target,
    drop_missing_target,
    looks_like_classes,
    read_chunks,
    read_table,
)

# ---- The target ------------------------------------------------------------------------------------------------------


def test_a_target_that_is_missing_is_nan_and_its_rows_can_be_dropped():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": pd.array([1, None, 3], dtype="Int64")})
    encoder, _ = TableEncoder.learn(frame, "y")
    np.testing.assert_array_equal(encoder.target(frame), [1.0, nan, 3.0])
    kept, dropped = drop_missing_target(frame, "y")
    assert dropped == 1 and kept.index.tolist() == [0, 2] and kept["a"].tolist() == [1.0, 3.0]


def test_no_target_at_all_is_an_error():
    with pytest.raises(TableError, match="'y' is missing in every row"):
        drop_missing_target(pd.DataFrame({"y": [nan, nan]}), "y")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["1", "high"], "'y' is not numeric: row 2 holds 'high'"),
        ([True, False], "'y' holds true/false values, not numbers"),
        ([True, None], "'y' is not numeric: row 1 holds 'True'"),
        (pd.to_datetime(["2024-01-01", "2024-01-02"]), "'y' is not numeric: row 1 holds '2024-01-01"),
    ],
)
def test_a_target_that_is_not_numeric_is_an_error(values, message):
    with pytest.raises(TableError, match=message):
        TableEncoder.learn(pd.DataFrame({"a": [1.0, 2.0], "y": values}), "y")


@pytest.mark.parametrize("values", [["1", "high"], [True, False]])
def test_a_target_that_is_not_numeric_may_be_one_of_classes(values):
    with pytest.raises(TableError, match="--task classification"):
        TableEncoder.learn(pd.DataFrame({"a": [1.0, 2.0], "y": values}), "y")


def test_an_absent_target_lists_the_columns_and_the_closest():
    with pytest.raises(TableError, match=r"no column 'price'; did you mean 'PRICE_'\? its columns are 'a', 'PRICE_'"):
        TableEncoder.learn(pd.DataFrame({"a": [1.0], "PRICE_": [1.0]}), "price")


# ---- A target of classes ---------------------------------------------------------------------------------------------


def labels(values) -> list[str | None]:
    return class_target(pd.DataFrame({"y": values}), "y").tolist()


@pytest.mark.parametrize(
    "values",
    [
        [1, 0],
        [1.0, -0.0],
        np.array([1, 0], np.float32),
        np.array([1, 0], np.uint8),
        ["1", "0"],
        ["1.0", " -0.0 "],
        ["1.000000000000000000e+00", "0.000000000000000000e+00"],
        np.array([1, 0.0], object),
        [decimal.Decimal("1.00"), decimal.Decimal(0)],
        pd.Series([1, 0], dtype="category"),
        pd.Series([1.0, 0.0], dtype="category"),
        pd.array([1, 0], dtype="Int64"),
        pd.array([1, 0], dtype="double[pyarrow]"),
        pd.Series(["1", "0"], dtype="string[pyarrow]"),
    ],
    ids=lambda values: f"{type(values).__name__} {getattr(values, 'dtype', '')} {values[0]!r}",
)
def test_a_whole_number_is_one_label_in_every_type(values):
    assert labels(values) == ["1", "0"]


@pytest.mark.parametrize(
    "values",
    [
        [True, False],
        ["TRUE", "false"],
        pd.array([True, False], dtype="boolean"),
        pd.array([True, False], dtype="bool[pyarrow]"),
        np.array([True, False], object),
        pd.Series([True, False], dtype="category"),
    ],
    ids=lambda values: f"{type(values).__name__} {getattr(values, 'dtype', '')} {values[0]!r}",
)
def test_true_and_false_are_one_label_in_every_type(values):
    assert labels(values) == ["True", "False"]


def test_other_text_stays_as_it_is():
    texts = [
        "01",
        "1.10",
        "1.1",
        "+1",
        "1e3",
        "1.",
        ".0",
        "-",
        "?",
        "1.0.0",
        "nan",
        "inf",
        "1.0e999",
        "Yes",
        "yes",
        "é",
    ]
    assert labels(texts) == texts
    assert labels([0.5, 1e-7, 123456789.0]) == ["0.5", "1e-07", "123456789"]


@pytest.mark.parametrize("dtype", ["category", "string", "str", "string[pyarrow]", "object"])
def test_a_missing_label_is_none_and_its_rows_can_be_dropped(dtype):
    frame = pd.DataFrame({"y": pd.Series(["u", None, " ", "v"], dtype=dtype), "a": [1.0, 2.0, 3.0, 4.0]})
    assert class_target(frame, "y").tolist() == ["u", None, None, "v"]
    kept, dropped = drop_missing_target(frame, "y", classes=True)
    assert dropped == 2 and kept.index.tolist() == [0, 3] and kept["a"].tolist() == [1.0, 4.0]


def test_a_missing_number_or_truth_is_a_missing_label():
    assert labels([1.0, nan, 2.0]) == ["1", None, "2"]
    assert labels(pd.array([True, None], dtype="boolean")) == ["True", None]
    assert labels([1, None, "x"]) == ["1", None, "x"]


def test_no_label_at_all_is_an_error():
    with pytest.raises(TableError, match="'y' is missing in every row; name a column that holds labels"):
        drop_missing_target(pd.DataFrame({"y": [None, ""]}), "y", classes=True)
    with pytest.raises(TableError, match="'y' is missing in every row; name a column that holds labels"):
        TableEncoder.learn(pd.DataFrame({"a": [1.0, 2.0], "y": [None, None]}), "y", classes=True)
    for attempt in (class_target, looks_like_classes):
        with pytest.raises(TableError, match=r"no column 'x'; its columns are 'y'"):
            attempt(pd.DataFrame({"y": ["u"]}), "x")


@pytest.mark.parametrize(
    ("values", "found", "why"),
    [
        (["u", "v", None, "u"], True, "holds text ('u', 'v')"),
        (["2", "2A", "B", "1"], True, "holds text ('2', '2A', 'B', …)"),
        (["+", "-", "+"], True, "holds text ('+', '-')"),
        ([True, False], True, "holds true/false values"),
        ([True, None, False], True, "holds true/false values"),
        (pd.Series([3, 5, 7], dtype="category"), True, "holds categories ('3', '5', '7')"),
        ([0, 1, 1, 0], True, "holds two different numbers, 0 and 1"),
        ([1234567.5, nan, 1234568], True, "holds two different numbers, 1234567.5 and 1234568"),
        (["1", "2", None, "1"], True, "holds two different numbers, 1 and 2"),
        ([0, 1, 2], False, "holds 3 different numbers"),
        (["0", "1", "2"], False, "holds 3 different numbers"),
        ([4.0, 4.0], False, "holds 1 different number"),
        ([0.0, np.inf], False, "holds 2 different numbers"),
        (["1", "0", "?"], True, "holds two different numbers, 0 and 1"),
        (["1.5", "2.5", "oops", "3"], False, "holds numbers, and something else in 1 row ('oops')"),
        (["2024-01-01", "2024-01-02"], False, "holds dates"),
        (pd.to_datetime(["2024-01-01", "2024-01-02"]), False, "holds dates"),
        ([f"row {i}" for i in range(51)], False, "holds 51 different texts in 51 rows: names of rows"),
        ([f"row {i}" for i in range(50)], True, "holds text ('row 0', 'row 1', 'row 2', …)"),
        ([None, " "], False, "is missing in every row"),
        (pd.Series([nan, nan]), False, "is missing in every row"),
    ],
)
def test_what_looks_like_classes_and_why(values, found, why):
    assert looks_like_classes(pd.DataFrame({"y": values}), "y") == (found, f"the target 'y' {why}")


def test_an_encoder_of_classes_gives_labels_and_survives_json():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": ["u", None, "v"]})
    encoder, notes = TableEncoder.learn(frame, "y", classes=True)
    assert encoder.classes and encoder.feature_names == ["a"] and notes == []
    assert encoder.target(frame).tolist() == ["u", None, "v"]
    assert TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict(), allow_nan=False))) == encoder


def test_a_table_without_the_target_can_be_encoded():
    encoder, _ = TableEncoder.learn(pd.DataFrame({"a": [1.0, 2.0], "y": ["u", "v"]}), "y", classes=True)
    assert encode(encoder, a=[3.0]) == ([[3.0]], [])
    with pytest.raises(TableError, match="no column 'y'"):
        encoder.target(pd.DataFrame({"a": [1.0]}))


def test_an_encoder_written_before_there_were_classes_is_of_a_regression():
    column = {"name": "a", "kind": "number", "fill": 1.5, "indicator": False, "categories": []}
    encoder = TableEncoder.from_dict({"target_name": "y", "columns": [column]})
    assert not encoder.classes and encoder.inputs(pd.DataFrame({"a": [3, None]}))[0].tolist() == [[3.0], [1.5]]
    assert encoder.target(pd.DataFrame({"y": [1, 2]})).tolist() == [1.0, 2.0]


def test_labels_are_the_same_in_every_chunk(tmp_path):
    path = write(tmp_path / "t.csv", b"a,y\n1,01\n2,2\n3,2.0\n4,\n5,x\n6,TRUE\n")
    encoder, _ = TableEncoder.learn(read_table(path, ["y"]), "y", classes=True)
    assert encoder.text_columns == ("y",)
    expected = ["01", "2", "2", None, "x", "True"]
    for rows in (1, 2, 6):
        assert (
            np.concatenate([encoder.target(chunk) for chunk in read_chunks(path, rows, encoder)]).tolist() == expected
        )
    assert encoder.target(read_table(path, encoder.text_columns)).tolist() == expected


# ---- Targets of one value --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[0, 0, 0], [2.5, nan, 2.5], ["2,5", "2,5", "NA"]])
def test_a_target_of_one_number_is_accepted(values):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": values})
    encoder, _ = TableEncoder.learn(frame, "y")
    assert len(set(encoder.target(drop_missing_target(frame, "y")[0]))) == 1


def test_a_target_of_one_class_is_accepted():
    frame = pd.DataFrame({"a": [1.0, 2.0], "y": ["u", None]})
    encoder, notes = TableEncoder.learn(frame, "y", classes=True)
    assert notes == []
    assert encoder.target(frame).tolist() == ["u", None]
