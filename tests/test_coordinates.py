"""Natural gradient steps in every coordinate system: where theory says what they do, and against GPflow 2.11
(`references/make_gpflow_natural.py`)."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import json
import re
from functools import cache
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles as o
import pytest
from conformance import GAUSSIANS
from gaussian_checks import assert_close, natural

from pseudopoint import bounds
from pseudopoint.data import dataset
from pseudopoint.gaussians import MeanCovariance, Natural, step_along
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Bernoulli, Gaussian, Heteroscedastic
from pseudopoint.optimise.minibatch import ForwardNaturalGradient, NaturalGradient, constant
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import IndependentLatents, Model, Whitened

REFERENCES = Path(__file__).parent / "references"
STORED = json.loads((REFERENCES / "gpflow_natural.json").read_text(encoding="utf-8"))
BASE = json.loads((REFERENCES / "gpflow.json").read_text(encoding="utf-8"))
X, y, Z = (np.array(BASE["inputs"][name]) for name in ("X", "y", "Z"))
N, M = len(y), len(Z)
ABOUT, JITTER = BASE["about"]["model"], 1e-6
TARGETS = {"gaussian": y, "bernoulli": (y > 0).astype(float)}
EACH = pytest.mark.parametrize("name", GAUSSIANS)


def model(name, mean, cov, likelihood="gaussian"):
    """q(v) = N(mean, cov) in the coordinates of that name."""
    of = {"gaussian": Gaussian(ABOUT["noise_variance"]), "bernoulli": Bernoulli("logit")}[likelihood]
    q = to_coordinates(GAUSSIANS[name], natural(mean, cov))
    kernel = Matern52(np.array(ABOUT["lengthscales"]), ABOUT["variance"])
    return cast(Model(kernel, of, Whitened(Z, q, JITTER)), jnp.float64)


to_coordinates = jax.jit(lambda cls, theta: cls.from_natural(theta), static_argnums=0)


def stepper(gamma):
    return ForwardNaturalGradient(lambda _: gamma, tight=False)


# γ is an argument of the compiled step: one program for each class and likelihood, in all tests.
init = jax.jit(lambda model: stepper(1.0).init(model, N))
step = jax.jit(lambda gamma, model, state, batch: stepper(gamma).step(model, state, batch, N))


def walk(gamma, model, steps, data):
    """The model after so many steps on the data, none of which may be rejected; and what every step said."""
    state, infos = init(model), []
    for _ in range(steps):
        model, state, info = step(gamma, model, state, data)
        assert not info.rejected
        infos.append(info)
    return model, infos


@jax.jit
def moments(model):
    q = model.posterior.q
    return q.mean, q.covariance()


def bits(tree):
    """Every array of a tree as bytes, so that equal means equal to the last bit."""
    return [(leaf.dtype, leaf.shape, leaf.tobytes()) for leaf in map(np.asarray, jax.tree.leaves(tree))]


@cache
def optimum():
    """m* and S* of v = L⁻¹u for a Gaussian likelihood, by dense matrices (Titsias 2009 (10))."""
    k = lambda A, B: o.matern52(A, B, np.array(ABOUT["lengthscales"]), ABOUT["variance"])
    Kuu = k(Z, Z) + JITTER * ABOUT["variance"] * np.eye(M)
    mean, cov = o.optimal_q(k(Z, X), Kuu, np.full(N, ABOUT["noise_variance"]), y)
    L = np.linalg.cholesky(Kuu)
    return np.linalg.solve(L, mean), np.linalg.solve(L, np.linalg.solve(L, cov).T)


rng = np.random.default_rng(11)
R = rng.normal(size=(M, M))
START = optimum()[0] + 0.1 * rng.normal(size=M), 0.02 * (R @ R.T / M + 0.3 * np.eye(M))


# --- Against GPflow --------------------------------------------------------------------------------------------------

NAMES = {
    "natural": "natural",
    "natural-sqrt": "natural_chol",
    "mean/var": "mean_covariance",
    "mean/var-sqrt": "mean_chol",
}


@pytest.mark.parametrize("theirs", NAMES)
@pytest.mark.parametrize("likelihood", TARGETS)
def test_iterates_are_those_of_gpflow(likelihood, theirs):
    at, data = model(NAMES[theirs], np.zeros(M), np.eye(M), likelihood), dataset(X, TARGETS[likelihood])
    state = init(at)
    for stored in STORED[likelihood][theirs]:
        mean, cov = moments(at)
        at, state, info = step(STORED["about"]["gamma"][likelihood], at, state, data)
        np.testing.assert_allclose(info.bound, stored["elbo"], rtol=1e-11)
        assert_close((mean, cov), (np.array(stored["mean"]), np.array(stored["cov"])), rtol=1e-10)


def test_the_stored_paths_differ():
    last = [STORED["gaussian"][theirs][-1]["elbo"] for theirs in NAMES]
    assert np.abs(np.subtract.outer(last, last) + np.eye(4)).min() > 0.5


# --- What theory says ------------------------------------------------------------------------------------------------


def test_a_full_natural_step_solves_a_gaussian_likelihood():
    solved = walk(1.0, model("natural", *START), 1, dataset(X, y))[0]
    assert_close(moments(solved), optimum(), rtol=1e-10)
    other = NaturalGradient(constant(1.0), tight=False)
    at = model("mean_precision", *START)
    at, _, info = jax.jit(lambda m, data: other.step(m, other.init(m, N), data, N))(at, dataset(X, y))
    assert not info.rejected
    assert_close(moments(at), optimum(), rtol=1e-10)


@pytest.mark.parametrize("likelihood", TARGETS)
def test_in_natural_coordinates_a_step_is_that_of_the_natural_gradient_stepper(likelihood):
    data = dataset(X, TARGETS[likelihood])
    at = model("natural", *START, likelihood)
    other, same = NaturalGradient(constant(0.4), tight=False), model("mean_precision", *START, likelihood)
    state = other.init(same, N)
    compiled = jax.jit(lambda model, state, data: other.step(model, state, data, N))
    at, infos = walk(0.4, at, 3, data)
    for mine in infos:
        same, state, info = compiled(same, state, data)
        assert_close((mine.bound, mine.gradient_norm), (info.bound, info.gradient_norm), rtol=1e-11)
    assert_close(moments(at), moments(same), rtol=1e-10)


def along_the_flow(t):
    """q at time t of dθ/dt = θ* − θ, the natural gradient's path for a Gaussian likelihood."""
    (m0, S0), (m1, S1) = START, optimum()
    P0, P1, share = np.linalg.inv(S0), np.linalg.inv(S1), np.exp(-t)
    cov = np.linalg.inv(share * P0 + (1 - share) * P1)
    return cov @ (share * P0 @ m0 + (1 - share) * P1 @ m1), cov


