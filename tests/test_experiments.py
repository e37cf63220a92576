"""Every experiment's quick run: it goes through, its rows are whole, and its page shows them. And what they share."""

import ast
import importlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pseudopoint.datasets import DataError, find
from pseudopoint.reproduce import Job, experiment, experiments_folder, names, reproduce, stored_folder
from pseudopoint.reproduce.page import digest
from pseudopoint.reproduce.rows import StoredRows
from pseudopoint.reproduce.summary import summary

_DATA = Path(os.environ.get("PSEUDOPOINT_DATA") or Path(__file__).parents[2] / "shared" / "data")
SHARED = _DATA if _DATA.is_dir() else None  # without it: those that need no more than the package has
FOLDER = experiments_folder()


@pytest.mark.parametrize("name", names(FOLDER))
def test_the_quick_run(name, tmp_path):
    module = experiment(name, FOLDER)
    try:
        for table in module.TABLES:
            find(table, SHARED)
    except DataError as error:
        pytest.skip(f"NOT TESTED: {error}")
    (entry,) = reproduce(name, Job(tmp_path, FOLDER, SHARED, quick=True))["experiments"]
    rows = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    cases = json.loads(json.dumps(module.cases(module.QUICK)))
    assert [{key: row[key] for key in cases[0]} for row in rows] == cases
    assert all({"config", "pseudopoint", "jax", "commit"} < set(row) for row in rows)
    assert entry["verdict"] == "not judged" and "cannot be judged" not in entry["why"]
    assert (tmp_path / f"{name}.html").stat().st_size > 10_000 and (tmp_path / f"{name}.png").is_file()
    head, *body = module.table(rows)
    assert body and {len(line) for line in body} == {len(head)}
    assert max(len(json.dumps(row)) for row in rows) < 8000  # curves are thinned: files stay small
    for some in (rows, rows[:1]):  # whatever is missing
        assert len(module.verdict(some)) == len(module.PUBLISHED)


@pytest.mark.parametrize("name", names(FOLDER))
def test_an_experiment_imports_no_other(name):
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    relative = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    assert not {part for node in relative for part in (node.module, *(a.name for a in node.names))} & set(names(FOLDER))


@pytest.mark.parametrize("name", names(FOLDER))
def test_stored_rows_are_those_of_the_full_run(name):
    """A changed config or case would leave them out."""
    module = experiment(name, FOLDER)
    rows = StoredRows(stored_folder(FOLDER) / f"{name}.jsonl", module, module.FULL)
    assert rows.others == 0
    if rows.rows():
        head, *body = module.table(rows.rows())
        assert {len(line) for line in body} == {len(head)}


def test_rows_at_the_papers_settings_are_those_that_a_run_goes_on_from():
    files = sorted((stored_folder(FOLDER) / "paper").glob("*.jsonl"))
    for file in files:
        module = experiment(file.stem, FOLDER)
        rows = StoredRows(file, module, module.Config())
        assert rows.rows() and rows.others == 0
    assert files


@pytest.mark.parametrize("name", names(FOLDER))
def test_stored_figures_are_drawn_from_the_stored_rows(name):
    rows = StoredRows(stored_folder(FOLDER) / f"{name}.jsonl", module := experiment(name, FOLDER), module.FULL).rows()
    with Image.open(stored_folder(FOLDER) / f"{name}.png") as picture:
        assert picture.info["rows"] == digest(rows), f"pseudopoint reproduce {name} --stored --out experiments/results"


def test_the_page_of_results_is_made_of_the_rows():
    page = (stored_folder(FOLDER) / "README.md").read_text(encoding="utf-8")
    assert page == summary(FOLDER).rstrip("\n") + "\n", "make docs writes it again"


