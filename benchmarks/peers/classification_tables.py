"""What both sides of the classification comparison share: reading, splitting and scoring. NumPy and pandas only."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd


def load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read a table with its label in column y.

    Text columns, and integer codes of categories (columns ending in _cat, as in adult), become one 0/1 column for each
    category by pandas.get_dummies over the whole table: every side is given the same numbers.
    """
    table = pd.read_csv(path)
    X, y = table.drop(columns="y"), table["y"].to_numpy()
    categories = [c for c in X.columns if c.endswith("_cat") or not pd.api.types.is_numeric_dtype(X[c])]
    if categories:
        X = pd.get_dummies(X, columns=categories, dtype=float)
    return X.to_numpy(dtype=np.float64), y


def split(y: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the training and the test part: the first 90 % of a permutation from default_rng(seed), and the rest."""
    train, test = np.split(np.random.default_rng(seed).permutation(len(y)), [int(0.9 * len(y))])
    return train, test


def standardiser(X: np.ndarray):
    """Return the map of raw rows to standardised ones: X's moments, without X's constant columns."""
    varying = np.ptp(X, axis=0) > 0.0
    mean, scale = X[:, varying].mean(0), X[:, varying].std(0)
    return lambda rows: np.ascontiguousarray((rows[:, varying] - mean) / scale)


def scores(probabilities: np.ndarray, classes: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Accuracy and mean log probability of the true class, in nats; probability 0 counts as the smallest float."""
    true = probabilities[np.arange(len(y)), np.searchsorted(classes, y)]
    return {
        "accuracy": float(np.mean(classes[probabilities.argmax(1)] == y)),
        "test_log_density": float(np.mean(np.log(np.maximum(true, np.finfo(float).tiny)))),
    }


def name_of(path: Path) -> str:
    """Name of a table, from its file."""
    return path.name.removesuffix(".csv.gz")


def as_line(figures: dict) -> str:
    """One line of strict JSON: what is not finite becomes null, NumPy's scalars Python's."""
    plain = lambda v: v.item() if isinstance(v, np.generic) else str(v)
    finite = lambda v: None if isinstance(v, float) and not math.isfinite(v) else v
    return json.dumps({k: finite(v) for k, v in figures.items()}, allow_nan=False, default=plain)


def error_text(error: Exception) -> str:
    """Class of an exception and its message in one line, without the middle of a long one."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= 600 else f"{text[:200]} ... {text[-400:]}"
