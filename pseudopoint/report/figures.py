"""The figures of a report, drawn on `Figure` objects, never with pyplot, which has global state."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import binom

from pseudopoint.metrics import average, calibration, calibration_error, coverage, reliability
from pseudopoint.report.markup import Picture, percent

MAX_POINTS = 2000  # more points hide each other and make the file large
FAR = 6.0  # standard deviations, where residuals beyond are drawn
BINS = 15  # of the confidence, as in published calibration errors

BLUE, ORANGE, GREY, INK = "#2563a8", "#d9650b", "#9aa3af", "#1f2733"


def actual_figure(
    y: np.ndarray, mean: np.ndarray, lower: np.ndarray, upper: np.ndarray, level: float, weight: np.ndarray
) -> Picture:
    """Predictions and their intervals against the truth."""
    inside = (lower <= y) & (y <= upper)
    interval = f"{percent(level)} interval"
    caption = f"{percent(coverage(y, lower, upper, weight))} lie inside their {interval}"
    shown = np.sort(np.random.default_rng(0).permutation(len(y))[:MAX_POINTS])
    sample = f" ({len(shown):,} drawn)" if len(shown) < len(y) else ""
    size, ink, faint = (7, 0.9, 0.5) if len(shown) <= 200 else (4, 0.5, 0.2)
    figure, axes = _axes("actual", "predicted")
    drawn = np.concatenate([y[shown], mean[shown]])
    ends = [drawn.min(), drawn.max()]
    axes.plot(ends, ends, color=INK, linewidth=0.8)
    for part, color, name in [(shown[inside[shown]], BLUE, "inside"), (shown[~inside[shown]], ORANGE, "outside")]:
        axes.vlines(y[part], lower[part], upper[part], color=color, alpha=faint, linewidth=0.8)
        axes.plot(y[part], mean[part], ".", color=color, label=name, markersize=size, alpha=ink, markeredgewidth=0)
    legend = axes.legend(loc="upper left", frameon=False, title=interval, alignment="left", markerscale=1.6)
    for handle in filter(None, legend.legend_handles):
        handle.set(alpha=1.0)
    return figure, f"Predicted against actual{sample}: {caption}", f"Predicted against actual values; {caption}."


def residual_figure(residual: np.ndarray, weight: np.ndarray) -> Picture:
    """Residuals in standard deviations, beside the normal density."""
    far = int(np.sum(np.abs(residual) > FAR))
    reach = float(np.clip(np.ceil(np.abs(residual).max()), 4.0, FAR))
    width = np.clip(3.5 * len(residual) ** (-1 / 3), 0.2, 1.0)  # Scott's rule for unit variance
    edges = np.linspace(-reach, reach, 2 * round(reach / width) + 1)
    grid = np.linspace(-reach, reach, 301)
    normal = np.exp(-0.5 * grid**2) / np.sqrt(2.0 * np.pi)
    figure, axes = _axes("(actual − predicted) / standard deviation", "density")
    bars = {"density": True, "color": BLUE, "alpha": 0.75, "label": "test rows"}
    axes.hist(residual.clip(-reach, reach), edges.tolist(), weights=weight, **bars)
    axes.plot(grid, normal, color=INK, linewidth=1.2, label="normal density")
    axes.set_ylim(0.0, 1.25 * axes.get_ylim()[1])  # room for the legend
    axes.legend(loc="upper left", frameon=False)
    beyond = f", {far:,} beyond ±{FAR:g}" if far else ""
    mean = average(residual, weight)
    fact = f"mean {mean:.2f}, standard deviation {average((residual - mean) ** 2, weight) ** 0.5:.2f}{beyond}"
    return figure, f"Standardised residuals: {fact}", f"Histogram of the standardised residuals; {fact}."


def error_figure(name: str, x: np.ndarray, error: np.ndarray, weight: np.ndarray) -> Picture:
    """Errors in standard deviations against the values x of a column, with their average over tenths of the rows."""
    shown = np.sort(np.random.default_rng(0).permutation(len(x))[:MAX_POINTS])
    figure, axes = _axes("", "error / standard deviation")
    axes.axhspan(-1.645, 1.645, color=GREY, alpha=0.2, linewidth=0, label="90 % belong here")
    far = float(np.clip(np.abs(error).max(), 3.0, FAR))
    axes.plot(x[shown], error[shown].clip(-far, far), ".", color=BLUE, markersize=5, alpha=0.7, markeredgewidth=0)
    order = np.argsort(x, kind="stable")
    parts = [part for part in np.array_split(order, min(10, max(1, len(x) // 10))) if len(part)]
    averages = [average(error[part], weight[part]) for part in parts]
    axes.plot(
        [average(x[part], weight[part]) for part in parts], averages, ".-", color=ORANGE, linewidth=1.4, label="average"
    )
    axes.legend(loc="upper left", frameon=False, ncols=2)
    axes.set_ylim(-1.05 * far, 1.4 * far)  # room for the legend
    worst = max(averages, key=abs)
    fact = f"the average error of a tenth of the rows is at most {abs(worst):.2f} standard deviations"
    return figure, f"Against {name}: {fact}", f"Errors against {name}; {fact}."


def calibration_figure(y: np.ndarray, mean: np.ndarray, std: np.ndarray, weight: np.ndarray) -> Picture:
    """Observed against nominal coverage of the central intervals, and what chance allows."""
    levels = np.linspace(0.05, 0.95, 19)
    observed = calibration(y, mean, std, levels, weight)
    grid = np.linspace(0.0, 1.0, 101)
    rows = np.sum(weight) ** 2 / np.sum(weight**2)  # of equal weights, with as much chance (Kish 1965)
    chance = 2.0 * np.sqrt(grid * (1.0 - grid) / rows)
    figure, axes = _axes("nominal coverage", "observed coverage")
    axes.fill_between(grid, grid - chance, grid + chance, color=GREY, alpha=0.3, linewidth=0, label="by chance (2σ)")
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8)
    axes.plot(levels, observed, ".-", color=BLUE, linewidth=1.2, markersize=5, label="test rows")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left", frameon=False)
    worst = int(np.argmax(np.abs(observed - levels)))
    fact = f"at worst {percent(observed[worst])} observed at {percent(levels[worst])} nominal"
    alt = f"Observed against nominal coverage of central intervals; {fact}."
    return figure, f"Calibration: {fact}", alt


def reliability_figure(y: np.ndarray, P: np.ndarray, weight: np.ndarray) -> Picture:
    """Accuracy against confidence of the predicted class in bins, and how many rows, by weight, each bin holds.

    The band is where calibrated predictions lie with probability 95 %: the binomial interval of a bin's rows, each
    right with the bin's mean confidence; of rows of different weights, of so many equal ones as have as much chance.
    """
    bins = np.stack([*reliability(y, P, BINS, weight), reliability(y, P, BINS, weight**2)[2]])
    confidence, share, count, squares = bins[:, bins[2] > 0]
    centre = (np.flatnonzero(bins[2]) + 0.5) / BINS
    rows = np.maximum(np.rint(count**2 / squares), 1)
    low, high = np.array(binom.interval(0.95, rows, confidence.clip(max=1.0))) / rows
    left = np.floor(BINS / max(P.shape[1], 2)) / BINS  # the largest of C probabilities is no less than 1 / C
    figure = _figure()
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    axes.bar(confidence, high - low, 0.7 / BINS, low, color=GREY, alpha=0.4, label="by chance (95 %)")
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8)
    axes.plot(confidence, share, ".", color=BLUE, markersize=8, markeredgewidth=0, label="test rows")
    axes.legend(loc="lower right", frameon=False)
    bars = below.bar(centre, count, 0.9 / BINS, color=BLUE, alpha=0.75)
    below.bar_label(bars, [f"{n:,.0f}" if n < 10_000 else f"{n / 1000:,.0f}k" for n in count], fontsize=6, padding=1)
    below.set(xlabel="probability of the predicted class", ylabel="rows", ylim=(0, 1.25 * count.max()))
    axes.set(xlim=(left, 1), ylim=(0, 1.02), ylabel="accuracy")
    _plain(axes)
    _plain(below)
    fact = f"expected calibration error {percent(calibration_error(y, P, BINS, weight))}"
    alt = f"Accuracy against confidence of the predicted class in {len(count)} bins; {fact}."
    return figure, f"Reliability: {fact}", alt


def bound_figure(x: np.ndarray, bound: np.ndarray, unit: str) -> Picture:
    """The objective (a bound, or the log evidence) against steps or seconds."""
    figure, axes = _axes(unit, "objective in nats")
    axes.plot(x, bound, color=BLUE, linewidth=1.2)
    # The first steps climb so far that they would hide the rest: show the upper nine tenths of the steps.
    low, high = np.quantile(bound, 0.1), bound.max()
    if high > low:
        axes.set_ylim(low - 0.1 * (high - low), high + 0.05 * (high - low))
    alt = f"The objective goes from {bound[0]:,.1f} to {bound[-1]:,.1f} in {x[-1]:,.4g} {unit}{'s' * (unit == 'step')}."
    return figure, f"Objective against {unit}", alt


def _axes(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    figure = _figure()
    axes = figure.add_subplot(xlabel=x_label, ylabel=y_label)
    _plain(axes)
    return figure, axes


def _figure() -> Figure:
    return Figure(figsize=(4.4, 3.5), layout="constrained", facecolor="white")


def _plain(axes: Axes) -> None:
    axes.set_facecolor("white")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e8eaee", linewidth=0.7)
    axes.set_axisbelow(True)