def test_figure_2c_compares_after_as_many_steps_too():
    ends = {"ORTHNAT": 6.0, "ORTH": 5.0, "COUPLEDNAT": 4.0, "COUPLED": 3.0, "HYBRID": 2.0, "DECOUPLED": 1.0}
    row = {"table": "t", "steps": [0, 10], "milliseconds": dict.fromkeys(ends, 1.0)}
    rows = [row | {"rule": rule, "bound": [0.0, end], "test": [0.0, end]} for rule, end in ends.items()]
    rows[0]["steps"] = [0, 40]  # ORTHNAT: at 6 after 40 steps, at 1.5 after the 10 that all made
    assert "after 10 steps, which all made: ORTH 5.0000" in experiment("decoupled_elbo", FOLDER).verdict(rows)[1].said


def test_who_is_sooner_at_the_level_of_both():
    experiment("line_search", FOLDER)  # makes the folder importable
    sooner = importlib.import_module("pseudopoint_experiments._minibatches").sooner
    row = lambda rule, ms, bound: {"rule": rule, "steps": [0, 1, 2, 3], "milliseconds": {rule: ms}, "bound": bound}
    height = lambda row: np.array(row["bound"])
    quick, slow = row("a", 3.0, [0.0, 99.5, 100.0, 100.0]), row("b", 2.0, [0.0, 10.0, 50.0, 100.0])
    assert sooner([(quick, slow)], height) == 3.0 / 6.0  # 99 is reached after 1 step of 3 ms, and after 3 of 2 ms
    assert sooner([(slow, quick)], height) == 2.0
    low = row("c", 1.0, [0.0, 40.0, 49.5, 50.0])  # its level, 50 − 1: after 2 of 1 ms, and 1 of 3 ms
    assert sooner([(low, quick)], height) == 2.0 / 3.0
    assert sooner([(quick, slow), (quick, slow), (slow, quick)], height) == 0.5  # the median


def test_what_experiments_share():
    experiment("line_search", FOLDER)  # makes the folder importable
    shared = importlib.import_module("pseudopoint_experiments._rows")
    assert shared.product(a=(1, 2), b="xy") == [{"a": a, "b": b} for a in (1, 2) for b in "xy"]
    assert shared.marks(100, 4) == [0, 1, 5, 22, 100]  # 100^⅓ = 4.64
    assert shared.places([0, 1, 5, 22, 100], (0, 4, 5, 1000)) == [0, 1, 2, 4]
    assert shared.shown([0, 1, 5, 22, 100], (0, 4)) == {0: 0, 1: 1, 100: 4}
    assert shared.finite(np.nan) is None and shared.finite(1.23456789) == 1.23457
    rows = [
        {"table": t, "m": m, "x": x} for t, m, x in [(1, "a", 3), (1, "b", 2), (2, "a", 5), (2, "b", 5), (3, "a", 0)]
    ]
    assert shared.average_ranks(rows, "m", "x", down=True) == {"a": 1.75, "b": 1.25}  # 3 has no b
    assert shared.average_ranks(rows, "m", "x", down=False) == {"a": 1.25, "b": 1.75}


def test_drawn_tables_are_those_of_the_formulas():
    module = importlib.import_module("experiments._drawn")
    for name, (rows, columns, classes) in {
        "twonorm": (7400, 20, 2),
        "waveform": (5000, 21, 3),
        "waveform_noise": (5000, 40, 3),
    }.items():
        X, y = module.drawn(name)
        assert X.shape == (rows, columns) and sorted(set(y)) == list(range(classes))
        means = np.stack([X[y == c].mean(0) for c in range(classes)])
        if name == "twonorm":
            np.testing.assert_allclose(means, np.array([[1], [-1]]) * np.full((2, 20), 2 / 20**0.5), atol=0.08)
            assert np.mean((X.sum(1) < 0) == y) == pytest.approx(0.977, abs=0.006)  # Φ(2), of the best rule
        else:
            triangle = lambda peak: np.maximum(6 - np.abs(np.arange(1, 22) - peak), 0)
            middle = [(triangle(a) + triangle(b)) / 2 for a, b in ((11, 7), (11, 15), (7, 15))]
            np.testing.assert_allclose(means[:, :21], middle, atol=0.2)
            np.testing.assert_allclose(means[:, 21:], 0, atol=0.1)
