"""docs/performance.md, and the table of figures in README.md, from the stored rows of `results`.

    python benchmarks/performance.py

Each section answers one question by one table. A line names the run that it is from; the runs stand below the table.
Our number is bold where another library did better. `tests/test_documents.py` checks that both pages are up to date.
"""

import textwrap
from collections.abc import Callable, Sequence
from statistics import mean

from class_sections import (
    WHO,
    by_default,
    class_seconds,
    classes,
    classes_by_default,
    defaults_of_classes,
    splits,
)
from sections import (
    PEERS,
    ROOT,
    TITLES,
    Line,
    Row,
    Section,
    calibration,
    cold,
    exact_evidence,
    fastest,
    forecasts,
    laplace_evidence,
    marked,
    means,
    numbers,
    of,
    one_kernel,
    own,
    places,
    quality,
    selection,
    sessions,
    stored,
    suite,
    three,
    value,
)
from speed.tables import best_peer, by_case, exponents, show_seconds, table

PAGE, README = ROOT / "docs" / "performance.md", ROOT / "README.md"
BEGIN, END = "<!-- made by benchmarks/performance.py -->\n", "<!-- end -->\n"

ABOUT = """This page is made by `python benchmarks/performance.py` from the rows in `benchmarks/results`. **Our
number is bold where another library did better.** Each line names its run. The runs stand below the table, with
command, commit, date and machine. Compare times within a line only: machines and days differ from run to run.
[benchmarks/README.md](../benchmarks/README.md) says how everything is measured. *Log density* is the mean log
probability density of the targets of test rows, in nats; higher is better. Other words are in the
[glossary](glossary.md)."""

PICKED = (  # of README.md: suite, case, words
    ("steps", "gaussian ngd+adam M=500 B=1024", "a training step, 500 inducing points, batches of 1,024"),
    ("collapsed", "collapsed N=50000 M=500", "a pass over 50,000 rows, 500 inducing points"),
    ("predict", "predict rows=1000000", "a million predictions with standard deviations"),
    ("predict", "predict rows=1000", "1,000 predictions after a pause"),
    ("quality", "kin40k", "a fit of one kernel to kin40k, 36,000 rows"),
    ("quality", "magic", "the same, magic, two classes, 17,118 rows"),
    ("cold", "cold N=1000", "1,000 rows by default, a fresh process, to the first prediction"),
)


def comparison(rows: list[Row], libraries: Sequence[str], show: Callable[[Row], str]) -> list[Line]:
    """A line for each case: ours, the fastest variant of each other library, the best over ours."""
    lines = []
    for (case, _), group in by_case(rows).items():
        ours, peer = own(group), best_peer(group)
        others = [fastest(of(group, library)) for library in libraries]
        failed = [not other and bool(of(group, library)) for other, library in zip(others, libraries, strict=True)]
        cells = [case, marked(ours["seconds"], [value(o) for o in others], lambda _, ours=ours: show(ours))]
        cells += ["failed" if bad else show(other) if other else "–" for other, bad in zip(others, failed, strict=True)]
        lines.append(([*cells, f"{peer['seconds'] / ours['seconds']:.1f}×" if peer else "–"], group))
    return lines


def steps() -> Section:
    """Training steps."""
    rows = sorted(suite("steps"), key=lambda row: (row["M"], row["latents"]))
    return Section(
        "How long does a training step take?",
        """One minibatch step, M inducing points, B rows, 16 columns, float64. `ngd+adam` moves the posterior by a
        natural gradient and all else by Adam; `adam` moves all by Adam. `robustmax` and `softmax` have ten classes.
        Ours is the standard bound, which the others compute. The last column is the fastest other library over
        ours. [speed.md](../benchmarks/results/speed.md) has what was asked for, float32, and how far each step is
        from the arithmetic that it cannot avoid.""",
        ["step", "ours", *(TITLES[peer] for peer in PEERS), "ratio"],
        comparison(rows, PEERS, lambda row: show_seconds(row["seconds"])),
    )


def with_memory(row: Row) -> str:
    """Time and peak memory of the process."""
    return f"{show_seconds(row['seconds'])}, {row['peak_mb']:,.0f} MB"


def bounds() -> Section:
    """Collapsed bounds."""
    rows = sorted(suite("collapsed"), key=lambda row: (row["N"], row["calls"]))
    return Section(
        "How long does a pass over all rows take, and how much memory?",
        """Value and gradient of Titsias' collapsed bound, N rows, M inducing points, 16 columns, float64: what each
        iteration of `method="collapsed"` computes. Memory is the process's peak. Ours hardly grows with N, because
        rows go through in chunks.""",
        ["pass", "ours", *(TITLES[peer] for peer in PEERS), "ratio"],
        comparison(rows, PEERS, with_memory),
    )


