"""From a file to DataFrames, whole or in chunks. Every fault of a file becomes a `TableError`."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, cast, final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pandas.io.parsers import TextFileReader

from pseudopoint.tables.encoder import TableEncoder
from pseudopoint.tables.messages import TableError, refuse_repeated
from pseudopoint.tables.missing import without_words

SUFFIXES = (".csv", ".csv.gz", ".parquet")
LOOK_AHEAD = 1 << 20  # characters of a CSV file that contain its header and first row
SEPARATORS = "\t;,|"  # the first counts if several divide the first rows equally well
FIRST_ROWS = 20
READ_LINES = 4096
DECIMAL_COMMA = re.compile(r"\d,\d")
QUOTED_DECIMAL_COMMA = re.compile(r'"[-+]?\d[\d.]*,(?:\d\d?|\d{4,})"')  # "1,234" may rather be 1234


def read_table(path: str | PathLike[str], text: Collection[str] = (), missing: Collection[str] = ()) -> pd.DataFrame:
    """The whole table at `path` (.csv, .csv.gz or .parquet) with rows numbered 0, 1, … by its index.

    Empty cells and those that hold one of the words in `missing` are missing; every other word stays, also "NA".
    Columns of a CSV file with numbers or true/false values alone get that type; others are text, and so are those named
    in `text`, in which "01234" keeps its zero. Pass `encoder.text_columns` for an encoder that was learned on another
    table. The separator of a CSV file is the one of commas, semicolons, tabs and bars that divides its first rows into
    as many cells as the header; `attrs["separator"]` keeps it. `TableError` if the table is damaged or has no rows.
    """
    path = Path(path)
    with named_errors(path):
        if table_suffix(path) == ".parquet":
            with open_parquet(path) as file:
                frame = file.read().to_pandas(ignore_metadata=True)
        else:
            options = csv_options(path, text)
            frame = pd.read_csv(**options)
            frame.attrs["separator"] = options["sep"]
    if frame.empty:
        raise no_rows(path)
    return without_words(frame, missing)


def read_chunks(
    path: str | PathLike[str], rows: int, encoder: TableEncoder, missing: Collection[str] = ()
) -> Iterator[pd.DataFrame]:
    """The table at `path` in order, at most `rows` rows at a time, so that memory does not grow with the table.

    Columns that `encoder` reads as text are text in every chunk. Words in `missing` are gaps; those of the encoder
    become gaps when it encodes. The index counts the rows of the whole table. `TableError` as `read_table`, at the
    first chunk or at the damage.
    """
    found = False
    for frame in chunks_of(Path(path), rows, encoder, missing):
        found = True
        yield frame
    if not found:
        raise no_rows(path)


def chunks_of(
    path: Path, rows: int, encoder: TableEncoder, missing: Collection[str] = (), text: Collection[str] = ()
) -> Iterator[pd.DataFrame]:
    """`read_chunks` of a file that may have no rows; the columns named in `text` are text too."""
    start = 0
    with named_errors(path):
        words = [*missing] if table_suffix(path) == ".parquet" else [*missing, *encoder.csv_missing]
        for frame in _chunks(path, rows, [*encoder.text_columns, *text]):
            if not frame.empty:
                yield without_words(frame.set_index(pd.RangeIndex(start, start + len(frame))), words)
                start += len(frame)


def table_suffix(path: Path) -> str:
    """`.csv`, `.csv.gz` or `.parquet`; any other name is a `TableError`."""
    if "\0" in str(path):
        raise TableError(f"{str(path)!r}: a null byte is in the name; check the name")
    for suffix in SUFFIXES:
        if path.name.lower().endswith(suffix):
            return suffix
    raise TableError(f"{path}: unknown kind of table; use a file whose name ends in .csv, .csv.gz or .parquet")


def _chunks(path: Path, rows: int, text: Collection[str]) -> Iterator[pd.DataFrame]:
    if table_suffix(path) == ".parquet":
        with open_parquet(path) as file:
            yield from (batch.to_pandas(ignore_metadata=True) for batch in file.iter_batches(batch_size=rows))
    else:
        with cast(TextFileReader, pd.read_csv(chunksize=rows, **csv_options(path, text))) as reader:
            yield from reader


def open_parquet(path: Path) -> pq.ParquetFile:
    """The file, read part by part. Raises TableError where columns share a name."""
    file = pq.ParquetFile(path, pre_buffer=False)  # reading ahead would keep the whole file in memory
    refuse_repeated(file.schema_arrow.names, f"{path}: ")
    return file


def csv_options(path: Path, text: Collection[str]) -> dict[str, Any]:
    """Keyword arguments for `pandas.read_csv`, after a look at the beginning of the file."""
    compressed = table_suffix(path) == ".csv.gz"
    start = _csv_start(path, compressed)
    separator = _separator(start)
    names = _csv_header(path, start, separator)
    # If numbers may have decimal commas, 1.234 may be 1234: as text, it can still be read so.
    commas = (QUOTED_DECIMAL_COMMA if separator == "," else DECIMAL_COMMA).search(start) is not None
    alone = len(names) == 1  # a blank line is its gap, which pandas would skip
    return {
        "filepath_or_buffer": _Lines(_with_gaps(path, compressed)) if alone else path,
        "sep": separator,
        "header": 0,
        "names": names,
        "dtype": {name: str for name in names if commas or name in text},
        "keep_default_na": False,  # "NA" may be Namibia; `missing` has the words that mean missing
        "na_values": [""],
        "compression": "gzip" if compressed and not alone else None,
        "encoding": "utf-8",
        "low_memory": False,  # one type for each column, not for each block of it
    }


def _opened(path: Path, compressed: bool, newline: str | None = None) -> io.TextIOWrapper:
    if compressed:
        return cast(io.TextIOWrapper, gzip.open(path, "rt", encoding="utf-8-sig", newline=newline))
    return open(path, encoding="utf-8-sig", newline=newline)


def _with_gaps(path: Path, compressed: bool) -> Iterator[str]:
    """The lines of a file of one column, blank ones between others as empty cells; those at its ends are no rows."""
    blank, began, quoted = 0, False, False
    with _opened(path, compressed, newline="") as handle:
        for line in handle:
            if not quoted and not line.strip():
                blank += began
                continue
            yield from ['""\n'] * blank
            blank, began = 0, True
            quoted = (quoted or line.startswith('"')) and quoted != line.count('"') % 2  # a cell of several lines
            yield line


@final
class _Lines(io.TextIOBase):
    """Lines as a file that pandas reads."""

    def __init__(self, lines: Iterator[str]):
        self._lines = lines

    def read(self, size: int | None = -1) -> str:
        """The next lines, "" at the end."""
        return "".join(islice(self._lines, READ_LINES))


def _csv_start(path: Path, compressed: bool) -> str:
    with _opened(path, compressed) as handle:
        start = handle.read(LOOK_AHEAD).lstrip("\n")
    if not start.strip():
        raise TableError(f"{path}: the file is empty; check that it was written completely")
    if "\0" in start:
        raise TableError(f"{path}: binary data, not a text table; save it as UTF-8 CSV or as Parquet")
    return start


def _separator(start: str) -> str:
    """The mark that divides most of the first rows into as many cells, at least two, as the header."""
    fits = {mark: _fit(start, mark) for mark in SEPARATORS}
    best = max(SEPARATORS, key=lambda mark: fits[mark])
    return best if fits[best][1] else ","


def _fit(start: str, mark: str) -> tuple[float, int]:
    """The share of the first rows with as many cells as the header, and how many cells; 0 if it has no `mark`."""
    try:
        header, *rows = islice(csv.reader(io.StringIO(start), delimiter=mark), FIRST_ROWS + 1)
    except csv.Error:  # such as a quote that only another separator closes
        return -1.0, 0
    alike = [len(row) == len(header) for row in rows if row]
    return (sum(alike) / max(len(alike), 1), len(header)) if len(header) > 1 else (-1.0, 0)


def _csv_header(path: Path, start: str, separator: str) -> list[str]:
    """The column names."""
    lines = csv.reader(io.StringIO(start), delimiter=separator)
    names = [name.strip() or f"Unnamed: {place}" for place, name in enumerate(next(lines))]
    refuse_repeated(names, f"{path}: ")
    # pandas would silently make a row label of the first cell of rows longer than the header.
    if len(row := next(lines, [])) > len(names):
        raise TableError(f"{path}: row 1 has {len(row)} cells but the header {len(names)}; give every column a name")
    return names


def no_rows(path: str | PathLike[str]) -> TableError:
    """The error of a table without rows."""
    return TableError(f"{path}: the table has a header but no rows; check that it was written completely")


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Errors of pandas, pyarrow, gzip and the operating system become a `TableError` that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise TableError(f"{path}: no such file; check the name and the folder") from None
    except UnicodeDecodeError:
        raise TableError(f"{path}: not UTF-8 text; save the table as UTF-8 CSV or as Parquet") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise TableError(f"{path}: not a whole gzip file; compress or download it again") from None
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise TableError(f"{path}: not a whole Parquet file ({reason}); write or download it again") from None
    except (pd.errors.ParserError, csv.Error) as error:
        raise TableError(f"{path}: {_csv_fault(str(error))}; put cells that hold the separator in quotes") from None
    except OSError as error:
        reason = str(error.strerror or error).partition("\n")[0]  # pyarrow's have several lines
        raise TableError(f"{path}: cannot be read ({reason}); check the file") from None


def _csv_fault(message: str) -> str:
    fields = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", message)
    if fields:
        return f"line {fields[2]} has {fields[3]} cells where the header has {fields[1]}"
    return f"not a readable CSV table ({message.strip().removeprefix('Error tokenizing data. C error: ')})"
