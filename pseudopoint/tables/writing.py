"""Files written whole or not at all, and DataFrames appended to one chunk by chunk."""

import gzip
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from io import BufferedIOBase
from os import PathLike
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pseudopoint import files
from pseudopoint.tables.messages import TableError
from pseudopoint.tables.reading import table_suffix


@contextmanager
def whole_file(path: str | PathLike[str]) -> Iterator[BufferedIOBase]:
    """`files.whole_file`, with a `TableError` if the file cannot be made there."""
    with ExitStack() as stack:
        try:
            handle = stack.enter_context(files.whole_file(path))
        except OSError as error:
            why = error.strerror or str(error)
            raise TableError(f"{path}: cannot be written ({why}); check the path, permissions and space") from None
        yield handle


class ChunkWriter:
    """Appends DataFrames of the same columns to an open file. `write_chunks` makes it.

    `columns` are those of the first DataFrame, None before it.
    """

    def __init__(self, handle: BufferedIOBase, parquet: bool):
        self._handle, self._parquet = handle, parquet
        self._parquet_writer: pq.ParquetWriter | None = None
        self.columns: list[str] | None = None

    def append(self, frame: pd.DataFrame) -> None:
        """Appends the rows of `frame`, without its index; in Parquet the first chunk fixes the types of the columns.

        ValueError if the columns differ from those before, or their cells do not fit those types.
        """
        first, columns = self.columns is None, list(frame.columns)
        if not first and columns != self.columns:
            raise ValueError(f"a chunk with columns {columns} cannot follow one with {self.columns}")
        if self._parquet:
            schema = pa.Schema.from_pandas(frame, preserve_index=False)
            self._parquet_writer = writer = self._parquet_writer or pq.ParquetWriter(self._handle, schema)
            writer.write_table(pa.Table.from_pandas(frame, schema=writer.schema, preserve_index=False))
        else:
            self._handle.write(frame.to_csv(index=False, header=first, lineterminator="\n").encode())
        self.columns = columns

    def close(self) -> None:
        """Writes what Parquet keeps at the end of a file; does not close the file itself."""
        if self._parquet_writer is not None:
            self._parquet_writer.close()


@contextmanager
def write_chunks(path: str | PathLike[str]) -> Iterator[ChunkWriter]:
    """A writer whose `append(frame)` adds rows to the .csv, .csv.gz or .parquet table at `path`.

    The table appears, or replaces the old one, when the `with` block ends; if the block raises, nothing changes.
    `TableError` for an unknown suffix, a place that cannot be written, and a table without any chunk.
    """
    suffix = table_suffix(Path(path))
    with whole_file(path) as plain:
        # Without name and time, so that the same rows are the same bytes.
        compressed = gzip.GzipFile("", "wb", fileobj=plain, mtime=0) if suffix == ".csv.gz" else nullcontext(plain)
        with compressed as handle, closing(ChunkWriter(handle, suffix == ".parquet")) as writer:
            yield writer
            if writer.columns is None:
                raise TableError(f"{path}: there is nothing to write; append at least one chunk")
