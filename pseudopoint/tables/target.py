"""The column to predict: numbers, or classes whose labels are the same text in every kind of file and type of
column."""

import difflib
import re
from collections.abc import Collection
from typing import Any, cast

import numpy as np
import pandas as pd
from jaxtyping import Float64, Shaped
from pandas.api.types import is_bool_dtype

from pseudopoint.tables.columns import names_rows, refuse_infinite, row_number
from pseudopoint.tables.formats import Format, column_format, values_of
from pseudopoint.tables.messages import TableError, listed, quoted_examples, refuse_repeated, row_count
from pseudopoint.tables.missing import Cells, given, is_usual_word, text_of, without_words
from pseudopoint.tables.numerals import decimal_marks
from pseudopoint.tables.remarks import remarks

DECIMAL = re.compile(r"-?(0|[1-9]\d*)\.\d+([eE][+-]?\d+)?")  # as columns of floats write whole numbers
TRUTH = {"true": "True", "false": "False"}


def class_target(
    frame: pd.DataFrame, target: str, missing: Collection[str] = (), format: Format | None = None
) -> Shaped[np.ndarray, "N"]:
    """The labels [N] of a target that is a class, as `str`, None where missing. `TableError` if there is no `target`.

    A label is the text of its cell without blanks around it. A value has the same label in every type of column: a
    whole number has no decimals (1, 1.0, "1.0" and "1" are "1"), and true and false are "True" and "False" (also from
    "TRUE" and "true"). Other text stays as it is: "01" and "1.10" differ from "1" and "1.1". So a CSV file must be read
    with the target as text, or "01" is 1 before it comes here.

    Empty cells and those that hold a word in `missing` are missing. So are the usual words, such as "NA", if the labels
    are numbers or true/false values, by `format` or, without it, by the cells of this table; in text they are labels.
    """
    frame, series = _tidied(frame, target, missing)
    text = text_of(series)
    if (format or column_format(frame, target)).kind != "category":
        text[is_usual_word(text)] = None
    labels = {cell: _label(cell) for cell in set(given(text))}
    return np.array([labels.get(cell) for cell in text], object)


def looks_like_classes(frame: pd.DataFrame, target: str, missing: Collection[str] = ()) -> tuple[bool, str]:
    """Whether to treat a target as classes, and why, in words such as "the target 'y' holds text ('a', 'b')".

    Yes for text, true/false values, pandas' categories, and numbers of exactly two different values. No for other
    numbers, for text of which most cells are numbers (numbers with faults in them), for text that differs in nearly
    every row, and for dates, times and durations. `TableError` if there is no `target`.
    """
    frame, series = _tidied(frame, target, missing)
    found, what = _kind_of_target(series, column_format(frame, target))
    return found, f"the target {target!r} {what}"


def number_target(
    frame: pd.DataFrame, target: str, missing: Collection[str] = (), format: Format | None = None, role: str = "target"
) -> Float64[np.ndarray, "N"]:
    """The target [N] as numbers, of durations as days, NaN where missing. `TableError` if it is absent, not numeric, or
    ±inf.

    `format` says how its cells are read; without it, they and the other columns decide as in training. `role` is what
    errors call a column that is read like a target, such as the exposure.
    """
    frame, series = _tidied(frame, target, missing)
    classes = "fit classes with --task classification"
    if is_bool_dtype(series.dtype):
        raise TableError(
            f"the {role} {target!r} holds true/false values, not numbers; "
            + (f"{classes}, or write 0 and 1" if role == "target" else "write 0 and 1")
        )
    values, unread = values_of(series, _of_numbers(series, format or column_format(frame, target)))
    for position in np.flatnonzero(~pd.isna(unread) & ~is_usual_word(unread))[:1]:
        text, row = unread[position], row_number(series, position)
        raise TableError(
            f"the {role} {target!r} is not numeric: row {row} holds {text!r}; "
            + (f"leave the cell empty if missing, or {classes}" if role == "target" else "write a number")
        )
    refuse_infinite(target, values, series)
    return values


def drop_missing_target(
    frame: pd.DataFrame, target: str, classes: bool = False, missing: Collection[str] = (), format: Format | None = None
) -> tuple[pd.DataFrame, int]:
    """The rows that have a target, with their index, and how many had none; `classes` says that it holds labels.

    `missing` and `format` are those of `class_target` and `number_target`. `TableError` if no row is left, and as
    there.
    """
    gaps = np.asarray(pd.isna((class_target if classes else number_target)(frame, target, missing, format)))
    if not len(gaps):
        raise TableError("the table has no rows: give at least one")
    if gaps.all():
        content = "labels" if classes else "numbers"
        raise TableError(f"the target {target!r} is missing in every row; name a column that holds {content}")
    return frame.loc[~gaps], int(gaps.sum())


