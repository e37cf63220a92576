"""Full-batch ascent along any direction, in whatever coordinates the model has, each step as long as is best.

Salimbeni et al. 2018, 5.1: is a direction good, irrespective of the step size? Brent's line search answers by trying.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize

from ...gaussians import MeanCovariance, forward, natural_gradient, to_expectation_slope
from ...params import Trainable
from ..minibatch.energy import with_q
from ..result import Progress
from .objective import Objective, OptimiseResult

__all__ = ["LBFGS", "AbstractDirection", "Gradient", "NaturalDirection", "Point", "Transformed", "brent", "line_search"]

GRADIENT = 1e-6  # as in `lbfgsb`
WIDTH = 1e-6  # to which share of itself Brent's method finds t
SHRINKS = 18  # eightfold each: down to the last digit of a float64


class Point(NamedTuple):
    """Where a direction is asked for: f = −bound/scale has the gradient ∇f at the unconstrained numbers ξ."""

    bound: Callable
    free: Trainable
    data: Any
    vector: np.ndarray
    gradient: np.ndarray


class AbstractDirection(eqx.Module):
    """Which way to go down f = −bound/scale."""

    @abstractmethod
    def init(self, free: Trainable) -> Any:
        """The state before the first step."""

    @abstractmethod
    def __call__(self, at: Point, state: Any) -> tuple[np.ndarray, Any]:
        """Δξ [P] and the next state."""


class Gradient(AbstractDirection):
    """Δξ = −∇f: steepest ascent of the bound in the coordinates that the model has."""

    def init(self, free: Trainable) -> None:
        """None."""

    def __call__(self, at: Point, state: None) -> tuple[np.ndarray, None]:
        """−∇f."""
        return -at.gradient, None


class Transformed(AbstractDirection):
    """What an optax optimiser makes of the gradients it has seen: `Transformed(optax.adam(1.0))` is Adam's direction.

    Its averages are over gradients at the points that the line search came to.
    """

    optimiser: optax.GradientTransformation = eqx.field(static=True)

    def init(self, free: Trainable) -> Any:
        """The optimiser's state."""
        return self.optimiser.init(free.vector)

    def __call__(self, at: Point, state: Any) -> tuple[np.ndarray, Any]:
        """The optimiser's update."""
        vector, gradient = (jnp.asarray(v, at.free.dtype) for v in (at.vector, at.gradient))
        update, state = _update(self.optimiser, gradient, state, vector)
        return np.asarray(update, float), state


@partial(jax.jit, static_argnums=0)
def _update(optimiser, gradient, state, vector):
    return optimiser.update(gradient, state, vector)


class Seen(NamedTuple):
    """Pairs (s, y) of steps and of what they changed in the gradient, the newest last; the last point and gradient."""

    pairs: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    vector: np.ndarray | None = None
    gradient: np.ndarray | None = None


class LBFGS(AbstractDirection):
    """Δξ = −H∇f, with H ≈ (∇²f)⁻¹ from the last `pairs` steps s and changes of gradient y (Nocedal and Wright 7.4).

    A pair with sᵀy ≤ 0 is left out, so H is positive definite; if Δξ does not go down for all that, it is −∇f and the
    pairs are forgotten.
    """

    pairs: int = eqx.field(static=True, default=20)

    def init(self, free: Trainable) -> Seen:
        """Nothing seen."""
        return Seen()

    def __call__(self, at: Point, state: Seen) -> tuple[np.ndarray, Seen]:
        """The two-loop recursion."""
        pairs = state.pairs
        if state.vector is not None and state.gradient is not None:
            s, y = at.vector - state.vector, at.gradient - state.gradient
            if s @ y > 0:
                pairs = (*pairs, (s, y))[-self.pairs :]
        direction = -_two_loops(pairs, at.gradient)
        if not direction @ at.gradient < 0:
            direction, pairs = -at.gradient, ()
        return direction, Seen(pairs, at.vector, at.gradient)


