"""The linear model of coregionalisation: several outputs as one function of (x, output)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ..params import Number, real
from .base import AbstractKernel, of_parts_times

__all__ = ["Coregionalised"]


class Coregionalised(AbstractKernel):
    """Cov(f_p(x), f_q(z)) = Σ_k W_pk W_qk κ_k(x, z) for P outputs f_p = Σ_k W_pk g_k of K independent latent functions
    g_k with covariances κ_k (Álvarez, Rosasco and Lawrence 2012, section 4.2).

    The last column of a row (x, p) says which function it is of: p = 0, …, P − 1 an output, p = P + k the latent
    function g_k. So pseudo-points may be of latent functions, whose covariance is block-diagonal, and rows that are not
    there are gaps. The column is rounded, and has no derivative. `mixed` says whether W, [P, K], is learned. A κ_k has
    a variance of its own, so that the scale of a column of W and that variance are one number twice.
    """

    kernels: tuple[AbstractKernel, ...]
    W: Float[Number, "P K"] = real("mixed")
    mixed: bool = eqx.field(static=True, default=True)

    def ard(self, D: int) -> AbstractKernel:
        """Of every part, for D columns, the last of which is the output's."""
        return Coregionalised(tuple(kernel.ard(D - 1) for kernel in self.kernels), self.W, self.mixed)

    times = of_parts_times

    def inner_columns(self, D: int) -> int:
        if D < 2:
            raise ValueError("Coregionalised needs inputs of at least two columns, the last of which is the output's")
        return D - 1

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[Σ_k w_ik w_jk κ_k(xᵢ, zⱼ)]."""
        of_X, of_Z = self._weights(X), self._weights(Z)
        parts = [kernel(X[:, :-1], Z[:, :-1]) for kernel in self.kernels]
        return sum((of_X[:, k, None] * K * of_Z[:, k] for k, K in enumerate(parts)), jnp.zeros_like(parts[0]))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Σ_k w_ik² κ_k(xᵢ, xᵢ)."""
        of_X, parts = self._weights(X), [kernel.diag(X[:, :-1]) for kernel in self.kernels]
        return sum((of_X[:, k] ** 2 * d for k, d in enumerate(parts)), jnp.zeros_like(parts[0]))

    def _weights(self, X: Float[Array, "N D"]) -> Float[Array, "N K"]:
        """The row of W of each output, that of the identity of each latent function; NaN for a column of NaN."""
        W = jnp.asarray(self.W, X.dtype)
        P, K = W.shape
        index = lax.stop_gradient(X[:, -1])
        which = jax.nn.one_hot(jnp.clip(jnp.round(index), 0, P + K - 1).astype(int), P + K, dtype=X.dtype)
        rows = which @ jnp.concatenate([W, np.eye(K, dtype=X.dtype)])
        return rows + jnp.where(jnp.isnan(index), jnp.nan, 0).astype(X.dtype)[:, None]
