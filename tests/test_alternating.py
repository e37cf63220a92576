"""Two steppers in turn: each does what it does alone, from where the other left the model."""

# Kernels are known by their base class alone.
# pyright: reportAttributeAccessIssue=false

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lattice import close, problem, random_q
from scipy.optimize import minimize

from pseudopoint import bounds
from pseudopoint.data import draw, take
from pseudopoint.gaussians import MeanChol
from pseudopoint.optimise.fullbatch import FitError
from pseudopoint.optimise.minibatch import SAG, Alternate, NaturalGradient, Optax, Sites, constant
from pseudopoint.optimise.minibatch.loop import fit, start
from pseudopoint.params import trainable
from pseudopoint.posteriors import Whitened

N, B, M = 24, 8, 6
Q, Z = (lambda m: m.posterior.q), (lambda m: m.posterior.Z)
PLAIN = Optax(optax.sgd(0.002), (Q,))
ADAM = Optax(optax.adam(0.02), (Q,))
NATURAL = NaturalGradient(constant(0.5))
BOTH = Alternate(NATURAL, ADAM)

jitted = jax.jit(lambda stepper, model, state, batch, rows: stepper.step(model, state, batch, N, rows))


def setting(seed=0):
    p = problem(seed, weighted=True)
    return p, p.whitened(*random_q(seed, M)), p.data()


def by_hand(steppers, model, states, batch, rows):
    """The steps one after another, and all infos."""
    states, infos = list(states), []
    for i, stepper in enumerate(steppers):
        model, states[i], info = jitted(stepper, model, states[i], batch, rows)
        infos.append(info)
    return model, states, infos


def bits(tree):
    return [(x.dtype, x.shape, x.tobytes()) for x in map(np.asarray, jax.tree.leaves(tree))]


def same(ours, truth, tolerance=1e-12):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(truth), strict=True):
        close(a, b, tolerance)


def test_each_steps_from_where_the_other_left_also_nested():
    _, model, data = setting()
    kernel, points = Optax(optax.adam(0.02), (Q, Z)), Optax(optax.sgd(0.01), (Q, lambda m: m.kernel))
    nested = Alternate(NATURAL, Alternate(kernel, points))
    steppers = (NATURAL, kernel, points)
    state, states = nested.init(model, N), [stepper.init(model, N) for stepper in steppers]
    expected = model
    for step in range(3):
        rows = draw(N, B, 0, step, 1)[0]
        model, state, info = jitted(nested, model, state, take(data, rows), rows)
        expected, states, infos = by_hand(steppers, expected, states, take(data, rows), rows)
        same(model, expected)
        same((state.first, state.second.first, state.second.second), tuple(states))
        same(info[:3], infos[0][:3])
        assert not info.rejected
        # The second saw another bound than the first: q had moved.
        assert abs(float(infos[1].bound) - float(infos[0].bound)) > 1e-3


def test_full_steps_of_q_and_gradient_steps_of_the_rest_climb_the_collapsed_bound_by_its_own_gradient():
    p, model, data = setting()
    stepper = Alternate(NaturalGradient(constant(1.0)), PLAIN)
    state, rows = stepper.init(model, N), np.arange(N)
    sparse = trainable(p.sparse())
    slope = jax.jit(jax.value_and_grad(lambda vector: bounds.collapsed(sparse.rebuild(vector), data).value))
    vector, values = sparse.vector, []
    for _ in range(8):
        model, state, info = jitted(stepper, model, state, data, rows)
        value, gradient = slope(vector)
        vector = vector + 0.002 * gradient
        values.append(float(value))
        close(trainable(model, Q).vector, vector, 1e-8)
        assert not info.rejected
    assert (np.diff(values) > 0).all() and values[-1] > values[0] + 0.5


def test_simultaneous_and_alternating_steps_have_the_same_fixed_point_on_different_ways():
    p, model, data = setting(3)
    held = (Z, lambda m: m.kernel.lengthscale)
    one = NaturalGradient(constant(1.0), optax.sgd(0.01), held)
    two = Alternate(NaturalGradient(constant(1.0)), Optax(optax.sgd(0.01), (Q, *held)))
    rows = np.arange(N)
    # The optimum of the collapsed bound, by SciPy, and the best q there, by one natural step.
    sparse, every = trainable(p.sparse(), *held), trainable(model, Q, *held)
    objective = jax.jit(jax.value_and_grad(lambda vector: -bounds.collapsed(sparse.rebuild(vector), data).value))
    best = minimize(lambda x: tuple(map(np.asarray, objective(x))), sparse.vector, jac=True, options={"gtol": 1e-9})
    there = every.rebuild(jnp.asarray(best.x))
    full = NaturalGradient(constant(1.0))
    there, _, _ = jitted(full, there, full.init(there, N), data, rows)
    for stepper in (one, two):
        stays, _, info = jitted(stepper, there, stepper.init(there, N), data, rows)
        same(stays, there, 1e-8)
        close(info.bound, -best.fun, 1e-9)
        assert not info.rejected
    # From elsewhere a first step of the hyperparameters differs: the one sees q before its step, the other after.
    ways = [trainable(jitted(s, model, s.init(model, N), data, rows)[0], Q, *held).vector for s in (one, two)]
    assert np.abs(ways[0] - ways[1]).max() > 1e-2 and np.abs(best.x - sparse.vector).max() > 0.1


