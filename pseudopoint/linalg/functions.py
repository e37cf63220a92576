"""Functions of symmetric matrices, and their eigenvectors."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .products import symmetric

__all__ = ["eigh", "exp_symmetric", "log_symmetric", "lower_root"]


@jax.custom_batching.sequential_vmap
def _eigh(A):
    return jnp.linalg.eigh(A, symmetrize_input=False)


@jax.custom_jvp
def eigh(A: Float[Array, "M M"]) -> tuple[Float[Array, " M"], Float[Array, "M M"]]:
    """λ, ascending, and V of the symmetric part of A = V diag(λ) Vᵀ. Where two λ coincide V has no derivative, and the
    result is not finite."""
    return tuple(_eigh(symmetric(A)))


@eigh.defjvp
def _eigh_jvp(primals, tangents):
    # λ̇ᵢ = Eᵢᵢ,  V̇ = V (Eᵢⱼ/(λⱼ − λᵢ))_{i ≠ j},  E = VᵀȦV
    values, V = _eigh(symmetric(*primals))
    E, eye = V.T @ symmetric(*tangents) @ V, jnp.eye(len(values), dtype=V.dtype)
    turn = (1 - eye) * E / (values - values[:, None] + eye)
    return (values, V), (jnp.diagonal(E), V @ turn)


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
    """log(A) = V log(Λ) Vᵀ, the matrix logarithm of the symmetric part of A = VΛVᵀ; NaN if it is not positive definite.
    First derivatives only. Eigenvalues have errors of ε λmax, so that digits are lost as cond(A) grows."""
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

    It exists also where eigenvalues coincide, unlike the derivative of the eigenvectors (Daleckii and Krein 1965;
    Higham, Functions of Matrices, 3.11).
    """
    return V @ (slope * (V.T @ symmetric(E) @ V)) @ V.T


def lower_root(A: Float[np.ndarray, "M M"]) -> Float[np.ndarray, "M M"]:
    """Lower triangular T with TᵀT = AᵀA, on the host, without forming AᵀA, which would lose its small eigenvalues."""
    if not np.triu(A, 1).any():
        return A
    # With J, which reverses:  AJ = QR,  so  AᵀA = (JRJ)ᵀ JRJ
    return np.flip(np.asarray(np.linalg.qr(A[:, ::-1], mode="r")))
