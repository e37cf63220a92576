"""Minibatches of 256, hyperparameters and Z learned: NGD+Adam against Adam, against GD (Salimbeni et al. 2018, fig. 4).

`bound` is the standard bound of all rows, in nats, after the steps in `steps`. NGD+Adam is a step of Adam on the
hyperparameters and then a natural one on q, made from where it arrived; "one pass" (ours) makes both from one point.
Every learning rate is the largest of 1, 0.1, …, 1e-6 that is stable on split 0, as in `ng_minibatch`, which also says
what seconds are. Natural steps are guarded where the likelihood is not log-concave (Student-t).
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import optax
from matplotlib.figure import Figure

from pseudopoint.data import Dataset
from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.optimisers import Alternate, NaturalGradient, Optax, log_linear
from pseudopoint.posteriors import Model

from .ng_minibatch import (
    LIKELIHOODS,
    Rule,
    ahead,
    all_rows,
    course,
    draw_courses,
    largest_stable,
    marks,
    numbers,
    rows_of,
    step_times,
)
from .settings import start, training_part

SOURCE = "Salimbeni, Eleftheriadis and Hensman 2018, figure 4"
PUBLISHED = (
    "NGD+Adam outperforms Adam and GD in wall-clock time when hyperparameters and q are learned together, on ENERGY "
    "(Gaussian), BOSTON (Student-t) and PIMA (Bernoulli)."
)
CUT = ""
TABLES = tuple(LIKELIHOODS)
OTHERS = ("Adam", "GD")


@dataclass(frozen=True)
class Config:
    """The paper's setting; the noise of the likelihoods, which it does not print, is 1, the default of its library."""

    splits: int = 5
    inducing: int = 100
    batch: int = 256
    steps: int = 5000
    ramp: tuple[float, float, int] = (1e-4, 0.1, 5)
    rates: tuple[float, ...] = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
    search_steps: int = 1000
    rounds: int = 7
    tables: tuple[str, ...] = TABLES
    rules: tuple[str, ...] = ("NGD+Adam", "one pass", *OTHERS)


FULL = Config()
QUICK = Config(1, 20, 64, 100, (1e-4, 0.1, 5), (0.1, 1e-2), 20, 2, ("pima",), ("NGD+Adam", "Adam"))
COUNTS = ("splits", "tables", "rules")


def cases(config: Config) -> list[dict[str, Any]]:
    """Every rule on every table and split."""
    return [
        {"table": table, "split": split, "rule": rule}
        for table in config.tables
        for split in range(config.splits)
        for rule in config.rules
    ]


@cache  # another stepper is another program
def rules(ramp: tuple[float, float, int]) -> dict[str, Rule]:
    """By name, with learning rates in their states."""
    with_rate = lambda method: optax.inject_hyperparams(method)(1.0)
    gamma = log_linear(*ramp)
    first = Optax(with_rate(optax.adam), (lambda m: m.posterior.q,), False)
    return {
        "NGD+Adam": Rule(Alternate(first, NaturalGradient(gamma, tight=False)), MeanPrecision),
        "one pass": Rule(NaturalGradient(gamma, with_rate(optax.adam), tight=False), MeanPrecision),
        "Adam": Rule(Optax(with_rate(optax.adam), (), False), MeanChol),
        "GD": Rule(Optax(with_rate(optax.sgd), (), False), MeanChol),
    }


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """The bound along the course."""
    table, rule = case["table"], rules(config.ramp)[case["rule"]]
    times, rate = times_of(folder, table, config), rate_of(folder, table, case["rule"], config)
    data, model = problem(folder, table, case["split"], config.inducing)
    at, rows = marks(config.steps), rows_of(data, config.batch, config.steps, case["split"])
    bounds, _, undone = course(rule, rate, model, data, rows, at, all_rows)
    return {"steps": at, "bound": bounds, "undone": undone, "rate": rate, "milliseconds": times}


