"""Why is our grid not the thesis'? What it does not print, each in turn (Kobe 2021, figures 4.3 to 4.5).

The setting of `kobe_grid` at N = 1000 and noise 0.01. The thesis does not say how large its natural steps are, nor how
many data sets it draws; that pseudo-points stay has to be gathered from its words (4.2.1). `bound`, and the common
level of a natural step's size and Adam, as in `kobe_grid`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ._kobe import SHARE, along, compared, median, sinusoid
from ._rows import grouped, product

SOURCE = "ours: possible causes of a difference from Kobe 2021, figures 4.3 to 4.5"
PUBLISHED = (
    "M small: NGD is always faster than Adam, reaching a better or identical bound. M large and minibatches: NGD is "
    "slower, and reaches the same optimum. With learned points and natural steps of 0.1 neither is so in full. Does "
    "another choice of what the thesis does not print give both?"
)
CUT = "One N, one noise."
TABLES = ()
LARGE = 100  # the thesis' large M


@dataclass(frozen=True)
class Config:
    """As in `kobe_grid`, but for what the thesis leaves open."""

    M: tuple[int, ...] = (10, 100)
    batch: tuple[int, ...] = (10, 100, 1000)
    points: tuple[str, ...] = ("learned", "fixed")
    gammas: tuple[float, ...] = (1.0, 0.1, 0.03, 0.02, 0.01)
    seeds: int = 3
    N: int = 1000
    noise: float = 0.01
    steps: int = 10_000
    every: int = 20
    rate: float = 0.01
    start_noise: float = 0.1
    jitter: float = 1e-10


FULL = Config()
QUICK = Config(M=(10,), batch=(50,), points=("fixed",), gammas=(0.1,), seeds=1, N=100, steps=200)
COUNTS = ("M", "batch", "points", "gammas", "seeds")


def cases(config: Config) -> list[dict[str, Any]]:
    """Adam (γ = 0), and every size of a natural step."""
    kinds = {"points": config.points, "seed": range(config.seeds)}
    return product(M=config.M, batch=config.batch, **kinds, gamma=(0.0, *config.gammas))


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """The bound of all rows along the way."""
    data = sinusoid(config.N, config.noise, case["seed"])
    learned = case["points"] == "learned"
    return along(case["gamma"] or None, data, case["M"], case["batch"], config, learned)


def choices(rows: list[dict[str, Any]]) -> dict[tuple, dict[tuple, list[dict[str, Any]]]]:
    """A size beside Adam on each data set: by (points, γ), then by (M, batch)."""
    found: dict[tuple, dict[tuple, list[dict[str, Any]]]] = {}
    for (points, M, batch, _), group in grouped(rows, "points", "M", "batch", "seed").items():
        adam = [row for row in group if not row["gamma"]]
        for row in group if adam else ():
            if row["gamma"]:
                settings = found.setdefault((points, row["gamma"]), {})
                settings.setdefault((M, batch), []).append(compared((row, adam[0])))
    return found


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A line a choice and setting: medians over data sets."""
    lines = [["points", "γ", "M", "batch", "NGD's steps over Adam's", "NGD's lead at the end, of the climb"]]
    for (points, gamma), settings in choices(rows).items():
        for (M, batch), found in settings.items():
            numbers = f"{median(found, 'ratio'):.2g}", f"{median(found, 'share'):.2g}"
            lines.append([points, f"{gamma:g}", str(M), str(batch), *numbers])
    return lines


def figure(rows: list[dict[str, Any]]) -> Figure:
    """NGD's steps to the common level over Adam's, medians, against γ; a panel for learned and one for fixed points."""
    found = choices(rows)
    kinds = list(dict.fromkeys(key[0] for key in found))
    picture = Figure(figsize=(1 + 3.5 * len(kinds), 4), layout="constrained")
    panels = picture.subplots(1, max(len(kinds), 1), squeeze=False, sharey=True)[0]
    for axes, kind in zip(panels, kinds, strict=False):
        curves: dict[tuple, list[tuple[float, float]]] = {}
        for key, settings in found.items():
            for setting, of in settings.items() if key[0] == kind else ():
                curves.setdefault(setting, []).append((key[1], median(of, "ratio")))
        for (M, batch), points in curves.items():
            style = "o-" if M >= LARGE else "s--"
            axes.plot(*zip(*sorted(points), strict=True), style, label=f"M = {M}, batch {batch}")
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel="γ", title=f"points {kind}")
    panels[0].set_ylabel("NGD's steps to the common level, over Adam's")
    if kinds:
        panels[0].legend(fontsize="small")
    return picture


def verdict(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """Is there a choice with which NGD is faster and no lower in all small settings, and slower to the same optimum in
    all large ones with batches? Medians over data sets."""
    found = choices(rows)
    wanted = {(M, batch) for M in FULL.M for batch in FULL.batch}
    if not found or any(set(settings) != wanted for settings in found.values()):
        return "untested", "Settings are missing."
    both, words = [], []
    for (points, gamma), settings in found.items():
        small = [group for (M, _), group in settings.items() if M < LARGE]
        large = [group for (M, batch), group in settings.items() if M >= LARGE and batch < max(FULL.batch)]
        ratios = [[median(group, "ratio") for group in groups] for groups in (small, large)]
        name = f"points {points}, γ = {gamma:g}"
        words.append(f"{name}: {min(ratios[0]):.2g} to {max(ratios[0]):.2g} and ")
        words[-1] += f"{min(ratios[1]):.2g} to {max(ratios[1]):.2g}"
        no_lower = min(median(group, "share") for group in small) >= -SHARE
        same = max(abs(median(group, "share")) for group in large) <= SHARE
        if max(ratios[0]) < 1 < min(ratios[1]) and no_lower and same:
            both.append(name)
    text = (
        f"Both findings hold in full, in the median data set, with {'; '.join(both) or 'none of these choices'}. NGD's "
    )
    text += f"steps to the common level over Adam's, M small, and M large with minibatches: {'; '.join(words)}."
    return ("agrees" if both else "disagrees"), text
