"""One HTML file that says how good a fit is: numbers, pictures and notes, with nothing to fetch from anywhere.

Pictures are PNG inside the file, drawn on `Figure` objects (never pyplot, which is global state); the bars of the
feature relevance are HTML, because names of columns may be of any length and in any script.
"""

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike

import numpy as np
from jaxtyping import Real
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pseudopoint.metrics import calibration, coverage
from pseudopoint.tables import whole_file

__all__ = ["Report", "write_report"]

MAX_POINTS = 2000  # more points hide each other and make the file large
MAX_FEATURES = 20
FAR = 6.0  # standard deviations; residuals beyond are drawn here

BLUE, ORANGE, GREY, INK = "#2563a8", "#d9650b", "#9aa3af", "#1f2733"

Rows = Real[np.ndarray, "N"]


@dataclass(frozen=True)
class Report:
    """What a report shows, as plain data; a part without data is left out.

    `summary` holds (label, value) pairs. `history` holds (step, bound, seconds since the start). `y`, `mean`, `std`,
    `lower` and `upper` [N] are the N test rows in the units of the target: truth, prediction, its standard deviation
    and the interval that should hold the share `level` of the truths. `relevance` holds (feature, 1 / lengthscale) for
    inputs of unit scale. `bound` and `upper_bound` enclose the log evidence of `rows` training rows, in nats; `advice`
    says in a sentence whether more inducing points would help.
    """

    title: str
    summary: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    history: Sequence[tuple[int, float, float]] = ()
    y: Rows | None = None
    mean: Rows | None = None
    std: Rows | None = None
    lower: Rows | None = None
    upper: Rows | None = None
    level: float = 0.9
    relevance: Sequence[tuple[str, float]] = ()
    bound: float | None = None
    upper_bound: float | None = None
    rows: int | None = None
    advice: str = ""


def write_report(path: str | PathLike[str], report: Report) -> None:
    """Writes `report` to `path` as one self-contained HTML file, whole or not at all.

    Raises `TableError` if the file cannot be made there.
    """
    sections = [_summary(report), _predictions(report), _bounds(report), _training(report), _relevance(report)]
    body = "\n".join(section for section in [*sections, _notes(report)] if section)
    page = PAGE.format(title=escape(report.title), style=STYLE, body=body)
    with whole_file(path) as file:
        file.write(page.encode())


# ---- Sections --------------------------------------------------------------------------------------------------------


def _summary(report: Report) -> str:
    rows = "".join(f"<tr><th>{escape(label)}</th><td>{escape(value)}</td></tr>" for label, value in report.summary)
    return _section("Summary", f"<table>{rows}</table>") if rows else ""


def _predictions(report: Report) -> str:
    arrays = (report.y, report.mean, report.std, report.lower, report.upper)
    if any(array is None for array in arrays):
        return ""
    rows = np.column_stack([np.asarray(array, np.float64) for array in arrays])
    rows = rows[np.isfinite(rows).all(axis=1) & (rows[:, 2] > 0.0)]
    if len(rows) == 0:
        return ""
    y, mean, std, lower, upper = rows.T
    figures = [
        _actual_figure(y, mean, lower, upper, report.level),
        _residual_figure((y - mean) / std),
        _calibration_figure(y, mean, std),
    ]
    return _section(f"Predictions on {len(y):,} test row{'' if len(y) == 1 else 's'}", _grid(figures))


def _bounds(report: Report) -> str:
    if report.bound is None or report.upper_bound is None:
        return _section("More inducing points?", _paragraph(report.advice)) if report.advice else ""
    gap = report.upper_bound - report.bound
    per_row = f", {gap / report.rows:.3g} nats a row" if report.rows else ""
    sentence = (
        f"The log evidence lies between the bound {report.bound:,.1f} and the upper bound {report.upper_bound:,.1f}: "
        f"a gap of {gap:,.1f} nats{per_row}."
    )
    return _section("More inducing points?", _paragraph(sentence) + _paragraph(report.advice))


