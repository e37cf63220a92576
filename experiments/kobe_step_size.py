"""Is our grid not the thesis' for the size of natural steps, which it does not print? (Kobe 2021, figures 4.3 to 4.5.)

The setting of `kobe_grid` at N = 1000 and noise 0.01, with natural steps of four sizes. `bound`, and the common level
of a size and Adam, as there.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ._kobe import along, compared, sinusoid
from ._rows import grouped, product

SOURCE = "ours: a possible cause of a difference from Kobe 2021, figures 4.3 to 4.5"
PUBLISHED = (
    "M small: NGD is always faster than Adam. M large and minibatches: NGD is slower, and reaches the same optimum. "
    "In `kobe_grid`, with natural steps of 0.1, the second is not so. Does one size give both?"
)
CUT = "One N, one noise, one data set."
TABLES = ()
LARGE = 100  # the thesis' large M


@dataclass(frozen=True)
class Config:
    """As in `kobe_grid`."""

    M: tuple[int, ...] = (10, 100)
    batch: tuple[int, ...] = (10, 100, 1000)
    gammas: tuple[float, ...] = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.01, 0.001)
    N: int = 1000
    noise: float = 0.01
    steps: int = 5000
    every: int = 20
    rate: float = 0.01
    start_noise: float = 0.1
    jitter: float = 1e-10


FULL = Config()
QUICK = Config(M=(10,), batch=(50,), gammas=(0.1, 0.001), N=100, steps=200)
COUNTS = ("M", "batch", "gammas")


def cases(config: Config) -> list[dict[str, Any]]:
    """Adam (γ = 0), and every size of a natural step."""
    return product(M=config.M, batch=config.batch, gamma=(0.0, *config.gammas))


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """The bound of all rows along the way."""
    return along(case["gamma"] or None, sinusoid(config.N, config.noise, 0), case["M"], case["batch"], config)


def pairs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every size beside Adam in its setting."""
    found = []
    for of in grouped(rows, "M", "batch").values():
        adam = [row for row in of if not row["gamma"]]
        found += [compared((row, adam[0])) for row in of if row["gamma"] and adam]
    return found


def ratio(found: dict[str, Any]) -> float:
    """NGD's steps to the common level, over Adam's."""
    return max(found["steps"][0], 1) / max(found["steps"][1], 1)


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A line a setting and size."""
    lines = [["M", "batch", "γ", "steps, NGD", "steps, Adam", "ratio", "best, NGD", "best, Adam"]]
    for found in pairs(rows):
        setting = [str(found["of"][name]) for name in ("M", "batch", "gamma")]
        cells = [*(str(steps) for steps in found["steps"]), f"{ratio(found):.2g}"]
        lines.append([*setting, *cells, *(f"{bound:.1f}" for bound in found["best"])])
    return lines


def figure(rows: list[dict[str, Any]]) -> Figure:
    """NGD's steps to the common level over Adam's, against γ."""
    picture = Figure(figsize=(6, 4), layout="constrained")
    axes = picture.subplots()
    settings: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for found in pairs(rows):
        settings.setdefault((found["of"]["M"], found["of"]["batch"]), []).append((found["of"]["gamma"], ratio(found)))
    for (M, batch), points in settings.items():
        style = "o-" if M >= LARGE else "s--"
        axes.plot(*zip(*sorted(points), strict=True), style, label=f"M = {M}, batch {batch}")
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="γ", ylabel="NGD's steps to the common level, over Adam's")
    if settings:
        axes.legend(fontsize="small")
    return picture


def verdict(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """Is there one γ with which NGD is faster in all small settings, and slower in all large ones with batches?"""
    by_size: dict[float, tuple[list[float], list[float]]] = {}
    for found in pairs(rows):
        of, (small, large) = found["of"], by_size.setdefault(found["of"]["gamma"], ([], []))
        if of["M"] < LARGE:
            small.append(ratio(found))
        elif of["batch"] < max(FULL.batch):
            large.append(ratio(found))
    whole = len(FULL.batch), len(FULL.batch) - 1
    if not by_size or any((len(small), len(large)) != whole for small, large in by_size.values()):
        return "untested", "Settings are missing."
    words = [
        f"γ = {gamma:g}: M small {min(small):.2g} to {max(small):.2g}, M large with minibatches {min(large):.2g} to "
        f"{max(large):.2g}"
        for gamma, (small, large) in sorted(by_size.items())
    ]
    slower = [gamma for gamma, (_, large) in by_size.items() if min(large) > 1]
    both = [gamma for gamma in slower if max(by_size[gamma][0]) < 1]
    text = f"NGD's steps to the common level over Adam's. {'; '.join(words)}. With M large NGD is slower for "
    text += f"{len(slower)} of {len(by_size)} sizes, and for {len(both)} of them it is faster with M small."
    return ("agrees" if both else "disagrees"), text
