"""A large covariance matrix on the host: its factor, its inverse and solutions, in tiles that threads share.

LAPACK's own threads wait for each other by spinning, so that on a machine that is also busy otherwise they take many
times as long as one thread. Here each thread of Python takes a tile and calls BLAS with one thread. Tiles above the
diagonal are not stored, which makes it N²/2 numbers.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from jaxtyping import Float

from ..processes import cores
from .host_blas import HostBlas

__all__ = ["Tiles", "inverse_and_half_logdet", "workers"]

FEW = 3
Run = Callable[[Callable, Iterable], list]


@contextmanager
def workers(count: int) -> Iterator[Run]:
    """A function that maps another over tasks, in as many threads as there are cores, at most `count`; in this thread
    alone for fewer than `FEW` tiles, which take less time than threads do to start."""
    if cores() == 1 or count < FEW:
        yield lambda function, tasks: [function(task) for task in tasks]
        return
    pool = ThreadPoolExecutor(min(cores(), count))
    try:
        yield lambda function, tasks: list(pool.map(function, tasks))
    finally:
        pool.shutdown(cancel_futures=True)


class Tiles:
    """The lower triangle of a symmetric [N, N] in tiles of `size` rows, which its factor and its inverse replace.

    `tiles[i, j]`, i ≥ j, is a matrix stored by columns. Methods that factorise or invert use `run` of `workers`.
    """

    def __init__(self, N: int, size: int, dtype: np.dtype | type):
        self.edges = [*range(0, N, size), N]
        self.count, self.dtype = len(self.edges) - 1, np.dtype(dtype)
        self.tiles: dict[tuple[int, int], np.ndarray] = {}
        self.blas = HostBlas(self.dtype)

    def rows(self, i: int) -> slice:
        """The rows of tile i."""
        return slice(self.edges[i], self.edges[i + 1])

    def pairs(self) -> list[tuple[int, int]]:
        """(i, j) of all tiles."""
        return [(i, j) for i in range(self.count) for j in range(i + 1)]

    def factorise(self, run: Run) -> bool:
        """K → L with LLᵀ = K, N³/3 operations; returns whether K is positive definite."""
        at, blas = self.tiles, self.blas

        def updated(index, k):
            i, j = index
            if i == j:
                blas.syrk(-1.0, at[i, k], at[index])
            else:
                blas.gemm(-1.0, at[i, k], at[j, k], at[index], trans_b=True)

        for k in range(self.count):
            if not blas.factorise(at[k, k]) or not np.isfinite(at[k, k][-1, -1]):
                return False
            below = range(k + 1, self.count)
            run(lambda i, k=k: blas.divide(at[i, k], at[k, k], transposed=True), below)
            run(lambda index, k=k: updated(index, k), [(i, j) for i in below for j in range(k + 1, i + 1)])
        return True

    def half_logdet(self) -> float:
        """½ log |K| of the factor."""
        return float(sum(np.sum(np.log(np.diagonal(self.tiles[k, k]))) for k in range(self.count)))

    def solve(self, B: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
        """K⁻¹B of the factor. By rows, B is Bᵀ by columns, whose parts are divided from the right."""
        x, at, last = np.array(B, self.dtype, order="C"), self.tiles, self.count
        for k in range(last):
            self.blas.divide(x[self.rows(k)].T, at[k, k], transposed=True)
            for i in range(k + 1, last):
                x[self.rows(i)] -= at[i, k] @ x[self.rows(k)]
        for k in reversed(range(last)):
            for i in range(k + 1, last):
                x[self.rows(k)] -= at[i, k].T @ x[self.rows(i)]
            self.blas.divide(x[self.rows(k)].T, at[k, k])
        return x

    def invert(self, run: Run) -> None:
        """L → K⁻¹, 2N³/3 operations. Tiles on the diagonal hold both triangles.

        With K = LLᵀ, the last rows and columns of K⁻¹ are P = (L₂L₂ᵀ)⁻¹ of the last rows L₂ of L alone. A panel (D; B)
        of columns before them adds −PT and D⁻ᵀD⁻¹ + TᵀPT with T = BD⁻¹.
        """
        at, blas = self.tiles, self.blas
        for j in reversed(range(self.count)):
            below, D = range(j + 1, self.count), at[j, j]
            blas.invert(D)
            run(lambda i, j=j, D=D: blas.multiply(at[i, j], D), below)
            T = {i: at[i, j] for i in below}

            def column(i, j=j, T=T):
                total, corner = np.zeros_like(T[i]), np.zeros_like(at[j, j])
                for k, t in T.items():
                    P, transposed = (at[i, k], False) if i >= k else (at[k, i], True)
                    blas.gemm(-1.0, P, t, total, trans_a=transposed)
                blas.gemm(-1.0, T[i], total, corner, trans_a=True)
                return total, corner

            blas.gram(D)
            for i, (total, corner) in zip(below, run(column, below), strict=True):
                at[i, j] = total
                D += corner
            at[j, j] = np.asfortranarray(np.tril(D) + np.tril(D, -1).T)

    def inverse_factor(self, run: Run) -> Float[np.ndarray, "N N"]:
        """L⁻¹ of the factor, N³/3 operations, by rows of WL = I: a product with W is as exact as a solution."""
        W = np.zeros((self.edges[-1], self.edges[-1]), self.dtype)

        def row(i):
            mine = {i: np.eye(len(self.tiles[i, i]), dtype=self.dtype, order="F")}
            for j in reversed(range(i + 1)):
                total = mine.get(j, np.zeros_like(self.tiles[i, j]))
                for k in range(j + 1, i + 1):
                    self.blas.gemm(-1.0, mine[k], self.tiles[k, j], total)
                self.blas.divide(total, self.tiles[j, j])
                mine[j] = total
                W[self.rows(i), self.rows(j)] = mine[j]

        run(row, reversed(range(self.count)))
        return W


def inverse_and_half_logdet(K: Float[np.ndarray, "N N"]) -> tuple[Float[np.ndarray, "N N"], float]:
    """K⁻¹ and ½ log |K| of a positive definite matrix; NaN where it has no Cholesky factor."""
    tiles, run = Tiles(len(K), len(K), K.dtype), lambda function, tasks: [function(task) for task in tasks]
    tiles.tiles[0, 0] = np.array(K, order="F")
    if not tiles.factorise(run):
        return np.full_like(K, np.nan), np.nan
    half_logdet = tiles.half_logdet()
    tiles.invert(run)
    return tiles.tiles[0, 0], half_logdet
