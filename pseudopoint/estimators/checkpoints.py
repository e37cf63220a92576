"""The checkpoint of a fit: a folder with a file for each stage, from which a fit that was stopped goes on."""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np

from .. import __version__
from ..files import FilePath, make_folder, whole_file
from ..names import Settings
from ..persistence import load, save
from ..recipes import AbstractKeeper, Nothing

EVERY = 60.0  # seconds between two writings
KIND = "checkpoint"
IDENTITY = "identity.json"


def fingerprint(*arrays: Any) -> str:
    """Of numbers and texts: different for different ones."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr(np.asarray(array).tolist()).encode())
    return digest.hexdigest()


def opened(folder: FilePath | None, resume: bool, settings: Settings, data: str) -> "AbstractKeeper | Checkpoint":
    """The checkpoint in a folder, of these settings and data; one that keeps nothing for None."""
    if folder is None:
        if resume:
            raise ValueError("to resume a fit, name the folder of its checkpoint (--checkpoint, checkpoint=)")
        return Nothing()
    chosen = {name: repr(np.asarray(value).tolist()) for name, value in settings._asdict().items()}
    return Checkpoint(folder, {"version": __version__, "data": data, "settings": chosen}, resume)


@final
class Checkpoint(AbstractKeeper):
    """Keeps the stages of one fit in a folder, each file replaced as a whole (`files.whole_file`).

    `identity` says what the fit is of: version, data and settings. Where the folder has a checkpoint, `resume` goes on
    with it. Raises ValueError, in one sentence, if it is of another fit, or if it is there without `resume`; a fit may
    resume where nothing is there yet.
    """

    def __init__(self, folder: FilePath, identity: dict[str, Any], resume: bool = False):
        self.folder, self._pending, self._written = make_folder(folder), None, time.monotonic()
        path = self.folder / IDENTITY
        if path.exists():
            if not resume:
                raise ValueError(
                    f"the folder {str(folder)!r} holds the checkpoint of a fit: resume it (--resume, resume=True), "
                    "delete it, or name another folder"
                )
            _refuse_other(path, identity)
            return
        with whole_file(path) as file:
            file.write(json.dumps(identity).encode())

    def load(self, stage: str) -> Any:
        """What was kept of the stage; None if nothing was. Raises ModelFileError where its file is damaged."""
        path = self._path(stage)
        return load(path, kind=KIND) if path.exists() else None

    def save(self, stage: str, make: Callable[[], Any], now: bool = False) -> None:
        """Keeps make() at once, or once a minute, when another stage begins, and when the fit ends or is stopped."""
        if self._pending is not None and self._pending[0] != stage:
            self.flush()
        self._pending = stage, make
        if now or time.monotonic() - self._written >= EVERY:
            self.flush()

    def flush(self) -> None:
        """Writes what is not written yet."""
        if self._pending is not None:
            stage, make = self._pending
            save(self._path(stage), make(), kind=KIND)
            self._pending, self._written = None, time.monotonic()

    def _path(self, stage: str) -> Path:
        return self.folder / f"{stage}.safetensors"


def _refuse_other(path: Path, identity: dict[str, Any]) -> None:
    try:
        kept = json.loads(path.read_bytes())
        settings, version, data = kept["settings"], kept["version"], kept["data"]
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{path}: is no checkpoint, or is damaged; name another folder") from None
    what = f"the checkpoint in {str(path.parent)!r} is of"
    remedy = "or name another folder"
    if version != identity["version"]:
        raise ValueError(
            f"{what} version {version} of pseudopoint, and this is {identity['version']}: use that, {remedy}"
        )
    for name, value in identity["settings"].items():
        if settings.get(name) != value:
            raise ValueError(f"{what} a fit with {name}={settings.get(name)}, not {value}: give that, {remedy}")
    if data != identity["data"]:
        raise ValueError(f"{what} a fit to other data: give the same table and target, {remedy}")
