"""Full-batch steps along any direction, in the model's own coordinates, each of the best length.

For comparing directions whatever their step size (Salimbeni et al. 2018, 5.1): Brent's method finds the length.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from ...gaussians import MeanCovariance, forward, natural_gradient, to_expectation_slope
from ...params import Trainable
from ..minibatch.energy import with_q
from ..result import OptimiseResult
from ..transformation import GradientTransformation
from .objective import Objective, evaluate

__all__ = ["LBFGS", "AbstractDirection", "Gradient", "NaturalDirection", "Point", "Transformed", "brent", "line_search"]

GRADIENT = 1e-6  # as in `lbfgsb`
WIDTH = 1e-6  # relative accuracy of t by Brent's method
SHRINKS = 18  # eightfold each: down to the last digit of a float64


class Point(NamedTuple):
    """The unconstrained numbers ξ, and the gradient ∇f of the objective there."""

    objective: Objective
    vector: np.ndarray
    gradient: np.ndarray


class AbstractDirection(eqx.Module):
    """A direction along which the objective f falls."""

    @abstractmethod
    def init(self, numbers: Trainable) -> Any:
        """The state before the first step."""

    @abstractmethod
    def __call__(self, at: Point, state: Any) -> tuple[np.ndarray, Any]:
        """Δξ [P] and the next state."""


class Gradient(AbstractDirection):
    """Δξ = −∇f: steepest descent in the model's own coordinates."""

    def init(self, numbers: Trainable) -> None:
        """None."""

    def __call__(self, at: Point, state: None) -> tuple[np.ndarray, None]:
        """−∇f."""
        return -at.gradient, None


class Transformed(AbstractDirection):
    """The update of an optax optimiser: `Transformed(optax.adam(1.0))` is Adam's direction.

    Its averages are over the gradients at the points where the line searches ended.
    """

    optimiser: GradientTransformation = eqx.field(static=True)

    def init(self, numbers: Trainable) -> Any:
        return self.optimiser.init(numbers.vector)

    def __call__(self, at: Point, state: Any) -> tuple[np.ndarray, Any]:
        """The optimiser's update."""
        vector, gradient = (jnp.asarray(v, at.objective.numbers.dtype) for v in (at.vector, at.gradient))
        update, state = _update(self.optimiser, gradient, state, vector)
        return np.asarray(update, float), state


@partial(jax.jit, static_argnums=0)
def _update(optimiser, gradient, state, vector):
    return optimiser.update(gradient, state, vector)


class Seen(NamedTuple):
    """Pairs (s, y) of steps and changes of the gradient, the newest last; the last point and gradient."""

    pairs: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    vector: np.ndarray | None = None
    gradient: np.ndarray | None = None


class LBFGS(AbstractDirection):
    """Δξ = −H∇f, with H ≈ (∇²f)⁻¹ from the last `pairs` steps s and changes of gradient y (Nocedal and Wright 7.4).

    A pair with sᵀy ≤ 0 is left out, so that H is positive definite. Where rounding makes Δξ point uphill all the same,
    it is −∇f and the pairs are dropped.
    """

    pairs: int = eqx.field(static=True, default=20)

    def init(self, numbers: Trainable) -> Seen:
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
    """Δξ = (∂ξ/∂θ) ∂L/∂η for the q of `model.posterior`, in q's own coordinates (Salimbeni et al. 2018, (10)).

    L is the bound itself and not bound/scale, so that t is the natural step γ. The other trainable numbers stay, or
    follow the `ordinary` gradient −∇f. Freeze them to hold them for certain: where the natural direction gains nothing,
    `line_search` takes a step along the gradient, which moves them too.
    """

    ordinary: bool = eqx.field(static=True, default=False)

    def init(self, numbers: Trainable) -> None:
        """None."""

    def __call__(self, at: Point, state: None) -> tuple[np.ndarray, None]:
        """The natural gradient at q's places in ξ."""
        f = at.objective
        vector = jnp.asarray(at.vector, f.numbers.dtype)
        natural, places = _natural_direction(f.function, f.has_aux, f.numbers, vector, f.data)
        others = -at.gradient if self.ordinary else np.zeros_like(at.gradient)
        return np.where(np.asarray(places) != 0, np.asarray(natural, float), others), None


@partial(jax.jit, static_argnums=(0, 1))
def _natural_direction(function, has_aux, numbers, vector, data):
    """The natural gradient of q as a change of ξ, and a vector that is not 0 at q's places."""
    model = numbers.rebuild(vector)
    bound = lambda q: evaluate(function, has_aux, with_q(model, q), data)[0]
    natural = _natural_gradient(bound, model.posterior.q)
    zeros = jax.tree.map(jnp.zeros_like, model)
    changes = (natural, jax.tree.map(jnp.ones_like, natural))
    return tuple(_unconstrained(numbers, model, with_q(zeros, change)) for change in changes)


