"""Full passes with q integrated out (vi-means) against minibatches on big sets (Izmailov's review, figure 7).

vi-means climbs the collapsed bound of all rows by L-BFGS-B; svi-natural takes natural steps on q and gradient steps on
hyperparameters, svi-SAG averages what rows said last. What numbers mean is said in `izmailov_svi`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pseudopoint.reproduce import Judgement, untested

from . import _izmailov as review
from ._izmailov import BATCHES, after, complete, curve, problem, within

SOURCE = "Izmailov, review of GP methods, 3.2, figure 7"
PUBLISHED = ("No finding in words: the three methods on a big set, test R² against time.",)
CUT = {
    "": "The set, its start, step sizes and batches are lost with the figure: ours are two tables. Minibatch methods "
    "have the best of two step sizes, chosen by the bound."
}
TABLES = ("kin40k", "protein")
METHODS = ("vi-means", *BATCHES)


@dataclass(frozen=True)
class Config:
    """All ours but the methods."""

    sets: tuple[str, ...] = TABLES
    M: int = 200
    passes: tuple[float, ...] = (1, 3, 10, 30)
    means_passes: tuple[float, ...] = (3, 10, 30, 100)
    batch: int = 1000
    rates: tuple[float, ...] = (0.1, 1.0)
    lengthscale: float = 1.0  # at the start, of √D
    variance: float = 1.0
    noise: float = 0.1


FULL = Config()
QUICK = Config(sets=("kin40k",), M=20, passes=(1,), means_passes=(1, 4), batch=720, rates=(0.1,))
COUNTS = ("sets", "rates")


def cases(config: Config) -> list[dict[str, Any]]:
    """Every method on every set, with each step size if it has one."""
    return review.cases(config, METHODS)


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """Quality after so many passes."""
    train, test, model = problem(folder, case["set"], config.M, config)
    passes = config.passes if case["method"] in BATCHES else config.means_passes
    return curve(case["method"], model, train, test, passes, config.batch, case["rate"])


table, figure = review.table, review.figure


def verdict(rows: list[dict[str, Any]]) -> list[Judgement]:
    """The review prints no finding: ours, by passes, by seconds, and in the end."""
    sets = complete(rows, METHODS)
    if not sets:
        return [untested("No set has all three methods yet.")]
    marks = rows[0]["config"]["passes"]
    text = []
    for name, found in sets.items():
        scores = lambda score, found=found: ", ".join(f"{method} {score(found[method]):.3f}" for method in METHODS)
        text.append(f"{name}, test R² after {marks[-1]:g} passes: {scores(lambda row: after(row, marks[-1]))}")
        paces = [found[method]["pass_seconds"] for method in METHODS]
        if None not in paces:
            # The time of the shortest of the longest fits.
            seconds = min(found[method]["passes"][-1] * pace for method, pace in zip(METHODS, paces, strict=True))
            there = scores(lambda row, seconds=seconds: within(row, 1.001 * seconds / row["pass_seconds"]))
            text[-1] += f"; within {seconds:.3g} s: {there}"
        text[-1] += f"; at the end: {scores(lambda row: row['r2'][-1])}."
    return [untested(" ".join(["The review prints no finding and its figure is lost.", *text]))]
