"""From a DataFrame to a matrix of floats, by rules learned once on the training table."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
from jaxtyping import Float64, Shaped

from pseudopoint.tables.columns import Column, encode_column, learn_column
from pseudopoint.tables.formats import Format, column_formats, part_formats
from pseudopoint.tables.messages import Oddity, TableError, describe
from pseudopoint.tables.missing import CSV_WORDS, without_words
from pseudopoint.tables.target import class_target, number_target, require, target_notes, tidy


@dataclass(frozen=True)
class TableEncoder:
    """Turns rows of a table into a float64 matrix [N, D], by rules learned from the training table.

    Encoders are equal if their fields are; `to_dict` and `from_dict` carry them through JSON. Columns are looked up by
    name: their order does not matter, and further columns are ignored. The target holds labels if `classes`, otherwise
    numbers. `target_format` says how its cells are read; if it is None, the cells of each table decide. A cell that
    holds one of the words in `missing` is a gap, in any column; in CSV files, so is one that holds a word of
    `csv_missing`, which only encoders saved by version 0.1 have.
    """

    target_name: str
    columns: tuple[Column, ...]
    classes: bool = False
    target_format: Format | None = None
    missing: tuple[str, ...] = ()
    csv_missing: tuple[str, ...] = ()

    @classmethod
    def learn(
        cls,
        frame: pd.DataFrame,
        target: str,
        classes: bool = False,
        missing: Collection[str] = (),
        whole: pd.DataFrame | None = None,
        own_kinds: bool = False,
    ) -> tuple["TableEncoder", list[str]]:
        """The encoder of a training table, and notes on what was dropped, filled, grouped, or has another reading.

        `missing` has further words that mark a gap. If `frame` is a part of the table `whole`, the cells of `whole`
        decide how columns are read; with `own_kinds` those of `frame` decide what a column holds, and `whole` only how
        that is written (`part_formats`). `TableError` if the target is not a column of finite numbers or, with
        `classes`, of labels, if an input is ±inf, or if no input is left.
        """
        frame = without_words(tidy(frame), missing)
        whole = frame if whole is None else without_words(tidy(whole), missing)
        formats = part_formats(frame, whole) if own_kinds else column_formats(whole)
        require(frame, [target])
        learned = [learn_column(name, _series(frame, name), *formats[name]) for name in frame.columns if name != target]
        columns = tuple(column for column, _ in learned if column is not None)
        notes = target_notes(frame, target, classes, *formats[target])
        notes += [note for _, found in learned for note in found]
        if not columns:
            raise TableError("; ".join([f"the table has no usable input beside the target {target!r}", *notes]))
        return cls(target, columns, classes, formats[target][0], tuple(missing)), notes

    @property
    def feature_names(self) -> list[str]:
        """Names of the D features, in the order of the matrix."""
        return [name for column in self.columns for name in column.feature_names]

    @property
    def places(self) -> dict[str, tuple[int, ...]]:
        """Of each column of the table, the places of its features in the matrix."""
        ends = np.cumsum([len(column.feature_names) for column in self.columns])
        return {
            column.name: tuple(range(int(end) - len(column.feature_names), int(end)))
            for column, end in zip(self.columns, ends, strict=True)
        }

    @property
    def categories(self) -> list[tuple[int, ...]]:
        """Of each column of categories, the places of its features in the matrix; the mark of gaps is one of them."""
        places = self.places
        return [places[column.name] for column in self.columns if column.categories]

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that a CSV file must be read with as text, a target of classes among them."""
        inputs = tuple(column.name for column in self.columns if column.format.is_text)
        text = self.classes or (self.target_format is not None and self.target_format.is_text)
        return (*inputs, self.target_name) if text else inputs

    def inputs(self, frame: pd.DataFrame) -> tuple[Float64[np.ndarray, "N D"], list[str]]:
        """As `encode`, with notes on what was odd."""
        X, oddities = self.encode(frame)
        return X, describe(oddities)

    def encode(self, frame: pd.DataFrame) -> tuple[Float64[np.ndarray, "N D"], list[Oddity]]:
        """The features [N, D] of a table, all finite, and what was odd, for `describe` to add up over chunks.

        `TableError` if a column is missing or an input is ±inf. Its message counts data rows from 1, by the index if
        that holds integers.
        """
        frame = without_words(tidy(frame), self.missing)
        require(frame, [column.name for column in self.columns])
        encoded = [encode_column(column, _series(frame, column.name)) for column in self.columns]
        return np.hstack([block for block, _ in encoded]), [oddity for _, odd in encoded for oddity in odd]

    def target(self, frame: pd.DataFrame) -> Shaped[np.ndarray, "N"]:
        """The target [N] as `number_target` or, if it holds classes, `class_target` gives it; errors as there.

        A missing number is NaN, a missing label None.
        """
        read = class_target if self.classes else number_target
        return read(frame, self.target_name, self.missing, self.target_format)

    def to_dict(self) -> dict[str, Any]:
        """The encoder as plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "TableEncoder":
        """The inverse of `to_dict`. `TableError` if the fields are not those of an encoder."""
        try:
            columns = [Column(**{**column, "categories": tuple(column["categories"])}) for column in fields["columns"]]
            classes = fields.get("classes", False)  # the first files hold regressions only and have no such field
            plain: dict[str, Any] = {"kind": "category" if classes else "number"}
            return cls(
                fields["target_name"],
                tuple(columns),
                classes,
                Format(**(fields.get("target_format") or plain)),
                tuple(fields.get("missing", ())),
                tuple(fields.get("csv_missing", CSV_WORDS)),
            )
        except (KeyError, TypeError) as error:
            raise TableError(f"these fields describe no table encoder ({error}); use what to_dict made") from None


def _series(frame: pd.DataFrame, name: str) -> pd.Series:
    return cast(pd.Series, frame[name])
