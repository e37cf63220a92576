"""A weekly series with a trend, forecast by one line of the command line, beside the model that made it.

    python benchmarks/forecast.py [--seeds 0,1,2,3,4] [--out rows.jsonl]

400 days of y = 50 + t/20 + 4 sin(2πt/7) + 2 cos(4πt/7) + ε, ε of standard deviation 1; the last 100 are forecast:

    pseudopoint fit sales.csv --target sales --test-last 0.25 --no-refit --json

"fitted form" is least squares of the same six terms to the first 300 days, "truth" the function without noise.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from provenance import store

DAYS, AHEAD = 400, 100


def forecast(seed: int) -> dict:
    """Root mean squared errors of the last days: ours by the command line, and those of the model that made them."""
    t = np.arange(DAYS)
    week = 2 * np.pi * t / 7
    terms = np.column_stack([np.ones(DAYS), t, np.sin(week), np.cos(week), np.sin(2 * week), np.cos(2 * week)])
    truth = terms @ [50, 0.05, 4, 0, 0, 2]
    y = truth + np.random.default_rng(seed).normal(size=DAYS)
    weights, *_ = np.linalg.lstsq(terms[:-AHEAD], y[:-AHEAD], rcond=None)
    error = lambda prediction: float(np.sqrt(np.mean((y - prediction)[-AHEAD:] ** 2)))
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "sales.csv"
        day = pd.date_range("2024-01-01", periods=DAYS).strftime("%Y-%m-%d")
        pd.DataFrame({"day": day, "sales": y}).to_csv(table, index=False)
        line = [sys.executable, "-m", "pseudopoint", "fit", str(table), "--target", "sales"]
        began = time.perf_counter()
        run = subprocess.run([*line, "--test-last", "0.25", "--no-refit", "--json"], capture_output=True, check=True)
        seconds = time.perf_counter() - began
    result = json.loads(run.stdout)
    row = {"seed": seed, "rmse": result["test"]["rmse"], "rmse_fitted_form": error(terms @ weights)}
    row |= {"rmse_truth": error(truth), "coverage_90": result["test"]["coverage"], "seconds": round(seconds, 1)}
    return row | {"kernel": result["chosen"]["kernel"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--out", type=Path, help="append the rows to this file, a line of JSON each")
    arguments = parser.parse_args()
    for seed in arguments.seeds.split(","):
        store(forecast(int(seed)), arguments.out)


if __name__ == "__main__":
    main()
