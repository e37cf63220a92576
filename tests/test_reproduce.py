"""Experiments: rows that survive whatever happens, and what is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import pytest
from commands import COMMAND
from threadpoolctl import threadpool_info
from toy_experiments import add, make_toy
from typer.testing import CliRunner

from pseudopoint.cli import app
from pseudopoint.datasets import DataError
from pseudopoint.reproduce import (
    ExperimentError,
    Job,
    experiment,
    experiments_folder,
    listing,
    names,
    reproduce,
    stored_folder,
)


@pytest.fixture
def toy(tmp_path) -> Path:
    return make_toy(tmp_path / "experiments")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def computed(folder: Path) -> list[str]:
    return (folder / "computed").read_text().split()


def only(result: dict[str, Any]) -> dict[str, Any]:
    (entry,) = result["experiments"]
    return entry


# --- Rows ---


def test_rows_have_the_promised_columns(toy, tmp_path):
    steps = []
    entry = only(reproduce("squares", Job(tmp_path / "out", toy, progress=steps.append)))
    rows = rows_of(tmp_path / "out" / "squares.jsonl")
    assert [list(row) for row in rows] == [
        ["seed", "kind", "value", "curve", "config", "pseudopoint", "jax", "commit"]
    ] * 4
    assert rows[3] | {"commit": ""} == {
        "seed": 3,
        "kind": "square",
        "value": 9.0,
        "curve": [0.0, 1.0],
        "config": {"numbers": 4, "power": [2]},
        "pseudopoint": rows[0]["pseudopoint"],
        "jax": jax.__version__,
        "commit": "",
    }
    assert entry["verdict"] == "agrees in part" and (entry["rows"], entry["wanted"]) == (4, 4)
    assert entry["why"] == "findings by number; agrees: 1. Short of the paper's setting: numbers"
    (finding,) = entry["findings"]
    assert (finding["number"], finding["mark"], finding["margin"]) == (1, "agrees", 9.25)
    assert [(step.done, step.total, step.case["seed"]) for step in steps] == [(i + 1, 4, i) for i in range(4)]


def test_a_killed_run_resumes_and_ends_with_the_same_rows(toy, tmp_path):
    reproduce("squares", Job(tmp_path / "whole", toy))
    (toy / "computed").unlink()
    out = tmp_path / "killed"
    options = ["reproduce", "squares", "--experiments", str(toy), "--out", str(out)]
    process = subprocess.Popen([*COMMAND, *options], env=os.environ | {"TOY_HANGS": "1"})
    wait_for(lambda: (toy / "computed").exists() and computed(toy) == ["0", "1"], process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and len(rows_of(out / "squares.jsonl")) == 1
    with (out / "squares.jsonl").open("a") as file:
        file.write('{"seed": 1, "kind": "squ')  # what a kill in the middle of writing would leave
    reproduce("squares", Job(out, toy))
    assert (out / "squares.jsonl").read_bytes() == (tmp_path / "whole" / "squares.jsonl").read_bytes()
    assert computed(toy) == ["0", "1", "1", "2", "3"]  # the row that was there is not computed again


def wait_for(condition, process):
    for _ in range(1200):
        if condition():
            return
        assert process.poll() is None, "it ended by itself"
        time.sleep(0.05)
    pytest.fail("nothing was computed within a minute")


def test_ctrl_c_keeps_the_rows(toy, tmp_path):
    options = ["reproduce", "all", "--experiments", str(toy), "--out", str(tmp_path / "out")]
    environment = os.environ | {"TOY_HANGS": "1"}
    process = subprocess.Popen([*COMMAND, *options], env=environment, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (toy / "computed").exists() and computed(toy) == ["0", "1"], process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "squares 1/4: 0, square" in said and "interrupted" in said
    assert len(rows_of(tmp_path / "out" / "squares.jsonl")) == 1 and "Traceback" not in said


def test_a_last_row_without_its_line_feed_is_kept(toy, tmp_path):
    reproduce("squares", Job(tmp_path, toy))
    path = tmp_path / "squares.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"\n".join(whole.split(b"\n")[:2]))
    (toy / "computed").unlink()
    reproduce("squares", Job(tmp_path, toy))
    assert path.read_bytes() == whole and computed(toy) == ["2", "3"]


def test_a_damaged_line_in_the_middle_is_refused(toy, tmp_path):
    reproduce("squares", Job(tmp_path, toy))
    lines = (tmp_path / "squares.jsonl").read_text().splitlines()
    (tmp_path / "squares.jsonl").write_text("\n".join([lines[0], lines[1][:20], *lines[2:], ""]))
    with pytest.raises(ExperimentError, match="squares.jsonl, line 2 is no row"):
        reproduce("squares", Job(tmp_path, toy))


def test_a_quick_run_has_no_verdict_and_the_papers_setting_can_be_had(toy, tmp_path):
    quick = only(reproduce("squares", Job(tmp_path / "quick", toy, quick=True)))
    assert quick["verdict"] == "not judged" and quick["findings"] == [] and "too small" in quick["why"]
    page = (tmp_path / "quick" / "squares.html").read_text()
    assert "not judged" in page and ">agrees<" not in page
    paper = only(reproduce("squares", Job(tmp_path / "paper", toy, paper=True)))
    assert (paper["verdict"], paper["rows"]) == ("agrees", 5)


def test_other_settings_and_code_without_a_commit_keep_a_run_from_agreeing_in_full(toy, tmp_path):
    add(toy, "other", ('CUT = {"numbers": "The fifth number."}', 'CUT = {"numbers": "The fifth.", "": "Another set."}'))
    job = Job(tmp_path, toy, paper=True)
    assert only(reproduce("other", job))["why"].endswith("Short of the paper's setting: others, named below")
    reproduce("squares", job)
    file = tmp_path / "squares.jsonl"
    file.write_text(file.read_text().replace('"commit": "', '"commit": "1234567+', 2))
    of = only(reproduce("squares", job))
    assert of["verdict"] == "agrees in part" and of["why"].endswith("2 rows of code without a commit")


def test_only_tables_of_the_cases_are_asked_for(toy, tmp_path):
    one = ("TABLES = ()", 'TABLES = ("energy", "pima")')
    add(toy, "some", one, ('"kind": "square"', '"table": "pima"'))
    with pytest.raises(DataError, match="pima"):
        reproduce("some", Job(tmp_path, toy, data=tmp_path))
    add(toy, "every", one)
    with pytest.raises(DataError, match="energy"):
        reproduce("every", Job(tmp_path, toy, data=tmp_path))


def test_rows_of_another_config_are_left_alone_and_not_shown(toy, tmp_path):
    reproduce("squares", Job(tmp_path, toy, quick=True))
    entry = only(reproduce("squares", Job(tmp_path, toy)))
    rows = rows_of(tmp_path / "squares.jsonl")
    assert [(row["seed"], row["config"]["power"]) for row in rows] == [(0, [3]), (1, [3])] + [
        (seed, [2]) for seed in range(4)
    ]
    assert (entry["rows"], entry["wanted"]) == (4, 4)
    assert "2 rows of other settings in the file were left out" in (tmp_path / "squares.html").read_text()


def test_fields_that_only_count_cases_do_not_make_rows_others(toy, tmp_path):
    reproduce("squares", Job(tmp_path, toy))
    add(toy, "squares", ("Config(numbers=4)", "Config(numbers=6)"))
    (toy / "computed").unlink()
    forget(toy)
    assert only(reproduce("squares", Job(tmp_path, toy)))["rows"] == 6 and computed(toy) == ["4", "5"]


def forget(folder: Path) -> None:
    """Python reads a file of the same second and size from its cache; and modules stay imported."""
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    for name in [name for name in sys.modules if name.startswith("pseudopoint_experiments")]:
        del sys.modules[name]


def test_it_computes_in_float64_with_one_blas_thread(toy, tmp_path):
    here = "import threadpoolctl\nfrom .settings import log"
    value = '{"dtype": str(jnp.ones(1).dtype), "threads": [p["num_threads"] for p in threadpoolctl.threadpool_info() '
    value += 'if p["user_api"] == "blas"]}'
    run = 'return {"value": np.float64(case["seed"] ** config.power[0]), "curve": jnp.arange(2.0)}'
    add(toy, "scopes", ("from .settings import log", here), (run, f'return {{"value": 0.0}} | {value}'))
    before = [pool["num_threads"] for pool in threadpool_info()]
    with jax.enable_x64(False):
        reproduce("scopes", Job(tmp_path, toy, quick=True))
        assert jax.numpy.ones(1).dtype.name == "float32"
    rows = rows_of(tmp_path / "scopes.jsonl")
    assert [row["dtype"] for row in rows] == ["float64"] * 2
    assert all(row["threads"] and set(row["threads"]) == {1} for row in rows)
    assert [pool["num_threads"] for pool in threadpool_info()] == before


# --- What goes wrong ---


def test_in_all_what_fails_is_untested_and_the_rest_goes_on(toy, tmp_path):
    add(toy, "a_raises", ('log(case["seed"])', 'assert case["seed"] < 2, "no\\nmore"'))
    add(toy, "b_without_data", ("TABLES = ()", 'TABLES = ("yacht",)'))
    add(toy, "c_not_drawn", ("figure.subplots().plot", "figure.nothing"))
    add(toy, "d_wrong", ("PUBLISHED", "PUBLISHT"))
    add(toy, "e_odd_verdict", ('return [judged({"": [9.0, 9.5]}, "units", said)]', 'return ["perhaps"] and []'))
    result = reproduce("all", Job(tmp_path / "out", toy, data=tmp_path))
    by = {entry["name"]: entry for entry in result["experiments"]}
    assert list(by) == ["a_raises", "b_without_data", "c_not_drawn", "d_wrong", "e_odd_verdict", "squares"]
    assert [entry["verdict"] for entry in by.values()] == ["untested"] * 5 + ["agrees in part"]
    assert "stopped after 2 of 4 rows: AssertionError: no more" in by["a_raises"]["why"]
    assert by["b_without_data"]["why"].startswith("yacht.csv.gz is not in") and by["b_without_data"]["rows"] == 0
    assert "AttributeError" in by["c_not_drawn"]["why"] and "lacks PUBLISHED" in by["d_wrong"]["why"]
    assert "1 findings are published, 0 are judged" in by["e_odd_verdict"]["why"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "1 agrees in part, 5 untested" in page and all(f'id="{name}"' in page for name in by)
    assert len(rows_of(tmp_path / "out" / "a_raises.jsonl")) == 2


def test_alone_what_fails_is_an_error(toy, tmp_path):
    add(toy, "raises", ('log(case["seed"])', "1 / 0"))
    add(toy, "without_data", ("TABLES = ()", 'TABLES = ("yacht",)'))
    with pytest.raises(ZeroDivisionError):
        reproduce("raises", Job(tmp_path, toy))
    with pytest.raises(ValueError, match="yacht.csv.gz is not in"):
        reproduce("without_data", Job(tmp_path, toy, data=tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("def verdict", "def judge", "lacks verdict; docs/reproduce.md"),
        ("QUICK = ", "RAPID = ", "lacks QUICK"),
        ('"""Squares of numbers & what they are. Then what every number means."""', "", "lacks a docstring"),
        ('CUT = {"numbers": "The fifth number."}', "CUT = None", "CUT is no dictionary of texts"),
        (
            'CUT = {"numbers"',
            'CUT = {"power"',
            "FULL differs from the paper's Config\\(\\) in numbers: CUT has to say why",
        ),
        ('CUT = {"numbers"', 'CUT = {"odd"', "CUT names odd, which is no field of Config"),
        ('PUBLISHED = ("Squares grow <b>fast</b>.",)', 'PUBLISHED = "Fast."', "PUBLISHED is no tuple of texts"),
        ("TABLES = ()", 'TABLES = "yacht"', "TABLES is one text, not a tuple"),
        ("import os", "import nothing_of_this_name", "cannot be imported: ModuleNotFoundError"),
        ('{"seed": seed, "kind": "square"}', '{"kind": "square"}', "gives one case twice"),
        ('{"seed": seed, "kind": "square"}', '{"seed": seed, str(seed): 1}', "cases of different keys"),
        ('"value": np', '"commit": "", "seed": np', "run gives commit, seed, which the row has already"),
    ],
)
def test_a_module_that_breaks_the_protocol_is_refused(toy, tmp_path, old, new, words):
    add(toy, "odd", (old, new))
    with pytest.raises(ExperimentError, match=words):
        reproduce("odd", Job(tmp_path, toy))


def test_an_unknown_name_and_an_unknown_folder_are_refused(toy, tmp_path):
    with pytest.raises(ExperimentError, match="no experiment 'sqares'; the names are squares, and all"):
        reproduce("sqares", Job(tmp_path, toy))
    with pytest.raises(ExperimentError, match="is no folder of experiments"):
        experiments_folder(tmp_path)


def test_a_missing_folder_of_data_and_one_that_cannot_be_made_are_refused(toy, tmp_path):
    with pytest.raises(DataError, match="no folder '.*nowhere' of data: name the one"):
        reproduce("squares", Job(tmp_path, toy, tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="the folder '.*file' cannot be made \\(a file has its name\\): name another"):
        reproduce("squares", Job(tmp_path / "file", toy))
    with pytest.raises(OSError, match="the folder '.*inside' cannot be made \\(not a directory\\): name another"):
        reproduce("squares", Job(tmp_path / "file" / "inside", toy))


# --- Where they are ---


def test_experiments_are_the_files_of_the_folder(toy):
    assert names(toy) == ["squares"]
    checkout = experiments_folder()
    assert checkout == Path(__file__).parents[1] / "experiments"
    assert {"line_search", "diagonal_synthetic"} <= set(names(checkout)) and "settings" not in names(checkout)


def test_one_folder_after_the_other(toy, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(toy, other)
    add(other, "squares", ("Nobody", "Somebody"))
    sources = [experiment("squares", folder).SOURCE for folder in (toy, other, toy)]
    assert sources == [f"{who} 1999, figure 1" for who in ("Nobody", "Somebody", "Nobody")]


def test_the_listing_says_what_there_is_and_what_is_missing(toy, tmp_path):
    add(toy, "broken", ("PUBLISHED", "PUBLISHT"))
    reproduce("squares", Job(tmp_path, toy))
    broken, squares = listing(Job(tmp_path, toy))
    about = "Squares of numbers & what they are. Then what every number means."
    expected = {"name": "squares", "source": "Nobody 1999, figure 1", "about": about, "tables": []}
    assert squares == expected | {"rows": 4, "wanted": 4}
    assert broken["name"] == "broken" and "lacks PUBLISHED" in broken["error"]
    assert listing(Job(tmp_path, toy, quick=True))[1]["rows"] == 0


def test_the_command_lists_runs_and_shows_as_json(toy, tmp_path, monkeypatch):
    def run(*words: str) -> Any:
        done = CliRunner().invoke(
            app, ["reproduce", *words, "--experiments", str(toy), "--json"], catch_exceptions=False
        )
        assert done.exit_code == 0 and done.stderr == ""
        return json.loads(done.stdout)

    monkeypatch.chdir(tmp_path)
    assert run("all", "--quick")["report"] == "reproduction/quick/report.html"
    assert run("--quick")["experiments"][0]["rows"] == 2
    stored_folder(toy).mkdir()
    shutil.copy(tmp_path / "reproduction" / "quick" / "squares.jsonl", stored_folder(toy))
    (toy / "computed").unlink()
    assert only(run("squares", "--stored", "--quick"))["rows"] == 2
    assert (tmp_path / "reproduction" / "stored" / "squares.html").exists()
    assert only(run("squares", "--report-only"))["why"] == "no row is there yet"
    assert not (toy / "computed").exists()
