"""The command line on tables that are read part by part: the same measures, constant memory, checkpoints."""

import signal
import subprocess
import time
import weakref

import numpy as np
import pandas as pd
import pytest
from commands import COMMAND

from pseudopoint import commands
from pseudopoint.commands import streamed
from pseudopoint.commands.kinds import Classification, Regression
from pseudopoint.commands.steps import CHUNK_ROWS, load_model
from pseudopoint.commands.tallies import ClassTally, NumberTally
from pseudopoint.tables import PartReader, table_chunks

pytestmark = pytest.mark.edge

N = 300
rng = np.random.default_rng(6)
TABLE = pd.DataFrame({"a": rng.normal(size=N), "c": rng.choice(["x", "y"], N), "b": rng.normal(size=N)})
TABLE["y"] = 5 + np.sin(2 * TABLE.a) + (TABLE.c == "x") + 0.2 * rng.normal(size=N)
TABLE.loc[7, "b"] = np.nan
LABELS = TABLE.assign(y=np.select([TABLE.y > 5.8, TABLE.y > 5], ["high", "middle"], "low"))
QUICK = {"effort": "fast", "num_inducing": 5, "inducing": "kmeans", "initial": "robust", "max_iter": 20}
SVGP = QUICK | {"method": "svgp", "batch_size": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    for name, frame in (("numbers", TABLE), ("labels", LABELS)):
        (folder / name).mkdir()
        for i in range(3):
            frame.iloc[100 * i : 100 * (i + 1)].to_parquet(folder / name / f"{i}.parquet", row_group_size=40)
    TABLE.to_csv(folder / "t.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def numbers(folder):
    return commands.fit_table(folder / "numbers", "y", out=folder / "numbers.model", **SVGP)


@pytest.fixture(scope="module")
def labels(folder):
    return commands.fit_table(folder / "labels", "y", out=folder / "labels.model", report=folder / "r.html", **SVGP)


def test_a_folder_is_fitted_and_measured_on_rows_held_out(numbers, folder):
    assert numbers["task"] == "regression" and "holds 300 different numbers" in numbers["task_reason"]
    assert numbers["features"] == ["a", "c=x", "c=y", "b", "b_missing"]
    assert numbers["rows"] + numbers["test"]["rows"] == N and 10 < numbers["test"]["rows"] < 60
    assert numbers["test"]["r2"] > 0.3 and numbers["method"] == "svgp"
    assert commands.inspect_model(folder / "numbers.model")["rows"] == numbers["rows"]


def test_a_csv_streams_to_the_same_fit(numbers, folder):
    again = commands.fit_table(folder / "t.csv", "y", stream=True, test_fraction=0.0, **SVGP)
    assert any("scratch file" in note for note in again["notes"])
    whole = commands.fit_table(folder / "numbers", "y", test_fraction=0.0, **SVGP)
    np.testing.assert_allclose(again["bound"], whole["bound"], rtol=1e-9)


def test_classes_stream_too(labels, folder):
    assert labels["classes"] == ["high", "low", "middle"] and (folder / "r.html").exists()
    assert labels["test"]["accuracy"] > labels["test"]["majority_accuracy"] - 0.2


@pytest.mark.parametrize("kind", ["numbers", "labels"])
def test_measures_of_chunks_are_those_of_all_rows(kind, folder, request, monkeypatch):
    request.getfixturevalue(kind)
    loaded, _ = load_model(folder / f"{kind}.model")
    scored = loaded.score(table_chunks(folder / kind, CHUNK_ROWS, loaded.encoder))
    whole = loaded.measures(scored)
    assert isinstance(loaded, Regression if kind == "numbers" else Classification)
    for rows in (7, 41, CHUNK_ROWS):
        monkeypatch.setattr("pseudopoint.commands.steps.CHUNK_ROWS", rows)
        result = commands.score_table(folder / f"{kind}.model", str(folder / kind / "*.parquet"))
        for name, value in whole.items():
            if name == "mae_of_median":  # which needs all rows at once, and the folder has several files
                assert result[name] is None
            elif isinstance(value, float):
                np.testing.assert_allclose(result[name], value, rtol=1e-9, err_msg=name)
            else:
                assert result[name] == value


def test_predictions_stream_from_a_glob_to_either_kind_of_file(numbers, folder, tmp_path):
    frames = []
    for name in ("p.parquet", "p.csv"):
        result = commands.predict_table(folder / "numbers.model", folder / "numbers" / "?.parquet", tmp_path / name)
        assert result["rows"] == N
        frames.append(pd.read_parquet(tmp_path / name) if name == "p.parquet" else pd.read_csv(tmp_path / name))
    np.testing.assert_allclose(frames[0], frames[1], rtol=1e-12)


def test_what_streams(folder, monkeypatch):
    called = []
    monkeypatch.setattr(streamed, "_fit_streamed", lambda *given, **options: called.append("streamed") or {})
    monkeypatch.setattr(streamed, "fit_in_memory", lambda *given, **options: called.append("memory") or {})
    commands.fit_table(folder / "t.csv", "y")
    commands.fit_table(folder / "t.csv", "y", stream=True)
    commands.fit_table(folder / "t.csv", "y", checkpoint=folder / "c")
    commands.fit_table(folder / "numbers", "y")
    monkeypatch.setattr(streamed, "_free_memory", lambda: 1000.0)
    commands.fit_table(folder / "t.csv", "y")
    commands.fit_table(folder / "numbers" / "0.parquet", "y")
    commands.fit_table(folder / "t.csv", "y", stream=False)
    assert called == ["memory", "streamed", "streamed", "streamed", "streamed", "streamed", "memory"]
    with pytest.raises(ValueError, match="need a streamed fit"):
        commands.fit_table(folder / "numbers", "y", stream=False)


def test_free_memory_is_known():
    assert 1e7 < streamed._free_memory() < 1e15


def options(settings):
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def test_the_command_line_resumes_a_fit_that_was_interrupted(folder, tmp_path):
    settings = SVGP | {"max_iter": 100_000}
    command = [*COMMAND, "fit", str(folder / "numbers" / "*.parquet"), "--target", "y"]
    command += ["--checkpoint", str(tmp_path / "fit"), *options(settings)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(600):
        time.sleep(0.1)
        if (tmp_path / "fit" / "start.safetensors").exists():
            break
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and f"--resume goes on with the fit in {tmp_path / 'fit'}" in " ".join(
        error.split()
    )
    given = {"checkpoint": tmp_path / "fit"} | SVGP
    with pytest.raises(ValueError, match="holds the checkpoint of a fit"):
        commands.fit_table(folder / "numbers", "y", **given)
    with pytest.raises(ValueError, match="is of a fit with max_iter=100000, not 20"):
        commands.fit_table(folder / "numbers", "y", resume=True, **given)


def alive(references) -> int:
    return sum(reference() is not None for reference in references)


def test_scoring_keeps_the_rows_of_a_chunk_alone(numbers, folder, monkeypatch):
    monkeypatch.setattr("pseudopoint.commands.steps.CHUNK_ROWS", 10)
    references, most, add = [], [], NumberTally.add

    def watched(self, columns):
        references.append(weakref.ref(columns["mean"]))
        most.append(alive(references))
        add(self, columns)

    monkeypatch.setattr(NumberTally, "add", watched)
    commands.score_table(folder / "numbers.model", folder / "numbers")
    assert len(references) == 30 and max(most) <= 2


@pytest.mark.parametrize("impossible", [[0], [1], [0, 1], [0, 2], [0, 1, 2]])
@pytest.mark.parametrize("tally", ["numbers", "classes"])
def test_a_row_of_no_density_makes_the_mean_of_all_chunks_minus_infinity(impossible, tally):
    measures = lambda scored: {"rmse": 1.0, "log_density": float(np.mean(scored.columns["density"]))}
    beside = {"log_density_of_normal": 0.0, "mae_of_median": 0.0}
    made = {
        "numbers": lambda: NumberTally(lambda scored: measures(scored) | beside, 1.0),
        "classes": lambda: ClassTally(measures, lambda scored: np.full((3, 2), 0.5), ["a", "b"]),
    }[tally]()
    for chunk in range(3):
        density = np.array([-np.inf if chunk in impossible else 0.0, -1.0, -2.0])
        made.add({"y": np.array([0, 1, 1]), "density": density})
    assert made.result()["log_density"] == -np.inf


def test_full_passes_and_minibatches_keep_few_parts(folder, monkeypatch):
    monkeypatch.setattr("pseudopoint.tables.rows.BUFFER", 60)
    monkeypatch.setattr("pseudopoint.data.CHUNK", 50)
    references, most, read = [], [], PartReader.__call__

    def watched(self, i, frame):
        data = read(self, i, frame)
        references.append(weakref.ref(data.X))
        most.append(alive(references))
        return data

    monkeypatch.setattr(PartReader, "__call__", watched)
    commands.fit_table(folder / "numbers", "y", test_fraction=0.0, **SVGP)
    assert len(references) > 30 and max(most) <= 7  # two windows of up to three parts, and the next part


# --- Rows to measure that cannot be read: said before the fit, which is not lost --------------------------------------


def faults_of_a_test_table(folder):
    TABLE.drop(columns="y").to_csv(folder / "no_target.csv", index=False)
    TABLE.drop(columns="b").to_csv(folder / "no_column.csv", index=False)
    TABLE.assign(b=np.inf).to_csv(folder / "infinite.csv", index=False)
    TABLE.assign(y="text").to_csv(folder / "text.csv", index=False)
    return {
        "missing": "no such file",
        "no_target": "no column 'y'",
        "no_column": "no column 'b'",
        "infinite": "column 'b' is infinite in row 1",
        "text": "target 'y' is not numeric",
    }


@pytest.mark.parametrize("stream", [True, False])
def test_a_test_table_is_looked_at_before_the_fit(folder, tmp_path, stream, monkeypatch):
    monkeypatch.setattr("pseudopoint.estimators.streaming.fit_rows", None)
    monkeypatch.setattr("pseudopoint.estimators.base.AbstractEstimator._learn", None)
    for name, word in faults_of_a_test_table(tmp_path).items():
        with pytest.raises((ValueError, OSError), match=word):
            commands.fit_table(folder / "t.csv", "y", stream=stream, test=tmp_path / f"{name}.csv", **SVGP)
    TABLE.assign(a=np.where(TABLE.index % 10 == 0, np.inf, TABLE.a)).to_csv(tmp_path / "held.csv", index=False)
    for share in (0.1, 0.9):  # of which rows are held out
        with pytest.raises(ValueError, match="column 'a' is infinite in row"):
            commands.fit_table(tmp_path / "held.csv", "y", stream=stream, test_fraction=share, **SVGP)


def test_a_fit_whose_measures_fail_is_saved(folder, tmp_path):
    """The fault is beyond the first rows, which were looked at before the fit."""
    for i, frame in enumerate((TABLE, TABLE.assign(b=np.inf))):
        frame.to_parquet(tmp_path / f"test{i}.parquet")
    with pytest.raises(ValueError, match="column 'b' is infinite"):
        out = tmp_path / "m"
        commands.fit_table(folder / "t.csv", "y", stream=True, test=tmp_path / "test*.parquet", out=out, **SVGP)
    about = commands.inspect_model(tmp_path / "m")
    assert about["rows"] == N and about["test"] is None


def test_a_test_table_may_have_columns_of_folders(tmp_path):
    """They were missing in its first rows."""
    TABLE.to_parquet(tmp_path / "train", partition_cols=["c"], row_group_size=100)
    TABLE.iloc[:60].to_parquet(tmp_path / "test", partition_cols=["c"])
    result = commands.fit_table(tmp_path / "train", "y", test=tmp_path / "test", **SVGP)
    assert result["test"]["rows"] == 60 and result["features"][-2:] == ["c=x", "c=y"]
