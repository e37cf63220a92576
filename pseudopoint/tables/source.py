"""Tables that need not fit into memory: files, folders and tables of Arrow, in parts that are read one at a time."""

import glob
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pseudopoint.tables.conversion import convert, csv_chunks, refuse_different
from pseudopoint.tables.encoder import TableEncoder
from pseudopoint.tables.messages import TableError, refuse_repeated
from pseudopoint.tables.reading import SUFFIXES, chunks_of, named_errors, no_rows, open_parquet, table_suffix

PART_ROWS = 65_536  # of a table of Arrow, and of the row groups of a scratch file
AHEAD = 1  # parts read ahead of the one in use
OPEN_FILES = 8
HIVE_GAP = "__HIVE_DEFAULT_PARTITION__"

Source = Any  # a path, a glob, several of them, or a table of Arrow
T = TypeVar("T")


class Part(NamedTuple):
    """A row group of a file, or a slice of a table of Arrow: where it is, how many rows it has, and the values that
    the names of its folders give (`key=value`)."""

    file: str
    group: int
    rows: int
    constants: tuple[tuple[str, Any], ...] = ()


@runtime_checkable
class Parts(Protocol):
    """A table in parts, wherever they are: `TableSource`, or `DaskSource` of a cluster."""

    parts: tuple[Part, ...]
    columns: tuple[str, ...]
    notes: tuple[str, ...]
    separator: str  # of the cells in CSV files, if there are any and they agree; else ""

    def __len__(self) -> int: ...

    def part(self, i: int, columns: Collection[str] | None = None) -> pd.DataFrame:
        """The i-th part, of some columns or all; its index counts the rows of the whole table."""
        ...

    def each(self, function: Callable[[int, pd.DataFrame], T], order: Sequence[int], columns=None) -> Iterator[T]:
        """function(i, part i) for each i in order."""
        ...

    def spread(self, rows: Any) -> Any:
        """The rows of a fit (`TableRows`) where the parts are."""
        ...


