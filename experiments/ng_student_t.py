"""Larger tables with Student-t noise, hyperparameters learned: NGD+Adam against Adam (Salimbeni et al. 2018, figure 6).

Batches of 256, γ as for NAVAL. `bound` is the standard bound of all training rows in nats, `test` the mean log density
of the test rows with the target standardised, both after the steps in `steps`; seconds are steps times `milliseconds`,
the medians of a step's time, measured in turn. NGD+Adam is a step of Adam and then a natural one on q, guarded, for
Student-t is not log-concave; "one pass" (ours) makes both from one point. Each does so at every learning rate of Adam
that is named after it.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pseudopoint.data import Dataset
from pseudopoint.likelihoods import StudentT
from pseudopoint.posteriors import Model
from pseudopoint.reproduce import Judgement, judged

from ._minibatches import (
    LEARNING,
    at_rates,
    best_rate,
    both,
    bound_height,
    course,
    draw_bounds,
    in_one_session,
    margins,
    share_ahead,
    sooner,
    times_at_rates,
    unbracketed,
)
from ._rows import grouped, numbers, product, shown
from .settings import head, parts, start

SOURCE = "Salimbeni, Eleftheriadis and Hensman 2018, figure 6"
PUBLISHED = (
    "On four larger tables NGD+Adam finds the solution more quickly than Adam, or one that Adam does not find (no "
    "number is printed).",
    "A significant improvement on KIN8NM, POWER and YEAR.",
)
CUT = {
    "splits": "3, for time. The paper prints no number; with --paper there are 5.",
    "rates": "The paper prints none: five, from 0.001 to 0.1.",
    "": "Seconds are processor time of all cores, not by the clock. Natural steps are guarded, which is ours. YEAR is "
    "not to be had: kin40k is there in its place. The paper's text does not name its fourth table: protein is our "
    "choice. It prints no number of steps: 5000, as in its figures before.",
}
NOTES = (
    "Why NGD+Adam is later than Adam on power is unknown: at a rate three times its best one it is sooner, and ends 8 "
    "nats below Adam, 3 above and 27 above on the three splits. Steps were timed when the first three rates ran; a "
    "step takes as long at any rate."
)
TABLES = ("kin8nm", "power", "protein", "kin40k")
IMPROVED = ("kin8nm", "power", "kin40k")  # kin40k in place of YEAR


@dataclass(frozen=True)
class Config:
    """The paper's setting; Student's scale starts at 1, with 3 degrees of freedom, both learned."""

    splits: int = 5
    rows: int | None = None
    inducing: int = 100
    batch: int = 256
    steps: int = 5000
    ramp: tuple[float, float, int] = (1e-4, 0.1, 40)
    rates: tuple[float, ...] = (0.1, 0.03, 0.01, 0.003, 0.001, 3e-4)
    rounds: int = 7
    tables: tuple[str, ...] = TABLES
    rules: tuple[str, ...] = LEARNING


FULL = Config(splits=3, rates=(0.1, 0.03, 0.01, 0.003, 0.001))
QUICK = Config(1, 1000, 20, 64, 150, rates=(0.01,), rounds=2, tables=("power",), rules=("NGD+Adam", "Adam"))
COUNTS = ("splits", "tables", "rates")


def cases(config: Config) -> list[dict[str, Any]]:
    """Every rule on every table and split."""
    return product(table=config.tables, split=range(config.splits), rule=at_rates(config))


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """Bound and test log density along the course."""
    times = times_of(folder, case["table"], config)
    train, test, model = problem(folder, case["table"], case["split"], config.rows, config.inducing)
    look, rule = partial(both, test=test), at_rates(config)[case["rule"]]
    figures, seen, _ = course(*rule, model, train, config, case["split"], look)
    bound, density = map(list, zip(*seen, strict=True))
    return figures | {"bound": bound, "test": density, "milliseconds": times}


@lru_cache(maxsize=1)  # cases that follow each other share it
def problem(folder: Path, table: str, split: int, rows: int | None, M: int) -> tuple[Dataset, Dataset, Model]:
    """Rows for training and for testing, and the start."""
    train, test, _ = parts(folder, table, split)
    train = head(train, rows)
    return train, test, start(train, StudentT(1.0, 3.0), M)


@lru_cache(maxsize=1)
def times_of(folder: Path, table: str, config: Config) -> dict[str, float]:
    """Milliseconds of a step, by rule."""
    train, _, model = problem(folder, table, 0, config.rows, config.inducing)
    return times_at_rates(model, train, config)


def table(rows: list[dict]) -> list[list[str]]:
    """Medians over splits in the end, a line a table and rule."""
    rows, at = in_one_session(rows), shown(rows[0]["steps"], (100, 1000))
    lines = [["table", "rule", *(f"bound after {t}" for t in at), "test log density in the end", "ms a step"]]
    lines[0] += ["rejected", "splits"]
    for (name, rule), of in grouped(rows, "table", "rule").items():
        bounds, tests = np.array([bound_height(row) for row in of]), [numbers(row["test"])[-1] for row in of]
        cells = [f"{bound:.1f}" for bound in np.median(bounds[:, list(at.values())], axis=0)]
        cells.append(f"{np.median(tests):.4f} ({min(tests):.4f} to {max(tests):.4f})")
        cells.append(f"{median(row['milliseconds'][rule] for row in of):.2f}")
        lines.append([name, rule, *cells, str(sum(row["rejected"] for row in of)), str(len(of))])
    return lines


def figure(rows: list[dict]) -> Figure:
    """The bound over seconds at each rule's best rate, a line a split; a panel a table."""
    best = []
    for of in grouped(in_one_session(rows), "table").values():
        names = {best_rate(of, rule) for rule in LEARNING}
        best += [row for row in of if row["rule"] in names]
    return draw_bounds(best, sorted({row["rule"] for row in best}))


