"""Which direction is best, in every parameterisation? Salimbeni, Eleftheriadis and Hensman 2018, figures 2 and 8 to 13.

q alone moves, on all rows; every step's length is found by Brent's method. The optimum is that of `converge`, full
natural steps until nothing is gained. `gap` is the optimum less the bound, in nats, after each step.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optax
from matplotlib.figure import Figure

from pseudopoint.gaussians import MeanChol, MeanCovariance, MeanLog, Natural, NaturalChol, NaturalLog
from pseudopoint.optimise.fullbatch import LBFGS, Gradient, NaturalDirection, Objective, Transformed, line_search
from pseudopoint.optimise.named import in_coordinates, standard_elbo
from pseudopoint.params import trainable
from pseudopoint.reproduce import Judgement, judged, within

from ._rows import grouped
from .settings import HELD, LIKELIHOODS, solved

SOURCE = "Salimbeni, Eleftheriadis and Hensman 2018, figures 2 and 8 to 13"
PUBLISHED = (
    "The natural gradient direction converges in fewer steps than GD, Adam and L-BFGS for all likelihoods and "
    "parameterisations.",
    "For all parameterisations and likelihoods its best step size increases to 1.",
    "For a Gaussian likelihood one natural step of size 1 is the solution.",
)
CUT = {}
TABLES = tuple(LIKELIHOODS)
COORDINATES = {
    "natural": Natural,
    "natural-sqrt": NaturalChol,
    "natural-log": NaturalLog,
    "mean/var": MeanCovariance,
    "mean/var-sqrt": MeanChol,
    "mean/var-log": MeanLog,
}
DIRECTIONS = {
    "NGD": NaturalDirection(),
    "GD": Gradient(),
    "Adam": Transformed(optax.adam(1.0)),
    "L-BFGS": LBFGS(),
}


@dataclass(frozen=True)
class Config:
    """The paper's setting; the noise of the likelihoods, which it does not print, is 1, the default of its library."""

    splits: int = 5
    inducing: int = 100
    iterations: int = 100
    near: tuple[float, ...] = (1.0, 0.1, 0.01)  # nats from the optimum that count as there
    tables: tuple[str, ...] = TABLES
    coordinates: tuple[str, ...] = tuple(COORDINATES)


FULL = Config()
QUICK = Config(splits=1, inducing=20, iterations=15, tables=("energy", "pima"), coordinates=("natural",))
COUNTS = ("splits", "near", "tables", "coordinates")  # near: used when rows are read


def cases(config: Config) -> list[dict[str, Any]]:
    """Every direction in every parameterisation, on every table and split."""
    return [
        {"table": table, "split": split, "coordinates": coordinates, "direction": direction}
        for split in range(config.splits)
        for table in config.tables
        for coordinates in config.coordinates
        for direction in DIRECTIONS
    ]


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """The gap after each step, and the steps' sizes."""
    data, model, best = solved(folder, case["table"], case["split"], config.inducing)
    first = trainable(in_coordinates(model, COORDINATES[case["coordinates"]]), *HELD)
    direction = DIRECTIONS[case["direction"]]
    objective = Objective(standard_elbo, first, data)
    result = line_search(objective, direction, max_iter=config.iterations, tolerance=1e-12)
    return {
        "optimum": best,
        "gap": [round(best - record.bound, 6) for record in result.history],
        "step_size": [float(f"{record.step_size:.4g}") for record in result.history],
        "evaluations": result.evaluations,
    }


def iterations_to(row: dict[str, Any], nats: float) -> float:
    """How many steps until the bound is so near its optimum; infinite where it never was."""
    there = np.flatnonzero(np.array(row["gap"]) <= nats)
    return float(there[0] + 1) if len(there) else np.inf


def table(rows: list[dict[str, Any]], nats: float = 0.1) -> list[list[str]]:
    """Median iterations over splits to within `nats` of the optimum, a line a table and parameterisation."""
    lines = [["table", "coordinates", *DIRECTIONS]]
    for (name, coordinates), of in grouped(rows, "table", "coordinates").items():
        lines.append([name, coordinates, *(_cell([r for r in of if r["direction"] == d], nats) for d in DIRECTIONS)])
    return lines


