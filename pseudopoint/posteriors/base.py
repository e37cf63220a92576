"""The contract of posterior families, and `Predictor`, which predicts for all of them.

A family holds pseudo-points and a distribution q of the function's values there. Under a kernel its points span an
`AbstractBasis`, in which q has no part; q and a basis make an `AbstractProjection`, q(f) at any rows, which is all that
bounds and predictions need.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..kernels import AbstractKernel
from ..linalg import Factor, Scalar, default_jitter, dots, eigh, factorise
from ..params import Number

__all__ = [
    "AbstractBasis",
    "AbstractPosterior",
    "AbstractProjection",
    "AbstractWrapper",
    "Marginals",
    "PointsBasis",
    "Points",
    "Predictor",
    "directions",
    "features",
    "log_standard_normal",
    "prior_factor",
    "whitened",
]

Points = Float[Number, "M D"]


class Predictor(eqx.Module):
    """A fitted posterior, ready to predict; it holds every factor and needs no training data.

    E f(x) = k(x, Zm) α        V f(x) = k(x, x) − ‖w‖² + Σ sⱼwⱼ²,  w = W k(Zv, x)

    Along each of the directions w, q leaves the share s of the prior's variance; beside w all of it is left. `shared`
    says that Zm and Zv are the same points, so that k(·, x) is computed once. Predictors of several latent functions of
    one kernel have the fields `common` in common. `leading` are the leading axes of what it predicts: none.
    """

    common: ClassVar[tuple[str, ...]] = ("kernel", "Zm", "Zv", "jitter")
    leading: ClassVar[tuple[int, ...]] = ()

    kernel: AbstractKernel
    Zm: Float[Number, "M1 D"]
    alpha: Float[Number, " M1"]
    Zv: Float[Number, "M2 D"]
    W: Float[Number, "M2 M2"]
    s: Float[Number, " M2"]
    jitter: Float[Number, ""]
    shared: bool = eqx.field(static=True, default=False)

    def __call__(self, X: Float[Array, "N D"]) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Mean and variance of f at the rows of X, each [N]."""
        Kvx = self.kernel(self.Zv, X)
        Kmx = Kvx if self.shared else self.kernel(self.Zm, X)
        return self.moments(Kvx, Kmx, self.kernel.diag(X))

    def moments(
        self, Kvx: Float[Array, "M2 N"], Kmx: Float[Array, "M1 N"], prior: Float[Array, " N"]
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Mean and variance of f, each [N], from k(Zv, X), k(Zm, X) and k(x, x).

        W comes of a covariance with jitter, so k − ‖w‖² is at least of the jitter's size; the maximum is for rounding.
        """
        squares = (self.W @ Kvx) ** 2
        residual = prior - jnp.sum(squares, axis=0)
        return self.alpha @ Kmx, jnp.maximum(residual, 0) + self.s @ squares

    def map(self, function: Callable[..., Any], also: tuple = ()) -> Any:
        """The function of this predictor and of `also`, as `Predictors.map` calls it for each."""
        return function(self, *also)

    def moved(self, kernel: AbstractKernel, to: Callable[[Any], Any]) -> "Predictor":
        """The same predictions where inputs have other units: points go `to` them, and `kernel` takes points there."""
        return eqx.tree_at(lambda p: (p.kernel, p.Zm, p.Zv), self, (kernel, to(self.Zm), to(self.Zv)))

    def prior(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Variance of f at the rows of X before any data, [N]."""
        return self.kernel.diag(X)

    def covariance(self, X: Float[Array, "N D"]) -> Float[Array, "N N"]:
        """Joint covariance of f at the rows of X, [N, N]: for drawing functions, never for error bars."""
        Kvx = self.kernel(self.Zv, X)
        w = self.W @ Kvx
        return self.kernel(X, X) - w.T @ ((1 - self.s)[:, None] * w)

    def each(self, function: Callable[["Predictor"], Any], common: tuple[str, ...]) -> Any:
        """`function` of this one, as `Predictors` apply it to each of theirs."""
        return function(self)


def directions(S: Float[Array, "M M"], D: Float[Array, "M K"]) -> tuple[Float[Array, "M K"], Float[Array, " M"]]:
    """W = QᵀD and s of a covariance S = Q diag(s) Qᵀ, for `Predictor`:  kᵀDᵀDk = ‖Wk‖²,  kᵀDᵀSDk = Σ sⱼ(Wk)ⱼ².

    One product a row, where D and a root of S are two. For derivatives in the numbers of S, where q may be the prior
    and Q is anything, there is `AbstractProjection.moments`.
    """
    s, Q = eigh(S)
    return Q.T @ D, jnp.maximum(s, 0)


class Marginals(NamedTuple):
    """q(fᵢ) = N(mean, explained + residual): aᵢᵀm, aᵢᵀSaᵢ and dᵢ = kᵢᵢ − ‖aᵢ‖², each [N]."""

    mean: Float[Array, " N"]
    explained: Float[Array, " N"]
    residual: Float[Array, " N"]

    @property
    def moments(self) -> tuple[Float[Array, "*C N"], Float[Array, "*C N"]]:
        """Mean and variance."""
        return self.mean, self.explained + self.residual


class AbstractBasis(eqx.Module):
    """What the pseudo-points of a family span under one kernel: all that q has no part in, its factors included."""

    @abstractmethod
    def rows(self, X: Float[Array, "N D"]) -> Any:
        """The arrays by which a projection knows the rows of X: their covariances with the points."""


class PointsBasis(AbstractBasis):
    """Points Z and the factor of K_uu + εI = LLᵀ: whitened features aᵢ = L⁻¹k_ui."""

    kernel: AbstractKernel
    Z: Float[Array, "M D"]
    Kuu: Factor

    def rows(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "M N"], Float[Array, " N"]]:
        """k(Z, X) and kᵢᵢ."""
        return self.kernel(self.Z, X), self.kernel.diag(X)


