"""Minibatches of 256, hyperparameters fixed: natural gradients, Adam, gradient descent (Salimbeni et al. 2018, fig. 3).

`gap` is the optimum of q for all rows, less the standard bound of all rows, in nats, after the steps in `steps`. Adam
and gradient descent move the mean and the root of the covariance, at the largest rate of 1, 0.1, …, 1e-6 that is
stable: on split 0 no step is undone, and the bound ends no more than a tenth of what was gained below its top. Seconds
are steps times `milliseconds`, the medians of a step's time, measured in turn. Where the likelihood is not log-concave
(Student-t), "NGD" is our guarded step, and "NGD, printed" the paper's own, undone where it leaves the cone.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from matplotlib.figure import Figure

from pseudopoint.data import Dataset, draw
from pseudopoint.gaussians import MeanChol, MeanPrecision, Natural
from pseudopoint.likelihoods import Bernoulli, Gaussian, StudentT
from pseudopoint.optimise import in_coordinates, standard_elbo
from pseudopoint.optimisers import AbstractStepper, ForwardNaturalGradient, NaturalGradient, Optax, converge, log_linear
from pseudopoint.posteriors import Model

from .settings import start, training_part

SOURCE = "Salimbeni, Eleftheriadis and Hensman 2018, figure 3"
PUBLISHED = (
    "NGD improves on Adam and GD after about 3 iterations, in wall-clock time, on ENERGY (Gaussian), BOSTON "
    "(Student-t) and PIMA (Bernoulli)."
)
CUT = ""
LIKELIHOODS = {
    "energy": lambda: Gaussian(1.0),
    "boston": lambda: StudentT(1.0, 3.0),
    "pima": lambda: Bernoulli("logit"),
}
TABLES = tuple(LIKELIHOODS)
PRINTED = "NGD, printed"
HELD = (lambda m: m.kernel, lambda m: m.likelihood, lambda m: m.posterior.Z)


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


FULL = Config()
QUICK = Config(1, 20, 64, 100, rates=(0.1, 1e-2, 1e-3), search_steps=50, rounds=2, tables=("pima",))
COUNTS = ("splits", "tables")


class Rule(NamedTuple):
    """A stepper, and the coordinates in which it moves q."""

    stepper: AbstractStepper
    coordinates: type


def cases(config: Config) -> list[dict[str, Any]]:
    """Every rule on every table and split; the printed one where it differs from ours."""
    return [
        {"table": table, "split": split, "rule": rule}
        for table in config.tables
        for split in range(config.splits)
        for rule in rules(config)
        if rule != PRINTED or not LIKELIHOODS[table]().concave
    ]


@cache  # another stepper is another program
def rules(config: Config) -> dict[str, Rule]:
    """By name. The rates of Adam and gradient descent are part of their state: one program serves them all."""
    ordinary = lambda method: Rule(Optax(optax.inject_hyperparams(method)(1.0), HELD, False), MeanChol)
    ramp = log_linear(*config.ramp)
    return {
        "NGD": Rule(NaturalGradient(ramp, tight=False), MeanPrecision),
        PRINTED: Rule(ForwardNaturalGradient(ramp, tight=False), Natural),
        "Adam": ordinary(optax.adam),
        "GD": ordinary(optax.sgd),
    }


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """The gap along the course."""
    table, rule = case["table"], rules(config)[case["rule"]]
    data, model, best = problem(folder, table, case["split"], config.inducing)
    times, rate = times_of(folder, table, config), rate_of(folder, table, case["rule"], config)
    rows = rows_of(data, config.batch, config.steps, case["split"])
    bounds, _, undone = course(rule, rate, model, data, rows, marks(config.steps), all_rows)
    gaps = [None if b is None else float(f"{best - b:.5g}") for b in bounds]
    own = {"steps": marks(config.steps), "gap": gaps, "undone": undone, "rate": rate}
    return {"optimum": round(best, 6)} | own | {"milliseconds": times}


@lru_cache(maxsize=1)  # cases that follow each other share it
def problem(folder: Path, table: str, split: int, M: int) -> tuple[Dataset, Model, float]:
    """Data, start and the optimum of q."""
    data = training_part(folder, table, split, scale_target=table != "pima")
    model = start(data, LIKELIHOODS[table](), M)
    return data, model, float(optimum(model, data))


@jax.jit
def optimum(model: Model, data: Dataset) -> jax.Array:
    """The standard bound of all rows at the best q."""
    return standard_elbo(converge(model, data, tight=False), data)


@lru_cache(maxsize=8)
def rate_of(folder: Path, table: str, rule: str, config: Config) -> float | None:
    """The largest stable rate, on split 0; None for a rule that has none."""
    data, model, _ = problem(folder, table, 0, config.inducing)
    return None if rule.startswith("NGD") else largest_stable(rules(config)[rule], model, data, config)


@lru_cache(maxsize=1)
def times_of(folder: Path, table: str, config: Config) -> dict[str, float]:
    """Milliseconds of a step, by rule."""
    data, model, _ = problem(folder, table, 0, config.inducing)
    own = {case["rule"] for case in cases(config) if case["table"] == table}
    return step_times({name: rule for name, rule in rules(config).items() if name in own}, model, data, config)


# What experiments on minibatches share from here on.


def marks(steps: int, count: int = 30) -> list[int]:
    """After how many steps a course is looked at: 0, 1, 2, 3, …, spread evenly in the logarithm."""
    return [0, *map(int, np.unique(np.round(np.geomspace(1, steps, count)).astype(int)))]


def rows_of(data: Dataset, batch: int, steps: int, seed: int) -> jax.Array:
    """The rows of every batch, [steps, batch]."""
    return jnp.asarray(draw(len(data), min(batch, len(data)), seed, 0, steps), jnp.int32)


@jax.jit
def all_rows(model: Model, data: Dataset) -> jax.Array:
    """The standard bound of all rows."""
    return standard_elbo(model, data)


@eqx.filter_jit
def advance(stepper: AbstractStepper, at: Any, data: Dataset, rows: jax.Array, first: Any, last: Any):
    """(model, state, steps undone) after the steps `first`, …, `last` − 1."""

    def step(t, at):
        batch = jax.tree.map(lambda x: x[rows[t]], data)
        model, state, info = stepper.step(at[0], at[1], batch, len(data), rows[t])
        return model, state, at[2] + info.undone

    return lax.fori_loop(first, last, step, at)


def begin(rule: Rule, rate: float | None, model: Model, data: Dataset) -> tuple[Model, Any, jax.Array]:
    """The start, in the rule's coordinates, at this learning rate."""
    model = in_coordinates(model, rule.coordinates)
    learns = lambda path: "learning_rate" in jax.tree_util.keystr(path)
    state = jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.full_like(x, rate or 0.0) if learns(path) else x, rule.stepper.init(model, len(data))
    )
    return model, state, jnp.zeros((), int)


