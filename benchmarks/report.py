"""What a report costs beside its fit: seconds and processor seconds of both, and of the parts of the report.

    python benchmarks/report.py                        # 20,000 rows, 8 columns
    python benchmarks/report.py --rows 500 --out FILE  # to see that it works

Each case runs in a process of its own, with the package's cache of compiled programs as it finds it:

- `command`: what `pseudopoint fit TABLE --target y --report FILE` does. It fits twice, without the rows held out and
  with all of them. The report is what comes after the last fit.
- `command-once`: the same with --no-refit, so beside one fit.
- `estimator`: `GPRegressor().fit(X, y)`, and `effects(X)`, which is the report's curves in Python.

The target is sin 2x₁ + x₂x₃ + ½ cos 3x₄ + 0.3 ε, inputs uniform on [−2, 2].
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from provenance import ROOT, store

CASES = "command,command-once,estimator"
# Of `pseudopoint.commands`: module, function, and what its time is called.
PARTS = (
    ("steps", "reported", "report"),
    ("explained", "importances", "importance"),
    ("steps", "write_report", "pictures"),
)


def rows(count: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and target."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (count, columns))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * np.cos(3 * X[:, 3])
    return X, f + 0.3 * rng.standard_normal(count)


class Clock:
    """Seconds and processor seconds of what is called through it, by name."""

    def __init__(self):
        self.spent: dict[str, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which adds its time to that of `name`."""

        def call(*arguments, **options):
            wall, processor = time.perf_counter(), time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                ends = {"seconds": time.perf_counter() - wall, "processor": time.process_time() - processor}
                for kind, value in ends.items():
                    self.spent[f"{name}_{kind}"] = self.spent.get(f"{name}_{kind}", 0.0) + value

        return call


def command(X: np.ndarray, y: np.ndarray, refit: bool) -> dict[str, float]:
    """A fit of a table with its report."""
    import importlib

    import pandas as pd

    from pseudopoint.commands import fit_table
    from pseudopoint.estimators import GPRegressor

    clock = Clock()
    for module, name, called in PARTS:
        place = importlib.import_module(f"pseudopoint.commands.{module}")
        setattr(place, name, clock.timed(called, getattr(place, name)))
    GPRegressor.effects = clock.timed("effects", GPRegressor.effects)  # pyright: ignore[reportAttributeAccessIssue]
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]).assign(y=y).to_csv(table, index=False)
        report = Path(folder) / "report.html"
        clock.timed("all", fit_table)(table, "y", report=report, out=Path(folder) / "model", refit=refit)
        size = report.stat().st_size
    for kind in ("seconds", "processor"):
        clock.spent[f"fit_{kind}"] = clock.spent.pop(f"all_{kind}") - clock.spent[f"report_{kind}"]
    return clock.spent | {"report_bytes": size}


def estimator(X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """A fit of arrays, and its effects."""
    from pseudopoint import GPRegressor

    clock, model = Clock(), GPRegressor()
    clock.timed("fit", model.fit)(X, y)
    clock.timed("report", model.effects)(X)
    return clock.spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "report.jsonl")
    parser.add_argument("--here", action="store_true", help="the one case in this process; for workers")
    given = parser.parse_args()
    if given.here:
        X, y = rows(given.rows, given.columns)
        found = estimator(X, y) if given.cases == "estimator" else command(X, y, given.cases == "command")
        return print(json.dumps(found))
    for name in given.cases.split(","):
        words = [sys.executable, __file__, *sys.argv[1:], "--cases", name, "--here"]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        found = {key: round(value, 3) for key, value in json.loads(done.stdout.splitlines()[-1]).items()}
        store({"case": name, "rows": given.rows, "columns": given.columns} | found, given.out)


if __name__ == "__main__":
    main()
