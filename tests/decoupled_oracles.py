"""Dense oracles of the decoupled families, in plain NumPy: explicit Gaussians at Z ∪ O, and the KL of these.

As in `oracles.py`, nothing here imports the library, and nothing is whitened. k is a function of two sets of points;
Kuu is the prior covariance at Z with whatever jitter it has, and q(u) = N(m, S) is that of u = f(Z). Numbers are those
of Salimbeni, Cheng, Boots and Deisenroth 2018. Erratum: (16a) prints K_γβ twice; the matrix is K_γ − K_γβ K_β⁻¹ K_βγ.
"""

from collections.abc import Callable

import numpy as np
from numpy.linalg import inv, solve
from oracles import Array, gauss_kl, log_normal, nystrom

Kernel = Callable[[Array, Array], Array]


def joint(k: Kernel, Z: Array, O: Array, jitter: float = 0.0) -> Array:
    """The prior covariance of f at Z ∪ O, with jitter relative to the mean variance on either set."""
    nuggets = [jitter * np.mean(np.diag(k(A, A))) * np.ones(len(A)) for A in (Z, O)]
    both = np.concatenate([Z, O])
    return k(both, both) + np.diag(np.concatenate(nuggets))


def at_all(K: Array, mean: Array, S: Array) -> tuple[Array, Array]:
    """q at Z ∪ O with the prior K there: this mean, and u ~ N(·, S) with the prior's conditional for f(O) given u."""
    M = len(S)
    T = solve(K[:M, :M], K[:M, M:]).T
    lower = np.vstack([np.eye(M), T])
    residual = np.zeros_like(K)
    residual[M:, M:] = K[M:, M:] - T @ K[:M, M:]
    return mean, lower @ S @ lower.T + residual


def orthogonal_mean(k: Kernel, Kuu: Array, X: Array, Z: Array, O: Array, m: Array, a: Array) -> Array:
    """(k_xγ − k_xβ K_β⁻¹ K_βγ) a + k_xβ K_β⁻¹ m: (12)."""
    return (k(X, O) - k(X, Z) @ solve(Kuu, k(Z, O))) @ a + k(X, Z) @ solve(Kuu, m)


def hybrid_mean(k: Kernel, Kuu: Array, X: Array, Z: Array, O: Array, m: Array, a: Array) -> Array:
    """k_xγ a + k_xβ K_β⁻¹ m: (11)."""
    return k(X, O) @ a + k(X, Z) @ solve(Kuu, m)


def variance(k: Kernel, Kuu: Array, X: Array, Z: Array, S: Array) -> Array:
    """k − k_xβ K_β⁻¹ k_βx + k_xβ K_β⁻¹ S K_β⁻¹ k_βx: (10)."""
    T = solve(Kuu, k(Z, X))
    return np.diag(k(X, X) - T.T @ k(Z, X) + T.T @ S @ T)


def inverse_variance(k: Kernel, Kuu: Array, X: Array, Z: Array, B: Array) -> Array:
    """k − k_xβ (B⁻¹ + K_β)⁻¹ k_βx: (8)."""
    return np.diag(k(X, X) - k(X, Z) @ solve(inv(B) + Kuu, k(Z, X)))


def inverse_at_all(K: Array, M: int, mean: Array, B: Array) -> tuple[Array, Array]:
    """q at Z ∪ O in the parameters of (8): covariance K − K_·β (B⁻¹ + K_β)⁻¹ K_β·."""
    return mean, K - K[:, :M] @ solve(inv(B) + K[:M, :M], K[:M, :])


def divergence(q: tuple[Array, Array], K: Array) -> float:
    """KL of the two dense Gaussians at Z ∪ O."""
    return gauss_kl(*q, np.zeros(len(K)), K)


def fit(mean: Array, variance: Array, y: Array, noise: Array, weight: Array) -> float:
    """Σ wᵢ E log N(yᵢ; fᵢ, noiseᵢ)."""
    return float(weight @ (-0.5 * np.log(2 * np.pi * noise) - 0.5 * ((y - mean) ** 2 + variance) / noise))


def collapsed(Qmean: Array, Kff_diag: Array, Kuf: Array, Kuu: Array, noise: Array, y: Array, tight: bool) -> float:
    """log-determinant of Q_Z, quadratic form of `Qmean`, and the trace term: methods a.5."""
    Q = nystrom(Kuf, Kuu)
    zero = np.zeros_like(y)
    quadratic = y @ solve(Qmean + np.diag(noise), y)
    x = (Kff_diag - np.diag(Q)) / noise
    cost = 0.5 * float(np.sum(np.log1p(x) if tight else x))
    return log_normal(zero, zero, Q + np.diag(noise)) - 0.5 * float(quadratic) - cost
