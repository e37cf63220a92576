"""Covariance matrices and their factors.

Whitening (L⁻¹B), the log determinant and the quadratic form of a covariance K = LLᵀ have derivatives far cheaper than
that of the Cholesky factor, so gradients never run through a factorisation: `Factor` differentiates with respect to K
and treats L and L⁻¹ as constants. L⁻¹ is formed once, because a product with it is three times as fast as a triangular
solve with many right-hand sides.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .blocked import lower_product, lower_transposed_product, symmetric_product, tril_product
from .inverses import Scalar, cholesky, inverse_of_chol, refined_inverse
from .products import dots, outer, plain_gram, symmetric

__all__ = [
    "ESCALATIONS",
    "Factor",
    "default_jitter",
    "explain_failure",
    "factorise",
    "min_noise_ratio",
    "through_whitening",
]

ESCALATIONS = 5


def default_jitter(dtype: np.dtype | type) -> float:
    """Relative jitter for an inducing-point covariance: 1e-8 in float64, 1e-5 in float32."""
    return 1e-8 if jnp.finfo(dtype).bits == 64 else 1e-5


def min_noise_ratio(dtype: np.dtype | type) -> float:
    """The smallest ratio of noise to signal variance that rounding allows: 1e-10 in float64, 1e-5 in float32.

    Sums such as yᵀΣ⁻¹y − bᵀB⁻¹b cancel to a share σ²/k of their terms, which must stay well above the machine's ε.
    """
    return 1e-10 if jnp.finfo(dtype).bits == 64 else 1e-5


class Factor(eqx.Module):
    """K = LLᵀ and what a Gaussian needs of it. K contains the jitter, which `jitter` holds, too.

    First derivatives only: L counts as constant, so that a second derivative would silently miss a term.
    """

    K: Float[Array, "M M"]
    L: Float[Array, "M M"]
    inverse: Float[Array, "M M"]
    jitter: Scalar

    def whiten(self, B: Float[Array, "M B"]) -> Float[Array, "M B"]:
        """L⁻¹ B."""
        return _whiten(self.K, self.inverse, B)

    def moments(
        self, Kux: Float[Array, "M B"], prior: Float[Array, " B"], mean: Float[Array, " M"], cov: Float[Array, "M M"]
    ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
        """aᵢᵀm and kᵢᵢ − ‖aᵢ‖² + aᵢᵀSaᵢ, at least ε kᵢᵢ, with aᵢ = L⁻¹k_ui, kᵢᵢ in `prior` and symmetric S.

        Three products with B columns, forward and back, where `whiten` and `quad_diag` take five.
        """
        mu, variance = _moments(self.K, self.inverse, Kux, prior, mean, cov)
        return mu, jnp.maximum(variance, jnp.finfo(prior.dtype).eps * prior)

    def half_logdet(self) -> Scalar:
        """½ log |K| = Σ log Lᵢᵢ."""
        return _half_logdet(self.K, self.L, self.inverse)

    def quadratic(self, b: Float[Array, "M *C"]) -> Scalar:
        """bᵀ K⁻¹ b = ‖L⁻¹b‖²; of C columns the sum."""
        return _quadratic(self.K, self.inverse, b)

    def solve(self, b: Float[Array, "M *C"]) -> Float[Array, "M *C"]:
        """K⁻¹ b."""
        return _solve(self.K, self.inverse, b)


def factorise(K: Float[Array, "M M"], jitter: float = 0.0, refine: bool = False) -> Factor:
    """Cholesky factor of a symmetric K + εI, with ε = jitter · mean(diag K), raised tenfold until it succeeds.

    After `ESCALATIONS` failures the factor is NaN; callers check it and report with `explain_failure`. The jitter is
    relative because an absolute one would be too large for small matrices and without effect on large ones. `refine`,
    for a K without jitter, makes L⁻¹ by `refined_inverse`. K may be empty.
    """
    if K.shape[0] == 0:
        return Factor(K, K, K, jnp.zeros((), K.dtype))
    scale = jnp.trace(K) / K.shape[0]
    level, L = _escalate(lax.stop_gradient(K), lax.stop_gradient(scale), jitter)
    K = K + (level * scale) * jnp.eye(K.shape[0], dtype=K.dtype)
    inverse = inverse_of_chol(L)
    return Factor(K, L, refined_inverse(L, inverse) if refine else inverse, level * scale)


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


@jax.custom_vjp
def _whiten(K, inverse, B):
    return lower_product(inverse, B)


def _whiten_fwd(K, inverse, B):
    A = lower_product(inverse, B)
    return A, (inverse, A)


def _whiten_bwd(residuals, W):
    # With A = L⁻¹B and cotangent W:  B̄ = L⁻ᵀW,  K̄ = `through_whitening`.
    inverse, A = residuals
    return through_whitening(inverse, tril_product(W, A)), None, lower_transposed_product(inverse, W)


def through_whitening(inverse: Float[Array, "M M"], WA: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """The cotangent K̄ = −½ L⁻ᵀ(Φ + Φᵀ)L⁻¹ of K for the cotangent W of A = L⁻¹B, Φ = tril(WAᵀ) with halved diagonal.

    Only the lower triangle of `WA` = WAᵀ is read.
    """
    both = jnp.tril(WA) + jnp.tril(WA, -1).T
    return -0.5 * symmetric_product(lower_transposed_product(inverse, both), inverse.T)


_whiten.defvjp(_whiten_fwd, _whiten_bwd)


@jax.custom_vjp
def _moments(K, inverse, Kux, prior, mean, cov):
    return _moments_fwd(K, inverse, Kux, prior, mean, cov)[0]


def _moments_fwd(K, inverse, Kux, prior, mean, cov):
    # aᵀ(S − I)a = kᵀt, T = L⁻ᵀ(S − I)A
    A, R = lower_product(inverse, Kux), cov - jnp.eye(len(cov), dtype=cov.dtype)
    T = lower_transposed_product(inverse, R) @ A
    return (mean @ A, prior + dots(Kux, T)), (inverse, A, R, T, mean)


def _moments_bwd(residuals, cotangents):
    # S̄ = A diag(g) Aᵀ.  W = Ā = mαᵀ + 2(S − I)A diag(g), so WAᵀ = m(Aα)ᵀ + 2(S − I)S̄ and L⁻ᵀW = L⁻ᵀmαᵀ + 2T diag(g).
    (inverse, A, R, T, mean), (alpha, g) = residuals, cotangents
    S_bar, m_bar = plain_gram(A, g), A @ alpha
    K_bar = through_whitening(inverse, jnp.outer(mean, m_bar) + 2 * tril_product(R, S_bar))
    return K_bar, None, jnp.outer(mean @ inverse, alpha) + 2 * T * g, g, m_bar, S_bar


_moments.defvjp(_moments_fwd, _moments_bwd)


@jax.custom_vjp
def _half_logdet(K, L, inverse):
    return jnp.sum(jnp.log(jnp.diagonal(L)))


# ∂ ½log|K| = ½ K⁻¹
_half_logdet.defvjp(
    lambda K, L, inverse: (_half_logdet(K, L, inverse), inverse),
    lambda inverse, g: ((0.5 * g) * lower_transposed_product(inverse, inverse), None, None),
)


@jax.custom_vjp
def _quadratic(K, inverse, b):
    c = inverse @ b
    return jnp.vdot(c, c)


def _quadratic_fwd(K, inverse, b):
    c = inverse @ b
    return jnp.vdot(c, c), inverse.T @ c


def _quadratic_bwd(solution, g):
    # ∂ bᵀK⁻¹b = −K⁻¹b bᵀK⁻¹ : K̄,  2K⁻¹b : b̄
    return -g * outer(solution, solution), None, (2 * g) * solution


_quadratic.defvjp(_quadratic_fwd, _quadratic_bwd)


def explain_failure(K: np.ndarray, name: str, points: np.ndarray | None = None) -> str:
    """One sentence on why a covariance matrix could not be factorised, and what to do about it. Runs on the host."""
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


@jax.custom_vjp
def _solve(K, inverse, b):
    return inverse.T @ (inverse @ b)


def _solve_fwd(K, inverse, b):
    x = _solve(K, inverse, b)
    return x, (inverse, x)


def _solve_bwd(residuals, g):
    # b̄ = K⁻¹x̄,  K̄ = −½(b̄xᵀ + xb̄ᵀ)
    inverse, x = residuals
    b = _solve(None, inverse, g)
    return -symmetric(outer(b, x)), None, b


_solve.defvjp(_solve_fwd, _solve_bwd)
