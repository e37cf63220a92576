"""Dense oracles of q(u) = N(Kμ, (K⁻¹ + diag g)⁻¹), in plain NumPy with explicit inverses (Kobe 2021, chapter 3).

Nothing here imports the library. Functions of ξ take complex numbers, so that a complex step differentiates them to the
last digit: f'(x) = Im f(x + ih)/h, h = 1e-30.
"""

from collections.abc import Callable

import numpy as np
from numpy.linalg import inv, slogdet, solve

Array = np.ndarray
Moments = Callable[[Array], tuple[Array, Array]]


def moments(K: Array, mu: Array, g: Array) -> tuple[Array, Array]:
    """m = Kμ and S = (K⁻¹ + G)⁻¹ (Kobe 3.5)."""
    return K @ mu, inv(inv(K) + np.diag(g))


def kl(K: Array, mu: Array, g: Array) -> float:
    """KL[q(u) ‖ p(u)] as printed (Kobe 3.7)."""
    B = K + np.diag(1 / g)
    return float(0.5 * (mu @ K @ mu - np.trace(inv(B) @ K) + slogdet(B)[1] - slogdet(np.diag(1 / g))[1]))


def coordinates(K: Array) -> dict[str, Moments]:
    """ξ ↦ (m, S) for ξ = (m, g), (μ, g) and (θ₁, g), θ₁ = S⁻¹m."""
    M = len(K)
    S = lambda xi: inv(inv(K) + np.diag(xi[M:]))
    return {
        "m": lambda xi: (xi[:M], S(xi)),
        "mu": lambda xi: (K @ xi[:M], S(xi)),
        "theta": lambda xi: (S(xi) @ xi[:M], S(xi)),
    }


def tangents(of: Moments, xi: Array) -> list[tuple[Array, Array]]:
    """∂m/∂ξₐ and ∂S/∂ξₐ for every a."""
    h = 1e-30
    at = [of(xi + 1j * h * e) for e in np.eye(len(xi))]
    return [(np.imag(m) / h, np.imag(S) / h) for m, S in at]


def fisher(of: Moments, xi: Array) -> Array:
    """F_ab = ∂ₐmᵀ S⁻¹ ∂_b m + ½ tr(S⁻¹ ∂ₐS S⁻¹ ∂_b S)  (Slepian 1954, Bangs 1971)."""
    P, d = inv(of(xi)[1]), tangents(of, xi)
    entry = lambda a, b: a[0] @ P @ b[0] + 0.5 * np.trace(P @ a[1] @ P @ b[1])
    return np.array([[entry(a, b) for b in d] for a in d])


def slope(of: Moments, xi: Array, dm: Array, dS: Array) -> Array:
    """∂L/∂ξ from those in m and S, all M² entries of S free."""
    return np.array([dm @ m + np.sum(dS * S) for m, S in tangents(of, xi)])


def natural_gradient(of: Moments, xi: Array, dm: Array, dS: Array) -> Array:
    """F⁻¹ ∂L/∂ξ by brute force."""
    return solve(fisher(of, xi), slope(of, xi, dm, dS))
