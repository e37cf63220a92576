"""Tables: every way a file can be bad, and files that appear whole or not at all."""

import gzip
import os
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_helpers import learn, write

from pseudopoint.tables import (
    TableEncoder,
    TableError,
    read_chunks,
    read_table,
    source,
    whole_file,
    write_chunks,
)

# ---- Reading ---------------------------------------------------------------------------------------------------------


def test_text_columns_keep_their_zeros_in_every_chunk(tmp_path):
    path = write(tmp_path / "t.csv", b"zip,y\nA1,1\nB2,2\n01234,3\n00007,4\n")
    encoder, _ = TableEncoder.learn(read_table(path), "y")
    chunks = [chunk["zip"].tolist() for chunk in read_chunks(path, 2, encoder)]
    assert chunks == [["A1", "B2"], ["01234", "00007"]]
    assert read_table(write(tmp_path / "u.csv", b"zip\n01\n"), text=["zip"])["zip"].tolist() == ["01"]


ONE_COLUMN = {
    "plain": (b"x\n1.0\n\n3.0\n", [1, None, 3]),
    "ends": (b"\n\nx\r\n\r\n1\r\n  \r\n\r\n3\r\n\r\n\n", [None, 1, None, None, 3]),
    "quoted": (b'x\n""\n2\n""\n\n', [None, 2, None]),
    "text": (b'\xef\xbb\xbfx\na\n\n"b\n\nc"\n\n5" wide\n\nd', ["a", None, "b\n\nc", None, '5" wide', None, "d"]),
}


@pytest.mark.parametrize("name", ONE_COLUMN)
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_blank_line_is_the_gap_of_a_table_of_one_column(tmp_path, monkeypatch, name, suffix):
    content, expected = ONE_COLUMN[name]
    path = write(tmp_path / f"t{suffix}", gzip.compress(content) if suffix.endswith("gz") else content)
    encoder, _ = learn(x=["a", "b"] if name == "text" else [1.0, 2.0])
    monkeypatch.setattr(source, "PART_ROWS", 2)
    with source.open_source(path) as opened:
        converted = pd.concat([opened.part(i) for i in range(len(opened.parts))])
    for frame in (read_table(path), pd.concat(list(read_chunks(path, 2, encoder))), converted):
        assert [None if pd.isna(cell) else cell for cell in frame["x"]] == expected
        assert frame.index.tolist() == list(range(len(expected)))


def test_a_blank_line_is_no_row_of_a_table_of_several_columns(tmp_path):
    path = write(tmp_path / "t.csv", b"a,y\n1,1\n\n,3\n")
    assert read_table(path)["y"].tolist() == [1, 3]


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


# ---- Separators ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "names", "first"),
    [
        (b'"a,b";c\n1,5;2\n2,5;3\n', ["a,b", "c"], ["1,5", "2"]),
        (b"price, EUR;c\n1,5;2,5\n2,5;3,5\n", ["price, EUR", "c"], ["1,5", "2,5"]),
        (b"price, EUR;c\n1;2\n2;3\n", ["price, EUR", "c"], [1, 2]),
        (b'a,"b;c"\n1,2\n3,4\n', ["a", "b;c"], [1, 2]),
        (b"a;b,c\n1;2,3\n3;4,5\n", ["a", "b,c"], ["1", "2,3"]),
        (b"a,b;c,d\n1,2,3\n4,5,6\n", ["a", "b;c", "d"], [1, 2, 3]),
        (b"a\tb, c\n1\t2\n3\t4\n", ["a", "b, c"], [1, 2]),
        (b"a|b\n1|2\n", ["a", "b"], [1, 2]),
        (b'a;b\n"x;\ny";2\n', ["a", "b"], ["x;\ny", 2]),
        (b"a\n1\n", ["a"], [1]),
        (b"a,text\n1,u;v\n2,w\n", ["a", "text"], [1, "u;v"]),
    ],
)
def test_the_separator_is_the_one_that_divides_the_rows_as_the_header(tmp_path, content, names, first):
    frame = read_table(write(tmp_path / "t.csv", content))
    assert list(frame.columns) == names and frame.iloc[0].tolist() == first


def test_a_quote_that_another_separator_would_not_close_is_no_fault(tmp_path):
    rows = b'1,"several\nlines\n"\n' + b"2,short;\n" * 30_000
    frame = read_table(write(tmp_path / "t.csv", b"a,text;\n" + rows))
    assert list(frame.columns) == ["a", "text;"] and len(frame) == 30_001


def test_a_word_taken_out_leaves_a_column_of_numbers(tmp_path):
    frame = read_table(write(tmp_path / "t.csv", b"a,b\n1,x\n-999,y\n"), missing=["-999", "y"])
    assert frame["a"].dtype == np.float64 and frame["b"].isna().tolist() == [False, True]


def test_whether_a_text_is_missing_is_the_same_whatever_the_format(tmp_path):
    for name, content in [("t.csv", b"a,y\nNA,1\n,2\n"), ("t.csv.gz", gzip.compress(b"a,y\nNA,1\n,2\n"))]:
        assert read_table(write(tmp_path / name, content))["a"].isna().tolist() == [False, True]
    pq.write_table(pa.table({"a": ["NA", None]}), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet")["a"].isna().tolist() == [False, True]
