"""The data sets by name (`catalogue.csv` is the list): from a name to the verified table."""

import csv
import gzip
import hashlib
import io
import os
import zlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from pseudopoint.files import FilePath, scratch, user_cache

ADVICE = "put the right file there, or delete it"
FOLDER = resources.files("pseudopoint") / "datasets"


@dataclass(frozen=True)
class Source:
    """One table, NAME.csv.gz: a header, numeric columns only, the target last.

    `classes` is 0 for a regression, else the target holds the codes 0, …, classes − 1. `sha256` is that of the file,
    `contents` that of the numbers in it, however they were compressed. `licence` is the one commonly stated, marked [v]
    if it was read at the origin.
    """

    name: str
    task: str
    rows: int
    classes: int
    sha256: str
    contents: str
    origin: str
    licence: str
    columns: tuple[str, ...]

    @property
    def target(self) -> str:
        """The name of the last column."""
        return self.columns[-1]


def _source(rows: str, classes: str, columns: str, **texts: str) -> Source:
    return Source(rows=int(rows), classes=int(classes), columns=tuple(columns.split()), **texts)


CATALOGUE: dict[str, Source] = {
    line["name"]: _source(**line) for line in csv.DictReader((FOLDER / "catalogue.csv").read_text("utf-8").splitlines())
}


class DataError(ValueError):
    """A data set that is unknown, missing or not the one meant. The message says what, where and what to do."""


class Table(NamedTuple):
    """Inputs X [N, D] and target y [N] in their own units (classes as codes 0, …, C − 1), and their source."""

    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, " N"]
    source: Source


def source(name: str) -> Source:
    """The catalogue's entry of a data set. `DataError` if there is none of this name."""
    if name not in CATALOGUE:
        raise DataError(f"there is no data set {name!r}; the names are {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def data_folder(folder: FilePath | None = None) -> Path:
    """`folder`, else $PSEUDOPOINT_DATA, else the user's cache folder (~/.cache/pseudopoint, or in $XDG_CACHE_HOME),
    else, for a user without a home, one among the system's temporary folders."""
    named = folder if folder is not None else os.environ.get("PSEUDOPOINT_DATA")
    return Path(named) if named is not None and named != "" else user_cache() or scratch()


def find(name: str, folder: FilePath | None = None) -> Path:
    """The file NAME.csv.gz in the data folder; naval is in the package, too. `DataError` if there is none."""
    known, place = source(name), data_folder(folder)
    path = place / f"{name}.csv.gz"
    if path.is_file():
        return path
    if name == "naval":
        return Path(str(FOLDER / "naval.csv.gz"))
    raise DataError(
        f"{name}.csv.gz is not in {str(place)!r}: name the folder that has it by --data or PSEUDOPOINT_DATA, put it "
        f"there, or try --download; it comes from {known.origin}"
    )


def load(name: str, folder: FilePath | None = None) -> Table:
    """The table of this name from `folder` (see `data_folder`), verified.

    The file must have the SHA-256 of the catalogue, or, if it was compressed again, its numbers must. `DataError`
    otherwise.
    """
    known, path = source(name), find(name, folder)
    packed = path.read_bytes()
    try:
        frame = pd.read_csv(io.BytesIO(gzip.decompress(packed)))
    except (OSError, EOFError, zlib.error, ValueError) as error:  # pandas' errors are ValueErrors
        raise DataError(f"{path} cannot be read ({one_line(error)}); {ADVICE}") from error
    return checked(known, frame, str(path), hashlib.sha256(packed).hexdigest() == known.sha256)


def checked(known: Source, frame: pd.DataFrame, place: str, same_file: bool = False, advice: str = ADVICE) -> Table:
    """The frame as a `Table`. `DataError` if its columns or numbers are not those of the catalogue."""
    refused = lambda finding: DataError(f"{place} {finding}; {advice}")
    if tuple(frame.columns) != known.columns:
        has, belong = (f"{columns[0]!r} to {columns[-1]!r}" for columns in ([*map(str, frame.columns)], known.columns))
        raise refused(f"has {frame.shape[1]} columns, {has}, where {len(known.columns)} belong, {belong}")
    try:
        values = frame.to_numpy(np.float64)
    except ValueError as error:
        raise refused(f"holds text where numbers belong ({one_line(error)})") from error
    if not same_file and contents(values) != known.contents:
        size = f"{len(frame):,} rows, {known.rows:,} belong there" if len(frame) != known.rows else "other numbers"
        raise refused(f"has another SHA-256 than {known.name} ({size})")
    return Table(values[:, :-1], values[:, -1], known)


def contents(values: Float[np.ndarray, "N K"]) -> str:
    """SHA-256 of all numbers of a table, row by row, as little-endian float64."""
    return hashlib.sha256(np.ascontiguousarray(values, "<f8").tobytes()).hexdigest()


def one_line(error: Exception) -> str:
    """The message of an error, for use within a sentence."""
    return " ".join(str(error).split())


def split(n: int, seed: int, fraction: float = 0.9) -> tuple[Int[np.ndarray, " A"], Int[np.ndarray, " B"]]:
    """Rows for training and for testing: the first ⌊fraction·n⌋ of `default_rng(seed).permutation(n)`, and the rest."""
    rows = np.random.default_rng(seed).permutation(n)
    cut = int(fraction * n)
    return rows[:cut], rows[cut:]
