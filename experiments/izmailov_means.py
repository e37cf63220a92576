"""q integrated out (vi-means), or found by the same optimiser (svi-L-BFGS-B)? Izmailov's review, figures 5 and 6.

Both climb the same bound in the same hyperparameters by L-BFGS-B from the same start, at the same points; svi-L-BFGS-B
has the mean and the Cholesky factor of q to find as well. What numbers mean is said in `izmailov_svi`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pseudopoint.reproduce import Judgement, judged, untested

from . import _izmailov as review
from ._izmailov import BIG, after, complete, curve, problem
from ._rows import product

SOURCE = "Izmailov, review of GP methods, 3.2, figures 5 and 6"
PUBLISHED = (
    "vi-means beats svi-L-BFGS-B in all the experiments, on small, medium and big sets (test R² against time).",
)
CUT = {
    "": "Its sets and starts are lost with the figures: ours are five tables and two sets drawn from a GP, one split "
    "of each. Compared are equal numbers of passes; a pass of vi-means takes 0.8 to 2.7 times as long."
}
METHODS = ("vi-means", "svi-L-BFGS-B")
SIZES = review.SIZES | BIG
TABLES = (*review.TABLES, *BIG)
TIE = 0.002  # of R²


@dataclass(frozen=True)
class Config:
    """All ours but the methods."""

    sets: tuple[str, ...] = tuple(SIZES)
    passes: tuple[float, ...] = (3, 10, 30, 100, 300)
    big_passes: tuple[float, ...] = (3, 10, 30, 100)
    lengthscale: float = 1.0  # at the start, of √D
    variance: float = 1.0
    noise: float = 0.1


FULL = Config()
QUICK = Config(sets=("boston",), passes=(3, 10, 30))
COUNTS = ("sets",)


def cases(config: Config) -> list[dict[str, Any]]:
    """Both methods on every set."""
    return product(set=config.sets, method=METHODS)


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """Quality after so many passes."""
    name = case["set"]
    train, test, model = problem(folder, name, SIZES[name], config)
    return curve(case["method"], model, train, test, config.big_passes if name in BIG else config.passes, len(train))


table, figure = review.table, review.figure


def verdict(rows: list[dict[str, Any]]) -> list[Judgement]:
    """Is vi-means ahead in test R², on average over numbers of passes and at the worst of them, over all sets?"""
    sets = complete(rows, METHODS)
    if not sets:
        return [untested("No set has both methods yet.")]
    marks = lambda name: rows[0]["config"]["big_passes" if name in BIG else "passes"]
    leads = {
        name: [after(found["vi-means"], mark) - after(found["svi-L-BFGS-B"], mark) for mark in marks(name)]
        for name, found in sets.items()
    }
    bounds = [(f["vi-means"]["bound"][-1] - f["svi-L-BFGS-B"]["bound"][-1]) / f["vi-means"]["N"] for f in sets.values()]
    behind = sum(min(lead) < -TIE for lead in leads.values())
    text = (
        f"Its lead in R² after as many passes is {min(map(min, leads.values())):.4f} to "
        f"{max(map(max, leads.values())):.3f}, and below −{TIE:g} once on {behind} of {len(sets)} sets. In the end its "
        f"bound is {min(bounds):.3g} to {max(bounds):.3g} nats a row higher."
    )
    margins = {name: [float(np.mean(lead)) if min(lead) >= -TIE else min(lead)] for name, lead in leads.items()}
    return [judged(margins, "of R², the mean over passes, or the worst if one is behind", text)]
