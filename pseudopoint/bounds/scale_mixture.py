"""Student-t noise as normal noise whose precision differs from row to row, with closed-form updates.

    yᵢ = fᵢ + N(0, σ²/ρᵢ),    ρᵢ ~ Gamma(ν/2, ν/2)    (Tipping and Lawrence 2005; methods h.4)
With q(f) and q(ρ) independent, q(ρᵢ) is a Gamma distribution of shape (ν + 1)/2, and q(f) that of a Gaussian likelihood
whose rows have the weights wᵢ E ρᵢ. The bound is below that of `StudentT` with the same q(f), by Jensen's inequality.
"""

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import digamma, gammaln
from scipy.stats import norm, t

__all__ = [
    "DEGREES",
    "best_scale_and_degrees",
    "expected_precisions",
    "gain_over_normal",
    "mixture_terms",
    "varying_mixture_terms",
]

DEGREES = (2.1, 200.0)  # of freedom: the variance of y exists, and Student-t noise is normal for all purposes
LEAST_VARIANCE = 1e-8

PerRow = Float[np.ndarray, " N"]


def expected_precisions(squared: PerRow, variance: float | PerRow, degrees: float) -> PerRow:
    """E ρᵢ = (ν + 1)/(ν + E(yᵢ − fᵢ)²/σ²) for `squared` = E(yᵢ − fᵢ)² under q(f)."""
    return (degrees + 1) / (degrees + squared / variance)


def _precision_terms(precision: PerRow, degrees: float) -> PerRow:
    """½ E log ρᵢ − KL[q(ρᵢ) ‖ p(ρᵢ)] at the q(ρᵢ) of shape a = (ν + 1)/2 and mean r = E ρᵢ; with h = ν/2
    log Γ(a)/Γ(h) + h log h − a log(a/r) − h r + a."""
    a, h, r = 0.5 * (degrees + 1), 0.5 * degrees, precision
    return gammaln(a) - gammaln(h) + h * np.log(h) - a * np.log(a / r) - h * r + a


def mixture_terms(precision: PerRow, weight: PerRow, variance: float, degrees: float) -> float:
    """What the bound has beside that of a Gaussian likelihood of variance σ² for rows of the weights wᵢ E ρᵢ:
    Σ wᵢ [½ E log ρᵢ − KL[q(ρᵢ) ‖ p(ρᵢ)] + ½ (E ρᵢ − 1) log 2πσ²]."""
    own = _precision_terms(precision, degrees)
    return float(weight @ (own + 0.5 * (precision - 1) * np.log(2 * np.pi * variance)))


def varying_mixture_terms(precision: PerRow, weight: PerRow, degrees: float) -> float:
    """What the bound has beside that of a Gaussian likelihood whose noise variance in row i is σᵢ²/E ρᵢ:
    Σ wᵢ [½ E log ρᵢ − KL[q(ρᵢ) ‖ p(ρᵢ)] − ½ log E ρᵢ]  (methods h.5)."""
    return float(weight @ (_precision_terms(precision, degrees) - 0.5 * np.log(precision)))


def best_scale_and_degrees(squared: PerRow, weight: PerRow, variance: float, degrees: float) -> tuple[float, float]:
    """σ² and ν at which the bound is highest for a given q(f), with q(ρ) at its best, from a start:
        Σ wᵢ log T(E(yᵢ − fᵢ)²),    T(r²) the Student-t density of scale σ and ν degrees of freedom at a distance r.
    There Σ wᵢ E ρᵢ = Σ wᵢ. ν is within `DEGREES`.
    """
    total = float(np.sum(weight))

    def loss(numbers):
        s2, nu = np.exp(numbers)
        z = squared / s2
        log1p, r = np.log1p(z / nu), expected_precisions(squared, s2, nu)
        constant = gammaln(0.5 * (nu + 1)) - gammaln(0.5 * nu) - 0.5 * np.log(np.pi * nu * s2)
        of_degrees = digamma(0.5 * (nu + 1)) - digamma(0.5 * nu) - (1 - r * z) / nu - log1p
        slopes = 0.5 * (r * z - 1), 0.5 * nu * of_degrees
        value = constant - 0.5 * (nu + 1) * log1p
        return -(weight @ value) / total, -np.array([weight @ slope for slope in slopes]) / total

    box = np.log([(LEAST_VARIANCE, np.finfo(float).max), DEGREES])
    start = np.clip(np.log([variance, degrees]), *box.T)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=box)
    best, nu = np.exp(found.x)
    return float(best), float(nu)


def gain_over_normal(squared: PerRow, weight: PerRow, degrees: float) -> float:
    """Σ wᵢ (log T(rᵢ) − log N(rᵢ; 0, s²)) of distances rᵢ with these squares, nats: how much better the best Student-t
    density, found from a start at ν = `degrees`, describes them than the best normal one does."""
    variance = float(np.average(squared, weights=weight))
    scale, degrees = best_scale_and_degrees(squared, weight, variance, degrees)
    heavy, normal = (np.sqrt(squared / s2) for s2 in (scale, variance))
    return float(weight @ (t.logpdf(heavy, degrees) - norm.logpdf(normal) + 0.5 * np.log(variance / scale)))
