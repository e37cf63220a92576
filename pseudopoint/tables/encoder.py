"""From a DataFrame to a matrix of floats, by rules learned once on the training table."""

import difflib
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
from jaxtyping import Float64
from pandas.api.types import is_bool_dtype

from pseudopoint.tables.columns import Column, encode_column, learn_column, refuse_infinite, row_number, values_of
from pseudopoint.tables.messages import Oddity, TableError, describe, listed

__all__ = ["TableEncoder", "drop_missing_target"]


@dataclass(frozen=True)
class TableEncoder:
    """Turns rows of a table into a float64 matrix [N, D], by rules learned from the training table.

    Plain data, equal if its fields are; `to_dict` and `from_dict` carry it through JSON. Columns are looked up by name,
    so their order does not matter and further columns are ignored.
    """

    target_name: str
    columns: tuple[Column, ...]

    @classmethod
    def learn(cls, frame: pd.DataFrame, target: str) -> tuple["TableEncoder", list[str]]:
        """The encoder of a training table, and notes on what was dropped, filled or grouped together.

        Raises `TableError` if the target is not a column of finite numbers, an input is ±inf, or no input is left.
        """
        frame = _tidy(frame)
        _target(frame, target)
        learned = [learn_column(name, _series(frame, name)) for name in frame.columns if name != target]
        columns = tuple(column for column, _ in learned if column is not None)
        notes = [note for _, note in learned if note]
        if not columns:
            raise TableError("; ".join([f"the table has no usable input beside the target {target!r}", *notes]))
        return cls(target, columns), notes

    @property
    def feature_names(self) -> list[str]:
        """Names of the D features, in the order of the matrix."""
        return [name for column in self.columns for name in column.feature_names]

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that a CSV file must be read with as text."""
        return tuple(column.name for column in self.columns if column.kind in ("category", "date"))

    def inputs(self, frame: pd.DataFrame) -> tuple[Float64[np.ndarray, "N D"], list[str]]:
        """The features [N, D] of a table, finite throughout, and notes on what was odd. Errors as `encode`."""
        X, oddities = self.encode(frame)
        return X, describe(oddities)

    def encode(self, frame: pd.DataFrame) -> tuple[Float64[np.ndarray, "N D"], list[Oddity]]:
        """The features [N, D] of a table, finite throughout, and what was odd, for `describe` to add up over chunks.

        On the training table it finds nothing odd that `learn` did not say. Raises `TableError` if a column is missing
        or an input is ±inf; the row in the message counts data rows from 1, by the index where that holds integers.
        """
        frame = _tidy(frame)
        absent = [column.name for column in self.columns if column.name not in frame.columns]
        if absent:
            raise _no_column(absent, frame)
        encoded = [encode_column(column, _series(frame, column.name)) for column in self.columns]
        return np.hstack([block for block, _ in encoded]), [oddity for _, odd in encoded for oddity in odd]

    def target(self, frame: pd.DataFrame) -> Float64[np.ndarray, "N"]:
        """The target [N], NaN where it is missing. Raises `TableError` if it is absent, not numeric, or ±inf."""
        return _target(_tidy(frame), self.target_name)

    def to_dict(self) -> dict[str, Any]:
        """The encoder as plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "TableEncoder":
        """The inverse of `to_dict`. Raises `TableError` if the fields are not those of an encoder."""
        try:
            columns = [Column(**{**column, "categories": tuple(column["categories"])}) for column in fields["columns"]]
            return cls(fields["target_name"], tuple(columns))
        except (KeyError, TypeError) as error:
            raise TableError(f"these fields describe no table encoder ({error}); use what to_dict made") from None


def drop_missing_target(frame: pd.DataFrame, target: str) -> tuple[pd.DataFrame, int]:
    """The rows that have a target, with their index, and how many had none. `TableError` if no row is left."""
    missing = np.isnan(_target(_tidy(frame), target))
    if missing.all():
        raise TableError(f"the target {target!r} is missing in every row; name a column that holds numbers")
    return frame.loc[~missing], int(missing.sum())


def _target(frame: pd.DataFrame, name: str) -> np.ndarray:
    if name not in frame.columns:
        raise _no_column([name], frame)
    series = _series(frame, name)
    if is_bool_dtype(series.dtype):
        raise TableError(f"the target {name!r} holds true/false values, not numbers; write 0 and 1, or name another")
    values, unreadable = values_of(series, "number")
    for position in np.flatnonzero(~pd.isna(unreadable))[:1]:
        text, row = unreadable[position], row_number(series, position)
        raise TableError(
            f"the target {name!r} is not numeric: row {row} holds {text!r}; leave the cell empty if missing"
        )
    refuse_infinite(name, values, series)
    return values


def _no_column(names: list[str], frame: pd.DataFrame) -> TableError:
    columns = {column.casefold(): column for column in frame.columns}
    close = [columns[match] for name in names for match in difflib.get_close_matches(name.casefold(), columns, n=1)]
    question = f"; did you mean {listed(close)}?" if close else ";"
    plural = "column" if len(names) == 1 else "columns"
    return TableError(f"the table has no {plural} {listed(names)}{question} its columns are {listed(frame.columns)}")


def _tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with column names that are distinct strings, and an index of integers so that messages name a row."""
    frame = frame.rename(columns=str)
    if not frame.columns.is_unique:
        repeated = frame.columns[frame.columns.duplicated()].unique()
        raise TableError(f"more than one column is called {listed(repeated)}; rename all but one")
    return frame if frame.index.dtype.kind in "iu" else frame.reset_index(drop=True)


def _series(frame: pd.DataFrame, name: str) -> pd.Series:
    return cast(pd.Series, frame[name])
