"""Kernels for special tables: polynomials, waves, neural networks of infinite width, codes, and changes at a point."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ..params import Number, positive, real
from .base import AbstractKernel, Positive, Scale, of_parts_times, refuse_missing, with_variance
from .distance import squared_distance

__all__ = ["ArcCosine", "Changepoint", "Coregion", "Cosine", "Hamming", "Polynomial", "SpectralMixture"]


class Polynomial(AbstractKernel):
    """(Σ_d variance_d x_d z_d + offset)^degree: polynomials of the columns up to a degree (Rasmussen and Williams 2006,
    4.2.2)."""

    variance: Scale = positive(default=1.0)
    offset: Positive = positive(default=1.0)
    degree: int = eqx.field(static=True, default=2)

    def __check_init__(self):
        if not (isinstance(self.degree, int) and self.degree > 0):
            raise ValueError(f"degree={self.degree!r} must be a positive whole number")

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        return ((X * self.variance) @ Z.T + self.offset) ** self.degree

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """(Σ_d variance_d x_d² + offset)^degree."""
        return (jnp.sum(self.variance * X**2, axis=1) + self.offset) ** self.degree


class Cosine(AbstractKernel):
    """variance · cos(2π Σ_d (x_d − z_d)/period_d): one wave along one direction.

    RBF(ℓ) * Cosine(p) is one component of a spectral mixture, whose density of frequencies is normal around 1/p with
    standard deviation 1/(2πℓ); a sum of several is the kernel of Wilson and Adams 2013 (12).
    """

    period: Scale = positive(default=1.0)
    variance: Positive = positive(default=1.0)
    times = with_variance

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)], as cos u cos w + sin u sin w of the angles of both rows."""
        u, w = self._angle(X)[:, None], self._angle(Z)
        return self.variance * (jnp.cos(u) * jnp.cos(w) + jnp.sin(u) * jnp.sin(w))

    def _angle(self, X):
        period = jnp.broadcast_to(self.period, X.shape).astype(X.dtype)
        return 2 * jnp.pi * jnp.sum(lax.rem(X, period) / period, axis=1)  # the remainder is exact

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """variance · 1."""
        return self.variance * jnp.ones_like(X[:, 0])


class SpectralMixture(AbstractKernel):
    """Σ_q variance_q exp(−2π² Σ_d (bandwidth_qd τ_d)²) cos(2π Σ_d frequency_qd τ_d), τ = x − z: a stationary kernel
    whose density of frequencies is a mixture of Q normals, in cycles per unit of a column (Wilson and Adams 2013, 12).

    With enough components it comes close to any stationary kernel. The evidence has many maxima, so the frequencies at
    the start decide which patterns are found.
    """

    variance: Float[Number, " Q"] = positive()
    frequency: Float[Number, "Q D"] = real()
    bandwidth: Float[Number, "Q D"] = positive()
    times = with_variance

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)], as products of one squared exponential and one wave for each component."""
        parts = zip(self.variance, self.frequency, self.bandwidth, strict=True)
        return sum(v * _normal_wave(X, Z, f, 2 * jnp.pi * b) for v, f, b in parts)  # pyright: ignore[reportReturnType]

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Σ_q variance_q; NaN in other fields is not hidden."""
        other = jnp.sum(self.frequency) + jnp.sum(self.bandwidth)
        return (jnp.sum(self.variance) + 0 * other) * jnp.ones_like(X[:, 0])


def _normal_wave(X, Z, frequency, inverse):
    """exp(−½ ‖inverse ∘ τ‖²) cos(2π frequency · τ)."""
    u, w = 2 * jnp.pi * (X @ frequency)[:, None], 2 * jnp.pi * (Z @ frequency)
    wave = jnp.cos(u) * jnp.cos(w) + jnp.sin(u) * jnp.sin(w)
    return jnp.exp(-0.5 * squared_distance(X * inverse, Z * inverse)) * wave


class ArcCosine(AbstractKernel):
    """‖x‖‖z‖ (sin θ + (π − θ) cos θ)/π with x·z = Σ_d variance_d x_d z_d + offset and cos θ = x·z/(‖x‖‖z‖): a layer of
    infinitely many rectified linear units (Cho and Saul 2009, order 1)."""

    variance: Scale = positive(default=1.0)
    offset: Positive = positive(default=1.0)

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        norms = jnp.sqrt(self.diag(X))[:, None] * jnp.sqrt(self.diag(Z))
        return norms * _angular(((X * self.variance) @ Z.T + self.offset) / norms)

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """‖x‖²."""
        return jnp.sum(self.variance * X**2, axis=1) + self.offset