def course(
    rule: Rule, rate: float | None, model: Model, data: Dataset, rows: jax.Array, at: list[int], look: Callable
) -> tuple[list[Any], Model, int]:
    """What `look` at (model, data) sees after so many steps (None where not finite), the last model, steps undone."""
    here, seen = begin(rule, rate, model, data), []
    for first, last in zip([0, *at[:-1]], at, strict=True):
        here = advance(rule.stepper, here, data, rows, jnp.asarray(first), jnp.asarray(last))
        value = np.asarray(look(here[0], data))
        seen.append(np.vectorize(lambda x: float(f"{x:.8g}") if np.isfinite(x) else None, otypes=[object])(value))
    return [value.tolist() for value in seen], here[0], int(here[2])


def largest_stable(rule: Rule, model: Model, data: Dataset, config: Any) -> float:
    """The first of the rates at which no step is undone and the bound ends near its top; else the last."""
    rows, at = rows_of(data, config.batch, config.search_steps, 0), marks(config.search_steps)

    def stable(rate: float) -> bool:
        bounds, _, undone = course(rule, rate, model, data, rows, at, all_rows)
        return None not in bounds and not undone and bounds[-1] >= max(bounds) - 0.1 * (max(bounds) - bounds[0])

    return next(filter(stable, config.rates), config.rates[-1])


def step_times(rules: dict[str, Rule], model: Model, data: Dataset, config: Any, steps: int = 20) -> dict[str, float]:
    """Median milliseconds of a step, `steps` of each rule in turn; the first round compiles."""
    rows, times = rows_of(data, config.batch, config.steps, 0), {name: [] for name in rules}
    for _ in range(1 + config.rounds):
        for name, rule in rules.items():
            here = jax.block_until_ready(begin(rule, config.rates[-1], model, data))
            clock = time.perf_counter()
            jax.block_until_ready(advance(rule.stepper, here, data, rows, jnp.asarray(0), jnp.asarray(steps)))
            times[name].append(1e3 * (time.perf_counter() - clock) / steps)
    return {name: round(median(of[1:]), 3) for name, of in times.items()}


