"""Tables: every rule of the encoder, every way a file can be bad, and files that appear whole or not at all."""

import datetime
import decimal
import gzip
import json
import os
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pseudopoint.tables import (
    TableEncoder,
    TableError,
    class_target,
    describe,
    drop_missing_target,
    looks_like_classes,
    read_chunks,
    read_table,
    whole_file,
    write_chunks,
)

nan = float("nan")


def learn(**columns) -> tuple[TableEncoder, list[str]]:
    rows = len(next(iter(columns.values())))
    return TableEncoder.learn(pd.DataFrame({**columns, "y": np.arange(float(rows))}), "y")


def encode(encoder: TableEncoder, **columns) -> tuple[list[list[float]], list[str]]:
    X, notes = encoder.inputs(pd.DataFrame(columns))
    return X.tolist(), notes


def column(encoder: TableEncoder, values) -> list[float]:
    (name,) = (column.name for column in encoder.columns)
    X, _ = encoder.inputs(pd.DataFrame({name: values}))
    return X[:, 0].tolist()


def write(path, content: bytes):
    path.write_bytes(content)
    return path


# ---- Numbers ---------------------------------------------------------------------------------------------------------


def test_numbers_pass_through_in_the_order_of_the_training_columns():
    encoder, notes = learn(b=[1, 2, 3], a=[0.5, 1.5, 2.5])
    assert encoder.feature_names == ["b", "a"] and notes == []
    assert encode(encoder, a=[7.0], extra=["ignored"], b=[8]) == ([[8.0, 7.0]], [])


def test_gaps_of_training_get_the_median_and_an_indicator():
    encoder, notes = learn(a=[1.0, nan, 3.0, 8.0], b=[1.0, 2.0, 3.0, 4.0])
    assert encoder.feature_names == ["a", "a_missing", "b"]
    assert encode(encoder, a=[nan, 5.0], b=[1.0, 1.0]) == ([[3.0, 1.0, 1.0], [5.0, 0.0, 1.0]], [])
    assert notes == ["column 'a': 1 row of 4 without a value; filled with the median and marked in 'a_missing'"]


def test_a_gap_where_training_had_none_gets_the_median_and_a_note():
    encoder, _ = learn(a=[1.0, 2.0, 6.0])
    X, notes = encode(encoder, a=[nan, 4.0, nan])
    assert X == [[2.0], [4.0], [2.0]]
    assert notes == [
        "column 'a': missing values, of which training had none, in 2 rows; the median of training fills them"
    ]


def test_text_in_a_column_of_numbers_counts_as_missing_with_a_note():
    encoder, _ = learn(a=[1.0, nan, 3.0])
    X, notes = encode(encoder, a=["7.5", "oops", " ", None])
    assert X == [[7.5, 0.0], [2.0, 1.0], [2.0, 1.0], [2.0, 1.0]]
    assert notes == ["column 'a': text that is no number in 1 row ('oops'); it counts as missing"]


def test_a_marker_among_numbers_means_missing_and_is_said():
    encoder, notes = learn(power=["130", "?", "165.5"])
    assert encoder.feature_names == ["power", "power_missing"]
    assert encode(encoder, power=["130", None])[0] == [[130.0, 0.0], [147.75, 1.0]]
    assert "1 row of 3 without a value ('?')" in notes[0]


def test_any_other_text_among_numbers_makes_categories():
    encoder, _ = learn(code=["1", "2", "2A"])
    assert encoder.feature_names == ["code=1", "code=2", "code=2A"]


