"""Steppers and schedules: what one step is, and that a step which goes bad leaves no trace but a count."""

# A type checker does not see that modules may be called with their last fields left out.
# pyright: reportCallIssue=false

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lattice import close, elbo, precision_form, problem, random_q, sparse

from pseudopoint import bounds
from pseudopoint.data import Dataset, draw, take
from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.optimise.minibatch import (
    SAG,
    DiagonalPrecisionNaturalGradient,
    ForwardNaturalGradient,
    NaturalGradient,
    Optax,
    OrthogonalNaturalGradient,
    Sites,
    SolveNaturalGradient,
    averaging,
    constant,
    log_linear,
)
from pseudopoint.params import trainable
from pseudopoint.posteriors import DiagonalPrecision, Model, Orthogonal, PseudoObservations, SolveGP, Whitened

N, B = 24, 8

# Defined once: a stepper's functions are compared by identity when its steps are compiled.
NATURAL = NaturalGradient(constant(0.3), optax.adam(0.05))
PLAIN = Optax(optax.adam(0.05))
STEPPERS = {
    "natural": NATURAL,
    "dual": NaturalGradient(constant(0.3), optax.adam(0.05), dual=True),
    "forward": ForwardNaturalGradient(constant(0.05), optax.adam(0.05)),
    "optax": PLAIN,
    "sag": SAG(optax.sgd(0.01), optax.adam(0.05)),
    "sites": Sites(),
    "orthogonal": OrthogonalNaturalGradient(constant(0.3), hyper_optimiser=optax.adam(0.05)),
    "solve": SolveNaturalGradient(constant(0.3), optax.adam(0.05)),
    "shift": DiagonalPrecisionNaturalGradient(constant(0.3), optax.adam(0.05)),
}
O, BLIND = np.random.default_rng(6).normal(size=(3, 2)), MeanPrecision(np.zeros(3), np.eye(3))
POSTERIORS = {  # of any q; else Whitened
    Orthogonal: lambda Z, m, S: Orthogonal(Z, O, precision_form(m, S), np.zeros(3)),
    SolveGP: lambda Z, m, S: SolveGP(Z, O, precision_form(m, S), BLIND),
    DiagonalPrecision: lambda Z, m, S: DiagonalPrecision(Z, PseudoObservations(m, 1 / np.diag(S))),
}
EACH = pytest.mark.parametrize("name", STEPPERS)
EACH_WITH_ADAM = pytest.mark.parametrize("name", [name for name in STEPPERS if name != "sites"])

jitted = jax.jit(lambda stepper, model, state, batch: stepper.step(model, state, batch[0], N, batch[1]))


def start(stepper, seed=0):
    """A problem, a model with any q in the coordinates that the stepper wants, and the stepper's state."""
    p = problem(seed)
    mean, cov = random_q(seed, len(p.Z))
    q = lambda m, S: MeanChol(m, np.linalg.cholesky(S))
    q = precision_form if stepper.rule.moves.get("q") is MeanPrecision else q
    plain = lambda Z, m, S: Whitened(Z, q(m, S), jitter=0.0)
    model = p.model(POSTERIORS.get(stepper.rule.family, plain)(p.Z, mean, cov))
    return p, model, stepper.init(model, N)


def batch_of(p, step=0):
    """A batch, and the numbers of its rows."""
    rows = draw(N, B, 0, step, 1)[0]
    return take(p.data(), rows), rows


def bits(tree):
    """Every array of a tree as bytes, so that equal means equal to the last bit, NaN included."""
    return [(x.dtype, x.shape, x.tobytes()) for x in map(np.asarray, jax.tree.leaves(tree))]


def all_finite(tree):
    return all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(tree))


# --- Schedules ---


def test_constant_is_constant():
    assert [float(constant(0.3)(jnp.asarray(t))) for t in (0, 1, 10**6)] == [0.3] * 3


def test_log_linear_rises_in_equal_ratios_and_stays():
    schedule = log_linear(1e-4, 1e-1, 40)
    values = np.array([float(schedule(jnp.asarray(t))) for t in range(45)])
    close(values[[0, 20, 40]], [1e-4, 10**-2.5, 1e-1], 1e-15)
    close(values[1:41] / values[:40], np.full(40, 1000 ** (1 / 40)), 1e-14)
    assert (values[40:] == values[40]).all() and float(schedule(jnp.asarray(10**6))) == values[40]


def test_averaging_weighs_batches_equally_until_its_memory_is_full():
    schedule = averaging(1000, 100, 2.0)
    values = [float(schedule(jnp.asarray(t))) for t in (0, 1, 2, 4, 5, 10**6)]
    close(values, [1, 1 / 2, 1 / 3, 1 / 5, 0.2, 0.2], 1e-15)


