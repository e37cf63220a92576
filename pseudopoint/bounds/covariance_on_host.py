"""K + Σ of an exact fit on the host's cores: programs compute the kernel in tiles and take its derivative, and between
them LAPACK's functions factorise and invert (decision 0054)."""

from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..compilation import bucket, program
from ..data import Dataset
from ..kernels import AbstractKernel
from ..linalg import ESCALATIONS, Scalar, Tiles
from ..processes import same_precision

SIZE = 320  # rows of a tile, so that all larger tables share programs: smaller ones cost calls, larger ones padding


def _tile(kernel: AbstractKernel, X: Float[Array, "B D"], Z: Float[Array, "B D"]) -> Float[Array, "B B"]:
    """[k(xᵢ, zⱼ)]."""
    return kernel(X, Z)


def _slopes(
    kernel: AbstractKernel,
    X: Float[Array, "B D"],
    Z: Float[Array, "B D"],
    inverse: Float[Array, "B B"],
    alphas: tuple[Float[Array, "B C"], Float[Array, "B C"]],
    share: Scalar,
) -> list[Array]:
    """The derivative of Σᵢⱼ share (αᵢᵀαⱼ − [K⁻¹]ᵢⱼ) k(xᵢ, zⱼ) in the kernel's numbers."""
    weights = share * (alphas[0] @ alphas[1].T - inverse)
    of_numbers = eqx.filter_grad(lambda kernel: jnp.sum(weights * kernel(X, Z)))
    return jax.tree.leaves(of_numbers(kernel))


class Covariance:
    """K + Σ of the rows that count, in tiles; with `root`, r, it is rᵢKᵢⱼrⱼ + Σ. K is computed for each factor, unless
    it is kept."""

    def __init__(self, kernel: AbstractKernel, data: Dataset, rows: np.ndarray, variances: np.ndarray):
        N, size = len(rows), min(bucket(len(data)), SIZE)
        self.kernel, self.size = kernel, size
        self.tiles = Tiles(N, size, data.X.dtype)
        X = np.asarray(data.X)[np.pad(rows, (0, -N % size), mode="edge")]
        self.X = jax.device_put([X[i : i + size] for i in range(0, N, size)])
        self.variances = variances
        self.root: Any = None
        self.kept: dict[tuple[int, int], np.ndarray] = {}

    def keep(self, run) -> None:
        """K stays in memory, for many factors and products."""
        self._fill(run)
        self.kept = dict(self.tiles.tiles)

    def product(self, v: Float[np.ndarray, " N"], of_inverse: bool = False) -> Float[np.ndarray, " N"]:
        """Kv of the K that is kept; or the inverse times v."""
        out, at = np.zeros_like(v), self.tiles.rows
        for (i, j), tile in (self.tiles.tiles if of_inverse else self.kept).items():
            out[at(i)] += tile @ v[at(j)]
            if i != j:
                out[at(j)] += tile.T @ v[at(i)]
        return out

    def factorise(self, run) -> tuple[float, float]:
        """The factor, with a jitter as `linalg.factorise` has it: (its level, the jitter itself)."""
        level = scale = 0.0
        for _ in range(ESCALATIONS + 1):
            self._fill(run)
            if self.root is not None:
                self.scale(self.root)
            diagonal = [np.einsum("ii->i", self.tiles.tiles[i, i]) for i in range(self.tiles.count)]
            for i, entries in enumerate(diagonal):
                entries += self.variances[self.tiles.rows(i)]
            scale = float(np.mean(np.concatenate(diagonal), dtype=float))
            for entries in diagonal:
                entries += level * scale
            if self.tiles.factorise(run) or not np.isfinite(scale):
                return level, level * scale
            level = max(10 * level, 10 * float(np.finfo(self.tiles.dtype).eps))
        for i in range(self.tiles.count):
            self.tiles.tiles[i, i][:] = np.nan
        return level, level * scale

    def _fill(self, run):
        compute, tiles = program(_tile), self.tiles
        if self.kept:
            tiles.tiles = {pair: tile.copy(order="F") for pair, tile in self.kept.items()}
            return

        def fill(pair):
            i, j = pair
            m, n = (tiles.edges[k + 1] - tiles.edges[k] for k in pair)
            # K is symmetric, so that the program's rows are the columns of a tile.
            tiles.tiles[pair] = np.array(np.asarray(compute(self.kernel, self.X[j], self.X[i]))[:n, :m]).T

        _each(fill, tiles.pairs(), run)

    def scale(self, root: Float[np.ndarray, " N"]) -> None:
        """Row and column i of the tiles times rᵢ."""
        for (i, j), tile in self.tiles.tiles.items():
            tile *= root[self.tiles.rows(i), None] * root[self.tiles.rows(j)]

    def pulled(self, alpha, level, run, signs: Any = 1.0):
        """½(αᵢᵀDαᵢ − [K⁻¹]ᵢᵢ) and the derivative in the kernel's numbers, of K⁻¹ in the tiles, α [N, C], and a diagonal
        D of signs [C]."""
        compute, tiles, size = program(_slopes, "brief"), self.tiles, self.size
        inverse = np.concatenate([np.diagonal(tiles.tiles[i, i]) for i in range(tiles.count)])
        diagonal = 0.5 * (np.sum(signs * alpha**2, axis=1) - inverse)
        shift = level * np.mean(diagonal)  # the jitter is a multiple of K's mean diagonal
        for i in range(tiles.count):
            np.einsum("ii->i", tiles.tiles[i, i])[:] -= 2 * shift
        alphas = np.pad(alpha, ((0, -len(alpha) % size), (0, 0))).reshape(-1, size, alpha.shape[1])
        signed = (signs * alphas).astype(alpha.dtype)

        def slopes(pair):
            i, j = pair
            part = tiles.tiles[pair].T
            if part.shape != (size, size):
                part = np.pad(part, [(0, size - n) for n in part.shape])
            share = np.asarray(0.5 if i == j else 1.0, alpha.dtype)
            parts = compute(self.kernel, self.X[j], self.X[i], part, (alphas[j], signed[i]), share)
            return [np.asarray(part, float) for part in parts]

        found = _each(slopes, tiles.pairs(), run)
        return diagonal + shift, [np.sum(parts, axis=0).astype(alpha.dtype) for parts in zip(*found, strict=True)]


def _each(function: Callable, tasks: list, run: Callable[[Callable, Iterable], list]) -> list:
    """`run`, for a function that calls a program: the first task compiles it, for all threads."""
    precision = same_precision()

    def in_scope(task):
        with precision():
            return function(task)

    return [function(tasks[0]), *run(in_scope, tasks[1:])]