def _training(report: Report) -> str:
    history = np.array([entry for entry in report.history if np.isfinite(entry).all()], np.float64).reshape(-1, 3)
    if len(history) < 2:
        return ""
    step, bound, seconds = history.T
    return _section("Training", _grid([_bound_figure(step, bound, "step"), _bound_figure(seconds, bound, "seconds")]))


def _relevance(report: Report) -> str:
    ranked = sorted((pair for pair in report.relevance if np.isfinite(pair[1])), key=lambda pair: -pair[1])
    if not ranked:
        return ""
    largest = max(ranked[0][1], 1e-300)
    bars = "".join(
        f'<tr><th>{escape(name)}</th><td><div class="bar" style="width:{max(100 * value / largest, 0.4):.1f}%"></div>'
        f"</td><td>{value:.3g}</td></tr>"
        for name, value in ranked[:MAX_FEATURES]
    )
    rest = f" The other {len(ranked) - MAX_FEATURES:,} are smaller." if len(ranked) > MAX_FEATURES else ""
    meaning = f"1 / lengthscale, the inputs scaled to unit variance: the larger, the faster the target changes.{rest}"
    return _section("Relevance of the inputs", f'{_paragraph(meaning)}<table class="bars">{bars}</table>')


def _notes(report: Report) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return _section("Notes", f"<ul>{items}</ul>") if items else ""


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>" if text else ""


def _grid(figures: Iterable[tuple[Figure, str, str]]) -> str:
    return f'<div class="grid">{"".join(_picture(*figure) for figure in figures)}</div>'


def _picture(figure: Figure, caption: str, alt: str) -> str:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=160, metadata={"Software": None})
    data = base64.b64encode(image.getvalue()).decode()
    source = f'src="data:image/png;base64,{data}"'
    return f'<figure><figcaption>{escape(caption)}</figcaption><img alt="{escape(alt)}" {source}></figure>'


def _percent(share: float) -> str:
    return f"{100.0 * share:.3g} %"


# ---- Figures: each with its caption and a text for those who cannot see it -------------------------------------------


def _actual_figure(
    y: np.ndarray, mean: np.ndarray, lower: np.ndarray, upper: np.ndarray, level: float
) -> tuple[Figure, str, str]:
    inside = (lower <= y) & (y <= upper)
    interval = f"{_percent(level)} interval"
    caption = f"{_percent(coverage(y, lower, upper))} lie inside their {interval}"
    shown = np.sort(np.random.default_rng(0).permutation(len(y))[:MAX_POINTS])
    sample = f" ({len(shown):,} drawn)" if len(shown) < len(y) else ""
    few = len(shown) <= 200
    figure, axes = _axes("actual", "predicted")
    drawn = np.concatenate([y[shown], mean[shown]])
    ends = [drawn.min(), drawn.max()]
    axes.plot(ends, ends, color=INK, linewidth=0.8)
    for part, color, name in [(shown[inside[shown]], BLUE, "inside"), (shown[~inside[shown]], ORANGE, "outside")]:
        axes.vlines(y[part], lower[part], upper[part], color=color, alpha=0.5 if few else 0.2, linewidth=0.8)
        dots = {"markersize": 7 if few else 4, "alpha": 0.9 if few else 0.5, "markeredgewidth": 0}
        axes.plot(y[part], mean[part], ".", color=color, label=name, **dots)
    legend = axes.legend(loc="upper left", frameon=False, title=interval, alignment="left", markerscale=1.6)
    for handle in filter(None, legend.legend_handles):
        handle.set(alpha=1.0)
    return figure, f"Predicted against actual{sample}: {caption}", f"Predicted against actual values; {caption}."


