"""Why do natural steps and Adam end at levels of their own on some data sets? (Kobe 2021, figure 4.2; `kobe_joint`.)

From where one rule ends after `steps` steps on all rows, the other goes on for as many. If it stays, both ends are
optima of the bound, and which one is found is chance; if it climbs to the other's end, the first rule was too slow.
Setting and start as in `kobe_joint`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.optimise import in_coordinates

from ._full_batches import course
from ._kobe import SHARE, hyperparameters, problem, sinusoid, stepper
from ._rows import grouped, marks, number, product

SOURCE = "ours: the cause of a difference from Kobe 2021, figure 4.2"
PUBLISHED = (
    "NGD and Adam reach the same level of the bound. In `kobe_joint` they do not on some data sets: are these ends "
    "optima of their own, or is one rule not there yet?"
)
CUT = "Nothing."
TABLES = ()
GAMMAS = {"NGD": 1.0, "Adam": None}


@dataclass(frozen=True)
class Config:
    """As in `kobe_joint`."""

    seeds: int = 5
    N: int = 100
    M: int = 10
    noise: float = 0.01
    steps: int = 10_000
    rate: float = 0.01
    start_noise: float = 0.1
    jitter: float = 1e-10


FULL = Config()
QUICK = Config(seeds=1, N=50, steps=500)
COUNTS = ("seeds",)


def cases(config: Config) -> list[dict[str, Any]]:
    """Either rule first, on every data set."""
    return product(seed=range(config.seeds), first=tuple(GAMMAS))


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """The bound of the first rule from the start, and of the other from there."""
    data = sinusoid(config.N, config.noise, case["seed"])
    first, second = GAMMAS[case["first"]], next(GAMMAS[name] for name in GAMMAS if name != case["first"])
    rule, model = problem(first, data, config.M, config)
    before = course(rule, model, data, config.steps)
    model = in_coordinates(before.model, MeanChol if second is None else MeanPrecision)
    after = course(stepper(second, config.rate), model, data, config.steps)
    at = marks(config.steps, 30)
    moved = float(jnp.max(jnp.abs(jnp.log(hyperparameters(after.model) / hyperparameters(before.model)))))
    return {
        "steps": at,
        "first_bound": [number(before.bound[t]) for t in at],
        "second_bound": [number(after.bound[t]) for t in at],
        "moved": number(moved),  # the largest change of the logarithm of a hyperparameter by the second rule
    }


def found(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By data set: both ends, the climb, and what the other rule gains from the lower end."""
    sets = []
    for (seed,), of in grouped(rows, "seed").items():
        by = {row["first"]: row for row in of}
        if set(GAMMAS) <= set(by):
            ends = {name: row["first_bound"][-1] for name, row in by.items()}
            low = by[min(ends, key=lambda name: ends[name])]
            gap, climb = abs(ends["NGD"] - ends["Adam"]), max(ends.values()) - low["first_bound"][0]
            gained = max(low["second_bound"]) - low["first_bound"][-1]
            sets.append({"seed": seed, "lower": low["first"], "gap": gap, "climb": climb, "gained": gained})
    return sets


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A line a data set and first rule."""
    lines = [["data set", "first", "start", "its end", "the other's, from there", "hyperparameters moved by"]]
    for row in rows:
        bounds = (row["first_bound"][0], row["first_bound"][-1], row["second_bound"][-1])
        moved = f"a factor of {np.exp(row['moved']):.3g}"
        lines.append([str(row["seed"]), row["first"], *(f"{bound:.2f}" for bound in bounds), moved])
    return lines


def figure(rows: list[dict[str, Any]]) -> Figure:
    """The bound of the first rule, then of the other; a line a data set and order."""
    picture = Figure(figsize=(8, 4), layout="constrained")
    left, right = picture.subplots(1, 2, sharey=True)
    for row in rows:
        color = "C3" if row["first"] == "NGD" else "C0"
        label = f"{row['first']} first" if row["seed"] == rows[0]["seed"] else None
        left.plot(row["steps"], row["first_bound"], color=color, linewidth=1, label=label)
        right.plot(row["steps"], row["second_bound"], color=color, linewidth=1)
    left.set(xscale="symlog", xlabel="steps of the first rule", ylabel="bound, nats")
    right.set(xscale="symlog", xlabel="steps of the other, from there")
    left.legend(fontsize="small")
    return picture


def verdict(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """Where the ends differ, does the other rule stay at the lower one?"""
    apart = [of for of in found(rows) if of["gap"] > SHARE * of["climb"]]
    if len(found(rows)) < FULL.seeds:
        return "untested", "Data sets are missing."
    stays = [of["gained"] < 0.5 * of["gap"] for of in apart]
    each = "; ".join(
        f"data set {of['seed']}: {of['lower']} ends {of['gap']:.3g} nats lower, from there the other rule gains "
        f"{of['gained']:.3g}"
        for of in apart
    )
    text = f"Ends are more than 1 % of the climb apart on {len(apart)} of {len(found(rows))} data sets: {each}."
    if apart and all(stays):
        return "agrees", f"{text} So the lower ends are optima of their own."
    return "disagrees", f"{text} So the lower ends are not all optima of their own."
