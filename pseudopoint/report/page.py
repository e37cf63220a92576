"""What a report shows, in which order, and its file."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike

import numpy as np
from jaxtyping import Real

from pseudopoint.metrics import confusion
from pseudopoint.report import figures, markup
from pseudopoint.report.curves import Input, input_picture, reach
from pseudopoint.report.markup import paragraph, section
from pseudopoint.tables import whole_file

MAX_CURVES = 12

PerRow = Real[np.ndarray, "N"]


@dataclass(frozen=True)
class Report:
    """What a report shows, as plain data, in this order; a part without data is left out.

    `made` says by which version and when, from what. `measures` holds (measure, value, value of a prediction without
    inputs, meaning). `y`, `mean`, `std`, `lower` and `upper` [N] are the truth of N test rows, the prediction, its
    standard deviation and the interval of probability `level`, in the units of the target; `weight` says how often each
    counts, None once. Figures that compare
    residuals and intervals with the normal distribution are left out unless predictions are `gaussian`; `discrete` says
    what a target of few values does to them. `inputs` are the columns of the table, the most important first; `effect`
    and `loss` say what their effects and importances are in, `together` what share of variance is theirs together, and
    `near_rows` that effects and shares leave out what near rows do to predictions. `beside` holds (column, values of
    the test rows), against which residuals are shown. `worst` is a table, header and rows, of the test rows that
    surprised most. `summary` holds (label, value) pairs on the fit, `history` (step, bound, seconds since the start),
    `trials` what a search tried: (part of the model, choice, log density in nats, whether it
    was taken). `advice` says whether more inducing points would help.

    In a classification `classes` names the C classes, `y` holds the codes 0, …, C − 1 of the true ones and
    `probabilities` [N, C] the predicted probabilities; `mean`, `std`, `lower` and `upper` are not used.
    """

    title: str
    made: str = ""
    measures: Sequence[tuple[str, str, str, str]] = ()
    summary: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    history: Sequence[tuple[int, float, float]] = ()
    y: PerRow | None = None
    mean: PerRow | None = None
    std: PerRow | None = None
    lower: PerRow | None = None
    upper: PerRow | None = None
    weight: PerRow | None = None
    level: float = 0.9
    gaussian: bool = True
    classes: Sequence[str] = ()
    probabilities: Real[np.ndarray, "N C"] | None = None
    discrete: str = ""
    inputs: Sequence[Input] = ()
    effect: str = "change of the prediction"
    loss: str = ""
    together: float = 0.0
    near_rows: bool = False
    beside: Sequence[tuple[str, PerRow]] = ()
    worst: tuple[Sequence[str], Sequence[Sequence[str]]] = ((), ())
    trials: Sequence[tuple[str, str, float, bool]] = ()
    advice: str = ""


def write_report(path: str | PathLike[str], report: Report) -> None:
    """Writes `report` to `path` as one self-contained HTML file, whole or not at all.

    `TableError` if the file cannot be made there, ValueError if probabilities and names of classes do not match.
    """
    sections = (
        _made,
        _measures,
        _predictions,
        _inputs,
        _residuals,
        _worst,
        _notes,
        _summary,
        _advice,
        _choices,
        _training,
    )
    page = markup.page(report.title, [part(report) for part in sections])
    with whole_file(path) as file:
        file.write(page)


def _made(report: Report) -> str:
    return f'<p class="made">{escape(report.made)}</p>' if report.made else ""


def _measures(report: Report) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td><td>{escape(without)}</td><td>{escape(meaning)}</td></tr>"
        for name, value, without, meaning in report.measures
    )
    head = "<thead><tr><th></th><th>this model</th><th>without inputs</th><th></th></tr></thead>"
    return section("How good it is", f'<table class="measures">{head}{rows}</table>') if rows else ""


def _summary(report: Report) -> str:
    rows = "".join(f"<tr><th>{escape(label)}</th><td>{escape(value)}</td></tr>" for label, value in report.summary)
    return section("How it was fitted", f'<table class="pairs">{rows}</table>') if rows else ""


def _predictions(report: Report) -> str:
    if report.y is not None and report.probabilities is not None:
        return _predicted_classes(report.y, report.probabilities, _weights(report), report.classes)
    arrays = (report.y, report.mean, report.std, report.lower, report.upper)
    if any(array is None for array in arrays):
        return ""
    rows = np.column_stack([np.asarray(array, np.float64) for array in (*arrays, _weights(report))])
    rows = rows[np.isfinite(rows).all(axis=1) & (rows[:, 2] > 0.0)]
    if len(rows) == 0:
        return ""
    y, mean, std, lower, upper, weight = rows.T
    shown = [figures.actual_figure(y, mean, lower, upper, report.level, weight)]
    if report.gaussian:
        normal = figures.residual_figure((y - mean) / std, weight), figures.calibration_figure(y, mean, std, weight)
        shown += normal
    return section(_predictions_title(len(y)), markup.grid(shown) + paragraph(report.discrete))


def _weights(report: Report) -> np.ndarray:
    return np.ones(len(report.y)) if report.weight is None else np.asarray(report.weight, np.float64)  # pyright: ignore


def _predicted_classes(y: np.ndarray, P: np.ndarray, weight: np.ndarray, classes: Sequence[str]) -> str:
    names = list(classes) or [str(code) for code in range(P.shape[1])]
    if len(names) != P.shape[1]:
        raise ValueError(f"a report names {len(names)} classes, but its probabilities have {P.shape[1]} columns")
    finite = np.isfinite(P).all(axis=1)
    y, P, weight = y[finite], P[finite], weight[finite]
    if len(y) == 0:
        return ""
    table = markup.confusion_table(confusion(y, P, weight), names)
    parts = markup.picture(*figures.reliability_figure(y, P, weight)) + table
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
        "Log evidence of a sample of the training rows, or for noise, variance and near rows log density of rows left "
        "out: how many nats it lacks to the best of its part. Bold: taken. A choice that was tried twice has the "
        "higher of both."
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


def _advice(report: Report) -> str:
    return section("More inducing points?", paragraph(report.advice)) if report.advice else ""


def _training(report: Report) -> str:
    history = np.array([entry for entry in report.history if np.isfinite(entry).all()], np.float64).reshape(-1, 3)
    if len(history) < 2:
        return ""
    step, bound, seconds = history.T
    axes = {"step": step, "seconds": seconds}
    return section("Training", markup.grid(figures.bound_figure(x, bound, unit) for unit, x in axes.items()))


def _inputs(report: Report) -> str:
    if not report.inputs:
        return ""
    limits = reach(report.inputs)
    pictures = [input_picture(each, limits, report.effect) for each in report.inputs[:MAX_CURVES]]
    meaning = (
        "Each picture shows how the average prediction changes with one column, all others as they are in the rows, "
        "and how sure the model is of it (90 %). All have the same scale. Strokes at the foot are rows of the table."
    )
    if report.near_rows:
        meaning += (
            " Pictures and shares are those of the function that inducing points hold. They leave out what the nearest "
            "training rows add to a prediction, which measures on test rows have."
        )
    return section(
        "What each column does",
        paragraph(meaning) + f'<div class="grid">{"".join(pictures)}</div>' + _importance(report),
    )


def _importance(report: Report) -> str:
    known = [each for each in report.inputs if np.isfinite(each.importance)]
    largest = max((each.importance for each in known), default=0.0)
    bars = "".join(
        f'<tr><th>{escape(each.name)}</th><td><div class="bar" style="width:{_width(each.importance, largest):.1f}%">'
        f"</div></td><td>{_signed(each.importance)}</td><td>{_percent(each.first)}</td><td>{_percent(each.total)}</td></tr>"
        for each in report.inputs
    )
    head = "<thead><tr><th></th><th></th><th>loss</th><th>by itself</th><th>in all</th></tr></thead>"
    loss = f"Loss: {report.loss} when the column is shuffled among test rows. " if report.loss and known else ""
    meaning = (
        f"{loss}By itself: the share of the variance of predictions that goes with the column alone; these shares and "
        f"{_percent(report.together)} for what columns do together sum to 100 %. In all: the share that changes "
        "with the column."
    )
    return f'<h3>How much each column matters</h3>{paragraph(meaning)}<table class="bars shares">{head}{bars}</table>'


def _width(value: float, largest: float) -> float:
    return float(np.clip(100 * value / largest, 0.4, 100)) if largest > 0 and np.isfinite(value) else 0.4


def _signed(value: float) -> str:
    return f"{value:+.3g}" if np.isfinite(value) else "–"


def _percent(share: float) -> str:
    return f"{0.0 if abs(share) < 0.0005 else 100 * share:.1f} %"


def _residuals(report: Report) -> str:
    if report.y is None or report.mean is None or report.std is None or report.probabilities is not None:
        return ""
    columns = [("the prediction", report.mean), *report.beside]
    good = np.isfinite(report.mean) & np.isfinite(report.std) & (report.std > 0) & np.isfinite(report.y)
    if good.sum() < 3:
        return ""
    scaled, weight = (report.y - report.mean)[good] / report.std[good], _weights(report)[good]
    meaning = (
        "The error of each test row in predicted standard deviations. Where the line of its average leaves zero, the "
        "model misses a pattern; where dots spread beyond the band, its intervals are too narrow."
    )
    pictures = [figures.error_figure(name, np.asarray(x, float)[good], scaled, weight) for name, x in columns]
    return section("Where it is wrong", paragraph(meaning) + markup.grid(pictures))


def _worst(report: Report) -> str:
    header, rows = report.worst
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    title = "Rows most surely wrong" if report.classes else "Rows that surprised most"
    meaning = (
        "Test rows whose truth had the lowest probability, by their number in the table: faults in the data begin here."
    )
    table = f'<div class="scroll"><table class="cells"><thead><tr>{head}</tr></thead>{body}</table></div>'
    return section(title, paragraph(meaning) + table)


def _notes(report: Report) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return section("What to know of the data and the fit", f"<ul>{items}</ul>") if items else ""