def _residual_figure(residual: np.ndarray) -> tuple[Figure, str, str]:
    far = int(np.sum(np.abs(residual) > FAR))
    reach = float(np.clip(np.ceil(np.abs(residual).max()), 4.0, FAR))
    width = np.clip(3.5 * len(residual) ** (-1 / 3), 0.2, 1.0)  # Scott's rule for unit variance
    edges = np.linspace(-reach, reach, 2 * round(reach / width) + 1)
    grid = np.linspace(-reach, reach, 301)
    normal = np.exp(-0.5 * grid**2) / np.sqrt(2.0 * np.pi)
    figure, axes = _axes("(actual − predicted) / standard deviation", "density")
    axes.hist(residual.clip(-reach, reach), edges.tolist(), density=True, color=BLUE, alpha=0.75, label="test rows")
    axes.plot(grid, normal, color=INK, linewidth=1.2, label="normal density")
    axes.set_ylim(0.0, 1.25 * axes.get_ylim()[1])  # room for the legend
    axes.legend(loc="upper left", frameon=False)
    beyond = f", {far:,} beyond ±{FAR:g}" if far else ""
    fact = f"mean {residual.mean():.2f}, standard deviation {residual.std():.2f}{beyond}"
    return figure, f"Standardised residuals: {fact}", f"Histogram of the standardised residuals; {fact}."


def _calibration_figure(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> tuple[Figure, str, str]:
    levels = np.linspace(0.05, 0.95, 19)
    observed = calibration(y, mean, std, levels)
    grid = np.linspace(0.0, 1.0, 101)
    chance = 2.0 * np.sqrt(grid * (1.0 - grid) / len(y))
    figure, axes = _axes("nominal coverage", "observed coverage")
    axes.fill_between(grid, grid - chance, grid + chance, color=GREY, alpha=0.3, linewidth=0, label="by chance (2σ)")
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8)
    axes.plot(levels, observed, ".-", color=BLUE, linewidth=1.2, markersize=5, label="test rows")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left", frameon=False)
    worst = int(np.argmax(np.abs(observed - levels)))
    fact = f"at worst {_percent(observed[worst])} observed at {_percent(levels[worst])} nominal"
    alt = f"Observed against nominal coverage of central intervals; {fact}."
    return figure, f"Calibration: {fact}", alt


def _bound_figure(x: np.ndarray, bound: np.ndarray, unit: str) -> tuple[Figure, str, str]:
    figure, axes = _axes(unit, "bound in nats")
    axes.plot(x, bound, color=BLUE, linewidth=1.2)
    # The first steps climb so far that nothing else would be seen: show the upper nine tenths of the steps.
    low, high = np.quantile(bound, 0.1), bound.max()
    if high > low:
        axes.set_ylim(low - 0.1 * (high - low), high + 0.05 * (high - low))
    alt = f"The bound goes from {bound[0]:,.1f} to {bound[-1]:,.1f} in {x[-1]:,.4g} {unit}{'s' * (unit == 'step')}."
    return figure, f"Bound against {unit}", alt


def _axes(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.4, 3.5), layout="constrained", facecolor="white")
    axes = figure.add_subplot(xlabel=x_label, ylabel=y_label, facecolor="white")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e8eaee", linewidth=0.7)
    axes.set_axisbelow(True)
    return figure, axes


# ---- The page --------------------------------------------------------------------------------------------------------

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""

STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #f5f6f8; color: #1f2733; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 .75rem; }
section { background: #fff; border: 1px solid #e3e6eb; border-radius: 10px; padding: 1rem 1.25rem; margin: 0 0 1rem; }
p { margin: 0 0 .5rem; max-width: 48rem; }
ul { margin: 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem 0; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: 400; color: #5a6472; padding-right: 1.5rem; }
tr + tr { border-top: 1px solid #eef0f3; }
.bars { width: 100%; max-width: 48rem; }
.bars th { width: 32%; }
.bars td:last-child { width: 4.5rem; padding-left: .75rem; text-align: right; }
.bar { height: .8rem; margin-top: .35rem; border-radius: 2px; background: #2563a8; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: 1.25rem; }
figure { margin: 0; max-width: 34rem; display: flex; flex-direction: column; justify-content: flex-end; }
figcaption { font-size: .9rem; margin-bottom: .4rem; }
img { display: block; width: 100%; height: auto; }
"""
