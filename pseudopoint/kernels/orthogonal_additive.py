"""A sum of functions of one column each, of two columns each, and so on, none of which has a part of another."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ..params import Number, positive, real
from .base import AbstractKernel, Scale

__all__ = ["OrthogonalAdditive"]


class OrthogonalAdditive(AbstractKernel):
    """Σ_d a_d + w₂ Σ_{d<e} a_d a_e + w₃ Σ_{d<e<c} a_d a_e a_c + …, where a_d(x, z) = variance_d (κ(x_d, z_d) − g(x_d)
    g(z_d)) and κ(x, z) = exp(−½ (x − z)²/lengthscale²) (Lu, Boukouvalas and Hensman 2022; Durrande et al. 2013).

    f is a sum of one function of each column, one of each pair of columns, and so on up to 1 + P columns; `interaction`
    holds w₂, …, w_{P+1}. g(x) = E κ(x, s)/√(E κ(s, s′)) for s, s′ ~ N(mean, spread²) makes each of these functions
    have the mean 0 over any of its columns. So what a column does by itself is not in its pairs as well, and the
    variance of f over rows of that distribution is the sum of those of its parts. `mean` and `spread`, the distribution
    of each column, are not learned; the defaults are those of standardised columns.

    All sets of columns take the time and memory of a few matrices a column, as elementary symmetric polynomials
    (Duvenaud, Nickisch and Rasmussen 2011; methods n).
    """

    lengthscale: Scale = positive(default=1.0)
    variance: Scale = positive(default=1.0)
    interaction: Float[Number, ""] | Float[Number, " P"] = positive(default=1.0)
    mean: Scale = real("learned", default=0.0)
    spread: Scale = positive(default=1.0, learn="learned")
    learned: bool = eqx.field(static=True, default=False)

    def ard(self, D: int) -> AbstractKernel:
        wide = [np.broadcast_to(np.asarray(x), (D,)) for x in (self.lengthscale, self.variance)]
        return eqx.tree_at(lambda k: [k.lengthscale, k.variance], self, wide)

    def times(self, factor: float) -> AbstractKernel:
        """By c variance, and w_p/c^{p−1}, for a product of p parts has c^p."""
        orders = 1 + np.arange(np.size(self.interaction)).reshape(np.shape(self.interaction))
        numbers = [factor * self.variance, self.interaction / np.asarray(factor, float) ** orders]
        return eqx.tree_at(lambda k: [k.variance, k.interaction], self, numbers)

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)]; memory O(P N M), also for the derivative."""
        (x, g), (z, h) = self._seen(X), self._seen(Z)
        variance = jnp.broadcast_to(self.variance, X.shape[1:])
        return _sum_of_orders(x, z, g, h, variance, self._weights(X.dtype))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """The same sum of a_d(x, x) = variance_d (1 − g(x_d)²)."""
        _, g = self._seen(X)
        return self._weights(X.dtype) @ _orders((self.variance * (1 - g**2)).T, np.size(self.interaction) + 1)

    def _weights(self, dtype):
        return jnp.concatenate([jnp.ones(1, dtype), jnp.atleast_1d(self.interaction).astype(dtype)])

    def _seen(self, X):
        """x/ℓ and g(x) = √(ℓ b)/a · exp(−½ (x − mean)²/a²), a² = ℓ² + s², b² = ℓ² + 2s², with the spread s."""
        a, b = (jnp.sqrt(self.lengthscale**2 + times * self.spread**2) for times in (1, 2))
        size, centred = jnp.sqrt(self.lengthscale / a) * jnp.sqrt(b / a), X - self.mean
        return centred / self.lengthscale, size * jnp.exp(-0.5 * (centred / a) ** 2)


def _orders(parts, count: int):
    """e₁, …, e_count of parts [D, …]: the sums of their products of one, of two, and so on."""

    def add(e, a):
        before = jnp.concatenate([jnp.ones_like(a)[None], e[:-1]])
        return e + a * before, None

    return lax.scan(add, jnp.zeros((count, *parts.shape[1:]), parts.dtype), parts)[0]


@jax.custom_vjp
def _sum_of_orders(
    X: Float[Array, "N D"],
    Z: Float[Array, "M D"],
    g: Float[Array, "N D"],
    h: Float[Array, "M D"],
    variance: Float[Array, " D"],
    weights: Float[Array, " P"],
) -> Float[Array, "N M"]:
    """Σ_o w_o e_o of a_d = v_d (exp(−½ (x_d − z_d)²) − g_d h_d)."""
    return _forward(X, Z, g, h, variance, weights)[0]  # pyright: ignore[reportReturnType]


def _part(x, z, g, h):
    """exp(−½δ²) and what it is without g h, with δ = x − z, of one column."""
    correlation = jnp.exp(-0.5 * (x[:, None] - z) ** 2)
    return correlation, correlation - g[:, None] * h


def _forward(X, Z, g, h, variance, weights):
    def add(e, column):
        *rows, v = column
        a = v * _part(*rows)[1]
        return tuple(total + a * before for total, before in zip(e, (1.0, *e[:-1]), strict=True)), None

    zeros = (jnp.zeros((X.shape[0], Z.shape[0]), X.dtype),) * len(weights)
    e, _ = lax.scan(add, zeros, (X.T, Z.T, g.T, h.T, variance))
    total = sum(w * each for w, each in zip(weights, e, strict=True))
    return total, (X, Z, g, h, variance, weights, e)


def _backward(given, G):
    """Of Σᵢⱼ GᵢⱼKᵢⱼ. The slope of e_o in a_d is e_{o−1} of the other columns, e_{o−1} − a_d (e_{o−2} of the others)."""
    *columns, weights, e = given

    def slopes(_, column):
        x, z, g, h, v = column
        correlation, part = _part(x, z, g, h)
        others, slope = 1.0, weights[0]
        for w, each in zip(weights[1:], e, strict=False):
            others = each - v * part * others
            slope = slope + w * others
        H = G * slope
        moved = v * H * correlation * (x[:, None] - z)
        of_g, of_h = -v * (H @ h), -v * (g @ H)
        return None, (-jnp.sum(moved, axis=1), jnp.sum(moved, axis=0), of_g, of_h, jnp.sum(H * part))

    of_rows = lax.scan(slopes, None, tuple(x.T for x in columns))[1]
    return *(x.T for x in of_rows), jnp.stack([jnp.sum(G * each) for each in e])


_sum_of_orders.defvjp(_forward, _backward)
