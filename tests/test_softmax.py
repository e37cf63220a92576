"""E log Σ e^f of Softmax and its slopes, from variance 0 to 10⁴, against sums over the latent functions themselves."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_ndtr

from pseudopoint.likelihoods import Softmax
from pseudopoint.likelihoods.quadrature import plus_gumbel
from pseudopoint.params import cast

ROWS = 36


@jax.jit
def _said(likelihood, mean, variance):
    total = lambda m, v: jnp.sum(likelihood.expectation(m, v, jnp.zeros(ROWS)))
    return likelihood.expectation(mean, variance, jnp.zeros(ROWS)), *jax.grad(total, (0, 1))(mean, variance)


def said(mean, variance, dtype: Any = float):
    """E log Σ e^{fⱼ} [N] and its slopes [C, N] in means and variances, from the likelihood of class 0."""
    C, N = mean.shape
    pad = np.resize(np.arange(N), ROWS)
    given = (jnp.asarray(a[:, pad], dtype) for a in (mean, variance))
    value, by_mean, by_variance = (np.asarray(a)[..., :N] for a in _said(cast(Softmax(C), dtype), *given))
    return mean[0] - value, (np.arange(C) == 0)[:, None] - by_mean, -by_variance


def summed(mean, variance):
    """The same of one row, on a grid over the differences f_c − f_0: one sum for two classes, two for three.

    ∂/∂μ_c = E p_c and ∂/∂v_c = ½ E p_c(1 − p_c). Steps are at most 0.2 in f: the poles of p are π away, e^{−2π²/0.2}.
    """
    C = len(mean)
    root = np.linalg.cholesky(variance[0] + np.diag(variance[1:]))
    axes = [np.linspace(-8.5, 8.5, 2 * int(max(20, 43 * np.abs(row).max())) + 1) for row in root.T]
    z = np.stack([a.ravel() for a in np.meshgrid(*axes, indexing="ij")])
    w = np.exp(-0.5 * np.sum(z**2, axis=0))
    d = np.concatenate([np.zeros((1, z.shape[1])), (mean[1:] - mean[0])[:, None] + root @ z])
    top = d.max(axis=0)
    log_sum = top + np.log(np.sum(np.exp(d - top), axis=0))
    p = np.exp(d - log_sum)
    average = lambda a: a @ w / w.sum()
    return mean[0] + average(log_sum), average(p), 0.5 * average(p * (1 - p)) if C > 2 else 0.5 * average(p[0] * p[1])


def rows(C, low, high, spread, N=12):
    rng = np.random.default_rng(C)
    variance = np.exp(rng.uniform(np.log(low), np.log(high), (C, N)))
    variance[:, ::3] = variance[:1, ::3]  # in every third row all are alike
    return spread * rng.normal(size=(C, N)), variance


RANGES = [(1e-6, 1e-3), (1e-3, 1.0), (1.0, 10.0), (10.0, 100.0), (1e-6, 100.0)]


@pytest.mark.parametrize("C", [2, 3])
def test_value_and_slopes_are_those_of_sums_over_latent_functions(C):
    for low, high in RANGES:
        for spread in (0.5, 6.0):
            mean, variance = rows(C, low, high, spread, 6)
            ours = said(mean, variance)
            for i in range(6):
                truth = summed(mean[:, i], variance[:, i])
                for a, b in zip(ours, truth, strict=True):
                    np.testing.assert_allclose(a[..., i], b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("C", [2, 3])
def test_probabilities_are_those_of_sums_over_latent_functions(C):
    log_probabilities = jax.jit(Softmax(C).log_probabilities)
    for low, high in RANGES:
        for spread in (0.5, 6.0):
            mean, variance = rows(C, low, high, spread, 6)
            p = np.exp(np.asarray(log_probabilities(jnp.asarray(mean), jnp.asarray(variance))))
            truth = np.stack([np.resize(summed(mean[:, i], variance[:, i])[1], C) for i in range(6)], axis=1)
            truth[-1] = 1 - truth[:-1].sum(axis=0)
            np.testing.assert_allclose(p, truth, rtol=1e-5, atol=1e-5)


def test_two_classes_are_softplus():
    # Beyond the reach of the sums above: E log(1 + e^d) in 10⁵ steps.
    variance = np.array([[1e-12, 100.0, 300.0, 1e4, 1e4], [1e4, 100.0, 1e-12, 1e4, 1.0]])
    mean = np.array([[0.0, 30.0, -5.0, 50.0, 0.0], [1.0, -30.0, 5.0, 0.0, 300.0]])
    value, by_mean, by_variance = said(mean, variance)
    z = np.linspace(-9, 9, 100_001)
    w = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    for i, tolerance in enumerate([1e-4, 1e-8, 3e-7, 1e-6, 1e-5]):
        d = mean[1, i] - mean[0, i] + np.sqrt(variance[:, i].sum()) * z
        np.testing.assert_allclose(value[i], mean[0, i] + w @ np.logaddexp(0, d), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(by_mean[:, i], [w @ expit(-d), w @ expit(d)], atol=tolerance)
        np.testing.assert_allclose(by_variance[:, i], 0.5 * w @ (expit(d) * expit(-d)), atol=tolerance)


def race(mean, variance):
    """Of any number of classes, by trapezoids 0.2 apart in t and at most 0.25 in every f."""
    std = np.sqrt(variance)
    low, high = np.max(mean - 7.5 * std) - 4.2, np.max(mean + 7.5 * std) + 30
    t, step = np.linspace(low, high, int((high - low) / 0.2) + 2, retstep=True)
    F, first, second = np.empty((3, len(mean), len(t)))
    for c, s in enumerate(std):
        z = np.linspace(-8.6, 8.6, 2 * int(max(30, 36 * s)) + 1)
        w = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
        x = np.exp(np.clip(mean[c] + s * z - t[:, None], -700, 6.7))
        F[c], first[c], second[c] = (g @ w for g in (np.exp(-x), x * np.exp(-x), (x**2 - x) * np.exp(-x)))
    others = np.stack([np.prod(np.delete(F, c, axis=0), axis=0) for c in range(len(mean))])
    value = high - step * np.sum(np.prod(F, axis=0)[:-1]) - 0.5 * step - np.euler_gamma
    return value, step * np.sum(first * others, axis=1), -0.5 * step * np.sum(second * others, axis=1)


def test_ten_classes_of_variances_from_nothing_to_100():
    for spread in (0.5, 20.0):
        for low, high in RANGES:
            mean, variance = rows(10, low, high, spread, 4)
            ours = said(mean, variance)
            for i in range(4):
                for a, b in zip(ours, race(mean[:, i], variance[:, i]), strict=True):
                    np.testing.assert_allclose(a[..., i], b, rtol=1e-8, atol=1e-8)


def test_the_largest_of_many_wide_classes_is_resolved():
    # It is far from where one class begins: F^C changes over a fraction of a standard deviation.
    mean, variance = rows(26, 30.0, 100.0, 1.0, 2)
    ours = said(mean, variance)
    for i in range(2):
        for a, b in zip(ours, race(mean[:, i], variance[:, i]), strict=True):
            np.testing.assert_allclose(a[..., i], b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("size, step", [(0.1, 0.005), (3.0, 0.06), (30.0, 0.6), (100.0, 2.0)])
def test_slopes_are_those_of_the_value_by_finite_differences(size, step):
    # A fit ends where slopes vanish, and is judged by the value.
    rng = np.random.default_rng(3)
    mean, variance = 3 * rng.normal(size=(3, ROWS)), size * np.exp(0.5 * rng.normal(size=(3, ROWS)))
    _, by_mean, by_variance = said(mean, variance)

    def differences(step, *towards):
        at = lambda h: said(*(a + h * step * b for a, b in zip((mean, variance), towards, strict=True)))[0]
        return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step)

    for c in range(3):
        one, none = (np.arange(3) == c)[:, None] * np.ones(ROWS), np.zeros((3, ROWS))
        np.testing.assert_allclose(by_mean[c], differences(0.02 * max(1, size**0.5), one, none), atol=2e-8)
        np.testing.assert_allclose(by_variance[c], differences(step, none, one), atol=2e-8)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_extremes_are_finite_and_probabilities_sum_to_one(dtype):
    mean = np.array([[30.0, -30, 1000, -1000, 1000, 0], [-30, -30, -1000, -1000, 1000, 0], [0, 0, 0, -1000, 0, 0]])
    for variance, tolerance in ((1e-12, 5e-6), (0.0, 5e-6), (1.0, 5e-6), (100.0, 5e-6), (1e4, 2e-5)):
        value, by_mean, by_variance = said(mean, np.full(mean.shape, variance), dtype)
        assert np.isfinite(value).all() and (by_variance >= 0).all() and np.isfinite(by_variance).all()
        np.testing.assert_allclose(by_mean.sum(axis=0), 1, atol=tolerance)
        assert (value >= mean.max(axis=0) - 1e-4).all()  # by Jensen's inequality, at least log Σ e^μ


def test_float32_has_its_digits():
    mean, variance = rows(3, 1e-3, 100.0, 3.0)
    for a, b in zip(said(mean, variance, "float32"), said(mean, variance), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5)


def test_gumbel_variables_as_gaussians():
    t = jnp.arange(-12, 45, 0.03)
    zero, one = jnp.zeros(t.shape), jnp.ones(t.shape)
    F, first, second = plus_gumbel(zero)(t)
    x = np.exp(np.minimum(-t, 6.7))
    np.testing.assert_allclose(F, np.exp(-x), atol=6e-8)
    np.testing.assert_allclose(first, x * np.exp(-x), atol=4e-7)
    np.testing.assert_allclose(second, (x**2 - x) * np.exp(-x), atol=3e-6)
    # Slopes in t are derivatives, and that in v is half the second of them, of what is computed.
    at = lambda t, v: plus_gumbel(v)(t)[0]
    for v in (zero, 3 * one, 100 * one):
        F, first, second = plus_gumbel(v)(t)
        _, along_t = jax.jvp(lambda t, v=v: at(t, v), (t,), (one,))
        _, twice = jax.jvp(lambda t, v=v: plus_gumbel(v)(t)[1], (t,), (one,))
        np.testing.assert_allclose(first, along_t, atol=1e-14)
        np.testing.assert_allclose(second, twice, atol=1e-13)
    for v in (0.1, 3.0, 100.0):
        _, along_v = jax.jvp(lambda v: at(t, v), (v * one,), (one,))
        np.testing.assert_allclose(along_v, 0.5 * plus_gumbel(v * one)(t)[2], atol=1e-13)
    # f of a large variance hides G, but for its mean and variance.
    far = 1e6 * one
    z = (np.asarray(t) - np.euler_gamma) / np.sqrt(1e6 + np.pi**2 / 6)
    np.testing.assert_allclose(plus_gumbel(far)(t)[0], np.exp(log_ndtr(z)), atol=1e-8)


def test_the_joint_curvature_is_an_upper_bound_that_is_0_where_all_functions_rise_together():
    """W = diag(E p) − E p E pᵀ less −∂² E log p(y | f)/∂μ∂μᵀ is the covariance of p (methods d.5)."""
    rng, C, N = np.random.default_rng(0), 4, 6
    likelihood, y = cast(Softmax(C), float), jnp.asarray(rng.integers(0, C, N), float)
    mean, variance = jnp.asarray(rng.normal(size=(C, N)) * 2), jnp.asarray(rng.uniform(0.1, 4, (C, N)))
    slopes = jax.jit(lambda m, v: likelihood.expectation_gradients(m, v, y))
    at = slopes(mean, variance)
    W = np.stack([likelihood.curvature_along(y, at, v[:, None] * jnp.ones((1, N))) for v in jnp.eye(C)], 1)
    np.testing.assert_allclose(W.sum(1), 0, atol=1e-7)
    columns = []
    for c in range(C):
        move = 1e-4 * (jnp.arange(C) == c)[:, None]
        columns.append((slopes(mean + move, variance)[0] - slopes(mean - move, variance)[0]) / 2e-4)
    spread = W + np.stack(columns, 1)
    f = mean[:, None] + jnp.sqrt(variance)[:, None] * rng.normal(size=(C, 400_000, N))
    p = np.asarray(jax.nn.softmax(f, axis=0))
    covariance = np.stack([np.cov(p[..., i]) for i in range(N)], -1)
    np.testing.assert_allclose(spread, covariance, atol=1e-3)
    assert np.linalg.eigvalsh(spread.transpose(2, 0, 1)).min() > -1e-6
