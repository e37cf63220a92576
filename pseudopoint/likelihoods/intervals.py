"""Quantiles of y with the latent function integrated out, by NumPy and SciPy, as distribution functions are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import expit, ndtri

from .base import AbstractLikelihood, Latent
from .quadrature import in_blocks

__all__ = ["quantile"]

BISECTIONS, SECANTS = 14, 8
RARE, MORE = 1e-6, 40  # a probability whose bracket is wide beside the spread, and its bisections
SMALLEST = 230.0  # the search for a small y ends at e^{−230} of its upper end
TOLERANCE = 1e-9  # of the probabilities of classes


def quantile(likelihood: AbstractLikelihood, mean: Latent, variance: Latent, p: Any) -> Float[np.ndarray, " N"]:
    """The smallest y with P(Y ≤ y) ≥ p, a number or one a row, where f ~ N(mean, variance). Its error is about 1e-7 p
    for noise with a distribution function in closed form, and 1e-7 for others: of Student-t noise, quantiles of
    probabilities below that are too near.

    Cantelli's inequality brackets it: with mean m and standard deviation s of y,
        m − s √((1 − p)/p) ≤ y ≤ m + s √(p/(1 − p)).
    Additive noise is symmetric: beyond the median y is 2m less the quantile of 1 − p, which has more digits.
    """
    if np.shape(mean)[-1] == 0:
        return np.empty(0)
    if likelihood.warped is not None:
        inner, warp = likelihood.warped
        return np.asarray(warp.inverse(quantile(inner, mean, variance, p)))
    if likelihood.gaussian_noise is not None:
        mean, variance = likelihood.predict(mean, variance)
        return np.asarray(mean + np.sqrt(variance) * ndtri(np.asarray(p)))
    if likelihood.support == "classes":
        below = np.cumsum(np.exp(in_blocks(_log_probabilities, likelihood, mean, variance)), axis=0)
        return np.sum(below < p - TOLERANCE, axis=0).astype(float)
    m, v = in_blocks(_moments, likelihood, mean, variance)
    mirrored = likelihood.additive & (np.asarray(p) > 0.5)
    p = np.where(mirrored, 1 - np.asarray(p), p)
    mean, variance = np.asarray(mean, float), np.asarray(variance, float)
    s = np.sqrt(v)
    low, high = m - s * np.sqrt((1 - p) / p), m + s * np.sqrt(p / (1 - p))
    support, zeros = likelihood.support, np.zeros_like(s)
    if support == "real":
        scale, start = np.maximum(high - low, 1e-300), low
        y, low, high = lambda u: start + scale * u, zeros, zeros + 1
    elif support == "unit":
        y, low, high = expit, zeros - SMALLEST, zeros + 36.0
    elif support == "counts":
        y, low, high = np.expm1, zeros - 0.69, np.log1p(np.maximum(high, 1.0))
    else:
        y, high = np.exp, np.log(high)
        low = high - SMALLEST
    root = y(_root(lambda u: likelihood.predictive_cdf(mean, variance, y(u)) - p, low, high, p))
    return np.maximum(np.ceil(root - 1e-6), 0.0) if support == "counts" else np.where(mirrored, 2 * m - root, root)


@jax.jit
def _log_probabilities(likelihood, mean, variance):
    return likelihood.log_probabilities(mean, variance)


@jax.jit
def _moments(likelihood, mean, variance):
    return jnp.stack(likelihood.predict(mean, variance))


def _root(g, low, high, p):
    """Where g = P(Y ≤ y) − p crosses 0 between low and high: by bisection, then by the Illinois method."""

    def chord(low, high, g_low, g_high):
        slope = g_high - g_low
        x = np.where(slope > 0, low - g_low * (high - low) / np.where(slope > 0, slope, 1), 0.5 * (low + high))
        return np.clip(x, low, high)

    g_low, g_high, before = np.full_like(low, -p), np.full_like(low, 1 - p), np.zeros(low.shape, int)
    bisections = MORE if min(np.min(p), np.min(1 - p)) < RARE else BISECTIONS
    for i in range(bisections + SECANTS):
        x = 0.5 * (low + high) if i < bisections else chord(low, high, g_low, g_high)
        value = g(x)
        right = value < 0
        # If an end stays twice, its value is halved, so that the next chord moves it.
        halve = lambda stays, i=i: np.where((i > bisections) & stays, 0.5, 1.0)
        g_low, g_high = (
            np.where(right, value, halve(before < 0) * g_low),
            np.where(right, halve(before > 0) * g_high, value),
        )
        low, high, before = np.where(right, x, low), np.where(right, high, x), np.where(right, 1, -1)
    # Not the middle: if x hits the root, one end stays where bisection left it.
    return chord(low, high, g_low, g_high)
