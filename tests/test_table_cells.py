"""Tables: numbers written for people, cells that are none, words that mean missing, and values that stand for them."""

import decimal
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_helpers import column, encode, learn, nan, write

from pseudopoint.tables import TableEncoder, TableError, number_target, read_chunks, read_table
from pseudopoint.tables.numerals import parse_numbers

# ---- Numbers written for people --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1,5", "2,25", "-0,5"], [1.5, 2.25, -0.5]),
        (["1.234,56", "7,5", "1.234.567"], [1234.56, 7.5, 1234567.0]),
        (["1,234.56", "7.5", "1,234,567"], [1234.56, 7.5, 1234567.0]),
        (["1 234,5", "12", "1 234 567"], [1234.5, 12.0, 1234567.0]),
        (["1\u00a0234,5", "1\u202f234,5", "1\u2009234"], [1234.5, 1234.5, 1234.0]),
        (["1'234.5", "1’234.5", "12"], [1234.5, 1234.5, 12.0]),
        (["12,34,567", "1,00,000.5", "99"], [1234567.0, 100000.5, 99.0]),
        (["+3", "−3", "-3", "3-"], [3.0, -3.0, -3.0, -3.0]),
        (["€ 12", "12 €", "€12", "-€12", "12 EUR"], [12.0, 12.0, 12.0, -12.0, 12.0]),
        (["$1,200", "US$ 3.50", "$-4.00"], [1200.0, 3.5, -4.0]),
        (["12 %", "3.5%", "-1 %"], [12.0, 3.5, -1.0]),
        (["(1,200)", "1,300.00", "($5)"], [-1200.0, 1300.0, -5.0]),
        (["1,5e3", "2E-1", "0,001"], [1500.0, 0.2, 0.001]),
        ([".5", "5.", "0.25"], [0.5, 5.0, 0.25]),
        (["1.234", "0,5", "12"], [1234.0, 0.5, 12.0]),
        (["1,234", "0.5", "12"], [1234.0, 0.5, 12.0]),
    ],
)
def test_numbers_written_for_people_are_numbers(cells, values):
    encoder, _ = learn(price=cells)
    assert [column.kind for column in encoder.columns] == ["number"]
    assert column(encoder, cells) == values
    # One parser for inputs and target.
    assert number_target(pd.DataFrame({"y": cells}), "y").tolist() == values


@pytest.mark.parametrize(
    "cell", ["--5", "(-5)", "(5", "1,23,4", "1..5", "1_000", "12 kg", "ABC 12", "1,2345.6", "", "e5"]
)
def test_what_no_one_writes_for_a_number_is_none(cell):
    assert np.isnan(parse_numbers(np.array([cell, cell], object), ".")).all()


def test_the_decimal_mark_of_training_reads_chunks_and_later_files_alike(tmp_path):
    path = write(tmp_path / "t.csv", b"p;y\n1,5;1\n2,25;2\n1.234;3\n2.500;4\n7;5\n")
    encoder, notes = TableEncoder.learn(read_table(path), "y")
    expected = [1.5, 2.25, 1234.0, 2500.0, 7.0]
    assert notes == [] and encoder.text_columns == ("p",)
    for rows in (1, 2, 5):
        chunks = [encoder.inputs(chunk)[0] for chunk in read_chunks(path, rows, encoder)]
        assert np.vstack(chunks)[:, 0].tolist() == expected
    later = write(tmp_path / "u.csv", b"p;y\n1.234;1\n")
    assert encoder.inputs(read_table(later, encoder.text_columns))[0].tolist() == [[1234.0]]
    # A column that holds numbers already has no decimal mark.
    assert encode(encoder, p=[1.234])[0] == [[1.234]]
    assert encode(encoder, p=np.array([decimal.Decimal("1.234"), 2], object))[0] == [[1.234], [2.0]]


def test_a_target_with_decimal_commas_is_read_in_every_chunk(tmp_path):
    path = write(tmp_path / "t.csv", b"a\ty\n1\t1,5\n2\t2,5\n3\t1.000\n4\t\n")
    encoder, _ = TableEncoder.learn(read_table(path), "y")
    assert encoder.text_columns == ("y",)
    chunks = [encoder.target(chunk) for chunk in read_chunks(path, 1, encoder)]
    np.testing.assert_array_equal(np.concatenate(chunks), [1.5, 2.5, 1000.0, nan])


