"""Steps whose batches stay where their rows are: what comes back are sums, from which the step is made here."""

from typing import Any

import jax
import numpy as np

from ...compilation import program
from ...gaussians import MeanCovariance
from ...posteriors import Model
from ...rows import CHUNK, BatchSums, Rows
from .energy import RowSlopes, with_q
from .step import AbstractStepper, BatchEnergy, Info


def stays_apart(stepper: AbstractStepper, data: Rows, batch_size: int) -> bool:
    """Whether a batch is so large that to send it would cost more than to send parameters and sums, and the step needs
    no more of it. One step costs a round of messages, so small batches are better sent many at a time."""
    return batch_size >= CHUNK and stepper.by_energy and isinstance(data, BatchSums)  # a protocol, as `Rows` is


def steps_apart(
    stepper: Any, model: Model, state: Any, data: Any, batch_size: int, seed: int, steps: range
) -> tuple[tuple[Model, Any], Info]:
    """`stepper.step` for each of the steps, on a batch whose sums are taken elsewhere."""
    scale, infos = len(data) / batch_size, []
    for step in steps:
        sent = program(_in_covariance, "once")(model, state)
        sums = data.batch_sum(RowSlopes(stepper.tight), sent, batch_size, seed, step)
        model, state, info = program(_stepped)(stepper, model, state, sums, scale, len(data))
        infos.append(info)
    return (model, state), jax.tree.map(lambda *each: np.stack(each), *infos)


def _in_covariance(model, state):
    return with_q(model, MeanCovariance(model.posterior.q.mean, state.rule.cov, known=True))


def _stepped(stepper, model, state, sums, scale, num_data):
    value, slopes, minorant = sums
    return stepper.step(model, state, BatchEnergy(value, slopes, minorant, scale), num_data)