def predictions() -> Section:
    """Predictions."""
    return Section(
        "How long does a prediction take, and how much memory?",
        """Mean and standard deviation, 500 inducing points, 16 columns, float64, by a model that another process
        fitted. “20 times” and “200 times” are calls in a row, per call; the others come after a pause. scikit-learn
        has no inducing points; it is the exact Gaussian process of 500 rows. [Decision
        0029](decisions/0029-distances-of-two-rows.md) came after these rows and makes a
        prediction of a single row slower; no stored row says by how much.""",
        ["prediction", "ours", *(TITLES[peer] for peer in (*PEERS, "sklearn")), "ratio"],
        comparison(suite("predict"), (*PEERS, "sklearn"), with_memory),
    )


def versions() -> Section:
    """Our steps and bounds beside those of an older version."""
    lines = []
    for row in {row["case"]: row for row in stored("ours")}.values():
        wall = row["milliseconds"]["wall"]
        times = [wall[who][1] for who in ("ours", "other")]
        cells = [row["case"], *(show_seconds(t / 1e3) for t in times), f"{times[0] / times[1]:.2f}"]
        lines.append(([*cells, row["other"]], [row]))
    return Section(
        "Are steps and passes as fast as in our first version?",
        """A step (500 inducing points, or as many as the name says) or a value and gradient of the collapsed bound by
        two checkouts in turn, 16 columns, float64, medians. A ratio above 1 is slower now.""",
        ["work", "now", "before", "now / before", "commit before"],
        lines,
    )


def growth() -> Section:
    """Exponents."""
    rows = suite("growth")
    about = {"M": "step, inducing points", "B": "step, rows of a batch", "D": "step, columns", "N": "pass, rows"}
    lines: list[Line] = []
    for symbol, found in exponents(rows).items():
        sizes = f"{found['sizes'][0]:,} to {found['sizes'][-1]:,}"
        times = f"{show_seconds(found['seconds'][0])} to {show_seconds(found['seconds'][-1])}"
        group = [row for row in rows if row["grows"] == symbol]
        lines.append(([about[symbol], sizes, times, f"{found['last']:.2f}"], group))
    return Section(
        "How does time grow?",
        """Our own step and pass, with the tight bound. The exponent is the slope on logarithmic axes of the last three
        sizes: 1 doubles the time with the size, 2 makes it four times as long.""",
        ["what grows", "from, to", "time", "exponent"],
        lines,
    )


REPORTED = {
    "command": "`pseudopoint fit --report`: two fits, the report",
    "command-once": "the same with `--no-refit`: one fit, the report",
    "estimator": "`GPRegressor().fit`, and its `effects`",
}


def reports() -> Section:
    """Reports beside their fits."""
    lines: list[Line] = []
    for row in {row["case"]: row for row in stored("report")}.values():
        fit, report = row["fit_processor"], row["report_processor"]
        parts = [row.get(f"{part}_processor") for part in ("effects", "importance", "pictures")]
        shown = [show_seconds(part) if part else "–" for part in parts]
        share = f"{100 * report / fit:.1f} %"
        lines.append(
            ([REPORTED[row["case"]], f"{row['rows']:,}", show_seconds(fit), show_seconds(report), share, *shown], [row])
        )
    return Section(
        "What does a report cost?",
        """Processor seconds of all threads, with 8 columns, compilation included where programs were not kept: of the
        fit, of the report after it, and of the report's parts. A fit of the command line is two: one without the rows
        held out, one with all rows.""",
        ["what", "rows", "fit", "report", "report / fit", "effects", "importance", "pictures and file"],
        lines,
    )


GPU_WORK = {
    "exact": "log evidence and gradient",
    "collapsed": "collapsed bound and gradient",
    "step": "100 minibatch steps",
    "fit": "whole fit",
}


