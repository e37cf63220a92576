"""Expectations under one Gaussian variable, by fixed nodes or in closed form."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

ORDER = 20  # Gauss–Hermite nodes in training
BLOCK = 256  # rows of one call of a compiled function

PerRow = Float[Array, "..."]


def rule(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss–Hermite nodes of N(0, 1) and their weights, which sum to one."""
    x, w = np.polynomial.hermite_e.hermegauss(order)
    return x, w / w.sum()


def expect(g: Callable[[Array], Array], mean: PerRow, variance: PerRow, order: int = ORDER) -> PerRow:
    """E[g(f)], f ~ N(mean, variance), by Gauss–Hermite quadrature with Q nodes, exact to degree 2Q − 1.

    The rule is symmetric: pairs of nodes contribute x(g′(μ + δ) − g′(μ − δ)), δ ∝ x, to the derivative of E[g] in the
    variance. So it has the sign of g″ if g is concave or convex (methods d.2).
    """
    std = jnp.sqrt(jnp.maximum(variance, 1e-12))
    x, w = (jnp.asarray(a.reshape((order,) + (1,) * jnp.ndim(mean)), std.dtype) for a in rule(order))
    return jnp.sum(w * g(mean + std * x), axis=0)


def _weideman(order: int) -> tuple[float, np.ndarray]:
    """L and the coefficients of p, highest power first, in
        w(ζ) = e^{−ζ²} erfc(−iζ) ≈ 2 p(Z)/(L − iζ)² + 1/(√π (L − iζ)),  Z = (L + iζ)/(L − iζ),
    for Im ζ ≥ 0, where |Z| ≤ 1 (Weideman 1994, with his L)."""
    L = np.sqrt(order / np.sqrt(2))
    t = L * np.tan(0.5 * np.pi * np.arange(1 - 2 * order, 2 * order) / (2 * order))
    g = np.concatenate([[0.0], np.exp(-(t**2)) * (L**2 + t**2)])
    return float(L), np.fft.fft(np.fft.fftshift(g)).real[order:0:-1] / (4 * order)


_L, _P = _weideman(40)  # to 2e-14 of w
_INTEGRAL, _SLOPE = np.polyint(_P), np.polyder(_P)
_LEVEL = float(np.polyval(_INTEGRAL, -1.0))


@jax.custom_jvp
def expect_log1p(distance: PerRow, variance: PerRow, scale: PerRow) -> PerRow:
    """E log(1 + x²/σ²), x ~ N(Δ, v), to 1e-13 for every σ > 0.

    With ζ = (Δ + iσ)/√(2v) its derivatives in Δ and σ are √(2π/v) Im w(ζ) and √(2π/v) Re w(ζ) − 2/σ. Weideman's form of
    w has an integral in closed form, because dZ/dζ = 2iL/(L − iζ)².
    """
    return _log1p_and_slopes(distance, variance, scale)[0]


@expect_log1p.defjvp
def _expect_log1p_jvp(primals, tangents):
    value, *slopes = _log1p_and_slopes(*primals)
    a, b, c = (slope * tangent for slope, tangent in zip(slopes, tangents, strict=True))
    return value, a + b + c


def expect_inverse(distance: PerRow, variance: PerRow, scale: PerRow) -> PerRow:
    """E 1/(σ² + x²), x ~ N(Δ, v): √(π/2v) Re w(ζ)/σ with ζ of `expect_log1p`, to 1e-13/(σ√v).

    For Δ ≫ √v ≫ σ the error may exceed the value. There Jensen's inequality gives a lower limit, 1/(σ² + Δ² + v).
    """
    _, _, _, u = _rational(distance, variance, scale)
    return jnp.maximum(u.real / (2 * scale), 1 / (scale**2 + distance**2 + variance))


def _rational(distance, variance, scale):
    """√v, q = ℓ + σ − iΔ with ℓ = L√(2v), Z = 2ℓ/q − 1, and u = √(2π/v) w(ζ) = 2/q + 4√(2πv) p(Z)/q²."""
    s = jnp.sqrt(jnp.maximum(variance, float(jnp.finfo(jnp.result_type(variance)).tiny)))
    q = math.sqrt(2) * _L * s + scale - 1j * distance
    Z = 2 * math.sqrt(2) * _L * s / q - 1
    return s, q, Z, 2 / q + 4 * math.sqrt(2 * math.pi) * s * jnp.polyval(jnp.asarray(_P, s.dtype), Z) / q**2


