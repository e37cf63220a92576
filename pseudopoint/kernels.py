"""Covariance functions, whole matrices at a time.

A kernel is a formula: `kernel(X, Z)` is the matrix [k(xᵢ, zⱼ)], `kernel.diag(X)` its diagonal at Z = X. Stationary
kernels are one profile κ(r²) of the scaled squared distance r² = Σ_d (x_d − z_d)²/ℓ_d², computed by one matrix
product; profiles are differentiated with respect to r², where none but Matérn-1/2 has a singularity at zero distance.
Kernels are added and multiplied with + and *, and `kernel.on(0, 2)` acts on input columns 0 and 2 alone.
"""

from abc import abstractmethod
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .params import Number, positive

__all__ = [
    "RBF",
    "AbstractKernel",
    "AbstractStationary",
    "Constant",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "On",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Sum",
    "White",
]

Scale = Float[Number, ""] | Float[Number, " D"]
Positive = Float[Number, ""]


class AbstractKernel(eqx.Module):
    """k(x, z) for all pairs of rows."""

    @abstractmethod
    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)], shape [N, M]."""

    @abstractmethod
    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """[k(xᵢ, xᵢ)], shape [N]."""

    def __add__(self, other: "AbstractKernel") -> "Sum":
        return Sum((self, other))

    def __mul__(self, other: "AbstractKernel") -> "Product":
        return Product((self, other))

    def on(self, *columns: int) -> "On":
        """The same kernel, seeing only the given input columns."""
        return On(self, columns)


def squared_distance(X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
    """‖xᵢ − zⱼ‖² = (xᵢ, ‖xᵢ‖², 1) · (−2zⱼ, 1, ‖zⱼ‖²), one matrix product, about the centre of Z.

    Its derivatives are two such products, and no other pass over N × M numbers. Distances below the rounding error of
    that sum are zero: a row's distance to itself is exactly 0.
    """
    centre = lax.stop_gradient(jnp.sum(Z, axis=0) / max(len(Z), 1))
    X, Z = X - centre, Z - centre
    xx, zz = jnp.sum(X**2, axis=1), jnp.sum(Z**2, axis=1)
    left = jnp.column_stack([X, xx, jnp.ones_like(xx)])
    right = jnp.column_stack([-2 * Z, jnp.ones_like(zz), zz])
    return _above_rounding(left @ right.T, xx, zz, (8 + X.shape[1] ** 0.5) * float(jnp.finfo(X.dtype).eps))


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def _above_rounding(r2, xx, zz, epsilon):
    return jnp.where(r2 < epsilon * (xx[:, None] + zz), 0.0, r2)


@_above_rounding.defjvp
def _above_rounding_jvp(epsilon, primals, tangents):
    # Where r² is cut, x = z but for rounding, and so ∂r² = 2(x − z)ᵀ∂(x − z) is 0 but for rounding.
    return _above_rounding(*primals, epsilon), tangents[0]


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


class AbstractStationary(AbstractKernel):
    """k(x, z) = variance · κ(r²)."""

    lengthscale: eqx.AbstractVar[Scale]
    variance: eqx.AbstractVar[Positive]

    @abstractmethod
    def profile(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """κ(r²), with κ(0) = 1."""

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)]."""
        return self.variance * self.profile(squared_distance(X / self.lengthscale, Z / self.lengthscale))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """variance · 1."""
        return self.variance * jnp.ones_like(X[:, 0])


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


class Periodic(AbstractKernel):
    """variance · exp(−2 Σ_d sin²(π(x_d − z_d)/p_d)/ℓ_d²) (MacKay).

    With φ(x) = (cos 2πx/p, sin 2πx/p)/ℓ we have ‖φ(x) − φ(z)‖² = 4 Σ sin²(π(x − z)/p)/ℓ², a squared exponential of φ.
    """

    lengthscale: Scale = positive(default=1.0)
    variance: Positive = positive(default=1.0)
    period: Scale = positive(default=1.0)

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)]."""
        return self.variance * _rbf(squared_distance(self._circle(X), self._circle(Z)))

    def _circle(self, X):
        angle = (2 * jnp.pi) * X / self.period
        return jnp.concatenate([jnp.cos(angle) / self.lengthscale, jnp.sin(angle) / self.lengthscale], axis=1)

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """variance · 1."""
        return self.variance * jnp.ones_like(X[:, 0])


class Linear(AbstractKernel):
    """Σ_d variance_d x_d z_d. `variance` is a scalar or one per column."""

    variance: Scale = positive(default=1.0)

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)]."""
        return (X * self.variance) @ Z.T

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Σ_d variance_d x_d²."""
        return jnp.sum(self.variance * X**2, axis=1)


class Constant(AbstractKernel):
    """The same covariance for every pair: an unknown constant of that prior variance."""

    variance: Positive = positive(default=1.0)

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)]."""
        return jnp.broadcast_to(jnp.asarray(self.variance, X.dtype), (X.shape[0], Z.shape[0]))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """variance · 1."""
        return self.variance * jnp.ones_like(X[:, 0])


class White(AbstractKernel):
    """variance · 1[x = z]: independent noise that belongs to the function, not to the observation."""

    variance: Positive = positive(default=1.0)

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)]."""
        return self.variance * jnp.all(X[:, None, :] == Z[None, :, :], axis=-1).astype(X.dtype)

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """variance · 1."""
        return self.variance * jnp.ones_like(X[:, 0])


class Sum(AbstractKernel):
    """Σ k."""

    kernels: tuple[AbstractKernel, ...]

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)]."""
        return sum((k(X, Z) for k in self.kernels[1:]), self.kernels[0](X, Z))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Σ k(x, x)."""
        return sum((k.diag(X) for k in self.kernels[1:]), self.kernels[0].diag(X))


class Product(AbstractKernel):
    """Π k."""

    kernels: tuple[AbstractKernel, ...]

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)]."""
        return _product([k(X, Z) for k in self.kernels])

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Π k(x, x)."""
        return _product([k.diag(X) for k in self.kernels])


def _product(factors):
    out = factors[0]
    for factor in factors[1:]:
        out = out * factor
    return out


class On(AbstractKernel):
    """`kernel` on the given input columns (active dimensions)."""

    kernel: AbstractKernel
    columns: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)] of the chosen columns."""
        return self.kernel(self._chosen(X), self._chosen(Z))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """k(x, x) of the chosen columns."""
        return self.kernel.diag(self._chosen(X))

    def _chosen(self, X):
        D = X.shape[1]
        if any(not -D <= column < D for column in self.columns):
            raise IndexError(f"kernel on columns {self.columns}, but the inputs have {D}")
        return X[:, self.columns]
