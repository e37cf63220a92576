"""GPClassifier out of the box on the classification tables of BASELINES.md, beside its peers in the same run.

    python benchmarks/classification.py --data FOLDER [--tables pima,banknote] [--set '{"num_inducing": 200}']
    python benchmarks/classification.py --data FOLDER --out rows.jsonl \
        --peers gpflow=GPFLOW_ENV/bin/python,sklearn=.venv/bin/python

One split each, numpy.random.default_rng(0).permutation(N), first 90 % train, or those of the seeds in --splits.
GPClassifier gets the raw columns, with categories one-hot (adult). `seconds` is its fit, compilation included; --again
fits once more in the same process, so that `seconds_tracing`, the difference, is known. With --peers each side of a
table runs in a fresh process, one after the other: ours, GPflow, scikit-learn (tables below 1500 training rows). A
crash is a row with `error`.

adult runs when named; BASELINES.md has no figure for it, and letter's is a crash.

ringnorm is drawn from known densities, so its rows also say what the Bayes rule gets on the same test rows.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from peers.classification_tables import as_line, error_text, load, scores, split
from provenance import provenance

PEERS = {"gpflow": "gpflow_svgp.py", "sklearn": "sklearn_gpc.py"}
LARGEST_SKLEARN = 1500

# table: (GPflow's test accuracy, GPflow's test log density), from BASELINES.md
GPFLOW = {
    "pima": (0.7403, -0.4503),
    "ionosphere": (0.9444, -0.1489),
    "banknote": (1.0, -0.0137),
    "phoneme": (0.8706, -0.2880),
    "magic": (0.8691, -0.3227),
    "ringnorm": (0.9878, -0.0523),
    "letter": (np.nan, np.nan),  # crashes
}


def bayes_ringnorm(X: np.ndarray) -> np.ndarray:
    """Class probabilities of Breiman's ringnorm at raw inputs X: class 0 is N(0, 4 I), class 1 N(a 1, I), a = 2/√D."""
    D = X.shape[1]
    log_0 = -0.5 * (X**2).sum(1) / 4.0 - D * np.log(2.0)
    log_1 = -0.5 * ((X - 2.0 / np.sqrt(D)) ** 2).sum(1)
    first = 0.5 * (1.0 + np.tanh(0.5 * (log_0 - log_1)))
    return np.column_stack([first, 1.0 - first])


def check_ringnorm(X: np.ndarray, y: np.ndarray) -> None:
    """Refuse a table that is standardised, or labelled the other way round."""
    off_0, off_1 = abs(X[y == 0].mean()), abs(X[y == 1].mean() - 2.0 / np.sqrt(X.shape[1]))
    spread_0, spread_1 = X[y == 0].var(0).mean(), X[y == 1].var(0).mean()
    if max(off_0, off_1) > 0.05 or abs(spread_0 - 4.0) > 0.1 or abs(spread_1 - 1.0) > 0.05:
        raise ValueError("ringnorm is not as Breiman's recipe makes it, y = 0: N(0, 4 I) and y = 1: N(a 1, I)")


def beside_bayes(row: dict, path: Path) -> dict:
    """Add what the Bayes rule gets on the test rows of ringnorm; other tables' rows as they are."""
    if row["table"] != "ringnorm" or "accuracy" not in row:
        return row
    X, y = load(path)
    check_ringnorm(X, y)
    test = split(y, row["split"])[1]
    best = scores(bayes_ringnorm(X[test]), np.array([0, 1]), y[test])
    return row | {
        "bayes_error": 1.0 - best["accuracy"],
        "error_above_bayes": best["accuracy"] - row["accuracy"],
        "bayes_test_log_density": best["test_log_density"],
    }


