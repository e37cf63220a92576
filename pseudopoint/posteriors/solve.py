"""SOLVE-GP: two sets of pseudo-points, Z for f∥ = E[f | f(Z)] and O for the rest f⊥ = f − f∥."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..gaussians import AbstractGaussian, MeanPrecision
from ..kernels import AbstractKernel
from ..linalg import Scalar, dots, factorise, quad_diag
from ..params import Number
from .base import AbstractPosterior, AbstractProjection, Marginals, Points, Predictor, directions, log_standard_normal
from .orthogonal import OrthogonalBasis

__all__ = ["BlockOptimum", "SolveGP", "SolveProjection", "block_optimum"]


class Moments(NamedTuple):
    """Mean and covariance of a q."""

    mean: Float[Array, " M"]
    cov: Float[Array, "M M"]


class SolveProjection(AbstractProjection):
    """q(f) through aᵢ = L⁻¹k_ui and cᵢ = L_c⁻¹(k_Oi − A_Oᵀaᵢ), A_O = L⁻¹K_uO, L_cL_cᵀ = K_OO − A_OᵀA_O + εI:
        E f(x) = aᵀm + cᵀm_w        V f(x) = aᵀSa + cᵀS_wc + (k(x, x) − ‖a‖² − ‖c‖²).
    `log_prior` is E_q[log p(v) + log p(w)], `entropy` that of q(v)q(w). `probe`, if given, is a covariance of v and w
    whose value is 0: the gradient of a bound in it couples the means of both (`optimise.minibatch.solve`).
    """

    stacks: ClassVar[bool] = True
    basis: OrthogonalBasis
    v: Moments
    w: Moments
    log_prior: Scalar
    entropy: Scalar
    probe: Float[Array, "M M2"] | None = None

    @property
    def divergence(self) -> Scalar:
        """KL[q(v) ‖ p(v)] + KL[q(w) ‖ p(w)]."""
        return -self.log_prior - self.entropy

    def marginals_at(self, rows: Any) -> Marginals:
        A, C, residual = rows
        explained = quad_diag(self.v.cov, A) + quad_diag(self.w.cov, C)
        if self.probe is not None:
            explained = explained + 2 * dots(A, self.probe @ C)
        return Marginals(self.v.mean @ A + self.w.mean @ C, explained, residual)

    def predictor(self) -> Predictor:
        """With the pseudo-points Z ∪ O and D = [[L⁻¹, 0], [−L_c⁻¹A_OᵀL⁻¹, L_c⁻¹]], the inverse of their joint Cholesky
        factor: α = Dᵀ[m; m_w], W = [[Qᵀ, 0], [0, Q_wᵀ]] D.
        """
        at = self.basis
        first = jnp.pad(at.Kuu.inverse, ((0, 0), (0, len(at.O))))
        second = jnp.concatenate([-at.C.inverse @ (at.A_O.T @ at.Kuu.inverse), at.C.inverse], axis=1)
        blocks = directions(self.v.cov, first), directions(self.w.cov, second)
        W, s = (jnp.concatenate(parts) for parts in zip(*blocks, strict=True))
        points, alpha = jnp.concatenate([at.Z, at.O]), first.T @ self.v.mean + second.T @ self.w.mean
        jitter = jnp.maximum(at.Kuu.jitter, at.C.jitter)
        return Predictor(at.kernel, points, alpha, points, W, s, jitter, True)


class SolveGP(AbstractPosterior):
    """f = f∥ + f⊥ with f∥ = k(·, Z)K_uu⁻¹u and f⊥ independent of it (Shi, Titsias and Mnih 2020; methods c).

    q is the distribution of v = L⁻¹u and r that of w = L_c⁻¹f⊥(O), both with prior N(0, I). The family is `Whitened`
    with the pseudo-points Z ∪ O and a block-diagonal covariance. It takes M³ + M₂³ and B(M² + M₂²) operations where a
    dense covariance takes (M + M₂)³ and B(M + M₂)².
    """

    own: ClassVar[tuple[str, ...]] = ("q", "r")
    places: ClassVar[tuple[str, ...]] = ("Z", "O")
    Z: Points
    O: Float[Number, "M2 D"]
    q: AbstractGaussian
    r: AbstractGaussian
    jitter: float | None = eqx.field(static=True, default=None)

    def basis(self, kernel: AbstractKernel) -> OrthogonalBasis:
        """Two factorisations, of K_uu and of K_OO − A_OᵀA_O."""
        return OrthogonalBasis.of(self, kernel)

    def on(self, basis: OrthogonalBasis) -> SolveProjection:
        v, w = (Moments(jnp.asarray(q.mean), q.covariance()) for q in (self.q, self.r))
        log_prior = log_standard_normal(v.mean, v.cov) + log_standard_normal(w.mean, w.cov)
        entropy = self.q.entropy() + self.r.entropy()
        return SolveProjection(basis, v, w, log_prior, entropy)


class BlockOptimum(NamedTuple):
    """The best q(v)q(w) under a Gaussian likelihood, and its gain ½ [bᵀB⁻¹b − log |P| − log |P_w|] in the bound."""

    q: MeanPrecision
    r: MeanPrecision
    gain: Scalar


def block_optimum(H: Float[Array, "K K"], b: Float[Array, " K"], M: int) -> BlockOptimum:
    """From H = Σ λᵢφᵢφᵢᵀ and b = Σ λᵢyᵢφᵢ, φᵢ = [aᵢ; cᵢ], of which the first M belong to v: with B = I + H the means
    are those of the full covariance, [m; m_w] = B⁻¹b, and P, P_w are the diagonal blocks of B.

    The bound at the optimum is −½[Σ wᵢ log 2πσᵢ² + Σ λᵢyᵢ²] + gain − ½ Σ log(1 + λᵢdᵢ) (standard: − ½ Σ λᵢdᵢ). It is
    below the collapsed bound of Z ∪ O by Fischer's inequality, log |P| + log |P_w| ≥ log |B|.
    """
    B = jnp.eye(len(H), dtype=H.dtype) + H
    both, P, Pw = factorise(B), factorise(B[:M, :M]), factorise(B[M:, M:])
    gain = 0.5 * both.quadratic(b) - P.half_logdet() - Pw.half_logdet()
    mean = both.solve(b)
    return BlockOptimum(MeanPrecision(mean[:M], P.K), MeanPrecision(mean[M:], Pw.K), gain)
