"""Tables on disk: what is learned of them is that of the table in memory, and so is every number of a fit."""

from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pseudopoint.bounds import COLLAPSED, summed_gradient
from pseudopoint.data import Dataset, Standardiser, dataset
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Bernoulli, Gaussian
from pseudopoint.names import Settings
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, Model
from pseudopoint.recipes import Nothing, fit_rows
from pseudopoint.tables import (
    PartReader,
    TableEncoder,
    TableError,
    TableRows,
    drop_missing_target,
    learn_table,
    open_source,
    table_chunks,
)
from pseudopoint.tables.learning import Moments

pytestmark = pytest.mark.edge

N = 60
rng = np.random.default_rng(8)
TABLE: Any = pd.DataFrame(
    {
        "a": rng.normal(size=N),
        "b": 30 + 7 * rng.normal(size=N),
        "c": rng.choice(["red", "green", "blue"], N),
        "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 900, N), "D"),
        "yes": rng.random(N) > 0.4,
        "y": 100 + 20 * rng.normal(size=N),
    }
)
TABLE.loc[[4, 17], "b"] = np.nan
TABLE.loc[9, "c"] = None
TABLE.loc[[0, 33], "y"] = np.nan
SIZES = {"one": [60], "odd": [1, 0, 7, 20, 0, 31, 1], "rows": [1] * 60}


def write(path, frame: Any = TABLE, sizes=(60,)):
    """Row groups of these sizes; empty ones are there too."""
    table, ends = pa.Table.from_pandas(frame, preserve_index=False), np.cumsum([0, *sizes])
    with pq.ParquetWriter(path, table.schema) as writer:
        for a, b in zip(ends[:-1], ends[1:], strict=True):
            writer.write_table(table.slice(a, b - a))
    return path


def rows_of(source, learned, scaled=True) -> TableRows:
    target = (learned.target.mean, learned.target.spread)
    few = np.random.default_rng(0).normal(size=(30, len(learned.mean))) * learned.spread + learned.mean
    scaling = Standardiser.of_moments((learned.mean, learned.spread), few, target)
    reader = PartReader(learned.encoder, (0.0, 0), lambda y: y, scaling, None, "float64")
    return TableRows(source, reader, learned.counts)


