"""Tables: every rule of the encoder of inputs."""

import datetime
import decimal
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_helpers import column, encode, learn, nan

from pseudopoint.tables import (
    TableEncoder,
    TableError,
    describe,
    read_chunks,
    read_table,
    write_chunks,
)

pytestmark = pytest.mark.edge

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


def test_text_that_only_resembles_dates_is_none():
    assert learn(t=["2024", "2025"])[0].columns[0].kind == "number"
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
