"""Kernels of the distance between two rows, and of the distance on a circle."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ..params import positive
from .base import AbstractKernel, Positive, Scale, with_variance
from .distance import Anchored, anchored, squared_distance_from

__all__ = [
    "AbstractOfDistance",
    "AbstractStationary",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "RBF",
    "RationalQuadratic",
]


def _profile(value, slope):
    """κ(r²) with its derivative κ′ = slope(r², κ) given in closed form, so that no square root is differentiated at
    zero and no exponential is computed twice.
    """
    kappa = jax.custom_jvp(value)

    @kappa.defjvp
    def _(primals, tangents):
        out = kappa(*primals)
        return out, slope(*primals, out) * tangents[0]

    return kappa


_rbf = _profile(lambda r2: jnp.exp(-0.5 * r2), lambda r2, kappa: -0.5 * kappa)
_matern12 = _profile(
    lambda r2: jnp.exp(-jnp.sqrt(r2)),
    # κ′ = −e^{−r}/(2r) has no limit at r = 0, where the kernel has no derivative: 0 is the symmetric choice.
    lambda r2, kappa: jnp.where(r2 > 0, -0.5 * kappa / jnp.sqrt(jnp.where(r2 > 0, r2, 1.0)), 0.0),
)
# s = √3 r : κ = (1 + s)e⁻ˢ, κ′ = −(3/2)e⁻ˢ
_matern32 = _profile(
    lambda r2: (1 + jnp.sqrt(3 * r2)) * jnp.exp(-jnp.sqrt(3 * r2)),
    lambda r2, kappa: -1.5 * kappa / (1 + jnp.sqrt(3 * r2)),
)
# s = √5 r : κ = (1 + s + s²/3)e⁻ˢ, κ′ = −(5/6)(1 + s)e⁻ˢ       (Kobe 2.4 with ν = 5/2, an erratum in the thesis)
_matern52 = _profile(
    lambda r2: (1 + jnp.sqrt(5 * r2) + (5 / 3) * r2) * jnp.exp(-jnp.sqrt(5 * r2)),
    lambda r2, kappa: (-5 / 6) * kappa * (1 + jnp.sqrt(5 * r2)) / (1 + jnp.sqrt(5 * r2) + (5 / 3) * r2),
)


class AbstractOfDistance(AbstractKernel):
    """k(x, z) = variance · κ(r²), r the distance of both rows where `placed` has them."""

    lengthscale: eqx.AbstractVar[Scale]
    variance: eqx.AbstractVar[Positive]
    times = with_variance

    def ard(self, D: int) -> AbstractKernel:
        return eqx.tree_at(lambda k: k.lengthscale, self, np.broadcast_to(np.asarray(self.lengthscale), (D,)))

    @abstractmethod
    def placed(self, X: Float[Array, "N D"]) -> Float[Array, "N K"]:
        """Where the rows are."""

    @abstractmethod
    def profile(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """κ(r²), with κ(0) = 1."""

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        return self.from_prepared(self.prepare(X), Z)

    def prepare(self, Z: Float[Array, "M D"]) -> Anchored:
        return anchored(self.placed(Z))

    def from_prepared(self, prepared: Anchored, X: Float[Array, "N D"]) -> Float[Array, "M N"]:
        return self.variance * self.profile(squared_distance_from(prepared, self.placed(X)))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """variance · 1."""
        return self.variance * jnp.ones_like(X[:, 0])


class AbstractStationary(AbstractOfDistance):
    """k(x, z) = variance · κ(r²), r² = Σ_d (x_d − z_d)²/lengthscale_d²."""

    def placed(self, X: Float[Array, "N D"]) -> Float[Array, "N K"]:
        return X / self.lengthscale


class RBF(AbstractStationary):
    """Squared exponential, variance · exp(−r²/2) (Kobe 2.3). `lengthscale` is a scalar or one per column (ARD)."""

    lengthscale: Scale = positive(default=1.0)
    variance: Positive = positive(default=1.0)

    def profile(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """exp(−r²/2)."""
        return _rbf(r2)


class Matern12(AbstractStationary):
    """variance · exp(−r), the Ornstein–Uhlenbeck kernel."""

    lengthscale: Scale = positive(default=1.0)
    variance: Positive = positive(default=1.0)

    def profile(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """exp(−r)."""
        return _matern12(r2)


class Matern32(AbstractStationary):
    """variance · (1 + √3 r) exp(−√3 r)."""

    lengthscale: Scale = positive(default=1.0)
    variance: Positive = positive(default=1.0)

    def profile(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """(1 + √3 r) exp(−√3 r)."""
        return _matern32(r2)


class Matern52(AbstractStationary):
    """variance · (1 + √5 r + 5r²/3) exp(−√5 r) (Kobe 2.4)."""

    lengthscale: Scale = positive(default=1.0)
    variance: Positive = positive(default=1.0)

    def profile(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """(1 + √5 r + 5r²/3) exp(−√5 r)."""
        return _matern52(r2)


class RationalQuadratic(AbstractStationary):
    """variance · (1 + r²/(2α))^(−α): a mixture of squared exponentials of many lengthscales."""

    lengthscale: Scale = positive(default=1.0)
    variance: Positive = positive(default=1.0)
    alpha: Positive = positive(default=1.0)

    def profile(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """(1 + r²/(2α))^(−α)."""
        return jnp.exp(-self.alpha * jnp.log1p(r2 / (2 * self.alpha)))


class Periodic(AbstractOfDistance):
    """variance · exp(−2 Σ_d sin²(π(x_d − z_d)/p_d)/ℓ_d²) (MacKay).

    With φ(x) = (cos 2πx/p, sin 2πx/p)/ℓ we have ‖φ(x) − φ(z)‖² = 4 Σ sin²(π(x − z)/p)/ℓ², a squared exponential of φ.
    """

    lengthscale: Scale = positive(default=1.0)
    variance: Positive = positive(default=1.0)
    period: Scale = positive(default=1.0)

    def placed(self, X: Float[Array, "N D"]) -> Float[Array, "N K"]:
        period = jnp.broadcast_to(self.period, X.shape).astype(X.dtype)
        angle = (2 * jnp.pi) * (lax.rem(X, period) / period)  # the remainder is exact: far from 0 no digit is lost
        return jnp.concatenate([jnp.cos(angle) / self.lengthscale, jnp.sin(angle) / self.lengthscale], axis=1)

    def profile(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """exp(−r²/2)."""
        return _rbf(r2)
