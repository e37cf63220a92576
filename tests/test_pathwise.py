"""Drawn functions have the mean and covariance of the posterior; they are the same again, and have derivatives."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import KERNELS, formula, rows
from lattice import close, precision_form, random_q

from pseudopoint.bounds import collapsed, marginal
from pseudopoint.bounds.laplace import laplace
from pseudopoint.data import dataset
from pseudopoint.kernels import (
    RBF,
    AbstractKernel,
    Constant,
    Linear,
    Matern12,
    Matern52,
    OrthogonalAdditive,
    Periodic,
    Tied,
    White,
)
from pseudopoint.likelihoods import Bernoulli, Gaussian
from pseudopoint.params import cast
from pseudopoint.posteriors import Collapsed, Exact, IndependentLatents, Model, Predictor, Whitened
from pseudopoint.sampling import Paths, _features, _posterior, _prior, paths

N, M, D, S = 12, 5, 2, 4000
rng = np.random.default_rng(2)
X, Z, TEST = rng.normal(size=(N, D)), rng.normal(size=(M, D)), rng.normal(size=(7, D))
TEST[:2], TEST[2] = X[:2], Z[0]  # also where something was seen
MEAN, COV = random_q(0, M)
y = np.sin(2 * X[:, 0]) + X[:, 1]
# Its features are exact, six of them.
QUADRATIC = Linear(np.array([0.3, 0.6])) * Linear(0.5) + Linear(0.8) + Constant(0.4)


def model(kernel, posterior=None, likelihood=None):
    return cast(Model(kernel, likelihood or Gaussian(0.1), posterior or Exact()), jnp.float64)


def noisy(kernel):
    """WᵀW = (K + G⁻¹)⁻¹ with a diagonal G, s = 0, and a mean with points of its own."""
    k = cast(kernel, jnp.float64)
    W = np.linalg.inv(np.linalg.cholesky(np.asarray(k(jnp.asarray(Z), jnp.asarray(Z))) + np.diag(0.1 + COV[0] ** 2)))
    return Predictor(k, jnp.asarray(X), jnp.asarray(y), jnp.asarray(Z), jnp.asarray(W), jnp.zeros(M), jnp.zeros(()))


FAMILIES = {
    "exact": lambda kernel: marginal(model(kernel), dataset(X, y)).predictor(),
    "collapsed": lambda kernel: collapsed(model(kernel, Collapsed(Z)), dataset(X, y)).predictor(),
    "dense": lambda kernel: model(kernel, Whitened(Z, precision_form(MEAN, COV))).predictor(),
    "diagonal and decoupled": noisy,
    "Laplace": lambda kernel: laplace(model(kernel, likelihood=Bernoulli()), dataset(X, 1.0 * (y > 0))).predictor(),
}
EACH = pytest.mark.parametrize("family", FAMILIES)


class Drawn(NamedTuple):
    """Paths at TEST, their mean and covariance given the waves, and those of the posterior."""

    paths: np.ndarray
    given: tuple[np.ndarray, np.ndarray]
    T: np.ndarray
    posterior: tuple[np.ndarray, np.ndarray]


def _linear_map(p, prior, X):
    """Given the waves, paths are affine in standard normal numbers: the constant, and T of the linear part."""
    sizes = (_features(prior, p.Zv[:1]).shape[1], len(p.Zv), len(p.s))
    f = lambda *normal: _posterior(p, prior, *(n[None] for n in normal))(X)[0]
    zero = [jnp.zeros(size, p.Zv.dtype) for size in sizes]
    return f(*zero), jnp.concatenate(jax.jacrev(f, (0, 1, 2))(*zero), axis=1)


@partial(jax.jit, static_argnums=(2, 3, 4))
def _drawn(p, X, seed, count, features):
    f = paths(p, seed, count, features)
    constant, T = _linear_map(p, f.prior, X)
    return f(X), (constant, T @ T.T), T, (p(X)[0], p.covariance(X))


def drawn(predictor, seed=0, count=1, features=1) -> Drawn:
    X = jnp.asarray(TEST, predictor.alpha.dtype)
    return Drawn(*jax.tree.map(np.asarray, _drawn(predictor, X, seed, count, features)))


# --- the rule --------------------------------------------------------------------------------------------------------


def check_exact(predictor):
    of = drawn(predictor)
    for ours, truth in zip(of.given, of.posterior, strict=True):
        close(ours, truth, 1e-11)


@EACH
def test_with_exact_features_a_path_has_the_mean_and_the_covariance_of_the_posterior_to_rounding(family):
    check_exact(FAMILIES[family](QUADRATIC))


def test_more_pseudo_points_than_the_kernel_has_features_lose_no_digits_that_the_jitter_leaves():
    # K_uu has rank 6 and 12 rows: six directions are jitter alone, and I − DKDᵀ has eigenvalues from 1e-9 to 1.
    check_exact(collapsed(model(QUADRATIC, Collapsed(X)), dataset(X, y)).predictor())


# --- the prior -------------------------------------------------------------------------------------------------------

# Without a spectrum, as they are not stationary.
WITHOUT = ("polynomial", "arc_cosine", "hamming", "changepoint", "coregion", "coregionalised")
PRIORS = {name: make for name, make in KERNELS.items() if name not in ("white", "sum", "in_units", *WITHOUT)} | {
    "spectral_mixture": lambda D: KERNELS["spectral_mixture"](D).kernel,
    "sum": lambda D: KERNELS["rbf_ard"](D) + Constant(0.4) + Linear(0.3),
    "product of waves": lambda D: KERNELS["matern12"](D) * KERNELS["periodic_ard"](D),
    "product of sums": lambda D: (
        (RBF(1.0) + Linear(0.2)) * (Matern52(1.5).on(1, 2) + Constant(0.5)) * Linear(0.4).on(0)
    ),
    "on of on": lambda D: RBF(np.array([0.6, 1.7])).on(2, 1).on(1, 2, 0),
    "orthogonal additive, tied": lambda D: Tied(
        KERNELS["orthogonal_additive"](2), (0, 1, 1), np.array([1.0, 0.7, 1.2])
    ),
    "orthogonal additive, on": lambda D: OrthogonalAdditive(np.array([0.6, 1.7]), interaction=2.0).on(2, 0).on(2, 1, 0),
    "on twice the same": lambda D: (
        RBF(np.array([0.6, 1.7])).on(1, 1) + (Linear(np.array([0.2, 0.5])) * Linear(1.0)).on(2, 2)
    ),
}


def covariances(kernel, features, seed=3):
    """ΦΦᵀ, and the kernel's own. Not compiled as a whole: its parts are the same from kernel to kernel."""
    X = jnp.asarray(rows()[0])
    phi = _features(_prior(kernel, jax.random.key(seed), features, jnp.mean(X, axis=0)), X)
    return np.asarray(phi @ phi.T), formula(kernel, *[rows()[0]] * 2)