@cache
def errors(name):
    """How far K steps of size T/K end from the path, T = 0.5, K = 25, 50, 100: of the mean and of the covariance."""
    truth, data = along_the_flow(0.5), dataset(X, y)
    ends = [moments(walk(0.5 / K, model(name, *START), K, data)[0]) for K in (25, 50, 100)]
    return np.array([[np.abs(a - b).max() / np.abs(b).max() for a, b in zip(end, truth, strict=True)] for end in ends])


@EACH
def test_the_path_is_the_same_in_all_coordinates_as_steps_go_to_zero(name):
    of = errors(name)
    assert (of[-1] < 0.01).all()
    assert ((of[:-1] / of[1:] > 1.9) & (of[:-1] / of[1:] < 2.15)).all()  # 1/K: Euler's rule


def test_finite_steps_differ_between_coordinates():
    of = {name: errors(name)[0, 1] for name in GAUSSIANS}
    # But S moves alike where the matrices are one, up to sign and scale: P = −2Θ₂, and log P = log 2 + L = −log S.
    np.testing.assert_allclose(of.pop("mean_precision"), of["natural"], rtol=1e-9)
    np.testing.assert_allclose(of.pop("mean_log"), of["natural_log"], rtol=1e-9)
    assert min(np.diff(np.sort(list(of.values())))) > 1e-6


