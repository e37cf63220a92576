"""The O(M) posterior as pseudo-observations: θ and g stay, q follows the prior."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles as o
import pytest
from conformance import finite_differences
from diagonal_checks import IDS, RULES, N, elbo_oracle, everything, given, random_shift, shifted, steps
from lattice import LENGTHSCALE, NOISE, VARIANCE, close

from pseudopoint import bounds
from pseudopoint.data import dataset
from pseudopoint.kernels import RBF, Matern52
from pseudopoint.likelihoods import Gaussian, Heteroscedastic
from pseudopoint.optimise.minibatch import DiagonalPrecisionNaturalGradient
from pseudopoint.params import cast
from pseudopoint.posteriors import DiagonalPrecision, IndependentLatents, LogPrecision, Model, PseudoObservations

observed = partial(shifted, shift=PseudoObservations)


def dense_q(K, theta, g):
    """Mean and covariance of p(u) Πᵢ exp(θᵢuᵢ − ½gᵢuᵢ²), normalised."""
    S = np.linalg.inv(np.linalg.inv(K) + np.diag(g))
    return S @ theta, S


def bound_of(model, data):
    return bounds.elbo(model, data, len(data)).value


def test_q_is_the_prior_times_gaussian_observations():
    p, (theta, g) = given(), random_shift()
    dense = p.dense()
    m, S = dense_q(dense.Kuu, theta, g)
    divergence, cov, mean, variance, _ = everything(observed(p, theta, g), p.Xs)
    close(divergence, o.gauss_kl(m, S, 0 * m, dense.Kuu), 1e-12)
    close(cov, S, 1e-13)
    close((mean, variance), o.sparse_predict(dense.Ksu, dense.Kss_diag, dense.Kuu, m, S), 1e-12)


def test_gradients_with_theta_held_equal_finite_differences_of_the_dense_bound():
    p, (theta, g) = given(), random_shift()

    def oracle(theta, g, lengthscale, variance, noise, Z):
        moved = p._replace(Z=Z)
        dense = moved.dense(lengthscale, variance, noise)
        return elbo_oracle(moved, dense.Kuu, dense.Kuf, dense.Kff_diag, dense.noise, *dense_q(dense.Kuu, theta, g))

    def ours(theta, g, lengthscale, variance, noise, Z):
        posterior = DiagonalPrecision(Z, PseudoObservations(theta, g), 0.0)
        return bound_of(Model(Matern52(lengthscale, variance), Gaussian(noise), posterior), p.data())

    at = [np.asarray(x) for x in (theta, g, LENGTHSCALE, VARIANCE, NOISE, p.Z)]
    for slope, truth in zip(jax.jit(jax.grad(ours, range(6)))(*at), finite_differences(oracle, at, 1e-3), strict=True):
        close(slope, truth, 1e-7)


@pytest.mark.parametrize("lengthscale", [0.3, 1.0, 4.0])
def test_with_the_data_for_observations_q_is_the_posterior_under_every_kernel(lengthscale):
    # θ = y/σ², g = 1/σ² at Z = X: nothing is left to learn when the kernel moves.
    p = given()
    q = PseudoObservations(p.y / NOISE, np.full(N, 1 / NOISE))
    model = cast(Model(Matern52(lengthscale, VARIANCE), Gaussian(NOISE), DiagonalPrecision(p.X, q, 0.0)), jnp.float64)
    data = dataset(p.X, p.y)
    close(jax.jit(bound_of)(model, data), jax.jit(bounds.marginal)(model, data).value, 1e-10)


@pytest.mark.parametrize("jitter", [0.0, 1e-3])
@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_natural_steps_of_q_alone_are_those_in_mu_and_g(rule, jitter):
    p, (mu, g) = given(), random_shift()
    held = shifted(p, mu, g, jitter=jitter)
    K = held.posterior.project(held.kernel).basis.K
    q = PseudoObservations(mu, g).moved(mu, g, K, g / (1 + jitter * VARIANCE * g))
    after, truth = (
        steps(rule, 0.3, eqx.tree_at(lambda m: m.posterior.q, held, each), p.data(), 3)[0]
        for each in (q, held.posterior.q)
    )
    close(after.posterior.q.g, truth.posterior.q.g, 1e-10)
    close(after.posterior.project(held.kernel).mu, truth.posterior.q.mu, 1e-10)


def test_several_functions_step_as_in_mu_and_g():
    p = given()
    mu, g = np.stack([random_shift(c) for c in range(2)], axis=1)
    each = DiagonalPrecision(jnp.asarray(p.Z), cast(LogPrecision(mu, g), jnp.float64), 0.0)
    held = cast(Model(Matern52(LENGTHSCALE, VARIANCE), Heteroscedastic(0.5), IndependentLatents(each)), jnp.float64)
    q = PseudoObservations(jnp.asarray(mu), jnp.asarray(g))
    q = q.moved(mu, g, jnp.asarray(p.dense().Kuu), g)
    model = eqx.tree_at(lambda m: m.posterior.q, held, q)
    after, truth = (steps(DiagonalPrecisionNaturalGradient, 0.3, each, dataset(p.X, p.y), 3) for each in (model, held))
    close(after[1].bound, truth[1].bound, 1e-10)
    close(after[0].posterior.q.g, truth[0].posterior.q.g, 1e-10)


def test_a_step_of_the_kernel_costs_little_where_it_is_ill_conditioned():
    # 40 points on a line under a smooth kernel. The best q there is, and then one step of the lengthscale by 5 %.
    rng = np.random.default_rng(0)
    Z = np.linspace(0, 4, 40)[:, None]
    data = dataset(Z, np.sin(3 * Z[:, 0]) + 0.1 * rng.normal(size=40))
    jitter, g = 1e-10, np.full(40, 100.0)
    observations = PseudoObservations(100 * data.y, g)
    model = lambda q, lengthscale: cast(
        Model(RBF(lengthscale, 1.0), Gaussian(0.01), DiagonalPrecision(Z, q, jitter)), jnp.float64
    )
    bound = jax.jit(lambda m: bound_of(m, data))
    start = model(observations, 0.6)
    best = bound(start)
    mu = start.posterior.project(start.kernel).mu
    lost = [best - bound(model(q, 0.63)) for q in (observations, LogPrecision(mu, g))]
    assert abs(lost[0]) < 0.1 and lost[1] > 100 * abs(lost[0]), lost


def test_joint_steps_climb_and_no_observation_is_more_certain_than_the_jitter_lets_it_be():
    # Hardly any noise: nothing else would hold g.
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, 3, 60))[:, None]
    data, jitter = dataset(X, np.sin(3 * X[:, 0])), 1e-2
    q = PseudoObservations(np.zeros(12), np.ones(12))
    start = cast(Model(RBF(0.5, 1.0), Gaussian(1e-3), DiagonalPrecision(X[::5], q, jitter)), jnp.float64)
    rule = partial(DiagonalPrecisionNaturalGradient, hyper_optimiser=optax.adam(0.01))
    after, info = steps(rule, 1.0, start, data, 300)
    assert not info.rejected.any() and info.bound[-1] > info.bound[10] + 5
    ceiling = 1 / (jitter * after.kernel.variance)
    assert (after.posterior.q.g <= 1.1 * ceiling).all() and (after.posterior.q.g > 0.9 * ceiling).any()