def ours(path: Path, seed: int, arguments: argparse.Namespace) -> dict:
    """Fit and score one split of a table in this process."""
    import pseudopoint

    name = path.name.removesuffix(".csv.gz")
    row = {"library": f"pseudopoint {pseudopoint.__version__}", "table": name, "split": seed}
    settings = {"num_inducing": 100, "random_state": 0} | json.loads(arguments.set)
    start = time.perf_counter()
    try:
        GPClassifier = pseudopoint.GPClassifier
        X, y = load(path)
        train, test = split(y, seed)
        X_train, y_train = X[train], y[train]
        if arguments.warm_up:
            toy = np.random.default_rng(0).normal(size=(50, 2))
            GPClassifier(num_inducing=5, random_state=0).fit(toy, (toy[:, 0] > 0.0).astype(int))
        row |= {"N": len(y), "N_train": len(train), "D": X.shape[1], "classes": len(np.unique(y_train))}
        row |= {"M": settings["num_inducing"], "settings": settings}
        start = time.perf_counter()
        model = GPClassifier(**settings).fit(X_train, y_train)
        row["seconds"] = time.perf_counter() - start
        if arguments.again:
            before = time.perf_counter()
            GPClassifier(**settings).fit(X_train, y_train)
            row["seconds_tracing"] = row["seconds"] - (time.perf_counter() - before)
        before = time.perf_counter()
        probabilities = np.asarray(model.predict_proba(X[test]), dtype=float)
        row["seconds_predict"] = time.perf_counter() - before
        if not np.isfinite(probabilities).all():
            row["error"] = "predictions are not finite"
        row |= scores(probabilities, model.classes_, y[test])
        row |= {"method": model.method_, "iterations": model.n_iter_, "bound_per_row": float(model.bound_) / len(train)}
        row |= {"rejected": getattr(model, "n_rejected_", None), "converged": getattr(model, "converged_", None)}
        row["notes"] = getattr(model, "notes_", None)
        accuracy, density = GPFLOW.get(name, (np.nan, np.nan))
        row |= {"gpflow_accuracy": accuracy, "gpflow_test_log_density": density}
    except Exception as error:  # the other tables still run
        row |= {"error": error_text(error), "seconds_until_error": time.perf_counter() - start}
    return row


def in_process(side: str, command: list, name: str, seed: int, limit: float) -> dict:
    """Run a script that prints one line of JSON last; its failure or silence is a row too."""
    environment = os.environ | {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    start = time.perf_counter()
    failed = {"library": side, "table": name, "split": seed}
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=limit, env=environment)
    except subprocess.TimeoutExpired:
        return failed | {"error": f"not done after {limit:g} s"}
    try:
        row = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        last = (done.stderr.strip().splitlines() or [""])[-1][:300]
        row = failed | {"error": f"no result, exit status {done.returncode}: {last}"}
    return row | {"seconds_process": time.perf_counter() - start}


def side_by_side(name: str, seed: int, arguments: argparse.Namespace):
    """Yield one split's row of ours and of every peer, each from a fresh process, one after the other."""
    path, peers = arguments.data / f"{name}.csv.gz", Path(__file__).parent / "peers"
    warm_up = ["--warm-up"] if arguments.warm_up else []
    again = ["--again"] if arguments.again else []
    own = [sys.executable, __file__, "--data", arguments.data, "--tables", name, "--set", arguments.set]
    own += ["--splits", seed]
    yield in_process("pseudopoint", own + warm_up + again, name, seed, arguments.timeout)
    for side, python in arguments.peers.items():
        command = [python, peers / PEERS[side], path, "--split", seed]
        if side == "gpflow":
            command += warm_up + shlex.split(arguments.gpflow_options)
        else:
            if len(split(load(path)[1])[0]) >= LARGEST_SKLEARN:
                continue
            command += shlex.split(arguments.sklearn_options)
        yield in_process(side, command, name, seed, arguments.timeout)


def interpreters(text: str) -> dict[str, str]:
    """Read side=PYTHON,side=PYTHON."""
    pairs = dict(item.split("=", 1) for item in text.split(","))
    if not pairs.keys() <= PEERS.keys():
        raise ValueError(text)
    return pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", default=",".join(GPFLOW))
    parser.add_argument("--set", default="{}", help="JSON of other GPClassifier parameters")
    parser.add_argument("--out", type=Path, help="append the rows to this file, a line of JSON each")
    parser.add_argument("--again", action="store_true", help="fit twice, to tell compilation from the fit")
    parser.add_argument("--warm-up", action="store_true", help="fit 50 toy rows first, ours and GPflow's")
    parser.add_argument("--peers", type=interpreters, metavar="gpflow=PYTHON,sklearn=PYTHON", help="either or both")
    parser.add_argument("--gpflow-options", default="", help="options for peers/gpflow_svgp.py, as one string")
    parser.add_argument("--sklearn-options", default="", help="options for peers/sklearn_gpc.py, as one string")
    parser.add_argument("--splits", default="0", help="seeds, with commas between")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds a process may take, with --peers")
    arguments = parser.parse_args()
    for seed in map(int, arguments.splits.split(",")):
        for name in arguments.tables.split(","):
            path = arguments.data / f"{name}.csv.gz"
            for row in side_by_side(name, seed, arguments) if arguments.peers else [ours(path, seed, arguments)]:
                line = as_line(beside_bayes(row, path) | provenance())
                print(line, flush=True)
                if arguments.out:
                    with arguments.out.open("a") as file:
                        file.write(line + "\n")


if __name__ == "__main__":
    main()
