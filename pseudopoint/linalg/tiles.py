"""A large covariance matrix on the host: its factor, its inverse and solutions, in tiles that threads share.

LAPACK's own threads wait for each other by spinning, so that on a machine that is also busy otherwise they take many
times as long as one thread. Here each thread of Python takes a tile and calls BLAS with one thread. Tiles above the
diagonal are not stored, which makes it N²/2 numbers.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from jaxtyping import Float
from scipy.linalg import get_blas_funcs, get_lapack_funcs

__all__ = ["Tiles", "workers"]

Run = Callable[[Callable, Iterable], list]


@contextmanager
def workers(count: int) -> Iterator[Run]:
    """A function that maps another over tasks, in as many threads as there are cores, at most `count`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if min(cores, count) == 1:
        yield lambda function, tasks: [function(task) for task in tasks]
        return
    pool = ThreadPoolExecutor(min(cores, count))
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
        names = ("gemm", "syrk", "trsm", "trmm"), ("potrf", "trtri", "lauum")
        self.gemm, self.syrk, self.trsm, self.trmm = get_blas_funcs(names[0], dtype=self.dtype)
        self.potrf, self.trtri, self.lauum = get_lapack_funcs(names[1], dtype=self.dtype)

    def rows(self, i: int) -> slice:
        """The rows of tile i."""
        return slice(self.edges[i], self.edges[i + 1])

    def pairs(self) -> list[tuple[int, int]]:
        """(i, j) of all tiles."""
        return [(i, j) for i in range(self.count) for j in range(i + 1)]

    def factorise(self, run: Run) -> bool:
        """K → L with LLᵀ = K, N³/3 operations; returns whether K is positive definite."""
        at = self.tiles

        def solved(index):
            at[index] = self.trsm(1.0, at[index[1], index[1]], at[index], side=1, lower=1, trans_a=1, overwrite_b=1)

        for k in range(self.count):
            at[k, k], failed = self.potrf(at[k, k], lower=1, clean=1, overwrite_a=1)
            if failed or not np.isfinite(at[k, k][-1, -1]):
                return False
            below = range(k + 1, self.count)
            run(solved, [(i, k) for i in below])

            def updated(index, k=k):
                i, j = index
                if i == j:
                    at[index] = self.syrk(-1.0, at[i, k], 1.0, at[index], lower=1, overwrite_c=1)
                else:
                    at[index] = self.gemm(-1.0, at[i, k], at[j, k], 1.0, at[index], trans_b=1, overwrite_c=1)

            run(updated, [(i, j) for i in below for j in range(k + 1, i + 1)])
        return True

    def half_logdet(self) -> float:
        """½ log |K| of the factor."""
        return float(sum(np.sum(np.log(np.diagonal(self.tiles[k, k]))) for k in range(self.count)))

    def solve(self, b: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """K⁻¹b of the factor."""
        x, at, last = b.astype(self.dtype), self.tiles, self.count
        for k in range(last):
            x[self.rows(k)] = self._solved(k, x, 0)
            for i in range(k + 1, last):
                x[self.rows(i)] -= at[i, k] @ x[self.rows(k)]
        for k in reversed(range(last)):
            for i in range(k + 1, last):
                x[self.rows(k)] -= at[i, k].T @ x[self.rows(i)]
            x[self.rows(k)] = self._solved(k, x, 1)
        return x

    def _solved(self, k, x, transposed):
        return self.trsm(1.0, self.tiles[k, k], x[self.rows(k), None], lower=1, trans_a=transposed)[:, 0]

    def invert(self, run: Run) -> None:
        """L → K⁻¹, 2N³/3 operations. Tiles on the diagonal hold both triangles.

        With K = LLᵀ, the last rows and columns of K⁻¹ are P = (L₂L₂ᵀ)⁻¹ of the last rows L₂ of L alone. A panel (D; B)
        of columns before them adds −PT and D⁻ᵀD⁻¹ + TᵀPT with T = BD⁻¹.
        """
        at = self.tiles
        for j in reversed(range(self.count)):
            D, _ = self.trtri(at[j, j], lower=1, overwrite_c=1)
            below = range(j + 1, self.count)
            T = dict(
                zip(below, run(lambda i, j=j, D=D: self.trmm(1.0, D, at[i, j], side=1, lower=1), below), strict=True)
            )

            def column(i, j=j, T=T):
                total = np.zeros_like(T[i])
                for k, t in T.items():
                    P, transposed = (at[i, k], 0) if i >= k else (at[k, i], 1)
                    total = self.gemm(-1.0, P, t, 1.0, total, trans_a=transposed, overwrite_c=1)
                at[i, j] = total
                return self.gemm(-1.0, T[i], total, trans_a=1)

            corner = sum(run(column, below), self.lauum(D, lower=1, overwrite_c=1)[0])
            at[j, j] = np.asfortranarray(np.tril(corner) + np.tril(corner, -1).T)

    def inverse_factor(self, run: Run) -> Float[np.ndarray, "N N"]:
        """L⁻¹ of the factor, N³/3 operations, by rows of WL = I: a product with W is as exact as a solution."""
        W = np.zeros((self.edges[-1], self.edges[-1]), self.dtype)

        def row(i):
            mine = {i: np.eye(len(self.tiles[i, i]), dtype=self.dtype, order="F")}
            for j in reversed(range(i + 1)):
                total = mine.get(j, np.zeros_like(self.tiles[i, j]))
                for k in range(j + 1, i + 1):
                    total = self.gemm(-1.0, mine[k], self.tiles[k, j], 1.0, total, overwrite_c=1)
                mine[j] = self.trsm(1.0, self.tiles[j, j], total, side=1, lower=1, overwrite_b=1)
                W[self.rows(i), self.rows(j)] = mine[j]

        run(row, reversed(range(self.count)))
        return W