def _natural_gradient(loss, q):
    """`natural_gradient`; with a leading axis of q, that of each latent function."""
    if jax.tree.leaves(q)[0].ndim == 1:
        return _turned(q, natural_gradient(loss, q))
    mean, cov = jax.vmap(lambda q: (q.mean, q.covariance()))(q)
    slope = jax.grad(loss)(MeanCovariance(mean, cov))
    one = lambda q, mean, slope: _turned(q, forward(q, to_expectation_slope(mean, slope)))
    return jax.vmap(one)(q, mean, slope)


def _turned(q, tangent):
    """The tangent with the signs of q's own root of S.

    `forward` assumes a root with a positive diagonal. A line search may have crossed zero to another root of the same
    S, which differs in the signs of columns.
    """
    canonical = type(q).from_natural(q.to_natural())

    def turn(change, xi, positive):
        if xi.ndim == 1:
            return change
        # Below 10 ε a sign is rounding error: N(0, I) has the logarithm 0.
        opposite = jnp.diagonal(xi) * jnp.diagonal(positive) < -((10 * jnp.finfo(xi.dtype).eps) ** 2)
        return jnp.where(opposite, -change, change)

    return jax.tree.map(turn, tangent, q, canonical)


def _unconstrained(numbers, model, change):
    """Δξ = (∂ξ/∂x) Δx of a change Δx of the whole model, flat as `numbers.vector`."""
    leaves, changes = jax.tree.leaves(model), jax.tree.leaves(change)
    moved = lambda i, bijector: jax.jvp(bijector.unconstrain, (leaves[i],), (changes[i],))[1]
    learned = zip(numbers.leaf_indices, numbers.bijectors, strict=True)
    return jnp.concatenate([jnp.ravel(moved(i, bijector)) for i, bijector in learned])


def line_search(
    objective: Objective, direction: AbstractDirection, *, max_iter: int = 200, tolerance: float = 1e-9, limit: int = 60
) -> OptimiseResult:
    """Minimises the objective by steps ξ ← ξ + tΔξ, each t by Brent's method (Salimbeni et al. 2018, 5.1).

    ξ are the trainable numbers, q's own coordinates among them. Where the bound is not finite (outside the cone of
    covariance matrices), t is shortened. A search takes at most about `limit` values and finds t to 1e-6 of itself;
    `Record.step_size` is t. A direction that gains at most `tolerance` of the bound is replaced once by the gradient.
    It has converged when that gains no more, or when no component of ∇f exceeds 1e-6. Exact steps cost about 10 to 20
    values each: this is for comparing directions, not for speed. Raises FitError when the start is not finite.
    """
    value, gradient = objective.start()
    at = Point(objective, objective.best, gradient)
    state, t, converged = direction.init(objective.numbers), 1.0, _stationary(gradient)
    while not converged and len(objective.history) < max_iter:
        change, state = direction(at, state)
        moved = _search(at, value, change, t, limit, tolerance)
        if moved is not None:
            t = moved[0]
        else:
            guess = 1 / float(np.linalg.norm(at.gradient))
            moved = _search(at, value, -at.gradient, guess, limit, tolerance)
        if moved is None:
            return objective.result(True)
        step, vector, value, gradient = moved
        at, converged = Point(objective, vector, gradient), _stationary(gradient)
        objective.record(vector, max_iter, step_size=step)
    return objective.result(converged)


def _stationary(gradient):
    return bool(np.abs(gradient).max(initial=0) <= GRADIENT)


def _search(at, value, change, guess, limit, tolerance):
    """t, ξ + tΔξ, and the value and gradient there; None where Δξ does not lead downhill or gains too little."""
    if not (np.isfinite(change).all() and change @ at.gradient < 0):
        return None
    t, _ = brent(lambda t: at.objective.value(at.vector + t * change), value, guess, limit)
    if t == 0:
        return None
    vector = at.vector + t * change
    new, gradient = at.objective(vector)
    return (t, vector, new, gradient) if value - new > tolerance * max(abs(value), abs(new), 1) else None


def brent(phi: Callable[[float], float], start: float, guess: float, limit: int = 60) -> tuple[float, float]:
    """(t, φ(t)) at a local minimum over t > 0 of φ, which is infinite where it is not defined; `start` is φ(0).

    From `guess`, t shrinks eightfold until φ(t) < φ(0), or else doubles while φ falls. Brent's method (1973) then
    refines t within the bracket, by golden sections where a parabola meets infinity. Returns the best of at most about
    `limit` trials, or (0, φ(0)) if none is lower.
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
        # In units of t, because SciPy's tolerance is absolute. The upper end counts as infinite, because SciPy
        # requires a strictly higher value there.
        inside = lambda s: at(float(s * t)) if s * t < high else np.inf
        bracket, options = (low / t, 1.0, high / t), {"xtol": WIDTH, "maxiter": limit - len(seen)}
        with np.errstate(invalid="ignore"):  # ∞ − ∞
            scipy.optimize.minimize_scalar(inside, bracket=bracket, method="brent", options=options)
    best = min(seen, key=lambda t: seen[t])
    return best, seen[best]
