"""What experiments share: tables in the papers' units, splits, the papers' start."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from pseudopoint.data import Dataset, Standardiser, dataset
from pseudopoint.datasets import load, split
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.inducing import kmeans
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import AbstractLikelihood
from pseudopoint.params import cast
from pseudopoint.posteriors import Model, Whitened
from pseudopoint.reproduce import computing

__all__ = ["Parts", "computing", "parts", "start", "training_part"]


class Parts(NamedTuple):
    """Rows for training and for testing in standardised units, and the way back to the units of the table."""

    train: Dataset
    test: Dataset
    units: Standardiser


def parts(folder: Path, table: str, seed: int, scale_target: bool = True, fraction: float = 0.9) -> Parts:
    """A share of a table's rows, drawn by the seed, and the rest; inputs and (if asked) target have mean 0 and standard
    deviation 1 in the first. Columns constant in it are left out. Classes keep their codes by scale_target=False.
    """
    X, y, _ = load(table, folder)
    train, test = split(len(y), seed, fraction)
    units = Standardiser.learn(X[train], y[train], np.ones(len(train)), True, scale_target)
    of = lambda rows: dataset(units.inputs(X[rows]), units.target(y[rows]))
    return Parts(of(train), of(test), units)


def training_part(folder: Path, table: str, seed: int, scale_target: bool = True) -> Dataset:
    """90 % of a table's rows, as in `parts`."""
    return parts(folder, table, seed, scale_target).train


def start(data: Dataset, likelihood: AbstractLikelihood, M: int = 100, variance: float = 2.0) -> Model:
    """The start of Salimbeni, Eleftheriadis and Hensman (2018, 7.2): Matérn-5/2, one lengthscale √D, k-means points,
    q(v) = N(0, I), jitter 1e-10 (theirs is absolute)."""
    Z = kmeans(np.asarray(data.X), M, 0)
    q = MeanPrecision(np.zeros(len(Z)), np.eye(len(Z)))
    kernel = Matern52(float(np.sqrt(data.X.shape[1])), variance)
    return cast(Model(kernel, likelihood, Whitened(Z, q, 1e-10 / variance)), "float64")
