"""The choice of start, warps and kernel by the evidence of a sample of rows.

The exact log evidence of a few hundred rows takes milliseconds, and orders kernels and warps as the density of new rows
does, without holding rows back. So a search goes through the parts of a model in turn. In each it tries the
alternatives to what it has, from the hyperparameters where that ended, and keeps the one of the highest evidence. A
warp of the target counts with its Jacobian, Σ wᵢ log w′(yᵢ), so that the evidence is that of the same numbers y, and
with a penalty for the numbers that were fitted to them.

Where no Gaussian likelihood describes the target, the evidence is that of a regression in its place (`response`).

The sample depends on the rows and the seed alone: not on their order, the order of columns, or units.
"""

import time
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from ..bounds import best_scale_and_degrees, evidence_on_host, expected_precisions, given_evidence, marginal
from ..compilation import program
from ..data import Dataset
from ..kernels import AbstractKernel, Linear, Matern52, Periodic
from ..likelihoods import Gaussian
from ..linalg import inverse_and_half_logdet
from ..optimise.fullbatch import FitError
from ..params import cast
from ..posteriors import Model
from ..processes import side_by_side
from ..starts.hyperparameters import named_kernel, robust, ulapane
from ..starts.periods import Wave, waves
from ..starts.warps import Warps, input_warps, target_warps
from .candidates import Found, Rows, State, sample_of
from .categories import Ties, occam
from .objectives import OfBound, curvature, maximise, padded_to_bucket
from .prior import LengthscalePrior
from .refit import refit
from .settings import EXACT_ROWS, Trial
from .tails import DEGREES_AT_START, Tails, alternate, shows_tails, weighted

__all__ = ["GRAMMAR", "Found", "search"]

SAMPLE = {"balanced": 600, "thorough": 1500}  # rows
FIRST, SHORT, LONG = 10, 12, 25  # iterations: of a race, of a change, of what won
WORTH = 2.0  # nats that a change has to gain
FINALISTS = 2  # kernels that are fitted for longer, and warps of a target that are fitted at all
SCALES = (1.0, 0.3, 0.1)  # of the first lengthscales, in units of those of the robust start
TAILS = 6, 6  # rounds under Student-t noise, and iterations of each
NOISE_OF_SPREAD = 0.1  # its variance there at the start
WIDE = 50  # columns from which a search of each by itself, and a kernel with a part for each, would take minutes
WIDE_AND_LONG = 25  # from which such a kernel would, where there are too many rows for the exact method
# Kernels that a search tries beside Matérn 5/2, with which it begins.
GRAMMAR = ("matern32", "matern12", "rbf", "rational_quadratic", "additive", "matern52_linear")


def search(
    data: Dataset,
    settings: Any,
    zeros: Float[np.ndarray, " D"],
    zero: float,
    warp_target: bool,
    levels: Float[np.ndarray, "C K"] | None = None,
    tails: bool = False,
    ties: Ties | None = None,
) -> Found:
    """The parts that the settings leave open, chosen by the evidence of a sample of `data`, which is standardised.

    `zeros` [D] and `zero` are the places of 0 of the user's units in the columns and in the target. Without
    `warp_target` the target stays as it is. With `levels`, it numbers their rows, and K functions describe it. With
    `tails` Student-t noise is tried in the end; where it is taken, columns and kernel are chosen again, by rows of its
    weights. With `ties` columns of categories may have one lengthscale each. Raises FitError where no start has an
    evidence, or where the target has not the warp that is asked for.
    """
    if not np.min(np.asarray(data.y)) > zero:  # one row of all is enough, whether the sample has it or not
        zero = np.inf
    few = sample_of(data, SAMPLE[settings.effort], settings.seed)
    X, y, weight, noise = (np.asarray(x, float) for x in (few.X, few.y, few.weight, few.noise))
    parts = WIDE if len(data) <= EXACT_ROWS else WIDE_AND_LONG
    run = _Search(Rows(X, y, weight, noise, zeros, zero, levels), settings, parts)
    state, warp_inputs = run.start(), settings.input_warp != "none"
    if ties is not None and settings.kernel == "auto" and np.isfinite(settings.lengthscale_prior):
        state = run.share(state, ties)
    if warp_inputs:
        state = run.warp_inputs(state)
    if warp_target:
        state = run.warp_target(state)
        if warp_inputs and state.target is not None:  # another target is another function of the columns
            state = run.warp_inputs(state)
    if settings.kernel == "auto":
        state = run.choose_kernel(state)
        if warp_target:  # again, by what the kernel leaves unexplained
            state = run.warp_target(state)
    degrees = None
    if tails:
        state, degrees = run.heavy_tails(state)
    if degrees is not None:
        state = run.warp_inputs(state) if warp_inputs else state
        state = run.choose_kernel(state) if settings.kernel == "auto" else state
    return Found(state.name, run.base(state), state.model, state.inputs, state.target, tuple(run.trials), degrees)


