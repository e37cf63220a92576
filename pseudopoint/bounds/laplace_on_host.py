"""Laplace's approximation and its gradient on the host's cores, in tiles (Rasmussen and Williams 2006, 3.4 and 5.5.1;
decision 0083).

All is in B = I + W^½KW^½, whose factor serves Newton's steps, the value, and the derivatives:
    (I + WK)⁻¹ = W^½ B⁻¹ W^−½,    (K + W⁻¹)⁻¹ = W^½ B⁻¹ W^½,    ((K⁻¹ + W)⁻¹)ᵢᵢ = (1 − [B⁻¹]ᵢᵢ)/Wᵢ.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import Partial
from jaxtyping import Array, Float

from ..compilation import program
from ..data import Dataset
from ..linalg import Scalar, workers
from ..posteriors import Model, Predictor
from ..processes import one_blas_thread
from .bound import Bound, Solution
from .covariance_on_host import Covariance
from .exact import same
from .laplace import LENGTHS, STEPS, Rows

__all__ = ["AtMode", "given_laplace", "laplace_on_host", "mode_on_host"]


class AtMode(eqx.Module):
    """What the host tells of a model: the value, its derivatives in the kernel's numbers, and f̂; and its derivatives in
    the curvatures W of rows, and in their slopes ∇log p, at f̂."""

    value: Scalar
    kernel: Any
    f: Float[Array, " N"]
    curvature: Float[Array, " N"]
    slope: Float[Array, " N"]


def given_laplace(model: Model, rows: tuple[Dataset, AtMode]) -> Bound:
    """`laplace` with its gradient, for `rows` = (data, `mode_on_host(model, data)`) of the same model."""
    data, at = rows
    of_rows = Rows(model.likelihood.at(data), data)
    numbers = jax.tree.leaves(eqx.filter(model.kernel, eqx.is_inexact_array))
    # With the derivatives that the host found; less its own value, which leaves `value` exact.
    slope, curvature = of_rows.slope(at.f), of_rows.curvature(at.f)
    linear = sum(jnp.sum(x * g) for x, g in zip(numbers, at.kernel, strict=True))
    linear += of_rows.log_prob(at.f) + at.slope @ slope + at.curvature @ curvature
    value = at.value + (linear - lax.stop_gradient(linear))
    return Bound(value, value)


def mode_on_host(model: Model, data: Dataset) -> AtMode:
    """What `given_laplace` reads, for a likelihood that is concave in f. With s = ∂(−½ log |B|)/∂f̂,
        v = (I + WK)⁻¹s,    ∂/∂K = ½(ââᵀ + vâᵀ + âvᵀ − (K + W⁻¹)⁻¹),    ∂/∂∇log p = Kv,    ∂/∂W = −½((K⁻¹ + W)⁻¹)ᵢᵢ
    (Rasmussen and Williams 2006, 5.5.1). N³/3 operations a Newton step and 2N³/3 more, N² numbers."""
    rows, all_rows = np.flatnonzero(np.asarray(data.weight) > 0), np.zeros(len(data), data.X.dtype)
    with one_blas_thread():
        cov = Covariance(model.kernel, data, rows, np.ones(len(rows), data.X.dtype))
        with workers(cov.tiles.count) as run:
            a, f, value, (_, curvature, third), _ = _mode(cov, model, data, rows, run)
            if not np.isfinite(value):
                zeros = [np.zeros_like(x) for x in jax.tree.leaves(eqx.filter(model.kernel, eqx.is_inexact_array))]
                return AtMode(jnp.asarray(np.nan, data.X.dtype), zeros, *map(jnp.asarray, [all_rows] * 3))
            cov.tiles.invert(run)
            inverse = np.concatenate([np.diagonal(cov.tiles.tiles[i, i]) for i in range(cov.tiles.count)])
            share = np.where(curvature > 0, (1 - inverse) / cov.root**2, 0)
            s = -0.5 * share * third
            v = cov.root * cov.product(s / cov.root, of_inverse=True)
            cov.scale(cov.root)
            _, kernel = cov.pulled(np.stack([a + v, v], axis=1), 0.0, run, np.array([1, -1], a.dtype))
            of_rows = [f, -0.5 * share, cov.product(v)]
    of_all = [all_rows.copy() for _ in of_rows]
    for full, few in zip(of_all, of_rows, strict=True):
        full[rows] = few
    return AtMode(*jax.device_put((np.asarray(value, data.X.dtype), kernel, *of_all)))


def laplace_on_host(model: Model, data: Dataset) -> Solution:
    """`laplace` without a gradient, in tiles; for a likelihood that is concave in f."""
    rows = np.flatnonzero(np.asarray(data.weight) > 0)
    with one_blas_thread():
        cov = Covariance(model.kernel, data, rows, np.ones(len(rows), data.X.dtype))
        with workers(cov.tiles.count) as run:
            a, _, value, _, level = _mode(cov, model, data, rows, run)
            W = cov.tiles.inverse_factor(run) * cov.root
    host = np.asarray(value, a.dtype), np.asarray(data.X)[rows], a, W, np.zeros_like(a), np.asarray(level, a.dtype)
    value, X, alpha, W, zeros, jitter = jax.device_put(host)
    predictor = Predictor(model.kernel, X, alpha, X, W, zeros, jitter, True)
    return Solution(value, value, Partial(same, predictor))


def _mode(cov: Covariance, model: Model, data: Dataset, rows: np.ndarray, run):
    """â, f̂, log q(y), (slopes, W, ∂W/∂f̂) and the jitter of B, whose factor is in the tiles: by Newton's method from 0,
    as `laplace` has it."""
    cov.keep(run)
    all_rows, dtype = np.zeros(len(data), data.X.dtype), data.X.dtype
    a = f = np.zeros(len(rows), dtype)
    eps = float(np.finfo(dtype).eps)

    def spread(x):
        full = all_rows.copy()
        full[rows] = x
        return full

    def at(f):
        log_prob, *parts = program(_of_rows, "brief")(model, data, spread(f))
        parts = [np.asarray(part)[rows] for part in parts]
        cov.root = np.sqrt(np.maximum(parts[1], eps**2))
        return float(log_prob), parts, cov.factorise(run)[1]

    log_prob, parts, jitter = at(f)
    psi, rising, steps = log_prob, True, 0
    while rising and steps < STEPS:
        step = cov.root * cov.tiles.solve(((parts[0] - a) / cov.root)[:, None])[:, 0]
        change = cov.product(step)
        tried = np.asarray(program(_along, "brief")(model, data, *map(spread, (a, step, f, change))))
        slack = 2**9 * eps * (1 + np.abs(np.nanmax(tried, initial=-np.inf)))
        first = int(np.argmax(tried >= np.nanmax(tried, initial=-np.inf) - slack))
        length = LENGTHS[first].astype(dtype) if np.isfinite(tried[first]) else 0
        a, f = a + length * step, f + length * change
        rising, psi, steps = bool(tried[first] > psi + slack), float(tried[first]), steps + 1
        log_prob, parts, jitter = at(f)
    return a, f, log_prob - 0.5 * float(a @ f) - cov.tiles.half_logdet(), parts, jitter


def _of_rows(model: Model, data: Dataset, f: Float[Array, " N"]):
    """log p(y | f), its gradient, W and ∂W/∂f."""
    rows = Rows(model.likelihood.at(data), data)
    return rows.log_prob(f), rows.slope(f), rows.curvature(f), jax.grad(lambda f: jnp.sum(rows.curvature(f)))(f)


def _along(model: Model, data: Dataset, a, step, f, change) -> Float[Array, " L"]:
    """Ψ after each of `LENGTHS` of a step."""
    rows, lengths = Rows(model.likelihood.at(data), data), jnp.asarray(LENGTHS, f.dtype)
    psi = lambda length: rows.log_prob(f + length * change) - 0.5 * (a + length * step) @ (f + length * change)
    return jax.vmap(psi)(lengths)
