"""What only speeds predictions up: factors in the cheapest form, kept on the device, applied in blocks of rows.

A fitted estimator stores a `Predictor`. What is made of it here is never stored, copied or pickled.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from operator import is_
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..compilation import bucket, keeping_programs, program
from ..data import Standardiser
from ..kernels import AbstractKernel
from ..linalg import lower_root
from ..params import Number
from ..posteriors import AbstractOutputs, Joined, Predictor, Predictors, WithMean
from ..processes import computing
from .near import corrected, numbers_a_row, predictive_likelihood

BLOCK = 2**19  # numbers of a block of rows: its few arrays stay in a processor's cache, and below the 32 MB at which
# glibc gives memory back to the system after every block, to be cleared again page by page
NODES = 512  # at most so many quadrature nodes a row
FEW = 64  # rows of a small block
ROUNDING = 1e-9  # of an eigenvalue that is 1
TILE, TILES = 100, 3  # the fewest rows of a tile, and the most tiles in a row: smaller or more of them take longer


class SquarePredictor(eqx.Module):
    """A `Predictor` whose points are prepared for its kernel (`AbstractKernel.prepare`): Zv, and Zm if they differ."""

    common: ClassVar[tuple[str, ...]] = ("kernel", "points")

    kernel: AbstractKernel
    points: tuple
    predictor: Predictor

    @classmethod
    def of(cls, predictor: Predictor) -> "SquarePredictor":
        """The same predictions."""
        points = (predictor.Zv,) if predictor.shared else (predictor.Zv, predictor.Zm)
        return cls(predictor.kernel, _prepared(predictor.kernel, points), predictor)

    def __call__(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "*C N"], Float[Array, " N"]]:
        """Mean and variance of f at the rows of X, each [N]."""
        K = [self.kernel.from_prepared(points, X) for points in self.points]
        return self.predictor.moments(K[0], K[-1], self.kernel.diag(X))


class TriangularPredictor(eqx.Module):
    """A `Predictor` for half the operations: V f(x) = k(x, x) − ‖T k(Zv, x)‖² with TᵀT = Wᵀ diag(1 − s) W.

    T is lower triangular and kept in tiles, row by row, without those above the diagonal. `points` are those of each
    row of tiles, prepared for the kernel; `mean_points` is Zm, or nothing where the mean has the same points. The
    variance is one difference, which float32 would not resolve where q leaves little of the prior.
    """

    common: ClassVar[tuple[str, ...]] = ("kernel", "points", "mean_points")

    kernel: AbstractKernel
    points: tuple
    mean_points: tuple
    alpha: Float[Number, "*C M1"]
    tiles: tuple[tuple[Float[Number, "_ _"], ...], ...]

    @classmethod
    def of(cls, predictor: Predictor) -> "TriangularPredictor":
        """The same predictions but for rounding. T is computed once, on the host; every s must be at most 1."""
        s = np.asarray(predictor.s)
        T = lower_root(np.sqrt(np.maximum(1 - s, 0))[:, None] * np.asarray(predictor.W))
        n = min(max(1, len(T) // TILE), TILES)
        parts = [slice(*ends) for ends in pairwise(len(T) * i // n for i in range(n + 1))]
        tiles = tuple(tuple(T[rows, columns] for columns in parts[: i + 1]) for i, rows in enumerate(parts))
        blocks = tuple(predictor.Zv[part] for part in parts)
        mean_blocks = () if predictor.shared else (predictor.Zm,)
        points, mean_points = (_prepared(predictor.kernel, of) for of in (blocks, mean_blocks))
        return cls(predictor.kernel, points, mean_points, predictor.alpha, tiles)

    def __call__(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "*C N"], Float[Array, " N"]]:
        """Mean and variance of f at the rows of X, each [N]; the variance is at least ε k(x, x)."""
        prior = self.kernel.diag(X)
        mean = jnp.zeros_like(prior)
        for points in self.mean_points:
            mean = self.alpha @ self.kernel.from_prepared(points, X)
        explained, covariances, end = jnp.zeros_like(prior), [], 0
        for points, row in zip(self.points, self.tiles, strict=True):
            start, end = end, end + len(row[-1])
            covariances.append(
                self.kernel.from_prepared(points, X)
            )  # one array a tile, so that none is copied for its product
            if not self.mean_points:
                mean += self.alpha[..., start:end] @ covariances[-1]
            t = row[0] @ covariances[0]
            for T, K in zip(row[1:], covariances[1:], strict=True):
                t += T @ K
            explained += jnp.ones(len(t), t.dtype) @ t**2
        return mean, jnp.maximum(prior - explained, jnp.finfo(prior.dtype).eps * prior)


@jax.jit
def _prepared(kernel, points):
    return tuple(kernel.prepare(Z) for Z in points)


def served(predictor: Predictor | Predictors | Joined | AbstractOutputs | WithMean, precision: str) -> Any:
    """The form that predicts fastest: triangular, but square in float32, or where q leaves more variance than the prior
    along some direction (s > 1)."""
    triangular = precision == "float64" and np.max(predictor.s, initial=0) <= 1 + ROUNDING
    form: Any = TriangularPredictor if triangular else SquarePredictor
    return predictor.each(form.of, form.common)


class _Kept(NamedTuple):
    """Predictor and likelihood on the device, taken apart, with what they were made of (`of`); `width` numbers a row.
    `compiled` are the functions that have been applied to them, each with a size of blocks."""

    of: tuple[Any, Any, Any, str]
    width: int
    structure: Any
    leaves: list
    compiled: set


_ON_DEVICE: WeakKeyDictionary[Any, _Kept] = WeakKeyDictionary()


def kept(model: Any) -> _Kept:
    """What predicts for a fitted estimator, on the device. It is made once a fit, as a single row would notice; and it
    is no attribute of the estimator, as it is neither learned nor to be copied or saved."""
    there, precision = _ON_DEVICE.get(model), model._precision
    learned = model.predictor_, model.likelihood_, model.near_rows_, precision
    if there is None or not all(map(is_, there.of, learned)):
        with computing(precision):
            predictor, near = model.predictor_, model.near_rows_
            if model.inducing_points_ is None:  # a point at each row, whose number changes with the table
                predictor = predictor.padded(bucket(len(predictor.Zv)))
            all_of_it = corrected(served(predictor, precision), near), predictive_likelihood(model)
            leaves, structure = jax.tree.flatten(all_of_it)
            width, leaves = numbers_a_row(predictor, near), jax.device_put(leaves)
        there = _ON_DEVICE[model] = _Kept(learned, width, structure, leaves, set())
    return there


def evaluate(model: Any, function: Callable[..., Any], X: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    """`function(predictor, likelihood, X, *columns)` of a fitted estimator, [..., N]. The function is compiled here,
    once for each; X is in the user's units, and the function sees it scaled."""
    of = kept(model)

    def apply(*block):
        if (of_size := (function, len(block[0]))) in of.compiled:
            return apply_learned(function, of.structure, of.leaves, *block)
        with keeping_programs():
            result = apply_learned(function, of.structure, of.leaves, *block)
        of.compiled.add(of_size)
        return result

    return in_blocks(model, apply, of.width, X, *columns)