class _Search:
    """A sample, settings, and what was tried."""

    def __init__(self, rows: Rows, settings: Any, most_parts: int = WIDE):
        self.rows, self.settings, self.most_parts = rows, settings, most_parts
        self.size = np.sqrt(np.sum(rows.columns() ** 2, axis=1))  # of the rows' targets
        self.trials: list[Trial] = []
        self.waves: dict[str, Wave] = {}  # by the names of the kernels that begin with them

    # --- the parts ---

    def start(self) -> State:
        """The best of several first lengthscales."""
        rows, settings = self.rows, self.settings
        name, D = "matern52" if settings.kernel == "auto" else settings.kernel, rows.X.shape[1]
        lengthscale, variance = robust(rows.X, self.size)
        starts = {f"robust × {scale:g}": (scale * lengthscale, variance) for scale in SCALES} | _ulapane(rows)
        noise, as_they_are = Gaussian(settings.initial_noise), (None,) * D
        states = {
            choice: State(name, cast(Model(named_kernel(name, *numbers, D), noise), np.float64), as_they_are, None)
            for choice, numbers in starts.items()
        }
        self.climbed(next(iter(states.values())), 1)  # which compiles the programs that all read
        choice, state = self.best("start", states, FIRST)
        if not np.isfinite(state.evidence):
            raise FitError("the log evidence of a sample of the rows is not finite at any start")
        return self.taken("start", choice, self.climbed(state, LONG))

    def share(self, state: State, ties: Ties) -> State:
        """One lengthscale for each column of categories in place of one for each of its 0/1 columns, where that has the
        higher evidence with these lengthscales integrated out: of their maxima, that of more numbers is higher."""
        now, other = "one lengthscale a category", "one lengthscale a column"
        found = self.tried("categories", {now: state, other: self._moved(state, ties=ties)}, LONG)
        evidence = {choice: each.evidence - self._occam(each, ties) for choice, each in found.items()}
        self.trials[-2:] = [trial._replace(evidence=evidence[trial.choice]) for trial in self.trials[-2:]]
        choice = other if evidence[other] > evidence[now] + WORTH else now
        self.taken("categories", choice, found[choice]._replace(evidence=evidence[choice]))
        return found[choice]

    def _occam(self, state: State, ties: Ties) -> float:
        """What the evidence at the maximum is above that with the lengthscales of categories integrated out."""
        bound, prior, host = self._objective(state)
        places = np.flatnonzero(ties.shared if state.ties else ties.shared[list(ties.groups)])
        try:
            H = curvature(bound, prior, state.model, self.rows.of(state), places, host)
        except FitError:
            return np.inf
        return occam(H, self.settings.lengthscale_prior)

    def warp_inputs(self, state: State) -> State:
        """No warps, the same kind of warp for all columns, or for each column the one of highest evidence."""
        offered = input_warps(self.rows.X, self.rows.weight, self.rows.zeros)
        kinds = sorted({kind for warps in offered for kind in warps})
        alike = {kind: state.anew(inputs=tuple(warps.get(kind) for warps in offered)) for kind in kinds}
        if self.settings.input_warp != "auto":
            return self.only("inputs", self.settings.input_warp, alike, state)
        now = "none" if not any(state.inputs) else "as before"
        alike |= {"none": state.anew(inputs=(None,) * len(offered))} if now != "none" else {}
        choice, state = self.changed("inputs", now, state, alike)
        by_column = state.anew(inputs=self._by_column(state, offered) if len(offered) < WIDE else state.inputs)
        if by_column.inputs != state.inputs:
            choice, state = self.changed("inputs", choice, state, {"by column": by_column})
        return self.taken("inputs", choice, state)

    def _by_column(self, state: State, offered: list[dict[str, Any]]) -> Warps:
        """For each column the warp of highest evidence with all else as it is, if that is worth the change."""
        now, chosen = self._evidence_at(state), list(state.inputs)
        others = [
            (j, warp) for j, warps in enumerate(offered) for warp in (None, *warps.values()) if warp is not chosen[j]
        ]
        with_one = lambda j, warp: state._replace(inputs=(*state.inputs[:j], warp, *state.inputs[j + 1 :]))
        values = side_by_side(lambda other: self._evidence_at(with_one(*other)), others)
        most = dict.fromkeys(range(len(chosen)), now + WORTH)
        for (j, warp), value in zip(others, values, strict=True):
            most[j], chosen[j] = (value, warp) if value > most[j] else (most[j], chosen[j])
        return tuple(chosen)

    def warp_target(self, state: State) -> State:
        """The warp of the target of highest evidence, of those that are best with hyperparameters as they are."""
        inverse, _ = self._inverse(state)
        rows = self.rows
        offered = target_warps(rows.y, rows.weight, rows.zero, inverse)
        states = {name: state.anew(target=warp) for name, (warp, _) in offered.items()}
        word = self.settings.target_warp
        if word not in ("auto", *states):
            need = " needs a target above 0 in every row" if word == "log" else " has no finite slope in some row"
            raise FitError(f"target_warp={word!r}{need}: use another warp, or target_warp='none'")
        if word != "auto":
            return self.only("target", word, states, state)
        first = sorted(offered, key=lambda name: offered[name][1])[-FINALISTS:]
        now = "none" if state.target is None else "as before"
        choice, state = self.changed("target", now, state, {name: states[name] for name in first if name != now})
        return self.taken("target", choice, state)

    def choose_kernel(self, state: State) -> State:
        """The kernel of highest evidence: all for a few iterations, then the best of them for more."""
        leave = {state.name} | ({"additive"} if len(state.inputs) >= self.most_parts else set())
        tried = [name for name in ("matern52", *GRAMMAR) if name not in leave]
        states = {name: self._moved(state, name=name) for name in tried}
        states |= self._periodic(state)
        began = self.tried("kernel", states, SHORT) | {state.name: state}
        self.record("kernel", state.name, state.evidence, 0.0)
        finalists = sorted(began, key=lambda name: began[name].evidence)[-FINALISTS:]
        finalists = list(dict.fromkeys([*finalists, state.name]))
        climbed = side_by_side(lambda name: self.climbed(began[name], LONG), finalists)
        ended = dict(zip(finalists, climbed, strict=True))
        name = max(ended, key=lambda name: ended[name].evidence)
        if ended[name].evidence < ended[state.name].evidence + WORTH:
            name = state.name
        return self.taken("kernel", name, ended[name])

    def _periodic(self, state: State) -> dict[str, State]:
        """Sums with a wave and a line along one column, which has no warp, where the target has waves along it. Their
        evidence has a penalty for the choice of the period (`Wave.penalty`)."""
        rows, D = self.rows, len(state.inputs)
        if D < WIDE:
            found = waves(rows.X, rows.columns(state.target), rows.weight)
            self.waves = {f"matern52 + linear + periodic, {wave.cycles:.3g} cycles": wave for wave in found}
        plain = lambda j: (*state.inputs[:j], None, *state.inputs[j + 1 :])
        return {name: self._moved(state, name=name, inputs=plain(wave.column)) for name, wave in self.waves.items()}

    def _moved(self, state: State, **changes: Any) -> State:
        """The candidate with another kernel, which takes over lengthscales and variance where it has them."""
        other = state.anew(**changes)
        kernel: Any = self.base(other)
        before: Any = state.model.kernel
        lengthscale, variance = before.scales or before.kernels[-1].scales
        if other.ties is not None and state.ties is None:
            lengthscale = other.ties.merged(lengthscale)
        if kernel.scales is not None:
            kernel = eqx.tree_at(lambda k: k.scales, kernel, (lengthscale, variance))
        else:  # a sum of a kernel with lengthscales, which is last, and others
            own = kernel.kernels[-1].scales
            kernel = eqx.tree_at(lambda k: k.kernels[-1].scales, kernel, (lengthscale, own[1] * variance))
        return other._replace(model=cast(Model(kernel, state.model.likelihood), np.float64))

    def heavy_tails(self, state: State) -> tuple[State, float | None]:
        """The candidate with Student-t noise of highest bound and its ν, if that exceeds the evidence under normal
        noise: rows have the weights of its noise from then on. Else the candidate as it is, and None."""
        free = state.target is not None and self.settings.target_warp == "auto"
        targets = {"heavy tails": state} | ({"heavy tails, no warp": state.anew(target=None)} if free else {})
        starts = {name: (other, False) for name, other in targets.items()}
        starts |= {f"{name}, afresh": (other, True) for name, other in targets.items()}
        self.record("tails", "normal noise", state.evidence, 0.0)
        inverse, _ = self._inverse(state)
        if state.target is None and not shows_tails(inverse, self.rows.y, self.rows.weight):
            return self.taken("tails", "normal noise", state), None
        began = time.perf_counter()
        found = dict(
            zip(starts, side_by_side(lambda start: self._with_tails(*start), list(starts.values())), strict=True)
        )
        for choice, (other, _) in found.items():
            self.record("tails", choice, other.evidence, (time.perf_counter() - began) / len(found))
        choice = max(found, key=lambda choice: found[choice][0].evidence)
        other, tails = found[choice]
        if tails is None or not other.evidence > state.evidence + WORTH:
            return self.taken("tails", "normal noise", state), None
        self.rows = self.rows._replace(weight=self.rows.weight * tails.precision)
        return self.taken("tails", choice, other), tails.degrees

    # --- candidates ---

    def base(self, state: State, variance: float | None = None) -> AbstractKernel:
        """The kernel of a candidate at its first lengthscales, and variance if none is given."""
        (lengthscale, size), D = robust(self.rows.X, self.size), self.rows.X.shape[1]
        variance, count, tied = size if variance is None else variance, D, lambda kernel: kernel
        if state.ties is not None:  # √G in place of √D
            count, tied = state.ties.num_groups, state.ties.of_kernel
            lengthscale *= float(np.sqrt(count / D))
        if state.name not in self.waves:
            return tied(named_kernel(state.name, lengthscale, variance, count))
        wave = self.waves[state.name]
        periodic, line = Periodic(np.ones(1), variance / 3, np.array([wave.period])), Linear(np.full(1, variance / 3))
        return (periodic + line).on(wave.column) + tied(Matern52(np.full(count, lengthscale), variance / 3))

    def climbed(self, state: State, iterations: int) -> State:
        """The candidate with hyperparameters of higher evidence, less what their prior says; −∞ where there is none."""
        (bound, prior, host), levels = self._objective(state), self.rows.levels
        try:
            result = maximise(bound, prior, state.model, self.rows.of(state), iterations, None, host=host)
        except FitError:
            return state.anew()
        evidence = result.bound * (1 if levels is None else levels.shape[1])  # of the mean column
        return state._replace(model=result.model, evidence=evidence + self.besides(state))

    def _objective(self, state: State) -> tuple[Any, LengthscalePrior, Any]:
        """Bound, prior, and what the host computes for a candidate, of classes for the mean of their columns."""
        prior, levels = LengthscalePrior.around(self.base(state), self.settings), self.rows.levels
        on_host = jax.default_backend() == "cpu" or levels is not None
        of_mean = None if levels is None else levels / np.sqrt(levels.shape[1])
        host = partial(evidence_on_host, levels=of_mean) if on_host else None
        return OfBound(given_evidence if on_host else marginal), prior, host

    def besides(self, state: State) -> float:
        """What the evidence of a candidate has besides the bound: the Jacobian of its warp, and the penalties of what
        was fitted to the target before, the numbers of a warp and a period."""
        penalty = self.waves[state.name].penalty if state.name in self.waves else 0.0
        return self.rows.gain(state.target) - penalty

    def tried(self, part: str, states: dict[str, State], iterations: int) -> dict[str, State]:
        """The candidates after some iterations, side by side, and recorded in their order."""

        def timed(state):
            began = time.perf_counter()
            return self.climbed(state, iterations), time.perf_counter() - began

        found = dict(zip(states, side_by_side(timed, list(states.values())), strict=True))
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

    def _with_tails(self, state: State, afresh: bool) -> tuple[State, Tails | None]:
        """The candidate under Student-t noise, with the bound on its evidence, less what ν overstates it by: from where
        it is, or from the first lengthscales and precisions that f = 0 suggests."""
        data, weight = self.rows.of(state), self.rows.weight
        prior, degrees = LengthscalePrior.around(self.base(state), self.settings), DEGREES_AT_START
        try:
            if afresh:
                squared = np.asarray(data.y, float) ** 2
                spread, degrees = best_scale_and_degrees(squared, weight, np.average(squared, weights=weight), degrees)
                first = state._replace(name="matern52")
                first = first._replace(model=Model(self.base(first, spread), Gaussian(NOISE_OF_SPREAD * spread)))
                data_first = weighted(data, expected_precisions(squared, spread, degrees))
                began = refit(self._moved(first, name=state.name).model, data_first, self.settings, prior, SHORT)
            else:
                began = refit(state.model, data, self.settings, prior, 0)
            tails = alternate(began, data, self.settings, prior, degrees, *TAILS)
        except FitError:
            return state.anew(), None
        model = tails.gaussian.model
        evidence = tails.gaussian.bound + tails.more(data) - float(prior.penalty(model.kernel))
        evidence += self.besides(state) - 0.5 * float(np.log(len(weight)))
        return state._replace(model=model, evidence=evidence if np.isfinite(evidence) else -np.inf), tails

    # --- with hyperparameters as they are ---

    def _inverse(self, state: State):
        """(K + Σ)⁻¹ and ½ log |K + Σ| of the sample."""
        N, data = len(self.rows.y), padded_to_bucket(self.rows.of(state))
        K = np.asarray(program(_covariance, "brief")(state.model, data))
        return inverse_and_half_logdet(K[:N, :N])

    def _evidence_at(self, state: State) -> float:
        """log N(y; 0, K + Σ) up to a constant; −∞ where K has no factor."""
        inverse, half_logdet = self._inverse(state)
        Y = self.rows.columns(state.target)
        value = -0.5 * np.sum(Y * (inverse @ Y)) - Y.shape[1] * half_logdet
        return float(value) if np.isfinite(value) else -np.inf


def _covariance(model: Model, data: Dataset) -> Float[Array, "N N"]:
    """K + Σ."""
    noise: Any = model.likelihood.at(data).gaussian_noise
    return model.kernel(data.X, data.X) + jax.numpy.diag(noise / jax.numpy.where(data.weight > 0, data.weight, 1))


def _ulapane(rows: Rows) -> dict[str, tuple[float, float]]:
    """The start by distances between neighbours, where there are any and the target has an order."""
    try:
        return {} if rows.levels is not None else {"ulapane": ulapane(rows.X, rows.y)}
    except ValueError:
        return {}