@pytest.mark.parametrize("name", PRIORS)
def test_features_have_the_covariance_of_the_kernel(name):
    ours, truth = covariances(PRIORS[name](3), 20000)
    # Of 20000 cosines the standard error is at most k(x, x)/√20000, 0.7 %; those of a row with itself have none.
    scale = np.sqrt(np.outer(np.diag(truth), np.diag(truth)))
    assert np.abs((ours - truth) / scale).max() < 5 / 20000**0.5
    if "orthogonal" not in name:  # waves less their mean have no norm that is known before they are drawn
        close(np.diag(ours), np.diag(truth), 1e-13)


@pytest.mark.parametrize("name", WITHOUT)
def test_a_kernel_that_is_not_stationary_has_no_paths_and_says_so(name):
    with pytest.raises(TypeError, match="has no known spectrum, so no paths"):
        covariances(KERNELS[name](3), 10)


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_with_an_orthogonal_additive_kernel_has_no_paths_and_says_so(turned):
    factors = [OrthogonalAdditive(), RBF(1.0)]
    with pytest.raises(TypeError, match="a product with OrthogonalAdditive has no paths"):
        covariances(factors[turned] * factors[not turned], 10)


def test_the_error_of_waves_falls_with_the_root_of_their_number_and_polynomials_have_none():
    error = lambda kernel, F: np.mean([np.square(np.subtract(*covariances(kernel, F, seed))) for seed in range(10)])
    kernel = KERNELS["matern32_ard"](3)
    assert 8 < np.sqrt(error(kernel, 50) / error(kernel, 5000)) < 12.5
    assert error(Linear(0.3) * Linear(0.5) + Constant(0.4), 1) < 1e-30


