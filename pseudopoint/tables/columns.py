"""How one column becomes features: what fills its gaps, its categories, and what is odd about it."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Float64

from pseudopoint.tables.formats import MAX_CATEGORIES, Format, Kind, Unit, has_zone, is_numeric, nearly_all, values_of
from pseudopoint.tables.messages import Oddity, TableError, quoted_examples, row_count
from pseudopoint.tables.missing import category_text, given, is_usual_word, kind_of_cells, text_of
from pseudopoint.tables.moments import Order
from pseudopoint.tables.numerals import Decimal, parse_numbers
from pseudopoint.tables.remarks import remarks

IDENTIFIER_SHARE = 0.9  # text that differs in more than this share of the rows names rows and does not group them
CONTRARY = 100  # cells that say that a column is to be read in another way
SWAPPED = {"day": "month", "month": "day", ".": ",", ",": "."}
NAMELESS = re.compile(r"Unnamed: \d+|__index_level_\d+__")  # row labels that pandas saved along with a table


@dataclass(frozen=True)
class Column:
    """How one column becomes features.

    A number passes through, a boolean becomes 0 or 1, a date its days since 1970-01-01 (UTC), a duration its days, a
    time of day its hours; gaps are filled with `fill`, the median of the training rows. A category becomes one 0/1
    feature for each of `categories`; a gap or any other category is all zeros. With `indicator`, one more 0/1 feature
    marks the gaps. `decimal`, `order` and `unit` are those of `Format`.
    """

    name: str
    kind: Kind
    fill: float = 0.0
    indicator: bool = False
    categories: tuple[str, ...] = ()
    decimal: Decimal = ""
    order: Order = ""
    unit: Unit = ""

    @property
    def format(self) -> Format:
        """How its cells are read."""
        return Format(self.kind, self.decimal, self.order, self.unit)

    @property
    def feature_names(self) -> list[str]:
        """`NAME`, or `NAME=CATEGORY` for each category, then `NAME_missing` if there is an indicator."""
        values = [f"{self.name}={category}" for category in self.categories] or [self.name]
        return values + [f"{self.name}_missing"] * self.indicator


def learn_column(name: str, series: pd.Series, format: Format, open: str = "") -> tuple[Column | None, list[str]]:
    """The rule for a column of the training table, or None if it is no use as an input, and notes.

    `open` is the mark that could be read in two ways.
    """
    if NAMELESS.fullmatch(name):
        return None, [f"column {name!r} has no name of its own, as saved row labels have none; it is left out"]
    if format.kind == "category":
        return _learn_categories(name, series)
    values, unread = values_of(series, format)
    refuse_infinite(name, values, series)
    gaps = np.isnan(values)
    if gaps.all():
        return None, [_all_missing(name)]
    notes = remarks(name, series, format, open, values)
    if gaps.any():
        faults = np.flatnonzero(~pd.isna(unread) & ~is_usual_word(unread))
        what = quoted_examples(given(unread))
        if len(faults):
            first = min(row_number(series, place) for place in faults)
            examples = quoted_examples(unread[faults])
            what = f", {len(faults):,} of them with text that is no value{examples}, first in row {first}"
        count = f"{row_count(int(gaps.sum()))} of {len(series):,} without a value"
        notes.insert(0, f"column {name!r}: {count}{what}; filled with the median and marked in '{name}_missing'")
    return Column(name, fill=float(np.nanmedian(values)), indicator=bool(gaps.any()), **asdict(format)), notes


def encode_column(column: Column, series: pd.Series) -> tuple[Float64[np.ndarray, "N C"], list[Oddity]]:
    """The C features of a column of any table, and what was odd about it. `TableError` at ±inf."""
    read = _encode_categories if column.kind == "category" else _encode_values
    block, missing, oddities = read(column, series)
    return np.column_stack([block, missing] if column.indicator else [block]).astype(np.float64), oddities


def refuse_infinite(name: str, values: Float64[np.ndarray, "N"], series: pd.Series) -> None:
    """Raises `TableError` at the first ±inf among the values of `series`."""
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        row = row_number(series, infinite[0])
        raise TableError(f"column {name!r} is infinite in row {row}; correct the cell, or leave it empty if missing")


def row_number(series: pd.Series, position: int | np.integer) -> int:
    """The number, from 1, of a data row of the file whose rows the index counts 0, 1, …"""
    return int(series.index[int(position)]) + 1


def names_rows(texts: Sequence[str]) -> bool:
    """Whether the texts differ so much that they name rows and do not group them."""
    return len(set(texts)) > max(MAX_CATEGORIES, IDENTIFIER_SHARE * len(texts))


def _learn_categories(name: str, series: pd.Series) -> tuple[Column | None, list[str]]:
    cells = given(category_text(series))
    gaps = len(series) - len(cells)
    counts = Counter(cells)
    if not cells or (len(counts) == 1 and is_usual_word(np.array(cells[:1], object)).all()):
        return None, [_all_missing(name)]
    notes = _too_few_numbers(cells)
    if names_rows(cells):
        what = f"{len(counts):,} different texts in {row_count(len(cells))}; left out as an identifier"
        return None, [f"column {name!r}: {'; '.join([what, *notes])}"]
    # Alphabetical where equally frequent: the order of the rows must not matter.
    kept = sorted(sorted(counts, key=lambda category: (-counts[category], category))[:MAX_CATEGORIES])
    if gaps:
        notes.append(f"{row_count(gaps)} of {len(series):,} without a value, marked in '{name}_missing'")
    if len(counts) > MAX_CATEGORIES:
        others = len(counts) - MAX_CATEGORIES
        notes.append(f"{others:,} categories beyond the {MAX_CATEGORIES} most frequent count as none of them")
    column = Column(name, "category", indicator=gaps > 0, categories=tuple(kept))
    return column, [f"column {name!r}: {'; '.join(notes)}"] if notes else []


def _too_few_numbers(cells: list[str]) -> list[str]:
    """A remark where most cells are numbers, but not enough of them to take the others for faults."""
    text = np.array(cells, object)
    faults = min((np.isnan(parse_numbers(text, mark)) for mark in (".", ",")), key=lambda missing: missing.sum())
    if 2 * faults.sum() >= len(cells) or nearly_all(int((~faults).sum()), len(cells)):
        return []
    what = f"{row_count(int(faults.sum()))} of {len(cells):,} with text that is no number"
    return [f"{what}{quoted_examples(text[faults])}, too many to read the others as numbers"]


def _encode_categories(column: Column, series: pd.Series) -> tuple[np.ndarray, np.ndarray, list[Oddity]]:
    text = category_text(series)
    missing = np.asarray(pd.isna(text))
    places = {category: place for place, category in enumerate(column.categories)}
    if kind_of_cells(series) in "iuf":  # earlier versions learned 1 as "1.0" where a column had gaps
        places = {category.removesuffix(".0"): place for category, place in places.items()} | places
    codes = np.array([places.get(cell, -1) for cell in text], int)
    finding = "categories not seen in training"
    if len(column.categories) == MAX_CATEGORIES:  # training may have had them, but they were not kept
        finding = f"categories other than the {MAX_CATEGORIES} most frequent of training"
    oddities = [
        *_oddity(column, finding, "they count as none of the known ones", text[(codes < 0) & ~missing]),
        *_unexpected_gaps(column, int(missing.sum()), "they count as none of the known categories"),
    ]
    return codes[:, None] == np.arange(len(column.categories)), missing, oddities


def _encode_values(column: Column, series: pd.Series) -> tuple[np.ndarray, np.ndarray, list[Oddity]]:
    values, unread = values_of(series, column.format)
    refuse_infinite(column.name, values, series)
    missing = np.isnan(values)
    gaps = int(missing.sum()) - len(_faults(unread))
    oddities = odd_values(column, series, values, unread)
    oddities += _unexpected_gaps(column, gaps, "the median of training fills them")
    return np.where(missing, column.fill, values)[:, None], missing, oddities


def odd_values(column: Column, series: pd.Series, values: np.ndarray, unread: np.ndarray) -> list[Oddity]:
    """Text that is no value, and values in other units than those of training, of what `values_of` read."""
    faults = _oddity(column, f"text that is no {column.kind}", "it counts as missing", _faults(unread))
    return faults + _unit_oddities(column, series, values)


def contrary_cells(column: Column, unread: np.ndarray) -> list[str]:
    """Different cells, at most `CONTRARY`, that have no value as the column is read, but one with the day and the
    month, or the decimal mark, the other way round."""
    field = {"date": "order", "number": "decimal"}.get(column.kind)
    other = SWAPPED.get(getattr(column, field)) if field else None
    cells = np.array([*dict.fromkeys(_faults(unread))], object)
    if field is None or other is None or not len(cells):
        return []
    values, _ = values_of(pd.Series(cells), replace(column.format, **{field: other}))  # pyright: ignore
    return cells[~np.isnan(values)][:CONTRARY].tolist()


def _faults(unread: np.ndarray) -> np.ndarray:
    return unread[pd.notna(unread) & ~is_usual_word(unread)]


def _unit_oddities(column: Column, series: pd.Series, values: np.ndarray) -> list[Oddity]:
    """Numbers with a per cent sign where training had none, or without it where it had: they may be hundredfold. Times
    with a zone or without one likewise: they may be hours off."""
    if column.kind == "date":
        found = has_zone(series)
        with_it = "times with a zone, of which training had none,", "they are taken in UTC"
        without = "times without a zone", "they are taken for UTC"
    elif column.kind == "number" and (column.unit or not is_numeric(series)):
        found = np.array([cell is not None and cell.endswith("%") for cell in text_of(series)], bool)
        with_it = "per cent signs, of which training had none,", "'12 %' is taken for 12"
        without = "numbers without a per cent sign", "they are taken for per cent"
    else:
        return []
    odd = (~found if column.unit else found) & ~np.isnan(values)
    return _oddity(column, *(without if column.unit else with_it), text_of(series.loc[odd]))


def _oddity(column: Column, finding: str, consequence: str, cells: np.ndarray) -> list[Oddity]:
    examples = tuple(dict.fromkeys(cells))[:4]  # one more than a note shows
    return [Oddity(column.name, finding, consequence, len(cells), examples)] if examples else []


def _unexpected_gaps(column: Column, gaps: int, consequence: str) -> list[Oddity]:
    finding = "missing values, of which training had none,"
    return [Oddity(column.name, finding, consequence, gaps)] if gaps and not column.indicator else []


def _all_missing(name: str) -> str:
    return f"column {name!r} is missing in every row; it is left out"
