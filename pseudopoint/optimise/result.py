"""What every optimiser returns, records and raises."""

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["FitError", "OptimiseResult", "Progress", "Record"]


class Record(NamedTuple):
    """The bound is in nats, of the standardised target, for all rows; `rejected` counts bad steps so far.

    `total` is the number of steps after which the fit stops at the latest.
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
    """A fit that cannot go on; the message names the cause and a remedy."""


class OptimiseResult(NamedTuple):
    """The best model seen. `rejected` counts trial points that were not finite and were stepped back from."""

    model: Any
    carry: Any
    bound: float
    history: tuple[Record, ...]
    evaluations: int
    rejected: int
    converged: bool