@pytest.mark.parametrize(
    ("content", "value", "how"),
    [
        (b'a,y\n"1,234",1\n"5,000",2\n', 1234.0, "'1,234' is read as 1234, with a comma between thousands and not"),
        (b"a;y\n1,234;1\n5,000;2\n", 1.234, "'1,234' is read as 1.234, with a decimal comma and not"),
        (b'a,b,y\n"1,234","0,5",1\n"5,000","0,7",2\n', 1.234, "with a decimal comma"),
        (b"a;b;y\n1,234;0.5;1\n5,000;0.7;2\n", 1234.0, "with a comma between thousands"),
        (b"a;b;y\n1.234;0,5;1\n5.000;0,7;2\n", 1234.0, "with a point between thousands and not a decimal point"),
        (b'a,b,y\n1.234,"0,5",1\n5.000,"0,7",2\n', 1234.0, "with a point between thousands"),
        (b'a,b,y\n1.234,"1,000",1\nx,"5,000",2\n' + b"1.5,,3\n" * 20, 1.234, None),
    ],
)
def test_a_mark_with_two_readings_is_settled_by_the_table_and_told(tmp_path, content, value, how):
    frame = read_table(write(tmp_path / "t.csv", content))
    encoder, notes = TableEncoder.learn(frame, "y")
    assert encoder.inputs(frame)[0][0, 0] == value
    assert sum("column 'a': every number could be read in two ways" in note for note in notes) == (how is not None)
    assert how is None or any(how in note for note in notes)


def test_the_whole_table_decides_for_the_part_that_is_trained_on():
    whole = pd.DataFrame({"a": ["1,234", "5,000", "0,5"], "y": ["1,234", "2,000", "2,5"]})
    encoder, notes = TableEncoder.learn(whole.head(2), "y", whole=whole)
    assert encoder.inputs(whole)[0][:, 0].tolist() == [1.234, 5.0, 0.5] and notes == []
    assert encoder.target(whole).tolist() == [1.234, 2.0, 2.5]


def test_the_unit_of_per_cent_is_told_and_mixed_units_are():
    assert learn(a=["12 %", "3 %"])[1] == ["column 'a': values are in per cent, so '12 %' is 12"]
    assert "cells without the sign are read as they are" in learn(a=["12 %", "3"])[1][0]
    assert learn(a=["€ 12", "3 €"])[1] == []
    assert learn(a=["€ 12", "$ 3"])[1] == ["column 'a': values carry different units, '$', '€', which are ignored"]
    _, notes = TableEncoder.learn(pd.DataFrame({"a": [1.0, 2.0], "y": ["12 %", "13 %"]}), "y")
    assert notes == ["column 'y': values are in per cent, so '12 %' is 12"]


def test_a_later_table_in_another_unit_is_told():
    signed, _ = learn(a=["12 %", "13 %"])
    plain, _ = learn(a=[0.12, 0.13])
    assert encode(signed, a=["12 %", None])[1][1:] == []
    for values in ([0.12, 0.5], ["0.12", "0.5"]):
        assert encode(signed, a=values)[1] == [
            "column 'a': numbers without a per cent sign in 2 rows ('0.12', '0.5'); they are taken for per cent"
        ]
    X, notes = encode(plain, a=["12 %", "0.5"])
    assert X == [[12.0], [0.5]]
    assert notes == [
        "column 'a': per cent signs, of which training had none, in 1 row ('12 %'); '12 %' is taken for 12"
    ]
    assert TableEncoder.from_dict(json.loads(json.dumps(signed.to_dict()))) == signed


# ---- Cells that are no numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["<0.01", "#DIV/0!", "1,234", "oops"])
@pytest.mark.parametrize("rows", [5, 12, 150])
def test_one_cell_that_is_no_number_leaves_a_column_of_numbers(fault, rows):
    cells = [f"{i}.25" for i in range(rows)]
    cells[3] = fault
    encoder, notes = learn(a=cells)
    if fault == "1,234":  # is one, between thousands
        assert notes == [] and column(encoder, cells)[3] == 1234.0
        return
    assert encoder.feature_names == ["a", "a_missing"] and column(encoder, cells)[:3] == [0.25, 1.25, 2.25]
    assert notes == [
        f"column 'a': 1 row of {rows} without a value, 1 of them with text that is no value ({fault!r}), "
        "first in row 4; filled with the median and marked in 'a_missing'"
    ]