def ahead(mine: dict, other: dict, height: Callable[[dict], np.ndarray], after: int = 0) -> np.ndarray:
    """Whether `mine` is as high as `other` at the same time, at each of its marks after so many steps, as long as
    `other` lasts; between the marks of `other` its height goes with the logarithm of time."""
    seconds = [np.array(row["steps"][1:]) * row["milliseconds"][row["rule"]] for row in (mine, other)]
    here = (np.array(mine["steps"][1:]) > after) & (seconds[0] <= seconds[1][-1])
    there = np.interp(np.log(seconds[0][here]), np.log(seconds[1]), height(other)[1:])
    return height(mine)[1:][here] >= there


def numbers(values: list[float | None], missing: float = np.nan) -> np.ndarray:
    """With a number for None."""
    return np.array([missing if value is None else value for value in values], float)


def draw_courses(axes: Any, rows: list[dict], name: str, colours: list[str], **style: Any) -> None:
    """One line a row over seconds, the first of each rule with its name."""
    for row in rows:
        seconds = np.array(row["steps"][1:]) * row["milliseconds"][row["rule"]] / 1e3
        first = row is next(r for r in rows if r["rule"] == row["rule"])
        own = {"color": f"C{colours.index(row['rule'])}", "label": row["rule"] if first else None}
        axes.plot(seconds, numbers(row[name])[1:], **own, **style)
    axes.set(xscale="log", xlabel="seconds (steps × time of a step)")


def height(row: dict) -> np.ndarray:
    """−log gap; less than 0.1 nats count as 0.1: there is the optimum, and what is left the noise of batches."""
    return -np.log(np.maximum(numbers(row["gap"], 1e300), 0.1))


def table(rows: list[dict]) -> list[list[str]]:
    """Median gaps over splits after so many steps, a line a table and rule."""
    steps = rows[0]["steps"]
    shown = sorted({max(s for s in steps if s <= t) for t in (3, 10, 100, 1000, steps[-1])})
    head = ["table", "rule", *(f"gap after {t}" for t in shown), "rate", "ms a step", "undone", "splits"]
    lines = [head]
    for name, rule in dict.fromkeys((row["table"], row["rule"]) for row in rows):
        of = [row for row in rows if (row["table"], row["rule"]) == (name, rule)]
        gaps = np.array([numbers(row["gap"], np.inf) for row in of])
        cells = [f"{np.median(gaps[:, steps.index(t)]):.3g}" for t in shown]
        rate = "" if of[0]["rate"] is None else f"{of[0]['rate']:g}"
        time_ = f"{median(row['milliseconds'][rule] for row in of):.2f}"
        lines.append([name, rule, *cells, rate, time_, str(sum(row["undone"] for row in of)), str(len(of))])
    return lines


def figure(rows: list[dict]) -> Figure:
    """Nats below the optimum over seconds, a line a split; a panel a table."""
    names = list(dict.fromkeys(row["table"] for row in rows))
    picture = Figure(figsize=(1 + 4 * len(names), 4), layout="constrained")
    for axes, name in zip(picture.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        draw_courses(axes, [r for r in rows if r["table"] == name], "gap", ["NGD", "Adam", "GD", PRINTED], alpha=0.7)
        axes.set(title=name, ylabel="nats below the optimum of q", yscale="log")
        axes.legend(fontsize="small")
    return picture


def verdict(rows: list[dict]) -> tuple[str, str]:
    """Once γ has risen (twice its steps), is NGD as near the optimum as Adam and GD at the same time?"""
    by = {(row["table"], row["split"], row["rule"]): row for row in rows}
    text, shares, after = [], [], 2 * rows[0]["config"]["ramp"][2]
    for name in dict.fromkeys(row["table"] for row in rows):
        splits = [s for t, s, rule in by if (t, rule) == (name, "NGD")]
        for other in ("Adam", "GD"):
            pairs = [(by[name, s, "NGD"], by[name, s, other]) for s in splits if (name, s, other) in by]
            if pairs:
                shares.append(float(np.mean(np.concatenate([ahead(*pair, height, after) for pair in pairs]))))
                ends = [np.median([numbers(row["gap"])[-1] for row in of]) for of in zip(*pairs, strict=True)]
                text.append(f"{name}: ahead of {other} first at step {median(map(first_ahead, pairs)):.0f}, later at")
                text[-1] += (
                    f" {100 * shares[-1]:.0f} % of the marks; in the end {ends[0]:.3g} and {ends[1]:.3g} nats off"
                )
    if not shares:
        return "untested", "It takes NGD and Adam or GD on one split."
    why = f"At equal time; later is after {after} steps of NGD (medians over splits). {'. '.join(text)}."
    return ("agrees" if min(shares) >= 0.9 else "disagrees"), why


def first_ahead(pair: tuple[dict, dict]) -> float:
    """At which step of the first it is ahead of the second for the first time."""
    lead = ahead(*pair, height)
    return pair[0]["steps"][1 + int(np.argmax(lead))] if lead.any() else np.inf
