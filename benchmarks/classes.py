"""GPClassifier out of the box on tables of several classes, in two checkouts, in turn: seconds, bound, log density.

    python benchmarks/classes.py --data FOLDER [--other CHECKOUT] [--tables waveform,mnist16] [--seeds 0,1] \
        [--set '{"max_iter": 500}'] [--validate] [--who default,boosting,catboost] [--out rows.jsonl]

Every fit runs in a fresh process with an empty folder of compiled programs, so `seconds` and `processor` (of all
threads) contain imports' and compilation's share of the fit. Test rows never enter a fit. With --validate a fifth of
the training rows is held out in place of the test rows, which choices are to be made from.

`boosting` is scikit-learn's HistGradientBoosting, 500 rounds with early stopping; `catboost` 2,000 rounds with early
stopping by a tenth held out, by the Python of --catboost-python. Both run in fresh processes on the same rows.

| table | training rows, columns, classes | from |
|---|---|---|
| letter8 | 302 × 16, 8 | letter, A to H |
| waveform | 4,500 × 21, 3 | the formula of the waveform generator |
| blocks5 | 4,926 × 10, 5 | scikit-learn's make_classification, three quarters of the rows in one class |
| mnist64 | 5,058 × 64, 10 | MNIST's first principal components |
| mnist16 | 9,893 × 16, 10 | the same |
| letter | 18,000 × 16, 26 | that of `classification.py` |
| iris, wine, digits | 135, 160, 1,617 rows | scikit-learn |
| pima, phoneme, … | those of `classification.py`, split as there | FOLDER |

Tables of FOLDER run when named: --tables pima,ionosphere,banknote,phoneme,ringnorm,magic,adult,letter.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
from peers import classification_tables
from provenance import ROOT, store

FILES = ("pima", "ionosphere", "banknote", "phoneme", "ringnorm", "magic", "adult", "letter")
TABLES = ("letter8", "waveform", "blocks5", "mnist64", "mnist16", "iris", "wine", "digits")
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def cut(X, y, rows: int, seed: int) -> Split:
    """That many training rows, drawn at random, and all others: X, y, X_test, y_test."""
    order = np.random.default_rng(seed).permutation(len(y))
    return X[order[:rows]], y[order[:rows]], X[order[rows:]], y[order[rows:]]


def waveform(rows: int, seed: int):
    """Mixtures of two of three triangles, u h₁ + (1 − u) h₂ + N(0, 1), on 21 places."""
    rng, at = np.random.default_rng(seed), np.arange(1, 22)
    triangles = np.maximum(6 - np.abs(at - np.array([[11], [7], [15]])), 0)
    y, u = rng.integers(0, 3, rows), rng.random((rows, 1))
    first, second = triangles[[0, 0, 1]][y], triangles[[1, 2, 2]][y]
    return u * first + (1 - u) * second + rng.standard_normal((rows, 21)), y


def components(data: Path, rows: int, columns: int, seed: int) -> Split:
    """MNIST's training images at random, and its test images, in the components of the former."""
    import pandas as pd

    images = [pd.read_csv(data / f"mnist_{part}.csv.gz", dtype="uint8").to_numpy() for part in ("train", "test")]
    train = images[0][np.random.default_rng(seed).permutation(len(images[0]))[:rows]]
    mean = train[:, :-1].mean(0)
    _, axes = np.linalg.eigh(np.cov((train[:, :-1] - mean).T))
    scores = [(part[:, :-1] - mean) @ axes[:, : -columns - 1 : -1] for part in (train, images[1])]
    return scores[0], train[:, -1].astype(int), scores[1], images[1][:, -1].astype(int)


def load(name: str, data: Path, seed: int) -> Split:
    """X, y, X_test, y_test of one table."""
    from sklearn import datasets

    if name == "letter8":
        import pandas as pd

        table = pd.read_csv(data / "letter.csv.gz").to_numpy()
        table = table[table[:, -1] < 8]
        return cut(table[:, :-1].astype(float), table[:, -1].astype(int), 302, seed)
    if name == "waveform":
        X, y = waveform(9500, seed)
        return cut(X, y, 4500, seed)
    if name == "blocks5":
        shares = {"n_classes": 5, "weights": [0.75, 0.1, 0.05, 0.05, 0.05], "n_clusters_per_class": 3}
        columns = {"n_features": 10, "n_informative": 7, "n_redundant": 2, "class_sep": 1.5}
        X, y, *_ = datasets.make_classification(9926, **columns, **shares, random_state=seed)
        return cut(X, y, 4926, seed)
    if name.startswith("mnist"):
        return components(data, 5058 if name == "mnist64" else 9893, int(name[5:]), seed)
    if name in FILES:
        X, y = classification_tables.load(data / f"{name}.csv.gz")
        train, test = classification_tables.split(y, seed)
        return X[train], y[train], X[test], y[test]
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return cut(X, y, round(0.9 * len(y)), seed)


