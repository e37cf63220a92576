"""Noise that depends on x: one variance, two Gaussian processes in turn, and minibatches, on the same rows.

    python benchmarks/noise.py --data FOLDER [--tables power,wave] [--seeds 0,1] [--fits gaussian,varying,svgp] \
        [--set '{"ROUNDS": 0}'] [--validate] [--out rows.jsonl]

Every fit runs in this process, one after another. With --validate a fifth of the training rows is held out in place of
the test rows, which choices are to be made from. `wave` has two columns, and noise from 0.1 to 1 along the first; the
noise of `even` is the same everywhere. `flights` are 18,000 rows of flights_nyc13. Of all other tables a tenth are test
rows.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from classes import cut
from provenance import store

TABLES = ("wave", "even", "concrete", "wine-quality-red", "abalone", "power", "flights")
FITS: dict[str, Any] = {
    "gaussian": {"likelihood": "gaussian"},
    "varying": {"likelihood": "heteroscedastic"},
    "svgp": {"likelihood": "heteroscedastic", "method": "svgp"},
}


def load(name: str, data: Path, seed: int):
    """X, y, X_test, y_test."""
    if name in ("wave", "even"):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-2, 2, (6000, 2))
        sd = 10 ** ((X[:, 0] - 2) / 4) if name == "wave" else 0.4
        return cut(X, np.sin(2 * X[:, 0]) + X[:, 1] + sd * rng.normal(size=6000), 2500, seed)
    import pandas as pd

    file = "flights_nyc13" if name == "flights" else name
    table = pd.read_csv(data / f"{file}.csv.gz").to_numpy().astype(float)
    if name == "flights":
        table = table[np.random.default_rng(seed).permutation(len(table))[:28_000]]
    rows = 18_000 if name == "flights" else round(0.9 * len(table))
    return cut(table[:, :-1], table[:, -1], rows, seed)


def fit_here(name: str, fit: str, seed: int, arguments: argparse.Namespace) -> dict:
    """One fit, and what it says of rows that it has not seen."""
    from pseudopoint import GPRegressor
    from pseudopoint.recipes import noise

    for name_of, value in json.loads(arguments.set).items():
        setattr(noise, name_of, value)
    X, y, X_test, y_test = load(name, arguments.data, seed)
    if arguments.validate:
        X, y, X_test, y_test = cut(X, y, round(0.8 * len(y)), seed)
    wall, processor = time.perf_counter(), time.process_time()
    model = GPRegressor(**FITS[fit], random_state=seed).fit(X, y)
    row = {"table": name, "fit": fit, "seed": seed, "N": len(y), "D": X.shape[1], "set": arguments.set}
    row |= {"validate": arguments.validate, "seconds": time.perf_counter() - wall}
    row |= {"processor": time.process_time() - processor, "method": model.method_}
    density, (low, high) = model.log_density(X_test, y_test), model.predict_interval(X_test, 0.9).T
    row |= {"test_rows": len(y_test), "test_log_density": density.mean()}
    row |= {"test_log_density_error": density.std() / len(density) ** 0.5}
    row |= {"rmse": np.mean((model.predict(X_test) - y_test) ** 2) ** 0.5}
    row |= {"coverage_90": np.mean((y_test >= low) & (y_test <= high)), "bound_per_row": model.bound_ / len(y)}
    row |= {"note": next((note for note in model.notes_ if note.startswith("noise:")), "")}
    return {key: round(float(value), 5) if isinstance(value, float) else value for key, value in row.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--fits", default=",".join(FITS))
    parser.add_argument("--seeds", default="0", help="of the rows and of the fit, with commas between")
    parser.add_argument("--set", default="{}", help="JSON of constants of recipes/noise.py, such as ROUNDS")
    parser.add_argument("--validate", action="store_true", help="hold out training rows in place of test rows")
    parser.add_argument("--out", type=Path, help="append the rows to this file, a line of JSON each")
    arguments = parser.parse_args()
    for name in arguments.tables.split(","):
        for seed in map(int, arguments.seeds.split(",")):
            for fit in arguments.fits.split(","):
                store(fit_here(name, fit, seed, arguments), arguments.out)


if __name__ == "__main__":
    main()
