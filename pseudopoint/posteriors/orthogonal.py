"""Families whose mean has more points than their covariance (Cheng and Boots 2017; Salimbeni, Cheng, Boots and
Deisenroth 2018, by whose numbers formulas are named here).

The covariance points Z (β in the papers) have the covariance S; the mean points O (γ or α) have coefficients a of
kernel functions. G points in O cost O(G) per row and O(G²) per step; as many more in Z would cost O(G²) and O(G³).

On the part of f that Z does not explain, q and p have one covariance, so that KL[q(f) ‖ p(f)] there is half the squared
norm of the mean function. Z and O have jitter as in `Whitened`: a value at a pseudo-point is f plus N(0, ε).
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..gaussians import AbstractGaussian
from ..kernels import AbstractKernel
from ..linalg import Factor, Scalar, default_jitter, dots, factorise, quad_diag, transposed_product
from ..params import Number
from .base import (
    AbstractBasis,
    AbstractPosterior,
    AbstractProjection,
    Marginals,
    Points,
    Predictor,
    directions,
    features,
    log_standard_normal,
    prior_factor,
    whitened_features,
)

__all__ = [
    "AbstractDecoupled",
    "Decoupled",
    "DecoupledBasis",
    "DecoupledProjection",
    "Hybrid",
    "InverseHybrid",
    "Orthogonal",
    "OrthogonalBasis",
]

Coefficients = Float[Number, "*C G"]
Columns = Int[Number, " K"] | None


class DecoupledBasis(AbstractBasis):
    """Whitened features aᵢ = L⁻¹k_ui of Z, and kernel functions of O."""

    kernel: AbstractKernel
    Z: Float[Array, "M D"]
    O: Float[Array, "G D"]
    Kuu: Factor

    def rows(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "M N"], Float[Array, " N"], Float[Array, "G N"]]:
        """k(Z, X), kᵢᵢ and k(O, X)."""
        return self.kernel(self.Z, X), self.kernel.diag(X), self.kernel(self.O, X)


class DecoupledProjection(AbstractProjection):
    """q(f) with whitened features aᵢ = L⁻¹k_ui of Z and kernel functions of O:
        E f(x) = a_xᵀh + k(x, O) a        V f(x) = a_xᵀSa_x + (k(x, x) − ‖a_x‖²).
    `log_prior` is E_q[log p], including the norm of the mean that Z does not explain; `entropy` is that of N(·, S).
    """

    stacks: ClassVar[bool] = True
    basis: DecoupledBasis
    along: Float[Array, " M"]
    a: Float[Array, " G"]
    cov: Float[Array, "M M"]
    log_prior: Scalar
    entropy: Scalar

    @property
    def divergence(self) -> Scalar:
        return -self.log_prior - self.entropy

    def marginals_at(self, rows: Any) -> Marginals:
        """q(f) at rows. The residual is dᵢ given u, because O does not reduce the variance."""
        Kux, prior, KOx = rows
        A, residual = whitened_features(self.basis.Kuu, Kux, prior)
        return Marginals(self.along @ A + self.a @ KOx, quad_diag(self.cov, A), residual)

    def moments_at(self, rows: Any) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """a_xᵀh + k(x, O) a and k(x, x) + a_xᵀ(S − I)a_x."""
        Kux, prior, KOx = rows
        mean, variance = self.basis.Kuu.moments(Kux, prior, self.along, self.cov)
        return mean + self.a @ KOx, variance

    def predictor(self) -> Predictor:
        """Zm = Z ∪ O, α = (L⁻ᵀh, a), W = QᵀL⁻¹ with S = Q diag(s) Qᵀ."""
        at = self.basis
        alpha = jnp.concatenate([at.Kuu.inverse.T @ self.along, self.a])
        points, along = jnp.concatenate([at.Z, at.O]), directions(self.cov, at.Kuu.inverse)
        return Predictor(at.kernel, points, alpha, at.Z, *along, at.Kuu.jitter)


class AbstractDecoupled(AbstractPosterior):
    """Points Z of the covariance and O of the mean, whose coefficients are a.

    `columns` [K] are indices of columns of the matrix of the quadratic form of a, drawn independently of a. The form is
    then estimated from these columns, without bias (appendix A.3), in O(GK + GM) instead of O(G² + GM).
    """

    places: ClassVar[tuple[str, ...]] = ("Z", "O")

    @property
    def mean_points(self) -> Any:
        """The points of the mean's kernel functions."""
        return self.O

    def basis(self, kernel: AbstractKernel) -> DecoupledBasis:
        """One factorisation, of K_uu."""
        Z, O = jnp.asarray(self.Z), jnp.asarray(self.mean_points)
        return DecoupledBasis(kernel, Z, O, prior_factor(kernel, Z, self.jitter))

    def _hybrid(self, basis: DecoupledBasis, q: AbstractGaussian, means) -> DecoupledProjection:
        """`means` takes (m, A_O a) to E v and h = E v − A_O a; E log p is that of v ~ N(E v, S), less ½ aᵀCa."""
        a, m, cov = jnp.asarray(self.a), jnp.asarray(q.mean), q.covariance()
        A_O = basis.Kuu.whiten(basis.kernel(basis.Z, basis.O))
        mean, h = means(m, A_O @ a)
        log_prior = log_standard_normal(mean, cov) - 0.5 * self._norm(basis, a, A_O)
        return DecoupledProjection(basis, h, a, cov, log_prior, q.entropy())

    def _inverse(self, basis: DecoupledBasis, a: Float[Array, " G"], B: Float[Array, "M M"]) -> DecoupledProjection:
        """S = (I + LᵀBL)⁻¹ and the mean k(x, O) a, whose squared norm is aᵀK_OO a."""
        Kuu, none = basis.Kuu, jnp.zeros((0, len(basis.O)), basis.O.dtype)
        M, dtype = len(basis.Z), basis.Z.dtype
        # LᵀR = L⁻¹KR: L itself is a constant to derivatives.
        W = Kuu.whiten(Kuu.K @ jnp.tril(B))
        P = factorise(jnp.eye(M, dtype=dtype) + W @ W.T)
        half = P.whiten(jnp.eye(M, dtype=dtype))  # S = P⁻¹ = (P^-½)ᵀ P^-½
        cov = transposed_product(half, half)
        entropy = 0.5 * M * (1 + jnp.log(2 * jnp.pi)) - P.half_logdet()
        zero = jnp.zeros(M, dtype)
        log_prior = log_standard_normal(zero, cov) - 0.5 * self._norm(basis, a, none)
        return DecoupledProjection(basis, zero, a, cov, log_prior, entropy)

    def _norm(self, basis: DecoupledBasis, a: Float[Array, " G"], A_O: Float[Array, "K G"]) -> Scalar:
        """aᵀCa of C = K_OO − A_OᵀA_O + εI; with columns K, (G/|K|) Σ_{j ∈ K} aᵀc_j a_j, whose mean over all K it is."""
        O, kernel = basis.O, basis.kernel
        K = slice(None) if self.columns is None else jnp.asarray(self.columns)
        points, part = O[K], a[K]
        square = _nugget(kernel, O, self.jitter) * part @ part
        product = a @ (kernel(O, points) @ part) - (A_O @ a) @ (A_O[:, K] @ part) + square
        return len(O) / max(len(points), 1) * product


