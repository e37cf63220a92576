"""The contract of posterior families, and `Predictor`, which predicts for all of them.

A family holds pseudo-points and a distribution q of the function's values there. Everything that depends on the kernel
and the points but not on q is an `AbstractBasis`. A basis with q is an `AbstractProjection`: q(f) at any rows, which is
all that bounds and predictions need.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
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
    "whitened_features",
]

Points = Float[Number, "M D"]


class Predictor(eqx.Module):
    """A fitted posterior, ready to predict: it holds every factor and needs no training data.

    E f(x) = k(x, Zm) α        V f(x) = k(x, x) − ‖w‖² + Σ sⱼwⱼ²,  w = W k(Zv, x)

    sⱼ is the variance of q along wⱼ as a share of the prior's; orthogonal to all wⱼ the variance is the prior's.
    `shared` says that Zm and Zv are the same points, so that k(·, x) is computed once. Predictors of several latent
    functions with one kernel share the fields in `common`. `leading` are the leading axes of predictions, here none;
    `stacked` says whether what `map` returns has them. α [C, M1] is of C
    functions with one variance (`AlikeOutputs`).
    """

    common: ClassVar[tuple[str, ...]] = ("kernel", "Zm", "Zv", "jitter")
    leading: ClassVar[tuple[int, ...]] = ()
    stacked: ClassVar[bool] = False

    kernel: AbstractKernel
    Zm: Float[Number, "M1 D"]
    alpha: Float[Number, "*C M1"]
    Zv: Float[Number, "M2 D"]
    W: Float[Number, "M2 M2"]
    s: Float[Number, " M2"]
    jitter: Float[Number, ""]
    shared: bool = eqx.field(static=True, default=False)

    def __call__(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "*C N"], Float[Array, " N"]]:
        """Mean and variance of f at the rows of X, each [N]."""
        return self.marginals(X).moments

    def marginals(self, X: Float[Array, "N D"]) -> "Marginals":
        """The same with the variance in two parts: what q has left of ‖w‖², and k − ‖w‖²."""
        Kvx = self.kernel(self.Zv, X)
        Kmx = Kvx if self.shared else self.kernel(self.Zm, X)
        return self._marginals(Kvx, Kmx, self.kernel.diag(X))

    def moments(
        self, Kvx: Float[Array, "M2 N"], Kmx: Float[Array, "M1 N"], prior: Float[Array, " N"]
    ) -> tuple[Float[Array, "*C N"], Float[Array, " N"]]:
        """Mean and variance of f, each [N], from k(Zv, X), k(Zm, X) and k(x, x).

        W comes from a covariance with jitter, so k − ‖w‖² is at least about the jitter; rounding needs the maximum.
        """
        return self._marginals(Kvx, Kmx, prior).moments

    def _marginals(self, Kvx, Kmx, prior) -> "Marginals":
        squares = (self.W @ Kvx) ** 2
        residual = prior - jnp.sum(squares, axis=0)
        return Marginals(self.alpha @ Kmx, self.s @ squares, jnp.maximum(residual, 0))

    def map(self, function: Callable[..., Any], also: tuple = ()) -> Any:
        """function(self, *also), as `Predictors.map` calls it for each predictor."""
        return function(self, *also)

    def moved(self, kernel: AbstractKernel, to: Callable[[Any], Any]) -> "Predictor":
        """The same predictions for inputs in other units: `to` converts the points, and `kernel` is for such inputs."""
        return eqx.tree_at(lambda p: (p.kernel, p.Zm, p.Zv), self, (kernel, to(self.Zm), to(self.Zv)))

    def first(self, count: int) -> "Predictor":
        """The predictor from the first `count` of its points, where the others have no effect; of shared points."""
        points, alpha, W, s = (np.asarray(x) for x in (self.Zm, self.alpha, self.W, self.s))
        points, W = points[:count], W[:count, :count]
        return Predictor(self.kernel, points, alpha[..., :count], points, W, s[:count], self.jitter, self.shared)

    def padded(self, count: int) -> "Predictor":
        """The predictor with copies of its first point up to `count` points, which have no effect; of shared points."""
        more = count - len(self.Zm)
        points = np.concatenate([self.Zm, np.repeat(np.asarray(self.Zm)[:1], more, axis=0)])
        alpha, s = (np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)]) for x in (self.alpha, self.s))
        W = np.pad(self.W, ((0, more), (0, more)))
        return Predictor(self.kernel, points, alpha, points, W, s, self.jitter, self.shared)

    def prior(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Variance of f at the rows of X before any data, [N]."""
        return self.kernel.diag(X)

    def covariance(self, X: Float[Array, "N D"]) -> Float[Array, "N N"]:
        """Joint covariance of f at the rows of X, [N, N]; its diagonal is less accurate than the variances above."""
        Kvx = self.kernel(self.Zv, X)
        w = self.W @ Kvx
        return self.kernel(X, X) - w.T @ ((1 - self.s)[:, None] * w)

    def around(self, paths: Any) -> Any:
        """Drawn functions as they are: f has no mean function here."""
        return paths

    def each(self, function: Callable[["Predictor"], Any], common: tuple[str, ...]) -> Any:
        """`function` of this one, as `Predictors` apply it to each of theirs."""
        return function(self)


