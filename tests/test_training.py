"""The minibatch loop: repeatable, resumable, and never silent about steps that fail."""

import equinox as eqx
import jax
import numpy as np
import optax
import pytest
from lattice import close, elbo, problem, sparse

from pseudopoint.data import draw
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.optimise.fullbatch import FitError
from pseudopoint.optimise.minibatch import NaturalGradient, averaging, constant
from pseudopoint.optimise.minibatch.loop import fit, start
from pseudopoint.posteriors import Model, Whitened

N, B = 24, 8
STEPPER = NaturalGradient(averaging(N, B), optax.adam(0.02))


def ready(seed=0, stepper=STEPPER):
    """A problem and the state before the first step, with q at the prior."""
    p = problem(3)
    q = MeanPrecision(np.zeros(6), np.eye(6))
    return p, start(p.model(Whitened(p.Z, q, jitter=0.0)), stepper, p.data(), seed)


def bits(tree):
    return [(x.dtype, x.shape, x.tobytes()) for x in map(np.asarray, jax.tree.leaves(tree))]


def spoil(data, rows):
    """The same data with NaN as the target of `rows`."""
    y = np.array(data.y)
    y[rows] = np.nan
    return eqx.tree_at(lambda d: d.y, data, y)


def numbers(history):
    """Everything but the time, which differs between runs."""
    return [record._replace(seconds=0) for record in history]


def test_one_seed_is_one_model_bit_for_bit_and_another_seed_another():
    runs = {}
    for name, seed in [("a", 5), ("b", 5), ("c", 6)]:
        p, state = ready(seed)
        runs[name] = fit(state, STEPPER, p.data(), steps=10, batch_size=B, segment=5)
    (a, history), (b, same), (c, _) = runs.values()
    assert bits(a) == bits(b) and numbers(history) == numbers(same)
    assert bits(a.model) != bits(c.model)


@pytest.mark.parametrize("first", [5, 10, 7])
def test_a_resumed_fit_is_an_uninterrupted_one_bit_for_bit(first):
    p, state = ready()
    whole, _ = fit(state, STEPPER, p.data(), steps=20, batch_size=B, segment=5)
    part, _ = fit(state, STEPPER, p.data(), steps=first, batch_size=B, segment=5)
    resumed, history = fit(part, STEPPER, p.data(), steps=20 - first, batch_size=B, segment=5)
    assert (part.step, resumed.step, history[-1].step) == (first, 20, 20)
    assert bits(resumed) == bits(whole)


def test_training_improves_the_hyperparameters_and_keeps_q_near_its_optimum():
    def bounds(state):
        """The bound of the state's own q, and of the best q for its hyperparameters."""
        best = eqx.tree_at(lambda m: m.posterior.Z, p.sparse(), state.model.posterior.Z)
        best = Model(state.model.kernel, state.model.likelihood, best.posterior)
        return float(elbo(state.model, p.data(), p.Xs).tight), float(sparse(best, p.data(), p.Xs).tight)

    p, state = ready()
    own, best = bounds(state)
    state, history = fit(state, STEPPER, p.data(), steps=60, batch_size=B, segment=5)
    own_after, best_after = bounds(state)
    assert [record.step for record in history] == list(range(5, 65, 5))
    assert best + 2 < best_after
    assert best_after - 0.1 * (best - own) < own_after <= best_after


