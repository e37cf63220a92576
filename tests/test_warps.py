"""Warps of inputs and targets: inverses, slopes, Jacobians, and what they change in a fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import norm

from pseudopoint.likelihoods import Gaussian, Heteroscedastic, Warped, quantile
from pseudopoint.starts.warps import _sinh_loss, input_warps, target_warps
from pseudopoint.warps import Logarithm, RankNormal, SinhArcsinh, YeoJohnson, standardised

X = np.linspace(-3, 4, 41)
WARPS = {
    "log": Logarithm(3.5, -2.0),
    "log_of_positive": Logarithm(3.5, -3.5),
    **{f"yeo_johnson_{power}": YeoJohnson(power) for power in (0.0, 0.3, 1.0, 1.7, 2.0)},
    "sinh_arcsinh": SinhArcsinh(0.3, 0.7, -0.4, 0.6),
    "heavy": SinhArcsinh(-0.2, 1.5, 0.5, 1.8),
}
ALL = WARPS | {"rank_normal": RankNormal.of(np.random.default_rng(0).gamma(1.0, size=300))}
each = pytest.mark.parametrize("warp", ALL.values(), ids=ALL.keys())
smooth = pytest.mark.parametrize("warp", WARPS.values(), ids=WARPS.keys())


@each
def test_a_warp_increases_and_its_inverse_undoes_it(warp):
    warp = standardised(warp, X, np.ones_like(X))
    z = warp(X)
    assert (np.diff(z) > 0).all()
    np.testing.assert_allclose(warp.inverse(z), X, atol=1e-9)
    assert abs(np.mean(z)) < 1e-12 and abs(np.std(z) - 1) < 1e-12


@smooth
def test_the_slope_is_that_of_finite_differences(warp):
    warp = standardised(warp, X, np.ones_like(X))
    inside = X + 0.0123  # no kink there
    slope = (warp(inside + 1e-6) - warp(inside - 1e-6)) / 2e-6
    np.testing.assert_allclose(np.exp(warp.log_slope(inside)), slope, rtol=1e-7)


@smooth
def test_programs_compute_what_numpy_does(warp):
    with jax.enable_x64():
        for name in ("__call__", "inverse", "log_slope"):
            there = jax.jit(getattr(type(warp), name))(warp, jnp.asarray(X))
            np.testing.assert_allclose(np.asarray(there), getattr(warp, name)(X), rtol=1e-12, atol=1e-12)


@smooth
@pytest.mark.parametrize("noise", ["constant", "of_x"])
def test_the_predictive_density_of_a_warped_target_integrates_to_one(warp, noise):
    inner = Gaussian(0.2) if noise == "constant" else Heteroscedastic(0.4)
    mean = np.array([0.3]) if noise == "constant" else np.array([[0.3], [0.1]])
    variance = np.full_like(mean, 0.1)
    y = warp.inverse(np.linspace(-8, 9, 4001))
    tile = lambda x: np.repeat(x, len(y), axis=-1)
    with jax.enable_x64():
        likelihood = Warped(inner, warp)
        density = np.exp(np.asarray(jax.jit(Warped.log_density)(likelihood, tile(mean), tile(variance), y)))
        first, spread = (float(x[0]) for x in jax.jit(Warped.predict)(likelihood, mean, variance))
    # By the trapezoidal rule; the tails beyond hold nearly nothing.
    assert abs(trapezoid(density, y) - 1) < 1e-4
    if noise == "of_x":  # whose moments are those of a normal w(y)
        return
    assert abs(trapezoid(y * density, y) - first) < 2e-3 * np.sqrt(spread)
    assert abs(trapezoid((y - first) ** 2 * density, y) - spread) < 2e-2 * spread


def test_quantiles_of_a_warped_target_are_those_of_the_normal_one():
    warp, mean, variance = WARPS["sinh_arcsinh"], np.array([0.1, -0.4]), np.array([0.2, 0.3])
    with jax.enable_x64():
        likelihood = Warped(Gaussian(0.1), warp)
        for p in (0.05, 0.5, 0.9):
            expected = warp.inverse(mean + np.sqrt(variance + 0.1) * norm.ppf(p))
            np.testing.assert_allclose(quantile(likelihood, mean, variance, p), expected, rtol=1e-12)
            np.testing.assert_allclose(likelihood.predictive_cdf(mean, variance, expected), p, rtol=1e-9)


def test_a_positive_target_has_no_density_below_zero():
    likelihood = Warped(Gaussian(0.1), Logarithm(2.0, -2.0))
    with jax.enable_x64():
        density = likelihood.log_density(jnp.zeros(3), jnp.ones(3), jnp.array([-2.5, -2.0, -1.0]))
    assert np.isneginf(density[:2]).all() and np.isfinite(density[2])


def test_the_covariance_of_warped_numbers_is_that_of_draws():
    rng, warp = np.random.default_rng(1), WARPS["yeo_johnson_0.3"]
    mean, A = np.array([0.2, -0.5, 1.0]), rng.normal(size=(3, 3))
    covariance = 0.3 * (A @ A.T + np.eye(3))
    draws = warp.inverse(rng.multivariate_normal(mean, covariance, 400_000))
    second = Warped(Gaussian(0.1), warp).covariance(mean, covariance)
    np.testing.assert_allclose(second, np.cov(draws.T), rtol=0.03, atol=0.02)


@pytest.mark.parametrize("sd", [0.1, 1.0, 5.0, 15.0])
def test_moments_under_a_logarithm_are_lognormal_however_wide(sd):
    warp = standardised(Logarithm(0.5, -0.5), np.exp(np.linspace(-1, 2, 9)) - 0.5, np.ones(9))
    correlation = np.array([[1.0, 0.99, -0.5], [0.99, 1.0, -0.5], [-0.5, -0.5, 1.0]])
    mean, covariance = np.array([0.2, -0.5, 1.0]), (sd / float(warp.scale)) ** 2 * correlation
    expected = np.exp(float(warp.mean) + float(warp.scale) * mean + sd**2 / 2)
    second = np.outer(expected, expected) * np.expm1(sd**2 * correlation)
    with jax.enable_x64():
        likelihood = Warped(Gaussian(0.1), warp)
        ours = jax.jit(Warped.predict)(likelihood, mean, np.diag(covariance) - 0.1)
    np.testing.assert_allclose(ours, (expected - 0.5, np.diag(second)), rtol=1e-9)
    np.testing.assert_allclose(likelihood.covariance(mean, covariance), second, rtol=1e-9)


def test_the_logarithm_of_a_lognormal_target_is_found_by_its_profile_likelihood():
    rng = np.random.default_rng(0)
    y = np.exp(rng.normal(size=400))
    scale, mean = y.std(), y.mean()
    z, zero, weight = (y - mean) / scale, -mean / scale, np.ones(400)
    offered = target_warps(z, weight, zero, np.eye(400))
    assert set(offered) == {"none", "log", "yeo_johnson", "sinh_arcsinh"}

    values = {name: value for name, (_, value) in offered.items()}
    for warp, value in offered.values():  # log N(w(y); 0, s²) at the best s², up to a constant
        w = z if warp is None else warp(z)
        slopes = 0 if warp is None else warp.log_slope(z).sum()
        penalty = 0 if warp is None else 0.5 * warp.freedom * np.log(400)
        direct = -200 * np.log(400 * np.mean((w - w.mean()) ** 2)) + slopes - penalty
        assert abs(value - direct) < 1e-6
    assert values["log"] > values["none"] + 100
    # The true map is among those that the four numbers of sinh_arcsinh come close to, not one of them.
    assert max(values, key=lambda name: values[name]) in ("log", "sinh_arcsinh")


def test_the_profile_likelihood_of_a_sinh_arcsinh_warp_is_that_of_the_warp_and_has_its_gradient():
    rng = np.random.default_rng(2)
    A, x, weight = rng.normal(size=(30, 30)), rng.standard_t(3, 30), rng.uniform(0.5, 2, 30)
    inverse = A @ A.T + np.eye(30)
    for numbers in (np.zeros(4), np.array([0.4, -0.7, 0.9, -0.5])):
        centre, log_width, skew, log_tail = numbers
        warp = SinhArcsinh(centre, np.exp(log_width), skew, np.exp(log_tail))
        z = warp.raw(x) - np.average(warp.raw(x), weights=weight)
        direct = 0.5 * weight.sum() * np.log(z @ inverse @ z) - weight @ warp.raw_log_slope(x)
        value, gradient = _sinh_loss(numbers, x, weight, inverse)
        assert abs(value - direct) < 1e-10 * abs(direct)
        steps = 1e-6 * np.eye(4)
        loss = lambda at: _sinh_loss(at, x, weight, inverse)[0]
        differences = [(loss(numbers + step) - loss(numbers - step)) / 2e-6 for step in steps]
        np.testing.assert_allclose(gradient, differences, rtol=1e-6, atol=1e-6)


def test_columns_are_offered_what_their_values_allow():
    rng = np.random.default_rng(0)
    columns = np.column_stack([rng.integers(0, 2, 200), rng.normal(size=200), np.exp(rng.normal(size=200))])
    mean, scale = columns.mean(axis=0), columns.std(axis=0)
    offered = input_warps((columns - mean) / scale, np.ones(200), -mean / scale)
    assert [sorted(warps) for warps in offered] == [
        [],
        ["rank_normal", "yeo_johnson"],
        ["log", "rank_normal", "yeo_johnson"],
    ]
