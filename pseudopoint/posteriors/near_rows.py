"""What the training rows nearest to a new row tell of it, beyond what pseudo-points can hold."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from ..kernels import AbstractStationary
from ..params import Number

__all__ = ["NearRows"]

Moments = tuple[Float[Array, " B"], Float[Array, " B"]]


class NearRows(eqx.Module):
    """z(x) = h(x) + ε with h ~ GP(0, k) and εᵢ ~ N(0, noise/weightᵢ), given the `count` rows of X nearest to x.

    zᵢ is the normal score of a target yᵢ, by which its prediction was off: Φ⁻¹(P(Y ≤ yᵢ | xᵢ)) (methods o). Distances
    are those of k. Rows of weight 0 are never near: they pad X to a size that many tables share. Nearest rows in place
    of all are the approximation of Vecchia (1988) for a new row.
    """

    kernel: AbstractStationary
    noise: Float[Number, ""]
    X: Float[Number, "N D"]
    z: Float[Number, " N"]
    y: Float[Number, " N"]
    weight: Float[Number, " N"]
    count: int = eqx.field(static=True)

    def __call__(self, X: Float[Number, "B D"]) -> Moments:
        """Mean and variance of h at the rows of X."""
        return self.given(X, self.nearest(X))

    def nearest(self, X: Float[Number, "B D"], but: Int[Number, " B"] | None = None) -> Int[Array, "B m"]:
        """The numbers of the `count` nearest rows, for each row of X; with `but` without the row of that number."""
        A, B = (self.kernel.placed(jnp.asarray(rows)) for rows in (X, self.X))
        squared = jnp.sum(A**2, axis=1)[:, None] - 2 * A @ B.T + jnp.sum(B**2, axis=1)
        squared = jnp.where(jnp.asarray(self.weight) > 0, squared, jnp.inf)
        if but is not None:
            squared = squared.at[jnp.arange(len(X)), but].set(jnp.inf)
        # XLA has a fast selection for float32 alone. An error of 1e-7 of the distance exchanges equally near rows.
        return lax.top_k(-squared.astype(jnp.float32), self.count)[1]

    def given(self, X: Float[Number, "B D"], rows: Int[Number, "B m"]) -> Moments:
        """Mean and variance of h given these rows: with C = k(J, J) + noise/weight, a = C⁻¹k(J, x) and b = C⁻¹z_J,
            E h = k(x, J) b,    V h = k(x, x) − k(x, J) a.

        a and b are constants of the gradient, which is that of
            k(x, J) b + aᵀz − aᵀC b    and    k(x, x) − 2k(x, J) a + aᵀC a:
        the same values, stationary in a and b, so that no derivative of a factor is needed.
        """
        X, of_rows = jnp.asarray(X), [jnp.asarray(each)[rows] for each in (self.X, self.z, self.weight)]
        return jax.vmap(self._given)(X, *of_rows)

    def _given(self, x, X, z, weight):
        # Differences to x: nothing cancels where a lengthscale is far below the distance of the rows from the middle.
        near, origin = X - x, jnp.zeros_like(x)[None]
        C, k = self.kernel(near, near) + jnp.diag(self.noise / weight), self.kernel(near, origin)[:, 0]
        L = jnp.linalg.cholesky(lax.stop_gradient(C))
        right = lax.stop_gradient(jnp.stack([k, z], axis=1))
        a, b = jax.scipy.linalg.cho_solve((L, True), right).T
        prior = self.kernel.diag(origin)[0]
        mean, variance = k @ b + a @ z - a @ C @ b, prior - 2 * k @ a + a @ C @ a
        return mean, jnp.maximum(variance, jnp.finfo(prior.dtype).eps * prior)
