"""The dual form (t-SVGP): the bound as a function of θ where q follows with the data's part of it held fixed."""

# pyright: reportArgumentType=false, reportCallIssue=false

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lattice import close, problem, random_q

from pseudopoint import bounds
from pseudopoint.data import dataset
from pseudopoint.gaussians import MeanCovariance, MeanPrecision
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Bernoulli, Gaussian, Softmax
from pseudopoint.optimise.fullbatch import converge
from pseudopoint.optimise.minibatch import NaturalGradient, constant
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, IndependentLatents, Model, Unwhitened, Whitened

N, M = 24, 6
P = problem(3)
TARGETS = {1: P.y, 2: P.y > 0, 3: np.digitize(P.y, [-0.7, 0.7])}
LIKELIHOODS = {"gaussian": Gaussian(0.2), "bernoulli": Bernoulli("logit"), "softmax": Softmax(3)}
EACH = pytest.mark.parametrize("name", LIKELIHOODS)


def example(name):
    likelihood = LIKELIHOODS[name]
    moments = [random_q(c, M) for c in range(likelihood.latents)]
    q = MeanPrecision(np.stack([m for m, _ in moments]), np.stack([np.linalg.inv(S) for _, S in moments]))
    if likelihood.latents == 1:
        posterior = Whitened(P.Z, jax.tree.map(lambda x: x[0], q), jitter=0.0)
    else:
        posterior = IndependentLatents(base=Whitened(P.Z, q, jitter=0.0))
    y = TARGETS[1 if name == "gaussian" else likelihood.latents if likelihood.latents > 1 else 2]
    model = cast(Model(Matern52(np.array([0.8, 1.3]), 1.7), likelihood, posterior), jnp.float64)
    return model, dataset(P.X, y.astype(float))


def prior_root(model):
    return np.linalg.cholesky(np.asarray(model.kernel(model.posterior.Z, model.posterior.Z)))


def sites(model):
    """Λ = L(P − I)Lᵀ and λ = LPm, of every latent function."""
    L, q = prior_root(model), model.posterior.q
    precision, mean = (np.asarray(x).reshape(-1, *x.shape[-d:]) for x, d in ((q.precision, 2), (q.mean, 1)))
    return [L @ (p - np.eye(M)) @ L.T for p in precision], [L @ p @ m for p, m in zip(precision, mean, strict=True)]


@jax.jit
def bound(model, data, mean, cov):
    Z, q = model.posterior.Z, MeanCovariance(mean, cov)
    posterior = Whitened(Z, q, 0.0) if mean.ndim == 1 else IndependentLatents(base=Whitened(Z, q, 0.0))
    return bounds.elbo(Model(model.kernel, model.likelihood, posterior), data, len(data)).value


def dual_bound(hyper, vector, data, Lambdas, lambdas):
    """The bound at θ with q(u) ∝ p(u) exp(λᵀK⁻¹u − ½ uᵀK⁻¹ΛK⁻¹u), by NumPy."""
    model = hyper.rebuild(jnp.asarray(vector))
    inverse = np.linalg.inv(prior_root(model))
    covs = [np.linalg.inv(np.eye(M) + inverse @ Lambda @ inverse.T) for Lambda in Lambdas]
    means = [S @ inverse @ b for S, b in zip(covs, lambdas, strict=True)]
    mean, cov = (np.stack(means), np.stack(covs)) if len(covs) > 1 else (means[0], covs[0])
    return float(bound(model, data, mean, cov))


@partial(jax.jit, static_argnums=0)
def one_step(stepper, model, data):
    return stepper.step(model, stepper.init(model, N), data, N)


# One for all tests: a stepper's functions are compared by identity when its steps are compiled.
STILL, UNIT = constant(0.0), optax.sgd(1.0)
DUAL, PLAIN = (NaturalGradient(STILL, UNIT, dual=dual) for dual in (True, False))


def slope(stepper, model, data):
    """The gradient in θ that the stepper follows: how far a step of size 1 moves, or as near as the guard lets it."""
    hyper = trainable(model, lambda m: m.posterior.q)
    new, _, info = one_step(NaturalGradient(STILL, optax.sgd(1e-6), dual=stepper is DUAL), model, data)
    assert not info.rejected
    return (trainable(new, lambda m: m.posterior.q).vector - hyper.vector) / 1e-6, info


