"""Quantiles of y with the latent function integrated out."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .base import AbstractLikelihood, Latent
from .bounded import AbstractClasses

__all__ = ["quantile"]

BISECTIONS, SECANTS = 14, 8
SMALLEST = 230.0  # y = e^{−230}·(upper end) and 1 − 1e-100 are far enough out
BELIEF = 1e-9


def quantile(likelihood: AbstractLikelihood, mean: Latent, variance: Latent, p: float) -> Float[Array, " N"]:
    """The smallest y with P(Y ≤ y) ≥ p, where f ~ N(mean, variance), to about nine digits.

    Cantelli's inequality brackets it: with mean m and standard deviation s of y,
        m − s √((1 − p)/p) ≤ y ≤ m + s √(p/(1 − p)).
    """
    if isinstance(likelihood, AbstractClasses):
        below = jnp.cumsum(jnp.exp(likelihood.log_probabilities(mean, variance)), axis=0)
        return jnp.sum(below < p - BELIEF, axis=0).astype(below.dtype)
    m, v = likelihood.predict(mean, variance)
    s = jnp.sqrt(v)
    high = m + s * jnp.sqrt(p / (1 - p))
    low = m - s * jnp.sqrt((1 - p) / p)
    support = likelihood.support
    if support == "real":
        scale, start = jnp.maximum(high - low, jnp.finfo(s.dtype).tiny), low
        y = lambda u: start + scale * u
        low, high = jnp.zeros_like(s), jnp.ones_like(s)
    elif support == "unit":
        y = jax.nn.sigmoid
        low, high = jnp.full_like(s, -SMALLEST), jnp.full_like(s, 36.0)
    elif support == "counts":
        y = jnp.expm1
        low, high = jnp.full_like(s, -0.69), jnp.log1p(jnp.maximum(high, 1.0))
    else:
        y = jnp.exp
        high = jnp.log(high)
        low = high - SMALLEST
    root = _root(lambda u: likelihood.predictive_cdf(mean, variance, y(u)) - p, low, high)
    if support != "counts":
        return y(root)
    return jnp.maximum(jnp.ceil(y(root) - 1e-6), 0.0)


def _root(g, low, high):
    """Where rising g crosses 0 between low and high: bisection, then regula falsi in Illinois' form."""

    def bisect(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        right = g(middle) < 0
        return jnp.where(right, middle, low), jnp.where(right, high, middle)

    low, high = lax.fori_loop(0, BISECTIONS, bisect, (low, high))

    def chord(low, high, g_low, g_high):
        slope = g_high - g_low
        x = jnp.where(slope > 0, low - g_low * (high - low) / jnp.where(slope > 0, slope, 1), 0.5 * (low + high))
        return jnp.clip(x, low, high)

    def secant(_, state):
        low, high, g_low, g_high = state
        x = chord(*state)
        value = g(x)
        right = value < 0
        # The end that stays has its value halved, or it would stay for ever.
        return (
            jnp.where(right, x, low),
            jnp.where(right, high, x),
            jnp.where(right, value, 0.5 * g_low),
            jnp.where(right, 0.5 * g_high, value),
        )

    # Not the middle: where x hits the root, one end stays where bisection left it.
    return chord(*lax.fori_loop(0, SECANTS, secant, (low, high, g(low), g(high))))
