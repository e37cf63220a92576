"""The only file that factorises covariances. Positive definite matrices, their factors, and the derivatives of both.

A covariance matrix K is used here in three ways: whitening (L⁻¹B), its log determinant and its quadratic form. Each
has a derivative far cheaper than that of the Cholesky factor itself, so gradients never run through a factorisation:
`Factor` keeps K for its derivative and treats L and L⁻¹ as constants. L⁻¹ is formed once, because a product with it
runs three times as fast as a triangular solve with as many right-hand sides as a table has rows.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

__all__ = [
    "Factor",
    "Scalar",
    "cholesky",
    "default_jitter",
    "exp_symmetric",
    "explain_failure",
    "factorise",
    "gram",
    "inverse_of_chol",
    "invert",
    "log_symmetric",
    "quad_diag",
    "resolution",
    "solve_positive",
    "solve_square",
    "square",
    "symmetric",
    "transposed_product",
]

Scalar = Float[Array, ""]

ESCALATIONS = 5
SMALL = 80


def default_jitter(dtype: np.dtype | type) -> float:
    """Relative jitter for an inducing-point covariance: 1e-8 in float64, 1e-5 in float32."""
    return 1e-8 if jnp.finfo(dtype).bits == 64 else 1e-5


def resolution(dtype: np.dtype | type) -> float:
    """The least share of a signal's variance that noise can have and still be told from rounding: 1e-10 in float64,
    1e-5 in float32.

    Sums such as yᵀΣ⁻¹y − bᵀB⁻¹b cancel to a share σ²/k of their terms, which must stay well above the machine's ε.
    """
    return 1e-10 if jnp.finfo(dtype).bits == 64 else 1e-5


@jax.custom_jvp
def transposed_product(A: Float[Array, "K M"], B: Float[Array, "K N"]) -> Float[Array, "M N"]:
    """AᵀB. On CPUs a product takes twice the time where its left factor is read across its rows; the barrier makes it a
    copy."""
    return lax.optimization_barrier(A.T) @ B


@transposed_product.defjvp
def _transposed_product_jvp(primals, tangents):
    # Not through the barrier, whose transpose would read across again.
    (A, B), (dA, dB) = primals, tangents
    return transposed_product(A, B), dA.T @ B + A.T @ dB


@jax.custom_jvp
def square(L: Float[Array, "M K"]) -> Float[Array, "M M"]:
    """LLᵀ. The slope in L is one product, (G + Gᵀ)L, where JAX's own are two."""
    return L @ L.T


@square.defjvp
def _square_jvp(primals, tangents):
    half = tangents[0] @ primals[0].T
    return square(*primals), half + half.T


