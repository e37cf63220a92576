"""What happened during a fit: one record a step (or a segment of steps), the same for every optimiser."""

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Progress", "Record"]


class Record(NamedTuple):
    """The bound is in nats, of the standardised target, for all rows; `undone` counts bad steps so far.

    `total` is the number of steps after which the fit stops at the latest.
    """

    step: int
    bound: float
    gradient_norm: float
    step_size: float
    undone: int
    seconds: float
    total: int


Progress = Callable[[Record], None]