def verdict(rows: list[dict]) -> list[Judgement]:
    """Once γ has risen (twice its steps), is NGD+Adam above Adam at the same time: on every table on the way or, as the
    paper allows, in the end; and both on the three that improve significantly?"""
    rows, said = in_one_session(rows), "It takes NGD+Adam and Adam on one split of each table."
    every = against_adam(rows, either=True) if {row["table"] for row in rows} >= set(TABLES) else judged({}, "", said)
    some = [row for row in rows if row["table"] in IMPROVED]
    return [every, against_adam(some) if {row["table"] for row in some} == set(IMPROVED) else judged({}, "", said)]


def against_adam(rows: list[dict], either: bool = False) -> Judgement:
    """NGD+Adam against Adam, each at the rate where its bound ends highest on the table. Of a table both margins
    count, or only the one that is larger beside its range."""
    found, text, edges, after = {}, [], [], 2 * rows[0]["config"]["ramp"][2]
    for (table,), of in grouped(rows, "table").items():
        mine, adam = best_rate(of, "NGD+Adam"), best_rate(of, "Adam")
        by = {(row["rule"], row["split"]): row for row in of}
        pairs = [(by[mine, s], by[adam, s]) for rule, s in by if rule == mine and (adam, s) in by]
        if not pairs:
            return judged({}, "", f"{table} has no split with NGD+Adam and Adam at their best rates.")
        parts = {f"{table}, {part}": values for part, values in margins(pairs, bound_height, after).items()}
        spreads = lambda name, of=parts: np.mean(of[name]) / max(np.ptp(of[name]), 1e-300)
        found |= {name: parts[name] for name in ([max(parts, key=spreads)] if either else parts)}
        edges += [f"{table}: {edge}" for edge in unbracketed(of, "NGD+Adam", "Adam")]
        above = np.median([bound_height(a)[-1] - bound_height(b)[-1] for a, b in pairs])
        text.append(
            f"{table}: {mine} takes {sooner(pairs, bound_height):.2g} of the time of {adam} to the level of both, is "
            f"above it at {100 * share_ahead(pairs, bound_height, after):.0f} % of the marks, in the end by "
            f"{above:.4g} nats"
        )
    return judged(found, "shares of the climb", f"{'; '.join(text)}.", edges)
