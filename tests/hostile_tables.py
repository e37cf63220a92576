"""What a hostile world writes into tables: cells, ways to write them down, and damage, each by its name."""

import gzip
import io
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["ARROW", "CELLS", "DAMAGES", "HEADERS", "WRITINGS", "csv_bytes", "parquet_bytes"]

Cells = Callable[[np.random.Generator, int], list[str]]


def _some(*cells: str) -> Cells:
    """Cells from a list, each at least once if there is room."""
    return lambda rng, N: [cells[i % len(cells)] for i in rng.permutation(N)]


def _numbers_with(*cells: str) -> Cells:
    """Numbers, and one of the cells each."""
    return lambda rng, N: [*map(repr, rng.normal(size=N - len(cells)).tolist()), *cells]


CELLS: dict[str, Cells] = {
    "numbers": lambda rng, N: [f"{v:.6g}" for v in rng.normal(size=N)],
    "counts": lambda rng, N: [str(v) for v in rng.poisson(3, N)],
    "classes": _some("no", "yes"),
    "three classes": _some("a", "b", "c"),
    "numbered classes": _some("0", "1"),
    "truth values": _some("true", "False", "TRUE"),
    "many classes": lambda rng, N: [f"c{i}" for i in range(N)],
    "empty": _some(""),
    "mostly empty": lambda rng, N: [*[""] * (N - 3), "1", "2", "3.5"],
    "spaces": _some(" ", "\t", " 1 ", "2 "),
    "constant": _some("7"),
    "beyond double": _numbers_with("1e400", "-1e400"),
    "huge": lambda rng, N: [f"{v:.4g}e300" for v in rng.normal(size=N)],
    "largest": _some("1.7976931348623157e308", "-1.7976931348623157e308", "1"),
    "tiny": lambda rng, N: [f"{v:.4g}e-310" for v in rng.normal(size=N)],
    "below double": _numbers_with("1e-400"),
    "inf": _numbers_with("inf", "-Infinity"),
    "NaN": _numbers_with("NaN", "nan"),
    "gap words": _numbers_with("NA", "null", "?", "-", "-999"),
    "hexadecimal": _some("0x10", "0x1F", "0xZZ"),
    "underscores": _some("1_000", "2_000", "3"),
    "Arabic digits": _some("١٢", "٣٤", "٥"),
    "full-width digits": _some("１２", "３４", "５"),
    "superscripts": _some("²", "½", "Ⅷ"),
    "decimal commas": lambda rng, N: [f"{v:.3f}".replace(".", ",") for v in rng.normal(size=N)],
    "thousands": _some("1,234.5", "2,345.6", "999"),
    "points in thousands": _some("1.234,5", "2.345,6", "999"),
    "money": _some("$5", "€ 6", "-$7.50", "(8)"),
    "per cent": _some("5%", "6.5 %", "7"),
    "units": _some("5 kg", "6 kg", "7"),
    "signs": _some("+5", "--5", "−5", "-0"),
    "exponents": _some("1e5", "1E+05", "1e", "e5", "1d5"),
    "leading zeros": _some("007", "010", "0"),
    "ids": lambda rng, N: [str(10**17 + i) for i in range(N)],
    "beyond int64": lambda rng, N: [str(10**30 + i) for i in range(N)],
    "dates": lambda rng, N: [f"2020-01-{1 + i % 28:02d}" for i in range(N)],
    "dates of any year": _some("0001-01-01", "9999-12-31", "1677-09-20", "2262-04-12"),
    "dates that are none": _some("2020-02-30", "2020-13-01", "2020-02-28"),
    "years beyond": _some("10000-01-01", "-0044-03-15", "99999-01-01"),
    "dates by day": _some("31/12/2020", "01/02/2021", "12/31/2020"),
    "dates by zone": _some("2020-01-01T00:00:00+02:00", "2020-06-01T00:00:00Z", "2020-03-01 00:00:00-11:30"),
    "dates and numbers": _some("2020-01-01", "5", "2021"),
    "times": _some("12:30", "24:00", "25:61"),
    "durations": _some("1 days 02:00", "3 days", "P1D"),
    "text": _some("the quick", "brown fox", "jumps over", "a lazy dog", "again"),
    "long text": lambda rng, N: ["x" * 20_000 + str(i % 3) for i in range(N)],
    "emoji": _some("\U0001f600", "\U0001f468‍\U0001f469", "é", "é"),
    "right to left": _some("שלום", "\u202eabc", "\u200b"),
    "quotes": _some('"', '""', "it's", 'a"b'),
    "separators": _some("a,b", "c;d", "e\tf", "g|h"),
    "line breaks": _some("a\nb", "c\r\nd", "e"),
    "formulas": _some("=1+1", "@SUM(A1)", "-2+3"),
    "markup": _some("<script>alert(1)</script>", "[bold]", "&amp;"),
    "mixed": _some("1", "two", "2020-01-01", "true", "", "nan", "5 kg"),
    "control characters": _some("a\x01", "b\x1b[31m", "c\x7f"),
}
HEADERS: dict[str, Callable[[list[str]], list[str] | None]] = {
    "plain": lambda names: names,
    "none": lambda names: None,
    "repeated": lambda names: [names[0]] * (len(names) - 1) + names[-1:],
    "target repeated": lambda names: [names[-1]] * len(names),
    "blank": lambda names: ["", *names[1:]],
    "spaces": lambda names: [f" {name} " for name in names],
    "odd": lambda names: ['a"b', "[bold]x\n", "\U0001f600" * 50][: len(names) - 1] + names[-1:],
    "numbers": lambda names: [str(i) for i in range(len(names) - 1)] + names[-1:],
    "too short": lambda names: names[1:],
    "too long": lambda names: ["more", *names],
    "of predictions": lambda names: ["y_mean", "y_std", "y=yes"][: len(names) - 1] + names[-1:],
    "long": lambda names: ["n" * 300, *names[1:]],
}


