"""The bound at equal wall-clock time on large regression tables, everything learned: six families (figure 2c).

Gaussian likelihood, minibatches of 1024, one tenth of the rows for testing (split 0), inputs and target standardised.
`bound` is the standard bound of all training rows over their number, in nats, and `test` the mean log density of the
test rows, both after the steps in `steps`; seconds are steps times `milliseconds`, the medians of a step's time,
measured in turn. What is trained how is said in `_decoupled_fits`: "NAT" moves q by natural gradients and the
coefficients of O by Adam; "ORTHNAT, joint" (ours) moves these together with the mean, by one system.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from pseudopoint.data import Dataset
from pseudopoint.likelihoods import Gaussian
from pseudopoint.posteriors import Model
from pseudopoint.reproduce import Judgement, judged, untested

from ._decoupled_fits import EVERY, METHODS, Points, begin, fitting, paces, points_of, trained
from ._full_batches import whole_bound
from ._minibatches import draw_courses
from ._rows import finite, grouped, numbers, panels, product
from .settings import head, parts

SOURCE = "Salimbeni, Cheng, Boots and Deisenroth 2018, figure 2c"
PUBLISHED = (
    "With |γ| = 3500, |β| = 1500 against coupled 2000, a step of each basis takes the same time.",
    "ORTHNAT performs the best, in the bound as in test log-likelihood (and in accuracy).",
    "Highest test log-likelihoods: ORTHNAT −3.25, ORTH −3.26, COUPLEDNAT −3.33, COUPLED −3.37, HYBRID −3.39, DECOUPLED "
    "−3.66.",
)
CUT = {
    "beta": "300, the paper's own size in table 1, for one core.",
    "gamma": "700, as in table 1.",
    "coupled": "400, as in table 1.",
    "seconds": "110 a model, for one core: 400 to 3,000 steps in place of 10,000.",
    "looks": "12, for time.",
    "": "Accuracy is not computed. kin40k and flights_nyc13 in place of 3droad, which is not at hand whole, on one "
    "split, and so one run of each. Adam's rate (0.01), γ and the start are ours: the paper prints none.",
}
NOTES = (
    "Why ORTHNAT is behind COUPLEDNAT is unknown. Its steps cost more here, but it is behind after as many steps too. "
    "The paper's number of points and of steps has not been tried."
)
TABLES = ("kin40k", "flights_nyc13")
COUNTS = ("tables", "methods")
ORDER = ("ORTHNAT", "ORTH", "COUPLEDNAT", "COUPLED", "HYBRID", "DECOUPLED")  # as published, downwards
SAME = 1.25  # the ratio of times that counts as the same


@dataclass(frozen=True)
class Config:
    """The paper's sizes; seconds, rate and noise at the start are ours."""

    tables: tuple[str, ...] = TABLES
    methods: tuple[str, ...] = tuple(EVERY)
    rows: int | None = None
    beta: int = 1500
    gamma: int = 3500
    coupled: int = 2000
    seconds: float = 7000.0  # 10⁴ of the paper's steps
    batch: int = 1024
    rate: float = 0.01
    noise: float = 0.1
    looks: int = 20
    rounds: int = 5
    segment: int = 10  # steps in one program


FULL = Config(beta=300, gamma=700, coupled=400, seconds=110.0, looks=12)
SHORT = ("ORTHNAT", "DECOUPLED")
QUICK = Config(("kin40k",), SHORT, 1000, 15, 35, 20, 0.3, 128, looks=3, rounds=2)


def cases(config: Config) -> list[dict[str, Any]]:
    """A case a table and model."""
    return product(table=config.tables, rule=config.methods)


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """Bound and test log density along the course."""
    table, rule = case["table"], case["rule"]
    train, test, points = problem(folder, table, config)
    times = times_of(folder, table, config)
    look = lambda model: (whole_bound(model, train, 8192) / len(train), density(model, test))
    model = begin(rule, train, points, Gaussian(config.noise))
    figures = trained(rule, model, train, config, look, config.looks, fitting(config, times[rule]))
    bound, tests = ([finite(x) for x in of] for of in zip(*figures.pop("seen"), strict=True))
    return figures | {"bound": bound, "test": tests, "milliseconds": times}


@lru_cache(maxsize=1)  # cases that follow each other share it
def problem(folder: Path, table: str, config: Config) -> tuple[Dataset, Dataset, Points]:
    """Rows for training and for testing, and where points start."""
    train, test, _ = parts(folder, table, 0)
    train = head(train, config.rows)
    return train, test, points_of(train, config)


