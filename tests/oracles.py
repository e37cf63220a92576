"""Dense oracles: every formula the library relies on, written out once in plain NumPy, slowly and without tricks.

Nothing here imports the library, and nothing here is whitened, batched, cached or differentiated automatically, so that
agreement with the library is evidence. Conventions: float64 arrays; X (N, D), Z (M, D), y (N,); `noise` (N,) is the
noise VARIANCE of every row; Kff (N, N), Kuf (M, N), Kuu (M, M), Ksu (S, M) are prior covariances made by the caller,
who has already added any jitter to Kuu; q(u) = N(m, S) with S the full M x M covariance of the UNWHITENED u. Below,
Λ = diag(1 / noise), Q = Kfu Kuu⁻¹ Kuf, D = Kff - Q. Every bound is to be maximised. Sources: Izmailov = review of GP
methods; Kobe = efficient parameterisation (2021); Salimbeni = natural gradients in practice (2018); GPML = Rasmussen
and Williams (2006).
"""

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
from numpy.linalg import inv, slogdet, solve
from scipy.integrate import quad
from scipy.linalg import sqrtm
from scipy.optimize import minimize

Array = np.ndarray

# --- kernels: k(x, z) for one pair of points, then a double loop -----------------------------------------------------


def gram(k: Callable[[Array, Array], float], X: Array, Z: Array) -> Array:
    """Return the matrix [k(x_i, z_j)] by a double loop."""
    return np.array([[float(k(x, z)) for z in Z] for x in X])


def distance(x: Array, z: Array, lengthscale: float | Array) -> float:
    """Scaled Euclidean distance r = sqrt(Σ_d (x_d - z_d)² / l_d²), l a scalar or one number per input dimension."""
    return float(np.sqrt(np.sum((x - z) ** 2 / np.asarray(lengthscale) ** 2)))


def rbf(X: Array, Z: Array, lengthscale: float | Array, variance: float) -> Array:
    """Squared exponential v exp(-r²/2): GPML (4.9), Kobe (2.3)."""
    return gram(lambda x, z: variance * np.exp(-0.5 * distance(x, z, lengthscale) ** 2), X, Z)


def orthogonal_additive(X: Array, Z: Array, lengthscale, variance, interaction, mean, spread) -> Array:
    """Sums of products over sets of columns of κ(x, z) − E κ(x, s) E κ(s, z)/E κ(s, s′), s ~ N(mean, spread²): Lu,
    Boukouvalas and Hensman 2022 (8), its means by Gauss-Hermite quadrature, and Durrande et al. 2013 (9)."""
    D = X.shape[1]
    lengthscale, variance, mean, spread = (np.broadcast_to(a, D) for a in (lengthscale, variance, mean, spread))
    nodes, w = np.polynomial.hermite_e.hermegauss(100)
    w = w / w.sum()

    def part(d):
        kappa = lambda x, z: np.exp(-0.5 * (x[:, None] - z) ** 2 / lengthscale[d] ** 2)
        s = mean[d] + spread[d] * nodes
        along = lambda x: kappa(x, s) @ w
        known = np.outer(along(X[:, d]), along(Z[:, d])) / (w @ kappa(s, s) @ w)
        return variance[d] * (kappa(X[:, d], Z[:, d]) - known)

    parts, weights = [part(d) for d in range(D)], [1.0, *np.atleast_1d(interaction)]
    if D <= 8:
        orders = [np.sum([np.prod(c, axis=0) for c in combinations(parts, o)], axis=0) for o in (1, 2, 3) if o <= D]
    else:  # Newton's identities
        p, q, r = (np.sum(np.power(parts, power), axis=0) for power in (1, 2, 3))
        orders = [p, (p**2 - q) / 2, (p**3 - 3 * p * q + 2 * r) / 6]
    return np.sum([w * e for w, e in zip(weights, orders, strict=False)], axis=0)


def matern12(X: Array, Z: Array, lengthscale: float | Array, variance: float) -> Array:
    """Matérn, ν = 1/2: v exp(-r). GPML section 4.2.1."""
    return gram(lambda x, z: variance * np.exp(-distance(x, z, lengthscale)), X, Z)