def directions(S: Float[Array, "M M"], D: Float[Array, "M K"]) -> tuple[Float[Array, "M K"], Float[Array, " M"]]:
    """W = QᵀD and s of a covariance S = Q diag(s) Qᵀ, for `Predictor`:  kᵀDᵀDk = ‖Wk‖²,  kᵀDᵀSDk = Σ sⱼ(Wk)ⱼ².

    A prediction then takes one matrix product instead of two. It has no derivative in S where eigenvalues coincide, as
    they do when q is the prior: use `AbstractProjection.moments` for derivatives.
    """
    s, Q = eigh(S)
    return Q.T @ D, jnp.maximum(s, 0)


class Marginals(NamedTuple):
    """q(fᵢ) = N(mean, explained + residual): aᵢᵀm, aᵢᵀSaᵢ and dᵢ = kᵢᵢ − ‖aᵢ‖², each [N]."""

    mean: Float[Array, "*C N"]
    explained: Float[Array, " N"]
    residual: Float[Array, " N"]

    @property
    def moments(self) -> tuple[Float[Array, "*C N"], Float[Array, "*D N"]]:
        """Mean and variance."""
        return self.mean, self.explained + self.residual


class AbstractBasis(eqx.Module):
    """The part of q(f) that does not depend on q: points, kernel and factors of their covariances."""

    @abstractmethod
    def rows(self, X: Float[Array, "N D"]) -> Any:
        """The arrays that a projection needs of the rows of X, such as their covariances with the points."""


class PointsBasis(AbstractBasis):
    """Points Z and the factor of K_uu + εI = LLᵀ: whitened features aᵢ = L⁻¹k_ui."""

    kernel: AbstractKernel
    Z: Float[Array, "M D"]
    Kuu: Factor

    def rows(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "M N"], Float[Array, " N"]]:
        """k(Z, X) and kᵢᵢ."""
        return self.kernel(self.Z, X), self.kernel.diag(X)


