"""How the cells of a column are written, decided once by the whole column, and what they are worth."""

import datetime
import decimal
import numbers
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64
from pandas.api.types import is_bool_dtype, is_complex_dtype, is_datetime64_any_dtype, is_numeric_dtype

from pseudopoint.tables import moments
from pseudopoint.tables.missing import Cells, is_usual_word, text_of
from pseudopoint.tables.numerals import Decimal, Reading, decimal_marks, parse_numbers, units

Kind = Literal["number", "boolean", "date", "time", "duration", "category"]
Unit = Literal["", "%", "zone"]

MAX_CATEGORIES = 50  # more one-hot features than this cost the model much and teach it little
NEARLY_ALL = 0.9  # share of the cells that have to be numbers (dates, …) for a column of text to be one of them
TRUTH: dict[str | None, float] = {"true": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "0": 0.0, "0.0": 0.0}


@dataclass(frozen=True)
class Format:
    """What a column holds, the decimal mark of its numbers in text, the order of day and month in its dates, and what
    some of its cells carry: numbers "%", dates a time "zone".

    With `decimal` "" text is read as pandas reads numbers, and with `order` "" only ISO dates are read, as in encoders
    that version 0.1 saved.
    """

    kind: Kind
    decimal: Decimal = ""
    order: moments.Order = ""
    unit: Unit = ""

    @property
    def is_text(self) -> bool:
        """Whether pandas, left alone, may read the cells of a CSV file in another way: as a number, 1.234 would not
        tell whether the file has 1.234 or 1.2340, and with a decimal comma it is 1234."""
        return self.kind in ("category", "date", "time", "duration") or self.decimal == ","


def look(series: pd.Series) -> Reading:
    """The `Format` of a column: by its type, or by its cells if the type leaves it open.

    An open mark has two readings, in numbers ("1,234") or in dates ("1/2/2024"); other columns of the table for which
    it is `decided` may choose between them.
    """
    series = standard(series)
    kind = _kind_of_type(series)
    cells = list(series.dropna()) if series.dtype == object else []
    if cells and all(isinstance(cell, bool | np.bool_) for cell in cells):
        kind = "boolean"
    elif cells and _are_numbers(cells).all():
        kind = "number"
    if kind is not None:
        return Reading(Format(kind, ".", "none", "zone" if getattr(series.dtype, "tz", None) else ""))
    text = text_of(series)
    text = text[~np.asarray(pd.isna(text)) & ~is_usual_word(text)]
    return _look_at_text(text) if len(text) else Reading(Format("category"))


def column_formats(frame: pd.DataFrame) -> dict[str, tuple[Format, str]]:
    """The format of every column, and the mark that has two readings in it, "" if there is none."""
    looks = {name: look(cast(pd.Series, frame[name])) for name in frame.columns}
    separator = frame.attrs.get("separator", "")
    return {name: (_settle(found, [*looks.values()], separator), found.open) for name, found in looks.items()}


def part_formats(part: pd.DataFrame, whole: pd.DataFrame) -> dict[str, tuple[Format, str]]:
    """`column_formats` of a part of a table: what a column holds is decided by the cells of the part alone, how it is
    written (decimal mark, order of day and month, per cent) by those of the whole table."""
    of_whole = column_formats(whole)
    kind = lambda found: found[0].kind
    own = column_formats(part)
    return {name: of_whole[name] if kind(of_whole[name]) == kind(found) else found for name, found in own.items()}


def column_format(frame: pd.DataFrame, name: str) -> Format:
    """The format of one column. Looks at the others only if it leaves a mark open."""
    found = look(cast(pd.Series, frame[name]))
    return column_formats(frame)[name][0] if found.open else found.choice


def values_of(series: pd.Series, format: Format) -> tuple[Float64[np.ndarray, "N"], Cells]:
    """The values of the cells in a format, NaN where there is none; and the text of the cells that have no value."""
    series = standard(series)
    nothing = np.full(len(series), None)
    if format.kind == "date" and is_datetime64_any_dtype(series.dtype):
        return moments.days(pd.DatetimeIndex(series)), nothing
    if pd.api.types.is_timedelta64_dtype(series.dtype) and format.kind != "date":
        return (series / pd.Timedelta(1, "h" if format.kind == "time" else "D")).to_numpy(np.float64), nothing
    if format.kind in ("number", "boolean") and is_numeric(series):
        return series.to_numpy(np.float64, na_value=np.nan), nothing
    text = text_of(series)
    values = PARSERS[format.kind](text, format)
    if format.kind == "number" and series.dtype == object:  # numbers among text, whatever the decimal mark of that
        exact = _are_numbers(series)
        values[exact] = series.to_numpy()[exact].astype(np.float64)
    return values, np.where(np.isnan(values), text, nothing)