class AbstractProjection(eqx.Module):
    """q(f) under one kernel, and KL[q(u) ‖ p(u)]. Those with a Gaussian q also have `log_prior`, E_q[log p(u)].

    `stacks` says that `marginals_at` also takes C latent functions on one basis: all other fields with a leading axis.
    """

    stacks: ClassVar[bool] = False
    if TYPE_CHECKING:  # fields of abstract classes would become arguments of `__init__`

        def __getattr__(self, name: str) -> Any: ...

    else:
        basis: eqx.AbstractVar[Any]

    @property
    @abstractmethod
    def divergence(self) -> Scalar:
        """KL[q(u) ‖ p(u)]."""

    @abstractmethod
    def marginals_at(self, rows: Any) -> Marginals:
        """q(f) at `rows`, which serve every q on the same basis."""

    @abstractmethod
    def predictor(self) -> Any:
        """The same in the form that predicts: a `Predictor`, or `Predictors` of several latent functions."""

    def moments_at(self, rows: Any) -> tuple[Float[Array, "*C N"], Float[Array, "*C N"]]:
        """Mean and whole variance of q(f) at rows: all that the standard bound needs, and for some families cheaper."""
        return self.marginals_at(rows).moments

    def rows(self, X: Float[Array, "N D"]) -> Any:
        """What `marginals_at` takes for the rows of X."""
        return self.basis.rows(X)

    def marginals(self, X: Float[Array, "N D"]) -> Marginals:
        """q(f) at the rows of X."""
        return self.marginals_at(self.rows(X))

    def moments(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "*C N"], Float[Array, "*C N"]]:
        """Mean and whole variance of q(f) at the rows of X."""
        return self.moments_at(self.rows(X))

    def map(self, function: Callable[..., Any], also: tuple = ()) -> Any:
        """The function of this projection and of `also`, as `Projections.map` calls it for each."""
        return function(self, *also)