def matern32(X: Array, Z: Array, lengthscale: float | Array, variance: float) -> Array:
    """Matérn, ν = 3/2: v (1 + √3 r) exp(-√3 r). GPML (4.17)."""

    def k(x, z):
        r = np.sqrt(3.0) * distance(x, z, lengthscale)
        return variance * (1.0 + r) * np.exp(-r)

    return gram(k, X, Z)


def matern52(X: Array, Z: Array, lengthscale: float | Array, variance: float) -> Array:
    """Matérn, ν = 5/2: v (1 + √5 r + 5r²/3) exp(-√5 r). GPML (4.17), Kobe (2.4).

    Errata: Kobe prints ν = 2/5 for 5/2, and (2.4) leaves out the variance σ_f² of his (2.3).
    """

    def k(x, z):
        r = distance(x, z, lengthscale)
        return variance * (1.0 + np.sqrt(5.0) * r + 5.0 * r**2 / 3.0) * np.exp(-np.sqrt(5.0) * r)

    return gram(k, X, Z)


def rational_quadratic(X: Array, Z: Array, lengthscale: float | Array, variance: float, alpha: float) -> Array:
    """Rational quadratic v (1 + r²/(2α))^(-α): GPML (4.19)."""
    return gram(lambda x, z: variance * (1.0 + distance(x, z, lengthscale) ** 2 / (2.0 * alpha)) ** -alpha, X, Z)


def periodic(X: Array, Z: Array, lengthscale: float | Array, variance: float, period: float | Array) -> Array:
    """Periodic v exp(-2 Σ_d sin²(π (x_d - z_d) / p_d) / l_d²): GPML (4.31), MacKay 1998.

    GPflow's Periodic(SquaredExponential) has ½ where this has 2: its lengthscale is ours halved.
    """

    def k(x, z):
        s = np.sin(np.pi * (x - z) / np.asarray(period)) / np.asarray(lengthscale)
        return variance * np.exp(-2.0 * np.sum(s**2))

    return gram(k, X, Z)


def linear(X: Array, Z: Array, variance: float | Array) -> Array:
    """Linear Σ_d v_d x_d z_d, v a scalar or one number per input dimension: GPML, section 4.2.2."""
    return gram(lambda x, z: np.sum(np.asarray(variance) * (x * z)), X, Z)


def polynomial(X: Array, Z: Array, variance: float | Array, offset: float, degree: int) -> Array:
    """Polynomial (Σ_d v_d x_d z_d + offset)^degree: GPML, section 4.2.2."""
    return gram(lambda x, z: (np.sum(np.asarray(variance) * x * z) + offset) ** degree, X, Z)


def cosine(X: Array, Z: Array, period: float | Array, variance: float) -> Array:
    """A wave v cos(2π Σ_d (x_d − z_d)/p_d): Wilson and Adams 2013 (12) without the decay."""
    return gram(lambda x, z: float(variance * np.cos(2 * np.pi * np.sum((x - z) / np.asarray(period)))), X, Z)


def arc_cosine(X: Array, Z: Array, variance: float | Array, offset: float) -> Array:
    """Cho and Saul 2009 (1) and (6), order 1, of the inputs (√v x, √offset)."""
    ours = lambda x: np.append(np.sqrt(np.broadcast_to(np.asarray(variance), x.shape)) * x, np.sqrt(offset))

    def k(x, z):
        a, b = ours(x), ours(z)
        size = np.linalg.norm(a) * np.linalg.norm(b)
        angle = np.arccos(np.clip(a @ b / size, -1, 1))
        return float(size / np.pi * (np.sin(angle) + (np.pi - angle) * np.cos(angle)))

    return gram(k, X, Z)


def hamming(X: Array, Z: Array, lengthscale: float | Array, variance: float) -> Array:
    """v Π_d (1 where x_d = z_d, else exp(−1/l_d))."""
    each = lambda x: np.exp(-1 / np.broadcast_to(np.asarray(lengthscale), x.shape))
    return gram(lambda x, z: variance * np.prod(np.where(x == z, 1.0, each(x))), X, Z)


