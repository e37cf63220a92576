"""The minibatch loop: draws rows, runs a stepper over them in compiled segments, and records a history."""

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax import lax

from ...compilation import bucket, program
from ...posteriors import Model
from ...rows import Rows
from ..result import FitError, Progress, Record
from . import AbstractStepper
from .apart import stays_apart, steps_apart
from .stopping import begin_fall, count_all, end_of_fall, fall, is_flat

SEGMENT = 25  # steps of which the bound is one number, where it is to become flat


class TrainState(eqx.Module):
    """All that a fit needs to resume: from it, `fit` draws the same rows and takes the same steps."""

    model: Model
    stepper_state: Any
    seed: int = eqx.field(static=True)
    step: int = eqx.field(static=True)
    rejected: int = eqx.field(static=True, default=0)


def start(model: Model, stepper: AbstractStepper, data: Rows, seed: int = 0) -> TrainState:
    """The state before the first step. What it holds for each row, it holds for a `bucket` of them."""
    return TrainState(model, program(_first, "once", (2,))(stepper, model, bucket(len(data))), seed, 0)


def _first(stepper, model, num_data):
    return stepper.init(model, num_data)


def _segment(stepper, model, state, batches, rows, num_data):
    def body(carry, at):
        model, state, info = stepper.step(*carry, at[0], num_data, at[1])
        return (model, state), info

    return lax.scan(body, (model, state), (batches, rows))


def _advanced(run, state: TrainState, stepper, data: Rows, batch_size: int, count: int):
    """The model, the stepper's state and the reports after `count` more steps."""
    at = stepper, state.model, state.stepper_state
    if stays_apart(stepper, data, batch_size):
        return steps_apart(*at, data, batch_size, state.seed, range(state.step, state.step + count))
    return run(*at, *data.minibatches(batch_size, state.seed, state.step, count), len(data))


def _equal_segments(steps: int, size: int) -> int:
    """A divisor of `steps` between ½ and 1, 1 and 2, or ⅒ and ½ of `size`, in that order; `size` if there is none."""
    near = range(min(size, steps), (size - 1) // 2, -1), range(size + 1, 2 * size)
    short = range(size // 2, max(size // 10, 1), -1)
    return next((length for lengths in (*near, short) for length in lengths if steps % length == 0), size)


def _falling(state: TrainState, bounds, segment: int, rows: float, last: int) -> tuple[TrainState, int]:
    """The state, whose rate begins to fall here if the bound is flat or if it has to, and the step where it ends."""
    at = lambda state: state.stepper_state
    state = eqx.tree_at(at, state, count_all(at(state), state.step))
    end, length = end_of_fall(at(state)), fall(state.step, segment, last)
    if end is not None:
        return state, end
    if not is_flat(bounds, segment, rows) and state.step + length < last:
        return state, last
    return eqx.tree_at(at, state, begin_fall(at(state), state.step, length)), state.step + length


def _record(state: TrainState, info: Any, seconds: float, last: int) -> Record:
    """Of the segment that ended at the state."""
    finite = info.bound[np.isfinite(info.bound)]
    bound = float(np.mean(finite)) if len(finite) else np.nan
    norm, size = float(info.gradient_norm[-1]), float(info.step_size[-1])
    return Record(state.step, bound, norm, size, state.rejected, seconds, last)


def _end(state: TrainState, made: tuple[Record, ...], steps: int, until_flat: bool) -> int:
    """The step where a run of `steps` ends that has made those of some records."""
    end = end_of_fall(state.stepper_state) if made and until_flat else None
    return (made[0].total if made else state.step + steps) if end is None else end


def fit(
    state: TrainState,
    stepper: AbstractStepper,
    data: Rows,
    *,
    steps: int,
    batch_size: int,
    segment: int = 50,
    progress: Progress | None = None,
    until_flat: bool = False,
    made: tuple[Record, ...] = (),
    keep: Callable[[TrainState, tuple[Record, ...]], None] | None = None,
) -> tuple[TrainState, tuple[Record, ...]]:
    """`steps` more steps on minibatches of `data`, and one record per segment (the mean bound of its steps).

    A segment has about `segment` steps: between a tenth and twice as many where that makes all segments equally long,
    because every length is a program to compile. For the same reason a table of at most `batch_size` rows is padded
    with rows of weight zero to a `bucket`. Rows stay where they are until their segment runs, so that `data` may be
    larger than the memory of the device. Raises FitError when all steps of a segment are rejected.

    `keep` is given the state and the records after every segment. A run that was stopped goes on, bit for bit, from
    them: the state, the same `steps`, and those records as `made`, of the steps that were made already.

    `until_flat` takes `steps` as a limit, for a stepper with `adam_until_flat`: once the bound is flat (`is_flat`, of
    segments of 25 steps), or as few steps are left as that takes, the rate falls to zero, where the fit ends.
    """
    weight = data.total_weight
    data, batch_size = data.for_batches(batch_size)
    segment = min(SEGMENT, steps) if until_flat else _equal_segments(steps, segment)
    history = [*made]
    last = _end(state, made, steps, until_flat)
    # With several latent functions, XLA's default loops make the steps of softmax a quarter faster.
    run = program(_segment, "brief" if state.model.likelihood.latents == 1 else None)
    clock = time.perf_counter() - (made[-1].seconds if made else 0)
    while state.step < last:
        count = min(segment, last - state.step)
        (model, inner), info = _advanced(run, state, stepper, data, batch_size, count)
        info = jax.tree.map(np.asarray, info)
        bad = int(np.sum(info.rejected))
        state = TrainState(model, inner, state.seed, state.step + count, state.rejected + bad)
        if bad == min(segment, steps):
            raise FitError(f"all of {bad} steps in a row had to be rejected", bare=True)
        history.append(_record(state, info, time.perf_counter() - clock, last))
        if until_flat:
            state, last = _falling(state, [record.bound for record in history], segment, weight, last)
            history[-1] = history[-1]._replace(total=last)
        if keep is not None:
            keep(state, tuple(history))
        if progress is not None:
            progress(history[-1])
    return state, tuple(history)