def _two_loops(pairs, r):
    """H r (Nocedal and Wright, algorithm 7.4), H₀ = (sᵀy / yᵀy) I of the newest pair."""
    shares = []
    for s, y in reversed(pairs):
        shares.append(s @ r / (s @ y))
        r = r - shares[-1] * y
    if pairs:
        s, y = pairs[-1]
        r = (s @ y) / (y @ y) * r
    for (s, y), share in zip(pairs, reversed(shares), strict=True):
        r = r + (share - y @ r / (s @ y)) * s
    return r


class NaturalDirection(AbstractDirection):
    """Δξ = (∂ξ/∂θ) ∂L/∂η for the q of `model.posterior`, in q's own coordinates (Salimbeni et al. 2018, (10)), of the
    bound itself and not of bound/scale: t is the natural step γ.

    The other free numbers stay, or go by the `ordinary` gradient −∇f. Should the natural direction find nothing higher,
    `line_search` takes a step of the gradient, which moves them too: freeze what is to stay.
    """

    ordinary: bool = eqx.field(static=True, default=False)

    def init(self, free: Trainable) -> None:
        """None."""

    def __call__(self, at: Point, state: None) -> tuple[np.ndarray, None]:
        """The natural gradient at q's places in ξ."""
        vector = jnp.asarray(at.vector, at.free.dtype)
        natural, places = _natural_direction(at.bound, at.free, vector, at.data)
        rest = -at.gradient if self.ordinary else np.zeros_like(at.gradient)
        return np.where(np.asarray(places) != 0, np.asarray(natural, float), rest), None


@partial(jax.jit, static_argnums=0)
def _natural_direction(bound, free, vector, data):
    """The natural gradient of q as a change of ξ, and a vector that is not 0 at q's places."""
    model = free.rebuild(vector)
    natural = _natural_gradient(lambda q: bound(with_q(model, q), data), model.posterior.q)
    nothing = jax.tree.map(jnp.zeros_like, model)
    ones = jax.tree.map(jnp.ones_like, natural)
    return _unconstrained(free, model, with_q(nothing, natural)), _unconstrained(free, model, with_q(nothing, ones))


def _natural_gradient(loss, q):
    """`natural_gradient`, of several latent functions where q has a leading axis."""
    if jax.tree.leaves(q)[0].ndim == 1:
        return _turned(q, natural_gradient(loss, q))
    mean, cov = jax.vmap(lambda q: (q.mean, q.covariance()))(q)
    slope = jax.grad(loss)(MeanCovariance(mean, cov))
    one = lambda q, mean, slope: _turned(q, forward(q, to_expectation_slope(mean, slope)))
    return jax.vmap(one)(q, mean, slope)


def _turned(q, tangent):
    """`forward` takes a root with a positive diagonal; a line search may have gone across zero to another root of the
    same S. Its columns and those of the tangent have the signs of q's own.
    """
    canonical = type(q).from_natural(q.to_natural())

    def turn(change, xi, positive):
        if xi.ndim == 1:
            return change
        # Below 10 ε a sign is rounding error: N(0, I) has the logarithm 0.
        opposite = jnp.diagonal(xi) * jnp.diagonal(positive) < -((10 * jnp.finfo(xi.dtype).eps) ** 2)
        return jnp.where(opposite, -change, change)

    return jax.tree.map(turn, tangent, q, canonical)


def _unconstrained(free, model, change):
    """Δξ of a change Δx of the whole model, flat as `free.vector`: Δξ = (∂ξ/∂x) Δx."""
    leaves, changes = jax.tree.leaves(model), jax.tree.leaves(change)
    moved = lambda i, bijector: jax.jvp(bijector.unconstrain, (leaves[i],), (changes[i],))[1]
    return jnp.concatenate([jnp.ravel(moved(i, b)) for i, b in zip(free.leaf_indices, free.bijectors, strict=True)])


