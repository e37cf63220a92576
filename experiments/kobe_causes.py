"""Why is our grid not the thesis'? What it does not print, each in turn (Kobe 2021, figures 4.3 to 4.5).

The settings of `kobe_grid` with noise 0.01. The thesis does not say how large its natural steps are, nor how many data
sets it draws; that pseudo-points stay has to be gathered from its words (4.2.1). Hyperparameters start from all rows as
it says (4.1.3), where the lengthscale is the mean gap between inputs and so falls as 1/N; or from 100 rows whatever N.
`bound`, and the common level, as in `kobe_grid`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from pseudopoint.reproduce import Judgement, untested

from ._kobe import SHARE, along, compared, median, sinusoid, start
from ._rows import grouped, product

SOURCE = "ours: possible causes of a difference from Kobe 2021, figures 4.3 to 4.5"
PUBLISHED = (
    "No finding of its own. `kobe_grid` judges those of figures 4.3 to 4.5; does another choice of what the thesis "
    "does not print give those about few points and about minibatches, whatever N?",
)
CUT = {
    "": "One noise, no batches of 10,000 rows; points learned at N = 1000 alone; no step that costs M²(B + M) > 2e7."
}
NOTES = (
    "The thesis prints no size γ of a natural step, and it describes the start of the hyperparameters for N = 100 "
    "(4.1.3). Computed from all rows, the lengthscale starts at the mean gap between inputs, which is 0.0002 at "
    "N = 10,000. γ = 0.02 joined the sweep after 0.03 and 0.01 had each missed by a little."
)
TABLES = ()
LARGE = 100  # the thesis' large M
FEW = 100  # rows of the other start
LEARNED = 1000  # N where points are learned too
OWN, OTHER = "all rows", f"{FEW} rows"
Settings = dict[tuple[int, int], list[dict[str, Any]]]  # what was compared on each data set, by (M, batch)


@dataclass(frozen=True)
class Config:
    """As in `kobe_grid`, but for what the thesis leaves open."""

    N: tuple[int, ...] = (100, 1000, 10_000)
    M: tuple[int, ...] = (10, 100)
    batch: tuple[int, ...] = (10, 100, 1000)
    kinds: tuple[tuple[str, str], ...] = (("fixed", OWN), ("fixed", OTHER), ("learned", OWN))  # points, start
    gammas: tuple[float, ...] = (1.0, 0.1, 0.03, 0.02, 0.01)
    seeds: int = 3
    most: float = 2e7  # the largest M²(B + M)
    noise: float = 0.01
    steps: int = 10_000
    every: int = 20
    rate: float = 0.01
    start_noise: float = 0.1
    jitter: float = 1e-10


FULL = Config()
QUICK = Config(N=(100,), M=(10,), batch=(50,), kinds=(("fixed", OWN),), gammas=(0.1,), seeds=1, steps=200)
COUNTS = ("N", "M", "batch", "kinds", "gammas", "seeds", "most")


def cases(config: Config) -> list[dict[str, Any]]:
    """Adam (γ = 0), and every size of a natural step."""
    kinds = [{"points": points, "start": begin} for points, begin in config.kinds]
    sizes = {"N": config.N, "M": config.M, "batch": config.batch}
    every = product(kind=kinds, **sizes, seed=range(config.seeds), gamma=(0.0, *config.gammas))
    return [case.pop("kind") | case for case in every if _fits(**case, most=config.most)]


def _fits(kind: dict[str, str], N: int, M: int, batch: int, most: float, **_: Any) -> bool:
    """M < N, B ≤ N, no dearer than asked; and a start of 100 rows is another one, points are learned at N = 1000."""
    there = (kind["start"] == OWN or N > FEW) and (kind["points"] == "fixed" or N == LEARNED)
    return M < N and batch <= N and M**2 * (batch + M) <= most and there


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """The bound of all rows along the way."""
    few = sinusoid(FEW, config.noise, case["seed"])
    hyper = None if case["start"] == OWN else start(few, case["M"], config.start_noise)[0]
    data, learned = sinusoid(case["N"], config.noise, case["seed"]), case["points"] == "learned"
    return along(case["gamma"] or None, data, case["M"], case["batch"], config, learned, hyper)


def choices(rows: list[dict[str, Any]]) -> dict[tuple[str, str, int], dict[float, Settings]]:
    """A size beside Adam on each data set: by (points, start, N), then by γ."""
    found: dict[tuple[str, str, int], dict[float, Settings]] = {}
    for key, of in grouped(rows, "points", "start", "N").items():
        sizes = found.setdefault(key, {})
        for (M, batch, _), group in grouped(of, "M", "batch", "seed").items():
            adam = [row for row in group if not row["gamma"]]
            for row in group if adam else ():
                if row["gamma"]:
                    sizes.setdefault(row["gamma"], {}).setdefault((M, batch), []).append(compared((row, adam[0])))
    return found


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A line a setting, a column a size: NGD's steps over Adam's, and its lead at the end as a share of the climb."""
    gammas = sorted({row["gamma"] for row in rows if row["gamma"]}, reverse=True)
    lines = [["points", "start", "N", "M", "batch", *(f"γ = {gamma:g}" for gamma in gammas)]]
    for key, sizes in choices(rows).items():
        for setting in dict.fromkeys(setting for settings in sizes.values() for setting in settings):
            found = [sizes.get(gamma, {}).get(setting) for gamma in gammas]
            numbers = [f"{median(of, 'ratio'):.2g} ({median(of, 'share'):+.2g})" if of else "" for of in found]
            lines.append([*(str(value) for value in (*key, *setting)), *numbers])
    return lines


