"""Dates as days, durations as days, and times of day as hours, from text and from every type that holds them."""

import datetime
import re
from collections.abc import Callable
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from jaxtyping import Bool, Float64

from pseudopoint.tables.missing import Cells, given
from pseudopoint.tables.numerals import Reading, compared, pc

Order = Literal["", "none", "day", "month"]

EPOCH = datetime.date(1970, 1, 1).toordinal()
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = "(?P<name>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
MONTH += r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
CLOCK = r"(?P<hour>\d{1,3}):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d(?:\.\d+)?))?(?: ?(?P<half>[ap])\.?m\.?)?"
TIME = re.compile(CLOCK, re.IGNORECASE)
ISO = re.compile(r"\d{4}-\d\d-\d\d")
FINER = re.compile(r"([.,]\d{6})\d+")
# Of two-digit years, "01.02.24" and "1/2/24" are dates, but "1.2.24" may be a version.
SHAPE = r"(?=\d+/|\d\d[.-]\d\d[.-]|\d+[.-]\d+[.-]\d{4})"
PARTS = SHAPE + r"(?P<first>\d{1,2})(?P<mark>[./-])(?P<second_part>\d{1,2})(?P=mark)(?P<year>\d{4}|\d\d)"
DATES = [
    re.compile(rf"{date}(?:,? {CLOCK})?", re.IGNORECASE)
    for date in (
        PARTS,
        r"(?P<year>\d{4})[./](?P<month>\d{1,2})[./](?P<day>\d{1,2})",
        rf"(?P<day>\d{{1,2}})\.?[ -]{MONTH}[ -](?P<year>\d{{4}})",
        rf"{MONTH} (?P<day>\d{{1,2}}),? (?P<year>\d{{4}})",
    )
]
DURATION = re.compile(
    rf"[+-]?\d+ days?(?:,? [+-]?{CLOCK})?|-?P(?=[\dT])[\dDTHMS.]+|{CLOCK.replace('?P<', '?P<_')}", re.I
)

ZONE = r"(?i)[T ][0-9]{2}.*(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)$"  # at the end of a moment of ISO 8601

# What a cell of each kind must contain, for a quick look at many.
SHAPES: dict[Literal["date", "time", "duration"], str] = {
    "date": r"(?i)^[0-9]{1,4}[-./][0-9]{1,2}[-./][0-9]{1,4}|" + "|".join(MONTHS),
    "time": "^[0-9]{1,3}:[0-9]{2}",
    "duration": "(?i)day|:|^-?P",
}


def shaped(text: Cells, kind: Literal["date", "time", "duration"]) -> int:
    """How many cells contain what every cell of the kind must."""
    return int(np.asarray(pc.match_substring_regex(pa.array(text, pa.large_string()), SHAPES[kind])).sum())


def zoned(text: Cells) -> Bool[np.ndarray, "N"]:
    """Whether a cell is a moment with a time zone, as "2024-12-31T13:45Z" and "2024-12-31 13:45:10+02:00" are."""
    found = pc.match_substring_regex(pa.array(text, pa.large_string()), ZONE)
    return np.asarray(pc.fill_null(found, False), bool)


def date_orders(text: Cells) -> Reading:
    """Whether the day or the month comes first in the dates of a column; "none" where no date is written so."""
    written = [match for cell in given(text) if (match := DATES[0].fullmatch(cell))]
    if not written:
        return Reading("none")
    mark = written[0]["mark"]
    ways = {order: parse_dates(text, order) for order in ("day", "month")}
    return compared(ways, "month" if mark == "/" else "day", lambda _: mark)


def parse_dates(text: Cells, order: Order) -> Float64[np.ndarray, "N"]:
    """Days since 1970-01-01 UTC, NaN where there is no date.

    "2024-12-31" and all else of ISO 8601 is read always; unless `order` is "", so are "2024/12/31", "31 Dec 2024" and
    "Dec 31, 2024"; with "day" also "31.12.2024", "31/12/2024" and "31-12-24", with "month" "12/31/2024" and so on. A
    time may follow. The two-digit years 69, …, 99 are in the twentieth century, the others in this one.
    """
    # pandas alone would also read 2024 and 20240131 as dates.
    # No finer than microseconds, as `days` is: one cell in nanoseconds makes pandas lose all years far from 1970.
    iso = [FINER.sub(r"\1", cell) if cell and ISO.match(cell) else None for cell in text]
    values = days(pd.to_datetime(iso, format="ISO8601", utc=True, errors="coerce"))
    return values if order == "" else np.where(np.isnan(values), _each(text, lambda cell: _date(cell, order)), values)


def parse_times(text: Cells) -> Float64[np.ndarray, "N"]:
    """Hours of "13:45", "13:45:10.5", "1:45 pm" and of clocks that go on, such as "26:30"; NaN where there are none."""
    return _each(text, lambda cell: _hours(TIME.fullmatch(cell)))


def parse_durations(text: Cells) -> Float64[np.ndarray, "N"]:
    """Days of "2 days 03:04:05", of ISO 8601's "P2DT3H" and of clocks; NaN where there is no duration."""
    shown = [cell if cell and DURATION.fullmatch(cell) else None for cell in text]
    return np.asarray(pd.to_timedelta(pd.Series(shown, dtype=object), errors="coerce") / pd.Timedelta(1, "D"), float)


def days(moments: pd.DatetimeIndex) -> Float64[np.ndarray, "N"]:
    """Days since 1970-01-01 UTC, NaN for NaT."""
    utc = moments if moments.tz is None else moments.tz_convert(None)
    # In microseconds, so that a moment is the same number in every unit.
    return (utc.to_numpy().astype("datetime64[us]") - np.datetime64(0, "us")) / np.timedelta64(1, "D")


def _each(text: Cells, value: Callable[[str], float]) -> np.ndarray:
    values = {cell: value(cell) for cell in set(given(text))}
    return np.array([values.get(cell, np.nan) for cell in text], np.float64)


def _date(cell: str, order: Order) -> float:
    match = next((match for pattern in DATES if (match := pattern.fullmatch(cell))), None)
    if match is None:
        return np.nan
    found = match.groupdict()
    if found.get("first"):
        if order == "none":
            return np.nan
        first, second = int(found["first"]), int(found["second_part"])
        day, month = (first, second) if order == "day" else (second, first)
    else:
        day = int(found["day"])
        month = MONTHS.index(found["name"][:3].lower()) + 1 if found.get("name") else int(found["month"])
    digits, hours = found["year"], _hours(match) if found["hour"] else 0.0
    year = int(digits) + (0 if len(digits) == 4 else 1900 if int(digits) >= 69 else 2000)
    try:
        date = datetime.date(year, month, day)
    except ValueError:  # such as the 31st of February
        return np.nan
    return date.toordinal() - EPOCH + (hours / 24 if hours < 24 else np.nan)


def _hours(match: re.Match[str] | None) -> float:
    if match is None:
        return np.nan
    hour, half = int(match["hour"]), (match["half"] or "").lower()
    if half and not 1 <= hour <= 12:
        return np.nan
    hour = hour % 12 + 12 * (half == "p") if half else hour
    return hour + int(match["minute"]) / 60 + float(match["second"] or 0) / 3600