class TableSource:
    """A table in parts. `part(i)` reads the i-th as a DataFrame whose index counts the rows of the whole table.

    `notes` say what was made of the files. `open_source` makes one.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        columns: Sequence[str],
        read: Callable[..., pa.Table],
        notes=(),
        separator: str = "",
    ):
        self.parts, self.columns, self.notes, self._read = tuple(parts), tuple(columns), tuple(notes), read
        self.separator = separator
        self.starts = np.concatenate([[0], np.cumsum([part.rows for part in parts])]).astype(int)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def part(self, i: int, columns: Collection[str] | None = None) -> pd.DataFrame:
        """The part as a DataFrame, of some columns or all. `TableError` if it cannot be read any more."""
        part = self.parts[i]
        constants = dict(part.constants)
        wanted = [name for name in self.columns if (columns is None or name in columns) and name not in constants]
        with named_errors(Path(part.file)):
            table = self._read(part, wanted)
        if table.num_rows != part.rows:
            raise TableError(f"{part.file}: has changed since it was opened; start again")
        frame = table.to_pandas(ignore_metadata=True)
        kept = {name: value for name, value in constants.items() if columns is None or name in columns}
        frame = frame.set_axis(pd.RangeIndex(self.starts[i], self.starts[i + 1]), axis=0)
        return frame.assign(**kept) if kept else frame

    def each(self, function: Callable[[int, pd.DataFrame], T], order: Sequence[int], columns=None) -> Iterator[T]:
        """As `Parts.each`; a thread reads ahead and applies the function."""
        return read_ahead(lambda i: function(i, self.part(i, columns)), order)

    def only(self, i: int) -> "TableSource":
        """A source of the i-th part alone."""
        return TableSource(self.parts[i : i + 1], self.columns, self._read)

    def spread(self, rows: Any) -> Any:
        """As `Parts.spread`: the parts of a file are read whenever they are needed."""
        return rows


def is_source(table: Any) -> bool:
    """Whether an object is a table: a path or glob, several of them, a table of Arrow or a DataFrame."""
    paths = table if isinstance(table, list | tuple) and table else [table]
    return isinstance(table, pa.Table | pd.DataFrame) or all(isinstance(path, str | os.PathLike) for path in paths)


def table_files(table: Any) -> list[Path]:
    """The files of a table: of a path, a folder (all tables below it), a glob, or a list of these, in order of name.

    `TableError` where there is none.
    """
    if isinstance(table, list | tuple):
        return [file for each in table for file in table_files(each)]
    path = Path(table)
    if path.is_dir():
        visible = (
            file for file in path.rglob("*") if not any(part[:1] in "._" for part in file.relative_to(path).parts)
        )
        files = sorted(file for file in visible if file.is_file() and file.name.lower().endswith(SUFFIXES))
    elif glob.has_magic(str(path)) and not path.exists():
        files = sorted(Path(file) for file in glob.glob(str(path), recursive=True) if os.path.isfile(file))
    else:
        files = [path]
    if not files:
        raise TableError(
            f"{table}: no file whose name ends in .csv, .csv.gz or .parquet; check the name and the folder"
        )
    return files


def table_head(table: Source) -> pd.DataFrame:
    """The first rows of a table, at most about 65,536, read as the whole would be: of its first file that has any."""
    frame, root = pd.DataFrame(), _root(table)
    for file in table_files(table):
        if table_suffix(file) == ".parquet":
            with named_errors(file), open_parquet(file) as opened:
                batch = next(opened.iter_batches(batch_size=PART_ROWS), None)
                rows = opened.schema_arrow.empty_table() if batch is None else batch
                frame = rows.to_pandas(ignore_metadata=True)
        else:
            frame = next(csv_chunks(file, PART_ROWS, {}, ()), pd.DataFrame())
        if len(frame):
            attrs, frame = frame.attrs, frame.assign(**dict(_constants(file, root)))
            frame.attrs = attrs
            break
    return frame


def table_chunks(table: Source, rows: int, encoder: TableEncoder, text: Collection[str] = ()) -> Iterator[pd.DataFrame]:
    """`read_chunks` of all files of a table, one after another. `TableError` if none of them has a row."""
    root, files, found = _root(table), table_files(table), False
    for file in files:
        constants = dict(_constants(file, root))
        for frame in chunks_of(file, rows, encoder, text=text):
            found = True
            yield frame.assign(**constants) if constants else frame
    if not found:
        raise no_rows(files[0])


def table_bytes(table: Source) -> float:
    """About how many bytes a fit to the table in memory would take, by the sizes of its files."""
    total = 0.0
    for file in table_files(table):
        with named_errors(file):
            if table_suffix(file) == ".parquet":
                with open_parquet(file) as opened:
                    groups = (opened.metadata.row_group(i) for i in range(opened.num_row_groups))
                    total += 8 * sum(group.total_byte_size for group in groups)
            else:
                total += os.path.getsize(file) * (20 if file.name.lower().endswith(".gz") else 4)
    return total


@contextmanager
def open_source(table: Source, text: Collection[str] = (), missing: Collection[str] = ()) -> Iterator[TableSource]:
    """A source of the rows of Parquet and CSV files, or of a table of Arrow; files of one table are alike.

    CSV files are converted into one Parquet file in a scratch folder, which is removed when the `with` block ends; the
    columns `text` are text there, and words in `missing` are gaps.
    `TableError` for files that are missing, damaged, of different columns, or without rows.
    """
    if not is_source(table):
        raise TableError(f"a {type(table).__name__} is no table: give a path, a glob, a table of Arrow or a DataFrame")
    if isinstance(table, pd.DataFrame):
        table = in_arrow(table.rename(columns=str))
    if isinstance(table, pa.Table):
        yield _of_arrow(table)
        return
    files = table_files(table)
    suffixes = {table_suffix(file) for file in files}
    if suffixes == {".parquet"}:
        yield _of_parquet(files, _root(table))
    elif ".parquet" in suffixes:
        raise TableError(f"{table}: holds both Parquet and CSV files; name those of one kind")
    else:
        with TemporaryDirectory(prefix="pseudopoint-") as folder:
            scratch = Path(folder) / "table.parquet"
            root = _root(table)
            of_folders = [dict(_constants(file, root)) for file in files]
            separator = convert(files, of_folders, scratch, PART_ROWS, text, missing)
            size = scratch.stat().st_size / 1e6
            note = f"CSV was converted into a scratch file of {size:,.1f} MB in {folder}, which is removed at the end"
            yield _of_parquet([scratch], None, (note,), separator)


def read_ahead(read: Callable[[int], T], order: Sequence[int]) -> Iterator[T]:
    """read(i) for each i in order; one thread reads the next while the caller computes with the last."""
    with ThreadPoolExecutor(1, thread_name_prefix="rows") as pool:
        pending: deque = deque()
        try:
            for i in order:
                pending.append(pool.submit(read, i))
                if len(pending) > AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for each in pending:
                each.cancel()


def _root(table: Any) -> Path | None:
    """The folder below which the names of folders are values of columns."""
    if isinstance(table, list | tuple):
        return None
    path = Path(table)
    while glob.has_magic(str(path)) and not path.exists():
        path = path.parent
    return path if path.is_dir() else None


def in_arrow(frame: pd.DataFrame) -> pa.Table:
    """`TableError`, which names the column, where its cells are of several kinds or of one that Arrow has not."""
    refuse_repeated(frame.columns)
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except pa.ArrowException as error:
        name, reason = next(name for name in frame.columns if not _fits(frame[name])), str(error).splitlines()[0]
        raise TableError(
            f"the column {name!r} cannot be read part by part ({reason}): make its cells all text, or all numbers"
        ) from None


def _fits(series: Any) -> bool:
    try:
        pa.array(series, from_pandas=True)
    except pa.ArrowException:
        return False
    return True


def _of_arrow(table: pa.Table) -> TableSource:
    refuse_repeated(table.column_names)
    starts = range(0, table.num_rows, PART_ROWS)
    parts = [Part("the table of Arrow", i, min(PART_ROWS, table.num_rows - start)) for i, start in enumerate(starts)]
    if not parts:
        raise TableError("the table of Arrow has no rows")
    read = lambda part, columns: table.select(columns).slice(part.group * PART_ROWS, part.rows)
    return TableSource(parts, table.column_names, read)


def arrays_source(X: np.ndarray, y: np.ndarray, target: str) -> TableSource:
    """A source of the rows of arrays [N, D] and [N], which may be memory maps: columns 0, 1, … and the target."""
    names = [*map(str, range(X.shape[1])), target]
    starts = range(0, len(X), PART_ROWS)
    parts = [Part("the array", i, min(PART_ROWS, len(X) - start)) for i, start in enumerate(starts)]
    if not parts:
        raise TableError("X has no rows")

    def read(part, columns):
        rows = slice(part.group * PART_ROWS, part.group * PART_ROWS + part.rows)
        cells = lambda name: np.array(y[rows] if name == target else X[rows, int(name)])
        return pa.table({name: pa.array(cells(name)) for name in columns})

    return TableSource(parts, names, read)


def _of_parquet(files: list[Path], root: Path | None, notes: tuple[str, ...] = (), separator: str = "") -> TableSource:
    parts: list[Part] = []
    first: dict[str, str] = {}
    for file in files:
        with named_errors(file), open_parquet(file) as opened:
            constants = _constants(file, root)
            columns = {field.name: _kind(field.type) for field in opened.schema_arrow} | {
                key: "" for key, _ in constants
            }
            first = first or columns
            refuse_different(file, columns, files[0], first)
            for name, kind in columns.items():  # a column of gaps alone may be of any kind
                first[name] = first[name] or kind
            sizes = [opened.metadata.row_group(i).num_rows for i in range(opened.num_row_groups)]
        parts += [Part(str(file), i, rows, constants) for i, rows in enumerate(sizes) if rows]
    if not parts:
        raise TableError(f"{files[0]}: the table has no rows; check that it was written completely")
    return TableSource(_typed(parts), list(first), _Reader(first), notes, separator)


class _Reader:
    """Reads row groups; a few files stay open, each used by one thread at a time. `kinds` are those of all columns when
    the files were opened. `TableError` where a file has others now, or there: each worker of a cluster has its own."""

    def __init__(self, kinds: dict[str, str]):
        self._open: dict[str, pq.ParquetFile] = {}
        self.kinds = kinds

    def __reduce__(self):
        return _Reader, (self.kinds,)  # open files stay in their process

    def __call__(self, part: Part, columns: list[str]) -> pa.Table:
        file = self._open.pop(part.file, None) or open_parquet(Path(part.file))
        if part.group >= file.num_row_groups:
            raise TableError(f"{part.file}: has changed since it was opened; start again")
        table = file.read_row_group(part.group, columns=columns, use_threads=False)
        self._refuse_other(part.file, {field.name: _kind(field.type) for field in table.schema}, columns)
        self._open[part.file] = file
        while len(self._open) > OPEN_FILES:
            self._open.pop(next(iter(self._open))).close()
        return table

    def _refuse_other(self, file: str, found: dict[str, str], columns: list[str]) -> None:
        for name in columns:
            kind, before = found.get(name, "no column"), self.kinds[name]
            if name not in found or (kind and before and kind != before):
                raise TableError(
                    f"{file}: the column {name!r} was {before or 'empty'} when the table was opened, and is {kind} "
                    "where it is read; give every worker of a cluster the same files, and start again"
                )


def _constants(file: Path, root: Path | None) -> tuple[tuple[str, Any], ...]:
    """What the names of folders say, as Hive, Spark and pandas write them: `key=value`, both with escapes such as %20,
    and a value of its own for gaps, which is None here."""
    folders = file.relative_to(root).parts[:-1] if root is not None else ()
    pairs = [folder.partition("=") for folder in folders if "=" in folder]
    return tuple((unquote(key), None if value == HIVE_GAP else unquote(value)) for key, _, value in pairs)


def _typed(parts: list[Part]) -> list[Part]:
    """Values of folders as whole numbers where all of a column are, gaps apart."""
    for key in {key for part in parts for key, _ in part.constants}:
        values = {value for part in parts for name, value in part.constants if name == key} - {None}
        if values and all(re.fullmatch(r"-?[0-9]{1,15}", value) for value in values):
            of = lambda name, value, key=key: value if name != key else float("nan") if value is None else int(value)
            parts = [part._replace(constants=tuple((k, of(k, value)) for k, value in part.constants)) for part in parts]
    return parts


def _kind(type: pa.DataType) -> str:
    """What the cells of a column are, "" where all are missing."""
    if pa.types.is_dictionary(type):
        return _kind(type.value_type)
    tests = {
        "": pa.types.is_null,
        "true/false": pa.types.is_boolean,
        "numbers": lambda type: pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type),
        "text": lambda type: pa.types.is_string(type) or pa.types.is_large_string(type),
        "dates": lambda type: pa.types.is_timestamp(type) or pa.types.is_date(type),
    }
    return next((kind for kind, test in tests.items() if test(type)), str(type))
