"""Rows as arrays: how they are scaled, chunked and drawn. `tables` makes arrays of tables."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .compilation import bucket
from .params import Number
from .rows import CHUNK, Part, pull_chunks, recut, sum_chunks
from .warps import AbstractWarp

WRITTEN = 2**17  # rows, up to which a permutation of them is written down
ROUNDS = 8  # of a Feistel network

Count = int | Int[Array, ""]  # of rows; in a compiled step an argument, so that it serves tables of any size


class Dataset(eqx.Module):
    """N rows, a batch of them, or a stack of batches along a leading axis C.

    `weight` multiplies a row's log likelihood: weight 2 is the same as the row twice. `noise` is the known noise
    variance of the row, which is added to the likelihood's own. A target y [N, P] is of P independent functions of one
    prior, for the bounds in closed form.
    """

    X: Float[Number, "*C N D"]
    y: Float[Number, "*C N"] | Float[Number, "*C N P"]
    weight: Float[Number, "*C N"]
    noise: Float[Number, "*C N"]

    def __len__(self) -> int:
        return self.weight.shape[-1]

    # --- As `Rows` ---

    @property
    def num_columns(self) -> int:
        return self.X.shape[-1]

    @property
    def total_weight(self) -> float:
        return float(np.sum(np.asarray(self.weight)))

    def sum(self, function: Part, parameters: Any) -> Any:
        return sum_chunks(function, parameters, self._chunks())

    def pull(self, function: Part, parameters: Any, cotangents: Any) -> Any:
        return pull_chunks(function, parameters, cotangents, self._chunks())

    def for_batches(self, batch_size: int) -> tuple["Dataset", int]:
        """As `Rows.for_batches`: rows for which one batch is enough are padded to a `bucket`, so that tables of like
        size share a program."""
        rows = self if batch_size < len(self) else padded(self, bucket(len(self)))
        return rows, min(batch_size, len(rows)) if batch_size < len(self) else len(rows)

    def minibatches(
        self, batch_size: int, seed: int, step: int, count: int
    ) -> tuple["Dataset", Int[np.ndarray, "C B"]]:
        """As `Rows.minibatches`, by `draw`."""
        rows = draw(len(self), batch_size, seed, step, count)
        return take(self, rows), rows

    def sample(self, size: int, seed: int, everywhere: bool = False) -> "Dataset":
        """As `Rows.sample`, in their order; of those that weights count (`times_drawn`)."""
        if len(self) <= size:
            return self
        if (times := times_drawn(np.asarray(self.weight), size, seed)) is None:
            return take(self, np.sort(np.random.default_rng(seed).choice(len(self), size, replace=False)))
        few = take(self, np.flatnonzero(times))
        return replace(few, weight=times[times > 0].astype(few.weight.dtype))

    def _chunks(self) -> Iterator["Dataset"]:
        return in_chunks(iter([jax.tree.map(np.asarray, self)]), len(self))


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


COUNTED = 2.0**53  # beyond which not all whole numbers are floats


def times_drawn(weight: np.ndarray, size: int, seed: int) -> Int[np.ndarray, " N"] | None:
    """How often each row is among `size` rows, of those that the weights count; None where weights are all 1, not whole
    numbers, or so large that they cannot be counted.

    Otherwise a few rows that were seen very often would be in a sample with all of their weight, or not at all, and
    neither is what the data look like.
    """
    if np.all(weight == 1) or np.any(weight != np.round(weight)) or not np.sum(weight) < COUNTED:
        return None
    ends = np.cumsum(weight, dtype=np.int64)
    drawn = np.random.default_rng(seed).choice(ends[-1], min(size, ends[-1]), replace=False, shuffle=False)
    return np.bincount(np.searchsorted(ends, drawn, side="right"), minlength=len(weight))


def draw(N: int, batch_size: int, seed: int, step: int, count: int) -> Int[np.ndarray, "C B"]:
    """Rows of the minibatches `step`, …, `step + count − 1`, drawn without replacement.

    Random permutations of all rows, one for each epoch, follow each other (`drawn`) and are cut into batches of equal
    size. They depend on (seed, step) alone, so that a resumed run draws the same batches.
    """
    return drawn(N, (seed,), step * batch_size, (step + count) * batch_size).reshape(count, batch_size)


def drawn(N: int, seed: tuple[int, ...], first: int, last: int) -> Int[np.ndarray, " B"]:
    """The numbers at the places `first`, …, `last − 1` of random permutations of N rows that follow each other."""
    pieces = [np.zeros(0, int)]
    for epoch in range(first // N, -(-last // N)):
        places = np.arange(max(first - epoch * N, 0), min(last - epoch * N, N))
        pieces.append(_permuted(N, [*seed, epoch], places))
    return np.concatenate(pieces)


def _permuted(N: int, seed: list[int], places: Int[np.ndarray, " B"]) -> Int[np.ndarray, " B"]:
    """The numbers at some places of a random permutation of N.

    A permutation of many rows is not written down: a Feistel network on the bits of a place costs O(B) in place of
    O(N). It permutes the numbers below a power of two; those that are not below N are permuted again.
    """
    rng = np.random.default_rng(seed)
    if N <= WRITTEN:
        return rng.permutation(N)[places]
    keys = rng.integers(2**63, size=ROUNDS, dtype=np.uint64)
    numbers, todo = places.astype(np.uint64), np.arange(len(places))
    while len(todo):
        numbers[todo] = _feistel(numbers[todo], (N - 1).bit_length(), keys)
        todo = todo[numbers[todo] >= N]
    return numbers.astype(int)


def _feistel(x: np.ndarray, bits: int, keys: np.ndarray) -> np.ndarray:
    """A one-to-one map of the numbers of so many bits: in each round the halves change places, and one is combined
    with a hash of the other (the finaliser of SplitMix64: Steele, Lea and Flood 2014). The number of keys is even."""
    low, high = np.uint64(bits // 2), np.uint64(bits - bits // 2)
    left, right = x >> low, x & ((np.uint64(1) << low) - np.uint64(1))
    width = high
    for key in keys:
        z = right + key
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        left, right = right, left ^ (z & ((np.uint64(1) << width) - np.uint64(1)))
        width = low + high - width
    return (left << low) | right


def in_chunks(pieces: Iterator[Dataset], whole: int) -> Iterator[Dataset]:
    """Consecutive pieces of a table of `whole` rows in chunks of `CHUNK` rows; the last is filled up by `padded`."""
    return (padded(chunk, min(CHUNK, whole)) for chunk in recut(pieces, CHUNK, whole))


def padded(data: Dataset, size: int) -> Dataset:
    """The rows, padded to `size` of them with copies of the first row at weight zero.

    Rows of zeros would not do: log 0 of a positive target, times the weight zero, is NaN.
    """
    more = size - len(data)
    if more <= 0:
        return data
    longer = jax.tree.map(lambda x: np.concatenate([x, np.repeat(np.asarray(x)[:1], more, axis=0)]), data)
    weight = np.where(np.arange(size) < len(data), longer.weight, 0)
    return jax.device_put(Dataset(longer.X, longer.y, weight, longer.noise))


def chunked(data: Dataset, size: int) -> Dataset:
    """All rows as a stack of chunks [C, size]; copies of the first row at weight zero fill up the last chunk.

    Rows of zeros would not do: log 0 of a positive target, times the weight zero, is NaN.
    """
    N = len(data)
    size = min(size, N)
    count = -(-N // size)

    def fold(x, filler):
        padding = jnp.broadcast_to(filler, (count * size - N, *x.shape[1:]))
        return jnp.concatenate([jnp.asarray(x), padding]).reshape((count, size) + x.shape[1:])

    X, y, noise = (fold(x, x[:1]) for x in (data.X, data.y, data.noise))
    return Dataset(X, y, fold(data.weight, jnp.zeros_like(data.weight[:1])), noise)


def merge_duplicates(X: np.ndarray, y: np.ndarray, weight: np.ndarray, noise: np.ndarray):
    """(X, y, weight, noise) of the distinct rows, in sorted order, with the sum of the weights of equal rows.

    Rows of weight zero are dropped. This is exact for every likelihood, and makes weight w and w-fold repetition the
    same computation.
    """
    keep = weight > 0
    rows = np.column_stack([X, y, noise])[keep] + 0.0  # −0.0 + 0.0 = 0.0: equal numbers have equal bytes
    distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
    total = np.bincount(inverse.ravel(), weights=weight[keep], minlength=len(distinct))
    return distinct[:, :-2], distinct[:, -2], total, distinct[:, -1]


LARGEST = {"float64": 1e100, "float32": 1e15}  # standardised inputs are cut here, so that sums of squares stay finite
ORDINARY = 1e9  # a standardised input that needs no care in either precision
HUGE = 1e300  # a scale of inputs whose differences may overflow
FAR = 1000.0  # a value so many standard deviations (without a few rows) away is far from all others
SPREAD_ROWS = 20_000  # rows that determine the middle half of a column
TINY = float(np.finfo(np.float64).tiny)


class Standardiser(eqx.Module):
    """Scaling of inputs and target, x ↦ (x − mean)/scale for each column, and `warps` of the scaled inputs: one or None
    for each column, or none at all.

    The scale of a constant column is infinite: its effect is unknown, and any later value becomes 0. If a few rows
    alone determine a column's standard deviation (a sentinel, a wrong unit), the middle half of the column scales it
    instead; otherwise all other rows would be nearly equal. `columns` are the columns used: files of version 0.1.0
    leave constant ones out. Of P outputs the target has as many means and scales.
    """

    columns: Int[np.ndarray, " K"]
    mean: Float[np.ndarray, " K"]
    scale: Float[np.ndarray, " K"]
    target_mean: float | Float[Number, " P"]
    target_scale: float | Float[Number, " P"]
    warps: tuple[AbstractWarp | None, ...] = ()

    @staticmethod
    def learn(
        X: np.ndarray, y: np.ndarray, weight: np.ndarray, scale_inputs: bool, scale_target: bool, ignore_constant=True
    ) -> "Standardiser":
        """Weighted means and standard deviations (population form) of the columns of X [N, D] and of y [N].

        Without `scale_inputs` columns stay as they are, except for constant ones with `ignore_constant`.
        """
        target = (0.0, 1.0)
        if scale_target:
            (mean,), (spread,) = (part.tolist() for part in means_and_spreads(y[:, None], weight))
            target = mean, spread
        return Standardiser.of_moments(
            means_and_spreads(X, weight), X[weight > 0], target, scale_inputs, ignore_constant
        )

    @staticmethod
    def of_moments(
        inputs: tuple[np.ndarray, np.ndarray],
        rows: np.ndarray,
        target: tuple[float, float],
        scale_inputs: bool = True,
        ignore_constant=True,
    ) -> "Standardiser":
        """`learn` from means and standard deviations of the columns [D] each and of the target, (0, 1) for one that is
        not scaled, and from rows [n, D] that show the middle half of every column."""
        mean, scale = inputs
        constant = scale <= 1e-12 * np.maximum(np.abs(mean), TINY)
        mean, scale = _without_far_rows(rows, mean, scale)
        scale = np.where(constant, 1.0, scale)
        if not scale_inputs:
            mean, scale = np.zeros_like(mean), np.ones_like(scale)
        if ignore_constant and not constant.all():
            scale = np.where(constant, np.inf, scale)
        target_mean, target_scale = target
        if target_scale <= 1e-12 * abs(target_mean):  # constant
            target_scale = abs(target_mean) or 1.0
        return Standardiser(np.arange(len(mean)), mean, scale, target_mean, target_scale)

    def inputs(self, X: np.ndarray, dtype: str = "float64") -> np.ndarray:
        """[N, D] in the data's units → [N, K] standardised, in that precision.

        Values are cut at ±`LARGEST`, beyond which squares overflow; unscaled ones at a quarter of the largest number.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = (X[:, self.columns] - self.mean) / self.scale
            ordinary = np.abs(scaled).max(initial=0.0) < ORDINARY
        scaled = scaled if ordinary else self._extreme(X[:, self.columns], dtype)
        for j, warp in enumerate(self.warps):
            if warp is not None:
                scaled[:, j] = np.clip(warp(scaled[:, j]), -LARGEST[dtype], LARGEST[dtype])
        return scaled.astype(dtype, copy=False)

    def _extreme(self, X, dtype):
        """`inputs` for rows whose differences may overflow."""
        half = np.where((self.scale > HUGE) & self.varies, 0.5, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = (half * X - half * self.mean) / (half * self.scale)
        scaled[:, ~self.varies] = 0.0
        as_they_are = not self.mean.any() and np.all(self.scale == 1)
        largest = float(np.finfo(dtype).max) / 4 if as_they_are else LARGEST[dtype]
        return np.clip(scaled, -largest, largest)

    def of_target(self) -> "Standardiser":
        """The same scaling of the target, with inputs as they are."""
        D = len(self.mean)
        return Standardiser(self.columns, np.zeros(D), np.ones(D), self.target_mean, self.target_scale)

    def without_rounding(self) -> "Standardiser":
        """One about 0 by powers of two, by which `inputs` and `points` change no digit."""
        scale = np.where(self.varies, 2.0 ** np.round(np.log2(np.where(self.varies, self.scale, 1.0))), self.scale)
        return replace(self, mean=np.where(self.varies, 0.0, self.mean), scale=scale)

    def points(self, Z: np.ndarray) -> np.ndarray:
        """[M, K] standardised → [M, K] in the data's units, cut at the largest number."""
        if self.warps:
            columns = zip(self.warps, np.asarray(Z).T, strict=True)
            Z = np.column_stack([z if warp is None else warp.inverse(z) for warp, z in columns])
        with np.errstate(over="ignore"):
            points = np.where(self.varies, Z, 0.0) * np.where(self.varies, self.scale, 1.0) + self.mean
        return np.clip(points, -np.finfo(points.dtype).max, np.finfo(points.dtype).max)

    @property
    def varies(self) -> Bool[np.ndarray, " K"]:
        """Which columns are not ignored."""
        return np.isfinite(self.scale)

    def target(self, y: np.ndarray) -> np.ndarray:
        """[N] or [N, P] in the data's units → standardised; infinite where that is too large."""
        with np.errstate(over="ignore"):
            return (y - self.target_mean) / self.target_scale


def means_and_spreads(columns: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted means and standard deviations. Powers of two scale the columns, so that squares neither overflow nor
    underflow."""
    _, exponent = np.frexp(np.max(np.abs(columns), axis=0, initial=0.0))
    columns, average = np.ldexp(columns, -exponent), lambda v: np.average(v, axis=0, weights=weight)
    mean = average(columns)
    return np.ldexp(mean, exponent), np.ldexp(np.sqrt(average((columns - mean) ** 2)), exponent)


def near_rows(X: np.ndarray) -> Bool[np.ndarray, " N"]:
    """The rows of X [N, D] that are far from the others in no column, in the sense of `Standardiser`."""
    mean, scale = _without_far_rows(X, *means_and_spreads(X, np.ones(len(X))))
    with np.errstate(over="ignore"):
        return np.all(np.abs(X - mean) <= max(FAR, len(X) ** 0.5) * np.maximum(scale, TINY), axis=1)


def _without_far_rows(X, mean, scale):
    """Mean and scale of every column; those of its middle half where that is `FAR` times as narrow."""
    rows = X[np.linspace(0, len(X) - 1, min(len(X), SPREAD_ROWS)).astype(int)]
    low, middle, high = 2 * np.quantile(0.5 * rows, [0.25, 0.5, 0.75], axis=0)  # differences of halves do not overflow
    with np.errstate(over="ignore"):
        half = high / 1.349 - low / 1.349  # the standard deviation of a normal column
        few = (half > 0) & (half * FAR < scale)
    return np.where(few, middle, mean), np.where(few, half, scale)