def test_a_cell_that_is_no_number_is_named_by_its_row_of_the_file_wherever_the_training_rows_come_from():
    frame = pd.DataFrame({"a": [*"0123456789", "x", "y"] * 2, "y": range((24.0).__int__())})
    _, notes = TableEncoder.learn(frame.iloc[::-1], "y")
    assert "too many to read the others as numbers" in notes[0]
    frame.loc[11:, "a"] = "5"
    _, notes = TableEncoder.learn(frame.iloc[::-1], "y")
    assert "1 of them with text that is no value ('x'), first in row 11" in notes[0]


@pytest.mark.parametrize(
    ("good", "bad", "kind"),
    [(9, 1, "number"), (18, 2, "number"), (17, 3, "category"), (4, 1, "number"), (3, 1, "category")],
)
def test_nine_in_ten_or_all_but_one_of_five_are_nearly_all(good, bad, kind):
    cells = [f"{i % 7}" for i in range(good)] + ["bad"] * bad
    encoder, notes = learn(a=cells)
    assert encoder.columns[0].kind == kind
    assert any("too many to read the others as numbers" in note for note in notes) == (kind == "category")


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["2024-01-01", "2024-02-01", "2024-03-01", "2024-04-01", "soon"], "date"),
        (["31.12.2024", "1.1.2025", "2.1.2025", "3.1.2025", "31.2.2025"], "date"),
        (["8:15", "9:30", "10:45", "11:00", "noon"], "time"),
        (["1 days", "2 days", "3 days 04:00:00", "5 days", "long"], "duration"),
    ],
)
def test_one_cell_that_is_no_date_leaves_a_column_of_dates(cells, kind):
    encoder, notes = learn(t=cells)
    assert encoder.columns[0].kind == kind and encoder.feature_names == ["t", "t_missing"]
    assert f"1 of them with text that is no value ({cells[-1]!r}), first in row 5" in notes[0]


# ---- Words that mean missing -----------------------------------------------------------------------------------------

WORDS = ["None", "NA", "null", "nan", "N/A", "-"]


def written(path, frame: pd.DataFrame):
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_words_are_labels_and_categories_in_text_and_gaps_among_numbers(tmp_path, name):
    text, numbers = ["u", *WORDS, None], ["1.5", *["2.5"] * 6, None]
    frame = pd.DataFrame({"text": text, "number": numbers, "truth": ["True", "False", *WORDS], "y": text})
    frame.loc[1:6, "number"] = WORDS
    path = written(tmp_path / name, frame)
    read = read_table(path)
    encoder, _ = TableEncoder.learn(read, "y", classes=True)
    assert encoder.columns[0].categories == tuple(sorted(["u", *WORDS])) and encoder.columns[0].indicator
    assert encoder.target(read).tolist() == text
    assert [column.kind for column in encoder.columns] == ["category", "number", "boolean"]
    X = encoder.encode(read)[0]
    np.testing.assert_array_equal(X[:, encoder.feature_names.index("number_missing")], [0, *[1] * 7])
    np.testing.assert_array_equal(X[:, encoder.feature_names.index("truth_missing")], [0, 0, *[1] * 6])
    chunks = [encoder.encode(chunk)[0] for chunk in read_chunks(path, 3, encoder)]
    np.testing.assert_array_equal(np.vstack(chunks), X)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_word_is_a_gap_in_a_target_of_numbers_or_of_their_classes(tmp_path, name):
    path = written(tmp_path / name, pd.DataFrame({"a": range(5), "y": ["1", "0", "NA", "0", "?"]}))
    encoder, _ = TableEncoder.learn(read_table(path), "y")
    np.testing.assert_array_equal(encoder.target(read_table(path)), [1, 0, nan, 0, nan])
    encoder, _ = TableEncoder.learn(read_table(path, ["y"]), "y", classes=True)
    for rows in (1, 5):
        labels = [label for chunk in read_chunks(path, rows, encoder) for label in encoder.target(chunk)]
        assert labels == ["1", "0", None, "0", None]


