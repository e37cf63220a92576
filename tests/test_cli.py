"""The command line as people meet it: real files, every bad input, and a process of its own where that matters."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import COMMAND, here

from pseudopoint import GPRegressor, cli, metrics
from pseudopoint import commands as tasks
from pseudopoint.names import SETTINGS
from pseudopoint.tables import TableEncoder

pytestmark = pytest.mark.edge


def run(folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def make_table(rows: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "size": rng.normal(size=rows),
            "city": rng.choice(["Oslo", "Rome", "Bern"], rows),
            "when": pd.date_range("2024-01-01", periods=rows).astype(str),
            "new": rng.random(rows) < 0.5,
        }
    )
    noise = 0.1 * rng.normal(size=rows)
    table["price"] = 1000 * (table["size"] ** 2 + 2 * (table["city"] == "Rome") + noise)
    table.loc[5, "size"] = np.nan
    table.loc[7, "price"] = np.nan
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A table, a model fitted to it by the command line, and what the command printed."""
    folder = tmp_path_factory.mktemp("cli")
    make_table().to_csv(folder / "train.csv", index=False)
    reordered = make_table().iloc[::-1, ::-1].reset_index(drop=True)
    reordered.loc[3, "city"] = "Paris"
    reordered.to_parquet(folder / "new.parquet")
    options = [
        "--target",
        "price",
        "--out",
        "m.safetensors",
        "--report",
        "r.html",
        "--max-iter",
        15,
        "--effort",
        "fast",
        "--json",
    ]
    done = run(folder, "fit", "train.csv", *options)
    assert done.returncode == 0, done.stderr
    (folder / "fit.json").write_text(done.stdout)
    return folder


def test_fit_prints_one_json_object_and_writes_whole_files(folder):
    result = json.loads((folder / "fit.json").read_text())
    assert result["rows"] == 119 and result["test"]["rows"] == 12  # a tenth is held out to measure
    assert result["method"] == "exact" and "rows" in result["reason"]
    assert any("1 rows were dropped" in note for note in result["notes"])
    assert result["bound"] <= result["upper_bound"]
    assert (folder / "r.html").read_text().lower().startswith("<!doctype html>")
    assert not list(folder.glob(".*")), "temporary files are left"


def test_predict_keeps_rows_and_says_what_is_unseen(folder):
    done = run(folder, "predict", "m.safetensors", "new.parquet", "--out", "p.csv", "--level", 0.8)
    assert done.returncode == 0, done.stderr
    assert "'Paris'" in done.stdout
    predicted = pd.read_csv(folder / "p.csv")
    assert list(predicted) == ["price_mean", "price_std", "price_lower_80", "price_upper_80"]
    model, extra = GPRegressor.load_with_extra(folder / "m.safetensors")
    X, _ = TableEncoder.from_dict(extra["encoder"]).inputs(pd.read_parquet(folder / "new.parquet"))
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(predicted["price_mean"], mean, rtol=1e-12)
    lower, upper = metrics.interval(mean, std, 0.8)
    np.testing.assert_allclose(predicted[["price_lower_80", "price_upper_80"]], np.column_stack([lower, upper]))


def test_chunks_do_not_change_predictions(folder, monkeypatch):
    tasks.predict_table(folder / "m.safetensors", folder / "train.csv", folder / "whole.parquet")
    monkeypatch.setattr("pseudopoint.commands.steps.CHUNK_ROWS", 7)
    tasks.predict_table(folder / "m.safetensors", folder / "train.csv", folder / "parts.parquet")
    whole, parts = pd.read_parquet(folder / "whole.parquet"), pd.read_parquet(folder / "parts.parquet")
    assert len(whole) == 120
    np.testing.assert_allclose(whole, parts, rtol=1e-9, atol=1e-6)  # prices are thousands


def test_score_and_inspect(folder):
    scored = json.loads(here(folder, "score", "m.safetensors", "train.csv", "--json").stdout)
    assert scored["rows"] == 119 and 0.7 < scored["coverage"] <= 1 and scored["r2"] > 0.9
    inspected = here(folder, "inspect", "m.safetensors")
    assert inspected.exit_code == 0
    for word in (
        "matern52",
        "lengthscale size",
        "lengthscale city=Rome",
        "noise",
        "exact",
        "119 training rows",
        "0.1.0",
    ):
        assert word in inspected.stdout


def test_a_test_table_of_its_own_and_the_sparse_method(folder):
    options = [
        "--target",
        "price",
        "--test",
        "new.parquet",
        "--method",
        "collapsed",
        "--num-inducing",
        10,
        "--max-iter",
        3,
        "--effort",
        "fast",
    ]
    done = here(folder, "fit", "train.csv", *options, "--json")
    result = json.loads(done.stdout)
    assert result["test"]["rows"] == 119 and result["num_inducing"] == 10 and "inducing points" in result["advice"]


