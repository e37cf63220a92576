"""Numbers written for people: decimal commas, thousands separators, signs, currencies and per cent."""

from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute
from jaxtyping import Float64

from pseudopoint.tables.missing import Cells

__all__ = ["Decimal", "Marks", "decimal_marks", "parse_numbers", "units"]

pc = cast(Any, pyarrow.compute)  # its functions are made when it is imported, out of sight of a type checker

Decimal = Literal["", ".", ","]

CURRENCY = (
    r"(?:US|NZ|HK|[ACRS])?\$|[¢£¥\x{20A0}-\x{20CF}]"
    r"|EUR|USD|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|PLN|CZK|HUF|CAD|AUD|NZD|BRL|MXN|ZAR|TRY|KRW|zł|Kč|kr\.?|Fr\."
)
SPACES = "[\u00a0\u2007\u2009\u202f]"


def _number(decimal: str, comma: str) -> str:
    """The pattern of a number without a sign: `comma`, a blank or an apostrophe may stand between thousands."""
    groups = [rf"[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+" for mark in (comma, " ", "'")]
    lakhs = rf"[1-9][0-9]?(?:{comma}[0-9]{{2}})+{comma}[0-9]{{3}}"  # 12,34,567, as in India
    whole = "|".join(["[0-9]+", *groups, lakhs])
    return rf"(?:(?:{whole})(?:{decimal}[0-9]*)?|{decimal}[0-9]+)(?:[eE][+-]?[0-9]+)?"


def _cell(number: str) -> str:
    return (
        rf"^(?P<open>\(?)(?P<sign>[+-]?) ?(?P<before>{CURRENCY})? ?(?P<inner>[+-]?)(?P<number>{number})"
        rf" ?(?P<after>%|{CURRENCY})?(?P<last>-?)(?P<close>\)?)$"
    )


PATTERNS = {".": _cell(_number(r"\.", ",")), ",": _cell(_number(",", r"\."))}
INFINITY = "^(?P<sign>[+-]?)(?i:inf|infinity)$"
PLAIN = {
    mark: rf"^[+-]?(?:[0-9]+{dot}?[0-9]*|{dot}[0-9]+)(?:[eE][+-]?[0-9]+)?$" for mark, dot in ((".", r"\."), (",", ","))
}
CLUTTER = {".": "[, ']", ",": "[. ']"}


class Marks(NamedTuple):
    """The decimal mark that reads most cells, and whether it reads more of them than the other one.

    `open` is the mark, a comma or a point, that may be a decimal mark or one between thousands, as in "1,234", where
    both readings take as many cells for numbers; "" where they agree or one reads more.
    """

    decimal: Decimal
    open: str
    decided: bool


def decimal_marks(text: Cells) -> Marks:
    """What the cells of one column, taken together, say of its decimal mark."""
    points, commas = parse_numbers(text, "."), parse_numbers(text, ",")
    read_points, read_commas = ~np.isnan(points), ~np.isnan(commas)
    if read_points.sum() != read_commas.sum():
        return Marks("." if read_points.sum() > read_commas.sum() else ",", "", True)
    differ = np.flatnonzero(read_points & read_commas & (points != commas))
    if not len(differ):
        return Marks(".", "", False)
    return Marks(".", "," if "," in text[differ[0]] else ".", False)


def parse_numbers(text: Cells, decimal: Decimal) -> Float64[np.ndarray, "N"]:
    """What the cells are worth, NaN where they are no numbers.

    With the decimal mark ".", "1,234.5", "1 234.5", "1'234.5", "+3", "−3", "3-", "(3)" for -3, "€ 12", "12 USD" and
    "12 %", which is 12, are numbers; with ",", "1.234,5" and so on. With "", only what pandas takes for a number.
    """
    if decimal == "":
        return np.asarray(pd.to_numeric(text, errors="coerce"), np.float64)
    cells = _tidied(text)
    plain = _where(pc.match_substring_regex(cells, PLAIN[decimal]))
    values = _floats(pc.if_else(plain, cells, None), decimal)
    other = _where(pc.match_substring_regex(cells, f"{PATTERNS[decimal]}|{INFINITY}"))
    if rest := np.flatnonzero(other & ~plain).tolist():  # few: to take cells apart is slow
        values[rest] = _adorned(cells.take(pa.array(rest)), decimal)
    return values


def units(text: Cells) -> list[str]:
    """The signs and codes of currencies, and "%", that the numbers carry, "" among them if some carry none."""
    cells = _tidied(text)
    bare = pc.match_substring_regex(cells, "^[-+0-9.,' eE]+$")
    if pc.all(bare).as_py() in (True, None):
        return [""]
    parts, other = (pc.extract_regex(pc.if_else(bare, "0", cells), PATTERNS[mark]) for mark in (".", ","))
    parts = pc.if_else(pc.is_null(parts), other, parts)
    both = pc.binary_join_element_wise(
        pc.struct_field(parts, "before"), pc.struct_field(parts, "after"), pa.scalar("", pa.large_string())
    )
    return sorted(pc.unique(both.drop_null()).to_pylist())


def _adorned(cells: pa.Array, decimal: Decimal) -> np.ndarray:
    """Numbers with thousands separators, signs and units."""
    parts = pc.extract_regex(cells, PATTERNS[decimal])
    has = lambda name, mark: _where(pc.equal(pc.struct_field(parts, name), mark))
    values = _floats(pc.replace_substring_regex(pc.struct_field(parts, "number"), CLUTTER[decimal], ""), decimal)
    bracketed, closed = has("open", "("), has("close", ")")
    minuses = sum((has(name, "-").astype(int) for name in ("sign", "inner", "last")), bracketed.astype(int))
    signs = minuses + sum(has(name, "+").astype(int) for name in ("sign", "inner"))
    values = np.where((bracketed == closed) & (signs <= 1), np.where(minuses == 1, -values, values), np.nan)
    infinite = [np.nan if mark is None else float(f"{mark}inf") for mark in _signs_of_infinity(cells)]
    return np.where(np.isnan(values), infinite, values)


def _signs_of_infinity(cells: pa.Array) -> list[str | None]:
    """For `refuse_infinite`."""
    return pc.struct_field(pc.extract_regex(cells, INFINITY), "sign").to_pylist()


def _floats(digits: pa.Array, decimal: Decimal) -> np.ndarray:
    return pc.cast(pc.replace_substring(digits, decimal, "."), pa.float64()).to_numpy(zero_copy_only=False).copy()


def _where(found: pa.Array) -> np.ndarray:
    return pc.fill_null(found, False).to_numpy(zero_copy_only=False)


def _tidied(text: Cells) -> pa.Array:
    cells = pa.array(text, pa.large_string())
    if pc.all(pc.string_is_ascii(cells)).as_py() in (True, None):
        return cells
    cells = pc.replace_substring_regex(cells, SPACES, " ")
    return pc.replace_substring(pc.replace_substring(cells, "−", "-"), "’", "'")