def target_notes(frame: pd.DataFrame, target: str, classes: bool, format: Format, open: str) -> list[str]:
    """Notes on the target of a training table: its unit, and what could be read in another way.

    `TableError` if it is no column of numbers or, with `classes`, has no label.
    """
    if classes:
        drop_missing_target(frame, target, True, format=format)
        return []
    series = cast(pd.Series, frame[target])
    return remarks(target, series, _of_numbers(series, format), open, number_target(frame, target, format=format))


def distinct_labels(y: Any) -> np.ndarray:
    """The different labels of an array [N] without its gaps, in no order."""
    y = np.asarray(y)
    found = np.asarray(pd.unique(y), y.dtype)
    return found[~np.asarray(pd.isna(found))]


def numbers_of_labels(labels: np.ndarray, y: Any) -> np.ndarray:
    """The places of the labels y [N] among sorted ones, NaN in gaps."""
    y = np.asarray(y)
    there, places = ~np.asarray(pd.isna(y)), np.full(len(y), np.nan)
    places[there] = np.searchsorted(labels, y[there])
    return places


def tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with column names that are distinct strings, and an index of integers so that messages name a row."""
    frame = frame.rename(columns=str)
    refuse_repeated(frame.columns)
    return frame if frame.index.dtype.kind in "iu" else frame.reset_index(drop=True)


def require(frame: pd.DataFrame, names: Collection[str]) -> None:
    """`TableError` if the frame lacks columns: which, which come close, and which there are."""
    absent = [name for name in names if name not in frame.columns]
    if not absent:
        return
    columns = {column.casefold(): column for column in frame.columns}
    close = [columns[match] for name in absent for match in difflib.get_close_matches(name.casefold(), columns, n=1)]
    question = f"; did you mean {listed(close)}?" if close else ";"
    plural = "column" if len(absent) == 1 else "columns"
    raise TableError(f"the table has no {plural} {listed(absent)}{question} its columns are {listed(frame.columns)}")


def _tidied(frame: pd.DataFrame, target: str, missing: Collection[str]) -> tuple[pd.DataFrame, pd.Series]:
    frame = without_words(tidy(frame), missing)
    require(frame, [target])
    return frame, cast(pd.Series, frame[target])


def _label(text: str) -> str:
    if DECIMAL.fullmatch(text) and float(text).is_integer():
        return str(int(float(text)))
    return TRUTH.get(text.lower(), text)


def _of_numbers(series: pd.Series, format: Format) -> Format:
    """The format in which numbers are looked for, so that an error can name a cell that is none."""
    if format.kind in ("number", "duration"):
        return format
    return Format("number", decimal_marks(text_of(series)).choice)


def _kind_of_target(series: pd.Series, format: Format) -> tuple[bool, str]:
    """Whether a column looks like classes, and what it holds."""
    cells = given(text_of(series))
    if not cells:
        return False, "is missing in every row"
    if isinstance(series.dtype, pd.CategoricalDtype) and format.kind == "category":
        return True, f"holds categories{quoted_examples(cells)}"
    if format.kind == "boolean":
        return True, "holds true/false values"
    if format.kind in ("date", "time", "duration"):
        return False, f"holds {'times of day' if format.kind == 'time' else f'{format.kind}s'}"
    values, unread = values_of(series, _of_numbers(series, format))
    if format.kind == "number":
        unread[is_usual_word(unread)] = None
    if (found := _kind_of_numbers(values, unread)) is not None:
        return found
    if names_rows(cells):
        return False, f"holds {len(set(cells)):,} different texts in {row_count(len(cells))}: names of rows"
    return True, f"holds text{quoted_examples(cells)}"


def _kind_of_numbers(values: np.ndarray, unread: Cells) -> tuple[bool, str] | None:
    """The same for numbers, which most of the cells are; None for text."""
    numbers, others = values[~np.isnan(values)], given(unread)
    if len(others) >= len(numbers):
        return None
    distinct = np.unique(numbers)
    if others:
        return False, f"holds numbers, and something else in {row_count(len(others))}{quoted_examples(others)}"
    if len(distinct) == 2 and np.isfinite(distinct).all():
        return True, f"holds two different numbers, {_label(str(distinct[0]))} and {_label(str(distinct[1]))}"
    return False, f"holds {len(distinct):,} different number{'' if len(distinct) == 1 else 's'}"
