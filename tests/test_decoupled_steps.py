"""Natural gradients of the orthogonally decoupled family: what one step is, and where a hundred of them end."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast`; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false

from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles as o
import pytest
from lattice import LENGTHSCALE, NOISE, VARIANCE, close, precision_form, problem, random_q

from pseudopoint import bounds
from pseudopoint.data import Dataset, dataset, draw, take
from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Bernoulli, Gaussian, StudentT
from pseudopoint.optimise.minibatch import (
    ApproximateMean,
    ExactMean,
    JointMean,
    NaturalGradient,
    OrthogonalNaturalGradient,
    SampledColumns,
    averaging,
    constant,
)
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Model, Orthogonal

N, M, G, B = 24, 6, 5, 8
RULES = {"joint": JointMean(), "exact": ExactMean(), "approximate": ApproximateMean()}
EACH = pytest.mark.parametrize("name", RULES)
with jax.enable_x64(True):
    P = problem(3, N, M, weighted=True)
    ROWS = P.data()
rng = np.random.default_rng(11)
O, a = rng.normal(size=(G, 2)), rng.normal(size=G)
MEAN, S = random_q(1, M)


def start(posterior=None) -> Model:
    """Any q, any a."""
    return P.model(posterior or Orthogonal(P.Z, O, precision_form(MEAN, S), a, jitter=0.0))


@jax.jit
def one(stepper, model, batch):
    """The model, the state before the step, that after it, and what is known of it."""
    state = stepper.init(model, N)
    return stepper.step(model, state, batch, N), state


@jax.jit
def values(model, data):
    """Both bounds."""
    return bounds.elbo(model, data, len(data)).value, bounds.elbo(model, data, len(data)).standard


# --- One step ---


@cache
def dense():
    """A = L⁻¹K_uf, c(O, X), C, the slope of the bound in a, and rows' precisions: dense, of the Gaussian likelihood."""
    k = lambda A, B: o.matern52(A, B, LENGTHSCALE, VARIANCE)
    L = np.linalg.cholesky(k(P.Z, P.Z))
    A, A_O = np.linalg.solve(L, k(P.Z, P.X)), np.linalg.solve(L, k(P.Z, O))
    c, C = k(O, P.X) - A_O.T @ A, k(O, O) - A_O.T @ A_O
    precision = P.weight / (NOISE + P.noise)
    g = c @ (precision * (P.y - A.T @ MEAN - c.T @ a)) - C @ a
    return A, c, C, g, precision


def test_a_small_exact_step_is_16a_with_its_erratum_and_an_approximate_one_17():
    _, _, C, g, _ = dense()
    for rule, direction in (
        (ExactMean(constant(1e-3)), np.linalg.solve(C, g)),
        (ApproximateMean(constant(1e-3)), g / np.diag(C)),
    ):
        (new, *_), _ = one(OrthogonalNaturalGradient(constant(0.3), mean=rule), start(), ROWS)
        close((new.posterior.a - a) / 1e-3, direction, 1e-8)


@pytest.mark.parametrize("name", ["exact", "approximate"])
def test_a_large_one_ends_at_the_top_of_the_bound_along_its_direction(name):
    _, c, C, g, precision = dense()
    (new, *_), _ = one(OrthogonalNaturalGradient(constant(0.3), mean=RULES[name]), start(), ROWS)
    step = np.asarray(new.posterior.a) - a
    curvature = C + (c * precision) @ c.T
    close(step @ (g - curvature @ step), 0.0, 1e-8 * (step @ g))
    assert step @ g > 1


@pytest.mark.parametrize("name", ["exact", "approximate"])
def test_q_moves_as_by_a_natural_step_with_a_fixed(name):
    (new, *_), _ = one(OrthogonalNaturalGradient(constant(0.3), mean=RULES[name]), start(), ROWS)
    (plain, *_), _ = one(NaturalGradient(constant(0.3)), start(), ROWS)
    close(new.posterior.q.mean, plain.posterior.q.mean, 1e-10)
    close(new.posterior.q.precision, plain.posterior.q.precision, 1e-12)


def test_one_joint_step_of_size_one_on_all_rows_solves_a_gaussian_likelihood():
    (new, *_), _ = one(OrthogonalNaturalGradient(constant(1.0)), start(), ROWS)
    best = jax.jit(bounds.optimal_orthogonal)(start(), ROWS)
    close(values(new, ROWS), values(best, ROWS), 1e-12)
    close(new.posterior.q.precision, best.posterior.q.precision, 1e-10)
    close(new.posterior.q.mean, best.posterior.q.mean, 1e-8)


def batch_of(step) -> Dataset:
    return jax.tree.map(jnp.asarray, take(ROWS, draw(N, B, 0, step, 1)[0]))


