"""The text of cells, and which cells are gaps: empty ones, the usual words in columns of values, and the user's
words."""

import re
import sys
from collections.abc import Collection
from typing import cast

import numpy as np
import pandas as pd
from jaxtyping import Bool, Shaped
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

Cells = Shaped[np.ndarray, "N"]  # of objects: the text of each cell, or None

# What people and programs write for "missing" among numbers, dates, times and true/false values, in any case.
USUAL = frozenset(
    "na n/a n.a. nan -nan nat null none nil <na> #n/a #na #null! 1.#ind -1.#ind 1.#qnan -1.#qnan".split()
    + "? - -- – — . * …".split()
)
LONGEST = max(map(len, USUAL))
# Version 0.1 learned from CSV files in which pandas had made these words gaps, in any column.
CSV_WORDS = tuple(
    "#N/A,#N/A N/A,#NA,-1.#IND,-1.#QNAN,-NaN,-nan,1.#IND,1.#QNAN,<NA>,N/A,NA,NULL,NaN,None,n/a,nan,null".split(",")
)
CANONICAL = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")  # "-999.0" may stand for -999, but "01" not for 1


def text_of(series: pd.Series) -> Cells:
    """The cells as text without blanks around it, None where they are missing or blank."""
    if isinstance(series.dtype, pd.StringDtype):
        text = series.str.strip()
        return text.where(text.notna() & (text != ""), None).to_numpy(object, na_value=None)
    cells = zip(series, series.isna(), strict=True)
    with np.printoptions(threshold=sys.maxsize):  # long arrays in cells are written out, so that all differences count
        return np.array([None if missing else str(cell).strip() or None for cell, missing in cells], object)


def kind_of_cells(series: pd.Series) -> str:
    """NumPy's letter for the type of the cells, of pandas' categories for theirs: "f" for floats, "i", "u", …"""
    dtype = series.dtype.categories.dtype if isinstance(series.dtype, pd.CategoricalDtype) else series.dtype
    return dtype.kind


def category_text(series: pd.Series) -> Cells:
    """`text_of` a column of categories, in which whole numbers have no decimals: a gap makes pandas turn 1 into 1.0,
    which is the same category."""
    text = text_of(series)
    if kind_of_cells(series) == "f":
        text = np.array([cell.removesuffix(".0") if cell is not None else None for cell in text], object)
    return text


def given(cells: Cells) -> list[str]:
    """The texts that are there."""
    return [cell for cell in cells if cell is not None]


def is_usual_word(text: Cells) -> Bool[np.ndarray, "N"]:
    """Where a cell holds one of the usual words for a missing value."""
    return np.array([cell is not None and len(cell) <= LONGEST and cell.lower() in USUAL for cell in text], bool)


def without_words(frame: pd.DataFrame, words: Collection[str]) -> pd.DataFrame:
    """The table with a gap in every cell, of any column, that holds one of `words`, blanks around it aside.

    A word that is a number stands for all cells of its value: "-999" also for -999.0 in a column of floats.
    """
    texts = frozenset(word.strip() for word in words)
    numbers = np.array([float(word) for word in texts if CANONICAL.fullmatch(word)])
    for name in frame.columns if texts else ():
        found = _holds(cast(pd.Series, frame[name]), texts, numbers)
        if found.any():
            frame = frame.assign(**{name: frame[name].mask(found)})
    return frame


def _holds(series: pd.Series, texts: frozenset[str], numbers: np.ndarray) -> np.ndarray:
    dtype = series.dtype
    if is_numeric_dtype(dtype) and not is_bool_dtype(dtype) and not isinstance(dtype, pd.CategoricalDtype):
        # In the column's precision: 9.97e36 in float32 is not the 9.97e36 of float64.
        wanted = np.concatenate([numbers, numbers.astype(np.float32)]) if "32" in str(dtype) else numbers
        return np.isin(series.to_numpy(np.float64, na_value=np.nan), wanted)
    if is_datetime64_any_dtype(dtype):
        moments = pd.to_datetime([word for word in texts if word[:1].isdigit()], format="ISO8601", errors="coerce")
        return np.asarray(series.isin(moments.dropna().tz_localize(getattr(dtype, "tz", None))))
    cells = text_of(series)
    is_number = lambda cell: len(numbers) > 0 and CANONICAL.fullmatch(cell) is not None and float(cell) in numbers
    same = {cell for cell in set(given(cells)) if cell in texts or is_number(cell)}
    return np.array([cell in same for cell in cells], bool)