class AbstractPosterior(eqx.Module):
    """A family of approximate posteriors over functions. `jitter` is relative; None takes the default of the dtype.

    `own` names the fields that each of several latent functions has for itself, `places` those of the pseudo-points.
    `closed_form` says that the best q is integrated out: the posterior has none, and `project` raises TypeError.
    """

    closed_form: ClassVar[bool] = False
    own: ClassVar[tuple[str, ...]] = ("q",)
    places: ClassVar[tuple[str, ...]] = ("Z",)
    if TYPE_CHECKING:  # as in `AbstractProjection`

        def __getattr__(self, name: str) -> Any: ...

    else:
        Z: eqx.AbstractVar[Points]
        q: eqx.AbstractVar[Any]
        jitter: eqx.AbstractVar[float | None]

    # Any, here and below: `trainable` walks models of numbers that stand for places.
    @property
    def one(self) -> Any:
        """The family of one latent function: this posterior itself, unless it holds several."""
        return self

    @property
    def unshrunk(self) -> Any:
        """The posterior with the prior's q(f | u): this one itself, unless it is a `ShrunkResidual`."""
        return self

    @property
    def num_latents(self) -> int:
        """C, the number of latent functions."""
        return 1

    @property
    def points(self) -> tuple:
        """All pseudo-points, the arrays that a fit may learn or hold: (Z,), or (Z, O), or none."""
        return tuple(getattr(self, name) for name in self.places)

    def with_q(self, q: Any) -> "AbstractPosterior":
        """The same posterior with another q."""
        return eqx.tree_at(lambda p: p.q, self, q)

    @abstractmethod
    def basis(self, kernel: AbstractKernel) -> Any:
        """What the points span under the kernel, an `AbstractBasis`, with all factorisations that q has no part in."""

    @abstractmethod
    def on(self, basis: Any) -> Any:
        """q(f), an `AbstractProjection`, from the `basis` of this posterior, or of the same one with another q."""

    def project(self, kernel: AbstractKernel) -> Any:
        """q(f) under the kernel: an `AbstractProjection`."""
        return self.on(self.basis(kernel))


class AbstractWrapper(AbstractPosterior):
    """A posterior made of another one, `base`, whose points and q are its own."""

    if not TYPE_CHECKING:
        base: eqx.AbstractVar[AbstractPosterior]

    Z = property(lambda self: self.base.Z)
    q = property(lambda self: self.base.q)
    jitter = property(lambda self: self.base.jitter)
    one = property(lambda self: self.base.one)  # pyright: ignore[reportIncompatibleMethodOverride]
    points = property(lambda self: self.base.points)  # pyright: ignore[reportIncompatibleMethodOverride]


def features(
    kernel: AbstractKernel, Kuu: Factor, Z: Float[Array, "M D"], X: Float[Array, "N D"]
) -> tuple[Float[Array, "M N"], Float[Array, " N"]]:
    """A = L⁻¹K_uf [M, N] and the residual dᵢ = kᵢᵢ − ‖aᵢ‖² ≥ 0 [N]."""
    return whitened(Kuu, kernel(Z, X), kernel.diag(X))


def whitened(
    Kuu: Factor, Kux: Float[Array, "M N"], prior: Float[Array, " N"]
) -> tuple[Float[Array, "M N"], Float[Array, " N"]]:
    """As `features`, from the covariances."""
    A = Kuu.whiten(Kux)
    return A, jnp.maximum(prior - dots(A, A), 0)


def prior_factor(kernel: AbstractKernel, Z: Float[Array, "M D"], jitter: float | None) -> Factor:
    """K_uu + εI = LLᵀ: the one place where the prior of pseudo-points is factorised."""
    return factorise(kernel(Z, Z), default_jitter(Z.dtype) if jitter is None else jitter)


def log_standard_normal(mean: Float[Array, " M"], cov: Float[Array, "M M"]) -> Scalar:
    """E log N(v; 0, I) under v ~ N(mean, cov)."""
    return -0.5 * (jnp.trace(cov) + mean @ mean) - 0.5 * mean.shape[0] * jnp.log(2 * jnp.pi)
