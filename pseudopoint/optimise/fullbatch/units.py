"""Units for the numbers of a model in which a bound bends more alike along all of them."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from .objective import Objective

__all__ = ["units"]

STRAIGHT = 1e-4  # of the greatest curvature: a number along which the bound hardly bends gets no endless unit


def units(climb: Objective, data: Any) -> Float[np.ndarray, " P"]:
    """|Hⱼⱼ|^-¼ of the bound's Hessian at the best point, one for all numbers of a kind, with geometric mean 1.

    A kind is a field of the model, or a column of a field that is a matrix. The mean of diag H over a kind is E vᵀHv/n
    with random signs v (Hutchinson 1990), here of one draw, and Hv a difference of two gradients: one gradient a
    field, and one more.
    With |H|^-½ a quadratic bound would bend alike along all numbers. Half way is better, for curvature changes on the
    way up: noise that is to fall by decades is stiff at first (measured: ARCHITECTURE.md).
    """
    x, dtype, leaves = climb.best, climb.free.dtype, jax.tree.leaves(climb.free.model)
    here, h, rng = climb.slope(x, data), float(np.finfo(dtype).eps) ** 0.25, np.random.default_rng(0)
    curvature, start = np.full(len(x), np.nan), 0
    for shape in (np.shape(leaves[i]) for i in climb.free.leaf_indices):
        part = slice(start, start := start + int(np.prod(shape)))
        if part.start == part.stop:  # such as the gaps between the edges of an ordinal target of two levels
            continue
        v = np.zeros_like(x)
        v[part] = rng.choice([-1.0, 1.0], part.stop - part.start)
        vHv = (v * (climb.slope(x + h * v, data) - here) / h)[part].reshape(shape)
        rows = tuple(range(vHv.ndim - 1)) if vHv.ndim > 1 else None
        curvature[part] = np.broadcast_to(np.abs(vHv.mean(axis=rows)), shape).ravel()
    known = np.isfinite(curvature)
    greatest = curvature[known].max(initial=0)
    if greatest == 0:
        return np.ones_like(x)
    unit = np.where(known, np.maximum(curvature, STRAIGHT * greatest), greatest) ** -0.25
    return unit / np.exp(np.mean(np.log(unit)))