def on_gpu() -> Section:
    """Beside GPyTorch on a GPU."""
    cases: dict[tuple, dict[str, Row]] = {}
    for row in stored("gpu"):
        case = (row["case"], row["N"], row.get("M"), row["dtype"])
        cases.setdefault(case, {})[row["who"]] = row
    seconds = lambda row: row["seconds"][1] if isinstance(row["seconds"], list) else row["seconds"]
    lines = []
    for (work, N, M, dtype), rows in cases.items():
        ours, exact, own_choice = (rows.get(who) for who in ("ours", "gpytorch, Cholesky", "gpytorch"))
        words = GPU_WORK[work] + (f", M = {M}" if M else "")
        peer = exact or own_choice or {}
        cells = [
            words,
            f"{N:,}",
            dtype,
            marked(seconds(ours), [seconds(peer)], show_seconds),
            show_seconds(seconds(peer)),
        ]
        told = [row and (row.get("log_density") if work == "fit" else row["value"]) for row in (ours, peer)]
        lines.append(([*cells, *map(three, told)], list(rows.values())))
    return Section(
        "And on a GPU?",
        """An H100, beside GPyTorch on the same arrays: by Cholesky factors where it can, as ours. The two right columns
        are the log evidence or bound a row of both, or for a fit the log density of new rows, so that a reader sees
        what was computed. Our two float32 rows were measured before products of full precision were asked for (decision
        0047): they are 0.001 off. The fit of 5,000 rows is L-BFGS-B to its end beside 50 steps of Adam, as GPyTorch's
        tutorial takes; that of 1,000,000 rows 2,000 natural steps beside 3,000 of Adam, both with M = 300.""",
        ["work", "rows", "dtype", "ours", "GPyTorch", "value: ours", "GPyTorch"],
        lines,
    )


SECTIONS = (
    *(quality, cold, numbers, calibration, forecasts, classes_by_default, classes, splits, class_seconds),
    *(defaults_of_classes, sessions, exact_evidence, laplace_evidence, steps, bounds, predictions, versions, growth),
    *(reports, places, on_gpu),
)


def wrapped(text: str) -> str:
    """Lines of at most 120 characters."""
    line = " ".join(text.split()).replace(" %", "\u00a0%")
    return textwrap.fill(line, 120, break_long_words=False, break_on_hyphens=False)


def show(section: Section) -> str:
    """A section, with a letter for each run."""
    letters: dict[tuple, str] = {}
    lines = []
    for cells, rows in section.lines:
        runs = [(row["machine"], row["date"], row["commit"], row["command"]) for row in rows]
        for run in runs:
            letters.setdefault(run, chr(ord("a") + len(letters)))
        lines.append([*cells, ", ".join(dict.fromkeys(letters[run] for run in runs))])
    runs = [f"- {letter}: `{run[3]}`; commit {run[2]}, {run[1]}; {run[0]}." for run, letter in letters.items()]
    parts = [f"## {section.title}", wrapped(section.text), table([*section.head, "run"], lines).rstrip()]
    return "\n\n".join([*parts, "\n".join(runs)]) + "\n"


def page() -> str:
    """docs/performance.md."""
    return "\n".join([f"# How fast, and how good\n\n{wrapped(ABOUT)}\n", *(show(make()) for make in SECTIONS)])


def summary() -> str:
    """The table in README.md: one number and one command a row."""
    lines = []
    for name, case, words in PICKED:
        rows = [row for row in suite(name) if row["case"] == case]
        key, density = ("total_seconds", ", log density {density:.3f}") if name == "cold" else ("seconds", "")
        ours = one_kernel(rows)[0] if name == "quality" else own(rows)
        peer = fastest([row for row in rows if row["library"] in PEERS], key) or {}
        cells = [words, marked(ours[key], [peer[key]], show_seconds) + density.format(**ours)]
        cells += [f"{TITLES[peer['library']]}, {show_seconds(peer[key])}" + density.format(**peer)]
        command = ours["command"].removeprefix("make benchmark OPTIONS=").strip("'").replace("|", "\\|")
        lines.append([*cells, f"`{command}`", ours["commit"]])
    tables = [means(each, "log_density") for each in selection().values()]
    trees = sum(max(row[3] or -99, row[4] or -99) > (row[0] or 0) for row in tables)
    labels = [[mean(row["test_log_density"] for row in each[who]) for who in WHO] for each in by_default().values()]
    behind = sum(max(others) > ours for ours, *others in labels)
    count = f"""Boosting or CatBoost has the higher log density on {trees} of {len(tables)} tables of numbers, and on
        {behind} of {len(labels)} tables of classes."""
    figures = table(["what", "pseudopoint", "fastest of the others", "options of the run", "commit"], lines)
    return f"{figures}\n{wrapped(count)}\n"


def with_summary(readme: str) -> str:
    """README.md with its table of figures made anew."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + summary() + END + after


def main() -> None:
    """Write both pages."""
    PAGE.write_text(page())
    README.write_text(with_summary(README.read_text()))


if __name__ == "__main__":
    main()