@pytest.mark.parametrize(
    "values",
    [
        pd.array([1, None, 3], dtype="Int64"),
        pd.array([1.0, None, 3.0], dtype="Float32"),
        pd.array([1, None, 3], dtype="int32[pyarrow]"),
        pd.array([1.0, None, 3.0], dtype="double[pyarrow]"),
        pd.arrays.ArrowExtensionArray(pa.array([decimal.Decimal(1), None, decimal.Decimal(3)])),
        np.array([1, None, 3], dtype=object),
        np.array([decimal.Decimal(1), None, decimal.Decimal(3)], dtype=object),
        np.array([1.0, nan, 3.0], dtype=np.float32),
    ],
    ids=lambda values: type(values).__name__ + str(values.dtype),
)
def test_every_kind_of_number_in_pandas(values):
    encoder, _ = learn(a=values)
    assert encoder.feature_names == ["a", "a_missing"]
    assert encode(encoder, a=values)[0] == [[1.0, 0.0], [2.0, 1.0], [3.0, 0.0]]


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinity_is_an_error_that_names_column_and_row(bad):
    with pytest.raises(TableError, match="column 'a' is infinite in row 2"):
        learn(a=[1.0, bad, bad])
    encoder, _ = learn(a=[1.0, 2.0])
    with pytest.raises(TableError, match="column 'a' is infinite in row 1"):
        encode(encoder, a=[bad])
    with pytest.raises(TableError, match="column 'a' is infinite in row 1"):
        encode(encoder, a=["inf"])
    with pytest.raises(TableError, match="column 'y' is infinite in row 2"):
        TableEncoder.learn(pd.DataFrame({"a": [1.0, 2.0], "y": [0.0, bad]}), "y")


def test_a_row_keeps_its_number_in_part_of_a_table():
    frame = pd.DataFrame({"a": [0.0, 1.0, np.inf], "y": [0.0, 1.0, 2.0]})
    with pytest.raises(TableError, match="in row 3"):
        TableEncoder.learn(frame.iloc[[2, 0]], "y")
    with pytest.raises(TableError, match="in row 1"):
        TableEncoder.learn(frame.iloc[[2, 0]].set_index(pd.Index(["u", "v"])), "y")


# ---- Booleans and categories -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        pd.array([True, None, False, True], dtype="boolean"),
        pd.array([True, None, False, True], dtype="bool[pyarrow]"),
        np.array([True, None, False, True], dtype=object),
    ],
    ids=lambda values: str(values.dtype),
)
def test_booleans_are_one_column(values):
    encoder, _ = learn(b=values)
    assert encoder.feature_names == ["b", "b_missing"]
    assert encode(encoder, b=values)[0] == [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]


def test_booleans_are_read_from_whatever_a_later_table_has():
    encoder, _ = learn(b=[True, False])
    assert column(encoder, ["TRUE", "false", "0", 1]) == [1.0, 0.0, 0.0, 1.0]
    assert column(encoder, [1, 0]) == [1.0, 0.0]
    X, notes = encode(encoder, b=["True", "perhaps"])
    assert X == [[1.0], [0.5]] and "text that is no boolean in 1 row ('perhaps')" in notes[0]


def test_categories_are_one_hot_and_a_gap_is_all_zero_with_an_indicator():
    encoder, notes = learn(city=["Oslo", "Rome", "Oslo", None])
    assert encoder.feature_names == ["city=Oslo", "city=Rome", "city_missing"]
    assert encode(encoder, city=["Rome", "", " Oslo "])[0] == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    assert notes == ["column 'city': 1 row of 4 without a value, marked in 'city_missing'"]


