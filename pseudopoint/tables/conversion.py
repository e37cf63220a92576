"""CSV files as one Parquet file in a scratch folder, which is read part by part as other Parquet files are."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pseudopoint.tables.messages import TableError
from pseudopoint.tables.reading import csv_options, named_errors


def convert(
    files: list[Path],
    of_folders: list[dict[str, Any]],
    scratch: Path,
    rows: int,
    text: Collection[str],
    missing: Collection[str],
) -> str:
    """One Parquet file of all CSV files: numbers and true/false values as such where all cells of a column are, else
    text, in groups of so many rows. What the names of a file's folders say are columns, too. Returns their separator,
    "" if they differ in it. `TableError` where the disk is full."""

    def chunks(types: dict[str, Any]) -> Iterator[tuple[Path, pd.DataFrame]]:
        for file, constants in zip(files, of_folders, strict=True):
            for frame in csv_chunks(file, rows, types, missing):
                yield file, frame.assign(**constants) if constants else frame

    kinds: dict[str, set[str]] = {}
    separators: set[str] = set()
    for file, frame in chunks(dict.fromkeys(text, str)):
        separators.add(frame.attrs["separator"])
        for name, dtype in frame.dtypes.items():
            kinds.setdefault(str(name), set()).update(_csv_kind(cast(pd.Series, frame[name]), dtype))
        names = list(frame.columns)
        if set(names) != set(kinds):
            refuse_different(file, dict.fromkeys(names, ""), files[0], dict.fromkeys(kinds, ""))
    types = {name: _csv_type({"O"} if name in text else found) for name, found in kinds.items()}
    schema = pa.schema([(name, arrow) for name, (_, arrow) in types.items()])
    try:
        with pq.ParquetWriter(scratch, schema) as writer:
            for _, frame in chunks({name: read for name, (read, _) in types.items()}):
                writer.write_table(pa.Table.from_pandas(frame, schema=schema, preserve_index=False))
    except OSError as error:
        raise TableError(
            f"{scratch}: the CSV files cannot be converted there ({error.strerror or error}); make room, or set TMPDIR "
            "to a folder that has some"
        ) from None
    return separators.pop() if len(separators) == 1 else ""


def csv_chunks(file: Path, rows: int, types: dict[str, Any], missing: Collection[str]) -> Iterator[pd.DataFrame]:
    """The rows of a CSV file, so many at a time, columns of these types; `attrs["separator"]` keeps the separator."""
    with named_errors(file):
        options = csv_options(file, [])
        words = [*options.pop("na_values"), *missing]
        dtypes = {**types, **options.pop("dtype")}
        with cast(Any, pd.read_csv(chunksize=rows, na_values=words, dtype=dtypes, **options)) as reader:
            for frame in reader:
                frame.attrs["separator"] = options["sep"]
                yield frame


def _csv_kind(series: pd.Series, dtype: Any) -> set[str]:
    if series.isna().all():
        return set()
    return {dtype.kind if dtype.kind in "iufb" else "O"}


def _csv_type(found: set[str]) -> tuple[Any, pa.DataType]:
    """How pandas reads a column, and its type in the scratch file."""
    if found == {"b"}:
        return "boolean", pa.bool_()
    if found and found <= {"i", "u", "f"}:
        return np.float64, pa.float64()
    return str, pa.string()


def refuse_different(file: Path, columns: dict[str, str], other: Path, first: dict[str, str]) -> None:
    """`TableError` where the files of one table have different columns, or cells of different kinds."""
    for name in sorted(columns.keys() ^ first.keys()):
        has, lacks = (file, other) if name in columns else (other, file)
        raise TableError(
            f"{lacks}: lacks the column {name!r}, which {has} has; files of one table have the same columns"
        )
    for name, kind in columns.items():
        if kind and first[name] and kind != first[name]:
            raise TableError(
                f"{file}: the column {name!r} holds {kind}, but in {other} {first[name]}; "
                "files of one table have the same types"
            )
