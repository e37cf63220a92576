"""The exact evidence and its gradient on the host's cores, by LAPACK's functions in tiles.

XLA calls LAPACK for a Cholesky factor, but not for the inverse of a positive definite matrix, of which a compiled
program has to make products that cost several times as much. So programs compute the kernel in tiles and take its
derivative, and between them the host factorises and inverts (decision 0054).
"""

from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import Partial
from jaxtyping import Array, Float

from ..compilation import bucket, program
from ..data import Dataset
from ..kernels import AbstractKernel
from ..linalg import ESCALATIONS, Scalar, Tiles, workers
from ..posteriors import Model, Predictor
from ..processes import one_blas_thread, same_precision
from .bound import Bound, Solution
from .exact import constants_of, num_targets, residuals, row_noise, same

__all__ = ["Given", "evidence_on_host", "given_evidence", "marginal_on_host"]

SMALL, LARGE = 416, 512  # rows of a tile: smaller ones cost calls, larger ones leave threads without work


class Given(eqx.Module):
    """What the host tells of a model: −½ yᵀα − ½ log |K + Σ|, and its derivatives in Σ, in the kernel's numbers, and
    in the value of a mean function at each row, α."""

    value: Scalar
    noise: Float[Array, " N"]
    kernel: Any
    alpha: Any = None


def given_evidence(model: Model, rows: tuple[Dataset, Given]) -> Bound:
    """`marginal` with its gradient, for `rows` = (data, `evidence_on_host(model, data)`) of the same model."""
    data, given = rows
    counts, noise = data.weight > 0, row_noise(model, data)
    variance = jnp.where(counts, noise / jnp.where(counts, data.weight, 1), 0)
    numbers = jax.tree.leaves(eqx.filter(model.kernel, eqx.is_inexact_array))
    # A linear function with the derivatives that the host found; less its own value, which leaves `value` exact.
    linear = given.noise @ variance + sum(jnp.sum(x * g) for x, g in zip(numbers, given.kernel, strict=True))
    if given.alpha is not None:
        linear += given.alpha @ model.likelihood.latent_mean(data.X)
    value = given.value - 0.5 * num_targets(data.y) * constants_of(noise, data) + (linear - lax.stop_gradient(linear))
    return Bound(value, value)


def evidence_on_host(model: Model, data: Dataset, levels: Float[np.ndarray, "L C"] | None = None) -> Given:
    """What `given_evidence` reads, by K⁻¹ = (LLᵀ)⁻¹ and ∂/∂K = ½(ααᵀ − K⁻¹) with α = K⁻¹y  (Rasmussen and Williams
    2006, 5.9). N³ operations and N²/2 numbers; rows of weight zero cost nothing. NaN where K has no factor.

    Of a target [N, C] the sums over its columns. With `levels`, y holds numbers of its rows, and α = K⁻¹Y for
    Y = levels[y], [N, C]: the evidence of C columns less that of C − 1 columns of zeros.
    """
    rows, along = np.flatnonzero(np.asarray(data.weight) > 0), None
    noise, centred = np.zeros(len(data), data.X.dtype), residuals(model, data)
    if centred is not data:  # by a mean function
        data, along = centred, np.zeros_like(noise)
    with one_blas_thread():
        cov = _Covariance(model, data, rows)
        with workers(cov.tiles.count) as run:
            level, _ = cov.factorise(run)
            y = np.asarray(data.y)[rows]
            Y = y.reshape(len(y), -1) if levels is None else levels[y.astype(int)].astype(y.dtype)
            C = num_targets(y)
            Y = Y / np.sqrt(C).astype(y.dtype)  # all below is of the mean of the columns
            alpha = cov.tiles.solve(Y)
            value = C * (-0.5 * float(np.sum(Y * alpha)) - cov.tiles.half_logdet())
            if not np.isfinite(value):
                zeros = [np.zeros_like(x) for x in jax.tree.leaves(eqx.filter(model.kernel, eqx.is_inexact_array))]
                return Given(jnp.asarray(np.nan, noise.dtype), jnp.asarray(noise), zeros, along)
            cov.tiles.invert(run)
            slopes, kernel = cov.pulled(alpha, level, run)
            noise[rows], kernel = C * slopes, [C * part for part in kernel]
            if along is not None:
                along[rows] = alpha[:, 0]
    return Given(*jax.device_put((np.asarray(value, noise.dtype), noise, kernel, along)))


