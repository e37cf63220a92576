"""What repeated fits cost: a cross-validation, a fresh process, two hundred sizes in one process.

    python benchmarks/sessions.py [--only folds,fresh,sizes,shuffled] [--out rows.jsonl]

folds: five folds of 1,030 rows, by scikit-learn's `cross_validate`, in a process whose cache folder is empty, and in a
second one; beside them the last fold again, which has compiled all it needs, and scikit-learn's Gaussian process.
fresh: a process that imports, reads 300 rows and fits them, of a size that an earlier process has seen; the same by
scikit-learn (constant times an RBF with a lengthscale for each column, plus noise). Processes take turns.
sizes: 200 fits of 200 sizes in one process, of which each is larger than the one before: its memory after each.
shuffled: the same in random order, so that early and late fits are of like size.

The rows are y = sin(2x₁) + x₂x₃ + ½cos(3x₄) + 0.3ε of 8 columns. `effort` is the setting of `GPRegressor`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from provenance import store

TURNS = 5


def table(N: int, seed: int = 0):
    """X [N, 8] and y [N]."""
    import numpy as np

    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (N, 8))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + np.cos(3 * X[:, 3]) / 2 + 0.3 * rng.normal(size=N)


def estimator(who: str):
    """Ours of an effort, or scikit-learn's Gaussian process."""
    if who != "sklearn":
        from pseudopoint import GPRegressor

        return GPRegressor(effort=who)
    import numpy as np
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    return GaussianProcessRegressor(ConstantKernel() * RBF(np.ones(8)) + WhiteKernel(0.1), normalize_y=True)


def folds(who: str) -> dict:
    """Seconds of five folds, of each of them, and of the last one again; programs compiled."""
    import numpy as np
    from sklearn.model_selection import KFold, cross_validate

    compiled = count_programs() if who != "sklearn" else []
    X, y = table(1030)
    split = KFold(5, shuffle=True, random_state=0)
    began = time.perf_counter()
    each = cross_validate(estimator(who), X, y, cv=split, scoring="r2")
    seconds, programs = time.perf_counter() - began, len(compiled)
    train = list(split.split(X))[-1][0]
    again = []
    for _ in range(1 if who == "sklearn" else 3):
        start = time.perf_counter()
        estimator(who).fit(X[train], y[train])
        again.append(time.perf_counter() - start)
    row = {"seconds": seconds, "fold_seconds": each["fit_time"].tolist(), "warm_fold_seconds": median(again)}
    return row | {"r2": float(np.mean(each["test_score"])), "programs": programs}


def count_programs() -> list[str]:
    """Grows by an entry for every program that XLA compiles in this process, because the cache folder lacks it."""
    from jax import monitoring

    missed: list[str] = []
    monitoring.register_event_listener(lambda name, **_: missed.append(name) if name.endswith("cache_misses") else None)
    return missed


def fresh(who: str) -> dict:
    """A fit of 300 rows; the time is that of the process."""
    X, y = table(300)
    return {"r2": float(estimator(who).fit(X, y).score(X, y))}


def sizes(who: str, order=range(200)) -> dict:
    """Resident memory, MiB, after each fit of 100, 103, … rows."""
    held = []
    for k in order:
        estimator(who).fit(*table(100 + 3 * k, k))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        held.append(round(pages * os.sysconf("SC_PAGESIZE") / 2**20, 1))
    return {"after_10": held[9], "after_30": held[29], "after_100": held[99], "after_200": held[199], "most": max(held)}


def shuffled(who: str) -> dict:
    """`sizes` in random order."""
    import numpy as np

    return sizes(who, np.random.default_rng(0).permutation(200).tolist())


CASES = {"folds": folds, "fresh": fresh, "sizes": sizes, "shuffled": shuffled}


def in_process(case: str, who: str, cache: str) -> dict:
    """A case in a process of its own, with its cache folder; the seconds of the whole process."""
    began = time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    line = [sys.executable, __file__, "--inside", case, "--who", who]
    run = subprocess.run(line, env=environment | {"XDG_CACHE_HOME": cache}, capture_output=True, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1]) | {"process_seconds": time.perf_counter() - began}


def measured(only: list[str]):
    """The rows, one after another."""
    with tempfile.TemporaryDirectory() as cache:
        if "folds" in only:
            for who in ("fast", "balanced"):
                for process in ("first", "second"):
                    yield {"case": "folds", "who": who, "process": process} | in_process("folds", who, f"{cache}")
            yield {"case": "folds", "who": "sklearn", "process": "first"} | in_process("folds", "sklearn", cache)
        if "fresh" in only:
            each = ("fast", "balanced", "sklearn")
            for who in each:
                in_process("fresh", who, cache)
            turns = [{who: in_process("fresh", who, cache) for who in each} for _ in range(TURNS)]
            for who in each:
                seconds = [turn[who]["process_seconds"] for turn in turns]
                row = {"case": "fresh", "who": who, "r2": turns[0][who]["r2"], "process_seconds": median(seconds)}
                yield row | {"least": min(seconds), "most": max(seconds)}
        for case in ("sizes", "shuffled"):
            if case in only:
                yield {"case": case, "who": "fast"} | in_process(case, "fast", cache)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="folds,fresh,sizes,shuffled")
    parser.add_argument("--out", type=Path, help="append the rows to this file, a line of JSON each")
    parser.add_argument("--inside", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--who", default="balanced", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(CASES[arguments.inside](arguments.who)))
        return
    for row in measured(arguments.only.split(",")):
        store(row, arguments.out)


if __name__ == "__main__":
    main()
