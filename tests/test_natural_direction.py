"""The natural direction in several coordinates of q, as a direction of the line searches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lattice import problem, random_q
from test_line_search import ADAM, assert_told

from pseudopoint import bounds
from pseudopoint.gaussians import MeanChol, MeanCovariance, MeanLog, MeanPrecision, Natural, NaturalChol
from pseudopoint.optimise.fullbatch import (
    LBFGS,
    Gradient,
    NaturalDirection,
    Objective,
    line_search,
)
from pseudopoint.optimise.fullbatch.line_search import Point
from pseudopoint.optimise.minibatch.energy import with_q
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import IndependentLatents, Model

PROBLEM = problem(3, N=40, M=5)


def elbo(model, data):
    return bounds.elbo(model, data, len(data)).standard


def hyper(model):
    return model.kernel, model.likelihood, model.posterior.Z


def of(model, data):
    """The bound per row, of q alone."""
    return Objective(elbo, trainable(model, hyper), data, scale=40.0)


def start(cls, seed=0):
    """The whitened model with a random q in coordinates of a class."""
    mean, cov = random_q(seed, 5)
    precision = np.linalg.inv(cov)
    theta = Natural(jnp.asarray(precision @ mean), jnp.asarray(-0.25 * (precision + precision.T)))
    return with_q(PROBLEM.whitened(mean, cov), cls.from_natural(theta))


def gaussian():
    """The data, and the bound at the best q."""
    data = PROBLEM.data()
    return data, float(bounds.collapsed(PROBLEM.sparse(), data).standard)


@pytest.mark.parametrize("cls", [MeanChol, MeanPrecision, MeanCovariance, NaturalChol, MeanLog])
def test_the_natural_direction_solves_a_gaussian_likelihood_in_few_steps_that_grow_to_one(cls):
    # Salimbeni 5.1: in coordinates other than θ the best step is small at first, and grows to 1.
    model, (data, best) = start(cls), gaussian()
    result = line_search(of(model, data), NaturalDirection(), tolerance=1e-12)
    assert_told(result)
    assert result.converged and len(result.history) <= 9
    np.testing.assert_allclose(result.bound, best, rtol=0, atol=1e-10)
    steps = [r.step_size for r in result.history]
    assert steps[0] < 0.3 and abs(steps[-1] - 1) < 0.01
    gradient = line_search(of(model, data), Gradient(), max_iter=len(result.history))
    assert best - gradient.bound > 1e-3


@pytest.mark.parametrize("direction", [Gradient(), ADAM, LBFGS()], ids=["gradient", "adam", "lbfgs"])
def test_ordinary_directions_climb_towards_the_collapsed_bound(direction):
    model, (data, best) = start(MeanChol), gaussian()
    result = line_search(of(model, data), direction, max_iter=25)
    assert_told(result)
    first = float(elbo(model, data))
    assert first < result.bound <= best + 1e-9 and best - result.bound < 0.3 * (best - first)


def test_the_best_step_in_natural_coordinates_is_one_and_enough():
    # Salimbeni 5.1, Hensman et al. 2013: θ + ∂L/∂η = θ* of a Gaussian likelihood.
    data, best = gaussian()
    result = line_search(of(start(Natural), data), NaturalDirection())
    (record,) = result.history
    np.testing.assert_allclose(record.step_size, 1, rtol=0, atol=1e-4)
    np.testing.assert_allclose(result.bound, best, rtol=0, atol=1e-8)
    assert result.converged


def test_from_a_root_with_columns_turned_the_way_is_the_same():
    data, _ = gaussian()
    model, signs = start(MeanChol), jnp.array([1.0, -1.0, -1.0, 1.0, -1.0])
    turned = eqx.tree_at(lambda m: m.posterior.q.chol, model, model.posterior.q.chol * signs)
    one, other = (line_search(of(m, data), NaturalDirection(), max_iter=3) for m in (model, turned))
    np.testing.assert_allclose([r.bound for r in other.history], [r.bound for r in one.history], rtol=1e-8)
    np.testing.assert_allclose(other.model.posterior.q.chol, one.model.posterior.q.chol * signs, atol=1e-4)


def spread(model, data):
    """A function of m and S of all latent functions, and of the kernel's variance."""
    q = model.posterior.q
    cov = q.covariance() if q.mean.ndim == 1 else jax.vmap(lambda q: q.covariance())(q)
    second = cov + q.mean[..., None] * q.mean[..., None, :]
    return -jnp.sum(data * second) + jnp.sum(jnp.sin(q.mean)) - jnp.log(model.kernel.variance) ** 2


def place(model, *frozen):
    """Where a direction is asked for; the gradient is 1, 2, 3, …"""
    every = trainable(model, *frozen)
    vector = np.asarray(every.vector)
    return Point(Objective(spread, every, jnp.eye(5) + 0.2), vector, np.arange(1.0, len(vector) + 1))


@pytest.mark.parametrize("ordinary", [False, True])
def test_the_natural_direction_stands_at_q_s_places_and_the_rest_stays_or_goes_by_the_gradient(ordinary):
    mean, cov = random_q(1, 5)
    at = place(with_q(PROBLEM.whitened(mean, cov), cast(MeanCovariance(mean, cov), jnp.float64)))
    change, _ = NaturalDirection(ordinary)(at, None)
    rest = 4 + 10  # two lengthscales, variance, noise; Z
    assert change.shape == (rest + 5 + 25,)
    assert (change[:rest] == (-at.gradient[:rest] if ordinary else 0)).all()
    # The inverse Fisher matrix of (m, S):  Δm = S ∂L/∂m,  ΔS = 2 S (∂L/∂S) S.
    W = np.eye(5) + 0.2
    np.testing.assert_allclose(change[rest : rest + 5], cov @ (np.cos(mean) - 2 * W @ mean), rtol=1e-9)
    np.testing.assert_allclose(change[rest + 5 :].reshape(5, 5), -2 * cov @ W @ cov, rtol=1e-9)


def test_several_latent_functions_have_each_its_own_natural_direction():
    moments = [random_q(seed, 5) for seed in (1, 2)]
    each = [MeanChol(m, np.linalg.cholesky(S)) for m, S in moments]
    both = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    one = PROBLEM.whitened(*moments[0])
    posterior = eqx.tree_at(lambda p: p.q, one.posterior, cast(both, jnp.float64))
    latents = IndependentLatents(base=posterior)  # pyright: ignore[reportCallIssue]
    several = place(Model(one.kernel, one.likelihood, latents), hyper)
    change, _ = NaturalDirection()(several, None)
    means, chols = change[:10].reshape(2, 5), change[10:].reshape(2, 25)
    for q, mean, chol in zip(each, means, chols, strict=True):
        alone, _ = NaturalDirection()(place(with_q(one, cast(q, jnp.float64)), hyper), None)
        np.testing.assert_allclose(alone, np.concatenate([mean, chol]), rtol=1e-9, atol=1e-14)
