"""Natural steps for every likelihood: from the prior, at γ = 1, the precision stays positive definite and q climbs."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast`; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import LIKELIHOODS
from lattice import close, moments, problem, random_q, sparse

from pseudopoint import bounds
from pseudopoint.data import Dataset, dataset
from pseudopoint.gaussians import MeanCovariance, MeanPrecision
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Poisson, Softmax, StudentT
from pseudopoint.optimise.fullbatch import converge
from pseudopoint.optimise.minibatch import NaturalGradient, constant
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import IndependentLatents, Model, Whitened
from pseudopoint.recipes.objectives import profile

N, M, STEPS = 60, 10, 30


def targets(likelihood, f):
    """Rows of y that the likelihood may have produced."""
    rng = np.random.default_rng(3)
    if likelihood.support == "classes":
        return np.clip(
            np.floor(likelihood.classes * (f + 1.5) / 3 + 0.3 * rng.normal(size=N)), 0, likelihood.classes - 1
        )
    draws = {
        "real": lambda: f + 0.3 * rng.standard_t(3, N),
        "counts": lambda: rng.poisson(3 * np.exp(f)).astype(float),
        "positive": lambda: rng.gamma(2.0, np.exp(f) / 2),
        "unit": lambda: np.clip(rng.beta(5 / (1 + np.exp(-f)), 5 / (1 + np.exp(f))), 1e-6, 1 - 1e-6),
    }
    return draws[likelihood.support]()


def prior(C):
    lead = () if C == 1 else (C,)
    return MeanPrecision(np.zeros((*lead, M)), np.broadcast_to(np.eye(M), (*lead, M, M)).copy())


def setting(likelihood) -> tuple[Model, Dataset]:
    rng = np.random.default_rng(2)
    X = rng.uniform(-2, 2, size=(N, 2))
    posterior = Whitened(X[:M], prior(likelihood.latents))
    if likelihood.latents > 1:
        posterior = IndependentLatents(base=posterior)
    model = cast(Model(Matern52(np.ones(2), 1.5), likelihood, posterior), jnp.float64)
    return model, dataset(X, targets(likelihood, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]))


@partial(jax.jit, static_argnums=2)
def climb(model, data, steps, gamma):
    """The bounds along so many steps of size γ, how many were rejected, the least eigenvalue of P in the end, and both
    ends of `converge`: the model, and the norm of the bound's slope in (m, S) there."""
    stepper = NaturalGradient(lambda _: gamma)

    def body(carry, _):
        model, state, info = stepper.step(*carry, data, len(data))
        return (model, state), (info.bound, info.rejected)

    start = (model, stepper.init(model, len(data)))
    (end, _), (path, rejected) = jax.lax.scan(body, start, length=steps)
    best = converge(model, data)
    return path, jnp.sum(rejected), jnp.linalg.eigvalsh(end.posterior.q.precision).min(), best


@jax.jit
def slope(model, data):
    """∂ bound/∂m and ∂ bound/∂S, where S is the covariance."""
    q = model.posterior.q
    cov = jnp.linalg.inv(q.precision)

    def value(mean, cov):
        held = jax.tree.map(lambda x: x, model)
        return bounds.energy(_with(held, MeanCovariance(mean, cov)), data, len(data))

    dm, dS = jax.grad(value, (0, 1))(q.mean, cov)
    return dm, dS + dS.mT + q.precision


def _with(model, q):
    import equinox as eqx

    return eqx.tree_at(lambda m: m.posterior.q, model, q)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_energies_are_the_energy_and_its_slopes_in_every_number(name):
    model, data = setting(LIKELIHOODS[name]().likelihood)
    batch = Dataset(data.X, data.y, jnp.linspace(0, 2, N), data.noise)
    numbers = trainable(model)
    first = lambda x: bounds.energies(numbers.rebuild(x), batch, 3 * N)[0]
    energy = lambda x: bounds.energy(numbers.rebuild(x), batch, 3 * N)
    (a, da), (b, db) = (jax.jit(jax.value_and_grad(f))(numbers.vector) for f in (first, energy))
    np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_allclose(da, db, rtol=1e-9, atol=1e-9 * np.abs(db).max())


@pytest.mark.parametrize("name", [name for name in LIKELIHOODS if "small" not in name])
def test_full_steps_from_the_prior_climb_to_the_optimum(name):
    model, data = setting(LIKELIHOODS[name]().likelihood)
    path, rejected, least, best = climb(model, data, STEPS, 1.0)
    assert np.isfinite(path).all() and rejected == 0 and least > 0
    assert path[-1] > path[0] + 1
    end = float(bounds.elbo(best, data, N).value)
    assert end >= path.max() - 1e-3
    dm, dS = slope(best, data)
    # A step that gains less than 1e-8 nats a row: the slope, measured by the curvature P ≥ I, is of its root.
    assert np.abs(dm).max() < 0.1 and np.abs(dS).max() < 0.1 * np.abs(best.posterior.q.precision).max()


