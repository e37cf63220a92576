"""Four variations of stochastic variational inference on small and medium sets (Izmailov's review, figures 3 and 4).

Squared exponential kernel with one lengthscale, points at k-means centres that stay, hyperparameters learned. `passes`
are rows that a fit has looked at over N (a bound with its gradient on all rows is one), `r2` that of the test rows and
`bound` the standard one of all training rows, in nats, after a fit made for so many passes (`made_for`): L-BFGS-B gets
that many iterations, some of which take two. Seconds are passes times `pass_seconds`, measured along the longest fit
without compilation.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pseudopoint.reproduce import Judgement, untested

from . import _izmailov as review
from ._izmailov import SIZES, WITH_RATE, after, complete, curve, problem

SOURCE = "Izmailov, review of GP methods, 3.1, figures 3 and 4"
PUBLISHED = (
    "No finding in words. The review goes on (3.2) with svi-L-BFGS-B on small and medium sets, and with svi-natural "
    "and svi-SAG on a big one.",
)
CUT = {
    "": "Its sets, starts, step sizes and batches are lost with the figures: ours are four tables and two sets drawn "
    "from a GP; gradient methods have the best of three step sizes, chosen by the bound."
}
TABLES = review.TABLES
METHODS = (*WITH_RATE, "svi-L-BFGS-B")


@dataclass(frozen=True)
class Config:
    """All ours but the methods."""

    sets: tuple[str, ...] = tuple(SIZES)
    passes: tuple[float, ...] = (1, 3, 10, 30, 100)
    batch: int = 100
    rates: tuple[float, ...] = (0.01, 0.1, 1.0)
    lengthscale: float = 1.0  # at the start, of √D
    variance: float = 1.0
    noise: float = 0.1


FULL = Config()
QUICK = Config(sets=("boston",), passes=(11,), rates=(0.1,))  # 50 steps: one program a method
COUNTS = ("sets", "rates")


def cases(config: Config) -> list[dict[str, Any]]:
    """Every method on every set, with each step size if it has one."""
    return review.cases(config, METHODS)


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """Quality after so many passes."""
    train, test, model = problem(folder, case["set"], SIZES[case["set"]], config)
    return curve(case["method"], model, train, test, config.passes, config.batch, case["rate"])


table, figure = review.table, review.figure


def verdict(rows: list[dict[str, Any]]) -> list[Judgement]:
    """The review prints no finding: ours, by passes."""
    sets = complete(rows, METHODS)
    if not sets:
        return [untested("No set has all four methods yet.")]
    text = []
    for mark in sorted(set(rows[0]["config"]["passes"]))[-3::2]:
        first = [max(METHODS, key=lambda method: after(found[method], mark)) for found in sets.values()]
        counts = ", ".join(f"{method} on {first.count(method)}" for method in METHODS if method in first)
        text.append(f"After {mark:g} passes the highest test R² is that of {counts} of {len(sets)} sets.")
    return [untested(" ".join(["The review prints no finding and its figures are lost.", *text]))]