class AbstractProjection(eqx.Module):
    """q(f) under one kernel, and KL[q(u) ‖ p(u)]. Families with natural steps also have `log_prior`, E_q[log p(u)].

    `stacks` says that `marginals_at` also works for C latent functions on one basis: if all other fields have a leading
    axis C.
    """

    stacks: ClassVar[bool] = False
    if TYPE_CHECKING:  # type checkers would take abstract fields for arguments of `__init__`

        def __getattr__(self, name: str) -> Any: ...

    else:
        basis: eqx.AbstractVar[Any]

    @property
    @abstractmethod
    def divergence(self) -> Scalar:
        """KL[q(u) ‖ p(u)]."""

    @abstractmethod
    def marginals_at(self, rows: Any) -> Marginals:
        """q(f) at rows given as `basis.rows(X)`, which many q can share."""

    @abstractmethod
    def predictor(self) -> Any:
        """A `Predictor` of the same q(f), or `Predictors` of several latent functions."""

    def moments_at(self, rows: Any) -> tuple[Float[Array, "*C N"], Float[Array, "*C N"]]:
        """Mean and variance of q(f) at rows given as `basis.rows(X)`: enough for the standard bound, and cheaper for
        some families."""
        return self.marginals_at(rows).moments

    def rows(self, X: Float[Array, "N D"]) -> Any:
        """The rows of X in the form that `marginals_at` takes."""
        return self.basis.rows(X)

    def marginals(self, X: Float[Array, "N D"]) -> Marginals:
        """q(f) at the rows of X."""
        return self.marginals_at(self.rows(X))

    def moments(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "*C N"], Float[Array, "*C N"]]:
        """Mean and variance of q(f) at the rows of X."""
        return self.moments_at(self.rows(X))

    def map(self, function: Callable[..., Any], also: tuple = ()) -> Any:
        """function(self, *also), as `Projections.map` calls it for each projection."""
        return function(self, *also)


class AbstractPosterior(eqx.Module):
    """A family of approximate posteriors over functions: pseudo-points Z, q, and a jitter relative to the mean variance
    of the points (None: the default of the dtype).

    `own` names the fields that several latent functions do not share, `places` those of the pseudo-points.
    `closed_form` says that the best q is integrated out: then there is no q, and `project` raises TypeError.
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

    # Types here and below are Any, because `params.trainable` puts numbers in the place of arrays to find their places.
    @property
    def one(self) -> Any:
        """The posterior that holds q: this one, or the one that it wraps."""
        return self

    @property
    def unshrunk(self) -> Any:
        """The posterior with q(f | u) = p(f | u): this one, unless it is a `ShrunkResidual`."""
        return self

    @property
    def num_latents(self) -> int:
        """C, the number of latent functions."""
        return 1

    @property
    def points(self) -> tuple:
        """All pseudo-points, the arrays that `learn_inducing` concerns: (Z,), (Z, O) or ()."""
        return tuple(getattr(self, name) for name in self.places)

    def with_q(self, q: Any) -> "AbstractPosterior":
        """The same posterior with another q."""
        return eqx.tree_at(lambda p: p.q, self, q)

    @abstractmethod
    def basis(self, kernel: AbstractKernel) -> Any:
        """The `AbstractBasis` of the points under the kernel."""

    @abstractmethod
    def on(self, basis: Any) -> Any:
        """The `AbstractProjection` of q on a `basis` of this posterior, or of the same posterior with another q."""

    def project(self, kernel: AbstractKernel) -> Any:
        """q(f) under the kernel, an `AbstractProjection`."""
        return self.on(self.basis(kernel))


class AbstractWrapper(AbstractPosterior):
    """A posterior with the points and the q of another one, `base`."""

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
    return whitened_features(Kuu, kernel(Z, X), kernel.diag(X))


def whitened_features(
    Kuu: Factor, Kux: Float[Array, "M N"], prior: Float[Array, " N"]
) -> tuple[Float[Array, "M N"], Float[Array, " N"]]:
    """`features` from the covariances k(Z, X) and kᵢᵢ."""
    A = Kuu.whiten(Kux)
    return A, jnp.maximum(prior - dots(A, A), 0)


def prior_factor(kernel: AbstractKernel, Z: Float[Array, "M D"], jitter: float | None) -> Factor:
    """The factor of K_uu + εI = LLᵀ, ε relative to the mean of the diagonal."""
    return factorise(kernel(Z, Z), default_jitter(Z.dtype) if jitter is None else jitter)


def log_standard_normal(mean: Float[Array, " M"], cov: Float[Array, "M M"]) -> Scalar:
    """E log N(v; 0, I) under v ~ N(mean, cov)."""
    return -0.5 * (jnp.trace(cov) + mean @ mean) - 0.5 * mean.shape[0] * jnp.log(2 * jnp.pi)