def spectral_mixture(X: Array, Z: Array, variance: Array, frequency: Array, bandwidth: Array) -> Array:
    """Wilson and Adams 2013 (12), with the cosine of the sum over columns."""
    one = lambda t, v, f, b: v * np.exp(-2 * np.pi**2 * np.sum((b * t) ** 2)) * np.cos(2 * np.pi * np.sum(f * t))
    each = list(zip(variance, frequency, bandwidth, strict=True))
    return gram(lambda x, z: sum(one(x - z, *part) for part in each), X, Z)


def coregion(x: Array, z: Array, factor: Array, own: Array) -> Array:
    """B[c(x), c(z)] of two columns of codes."""
    B = factor @ factor.T + np.diag(own)
    codes = lambda v: np.clip(np.floor(np.nan_to_num(v) + 0.5), 0, len(own) - 1).astype(int)
    return B[np.ix_(codes(x), codes(z))] + 0 * np.add.outer(x, z)


def changepoint(x: Array, z: Array, both: list[Array], location: float, width: float) -> Array:
    """From the covariances before and after a place, in a column of values x and z: Lloyd et al. 2014, section 2."""
    before, after = both
    s, t = (1 / (1 + np.exp(-(v - location) / width)) for v in (x, z))
    return np.outer(1 - s, 1 - t) * before + np.outer(s, t) * after


def coregionalised(i: Array, j: Array, each: list[Array], W: Array) -> Array:
    """Σ_k W_ik W_jk K_k of rows of outputs i and j, K_k the covariance of latent function k: Álvarez, Rosasco and
    Lawrence 2012, section 4.2.2."""
    return np.sum([np.outer(W[i, k], W[j, k]) * K for k, K in enumerate(each)], axis=0)


def constant(X: Array, Z: Array, variance: float) -> Array:
    """Constant v: a random level, shared by all points."""
    return gram(lambda x, z: variance, X, Z)


def white(X: Array, Z: Array, variance: float) -> Array:
    """White noise: v where the two points are equal in every coordinate, else 0."""
    return gram(lambda x, z: variance if np.all(x == z) else 0.0, X, Z)


# --- Gaussians -------------------------------------------------------------------------------------------------------


def log_normal(y: Array, mean: Array, cov: Array) -> float:
    """Log density of N(mean, cov) at y."""
    r = y - mean
    return float(-0.5 * (len(y) * np.log(2.0 * np.pi) + slogdet(cov)[1] + r @ solve(cov, r)))


def gauss_kl(m0: Array, S0: Array, m1: Array, S1: Array) -> float:
    """KL[N(m0, S0) ‖ N(m1, S1)] = ½ (tr S1⁻¹S0 + (m1-m0)ᵀS1⁻¹(m1-m0) - M + log|S1| - log|S0|)."""
    r = m1 - m0
    return float(0.5 * (np.trace(solve(S1, S0)) + r @ solve(S1, r) - len(r) + slogdet(S1)[1] - slogdet(S0)[1]))


def expect_normal(
    g: Callable[[float], float], mean: float, var: float, breaks: Sequence[float] = (), width: float = 12.0
) -> float:
    """E_{N(mean, var)}[g(f)] by adaptive quadrature over mean ± width·sd: what Gauss–Hermite rules approximate.

    `breaks` lists the f at which g has a kink or a jump; the integral is cut there.
    """
    sd = np.sqrt(var)
    inner = [(b - mean) / sd for b in breaks if abs(b - mean) < width * sd]
    cuts = sorted({-width, -4.0, -2.0, 0.0, 2.0, 4.0, width, *inner})

    def integrand(t: float) -> float:
        return float(g(mean + sd * t)) * np.exp(-0.5 * t**2) / np.sqrt(2.0 * np.pi)

    pieces = zip(cuts[:-1], cuts[1:], strict=True)
    return sum(quad(integrand, a, b, epsabs=1e-13, epsrel=1e-12, limit=200)[0] for a, b in pieces)


# --- exact regression ------------------------------------------------------------------------------------------------


def exact_log_evidence(Kff: Array, noise: Array, y: Array) -> float:
    """log p(y) = log N(y; 0, Kff + diag(noise)): Izmailov (4), Kobe section 2.1; one noise variance per row."""
    return log_normal(y, np.zeros_like(y), Kff + np.diag(noise))


