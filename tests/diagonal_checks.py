"""What tests of the O(M) posterior share: one problem of `lattice.py`, its models, and courses of its steppers."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles as o
from lattice import LENGTHSCALE, NOISE, VARIANCE, Problem, problem

from pseudopoint import bounds
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.optimise.minibatch import (
    DiagonalPrecisionAffine,
    DiagonalPrecisionFixedPoint,
    DiagonalPrecisionNaturalGradient,
)
from pseudopoint.params import cast
from pseudopoint.posteriors import DiagonalPrecision, DirectPrecision, LogPrecision, Model, SoftplusPrecision

N, M = 24, 6
SHIFTS = [LogPrecision, SoftplusPrecision, DirectPrecision]
RULES = [DiagonalPrecisionNaturalGradient, DiagonalPrecisionFixedPoint, partial(DiagonalPrecisionAffine, newton=True)]
IDS = ["natural gradient", "fixed point", "affine"]


@cache
def given() -> Problem:
    return problem(3, N, M, weighted=True)


def random_shift(seed=0, M=M):
    """μ and g, neither the prior's nor the optimum's."""
    rng = np.random.default_rng([11, seed])
    return rng.normal(size=M), np.exp(rng.normal(size=M))


def shifted(p: Problem, mu, g, shift=LogPrecision, jitter=0.0, likelihood=None):
    likelihood = Gaussian(NOISE) if likelihood is None else likelihood
    return cast(
        Model(Matern52(LENGTHSCALE, VARIANCE), likelihood, DiagonalPrecision(p.Z, shift(mu, g), jitter)), jnp.float64
    )


def elbo_oracle(p: Problem, K, Kuf, Kff_diag, noise, m, S):
    """Σ wᵢ E log p(yᵢ | fᵢ) − KL by dense formulas."""
    kl = o.gauss_kl(m, S, 0 * m, K)
    row = lambda i: o.elbo_gaussian(Kff_diag[[i]], Kuf[:, [i]], K, m, S, noise[[i]], p.y[[i]]) + kl
    return p.weight @ [row(i) for i in range(len(p.y))] - kl


def slopes(p: Problem, m, S):
    """∂L/∂m and ∂L/∂S of the dense bound at N(m, S), with rows repeated by their weights."""
    dense = p.dense()
    return o.elbo_gaussian_gradient(dense.Kuf, dense.Kuu, m, S, dense.noise / p.weight, p.y)


@partial(jax.jit, static_argnums=(0, 4))
def steps(rule, gamma, model, data, count=60):
    """The model after so many steps on all rows, and what is said of each."""
    stepper = rule(lambda _: gamma)

    def body(carry, _):
        model, state, info = stepper.step(*carry, data, len(data))
        return (model, state), info

    (model, _), info = jax.lax.scan(body, (model, stepper.init(model, len(data))), None, count)
    return model, info


@jax.jit
def everything(model, X):
    """KL, S, mean, variance and joint covariance at X."""
    projection = model.posterior.project(model.kernel)
    predictor = projection.predictor()
    return projection.divergence, projection.covariance(), *predictor(X), predictor.covariance(X)


@jax.jit
def gradient(model, data):
    """∂ELBO in (μ, g) as they are."""

    def bound(mu, g):
        posterior = DiagonalPrecision(model.posterior.Z, LogPrecision(mu, g), model.posterior.jitter)
        return bounds.elbo(Model(model.kernel, model.likelihood, posterior), data, len(data)).value

    return jax.value_and_grad(bound, (0, 1))(model.posterior.q.mu, model.posterior.q.g)