@pytest.mark.parametrize("gamma", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("name", [name for name in LIKELIHOODS if LIKELIHOODS[name]().likelihood.concave])
def test_of_a_log_concave_likelihood_every_step_keeps_the_prior_s_share_of_the_precision(name, gamma):
    # P_new ≥ (1 − γ)P + γI, wherever q is: methods d.2
    likelihood = LIKELIHOODS[name]().likelihood
    model, data = setting(likelihood)
    mean, cov = random_q(1, M)
    C = likelihood.latents
    stack = lambda a: a if C == 1 else np.stack([a * (1 + 0.2 * c) for c in range(C)])
    model = _with(model, cast(MeanPrecision(stack(3 * mean), stack(np.linalg.inv(cov))), jnp.float64))
    new = one_step(model, data, gamma)
    floor = (1 - gamma) * np.asarray(model.posterior.q.precision) + gamma * np.eye(M)
    difference = np.asarray(new.posterior.q.precision) - floor
    scale = np.abs(difference).max()
    assert np.linalg.eigvalsh(difference).min() > -1e-9 * max(1.0, scale)


@jax.jit
def one_step(model, data, gamma):
    stepper = NaturalGradient(lambda _: gamma)
    return stepper.step(model, stepper.init(model, len(data)), data, len(data))[0]


def test_student_t_with_gross_outliers_climbs_monotonically_from_the_prior():
    # methods d.3: 2-D, N = 2000, M = 40, ν = 3, 5 % gross outliers, γ = 1, where plain steps fail at once.
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(2000, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 / 2 + 0.1 * rng.standard_t(3, 2000)
    y[:100] += 20 * rng.normal(size=100)
    q = MeanPrecision(np.zeros(40), np.eye(40))
    model = cast(Model(Matern52(np.ones(2), 1.0), StudentT(0.1, 3.0), Whitened(X[:40], q)), jnp.float64)
    path, rejected, least, _ = climb(model, dataset(X, y), 40, 1.0)
    assert rejected == 0 and least > 0 and np.isfinite(path).all()
    assert np.diff(path).min() > -1e-7 and path[-1] - path[-2] < 1e-4


def test_counts_far_from_the_start_are_reached():
    model, data = setting(Poisson(1.0))
    far = Dataset(data.X, 1000 * data.y + 1e4, data.weight, data.noise)
    path, rejected, *_ = climb(model, far, STEPS, 1.0)
    assert rejected == 0 and np.isfinite(path).all() and abs(path[-1] - path[-2]) < 1e-6 * abs(path[-1])


def test_three_classes_at_small_steps_do_not_crash():
    # GPflow #820: natural gradients of γ = 0.1 from the prior on a classification of many rows
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 2))
    y = (X[:, 0] > 0) + (X[:, 0] + X[:, 1] > 1.0).astype(float)
    posterior = IndependentLatents(base=Whitened(X[:20], MeanPrecision(np.zeros((3, 20)), np.stack([np.eye(20)] * 3))))
    model = cast(Model(Matern52(np.ones(2), 4.0), Softmax(3), posterior), jnp.float64)
    stepper = NaturalGradient(constant(0.1))
    state = stepper.init(model, len(X))
    step = jax.jit(lambda model, state: stepper.step(model, state, dataset(X, y), 2000))
    info = None
    for _ in range(60):
        model, state, info = step(model, state)
    assert info is not None and not info.rejected and info.bound > -0.3 * 2000  # from −2197


# --- The inner loop ---


def test_the_profile_of_a_gaussian_likelihood_is_the_collapsed_bound_and_so_is_its_gradient():
    p = problem(0)
    mean, cov = random_q(0, len(p.Z))
    model = p.whitened(mean, cov)

    def of(vector, function, form):
        return function(form.rebuild(vector))

    inner = trainable(model, lambda m: m.posterior.q)
    ours = lambda m: profile(m, p.data())[0]
    value, gradient = jax.jit(jax.value_and_grad(lambda x: of(x, ours, inner)))(inner.vector)
    closed = trainable(p.sparse())
    tight = lambda m: bounds.collapsed(m, p.data()).value
    truth, slopes = jax.jit(jax.value_and_grad(lambda x: of(x, tight, closed)))(closed.vector)
    close(value, truth, 1e-10)
    close(gradient, slopes, 1e-7)
    _, (best, bound) = jax.jit(profile)(model, p.data())
    assert sparse(p.sparse(), p.data(), p.Xs).tight == pytest.approx(float(truth))
    close(bound, value, 1e-12)
    mean, cov = moments(_with(model, best))
    assert np.isfinite(mean).all() and np.linalg.eigvalsh(cov).min() > 0


@pytest.mark.parametrize("name", ["bernoulli_logit", "student_t", "softmax_3", "robustmax_3"])
def test_the_profile_s_gradient_is_that_of_finite_differences(name):
    model, data = setting(LIKELIHOODS[name]().likelihood)
    every = trainable(model, lambda m: m.posterior.q, lambda m: m.posterior.Z)
    value = jax.jit(lambda x: profile(every.rebuild(x), data)[0])
    gradient = jax.jit(jax.grad(lambda x: profile(every.rebuild(x), data)[0]))(every.vector)
    h = 1e-3
    for i in range(len(every.vector)):
        e = h * np.eye(len(every.vector))[i]
        slope = (value(every.vector + e) - value(every.vector - e)) / (2 * h)
        np.testing.assert_allclose(gradient[i], slope, rtol=2e-3, atol=2e-3)