def _log1p_and_slopes(distance, variance, scale):
    """E log(1 + x²/σ²) = log(|q|²/σ²) + (2√π/L) Re(P(−1) − P(Z)), P′ = p, and its derivatives: Im u in Δ, Re u − 2/σ in
    σ, and by the heat equation in v ½ Im ∂u/∂Δ = Re((u − 1/q)/q + 8√π L v p′(Z)/q⁴)."""
    s, q, Z, u = _rational(distance, variance, scale)
    P, slope = (jnp.polyval(jnp.asarray(c, s.dtype), Z) for c in (_INTEGRAL, _SLOPE))
    l, root = math.sqrt(2) * _L * s, math.sqrt(math.pi)
    value = jnp.log1p((l * (l + 2 * scale) + distance**2) / scale**2) + 2 * root / _L * (_LEVEL - P.real)
    in_variance = (u - 1 / q) / q + 8 * root * _L * (s / q) ** 2 * slope / q**2
    return value, u.imag, in_variance.real, u.real - 2 / scale


# Ends of panels in units of the width of a peak: fine in its middle, growing outward.
_NEAR = np.array([0.0, 0.5, 1.0, 1.6, 2.3, 3.1, 4.0, 5.2, 7.0, 10.0])
_FAR = np.array([0.0, 0.5, 1.0, 2.0, 3.5, 6.0, 10.0, 20.0, 60.0, 300.0])
_NEARBY, _AROUND = np.array([0.0, 1.0, 2.0, 3.2, 5.0, 8.0]), np.array([0.0, 1.0, 2.2, 4.0, 8.0, 20.0, 60.0])
_LEGENDRE = np.polynomial.legendre.leggauss(8)
_FARTHEST = 1e8