def test_an_unseen_category_is_said_and_not_fatal():
    encoder, _ = learn(city=["Rome", "Paris"])
    X, notes = encode(encoder, city=["Oslo", "Rome", "Oslo", "Bergen"])
    assert X == [[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    assert notes == [
        "column 'city': categories not seen in training in 3 rows ('Oslo', 'Bergen'); "
        "they count as none of the known ones"
    ]


def test_a_missing_category_where_training_had_none_is_said():
    encoder, _ = learn(city=["Rome", "Paris"])
    X, notes = encode(encoder, city=[None, "Rome"])
    assert X == [[0.0, 0.0], [0.0, 1.0]]
    assert notes == [
        "column 'city': missing values, of which training had none, in 1 row; "
        "they count as none of the known categories"
    ]


def test_only_the_fifty_most_frequent_categories_are_kept():
    cities = [f"c{i:02}" for i in range(60)] * 2 + ["c59", "c58"]
    encoder, notes = learn(city=cities)
    kept = encoder.feature_names
    assert len(kept) == 50 and kept[-2:] == ["city=c58", "city=c59"] and "city=c48" not in kept
    assert notes == ["column 'city': 10 categories beyond the 50 most frequent count as none of them"]
    X, notes = encode(encoder, city=["c48", "c58"])
    assert np.sum(X, axis=1).tolist() == [0.0, 1.0]
    assert "other than the 50 most frequent of training in 1 row ('c48')" in notes[0]


def test_the_order_of_rows_does_not_choose_the_categories():
    cities = [f"c{i:02}" for i in range(60)] * 2
    assert learn(city=cities)[0] == learn(city=cities[::-1])[0]


def test_text_that_names_every_row_is_dropped():
    names = [f"row {i}" for i in range(51)]
    encoder, notes = learn(name=[*names, "row 0"], a=np.arange(52.0))
    assert encoder.feature_names == ["a"]
    assert notes == ["column 'name': 51 different texts in 52 rows; left out as an identifier"]
    assert len(learn(name=names[:50])[0].feature_names) == 50


@pytest.mark.parametrize("dtype", ["category", "string", "str", "string[pyarrow]", "object"])
def test_every_kind_of_text_in_pandas(dtype):
    values = pd.Series(["u", None, "v"], dtype=dtype)
    encoder, _ = learn(t=values)
    assert encode(encoder, t=values)[0] == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]


def test_categories_of_numbers_are_categories():
    encoder, _ = learn(t=pd.Series([3, 5, 3], dtype="category"))
    assert encoder.feature_names == ["t=3", "t=5"]
    assert encode(encoder, t=["5", "3"]) == encode(encoder, t=[5, 3])


def test_mixed_cells_are_categories():
    encoder, _ = learn(t=[True, "x", 1, None])
    assert encoder.feature_names == ["t=1", "t=True", "t=x", "t_missing"]
    lists, _ = learn(t=[[1], [2], [1]])
    assert lists.feature_names == ["t=[1]", "t=[2]"]


# ---- Dates -----------------------------------------------------------------------------------------------------------

NOON = datetime.datetime(1970, 1, 2, 12)


@pytest.mark.parametrize(
    "values",
    [
        pd.Series([NOON, None, datetime.datetime(1970, 1, 1)], dtype="datetime64[ns]"),
        pd.Series([NOON, None, datetime.datetime(1970, 1, 1)]).dt.tz_localize("UTC").dt.tz_convert("Europe/Oslo"),
        pd.Series(pd.arrays.ArrowExtensionArray(pa.array([NOON, None, datetime.datetime(1970, 1, 1)]))),
        pd.Series(["1970-01-02 12:00", None, "1970-01-01"]),
        pd.Series(["1970-01-02T14:00:00+02:00", "", "1970-01-01"], dtype=object),
        pd.Series([NOON, None, datetime.date(1970, 1, 1)], dtype=object),
    ],
    ids=["naive", "zone", "arrow", "text", "offset", "object"],
)
def test_dates_are_days_since_1970(values):
    encoder, _ = learn(t=values)
    assert encoder.feature_names == ["t", "t_missing"]
    assert encode(encoder, t=values)[0] == [[1.5, 0.0], [0.75, 1.0], [0.0, 0.0]]


def test_arrow_dates_and_dates_beyond_nanoseconds():
    days = pd.arrays.ArrowExtensionArray(pa.array([datetime.date(1970, 1, 3), datetime.date(1, 1, 1)]))
    encoder, _ = learn(t=days)
    assert column(encoder, days) == [2.0, -719162.0]


def test_text_that_only_resembles_dates_is_text():
    assert learn(t=["2024", "2025"])[0].feature_names == ["t=2024", "t=2025"]
    assert learn(t=["2024-01-01", "2024-13-01"])[0].columns[0].kind == "category"


def test_what_is_no_date_counts_as_missing_with_a_note():
    encoder, _ = learn(t=["2024-01-01", "2024-01-03"])
    X, notes = encode(encoder, t=["2024-01-01", "soon"])
    assert X == [[19723.0], [19724.0]]
    assert notes == ["column 't': text that is no date in 1 row ('soon'); it counts as missing"]
    assert "no date in 1 row ('19723')" in encode(encoder, t=[19723])[1][0]


# ---- Columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [[nan, nan], [None, None], ["", " "], pd.array([None, None], dtype="Int64")])
def test_a_column_that_is_all_missing_is_dropped(empty):
    encoder, notes = learn(a=empty, b=[1.0, 2.0])
    assert encoder.feature_names == ["b"]
    assert notes == ["column 'a' is missing in every row; it is left out"]


def test_saved_row_labels_are_dropped():
    encoder, notes = learn(**{"Unnamed: 0": [0, 1], "__index_level_0__": [0, 1], "a": [1.0, 2.0]})
    assert encoder.feature_names == ["a"] and len(notes) == 2 and "left out" in notes[0]


def test_a_missing_column_is_named_with_those_there_are():
    encoder, _ = learn(a=[1.0], b=[2.0], price=[3.0])
    with pytest.raises(TableError, match="no column 'a'; its columns are 'b', 'price'"):
        encode(encoder, b=[1.0], price=[1.0])
    with pytest.raises(TableError, match="no columns 'a', 'price'; did you mean 'Prices'"):
        encode(encoder, b=[1.0], Prices=[1.0])


def test_no_usable_input_is_an_error():
    with pytest.raises(TableError, match="no usable input beside the target 'y'; column 'a' is missing in every row"):
        learn(a=[None, None])


def test_column_names_become_text_and_must_differ():
    frame = pd.DataFrame([[1.0, 2.0]], columns=pd.Index([0, 1]))
    encoder, _ = TableEncoder.learn(frame, "1")
    assert encoder.feature_names == ["0"] and encoder.inputs(frame)[0].tolist() == [[1.0]]
    with pytest.raises(TableError, match="more than one column is called 'a'"):
        TableEncoder.learn(pd.DataFrame([[1.0, 2.0, 3.0]], columns=pd.Index(["a", "a", "y"])), "y")


def test_notes_of_several_chunks_are_added_up():
    encoder, _ = learn(city=["Rome", "Paris"])
    odd = [encoder.encode(pd.DataFrame({"city": chunk}))[1] for chunk in (["Oslo", "x" * 99], ["Bergen"], ["Turku"])]
    (note,) = describe(oddity for oddities in odd for oddity in oddities)
    assert f"in 4 rows ('Oslo', '{'x' * 40}…', 'Bergen', …)" in note


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


def test_no_label_at_all_or_one_class_only_is_an_error():
    with pytest.raises(TableError, match="'y' is missing in every row; name a column that holds labels"):
        drop_missing_target(pd.DataFrame({"y": [None, ""]}), "y", classes=True)
    for values, what in [(["u", None], "holds one class only, 'u'"), ([None, None], "is missing in every row")]:
        with pytest.raises(TableError, match=f"'y' {what}; classification needs rows of at least two classes"):
            TableEncoder.learn(pd.DataFrame({"a": [1.0, 2.0], "y": values}), "y", classes=True)
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
        (["1", "0", "?"], False, "holds numbers, and something else in 1 row ('?')"),
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
    assert not encoder.classes and encoder == learn(a=[1.0, 2.0])[0]
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


# ---- Properties ------------------------------------------------------------------------------------------------------

cells = {
    "number": st.floats(allow_infinity=False, width=32) | st.none(),
    "text": st.sampled_from(["u", "v", "01", "1", "", " w"]) | st.none(),
    "mixed": st.sampled_from([True, False, "x", 1, None]),
    "date": st.dates(datetime.date(1900, 1, 1)).map(str) | st.none(),
    "y": st.floats(-1e6, 1e6),
}
PLAIN = {"number": 1.0, "text": "u", "mixed": True, "date": "2020-01-01", "y": 0.0}
frames = st.lists(st.fixed_dictionaries(cells), min_size=1, max_size=30).map(pd.DataFrame)
# With one row that has everything, so that no column is dropped.
training_frames = st.lists(st.fixed_dictionaries(cells), max_size=30).map(lambda rows: pd.DataFrame([*rows, PLAIN]))


@settings(max_examples=60, deadline=None)
@given(training_frames, frames, st.data())
def test_rows_are_encoded_one_by_one_in_order(training, frame, data):
    encoder, _ = TableEncoder.learn(training, "y")
    X, _ = encoder.inputs(frame)
    assert X.shape == (len(frame), len(encoder.feature_names)) and np.isfinite(X).all()
    rows = data.draw(st.permutations(range(len(frame))))
    np.testing.assert_array_equal(encoder.inputs(frame.iloc[rows])[0], X[rows])
    cut = data.draw(st.integers(0, len(frame)))
    np.testing.assert_array_equal(np.vstack([encoder.inputs(part)[0] for part in (frame[:cut], frame[cut:])]), X)


@settings(max_examples=30, deadline=None)
@given(training_frames)
def test_an_encoder_survives_json(frame):
    encoder, _ = TableEncoder.learn(frame, "y")
    assert TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict(), allow_nan=False))) == encoder


