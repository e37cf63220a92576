"""Notes on how the values of a column were read: its unit, other possible readings, and numbers that may mean
missing."""

import numpy as np
import pandas as pd
from jaxtyping import Float64

from pseudopoint.tables.formats import Format, has_zone, is_numeric, standard
from pseudopoint.tables.messages import listed, row_count
from pseudopoint.tables.missing import text_of
from pseudopoint.tables.numerals import units

UNITS = {"time": "a time of day or a clock is read in hours", "duration": "a duration is read in days"}
USES = {",": ("a decimal comma", "a comma between thousands"), ".": ("a decimal point", "a point between thousands")}

# A sentinel, such as -999 or 9.97e36, stands for a missing value.
FAR = 5  # times the range of the other values
FAR_NINES = 0.5  # enough for -99, 999, …, which people choose for missing values
SEVERAL = 2  # rows
MOST = 3  # different sentinels at either end
FEWEST_OTHERS = 5  # different values: fewer are rather codes


def remarks(name: str, series: pd.Series, format: Format, open: str, values: Float64[np.ndarray, "N"]) -> list[str]:
    """Sentences on the marks, the unit and the sentinels of a column.

    `open` is the mark that could be read in two ways, "" if there is none; `values` are the values of the cells.
    """
    notes = [UNITS[format.kind]] if format.kind in UNITS else []
    if open:
        notes.append(_reading(series, format, open, values))
    if format.unit == "zone" and (bare := int((~has_zone(series) & ~np.isnan(values)).sum())):
        notes.append(f"{row_count(bare)} without a time zone, taken for UTC")
    if format.kind == "number":
        notes += [] if is_numeric(standard(series)) else _unit_notes(series)
        notes += _sentinel_notes(values)
    return [f"column {name!r}: {note}" for note in notes]


def _reading(series: pd.Series, format: Format, open: str, values: np.ndarray) -> str:
    pairs = zip(text_of(series), values, strict=True)
    cell, value = next((cell, value) for cell, value in pairs if cell and open in cell and not np.isnan(value))
    if format.kind == "date":
        day = np.datetime64("1970-01-01") + np.timedelta64(int(value // 1), "D")
        return f"every date could have the day or the month first; {cell!r} is read as {day}, the {format.order} first"
    use, other = USES[open] if format.decimal == open else USES[open][::-1]
    return f"every number could be read in two ways; {cell!r} is read as {value:.12g}, with {use} and not {other}"


def _unit_notes(series: pd.Series) -> list[str]:
    found = units(text_of(series))
    named = [unit for unit in found if unit]
    if named == ["%"]:
        others = "; cells without the sign are read as they are" if "" in found else ""
        return [f"values are in per cent, so '12 %' is 12{others}"]
    return [f"values carry different units, {listed(named)}, which are ignored"] if len(named) > 1 else []


def _sentinel_notes(values: np.ndarray) -> list[str]:
    """A sentence for each value that occurs several times and lies far outside all others."""
    u, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    low, high = _far_below(u), _far_below(-u[::-1])
    others = u[low : len(u) - high]
    return [
        f"{u[place]:.12g} in {row_count(int(counts[place]))} lies far from all other values "
        f"({others[0]:.6g} to {others[-1]:.6g}); if it means missing, fit with --missing {u[place]:.12g} "
        f"(in Python missing=['{u[place]:.12g}'])"
        for place in [*range(low), *range(len(u) - high, len(u))]
        if counts[place] >= SEVERAL
    ]


def _far_below(u: np.ndarray) -> int:
    """How many of the distinct values, in ascending order, lie far below the rest."""
    for count in range(min(MOST, len(u) - FEWEST_OTHERS), 0, -1):
        # Values far above are not part of the range, or -999 would hide behind 999.
        rest = u[count : max(len(u) - MOST, count + FEWEST_OTHERS)]
        with np.errstate(over="ignore"):
            gap, size = rest[0] - u[count - 1], rest[-1] - rest[0]
        nines = set(f"{abs(u[count - 1]):.12g}") == {"9"} and abs(u[count - 1]) > 9
        if gap > (FAR_NINES if nines else FAR) * size:
            return count
    return 0
