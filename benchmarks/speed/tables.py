"""speed.md: what was measured, beside the best peer and the floor. A failure is a cell, and its reason a line."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Row = dict[str, Any]

# What is asked for, of all cases (in float64) of a suite whose name has the pattern: how many times as fast as the
# best peer, and at most how many floors; None where nothing is asked.
GOALS: tuple[tuple[str, str, float, float | None], ...] = (
    ("steps", r"ngd\+adam M=100 ", 4, 2.5),
    ("steps", r"ngd\+adam M=", 3.5, 2),
    ("steps", r" adam M=", 2, 2.5),
    ("collapsed", "", 3, 2),
    ("quality", "", 5, None),
    ("predict", r"rows=1(,|$)", 4, None),
    ("predict", r"rows=1000000$", 3, None),
)


def name_of(row: Row) -> str:
    """Library and variant."""
    return f"{row['library']} {row['variant']}".strip()


def show_seconds(seconds: float | None) -> str:
    """In ms below a second, three figures."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Markdown."""
    rows = [list(head), ["---"] * len(list(head)), *map(list, lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def best_peer(rows: list[Row], own: tuple[str, ...] = ("ours", "sklearn")) -> Row | None:
    """The fastest of the others that made it."""
    good = [row for row in rows if row["library"] not in own and row.get("seconds")]
    return min(good, key=lambda row: row["seconds"], default=None)


def cell(row: Row | None) -> str:
    """Median and half the interquartile range, or that it failed."""
    if row is None:
        return "–"
    if "error" in row:
        return "failed"
    text = show_seconds(row.get("seconds"))
    if row.get("q3") and row.get("repeats", 0) > 1:
        text += f" ± {50 * (row['q3'] - row['q1']) / row['seconds']:.0f} %"
    return text


def by_case(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows of each case and precision, in order."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["case"], row.get("dtype", "float64")), []).append(row)
    return found


def comparison(rows: list[Row], extra: Callable[[Row], str] | None = None) -> str:
    """A line a case: everybody, best peer over ours, ours over its floor."""
    names = list(dict.fromkeys(name_of(row) for row in rows))
    head = ["case", *names, "best peer", "peer / ours", "ours / floor", "tight / floor", "floor (strict)"]
    lines = []
    for (case, dtype), group in by_case(rows).items():
        named = {name_of(row): row for row in group}
        ours, tight, peer = named.get("ours"), named.get("ours tight"), best_peer(group)
        ratio = peer["seconds"] / ours["seconds"] if peer and ours and ours.get("seconds") else None
        cells = [cell(named.get(n)) + (extra(named[n]) if extra and n in named else "") for n in names]
        over = [f"{r['ratio_to_floor']:.2f}" if r and "ratio_to_floor" in r else "–" for r in (ours, tight)]
        own = ours or group[0]
        floor = f"{show_seconds(own.get('floor_seconds'))} ({show_seconds(own.get('strict_floor_seconds'))})"
        title = case + ("" if dtype == "float64" else f" {dtype}")
        lines.append([title, *cells, name_of(peer) if peer else "–", f"{ratio:.2f}×" if ratio else "–", *over, floor])
    return table(head, lines)


def memory(row: Row) -> str:
    """Peak memory of the process, and what it held before."""
    return f", {row['peak_mb']:.0f} MB ({row['base_mb']:.0f})" if row.get("peak_mb") and row.get("base_mb") else ""


def compile_table(rows: list[Row]) -> str:
    """First turns: tracing and compilation."""
    names = list(dict.fromkeys(name_of(row) for row in rows))
    lines = []
    for (case, _), group in by_case(rows).items():
        named = {name_of(row): row for row in group}
        lines.append([case, *(show_seconds(named.get(n, {}).get("compile_seconds")) for n in names)])
    return table(["case", *names], lines)


def likeness_table(rows: list[Row]) -> str:
    """Values at the start and after ten natural steps."""
    number = lambda value, form: "–" if value is None else format(value, form)
    lines = [
        [row["case"], name_of(row), number(row.get("value"), ".10g"), number(row.get("difference"), ".1e"),
         number(row.get("end_value"), ".10g"), number(row.get("end_difference"), ".1e"), row.get("error", "")]
        for row in rows
    ]  # fmt: skip
    return table(["case", "library", "bound", "apart", "after 10 steps", "apart", "failure"], lines)


def cold_table(rows: list[Row]) -> str:
    """Import and first fit."""
    lines = [
        [name_of(row), show_seconds(row.get("import_seconds")), show_seconds(row.get("seconds")),
         show_seconds(row.get("total_seconds")), f"{row.get('density') or np.nan:.3f}",
         row.get("about", ""), row.get("error", "")]
        for row in rows
    ]  # fmt: skip
    head = ["library", "import, fresh process", "first fit", "process start to prediction", "test log density"]
    return table([*head, "what", "failure"], lines)


def quality_table(rows: list[Row]) -> str:
    """Seconds to the target."""
    lines = []
    for (case, _), group in by_case(rows).items():
        peer = best_peer(group)
        for row in group:
            density = row.get("density")
            own = row["library"] == "ours" and peer and row.get("seconds")
            ratio = f"{peer['seconds'] / row['seconds']:.2f}×" if own else ""
            default = show_seconds(row.get("whole_seconds")) if row["library"] == "ours" else ""
            reached = show_seconds(row["seconds"]) if row.get("seconds") else row.get("error", "not reached")
            lines.append([case, name_of(row), f"{row.get('target', np.nan):.4f}", reached, ratio, default,
                          f"{density:.4f}" if density is not None else "–"])  # fmt: skip
    head = ["table", "who", "target", "seconds to it", "best peer / ours", "whole fit", "density at the end"]
    return table(head, lines)


def exponents(rows: list[Row]) -> dict[str, dict[str, Any]]:
    """Of each growing number: sizes, seconds, and slopes on log axes, of all points and of the last three."""
    found = {}
    for symbol in dict.fromkeys(row["grows"] for row in rows):
        points = [row for row in rows if row["grows"] == symbol and row.get("seconds")]
        if len(points) < 2:
            continue
        x, y = (np.log([float(row[name]) for row in points]) for name in ("size", "seconds"))
        floor = np.log([row["floor_seconds"] for row in points])
        slope = lambda y, k, x=x: float(np.polyfit(x[-k:], y[-k:], 1)[0])
        found[symbol] = {"sizes": [row["size"] for row in points], "seconds": [row["seconds"] for row in points],
                         "floor": [row["floor_seconds"] for row in points],
                         "all": slope(y, len(x)), "last": slope(y, 3), "floor_last": slope(floor, 3)}  # fmt: skip
    return found


def growth_table(rows: list[Row]) -> str:
    """Sizes, seconds and exponents."""
    lines = []
    for symbol, found in exponents(rows).items():
        seconds = ", ".join(f"{s}: {show_seconds(t)}" for s, t in zip(found["sizes"], found["seconds"], strict=True))
        lines.append([symbol, seconds, *(f"{found[name]:.2f}" for name in ("all", "last", "floor_last"))])
    return table(["grows", "seconds", "exponent", "of the last three", "the floor's, of the last three"], lines)


def goals_table(rows: list[Row]) -> str:
    """Every case of which something is asked: what, and what there is, in bold where it is not reached; and how many
    times as fast as the best peer the floor itself is."""
    lines = []
    for (case, dtype), group in by_case([row for row in rows if "suite" in row]).items():
        goal = next((g for g in GOALS if g[0] == group[0]["suite"] and re.search(g[1], case)), None)
        ours = next((row for row in group if name_of(row) == "ours" and row.get("seconds")), None)
        peer = best_peer(group)
        if goal is None or ours is None or peer is None or dtype != "float64":
            continue
        _, _, times, floors = goal
        ratio, over = peer["seconds"] / ours["seconds"], ours.get("ratio_to_floor")
        bold = lambda value, reached: f"{value:.2f}" if reached else f"**{value:.2f}**"
        to_floor = ["–", "–", "–"]
        if floors is not None and over is not None:
            to_floor = [f"{ratio * over:.2f}", f"{floors:g}", bold(over, over <= floors)]
        lines.append([case, f"{times:g}", bold(ratio, ratio >= times), *to_floor])
    head = ["case", "best peer / ours, asked", "measured", "best peer / floor", "ours / floor, asked", "measured"]
    return table(head, lines)


def failures(rows: list[Row]) -> str:
    """Every failure, with its reason."""
    lines = [f"- {row['case']}, {name_of(row)}: {row['error']}" for row in rows if "error" in row]
    return "\n".join(lines) + "\n" if lines else "None.\n"


SECTIONS: dict[str, tuple[str, Callable[[list[Row]], str]]] = {
    "likeness": (
        "Like with like: bounds at the start and after ten steps (γ = 0.02), without Adam and with it",
        likeness_table,
    ),
    "steps": ("One training step", comparison),
    "collapsed": (
        "Collapsed bound, value and gradient; peak memory (before the start)",
        lambda r: comparison(r, memory),
    ),
    "quality": ("Time to quality", quality_table),
    "predict": (
        "Prediction, mean and standard deviation; peak memory (before the start)",
        lambda r: comparison(r, memory),
    ),
    "cold": ("Import and first fit", cold_table),
    "growth": ("Growth of our step (tight) and of our collapsed bound (N)", growth_table),
}


def report(rows: list[Row], about: str) -> str:
    """The whole file."""
    parts = ["# Speed\n", about]
    parts += [
        "## Asked for and measured\n",
        "Bold is not reached; README.md has why, and what was tried. Where `best peer / floor` is less than what is "
        "asked of us, the arithmetic alone takes longer than that, at the rates measured before the case.\n",
        goals_table(rows),
    ]
    for suite, (title, show) in SECTIONS.items():
        own = [row for row in rows if row["suite"] == suite]
        if own:
            parts += [f"## {title}\n", show(own)]
            if suite == "steps":
                parts += ["Compilation and tracing (first turn less the median of the others):\n", compile_table(own)]
    return "\n".join([*parts, "## Failures\n", failures(rows)])