@settings(max_examples=30, deadline=None)
@given(training_frames, st.sampled_from([".csv", ".csv.gz", ".parquet"]), st.integers(1, 12))
def test_a_table_read_in_chunks_is_the_table_read_whole(tmp_path_factory, frame, suffix, rows):
    path = tmp_path_factory.mktemp("t") / f"table{suffix}"
    frame = frame.astype(dict.fromkeys(["text", "mixed", "date"], "string"))
    with write_chunks(path) as writer:
        writer.append(frame[:3])
        writer.append(frame[3:])
    whole = read_table(path)
    encoder, _ = TableEncoder.learn(whole, "y")
    chunks = list(read_chunks(path, rows, encoder))
    assert [len(chunk) for chunk in chunks[:-1]] == [rows] * (len(chunks) - 1)
    X, _ = encoder.inputs(read_table(path, encoder.text_columns))
    np.testing.assert_array_equal(np.vstack([encoder.inputs(chunk)[0] for chunk in chunks]), X)
    np.testing.assert_array_equal(np.concatenate([encoder.target(chunk) for chunk in chunks]), encoder.target(whole))
    np.testing.assert_array_equal(np.concatenate([chunk.index for chunk in chunks]), np.arange(len(frame)))


def test_a_damaged_encoder_is_an_error():
    for fields in ({}, {"target_name": "y", "columns": [{"nome": "a"}]}, {"target_name": "y", "columns": 3}):
        with pytest.raises(TableError, match="describe no table encoder"):
            TableEncoder.from_dict(fields)


