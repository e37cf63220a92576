"""Likelihoods: one conformance suite for all against adaptive quadrature, and the Gaussian's closed forms."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

from inspect import isabstract
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from conformance import LIKELIHOOD_CHECKS, LIKELIHOODS, WEIGHTS_AND_RESIDUALS, say, tight_term
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from pseudopoint import likelihoods
from pseudopoint.likelihoods import AbstractLikelihood, Gaussian


@pytest.mark.parametrize("check", LIKELIHOOD_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_conformance(name, check):
    check(LIKELIHOODS[name]())


def test_every_likelihood_of_the_package_is_in_the_conformance_list():
    public = [getattr(likelihoods, name) for name in likelihoods.__all__]
    classes = {c for c in public if issubclass(c, AbstractLikelihood) and not isabstract(c)}
    assert {type(make()) for make in LIKELIHOODS.values()} == classes


F, V, Y = np.array([0.0, -1.3, 2.4, 30.0]), np.array([1e-3, 0.7, 5.0, 0.2]), np.array([0.3, 0.1, 2.3, -30.0])


@pytest.mark.parametrize("variance", [1e-8, 0.3, 1e4])
def test_gaussian_densities_are_those_of_scipy(variance):
    rows = say(Gaussian(variance), F, V, Y)
    np.testing.assert_allclose(rows.log_prob, norm.logpdf(Y, F, np.sqrt(variance)), rtol=1e-13)
    np.testing.assert_allclose(rows.log_density, norm.logpdf(Y, F, np.sqrt(V + variance)), rtol=1e-13)
    np.testing.assert_array_equal(rows.mean, F)
    np.testing.assert_allclose(rows.variance, V + variance, rtol=1e-15)


def test_known_noise_adds_to_that_of_the_likelihood_row_by_row():
    noise = np.array([0.0, 0.2, 1.0, 5.0])
    ours = say(Gaussian(0.3).at(jnp.asarray(noise)), F, V, Y)
    for i, extra in enumerate(noise):
        alone = say(Gaussian(0.3 + extra), F[i], V[i], Y[i])
        for name in ("log_prob", "expectation", "log_density", "mean", "variance", "shrinkage"):
            np.testing.assert_allclose(getattr(ours, name)[i], getattr(alone, name)[0], rtol=1e-14)


@pytest.mark.parametrize("weight, d", WEIGHTS_AND_RESIDUALS)
@pytest.mark.parametrize("name", ["gaussian", "gaussian_small_noise"])
def test_the_gaussian_shrinkage_is_the_maximiser_of_the_bound(name, weight, d):
    likelihood: Any = LIKELIHOODS[name]()
    v = float(say(likelihood, 0.0, d, weight).shrinkage[0])
    loss = lambda log_v: -tight_term(likelihood, float(np.exp(log_v)), weight, d)
    best: Any = minimize_scalar(loss, bounds=(-16.0, 1.0), method="bounded", options={"xatol": 1e-10})
    np.testing.assert_allclose(np.log(v), best.x, atol=1e-6)  # the optimum is flat: √eps
    assert loss(np.log(v)) <= best.fun + 1e-14 * abs(best.fun)
    # there, w d/(2σ²) v − ½(v − 1 − log v) is ½ log(1 + w d/σ²): Titsias 2025
    gain = tight_term(likelihood, v, weight, d) - tight_term(likelihood, 1.0, weight, d)
    x = weight * d / float(likelihood.variance)
    np.testing.assert_allclose(gain, 0.5 * (x - np.log1p(x)), rtol=1e-9, atol=1e-12)


def test_nothing_shrinks_where_there_is_no_residual_or_no_weight():
    assert say(Gaussian(0.3), 0.0, 0.0, 1.0).shrinkage[0] == 1.0
    assert say(Gaussian(0.3), 0.0, 2.0, 0.0).shrinkage[0] == 1.0


@pytest.mark.parametrize("variance", [0.0, -0.1, np.nan, np.inf])
def test_a_noise_variance_that_is_not_positive_is_refused(variance):
    with pytest.raises(ValueError, match="must be positive and finite"):
        Gaussian(variance)