def boosting(seed: int):
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(max_iter=500, early_stopping=True, random_state=seed).fit


def catboost(seed: int):
    from catboost import CatBoostClassifier  # pyright: ignore[reportMissingImports]

    model = CatBoostClassifier(iterations=2000, random_seed=seed, verbose=False, allow_writing_files=False)

    def fit(X, y):
        most, held = np.split(np.random.default_rng(seed).permutation(len(y)), [int(0.9 * len(y))])
        return model.fit(X[most], y[most], eval_set=(X[held], y[held]), early_stopping_rounds=50)

    return fit


def ours(seed: int, settings: dict):
    """A fit by the pseudopoint that this process imports."""
    from pseudopoint import GPClassifier

    return GPClassifier(**{"random_state": seed} | settings).fit


def fit_here(name: str, who: str, arguments: argparse.Namespace) -> dict:
    """One fit in this process."""
    seed, settings = int(arguments.seeds), json.loads(arguments.set)
    X, y, X_test, y_test = load(name, arguments.data, seed)
    if arguments.validate:
        X, y, X_test, y_test = cut(X, y, round(0.8 * len(y)), seed)
    wall, processor = time.perf_counter(), time.process_time()
    fit = ours(seed, settings) if who == "default" else {"boosting": boosting, "catboost": catboost}[who](seed)
    model = fit(X, y)
    spent = {"seconds": time.perf_counter() - wall, "processor": time.process_time() - processor}
    p = model.predict_proba(X_test)
    known = np.searchsorted(model.classes_, y_test)
    density = np.log(np.maximum(p[np.arange(len(p)), known], 1e-300))
    row = {"table": name, "who": who, "seed": seed, "N": len(y), "D": X.shape[1], "classes": len(model.classes_)}
    row |= {"settings": settings if who == "default" else {}, "validate": arguments.validate} | spent
    row |= {"test_rows": len(p), "test_log_density": density.mean(), "accuracy": np.mean(p.argmax(1) == known)}
    row |= {"test_log_density_error": density.std() / len(p) ** 0.5}
    if who == "default":
        row |= {"M": len(model.inducing_points_), "steps": model.n_iter_, "bound": model.bound_}
        row |= {"bound_per_row": model.bound_ / len(y), "method": model.method_, "reason": model.reason_}
        row["near_rows"] = getattr(model, "near_rows_", None) is not None  # older versions have none
    return {key: round(float(value), 5) if isinstance(value, float) else value for key, value in row.items()}


def elsewhere(checkout: Path, name: str, seed: str, who: str, arguments: argparse.Namespace) -> dict:
    """The same by the code of a checkout, in a process of its own."""
    python = arguments.catboost_python if who == "catboost" else sys.executable
    words = [python, __file__, "--here", "--who", who, "--data", arguments.data, "--tables", name, "--seeds", seed]
    words += ["--set", arguments.set] + ["--validate"] * arguments.validate
    with tempfile.TemporaryDirectory() as empty:  # no program is found that an earlier process has compiled
        environment = os.environ | {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": empty}
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=environment, cwd=checkout)
    if done.returncode:
        error = (done.stderr.strip().splitlines() or [""])[-1][:300]
        return {"table": name, "who": who, "seed": int(seed), "error": error}
    return json.loads(done.stdout.splitlines()[-1])


def commit_of(checkout: Path) -> str:
    """Its commit, with a "+" after changes that were not committed."""
    git = ["git", "-C", str(checkout), "describe", "--always", "--exclude=*", "--dirty=+"]
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--other", type=Path, help="another checkout, which runs each fit before this one does")
    parser.add_argument("--other-only", action="store_true")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", default="0", help="of the rows and of the fit, with commas between")
    parser.add_argument("--set", default="{}", help="JSON of GPClassifier parameters")
    parser.add_argument("--validate", action="store_true", help="hold out training rows in place of test rows")
    parser.add_argument("--who", default="default", help="default (ours), boosting, catboost, with commas between")
    parser.add_argument("--catboost-python", default=sys.executable, help="a Python that has catboost")
    parser.add_argument("--out", type=Path, help="append the rows to this file, a line of JSON each")
    parser.add_argument("--here", action="store_true", help="fit in this process; for workers")
    arguments = parser.parse_args()
    if arguments.here:
        return print(json.dumps(fit_here(arguments.tables, arguments.who, arguments), default=float))
    checkouts = [arguments.other] * (arguments.other is not None) + [ROOT] * (not arguments.other_only)
    for name, seed in product(arguments.tables.split(","), arguments.seeds.split(",")):
        for who in arguments.who.split(","):
            for checkout in checkouts if who == "default" else [ROOT]:
                row = elsewhere(checkout.resolve(), name, seed, who, arguments)
                store(row, arguments.out, commit_of(checkout))


if __name__ == "__main__":
    main()