@lru_cache(maxsize=1)  # cases that follow each other share it
def problem(folder: Path, table: str, split: int, M: int) -> tuple[Dataset, Model]:
    """Data and start."""
    data = training_part(folder, table, split, scale_target=table != "pima")
    return data, start(data, LIKELIHOODS[table](), M)


@lru_cache(maxsize=8)
def rate_of(folder: Path, table: str, rule: str, config: Config) -> float:
    """The largest stable rate, on split 0."""
    data, model = problem(folder, table, 0, config.inducing)
    return largest_stable(rules(config.ramp)[rule], model, data, config)


@lru_cache(maxsize=1)
def times_of(folder: Path, table: str, config: Config) -> dict[str, float]:
    """Milliseconds of a step, by rule."""
    data, model = problem(folder, table, 0, config.inducing)
    return step_times({name: rules(config.ramp)[name] for name in config.rules}, model, data, config)


def height(row: dict) -> np.ndarray:
    """The bound; far down where there is none."""
    return numbers(row["bound"], -1e15)


def table(rows: list[dict]) -> list[list[str]]:
    """Median bounds over splits after so many steps, a line a table and rule."""
    steps = rows[0]["steps"]
    shown = sorted({max(s for s in steps if s <= t) for t in (0, 10, 100, 1000, steps[-1])})
    head = ["table", "rule", *(f"bound after {t}" for t in shown), "range of the last", "rate", "ms a step", "undone"]
    lines = [[*head, "splits"]]
    for name, rule in dict.fromkeys((row["table"], row["rule"]) for row in rows):
        of = [row for row in rows if (row["table"], row["rule"]) == (name, rule)]
        bounds = np.array([height(row) for row in of])
        cells = [f"{np.median(bounds[:, steps.index(t)]):.1f}" for t in shown]
        cells += [f"{bounds[:, -1].min():.1f} to {bounds[:, -1].max():.1f}", f"{of[0]['rate']:g}"]
        cells.append(f"{median(row['milliseconds'][rule] for row in of):.2f}")
        lines.append([name, rule, *cells, str(sum(row["undone"] for row in of)), str(len(of))])
    return lines


def figure(rows: list[dict]) -> Figure:
    """The bound over seconds, a line a split; a panel a table."""
    names = list(dict.fromkeys(row["table"] for row in rows))
    picture = Figure(figsize=(1 + 4 * len(names), 4), layout="constrained")
    for axes, name in zip(picture.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        of = [row for row in rows if row["table"] == name]
        draw_courses(axes, of, "bound", list(Config.rules), alpha=0.7)
        low, high = min(row["bound"][0] for row in of), max(height(row).max() for row in of)
        axes.set(
            title=name, ylabel="bound of all rows, nats", ylim=(low - 0.1 * (high - low), high + 0.05 * (high - low))
        )
        axes.legend(fontsize="small", loc="lower right")
    return picture


def verdict(rows: list[dict]) -> tuple[str, str]:
    """Once γ has risen (twice its steps), is NGD+Adam above Adam and GD at the same time?"""
    by = {(row["table"], row["split"], row["rule"]): row for row in rows}
    text, shares, after = [], [], 2 * rows[0]["config"]["ramp"][2]
    for name in dict.fromkeys(row["table"] for row in rows):
        splits = [s for t, s, rule in by if (t, rule) == (name, "NGD+Adam")]
        for other in OTHERS:
            pairs = [(by[name, s, "NGD+Adam"], by[name, s, other]) for s in splits if (name, s, other) in by]
            if pairs:
                shares.append(float(np.mean(np.concatenate([ahead(*pair, height, after) for pair in pairs]))))
                above = np.median([height(a)[-1] - height(b)[-1] for a, b in pairs])
                text.append(
                    f"{name}: above {other} at {100 * shares[-1]:.0f} % of the marks, in the end by {above:.4g} nats"
                )
    if not shares:
        return "untested", "It takes NGD+Adam and Adam or GD on one split."
    why = f"NGD+Adam after {after} iterations, at equal time (medians over splits). {'; '.join(text)}."
    return ("agrees" if min(shares) >= 0.9 else "disagrees"), why
