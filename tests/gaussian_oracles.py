"""Dense oracles of Gaussians in coordinates: maps, Fisher matrices and natural gradients, in plain NumPy and SciPy.

Nothing here imports the library. A coordinate system is a vector ξ without redundancy: the vector part, then one
triangle of the matrix (i ≥ j, row by row), which is symmetric or lower triangular. All maps take complex ξ, so that a
complex step differentiates them to the last digit: f'(x) = Im f(x + ih)/h, h = 1e-30.
"""

from collections.abc import Callable
from itertools import product

import numpy as np
from numpy.linalg import inv, solve
from numpy.polynomial.hermite_e import hermegauss
from scipy.linalg import expm

Array = np.ndarray
Moments = tuple[Array, Array]


def pack(vector: Array, matrix: Array) -> Array:
    """ξ of a vector and a matrix."""
    return np.concatenate([vector, np.asarray(matrix)[np.tril_indices(len(vector))]])


def size(xi: Array) -> int:
    """M, from M + M(M + 1)/2 numbers."""
    return int((np.sqrt(8 * len(xi) + 9) - 3) / 2 + 0.5)


def triangle(xi: Array) -> Array:
    """The lower triangular matrix of ξ."""
    M = size(xi)
    L = np.zeros((M, M), xi.dtype)
    L[np.tril_indices(M)] = xi[M:]
    return L


def symmetric(xi: Array) -> Array:
    """The symmetric matrix of ξ."""
    L = triangle(xi)
    return L + L.T - np.diag(np.diag(L))


def _natural(vector: Array, P: Array) -> Moments:
    return solve(P, vector), inv(P)


# ξ ↦ (m, S): Salimbeni et al. 2018, section 4, and (m, P).
TO_MOMENTS: dict[str, Callable[[Array], Moments]] = {
    "natural": lambda xi: _natural(xi[: size(xi)], -2 * symmetric(xi)),
    "natural_chol": lambda xi: _natural(xi[: size(xi)], 2 * triangle(xi) @ triangle(xi).T),
    "natural_log": lambda xi: _natural(xi[: size(xi)], 2 * expm(symmetric(xi))),
    "expectation": lambda xi: (xi[: size(xi)], symmetric(xi) - np.outer(xi[: size(xi)], xi[: size(xi)])),
    "mean_covariance": lambda xi: (xi[: size(xi)], symmetric(xi)),
    "mean_chol": lambda xi: (xi[: size(xi)], triangle(xi) @ triangle(xi).T),
    "mean_log": lambda xi: (xi[: size(xi)], expm(symmetric(xi))),
    "mean_precision": lambda xi: (xi[: size(xi)], inv(symmetric(xi))),
}


def jacobian(f: Callable[[Array], Array], xi: Array) -> Array:
    """∂f/∂ξ by complex steps, one column for each number of ξ."""
    h = 1e-30
    return np.stack([np.imag(f(xi + 1j * h * e)) / h for e in np.eye(len(xi))], axis=-1)


def moments_jacobian(name: str, xi: Array) -> tuple[Array, Array]:
    """∂m/∂ξ [M, P] and ∂S/∂ξ [M, M, P]."""
    return jacobian(lambda x: TO_MOMENTS[name](x)[0], xi), jacobian(lambda x: TO_MOMENTS[name](x)[1], xi)


def statistics(u: Array) -> Array:
    """t(u) = (uᵢ; uᵢuⱼ, i ≥ j), so that θᵀt has θᵢⱼ = 2Θᵢⱼ off the diagonal."""
    return pack(u, np.outer(u, u))


def statistics_covariance(m: Array, S: Array) -> Array:
    """Cov[t(u)], u ~ N(m, S), by a product of Gauss–Hermite rules of 4 nodes: exact, t tᵀ being of degree 4."""
    nodes, weights = hermegauss(4)
    weights, L = weights / weights.sum(), np.linalg.cholesky(S)
    points = [m + L @ np.array(z) for z in product(nodes, repeat=len(m))]
    share = np.array([np.prod(w) for w in product(weights, repeat=len(m))])
    t = np.stack([statistics(u) for u in points])
    centred = t - share @ t
    return (centred.T * share) @ centred


def natural_of(m: Array, S: Array) -> Array:
    """θ for the statistics above, from moments (complex ones too)."""
    P = inv(S)
    return pack(P @ m, -0.5 * (2 * P - np.diag(np.diag(P))))


def expectation_of(m: Array, S: Array) -> Array:
    """η = E t(u)."""
    return pack(m, S + np.outer(m, m))


def fisher(name: str, xi: Array) -> Array:
    """F(ξ)ₐᵦ = ∂ₐmᵀ S⁻¹ ∂ᵦm + ½ tr(S⁻¹ ∂ₐS S⁻¹ ∂ᵦS): Slepian–Bangs, true of any coordinates of a Gaussian."""
    _, S = TO_MOMENTS[name](xi)
    dm, dS = moments_jacobian(name, xi)
    scaled = np.einsum("ij,jka->ika", inv(S), dS)
    return dm.T @ inv(S) @ dm + 0.5 * np.einsum("ija,jib->ab", scaled, scaled)


def gradient(loss: Callable[[Array, Array], complex], name: str, xi: Array) -> Array:
    """∂L/∂ξ of an analytic L(m, S)."""
    return jacobian(lambda x: np.asarray(loss(*TO_MOMENTS[name](x))), xi)


def natural_gradient(loss: Callable[[Array, Array], complex], name: str, xi: Array) -> Array:
    """F(ξ)⁻¹ ∂L/∂ξ: Salimbeni (6), with an explicit Fisher matrix."""
    return solve(fisher(name, xi), gradient(loss, name, xi))


def pushed_gradient(loss: Callable[[Array, Array], complex], name: str, xi: Array) -> Array:
    """(∂ξ/∂θ) ∂L/∂η: Salimbeni (10), with an explicit Jacobian, the inverse of ∂θ/∂ξ, and ∂L/∂η by the chain rule."""
    m, S = TO_MOMENTS[name](xi)
    slope = gradient(loss, "expectation", expectation_of(m, S))
    return solve(jacobian(lambda x: natural_of(*TO_MOMENTS[name](x)), xi), slope)