def line_search(
    bound: Callable,
    free: Trainable,
    data: Any,
    direction: AbstractDirection,
    *,
    max_iter: int = 200,
    progress: Progress | None = None,
    scale: float = 1.0,
    tolerance: float = 1e-9,
    limit: int = 60,
) -> OptimiseResult:
    """Maximises `bound(model, data)` by steps ξ ← ξ + tΔξ, each t by Brent's method (Salimbeni et al. 2018, 5.1).

    ξ are the free numbers, q's own coordinates among them. Where the bound is not finite (off the cone), t is
    shortened. A search takes at most about `limit` bounds, and finds t to 1e-6 of itself; `Record.step_size` is t. A
    direction that gains no more than `tolerance` of the bound is replaced once by the gradient; if that gains no more,
    the search has converged, as it has where no component of ∇f exceeds 1e-6. It pays for its exactness with some 10 to
    20 bounds a step: made to compare directions, not to be fast. `bound` and `scale`: as in `lbfgsb`. Raises FitError
    when the start is not finite.
    """
    climb = Objective(bound, free, data, scale=scale, progress=progress, total=max_iter)
    at = Point(bound, free, data, climb.best, np.empty(0))
    value, gradient = climb.first()
    at, state, t = at._replace(gradient=gradient), direction.init(free), 1.0
    converged = _flat(gradient)
    while not converged and len(climb.history) < max_iter:
        change, state = direction(at, state)
        moved = _search(climb, at, value, change, t, limit, tolerance)
        if moved is not None:
            t = moved[0]
        else:
            guess = 1 / float(np.linalg.norm(at.gradient))
            moved = _search(climb, at, value, -at.gradient, guess, limit, tolerance)
        if moved is None:
            converged = True
        else:
            step, vector, value, gradient = moved
            at = at._replace(vector=vector, gradient=gradient)
            converged = _flat(gradient)
            climb.record(vector, step_size=step)
    return climb.maximum(converged)


def _flat(gradient):
    return bool(np.abs(gradient).max(initial=0) <= GRADIENT)


def _search(climb, at, value, change, guess, limit, tolerance):
    """t, ξ + tΔξ, and the value and gradient there; None where Δξ leads nowhere, or gains too little."""
    if not (np.isfinite(change).all() and change @ at.gradient < 0):
        return None
    t, _ = brent(lambda t: climb.value(at.vector + t * change), value, guess, limit)
    if t == 0:
        return None
    vector = at.vector + t * change
    new, gradient = climb(vector)
    return (t, vector, new, gradient) if value - new > tolerance * max(abs(value), abs(new), 1) else None


def brent(phi: Callable[[float], float], start: float, guess: float, limit: int = 60) -> tuple[float, float]:
    """(t, φ(t)) at a local minimum over t > 0 of φ, which is infinite where it is not defined; `start` is φ(0).

    From `guess` t shrinks eightfold until φ(t) < φ(0), or else doubles while φ falls; Brent's method (1973) then
    refines within the bracket, by golden sections where a parabola meets infinity. The best of at most about `limit`
    values that were tried, (0, φ(0)) if none is lower.
    """
    seen = {0.0: start}

    def at(t):
        if t not in seen:
            seen[t] = float(phi(t))
        return seen[t]

    # Factors are powers of two, so that brackets are exact.
    low, t, high = 0.0, guess, np.inf
    while not at(t) < start and len(seen) <= min(limit, SHRINKS):
        t, high = t / 8, t
    while high == np.inf and len(seen) < limit:
        low, t, high = (t, 2 * t, high) if at(2 * t) < at(t) else (low, t, 2 * t)
    if at(t) < start and high < np.inf and len(seen) < limit:
        # In units of t: the method has an absolute tolerance. Of the end it asks only that it be higher, not no lower.
        inside = lambda s: at(float(s * t)) if s * t < high else np.inf
        bracket, options = (low / t, 1.0, high / t), {"xtol": WIDTH, "maxiter": limit - len(seen)}
        with np.errstate(invalid="ignore"):  # ∞ − ∞
            scipy.optimize.minimize_scalar(inside, bracket=bracket, method="brent", options=options)
    best = min(seen, key=lambda t: seen[t])
    return best, seen[best]