@pytest.mark.parametrize("N, least", [(1000, 0.1), (100_000, 0.001)])
def test_a_q_that_was_learned_counts_as_batches(N, least):
    schedule = averaging(N, 100, seen=8.0)
    steps = [float(schedule(jnp.asarray(t))) for t in range(20)]
    np.testing.assert_allclose(steps, np.maximum(1 / np.arange(8.0, 28.0), least), rtol=1e-6)


@pytest.mark.parametrize(("num_data", "batch_size", "speed"), [(10, 10, 5.0), (10, 100, 1.0), (1, 1, 1.0)])
def test_averaging_never_exceeds_a_full_step(num_data, batch_size, speed):
    assert [float(averaging(num_data, batch_size, speed)(jnp.asarray(t))) for t in (0, 1, 50)] == [1.0] * 3


def test_one_epoch_of_averaging_ends_at_the_optimum_of_all_rows():
    p, model, _ = start(NATURAL)
    stepper = NaturalGradient(averaging(N, B))
    state = stepper.init(model, N)
    for step in range(N // B):
        model, state, _ = jitted(stepper, model, state, batch_of(p, step))
    best, reached = sparse(p.sparse(), p.data(), p.Xs), elbo(model, p.data(), p.Xs)
    close(reached.tight, best.tight, 1e-10)
    close(reached.moments, best.moments, 1e-10)


# --- What a step is ---


@jax.jit
def bound_and_gradient(start, batch):
    return jax.value_and_grad(lambda vector: bounds.elbo(start.rebuild(vector), batch[0], N).value)(start.vector)


def test_the_natural_stepper_gives_the_hyperparameters_the_gradient_of_the_elbo_at_fixed_q_in_the_same_pass():
    p, model, _ = start(NATURAL)
    stepper = NaturalGradient(constant(0.3), optax.sgd(0.1))
    hyper = trainable(model, lambda m: m.posterior.q)
    value, gradient = bound_and_gradient(hyper, batch_of(p))
    new, _, info = jitted(stepper, model, stepper.init(model, N), batch_of(p))
    close(trainable(new, lambda m: m.posterior.q).vector - hyper.vector, 0.1 * gradient, 1e-12)
    close(info.bound, value, 1e-12)
    close(info.gradient_norm, jnp.linalg.norm(gradient), 1e-12)
    assert float(jnp.min(jnp.abs(gradient))) > 1e-3  # every number had somewhere to go, Z included
    # q moves as if all else stood still.
    for a, b in zip(
        jax.tree.leaves(stepped_alone(p, model).posterior.q), jax.tree.leaves(new.posterior.q), strict=True
    ):
        close(a, b, 1e-12)


def stepped_alone(p, model):
    alone = NaturalGradient(constant(0.3))
    return jitted(alone, model, alone.init(model, N), batch_of(p))[0]


def test_without_a_hyper_optimiser_a_natural_step_touches_q_alone():
    p, model, _ = start(NATURAL)
    new = stepped_alone(p, model)
    assert bits(new.posterior.q) != bits(model.posterior.q)
    for part in (lambda m: m.kernel, lambda m: m.likelihood, lambda m: m.posterior.Z):
        assert bits(part(new)) == bits(part(model))


def test_the_optax_stepper_steps_along_the_gradient_of_the_elbo():
    p, model, _ = start(PLAIN)
    stepper = Optax(optax.sgd(0.01))
    value, gradient = bound_and_gradient(trainable(model), batch_of(p))
    new, _, info = jitted(stepper, model, stepper.init(model, N), batch_of(p))
    close(trainable(new).vector - trainable(model).vector, 0.01 * gradient, 1e-12)
    close(info.bound, value, 1e-12)


def test_small_optax_steps_on_all_rows_increase_the_bound_every_time():
    p, model, _ = start(PLAIN)
    stepper = Optax(optax.sgd(1e-3))
    state, values = stepper.init(model, N), []
    for _ in range(40):
        model, state, info = jitted(stepper, model, state, (p.data(), None))
        values.append(float(info.bound))
    assert (np.diff(values) > 0).all()
    assert values[0] + 10 < values[-1] < float(sparse(_sparse(model), p.data(), p.Xs).tight)


def _sparse(model):
    """The collapsed model with the hyperparameters and inducing points of `model`."""
    p = problem(0)
    posterior = eqx.tree_at(lambda s: s.Z, p.sparse().posterior, model.posterior.Z)
    return Model(model.kernel, model.likelihood, posterior)


FROZEN = (lambda m: m.posterior.Z, lambda m: m.likelihood)


@pytest.mark.parametrize(
    "stepper", [NaturalGradient(constant(0.3), optax.adam(0.05), FROZEN), Optax(optax.adam(0.05), FROZEN)]
)
def test_what_is_frozen_keeps_every_bit(stepper):
    p, model, state = start(stepper)
    new, _, info = jitted(stepper, model, state, batch_of(p))
    assert info.rejected == 0
    for select in FROZEN:
        assert bits(select(new)) == bits(select(model))
    moved = jnp.abs(new.kernel.lengthscale - model.kernel.lengthscale)  # pyright: ignore[reportAttributeAccessIssue]
    assert float(jnp.max(moved)) > 1e-3


# --- Bad steps ---


def spoiled(p, field, value) -> tuple[Dataset, np.ndarray]:
    """A batch with one absurd number."""
    batch, rows = batch_of(p)
    array = np.array(getattr(batch, field))
    array.flat[3] = value
    return eqx.tree_at(lambda b: getattr(b, field), batch, array), rows


@EACH
@pytest.mark.parametrize(
    ("field", "value"),
    [("y", np.nan), ("X", np.nan), ("weight", np.nan), ("y", np.inf), ("y", 1e200), ("y", 1e90), ("y", 1e70)],
)
def test_a_bad_batch_leaves_the_model_and_the_optimiser_as_they_were(name, field, value):
    if name == "sites" and field == "y" and value < 1e100:
        pytest.skip("its sums bear such a number")
    stepper = STEPPERS[name]
    p, model, state = start(stepper)
    model, state, _ = jitted(stepper, model, state, batch_of(p))
    before = bits((model, state._replace(guard=0)))
    new, after, info = jitted(stepper, model, state, spoiled(p, field, value))
    assert info.rejected and float(after.guard.scale) == 0.5
    assert bits((new, after._replace(guard=0))) == before
    # The next steps are good again, and grow back to full ones.
    for step in range(2, 12):
        new, after, info = jitted(stepper, new, after, batch_of(p, step))
    assert bits(new) != bits(model) and all_finite((new, after))
    assert not info.rejected and float(after.guard.scale) == 1.0


@EACH_WITH_ADAM
def test_a_finite_gradient_out_of_all_proportion_does_not_stop_adam(name):
    # ‖g‖ = 1e140: its square is a number, and Adam's second moment would hold it for 600,000 steps.
    stepper = STEPPERS[name]
    p, model, state = start(stepper)
    hyper = lambda model: np.asarray(trainable((model.kernel, model.likelihood)).vector)
    way = {}
    for spoil in (False, True):
        here, memory, vectors = model, state, []
        for t in range(30):
            bad = spoil and t == 5
            here, memory, info = jitted(stepper, here, memory, spoiled(p, "y", 1e70) if bad else batch_of(p, t))
            assert info.rejected == bad and np.isfinite(info.gradient_norm)
            vectors.append(hyper(here))
        way[spoil] = np.linalg.norm(np.diff(vectors[10:], axis=0), axis=1)
    assert 0.5 < np.median(way[True] / way[False]) < 2


@EACH_WITH_ADAM
def test_a_gradient_that_stays_out_of_proportion_is_undone_once(name):
    # A jump that the next batch confirms is no batch's fault, and a step has to be made: here from a start where the
    # gradient happens to be 1e-9 of what it is elsewhere.
    stepper = STEPPERS[name]
    p, model, state = start(stepper)
    small = state._replace(guard=state.guard._replace(norm=jnp.asarray(1e-9)))
    rejected = []
    for t in range(4):
        model, small, info = jitted(stepper, model, small, batch_of(p, t))
        rejected.append(bool(info.rejected))
    assert rejected == [True, False, False, False]


def test_a_step_that_breaks_positive_definiteness_is_undone_and_halved_until_it_fits():
    # P_new = (1 − γ)P + γ(I + data): for γ = 3 and a large P it is negative, for γ ≤ 1 never.
    p = problem(1)
    model = p.whitened(np.zeros(6), 1e-4 * np.eye(6))
    stepper = NaturalGradient(constant(3.0))
    state = stepper.init(model, N)
    for rejected in (1, 2):
        new, state, info = jitted(stepper, model, state, batch_of(p))
        assert bits(new) == bits(model)
        assert info.rejected and float(state.guard.scale) == 0.5**rejected
    new, state, info = jitted(stepper, model, state, batch_of(p))
    assert not info.rejected and bits(new) != bits(model)
    assert np.linalg.eigvalsh(new.posterior.q.precision).min() > 1
    close(float(state.guard.scale), 0.25 * 1.1, 1e-15)


@pytest.mark.parametrize("name", ["natural", "dual", "forward", "optax", "sag"])
def test_an_optimiser_that_overflows_is_undone(name):
    explode = optax.scale(1e308)
    stepper = dataclasses.replace(STEPPERS[name], hyper_optimiser=explode)
    if name == "sag":
        stepper = dataclasses.replace(stepper, rule=dataclasses.replace(stepper.rule, optimiser=explode))
    p, model, state = start(stepper)
    new, state, info = jitted(stepper, model, state, batch_of(p))
    assert info.rejected and bits(new) == bits(model)
