"""What experiments share: tables in the papers' units, splits, the papers' start, and rows of results."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from pseudopoint.data import Dataset, Standardiser, dataset
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.inducing import kmeans
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import AbstractLikelihood
from pseudopoint.params import cast
from pseudopoint.posteriors import Model, Whitened


@contextmanager
def computing() -> Iterator[None]:
    """float64, and LAPACK on one thread: its threads and XLA's take the cores from each other."""
    with jax.enable_x64(True), threadpool_limits(1, user_api="blas"):
        yield


def training_part(folder: Path, table: str, split: int, scale_target: bool = True) -> Dataset:
    """90 % of a table's rows, inputs and (if asked) target with mean 0 and standard deviation 1 in them."""
    frame = pd.read_csv(folder / f"{table}.csv.gz")
    y, X = frame.pop("y").to_numpy(float), frame.to_numpy(float)
    rows = np.random.default_rng(split).permutation(len(y))[: int(0.9 * len(y))]
    units = Standardiser.learn(X[rows], y[rows], np.ones(len(rows)), True, scale_target)
    return dataset(units.inputs(X[rows]), units.target(y[rows]))


def start(data: Dataset, likelihood: AbstractLikelihood, M: int = 100, variance: float = 2.0) -> Model:
    """The start of Salimbeni, Eleftheriadis and Hensman (2018, 7.2): Matérn-5/2, one lengthscale √D, k-means points,
    q(v) = N(0, I), jitter 1e-10 (theirs is absolute)."""
    Z = kmeans(np.asarray(data.X), M, 0)
    q = MeanPrecision(np.zeros(len(Z)), np.eye(len(Z)))
    kernel = Matern52(float(np.sqrt(data.X.shape[1])), variance)
    return cast(Model(kernel, likelihood, Whitened(Z, q, 1e-10 / variance)), "float64")


def write(path: Path, row: dict) -> None:
    """One line of JSON more, with the versions and the commit that made it."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    row = row | {"pseudopoint": version("pseudopoint"), "jax": version("jax"), "commit": commit}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