class Orthogonal(AbstractDecoupled):
    """The orthogonally decoupled family (12). With c(x, x′) = k(x, x′) − k_xu K_uu⁻¹ k_ux′, q(v) = N(m, S), v = L⁻¹u:
        E f(x) = a_xᵀm + c(x, O) a        V f(x) = that of `Whitened`
        KL = KL[q(v) ‖ N(0, I)] + ½ aᵀCa,  C = c(O, O).
    O models what Z cannot. With log-concave likelihoods the bound is concave in (m, a, chol S). Without O the family is
    `Whitened`. `columns` are those of C.
    """

    own: ClassVar[tuple[str, ...]] = ("q", "a")
    Z: Points
    O: Float[Number, "G D"]
    q: AbstractGaussian
    a: Coefficients
    columns: Columns = None
    jitter: float | None = eqx.field(static=True, default=None)

    def on(self, basis: DecoupledBasis) -> DecoupledProjection:
        """a_xᵀm + c(x, O)a = a_xᵀ(m − A_O a) + k(x, O)a,  A_O = L⁻¹K_uO."""
        return self._hybrid(basis, self.q, lambda m, A_Oa: (m, m - A_Oa))


class Hybrid(AbstractDecoupled):
    """The hybrid family (11), the mean basis not orthogonal to Z:
        E f(x) = a_xᵀm + k(x, O) a        V f(x) = that of `Whitened`
        KL = ½ (tr S − log |S| − M) + ½ ‖E f‖²,  ‖E f‖² = ‖m + A_O a‖² + aᵀCa  the squared RKHS norm of the whole mean.
    It is `Orthogonal` with m + A_O a for m: the same posteriors, worse conditioned in (m, a). The field `q` holds m and
    S; it is not q(v), whose mean is m + A_O a. `columns` are those of C.
    """

    own: ClassVar[tuple[str, ...]] = ("q", "a")
    Z: Points
    O: Float[Number, "G D"]
    q: AbstractGaussian
    a: Coefficients
    columns: Columns = None
    jitter: float | None = eqx.field(static=True, default=None)

    def on(self, basis: DecoupledBasis) -> DecoupledProjection:
        """E v = m + A_O a."""
        return self._hybrid(basis, self.q, lambda m, A_Oa: (m + A_Oa, m))


