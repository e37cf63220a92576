"""How q(u) becomes q(f), and the one thing that predicts.

A posterior family owns pseudo-points and says what q(u) at them is; `project` brings any of them to q(f) for one
kernel, which is all that bounds and predictions need.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..kernels import AbstractKernel
from ..likelihoods import AbstractLikelihood
from ..linalg import Factor, Scalar, default_jitter, dots, eigh, factorise
from ..params import Number

__all__ = [
    "AbstractPosterior",
    "AbstractProjection",
    "Marginals",
    "Model",
    "Points",
    "Predictor",
    "directions",
    "features",
    "log_standard_normal",
    "prior_factor",
]

Points = Float[Number, "M D"]


class Predictor(eqx.Module):
    """A fitted posterior, ready to predict; it holds every factor and needs no training data.

    E f(x) = k(x, Zm) α        V f(x) = k(x, x) − ‖w‖² + Σ sⱼwⱼ²,  w = W k(Zv, x)

    Along each of the directions w, q leaves the share s of the prior's variance; beside w all of it is left. `shared`
    says that Zm and Zv are the same points, so that k(·, x) is computed once. Predictors of several latent functions of
    one kernel have `common` fields.
    """

    common: ClassVar[tuple[str, ...]] = ("kernel", "Zm", "Zv", "jitter")

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

    def moved(self, kernel: AbstractKernel, to: Callable[[Any], Any]) -> "Predictor":
        """The same where inputs are in other units: points go `to` them, and the kernel takes them there."""
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


class AbstractProjection(eqx.Module):
    """q(f) for one kernel, and KL[q(u) ‖ p(u)]. `shared` names the fields that several latent functions of one kernel
    have in common; `stacks` says that `marginals` takes all other fields with a leading axis too.
    """

    shared: ClassVar[tuple[str, ...]]
    stacks: ClassVar[bool] = False

    @property
    @abstractmethod
    def divergence(self) -> Scalar:
        """KL[q(u) ‖ p(u)]."""

    @abstractmethod
    def marginals(self, X: Float[Array, "N D"]) -> Marginals:
        """q(f) at the rows of X."""

    @abstractmethod
    def moments(self, X: Float[Array, "N D"]) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Mean and whole variance of q(f) at the rows of X: all that the standard bound needs, and cheaper."""

    @abstractmethod
    def predictor(self) -> Predictor:
        """The same in the form that predicts."""

    def map(self, function: Callable[..., Any], also: tuple = ()) -> Any:
        """The function of this projection, and of what it has `also`: as `Projections` take it of each."""
        return function(self, *also)


class AbstractPosterior(eqx.Module):
    """A family of approximate posteriors over functions. `jitter` is relative; None takes the default of the dtype.

    `own` names the fields that each of several latent functions has for itself.
    """

    own: ClassVar[tuple[str, ...]] = ("q",)
    Z: eqx.AbstractVar[Points]
    q: eqx.AbstractVar[Any]
    jitter: eqx.AbstractVar[float | None]

    # Any: `trainable` walks models of numbers that stand for places.
    @property
    def one(self) -> Any:
        """The family of one latent function: this posterior itself, unless it holds several."""
        return self

    @property
    def num_latents(self) -> int:
        """C, the number of latent functions."""
        return 1

    @property
    def points(self) -> tuple:
        """All pseudo-points, the arrays that a fit may learn or hold: (Z,), or (Z, O)."""
        return (self.Z,)

    def with_q(self, q: Any) -> "AbstractPosterior":
        """The same posterior with another q."""
        return eqx.tree_at(lambda p: p.q, self, q)

    @abstractmethod
    def project(self, kernel: AbstractKernel) -> Any:
        """An `AbstractProjection` (or `Projections`, of several latent functions), with one factorisation."""

    def at(self, kernel: AbstractKernel, X: Float[Array, "N D"]) -> "AbstractPosterior":
        """The same posterior for a program that asks for many q, or twice for one, by one kernel at the rows X: what q
        has no part in may be known to it. Here nothing is."""
        return self


def features(
    kernel: AbstractKernel, Kuu: Factor, Z: Float[Array, "M D"], X: Float[Array, "N D"]
) -> tuple[Float[Array, "M N"], Float[Array, " N"]]:
    """A = L⁻¹K_uf [M, N] and the residual dᵢ = kᵢᵢ − ‖aᵢ‖² ≥ 0 [N]."""
    A = Kuu.whiten(kernel(Z, X))
    return A, jnp.maximum(kernel.diag(X) - dots(A, A), 0)


def prior_factor(kernel: AbstractKernel, Z: Float[Array, "M D"], jitter: float | None) -> Factor:
    """K_uu + εI = LLᵀ: the one place where the prior of pseudo-points is factorised."""
    return factorise(kernel(Z, Z), default_jitter(Z.dtype) if jitter is None else jitter)


def log_standard_normal(mean: Float[Array, " M"], cov: Float[Array, "M M"]) -> Scalar:
    """E log N(v; 0, I) under v ~ N(mean, cov)."""
    return -0.5 * (jnp.trace(cov) + mean @ mean) - 0.5 * mean.shape[0] * jnp.log(2 * jnp.pi)


class Model(eqx.Module):
    """Prior, observation and approximate posterior: everything that is learned. `posterior` is None for an exact GP."""

    kernel: AbstractKernel
    likelihood: AbstractLikelihood
    posterior: Any = None
