"""Published findings, each judged by its margin over the spread of runs, and one word for all of an experiment."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

AGREES, DISAGREES, UNTESTED = "agrees", "disagrees", "untested"
WITHIN, ONE, EDGE = "within the spread", "one run", "rate at the edge"
MARKS = (DISAGREES, EDGE, WITHIN, ONE, AGREES, UNTESTED)  # a finding of several tables has the first of theirs
PART, UNDECIDED = "agrees in part", "undecided"
VERDICTS = (AGREES, PART, DISAGREES, UNDECIDED, UNTESTED)


class Judgement(NamedTuple):
    """What the rows say of one published finding.

    `margin` is the mean over `runs` (splits or data sets) of how far they are on the published side, in `unit`;
    negative is the other side. `spread` is its standard deviation over the runs, None of one run. Of a finding about
    several tables these are the ones of `where`, the table that supports it least. `said` has our numbers in words.
    """

    mark: str
    margin: float | None = None
    spread: float | None = None
    runs: int = 0
    unit: str = ""
    where: str = ""
    said: str = ""


def untested(said: str) -> Judgement:
    """Of a finding for which rows are missing, or that is not printed."""
    return Judgement(UNTESTED, said=said)


def within(differences: Iterable[float], tolerance: float) -> list[float]:
    """Margins of a finding that two figures are the same: the tolerance less |difference|."""
    return [tolerance - abs(float(x)) for x in differences]


def judged(margins: Mapping[str, Sequence[float]], unit: str, said: str = "", edges: Collection[str] = ()) -> Judgement:
    """A finding from the margins of each run, by table or setting ("" where there is one).

    It agrees where the mean margin is above the spread on every table, disagrees where it is below −spread on one, and
    is within the spread otherwise. One run has no spread and agrees with nothing. `edges` names best rates at the edge
    of their grid: a grid without a bracketed best is a failed run. No margins: untested.
    """
    if not margins or not all(len(of) for of in margins.values()):
        return untested(said or "rows are missing")
    every = [_one(where, np.asarray(of, float), unit) for where, of in margins.items()]
    worst = min(every, key=lambda of: (MARKS.index(of.mark), _share(of)))
    if edges:
        worst = worst._replace(mark=EDGE)
        said = f"{said}{' ' * bool(said)}At the edge of the grid: {', '.join(edges)}."
    return worst._replace(said=said)


def _one(where: str, of: np.ndarray, unit: str) -> Judgement:
    if np.isnan(of).any():
        raise ValueError(f"a margin{f' on {where}' * bool(where)} is not a number")
    margin, spread = float(of.mean()), float(of.std(ddof=1)) if len(of) > 1 else None
    mark = ONE if spread is None else AGREES if margin > spread else DISAGREES if margin < -spread else WITHIN
    return Judgement(mark, margin, spread, len(of), unit, where)


def _share(of: Judgement) -> float:
    """The margin in spreads."""
    assert of.margin is not None
    return of.margin / max(of.spread or 0.0, 1e-300)


def overall(judgements: Sequence[Judgement], cut: Collection[str] = ()) -> tuple[str, str]:
    """One word, and why.

    "agrees" takes every finding beyond the spread, at the paper's settings: `cut` names what is not. With some it
    "agrees in part". With none it "disagrees" if one is contradicted, else it is "undecided".
    """
    numbers = {mark: [i for i, of in enumerate(judgements, 1) if of.mark == mark] for mark in MARKS}
    agree, tested = numbers[AGREES], len(judgements) - len(numbers[UNTESTED])
    if not tested:
        return UNTESTED, "; ".join(of.said for of in judgements if of.said) or "no finding is printed"
    order = (AGREES, ONE, WITHIN, EDGE, DISAGREES, UNTESTED)
    listed = [f"{mark}: {', '.join(map(str, numbers[mark]))}" for mark in order if numbers[mark]]
    why = f"findings by number; {'; '.join(listed)}"
    why += f". Short of the paper's setting: {', '.join(cut)}" if cut else ""
    if len(agree) == len(judgements) and not cut:
        return AGREES, why
    return (PART if agree else DISAGREES if numbers[DISAGREES] else UNDECIDED), why