@pytest.mark.parametrize("kernel", [White(0.3), RBF(1.0) + White(0.3), White(0.3) * Linear(1.0)])
def test_white_noise_has_no_paths(kernel):
    with pytest.raises(TypeError, match="White has no paths"):
        paths(noisy(kernel), 0, 3)


class Cauchy(AbstractKernel):
    def __call__(self, X, Z):
        return 1 / (1 + jnp.sum((X[:, None] - Z) ** 2, axis=-1))

    def diag(self, X):
        return jnp.ones_like(X[:, 0])


def test_a_kernel_of_unknown_spectrum_is_refused_by_name():
    with pytest.raises(TypeError, match="Cauchy has no known spectrum"):
        paths(noisy(Cauchy()), 0, 3)


# --- draws -----------------------------------------------------------------------------------------------------------


MATERN = Matern52(np.array([0.8, 1.3]), 1.7)


def check_moments(f, mean, cov):
    """Within five standard errors: of a mean √(Cᵢᵢ/S), of a covariance √((CᵢᵢCⱼⱼ + Cᵢⱼ²)/S)."""
    variance = np.diag(cov)
    assert np.abs((f.mean(axis=0) - mean) / np.sqrt(variance / len(f))).max() < 5
    assert np.abs((np.cov(f.T) - cov) / np.sqrt((np.outer(variance, variance) + cov**2) / len(f))).max() < 5


KINDS = {
    "rbf": RBF(0.9, 1.7),
    "matern12": Matern12(np.array([0.8, 1.3]), 1.7),
    "matern32": KERNELS["matern32_ard"](2),
    "rational quadratic": KERNELS["rational_quadratic_ard"](2),
    "periodic": Periodic(1.4, 1.7, np.array([2.1, 4.3])),
    "sum and product": RBF(1.0).on(1) * Matern12(3.0).on(0) + Matern52(2.0, 0.8) + Constant(0.3),
}


