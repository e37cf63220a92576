"""The choice of start, warps and kernel by the evidence of a sample of rows.

The exact log evidence of a few hundred rows takes milliseconds, and orders kernels and warps as the density of new rows
does, without holding rows back. So a search goes through the parts of a model in turn. In each it tries the
alternatives to what it has, from the hyperparameters where that ended, and keeps the one of the highest evidence. A
warp of the target counts with its Jacobian, Σ wᵢ log w′(yᵢ), so that the evidence is that of the same numbers y, and
with a penalty for the numbers that were fitted to them.

Where no Gaussian likelihood describes the target, the evidence is that of a regression in its place (`response`).

The sample depends on the rows and the seed alone: not on their order, the order of columns, or units.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from ..bounds import best_scale_and_degrees, expected_precisions
from ..compilation import program
from ..data import Dataset
from ..likelihoods import Gaussian
from ..linalg import inverse_and_half_logdet
from ..optimise.fullbatch import FitError
from ..params import cast
from ..posteriors import Model
from ..processes import side_by_side
from ..starts.hyperparameters import named_kernel, robust, ulapane
from ..starts.periods import waves
from ..starts.warps import FEW_VALUES, Warps, input_warps, target_warps
from .candidates import Found, Sample, State, sample_of
from .categories import Ties, occam
from .objectives import curvature, padded_to_bucket
from .prior import LengthscalePrior
from .race import FIRST, LONG, SHORT, WORTH, Race, functions_of, wave_and_line
from .refit import refit
from .settings import EXACT_ROWS, Fitted, HeavyTails
from .tails import DEGREES_AT_START, Tails, alternate, shows_tails, weighted

SAMPLE = {"balanced": 600, "thorough": 1500}  # rows
FINALISTS = 2  # kernels that are fitted for longer, and warps of a target that are fitted at all
# The last kernels are compared by more rows: the sample does not tell a kernel of many parts from a simple one.
FINALISTS_OF_MORE, MANY_PARTS = 3, "additive"  # so many of them, and one that is always among them
TIMES, COLUMNS = 2.0, 16  # rows, in units of the sample; fewer beyond so many columns
LEAST = 1.5  # in the same units: fewer rows tell too little that is new
MORE_ROWS = "kernel, more rows"  # the part in the table of trials
SCALES = (1.0, 0.3, 0.1)  # of the first lengthscales, in units of those of the robust start
FIRST_ROUNDS, MORE_ROUNDS, ITERATIONS = 2, 4, 6  # under Student-t noise, of all starts and of the best; of a round
NOISE_OF_SPREAD = 0.1  # its variance there at the start
NOTICED = 0.02  # nats a row that it gains, from which outliers may have misled what was chosen before
WIDE = 50  # columns from which a search of each by itself, and a kernel with a part for each, would take minutes
WIDE_AND_LONG = 25  # from which such a kernel would, where there are too many rows for the exact method
FEW_COLUMNS = 16  # of many values, which may have a function each in a table of so many columns (decision 0095)
LOG = logging.getLogger(__name__)
# Kernels that a search tries beside Matérn 5/2, with which it begins.
GRAMMAR = ("matern32", "matern12", "rbf", "rational_quadratic", "additive", "orthogonal_additive", "matern52_linear")
# Products of functions of columns need more points than a sparse fit has, and grow where rows are few. So this kernel
# is tried for exact fits alone, and has to gain so many nats for each row of the sample (decision 0086).
PRODUCTS, CAUTION = "orthogonal_additive", 0.05


def search(
    data: Dataset,
    settings: Any,
    zeros: Float[np.ndarray, " D"],
    zero: float,
    warp_target: bool,
    levels: Float[np.ndarray, "C K"] | None = None,
    tails: bool = False,
    ties: Ties | None = None,
    exact: bool = True,
) -> Found:
    """The parts that the settings leave open, chosen by the evidence of a sample of `data`, which is standardised.

    `zeros` [D] and `zero` are the places of 0 of the user's units in the columns and in the target. Without
    `warp_target` the target stays as it is. With `levels`, it numbers their rows, and K functions describe it. With
    `tails` Student-t noise is tried in the end; where it gains much, columns and kernel are chosen again, by rows of
    its weights. With `ties` columns of categories may have one lengthscale each. `exact` says that the exact method
    fits. Raises FitError where no start has an evidence, or where a warp that is asked for does not suit.
    """
    if not np.min(np.asarray(data.y)) > zero:  # one row of all is enough, whether the sample has it or not
        zero = np.inf
    rows_of = lambda size: Sample.of_rows(sample_of(data, size, settings.seed), zeros, zero, levels)
    count = SAMPLE[settings.effort]
    most, parts = _most_rows(count, data.X.shape[1]), WIDE if len(data) <= EXACT_ROWS else WIDE_AND_LONG
    more = rows_of(most) if min(most, len(data)) >= LEAST * count else None
    run = _Search(Race(rows_of(count), settings), more, parts, exact)
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
    heavy, target = None, state.target
    if tails:
        state, heavy = run.heavy_tails(state)
    if heavy is not None and (heavy.gain > NOTICED or state.target is not target):
        state = run.warp_inputs(state) if warp_inputs else state
        state = run.choose_kernel(state) if settings.kernel == "auto" else state
    race = run.race
    return Found(state.name, race.base(state), state.model, state.inputs, state.target, tuple(race.trials), heavy)


def _most_rows(count: int, D: int) -> int:
    """Rows by which the last kernels are compared, which cost their square for each column."""
    return int(TIMES * count * min(1.0, np.sqrt(COLUMNS / D)))


class _Search:
    """Candidates of a sample, the rows by which the last kernels are compared, if there are more, the number of columns
    from which none has a part of its own, and whether the fit is exact."""

    def __init__(self, race: Race, more: Sample | None, most_parts: int, exact: bool = True):
        self.race, self.settings, self.more = race, race.settings, more
        self.most_parts, self.exact = most_parts, exact
        # A column of few values, such as one of 0 and 1, has no warps; a candidate for another costs all columns.
        self.many = [d for d, x in enumerate(race.rows.X.T) if len(np.unique(x)) >= FEW_VALUES]
        self.wide = len(self.many) * race.rows.X.shape[1] >= WIDE**2

    # --- the parts ---

    def start(self) -> State:
        """The best of several first lengthscales."""
        rows, settings = self.race.rows, self.settings
        name, D = "matern52" if settings.kernel == "auto" else settings.kernel, rows.X.shape[1]
        lengthscale, variance = robust(rows.X, self.race.size)
        starts = {f"robust × {scale:g}": (scale * lengthscale, variance) for scale in SCALES} | _ulapane(rows)
        noise, as_they_are = Gaussian(settings.initial_noise), (None,) * D
        states = {
            choice: State(name, cast(Model(named_kernel(name, *numbers, D), noise), np.float64), as_they_are, None)
            for choice, numbers in starts.items()
        }
        self.race.climbed(next(iter(states.values())), 1)  # which compiles the programs that all read
        choice, state = self.race.best("start", states, FIRST)
        if not np.isfinite(state.evidence):
            raise FitError("the log evidence of a sample of the rows is not finite at any start")
        return self.race.taken("start", choice, self.race.climbed(state, LONG))

    def share(self, state: State, ties: Ties) -> State:
        """One lengthscale for each column of categories in place of one for each of its 0/1 columns, where that has the
        higher evidence with these lengthscales integrated out: of their maxima, that of more numbers is higher."""
        now, other = "one lengthscale a category", "one lengthscale a column"
        found = self.race.tried("categories", {now: state, other: self.race.moved(state, ties=ties)}, LONG)
        evidence = {choice: each.evidence - self._occam(each, ties) for choice, each in found.items()}
        trials = self.race.trials
        trials[-2:] = [trial._replace(evidence=evidence[trial.choice]) for trial in trials[-2:]]
        choice = other if evidence[other] > evidence[now] + WORTH else now
        self.race.taken("categories", choice, found[choice]._replace(evidence=evidence[choice]))
        return found[choice]

    def _occam(self, state: State, ties: Ties) -> float:
        """What the evidence at the maximum is above that with the lengthscales of categories integrated out."""
        bound, prior, host = self.race.objective(state)
        places = np.flatnonzero(ties.shared if state.ties else ties.shared[list(ties.groups)])
        try:
            H = curvature(bound, prior, state.model, self.race.rows.of(state), places, host)
        except FitError:
            return np.inf
        levels = self.race.rows.levels  # of columns, of whose mean the curvature is
        return occam(H if levels is None else levels.shape[1] * H, self.settings.lengthscale_prior)

    def warp_inputs(self, state: State) -> State:
        """No warps, the same kind of warp for all columns, or for each column the one of highest evidence."""
        offered = input_warps(self.race.rows.X, self.race.rows.weight, self.race.rows.zeros)
        kinds = sorted({kind for warps in offered for kind in warps})
        alike = {kind: state.anew(inputs=tuple(warps.get(kind) for warps in offered)) for kind in kinds}
        if self.settings.input_warp != "auto":
            _refuse_no_column(self.settings.input_warp, kinds)
            return self.race.only("inputs", self.settings.input_warp, alike, state)
        now = "none" if not any(state.inputs) else "as before"
        alike |= {"none": state.anew(inputs=(None,) * len(offered))} if now != "none" else {}
        choice, state = self.race.changed("inputs", now, state, alike)
        by_column = state.anew(inputs=state.inputs if self.wide else self._by_column(state, offered))
        if by_column.inputs != state.inputs:
            choice, state = self.race.changed("inputs", choice, state, {"by column": by_column})
        return self.race.taken("inputs", choice, state)

    def _by_column(self, state: State, offered: list[dict[str, Any]]) -> Warps:
        """For each column the warp of highest evidence with all else as it is, if that is worth the change."""
        now, chosen = self._evidence_at(state), list(state.inputs)
        others = [
            (j, warp) for j, warps in enumerate(offered) for warp in (None, *warps.values()) if warp is not chosen[j]
        ]
        with_one = lambda j, warp: state._replace(inputs=(*state.inputs[:j], warp, *state.inputs[j + 1 :]))
        values = side_by_side(lambda other: self._evidence_at(with_one(*other)), dict(enumerate(others)))
        most = dict.fromkeys(range(len(chosen)), now + WORTH)
        for (j, warp), value in zip(others, values.values(), strict=True):
            most[j], chosen[j] = (value, warp) if value > most[j] else (most[j], chosen[j])
        return tuple(chosen)

    def warp_target(self, state: State) -> State:
        """The warp of the target of highest evidence, of those that are best with hyperparameters as they are."""
        inverse, _ = self._inverse(state)
        rows = self.race.rows
        offered = target_warps(rows.y, rows.weight, rows.zero, inverse)
        states = {name: state.anew(target=warp) for name, (warp, _) in offered.items()}
        word = self.settings.target_warp
        if word not in ("auto", *states):
            need = " needs a target above 0 in every row" if word == "log" else " has no finite slope in some row"
            raise FitError(f"target_warp={word!r}{need}: use another warp, or target_warp='none'")
        if word != "auto":
            return self.race.only("target", word, states, state)
        first = sorted(offered, key=lambda name: offered[name][1])[-FINALISTS:]
        now = "none" if state.target is None else "as before"
        choice, state = self.race.changed("target", now, state, {name: states[name] for name in first if name != now})
        return self.race.taken("target", choice, state)

    def choose_kernel(self, state: State) -> State:
        """The kernel of highest evidence: all for a few iterations, then the best of them for more."""
        too_many = len(state.inputs) >= self.most_parts  # for a function of each
        leave = {state.name} | ({"additive", PRODUCTS} if too_many else set()) | (set() if self.exact else {PRODUCTS})
        names = ["matern52", *GRAMMAR]
        if too_many and 0 < len(self.many) <= FEW_COLUMNS:
            names.append(f"matern52 + matern32 of {len(self.many)} columns")
            self.race.sums[names[-1]] = functions_of(self.many)
        states = {name: self.race.moved(state, name=name) for name in names if name not in leave}
        states |= self._periodic(state)
        began = self.race.tried("kernel", states, SHORT) | {state.name: state}
        self.race.record("kernel", state.name, state.evidence, 0.0)
        if self.more is not None:
            name, chosen = self._by_more_rows(began, state.name)
            # Numbers and evidence of the sample, as all other candidates have.
            return self.race.taken("kernel", name, self.race.climbed(chosen, SHORT))
        name, chosen = self._longest(began, state.name, LONG)
        return self.race.taken("kernel", name, chosen)

    def _by_more_rows(self, began: dict[str, State], now: str) -> tuple[str, State]:
        """The best by more rows, of the best by the sample, the kernel of many parts, and the one that there is."""
        names = sorted(began, key=self._score(began, self.race.rows))[-FINALISTS_OF_MORE:]
        names += [name for name in (MANY_PARTS, now) if name in began]
        states = {name: began[name] for name in dict.fromkeys(names)}
        return self._longest(self.race.tried(MORE_ROWS, states, SHORT, self.more), now, SHORT, self.more)

    def _longest(
        self, states: dict[str, State], now: str, iterations: int, rows: Sample | None = None
    ) -> tuple[str, State]:
        """The best of the finalists after more iterations, if that is worth a change of the kernel that there is."""
        rows = rows or self.race.rows
        best = sorted(states, key=self._score(states, rows))[-FINALISTS:]
        last = {name: states[name] for name in [*best, now]}
        ended = side_by_side(lambda state: self.race.climbed(state, iterations, rows), last)
        score = self._score(ended, rows)
        name = max(ended, key=score)
        name = name if score(name) >= score(now) + WORTH else now
        return name, ended[name]

    def _score(self, states: dict[str, State], rows: Sample) -> Callable[[str], float]:
        """What kernels are compared by: the evidence, less what the one of products has to gain."""
        least = CAUTION * float(np.sum(rows.weight))
        return lambda name: states[name].evidence - (least if name == PRODUCTS else 0.0)

    def _periodic(self, state: State) -> dict[str, State]:
        """Sums with a wave and a line along one column, which has no warp, where the target has waves along it. Their
        evidence has a penalty for the choice of the period (`Wave.penalty`)."""
        rows = self.race.rows
        found = [] if self.wide else waves(rows.X, rows.columns(state.target), rows.weight)
        named = {f"matern52 + linear + periodic, {wave.cycles:.3g} cycles": wave for wave in found}
        named.pop(state.name, None)
        # That of the candidate stays, whether the same rows of other weights show it or not.
        self.race.sums |= {name: wave_and_line(wave) for name, wave in named.items()}
        plain = lambda j: (*state.inputs[:j], None, *state.inputs[j + 1 :])
        along = lambda name, j: self.race.moved(state, name=name, inputs=plain(j))
        return {name: along(name, wave.column) for name, wave in named.items()}

    def heavy_tails(self, state: State) -> tuple[State, HeavyTails | None]:
        """The candidate with Student-t noise of highest bound and what was found, if that exceeds the evidence under
        normal noise: rows have the weights of its noise from then on. Else the candidate as it is, and None."""
        free = state.target is not None and self.settings.target_warp == "auto"
        targets = {"heavy tails": state} | ({"heavy tails, no warp": state.anew(target=None)} if free else {})
        starts = {name: (other, False) for name, other in targets.items()}
        starts |= {f"{name}, afresh": (other, True) for name, other in targets.items()}
        self.race.record("tails", "normal noise", state.evidence, 0.0)
        (inverse, _), rows = self._inverse(state), self.race.rows
        # A warp may have taken outliers in, so that the target without it tells too.
        columns = [rows.y] if state.target is None else [rows.y, state.target(rows.y)]
        if not any(shows_tails(inverse, y, rows.weight) for y in columns):
            return self.race.taken("tails", "normal noise", state), None
        LOG.info("search: tails (%s)", ", ".join(starts))
        began = time.perf_counter()
        found = side_by_side(lambda start: self._with_tails(*start), starts)
        best = sorted(found, key=lambda choice: found[choice][0].evidence)[-FINALISTS:]
        found |= side_by_side(lambda ended: self._further(*ended), {choice: found[choice] for choice in best})
        for choice, (other, _) in found.items():
            self.race.record("tails", choice, other.evidence, (time.perf_counter() - began) / len(found))
        choice = max(found, key=lambda choice: found[choice][0].evidence)
        other, tails = found[choice]
        if tails is None or not other.evidence > state.evidence + WORTH:
            return self.race.taken("tails", "normal noise", state), None
        same = other.target is state.target  # one warp for both kinds of noise
        normal = state if same else self.race.climbed(state.anew(target=other.target), SHORT)
        gain = (other.evidence - normal.evidence) / float(np.sum(rows.weight))
        self.race.rows = rows._replace(weight=rows.weight * tails.precision)
        if self.more is not None:
            precision = tails.of_new_rows(self.more.of(other))
            self.more = self.more._replace(weight=self.more.weight * precision)
        return self.race.taken("tails", choice, other), HeavyTails(tails.degrees, gain)

    def _with_tails(self, state: State, afresh: bool) -> tuple[State, Tails | None]:
        """Under Student-t noise from where it is, or from first lengthscales and the precisions that f = 0 suggests."""
        data, weight = self.race.rows.of(state), self.race.rows.weight
        prior, degrees = LengthscalePrior.around(self.race.base(state), self.settings), DEGREES_AT_START
        try:
            if afresh:
                squared = np.asarray(data.y, float) ** 2
                spread, degrees = best_scale_and_degrees(squared, weight, np.average(squared, weights=weight), degrees)
                first = state._replace(name="matern52")
                first = first._replace(model=Model(self.race.base(first, spread), Gaussian(NOISE_OF_SPREAD * spread)))
                data_first = weighted(data, expected_precisions(squared, spread, degrees))
                began = refit(self.race.moved(first, name=state.name).model, data_first, self.settings, prior, SHORT)
            else:
                began = refit(state.model, data, self.settings, prior, 0)
        except FitError:
            return state.anew(), None
        return self._alternated(state, began, degrees, FIRST_ROUNDS)

    def _further(self, state: State, tails: Tails | None) -> tuple[State, Tails | None]:
        """More rounds from where a start ended."""
        return (state, tails) if tails is None else self._alternated(state, tails.gaussian, tails.degrees, MORE_ROUNDS)

    def _alternated(self, state: State, began: Fitted, degrees: float, rounds: int) -> tuple[State, Tails | None]:
        """After so many rounds from a Gaussian fit, with the bound on the evidence, less what ν overstates it by."""
        data, weight = self.race.rows.of(state), self.race.rows.weight
        prior = LengthscalePrior.around(self.race.base(state), self.settings)
        try:
            tails = alternate(began, data, self.settings, prior, degrees, rounds, ITERATIONS)
        except FitError:
            return state.anew(), None
        if not np.isfinite(tails.left_out(data)):
            return state.anew(), None
        model = tails.gaussian.model
        evidence = tails.gaussian.bound + tails.more(data) - float(prior.penalty(model.kernel))
        evidence += self.race.besides(state, self.race.rows) - 0.5 * float(np.log(len(weight)))
        return state._replace(model=model, evidence=evidence if np.isfinite(evidence) else -np.inf), tails

    # --- with hyperparameters as they are ---

    def _inverse(self, state: State):
        """(K + Σ)⁻¹ and ½ log |K + Σ| of the sample."""
        N, data = len(self.race.rows.y), padded_to_bucket(self.race.rows.of(state))
        K = np.asarray(program(_covariance, "brief")(state.model, data))
        return inverse_and_half_logdet(K[:N, :N])

    def _evidence_at(self, state: State) -> float:
        """log N(y; 0, K + Σ) up to a constant; −∞ where K has no factor."""
        inverse, half_logdet = self._inverse(state)
        Y = self.race.rows.columns(state.target)
        value = -0.5 * np.sum(Y * (inverse @ Y)) - Y.shape[1] * half_logdet
        return float(value) if np.isfinite(value) else -np.inf


def _refuse_no_column(word: str, kinds: list[str]) -> None:
    """FitError where no column may have the warp that is asked for."""
    if word not in kinds:
        log = " that are all above 0 and span more than a factor of five" if word == "log" else ""
        raise FitError(
            f"input_warp={word!r} needs a column of {FEW_VALUES} different values or more{log}, and there is none: use "
            "another warp, or input_warp='none'"
        )


def _covariance(model: Model, data: Dataset) -> Float[Array, "N N"]:
    """K + Σ."""
    noise: Any = model.likelihood.at(data).gaussian_noise
    return model.kernel(data.X, data.X) + jax.numpy.diag(noise / jax.numpy.where(data.weight > 0, data.weight, 1))


def _ulapane(rows: Sample) -> dict[str, tuple[float, float]]:
    """The start by distances between neighbours, where there are any and the target has an order."""
    try:
        return {} if rows.levels is not None else {"ulapane": ulapane(rows.X, rows.y)}
    except ValueError:
        return {}
