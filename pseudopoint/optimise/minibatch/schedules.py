"""Step sizes: functions of the number of steps made so far, t = 0, 1, …; any optax schedule is one too."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Int

__all__ = ["FULL", "Schedule", "averaging", "constant", "log_linear"]

Schedule = Callable[[Int[Array, ""]], Any]  # a function, or a Partial, whose numbers a compiled step takes as arguments


def constant(gamma: float) -> Schedule:
    """γ_t = γ."""
    return lambda t: gamma


FULL = constant(1.0)  # one object, for JAX compares functions by identity


def log_linear(first: float, last: float, steps: int) -> Schedule:
    """log γ_t rises linearly from log `first` to log `last` over `steps` steps, then stays (Salimbeni et al. 2018,
    5.2)."""
    return lambda t: first * (last / first) ** jnp.minimum(t / steps, 1.0)


def averaging(num_data: int, batch_size: int, speed: float = 1.0, most: float = 1.0, seen: float = 1.0) -> Schedule:
    """γ_t = max(1/(t + seen), min(speed · B/N, most)): at first the mean of all batches seen, then of about N/speed
    rows and no fewer than 1/most batches (methods d.4). The q before the first step counts as `seen` − 1 batches.

    A first step of 1 is safe for log-concave likelihoods, and makes the first epoch exact for a dense q under a
    Gaussian one. For others it forgets a q that was learned, and what the next batches say is computed at a q that
    knows one. Steps that stay near 1 let q follow every batch, and the hyperparameters then take its noise for the
    truth.
    """
    return Partial(_averaging, np.asarray(min(speed * batch_size / num_data, most)), np.asarray(float(seen)))


def _averaging(last, seen, t):
    return jnp.maximum(1 / (t + seen), last)