@lru_cache(maxsize=1)
def times_of(folder: Path, table: str, config: Config) -> dict[str, float]:
    """Milliseconds of a step, by model."""
    train, _, points = problem(folder, table, config)
    return paces({rule: begin(rule, train, points, Gaussian(config.noise)) for rule in config.methods}, train, config)


@jax.jit
def density(model: Model, test: Dataset) -> jax.Array:
    """The mean log density of the test rows."""
    mean, variance = model.posterior.project(model.kernel).predictor()(test.X)
    return jnp.mean(model.likelihood.log_density(mean, variance, test.y))


def table(rows: list[dict]) -> list[list[str]]:
    """A line a table and model."""
    lines = [["table", "model", "bound/N halfway", "in the end", "test log density", "best test", "steps", "ms a step"]]
    lines[0].append("rejected")
    for row in rows:
        bound, test = numbers(row["bound"]), numbers(row["test"])
        cells = [f"{x:.4f}" for x in (bound[len(bound) // 2], bound[-1], test[-1], max(test))]
        speed = [str(row["steps"][-1]), f"{row['milliseconds'][row['rule']]:.1f}", str(row["rejected"])]
        lines.append([row["table"], row["rule"], *cells, *speed])
    return lines


def figure(rows: list[dict]) -> Figure:
    """The bound over seconds, a panel a table."""
    picture, every = panels(rows, "table", 5)
    for axes, name, of in every:
        draw_courses(axes, of, "bound", list(EVERY))
        low, high = np.nanquantile(numbers([row["bound"][-1] for row in of]), (0.25, 1))  # one may be far below
        limits = low - (high - low) - 0.02, high + 0.2 * (high - low) + 0.02
        axes.set(title=name, ylabel="bound over N, nats", ylim=limits)
        axes.legend(fontsize="x-small", loc="lower right")
    return picture


def verdict(rows: list[dict[str, Any]]) -> list[Judgement]:
    """Do steps take the same time, is ORTHNAT's bound the highest in the end, and is the order of test log densities
    the published one, on every table?"""
    times, leads, orders, text, mixed = {}, {}, {}, [], []
    for (name,), of in grouped(rows, "table").items():
        by = {row["rule"]: row for row in of}
        if not set(METHODS) <= set(by):
            continue
        if any(row["milliseconds"] != of[0]["milliseconds"] for row in of):
            mixed.append(name)  # as many seconds of one session are not those of another
            continue
        ends = {rule: float(numbers(row["bound"], -1e9)[-1]) for rule, row in by.items()}
        best = {rule: float(np.max(numbers(row["test"], -1e9))) for rule, row in by.items()}
        milliseconds = np.log([by[rule]["milliseconds"][rule] for rule in METHODS])
        times[name] = [float(np.log(SAME) - (milliseconds.max() - milliseconds.min()))]
        lead = lambda heights: heights["ORTHNAT"] - max(heights[rule] for rule in METHODS if rule != "ORTHNAT")
        leads |= {f"{name}, bound": [lead(ends)], f"{name}, test log density": [lead(best)]}
        orders[name] = [min(best[a] - best[b] for a, b in pairwise(ORDER))]
        all_made = min(row["steps"][-1] for row in of)
        at = lambda row, steps: float(np.interp(steps, row["steps"], numbers(row["bound"], -1e9)))
        then = {rule: at(row, all_made) for rule, row in by.items()}
        text.append((f"{name}: {order(ends)}; after {all_made} steps, which all made: {order(then)}", best, name))
    if mixed or not leads:
        said = f"Rows of {', '.join(mixed)} had their steps timed in different sessions." if mixed else ""
        return [untested(said or "It takes all six models on a table.")] * 3
    slowest = ", ".join(f"{np.exp(np.log(SAME) - of[0]):.2g} on {name}" for name, of in times.items())
    return [
        judged(
            times, "log of the ratio of times", f"The slowest step over the fastest: {slowest}; {SAME:g} is the same."
        ),
        judged(
            leads, "nats a row", f"Bound over N in the end, at equal time: {'. '.join(words for words, *_ in text)}."
        ),
        judged(orders, "nats a row", f"Highest: {'. '.join(f'{name}: {order(best)}' for _, best, name in text)}."),
    ]


def order(heights: dict[str, float]) -> str:
    """From the highest down."""
    return ", ".join(f"{rule} {height:.4f}" for rule, height in sorted(heights.items(), key=lambda item: -item[1]))
