"""The guard of a step: it rejects bad steps, shortens the next ones, and lets them grow back to full length."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ...linalg import Scalar

__all__ = ["Guard", "all_finite"]

# A gradient R times as long as the others stays in Adam's second moment, which has a memory of 1,000 steps: Adam then
# stalls for 2000 log(√0.001 R) steps. At R = 1e6 that is 20,000 steps, more than most fits have. R up to 60 was seen in
# good fits.
MAX_GROWTH = 1e6


class Guard(NamedTuple):
    """The number of steps so far; `scale` ≤ 1, which multiplies every step; and `norm`, the norm of the last gradient
    that went to an optimiser, 0 if there was none."""

    steps: Int[Array, ""]
    scale: Scalar
    norm: Scalar

    @staticmethod
    def start(dtype: Any) -> "Guard":
        """Before the first step: full steps."""
        return Guard(jnp.zeros((), int), jnp.ones((), dtype), jnp.zeros((), dtype))

    def is_plausible(self, norm: Any) -> Bool[Array, ""]:
        """Whether a gradient is at most `MAX_GROWTH` times as long as the last one.

        The last one counts even if its step was rejected: where the next batch confirms a jump, it is the model's
        gradient and has to be followed.
        """
        return (self.norm == 0) | (norm <= MAX_GROWTH * self.norm)

    def accept_or_revert(self, good: Bool[Array, ""], new: Any, old: Any, norm: Any = 0.0) -> tuple[Any, "Guard"]:
        """`new` if the step is good, and `old` otherwise, with the guard of the next step: a bad step halves `scale`, a
        good one lets it grow by a tenth, up to 1. `norm` is that of the gradient that went to an optimiser."""
        scale = jnp.where(good, jnp.minimum(1.0, 1.1 * self.scale), 0.5 * self.scale).astype(self.scale.dtype)
        norm = jnp.where(jnp.isfinite(norm), norm, self.norm).astype(self.norm.dtype)
        choose = lambda a, b: a if a is b else jnp.where(good, a, b)
        return jax.tree.map(choose, new, old), Guard(self.steps + 1, scale, norm)


def all_finite(tree: Any) -> Bool[Array, ""]:
    """Whether every number of a tree is finite. It tests one sum: a sum that overflows counts as not finite."""
    return jnp.isfinite(sum((jnp.sum(leaf) for leaf in jax.tree.leaves(tree)), jnp.zeros(())))