def _cell(rows: list[dict[str, Any]], nats: float) -> str:
    if not rows:
        return ""
    counts = [iterations_to(row, nats) for row in rows]
    if np.isfinite(np.median(counts)):
        return f"{np.median(counts):.0f} ({min(counts):.0f} to {max(counts):.0f})"
    most = max(len(row["gap"]) for row in rows)
    return f"not in {most} ({np.median([row['gap'][-1] for row in rows]):.3g} nats off)"


def figure(rows: list[dict[str, Any]]) -> Figure:
    """Nats below the optimum after each step, the median over splits; a panel a table and parameterisation."""
    tables = list(dict.fromkeys(row["table"] for row in rows))
    coordinates = list(dict.fromkeys(row["coordinates"] for row in rows))
    size = (1 + 2.3 * len(coordinates), 1 + 2.1 * len(tables))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(tables), len(coordinates), squeeze=False, sharex=True, sharey="row")
    for i, name in enumerate(tables):
        for j, system in enumerate(coordinates):
            axes = grid[i, j]
            axes.set(xscale="log", yscale="log", title=f"{name}, {system}")
            for direction in DIRECTIONS:
                of = (name, system, direction)
                gaps = [row["gap"] for row in rows if (row["table"], row["coordinates"], row["direction"]) == of]
                if gaps:
                    longest = max(map(len, gaps))  # a search that ended stays where it was
                    curve = np.median([gap + gap[-1:] * (longest - len(gap)) for gap in gaps], axis=0)
                    axes.plot(np.arange(1, longest + 1), np.maximum(curve, 1e-6), label=direction, marker=".")
        grid[i, 0].set_ylabel("nats below the optimum")
    for axes in grid[-1]:
        axes.set_xlabel("step")
    grid[0, 0].legend(fontsize="small")
    return figure


def verdict(rows: list[dict[str, Any]]) -> list[Judgement]:
    """Does the natural gradient need the fewest iterations, do its steps go to 1, is one enough where q is Gaussian?"""
    found: dict[str, list[float]] = {}
    most = 1 + max(len(row["gap"]) for row in rows)  # counts for those that never were there
    for (name, coordinates, _), of in grouped(rows, "table", "coordinates", "split").items():
        by = {row["direction"]: row for row in of}
        if set(DIRECTIONS) <= set(by):
            needs = lambda name, nats, by=by: min(iterations_to(by[name], nats), most)
            others = [name for name in DIRECTIONS if name != "NGD"]
            leads = [min(needs(o, nats) for o in others) / needs("NGD", nats) for nats in rows[0]["config"]["near"]]
            found.setdefault(f"{name}, {coordinates}", []).append(float(np.log(min(leads))))
    natural = [row for row in rows if row["direction"] == "NGD"]
    sizes = {}
    for (name, coordinates, _), of in grouped(natural, "table", "coordinates", "split").items():
        pairs = [pair for row in of for pair in zip(row["step_size"][1:], row["gap"][:-1], strict=True)]
        if late := [step for step, gap in pairs if 1e-4 < gap < 0.1]:
            sizes.setdefault(f"{name}, {coordinates}", []).append(float(np.median(late)))
    far = lambda pair: -max(abs(np.subtract(pair[1], 1)))
    widest = sorted(sizes.items(), key=far)[:2]
    exact = [row for row in natural if (row["table"], row["coordinates"]) == ("energy", "natural")]
    first = [row["step_size"][0] for row in natural]
    return [
        judged(
            found,
            "log of the ratio of steps",
            "Steps of the best of the other three over those of the natural gradient, the worst of 1, 0.1 and 0.01 "
            "nats from the optimum.",
        ),
        judged(
            {name: within(np.subtract(of, 1), 0.1) for name, of in sizes.items()},
            "step sizes",
            f"The first step is {np.median(first or [np.nan]):.2g} long (median). Steps from within 0.1 nats, medians "
            f"of a split: {', '.join(f'{min(of):.3g} to {max(of):.3g} ({name})' for name, of in widest)}; nearer 1 "
            f"on the {len(sizes) - len(widest)} other pairs of a table and a parameterisation. 0.9 to 1.1 counts as 1.",
        ),
        judged(
            {
                "nats": within([row["gap"][0] for row in exact], 1e-5),
                "step size": within([row["step_size"][0] - 1 for row in exact], 0.01),
            },
            "nats or step sizes",
            f"After one step {max((abs(row['gap'][0]) for row in exact), default=np.nan):.1g} nats are left at most.",
        ),
    ]
