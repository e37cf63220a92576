"""From a name to a table that is proved to be the one meant."""

import gzip
import hashlib
import io
import os
import zlib
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from pseudopoint.datasets.catalogue import CATALOGUE, Source
from pseudopoint.files import scratch, user_cache

__all__ = ["DataError", "Table", "checked", "contents", "data_folder", "find", "load", "one_line", "source", "split"]

ADVICE = "put the right file there, or delete it"


class DataError(ValueError):
    """A data set that is unknown, missing or not the one meant. The message says what, where and what to do."""


class Table(NamedTuple):
    """Inputs X [N, D] and target y [N] in their own units (classes as codes 0, …, C − 1), and what is known of them."""

    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, " N"]
    source: Source


def source(name: str) -> Source:
    """What is known of a data set. Raises `DataError` if there is none of this name."""
    if name not in CATALOGUE:
        raise DataError(f"there is no data set {name!r}; the names are {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """`folder`, else $PSEUDOPOINT_DATA, else the user's cache folder (~/.cache/pseudopoint, or in $XDG_CACHE_HOME),
    else, for a user without a home, one among the system's temporary folders."""
    if folder is not None:
        return Path(folder)
    if os.environ.get("PSEUDOPOINT_DATA"):
        return Path(os.environ["PSEUDOPOINT_DATA"])
    return user_cache() or scratch()


def find(name: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """The file NAME.csv.gz in the data folder; naval lies in the package too.

    Raises `DataError` if there is none; nothing is downloaded unasked.
    """
    known, place = source(name), data_folder(folder)
    path = place / f"{name}.csv.gz"
    if path.is_file():
        return path
    if name == "naval":
        return Path(str(resources.files("pseudopoint") / "datasets" / "naval.csv.gz"))
    raise DataError(
        f"{name}.csv.gz is not in {str(place)!r}: name the folder that has it by --data or PSEUDOPOINT_DATA, put it "
        f"there, or try --download; it comes from {known.origin}"
    )


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Table:
    """The table of this name from `folder` (see `data_folder`), verified.

    The file must have the SHA-256 of the catalogue, or, if it was compressed anew, its numbers must. Raises
    `DataError`, which says what is wrong, where and what to do.
    """
    known, path = source(name), find(name, folder)
    packed = path.read_bytes()
    try:
        frame = pd.read_csv(io.BytesIO(gzip.decompress(packed)))
    except (OSError, EOFError, zlib.error, ValueError) as error:  # pandas' errors are ValueErrors
        raise DataError(f"{path} cannot be read ({one_line(error)}); {ADVICE}") from error
    return checked(known, frame, str(path), hashlib.sha256(packed).hexdigest() == known.sha256)


def checked(known: Source, frame: pd.DataFrame, place: str, same_file: bool = False, advice: str = ADVICE) -> Table:
    """The frame as a `Table`, if it has the columns and the numbers that are known of it; else `DataError`."""
    refused = lambda finding: DataError(f"{place} {finding}; {advice}")
    if tuple(frame.columns) != known.columns:
        has = f"{frame.shape[1]} columns, {_ends(tuple(map(str, frame.columns)))}"
        raise refused(f"has {has}, where {len(known.columns)} belong, {_ends(known.columns)}")
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
    """What an error says, within a sentence."""
    return " ".join(str(error).split())


def split(n: int, seed: int, fraction: float = 0.9) -> tuple[Int[np.ndarray, " A"], Int[np.ndarray, " B"]]:
    """Rows for training and for testing: the first ⌊fraction·n⌋ of `default_rng(seed).permutation(n)`, and the rest."""
    rows = np.random.default_rng(seed).permutation(n)
    cut = int(fraction * n)
    return rows[:cut], rows[cut:]


def _ends(columns: tuple[str, ...]) -> str:
    return f"{columns[0]!r} to {columns[-1]!r}"
