"""From a DataFrame to a matrix of floats, by rules learned once on the training table."""

from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
from jaxtyping import Float64, Shaped

from pseudopoint.tables.columns import Column, encode_column, learn_column
from pseudopoint.tables.messages import Oddity, TableError, describe
from pseudopoint.tables.target import class_target, no_column, number_target, tidy

__all__ = ["TableEncoder"]


@dataclass(frozen=True)
class TableEncoder:
    """Turns rows of a table into a float64 matrix [N, D], by rules learned from the training table.

    Plain data, equal if its fields are; `to_dict` and `from_dict` carry it through JSON. Columns are looked up by name,
    so their order does not matter and further columns are ignored. `classes` says that the target holds labels of
    classes; otherwise it holds numbers.
    """

    target_name: str
    columns: tuple[Column, ...]
    classes: bool = False

    @classmethod
    def learn(cls, frame: pd.DataFrame, target: str, classes: bool = False) -> tuple["TableEncoder", list[str]]:
        """The encoder of a training table, and notes on what was dropped, filled or grouped together.

        Raises `TableError` if the target is not a column of finite numbers or, with `classes`, of at least two classes,
        an input is ±inf, or no input is left.
        """
        frame = tidy(frame)
        _check_target(frame, target, classes)
        learned = [learn_column(name, _series(frame, name)) for name in frame.columns if name != target]
        columns = tuple(column for column, _ in learned if column is not None)
        notes = [note for _, note in learned if note]
        if not columns:
            raise TableError("; ".join([f"the table has no usable input beside the target {target!r}", *notes]))
        return cls(target, columns, classes), notes

    @property
    def feature_names(self) -> list[str]:
        """Names of the D features, in the order of the matrix."""
        return [name for column in self.columns for name in column.feature_names]

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that a CSV file must be read with as text, a target of classes among them."""
        inputs = tuple(column.name for column in self.columns if column.kind in ("category", "date"))
        return (*inputs, self.target_name) if self.classes else inputs

    def inputs(self, frame: pd.DataFrame) -> tuple[Float64[np.ndarray, "N D"], list[str]]:
        """The features [N, D] of a table, finite throughout, and notes on what was odd. Errors as `encode`."""
        X, oddities = self.encode(frame)
        return X, describe(oddities)

    def encode(self, frame: pd.DataFrame) -> tuple[Float64[np.ndarray, "N D"], list[Oddity]]:
        """The features [N, D] of a table, finite throughout, and what was odd, for `describe` to add up over chunks.

        On the training table it finds nothing odd that `learn` did not say. Raises `TableError` if a column is missing
        or an input is ±inf; the row in the message counts data rows from 1, by the index where that holds integers.
        """
        frame = tidy(frame)
        absent = [column.name for column in self.columns if column.name not in frame.columns]
        if absent:
            raise no_column(absent, frame)
        encoded = [encode_column(column, _series(frame, column.name)) for column in self.columns]
        return np.hstack([block for block, _ in encoded]), [oddity for _, odd in encoded for oddity in odd]

    def target(self, frame: pd.DataFrame) -> Shaped[np.ndarray, "N"]:
        """The target [N]: as `number_target` gives it or, if it holds classes, as `class_target` does; errors as there.

        It is missing where `pandas.isna` says so: NaN among numbers, None among labels.
        """
        return (class_target if self.classes else number_target)(frame, self.target_name)

    def to_dict(self) -> dict[str, Any]:
        """The encoder as plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "TableEncoder":
        """The inverse of `to_dict`. Raises `TableError` if the fields are not those of an encoder."""
        try:
            columns = [Column(**{**column, "categories": tuple(column["categories"])}) for column in fields["columns"]]
            # Files of version 0.1.0 hold regressions only and say nothing of classes.
            return cls(fields["target_name"], tuple(columns), fields.get("classes", False))
        except (KeyError, TypeError) as error:
            raise TableError(f"these fields describe no table encoder ({error}); use what to_dict made") from None


def _check_target(frame: pd.DataFrame, name: str, classes: bool) -> None:
    if not classes:
        number_target(frame, name)
        return
    labels = {label for label in class_target(frame, name) if label is not None}
    if len(labels) < 2:
        what = f"holds one class only, {labels.pop()!r}" if labels else "is missing in every row"
        raise TableError(f"the target {name!r} {what}; classification needs rows of at least two classes")


def _series(frame: pd.DataFrame, name: str) -> pd.Series:
    return cast(pd.Series, frame[name])
