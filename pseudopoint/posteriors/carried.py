"""A learned q as the prior of more rows (Bui, Nguyen and Turner 2017, with the pseudo-points held or added to).

A `Predictor` is a Gaussian process: mean k(x, Zm)α and covariance k(x, x′) − w(x)ᵀ(1 − s)w(x′), w = W k(Zv, ·). Of more
rows it is the prior, in place of the kernel. In features φ(x) = √s ∘ w(x) its q at the pseudo-points is N(0, I), so
that an update is the problem of a fit again (methods l).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data import Dataset
from ..gaussians import AbstractGaussian, MeanPrecision
from ..linalg import Factor, Scalar, default_jitter, factorise, quad_diag
from .base import (
    AbstractBasis,
    AbstractPosterior,
    AbstractProjection,
    Marginals,
    Points,
    Predictor,
    directions,
    log_standard_normal,
    prior_factor,
)

__all__ = ["Carried", "CarriedBasis", "conditioned", "freed", "whitened_q", "with_points"]


class CarriedBasis(AbstractBasis):
    """The process that a predictor is, as a prior."""

    prior: Predictor

    def rows(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "M N"], Float[Array, " N"], Float[Array, " N"]]:
        """φ = √s ∘ w, the prior's mean, and dᵢ = kᵢᵢ − ‖wᵢ‖², which the pseudo-points do not explain."""
        p = self.prior
        Kvx = p.kernel(p.Zv, X)
        w = p.W @ Kvx
        mean = p.alpha @ (Kvx if p.shared else p.kernel(p.Zm, X))
        return jnp.sqrt(p.s)[:, None] * w, mean, jnp.maximum(p.kernel.diag(X) - jnp.sum(w**2, axis=0), 0)


class CarriedProjection(AbstractProjection):
    """q(f) where f = prior mean + φᵀz + what Z does not explain, z ~ N(m, S), whose prior is N(0, I)."""

    basis: CarriedBasis
    mean: Float[Array, " M"]
    cov: Float[Array, "M M"]
    log_prior: Scalar
    q: AbstractGaussian

    @property
    def divergence(self) -> Scalar:
        """KL of q from the q that was carried."""
        return -self.log_prior - self.q.entropy()

    def marginals_at(self, rows: Any) -> Marginals:
        """Prior mean + φᵀm, φᵀSφ and dᵢ."""
        phi, mean, residual = rows
        return Marginals(mean + self.mean @ phi, quad_diag(self.cov, phi), residual)

    def predictor(self) -> Predictor:
        """The predictor with √s S √s in place of diag(s), and a mean that has α + Wᵀ(√s ∘ m)."""
        p = self.basis.prior
        root = jnp.sqrt(p.s)
        more = p.W.T @ (root * self.mean)
        W, s = directions(root[:, None] * self.cov * root, p.W)
        Zm, alpha = (p.Zm, p.alpha + more) if p.shared else _joined(p, p.Zv, more)
        return Predictor(p.kernel, Zm, alpha, p.Zv, W, s, p.jitter, p.shared)


class Carried(AbstractPosterior):
    """q of z at the pseudo-points of a `Predictor`, which takes the place of the kernel in `basis`."""

    q: AbstractGaussian
    Z = property(lambda self: np.zeros((0, 0)))
    jitter = property(lambda self: 0.0)

    def basis(self, kernel: Any) -> CarriedBasis:
        return CarriedBasis(kernel)

    def on(self, basis: CarriedBasis) -> CarriedProjection:
        mean, cov = jnp.asarray(self.q.mean), self.q.covariance()
        return CarriedProjection(basis, mean, cov, log_standard_normal(mean, cov), self.q)


def with_points(predictor: Predictor, Z: Points) -> Predictor:
    """The same process with pseudo-points Z besides: q of theirs is p(f(Z) | u), as the prior has it.

    With w₂ = L⁻¹c(Z, ·), c = k − wᵀw and LLᵀ = c(Z, Z) + jitter, variances gain −‖w₂‖² + ‖w₂‖². The jitter is relative
    to k: of points that the others know already, c is rounding error.
    """
    C, cross = _conditional(predictor, Z, 0.0)
    C = C + default_jitter(C.dtype) * jnp.mean(predictor.kernel.diag(Z)) * jnp.eye(len(Z), dtype=C.dtype)
    factor = factorise(C, default_jitter(C.dtype))
    rest = jnp.zeros(len(Z), C.dtype)
    return _longer(predictor, Z, factor, cross, rest, rest + 1)


