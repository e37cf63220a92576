"""Small pictures of what inputs do, as SVG inside the page: its colours are those of the page, light or dark."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

WIDTH, HEIGHT = 320, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 26  # margins for the numbers
ROW, NAMES = 18, 110  # of categories
MOST_LINES, MOST_RUG, LONGEST = 4, 150, 17

Array = np.ndarray


@dataclass(frozen=True)
class Input:
    """What a column of the table does to the average prediction.

    `values` [P] are numbers in the column's units or names of categories; `mean`, `lower` and `upper` are [P], or
    [P, K] for the probabilities of K classes whose names are in `lines`. `rug` holds values of rows, `ticks` texts for
    values where numbers would say little (dates). `importance` is how much worse predictions are with the column
    shuffled, `first` and `total` its shares of variance.
    """

    name: str
    values: Sequence[float] | Sequence[str]
    mean: Array
    lower: Array
    upper: Array
    importance: float
    first: float
    total: float
    rug: Sequence[float] = ()
    lines: Sequence[str] = ()
    ticks: Sequence[tuple[float, str]] = ()

    @property
    def categories(self) -> bool:
        """Whether values are names."""
        return len(self.values) > 0 and isinstance(self.values[0], str)


def reach(inputs: Sequence[Input]) -> tuple[float, float]:
    """The lowest and the highest number that pictures of these inputs show."""
    ends = [part[np.isfinite(part)] for each in inputs for part in (each.lower, each.upper, each.mean)]
    numbers = np.concatenate([np.ravel(part) for part in ends] + [np.zeros(1)])
    low, high = float(numbers.min()), float(numbers.max())
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def input_picture(each: Input, limits: tuple[float, float], what: str) -> str:
    """The picture of one input; `limits` are those of the axis of effects, `what` says what they are."""
    drawn, fact = _categories(each, limits) if each.categories else _numbers(each, limits)
    caption = f"<strong>{escape(each.name)}</strong>: {escape(what)}"
    return f'<figure class="effect"><figcaption>{caption}</figcaption>{drawn(fact)}{_legend(each)}</figure>'


def _svg(height: int, parts: list[str]):
    body = "".join(parts)
    return lambda fact: (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(fact)}"><title>{escape(fact)}</title>'
        f"{body}</svg>"
    )


def _numbers(each: Input, limits):
    values = np.asarray(each.values, float)
    low, high = float(values.min()), float(values.max())
    low, high = (low, high) if high > low else (low - 1, high + 1)
    x = lambda v: LEFT + (WIDTH - LEFT - RIGHT) * (np.asarray(v, float) - low) / (high - low)
    y = lambda v: TOP + (HEIGHT - TOP - BOTTOM) * (limits[1] - np.asarray(v, float)) / (limits[1] - limits[0])
    parts = [_level(y(t), _shown(t)) for t in _ticks(limits[0], limits[1], 4)]
    ticks = each.ticks or [(t, _shown(t)) for t in _ticks(low, high, 3)]
    parts += [_text(x(t), HEIGHT - 8, text, _anchor(float(x(t)))) for t, text in ticks]
    rug = np.asarray(each.rug, float)
    rug = rug[(rug >= low) & (rug <= high)][:MOST_RUG]
    foot = HEIGHT - BOTTOM
    lines = "".join(f"M{x(v):.1f} {foot}v-5" for v in rug)
    parts += [f'<path class="rug" d="{lines}"/>'] * bool(lines)
    for k, (mean, lower, upper) in enumerate(_columns(each)):
        if np.isfinite(lower).all():
            around = [*zip(x(values), y(lower), strict=True), *zip(x(values)[::-1], y(upper)[::-1], strict=True)]
            parts.append(f'<polygon class="band c{k}" points="{_points(around)}"/>')
        parts.append(f'<polyline class="line c{k}" points="{_points(zip(x(values), y(mean), strict=True))}"/>')
    first = each.mean if each.mean.ndim == 1 else each.mean[:, 0]
    fact = f"Effect of {each.name} from {_shown(low)} to {_shown(high)}: {_shown(first[0])} to {_shown(first[-1])}."
    return _svg(HEIGHT, parts), fact


def _categories(each: Input, limits):
    height = TOP + ROW * len(each.values) + BOTTOM
    x = lambda v: NAMES + (WIDTH - NAMES - RIGHT) * (np.asarray(v, float) - limits[0]) / (limits[1] - limits[0])
    parts = [
        f'<path class="rule" d="M{x(t):.1f} {TOP}V{height - BOTTOM}"/>'
        + _text(x(t), height - 8, _shown(t), _anchor(float(x(t))))
        for t in _ticks(limits[0], limits[1], 3)
    ]
    for k, (mean, lower, upper) in enumerate(_columns(each)):
        for i, name in enumerate(each.values):
            at = TOP + ROW * (i + 0.5)
            if k == 0:
                parts.append(_text(NAMES - 6, at + 4, _cut(str(name)), "end"))
            if np.isfinite([lower[i], upper[i]]).all():
                parts.append(f'<path class="bar c{k}" d="M{x(lower[i]):.1f} {at}H{x(upper[i]):.1f}"/>')
            parts.append(f'<circle class="dot c{k}" cx="{x(mean[i]):.1f}" cy="{at}" r="3.5"/>')
    first = each.mean if each.mean.ndim == 1 else each.mean[:, 0]
    best = int(np.argmax(first))
    return _svg(height, parts), f"Effect of {each.name}: highest at {each.values[best]}, {_shown(first[best])}."


def _columns(each: Input) -> list[Any]:
    arrays = [part[:, None] if part.ndim == 1 else part for part in (each.mean, each.lower, each.upper)]
    return [tuple(part[:, k] for part in arrays) for k in range(min(arrays[0].shape[1], MOST_LINES))]


def _legend(each: Input) -> str:
    names = "".join(
        f'<span class="c{k}">● {escape(_cut(name))}</span> ' for k, name in enumerate(each.lines[:MOST_LINES])
    )
    return f'<p class="legend">{names}</p>' if names else ""


def _ticks(low: float, high: float, count: int) -> list[float]:
    # An end that rounding left outside of the axis is on it.
    slack = 1e-9 * (high - low)
    found = MaxNLocator(count).tick_values(low, high)
    return [float(t) for t in found if low - slack <= t <= high + slack]


def _level(y, text: str) -> str:
    return f'<path class="rule" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>' + _text(LEFT - 6, y + 4, text, "end")


def _text(x, y, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _anchor(x: float) -> str:
    return "end" if x > WIDTH - 30 else "middle"


def _points(pairs) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def _shown(value: float) -> str:
    return f"{0.0 if abs(value) < 1e-12 else value:,.6g}" if abs(value) < 1e6 else f"{value:.3g}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