def test_steppers_that_remember_rows_are_told_them():
    p, model, data = setting()
    q = MeanChol(model.posterior.q.mean, np.linalg.cholesky(model.posterior.q.covariance()))
    model = p.model(Whitened(p.Z, q, jitter=0.0))
    average = SAG(optax.sgd(0.005), hyper_optimiser=optax.sgd(1e-3), frozen=(Z,))
    points = Optax(optax.sgd(0.01), (Q, lambda m: m.kernel, lambda m: m.likelihood))
    stepper = Alternate(average, points)
    rows = draw(N, B, 0, 0, 1)[0]
    new, state, info = jitted(stepper, model, stepper.init(model, N), take(data, rows), rows)
    expected, _, _ = by_hand(
        (average, points), model, (average.init(model, N), points.init(model, N)), take(data, rows), rows
    )
    same(new, expected)
    assert not info.rejected and set(np.flatnonzero(state.first.rule.seen)) == set(rows)


def test_a_bad_batch_is_undone_by_both():
    _, model, data = setting()
    rows = draw(N, B, 0, 0, 1)[0]
    model, state, _ = jitted(BOTH, model, BOTH.init(model, N), take(data, rows), rows)
    bad = np.array(data.y)
    bad[rows[2]] = np.nan
    new, after, info = jitted(BOTH, model, state, take(type(data)(data.X, bad, data.weight, data.noise), rows), rows)
    unguarded = lambda s: (s.first._replace(guard=0), s.second._replace(guard=0))
    assert info.rejected and bits((new, unguarded(after))) == bits((model, unguarded(state)))
    assert float(after.first.guard.scale) == float(after.second.guard.scale) == 0.5


@pytest.mark.parametrize("broken", [0, 1])
def test_one_step_undone_of_two_counts_and_the_other_stays(broken):
    _, model, data = setting()
    explode = Optax(optax.scale(1e308), (Q,))
    stepper = Alternate(*((explode, NATURAL) if broken == 0 else (NATURAL, explode)))
    rows = draw(N, B, 0, 0, 1)[0]
    new, _, info = jitted(stepper, model, stepper.init(model, N), take(data, rows), rows)
    alone, _, fine = jitted(NATURAL, model, NATURAL.init(model, N), take(data, rows), rows)
    assert info.rejected and not fine.rejected
    same(new, alone)


def test_where_both_move_q_the_second_s_change_is_dropped_and_counted():
    _, model, data = setting()
    stepper = Alternate(NATURAL, Optax(optax.sgd(1e-3)))
    rows = draw(N, B, 0, 0, 1)[0]
    new, _, info = jitted(stepper, model, stepper.init(model, N), take(data, rows), rows)
    alone, _, _ = jitted(NATURAL, model, NATURAL.init(model, N), take(data, rows), rows)
    same(new.posterior.q, alone.posterior.q)
    assert info.rejected and float(jnp.abs(new.kernel.variance - model.kernel.variance)) > 0
    with pytest.raises(FitError, match="had to be rejected"):
        fit(start(model, stepper, data), stepper, data, steps=4, batch_size=B, segment=4)


def test_coordinates_that_one_of_the_two_does_not_move_are_refused_at_the_start():
    _, model, _ = setting()
    with pytest.raises(TypeError, match="SAG needs the posterior Whitened.* with q in MeanChol coordinates"):
        Alternate(NATURAL, SAG(optax.sgd(0.1))).init(model, N)


def test_sites_beside_hyperparameters_that_move_are_no_fit():
    _, model, data = setting()
    stepper = Alternate(Sites(), ADAM)
    state, history = fit(start(model, stepper, data), stepper, data, steps=4, batch_size=B, segment=4)
    # The first step was good: its sums held. From then on those of other hyperparameters are not used.
    assert history[-1].rejected == 3
    with pytest.raises(FitError, match="had to be rejected"):
        fit(state, stepper, data, steps=4, batch_size=B, segment=4)


def test_a_resumed_fit_is_an_uninterrupted_one_bit_for_bit():
    _, model, data = setting()
    whole, history = fit(start(model, BOTH, data), BOTH, data, steps=15, batch_size=B, segment=5)
    part, _ = fit(start(model, BOTH, data), BOTH, data, steps=5, batch_size=B, segment=5)
    resumed, _ = fit(part, BOTH, data, steps=10, batch_size=B, segment=5)
    assert bits(resumed) == bits(whole) and history[-1].rejected == 0 and history[-1].bound > history[0].bound
