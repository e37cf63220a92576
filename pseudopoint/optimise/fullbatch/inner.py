"""The optimal q for all rows at fixed hyperparameters: full natural steps under Anderson acceleration."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from ...data import Dataset
from ...gaussians import MeanPrecision
from ...linalg import Scalar, invert, solve_positive
from ...params import trainable
from ...posteriors import Model
from ..minibatch.base import energy_slopes, gaussian_entropy, majorises, next_precision, with_q
from .anderson import Memory

__all__ = ["converge"]

REMEMBERED = 8  # changes that the acceleration uses
FALLS = 6  # rejections in a row: of the accelerated step, the plain one, and 1/4, …, 1/256 of it
Steps = int | Int[Array, ""]


class _Inner(NamedTuple):
    """State of `converge`.

    `here` is the point to evaluate next, `retreat` the one after it if the bound falls there. `best` and `bound` are
    the best point so far, `gains` those of the last two accepted steps, `falls` the rejections since.
    """

    here: Float[Array, " n"]
    retreat: Float[Array, " n"]
    best: Float[Array, " n"]
    bound: Scalar
    gains: Float[Array, " 2"]
    memory: Memory
    falls: Int[Array, ""]
    steps: Int[Array, ""]


def converge(model: Model, data: Dataset, *, tight: bool = True, tolerance: float = 1e-8, steps: Steps = 100) -> Model:
    """The model with its optimal q, by full-batch natural steps of size 1 under Anderson acceleration.

    Where the accelerated step lowers the bound, or leaves the cone (its bound is NaN), the plain step is tried, then a
    quarter of it, and so on: the bound never falls. It stops when a step gains less than `tolerance` nats a row and the
    one before at most a hundred times as much, or when 1/256 of a step lowers the bound: there the error of a
    quadrature makes the expectation gradients differ from those of the bound. q is in `MeanPrecision` coordinates, and
    its value is the start.
    """
    enough = max(tolerance, 10 * float(jnp.finfo(data.X.dtype).eps)) * len(data)
    first, unravel = ravel_pytree(jax.tree.map(jnp.asarray, model.posterior.q))

    def body(at: _Inner) -> _Inner:
        q = unravel(at.here)
        bound, image = _full_step(with_q(model, q), data, tight)
        plain, _ = ravel_pytree(image)
        rose = bound >= at.bound - 0.1 * enough
        choose = lambda a, b: jax.tree.map(lambda x, y: jnp.where(rose, x, y), a, b)
        # The mean converges slowest, because its step neglects other latent functions or uses a majoriser; P follows.
        seen = at.memory.seen((image.mean - q.mean).ravel(), plain)
        best, memory = choose((at.here, seen), (at.best, at.memory.forget()))
        here, retreat = choose((memory.leap(), plain), (at.retreat, best + 0.25 * (at.retreat - best)))
        gains = choose(jnp.stack([bound - at.bound, at.gains[0]]), at.gains)
        bound, falls = choose((jnp.maximum(bound, at.bound), jnp.zeros_like(at.falls)), (at.bound, at.falls + 1))
        return _Inner(here, retreat, best, bound, gains, memory, falls, at.steps + 1)

    def going(at: _Inner) -> Array:
        return (at.gains[0] + 0.01 * at.gains[1] > enough) & (at.falls < FALLS) & (at.steps < steps)

    never, none = jnp.full(2, jnp.inf, first.dtype), jnp.zeros((), int)
    memory = Memory.start(jnp.ravel(model.posterior.q.mean), first, REMEMBERED)
    start = _Inner(first, first, first, -never[0], never, memory, none, none)
    return with_q(model, unravel(lax.while_loop(going, body, start).best))


def _full_step(model: Model, data: Dataset, tight: bool) -> tuple[Scalar, MeanPrecision]:
    """The bound, and q after a natural step of size 1 (`NaturalGradient`)."""
    q, hyper = model.posterior.q, trainable(model, lambda m: m.posterior.q)
    cov, half_logdet = invert(q.precision)
    value, (_, dm, dS), curvature = energy_slopes(hyper, q.mean, cov, data, len(data), tight)
    precision = next_precision(model.likelihood, q.precision, cov, -2 * dS, 1.0)
    step = solve_positive(curvature if majorises(model.likelihood) else precision, dm)
    return value + gaussian_entropy(half_logdet, q.mean.size), MeanPrecision(q.mean + step, precision)