# --- Steps that are rejected ------------------------------------------------------------------------------------------

# Where a step is too long: P ← (1 − γ)P + γP* at γ = 3 from a large P; S ← S + γ(S − SP*S) at γ = 1 from a large S.
SURE, VAGUE = (3.0, (np.zeros(M), 1e-4 * np.eye(M))), (1.0, (np.zeros(M), 2.0 * np.eye(M)))


@pytest.mark.parametrize(
    ("name", "gamma", "start"),
    [
        ("natural", *SURE),
        ("mean_precision", *SURE),
        ("mean_covariance", *VAGUE),
        ("expectation", *VAGUE),
        ("mean_chol", *VAGUE),  # which stays in the cone, but jumps across zero to a larger S than before
    ],
)
def test_a_step_out_of_the_cone_or_past_all_bounds_is_undone_and_halved_until_it_fits(name, gamma, start):
    first, data = model(name, *start), dataset(X, y)
    at, state, rejected = first, init(first), 0
    while rejected < 20:
        at, state, info = step(gamma, at, state, data)
        if not info.rejected:
            break
        rejected += 1
        assert bits(at) == bits(first) and float(state.guard.scale) == 0.5**rejected
    assert rejected >= 1 and bits(at) != bits(first)
    assert np.linalg.eigvalsh(moments(at)[1])[0] > 0
    np.testing.assert_allclose(float(state.guard.scale), 0.5**rejected * 1.1, rtol=1e-15)


OVERSHOT = [(name, *start) for name in ("natural_chol", "natural_log", "mean_log") for start in (SURE, VAGUE)]


@pytest.mark.parametrize(("name", "gamma", "start"), [*OVERSHOT, ("mean_chol", *SURE)])
def test_roots_and_logarithms_never_leave_the_cone(name, gamma, start):
    at, _ = walk(gamma, model(name, *start), 1, dataset(X, y))
    S = np.asarray(moments(at)[1])
    assert np.isfinite(S).all() and (np.diag(S) > 0).all()


@pytest.mark.parametrize(("name", "gamma"), [("mean_log", 1e4), ("natural_log", 1e4), ("mean_chol", 1e200)])
def test_a_step_to_a_q_that_numbers_cannot_hold_is_undone(name, gamma):
    # exp(−10⁶) = 0 is finite, its inverse is not; LLᵀ overflows where L does not.
    first = model(name, np.zeros(M), 2.0 * np.eye(M))
    at, state, info = step(gamma, first, init(first), dataset(X, y))
    assert info.rejected and float(state.guard.scale) == 0.5 and bits(at) == bits(first)


@EACH
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_a_bad_batch_leaves_no_trace_but_a_count(name, bad):
    first = model(name, *START)
    before = init(first)
    at, state, info = step(0.01, first, before, dataset(X, np.where(np.arange(N) == 3, bad, y)))
    assert info.rejected and bits((at, state.rule)) == bits((first, before.rule))
    assert (int(state.guard.steps), float(state.guard.scale)) == (1, 0.5)


def test_a_root_whose_diagonal_crosses_zero_goes_on_as_its_mirror_image():
    # Some Lᵢᵢ are negative: the step is that of the same q with a positive diagonal.
    data, mirrored = dataset(X, y), model("mean_chol", *START)
    signs = np.where(np.arange(M) % 2, -1.0, 1.0)
    at = eqx.tree_at(lambda m: m.posterior.q.chol, mirrored, mirrored.posterior.q.chol * signs)
    ends = [moments(walk(1e-3, one, 1, data)[0]) for one in (at, mirrored)]
    assert_close(ends[0], ends[1], rtol=1e-9)
    assert np.abs(ends[0][0] - moments(at)[0]).max() > 1e-9


# --- Hyperparameters, and several latent functions -------------------------------------------------------------