def figure(rows: list[dict[str, Any]]) -> Figure:
    """NGD's steps to the common level over Adam's, medians, against γ; a panel for points, start and N."""
    found = choices(rows)
    columns = min(len(found), 3) or 1
    picture = Figure(figsize=(1 + 3.2 * columns, 3.6 * -(-len(found) // columns) or 3.6), layout="constrained")
    grid = picture.subplots(-(-len(found) // columns) or 1, columns, squeeze=False, sharey=True)
    for axes in (panels := grid.ravel())[len(found) :]:
        axes.set_visible(False)
    for axes, ((points, begin, N), sizes) in zip(panels, found.items(), strict=False):
        curves: dict[tuple, list[tuple[float, float]]] = {}
        for gamma, settings in sizes.items():
            for setting, of in settings.items():
                curves.setdefault(setting, []).append((gamma, median(of, "ratio")))
        for (M, batch), way in curves.items():
            style, colour = ("o-" if M >= LARGE else "s--"), f"C{len(str(batch)) - 2}"
            axes.plot(*zip(*sorted(way), strict=True), style, color=colour, label=f"M = {M}, batch {batch}")
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel="γ")
        axes.set_title(f"N = {N}, points {points},\nstart from {begin}", fontsize="medium")
        axes.legend(fontsize="x-small")
    picture.supylabel("NGD's steps to the common level, over Adam's", fontsize="medium")
    return picture


def verdict(rows: list[dict[str, Any]]) -> list[Judgement]:
    """Is there a choice with which NGD is faster and no lower in all small settings, and slower to the same optimum in
    all large ones with minibatches, at every N? Medians over data sets."""
    found = choices(rows)
    wanted = {tuple(case[key] for key in ("points", "start", "N", "M", "batch", "gamma")) for case in cases(FULL)}
    there = {(*key, *at, g) for key, sizes in found.items() for g, settings in sizes.items() for at in settings}
    if {case for case in wanted if case[-1]} - there:
        return [untested("Settings are missing.")]
    both, words = {}, []
    for (points, begin, N), sizes in found.items():
        small = {g: _small(settings.items()) for g, settings in sizes.items()}
        large = {g: _large(settings.items(), N) for g, settings in sizes.items()}
        both[points, begin, N] = {g for g in sizes if small[g] and large[g]}
        text = f"N = {N}, points {points}, start from {begin}: with few points faster and no lower in all settings for "
        text += f"{_listed(g for g in sizes if small[g])}"
        if any(M >= LARGE and batch < N for M, batch in sizes[1.0]):
            text += (
                f", with many and minibatches slower to the same optimum for {_listed(g for g in sizes if large[g])}"
            )
        words.append(text)
    fixed = {begin: [both[key] for key in found if key[:2] == ("fixed", begin)] for begin in (OWN, OTHER)}
    everywhere = {begin: set.intersection(*gammas) for begin, gammas in fixed.items()}
    text = "Both findings hold at every N, in the median data set, with points fixed and, started from "
    text += f"{', from '.join(f'{begin}, {_listed(sorted(gs))}' for begin, gs in everywhere.items())}. "
    return [untested(text + ". ".join(words) + ".")]


def _small(settings: Iterable) -> bool:
    """With few points NGD is faster, and no lower."""
    small = [of for (M, _), of in settings if M < LARGE]
    return all(median(of, "ratio") < 1 and median(of, "share") >= -SHARE for of in small)


def _large(settings: Iterable, N: int) -> bool:
    """With many and minibatches NGD is slower, to the same optimum."""
    large = [of for (M, batch), of in settings if M >= LARGE and batch < N]
    return all(median(of, "ratio") > 1 and abs(median(of, "share")) <= SHARE for of in large)


def _listed(gammas: Iterable[float]) -> str:
    return "γ = " + ", ".join(f"{gamma:g}" for gamma in found) if (found := list(gammas)) else "no γ tried"
