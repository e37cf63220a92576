"""How one column of a table becomes features: what kind it is, what its cells are worth, what fills its gaps."""

import numbers
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Float64, Shaped
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

from pseudopoint.tables.messages import Oddity, TableError, quoted_examples, row_count

__all__ = [
    "Cells",
    "Column",
    "encode_column",
    "kind_of",
    "learn_column",
    "names_rows",
    "refuse_infinite",
    "row_number",
    "text_of",
    "values_of",
]

Kind = Literal["number", "boolean", "date", "category"]

MAX_CATEGORIES = 50  # more one-hot features than this cost the model much and teach it little
IDENTIFIER_SHARE = 0.9  # text that differs in more than this share of the rows names rows, it does not group them
MARKERS = frozenset({"?", "-", "--", ".", "*"})  # what people write for "missing" among numbers
NAMELESS = re.compile(r"Unnamed: \d+|__index_level_\d+__")  # row labels that pandas saved along with a table
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")
TRUTH: dict[str | None, float] = {"true": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "0": 0.0, "0.0": 0.0}

Cells = Shaped[np.ndarray, "N"]  # of objects: the text of each cell, or None


@dataclass(frozen=True)
class Column:
    """How one column becomes features.

    A number passes through, a boolean becomes 0 or 1, a date its days since 1970-01-01 (UTC); gaps are filled with
    `fill`, the median of the training rows. A category becomes one 0/1 feature for each of `categories`; a gap or any
    other category is all zeros. With `indicator`, one more 0/1 feature says where the gaps are.
    """

    name: str
    kind: Kind
    fill: float = 0.0
    indicator: bool = False
    categories: tuple[str, ...] = ()

    @property
    def feature_names(self) -> list[str]:
        """`NAME`, or `NAME=CATEGORY` for each category, then `NAME_missing` if there is an indicator."""
        values = [f"{self.name}={category}" for category in self.categories] or [self.name]
        return values + [f"{self.name}_missing"] * self.indicator


def learn_column(name: str, series: pd.Series) -> tuple[Column | None, str]:
    """The rule for a column of the training table, or None if it is no use as an input, and a note (or "")."""
    if NAMELESS.fullmatch(name):
        return None, f"column {name!r} has no name of its own, as saved row labels have none; it is left out"
    kind = kind_of(series)
    if kind == "category":
        return _learn_categories(name, series)
    values, unreadable = values_of(series, kind)
    refuse_infinite(name, values, series)
    gaps = int(np.isnan(values).sum())
    if gaps == len(values):
        return None, _all_missing(name)
    column = Column(name, kind, float(np.nanmedian(values)), gaps > 0)
    if gaps == 0:
        return column, ""
    return column, (
        f"column {name!r}: {row_count(gaps)} of {len(series):,} without a value{quoted_examples(_given(unreadable))}; "
        f"filled with the median and marked in '{name}_missing'"
    )


def encode_column(column: Column, series: pd.Series) -> tuple[Float64[np.ndarray, "N C"], list[Oddity]]:
    """The C features of a column of any table, and what was odd about it. `TableError` at ±inf."""
    return (_encode_categories if column.kind == "category" else _encode_values)(column, series)


def values_of(series: pd.Series, kind: Kind) -> tuple[Float64[np.ndarray, "N"], Cells]:
    """What the cells are worth as `kind`, NaN where that is nothing; and their text where it is worth nothing."""
    nothing = np.full(len(series), None)
    if kind == "date" and is_datetime64_any_dtype(series.dtype):
        return _days(pd.DatetimeIndex(series)), nothing
    if kind != "date" and _is_numeric(series):
        return series.to_numpy(np.float64, na_value=np.nan), nothing
    text = text_of(series)
    values = PARSERS[kind](text)
    return values, np.where(np.isnan(values), text, nothing)


def refuse_infinite(name: str, values: Float64[np.ndarray, "N"], series: pd.Series) -> None:
    """Raises `TableError` at the first ±inf among the values of `series`."""
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        row = row_number(series, infinite[0])
        raise TableError(f"column {name!r} is infinite in row {row}; correct the cell, or leave it empty if missing")


def row_number(series: pd.Series, position: int | np.integer) -> int:
    """The number, from 1, of a data row of the file whose rows the index counts 0, 1, …"""
    return int(series.index[int(position)]) + 1