class Decoupled(AbstractDecoupled):
    """The decoupled family (8) of Cheng and Boots 2017, O their α and Z their β; `B` [M, M] holds R, B = RRᵀ (only its
    lower triangle is read):
        E f(x) = k(x, O) a        C[f(x), f(x′)] = k(x, x′) − k_xu (B⁻¹ + K_uu)⁻¹ k_ux′
        KL = ½ [aᵀK_OO a + log |I + K_uu B| − tr(K_uu (B⁻¹ + K_uu)⁻¹)].
    In v = L⁻¹u the covariance is S = (I + LᵀBL)⁻¹, of `Whitened` with more precision than the prior; so the KL's last
    two terms are tr S − log |S| − M. It has no Gaussian q in coordinates: `Optax` trains it. The bound is not concave
    in (a, R). `columns` are those of K_OO.
    """

    own: ClassVar[tuple[str, ...]] = ("a", "B")
    Z: Points
    O: Float[Number, "G D"]
    a: Coefficients
    B: Float[Number, "*C M M"]
    columns: Columns = None
    jitter: float | None = eqx.field(static=True, default=None)

    @property
    def q(self) -> Any:
        """(a, R): all that is variational."""
        return self.a, self.B

    def on(self, basis: DecoupledBasis) -> DecoupledProjection:
        """h = 0."""
        return self._inverse(basis, jnp.asarray(self.a), self.B)


class InverseHybrid(AbstractDecoupled):
    """The hybrid basis in its original form (appendix of Cheng and Boots 2017): `Decoupled` with α = O ∪ Z,
        E f(x) = k(x, O) a + k(x, Z) b,
    so that its means include those of `Unwhitened`, and Z moves mean and covariance. `columns` are those of O ∪ Z.
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
    def q(self) -> Any:
        """(a, b, R): all that is variational."""
        return self.a, self.b, self.B

    @property
    def mean_points(self) -> Any:
        """O ∪ Z."""
        return jnp.concatenate([jnp.asarray(self.O), jnp.asarray(self.Z)])

    def on(self, basis: DecoupledBasis) -> DecoupledProjection:
        """As `Decoupled`, with the coefficients (a, b)."""
        return self._inverse(basis, jnp.concatenate([jnp.asarray(self.a), jnp.asarray(self.b)]), self.B)


class OrthogonalBasis(AbstractBasis):
    """Whitened features of Z, and the kernel functions of O without the part that Z explains, of covariance C at O."""

    kernel: AbstractKernel
    Z: Float[Array, "M D"]
    O: Float[Array, "G D"]
    Kuu: Factor
    A_O: Float[Array, "M G"]
    C: Factor

    @staticmethod
    def of(posterior: Any, kernel: AbstractKernel, Kuu: Factor | None = None) -> "OrthogonalBasis":
        """The basis of any posterior with Z, O and jitter. It factorises C = K_OO − A_OᵀA_O + εI, and K_uu if that is
        not given. Where O is close to Z, C is of the size of ε; relative to C, ε would be rounding error."""
        Z, O = jnp.asarray(posterior.Z), jnp.asarray(posterior.O)
        Kuu = prior_factor(kernel, Z, posterior.jitter) if Kuu is None else Kuu
        A_O = Kuu.whiten(kernel(Z, O))
        nugget = _nugget(kernel, O, posterior.jitter)
        C = factorise(kernel(O, O) - transposed_product(A_O, A_O) + nugget * jnp.eye(len(O), dtype=O.dtype))
        return OrthogonalBasis(kernel, Z, O, Kuu, A_O, Factor(C.K, C.L, C.inverse, C.jitter + nugget))

    def __call__(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "M N"], Float[Array, "G N"], Float[Array, " N"]]:
        """A = L⁻¹K_uf, c(O, X) = K_Of − A_OᵀA, and the residual dᵢ given u."""
        A, d = features(self.kernel, self.Kuu, self.Z, X)
        return A, self.kernel(self.O, X) - transposed_product(self.A_O, A), d

    def rows(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "M N"], Float[Array, "G N"], Float[Array, " N"]]:
        """The features of `SolveGP`: aᵢ, cᵢ = L_c⁻¹c(O, xᵢ) with C = L_cL_cᵀ, and the residual kᵢᵢ − ‖aᵢ‖² − ‖cᵢ‖²."""
        A, c, d = self(X)
        c = self.C.whiten(c)
        return A, c, jnp.maximum(d - dots(c, c), 0)


def _nugget(kernel, O, jitter) -> Scalar:
    """ε of O, relative to the mean prior variance there, as the jitter of Z is."""
    level = default_jitter(O.dtype) if jitter is None else jitter
    return level * jnp.sum(kernel.diag(O)) / max(O.shape[0], 1)
