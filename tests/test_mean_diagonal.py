"""A q of independent variables: dense formulas, brute-force natural gradients, and where its steps end."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false

from functools import partial

import diagonal_oracles as d
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles as o
import pytest
from lattice import close, problem

from pseudopoint import bounds
from pseudopoint.gaussians import MeanCovariance, MeanDiagonal, natural_gradient
from pseudopoint.optimise.minibatch import ForwardNaturalGradient, Optax, constant
from pseudopoint.params import cast
from pseudopoint.posteriors import Unwhitened, Whitened

M = 6
FAMILIES = [Whitened, Unwhitened]


def numbers():
    rng = np.random.default_rng(8)
    return rng.normal(size=M), np.exp(rng.normal(size=M))


def model(p, family, mean, precision):
    return p.model(family(p.Z, MeanDiagonal(mean, precision), 0.0))


def target(p, family):
    """P* and P*m* of the dense optimum, in the family's variables."""
    dense = p.dense()
    m, S = o.optimal_q(dense.Kuf, dense.Kuu, dense.noise, p.y)
    P = np.linalg.inv(S)
    if family is Whitened:
        L = np.linalg.cholesky(dense.Kuu)
        return L.T @ P @ L, L.T @ P @ m
    return P, P @ m


def test_moments_are_those_of_the_dense_gaussian():
    mean, precision = numbers()
    q = MeanDiagonal(jnp.asarray(mean), jnp.asarray(precision))
    S = np.diag(1 / precision)
    close(q.covariance(), S, 1e-15)
    close(q.entropy(), 0.5 * np.linalg.slogdet(2 * np.pi * np.e * S)[1], 1e-14)
    there = MeanDiagonal.from_natural(q.to_natural())
    close(np.r_[there.mean, there.precision], np.r_[mean, precision], 1e-14)
    with pytest.raises(ValueError, match="positive"):
        MeanDiagonal(mean, -precision)


def test_a_dense_gaussian_goes_to_the_nearest_of_independent_variables():
    rng = np.random.default_rng(3)
    R, m = rng.normal(size=(M, M)), rng.normal(size=M)
    S = R @ R.T + np.eye(M)
    near = MeanDiagonal.from_natural(MeanCovariance(jnp.asarray(m), jnp.asarray(S)).to_natural())
    least = o.gauss_kl(near.mean, np.diag(1 / near.precision), m, S)
    for step in 1e-3 * rng.normal(size=(20, 2, M)):
        assert o.gauss_kl(near.mean + step[0], np.diag(1 / (near.precision * np.exp(step[1]))), m, S) > least


def test_the_natural_gradient_is_brute_force():
    mean, precision = numbers()
    rng = np.random.default_rng(5)
    dm, dS = rng.normal(size=M), rng.normal(size=(M, M))
    dS = dS + dS.T
    loss = lambda q: dm @ q.mean + jnp.sum(dS * q.cov)
    ours = jax.jit(partial(natural_gradient, loss))(MeanDiagonal(mean, precision))
    of = lambda xi: (xi[:M], np.diag(1 / xi[M:]))
    close(np.r_[ours.mean, ours.precision], d.natural_gradient(of, np.r_[mean, precision], dm, dS), 1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_natural_steps_end_in_the_mean_field_optimum_and_a_full_one_has_its_precision(family):
    p = problem(3, 24, M)
    data, (P, Pm) = p.data(), target(p, family)
    start = model(p, family, np.zeros(M), np.diag(P) / 2)

    @jax.jit
    def run(start):
        stepper = ForwardNaturalGradient(constant(1 / M), tight=False)
        body = lambda carry, _: (stepper.step(*carry, data, len(data))[:2], None)
        (end, _), _ = jax.lax.scan(body, (start, stepper.init(start, 24)), None, 300 if family is Whitened else 3000)
        full = ForwardNaturalGradient(constant(1.0), tight=False)
        value = bounds.elbo(end, data, 24).standard
        return end, full.step(start, full.init(start, 24), data, 24)[0], value

    end, once, value = run(start)
    close(once.posterior.q.precision, np.diag(P), 1e-10)
    close(end.posterior.q.precision, np.diag(P), 1e-10)
    close(end.posterior.q.mean, np.linalg.solve(P, Pm), 1e-6)
    # Short of the dense optimum by the KL between the two: ½ (Σ log Pᵢᵢ − log |P|).
    gap = 0.5 * (np.sum(np.log(np.diag(P))) - np.linalg.slogdet(P)[1])
    close(bounds.collapsed(p.sparse(), data).standard - value, gap, 1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_ordinary_gradients_train_it_with_everything_else(family):
    p = problem(3, 24, M)
    data, start = p.data(), cast(model(p, family, *numbers()), jnp.float64)

    @jax.jit
    def run(model):
        stepper = Optax(optax.adam(0.05))

        def body(carry, _):
            model, state, info = stepper.step(*carry, data, len(data))
            return (model, state), info

        (model, _), info = jax.lax.scan(body, (model, stepper.init(model, 24)), None, 100)
        return model, info

    end, info = run(start)
    assert info.bound[-1] > info.bound[0] + 10 and not info.rejected.any() and (end.posterior.q.precision > 0).all()
