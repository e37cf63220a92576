"""Tables in the commands: words for missing values, tables of other countries, and classes of one row."""

import json
import subprocess
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import COMMAND
from table_helpers import write

from pseudopoint import commands as tasks
from pseudopoint.commands.choice import choose_task
from pseudopoint.commands.held_out import split

ROWS = 60
QUICK: dict[str, Any] = {"max_iter": 3, "effort": "fast"}


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=ROWS).round(3), "b": rng.uniform(1000, 9000, ROWS).round(2)})
    return frame.assign(y=(frame.a + frame.b / 1000).round(3))


def test_a_table_of_another_country_gives_the_model_of_the_plain_one(tmp_path):
    frame = table()
    frame.to_csv(tmp_path / "plain.csv", index=False)
    comma = frame.assign(b=[f"{b:,.2f} €".translate(str.maketrans(",.", ".,")) for b in frame.b])
    comma.to_csv(tmp_path / "comma.csv", index=False, sep=";", decimal=",")
    fits = [
        tasks.fit_table(tmp_path / name, "y", out=tmp_path / f"{name}.m", **QUICK)
        for name in ("plain.csv", "comma.csv")
    ]
    assert fits[0]["features"] == fits[1]["features"] and len(fits[0]["features"]) == 2
    assert fits[0]["test"]["rmse"] == pytest.approx(fits[1]["test"]["rmse"], rel=1e-6)
    scores = [tasks.score_table(tmp_path / f"{name}.m", tmp_path / name) for name in ("plain.csv", "comma.csv")]
    assert scores[0]["rmse"] == pytest.approx(scores[1]["rmse"], rel=1e-6)
    assert scores[1]["notes"] == []


def test_words_given_to_fit_are_missing_in_predict_and_score(tmp_path):
    frame = table()
    frame.loc[:4, "a"] = -999
    frame.loc[3:6, "y"] = -999
    frame.to_csv(tmp_path / "t.csv", index=False)
    told = tasks.fit_table(tmp_path / "t.csv", "y", **QUICK)["notes"]
    assert sum("--missing -999 " in note for note in told) == 2
    options = ["fit", "t.csv", "--target", "y", "--out", "m", "--max-iter", "3", "--effort", "fast", "--json"]
    command = [*COMMAND, *options, "--missing", "-999", "--missing", "unknown"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(result["features"]) == 3 and result["rows"] == ROWS - 4
    scored = tasks.score_table(tmp_path / "m", tmp_path / "t.csv")
    assert scored["rows"] == ROWS - 4 and "4 rows without a target were not scored" in scored["notes"]
    tasks.predict_table(tmp_path / "m", tmp_path / "t.csv", tmp_path / "p.csv")
    assert np.abs(pd.read_csv(tmp_path / "p.csv")["y_mean"].to_numpy()).max() < 100
    assert (
        tasks.fit_table(tmp_path / "t.csv", "y", missing=["-999"], test=tmp_path / "t.csv", **QUICK)["test"]["rows"]
        == 56
    )


def test_a_target_of_words_is_recognised_after_they_are_taken_out(tmp_path):
    path = write(tmp_path / "t.csv", b"a,y\n1,1\n2,unknown\n3,0\n4,1\n5,NA\n")
    choice = choose_task(path, "y", "auto", "auto", ["unknown"])
    assert choice.classes and "two different numbers, 0 and 1; --task regression" in choice.reason
    counts = write(tmp_path / "u.csv", b'a;y\n1;"1,0"\n2;"2,0"\n3;"3,0"\n')
    assert "--task classification takes them as classes" in choose_task(counts, "y", "auto", "auto").reason


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.8])
def test_every_class_is_trained_on_however_few_rows_it_has(fraction):
    labels = np.array(["a"] * 10 + ["b"] * 2 + ["c", "d", "e"])
    train, held_out = split(pd.DataFrame({"y": labels}), fraction, 0, labels)
    assert set(train.y) == set("abcde") and sorted([*train.index, *held_out.index]) == list(range(15))
    every = np.array([f"c{i}" for i in range(9)])
    train, held_out = split(pd.DataFrame({"y": every}), fraction, 0, every)
    assert len(train) == 9 and held_out.empty
