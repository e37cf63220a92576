"""Default fits to tables with text, with one lengthscale a category or a column, and without that choice.

    python benchmarks/categories.py --data FOLDER [--tables adult,abalone] [--seeds 0,1] [--rows 1500]

Codes of `adult` and the 0/1 columns of `abalone` become text. A split is a permutation by the seed: `--rows` rows are
trained on, the next 4,000 are the test. `default` is the estimator's, `one_hot` the same without the part "categories"
of its search. Test log density is a row's, of a real target in standard deviations of the training rows; `processor`
is of all threads. Test rows enter no fit and no choice.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from provenance import RESULTS, store

TEST = 4000


def load(name: str, data: Path) -> tuple[pd.DataFrame, np.ndarray, bool]:
    """Inputs with text, target, and whether that holds classes."""
    frame = pd.read_csv(data / f"{name.partition('_')[0]}.csv.gz")
    if name == "abalone":
        marks = [column for column in frame if column.startswith("sex_")]
        return frame.drop(columns=[*marks, "y"]).assign(sex=frame[marks].idxmax(axis=1)), frame["y"].to_numpy(), False
    codes = {column: "c" + frame[column].astype(str) for column in frame if column.endswith("_cat")}
    frame, target = frame.assign(**codes), {"adult": "y", "adult_hours": "hours_per_week", "adult_age": "age"}[name]
    return frame.drop(columns=target), frame[target].to_numpy(), name == "adult"


def fitted(who: str, model: Any, X, y) -> Any:
    """The estimator after its fit."""
    from pseudopoint.recipes import Ties

    of = Ties.of
    if who == "one_hot":
        Ties.of = staticmethod(lambda categories, scaling: None)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        return model.fit(X, y)
    finally:
        Ties.of = of


def run(name: str, who: str, seed: int, rows: int, data: Path) -> dict[str, Any]:
    """One fit and what its test rows say."""
    from pseudopoint import GPClassifier, GPRegressor

    X, y, classes = load(name, data)
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[:rows], order[rows : rows + TEST]
    wall, processor = time.perf_counter(), time.process_time()
    model = fitted(who, GPClassifier() if classes else GPRegressor(), X.iloc[train], y[train])
    spent = {"seconds": time.perf_counter() - wall, "processor": time.process_time() - processor}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of categories that training rows do not have
        if classes:
            p = np.asarray(model.predict_proba(X.iloc[test]))
            density = np.log(p[np.arange(len(test)), np.searchsorted(model.classes_, y[test])])
        else:
            density = model.log_density(X.iloc[test], y[test]) + np.log(np.std(y[train]))
    table = model.selection_
    chosen = [c for p, c, taken in zip(table["part"], table["choice"], table["chosen"], strict=True) if taken]
    tried = dict(zip(table["choice"], np.asarray(table["log_density"], float).tolist(), strict=True))
    words = {choice: value for choice, value in tried.items() if choice.startswith("one lengthscale")}
    row = {"table": name, "who": who, "seed": seed, "N": rows, "D": model.encoder_.inputs(X.iloc[:1])[0].shape[1]}
    row |= {"columns": len(model.columns_), "log_density": float(np.mean(density)), "chosen": chosen, "tried": words}
    return row | spent


def main() -> None:
    """Appends a row for each fit to results/categories.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", default="adult_hours,adult,abalone,adult_age")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--rows", type=int, default=1500)
    given = parser.parse_args()
    for seed in map(int, given.seeds.split(",")):
        for name in given.tables.split(","):
            for who in ("default", "one_hot"):
                store(run(name, who, seed, given.rows, given.data), RESULTS / "categories.jsonl")


if __name__ == "__main__":
    main()