class Factor(eqx.Module):
    """K = L Lᵀ, with everything a Gaussian needs of it. K already contains the jitter; `jitter` says how much.

    First derivatives only: L is a constant to them, so a second derivative would silently miss a term.
    """

    K: Float[Array, "M M"]
    L: Float[Array, "M M"]
    inverse: Float[Array, "M M"]
    jitter: Scalar

    def whiten(self, B: Float[Array, "M B"]) -> Float[Array, "M B"]:
        """L⁻¹ B."""
        return _whiten(self.K, self.inverse, B)

    def moments(
        self,
        Kux: Float[Array, "M B"],
        prior: Float[Array, " B"],
        mean: Float[Array, " M"],
        cov: Float[Array, "M M"],
    ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
        """aᵢᵀm and kᵢᵢ − ‖aᵢ‖² + aᵢᵀSaᵢ with aᵢ = L⁻¹k_ui and kᵢᵢ in `prior`, S symmetric; ε kᵢᵢ where the difference
        does not resolve it. Three products with B columns, forward and back, where `whiten` and `quad_diag` take five.
        """
        mu, variance = _moments(self.K, self.inverse, Kux, prior, mean, cov)
        return mu, jnp.maximum(variance, jnp.finfo(prior.dtype).eps * prior)

    def half_logdet(self) -> Scalar:
        """½ log |K| = Σ log Lᵢᵢ."""
        return _half_logdet(self.K, self.L, self.inverse)

    def quadratic(self, b: Float[Array, " M"]) -> Scalar:
        """bᵀ K⁻¹ b = ‖L⁻¹b‖²."""
        return _quadratic(self.K, self.inverse, b)

    def solve(self, b: Float[Array, " M"]) -> Float[Array, " M"]:
        """K⁻¹ b (no derivative with respect to K)."""
        return self.inverse.T @ (self.inverse @ b)


def factorise(K: Float[Array, "M M"], jitter: float = 0.0) -> Factor:
    """Cholesky factor of a symmetric K + εI, with ε = jitter · mean(diag K), raised tenfold until it succeeds. K may be
    empty.

    After `ESCALATIONS` failures the factor is NaN; callers look at it and report with `explain_failure`. The jitter
    that was used is `Factor.jitter`. It is relative because an absolute one drowns small matrices and is lost in large
    ones.
    """
    if K.shape[0] == 0:
        return Factor(K, K, K, jnp.zeros((), K.dtype))
    scale = jnp.mean(jnp.diagonal(K))
    level, L = _escalate(lax.stop_gradient(K), lax.stop_gradient(scale), jitter)
    K = K + (level * scale) * jnp.eye(K.shape[0], dtype=K.dtype)
    return Factor(K, L, inverse_of_chol(L), level * scale)


def _escalate(K, scale, jitter):
    eye = jnp.eye(K.shape[0], dtype=K.dtype)
    first = jnp.asarray(jitter, K.dtype)
    floor = float(jnp.finfo(K.dtype).eps) * 10
    attempt = lambda level: cholesky(K + (level * scale) * eye)

    def failed(carry):
        count, _, L = carry
        return (count < ESCALATIONS) & ~jnp.isfinite(L[-1, -1])

    def again(carry):
        count, level, _ = carry
        level = jnp.maximum(10 * level, floor)
        return count + 1, level, attempt(level)

    _, level, L = lax.while_loop(failed, again, (0, first, attempt(first)))
    return level, L


# A batched LAPACK call shares its work out on XLA's thread pool and waits. Where every thread of the pool is such a
# waiter (two calls at once on two cores), nobody works: the program hangs (seen with jaxlib 0.10.2). So under vmap,
# factorisations go one after another.


@jax.custom_batching.sequential_vmap
def _cholesky(K):
    return jnp.linalg.cholesky(K, symmetrize_input=False)


@jax.custom_batching.sequential_vmap
def _inverse_of_chol(L):
    # [A 0; B C]⁻¹ = [A⁻¹ 0; −C⁻¹BA⁻¹ C⁻¹]: products do the work, two to three times faster than LAPACK's solve.
    M = L.shape[0]
    if M <= SMALL:
        return lax.linalg.triangular_solve(L, jnp.eye(M, dtype=L.dtype), left_side=True, lower=True)
    h = M // 2
    A, C = _inverse_of_chol(L[:h, :h]), _inverse_of_chol(L[h:, h:])
    return jnp.block([[A, jnp.zeros((h, M - h), L.dtype)], [-(C @ (L[h:, :h] @ A)), C]])


@jax.custom_jvp
def cholesky(K: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Lower L with LLᵀ = K, NaN where K is not positive definite."""
    return _cholesky(K)


@cholesky.defjvp
def _cholesky_jvp(primals, tangents):
    # L̇ = L Φ(L⁻¹ K̇ L⁻ᵀ), Φ = lower triangle with halved diagonal
    L = cholesky(*primals)
    inverse = inverse_of_chol(L)
    S = inverse @ (0.5 * (tangents[0] + tangents[0].T)) @ inverse.T
    return L, L @ (jnp.tril(S) - 0.5 * jnp.diag(jnp.diagonal(S)))


@jax.custom_jvp
def inverse_of_chol(L: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """L⁻¹ of a lower triangular L."""
    return _inverse_of_chol(L)


@inverse_of_chol.defjvp
def _inverse_of_chol_jvp(primals, tangents):
    # −L⁻¹ L̇ L⁻¹
    inverse = inverse_of_chol(*primals)
    return inverse, -inverse @ jnp.tril(tangents[0]) @ inverse


@partial(jnp.vectorize, signature="(m,m)->(m,m),()")
def invert(P: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Scalar]:
    """P⁻¹ and ½ log |P⁻¹| of one positive definite matrix, or of several along leading axes; NaN where it is not."""
    L = cholesky(P)
    inverse = inverse_of_chol(L)
    return transposed_product(inverse, inverse), -jnp.sum(jnp.log(jnp.diagonal(L)))


@partial(jnp.vectorize, signature="(m,m),(m)->(m)")
def solve_positive(P: Float[Array, "M M"], b: Float[Array, " M"]) -> Float[Array, " M"]:
    """P⁻¹b of one positive definite matrix, or of several along leading axes; NaN where it is not. No derivatives."""
    return _solve_positive(P, b)


@jax.custom_batching.sequential_vmap
def _solve_positive(P, b):
    L = jnp.linalg.cholesky(P, symmetrize_input=False)
    solve = partial(lax.linalg.triangular_solve, L, left_side=True, lower=True)
    return solve(solve(b[:, None]), transpose_a=True)[:, 0]


def symmetric(A: Float[Array | np.ndarray, "M M"]) -> Float[Array | np.ndarray, "M M"]:
    """½(A + Aᵀ): how a symmetric matrix is read of M² free numbers."""
    return 0.5 * (A + A.T)


@jax.custom_batching.sequential_vmap
def _eigh(A):
    return jnp.linalg.eigh(A, symmetrize_input=False)


@jax.custom_jvp
def exp_symmetric(A: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """exp(A) = V exp(Λ) Vᵀ, the matrix exponential of the symmetric part of A = VΛVᵀ. First derivatives only."""
    values, V = _eigh(symmetric(A))
    return (V * jnp.exp(values)) @ V.T


@exp_symmetric.defjvp
def _exp_symmetric_jvp(primals, tangents):
    # (e^a − e^b)/(a − b) = e^a (1 − e^−d)/d,  a ≥ b,  d = a − b
    values, V = _eigh(symmetric(*primals))
    high, _, d = _pairs(values)
    slope = jnp.exp(high) * jnp.where(d > 0, -jnp.expm1(-d) / jnp.where(d > 0, d, 1), 1)
    return (V * jnp.exp(values)) @ V.T, _daleckii_krein(V, slope, tangents[0])


@jax.custom_jvp
def log_symmetric(A: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """log(A) = V log(Λ) Vᵀ, the matrix logarithm of the symmetric part of A = VΛVᵀ; NaN where it is not positive
    definite. First derivatives only. An eigenvalue has an error of ε λmax, so digits are lost as cond(A) grows.
    """
    values, V = _eigh(symmetric(A))
    return (V * _log(values)) @ V.T


@log_symmetric.defjvp
def _log_symmetric_jvp(primals, tangents):
    # (log a − log b)/(a − b) = log(1 + d/b)/d,  a ≥ b,  d = a − b
    values, V = _eigh(symmetric(*primals))
    _, low, d = _pairs(values)
    slope = jnp.where(d > 0, jnp.log1p(d / low) / jnp.where(d > 0, d, 1), 1 / low)
    return (V * _log(values)) @ V.T, _daleckii_krein(V, slope, tangents[0])


def _log(values):
    return jnp.log(jnp.where(values > 0, values, jnp.nan))


def _pairs(values):
    """The larger and the smaller of λᵢ and λⱼ, and their difference, [M, M]."""
    high, low = jnp.maximum(values[:, None], values), jnp.minimum(values[:, None], values)
    return high, low, high - low


def _daleckii_krein(V, slope, E):
    """D f(A)[E] = V (Γ ∘ VᵀEV) Vᵀ with the divided differences Γᵢⱼ = (f(λᵢ) − f(λⱼ))/(λᵢ − λⱼ), Γᵢᵢ = f′(λᵢ).

    The eigenvectors' own derivative does not exist where eigenvalues coincide, this one does (Daleckii and Krein 1965;
    Higham, Functions of Matrices, 3.11).
    """
    return V @ (slope * (V.T @ symmetric(E) @ V)) @ V.T


def solve_square(A: Float[Array, "M M"], b: Float[Array, " M"]) -> Float[Array, " M"]:
    """A⁻¹ b of any square A, by LU with pivots: for what is not symmetric. NaN or infinite where A is singular."""
    return jnp.linalg.solve(A, b)


@jax.custom_vjp
def _whiten(K, inverse, B):
    return inverse @ B


def _whiten_fwd(K, inverse, B):
    A = inverse @ B
    return A, (inverse, A)


def _whiten_bwd(residuals, W):
    # With A = L⁻¹B and cotangent W:  B̄ = L⁻ᵀW,  K̄ = −½ L⁻ᵀ(Φ + Φᵀ)L⁻¹,  Φ = tril(WAᵀ) with halved diagonal.
    inverse, A = residuals
    return _through_whitening(inverse, W @ A.T), None, transposed_product(inverse, W)


def _through_whitening(inverse, WA):
    Phi = jnp.tril(WA)
    Phi = Phi - 0.5 * jnp.diag(jnp.diagonal(Phi))
    return -0.5 * (transposed_product(inverse, Phi + Phi.T) @ inverse)


_whiten.defvjp(_whiten_fwd, _whiten_bwd)


@jax.custom_vjp
def _moments(K, inverse, Kux, prior, mean, cov):
    return _moments_fwd(K, inverse, Kux, prior, mean, cov)[0]


def _moments_fwd(K, inverse, Kux, prior, mean, cov):
    # aᵀ(S − I)a = kᵀt, T = L⁻ᵀ(S − I)A
    A, R = inverse @ Kux, cov - jnp.eye(len(cov), dtype=cov.dtype)
    T = transposed_product(inverse, R) @ A
    return (mean @ A, prior + jnp.sum(Kux * T, axis=0)), (inverse, A, R, T, mean)


def _moments_bwd(residuals, cotangents):
    # S̄ = A diag(g) Aᵀ.  W = Ā = mαᵀ + 2(S − I)A diag(g), so WAᵀ = m(Aα)ᵀ + 2(S − I)S̄ and L⁻ᵀW = L⁻ᵀmαᵀ + 2T diag(g).
    (inverse, A, R, T, mean), (alpha, g) = residuals, cotangents
    S_bar, m_bar = (A * g) @ A.T, A @ alpha
    K_bar = _through_whitening(inverse, jnp.outer(mean, m_bar) + 2 * (R @ S_bar))
    return K_bar, None, jnp.outer(mean @ inverse, alpha) + 2 * T * g, g, m_bar, S_bar


_moments.defvjp(_moments_fwd, _moments_bwd)


@jax.custom_vjp
def _half_logdet(K, L, inverse):
    return jnp.sum(jnp.log(jnp.diagonal(L)))


def _half_logdet_fwd(K, L, inverse):
    return _half_logdet(K, L, inverse), inverse


def _half_logdet_bwd(inverse, g):
    # ∂ ½log|K| = ½ K⁻¹
    return (0.5 * g) * transposed_product(inverse, inverse), None, None


_half_logdet.defvjp(_half_logdet_fwd, _half_logdet_bwd)


@jax.custom_vjp
def _quadratic(K, inverse, b):
    c = inverse @ b
    return c @ c


def _quadratic_fwd(K, inverse, b):
    c = inverse @ b
    return c @ c, inverse.T @ c


def _quadratic_bwd(solution, g):
    # ∂ bᵀK⁻¹b = −K⁻¹b bᵀK⁻¹ : K̄,  2K⁻¹b : b̄
    return -g * jnp.outer(solution, solution), None, (2 * g) * solution


_quadratic.defvjp(_quadratic_fwd, _quadratic_bwd)


@jax.custom_vjp
def quad_diag(S: Float[Array, "M M"], A: Float[Array, "M B"]) -> Float[Array, " B"]:
    """aᵢᵀ S aᵢ for every column aᵢ of A and symmetric S, shape [B]. Symmetry saves one product in the derivative."""
    return jnp.sum(A * (S @ A), axis=0)


def _quad_diag_fwd(S, A):
    T = S @ A
    return jnp.sum(A * T, axis=0), (A, T)


def _quad_diag_bwd(residuals, g):
    # S̄ = A diag(g) Aᵀ,  Ā = 2 S A diag(g)
    A, T = residuals
    return (A * g) @ A.T, 2 * T * g


quad_diag.defvjp(_quad_diag_fwd, _quad_diag_bwd)


@jax.custom_vjp
def gram(A: Float[Array, "M B"], weight: Float[Array, " B"]) -> Float[Array, "M M"]:
    """Σᵢ wᵢ aᵢaᵢᵀ over the columns of A, shape [M, M]: the adjoint of `quad_diag`, with the same saving."""
    return (A * weight) @ A.T


def _gram_fwd(A, weight):
    return (A * weight) @ A.T, (A, weight)


def _gram_bwd(residuals, G):
    # With the symmetric part G of the cotangent:  Ā = 2 G A diag(w),  w̄ᵢ = aᵢᵀ G aᵢ
    A, weight = residuals
    T = (0.5 * (G + G.T)) @ A
    return 2 * T * weight, jnp.sum(A * T, axis=0)


gram.defvjp(_gram_fwd, _gram_bwd)


def explain_failure(K: np.ndarray, name: str, points: np.ndarray | None = None) -> str:
    """One sentence on why a covariance matrix could not be factorised, and what to do about it (runs on the host)."""
    K = np.asarray(K, float)
    if not np.isfinite(K).all():
        wrong = ~np.isfinite(K)
        bad = int(wrong.all(axis=1).sum() or wrong.any(axis=1).sum())
        return (
            f"{name} holds NaN or infinity in {bad} of {len(K)} rows: check the data and the hyperparameters "
            "(a lengthscale or variance that overflowed); restart from smaller steps or standardised inputs."
        )
    eigenvalues = np.linalg.eigvalsh((K + K.T) / 2)
    text = f"{name} ({len(K)} × {len(K)}) is not positive definite: smallest eigenvalue {eigenvalues[0]:.2e}, "
    text += f"largest {eigenvalues[-1]:.2e}"
    if points is not None and len(points) > 1:
        squared = np.stack([((points - point) ** 2).sum(-1) for point in points])
        np.fill_diagonal(squared, np.inf)
        i, j = np.unravel_index(np.argmin(squared), squared.shape)
        text += f", nearest pair of points {i} and {j} at distance {squared[i, j] ** 0.5:.2e}"
    return text + "; use fewer inducing points, remove duplicates, raise the jitter, or compute in float64."
