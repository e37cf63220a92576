"""GPRegressor on regression tables, beside GPflow's figures, which stand below: by M = GPflow's, or by defaults.

    python benchmarks/baselines.py --data FOLDER [--tables energy,naval]
    python benchmarks/baselines.py --data FOLDER --method auto --set '{"num_inducing": null}'

One split each: numpy.random.default_rng(0).permutation(N), first 90 % train. Figures: per row, standardised. GPflow
2.11.2: SGPR, the same kernel, k-means points, 100 or 200 iterations of L-BFGS-B (naval 150); seen once, no stored row.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
from peers.classification_tables import as_line
from provenance import provenance

from pseudopoint import GPRegressor, metrics

# table: (M, GPflow's test log density, GPflow's test RMSE)
GPFLOW = {
    "energy": (100, 1.5356, 0.0519),
    "concrete": (100, -0.1100, 0.2625),
    "yacht": (50, 2.2135, 0.0109),
    "boston": (100, -0.0737, 0.2529),
    "power": (200, 0.1036, 0.2179),
    "kin8nm": (300, -0.2119, 0.2939),
    "wine-quality-red": (100, -1.1244, 0.7456),
    "abalone": (100, -0.9973, 0.6612),
    "naval": (100, 4.782, 0.001576),
}


def split(path: Path):
    table = pd.read_csv(path)
    X, y = table.drop(columns="y").values.astype(float), table["y"].values.astype(float)
    rows = np.random.default_rng(0).permutation(len(y))
    cut = int(0.9 * len(y))
    train, test = rows[:cut], rows[cut:]
    mean, std = y[train].mean(), y[train].std()
    y = (y - mean) / std
    return X[train], y[train], X[test], y[test]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", default=",".join(GPFLOW))
    parser.add_argument("--method", default="collapsed")
    parser.add_argument("--set", default="{}", help="JSON of other GPRegressor parameters")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    for name in arguments.tables.split(","):
        X, y, X_test, y_test = split(arguments.data / f"{name}.csv.gz")
        M, density, error = GPFLOW.get(name, (None, np.nan, np.nan))
        settings = {"num_inducing": M} | json.loads(arguments.set)
        start = time.perf_counter()
        model = GPRegressor(method=arguments.method, **settings).fit(X, y)
        seconds = time.perf_counter() - start
        mean = model.predict(X_test)
        row = {
            "table": name,
            "method": model.method_,
            "M": len(model.predictor_.Zv),
            "seconds": round(seconds, 2),
            "iterations": model.n_iter_,
            "bound_per_row": model.bound_ / len(y),
            "vfe_per_row": model.bound_vfe_ / len(y),
            "test_log_density": float(model.log_density(X_test, y_test).mean()),
            "gpflow_test_log_density": density,
            "test_rmse": metrics.rmse(y_test, mean),
            "gpflow_test_rmse": error,
            "noise_variance": float(model.likelihood_.variance),
            "rejected": model.n_rejected_,
            "converged": model.converged_,
            "notes": model.notes_,
        }
        row["reached"] = row["test_log_density"] >= density - 0.02 and row["test_rmse"] <= 1.02 * error
        row |= provenance()
        print(as_line(row), flush=True)
        if arguments.out:
            with arguments.out.open("a") as file:
                file.write(as_line(row) + "\n")


if __name__ == "__main__":
    main()