@EACH
def test_the_slope_is_that_of_the_bound_with_the_data_s_part_of_q_held_fixed(name):
    model, data = example(name)
    hyper = trainable(model, lambda m: m.posterior.q)
    at = lambda vector: dual_bound(hyper, vector, data, *sites(model))
    vector, h = np.asarray(hyper.vector), 1e-3
    close(at(vector), float(one_step(DUAL, model, data)[2].bound), 1e-10)
    differences = []
    for e in np.eye(len(vector)):
        near, far = (at(vector + s * h * e) - at(vector - s * h * e) for s in (1, 2))
        differences.append((8 * near - far) / (12 * h))
    ours, _ = slope(DUAL, model, data)
    plain, _ = slope(PLAIN, model, data)
    # Softmax's own derivative has six digits.
    digits = 3e-6 if name == "softmax" else 1e-6
    np.testing.assert_allclose(ours, differences, rtol=0, atol=digits * np.abs(differences).max())
    assert np.abs(plain - ours).max() > 0.1  # another slope, at this q


@EACH
def test_where_q_is_optimal_the_slope_is_the_plain_one(name):
    model, data = example(name)
    best = jax.jit(partial(converge, tolerance=1e-14, steps=400))(model, data)
    dual, plain = (slope(stepper, best, data)[0] for stepper in (DUAL, PLAIN))
    np.testing.assert_allclose(dual, plain, atol=1e-4 * np.abs(plain).max())


@EACH
def test_q_is_carried_along_with_the_data_s_part_unchanged(name):
    model, data = example(name)
    new, _, info = one_step(NaturalGradient(STILL, optax.sgd(1e-3), dual=True), model, data)
    hyper = [trainable(m, lambda m: m.posterior.q).vector for m in (new, model)]
    assert not info.rejected and float(jnp.max(jnp.abs(hyper[0] - hyper[1]))) > 1e-4
    for ours, before in zip(sites(new), sites(model), strict=True):
        close(np.stack(ours), np.stack(before), 1e-8)


def test_the_step_of_q_is_the_same_in_both_forms():
    model, data = example("bernoulli")
    steppers = (NaturalGradient(constant(0.4), optax.sgd(0.0), dual=dual) for dual in (False, True))
    plain, dual = (one_step(stepper, model, data)[0].posterior.q for stepper in steppers)
    close(plain.mean, dual.mean, 1e-10)
    close(plain.precision, dual.precision, 1e-10)


@partial(jax.jit, static_argnums=0)
def climb(stepper, model, data):
    """The collapsed bound after 600 steps, and whether any was rejected."""

    def body(carry, _):
        model, state, info = stepper.step(*carry, data, N)
        return (model, state), info.rejected

    (end, _), rejected = jax.lax.scan(body, (model, stepper.init(model, N)), length=600)
    points = Collapsed(end.posterior.Z, 0.0)
    return bounds.collapsed(Model(end.kernel, end.likelihood, points), data).value, rejected.any()


def test_both_forms_climb_to_the_same_bound():
    model, data = example("gaussian")
    held = (lambda m: m.posterior.Z,)
    adam = optax.adam(optax.cosine_decay_schedule(0.05, 600))
    steppers = (NaturalGradient(constant(1.0), adam, held, dual=dual) for dual in (False, True))
    (plain, bad), (dual, worse) = (climb(stepper, model, data) for stepper in steppers)
    assert not bad and not worse
    points = Model(model.kernel, model.likelihood, Collapsed(model.posterior.Z, 0.0))
    # Along a flat ridge Adam is still on its way.
    assert min(plain, dual) > bounds.collapsed(points, data).value + 5 and abs(plain - dual) < 0.02


@pytest.mark.parametrize("family", ["unwhitened", "separate"])
def test_where_it_has_no_meaning_it_is_refused(family):
    model, _ = example("softmax")
    separate = IndependentLatents(base=model.posterior.base, separate=True)
    one = Unwhitened(P.Z, MeanPrecision(np.zeros(M), np.eye(M)))
    posterior = separate if family == "separate" else one
    with pytest.raises(TypeError, match="needs the posterior Whitened.* with one kernel for all"):
        DUAL.init(Model(model.kernel, model.likelihood, posterior), N)