# ---- Reading ---------------------------------------------------------------------------------------------------------


def test_text_columns_keep_their_zeros_in_every_chunk(tmp_path):
    path = write(tmp_path / "t.csv", b"zip,y\nA1,1\nB2,2\n01234,3\n00007,4\n")
    encoder, _ = TableEncoder.learn(read_table(path), "y")
    chunks = [chunk["zip"].tolist() for chunk in read_chunks(path, 2, encoder)]
    assert chunks == [["A1", "B2"], ["01234", "00007"]]
    assert read_table(write(tmp_path / "u.csv", b"zip\n01\n"), text=["zip"])["zip"].tolist() == ["01"]


def test_an_infinite_cell_is_found_by_its_row_in_a_later_chunk(tmp_path):
    path = write(tmp_path / "t.csv", b"a,y\n1,1\n2,2\n3,3\n-inf,4\n")
    encoder, _ = learn(a=[1.0, 2.0])
    with pytest.raises(TableError, match="column 'a' is infinite in row 4"):
        list(map(encoder.inputs, read_chunks(path, 3, encoder)))


def test_memory_does_not_grow_with_a_parquet_table(tmp_path):
    path, part = (
        tmp_path / "t.parquet",
        pd.DataFrame(np.random.default_rng(0).normal(size=(20_000, 4)), columns=list("abcy")),
    )
    with write_chunks(path) as writer:
        for _ in range(40):
            writer.append(part)
    encoder, _ = TableEncoder.learn(part, "y")
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in read_chunks(path, 10_000, encoder)]
    assert len(held) == 80 and max(held) < 0.2 * 40 * part.memory_usage().sum()


