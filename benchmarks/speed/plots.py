"""Two small pictures: steps.png, everybody beside the floor; growth.png, our exponents."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullLocator
from tables import by_case, exponents, name_of

COLOURS = {
    "ours": "#0b6e4f", "ours tight": "#74c69d", "gpflow": "#e07a1f", "gpytorch whitened": "#c1121f",
    "gpytorch unwhitened": "#e5989b", "gpjax": "#3a5a9b", "gpjax dual": "#9bb1d4",
}  # fmt: skip


def steps(rows: list[dict[str, Any]], path: Path) -> None:
    """Milliseconds of a step on a log axis; a black line at each case's floor."""
    groups = by_case(rows)
    names = list(dict.fromkeys(name_of(row) for row in rows))
    figure, axes = plt.subplots(figsize=(9, 0.55 * len(groups) + 1.2))
    height = 0.8 / len(names)
    for i, group in enumerate(groups.values()):
        for row in group:
            if "seconds" in row:
                at = i - 0.4 + height * names.index(name_of(row))
                axes.barh(at, 1e3 * row["seconds"], height, align="edge", color=COLOURS.get(name_of(row), "#888888"))
        ours = next((row for row in group if row["library"] == "ours"), None)
        if ours is not None:
            axes.plot([1e3 * ours["floor_seconds"]] * 2, [i - 0.42, i + 0.42], color="black", linewidth=1.5)
    axes.set_yticks(range(len(groups)), [f"{case} {dtype}".removesuffix(" float64") for case, dtype in groups])
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("ms a step; black: the floor (standard bound)")
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS.get(name, "#888888")) for name in names]
    axes.legend(handles, names, fontsize=7, loc="upper center", bbox_to_anchor=(0.4, 1.0), ncols=4, frameon=False)
    axes.set_ylim(len(groups) - 0.4, -1.4)
    _save(figure, path)


def growth(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds against what grows, with the exponent of the last three points."""
    found = exponents(rows)
    figure, panels = plt.subplots(1, len(found), figsize=(3 * len(found), 2.8), squeeze=False)
    for axes, (symbol, curve) in zip(panels[0], found.items(), strict=True):
        x = np.array(curve["sizes"], float)
        axes.loglog(
            x, 1e3 * np.array(curve["seconds"]), "o-", color=COLOURS["ours"], label=f"exponent {curve['last']:.2f}"
        )
        axes.loglog(x, 1e3 * np.array(curve["floor"]), ":", color="black", label="floor")
        axes.set_xticks(x, [f"{size:g}" for size in x], fontsize=7, rotation=30)
        axes.set_xlabel(symbol)
        axes.tick_params(axis="y", which="both", labelsize=7)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.legend(fontsize=7, frameon=False)
    panels[0][0].set_ylabel("ms")
    _save(figure, path)


def _save(figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)
