"""What docs/performance.md says of whole fits, and how any of its sections is made from stored rows."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from speed.tables import by_case, show_seconds

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("gpflow", "gpytorch", "gpjax")
TITLES = {"gpflow": "GPflow", "gpytorch": "GPyTorch", "gpjax": "GPJax", "sklearn": "scikit-learn"}

Row = dict[str, Any]
Line = tuple[list[str], list[Row]]  # cells, and the rows that they are from


class Section(NamedTuple):
    """A question, what the numbers mean, and a table."""

    title: str
    text: str
    head: list[str]
    lines: list[Line]


def stored(name: str) -> list[Row]:
    """The rows of a file of results."""
    return [json.loads(line) for line in (ROOT / "benchmarks" / "results" / f"{name}.jsonl").read_text().splitlines()]


def suite(name: str, dtype: str = "float64") -> list[Row]:
    """The rows of a suite of `speed`."""
    return [row for row in stored("speed") if row["suite"] == name and row.get("dtype", "float64") == dtype]


def fastest(rows: Iterable[Row], key: str = "seconds") -> Row | None:
    """The row with the least time that has one; None if there is none."""
    return min((row for row in rows if row.get(key)), key=lambda row: row[key], default=None)


def value(row: Row | None, key: str = "seconds") -> float | None:
    """A number of a row, if there is such a row, and it has one."""
    return row.get(key) if row else None


def of(rows: Iterable[Row], library: str) -> list[Row]:
    """The rows of a library."""
    return [row for row in rows if row["library"].split()[0] == library]


def own(rows: Iterable[Row], variant: str = "") -> Row:
    """Our row: the standard bound, which peers have, or another variant."""
    return next(row for row in rows if row["library"] == "ours" and row["variant"] == variant)


def marked(own: float, others: Iterable[float | None], show: Callable[[float], str], least: bool = True) -> str:
    """Our number, bold where another one is better: less, or more."""
    sign = 1 if least else -1
    worse = any(sign * other < sign * own for other in others if other is not None)
    return f"**{show(own)}**" if worse else show(own)


def three(number: float | None) -> str:
    """Three decimals; a bar for none."""
    return "–" if number is None else f"{number:.3f}"


def one_kernel(rows: Iterable[Row]) -> tuple[Row, Row]:
    """Our fit of one kernel, and the same in float64: `effort="fast"`, or the default of versions without a search."""
    found = {row["variant"]: row for row in of(rows, "ours")}
    return (found["fast"], found["fast, float64"]) if "fast" in found else (found[""], found["float64"])


def quality() -> Section:
    """Time to the density that the best peer reached."""
    lines = []
    for (name, _), rows in by_case(suite("quality")).items():
        ours = one_kernel(rows)
        peers = [fastest(of(rows, peer)) for peer in PEERS]
        seconds = [value(row) for row in peers]
        cells = [name, f"{ours[0]['N']:,}", three(ours[0]["target"])]
        cells += [marked(row["seconds"], seconds, show_seconds) for row in ours]
        cells += [show_seconds(s) if s else "not reached" for s in seconds]
        lines.append((cells, rows))
    return Section(
        "How long does a fit of one kernel take?",
        """Seconds from raw arrays to a model whose test log density is what the best other library reached in 60
        seconds, less 1 %. Compilation counts, imports do not. Ours is `effort="fast"`, which fits one kernel, as the
        others do; versions before the search of [decision 0059](decisions/0059-search-by-evidence.md) did so by
        default. Our fits have no intermediate results, so our time is that of the shortest complete fit that gets
        there. A large table starts in float32; the other libraries compute in float64 throughout, as does the column
        “ours, float64”.""",
        ["table", "rows", "log density", "ours", "ours, float64", *(TITLES[peer] for peer in PEERS)],
        lines,
    )


def cold() -> Section:
    """First fit in a fresh process."""
    rows = suite("cold")
    others = [row for row in rows if row["library"] != "ours"]
    lines: list[Line] = []
    for ours in of(rows, "ours"):
        cells = ["ours", marked(ours["total_seconds"], [row["total_seconds"] for row in others], show_seconds)]
        cells += [marked(ours["density"], [row["density"] for row in others], three, least=False), ours["about"]]
        lines.append((cells, [ours]))
    for library in ("gpytorch", "gpflow", "gpjax", "sklearn"):
        row = min(of(rows, library), key=lambda row: row["total_seconds"])
        cells = [TITLES[library], show_seconds(row["total_seconds"]), three(row["density"]), row["about"]]
        lines.append((cells, [row]))
    return Section(
        "How long does the first fit of a small table take?",
        """1,000 rows, from the start of a Python process to the first prediction: import, compilation and fit. Each
        library fits as its first tutorial does. Less time with a lower log density is a worse fit, sooner. Our
        command line keeps compiled programs, so a second fit is faster than this.""",
        ["library", "seconds", "test log density", "what was run"],
        lines,
    )


WHO = ("default", "fast", "exact", "boosting", "catboost")


def selection() -> dict[str, dict[str, list[Row]]]:
    """By table and by who fitted it: the last row of each split that the default has."""
    last = {(row["table"], row["who"], row["seed"]): row for row in stored("selection") if not row.get("error")}
    found: dict[str, dict[str, list[Row]]] = {}
    for (name, who, seed), row in last.items():
        if (name, "default", seed) in last:
            found.setdefault(name, {}).setdefault(who, []).append(row)
    return {name: each for name, each in found.items() if len(each) > 1}


def means(each: dict[str, list[Row]], key: str) -> list[float | None]:
    """Means over the splits, in the order of `WHO`."""
    return [mean(row[key] for row in each[who]) if who in each else None for who in WHO]


def numbers() -> Section:
    """Our defaults beside boosting."""
    lines = []
    for name, each in selection().items():
        density, error = means(each, "log_density"), means(each, "rmse")
        first = each["default"][0]
        cells = [name, f"{first['N']:,}", str(len(each["default"])), marked(density[0] or 0, density[1:], three, False)]
        cells += [*map(three, density[1:]), marked(error[0] or 0, error[3:], three), *map(three, error[3:])]
        cells += [f"{100 * mean(row['coverage'][2] for row in each['default']):.0f} %"]
        cells += [f"{median(row['seconds'] for row in each['default']):.0f} s"]
        lines.append((cells, [row for rows in each.values() for row in rows]))
    ours = ["table", "rows", "splits", "log density: ours"]
    head = [*ours, "without search", "exact, without search", "boosting", "CatBoost"]
    return Section(
        "How good are predictions of numbers, beside trees?",
        """`GPRegressor()`, the same with `effort="fast"` and one noise variance (exact where that takes at most 4,000
        rows), HistGradientBoosting of scikit-learn with one error for all rows, measured on a tenth of the training
        rows, and CatBoost's RMSEWithUncertainty. Log density and RMSE are those of the standardised target, means over
        the splits. The last columns are the share of test rows in the 90 % interval, and the median of the seconds of
        our fit, in a fresh process; other work shared the machine in some runs, as the rows' `load` says. `magic:0` is
        a table with the first input column of magic as its target. Nothing was chosen by `adult:0`.""",
        [*head, "RMSE: ours", "boosting", "CatBoost", "in 90 %", "time"],
        lines,
    )


LEVELS = (50, 80, 90, 95)  # %, of `selection.py`


def calibration() -> Section:
    """The share of test rows in our intervals, by their level."""
    ours = {name: each["default"] for name, each in selection().items()}
    rows = [row for each in ours.values() for row in each]
    lines = []
    for i, level in enumerate(LEVELS):
        share = {name: 100 * mean(row["coverage"][i] for row in each) for name, each in ours.items()}
        furthest = sorted(share, key=lambda name, share=share: abs(share[name] - level))[-2:]
        others = mean(share[name] for name in share if name not in furthest)
        cells = [f"{level} %", f"{mean(share.values()):.1f} %", f"{others:.1f} %"]
        lines.append(([*cells, ", ".join(f"{name} {share[name]:.0f} %" for name in furthest)], rows))
    return Section(
        "Do its intervals hold what they promise?",
        """The share of test rows inside the central interval of `GPRegressor()`, mean over the tables above. Where most
        rows have one of few values, as in keggundirected, the density has a spike there, and an interval of any level
        holds them.""",
        ["level", "all tables", "without the two furthest off", "the two"],
        lines,
    )


def forecasts() -> Section:
    """A weekly series with a trend, by one line of the command line."""
    lines = []
    for row in {row["seed"]: row for row in stored("forecast")}.values():
        errors = [row[key] for key in ("rmse", "rmse_fitted_form", "rmse_truth")]
        ratios = [f"{errors[0] / other:.2f}" for other in errors[1:]]
        lines.append(
            (
                [str(row["seed"]), *map(three, errors), *ratios, f"{100 * row['coverage_90']:.0f} %", row["kernel"]],
                [row],
            )
        )
    return Section(
        "How good is a forecast by default?",
        """The last 100 of 400 days of a line, two waves of a week and noise of standard deviation 1, by one line of the
        command line, whose search is told of no week. Beside its RMSE that of the formula that made the series, its six
        numbers learned by least squares from the first 300 days, and that of the function without noise.""",
        ["seed", "RMSE: ours", "fitted formula", "truth", "ours / formula", "ours / truth", "in 90 %", "kernel chosen"],
        lines,
    )


def exact_evidence() -> Section:
    """Value and gradient beside LAPACK."""
    lines = []
    last = {row["N"]: row for row in stored("exact") if row["case"] == "value and gradient"}
    for row in last.values():
        ours, floor = row["ours"]["clock"][1], row["potrf + potri"]["clock"][1]
        peers = [row.get(who, {}).get("clock", [None] * 3)[1] for who in ("GPflow", "scikit-learn")]
        cells = [f"{row['N']:,}", *map(show_seconds, (ours, floor, *peers)), f"{ours / floor:.2f}"]
        lines.append((cells, [row]))
    return Section(
        "How long does the exact evidence take?",
        """Value and gradient for eight columns, float64, medians, beside LAPACK's factor and inverse of the same matrix
        (potrf and potri), which no method can avoid that has the gradient, and beside GPflow and scikit-learn.""",
        ["rows", "ours", "LAPACK", "GPflow", "scikit-learn", "ours over LAPACK"],
        lines,
    )


def laplace_evidence() -> Section:
    """Value and gradient of Laplace's approximation."""
    lines = []
    for row in {row["N"]: row for row in stored("exact") if row["case"] == "Laplace"}.values():
        sides = (row[who]["clock"][1] for who in ("ours", "one program", "scikit-learn"))
        lines.append(([f"{row['N']:,}", *map(show_seconds, sides)], [row]))
    return Section(
        "And Laplace's approximation?",
        """Value and gradient for two classes and eight columns, float64, medians; beside the same as one compiled
        program, which other devices run, and scikit-learn.""",
        ["rows", "ours", "one program", "scikit-learn"],
        lines,
    )


