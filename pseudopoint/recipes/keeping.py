"""What a long fit keeps of itself, so that it goes on after it was stopped."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import jax
import numpy as np

from ..optimise.fullbatch import Objective
from ..optimise.minibatch.loop import TrainState
from ..optimise.result import Record


class AbstractKeeper(ABC):
    """Trees of plain values, arrays and models, by the name of the stage of a fit that made them."""

    @abstractmethod
    def load(self, stage: str) -> Any:
        """What an earlier run kept of the stage; None if there is nothing."""

    @abstractmethod
    def save(self, stage: str, make: Callable[[], Any], now: bool = False) -> None:
        """Keeps make(): at once if `now`, otherwise once a minute, and where the fit is interrupted."""

    @abstractmethod
    def flush(self) -> None:
        """Keeps now what is to be kept later."""

    def stage(self, name: str, make: Callable[[], Any]) -> Any:
        """What is kept of the stage, or else make(), which is kept from now on."""
        found = self.load(name)
        if found is None:
            found = make()
            self.save(name, lambda: found, now=True)
        return found


@final
class Nothing(AbstractKeeper):
    """Keeps nothing."""

    def load(self, stage: str) -> Any:
        """None."""
        return None

    def save(self, stage: str, make: Callable[[], Any], now: bool = False) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing."""


def continued(keeper: AbstractKeeper, stage: str, start: TrainState) -> tuple[TrainState, tuple[Record, ...]]:
    """The state and the records of minibatch steps that were kept, else the start and none.

    What is kept are the leaves of the state; `start` has their structure.
    """
    kept = keeper.load(stage)
    if kept is None:
        return start, ()
    structure = jax.tree.structure((start.model, start.stepper_state))
    leaves = [jax.numpy.asarray(leaf) for leaf in kept["leaves"]]
    model, state = jax.tree.unflatten(structure, leaves)
    records = tuple(Record(*record) for record in kept["history"])
    return TrainState(model, state, start.seed, kept["step"], kept["rejected"]), records


def keeping_steps(keeper: AbstractKeeper, stage: str) -> Callable[[TrainState, tuple[Record, ...]], None]:
    """What `loop.fit` calls after every segment."""

    def keep(state: TrainState, history: tuple[Record, ...]) -> None:
        def tree():
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((state.model, state.stepper_state))]
            records = [list(record) for record in history]
            return {"leaves": leaves, "step": state.step, "rejected": state.rejected, "history": records}

        keeper.save(stage, tree)

    return keep


def descent_kept(keeper: AbstractKeeper, stage: str, objective: Objective) -> None:
    """The objective goes on from its best point that was kept, and keeps it from now on."""
    kept = keeper.load(stage)
    if kept is not None:
        history = [Record(*record) for record in kept["history"]]
        objective.restore(kept["best"], history, kept["evaluations"], kept["rejected"])

    def tree(at: Objective):
        counts = {"evaluations": at.evaluations, "rejected": at.rejected}
        return {"best": at.best, "history": [list(record) for record in at.history]} | counts

    objective.keep = lambda at: keeper.save(stage, lambda: tree(at))
