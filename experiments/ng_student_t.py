"""Larger tables with Student-t noise, hyperparameters learned: NGD+Adam against Adam (Salimbeni et al. 2018, figure 6).

Batches of 256, γ as for NAVAL. `bound` is the standard bound of all training rows in nats, `test` the mean log density
of the test rows with the target standardised, both after the steps in `steps`; seconds are steps times `milliseconds`,
the medians of a step's time, measured in turn. NGD+Adam is a step of Adam at 0.01 and then a natural one on q, guarded,
for Student-t is not log-concave; "one pass" (ours) makes both from one point; "Adam 0.01" is Adam alone at that rate.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from pseudopoint.data import Dataset
from pseudopoint.likelihoods import StudentT
from pseudopoint.posteriors import Model

from .ng_joint import height
from .ng_minibatch import ahead, course, draw_courses, marks, numbers, rows_of
from .ng_naval import OURS, at_rates, both, times_at_rates
from .settings import parts, start

SOURCE = "Salimbeni, Eleftheriadis and Hensman 2018, figure 6"
PUBLISHED = (
    "On four larger tables NGD+Adam finds the solution more quickly, or one that Adam does not find; a significant "
    "improvement on KIN8NM, POWER and YEAR. No number is printed."
)
CUT = (
    "YEAR is not to be had: kin40k is there in its place. The paper's text does not name its fourth table: protein is "
    "our choice. It prints neither steps (5000, as in its figures before) nor rates of Adam, nor splits: 3 here."
)
TABLES = ("kin8nm", "power", "protein", "kin40k")


@dataclass(frozen=True)
class Config:
    """The paper's setting; Student's scale starts at 1, with 3 degrees of freedom, both learned."""

    splits: int = 3
    rows: int | None = None
    inducing: int = 100
    batch: int = 256
    steps: int = 5000
    ramp: tuple[float, float, int] = (1e-4, 0.1, 40)
    rate: float = 0.01
    rates: tuple[float, ...] = (0.1, 0.01, 0.001)
    rounds: int = 7
    tables: tuple[str, ...] = TABLES
    ours: tuple[str, ...] = OURS


FULL = Config()
QUICK = Config(1, 1000, 20, 64, 150, rates=(0.01,), rounds=2, tables=("power",), ours=OURS[:1])
COUNTS = ("splits", "tables")


def cases(config: Config) -> list[dict[str, Any]]:
    """Every rule on every table and split."""
    return [
        {"table": table, "split": split, "rule": rule}
        for table in config.tables
        for split in range(config.splits)
        for rule in at_rates(config)
    ]


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """Bound and test log density along the course."""
    times = times_of(folder, case["table"], config)
    train, test, model = problem(folder, case["table"], case["split"], config.rows, config.inducing)
    at, rows = marks(config.steps), rows_of(train, config.batch, config.steps, case["split"])
    seen, _, undone = course(*at_rates(config)[case["rule"]], model, train, rows, at, partial(both, test=test))
    bound, density = map(list, zip(*seen, strict=True))
    return {"steps": at, "bound": bound, "test": density, "undone": undone, "milliseconds": times}


@lru_cache(maxsize=1)  # cases that follow each other share it
def problem(folder: Path, table: str, split: int, rows: int | None, M: int) -> tuple[Dataset, Dataset, Model]:
    """Rows for training and for testing, and the start."""
    train, test, _ = parts(folder, table, split)
    train = jax.tree.map(lambda x: x[:rows], train)
    return train, test, start(train, StudentT(1.0, 3.0), M)


@lru_cache(maxsize=1)
def times_of(folder: Path, table: str, config: Config) -> dict[str, float]:
    """Milliseconds of a step, by rule."""
    train, _, model = problem(folder, table, 0, config.rows, config.inducing)
    return times_at_rates(model, train, config)


def table(rows: list[dict]) -> list[list[str]]:
    """Medians over splits in the end, a line a table and rule."""
    steps = rows[0]["steps"]
    shown = sorted({max(s for s in steps if s <= t) for t in (100, 1000, steps[-1])})
    head = ["table", "rule", *(f"bound after {t}" for t in shown), "test log density in the end", "ms a step"]
    lines = [[*head, "undone", "splits"]]
    for name, rule in dict.fromkeys((row["table"], row["rule"]) for row in rows):
        of = [row for row in rows if (row["table"], row["rule"]) == (name, rule)]
        bounds, tests = np.array([height(row) for row in of]), [numbers(row["test"])[-1] for row in of]
        cells = [f"{np.median(bounds[:, steps.index(t)]):.1f}" for t in shown]
        cells.append(f"{np.median(tests):.4f} ({min(tests):.4f} to {max(tests):.4f})")
        cells.append(f"{median(row['milliseconds'][rule] for row in of):.2f}")
        lines.append([name, rule, *cells, str(sum(row["undone"] for row in of)), str(len(of))])
    return lines


def figure(rows: list[dict]) -> Figure:
    """The bound over seconds, a line a split; a panel a table."""
    names, colours = (list(dict.fromkeys(row[key] for row in rows)) for key in ("table", "rule"))
    picture = Figure(figsize=(1 + 4 * len(names), 4), layout="constrained")
    for axes, name in zip(picture.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        of = [row for row in rows if row["table"] == name]
        draw_courses(axes, of, "bound", colours, alpha=0.7)
        low, high = min(row["bound"][0] for row in of), max(height(row).max() for row in of)
        limits = low - 0.1 * (high - low), high + 0.05 * (high - low)
        axes.set(title=name, ylabel="bound of all rows, nats", ylim=limits)
        axes.legend(fontsize="small", loc="lower right")
    return picture


def verdict(rows: list[dict]) -> tuple[str, str]:
    """From the end of γ's rise on, is NGD+Adam above Adam at its best rate at the same time, on every table?"""
    text, shares = [], []
    for name in dict.fromkeys(row["table"] for row in rows):
        by = {(row["rule"], row["split"]): row for row in rows if row["table"] == name}
        adam = sorted({rule for rule, _ in by if rule.startswith("Adam")})
        splits = [s for rule, s in by if rule == "NGD+Adam" and all((other, s) in by for other in adam)]
        if not adam or not splits:
            continue
        end = lambda rule: float(np.median([height(by[rule, s])[-1] for s in splits]))  # noqa: B023
        best, after = max(adam, key=end), rows[0]["config"]["ramp"][2]
        share = np.concatenate([ahead(by["NGD+Adam", s], by[best, s], height, after) for s in splits])
        shares.append(float(np.mean(share)))
        text.append(f"{name}: above {best} at {100 * shares[-1]:.0f} % of the marks, in the end")
        text[-1] += f" {end('NGD+Adam'):.5g} against {end(best):.5g}"
    if not shares:
        return "untested", "It takes NGD+Adam and Adam on one split of a table."
    why = f"The bound of NGD+Adam against Adam at its best rate, at equal time. {'; '.join(text)}."
    return ("agrees" if min(shares) >= 0.9 else "disagrees"), why