def test_a_column_of_one_such_word_is_missing_in_every_row():
    assert learn(a=["NA", "NA"], b=[1.0, 2.0])[1] == ["column 'a' is missing in every row; it is left out"]
    assert learn(a=["NA", "None"])[0].feature_names == ["a=NA", "a=None"]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_further_words_are_gaps_in_every_column_and_later_table(tmp_path, name):
    frame = pd.DataFrame({"a": [1.5, -999.0, 3.0], "t": ["u", "unknown", "v"], "y": [1, -999, 3]})
    path = written(tmp_path / name, frame)
    encoder, _ = TableEncoder.learn(read_table(path), "y", missing=["-999", "unknown"])
    assert encoder.missing == ("-999", "unknown")
    assert encoder.feature_names == ["a", "a_missing", "t=u", "t=v", "t_missing"]
    encoder = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    for chunk in [read_table(path), *read_chunks(path, 3, encoder)]:
        assert encoder.inputs(chunk)[0].tolist() == [[1.5, 0, 1, 0, 0], [2.25, 1, 0, 0, 1], [3.0, 0, 0, 1, 0]]
        np.testing.assert_array_equal(encoder.target(chunk), [1.0, nan, 3.0])
    for read in (read_table(path, missing=["-999", "u"]), *read_chunks(path, 3, encoder, missing=["-999", "u"])):
        assert read.isna().to_numpy().tolist() == [[False, True, False], [True, False, True], [False, False, False]]


@pytest.mark.parametrize(
    ("values", "word"),
    [
        (pd.Series([1, -999], dtype="int16"), "-999"),
        (pd.Series([1, 9.97e36], dtype="float32"), "9.97e36"),
        (pd.Series([1, -999], dtype="Int64"), "-999.0"),
        (pd.Series(["1", "-999.0"]), "-999"),
        (pd.Series(pd.to_datetime(["2024-01-01", "9999-12-31"])), "9999-12-31"),
        (pd.Series([True, "?"]), "?"),
        (pd.Series(["u", " gone "], dtype="category"), "gone"),
    ],
    ids=lambda value: str(getattr(value, "dtype", value)),
)
def test_a_word_is_found_in_every_type_of_column(values, word):
    encoder, _ = TableEncoder.learn(pd.DataFrame({"a": values, "y": [0.0, 1.0]}), "y", missing=[word])
    assert encoder.columns[0].indicator and encoder.encode(pd.DataFrame({"a": values}))[0][:, -1].tolist() == [0.0, 1.0]


def test_a_number_among_the_words_is_no_code_with_zeros_before_it():
    encoder, _ = TableEncoder.learn(pd.DataFrame({"a": ["01", "x", "1"], "y": [0.0, 1.0, 2.0]}), "y", missing=["1"])
    assert encoder.columns[0].categories == ("01", "x")


# ---- Values that stand for missing ones ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-999999, 9.97e36, -999, 1e20, 99999, -99.0])
@pytest.mark.parametrize("target", [False, True])
def test_a_value_far_from_all_others_that_occurs_several_times_is_told(value, target):
    cells = np.random.default_rng(0).uniform(0, 100, 60)
    cells[[4, 20, 33]] = value
    frame = pd.DataFrame({"a": cells, "b": np.arange(60.0)})
    encoder, notes = TableEncoder.learn(frame, "a" if target else "b")
    (note,) = notes
    assert note.startswith(f"column 'a': {value:.12g} in 3 rows lies far from all other values (")
    assert f"--missing {value:.12g} " in note
    if not target:
        assert column(encoder, cells) == cells.tolist()
    assert "lies far" not in str(TableEncoder.learn(frame, "b", missing=[f"{value:.12g}"])[1])


def test_two_such_values_are_both_told_and_usual_columns_have_none():
    rng = np.random.default_rng(1)
    both = np.concatenate([rng.uniform(0, 10, 50), [-999.0, -888.0, 9999.0] * 2])
    assert [note.split()[2] for note in learn(a=both)[1]] == ["-999", "-888", "9999"]
    for usual in (
        rng.normal(size=99),
        rng.poisson(2, 99),
        rng.exponential(size=99),
        rng.lognormal(0, 2, 99),
        [0, 1] * 9,
    ):
        assert learn(a=usual)[1] == []
    once = np.concatenate([rng.uniform(0, 10, 50), [-999.0]])
    assert learn(a=once)[1] == []


# ---- Encoders of the first version -----------------------------------------------------------------------------------


def old(kind: str, categories=(), **fields) -> TableEncoder:
    a = {"name": "a", "kind": kind, "fill": 0.5, "indicator": True, "categories": list(categories)}
    return TableEncoder.from_dict({"target_name": "y", "columns": [a]} | fields)