def has_zone(series: pd.Series) -> Bool[np.ndarray, "N"]:
    """Whether each cell of a column of dates is a moment with a time zone."""
    series = standard(series)
    if is_datetime64_any_dtype(series.dtype):
        return np.full(len(series), pd.DatetimeIndex(series).tz is not None)
    return moments.zoned(text_of(series))


def standard(series: pd.Series) -> pd.Series:
    """The column in a type that shows what it holds, if a dictionary, Arrow or objects hide it."""
    dtype = series.dtype
    if isinstance(dtype, pd.ArrowDtype) and str(dtype).startswith(("dictionary", "duration", "time")):
        arrow = cast(Any, series.array).__arrow_array__()
        series = pd.Series(arrow.to_pandas().array, series.index, name=series.name)
    if isinstance(dtype, pd.PeriodDtype):
        return series.dt.to_timestamp()
    if series.dtype == object:
        cells = list(series.dropna())
        if cells and all(isinstance(cell, datetime.timedelta | np.timedelta64) for cell in cells):
            return pd.to_timedelta(series)
    return series


def is_numeric(series: pd.Series) -> bool:
    """Whether the type of a column is one of numbers or of true/false values."""
    return _kind_of_type(series) in ("number", "boolean")


def nearly_all(found: int, cells: int) -> bool:
    """Whether so many of the cells are numbers that the others are faults: 90 %, or all but one of at least five."""
    return found > 0 and (found >= NEARLY_ALL * cells or (cells - found <= 1 and cells >= 5))


def _settle(found: Reading, looks: list[Reading], separator: str) -> Format:
    """The format of a column that leaves a mark open: what most other columns of the table say, or what is usual.

    For numbers, the separator of the file counts last: if it is a semicolon, a comma is a decimal mark.
    """
    format, votes = found.choice, [other.choice for other in looks if other.decided]
    if not found.open:
        return format
    if format.kind == "date":
        count = sum((vote.order == "day") - (vote.order == "month") for vote in votes)
        return replace(format, order="day" if count > 0 else "month") if count else format
    count = sum((vote.decimal == ",") - (vote.decimal == ".") for vote in votes if vote.kind == "number")
    comma = count > 0 or (count == 0 and separator == ";" and found.open == ",")
    return replace(format, decimal="," if comma else ".")


def _kind_of_type(series: pd.Series) -> Kind | None:
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype) or is_complex_dtype(dtype):
        return "category"
    if is_datetime64_any_dtype(dtype):
        return "date"
    if pd.api.types.is_timedelta64_dtype(dtype):
        return "duration"
    return "boolean" if is_bool_dtype(dtype) else "number" if is_numeric_dtype(dtype) else None


def _are_numbers(cells: Iterable) -> np.ndarray:
    real = numbers.Real | decimal.Decimal
    return np.array([isinstance(cell, real) and not isinstance(cell, bool | np.bool_) for cell in cells], bool)


def _look_at_text(text: Cells) -> Reading:
    """The first format in which nearly all of the cells have a value; categories if there is none."""
    if all(cell.lower() in ("true", "false") for cell in text):
        return Reading(Format("boolean"))
    fits = lambda format: nearly_all(int((~np.isnan(PARSERS[format.kind](text, format))).sum()), len(text))
    found = next((found for found in _candidates(text) if fits(found.choice)), Reading(Format("category")))
    unit: Unit = ""
    if found.choice.kind == "number" and "%" in units(text):
        unit = "%"
    elif found.choice.kind == "date" and moments.zoned(text).any():
        unit = "zone"
    return found._replace(choice=replace(found.choice, unit=unit))


def _candidates(text: Cells) -> Iterator[Reading]:
    shaped = [kind for kind in moments.SHAPES if nearly_all(moments.shaped(text, kind), len(text))]
    if "date" in shaped:
        orders = moments.date_orders(text)
        yield orders._replace(choice=Format("date", ".", orders.choice))
    for kind in ("time", "duration"):
        if kind in shaped:
            yield Reading(Format(kind, ".", "none"))
    marks = decimal_marks(text)
    yield marks._replace(choice=Format("number", marks.choice, "none"))


PARSERS: dict[Kind, Callable[[Cells, Format], np.ndarray]] = {
    "number": lambda text, format: parse_numbers(text, format.decimal),
    "boolean": lambda text, format: np.array([TRUTH.get(cell and cell.lower(), np.nan) for cell in text], np.float64),
    "date": lambda text, format: moments.parse_dates(text, format.order),
    "time": lambda text, format: moments.parse_times(text),
    "duration": lambda text, format: moments.parse_durations(text),
}
