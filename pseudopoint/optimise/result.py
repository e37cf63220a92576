"""What every optimiser returns, records and raises."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Record(NamedTuple):
    """One iteration, or one segment of minibatch steps.

    `bound` is in nats, of the standardised target, for all rows. `rejected` counts the steps rejected so far, `seconds`
    run from the start of the optimiser, and `total` is the step at which it stops at the latest.
    """

    step: int
    bound: float
    gradient_norm: float
    step_size: float
    rejected: int
    seconds: float
    total: int


Progress = Callable[[Record], None]


class FitError(ValueError):
    """A fit that cannot continue; the message names the cause and a remedy. Where it is `bare` it has neither: an
    optimiser raises it, which does not know the data."""

    def __init__(self, message: str, bare: bool = False):
        ValueError.__init__(self, message)
        self.bare = bare


class OptimiseResult(NamedTuple):
    """The best model seen, its bound, and the auxiliary output of the objective there (None if it has none). Steps on
    minibatches return the last model, and the mean bound of the last segment.

    `evaluations` counts values and gradients, `rejected` the trial points where one of them was not finite. A given
    number of steps on minibatches, whose rate falls to 0 over them, counts as `converged`.
    """

    model: Any
    aux: Any
    bound: float
    history: tuple[Record, ...]
    evaluations: int
    rejected: int
    converged: bool