def test_a_posterior_by_name_from_table_to_predictions(folder):
    few = ["--effort", "fast", "--num-inducing", 8, "--max-iter", 100, "--out", "s.safetensors"]
    done = here(folder, "fit", "train.csv", "--target", "price", "--posterior", "solve", *few)
    assert done.exit_code == 0 and "16 more points" in done.stdout, done.output
    done = here(folder, "predict", "s.safetensors", "new.parquet", "--out", "s.csv")
    assert done.exit_code == 0 and pd.read_csv(folder / "s.csv").notna().all(axis=None), done.output


def test_classes_from_table_to_report(folder):
    options = ["--max-iter", 3, "--num-inducing", 8, "--out", "c.safetensors", "--report", "c.html"]
    done = here(folder, "fit", "train.csv", "--target", "city", "--effort", "fast", *options)
    assert done.exit_code == 0, done.output
    assert "task: classification — the target 'city' holds text ('" in done.stdout
    assert "accuracy: " in done.stdout and " would have " in done.stdout
    assert "Confusion" in (folder / "c.html").read_text()
    done = here(folder, "predict", "c.safetensors", "new.parquet", "--out", "c.csv")
    assert done.exit_code == 0, done.output
    assert list(pd.read_csv(folder / "c.csv")) == ["city_predicted", "city_p_Bern", "city_p_Oslo", "city_p_Rome"]
    scored = here(folder, "score", "c.safetensors", "new.parquet", "--json")
    assert {"accuracy", "log_density", "brier", "calibration_error"} < set(json.loads(scored.stdout))
    assert any("never had ('Paris')" in note for note in json.loads(scored.stdout)["notes"])