def in_memory(encoder: TableEncoder, scaling: Standardiser) -> Dataset:
    frame, _ = drop_missing_target(TABLE, "y")
    X, _ = encoder.inputs(frame)
    return dataset(scaling.inputs(X), scaling.target(encoder.target(frame)), dtype="float64")


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_one_pass_learns_what_a_table_in_memory_tells(tmp_path, sizes):
    frame, _ = drop_missing_target(TABLE, "y")
    encoder, notes = TableEncoder.learn(frame, "y")
    X, y = encoder.inputs(frame)[0], encoder.target(frame)
    with open_source(write(tmp_path / "t.parquet", sizes=sizes)) as source:
        learned = learn_table(source, "y")
    assert learned.encoder == encoder and set(notes) <= set(learned.notes)
    assert "2 rows were dropped because the target is missing" in learned.notes
    np.testing.assert_allclose(learned.mean, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(learned.spread, X.std(axis=0), rtol=1e-10)
    np.testing.assert_allclose(astuple(learned.target), astuple(Moments.of(y)), rtol=1e-12)
    assert learned.counts.sum() == N - 2


def test_a_sample_decides_formats_only_and_gaps_and_categories_are_those_of_all_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("pseudopoint.tables.learning.SAMPLE_ROWS", 20)
    monkeypatch.setattr("pseudopoint.tables.learning.SAMPLE_PARTS", 3)
    frame, _ = drop_missing_target(TABLE, "y")
    whole, _ = TableEncoder.learn(frame, "y")
    with open_source(write(tmp_path / "t.parquet", sizes=[10] * 6)) as source:
        learned = learn_table(source, "y")
    for found, column in zip(learned.encoder.columns, whole.columns, strict=True):
        assert (found.name, found.indicator, found.categories) == (column.name, column.indicator, column.categories)
    X = learned.encoder.inputs(frame)[0]
    np.testing.assert_allclose(learned.mean, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(learned.spread, X.std(axis=0), rtol=1e-10)


def test_what_is_odd_in_rows_beyond_the_sample_is_said(tmp_path, monkeypatch):
    """It was taken for missing, or for another unit, without a word."""
    monkeypatch.setattr("pseudopoint.tables.learning.SAMPLE_ROWS", 20)
    monkeypatch.setattr("pseudopoint.tables.learning.SAMPLE_PARTS", 2)
    x, share = ([f"{0.5 + i}" for i in range(60)] for _ in range(2))
    x[25], x[37], share[33] = "n.k.", "n.k.", "12%"
    pd.DataFrame({"x": x, "share": share, "y": np.arange(60.0)}).to_parquet(tmp_path / "t.parquet", row_group_size=20)
    with open_source(tmp_path / "t.parquet") as source:
        notes = learn_table(source, "y").notes
    assert "column 'x': text that is no number in 2 rows ('n.k.'); it counts as missing" in notes
    assert any("'share': per cent signs, of which a sample had none, in 1 row ('12%')" in note for note in notes)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_batches_samples_and_sums_are_those_of_memory(tmp_path, sizes, monkeypatch):
    monkeypatch.setattr("pseudopoint.data.CHUNK", 16)
    with open_source(write(tmp_path / "t.parquet", sizes=sizes)) as source, jax.enable_x64(True):
        rows = rows_of(source, learn_table(source, "y"))
        data = in_memory(rows.reader.encoder, rows.reader.scaling)
        assert (len(rows), rows.num_columns, rows.total_weight) == (N - 2, data.num_columns, N - 2)
        equal = lambda a, b: jax.tree.map(np.testing.assert_array_equal, a, b)
        equal(rows.sample(10, 3), data.sample(10, 3))
        equal(rows.sample(1000, 3), data)
        for step, count in ((0, 3), (5, 4), (2, 40)):
            equal(rows.minibatches(7, 1, step, count), data.minibatches(7, 1, step, count))
        Z = data.X[:4]
        numbers = trainable(
            cast(Model(Matern52(np.ones(rows.num_columns), 1.0), Gaussian(0.1), Collapsed(Z)), "float64")
        )
        nothing = lambda model, prior: 0.0
        of = lambda rows: summed_gradient(COLLAPSED, True, nothing, numbers, numbers.vector, (rows, ()))
        equal(of(rows), of(data))
        rows.close()


def test_windows_hold_every_row_once_an_epoch_and_depend_on_seed_and_step_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("pseudopoint.tables.rows.BUFFER", 16)
    with open_source(write(tmp_path / "t.parquet", sizes=[5] * 12)) as source:
        rows = rows_of(source, learn_table(source, "y"))
        everything = rows.sample(1000, 0)
        batches, numbers = rows.minibatches(8, 4, 0, 29)  # 232 = 4 · 58 rows
        for epoch in numbers.reshape(4, N - 2):
            assert sorted(epoch) == list(range(N - 2))
        np.testing.assert_array_equal(batches.y, np.asarray(everything.y)[numbers])
        assert (numbers.reshape(4, -1)[0] != numbers.reshape(4, -1)[1]).any()
        groups = numbers.reshape(4, -1)[0][:15] // 5
        assert len(set(groups.tolist())) > 1 and (rows.minibatches(8, 5, 0, 29)[1] != numbers).any()
        again = rows_of(source, learn_table(source, "y"))
        np.testing.assert_array_equal(again.minibatches(8, 4, 9, 5)[1], numbers[9:14])
        again.close()
        rows.close()


COLLAPSED_FIT, SVGP_FIT = {"method": "collapsed", "max_iter": 6}, {"method": "svgp", "max_iter": 20}


@pytest.mark.parametrize("settings, classes", [(COLLAPSED_FIT, False), (SVGP_FIT, False), (SVGP_FIT, True)])
def test_a_whole_fit_is_that_of_memory(tmp_path, settings, classes):
    given = Settings(effort="fast", num_inducing=6, batch_size=16, inducing="kmeans", initial="robust", **settings)
    with open_source(write(tmp_path / "t.parquet", sizes=[13, 30, 17])) as source, jax.enable_x64(True):
        rows = rows_of(source, learn_table(source, "y"))
        data = in_memory(rows.reader.encoder, rows.reader.scaling)
        likelihood: Any = Gaussian(0.1)
        if classes:
            scaling, likelihood = rows.reader.scaling, Bernoulli()
            scaling = Standardiser.of_moments((scaling.mean, scaling.scale), np.asarray(data.X), (0.0, 1.0))
            above = replace(rows.reader, target=lambda y: np.where(y > 100, 1.0, 0.0), scaling=scaling)
            rows = TableRows(source, above, rows.counts)
            data = rows.sample(N, 0)
        kernel = Matern52(np.full(rows.num_columns, 2.0), 1.0)
        fits = [fit_rows(kernel, likelihood, each, data, given, Nothing()) for each in (rows, data)]
        for name in ("bound", "vfe", "upper"):
            np.testing.assert_allclose(getattr(fits[0], name), getattr(fits[1], name), rtol=1e-10)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), *(f.model for f in fits))
        rows.close()