def marginal_on_host(model: Model, data: Dataset) -> Solution:
    """`marginal` without a gradient, in tiles: N³/3 operations, and as many for its predictor."""
    data, rows = residuals(model, data), np.flatnonzero(np.asarray(data.weight) > 0)
    with one_blas_thread():
        cov = _Covariance(model, data, rows)
        with workers(cov.tiles.count) as run:
            _, jitter = cov.factorise(run)
            y = np.asarray(data.y)[rows]
            alpha, W = cov.tiles.solve(y.reshape(len(y), -1)).T.reshape(y.T.shape), cov.tiles.inverse_factor(run)
    constants = 0.5 * float(program(_constants, "once")(model, data)) + cov.tiles.half_logdet()
    value = -0.5 * float(np.vdot(y.T, alpha)) - num_targets(y) * constants
    value = jax.device_put(np.asarray(value, data.X.dtype))
    host = np.asarray(data.X)[rows], alpha, W, np.zeros_like(W[0]), np.asarray(jitter, W.dtype)
    X, alpha, W, zeros, jitter = jax.device_put(host)
    predictor = Predictor(model.kernel, X, alpha, X, W, zeros, jitter, True)
    return Solution(value, value, Partial(same, predictor), Partial(same, value))


def _constants(model, data):
    return constants_of(row_noise(model, data), data)


def _variances(model, data):
    """Σ of all rows."""
    return row_noise(model, data) / data.weight


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


class _Covariance:
    """K + Σ of the rows that count, in tiles."""

    def __init__(self, model: Model, data: Dataset, rows: np.ndarray):
        N, most = len(rows), bucket(len(data))
        count = -(-most // min(max(most // 8, SMALL), LARGE))
        size = -(-most // count)  # the same for tables of like size, which share programs
        self.kernel, self.size = model.kernel, size
        self.tiles = Tiles(N, size, data.X.dtype)
        X = np.asarray(data.X)[np.pad(rows, (0, -N % size), mode="edge")]
        self.X = jax.device_put([X[i : i + size] for i in range(0, N, size)])
        self.variances = np.asarray(program(_variances, "brief")(model, data))[rows]

    def factorise(self, run) -> tuple[float, float]:
        """The factor, with a jitter as `linalg.factorise` has it: (its level, the jitter itself)."""
        level = scale = 0.0
        for _ in range(ESCALATIONS + 1):
            self._fill(run)
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

        def fill(pair):
            i, j = pair
            m, n = (tiles.edges[k + 1] - tiles.edges[k] for k in pair)
            # K is symmetric, so that the program's rows are the columns of a tile.
            tiles.tiles[pair] = np.array(np.asarray(compute(self.kernel, self.X[j], self.X[i]))[:n, :m]).T

        _each(fill, tiles.pairs(), run)

    def pulled(self, alpha, level, run):
        """½(αᵢᵀαᵢ − [K⁻¹]ᵢᵢ) and the derivative in the kernel's numbers, of K⁻¹ in the tiles and α [N, C]."""
        compute, tiles, size = program(_slopes), self.tiles, self.size
        inverse = np.concatenate([np.diagonal(tiles.tiles[i, i]) for i in range(tiles.count)])
        diagonal = 0.5 * (np.sum(alpha**2, axis=1) - inverse)
        shift = level * np.mean(diagonal)  # the jitter is a multiple of K's mean diagonal
        for i in range(tiles.count):
            np.einsum("ii->i", tiles.tiles[i, i])[:] -= 2 * shift
        alphas = np.pad(alpha, ((0, -len(alpha) % size), (0, 0))).reshape(-1, size, alpha.shape[1])

        def slopes(pair):
            i, j = pair
            part = tiles.tiles[pair].T
            if part.shape != (size, size):
                part = np.pad(part, [(0, size - n) for n in part.shape])
            share = np.asarray(0.5 if i == j else 1.0, alpha.dtype)
            parts = compute(self.kernel, self.X[j], self.X[i], part, (alphas[j], alphas[i]), share)
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
