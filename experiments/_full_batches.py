"""Steps on all rows, and the bound of all rows."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pseudopoint.bounds import elbo
from pseudopoint.data import Dataset, chunked
from pseudopoint.optimise.minibatch import AbstractStepper
from pseudopoint.posteriors import Model


class Course(NamedTuple):
    """The bound before each of T steps and after the last [T + 1], what was looked at there, the last model, and how
    many steps were rejected."""

    bound: np.ndarray
    seen: Any
    model: Model
    rejected: int


def course(
    stepper: AbstractStepper, model: Model, data: Dataset, steps: int, look: Callable[[Model], Any] = lambda model: ()
) -> Course:
    """So many steps; `look` is a function of the model."""
    (bound, seen), model, rejected = _course(stepper, model, data, steps, look)
    return Course(np.asarray(bound), jax.tree.map(np.asarray, seen), model, int(rejected))


@eqx.filter_jit
def _course(stepper, model, data, steps: int, look):
    def body(carry, _):
        model, state, info = stepper.step(*carry, data, len(data))
        return (model, state), ((info.bound, look(carry[0])), info.rejected)

    (model, _), (before, rejected) = lax.scan(body, (model, stepper.init(model, len(data))), None, steps)
    after = elbo(model, data, len(data)).standard, look(model)
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), before, after), model, rejected.sum()


@partial(jax.jit, static_argnames="size")
def whole_bound(model: Model, data: Dataset, size: int) -> jax.Array:
    """The standard bound of all rows, as the mean of chunks' estimates: rows that fill up the last weigh nothing."""
    chunks = chunked(data, size)
    N = chunks.y.size
    return jnp.mean(lax.map(lambda rows: elbo(model, rows, N).standard, chunks))