# --- Files -----------------------------------------------------------------------------------------------------------


def read(table, **options) -> Any:
    with open_source(table, **options) as source:
        return pd.concat([source.part(i) for i in range(len(source.parts))])


def test_folders_globs_lists_and_tables_of_arrow(tmp_path):
    for i in range(3):
        write(tmp_path / f"part{i}.parquet", TABLE.iloc[20 * i : 20 * (i + 1)], [9, 11])
    parts = [str(tmp_path / f"part{i}.parquet") for i in range(3)]
    (tmp_path / "_SUCCESS").write_text("")
    for table in (tmp_path, str(tmp_path / "*.parquet"), parts, pa.Table.from_pandas(TABLE)):
        pd.testing.assert_frame_equal(read(table).astype(TABLE.dtypes), TABLE, check_index_type=False)


def test_names_of_folders_are_values_of_columns(tmp_path):
    for year, place in ((2023, "x"), (2024, "y")):
        folder = tmp_path / f"year={year}" / f"place={place}"
        folder.mkdir(parents=True)
        write(folder / "t.parquet", TABLE[["a", "y"]].iloc[:5], [5])
    for table in (tmp_path, str(tmp_path / "*" / "*" / "*.parquet")):
        frame = read(table)
        assert frame.year.tolist() == [2023] * 5 + [2024] * 5 and frame.place.tolist() == ["x"] * 5 + ["y"] * 5


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_names_of_folders_are_decoded_and_may_be_gaps(form, tmp_path):
    """As Hive, Spark and pandas write them. Those of CSV files were dropped without a word."""
    gap = "__HIVE_DEFAULT_PARTITION__"
    for year, place, city in (("2023", "New%20York", "S%C3%A3o"), (gap, "A%2FB", gap), ("2024", "x", "01")):
        folder = tmp_path / f"year={year}" / f"the%20place={place}" / f"city={city}"
        folder.mkdir(parents=True)
        frame = TABLE[["a", "y"]].iloc[:5]
        frame.to_csv(folder / "t.csv", index=False) if form == "csv" else frame.to_parquet(folder / "t.parquet")
    frame = read(tmp_path)
    order = {"2023.0": "2023", "nan": gap, "None": gap, "2024.0": "2024"}
    year = [order.get(str(value), str(value)) for value in frame.year]
    assert year == ["2023"] * 5 + ["2024"] * 5 + [gap] * 5
    assert frame["the place"].tolist() == ["New York"] * 5 + ["x"] * 5 + ["A/B"] * 5
    assert frame.city.fillna("gap").tolist() == ["São"] * 5 + ["01"] * 5 + ["gap"] * 5
    with open_source(tmp_path) as source:
        encoder = learn_table(source, "y").encoder
        X = np.concatenate([encoder.encode(source.part(i))[0] for i in range(len(source.parts))])
    kinds = {column.name: (column.kind, column.indicator) for column in encoder.columns}
    assert kinds["year"] == ("number", True) and kinds["city"] == ("category", True)
    np.testing.assert_array_equal(np.concatenate([encoder.encode(f)[0] for f in table_chunks(tmp_path, 3, encoder)]), X)