def in_blocks(model: Any, apply: Callable[..., Any], width: int, X: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    """`apply(X, *columns)`, [..., N], in blocks of rows, each of `width` numbers: memory does not grow with N. The X of
    `apply` is scaled. Blocks have one of three sizes, so that `apply` is compiled at most three times. Raises
    ValueError where a result is NaN or too large a number."""
    whole, precision, rows = np.empty(0), model._precision, len(X)
    if rows == 0:  # one row, of which nothing is returned, tells the shape
        X, columns = np.zeros((1, X.shape[1])), tuple(np.zeros((1, *a.shape[1:])) for a in columns)
    with computing(precision):
        for start, size in _blocks(len(X), _full(width)):
            block = [array[start : start + size] for array in (X, *columns)]
            # Of the class: a method of an equinox object is wrapped anew each time, which a single row would notice.
            block[0], count = Standardiser.inputs(model.standardiser_, block[0], precision), len(block[0])
            if count < size:  # the last block is padded with its first row
                block = [np.concatenate([a, np.repeat(a[:1], size - count, axis=0)]) for a in block]
            part = np.asarray(apply(*(a.astype(precision, copy=False) for a in block)))
            if start == 0:
                whole = np.empty((*part.shape[:-1], len(X)))
            whole[..., start : start + count] = part[..., :count]
    whole = whole[..., :rows]
    good = whole < np.inf  # log densities may be −∞
    if not good.all():
        row = int(np.argmin(good.reshape(-1, len(X)).all(axis=0)))
        raise ValueError(
            f"what is predicted for row {row} is no finite number: its values, such as {np.max(np.abs(X[row])):g}, "
            "are too far from all training rows for this kernel and likelihood"
        )
    return whole


def apply_learned(function, structure, leaves, *rows):
    """`function` of what was taken apart into `structure` and `leaves`, and of rows; compiled once for each."""
    return program(_apply, None, (0, 1))(function, structure, leaves, *rows)


def _apply(function, structure, leaves, *rows):
    return function(*jax.tree.unflatten(structure, leaves), *rows)


def is_plain(X: Any, columns: int) -> bool:
    """Whether X is an array that needs no check: scikit-learn's checks take as long as one row's prediction."""
    return type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2 and X.shape[1] == columns and len(X) > 0


def block_sizes(model: Any) -> tuple[int, ...]:
    """The sizes of the blocks in which a fitted estimator predicts."""
    full = _full(kept(model).width)
    return tuple(sorted({1, min(FEW, full), full}))


def _full(width: int) -> int:
    return 1 << max(0, BLOCK // max(width, NODES) - 1).bit_length()  # a power of two


def _blocks(N: int, full: int) -> Iterator[tuple[int, int]]:
    """First rows and sizes of the blocks of N rows: one row alone; `full` rows while these are at least half there;
    otherwise `FEW`."""
    start, few = 0, min(FEW, full)
    while start < N:
        size = full if 2 * (N - start) >= full else few
        yield start, 1 if N == 1 else size
        start += size
