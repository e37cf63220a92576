"""Minibatch fits end when their bound is flat, and say so."""

import jax
import numpy as np
import pytest
from lattice import problem

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.optimise.minibatch import NaturalGradient, adam_until_flat, averaging, fall, is_flat
from pseudopoint.optimise.minibatch.loop import fit, start
from pseudopoint.posteriors import Whitened

N, B = 24, 8
FEW = {"method": "svgp", "kernel": "rbf", "num_inducing": 6}


def ready():
    p, stepper = problem(3), NaturalGradient(averaging(N, B), adam_until_flat(0.02))
    model = p.model(Whitened(p.Z, MeanPrecision(np.zeros(6), np.eye(6)), jitter=0.0))
    return stepper, p.data(), start(model, stepper, p.data(), 5)


def bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2))
    return X, np.digitize(X[:, 0] + 0.3 * rng.normal(size=90), [-0.5, 0.5])


def test_a_bound_is_flat_when_it_gains_little_and_the_noise_is_small_enough_to_see_it():
    step, noise = np.arange(1, 41.0), np.random.default_rng(0).normal(size=400)
    assert is_flat(-1000 - 0 * step, 25, 1000.0)
    assert not is_flat(-1000 + 2 * step, 25, 1000.0)  # 0.008 nats a row in 100 steps
    assert not is_flat(-1000 + 0.75 * step, 25, 1000.0)  # 0.003
    assert is_flat(-1000 + 0.25 * step, 25, 1000.0)  # 0.001
    assert not is_flat(-1000 - 0 * step[:5], 25, 1000.0)  # two windows of three segments are the least
    assert not is_flat(-1000 + 30 * noise[:40], 25, 1000.0)
    assert is_flat(-1000 + 30 * noise, 25, 1000.0)
    assert not is_flat(np.full(40, np.nan), 25, 1000.0)


def test_the_fall_takes_whole_segments_and_ends_at_the_limit_at_the_latest():
    assert [fall(step, 25, 3000) for step in (150, 410, 2900)] == [100, 225, 100]


def test_a_fit_that_climbs_takes_all_steps_and_its_rate_is_zero_at_the_end():
    stepper, data, state = ready()
    end, history = fit(state, stepper, data, steps=130, batch_size=B, until_flat=True)
    falling = end.stepper_state.optimiser[-1]
    assert (end.step, history[-1].total) == (130, 130)
    assert int(falling.begin + falling.length) == 130 and len(history) == 6


def test_a_fit_is_repeatable_and_a_state_at_its_end_stays_there():
    stepper, data, state = ready()
    runs = [fit(state, stepper, data, steps=150, batch_size=B, until_flat=True)[0] for _ in range(2)]
    assert bits(runs[0]) == bits(runs[1]) and int(runs[0].stepper_state.optimiser[-1].begin) == 50
    more, _ = fit(runs[0], stepper, data, steps=50, batch_size=B, until_flat=True)
    assert bits(more.model.kernel) == bits(runs[0].model.kernel)


def test_a_fit_ends_early_says_so_and_is_as_good_as_a_long_one(table):
    X, y = table
    model, again = (GPClassifier(**FEW, effort="fast").fit(X, y) for _ in range(2))
    assert model.n_iter_ < 3000 and model.converged_
    assert f"ended after {model.n_iter_:,} of at most 3,000 steps" in model.reason_
    assert model.history_["total"][-1] == model.n_iter_ == again.n_iter_
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))
    long = GPClassifier(**FEW, max_iter=3000, effort="fast").fit(X, y)
    assert long.n_iter_ == 3000 and "ended" not in long.reason_
    assert model.bound_ > long.bound_ - 0.005 * len(y)


def test_steps_that_are_counted_are_all_taken(table):
    X, y = table
    assert GPClassifier(**FEW, max_iter=40, effort="fast").fit(X, y).n_iter_ == 40
    counts = GPRegressor(**FEW, likelihood="poisson", optimiser="NGD+Adam", max_iter=30, effort="fast").fit(X, y)
    assert counts.n_iter_ == 30 and "ended" not in counts.reason_