def exact_posterior(Kff: Array, Ksf: Array, Kss_diag: Array, noise: Array, y: Array) -> tuple[Array, Array]:
    """Mean and variance of f(x*) given y, without observation noise: Izmailov section 1.2.1.

    Erratum: he writes the model as ε ~ N(0, σₙ) and means the variance σₙ², as his formulas do.
    """
    C = Kff + np.diag(noise)
    return Ksf @ solve(C, y), Kss_diag - np.diag(Ksf @ solve(C, Ksf.T))


# --- Laplace's approximation -----------------------------------------------------------------------------------------


def laplace_logit(Kff: Array, y: Array) -> tuple[float, Array, Array]:
    """log q(y), the mode f and W there, y in {-1, 1}, p(y|f) = 1/(1 + exp(-yf)): Izmailov 1.3.1 and (5).

    Newton's method on Ψ, f ← (K⁻¹ + W)⁻¹ (W f + ∇log p), GPML (3.18). Errata: Izmailov (3) is f = K ∇log p(y|f), and in
    (5) |B| = |K| |K⁻¹ + W|; as printed, K⁻¹ is missing.
    """
    f = np.zeros_like(y, dtype=float)
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-f))
        W = p * (1.0 - p)
        f = solve(inv(Kff) + np.diag(W), W * f + (y + 1.0) / 2.0 - p)
    p = 1.0 / (1.0 + np.exp(-f))
    W = p * (1.0 - p)
    log_det_B = slogdet(Kff)[1] + slogdet(inv(Kff) + np.diag(W))[1]
    value = -0.5 * f @ solve(Kff, f) - np.sum(np.log1p(np.exp(-y * f))) - 0.5 * log_det_B
    return float(value), f, W


def laplace_predict(Kff: Array, Ksf: Array, Kss_diag: Array, f: Array, W: Array) -> tuple[Array, Array]:
    """Mean and variance of f(x*) when q(f) = N(f, (K⁻¹ + W)⁻¹): Izmailov (1), GPML (3.21) and (3.24)."""
    return Ksf @ solve(Kff, f), Kss_diag - np.diag(Ksf @ solve(Kff + np.diag(1.0 / W), Ksf.T))


# --- collapsed bounds ------------------------------------------------------------------------------------------------


def nystrom(Kuf: Array, Kuu: Array) -> Array:
    """Q = Kfu Kuu⁻¹ Kuf as a dense N x N matrix."""
    return Kuf.T @ solve(Kuu, Kuf)


def vfe_bound(Kff_diag: Array, Kuf: Array, Kuu: Array, noise: Array, y: Array) -> float:
    """log N(y; 0, Q + diag(noise)) - ½ Σ d_i / noise_i: Titsias 2009 (9), Kobe (2.17), β = 1/noise per row."""
    Q = nystrom(Kuf, Kuu)
    return log_normal(y, np.zeros_like(y), Q + np.diag(noise)) - 0.5 * float(np.sum((Kff_diag - np.diag(Q)) / noise))


def tight_bound(Kff_diag: Array, Kuf: Array, Kuu: Array, noise: Array, y: Array) -> float:
    """log N(y; 0, Q + diag(noise)) - ½ Σ log(1 + d_i / noise_i): Titsias 2025 (arXiv 2502.08730), one noise per row."""
    Q = nystrom(Kuf, Kuu)
    d = Kff_diag - np.diag(Q)
    return log_normal(y, np.zeros_like(y), Q + np.diag(noise)) - 0.5 * float(np.sum(np.log1p(d / noise)))


def upper_bound(Kff_diag: Array, Kuf: Array, Kuu: Array, noise: Array, y: Array) -> float:
    """Upper bound on log p(y), Titsias 2014: the determinant with Q, the quadratic form with Q + t I, t = tr D.

    Q ≼ Kff ≼ Q + tr(D) I, whatever the noise of each row, so both terms bound theirs from above.
    """
    C = nystrom(Kuf, Kuu) + np.diag(noise)
    t = np.sum(Kff_diag) - np.trace(nystrom(Kuf, Kuu))
    quadratic = y @ solve(C + t * np.eye(len(y)), y)
    return float(-0.5 * (len(y) * np.log(2.0 * np.pi) + slogdet(C)[1] + quadratic))