def kind_of(series: pd.Series) -> Kind:
    """What a column holds: by its type, or by its cells where the type leaves it open."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        return "category"
    if is_datetime64_any_dtype(series.dtype):
        return "date"
    if is_bool_dtype(series.dtype):
        return "boolean"
    if is_numeric_dtype(series.dtype):
        return "number"
    return _kind_of_cells(series)


def text_of(series: pd.Series) -> Cells:
    """The cells as text without blanks around it, None where they are missing or blank."""
    cells = zip(series, series.isna(), strict=True)
    return np.array([None if missing else str(cell).strip() or None for cell, missing in cells], object)


def names_rows(texts: Sequence[str]) -> bool:
    """Whether the texts differ so much that they name rows and do not group them."""
    return len(set(texts)) > max(MAX_CATEGORIES, IDENTIFIER_SHARE * len(texts))


def _learn_categories(name: str, series: pd.Series) -> tuple[Column | None, str]:
    cells = _given(text_of(series))
    gaps = len(series) - len(cells)
    counts = Counter(cells)
    if not cells:
        return None, _all_missing(name)
    if names_rows(cells):
        return (
            None,
            f"column {name!r}: {len(counts):,} different texts in {row_count(len(cells))}; left out as an identifier",
        )
    # Alphabetical where equally frequent: the order of the rows must not matter.
    kept = sorted(sorted(counts, key=lambda category: (-counts[category], category))[:MAX_CATEGORIES])
    notes = []
    if gaps:
        notes.append(f"{row_count(gaps)} of {len(series):,} without a value, marked in '{name}_missing'")
    if len(counts) > MAX_CATEGORIES:
        rest = len(counts) - MAX_CATEGORIES
        notes.append(f"{rest:,} categories beyond the {MAX_CATEGORIES} most frequent count as none of them")
    column = Column(name, "category", indicator=gaps > 0, categories=tuple(kept))
    return column, f"column {name!r}: {'; '.join(notes)}" if notes else ""


def _encode_categories(column: Column, series: pd.Series) -> tuple[np.ndarray, list[Oddity]]:
    text = text_of(series)
    missing = np.asarray(pd.isna(text))
    codes = pd.Index(column.categories, dtype=object).get_indexer(pd.Index(text, dtype=object))
    block = codes[:, None] == np.arange(len(column.categories))
    finding = "categories not seen in training"
    if len(column.categories) == MAX_CATEGORIES:  # the others of training may be among them: they are not kept
        finding = f"categories other than the {MAX_CATEGORIES} most frequent of training"
    unseen = text[(codes < 0) & ~missing]
    oddities = [
        *_oddity(column, finding, "they count as none of the known ones", unseen),
        *_unexpected_gaps(column, int(missing.sum()), "they count as none of the known categories"),
    ]
    return _with_indicator(column, block, missing), oddities


def _encode_values(column: Column, series: pd.Series) -> tuple[np.ndarray, list[Oddity]]:
    values, unreadable = values_of(series, column.kind)
    refuse_infinite(column.name, values, series)
    missing = np.isnan(values)
    block = np.where(missing, column.fill, values)[:, None]
    texts = _given(unreadable)
    oddities = [
        *_oddity(column, f"text that is no {column.kind}", "it counts as missing", texts),
        *_unexpected_gaps(column, int(missing.sum()) - len(texts), "the median of training fills them"),
    ]
    return _with_indicator(column, block, missing), oddities


def _oddity(column: Column, finding: str, consequence: str, cells: Sequence[str] | np.ndarray) -> list[Oddity]:
    examples = tuple(dict.fromkeys(cells))[:4]  # one more than a note shows
    return [Oddity(column.name, finding, consequence, len(cells), examples)] if examples else []


def _unexpected_gaps(column: Column, gaps: int, consequence: str) -> list[Oddity]:
    if gaps == 0 or column.indicator:
        return []
    return [Oddity(column.name, "missing values, of which training had none,", consequence, gaps)]


def _with_indicator(column: Column, block: np.ndarray, missing: np.ndarray) -> np.ndarray:
    return np.column_stack([block, missing] if column.indicator else [block]).astype(np.float64)


def _all_missing(name: str) -> str:
    return f"column {name!r} is missing in every row; it is left out"


def _kind_of_cells(series: pd.Series) -> Kind:
    cells = list(series.dropna())
    if cells and all(isinstance(cell, bool | np.bool_) for cell in cells):
        return "boolean"
    if cells and all(isinstance(cell, numbers.Number) for cell in cells):
        return "number"
    text = np.array(_given(text_of(series)), object)
    if len(text) and not np.isnan(_parse_dates(text)).any():
        return "date"
    unmarked = text[[cell not in MARKERS for cell in text]]
    if 0 < len(unmarked) < len(text) and not np.isnan(_parse_numbers(unmarked)).any():
        return "number"
    return "category"


def _is_numeric(series: pd.Series) -> bool:
    is_category = isinstance(series.dtype, pd.CategoricalDtype)
    return not is_category and (is_numeric_dtype(series.dtype) or is_bool_dtype(series.dtype))


def _given(cells: Cells) -> list[str]:
    return [cell for cell in cells if cell is not None]


def _parse_numbers(text: Cells) -> np.ndarray:
    return np.asarray(pd.to_numeric(text, errors="coerce"), np.float64)


def _parse_booleans(text: Cells) -> np.ndarray:
    return np.array([TRUTH.get(cell and cell.lower(), np.nan) for cell in text], np.float64)


def _parse_dates(text: Cells) -> np.ndarray:
    # pandas alone would also take 2024 and 20240131 for dates.
    iso = [cell if cell and ISO_DATE.match(cell) else None for cell in text]
    return _days(pd.to_datetime(iso, format="ISO8601", utc=True, errors="coerce"))


def _days(moments: pd.DatetimeIndex) -> np.ndarray:
    """Days since 1970-01-01 UTC, NaN for NaT."""
    utc = moments if moments.tz is None else moments.tz_convert(None)
    # In microseconds whatever the unit, so that the same moment is the same number from any file.
    return (utc.to_numpy().astype("datetime64[us]") - np.datetime64(0, "us")) / np.timedelta64(1, "D")


PARSERS: dict[Kind, Callable[[np.ndarray], np.ndarray]] = {
    "number": _parse_numbers,
    "boolean": _parse_booleans,
    "date": _parse_dates,
}