FIRST = "fa5e652"  # the version that the searches, warps and stopping rules of later ones are compared with


def sessions() -> Section:
    """A cross-validation, and fresh processes, by two efforts and by scikit-learn."""
    rows = stored("sessions")
    newest = {(row["case"], row["who"], row.get("process", "")): row for row in rows}
    lines, who = [], ("fast", "balanced", "sklearn")
    for case, process, key, title in (
        ("folds", "first", "seconds", "5 folds of 1,030 rows, nothing compiled before"),
        ("folds", "second", "seconds", "the same in a second process"),
        ("folds", "second", "warm_fold_seconds", "one of these folds again"),
        ("fresh", "", "process_seconds", "a process that fits 300 rows, of a size seen before"),
    ):
        found = [newest.get((case, name, process)) or newest[case, name, "first"] for name in who]
        cells = [show_seconds(row[key]) for row in found] + [f"{row['r2']:.2f}" for row in found]
        lines.append(([title, *cells], found))
    names = ['effort="fast"', "default", "scikit-learn"]
    return Section(
        "What do many fits cost, and a fresh process?",
        """The default searches for a kernel and warps in every fit. `effort="fast"` fits one kernel, as scikit-learn
        does. Compiled programs are kept on disk, so that a second process compiles nothing.""",
        ["what", *names, *(f"R²: {name}" for name in names)],
        lines,
    )


PLACES = {
    "collapsed-memory": "all rows in memory",
    "collapsed": "read from Parquet in each pass",
    "cluster-1": "one worker of Dask, one core",
    "cluster-2": "two workers of Dask, a core each",
}


def places() -> Section:
    """Full passes over rows in memory, on disk and on workers."""
    lines = []
    for row in stored("scale"):
        if row["case"] in PLACES:
            cells = [PLACES[row["case"]], f"{row['rows']:,}", str(row["M"]), show_seconds(row["seconds_each"])]
            lines.append(([*cells, f"{row['peak_mb']:,.0f} MB"], [row]))
    return Section(
        "What does a full pass cost where rows are not in memory?",
        """An iteration of L-BFGS-B on the collapsed bound, float64, eight columns. Memory is the peak of the process of
        the fit. In memory the features of a chunk are computed twice, for the sums and for their gradient; elsewhere
        three times, because the gradient of a chunk begins with its sums.""",
        ["rows are", "rows", "M", "seconds", "memory"],
        lines,
    )