@pytest.fixture(scope="module")
def spoilt(folder) -> Path:
    """The same, beside tables and models that are none."""
    table = make_table()
    table.assign(price=3.5).to_csv(folder / "constant.csv", index=False)
    table.assign(size=np.where(table.index == 4, np.inf, 1.0)).to_csv(folder / "infinite.csv", index=False)
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("a,b\n")
    (folder / "twice.csv").write_text("a,a\n1,2\n")
    (folder / "noise.parquet").write_bytes(os.urandom(300))
    (folder / "table.xlsx").write_bytes(b"PK")
    blob = (folder / "m.safetensors").read_bytes()
    (folder / "short.safetensors").write_bytes(blob[: len(blob) // 2])
    (folder / "flipped.safetensors").write_bytes(blob[:-9] + bytes([blob[-9] ^ 1]) + blob[-8:])
    table.drop(columns="size").to_csv(folder / "lacking.csv", index=False)
    return folder


FIT, TARGET = ("fit", "train.csv"), ("--target", "price")
BAD = {
    "unknown target": ((*FIT, "--target", "prize"), "did you mean 'price'"),
    "text as numbers": ((*FIT, "--target", "city", "--task", "regression"), "not numeric"),
    "contradiction": (
        (*FIT, *TARGET, "--task", "classification", "--likelihood", "beta"),
        "'beta' is for regression",
    ),
    "unknown likelihood": ((*FIT, *TARGET, "--likelihood", "cauchy"), "student_t"),
    "no target option": (FIT, "--target"),
    "missing file": (("fit", "nowhere.csv", *TARGET), "nowhere.csv"),
    "unknown suffix": (("fit", "table.xlsx", *TARGET), ".csv"),
    "empty file": (("fit", "empty.csv", *TARGET), "empty"),
    "no rows": (("fit", "header.csv", "--target", "a"), "row"),
    "column twice": (("fit", "twice.csv", "--target", "a"), "'a'"),
    "binary garbage": (("fit", "noise.parquet", *TARGET), "noise.parquet"),
    "infinite input": (("fit", "infinite.csv", *TARGET), "'size'"),
    "unknown kernel": ((*FIT, *TARGET, "--kernel", "spline"), "matern52"),
    "unknown posterior": ((*FIT, *TARGET, "--posterior", "orthogona"), "orthogonal"),
    "zero points": ((*FIT, *TARGET, "--num-inducing", 0), "num_inducing=0 must be"),
    "a seed below 0": ((*FIT, *TARGET, "--random-state", -1), "random_state=-1 must be"),
    "setting of the other task": ((*FIT, "--target", "city", "--bound", "vfe"), "bound: no setting of GPClassifier"),
    "number as placement": ((*FIT, *TARGET, "--inducing", 10), "is --num-inducing now"),
    "old number of points": ((*FIT, *TARGET, "--inducing=10"), "is --num-inducing now"),
    "old points of the mean": (
        (*FIT, *TARGET, "--mean-inducing", 9),
        "--mean-inducing is called --num-mean-inducing now",
    ),
    "old seed": ((*FIT, *TARGET, "--seed=1"), "--seed is called --random-state now"),
    "old interval": (("score", "m.safetensors", "train.csv", "--interval", 0.8), "--interval is called --level now"),
    "unknown option": (("options", "seed"), "use one of kernel, likelihood"),
    "test fraction": ((*FIT, *TARGET, "--test-fraction", 1.5), "test fraction"),
    "no folder": ((*FIT, *TARGET, "--out", "away/m.safetensors"), "folder"),
    "truncated model": (("inspect", "short.safetensors"), "short.safetensors"),
    "damaged model": (("predict", "flipped.safetensors", "train.csv", "--out", "x.csv"), "damaged"),
    "foreign model": (("score", "train.csv", "train.csv"), "no model file"),
    "missing column": (("predict", "m.safetensors", "lacking.csv", "--out", "x.csv"), "'size'"),
    "bad level": (("score", "m.safetensors", "train.csv", "--level", 2), "between 0 and 1"),
    "output suffix": (("predict", "m.safetensors", "train.csv", "--out", "x.doc"), "x.doc"),
    "unknown command": (("fitt",), "fitt"),
}


def refused(status: object, out: str, error: str, word: str) -> None:
    assert status == 2, (status, error)
    assert "Traceback" not in error and out == ""
    assert word in error, error
    if "Usage" not in error:
        assert error.count("\n") == 1 and error.startswith("pseudopoint: "), error


def test_a_target_of_one_value_is_fitted_and_said_once(spoilt):
    result = tasks.fit_table(spoilt / "constant.csv", "price", max_iter=2)
    assert [note for note in result["notes"] if "3.5" in note] == [
        "the target is 3.5 in every row: that is what is predicted, and nothing is learned of the inputs"
    ]
    assert result["test"]["rmse"] < 1e-6


@pytest.mark.parametrize("name", BAD)
def test_every_bad_input_is_one_clear_sentence(spoilt, name, monkeypatch, capsys):
    arguments, word = BAD[name]
    monkeypatch.chdir(spoilt)
    monkeypatch.setattr(sys, "argv", ["pseudopoint", *map(str, arguments)])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # main's own goes with the test
    with pytest.raises(SystemExit) as done:
        cli.main()
    out, error = capsys.readouterr()
    refused(done.value.code, out, error, word)
    assert not (spoilt / "x.csv").exists()


@pytest.mark.parametrize("name", ["no target option", "infinite input", "damaged model"])
def test_a_process_says_it_in_one_clear_sentence_too(spoilt, name):
    arguments, word = BAD[name]
    done = run(spoilt, *arguments)
    refused(done.returncode, done.stdout, done.stderr, word)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_interrupting_a_fit_leaves_nothing_behind(folder, tmp_path):
    command = [*COMMAND, "demo", "--out", str(tmp_path / "demo")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "demo").exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "Traceback" not in error and "nterrupted" in error
    assert list((tmp_path / "demo").iterdir()) == []


def test_an_interrupt_lost_in_a_finaliser_comes_again(monkeypatch, capsys, request):
    class Interrupted:
        def __del__(self):
            raise KeyboardInterrupt

    def app():
        Interrupted()
        for _ in range(1000):
            time.sleep(0.01)
        raise AssertionError("the interrupt never came")

    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # main's own goes with the test
    monkeypatch.setattr(os, "_exit", sys.exit)
    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell in the background ignores
    request.addfinalizer(lambda restore=signal.signal: restore(signal.SIGINT, heeded))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as done:
        cli.main()
    assert done.value.code == 130
    assert capsys.readouterr().err == "pseudopoint: interrupted; no file was left half written\n"


def test_settings_of_a_kind_each_go_from_the_command_line_to_the_estimator(folder):
    words = ["--inducing", "random", "--no-learn-inducing", "--scale-inputs", "false", "--learning-rate", 0.5]
    numbers = ["--num-inducing", 6, "--batch-size", 50, "--initial-noise", 0.2, "--random-state", 3, "--max-iter", 2]
    fixed = ["--target", "price", "--method", "svgp", "--effort", "fast", "--out", "k"]
    done = here(folder, "fit", "train.csv", *fixed, *words, *numbers)
    assert done.exit_code == 0 and "started by random" in done.stdout, done.output
    given = {"inducing": "random", "learn_inducing": False, "scale_inputs": False, "learning_rate": 0.5}
    given |= {"num_inducing": 6, "batch_size": 50, "initial_noise": 0.2, "random_state": 3, "max_iter": 2}
    assert (
        GPRegressor.load(folder / "k").get_params() == GPRegressor(method="svgp", **given, effort="fast").get_params()
    )


def test_options_explains_every_setting_word_by_word(capsys, monkeypatch):
    for arguments, settings in (["num-inducing"], ["num_inducing"]), ([], list(SETTINGS)):
        monkeypatch.setattr(sys, "argv", ["pseudopoint", "options", *arguments])
        with pytest.raises(SystemExit):
            cli.app()
        lines = capsys.readouterr().out
        for name in settings:
            assert f"--{name.replace('_', '-')}: {SETTINGS[name].help}" in lines
            assert all(f"    {word}: {text}\n" in lines for word, text in SETTINGS[name].words.items())


def test_version_and_help(folder):
    assert run(folder, "--version").stdout.strip().startswith("pseudopoint 0.")
    assert "predict" in here(folder, "--help").stdout
