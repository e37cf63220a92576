"""Projected Newton (means-PN) against L-BFGS-B on the collapsed bound (Izmailov's review, figures 8 and 9).

Both climb the same bound in three numbers, the logarithms of lengthscale, kernel variance and noise variance. Newton's
Hessian is made of differences of gradients, six an iteration, which count as passes. What numbers mean is said in
`izmailov_svi`; `seen` is the highest bound that either found on a set.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from pseudopoint.reproduce import Judgement, untested

from . import _izmailov as review
from ._izmailov import BIG, best, complete, curve, problem
from ._rows import product

SOURCE = "Izmailov, review of GP methods, 3.3, figures 8 and 9"
PUBLISHED = ("No finding in words: both methods on small, medium and bigger sets, test R² against time.",)
CUT = {"": "Its sets and starts are lost with the figures: ours are five tables and two sets drawn from a GP."}
SIZES = review.SIZES | BIG
TABLES = (*review.TABLES, *BIG)
METHODS = ("means-PN", "means-L-BFGS-B")
NEAR = 1.0  # nats


@dataclass(frozen=True)
class Config:
    """All ours but the methods."""

    sets: tuple[str, ...] = tuple(SIZES)
    passes: tuple[float, ...] = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
    big_passes: tuple[float, ...] = (2, 4, 8, 16, 32, 64)
    lengthscale: float = 1.0  # at the start, of √D
    variance: float = 1.0
    noise: float = 0.1


FULL = Config()
QUICK = Config(sets=("boston",), passes=(4, 8, 16, 32))
COUNTS = ("sets",)


def cases(config: Config) -> list[dict[str, Any]]:
    """Both methods on every set."""
    return product(set=config.sets, method=METHODS)


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """Quality after so many passes."""
    name = case["set"]
    train, test, model = problem(folder, name, SIZES[name], config)
    return curve(case["method"], model, train, test, config.big_passes if name in BIG else config.passes, len(train))


def passes_to(row: dict[str, Any], bound: float) -> float:
    """Passes of the shortest fit whose bound is so high; infinite if none was."""
    there = np.flatnonzero(np.array(row["bound"]) >= bound)
    return row["passes"][there[0]] if len(there) else np.inf


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Passes and seconds to within 1 nat of the highest bound seen; a line a set and method."""
    lines = [["set", "N", "D", "M", "method", f"passes to {NEAR:g} nat", "seconds to it", "ms a pass"]]
    lines[0] += ["bound at the end", "test R²"]
    for name, found in best(rows).items():
        seen = max(max(row["bound"][1:]) for row in found.values())
        for method, row in found.items():
            needs, pace = passes_to(row, seen - NEAR), row["pass_seconds"]
            times = ["", ""] if pace is None else [f"{needs * pace:.3g}", f"{1000 * pace:.3g}"]
            cells = [f"{needs:g}", *times, f"{row['bound'][-1]:.2f}", f"{row['r2'][-1]:.4f}"]
            lines.append([name, *(str(row[key]) for key in ("N", "D", "M")), method, *cells])
    return lines


def figure(rows: list[dict[str, Any]]) -> Figure:
    """Test R², and nats a row below the highest bound seen, against passes over the data; a column a set."""
    sets = best(rows)
    picture = Figure(figsize=(1 + 3.2 * len(sets), 6.5), layout="constrained")
    grid = picture.subplots(2, len(sets), squeeze=False, sharex="col")
    for column, (name, found) in zip(grid.T, sets.items(), strict=True):
        first = next(iter(found.values()))
        seen = max(max(row["bound"][1:]) for row in found.values())
        column[0].set(title=f"{name}\nn = {first['N']}, d = {first['D']}, m = {first['M']}", ylabel="test R²")
        column[1].set(xlabel="passes over the data", ylabel="nats a row below the highest bound", yscale="log")
        column[1].set_xscale("log", base=2)
        column[1].xaxis.set_major_formatter(ScalarFormatter())
        for method, row in found.items():
            look: dict[str, Any] = {"color": f"C{METHODS.index(method)}", "marker": ".", "label": method}
            gap = np.maximum((seen - np.array(row["bound"][1:])) / row["N"], 1e-8)
            column[0].plot(row["passes"][1:], row["r2"][1:], **look)
            column[1].plot(row["passes"][1:], gap, **look)
        column[0].legend(fontsize="small")
    return picture


def verdict(rows: list[dict[str, Any]]) -> list[Judgement]:
    """The review prints no finding: ours, by passes and by seconds."""
    sets = complete(rows, METHODS)
    if not sets:
        return [untested("No set has both methods yet.")]
    tops = {name: max(max(row["bound"][1:]) for row in found.values()) for name, found in sets.items()}
    needs = {
        method: [passes_to(found[method], tops[name] - NEAR) for name, found in sets.items()] for method in METHODS
    }
    ends = [abs(found[METHODS[0]]["bound"][-1] - found[METHODS[1]]["bound"][-1]) for found in sets.values()]
    fewer = sum(newton < other for newton, other in zip(*needs.values(), strict=True))
    text = (
        f"The review prints no finding and its figures are lost. Passes to {NEAR:g} nat from the highest bound seen: "
        + "; ".join(f"{method} {min(n):.3g} to {max(n):.3g} (median {np.median(n):.3g})" for method, n in needs.items())
        + f"; means-PN needs fewer on {fewer} of {len(sets)} sets. Both end within {NEAR:g} nat of each other on "
        f"{sum(end <= NEAR for end in ends)}."
    )
    return [untested(text)]
