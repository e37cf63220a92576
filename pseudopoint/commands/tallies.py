"""Measures of predictions whose rows come in chunks and are not kept: memory does not grow with the table."""

from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np
from scipy.special import entr

from pseudopoint import metrics
from pseudopoint.tables.learning import Moments

Result = dict[str, Any]
Columns = dict[str, np.ndarray]


class Scored(NamedTuple):
    """Truths and predictions of the rows that could be scored, one array each, notes on the others, and the inputs
    [N, D] and the labels in the table's index of these rows."""

    columns: Columns
    rows: int
    notes: list[str]
    X: np.ndarray = np.empty((0, 0))
    places: np.ndarray = np.empty(0, int)


Measures = Callable[[Scored], Result]


def _of_chunk(measures: Measures, columns: Columns) -> tuple[Result, int, float]:
    """The measures of a chunk, its rows, and what they weigh together."""
    rows = len(columns["y"])
    return measures(Scored(columns, rows, [])), rows, float(np.sum(columns.get("weight", np.ones(rows))))


def _mean(a: Any, b: Any, share: float) -> Any:
    """(1 − share) a + share b, of which a = b is exact, and infinite where one of them is."""
    return a + share * (b - a if np.isfinite(a) else b)


def _averaged(one: Result, other: Result, share: float) -> Result:
    """Means over the rows of both, of which `other` has that share; what is no number is that of the other."""
    number = lambda value: isinstance(value, float | int) and not isinstance(value, bool)
    mean = lambda a, b: _mean(a, b, share) if number(a) and number(b) else b
    return {name: mean(one[name], value) for name, value in other.items()} if one else other


@final
class NumberTally:
    """The measures of regression: means are averaged, RMSE and R² come from sums of squares in units of `scale`. A
    median needs all rows at once: beside several chunks there is no error of it."""

    def __init__(self, measures: Measures, scale: float):
        self._measures, self._scale = measures, scale
        self._mean: Result = {}
        self._normal = False
        self._rows, self._chunks, self._weight, self._squares, self._y = 0, 0, 0.0, 0.0, Moments()

    def add(self, columns: Columns) -> None:
        """A chunk of rows."""
        part, rows, weight = _of_chunk(self._measures, columns)
        self._rows, self._chunks, self._weight = self._rows + rows, self._chunks + 1, self._weight + weight
        self._mean = _averaged(self._mean, part, weight / self._weight)
        self._normal |= part["log_density_of_normal"] is not None  # a chunk of equal targets has none
        error = part["rmse"] / self._scale
        self._squares += weight * error * error  # infinite where `**` would raise
        self._y += Moments.of(columns["y"] / self._scale, columns.get("weight"))

    def result(self) -> Result:
        """Of all rows."""
        rmse, of_mean = self._scale * float(np.sqrt(self._squares / self._weight)), self._scale * self._y.spread
        ratio = rmse / of_mean if of_mean else float(rmse > 0.0)
        r2 = 1.0 - ratio * ratio
        density = self._normal and of_mean > 0
        of_normal = -0.5 * float(np.log(2 * np.pi)) - float(np.log(of_mean)) - 0.5 if density else None
        of_median = self._mean["mae_of_median"] if self._chunks == 1 else None
        beside = {"rmse_of_mean": of_mean, "mae_of_median": of_median, "log_density_of_normal": of_normal}
        return self._mean | {"rows": self._rows, "rmse": rmse, "r2": r2} | beside


@final
class ClassTally:
    """The measures of classification: means are averaged, calibration and the majority come from counts."""

    def __init__(self, measures: Measures, probabilities: Callable[[Scored], np.ndarray], classes: list[str]):
        self._measures, self._probabilities, self._classes = measures, probabilities, classes
        self._mean: Result = {}
        self._rows, self._counts, self._gaps, self._binned = 0, np.zeros(len(classes)), np.zeros(()), np.zeros(())

    def add(self, columns: Columns) -> None:
        """A chunk of rows."""
        part, rows, weight = _of_chunk(self._measures, columns)
        self._rows += rows
        self._counts = self._counts + np.bincount(columns["y"], columns.get("weight"), len(self._classes))
        self._mean = _averaged(self._mean, part, weight / float(self._counts.sum()))
        P = self._probabilities(Scored(columns, rows, []))
        confidence, share, count = metrics.reliability(columns["y"], P, 15, columns.get("weight"))
        self._gaps = self._gaps + np.where(count > 0, count * (share - confidence), 0.0)
        self._binned = self._binned + count

    def result(self) -> Result:
        """Of all rows."""
        majority = {
            "majority_class": self._classes[self._counts.argmax()],
            "majority_accuracy": float(self._counts.max() / self._counts.sum()),
            "log_density_of_shares": -float(entr(self._counts / self._counts.sum()).sum()),
        }
        error = float(np.sum(np.abs(self._gaps)) / np.sum(self._binned))
        return self._mean | majority | {"rows": self._rows, "calibration_error": error}
