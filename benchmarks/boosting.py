"""scikit-learn's gradient boosting on the tables of `baselines.py` and `classification.py`, same rows, same figures.

    python benchmarks/boosting.py --data FOLDER [--tables energy,pima] [--out benchmarks/results/boosting.jsonl]

HistGradientBoosting with 500 rounds and early stopping, all else by default. Split: numpy.random.default_rng(0)
.permutation(N), first 90 % train. Regression has no density of its own: N(prediction, s²), where s is the error on a
tenth of the training rows of a fit to the others. Densities and RMSE are those of the standardised target.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import sklearn
from peers.classification_tables import as_line, load, scores, split
from provenance import provenance
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

CLASSES = ("pima", "ionosphere", "banknote", "phoneme", "magic", "ringnorm", "adult", "letter")
NUMBERS = ("energy", "concrete", "yacht", "boston", "power", "kin8nm", "wine-quality-red", "abalone", "naval")
LARGE = ("protein", "kin40k")
SETTINGS = {"max_iter": 500, "early_stopping": True, "random_state": 0}


def classes(X, y, X_test, y_test):
    """Accuracy and mean log probability of the test rows."""
    model = HistGradientBoostingClassifier(**SETTINGS).fit(X, y)
    return scores(model.predict_proba(X_test), model.classes_, y_test)


def numbers(X, y, X_test, y_test):
    """Test log density and RMSE, per standard deviation of the training target."""
    scale = y.std()
    order = np.random.default_rng(1).permutation(len(y))
    most, rest = np.split(order, [int(0.9 * len(y))])
    held_out = HistGradientBoostingRegressor(**SETTINGS).fit(X[most], y[most]).predict(X[rest]) - y[rest]
    noise = np.mean((held_out / scale) ** 2)
    errors = (HistGradientBoostingRegressor(**SETTINGS).fit(X, y).predict(X_test) - y_test) / scale
    density = -0.5 * (np.log(2 * np.pi * noise) + errors**2 / noise)
    return {"test_rmse": float(np.sqrt(np.mean(errors**2))), "test_log_density": float(np.mean(density))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", default=",".join(NUMBERS + LARGE + CLASSES))
    parser.add_argument("--out", type=Path, help="append the rows to this file, a line of JSON each")
    arguments = parser.parse_args()
    for name in arguments.tables.split(","):
        X, y = load(arguments.data / f"{name}.csv.gz")
        train, test = split(y)
        start = time.perf_counter()
        figures = (classes if name in CLASSES else numbers)(X[train], y[train], X[test], y[test])
        row = {"library": f"scikit-learn {sklearn.__version__}", "table": name, "N_train": len(train)}
        row |= figures | {"seconds": time.perf_counter() - start} | provenance()
        print(as_line(row), flush=True)
        if arguments.out:
            with arguments.out.open("a") as file:
                file.write(as_line(row) + "\n")


if __name__ == "__main__":
    main()
