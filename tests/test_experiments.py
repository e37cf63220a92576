"""Every experiment's quick run: it goes through, its rows are whole, and its page shows them."""

import json
import os
from pathlib import Path

import pytest

from pseudopoint.datasets import DataError, find
from pseudopoint.reproduce import Job, experiment, experiments_folder, names, reproduce

SHARED = Path(os.environ.get("PSEUDOPOINT_DATA") or Path(__file__).parents[2] / "shared" / "data")
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
    assert entry["verdict"] in ("agrees", "disagrees", "untested") and "cannot be judged" not in entry["why"]
    assert (tmp_path / f"{name}.html").stat().st_size > 10_000 and (tmp_path / f"{name}.png").is_file()
    head, *body = module.table(rows)
    assert body and {len(line) for line in body} == {len(head)}
    assert max(len(json.dumps(row)) for row in rows) < 8000  # curves are thinned: files stay small
    module.verdict(rows[:1])  # whatever is missing
