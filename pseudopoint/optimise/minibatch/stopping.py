"""When a minibatch fit ends: its bound has flattened, and then the rate of Adam falls to zero."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from ..transformation import GradientTransformation

__all__ = ["adam_until_flat", "begin_fall", "count_all", "end_of_fall", "fall", "is_flat"]

GAIN = 0.002  # nats a row in 100 steps: a bound that rises by less is flat
WINDOWS, FEWEST = 4, 3  # two windows of a quarter of the segments each are compared, of 3 segments or more
SHARE, SHORTEST = 0.5, 100  # steps with a falling rate, as a share of those before, and at least
NEVER = np.iinfo(np.int32).max


class Fall(NamedTuple):
    """The number of steps so far, the step at which the rate begins to fall, and the steps that it takes to reach
    zero. All three are numbers of the state, so that no program is compiled again when the fall begins.

    A rejected step is taken back with its count; `count_all` counts it in the end of its segment.
    """

    made: Int[Array, ""]
    begin: Int[Array, ""]
    length: Int[Array, ""]


@lru_cache(maxsize=64)
def adam_until_flat(rate: float) -> GradientTransformation:
    """Adam at a constant rate until `begin_fall`, from where the rate falls to 0 along a cosine.

    The same object for the same rate: JAX compiles a step again for another optimiser, which is a new function.
    """
    import optax

    def init(params: Any) -> Any:
        return Fall(*(jnp.asarray(n, jnp.int32) for n in (0, NEVER, 1)))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        share = jnp.clip((state.made - state.begin) / state.length, 0, 1)
        now = -rate * 0.5 * (1 + jnp.cos(jnp.pi * share))
        return jax.tree.map(lambda x: x * now.astype(x.dtype), updates), state._replace(made=state.made + 1)

    return optax.chain(optax.scale_by_adam(), optax.GradientTransformation(init, update))


def is_flat(bounds: Sequence[float] | np.ndarray, segment: int, rows: float) -> bool:
    """Whether the mean bounds of equal segments of steps rise by less than 0.002 nats a row in 100 steps.

    The mean of the last quarter of the segments is compared with that of the quarter before. The standard error of
    their difference, from the spread within both, is added twice: where batches differ much, more steps have to show
    that the bound is flat.
    """
    w = max(FEWEST, len(bounds) // WINDOWS)
    if len(bounds) < 2 * w:
        return False
    before, last = np.reshape(np.asarray(bounds, float)[-2 * w :], (2, w))
    error = np.sqrt((before.var(ddof=1) + last.var(ddof=1)) / w)
    return bool(last.mean() - before.mean() + 2 * error < GAIN * rows * w * segment / 100)


def fall(step: int, segment: int, last: int) -> int:
    """How many steps the fall of the rate takes from `step` on: whole segments, about half as many steps as were made,
    and no more than there are until `last`."""
    length = max(SHORTEST, int(SHARE * step))
    return min(segment * -(-length // segment), last - step)


def count_all(state: Any, steps: int) -> Any:
    """The state of a `VariationalStep` by `adam_until_flat` after so many steps, rejected ones among them."""
    at = lambda state: state.optimiser[-1].made
    return eqx.tree_at(at, state, jnp.asarray(steps, jnp.int32))


def begin_fall(state: Any, begin: int, length: int) -> Any:
    """The state of a `VariationalStep` whose rate, by `adam_until_flat`, falls to zero within `length` steps from
    `begin` on."""
    at = lambda state: state.optimiser[-1]
    whole = lambda n: jnp.asarray(n, jnp.int32)
    return eqx.tree_at(at, state, at(state)._replace(begin=whole(begin), length=whole(length)))


def end_of_fall(state: Any) -> int | None:
    """The step at which the rate of that state reaches zero; None before the fall has begun."""
    falling = state.optimiser[-1]
    return None if int(falling.begin) == NEVER else int(falling.begin + falling.length)