@jax.custom_jvp
def _angular(cosine):
    """(sin θ + (π − θ) cos θ)/π, whose derivative in cos θ is 1 − θ/π, finite at θ = 0 too."""
    c = jnp.clip(cosine, -1, 1)
    return (jnp.sqrt((1 - c) * (1 + c)) + (jnp.pi - jnp.arccos(c)) * c) / jnp.pi


@_angular.defjvp
def _(primals, tangents):
    (cosine,), (tangent,) = primals, tangents
    return _angular(cosine), (1 - jnp.arccos(jnp.clip(cosine, -1, 1)) / jnp.pi) * tangent


class Hamming(AbstractKernel):
    """variance · exp(−Σ_d 1[x_d ≠ z_d]/lengthscale_d): codes and categories, whose order means nothing.

    Rows that differ in columns of small lengthscales have nothing to do with each other. Pseudo-points start at rows,
    and have no derivative in columns of codes alone: there they stay.
    """

    lengthscale: Scale = positive(default=1.0)
    variance: Positive = positive(default=1.0)
    times = with_variance
    equality: ClassVar[bool] = True

    def ard(self, D: int) -> AbstractKernel:
        return eqx.tree_at(lambda k: k.lengthscale, self, np.broadcast_to(np.asarray(self.lengthscale), (D,)))

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        differ = (X[:, None, :] != Z[None, :, :]).astype(X.dtype)
        return self.variance * jnp.exp(-jnp.sum(differ / self.lengthscale, axis=-1))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """variance · 1; NaN lengthscales are not hidden."""
        return self.variance * jnp.exp(-jnp.sum(jnp.zeros_like(X) / self.lengthscale, axis=-1))


class Coregion(AbstractKernel):
    """B[c(x), c(z)] with B = factor factorᵀ + diag(own): a free covariance of C categories, whose codes 0, …, C − 1 are
    in one column (the intrinsic model of coregionalisation; Álvarez, Rosasco and Lawrence 2012).

    `Matern52(1.0).on(0) * Coregion(factor, own, column=1)` is one function of column 0 for each category, as alike as B
    says. `factor` is [C, R]: of rank R. A number between codes counts as the nearest one, one beyond as the last.
    """

    factor: Float[Number, "C R"] = real()
    own: Float[Number, " C"] = positive()
    column: int = eqx.field(static=True, default=0)

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        x, z = self._indicators(X), self._indicators(Z)
        return (x @ self.factor) @ (z @ self.factor).T + (x * self.own) @ z.T

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """B[c(x), c(x)]."""
        return self._indicators(X) @ (jnp.sum(self.factor**2, axis=1) + self.own)

    def _indicators(self, X):
        """1 where a row is of a category, [N, C]."""
        refuse_missing((self.column,), X.shape[1])
        C = self.own.shape[0]
        code = jnp.clip(jnp.floor(lax.stop_gradient(X[:, self.column]) + 0.5), 0, C - 1)
        same = (code[:, None] == jnp.arange(C, dtype=X.dtype)).astype(X.dtype)
        return same + 0 * code[:, None]  # NaN is not hidden


class Changepoint(AbstractKernel):
    """(1 − s(x)) k₁(x, z) (1 − s(z)) + s(x) k₂(x, z) s(z), s(x) = 1/(1 + exp(−(x_d − location)/width)): one function
    before a place in column d, another after it (Lloyd et al. 2014)."""

    precedence: ClassVar[int] = 2

    kernels: tuple[AbstractKernel, AbstractKernel]
    location: Float[Number, ""] = real(default=0.0)
    width: Positive = positive(default=1.0)
    column: int = eqx.field(static=True, default=0)

    def ard(self, D: int) -> AbstractKernel:
        before, after = self.kernels
        return Changepoint((before.ard(D), after.ard(D)), self.location, self.width, self.column)

    times = of_parts_times

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        parts = zip(self._shares(X), self._shares(Z), self.kernels, strict=True)
        return sum(s[:, None] * kernel(X, Z) * t for s, t, kernel in parts)  # pyright: ignore[reportReturnType]

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        parts = zip(self._shares(X), self.kernels, strict=True)
        return sum(s**2 * kernel.diag(X) for s, kernel in parts)  # pyright: ignore[reportReturnType]

    def _shares(self, X):
        """1 − s and s."""
        refuse_missing((self.column,), X.shape[1])
        at = (X[:, self.column] - self.location) / self.width
        return jax.nn.sigmoid(-at), jax.nn.sigmoid(at)
