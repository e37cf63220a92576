"""What tests of fitted regressors share: one table, one fit of each method, shapes that are compiled once."""

import numpy as np
import pytest

from pseudopoint import GPRegressor

N, D = 40, 2
EXACT = {"method": "exact"}
COLLAPSED = {"method": "collapsed", "num_inducing": 8, "inducing": "kmeans", "initial": "robust", "max_iter": 30}
SVGP = COLLAPSED | {"method": "svgp", "batch_size": 16, "max_iter": 40}
METHODS = {"exact": EXACT, "collapsed": COLLAPSED, "svgp": SVGP}
EACH = pytest.mark.parametrize("settings", METHODS.values(), ids=METHODS)


def table(seed=0, n=N, noise=0.3):
    """Rows with a smooth target, in units of its own."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, D)) * [1, 30] + [5, -100]
    return X, 4 * (np.sin(2 * (X[:, 0] - 5)) + (X[:, 1] + 100) / 30 + noise * rng.normal(size=n)) + 50


def new_rows(n=25):
    return table(seed=9, n=n)


def smooth(X):
    """A target without noise, at the rows of such a table."""
    return 100 + np.sin(X[:, 0]) + X[:, 1] / 50


def fit_each() -> dict[str, GPRegressor]:
    return {name: GPRegressor(**settings, effort="fast").fit(*table()) for name, settings in METHODS.items()}