@pytest.mark.parametrize(
    ("family", "kernel"), [("diagonal and decoupled", name) for name in KINDS] + [(name, "") for name in FAMILIES]
)
def test_draws_and_waves_are_right_on_average_whatever_the_kernel_and_the_family(family, kernel):
    F = 150
    of = drawn(FAMILIES[family](KINDS.get(kernel, MATERN)), 1, S, F)
    # Paths have the moments that the rule gives their waves,
    check_moments(of.paths, *of.given)
    # and these, over waves, those of the posterior: TTᵀ is a mean over waves, each a sum of columns of T that are F
    # apart, and of what has no waves.
    close(of.given[0], of.posterior[0], 1e-9)
    waves = of.T[:, : F * (of.T.shape[1] // F)].reshape(7, -1, F)
    error = F**0.5 * np.einsum("akf,bkf->fab", waves, waves).std(axis=0)
    assert (np.abs(of.given[1] - of.posterior[1]) <= 5 * error + 1e-12).all()


def test_draws_with_many_waves_have_the_mean_and_the_covariance_of_the_posterior():
    of = drawn(FAMILIES["collapsed"](MATERN), 1, S, 1500)
    check_moments(of.paths, *of.posterior)


@pytest.fixture(scope="module")
def one() -> Paths:
    with jax.enable_x64(True):
        return small(FAMILIES["dense"](MATERN), 0)


small = jax.jit(lambda predictor, key: paths(predictor, key, 3, 50))
at = jax.jit(lambda f, X: f(X))


def test_a_path_is_a_function(one):
    together = at(one, jnp.asarray(TEST))
    assert together.shape == (3, 7)
    np.testing.assert_array_equal(at(one, jnp.asarray(TEST)), together)
    close(at(one, jnp.asarray(TEST[::-1]))[:, ::-1], together, 1e-13)  # whatever it is asked beside it
    close(one(jnp.asarray(TEST)), together, 1e-12)


def test_a_seed_names_the_functions(one):
    predictor, together = FAMILIES["dense"](MATERN), np.asarray(at(one, jnp.asarray(TEST)))
    of = lambda key: np.asarray(at(small(predictor, key), jnp.asarray(TEST)))
    np.testing.assert_array_equal(of(0), together)
    np.testing.assert_array_equal(of(jax.random.key(0)), together)
    assert np.abs(of(1) - together).max() > 0.1


def test_the_derivative_of_a_path_is_that_of_finite_differences(one):
    slope = jax.jit(jax.grad(lambda x: one(x[None])[1, 0]))(jnp.asarray(TEST[4]))
    steps = 1e-5 * np.concatenate([np.eye(D), -np.eye(D)])
    f = np.asarray(one(jnp.asarray(TEST[4] + steps)))[1]
    close(slope, (f[:D] - f[D:]) / 2e-5, 1e-8)


@jax.jit
def interpolated(noise):
    predictor = marginal(model(Matern52(1.0, 1.7), likelihood=Gaussian(noise)), dataset(X, y)).predictor()
    f = paths(predictor, 0, 200, 100)
    return f(jnp.asarray(X)), f(jnp.asarray(TEST[3:]))


@pytest.mark.parametrize("noise", [1e-4, 1e-8])
def test_as_the_noise_goes_paths_interpolate(noise):
    seen, elsewhere = interpolated(jnp.asarray(noise))
    assert 0.7 < np.sqrt(np.mean((np.asarray(seen) - y) ** 2) / noise) < 1.1
    assert np.asarray(elsewhere).std(axis=0).min() > 0.05


@pytest.mark.parametrize("separate", [False, True], ids=["shared", "separate"])
def test_several_latent_functions_are_drawn_side_by_side(separate):
    # C functions, each with an exact kernel: two draws of two functions have nothing to do with each other.
    qs = [cast(precision_form(*random_q(c, M)), jnp.float64) for c in range(2)]
    stack = lambda *trees: jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    kernels = [cast(Linear(np.array([0.3, v])) + Constant(0.4), jnp.float64) for v in (0.6, 1.2)]
    posterior = IndependentLatents(Whitened(jnp.asarray(Z), stack(*qs)), separate=separate)

    @jax.jit
    def run():
        predictor = posterior.project(stack(*kernels) if separate else kernels[0]).predictor()
        X = jnp.asarray(TEST)
        return paths(predictor, 5, S, 1)(X), predictor(X)[0], predictor.covariance(X)

    f, mean, cov = map(np.asarray, run())
    assert f.shape == (2, S, 7)
    for c in range(2):
        check_moments(f[c], mean[c], cov[c])
    cross = (f[0] - mean[0]).T @ (f[1] - mean[1]) / S
    assert np.abs(cross / np.sqrt(np.outer(np.diag(cov[0]), np.diag(cov[1])) / S)).max() < 5


def test_in_float32_a_predictor_of_numpy_arrays_gives_paths_of_float32():
    for kernel, F in ((MATERN, 100), (QUADRATIC, 1)):
        double = drawn(predictor := FAMILIES["dense"](kernel), 0, 1, F)
        with jax.enable_x64(False):
            of = drawn(jax.tree.map(lambda x: np.asarray(x, np.float32), predictor), 0, S, F)
        assert of.paths.dtype == np.float32
        check_moments(of.paths, *of.given)
        close(of.posterior[0], double.posterior[0], 1e-5)
    close(of.given[1], double.posterior[1], 1e-5)
