"""A table is the same whole and in parts, as weights say and as its training table was written, whatever its parts."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import here

from pseudopoint import GPRegressor, commands
from pseudopoint.commands import streamed
from pseudopoint.commands.steps import CHUNK_ROWS, load_model
from pseudopoint.tables import TableEncoder, TableError, learn_table, open_source, read_table, table_chunks, table_head

pytestmark = pytest.mark.edge
QUICK: dict[str, Any] = {"effort": "fast", "num_inducing": 5, "inducing": "kmeans", "initial": "robust", "max_iter": 2}
N = 120
rng = np.random.default_rng(0)
x = rng.normal(size=N).round(3)


def learned(table, target="y", **options) -> tuple[TableEncoder, list[str]]:
    """Part by part."""
    with open_source(table) as source:
        found = learn_table(source, target, **options)
    return found.encoder, found.notes


def whole(path, target="y") -> TableEncoder:
    """In memory."""
    return TableEncoder.learn(read_table(path), target)[0]


# --- How cells are written ---


def test_a_semicolon_makes_a_comma_a_decimal_mark_in_parts_too(tmp_path):
    rows = [f"{i},125;{1000 + i},250" for i in range(1, 40)]
    (tmp_path / "semi.csv").write_text("x;y\n" + "\n".join(rows) + "\n")
    encoder, _ = learned(tmp_path / "semi.csv")
    frame = read_table(tmp_path / "semi.csv")
    assert encoder == whole(tmp_path / "semi.csv")
    np.testing.assert_array_equal(encoder.inputs(frame)[0][:2, 0], [1.125, 2.125])
    assert table_head(tmp_path / "semi.csv").attrs["separator"] == ";"


def test_files_that_differ_in_their_separator_leave_the_mark_to_the_cells(tmp_path):
    for name, mark in (("a", ";"), ("b", "\t")):
        (tmp_path / f"{name}.csv").write_text("".join(f"{a}{mark}{b}\n" for a, b in [("x", "y"), (1, 2), (3, 4)]))
    with open_source(tmp_path) as source:
        assert source.separator == "" and len(source) == 4


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    """A table whose exposures are 1.393,5 and the like, and a model of it."""
    folder = tmp_path_factory.mktemp("counts")
    days = [f"{1000 + 7 * i:,}.5".replace(",", "_").replace(".", ",").replace("_", ".") for i in range(40)]
    rows = [f"{i % 9};{rng.poisson(12)};{day}" for i, day in enumerate(days)]
    (folder / "t.csv").write_text("x;n;days\n" + "\n".join(rows) + "\n")
    options = {"exposure": "days", "likelihood": "poisson", "method": "laplace", "out": folder / "m.st"}
    commands.fit_table(folder / "t.csv", "n", **options, **QUICK)
    return folder


@pytest.mark.parametrize("cell", ["1.250,0", "1.250", "1250"])
def test_exposures_are_read_as_in_the_training_table(counts, cell):
    (counts / "new.csv").write_text(f"x;days\n5;{cell}\n")
    commands.predict_table(counts / "m.st", counts / "new.csv", counts / "p.csv")
    kind, _ = load_model(counts / "m.st")
    assert kind.exposure is not None and kind.exposure.text == ("days",)
    np.testing.assert_allclose(
        pd.read_csv(counts / "p.csv")["n_mean"], kind.model.predict(np.array([[5.0]]), exposure=np.array([1250.0]))
    )


def test_a_model_file_of_earlier_versions_leaves_its_exposures_to_each_table(counts):
    kind, extra = load_model(counts / "m.st")
    del extra["exposure_format"], extra["test"]
    kind.model.save(counts / "old.st", extra=extra | {"test": None})
    (counts / "new.csv").write_text("x,days\n5,1250\n")
    assert commands.predict_table(counts / "old.st", counts / "new.csv", counts / "p.csv")["rows"] == 1


def test_the_weights_of_an_update_are_read_by_the_whole_table_and_not_by_each_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr("pseudopoint.commands.update.CHUNK_ROWS", 1)
    monkeypatch.setattr("pseudopoint.tables.source.PART_ROWS", 1)  # of the head
    pd.DataFrame({"x": x, "y": np.sin(x)}).to_csv(tmp_path / "t.csv", index=False)
    commands.fit_table(tmp_path / "t.csv", "y", out=tmp_path / "m.st", method="collapsed", **QUICK)
    (tmp_path / "new.csv").write_text("x;y;w\n1.0;0.8;2.500\n0.5;0.4;1,5\n")  # 2,500 times, beside 1,5
    seen = []
    monkeypatch.setattr(GPRegressor, "update", lambda self, X, y, weight, **_: seen.extend(weight))
    commands.update_table(tmp_path / "m.st", tmp_path / "new.csv", tmp_path / "n.st", weights="w")
    assert seen == [2500.0, 1.5]


# --- What a column holds ---


def test_categories_that_differ_from_part_to_part_stay_categories(tmp_path):
    codes = pd.Series(["01234"] * 20 + ["20001"] * 20 + ["30003"] * 20 + ["40004"] * 20)
    frame = pd.DataFrame({"zip": codes, "x": x[:80], "y": x[:80]})
    (tmp_path / "parts").mkdir()
    for i in range(2):
        part = frame.iloc[40 * i : 40 * i + 40]
        part.assign(zip=part["zip"].astype("category")).to_parquet(tmp_path / "parts" / f"{i}.parquet", index=False)
    frame.assign(zip=codes.astype("category")).to_parquet(tmp_path / "t.parquet", index=False)
    assert learned(tmp_path / "parts")[0] == whole(tmp_path / "t.parquet")
    assert learned(tmp_path / "parts")[0].feature_names[:4] == [f"zip={code}" for code in sorted(set(codes))]


@pytest.mark.parametrize("first", [[1, 2, 3], [1, 2, None]])
@pytest.mark.parametrize("later", [[1, 2], [2, None, 1], [2.0, None]])
def test_a_gap_makes_no_other_category_of_a_whole_number(first, later):
    frame = pd.DataFrame({"zip": pd.Series(first * 9).astype("category"), "y": np.arange(27.0)})
    encoder, _ = TableEncoder.learn(frame, "y")
    assert encoder.feature_names[:2] == ["zip=1", "zip=2"]
    plain = pd.Series(later)
    for column in (plain.astype("category"), plain):
        X = encoder.encode(pd.DataFrame({"zip": column}))[0]
        np.testing.assert_array_equal(X[:, :2], np.stack([plain == 1, plain == 2], axis=1))


def test_encoders_of_earlier_versions_know_whole_numbers_with_decimals():
    text = pd.DataFrame({"zip": ["1.0", "2.0"] * 9, "y": np.arange(18.0)})
    encoder = TableEncoder.from_dict(TableEncoder.learn(text.assign(zip=text.zip.astype("category")), "y")[0].to_dict())
    assert encoder.feature_names == ["zip=1.0", "zip=2.0"]
    X, odd = encoder.encode(pd.DataFrame({"zip": pd.Series([2.0, 1.0]).astype("category")}))
    assert X.tolist() == [[0, 1], [1, 0]] and not odd
    assert encoder.encode(pd.DataFrame({"zip": ["1"]}))[0].tolist() == [[0, 0]]  # text says what it says


def test_one_moment_in_nanoseconds_leaves_dates_far_from_1970():
    dates = [f"{year}-01-01" for year in range(1650, 1690)]
    frame = pd.DataFrame({"d": dates, "y": np.arange(40.0)})
    encoder, _ = TableEncoder.learn(frame, "y")
    alone = encoder.encode(frame)[0]
    both = encoder.encode(pd.DataFrame({"d": [*dates, "2024-01-01 00:00:00.123456789"]}))[0]
    np.testing.assert_array_equal(both[:-1], alone)
    np.testing.assert_allclose(both[-1, 0], 19723 + 0.123456 / 86400)


def test_a_column_that_arrow_cannot_hold_is_named():
    mixed = pd.DataFrame({"c": ["a", 1] * 20, "y": np.arange(40.0)})
    dask, frames = pytest.importorskip("dask"), pytest.importorskip("dask.dataframe")
    with dask.config.set({"dataframe.convert-string": False}):
        lazy = frames.from_pandas(mixed, npartitions=2)
        for table in (mixed, lazy):
            with pytest.raises(TableError, match="the column 'c' cannot be read part by part .*all text, or all numb"):
                GPRegressor(**QUICK).fit(table, "y")


def test_a_column_may_be_called_the_target(tmp_path):
    frame = pd.DataFrame({"x": x, "c": ["a", "b"] * 60, "the target": np.where(np.arange(N) < 9, np.nan, x)})
    model = GPRegressor(**QUICK, method="svgp").fit(frame, "the target")
    assert any("9 rows were dropped" in note for note in model.notes_) and model.encoder_ is not None
    assert np.isfinite(model.predict(frame)).all()
    frame.to_csv(tmp_path / "t.csv", index=False)
    said = here(tmp_path, "fit", "t.csv", "--target", "the target", "--stream", "--effort", "fast", "--max-iter", 2)
    assert said.exit_code == 0, said.output


# --- Which task ---


def _days(folder, first, rest):
    folder.mkdir()
    for name, y in (("2024-01-01", first), ("2024-01-02", rest)):
        pd.DataFrame({"x": x[: len(y)], "y": y}).to_csv(folder / f"{name}.csv", index=False)
    return folder


def opened(folder):
    with streamed._opened(folder, "y", "auto", "auto", (), bool) as (files, classes, why):
        return classes, why, files.part(0)["y"].dtype.kind


@pytest.mark.parametrize(
    ("first", "rest", "classes"),
    [
        ([1, -1], list(range(-10, 11)), False),
        ([1, 1], [-1, 1] * 20, True),
        ([None, None], ["red", "blue"] * 20, True),
        ([1.5, 2.5, 3.5], [0.5, 1.0] * 9, False),
        (["red", "blue"], ["red", "green"] * 20, True),
    ],
)
def test_all_parts_tell_regression_from_classification(tmp_path, first, rest, classes):
    found, _, kind = opened(_days(tmp_path / "days", first, rest))
    assert found is classes and (kind == "O" or not classes)


def test_two_numbers_are_classes_only_if_no_row_has_a_third(tmp_path, monkeypatch):
    monkeypatch.setattr("pseudopoint.tables.learning.SAMPLE_ROWS", 10)
    folder = _days(tmp_path / "days", [0, 1] * 50, [0, 1] * 49 + [2])
    assert opened(folder)[:2] == (False, "the target 'y' holds more than two different numbers")
    assert opened(_days(tmp_path / "two", [0, 1] * 50, [0, 1] * 50))[0] is True


def test_a_glob_of_one_file_is_a_folder_of_one_file(tmp_path):
    (tmp_path / "one").mkdir()
    pd.DataFrame({"x": x, "y": np.sin(x)}).to_csv(tmp_path / "one" / "a.csv", index=False)
    alike = [commands.fit_table(table, "y", **QUICK) for table in (tmp_path / "one" / "*.csv", tmp_path / "one")]
    assert alike[0]["test"] == alike[1]["test"] and alike[0]["rows"] + alike[0]["test"]["rows"] == N


# --- Parts without rows, rows without a target ---


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("empty", [0, 1])
def test_an_empty_part_is_no_fault(tmp_path, suffix, empty):
    folder, frame = tmp_path / "t", pd.DataFrame({"x": x, "y": np.sin(x)})
    folder.mkdir()
    for i in range(2):
        part, path = frame.iloc[:0] if i == empty else frame, folder / f"{i}.{suffix}"
        part.to_csv(path, index=False) if suffix == "csv" else pq.write_table(
            pa.Table.from_pandas(part, preserve_index=False), path
        )
    result = commands.fit_table(folder, "y", out=tmp_path / "m.st", **QUICK)
    assert result["task"] == "regression" and result["rows"] + result["test"]["rows"] == N
    assert commands.predict_table(tmp_path / "m.st", folder, tmp_path / "p.csv")["rows"] == N
    assert commands.score_table(tmp_path / "m.st", folder)["rows"] == N
    (folder / f"{1 - empty}.{suffix}").unlink()
    with pytest.raises(TableError, match="no rows"):
        commands.predict_table(tmp_path / "m.st", folder, tmp_path / "p.csv")


def test_all_rows_without_a_target_are_counted(tmp_path):
    frame = pd.DataFrame({"x": x, "y": np.where(np.arange(N) % 5 == 0, np.nan, x)})
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=50)
    _, notes = learned(tmp_path / "t.parquet")
    assert "24 rows were dropped because the target is missing" in notes
    said = " ".join(commands.fit_table(tmp_path / "t.parquet", "y", stream=True, test_fraction=0.3, **QUICK)["notes"])
    found = [re.search(rf"(\d+) rows {what}", said) for what in ("were dropped", "without a target were not scored")]
    assert sum(int(each[1]) for each in found if each is not None) == 24 and all(found)


# --- Weights ---


def weighted(folder, **columns):
    pd.DataFrame(columns).to_csv(folder / "w.csv", index=False)
    return folder / "w.csv"


def same_numbers(found, expected, rtol):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value == (expected[name] if isinstance(value, str | list) else pytest.approx(expected[name], rel=rtol))


@pytest.mark.parametrize("labels", [False, True])
def test_a_row_of_weight_three_counts_as_three_rows_and_one_of_weight_zero_as_none(tmp_path, labels):
    y = np.where(np.sin(x) + 0.3 * rng.normal(size=N) > 0, "a", "b") if labels else np.sin(x) + 0.1 * rng.normal(size=N)
    weight = rng.integers(0, 4, N)
    commands.fit_table(weighted(tmp_path, x=x, y=y), "y", out=tmp_path / "m.st", **QUICK)
    of_weights = commands.score_table(tmp_path / "m.st", weighted(tmp_path, x=x, y=y, w=weight), weights="w")
    pd.DataFrame({"x": x, "y": y}).loc[np.repeat(np.arange(N), weight)].to_csv(tmp_path / "copies.csv", index=False)
    of_copies = commands.score_table(tmp_path / "m.st", tmp_path / "copies.csv")
    assert of_weights.pop("rows") == np.sum(weight > 0) and of_copies.pop("rows") == weight.sum()
    assert of_weights.pop("notes") == [f"{np.sum(weight == 0)} rows of weight 0 were not scored"]
    assert of_copies.pop("notes") == []
    same_numbers(of_weights, of_copies, 1e-12)


def test_chunks_of_weighted_rows_add_up(tmp_path, monkeypatch):
    y, weight = np.sin(x), rng.integers(0, 3, N) / 2
    commands.fit_table(weighted(tmp_path, x=x, y=y), "y", out=tmp_path / "m.st", **QUICK)
    table = weighted(tmp_path, x=x, y=y, w=weight)
    at_once = commands.score_table(tmp_path / "m.st", table, weights="w")
    monkeypatch.setattr("pseudopoint.commands.steps.CHUNK_ROWS", 17)
    in_chunks = commands.score_table(tmp_path / "m.st", table, weights="w")
    assert in_chunks.pop("mae_of_median") is None and at_once.pop("mae_of_median") > 0
    same_numbers(in_chunks, at_once, 1e-9)


def test_rows_of_weight_zero_neither_teach_nor_measure(tmp_path):
    faulty = np.arange(N) % 5 == 0
    y, w = np.sin(x) + 100 * faulty, 1.0 - faulty
    result = commands.fit_table(weighted(tmp_path, x=x, y=y, w=w), "y", weights="w", **QUICK)
    assert result["test"]["rmse"] < 1 and "rows of weight 0 were not scored" in " ".join(result["notes"])
    test = tmp_path / "test.csv"
    pd.DataFrame({"x": x, "y": y, "w": w}).to_csv(test, index=False)
    own = commands.fit_table(tmp_path / "w.csv", "y", weights="w", test=test, **QUICK)
    assert own["test"]["rmse"] < 1 and own["test"]["rows"] == (~faulty).sum()
    pd.DataFrame({"x": x, "y": y}).to_csv(test, index=False)  # a test table without weights: all of its rows count
    assert commands.fit_table(tmp_path / "w.csv", "y", weights="w", test=test, **QUICK)["test"]["rmse"] > 1


def test_the_command_line_scores_by_weights(tmp_path):
    table = weighted(tmp_path, x=x, y=np.sin(x), w=np.arange(N) % 2)
    commands.fit_table(table, "y", weights="w", out=tmp_path / "m.st", **QUICK)
    assert "60 rows of weight 0 were not scored" in here(tmp_path, "score", "m.st", "w.csv", "--weights", "w").output
    wrong = here(tmp_path, "score", "m.st", "w.csv", "--weights", "v")
    assert isinstance(wrong.exception, TableError) and "no column 'v'" in str(wrong.exception)


# --- Chunks, memory, names ---


def test_a_last_chunk_of_one_row_leaves_the_density_of_a_normal(tmp_path, monkeypatch):
    table = weighted(tmp_path, x=x, y=np.sin(x))
    commands.fit_table(table, "y", out=tmp_path / "m.st", **QUICK)
    whole = commands.score_table(tmp_path / "m.st", table)["log_density_of_normal"]
    monkeypatch.setattr("pseudopoint.commands.steps.CHUNK_ROWS", N - 1)
    assert commands.score_table(tmp_path / "m.st", table)["log_density_of_normal"] == pytest.approx(whole)


def test_the_memory_of_a_container_counts(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("4000000\n")
    (tmp_path / "memory.stat").write_text("anon 7\ninactive_file 1000000\n")
    monkeypatch.setattr(streamed, "CONTAINER", [(str(tmp_path), "memory.max", "memory.current", "inactive_file")])
    assert streamed._free_memory() == 2e6
    (tmp_path / "memory.max").write_text("max\n")
    assert streamed._free_memory() > 1e7


def test_an_output_of_onnx_has_a_name_that_no_column_has(tmp_path):
    onnx = pytest.importorskip("onnx")
    frame = pd.DataFrame({"y_mean": x, "y_std": x**2, "y": np.sin(x)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    commands.fit_table(tmp_path / "t.csv", "y", out=tmp_path / "m.st", **QUICK)
    commands.export_model(tmp_path / "m.st", tmp_path / "m.onnx")
    names = [output.name for output in onnx.load(tmp_path / "m.onnx").graph.output]
    assert names[:2] == ["y_mean_", "y_std_"]


def test_chunks_of_several_files_have_rows(tmp_path):
    folder = _days(tmp_path / "t", [1.0], [2.0, 3.0])
    encoder, _ = learned(folder)
    assert [len(frame) for frame in table_chunks(folder, CHUNK_ROWS, encoder)] == [1, 2]