@pytest.mark.parametrize(
    "content",
    [
        b"a,y\n1.5,x\n",
        b"\xef\xbb\xbfa,y\r\n1.5,x\r\n",
        b"\n\n a , y \n1.5, x\n",
        b"a;y\n1.5;x\n",
        b"a\ty\n1.5\tx\n",
        b'"a","y"\n"1.5","x"\n',
    ],
)
def test_the_dialects_of_csv(tmp_path, content):
    frame = read_table(write(tmp_path / "t.CSV", content))
    assert list(frame.columns) == ["a", "y"] and frame["a"].tolist() == [1.5]
    assert [text.strip() for text in frame["y"]] == ["x"]
    assert read_table(write(tmp_path / "t.csv.gz", gzip.compress(content))).equals(frame)


def test_a_parquet_index_is_a_column(tmp_path):
    frame = pd.DataFrame({"a": [1, 2]}, index=pd.Index(["u", "v"], name="key"))
    frame.to_parquet(tmp_path / "t.parquet")
    read = read_table(tmp_path / "t.parquet")
    assert sorted(read.columns) == ["a", "key"] and read.index.tolist() == [0, 1]


GARBAGE = bytes(range(256)) * 20
BAD_FILES = {
    "t.xlsx": (b"", "unknown kind of table; use a file whose name ends in .csv, .csv.gz or .parquet"),
    "absent.csv": (None, "no such file"),
    "absent.csv.gz": (None, "no such file"),
    "absent.parquet": (None, "no such file"),
    "empty.csv": (b"", "the file is empty"),
    "blank.csv": (b"\n  \n\n", "the file is empty"),
    "empty.csv.gz": (gzip.compress(b""), "the file is empty"),
    "empty.parquet": (b"", "not a whole Parquet file"),
    "header.csv": (b"a,y\n", "a header but no rows"),
    "header.csv.gz": (gzip.compress(b"a,y"), "a header but no rows"),
    "twice.csv": (b"a,b,a\n1,2,3\n", "more than one column is called 'a'; rename all but one"),
    "garbage.csv": (GARBAGE, "not UTF-8 text"),
    "zeros.csv": (bytes(1000), "binary data, not a text table"),
    "garbage.csv.gz": (GARBAGE, "not a whole gzip file"),
    "cut.csv.gz": (gzip.compress(b"a,y\n" + os.urandom(9999).hex().encode() + b",1\n")[:-20], "not a whole gzip file"),
    "garbage.parquet": (GARBAGE, "not a whole Parquet file"),
    "latin.csv": ("å,y\n1,2\n".encode("latin-1"), "not UTF-8 text"),
    "utf16.csv": ("a,y\n1,2\n".encode("utf-16"), "not UTF-8 text"),
    "long.csv": (b"a,y\n1,2,3\n", "row 1 has 3 cells but the header 2"),
    "later.csv": (b"a,y\n1,2\n1,2,3\n", "line 3 has 3 cells where the header has 2"),
    "quote.csv": (b'a,y\n"1,2\n3,4\n', "not a readable CSV table"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_one_sentence_that_names_it(tmp_path, name):
    content, message = BAD_FILES[name]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    encoder, _ = learn(a=[1.0])
    for attempt in (lambda: read_table(path), lambda: list(read_chunks(path, 10, encoder))):
        with pytest.raises(TableError, match=re.escape(message)) as error:
            attempt()
        assert str(path) in str(error.value) and "\n" not in str(error.value) and ";" in str(error.value)


@pytest.mark.parametrize("name", ["folder.csv", "folder.parquet"])
def test_a_folder_is_no_table(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(TableError, match="cannot be read"):
        read_table(tmp_path / name)


def test_a_parquet_file_without_rows_or_with_a_repeated_name(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": pa.array([], pa.float64())}), path)
    with pytest.raises(TableError, match="no rows"):
        read_table(path)
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    with pytest.raises(TableError, match="more than one column is called 'a'"):
        read_table(path)


# ---- Writing ---------------------------------------------------------------------------------------------------------

PARTS = [pd.DataFrame({"mean": [1, 2], "name": ["a,b", 'say "c"']}), pd.DataFrame({"mean": [0.1], "name": ["ø\nd"]})]
SUFFIXES = ["csv", "csv.gz", "parquet"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_chunks_written_are_the_table_read(tmp_path, suffix):
    parts = [part.astype({"mean": float}) for part in PARTS]
    with write_chunks(tmp_path / f"t.{suffix}") as writer:
        for part in parts:
            writer.append(part)
    pd.testing.assert_frame_equal(read_table(tmp_path / f"t.{suffix}"), pd.concat(parts, ignore_index=True))
    assert os.listdir(tmp_path) == [f"t.{suffix}"]


def test_the_first_chunk_fixes_the_types_of_parquet(tmp_path):
    with write_chunks(tmp_path / "t.parquet") as writer:
        writer.append(pd.DataFrame({"a": [0.5]}))
        writer.append(pd.DataFrame({"a": [2]}))
    assert read_table(tmp_path / "t.parquet")["a"].tolist() == [0.5, 2.0]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_what_was_there(tmp_path, suffix, failure):
    path = write(tmp_path / f"t.{suffix}", b"before")
    with pytest.raises(failure), write_chunks(path) as writer:
        writer.append(PARTS[0])
        raise failure
    assert os.listdir(tmp_path) == [path.name] and path.read_bytes() == b"before"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_nothing_written_is_an_error_and_no_file(tmp_path, suffix):
    with pytest.raises(TableError, match="nothing to write"), write_chunks(tmp_path / f"t.{suffix}"):
        pass
    assert os.listdir(tmp_path) == []


def test_chunks_must_have_the_same_columns(tmp_path):
    with pytest.raises(ValueError, match="cannot follow"), write_chunks(tmp_path / "t.csv") as writer:
        writer.append(pd.DataFrame({"a": [1], "b": [2]}))
        writer.append(pd.DataFrame({"b": [1], "a": [2]}))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_rows_are_the_same_bytes(tmp_path, suffix):
    for name in "uv":
        with write_chunks(tmp_path / f"{name}.{suffix}") as writer:
            writer.append(PARTS[0])
    assert (tmp_path / f"u.{suffix}").read_bytes() == (tmp_path / f"v.{suffix}").read_bytes()


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    for name, message in [
        ("t.xlsx", "unknown kind of table"),
        ("none/t.csv", "cannot be written"),
        ("folder.csv", "folder"),
    ]:
        with pytest.raises(TableError, match=message), write_chunks(tmp_path / name):
            pass


def test_a_whole_file_goes_where_a_link_points(tmp_path):
    real, link = write(tmp_path / "real", b"before"), tmp_path / "link"
    link.symlink_to(real)
    with whole_file(link) as handle:
        handle.write(b"after")
        assert real.read_bytes() == b"before"
    assert link.is_symlink() and real.read_bytes() == b"after"
