"""Families whose mean has more points than their covariance (Cheng and Boots 2017; Salimbeni, Cheng, Boots and
Deisenroth 2018, by whose numbers formulas are named here).

Covariance points Z, their β, carry S; mean points O, their γ or α, carry coefficients a of kernel functions. G points
in O cost O(G) a row and O(G²) a step, where as many more in Z would cost O(G²) a row and O(G³) a step.

KL[q(f) ‖ p(f)] is that of two Gaussians of one covariance on what Z does not explain: half the squared norm of the mean
function there. Jitter is as for `Whitened`, on Z and on O alike: what is known at a pseudo-point is f plus N(0, ε).
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..gaussians import AbstractGaussian
from ..kernels import AbstractKernel
from ..linalg import Factor, Scalar, default_jitter, factorise, quad_diag, transposed_product
from ..params import Number
from .base import (
    AbstractPosterior,
    AbstractProjection,
    Marginals,
    Points,
    Predictor,
    directions,
    features,
    log_standard_normal,
    prior_factor,
)

__all__ = [
    "Decoupled",
    "DecoupledProjection",
    "Hybrid",
    "InverseHybrid",
    "CollapsedDecoupled",
    "Orthogonal",
    "OrthogonalBasis",
]

Coefficients = Float[Number, "*C G"]
Columns = Int[Number, " K"] | None


class DecoupledProjection(AbstractProjection):
    """q(f) with whitened features aᵢ = L⁻¹k_ui of Z and kernel functions of O:
        E f(x) = a_xᵀh + k(x, O) a        V f(x) = a_xᵀSa_x + (k(x, x) − ‖a_x‖²).
    `log_prior` is E_q[log p], the norm of the mean that Z does not explain included; `entropy` is that of N(·, S).
    """

    shared: ClassVar[tuple[str, ...]] = ("kernel", "Z", "O", "Kuu")
    stacks: ClassVar[bool] = True
    kernel: AbstractKernel
    Z: Float[Array, "M D"]
    O: Float[Array, "G D"]
    Kuu: Factor
    along: Float[Array, " M"]
    a: Float[Array, " G"]
    cov: Float[Array, "M M"]
    log_prior: Scalar
    entropy: Scalar

    @property
    def divergence(self) -> Scalar:
        """KL[q(f) ‖ p(f)]."""
        return -self.log_prior - self.entropy

    def marginals(self, X: Float[Array, "N D"]) -> Marginals:
        """q(f) at the rows of X. The residual is dᵢ given u alone: O takes nothing from the variance."""
        A, residual = features(self.kernel, self.Kuu, self.Z, X)
        return Marginals(self.along @ A + self.a @ self.kernel(self.O, X), quad_diag(self.cov, A), residual)

    def moments(self, X: Float[Array, "N D"]) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """a_xᵀh + k(x, O) a and k(x, x) + a_xᵀ(S − I)a_x."""
        mean, variance = self.Kuu.moments(self.kernel(self.Z, X), self.kernel.diag(X), self.along, self.cov)
        return mean + self.a @ self.kernel(self.O, X), variance

    def predictor(self) -> Predictor:
        """Zm = Z ∪ O, α = (L⁻ᵀh, a), W = QᵀL⁻¹ with S = Q diag(s) Qᵀ."""
        alpha = jnp.concatenate([self.Kuu.inverse.T @ self.along, self.a])
        points, along = jnp.concatenate([self.Z, self.O]), directions(self.cov, self.Kuu.inverse)
        return Predictor(self.kernel, points, alpha, self.Z, *along, self.Kuu.jitter)


class CollapsedDecoupled(eqx.Module):
    """Points of the covariance and of the mean whose q is the best one, integrated out: the posterior of
    `bounds.collapsed_orthogonal` and `bounds.collapsed_decoupled`."""

    Z: Points
    O: Float[Number, "G D"]
    jitter: float | None = eqx.field(static=True, default=None)


class Orthogonal(AbstractPosterior):
    """The orthogonally decoupled family (12). With c(x, x′) = k(x, x′) − k_xu K_uu⁻¹ k_ux′, q(v) = N(m, S), v = L⁻¹u:
        E f(x) = a_xᵀm + c(x, O) a        V f(x) = that of `Whitened`
        KL = KL[q(v) ‖ N(0, I)] + ½ aᵀCa,  C = c(O, O).
    O models what Z cannot: with log-concave likelihoods the bound is concave in (m, a, chol S). Without O it is
    `Whitened`.

    `columns` [K] names some columns of C, drawn without regard to a; then aᵀCa is estimated from these alone, without
    bias (appendix A.3), in O(GK + GM) instead of O(G² + GM).
    """

    own: ClassVar[tuple[str, ...]] = ("q", "a")
    Z: Points
    O: Float[Number, "G D"]
    q: AbstractGaussian
    a: Coefficients
    columns: Columns = None
    jitter: float | None = eqx.field(static=True, default=None)

    def project(self, kernel: AbstractKernel) -> DecoupledProjection:
        """a_xᵀm + c(x, O)a = a_xᵀ(m − A_O a) + k(x, O)a,  A_O = L⁻¹K_uO."""
        return _hybrid(self, kernel, lambda m, A_Oa: (m, m - A_Oa))


class Hybrid(AbstractPosterior):
    """The hybrid family (11), the mean basis not orthogonal to Z:
        E f(x) = a_xᵀm + k(x, O) a        V f(x) = that of `Whitened`
        KL = ½ (tr S − log |S| − M) + ½ ‖E f‖²,  ‖E f‖² = ‖m + A_O a‖² + aᵀCa  the squared RKHS norm of the whole mean.
    It is `Orthogonal` with m + A_O a for m: the same posteriors, worse conditioned in (m, a). `q` holds m and S, and is
    not q(v), whose mean is m + A_O a. `columns` as there.
    """

    own: ClassVar[tuple[str, ...]] = ("q", "a")
    Z: Points
    O: Float[Number, "G D"]
    q: AbstractGaussian
    a: Coefficients
    columns: Columns = None
    jitter: float | None = eqx.field(static=True, default=None)

    def project(self, kernel: AbstractKernel) -> DecoupledProjection:
        """E v = m + A_O a."""
        return _hybrid(self, kernel, lambda m, A_Oa: (m + A_Oa, m))


class Decoupled(AbstractPosterior):
    """The decoupled family (8) of Cheng and Boots 2017, O their α and Z their β; `B` [M, M] holds R, B = RRᵀ (only its
    lower triangle is read):
        E f(x) = k(x, O) a        C[f(x), f(x′)] = k(x, x′) − k_xu (B⁻¹ + K_uu)⁻¹ k_ux′
        KL = ½ [aᵀK_OO a + log |I + K_uu B| − tr(K_uu (B⁻¹ + K_uu)⁻¹)].
    In v = L⁻¹u the covariance is S = (I + LᵀBL)⁻¹, of `Whitened` with more precision than the prior; so the KL's last
    two terms are tr S − log |S| − M. It has no Gaussian q in coordinates: `Optax` trains it. The bound is not concave
    in (a, R). `columns` as for `Orthogonal`, of K_OO.
    """

    own: ClassVar[tuple[str, ...]] = ("a", "B")
    Z: Points
    O: Float[Number, "G D"]
    a: Coefficients
    B: Float[Number, "*C M M"]
    columns: Columns = None
    jitter: float | None = eqx.field(static=True, default=None)

    # Any: `trainable` walks models of numbers that stand for places.
    @property
    def q(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """(a, R): all that is variational."""
        return self.a, self.B

    def project(self, kernel: AbstractKernel) -> DecoupledProjection:
        """h = 0."""
        Z, O, a = map(jnp.asarray, (self.Z, self.O, self.a))
        return _inverse(kernel, Z, O, a, self.B, self.columns, self.jitter)


class InverseHybrid(AbstractPosterior):
    """The hybrid basis in its original form (appendix of Cheng and Boots 2017): `Decoupled` with α = O ∪ Z,
        E f(x) = k(x, O) a + k(x, Z) b,
    so that its mean has all that `Unwhitened` has, and Z moves both. `columns` are those of O ∪ Z.
    """

    own: ClassVar[tuple[str, ...]] = ("a", "b", "B")
    Z: Points
    O: Float[Number, "G D"]
    a: Coefficients
    b: Float[Number, "*C M"]
    B: Float[Number, "*C M M"]
    columns: Columns = None
    jitter: float | None = eqx.field(static=True, default=None)

    @property
    def q(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """(a, b, R): all that is variational."""
        return self.a, self.b, self.B

    def project(self, kernel: AbstractKernel) -> DecoupledProjection:
        """As `Decoupled`."""
        Z, O, a, b = map(jnp.asarray, (self.Z, self.O, self.a, self.b))
        points, coefficients = jnp.concatenate([O, Z]), jnp.concatenate([a, b])
        return _inverse(kernel, Z, points, coefficients, self.B, self.columns, self.jitter)


class OrthogonalBasis(eqx.Module):
    """What Z and O span: whitened features of Z, and of O what Z does not explain."""

    kernel: AbstractKernel
    Z: Float[Array, "M D"]
    O: Float[Array, "G D"]
    Kuu: Factor
    A_O: Float[Array, "M G"]
    C: Factor

    @staticmethod
    def of(posterior: Any, kernel: AbstractKernel, Kuu: Factor | None = None) -> "OrthogonalBasis":
        """That of any posterior with Z, O and jitter; C = K_OO − A_OᵀA_O + εI is factorised, and K_uu unless it is."""
        Z, O = jnp.asarray(posterior.Z), jnp.asarray(posterior.O)
        Kuu = prior_factor(kernel, Z, posterior.jitter) if Kuu is None else Kuu
        A_O = Kuu.whiten(kernel(Z, O))
        nugget = _nugget(kernel, O, posterior.jitter) * jnp.eye(O.shape[0], dtype=O.dtype)
        C = kernel(O, O) - transposed_product(A_O, A_O) + nugget
        return OrthogonalBasis(kernel, Z, O, Kuu, A_O, factorise(C))

    def __call__(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "M N"], Float[Array, "G N"], Float[Array, " N"]]:
        """A = L⁻¹K_uf, c(O, X) = K_Of − A_OᵀA, and the residual dᵢ given u."""
        A, d = features(self.kernel, self.Kuu, self.Z, X)
        return A, self.kernel(self.O, X) - transposed_product(self.A_O, A), d


def _hybrid(posterior, kernel, means) -> DecoupledProjection:
    """`means` takes (m, A_O a) to E v and h = E v − A_O a; E log p is that of v ~ N(E v, S), less ½ aᵀCa."""
    Z, O, a, m = map(jnp.asarray, (posterior.Z, posterior.O, posterior.a, posterior.q.mean))
    Kuu, cov = prior_factor(kernel, Z, posterior.jitter), posterior.q.covariance()
    A_O = Kuu.whiten(kernel(Z, O))
    mean, h = means(m, A_O @ a)
    log_prior = log_standard_normal(mean, cov) - 0.5 * _norm(kernel, O, a, A_O, posterior.jitter, posterior.columns)
    return DecoupledProjection(kernel, Z, O, Kuu, h, a, cov, log_prior, posterior.q.entropy())


def _inverse(kernel, Z, O, a, B, columns, jitter) -> DecoupledProjection:
    """The projection with S = (I + LᵀBL)⁻¹ and the mean k(x, O) a, whose squared norm is aᵀK_OO a."""
    Kuu, none = prior_factor(kernel, Z, jitter), jnp.zeros((0, O.shape[0]), O.dtype)
    eye = jnp.eye(Z.shape[0], dtype=Z.dtype)
    # LᵀR = L⁻¹KR: L itself is a constant to derivatives.
    W = Kuu.whiten(Kuu.K @ jnp.tril(B))
    P = factorise(eye + W @ W.T)
    half = P.whiten(eye)  # S = P⁻¹ = (P^-½)ᵀ P^-½
    cov = transposed_product(half, half)
    entropy = 0.5 * Z.shape[0] * (1 + jnp.log(2 * jnp.pi)) - P.half_logdet()
    zero = jnp.zeros(Z.shape[:1], Z.dtype)
    log_prior = log_standard_normal(zero, cov) - 0.5 * _norm(kernel, O, a, none, jitter, columns)
    return DecoupledProjection(kernel, Z, O, Kuu, zero, a, cov, log_prior, entropy)


def _nugget(kernel, O, jitter) -> Scalar:
    """ε of O: relative to its mean prior variance, as that of Z is."""
    level = default_jitter(O.dtype) if jitter is None else jitter
    return level * jnp.sum(kernel.diag(O)) / max(O.shape[0], 1)


def _norm(kernel, O, a, A_O, jitter, columns) -> Scalar:
    """aᵀCa of C = K_OO − A_OᵀA_O + εI; with columns K, (G/|K|) Σ_{j ∈ K} aᵀc_j a_j, whose mean over all K it is."""
    K = slice(None) if columns is None else jnp.asarray(columns)
    points, part = O[K], a[K]
    product = a @ (kernel(O, points) @ part) - (A_O @ a) @ (A_O[:, K] @ part) + _nugget(kernel, O, jitter) * part @ part
    return O.shape[0] / max(points.shape[0], 1) * product