def test_one_epoch_of_joint_steps_that_average_batches_ends_at_the_optimum_of_all_rows():
    stepper, model = OrthogonalNaturalGradient(averaging(N, B)), start()
    state = stepper.init(model, N)
    step = jax.jit(stepper.step, static_argnums=3)
    for t in range(N // B):
        model, state, info = step(model, state, batch_of(t), N)
        assert not info.rejected
    close(values(model, ROWS), values(jax.jit(bounds.optimal_orthogonal)(model, ROWS), ROWS), 1e-10)


def test_hyperparameters_get_the_gradient_of_the_elbo_in_the_same_pass():
    stepper = OrthogonalNaturalGradient(constant(0.3), hyper_optimiser=optax.sgd(1e-3))
    hyper = lambda model: trainable(model, lambda m: m.posterior.q, lambda m: m.posterior.a)
    batch, at = batch_of(0), hyper(start())
    value, slope = jax.jit(jax.value_and_grad(lambda v: bounds.elbo(at.rebuild(v), batch, N).value))(at.vector)
    (new, _, info), _ = one(stepper, start(), batch)
    close((hyper(new).vector - at.vector) / 1e-3, slope, 1e-9)
    close(info.bound, value, 1e-12)
    (alone, *_), _ = one(OrthogonalNaturalGradient(constant(0.3)), start(), batch)
    for mine, theirs in zip(
        jax.tree.leaves((new.posterior.q, new.posterior.a)),
        jax.tree.leaves((alone.posterior.q, alone.posterior.a)),
        strict=True,
    ):
        close(mine, theirs, 1e-12)
    assert np.array_equal(alone.posterior.O, start().posterior.O)


def test_a_step_that_is_not_finite_leaves_no_trace_but_a_count():
    batch = eqx.tree_at(lambda d: d.y, batch_of(0), jnp.full(B, jnp.nan))
    (model, state, info), before = one(OrthogonalNaturalGradient(constant(0.5)), start(), batch)
    assert info.rejected and state.guard.scale == 0.5
    for new, old in zip(jax.tree.leaves((model, state[:-1])), jax.tree.leaves((start(), before[:-1])), strict=True):
        assert np.array_equal(new, old)


def test_other_posteriors_and_coordinates_are_refused():
    with pytest.raises(TypeError, match="needs the posterior Orthogonal"):
        OrthogonalNaturalGradient(constant(0.5)).init(P.whitened(MEAN, S), N)
    with pytest.raises(TypeError, match="MeanPrecision"):
        posterior = Orthogonal(P.Z, O, MeanChol(MEAN, np.linalg.cholesky(S)), a)
        OrthogonalNaturalGradient(constant(0.5)).init(start(posterior), N)


def test_adam_on_a_is_natural_gradient_with_adam_for_all_else():
    frozen = (lambda m: m.kernel, lambda m: m.likelihood, lambda m: m.posterior.Z, lambda m: m.posterior.O)
    stepper = NaturalGradient(constant(1.0), optax.adam(0.1), frozen)
    model, path = climb(stepper, start(), ROWS, 400)
    best = values(jax.jit(bounds.optimal_orthogonal)(start(), ROWS), ROWS)[0]
    assert path[-1] > path[0] and best - 1e-4 < path[-1] <= best + 1e-9
    assert np.array_equal(model.posterior.O, start().posterior.O) and not np.array_equal(model.posterior.a, a)


def test_sampled_columns_are_those_of_the_step_and_all_of_them_change_nothing():
    inner = NaturalGradient(constant(0.3), optax.sgd(1e-3))
    (plain, _, info), _ = one(inner, start(), ROWS)
    (every, (_, steps), info_every), _ = one(SampledColumns(inner, G), start(), ROWS)
    close(info_every.bound, info.bound, 1e-12)
    for mine, theirs in zip(jax.tree.leaves(every), jax.tree.leaves(plain), strict=True):
        close(mine, theirs, 1e-12)
    assert steps == 1 and every.posterior.columns is None
    # Two columns: another estimate in every step, right on average.
    stepper = SampledColumns(inner, 2)
    step = jax.jit(lambda t: stepper.step(start(), (inner.init(start(), N), t), ROWS, N)[2].bound)
    estimates = np.array([step(jnp.asarray(t)) for t in range(200)])
    spread = estimates.std() / np.sqrt(len(estimates))
    assert len(set(estimates.round(9))) > 5 and abs(estimates.mean() - info.bound) < 4 * spread


# --- The objective ---


def test_of_a_log_concave_likelihood_the_bound_is_concave_along_any_segment():
    # Every f(x) is linear in m, a and a factor of S, and so is log |L| concave (Salimbeni et al. 2018, 3.2).
    model, data = table(Bernoulli())
    rng = np.random.default_rng(8)

    @jax.jit
    @partial(jax.vmap, in_axes=(None, None, 0))
    def along(one, other, t):
        mean, chol, a = jax.tree.map(lambda x, y: (1 - t) * x + t * y, one, other)
        there = eqx.tree_at(lambda m: (m.posterior.q, m.posterior.a), model, (MeanChol(mean, chol), a))
        return bounds.elbo(there, data, len(data)).standard

    def anywhere():
        factor = np.tril(rng.normal(size=(12, 12)), -1) + np.diag(np.exp(rng.normal(size=12)))
        return tuple(map(jnp.asarray, (3 * rng.normal(size=12), factor, 3 * rng.normal(size=12))))

    for _ in range(20):
        values = along(anywhere(), anywhere(), jnp.linspace(0, 1, 21))
        bend = np.diff(values, 2)
        assert (bend < 0).all() and bend.min() < -1e-3


# --- A hundred steps ---


@partial(jax.jit, static_argnums=3)
def climb(stepper, model, data, steps):
    """The model after so many steps on all rows, and the bounds before each."""

    def body(carry, _):
        model, state, info = stepper.step(*carry, data, len(data))
        return (model, state), jnp.where(info.rejected, jnp.nan, info.bound)

    (end, _), path = jax.lax.scan(body, (model, stepper.init(model, len(data))), length=steps)
    return end, path


def table(likelihood) -> tuple[Model, Dataset]:
    """200 rows of two inputs, q = prior, a = 0, 12 points of either kind."""
    rng = np.random.default_rng(2)
    X = rng.uniform(-2, 2, size=(200, 2))
    f = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.5 * np.sin(5 * X[:, 1])
    y = {
        "real": lambda: f + 0.2 * rng.standard_t(3, len(f)),
        "classes": lambda: 1.0 * (f + rng.logistic(0, 0.3, len(f)) > 0),
    }
    posterior = Orthogonal(X[:12], X[12:24], MeanPrecision(np.zeros(12), np.eye(12)), np.zeros(12))
    model = Model(Matern52(np.array([0.7, 0.5]), np.asarray(1.5)), likelihood, posterior)
    return cast(model, jnp.float64), dataset(X, y[likelihood.support]())


@jax.jit
def slopes(model, data):
    """The largest slopes of the bound in m, P and a."""
    q, start = model.posterior.q, model.posterior.a

    def value(mean, precision, a):
        there = eqx.tree_at(lambda m: (m.posterior.q, m.posterior.a), model, (MeanPrecision(mean, precision), a))
        return bounds.elbo(there, data, len(data)).value

    dm, dP, da = jax.grad(value, (0, 1, 2))(q.mean, q.precision, start)
    return jnp.abs(dm).max(), jnp.abs(dP).max(), jnp.abs(da).max()


@EACH
def test_steps_on_all_gaussian_rows_climb_to_the_closed_form_optimum(name):
    model, data = table(Gaussian(0.04))
    best = values(jax.jit(bounds.optimal_orthogonal)(model, data), data)[0]
    _, path = climb(OrthogonalNaturalGradient(constant(1.0), mean=RULES[name]), model, data, 100)
    short = (best - path) / np.abs(best)
    assert short.min() > -1e-12 and np.diff(short).max() < 1e-12
    # After 100 steps: 1e-13 jointly (after one, too), 5e-5 by (16a), 0.03 by (17).
    assert short[-1] < {"joint": 1e-12, "exact": 1e-4, "approximate": 0.04}[name]
    if name == "joint":
        assert short[1] < 1e-8


@pytest.mark.parametrize("likelihood", [Bernoulli(), StudentT(0.2, 3.0)], ids=["Bernoulli", "StudentT"])
def test_joint_steps_from_the_prior_climb_to_where_the_bound_has_no_slope(likelihood):
    model, data = table(likelihood)
    end, path = climb(OrthogonalNaturalGradient(constant(1.0)), model, data, 100)
    before, there = (np.asarray(slopes(m, data)) for m in (model, end))
    assert np.isfinite(path).all() and (np.diff(path) > -1e-9).all()
    assert (there < 1e-6 * before).all()
    assert np.linalg.eigvalsh(end.posterior.q.precision).min() > 0
    # The optimum is one of the other rules too.
    stay, path = climb(OrthogonalNaturalGradient(constant(1.0), mean=ExactMean()), end, data, 100)
    close(path, np.full(100, path[0]), 1e-11)
    close(stay.posterior.a, end.posterior.a, 1e-6)
