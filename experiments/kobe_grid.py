"""When is a natural step faster than Adam's? The grid N × M × batch × noise on the sinusoid (Kobe 2021, 4.3 to 4.5).

q and the hyperparameters are learned, from the thesis' start; points stay, for it counts them to neither (4.2.1).
"NGD": Adam's step on the hyperparameters, then a natural one on q, of size 1 without minibatches (as in figure 4.1) and
of 0.01 with them (the thesis does not print it: `kobe_causes`); "Adam": all in one. `bound` is that of all rows, in
nats, after `steps` steps. The common level of both rules is 1 % of the climb below the lower of their highest bounds;
the climb is from the start to the higher of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pseudopoint.reproduce import Judgement, judged, untested, within

from ._kobe import SHARE, along, compared, median, sinusoid
from ._rows import grouped, product

SOURCE = "Kobe 2021, figures 4.3 to 4.5"
PUBLISHED = (
    "The key factors are M and the batch size; N and noise do not matter.",
    "M small: NGD is always faster, to a better or identical bound.",
    "M large, no minibatch: NGD is faster in the beginning, and both converge after the same number of iterations.",
    "M large and minibatches: NGD is slower, and reaches the same optimum.",
)
CUT = {
    "most": "Settings whose step costs M²(B + M) > 2e7: all of M = 1000, and M = 100 with batches of 10,000 rows.",
    "": "N = 10 has no M < N. The thesis prints neither the step size of NGD nor the number of steps nor that of data "
    "sets. What it leaves open decides who is faster: `kobe_causes`.",
}
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
    steps: int = 10_000
    every: int = 20  # steps between two looks at the bound
    gammas: tuple[float, float] = (1.0, 0.01)  # on all rows; on minibatches
    seeds: int = 3
    rate: float = 0.01
    start_noise: float = 0.1
    jitter: float = 1e-10


FULL = Config(most=2e7)
QUICK = Config(N=(100,), M=(10,), noise=(0.01,), steps=200, seeds=1)
COUNTS = ("N", "M", "batch", "noise", "most", "seeds")


def cases(config: Config) -> list[dict[str, Any]]:
    """Both rules in every setting with M < N and B ≤ N."""
    sizes = {"N": config.N, "M": config.M, "batch": config.batch, "noise": config.noise}
    every = product(**sizes, seed=range(config.seeds), rule=RULES)
    fits = lambda N, M, batch, **_: M < N and batch <= N and M**2 * (batch + M) <= config.most
    return [case for case in every if fits(**case)]


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """The bound of all rows along the way."""
    gamma = config.gammas[case["batch"] < case["N"]] if case["rule"] == "NGD" else None
    return along(gamma, sinusoid(case["N"], case["noise"], case["seed"]), case["M"], case["batch"], config)


def pairs(rows: list[dict[str, Any]]) -> dict[tuple, list[tuple[dict[str, Any], dict[str, Any]]]]:
    """(NGD, Adam) on each data set that has both, by (N, M, batch, noise)."""
    found = {}
    for setting, of in grouped(rows, "N", "M", "batch", "noise").items():
        sets = [{row["rule"]: row for row in group} for group in grouped(of, "seed").values()]
        whole = [(rules["NGD"], rules["Adam"]) for rules in sets if set(RULES) <= set(rules)]
        if whole:
            found[setting] = whole
    return found


def group(N: int, M: int, batch: int, noise: float) -> str:
    """The thesis' three cases."""
    if M < LARGE:
        return "M small"
    return "M large, no minibatch" if batch == N else "M large, minibatch"


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A line a setting: steps and best bounds on each data set, medians of the rest."""
    lines = [
        ["case", "N", "M", "batch", "noise", "steps, NGD", "steps, Adam", "ratio", "best, NGD", "best, Adam", "lead"]
    ]
    for setting, of in pairs(rows).items():
        found = [compared(pair) for pair in of]
        steps = [", ".join(str(one["steps"][i]) for one in found) for i in (0, 1)]
        best = [", ".join(f"{one['best'][i]:.1f}" for one in found) for i in (0, 1)]
        numbers = [*steps, f"{median(found, 'ratio'):.2g}", *best, f"{median(found, 'share'):.2g}"]
        lines.append([group(*setting), *(str(value) for value in setting), *numbers])
    return lines


def figure(rows: list[dict[str, Any]]) -> Figure:
    """Nats a row below the highest bound of each first data set; a panel for N, M and batch, a line style a noise."""
    found = pairs(rows)
    sizes, batches, noises = (
        sorted({k[:2] for k in found}),
        sorted({k[2] for k in found}),
        sorted({k[3] for k in found}),
    )
    picture = Figure(figsize=(1 + 3 * len(batches), 1 + 2.4 * len(sizes)), layout="constrained")
    grid = picture.subplots(max(len(sizes), 1), max(len(batches), 1), squeeze=False, sharex=True, sharey=True)
    for line, (N, M) in zip(grid, sizes, strict=False):
        for axes, B in zip(line, batches, strict=False):
            of = {key[3]: whole[0] for key, whole in found.items() if key[:3] == (N, M, B)}
            axes.set_title(f"N = {N}, M = {M}, batch {B}", fontsize="small")
            axes.set_visible(bool(of))
            for noise, pair in of.items():
                top = max(compared(pair)["best"])
                for row in pair:
                    style = ("-", "--", ":")[noises.index(noise) % 3]
                    gap = np.maximum((top - np.array(row["bound"])) / N, 1e-5)
                    label = f"{row['rule']}, noise {noise:g}"
                    axes.plot(row["steps"], gap, style, color="C3" if row["rule"] == "NGD" else "C0", label=label)
            if of:
                axes.set_yscale("log")
                axes.set_xscale("symlog", linthresh=20)
                axes.tick_params(labelbottom=True, labelleft=True)
    picture.supxlabel("steps", fontsize="medium")
    picture.supylabel("nats a row below the highest bound", fontsize="medium")
    grid[0, 0].legend(fontsize="x-small")
    return picture


def verdict(rows: list[dict[str, Any]]) -> list[Judgement]:
    """The four conclusions, in every setting, over data sets."""
    names = ("M small", "M large, no minibatch", "M large, minibatch")
    of: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in names}
    for setting, whole in pairs(rows).items():
        where = "N = {}, M = {}, batch {}, noise {:g}".format(*setting)
        of[group(*setting)][where] = [compared(pair) for pair in whole]
    if not all(of.values()):
        return [untested("Settings are missing.")] * 4
    of_key = lambda key, name, sign=1.0: {
        where: [sign * float(np.log(one[key]) if key == "ratio" else one[key]) for one in found]
        for where, found in of[name].items()
    }
    small, large, batches = names
    ahead = {where: [2 * x - 1 for x in early] for where, early in of_key("early", large).items()}
    same = {f"{where}, ratio": within(logs, np.log(SAME)) for where, logs in of_key("ratio", large).items()}
    lower = {f"{where}, bound": [SHARE + x for x in shares] for where, shares in of_key("share", small).items()}
    equal = {f"{where}, bound": within(shares, SHARE) for where, shares in of_key("share", batches).items()}
    said = {name: spoken(of[name].values()) for name in names}
    unit = "log of the ratio of steps, or shares of the climb"
    factors = effects(rows)
    return [
        judged(
            {"": [main - other for main, other in factors]},
            "log of the ratio of steps",
            f"The ratio of NGD's steps to Adam's moves by a factor of {np.exp(np.mean([a for a, _ in factors])):.2g} "
            f"between the thesis' three cases, and by {np.exp(np.mean([b for _, b in factors])):.2g} with N or noise "
            "within one of them (means over data sets).",
        ),
        judged(of_key("ratio", small, -1.0) | lower, unit, said[small]),
        judged(ahead | same, "±1 for who is ahead, log of the ratio of steps", said[large]),
        judged(of_key("ratio", batches) | equal, unit, said[batches]),
    ]


def effects(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """On each data set, how far the mean log ratio of steps moves between the thesis' cases; and the most that it moves
    with N or with noise within one."""
    by: dict[int, list[tuple[str, int, float, float]]] = {}
    for (N, M, batch, noise), of in grouped(rows, "N", "M", "batch", "noise").items():
        for (seed,), both in grouped(of, "seed").items():
            rules = {row["rule"]: row for row in both}
            if set(RULES) <= set(rules):
                ratio = float(np.log(compared((rules["NGD"], rules["Adam"]))["ratio"]))
                by.setdefault(seed, []).append((group(N, M, batch, noise), N, noise, ratio))
    spread = lambda means: max(means) - min(means)
    out = []
    for found in by.values():
        kinds = {kind for kind, *_ in found}
        others = [spread(means([x for x in found if x[0] == kind], i).values()) for kind in kinds for i in (1, 2)]
        out.append((float(spread(means(found, 0).values())), float(max(others))))
    return out


def means(found: list[tuple[Any, ...]], place: int) -> dict[Any, float]:
    """The mean last entry, by the entry in this place."""
    return {key: float(np.mean([x[-1] for x in found if x[place] == key])) for key in {x[place] for x in found}}


def spoken(settings: Iterable[list[dict[str, Any]]]) -> str:
    """Medians over data sets, in words."""
    every = [{key: median(found, key) for key in ("ratio", "share", "early")} for found in settings]
    ratios, shares = [found["ratio"] for found in every], [found["share"] for found in every]
    fewer, early = sum(ratio < 1 for ratio in ratios), sum(found["early"] > 0.5 for found in every)
    return (
        f"Medians over data sets: NGD takes {min(ratios):.2g} to {max(ratios):.2g} times Adam's steps to their common "
        f"level ({np.median(ratios):.2g} in the middle), fewer in {fewer} of {len(every)} settings; its best bound is "
        f"{min(shares):+.2g} to {max(shares):+.2g} of the climb above Adam's; it is ahead at the first look in {early}."
    )