def test_an_encoder_of_the_first_version_reads_as_it_did(tmp_path):
    path = write(tmp_path / "t.csv", b'a,y\nu,u\nNA,None\n"1,5",v\n')
    category = old("category", ["u"], classes=True)
    (chunk,) = read_chunks(path, 9, category)
    assert category.encode(chunk)[0].tolist() == [[1, 0], [0, 1], [0, 0]]
    assert category.target(chunk).tolist() == ["u", None, "v"]
    # Of Parquet files and DataFrames, pandas had left the words alone.
    frame = pd.DataFrame({"a": ["None"], "y": ["None"]})
    assert old("category", ["None"], classes=True).encode(frame)[0].tolist() == [[1, 0]]
    assert category.target(frame).tolist() == ["None"]
    number, notes = old("number").inputs(pd.DataFrame({"a": ["1,5", "2.5"]}))
    assert number.tolist() == [[0.5, 1], [2.5, 0]] and "text that is no number in 1 row ('1,5')" in notes[0]
    assert "no date in 1 row ('31.12.2024')" in old("date").inputs(pd.DataFrame({"a": ["31.12.2024"]}))[1][0]
    with pytest.raises(TableError, match="not numeric: row 1 holds '1,5'"):
        old("number").target(pd.DataFrame({"y": ["1,5"]}))


def test_such_an_encoder_saved_again_is_the_same():
    encoder = old("category", ["u"], classes=True)
    assert TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict()))) == encoder
    new, _ = learn(a=["1,5", "x", "2,5"], b=["NA", "v", "v"])
    assert TableEncoder.from_dict(json.loads(json.dumps(new.to_dict()))) == new and new.csv_missing == ()


# ---- Types of Arrow --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "values"),
    [
        (pa.array([decimal.Decimal("1.50"), None], pa.decimal128(9, 2)), [1.5, None]),
        (pa.array([1.5, None], pa.float16()), [1.5, None]),
        (pa.array([1, None], pa.uint8()), [1.0, None]),
        (pa.array(["1,5", None], pa.large_string()), [1.5, None]),
        (pa.array([True, None]), [1.0, None]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_values_of_every_type_of_parquet(tmp_path, array, values):
    pq.write_table(pa.table({"a": array, "y": [0.0, 1.0]}), tmp_path / "t.parquet")
    encoder, _ = TableEncoder.learn(read_table(tmp_path / "t.parquet"), "y")
    assert encoder.encode(read_table(tmp_path / "t.parquet"))[0].tolist() == [[values[0], 0], [values[0], 1]]


def test_dictionaries_of_arrow_are_what_they_hold(tmp_path):
    numbers, text = (pa.array(cells * 40).dictionary_encode() for cells in ([1.5, 2.5], ["u", "v"]))
    table = pa.table({"number": numbers, "text": text, "y": range(80)})
    pq.write_table(table, tmp_path / "t.parquet")
    encoder, _ = TableEncoder.learn(read_table(tmp_path / "t.parquet"), "y")
    assert encoder.feature_names == ["number", "text=u", "text=v"]
    encoder, _ = TableEncoder.learn(table.to_pandas(types_mapper=pd.ArrowDtype), "y")
    assert encoder.feature_names == ["number=1.5", "number=2.5", "text=u", "text=v"]  # pandas' own categories


def test_lists_and_structures_are_categories_or_left_out_with_a_sentence(tmp_path):
    lists = pa.array([[1, 2], [3]] * 30)
    each = pa.array([{"k": i} for i in range(60)])
    pq.write_table(pa.table({"lists": lists, "each": each, "y": range(60)}), tmp_path / "t.parquet")
    encoder, notes = TableEncoder.learn(read_table(tmp_path / "t.parquet"), "y")
    assert len(encoder.feature_names) == 2
    assert notes == ["column 'each': 60 different texts in 60 rows; left out as an identifier"]
    many = pd.DataFrame({"a": [1j * i for i in range(60)], "b": range(60), "y": range(60)})
    assert "column 'a': 60 different texts in 60 rows" in TableEncoder.learn(many, "y")[1][0]


def test_long_lists_that_differ_in_the_middle_are_different_categories():
    long = [np.r_[np.zeros(2000), x, np.zeros(2000)] for x in (1, 2, 1, 2)]
    assert len(learn(a=pd.Series(long, dtype=object))[0].feature_names) == 2