def test_one_epoch_of_frozen_hyperparameters_reaches_the_collapsed_bound():
    alone = NaturalGradient(averaging(N, B))
    p, state = ready(stepper=alone)
    state, _ = fit(state, alone, p.data(), steps=N // B, batch_size=B)
    close(elbo(state.model, p.data(), p.Xs).tight, sparse(p.sparse(), p.data(), p.Xs).tight, 1e-10)


def test_a_batch_size_beyond_the_data_means_all_rows():
    alone = NaturalGradient(constant(1.0))
    p, state = ready(stepper=alone)
    state, _ = fit(state, alone, p.data(), steps=1, batch_size=10**6)
    close(elbo(state.model, p.data(), p.Xs).tight, sparse(p.sparse(), p.data(), p.Xs).tight, 1e-10)


def test_batches_of_one_row():
    alone = NaturalGradient(averaging(N, 1))
    p, state = ready(stepper=alone)
    state, history = fit(state, alone, p.data(), steps=N, batch_size=1)
    assert history[-1].rejected == 0
    close(elbo(state.model, p.data(), p.Xs).tight, sparse(p.sparse(), p.data(), p.Xs).tight, 1e-10)


def test_progress_sees_every_record_as_it_is_made():
    p, state = ready()
    seen = []
    _, history = fit(state, STEPPER, p.data(), steps=15, batch_size=B, segment=5, progress=seen.append)
    assert tuple(seen) == history and [record.step for record in seen] == [5, 10, 15]
    assert np.isfinite(np.array(seen)).all()
    assert (np.diff([record.seconds for record in seen]) > 0).all()


@pytest.mark.parametrize(
    ("steps", "lengths"),
    [(10, [5, 5]), (12, [4] * 3), (6, [3, 3]), (14, [7, 7]), (22, [2] * 11), (11, [5, 5, 1]), (7, [7]), (3, [3])],
)
def test_segments_are_alike_where_they_can_be(steps, lengths):
    # Each length is a program to compile.
    p, state = ready()
    _, history = fit(state, STEPPER, p.data(), steps=steps, batch_size=B, segment=5)
    assert [record.step for record in history] == list(np.cumsum(lengths))


# --- Bad steps ---


def test_bad_batches_are_skipped_and_counted():
    p, state = ready()
    bad = spoil(p.data(), [4])  # one batch of three, every epoch
    state, history = fit(state, STEPPER, bad, steps=15, batch_size=B, segment=5)
    assert history[-1].rejected == 5
    assert [record.rejected for record in history] == sorted(record.rejected for record in history)
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(state))
    assert np.isfinite([record.bound for record in history]).all()


def test_a_segment_of_nothing_but_bad_steps_is_a_fit_error():
    p, state = ready()
    with pytest.raises(FitError, match="5 steps in a row had to be rejected"):
        fit(state, STEPPER, spoil(p.data(), np.arange(0, N)), steps=15, batch_size=B, segment=5)


def test_a_call_of_nothing_but_bad_steps_is_a_fit_error_however_short():
    p, state = ready()
    with pytest.raises(FitError, match="had to be rejected"):
        fit(state, STEPPER, spoil(p.data(), np.arange(0, N)), steps=2, batch_size=B, segment=5)


def test_one_bad_step_at_the_end_is_undone_and_not_fatal():
    # Eleven steps in segments of five: the last segment is one step, and that one is bad.
    p, state = ready()
    last = draw(N, B, 0, 10, 1)[0]
    row = next(int(row) for row in last if all(row not in draw(N, B, 0, step, 1)[0] for step in (8, 9)))
    state, history = fit(state, STEPPER, spoil(p.data(), [row]), steps=11, batch_size=B, segment=5)
    assert state.step == 11 and [record.step for record in history] == [5, 10, 11]
    assert history[-1].rejected == history[-2].rejected + 1


def test_bad_steps_before_a_pause_do_not_count_again_after_it():
    # Five bad steps so far are as many as a segment has steps; those after the pause are good.
    p, state = ready()
    state, history = fit(state, STEPPER, spoil(p.data(), [4]), steps=15, batch_size=B, segment=5)
    assert history[-1].rejected == 5
    state, history = fit(state, STEPPER, p.data(), steps=5, batch_size=B, segment=5)
    assert state.step == 20 and history[-1].rejected == 5


@pytest.mark.parametrize("rate", [10.0, 1e5, 1e300])
def test_an_absurd_learning_rate_ends_in_a_finite_model_or_a_fit_error(rate):
    wild = NaturalGradient(averaging(N, B, 5.0), optax.adam(rate))
    p, state = ready(stepper=wild)
    try:
        state, _ = fit(state, wild, p.data(), steps=30, batch_size=B, segment=10)
    except FitError:
        return
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(state.model))
