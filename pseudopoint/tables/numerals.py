"""Numbers written for people: decimal commas, thousands separators, signs, currencies and per cent."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute
from jaxtyping import Float64

from pseudopoint.tables.missing import Cells

pc = cast(Any, pyarrow.compute)  # its functions are made at import, where a type checker does not see them

Decimal = Literal["", ".", ","]

CURRENCY = (
    r"(?:US|NZ|HK|[ACRS])?\$|[¢£¥\x{20A0}-\x{20CF}]"
    r"|EUR|USD|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|PLN|CZK|HUF|CAD|AUD|NZD|BRL|MXN|ZAR|TRY|KRW|zł|Kč|kr\.?|Fr\."
)
SPACES = "[\u00a0\u2007\u2009\u202f]"


def _pattern(decimal: str, comma: str) -> str:
    """A cell that holds a number. `comma`, a blank or an apostrophe may stand between thousands."""
    groups = [rf"[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+" for mark in (comma, " ", "'")]
    lakhs = rf"[1-9][0-9]?(?:{comma}[0-9]{{2}})+{comma}[0-9]{{3}}"  # 12,34,567, as in India
    whole = "|".join(["[0-9]+", *groups, lakhs])
    number = rf"(?:(?:{whole})(?:{decimal}[0-9]*)?|{decimal}[0-9]+)(?:[eE][+-]?[0-9]+)?"
    return (
        rf"^(?P<open>\(?)(?P<sign>[+-]?) ?(?P<before>{CURRENCY})? ?(?P<inner>[+-]?)(?P<number>{number})"
        rf" ?(?P<after>%|{CURRENCY})?(?P<last>-?)(?P<close>\)?)$"
    )


PATTERNS = {".": _pattern(r"\.", ","), ",": _pattern(",", r"\.")}
INFINITY = "^(?P<sign>[+-]?)(?i:inf|infinity)$"
PLAIN = {
    mark: rf"^[+-]?(?:[0-9]+{dot}?[0-9]*|{dot}[0-9]+)(?:[eE][+-]?[0-9]+)?$" for mark, dot in ((".", r"\."), (",", ","))
}
CLUTTER = {".": "[, ']", ",": "[. ']"}


class Reading(NamedTuple):
    """Which of two ways reads more cells of a column, and whether it reads more than the other one.

    `open` is the mark whose cells the two ways read differently, "" if there is none or one way reads more cells.
    """

    choice: Any
    open: str = ""
    decided: bool = False


def compared(ways: dict[str, np.ndarray], usual: str, mark: Callable[[int], str]) -> Reading:
    """The better of two ways of reading the same cells, given the values of each, NaN where a cell cannot be read.

    `mark(i)` is the mark in cell i.
    """
    (first, a), (second, b) = ways.items()
    read_a, read_b = ~np.isnan(a), ~np.isnan(b)
    if read_a.sum() != read_b.sum():
        return Reading(first if read_a.sum() > read_b.sum() else second, decided=True)
    differ = np.flatnonzero(read_a & read_b & (a != b))
    return Reading(usual, mark(int(differ[0])) if len(differ) else "")


def decimal_marks(text: Cells) -> Reading:
    """What the cells of one column together say of its decimal mark."""
    points, commas = parse_numbers(text, "."), parse_numbers(text, ",")
    return compared({".": points, ",": commas}, ".", lambda i: "," if "," in text[i] else ".")


def parse_numbers(text: Cells, decimal: Decimal) -> Float64[np.ndarray, "N"]:
    """The numbers in the cells, NaN where there is none.

    With the decimal mark ".", "1,234.5", "1 234.5", "1'234.5", "+3", "−3", "3-", "(3)" for -3, "€ 12", "12 USD" and
    "12 %", which is 12, are numbers; with ",", "1.234,5" and so on. With "", only what pandas takes for a number.
    """
    if decimal == "":
        return np.asarray(pd.to_numeric(text, errors="coerce"), np.float64)
    cells = _tidied(text)
    plain = _where(pc.match_substring_regex(cells, PLAIN[decimal]))
    values = _floats(pc.if_else(plain, cells, None), decimal)
    other = _where(pc.match_substring_regex(cells, f"{PATTERNS[decimal]}|{INFINITY}"))
    if rest := np.flatnonzero(other & ~plain).tolist():  # few: taking cells apart is slow
        values[rest] = _adorned(cells.take(pa.array(rest)), decimal)
    return values


def units(text: Cells) -> list[str]:
    """The signs and codes of currencies, and "%", that the numbers carry; "" among them if some carry none."""
    cells = _tidied(text)
    bare = pc.match_substring_regex(cells, "^[-+0-9.,' eE]+$")
    if pc.all(bare).as_py() in (True, None):
        return [""]
    parts, other = (pc.extract_regex(pc.if_else(bare, "0", cells), PATTERNS[mark]) for mark in (".", ","))
    parts = pc.if_else(pc.is_null(parts), other, parts)
    signs = [pc.struct_field(parts, place) for place in ("before", "after")]
    both = pc.binary_join_element_wise(*signs, pa.scalar("", pa.large_string()))
    return sorted(pc.unique(both.drop_null()).to_pylist())


def _adorned(cells: pa.Array, decimal: Decimal) -> np.ndarray:
    """Numbers with thousands separators, signs and units, and ±inf."""
    parts = pc.extract_regex(cells, PATTERNS[decimal])
    has = lambda name, mark: _where(pc.equal(pc.struct_field(parts, name), mark)).astype(int)
    values = _floats(pc.replace_substring_regex(pc.struct_field(parts, "number"), CLUTTER[decimal], ""), decimal)
    minuses = has("open", "(") + has("sign", "-") + has("inner", "-") + has("last", "-")
    signs = minuses + has("sign", "+") + has("inner", "+")
    valid = (has("open", "(") == has("close", ")")) & (signs <= 1)
    values = np.where(valid, np.where(minuses == 1, -values, values), np.nan)
    infinite = pc.struct_field(pc.extract_regex(cells, INFINITY), "sign").to_pylist()
    return np.where(np.isnan(values), [np.nan if sign is None else float(f"{sign}inf") for sign in infinite], values)


def _floats(digits: pa.Array, decimal: Decimal) -> np.ndarray:
    return pc.cast(pc.replace_substring(digits, decimal, "."), pa.float64()).to_numpy(zero_copy_only=False).copy()


def _where(found: pa.Array) -> np.ndarray:
    return pc.fill_null(found, False).to_numpy(zero_copy_only=False)


def _tidied(text: Cells) -> pa.Array:
    """With ordinary blanks, minus signs and apostrophes."""
    cells = pa.array(text, pa.large_string())
    if pc.all(pc.string_is_ascii(cells)).as_py() in (True, None):
        return cells
    cells = pc.replace_substring_regex(cells, SPACES, " ")
    return pc.replace_substring(pc.replace_substring(cells, "−", "-"), "’", "'")
