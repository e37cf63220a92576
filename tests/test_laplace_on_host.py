"""Laplace's approximation on the host: the numbers of `laplace` and of JAX's gradient, and what a fit makes of them."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.bounds import covariance_on_host, given_laplace, laplace, laplace_on_host, mode_on_host
from pseudopoint.data import dataset, padded
from pseudopoint.kernels import RBF, Constant, Matern52
from pseudopoint.likelihoods import Bernoulli, NegativeBinomial, Poisson
from pseudopoint.params import cast
from pseudopoint.posteriors import Model
from pseudopoint.recipes import methods

N, D = 110, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D))
F = 2 * np.sin(2 * X[:, 0]) + X[:, 1]
LABELS, COUNTS = 1.0 * (RNG.random(N) < 1 / (1 + np.exp(-F))), 1.0 * RNG.poisson(np.exp(F))
CASES = {
    "logit": (Bernoulli("logit"), LABELS),
    "probit": (Bernoulli("probit"), LABELS),
    "poisson": (Poisson(1.5), COUNTS),
    "negative binomial": (NegativeBinomial(1.5, 2.0), COUNTS),
}


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(covariance_on_host, "SIZE", 32)


def both_ways(model, data):
    """(value, gradient) on the host, and by JAX of `laplace`."""
    at = mode_on_host(model, data)
    ours = jax.jit(jax.value_and_grad(lambda model: given_laplace(model, (data, at)).value))(model)
    return ours, jax.jit(jax.value_and_grad(lambda model: laplace(model, data).value))(model)


def alike(ours, theirs, tolerance):
    most = max(float(np.max(np.abs(x))) for x in jax.tree.leaves(theirs))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * most)


@pytest.mark.parametrize("name", CASES)
def test_value_gradient_and_predictions_are_those_of_a_compiled_program(name, small_tiles):
    likelihood, y = CASES[name]
    with jax.enable_x64(True):
        weight = RNG.integers(1, 4, N).astype(float)
        data = padded(dataset(X, y, weight, dtype="float64"), N + 9)
        model = cast(Model(Matern52(np.full(D, 0.9), 2.0) + RBF(np.full(D, 2.0), 1.0), likelihood), "float64")
        ours, theirs = both_ways(model, data)
        alike(ours, theirs, 1e-11)
        new = jnp.asarray(RNG.normal(size=(7, D)))
        solutions = [solve(model, data) for solve in (laplace_on_host, laplace)]
        for a, b in zip(*(solution.predictor()(new) for solution in solutions), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-10)
        assert abs(float(solutions[0].value) - float(ours[0])) < 1e-9


def test_rows_of_weight_zero_cost_and_change_nothing(small_tiles):
    with jax.enable_x64(True):
        model = cast(Model(Matern52(np.full(D, 0.9), 2.0), Poisson(1.5)), "float64")
        few, counts = dataset(X, COUNTS, dtype="float64"), np.arange(2 * N) % 2 == 0
        twice = dataset(np.repeat(X, 2, axis=0), np.where(counts, np.repeat(COUNTS, 2), 1e6), 1.0 * counts)
        alone, among = both_ways(model, few)[0], both_ways(model, twice)[0]
    alike(among, alone, 1e-11)


def test_in_float32_the_gradient_is_that_of_float64(small_tiles):
    model, y = Model(Matern52(np.full(D, 0.9), 2.0), Bernoulli("logit")), LABELS
    with jax.enable_x64(True):
        exact = both_ways(cast(model, "float64"), dataset(X, y, dtype="float64"))[0]
    near = both_ways(cast(model, "float32"), dataset(X, y, dtype="float32"))[0]
    alike(near, cast(exact, "float32"), 2e-3)


def test_where_all_is_certain_and_where_no_factor_is_finite(small_tiles):
    with jax.enable_x64(True):
        data = dataset(X, np.ones(N), dtype="float64")
        certain = cast(Model(Constant(1e4), Bernoulli("logit")), "float64")  # W is nothing at the mode
        ours, theirs = both_ways(certain, data)
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-8)
        np.testing.assert_allclose(ours[1].kernel.variance, theirs[1].kernel.variance, rtol=1e-4, atol=1e-12)
        broken = eqx.tree_at(lambda m: m.kernel.variance, certain, jnp.asarray(np.nan))
        at = mode_on_host(broken, data)
        assert np.isnan(at.value) and all(np.all(np.asarray(part) == 0) for part in jax.tree.leaves(at.kernel))


def test_fits_on_the_host_and_by_a_program_are_the_same(monkeypatch):
    settings = {"method": "laplace", "effort": "fast", "max_iter": 8}
    fits = {
        "classes": lambda: GPClassifier(**settings).fit(X, LABELS),
        "counts": lambda: GPRegressor(likelihood="poisson", **settings).fit(X, COUNTS),
    }
    ours = {name: fit() for name, fit in fits.items()}
    monkeypatch.setitem(methods.FITS, ("laplace", False), lambda *given: methods._fit_whole(laplace, *given))
    for name, fit in fits.items():
        theirs = fit()
        assert ours[name].bound_ == pytest.approx(theirs.bound_, abs=1e-6)
        np.testing.assert_allclose(ours[name].predict_latent(X)[0], theirs.predict_latent(X)[0], atol=1e-4)


def test_a_likelihood_that_is_not_concave_takes_the_program(monkeypatch):
    asked = []
    monkeypatch.setattr(methods, "mode_on_host", lambda *given: asked.append(given))
    y = np.sin(X[:, 0]) + 0.1 * RNG.standard_t(3, N)
    model = GPRegressor(likelihood="student_t", method="laplace", effort="fast", max_iter=3).fit(X, y)
    assert asked == [] and np.isfinite(model.bound_)