def tight_bound_by_definition(Kff: Array, Kuf: Array, Kuu: Array, noise: Array, y: Array) -> tuple[float, Array]:
    """Maximise the tight bound's definition over V = diag(v) numerically; return the maximum and its v.

    q(f|u) = N(Kfu Kuu⁻¹ u, C_v), C_v = Λ^-½ G V G Λ^-½, G = (Λ^½ D Λ^½)^½; with equal noise C_v = D^½ V D^½ (Titsias
    2025). The bound is E_q[log p(y|f)] - KL[q(f|u) ‖ p(f|u)] - KL[q(u) ‖ p(u)], evaluated with dense matrices at the
    optimal q(u), which does not depend on v. D must be positive definite (no inducing input on a data row).
    """
    m, S = optimal_q(Kuf, Kuu, noise, y)
    A = solve(Kuu, Kuf).T  # f = A u + residual
    D = Kff - A @ Kuf
    root = np.sqrt(noise)
    G = np.real(sqrtm(D / np.outer(root, root)))
    mu, zero = A @ m, np.zeros_like(y)
    kl_u = gauss_kl(m, S, np.zeros_like(m), Kuu)

    def bound(v: Array) -> float:
        C = np.outer(root, root) * (G @ np.diag(v) @ G)
        spread = np.diag(A @ S @ A.T + C)
        return log_normal(y, mu, np.diag(noise)) - 0.5 * np.sum(spread / noise) - gauss_kl(zero, C, zero, D) - kl_u

    best = minimize(lambda log_v: -bound(np.exp(log_v)), zero, method="BFGS", options={"gtol": 1e-4})
    return bound(np.exp(best.x)), np.exp(best.x)


# --- sparse posteriors -----------------------------------------------------------------------------------------------


def optimal_q(Kuf: Array, Kuu: Array, noise: Array, y: Array) -> tuple[Array, Array]:
    """Return the q(u) = N(m, S) that attains the collapsed bounds: Titsias 2009 (10), Kobe (2.18), (2.19).

    S⁻¹ = Kuu⁻¹ + Kuu⁻¹ Kuf Λ Kfu Kuu⁻¹ and m = S Kuu⁻¹ Kuf Λ y (Izmailov 2.1.1; erratum: his 1/σₙ is 1/σₙ²), written
    as S = Kuu B⁻¹ Kuu, m = Kuu B⁻¹ Kuf Λ y with B = Kuu + Kuf Λ Kfu.
    """
    B = Kuu + (Kuf / noise) @ Kuf.T
    return Kuu @ solve(B, Kuf @ (y / noise)), Kuu @ solve(B, Kuu)


def sparse_predict(Ksu: Array, Kss_diag: Array, Kuu: Array, m: Array, S: Array) -> tuple[Array, Array]:
    """Mean and variance of f(x*) under ∫ p(f*|u) q(u) du, without observation noise: Kobe (2.16), Izmailov 2.1.1."""
    A = solve(Kuu, Ksu.T).T
    return A @ m, Kss_diag - np.diag(A @ Ksu.T) + np.diag(A @ S @ A.T)


# --- uncollapsed bounds ----------------------------------------------------------------------------------------------


def elbo_gaussian(Kff_diag: Array, Kuf: Array, Kuu: Array, m: Array, S: Array, noise: Array, y: Array) -> float:
    """Σ_i E_{q(f_i)}[log N(y_i; f_i, noise_i)] - KL[q(u) ‖ N(0, Kuu)]: Kobe (2.25) = Hensman et al. 2013 (4).

    Erratum: k_i in Kobe (2.25) is a column of K_mn, and u lives in R^M.
    """
    mean, var = sparse_predict(Kuf.T, Kff_diag, Kuu, m, S)
    fit = np.sum(-0.5 * np.log(2.0 * np.pi * noise) - 0.5 * ((y - mean) ** 2 + var) / noise)
    return float(fit) - gauss_kl(m, S, np.zeros_like(m), Kuu)