def _rows(lines: list[list[str]], change: Callable[[list[str]], list[str]]) -> list[list[str]]:
    """The same lines, one in the middle changed."""
    middle = len(lines) // 2
    return [*lines[:middle], change(lines[middle]), *lines[middle + 1 :]]


WRITINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "semicolons": {"separator": ";"},
    "tabs": {"separator": "\t"},
    "bars": {"separator": "|"},
    "spaces between": {"separator": " "},
    "colons": {"separator": ":"},
    "two separators": {"separator": ",;"},
    "CRLF": {"end": "\r\n"},
    "CR": {"end": "\r"},
    "BOM": {"encoding": "utf-8-sig"},
    "latin-1": {"encoding": "latin-1"},
    "utf-16": {"encoding": "utf-16"},
    "utf-32": {"encoding": "utf-32"},
    "quoted": {"quote": True},
    "single quotes": {"mark": "'", "quote": True},
    "blank lines": {"lines": lambda lines: [[""], *lines, [""], [""]]},
    "blank line inside": {"lines": lambda lines: _rows(lines, lambda row: [""])},
    "comment": {"lines": lambda lines: [["# made by hand"], *lines]},
    "header repeated": {"lines": lambda lines: [*lines, lines[0]]},
    "short row": {"lines": lambda lines: _rows(lines, lambda row: row[:1])},
    "long row": {"lines": lambda lines: _rows(lines, lambda row: [*row, "1"])},
    "long rows": {"lines": lambda lines: [lines[0], *([*row, "1"] for row in lines[1:])]},
    "last separator": {"lines": lambda lines: [[*row, ""] for row in lines]},
    "header only": {"lines": lambda lines: lines[:1]},
    "one row": {"lines": lambda lines: lines[:2]},
    "no end": {"last": ""},
}


def csv_bytes(columns: list[list[str]], names: list[str] | None, writing: str) -> bytes:
    """A CSV table."""
    how = {"separator": ",", "end": "\n", "encoding": "utf-8", "quote": False, "mark": '"', "last": None}
    how |= {"lines": lambda lines: lines} | WRITINGS[writing]
    mark = how["mark"]

    def cell(text):
        if how["quote"] or any(c in text for c in (how["separator"], '"', "\n", "\r")):
            return mark + text.replace(mark, 2 * mark) + mark
        return text

    lines = [*([names] if names else []), *map(list, zip(*columns, strict=True))]
    text = how["end"].join(how["separator"].join(map(cell, line)) for line in how["lines"](lines))
    return (text + (how["end"] if how["last"] is None else how["last"])).encode(how["encoding"], "replace")


def _arrow(values: Callable[[int], Any], kind: Any) -> Callable[[np.random.Generator, int], pa.Array]:
    return lambda rng, N: pa.array([None if i == 5 else values(i) for i in range(N)], kind)


