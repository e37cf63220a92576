"""What a report says of the columns of a table: their effects, their importance, and the rows that surprise."""

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from pseudopoint import metrics
from pseudopoint.commands.kinds import AbstractKind, Scored
from pseudopoint.report import Input
from pseudopoint.tables import Column

SHUFFLES = 3
ROWS, PREDICTIONS = 400, 12_000  # rows that are shuffled, and predictions in all for importance
WORST = 8
MOST_INPUTS, MOST_CATEGORIES = 20, 12
SHOWN_COLUMNS, SHOWN_RESIDUALS = 8, 5


def inputs(
    kind: AbstractKind, X: np.ndarray, weight: np.ndarray | None, scored: Scored | None
) -> tuple[list[Input], float]:
    """The table's columns, the most important first, with effects over the training rows X [N, D] by their weights, and
    the share of variance of what they do together."""
    columns, groups = kind.encoder.columns, [list(at) for at in kind.encoder.places.values()]
    curves, sets = [], []
    for column, group in zip(columns, groups, strict=True):
        # The mark of a gap is an input of its own beside a number, and one more category beside categories.
        parts = [group] if column.categories else [[j] for j in group]
        curves.append(len(sets))
        sets += parts
    found, together, *_ = kind.model.effects(X, sets, sample_weight=weight)
    worse = importances(kind, scored)
    bounds = [*curves[1:], len(sets)]
    made = [
        _input(kind, column, found[start:end], X[:, group[0]], loss)
        for column, group, start, end, loss in zip(columns, groups, curves, bounds, worse, strict=True)
    ]
    return sorted(made, key=lambda each: (-np.nan_to_num(each.importance), -each.total))[:MOST_INPUTS], together


def importances(kind: AbstractKind, scored: Scored | None) -> list[float]:
    """By how much predictions of the scored rows are worse with each column of the table shuffled: the root mean
    squared error is larger, or the log probability of the class smaller. NaN without scored rows."""
    groups = [list(at) for at in kind.encoder.places.values()]
    if scored is None or scored.rows < 2 or not len(scored.X):
        return [float("nan")] * len(groups)
    count = max(2, min(ROWS, scored.rows, PREDICTIONS // (SHUFFLES * len(groups))))
    rng = np.random.default_rng(0)
    rows = rng.permutation(scored.rows)[:count]
    X, y = scored.X[rows], scored.columns["y"][rows]
    given = (scored.columns.get(name) for name in ("exposure", "weight"))
    loss = _loss(kind, y, *(None if column is None else column[rows] for column in given))
    before = loss(X)
    worse = []
    for group in groups:
        moved = np.tile(X, (SHUFFLES, 1))
        moved[:, group] = np.concatenate([X[rng.permutation(count)][:, group] for _ in range(SHUFFLES)])
        worse.append(float(loss(moved) - before))
    return worse


def _loss(
    kind: AbstractKind, y: np.ndarray, exposure: np.ndarray | None, weight: np.ndarray | None
) -> Callable[[np.ndarray], float]:
    """Of repetitions of the rows whose truths are y."""

    def loss(X):
        repeated = lambda column: np.tile(column, len(X) // len(y))
        truth, count, model = repeated(y), None if weight is None else repeated(weight), kind.model
        if kind.task == "classification":
            return -metrics.average(model.predict_log_proba(X)[np.arange(len(X)), truth.astype(int)], count)
        E = 1.0 if exposure is None else repeated(exposure)
        return metrics.rmse(truth, E * model.predict(X), count)

    return loss


def _input(kind: AbstractKind, column: Column, effects, values: np.ndarray, importance: float) -> Input:
    curve = effects[0]
    parts = [curve.mean, curve.lower, curve.upper]
    first, total = sum(each.first for each in effects), min(1.0, sum(each.total for each in effects))
    lines = [str(label) for label in getattr(kind.model, "classes_", ())] if curve.mean.ndim > 1 else []
    if lines:  # the classes that change most come first
        order = np.argsort(-np.abs(curve.mean).max(axis=0), kind="stable")
        parts, lines = [part[:, order] for part in parts], [lines[k] for k in order]
    if column.categories or column.kind == "boolean":
        names = _names(column, curve.values)
        order = np.argsort(-(parts[0] if parts[0].ndim == 1 else parts[0][:, 0]), kind="stable")[:MOST_CATEGORIES]
        parts, names = [part[order] for part in parts], [names[i] for i in order]
        return Input(column.name, names, parts[0], parts[1], parts[2], importance, first, total, lines=lines)
    at = curve.values[:, 0]
    rug = values[np.linspace(0, len(values) - 1, min(len(values), 150)).astype(int)]
    ticks = [(float(at[i]), _day(at[i])) for i in (0, len(at) // 2)] if column.kind == "date" else []
    curves = column.name, at.tolist(), parts[0], parts[1], parts[2]
    return Input(*curves, importance, first, total, rug.tolist(), lines, ticks)


def _names(column: Column, values: np.ndarray) -> list[str]:
    """The category of each row of 0/1 values."""
    if not column.categories:
        return [{0.0: "false", 1.0: "true"}.get(float(v), f"{v:g}") for v in values[:, 0]]
    known = len(column.categories)
    absent = lambda row: "(missing)" if len(row) > known and row[-1] else "(any other)"
    return [column.categories[int(np.argmax(row[:known]))] if row[:known].any() else absent(row) for row in values]


def _day(days: float) -> str:
    return (datetime.date(1970, 1, 1) + datetime.timedelta(days=float(days))).isoformat()


def residual_columns(kind: AbstractKind, shown: list[Input], scored: Scored) -> list[tuple[str, np.ndarray]]:
    """(name, values of the scored rows) of the most important columns of numbers."""
    places = kind.encoder.places
    numbers = [each.name for each in shown if not each.categories and not each.ticks]
    return [(name, scored.X[:, places[name][0]]) for name in numbers[:SHOWN_RESIDUALS]]


def surprising(
    kind: AbstractKind, shown: list[Input], scored: Scored, held_out: pd.DataFrame | None
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table: the scored rows whose truth was least probable, of classes those most surely wrong,
    with the values of their most important columns as they stand in the table."""
    density, columns = kind.surprise(scored), scored.columns
    names = [each.name for each in shown[:SHOWN_COLUMNS]]
    rows = np.argsort(density, kind="stable")[: min(WORST, scored.rows)]
    if kind.task == "classification":
        labels, P = [str(label) for label in kind.model.classes_], np.exp(columns["log_p"])
        wrong = P.argmax(axis=1) != columns["y"]
        rows = rows[wrong[rows]]
        header = ["row", "actual", "predicted", "probability"]
        told = lambda i: [labels[int(columns["y"][i])], labels[int(P[i].argmax())], f"{P[i].max():.3f}"]
    else:
        header = ["row", "actual", "predicted", "interval"]
        between = lambda i: f"{columns['lower'][i]:.4g} to {columns['upper'][i]:.4g}"
        told = lambda i: [f"{columns['y'][i]:.6g}", f"{columns['mean'][i]:.5g}", between(i)]
    value = lambda i, name: _cell(held_out, scored.places[i], name)
    return header + names, [[_number(scored.places[i]), *told(i), *(value(i, name) for name in names)] for i in rows]


def _number(place: Any) -> str:
    return f"{int(place) + 1:,}"


def _cell(frame: pd.DataFrame | None, place: Any, name: str) -> str:
    if frame is None or name not in frame.columns:
        return ""
    cell = frame.at[place, name]
    return "" if pd.isna(cell) else f"{cell:.6g}" if isinstance(cell, float) else str(cell)