def freed(p: Predictor) -> Predictor:
    """The same process with directions in which the q of its points may move, for a predictor that has none (s = 0).

    With K = k(Zv, Zv) + jitter = LLᵀ and the covariance S = K − wᵀ(1 − s)w of f(Zv): W = QᵀL⁻¹ and s of
    L⁻¹SL⁻ᵀ = Q diag(s) Qᵀ.
    """
    factor = prior_factor(p.kernel, p.Zv, None)
    w = p.W @ p.kernel(p.Zv, p.Zv)
    S = factor.K - w.T @ ((1 - p.s)[:, None] * w)
    W, s = directions(factor.inverse @ S @ factor.inverse.T, factor.inverse)
    return Predictor(p.kernel, p.Zm, p.alpha, p.Zv, W, jnp.maximum(s, jnp.finfo(s.dtype).eps), p.jitter, p.shared)


@jax.jit
def whitened_q(predictor: Predictor) -> MeanPrecision:
    """The q(v) of a predictor of a `Whitened` posterior: α = L⁻ᵀm and W = QᵀL⁻¹ with S = Q diag(s) Qᵀ."""
    L = prior_factor(predictor.kernel, predictor.Zv, None).L
    Q = predictor.W @ L
    s = jnp.maximum(predictor.s, jnp.finfo(L.dtype).eps)
    return MeanPrecision(L.T @ predictor.alpha, Q.T @ (Q / s[:, None]))


@jax.jit
def conditioned(predictor: Predictor, rows: Dataset, noise: Float[Array, " N"]) -> tuple[Predictor, Factor, Scalar]:
    """The process given y = f + N(0, noise/weight) at more rows: exact, at a point for each. Also the factor of the
    covariance C of y, and rᵀC⁻¹r of y less its mean.

    With w₂ = L⁻¹c_q(X, ·), c_q = k − wᵀ(1 − s)w and LLᵀ = C, the mean gains w₂ᵀL⁻¹r and the covariance −w₂ᵀw₂.
    """
    C, cross = _conditional(predictor, rows.X, predictor.s)
    factor = factorise(C + jnp.diag(noise / rows.weight), refine=True)
    r = rows.y - CarriedBasis(predictor).rows(rows.X)[1]
    longer = _longer(predictor, rows.X, factor, cross, factor.solve(r), jnp.zeros_like(r))
    return longer, factor, factor.quadratic(r)


def _conditional(p: Predictor, X, s):
    """k − wᵀ(1 − s)w at X, and (1 − s)w."""
    w = p.W @ p.kernel(p.Zv, X)
    cross = (1 - s) * w.T
    return p.kernel(X, X) - cross @ w, cross


def _longer(p: Predictor, X, factor: Factor, cross, beta, s) -> Predictor:
    """The predictor with rows w₂ = L⁻¹(k(X, ·) − cross w) of W, and w₂ᵀLᵀβ more in the mean."""
    below = jnp.concatenate([-factor.inverse @ (cross @ p.W), factor.inverse], axis=1)
    W = jnp.concatenate([jnp.pad(p.W, ((0, 0), (0, len(X)))), below])
    Zv, more = jnp.concatenate([p.Zv, X]), jnp.concatenate([-p.W.T @ (cross.T @ beta), beta])
    Zm, alpha = (Zv, jnp.pad(p.alpha, (0, len(X))) + more) if p.shared else _joined(p, Zv, more)
    return Predictor(p.kernel, Zm, alpha, Zv, W, jnp.concatenate([p.s, s]), p.jitter, p.shared)


def _joined(p: Predictor, Z, alpha):
    """Points and coefficients of a mean that has other points than the variance."""
    return jnp.concatenate([p.Zm, Z]), jnp.concatenate([p.alpha, alpha])
