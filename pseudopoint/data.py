"""Rows, and how they are scaled, chunked and drawn. Everything here is arrays; tables become arrays in `tables.py`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from .params import Number

__all__ = ["Dataset", "Standardiser", "chunked", "dataset", "draw", "merge_duplicates", "take"]


class Dataset(eqx.Module):
    """N rows, or a batch of them (a batch is a Dataset too), or a stack of batches along a leading axis C.

    `weight` multiplies a row's log likelihood, so that weight 2 means the row was seen twice; `noise` is known noise
    variance of that row, added to the likelihood's own.
    """

    X: Float[Number, "*C N D"]
    y: Float[Number, "*C N"]
    weight: Float[Number, "*C N"]
    noise: Float[Number, "*C N"]

    def __len__(self) -> int:
        return self.y.shape[-1]


def dataset(X, y, weight=None, noise=None, dtype=None) -> Dataset:
    """A Dataset from arrays [N, D], [N] and optional per-row weights and noise variances [N] (default 1 and 0)."""
    X = jnp.asarray(X, dtype)
    y = jnp.asarray(y, X.dtype)
    weight = jnp.ones_like(y) if weight is None else jnp.asarray(weight, X.dtype)
    noise = jnp.zeros_like(y) if noise is None else jnp.asarray(noise, X.dtype)
    return Dataset(X, y, weight, noise)


def take(data: Dataset, rows: Int[np.ndarray, "*C B"]) -> Dataset:
    """The given rows, gathered on the host; `rows` [C, B] gives a stack of C batches."""
    return jax.tree.map(lambda x: np.asarray(x)[rows], data)


def draw(N: int, batch_size: int, seed: int, step: int, count: int) -> Int[np.ndarray, "C B"]:
    """Rows of the minibatches `step`, …, `step + count − 1`, drawn without replacement.

    The stream is one random permutation of all rows after another, cut into batches of equal size, so every row is seen
    once an epoch and no batch is short. It depends on (seed, step) alone: a resumed run draws what it would have drawn.
    """
    first, last = step * batch_size, (step + count) * batch_size
    epochs = range(first // N, -(-last // N))
    stream = np.concatenate([np.random.default_rng([seed, epoch]).permutation(N) for epoch in epochs])
    return stream[first - epochs.start * N : last - epochs.start * N].reshape(count, batch_size)


def chunked(data: Dataset, size: int) -> Dataset:
    """All rows as a stack of chunks [C, size]; the last chunk is filled up with the first row at weight zero.

    A row of zeros would do for a Gaussian likelihood only: log 0 of a positive target, times zero, is NaN.
    """
    N = len(data)
    size = min(size, N)
    count = -(-N // size)

    def fold(x, zero=False):
        x = jnp.asarray(x)
        first = jnp.zeros_like(x[:1]) if zero else x[:1]
        padding = jnp.broadcast_to(first, (count * size - N, *x.shape[1:]))
        return jnp.concatenate([x, padding]).reshape((count, size) + x.shape[1:])

    return Dataset(fold(data.X), fold(data.y), fold(data.weight, zero=True), fold(data.noise))


def merge_duplicates(X: np.ndarray, y: np.ndarray, weight: np.ndarray, noise: np.ndarray):
    """Rows in canonical order, identical rows merged into one with the sum of their weights, weight zero dropped.

    Exact for every likelihood, and it makes weight w and w-fold repetition the same computation.
    Returns (X, y, weight, noise) of the distinct rows.
    """
    keep = weight > 0
    rows = np.column_stack([X, y, noise])[keep] + 0.0  # −0.0 + 0.0 = 0.0: equal numbers have equal bytes
    distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
    total = np.bincount(inverse.ravel(), weights=weight[keep], minlength=len(distinct))
    return distinct[:, :-2], distinct[:, -2], total, distinct[:, -1]


class Standardiser(eqx.Module):
    """Affine scaling of inputs and target, undone exactly: x ↦ (x − mean)/scale on the columns that vary.

    Constant columns are left out (`columns` holds the others): they carry no information and a scale of zero.
    A variance is multiplied by target_scale², a log density loses log target_scale.
    """

    columns: Int[np.ndarray, " K"]
    mean: Float[np.ndarray, " K"]
    scale: Float[np.ndarray, " K"]
    target_mean: float
    target_scale: float

    @staticmethod
    def learn(
        X: np.ndarray, y: np.ndarray, weight: np.ndarray, scale_inputs: bool, scale_target: bool
    ) -> "Standardiser":
        """Weighted means and standard deviations (population form) of the columns of X [N, D] and of y [N]."""
        average = lambda v: np.average(v, axis=0, weights=weight)
        mean = average(X)
        scale = np.sqrt(average((X - mean) ** 2))
        varies = scale > 1e-12 * np.maximum(np.abs(mean), 1e-300)
        columns = np.flatnonzero(varies) if varies.any() else np.arange(X.shape[1])
        mean, scale = (mean, np.where(varies, scale, 1.0)) if scale_inputs else (0 * mean, np.ones_like(scale))
        target_mean, target_scale = 0.0, 1.0
        if scale_target:
            target_mean = float(average(y))
            target_scale = float(np.sqrt(average((y - target_mean) ** 2))) or 1.0
        return Standardiser(columns, mean[columns], scale[columns], target_mean, target_scale)

    def inputs(self, X: np.ndarray) -> np.ndarray:
        """[N, D] in the data's units → [N, K] standardised."""
        return (X[:, self.columns] - self.mean) / self.scale

    def target(self, y: np.ndarray) -> np.ndarray:
        """[N] in the data's units → standardised."""
        return (y - self.target_mean) / self.target_scale
