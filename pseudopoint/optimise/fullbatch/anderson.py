"""Anderson acceleration of a fixed-point iteration x ← g(x)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ...linalg import solve_positive


class Memory(NamedTuple):
    """The residual f and the image g(x) of the last x, and the last K changes of both; unused rows are zero."""

    residual: Float[Array, " r"]
    image: Float[Array, " n"]
    dF: Float[Array, "K r"]
    dG: Float[Array, "K n"]

    @staticmethod
    def start(residual: Float[Array, " r"], image: Float[Array, " n"], size: int) -> "Memory":
        """Room for K = `size` changes of vectors of these shapes."""
        zeros = lambda x: jnp.zeros((size, *x.shape), x.dtype)
        # There is no last x yet. NaN makes the first change one that is not finite, which `seen` leaves out.
        return Memory(jnp.full_like(residual, jnp.nan), jnp.full_like(image, jnp.nan), zeros(residual), zeros(image))

    def seen(self, residual: Float[Array, " r"], image: Float[Array, " n"]) -> "Memory":
        """The memory after one more x. The residual is g(x) − x, or the part of it that should vanish first."""
        known = jnp.all(jnp.isfinite(residual - self.residual))
        push = lambda changes, change: jnp.roll(changes, 1, axis=0).at[0].set(jnp.where(known, change, 0))
        dF, dG = push(self.dF, residual - self.residual), push(self.dG, image - self.image)
        return Memory(residual, image, dF, dG)

    def forget(self) -> "Memory":
        """The same x, without changes."""
        return self._replace(dF=jnp.zeros_like(self.dF), dG=jnp.zeros_like(self.dG))

    def leap(self) -> Float[Array, " n"]:
        """The accelerated x: g − cΔG, where c minimises ‖f − cΔF‖, the residual there if g were affine (Walker and Ni
        2011, section 2); g itself without changes. A ridge keeps c small where changes are nearly parallel.
        """
        H = self.dF @ self.dF.T
        scale = jnp.trace(H) * jnp.finfo(H.dtype).eps ** (2 / 3)
        ridge = jnp.where(scale > 0, scale, 1) * jnp.eye(len(H), dtype=H.dtype)
        return self.image - solve_positive(H + ridge, self.dF @ self.residual) @ self.dG
