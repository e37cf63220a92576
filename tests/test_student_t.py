"""E log(1 + x²/σ²), its slopes and E 1/(σ² + x²), x ~ N(Δ, v): closed forms against sums, however narrow σ is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from likelihood_rows import say

from pseudopoint.likelihoods import StudentT
from pseudopoint.likelihoods.quadrature import expect_inverse, expect_log1p

DISTANCES, VARIANCES = np.array([0.0, 0.3, -2.0, 6.0, 40.0]), np.array([1e-8, 1e-3, 0.5, 100.0])
SCALES = np.array([1e-5, 1e-2, 1.0, 30.0])
ROWS = tuple(a.ravel() for a in np.meshgrid(DISTANCES, VARIANCES, SCALES))


def summed(d, v, s):
    """The same by trapezoids: in x with the integrand's own slopes, or, where σ is narrow and near, in t of
    x = σ sinh t with those of the density, under which nothing cancels."""
    root = float(np.sqrt(v))
    smooth = root < 20 * s or abs(d) > 20 * root
    if smooth:
        x, dx = np.linspace(d - 9 * root, d + 9 * root, 20_001, retstep=True)
    else:
        first, last = (float(np.arcsinh((d + k * root) / s)) for k in (-9, 9))
        t, dt = np.linspace(first, last, 400_001, retstep=True)
        x, dx = s * np.sinh(t), s * np.cosh(t) * dt
    e = (x - d) / root
    weight = np.exp(-0.5 * e**2) / (np.sqrt(2 * np.pi) * root) * dx
    g, inverse = np.log1p((x / s) ** 2), 1 / (s**2 + x**2)
    if smooth:
        in_mean, in_variance = 2 * x * inverse, (s**2 - x**2) * inverse**2
    else:
        in_mean, in_variance = g * e / root, 0.5 * g * (e**2 - 1) / v
    return *(weight @ a for a in (g, in_mean, in_variance)), 2 * s * (weight @ inverse) - 2 / s, weight @ inverse


def test_value_and_slopes_are_those_of_sums():
    value = lambda d, v, s: jnp.sum(expect_log1p(d, v, s))
    rows = tuple(map(jnp.asarray, ROWS))
    ours = [expect_log1p(*rows), *jax.grad(value, (0, 1, 2))(*rows), expect_inverse(*rows)]
    truth = np.array([summed(*at) for at in zip(*ROWS, strict=True)]).T
    D, V, S = ROWS
    width = np.hypot(np.hypot(S, D), np.sqrt(V))
    # What a number is made of: slopes may be a small difference of numbers of this size.
    sizes = np.ones(len(D)), 1 / width, 1 / width**2, 1 / S, 1e-2 / (S * np.hypot(S, np.sqrt(V)))
    for a, b, size in zip(ours, truth, sizes, strict=True):
        assert (np.abs(a - b) <= 1e-11 * np.abs(b) + 1e-11 * size).all()


def test_without_variance_it_is_the_logarithm_itself():
    value, slopes = jax.value_and_grad(expect_log1p, (0, 1, 2))(*map(jnp.asarray, (2.0, 0.0, 0.5)))
    np.testing.assert_allclose(value, np.log(17.0), rtol=1e-15)
    g = lambda x, s: jnp.log1p((x / s) ** 2)
    np.testing.assert_allclose(slopes[0], jax.grad(g)(2.0, 0.5), rtol=1e-12)
    np.testing.assert_allclose(slopes[1], 0.5 * jax.grad(jax.grad(g))(2.0, 0.5), rtol=1e-12)
    np.testing.assert_allclose(slopes[2], jax.grad(g, 1)(2.0, 0.5), rtol=1e-12)


def test_slopes_have_slopes():
    # The heat equation: the slope in v is half the second one in Δ.
    rows = tuple(map(jnp.asarray, ROWS))
    second, in_variance = (jax.vmap(g)(*rows) for g in (jax.grad(jax.grad(expect_log1p)), jax.grad(expect_log1p, 1)))
    D, V, S = ROWS
    width = np.hypot(np.hypot(S, D), np.sqrt(V))
    np.testing.assert_allclose(0.5 * second * width**2, in_variance * width**2, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-4, 0.02, 0.5])
def test_single_precision(scale):
    at = [0.0, 1.0, 3.0, 8.0], [0.1, 2.0, 1e-6, 1.0], [0.5, 0.0, 3.0, 0.0]
    small, ours = (say(StudentT(scale, 3.0), *at, dtype=dtype) for dtype in ("float32", "float64"))
    assert small.expectation.dtype == np.float32
    mean, variance, y = map(np.array, at)
    sigma, root = np.sqrt(3) * scale, np.sqrt(variance)
    width = np.hypot(np.hypot(sigma, y - mean), root)
    sizes = {"expectation": 1, "in_mean": 1 / width, "in_variance": 1 / width**2}
    sizes["majoriser"] = 1 / (sigma * np.hypot(sigma, root))
    for name, size in sizes.items():
        a, b = getattr(small, name), getattr(ours, name)
        assert (np.abs(a - b) <= 3e-5 * np.abs(b) + 3e-5 * size).all(), name
    assert (small.majoriser > 0).all()
