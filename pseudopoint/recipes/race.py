"""Candidates of a search climb the evidence of its rows, side by side, and each is a row of the table of trials."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import numpy as np

from ..bounds import evidence_on_host, given_evidence, marginal
from ..kernels import AbstractKernel, Linear, Matern32, Matern52, Periodic, Sum
from ..optimise.fullbatch import FitError
from ..params import cast
from ..posteriors import Model
from ..processes import side_by_side
from ..starts.hyperparameters import named_kernel, robust
from ..starts.periods import Wave
from .candidates import Sample, State
from .objectives import OfBound, maximise
from .prior import LengthscalePrior
from .settings import Trial

FIRST, SHORT, LONG = 10, 12, 25  # iterations: of a race, of a change, of what won
WORTH = 2.0  # nats that a change has to gain
FLAT, WINDOW = WORTH / 20, 4  # a candidate that gains less in so many iterations has arrived
LOG = logging.getLogger(__name__)


class Others(NamedTuple):
    """The terms of a sum besides its Matérn 5/2 kernel of all columns: these terms for a variance of their sum, their
    share of the variance of all at the start, and what their choice costs in evidence, nats."""

    kernels: Callable[[float], tuple[AbstractKernel, ...]]
    share: float
    penalty: float = 0.0


def wave_and_line(wave: Wave) -> Others:
    """A periodic and a linear function of one column."""
    period = np.array([wave.period])
    both = lambda variance: Periodic(np.ones(1), variance / 2, period) + Linear(np.full(1, variance / 2))
    return Others(lambda variance: (both(variance).on(wave.column),), 2 / 3, wave.penalty)


def functions_of(columns: list[int]) -> Others:
    """A Matérn 3/2 function of each of these columns."""
    each = lambda variance: Matern32(np.ones(1), variance / len(columns))
    return Others(lambda variance: tuple(each(variance).on(d) for d in columns), 1 / 2)


@final
class Race:
    """The rows of a sample, settings, and what was tried."""

    def __init__(self, rows: Sample, settings: Any):
        self.rows, self.settings = rows, settings
        self.size = np.sqrt(np.sum(rows.columns() ** 2, axis=1))  # |y|, of classes the norm of their coordinates
        self.trials: list[Trial] = []
        self.sums: dict[str, Others] = {}  # by the names of the kernels that begin with them

    def base(self, state: State, variance: float | None = None) -> AbstractKernel:
        """The kernel of a candidate at its first lengthscales, and variance if none is given."""
        (lengthscale, size), D = robust(self.rows.X, self.size), self.rows.X.shape[1]
        variance, count, tied = size if variance is None else variance, D, lambda kernel: kernel
        if state.ties is not None:  # √G in place of √D
            count, tied = state.ties.num_groups, state.ties.of_kernel
            lengthscale *= float(np.sqrt(count / D))
        if state.name not in self.sums:
            return tied(named_kernel(state.name, lengthscale, variance, count))
        others = self.sums[state.name]
        of_all = Matern52(np.full(count, lengthscale), (1 - others.share) * variance)
        return Sum((*others.kernels(others.share * variance), tied(of_all)))

    def climbed(self, state: State, iterations: int, rows: Sample | None = None) -> State:
        """The candidate with hyperparameters of higher evidence, less what their prior says; −∞ where there is none.
        The evidence is that of `rows`, by default of the sample."""
        rows = rows or self.rows
        (bound, prior, host), levels = self.objective(state), rows.levels
        columns = 1 if levels is None else levels.shape[1]  # the bound is that of their mean, and so is the prior
        ends = {"min_gain": FLAT / columns, "window": WINDOW}
        try:
            result = maximise(bound, prior, state.model, rows.of(state), iterations, None, host=host, **ends)
        except FitError:
            return state.anew()
        evidence = result.bound * columns
        return state._replace(model=result.model, evidence=evidence + self.besides(state, rows))

    def prior(self, state: State) -> LengthscalePrior:
        """That of a candidate. The bound is the mean over K columns, so the penalty is divided by K: K s² for s²
        (methods m)."""
        columns = 1 if self.rows.levels is None else self.rows.levels.shape[1]
        spread = self.settings.lengthscale_prior * float(np.sqrt(columns))
        return LengthscalePrior.around(self.base(state), self.settings._replace(lengthscale_prior=spread))

    def objective(self, state: State) -> tuple[Any, LengthscalePrior, Any]:
        """Bound, prior, and what the host computes for a candidate, of classes for the mean of their columns."""
        prior, levels = self.prior(state), self.rows.levels
        on_host = jax.default_backend() == "cpu" or levels is not None
        of_mean = None if levels is None else levels / np.sqrt(levels.shape[1])
        host = partial(evidence_on_host, levels=of_mean) if on_host else None
        return OfBound(given_evidence if on_host else marginal), prior, host

    def besides(self, state: State, rows: Sample) -> float:
        """What the evidence of a candidate has besides the bound: the Jacobian of its warp, and the penalties of what
        was fitted to the target before, the numbers of a warp and a period."""
        penalty = self.sums[state.name].penalty if state.name in self.sums else 0.0
        return rows.gain(state.target) - penalty

    def tried(
        self, part: str, states: dict[str, State], iterations: int, rows: Sample | None = None
    ) -> dict[str, State]:
        """The candidates after some iterations, side by side, and recorded in their order."""
        LOG.info("search: %s (%s)", part, ", ".join(states))

        def timed(state):
            began = time.perf_counter()
            return self.climbed(state, iterations, rows), time.perf_counter() - began

        found = side_by_side(timed, states)
        for choice, (state, seconds) in found.items():
            self.record(part, choice, state.evidence, seconds)
        return {choice: state for choice, (state, _) in found.items()}

    def best(self, part: str, states: dict[str, State], iterations: int) -> tuple[str, State]:
        """The name of the candidate of highest evidence after some iterations, and the candidate."""
        found = self.tried(part, states, iterations)
        choice = max(found, key=lambda choice: found[choice].evidence)
        return choice, found[choice]

    def changed(self, part: str, choice: str, state: State, others: dict[str, State]) -> tuple[str, State]:
        """The best of other candidates if it is worth the change, else what is there, which has the same iterations
        more: hyperparameters that still climb would let any change look good."""
        if not others:
            return choice, state
        found = self.tried(part, {choice: state} | others, SHORT)
        state, other = found[choice], max(others, key=lambda other: found[other].evidence)
        best = found[other]
        return (other, best) if best.evidence > state.evidence + WORTH else (choice, state)

    def only(self, part: str, word: str, states: dict[str, State], state: State) -> State:
        """The candidate that the settings name, where the rows allow it."""
        if word not in states:
            return state
        return self.taken(part, *self.best(part, {word: states[word]}, SHORT))

    def record(self, part: str, choice: str, evidence: float, seconds: float) -> None:
        """A row of the table of trials."""
        self.trials.append(Trial(part, choice, float(evidence), False, seconds))

    def taken(self, part: str, choice: str, state: State) -> State:
        """The candidate, marked in the table."""
        marked = [i for i, trial in enumerate(self.trials) if trial[:2] == (part, choice)]
        if marked:
            self.trials[marked[-1]] = self.trials[marked[-1]]._replace(evidence=state.evidence, chosen=True)
        return state

    def moved(self, state: State, **changes: Any) -> State:
        """The candidate with another kernel, which takes over lengthscales and variance where both have them. The other
        parts of a sum start as they always do."""
        other = state.anew(**changes)
        kernel: Any = self.base(other)
        # Of a sum the last kernel has lengthscales, if any has: of a linear function and a constant none.
        scales = lambda k: k.scales if k.scales is not None else k.kernels[-1].scales
        if (before := scales(state.model.kernel)) is not None and (own := scales(kernel)) is not None:
            lengthscale, variance = before
            if other.ties is not None and state.ties is None:
                lengthscale = other.ties.merged(lengthscale)
            variance = variance if kernel.scales is not None else own[1] * variance
            kernel = eqx.tree_at(scales, kernel, (lengthscale, variance))
        return other._replace(model=cast(Model(kernel, state.model.likelihood), np.float64))