ARROW: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "double": lambda rng, N: pa.array(rng.normal(size=N)),
    **{f"int{b}": _arrow(lambda i: i, getattr(pa, f"int{b}")()) for b in (8, 16, 32, 64)},
    "uint64": _arrow(lambda i: 2**64 - 1 - i, pa.uint64()),
    "half": lambda rng, N: pa.array(rng.normal(size=N).astype(np.float16)),
    "float": lambda rng, N: pa.array(rng.normal(size=N).astype(np.float32)),
    "double with all": _arrow(lambda i: [0.5, np.nan, np.inf, -np.inf][i % 4], pa.float64()),
    "bool": _arrow(lambda i: i % 2 == 0, pa.bool_()),
    "string": _arrow(lambda i: "abc"[i % 3], pa.string()),
    "large string": _arrow(lambda i: "abc"[i % 3], pa.large_string()),
    "string view": _arrow(lambda i: "abc"[i % 3], pa.string_view()),
    "numbers in strings": _arrow(lambda i: str(i / 7), pa.string()),
    "binary": _arrow(lambda i: bytes([200 + i % 3]), pa.binary()),
    "fixed binary": _arrow(lambda i: b"ab", pa.binary(2)),
    "dictionary": lambda rng, N: pa.array([["u", "v", None][i % 3] for i in range(N)]).dictionary_encode(),
    "dictionary of numbers": lambda rng, N: pa.array([i % 3 for i in range(N)]).dictionary_encode(),
    "date": _arrow(lambda i: date(1 + 700 * (i % 14), 1, 1), pa.date32()),
    "date64": _arrow(lambda i: date(2020, 1, 1 + i % 28), pa.date64()),
    "timestamp s": _arrow(lambda i: datetime(1 + 700 * (i % 14), 1, 1), pa.timestamp("s")),
    "timestamp ns": _arrow(lambda i: datetime(2020, 1, 1 + i % 28), pa.timestamp("ns")),
    "timestamp of a zone": _arrow(lambda i: datetime(2020, 1, 1 + i % 28), pa.timestamp("us", "Asia/Tokyo")),
    "time": _arrow(lambda i: time(i % 24), pa.time64("us")),
    "duration": _arrow(lambda i: timedelta(days=i), pa.duration("us")),
    "decimal": _arrow(lambda i: Decimal(i) / 4, pa.decimal128(10, 2)),
    "decimal beyond double": _arrow(lambda i: Decimal(10) ** 70 + i, pa.decimal256(76, 0)),
    "null": lambda rng, N: pa.nulls(N),
    "list": _arrow(lambda i: [1.0, 2.0], pa.list_(pa.float64())),
    "struct": _arrow(lambda i: {"a": i}, pa.struct([("a", pa.int64())])),
    "map": _arrow(lambda i: [("k", i)], pa.map_(pa.string(), pa.int64())),
    "constant": lambda rng, N: pa.array([1.0] * N),
    "classes": lambda rng, N: pa.array([["no", "yes"][i % 2] for i in range(N)]),
}


def parquet_bytes(columns: list[pa.Array], names: list[str], rows: int | None = None) -> bytes:
    """A Parquet table, of its first `rows` rows."""
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(columns, names=names).slice(0, rows), buffer)
    return buffer.getvalue()


def _flip(data: bytes, rng) -> bytes:
    place = int(rng.integers(len(data)))
    return data[:place] + bytes([data[place] ^ (1 << int(rng.integers(8)))]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    "none": lambda data, rng: data,
    "cut": lambda data, rng: data[: int(rng.integers(len(data)))],
    "flipped": _flip,
    "NUL": lambda data, rng: data[: len(data) // 2] + b"\0" + data[len(data) // 2 :],
    "invalid UTF-8": lambda data, rng: data[:-3] + b"\xff\xfe" + data[-3:],
    "open quote": lambda data, rng: data[: len(data) // 2] + b'"' + data[len(data) // 2 :],
    "empty": lambda data, rng: b"",
    "noise": lambda data, rng: rng.bytes(500),
    "line feeds": lambda data, rng: b"\n\n\n",
    "gzip": lambda data, rng: gzip.compress(data),
    "cut gzip": lambda data, rng: gzip.compress(data)[:-9],
    "long line": lambda data, rng: data + b"1" * 300_000 + b"\n",
}