FROZEN = (lambda m: m.posterior.Z,)
WITH_HYPER = ForwardNaturalGradient(constant(0.01), optax.sgd(1e-3), FROZEN)


@jax.jit
def with_hyper(model, batch):
    every = trainable(model, lambda m: m.posterior.q, *FROZEN)
    slope = jax.value_and_grad(lambda vector: bounds.elbo(every.rebuild(vector), batch, N).value)(every.vector)
    alone = ForwardNaturalGradient(constant(0.01))
    state = WITH_HYPER.init(model, N)
    return slope, WITH_HYPER.step(model, state, batch, N), alone.step(model, alone.init(model, N), batch, N)


def test_hyperparameters_step_along_the_gradient_of_the_elbo_in_the_same_pass():
    start = model("mean_chol", *START)
    (value, gradient), (new, _, info), (alone, _, _) = with_hyper(start, dataset(X[:10], y[:10]))
    vector = lambda m: trainable(m, lambda m: m.posterior.q, *FROZEN).vector
    assert_close(vector(new) - vector(start), 1e-3 * gradient, rtol=1e-11)
    assert_close((info.bound, info.gradient_norm), (value, jnp.linalg.norm(gradient)), rtol=1e-12)
    assert np.abs(gradient).min() > 1e-3 and not info.rejected
    assert bits(new.posterior.Z) == bits(start.posterior.Z)
    assert_close(new.posterior.q, alone.posterior.q, rtol=1e-12)  # q moves as if the hyperparameters stood still
    assert bits((alone.kernel, alone.likelihood)) == bits((start.kernel, start.likelihood))


def test_an_optax_step_that_overflows_is_rejected():
    explode = ForwardNaturalGradient(constant(0.01), optax.scale(1e308))
    start = model("natural", *START)
    new, state, info = jax.jit(lambda m, data: explode.step(m, explode.init(m, N), data, N))(start, dataset(X, y))
    assert info.rejected and bits(new) == bits(start) and float(state.guard.scale) == 0.5


@pytest.mark.parametrize("name", ["natural", "mean_log", "mean_chol"])
def test_several_latent_functions_step_as_single_ones(name):
    each = [model(name, *START), model(name, np.zeros(M), 0.5 * np.eye(M))]
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[one.posterior.q for one in each])
    both = Model(each[0].kernel, Heteroscedastic(0.4), IndependentLatents(Whitened(each[0].posterior.Z, stack, JITTER)))
    both, data = cast(both, jnp.float64), dataset(X, y)
    new, _, info = step(0.01, both, init(both), data)
    assert not info.rejected
    # One after another: batched LAPACK calls may hang (decision 0020).
    program = str(jax.make_jaxpr(step)(0.01, both, init(both), data))
    factorised = re.findall(r"([^\n]*) = (?:cholesky|eigh|triangular_solve)\b", program)
    assert factorised and not [line for line in factorised if "[2," in line]
    for c, one in enumerate(each):
        mean, cov = moments(one)
        dm, dS = (leaf[c] for leaf in slopes(both, data))
        theta = natural(np.asarray(mean), np.asarray(cov))
        direction = Natural(dm - (dS + dS.T) @ mean - theta.theta1, 0.5 * (dS + dS.T) - theta.theta2)
        alone = jax.jit(step_along)(one.posterior.q, direction, 0.01)
        assert_close(jax.tree.map(lambda leaf, c=c: leaf[c], new.posterior.q), alone, rtol=1e-10)


@jax.jit
def slopes(model, data):
    """∂E/∂m and ∂E/∂S of all latent functions."""
    mean, cov = jax.vmap(lambda q: (q.mean, q.covariance()))(model.posterior.q)
    at = lambda q: Model(model.kernel, model.likelihood, IndependentLatents(Whitened(model.posterior.Z, q, JITTER)))
    slope = jax.grad(lambda q: bounds.energy(at(q), data, N, False))(MeanCovariance(mean, cov))
    return slope.mean, slope.cov
