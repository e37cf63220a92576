"""What a report shows, in which order, and its file."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike

import numpy as np
from jaxtyping import Real

from pseudopoint.metrics import confusion
from pseudopoint.report import figures, markup
from pseudopoint.report.markup import paragraph, section
from pseudopoint.tables import whole_file

__all__ = ["MAX_FEATURES", "Report", "write_report"]

MAX_FEATURES = 20

Rows = Real[np.ndarray, "N"]


@dataclass(frozen=True)
class Report:
    """What a report shows, as plain data; a part without data is left out.

    `summary` holds (label, value) pairs, `history` (step, bound, seconds since the start). `y`, `mean`, `std`, `lower`
    and `upper` [N] are the truth of N test rows, the prediction, its standard deviation and the interval of probability
    `level`, in the units of the target. Figures that compare residuals and intervals with the normal distribution are
    left out unless predictions are `gaussian`. `relevance` holds (feature, 1 / lengthscale) for inputs of unit scale.
    `trials` holds what a search tried: (part of the model, choice, log density in nats, whether it was taken).
    `bound` and `upper_bound` enclose the log evidence of `rows` training rows, in nats; `advice` says whether more
    inducing points would help.

    In a classification `classes` names the C classes, `y` holds the codes 0, …, C − 1 of the true ones and
    `probabilities` [N, C] the predicted probabilities; `mean`, `std`, `lower` and `upper` are not used.
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
    gaussian: bool = True
    classes: Sequence[str] = ()
    probabilities: Real[np.ndarray, "N C"] | None = None
    relevance: Sequence[tuple[str, float]] = ()
    trials: Sequence[tuple[str, str, float, bool]] = ()
    bound: float | None = None
    upper_bound: float | None = None
    rows: int | None = None
    advice: str = ""


def write_report(path: str | PathLike[str], report: Report) -> None:
    """Writes `report` to `path` as one self-contained HTML file, whole or not at all.

    `TableError` if the file cannot be made there, ValueError if probabilities and names of classes do not match.
    """
    sections = (_summary, _predictions, _choices, _bounds, _training, _relevance, _notes)
    page = markup.page(report.title, [part(report) for part in sections])
    with whole_file(path) as file:
        file.write(page)


def _summary(report: Report) -> str:
    rows = "".join(f"<tr><th>{escape(label)}</th><td>{escape(value)}</td></tr>" for label, value in report.summary)
    return section("Summary", f"<table>{rows}</table>") if rows else ""


def _predictions(report: Report) -> str:
    if report.y is not None and report.probabilities is not None:
        return _predicted_classes(report.y, report.probabilities, report.classes)
    arrays = (report.y, report.mean, report.std, report.lower, report.upper)
    if any(array is None for array in arrays):
        return ""
    rows = np.column_stack([np.asarray(array, np.float64) for array in arrays])
    rows = rows[np.isfinite(rows).all(axis=1) & (rows[:, 2] > 0.0)]
    if len(rows) == 0:
        return ""
    y, mean, std, lower, upper = rows.T
    shown = [figures.actual_figure(y, mean, lower, upper, report.level)]
    if report.gaussian:
        shown += [figures.residual_figure((y - mean) / std), figures.calibration_figure(y, mean, std)]
    return section(_predictions_title(len(y)), markup.grid(shown))


def _predicted_classes(y: np.ndarray, P: np.ndarray, classes: Sequence[str]) -> str:
    names = list(classes) or [str(code) for code in range(P.shape[1])]
    if len(names) != P.shape[1]:
        raise ValueError(f"a report names {len(names)} classes, but its probabilities have {P.shape[1]} columns")
    finite = np.isfinite(P).all(axis=1)
    y, P = y[finite], P[finite]
    if len(y) == 0:
        return ""
    parts = markup.picture(*figures.reliability_figure(y, P)) + markup.confusion_table(confusion(y, P), names)
    return section(_predictions_title(len(y)), f'<div class="classes">{parts}</div>')


def _predictions_title(rows: int) -> str:
    return f"Predictions on {rows:,} test row{'' if rows == 1 else 's'}"


def _choices(report: Report) -> str:
    parts: dict[str, dict[str, tuple[float, bool]]] = {}
    for part, choice, value, taken in report.trials:
        before = parts.setdefault(part, {}).get(choice, (-np.inf, False))
        parts[part][choice] = max(value, before[0]), taken or before[1]
    bars = "".join(_bars_of_part(part, choices) for part, choices in parts.items())
    meaning = (
        "Log evidence of a sample of the training rows, or for the noise the log density of rows left out: how many "
        "nats it lacks to the best of its part. Bold: taken. A choice that was tried twice has the higher of both."
    )
    return section("What was tried", f'{paragraph(meaning)}<table class="bars">{bars}</table>') if bars else ""


def _bars_of_part(part: str, choices: dict[str, tuple[float, bool]]) -> str:
    finite = [value for value, _ in choices.values() if np.isfinite(value)]
    best, spread = max(finite, default=0.0), max(np.ptp(finite) if finite else 0.0, 1e-300)
    rows = []
    for choice, (value, taken) in choices.items():
        known = np.isfinite(value)
        width = max(100 * (1 - (best - value) / spread), 0.4) if known else 0.4
        name = f"<b>{escape(choice)}</b>" if taken else escape(choice)
        label = f"{escape(part)}: {name}" if choice == next(iter(choices)) else name
        number = f"{value - best:.1f}" if known else "none"
        rows.append(
            f'<tr><th>{label}</th><td><div class="bar" style="width:{width:.1f}%"></div></td><td>{number}</td></tr>'
        )
    return "".join(rows)


def _bounds(report: Report) -> str:
    if report.bound is None or report.upper_bound is None:
        return section("More inducing points?", paragraph(report.advice)) if report.advice else ""
    gap = report.upper_bound - report.bound
    per_row = f", {gap / report.rows:.3g} nats a row" if report.rows else ""
    sentence = (
        f"The log evidence lies between the bound {report.bound:,.1f} and the upper bound {report.upper_bound:,.1f}: "
        f"a gap of {gap:,.1f} nats{per_row}."
    )
    return section("More inducing points?", paragraph(sentence) + paragraph(report.advice))


def _training(report: Report) -> str:
    history = np.array([entry for entry in report.history if np.isfinite(entry).all()], np.float64).reshape(-1, 3)
    if len(history) < 2:
        return ""
    step, bound, seconds = history.T
    axes = {"step": step, "seconds": seconds}
    return section("Training", markup.grid(figures.bound_figure(x, bound, unit) for unit, x in axes.items()))


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
    return section("Relevance of the inputs", f'{paragraph(meaning)}<table class="bars">{bars}</table>')


def _notes(report: Report) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return section("Notes", f"<ul>{items}</ul>") if items else ""
