"""When is a natural step faster than Adam's? The grid N × M × batch × noise on the sinusoid (Kobe 2021, 4.3 to 4.5).

Everything is learned, from the thesis' start. "NGD": Adam's step on all but q, then a natural one on q, of size 1
without minibatches (as in figure 4.1) and of 0.1 with them (where the thesis ends on NAVAL); "Adam": all in one.
`bound` is that of all rows, in nats, after `steps` steps. The common level of both rules is 1 % of the climb below the
lower of their highest bounds; the climb is from the start to the higher of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ._kobe import SHARE, along, compared, sinusoid
from ._rows import grouped, product

SOURCE = "Kobe 2021, figures 4.3 to 4.5"
PUBLISHED = (
    "(1) The key factors are M and the batch size; N and noise do not matter. (2) M small: NGD is always faster. (3) M "
    "large, no minibatch: NGD is faster in the beginning, both converge after the same number of iterations. (4) M "
    "large and minibatches: NGD is slower, and reaches the same optimum."
)
CUT = (
    "Settings whose step costs M²(B + M) > 2e7 are left out: all of M = 1000, and M = 100 with batches of 10,000 rows. "
    "N = 10 has no M < N. The thesis prints neither the step size of NGD nor the number of steps."
)
TABLES = ()
RULES = ("NGD", "Adam")
LARGE, SAME = 100, 2.0  # the thesis' large M; numbers of steps that count as the same


@dataclass(frozen=True)
class Config:
    """The thesis' grid; step sizes of NGD and the number of steps are ours."""

    N: tuple[int, ...] = (10, 100, 1000, 10_000)
    M: tuple[int, ...] = (10, 100, 1000)
    batch: tuple[int, ...] = (10, 100, 1000, 10_000)
    noise: tuple[float, ...] = (0.1, 0.01, 0.001)
    most: float = np.inf  # the largest M²(B + M)
    steps: int = 5000
    every: int = 20  # steps between two looks at the bound
    gammas: tuple[float, float] = (1.0, 0.1)  # on all rows; on minibatches
    rate: float = 0.01
    start_noise: float = 0.1
    jitter: float = 1e-10


FULL = Config(most=2e7)
QUICK = Config(N=(100,), M=(10,), noise=(0.01,), steps=200)
COUNTS = ("N", "M", "batch", "noise", "most")


def cases(config: Config) -> list[dict[str, Any]]:
    """Both rules in every setting with M < N and B ≤ N."""
    every = product(N=config.N, M=config.M, batch=config.batch, noise=config.noise, rule=RULES)
    fits = lambda N, M, batch, **_: M < N and batch <= N and M**2 * (batch + M) <= config.most
    return [case for case in every if fits(**case)]


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """The bound of all rows along the way."""
    gamma = config.gammas[case["batch"] < case["N"]] if case["rule"] == "NGD" else None
    return along(gamma, sinusoid(case["N"], case["noise"], 0), case["M"], case["batch"], config)


def pairs(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(NGD, Adam) in each setting that has both."""
    settings = [{row["rule"]: row for row in of} for of in grouped(rows, "N", "M", "batch", "noise").values()]
    return [(of["NGD"], of["Adam"]) for of in settings if set(RULES) <= set(of)]


def group(row: dict[str, Any]) -> str:
    """The thesis' three cases."""
    if row["M"] < LARGE:
        return "M small"
    return "M large, no minibatch" if row["batch"] == row["N"] else "M large, minibatch"


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A line a setting."""
    lines = [["case", "N", "M", "batch", "noise", "steps, NGD", "steps, Adam", "best, NGD", "best, Adam", "undone"]]
    for pair in pairs(rows):
        row, found = pair[0], compared(pair)
        setting = [group(row), *(str(row[name]) for name in ("N", "M", "batch", "noise"))]
        numbers = [*(str(steps) for steps in found["steps"]), *(f"{bound:.1f}" for bound in found["best"])]
        lines.append([*setting, *numbers, " and ".join(str(row["undone"]) for row in pair)])
    return lines


def figure(rows: list[dict[str, Any]]) -> Figure:
    """Nats a row below the highest bound of each setting; a panel for N, M and batch, a line style a noise."""
    sizes = sorted({(row["N"], row["M"]) for row in rows})
    batches, noises = (sorted({row[name] for row in rows}) for name in ("batch", "noise"))
    picture = Figure(figsize=(1 + 3 * len(batches), 1 + 2.4 * len(sizes)), layout="constrained")
    grid = picture.subplots(len(sizes), len(batches), squeeze=False, sharex=True, sharey=True)
    for line, (N, M) in zip(grid, sizes, strict=True):
        for axes, B in zip(line, batches, strict=True):
            of = [pair for pair in pairs(rows) if (pair[0]["N"], pair[0]["M"], pair[0]["batch"]) == (N, M, B)]
            axes.set_title(f"N = {N}, M = {M}, batch {B}", fontsize="small")
            axes.set_visible(bool(of))
            for pair in of:
                top = max(compared(pair)["best"])
                for row in pair:
                    style = ("-", "--", ":")[noises.index(row["noise"]) % 3]
                    gap = np.maximum((top - np.array(row["bound"])) / N, 1e-5)
                    label = f"{row['rule']}, noise {row['noise']:g}"
                    axes.plot(row["steps"], gap, style, color="C3" if row["rule"] == "NGD" else "C0", label=label)
            if of:
                axes.set_yscale("log")
                axes.set_xscale("symlog", linthresh=20)
                axes.tick_params(labelbottom=True, labelleft=True)
    picture.supxlabel("steps", fontsize="medium")
    picture.supylabel("nats a row below the highest bound", fontsize="medium")
    grid[0, 0].legend(fontsize="x-small")
    return picture


def verdict(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """The four conclusions, one after the other."""
    names = ("M small", "M large, no minibatch", "M large, minibatch")
    of = {name: [compared(pair) for pair in pairs(rows) if group(pair[0]) == name] for name in names}
    faster = lambda found: found["steps"][0] < found["steps"][1]
    ratio = lambda found: max(found["steps"][0], 1) / max(found["steps"][1], 1)
    same = lambda found: abs(found["share"]) <= SHARE
    checks: dict[str, tuple[str, Callable]] = {
        "M small": ("NGD faster and no lower", lambda f: faster(f) and f["share"] >= -SHARE),
        "M large, no minibatch": (
            "NGD ahead at first, converged after as many steps (a factor of 2)",
            lambda f: f["early"] and 1 / SAME <= ratio(f) <= SAME,
        ),
        "M large, minibatch": ("NGD slower to the same optimum", lambda f: ratio(f) > 1 and same(f)),
    }
    text, good = [], []
    for name, (words, check) in checks.items():
        held = [check(found) for found in of[name]]
        if held:
            good.append(all(held))
            ratios = [ratio(found) for found in of[name]]
            text.append(f"{name}: {words} in {sum(held)} of {len(held)} settings (NGD takes {min(ratios):.2g} to ")
            text[-1] += f"{max(ratios):.2g} times Adam's steps to their common level)."
    if len(good) < len(names):
        return "untested", " ".join(["Settings are missing.", *text])
    winners = {name: {faster(found) for found in of[name]} for name in names}
    text.append(f"Who is faster is the same for all N and noises in {sum(len(w) == 1 for w in winners.values())} of 3.")
    agrees = all(good) and all(len(winner) == 1 for winner in winners.values())
    return ("agrees" if agrees else "disagrees"), " ".join(text)