@pytest.mark.parametrize("change", ["drop", "text"])
def test_files_that_change_after_they_were_opened_are_refused(change, tmp_path):
    """As those of a worker elsewhere may be others. A column that they lack was left out."""
    for name in ("here", "there"):
        TABLE[["a", "b", "y"]].to_parquet(tmp_path / f"{name}.parquet", row_group_size=20)
    other = TABLE[["a", "y"]] if change == "drop" else TABLE[["a", "b", "y"]].assign(b="text")
    with open_source(tmp_path / "there.parquet") as source:
        other.to_parquet(tmp_path / "there.parquet", row_group_size=20)
        with pytest.raises(
            TableError, match=f"'b' was numbers .*, and is {'no column' if change == 'drop' else 'text'}"
        ):
            source.part(1)
        TABLE[["a", "b", "y"]].to_parquet(tmp_path / "there.parquet", row_group_size=len(TABLE))
        with pytest.raises(TableError, match="has changed since it was opened"):
            source.only(2).part(0)


def test_a_full_disk_of_scratch_files_is_said(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    TABLE.to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
    refused(tmp_path / "t.csv", r"cannot be converted there \(No space left on device\); make room, or set TMPDIR")


def test_csv_is_converted_said_and_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("pseudopoint.tables.source.PART_ROWS", 25)
    TABLE.iloc[:30].to_csv(tmp_path / "1.csv", index=False)
    TABLE.iloc[30:].to_csv(tmp_path / "2.csv.gz", index=False)
    with open_source(tmp_path) as source:
        (note,) = source.notes
        scratch = source.parts[0].file
        frame = pd.concat([source.part(i) for i in range(len(source.parts))])
        assert "scratch file" in note and len(source.parts) > 2

    assert not Path(scratch).exists()
    columns: Any = ["a", "b", "y"]
    assert frame[columns].equals(TABLE[columns])
    assert frame["c"].fillna("").tolist() == TABLE["c"].fillna("").tolist()
    assert frame["yes"].tolist() == TABLE["yes"].tolist()


def test_a_column_that_is_text_further_down_is_text_throughout(tmp_path, monkeypatch):
    monkeypatch.setattr("pseudopoint.tables.source.PART_ROWS", 2)
    (tmp_path / "t.csv").write_text("a,y\n1,1\n2,2\nx,3\n04,4\n")
    assert read(tmp_path / "t.csv").a.tolist() == ["1", "2", "x", "04"]
    assert read(tmp_path / "t.csv", text=["y"]).y.tolist() == ["1", "2", "3", "4"]
    assert read(tmp_path / "t.csv", missing=["x"]).a.tolist()[:2] == [1.0, 2.0]


def refused(table, word, then=lambda source: None):
    with pytest.raises(TableError, match=word) as caught, open_source(table) as source:
        then(source)
    assert "\n" not in str(caught.value)


def test_files_of_one_table_have_the_same_columns_and_types(tmp_path):
    write(tmp_path / "1.parquet", TABLE[["a", "y"]])
    write(tmp_path / "2.parquet", TABLE[["a", "b", "y"]])
    refused(tmp_path, r"1\.parquet: lacks the column 'b'")
    write(tmp_path / "2.parquet", TABLE[["a", "y"]].astype({"a": str}))
    refused(tmp_path, r"2\.parquet: the column 'a' holds text, but in .*1\.parquet numbers")
    write(tmp_path / "2.parquet", TABLE[["a", "y"]].assign(a=None))  # gaps alone are of any kind
    write(tmp_path / "3.parquet", TABLE[["a", "y"]].assign(a=7))
    assert len(read(tmp_path)) == 3 * N


def test_a_file_cut_off_or_gone_midway_is_one_sentence(tmp_path):
    path = write(tmp_path / "1.parquet", sizes=[20] * 3)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, "not a whole Parquet file")
    path.write_bytes(whole)

    def cut(source):
        path.write_bytes(b"PAR1" + bytes(2000))
        source.part(2)

    refused(path, r"1\.parquet: ", cut)
    path.write_bytes(whole)

    def gone(source):
        path.unlink()
        learn_table(source, "y")

    refused(path, "no such file", gone)
    refused(tmp_path / "no*.parquet", "no file whose name ends")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no file whose name ends")
    write(tmp_path / "2.parquet", TABLE.iloc[:0], [0])
    refused(tmp_path / "2.parquet", "has no rows")


def test_the_index_counts_the_rows_of_the_whole_table_in_errors(tmp_path):
    frame = TABLE[["a", "y"]].copy()
    frame.loc[45, "a"] = np.inf
    with open_source(write(tmp_path / "t.parquet", frame, [20] * 3)) as source:
        with pytest.raises(TableError, match="column 'a' is infinite in row 46"):
            learn_table(source, "y")
