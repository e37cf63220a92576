"""Notes on how the values of a column were read: its unit, and what could be read in another way."""

import numpy as np
import pandas as pd
from jaxtyping import Float64

from pseudopoint.tables.formats import Format, is_numeric, standard
from pseudopoint.tables.messages import listed
from pseudopoint.tables.missing import text_of
from pseudopoint.tables.numerals import units
from pseudopoint.tables.sentinels import sentinel_notes

__all__ = ["remarks"]

UNITS = {"time": "a time of day or a clock is read in hours", "duration": "a duration is read in days"}
USES = {",": ("a decimal comma", "a comma between thousands"), ".": ("a decimal point", "a point between thousands")}


def remarks(name: str, series: pd.Series, format: Format, open: str, values: Float64[np.ndarray, "N"]) -> list[str]:
    """Sentences on the marks, the unit and the sentinels of a column.

    `open` is the mark that could be read in two ways, "" if there is none; `values` are what the cells are worth.
    """
    notes = [f"column {name!r}: {UNITS[format.kind]}"] if format.kind in UNITS else []
    if open:
        notes.append(f"column {name!r}: {_reading(series, format, open, values)}")
    if format.kind == "number" and not is_numeric(standard(series)):
        notes += _unit_notes(name, series)
    return notes + (sentinel_notes(name, values) if format.kind == "number" else [])


def _reading(series: pd.Series, format: Format, open: str, values: np.ndarray) -> str:
    text = text_of(series)
    cells = [
        (cell, value) for cell, value in zip(text, values, strict=True) if cell and open in cell and value == value
    ]
    cell, value = cells[0]
    if format.kind == "date":
        day = np.datetime64("1970-01-01") + np.timedelta64(int(value // 1), "D")
        return f"every date could have the day or the month first; {cell!r} is read as {day}, the {format.order} first"
    use, other = USES[open] if format.decimal == open else USES[open][::-1]
    return f"every number could be read in two ways; {cell!r} is read as {value:.12g}, with {use} and not {other}"


def _unit_notes(name: str, series: pd.Series) -> list[str]:
    found = units(text_of(series))
    named = [unit for unit in found if unit]
    if named == ["%"]:
        others = "; cells without the sign are read as they are" if "" in found else ""
        return [f"column {name!r}: values are in per cent, so '12 %' is 12{others}"]
    if len(named) > 1:
        return [f"column {name!r}: values carry different units, {listed(named)}, which are ignored"]
    return []
