"""Functions that ONNX runtimes lack in double precision, from functions that they have. Errors are a few units of the
last digit, of 1 where the value is small."""

import math

import jax.numpy as jnp
import numpy as np
from scipy.special import erfcx

NEAR = 0.5  # where 1 + x and e^x − 1 would lose digits
TERMS = 30  # of the Chebyshev series of log erfcx, to 1e-16


def _expm1(x):
    """e^x − 1; near 0 as (u − 1) x/log u with u = e^x, whose rounding errors cancel (Kahan)."""
    u = jnp.exp(x)
    safe = jnp.where((jnp.abs(x) < NEAR) & (u != 1), u, 2)
    return jnp.where(jnp.abs(x) < NEAR, jnp.where(u == 1, x, (u - 1) * x / jnp.log(safe)), u - 1)


def _log1p(x):
    """log(1 + x); near 0 as x log u/(u − 1) with u = 1 + x."""
    u = 1 + x
    safe = jnp.where((jnp.abs(x) < NEAR) & (u != 1), u, 2)
    return jnp.where(jnp.abs(x) < NEAR, jnp.where(u == 1, x, x * jnp.log(safe) / (safe - 1)), jnp.log(u))


def _asinh(x):
    """sign(x) log(1 + a + a²/(1 + √(1 + a²))), a = |x|; log 2a where the square would overflow."""
    a = jnp.minimum(jnp.abs(x), 1e150)
    beyond = jnp.log(jnp.maximum(jnp.abs(x), 1e150)) + math.log(2)
    return jnp.sign(x) * jnp.where(jnp.abs(x) < 1e150, _log1p(a + a**2 / (1 + jnp.sqrt(1 + a**2))), beyond)


def _sinh(x):
    a = jnp.abs(x)
    e = _expm1(jnp.minimum(a, NEAR))
    return jnp.sign(x) * jnp.where(a < NEAR, 0.5 * (e + e / (1 + e)), 0.5 * (jnp.exp(a) - jnp.exp(-a)))


def _cosh(x):
    return 0.5 * (jnp.exp(x) + jnp.exp(-x))


def _log_erfcx(t):
    """log(erfcx(z)/t) at t = 2/(2 + z)."""
    t = np.maximum(t, 1e-9)
    return np.log(erfcx(2 / t - 2) / t)


_SERIES = np.polynomial.chebyshev.chebinterpolate(lambda x: _log_erfcx((x + 1) / 2), TERMS)


def _erfc(x):
    """t exp(−z² + p(t)), z = |x|, t = 2/(2 + z), with p a Chebyshev series (Press et al. 2007, 6.2.2)."""
    z = jnp.abs(x)
    t = 2 / (2 + z)
    y, ahead, last = 4 * t - 2, jnp.zeros_like(z), jnp.zeros_like(z)
    for c in _SERIES[:0:-1]:  # Clenshaw's recurrence
        last, ahead = last * y - ahead + float(c), last
    value = t * jnp.exp(-(z**2) + 0.5 * y * last - ahead + float(_SERIES[0]))
    return jnp.where(x < 0, 2 - value, value)


def _arctangent(t):
    """atan t for 0 ≤ t ≤ 1: two half angles, then Taylor's series."""
    for _ in range(2):
        t = t / (1 + jnp.sqrt(1 + t**2))
    total = jnp.zeros_like(t)
    for k in range(27, 0, -2):
        total = (-1) ** (k // 2) / k + t**2 * total
    return 4 * t * total


def _acos(x):
    """4 atan(sin(θ/2)/(1 + cos(θ/2))) with sin²(θ/2) = (1 − x)/2 and cos²(θ/2) = (1 + x)/2."""
    return 4 * _arctangent(jnp.sqrt(1 - x) / (math.sqrt(2) + jnp.sqrt(1 + x)))


# By the names of JAX's primitives.
FUNCTIONS = {
    "expm1": _expm1,
    "log1p": _log1p,
    "asinh": _asinh,
    "sinh": _sinh,
    "cosh": _cosh,
    "erfc": _erfc,
    "erf": lambda x: 1 - _erfc(x),
    "acos": _acos,
    "asin": lambda x: math.pi / 2 - _acos(x),
    "tan": lambda x: jnp.sin(x) / jnp.cos(x),
    "rsqrt": lambda x: 1 / jnp.sqrt(x),
    "square": lambda x: x * x,
}
