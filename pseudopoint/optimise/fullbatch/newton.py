"""Projected Newton with a Hessian by finite differences of gradients: for few numbers of a smooth bound, in a box.

A Hessian by automatic differentiation would be silently wrong, because the derivative of `linalg.Factor` is itself not
differentiable.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..result import OptimiseResult
from .objective import Objective

__all__ = ["Minimum", "descend", "eigen_corrected", "hessian", "projected_newton"]

Function = Callable[[np.ndarray], tuple[float, np.ndarray]]

GRADIENT, DECREASE = 1e-6, 1e-9  # as in `lbfgsb`
ARMIJO, HALVINGS = 1e-4, 50
NEAR = 1e-3  # a number nearer to its bound than this, and than the norm of the projected gradient, may be held there


class Minimum(NamedTuple):
    """A point: x, f(x), ∇f(x), and whether it is a minimum."""

    x: np.ndarray
    value: float
    gradient: np.ndarray
    converged: bool


def projected_newton(
    objective: Objective, *, max_iter: int = 50, box: tuple[Any, Any] = (-np.inf, np.inf)
) -> OptimiseResult:
    """Minimises the objective by projected Newton steps (Izmailov 3.3, means-PN; Bertsekas 1982).

    `box` = (lower, upper), numbers or vectors [P], bounds the unconstrained numbers; a start outside is moved to the
    border. An iteration costs at most 2P gradients for the Hessian, and one for each trial point. This suits a handful
    of hyperparameters (P ≤ 10 or so) of a smooth bound: few iterations, whatever the scales of the numbers. For
    pseudo-points use `lbfgsb`. `Record.gradient_norm` is that of the projected gradient x − [x − ∇f]. Raises FitError
    when the start is not finite, ValueError when the box is empty.
    """
    dtype = objective.numbers.dtype
    lower, upper = (np.broadcast_to(np.asarray(side, float), objective.best.shape) for side in box)
    if not (lower <= upper).all():
        raise ValueError("the box is empty: a lower bound is above its upper one")
    objective.best = objective.previous = np.clip(objective.best, lower, upper).astype(dtype).astype(float)
    first = Minimum(objective.best, *objective.start(), False)
    notify = lambda x, norm: objective.record(x, max_iter, norm=norm)
    precision = float(jnp.finfo(dtype).eps)
    found = descend(objective, first, lower, upper, max_iter=max_iter, notify=notify, precision=precision)
    return objective.result(found.converged)


def descend(
    function: Function,
    start: Minimum,
    lower: np.ndarray,
    upper: np.ndarray,
    *,
    max_iter: int,
    notify: Callable[[np.ndarray, float], None] = lambda x, norm: None,
    precision: float = float(np.finfo(float).eps),
) -> Minimum:
    """A minimum within lower ≤ x ≤ upper of a function that returns f (infinity where it is not defined) and ∇f.

    A number at its bound whose gradient points outwards is held there. On the other numbers F, d = −H⁺_FF⁻¹ ∇_F f, and
    α is halved until f([x + αd]) is low enough (Armijo). It has converged when no component of x − [x − ∇f] exceeds
    1e-6, or when f falls by less than 1e-9 of itself. `notify` gets x and ‖x − [x − ∇f]‖ after each iteration;
    `precision` is the ε of the function's arithmetic.
    """
    at = start._replace(converged=bool(np.abs(_residual(start, lower, upper)).max(initial=0) <= GRADIENT))
    for _ in range(max_iter):
        if at.converged:
            break
        held = _held(at, lower, upper)
        direction = _newton_direction(function, at, held, lower, upper, precision)
        new = _backtrack(function, at, direction, held, lower, upper)
        if new is None:
            # No trial point is lower. x is a minimum if the quadratic model promised no gain either.
            promised = at.gradient @ (at.x - np.clip(at.x + direction, lower, upper))
            return at._replace(converged=bool(promised <= DECREASE * max(abs(at.value), 1)))
        residual = _residual(new, lower, upper)
        little = at.value - new.value <= DECREASE * max(abs(at.value), abs(new.value), 1)
        at = new._replace(converged=bool(little or np.abs(residual).max() <= GRADIENT))
        notify(at.x, float(np.linalg.norm(residual)))
    return at


def hessian(
    function: Function, at: Minimum, lower: np.ndarray, upper: np.ndarray, moving: np.ndarray, precision: float
) -> np.ndarray:
    """Hᵢⱼ = [∂ⱼf(x + h eᵢ) − ∂ⱼf(x − h eᵢ)] / 2h for i, j in `moving`, made symmetric; 2 gradients a row.

    h = ε^¼ max(1, |xᵢ|), because gradients carry errors well above ε. The difference is one-sided at a bound and beside
    a point where f is not finite. A number with no finite value on either side gets the greatest curvature of the
    others, and no off-diagonal elements.
    """
    rows = []
    for i in moving:
        ends = []
        for h in precision**0.25 * max(1.0, abs(at.x[i])) * np.array([1, -1]):
            probe = at.x.copy()
            probe[i] = np.clip(probe[i] + h, lower[i], upper[i])
            value, slope = function(probe)
            ends.append((probe[i], slope) if np.isfinite(value) else (at.x[i], at.gradient))
        (right, above), (left, below) = ends
        rows.append((above - below)[moving] / (right - left) if right > left else np.full(len(moving), np.nan))
    H = 0.5 * (np.array(rows) + np.array(rows).T)
    unknown = np.isnan(rows).all(axis=1)
    H[unknown], H[:, unknown] = 0, 0
    H[unknown, unknown] = np.abs(np.diagonal(H)).max() or 1.0
    return H


def eigen_corrected(H: np.ndarray, precision: float) -> tuple[np.ndarray, np.ndarray]:
    """λ⁺ and U of the positive definite H⁺ = U diag(λ⁺) Uᵀ, λ⁺ᵢ = max(|λᵢ|, √ε maxⱼ|λⱼ|), of a symmetric H = UΛUᵀ.

    Where the curvature is negative, a step leads away from the saddle, as far as it would lead to a minimum.
    """
    curvature, U = np.linalg.eigh(H)
    curvature = np.abs(curvature)
    return np.maximum(curvature, precision**0.5 * curvature.max() or 1.0), U


def _residual(at, lower, upper):
    """x − [x − ∇f], which is zero exactly at the minima within the box."""
    return at.x - np.clip(at.x - at.gradient, lower, upper)


def _held(at, lower, upper):
    """Bertsekas' active set: numbers at or very near a bound, with a gradient that points outwards."""
    near = min(NEAR, float(np.linalg.norm(_residual(at, lower, upper))))
    outwards = ((at.x <= lower + near) & (at.gradient > 0)) | ((at.x >= upper - near) & (at.gradient < 0))
    return outwards | (lower == upper)


def _newton_direction(function, at, held, lower, upper, precision):
    """−H⁺⁻¹∇f on the numbers that move; −∇f on those that are held, which takes them to their bounds."""
    direction, moving = -at.gradient, np.flatnonzero(~held)
    if len(moving):
        curvature, U = eigen_corrected(hessian(function, at, lower, upper, moving, precision), precision)
        direction[moving] = -U @ (U.T @ at.gradient[moving] / curvature)
    return direction


def _backtrack(function, at, direction, held, lower, upper) -> Minimum | None:
    """The first x(α), α = 1, ½, ¼, …, with  f(x) − f(x(α)) ≥ σ [−α ∇_F fᵀd_F + ∇_A fᵀ(x − x(α))_A], where A are the
    held numbers (Bertsekas 1982); None if there is none.
    """
    slope = -(at.gradient @ np.where(held, 0, direction))
    for alpha in 0.5 ** np.arange(HALVINGS):
        x = np.clip(at.x + alpha * direction, lower, upper)
        value, gradient = function(x)
        promised = alpha * slope + at.gradient @ np.where(held, at.x - x, 0)
        if at.value - value >= ARMIJO * promised and value < at.value:
            return Minimum(x, value, gradient, False)
    return None
