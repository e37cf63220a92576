"""What experiments share: tables in the papers' units, splits, the papers' start."""

import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np

from pseudopoint.data import Dataset, Standardiser, dataset
from pseudopoint.datasets import load, split
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import AbstractLikelihood, Bernoulli, Gaussian, StudentT
from pseudopoint.optimise.fullbatch import converge
from pseudopoint.optimise.named import standard_elbo
from pseudopoint.params import cast
from pseudopoint.posteriors import Model, Whitened
from pseudopoint.reproduce import computing
from pseudopoint.starts.inducing import kmeans

from ._drawn import DRAWN, drawn

__all__ = ["HELD", "LIKELIHOODS", "Parts", "computing", "head", "in_turn", "parts", "small", "solved", "start"]
__all__ += ["training_part"]

HELD = (lambda m: m.kernel, lambda m: m.likelihood, lambda m: m.posterior.Z)  # where q alone moves
LIKELIHOODS = {  # of the small tables of Salimbeni, Eleftheriadis and Hensman (2018)
    "energy": lambda: Gaussian(1.0),
    "boston": lambda: StudentT(1.0, 3.0),
    "pima": lambda: Bernoulli("logit"),
}


class Parts(NamedTuple):
    """Rows for training and for testing in standardised units, and the way back to the units of the table."""

    train: Dataset
    test: Dataset
    units: Standardiser


def parts(folder: Path, table: str, seed: int, scale_target: bool = True, fraction: float = 0.9) -> Parts:
    """A share of a table's rows, drawn by the seed, and the rest; inputs and (if asked) target have mean 0 and standard
    deviation 1 in the first. Columns constant in it are left out. Classes keep their codes by scale_target=False.
    """
    X, y = load(table, folder)[:2] if table not in DRAWN else drawn(table)
    train, test = split(len(y), seed, fraction)
    units = Standardiser.learn(X[train], y[train], np.ones(len(train)), True, scale_target)
    of = lambda rows: dataset(units.inputs(X[rows]), units.target(y[rows]))
    return Parts(of(train), of(test), units)


def training_part(folder: Path, table: str, seed: int, scale_target: bool = True) -> Dataset:
    """90 % of a table's rows, as in `parts`."""
    return parts(folder, table, seed, scale_target).train


def head(data: Dataset, rows: int | None) -> Dataset:
    """The first rows; all for None."""
    return jax.tree.map(lambda x: x[:rows], data)


def start(data: Dataset, likelihood: AbstractLikelihood, M: int = 100, variance: float = 2.0) -> Model:
    """The start of Salimbeni, Eleftheriadis and Hensman (2018, 7.2): Matérn-5/2, one lengthscale √D, k-means points,
    q(v) = N(0, I), jitter 1e-10 (theirs is absolute)."""
    Z = kmeans(np.asarray(data.X), M, 0)
    q = MeanPrecision(np.zeros(len(Z)), np.eye(len(Z)))
    kernel = Matern52(float(np.sqrt(data.X.shape[1])), variance)
    return cast(Model(kernel, likelihood, Whitened(Z, q, 1e-10 / variance)), "float64")


@lru_cache(maxsize=1)  # cases that follow each other share it
def small(folder: Path, table: str, split: int, M: int) -> tuple[Dataset, Model]:
    """A table of `LIKELIHOODS`, and the start."""
    data = training_part(folder, table, split, scale_target=table != "pima")
    return data, start(data, LIKELIHOODS[table](), M)


@lru_cache(maxsize=1)
def solved(folder: Path, table: str, split: int, M: int) -> tuple[Dataset, Model, float]:
    """As `small`, and the standard bound of all rows at the best q."""
    data, model = small(folder, table, split, M)
    return data, model, float(_optimum(model, data))


@jax.jit
def _optimum(model: Model, data: Dataset) -> jax.Array:
    return standard_elbo(converge(model, data, tight=False), data)


def in_turn(actions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median processor seconds of each action, done in turn; a first round compiles. Other work on the machine leaves
    processor time nearly as it is. It counts all cores: on one it is the time by the clock, the machine being quiet."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(1 + rounds):
        for name, action in actions.items():
            clock = time.process_time()
            jax.block_until_ready(action())
            seconds[name].append(time.process_time() - clock)
    return {name: median(of[1:]) for name, of in seconds.items()}