def _mode(log_g, mean, variance, centre):
    """Where log g(f) + log N(f; mean, variance) is largest between the two modes, and its width there."""
    # By finite differences: g may be 0 or have a kink, and the result only guides quadrature.
    eps = float(jnp.finfo(mean.dtype).eps)

    def log_g_slope(f):
        h = eps ** (1 / 3) * (1 + jnp.abs(f))
        return ((log_g((f + h)[None]) - log_g((f - h)[None])) / (2 * h))[0]

    slope = lambda f: log_g_slope(f) - (f - mean) / variance

    def bisect(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        rises = slope(middle) > 0
        return jnp.where(rises, middle, low), jnp.where(rises, high, middle)

    low, high = lax.fori_loop(0, 45, bisect, (jnp.minimum(mean, centre), jnp.maximum(mean, centre)))
    top = 0.5 * (low + high)
    h = eps**0.25 * (1 + jnp.abs(top))
    at = lambda f: log_g(f[None])[0]
    curvature = (at(top + h) - 2 * at(top) + at(top - h)) / h**2 - 1 / variance
    return top, jnp.where(curvature < -1 / variance, (-curvature) ** -0.5, jnp.sqrt(variance))


def _panels(xp, mean, variance, bumps, near=_NEAR, far=_FAR):
    """Nodes f [Q, ...] and the logarithms of weight times N(f; mean, variance); `xp` is jax.numpy or numpy."""
    std = xp.sqrt(variance)
    column = lambda a: xp.asarray(np.concatenate([-a[:0:-1], a]).reshape((-1,) + (1,) * mean.ndim), std.dtype)
    edges = [column(near)] + [(centre - mean) / std + (width / std) * column(far) for centre, width in bumps]
    edges = xp.concatenate([xp.broadcast_to(ends, ends.shape[:1] + mean.shape) for ends in edges])
    edges = xp.sort(xp.clip(edges, -_FARTHEST, _FARTHEST), axis=0)  # in standard units
    half = 0.5 * xp.diff(edges, axis=0)[:, None]
    at, weight = (a.reshape((1, -1) + (1,) * mean.ndim) for a in _LEGENDRE)
    x = 0.5 * (edges[1:] + edges[:-1])[:, None] + half * xp.asarray(at, std.dtype)
    log_weight = xp.log(xp.maximum(half, float(np.finfo(std.dtype).tiny))) + xp.asarray(np.log(weight))
    log_weight = log_weight - 0.5 * x**2 - 0.5 * np.log(2 * np.pi)
    return tuple(a.reshape((-1,) + mean.shape).astype(std.dtype) for a in (mean + std * x, log_weight))


def _alike(xp, mean, variance, centre, width):
    """All of one shape, with a variance that is not lost in rounding."""
    mean, variance, centre, width = xp.broadcast_arrays(mean, variance, centre, width)
    return mean, xp.maximum(variance, 1e-18 * (1 + mean**2)), centre, width


def log_expect(
    log_g: Callable[[Array], Array], mean: PerRow, variance: PerRow, centre: PerRow, width: PerRow
) -> PerRow:
    """log E[g(f)], f ~ N(mean, variance), to about ten digits, however narrow or far away g ≥ 0 is. Not for
    derivatives.

    Gauss–Legendre on panels that are narrow around the mean, where g changes (at `centre`, over a distance `width`),
    and around the maximum of the integrand. Everything is in logarithms, so that no tail is lost.
    """
    mean, variance, centre, width = _alike(jnp, mean, variance, centre, width)
    nodes, log_weight = _panels(jnp, mean, variance, [(centre, width), _mode(log_g, mean, variance, centre)])
    return logsumexp(log_weight + log_g(nodes), axis=0)


def in_blocks(function: Callable, likelihood: Any, *rows) -> Float[np.ndarray, "... N"]:
    """`function(likelihood, *rows)` of a compiled function, in blocks of `BLOCK` rows, so that it is compiled once for
    any number of rows. Rows are on the last axis; the last block is padded with its last row."""
    N = np.shape(rows[0])[-1]
    fill = lambda x: np.pad(x, [(0, 0)] * (np.ndim(x) - 1) + [(0, -N % BLOCK)], mode="edge")
    blocks = zip(*(np.split(fill(x), -(-N // BLOCK), axis=-1) for x in rows), strict=True)
    return np.concatenate([np.asarray(function(likelihood, *block), float) for block in blocks], axis=-1)[..., :N]


def expect_bounded(g: Callable[[np.ndarray], np.ndarray], mean, variance, centre, width) -> Float[np.ndarray, "..."]:
    """E[g(f)], f ~ N(mean, variance), to about seven digits, for a distribution function g, which changes at `centre`
    over a distance `width`.

    As `log_expect`, with fewer panels and in NumPy: SciPy's incomplete gamma and beta functions are 30 times as fast as
    JAX's, whose loops run until the slowest element of an array has converged.
    """
    arrays = (np.asarray(a, float) for a in (mean, variance, centre, width))
    mean, variance, centre, width = _alike(np, *arrays)
    nodes, log_weight = _panels(np, mean, variance, [(centre, width)], _NEARBY, _AROUND)
    return np.sum(np.exp(log_weight) * g(nodes), axis=0)


# Gumbel's law by Gaussians: e^{−e^{−y}} = Φ((y − m₀)/s₀) + Σ a_k N(y; m_k, s_k²), to 5e-8. The error oscillates:
# averaged over one more Gumbel variable it is 2e-9, as for both derivatives. The numbers minimise the squares of all
# these errors (variable projection, many random starts); test_softmax.py compares them with the law itself.
# Frühwirth-Schnatter and Frühwirth 2007 have a mixture with positive weights. Columns m, s, a.
_NORMAL = (0.4627383, 1.0484205)
_GUMBEL = np.array(
    [
        [-1.8595034, 0.3825136, 0.0002821252],
        [-1.2713192, 0.6269488, 0.0262215262],
        [-1.2644471, 0.4829238, -0.0044503576],
        [-0.9476264, 0.6885136, -0.1029460821],
        [-0.7684998, 0.8728830, -0.0314661333],
        [-0.5675175, 0.5629156, 0.0095833566],
        [0.1485895, 0.9601439, 0.2433949360],
        [1.6884046, 1.2216275, -0.3188424351],
        [2.0822530, 1.1139243, 0.1080545817],
        [2.8842239, 1.4508172, -0.0336907750],
        [4.0731596, 1.6930149, -0.0087041071],
        [5.4142174, 2.0218354, -0.0017276563],
        [8.4611751, 2.6991119, -0.0057287224],
        [8.5087572, 2.6900322, 0.0055423779],
    ]
)


def plus_gumbel(variance: PerRow) -> Callable[[PerRow], tuple[PerRow, PerRow, PerRow]]:
    """t ↦ F(t), F′(t) and F″(t) of F(t) = P(f + G ≤ t) = E exp(−e^{f − t}), f ~ N(0, variance), G standard Gumbel.

    f makes the Gaussians of G's law (above) wider. So F has a closed form, to 5e-8 for every variance, and to 2e-9 if
    it is integrated together with another class's. For a mean μ of f, ∂F/∂μ = −F′(t − μ) and ∂F/∂v = ½F″(t − μ) hold
    exactly for the computed values.
    """
    column = lambda a: jnp.asarray(a.reshape((-1,) + (1,) * variance.ndim), variance.dtype)
    m, s, a = map(column, _GUMBEL.T)
    v, (m0, s0) = jnp.maximum(variance, 0), _NORMAL
    root, q = lax.rsqrt(v + s0**2), 1 / (v + s**2)
    height = a * jnp.sqrt(q / (2 * math.pi))
    # One reduction for three sums: with three, XLA would store Q terms for each.
    add = lambda sums, terms: tuple(x + y for x, y in zip(sums, terms, strict=True))
    zeros = (jnp.zeros((), variance.dtype),) * 3

    def F(t):
        z, d = (t - m0) * root, t - m
        slope, g = root * jnp.exp(-0.5 * z**2) / math.sqrt(2 * math.pi), d * q
        bump = height * jnp.exp(-0.5 * d * g)
        sums = lax.reduce((bump, -g * bump, (g * g - q) * bump), zeros, add, (0,))
        return add(sums, (0.5 + 0.5 * lax.erf(z / math.sqrt(2)), slope, -z * root * slope))

    return F