def elbo_tight_gaussian(Kff_diag: Array, Kuf: Array, Kuu: Array, m: Array, S: Array, noise: Array, y: Array) -> float:
    """Return `elbo_gaussian` with d_i / noise_i replaced by log(1 + d_i / noise_i): Titsias 2025, Bui et al. 2025."""
    d = Kff_diag - np.diag(nystrom(Kuf, Kuu))
    gain = 0.5 * float(np.sum(d / noise - np.log1p(d / noise)))
    return elbo_gaussian(Kff_diag, Kuf, Kuu, m, S, noise, y) + gain


def elbo_gaussian_gradient(Kuf: Array, Kuu: Array, m: Array, S: Array, noise: Array, y: Array) -> tuple[Array, Array]:
    """∂ELBO/∂m = Kuu⁻¹ Kuf Λ y - P m and ∂ELBO/∂S = ½ (S⁻¹ - P): Kobe (2.26), (2.27), P being his Λ of (2.18).

    Both bounds have this gradient, for they differ by a term without (m, S). Erratum: Izmailov (9) has the wrong sign.
    """
    A = solve(Kuu, Kuf)
    P = inv(Kuu) + (A / noise) @ A.T
    return A @ (y / noise) - P @ m, 0.5 * inv(S) - 0.5 * P


# --- natural gradient ------------------------------------------------------------------------------------------------


def fisher_natural_gradient_step(m: Array, S: Array, dL_dm: Array, dL_dS: Array, gamma: float) -> tuple[Array, Array]:
    """Take one ascent step Δθ = γ F⁻¹ ∂L/∂θ with an explicit Fisher matrix; return the new (m, S).

    Salimbeni (5)-(8), at ξ = θ; erratum: (5) subtracts, as for a loss, but its g is the gradient of L, to be maximised.
    θ = (S⁻¹m, -½S⁻¹) in a minimal representation, with statistics t(u) = (u_i; u_i u_j for i ≤ j), and F = ∂η/∂θ =
    Cov[t(u)] from the moments of a Gaussian (Isserlis). Small M only: F has (M + M(M+1)/2)² entries.
    dL_dS is the gradient for S with all M² entries free (symmetric): dL = Σ_ij dL_dS[i, j] dS[i, j].
    """
    M = len(m)
    pairs = [(i, j) for i in range(M) for j in range(i, M)]
    F = np.zeros((M + len(pairs), M + len(pairs)))
    F[:M, :M] = S  # Cov[u_i, u_j]
    for b, (j, k) in enumerate(pairs, M):
        for i in range(M):  # Cov[u_i, u_j u_k]
            F[i, b] = F[b, i] = S[i, j] * m[k] + S[i, k] * m[j]
        for a, (h, i) in enumerate(pairs, M):  # Cov[u_h u_i, u_j u_k]
            central = S[h, j] * S[i, k] + S[h, k] * S[i, j]
            mixed = m[h] * m[j] * S[i, k] + m[h] * m[k] * S[i, j] + m[i] * m[j] * S[h, k] + m[i] * m[k] * S[h, j]
            F[a, b] = central + mixed

    def moments(theta: Array) -> tuple[Array, Array]:  # θ -> (m, S); an off-diagonal θ_a stands for two equal entries
        half = np.zeros((M, M), dtype=theta.dtype)
        for value, (i, j) in zip(theta[M:], pairs, strict=True):
            half[i, j] += 0.5 * value
            half[j, i] += 0.5 * value
        cov = inv(-2.0 * half)
        return cov @ theta[:M], cov

    P = inv(S)
    theta = np.concatenate([P @ m, [-0.5 * P[i, i] if i == j else -P[i, j] for i, j in pairs]])
    gradient, h = np.zeros_like(theta), 1e-30
    for a in range(len(theta)):  # ∂L/∂θ_a by the chain rule, ∂(m, S)/∂θ_a by a complex step (exact to rounding)
        dm, dS = moments(theta + 1j * h * np.eye(len(theta))[a])
        gradient[a] = dL_dm @ np.imag(dm) / h + np.sum(dL_dS * np.imag(dS)) / h
    return moments(theta + gamma * solve(F, gradient))
