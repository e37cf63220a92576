"""The checkpoint of a fit: a folder with a file for each stage, from which a fit that was stopped goes on."""

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, final

import numpy as np

from .. import __version__
from ..files import FilePath, make_folder, whole_file
from ..names import Settings
from ..persistence import ModelFileError, load, save
from ..recipes import AbstractKeeper

EVERY = 60.0  # seconds between two writings
KIND = "checkpoint"
IDENTITY = "identity.json"


def opened(folder: FilePath | None, resume: bool) -> "Checkpoint | None":
    """The checkpoint in a folder; None without one. Call it before long work."""
    if folder is not None:
        return Checkpoint(folder, resume)
    if resume:
        raise ValueError("to resume a fit, name the folder of its checkpoint (--checkpoint, checkpoint=)")
    return None


@final
class Checkpoint(AbstractKeeper):
    """Keeps the stages of one fit in a folder, each file replaced as a whole (`files.whole_file`).

    Where the folder has a checkpoint, `resume` goes on with it; a fit may resume where nothing is there yet. `begin`
    says what the fit is of. Raises ValueError, in one sentence, if the checkpoint is of another version or fit, or if
    it is there without `resume`; OSError if the folder cannot be made or written to. A stage that cannot be written
    once the fit has begun is tried again with the next; `trouble` says so, and a warning at the first time.
    """

    def __init__(self, folder: FilePath, resume: bool = False):
        self.folder, self.trouble = make_folder(folder), ""
        self._pending: dict[str, Callable[[], Any]] = {}  # stages that are not written, in their order
        self._written = time.monotonic()
        path = self.folder / IDENTITY
        self._kept = _read(path) if path.exists() else None
        if self._kept is None and any(self.folder.glob("*.safetensors")):
            raise ValueError(
                f"the folder {str(folder)!r} holds .safetensors files but no {IDENTITY}, which says of what fit: "
                "delete it, or name another folder"
            )
        if self._kept is not None and not resume:
            raise ValueError(
                f"the folder {str(folder)!r} holds the checkpoint of a fit: resume it (--resume, resume=True), "
                "delete it, or name another folder"
            )
        _try_to_write(self.folder)

    def refuse_other(self, task: str, settings: Settings, data: list[Any] | None = None) -> dict[str, Any]:
        """What identifies a fit of these settings to this data, if the folder has no checkpoint or one of the same fit.
        Where the data is not known yet (None), the rest is compared."""
        chosen = {name: repr(np.asarray(value).tolist()) for name, value in settings._asdict().items()}
        identity = {"version": __version__, "data": data, "settings": {"task": repr(task)} | chosen}
        if self._kept is not None:
            _refuse_other(self.folder, self._kept, identity)
        return identity

    def begin(self, task: str, settings: Settings, data: list[Any]) -> None:
        """The fit is of these settings and this data."""
        identity = self.refuse_other(task, settings, data)
        if self._kept is None:
            with whole_file(self.folder / IDENTITY) as file:
                file.write(json.dumps(identity).encode())

    def load(self, stage: str) -> Any:
        """What was kept of the stage; None if nothing was. Raises ModelFileError where its file is damaged."""
        path = self._path(stage)
        if not path.exists():
            return None
        try:
            return load(path, kind=KIND)
        except ModelFileError:
            raise ModelFileError(f"{path}: is damaged; delete the folder {str(self.folder)!r} and fit anew") from None

    def save(self, stage: str, make: Callable[[], Any], now: bool = False) -> None:
        """Keeps make() at once, or once a minute, when another stage begins, and when the fit ends or is stopped."""
        if self._pending and stage not in self._pending:
            self.flush()
        self._pending[stage] = make
        if now or time.monotonic() - self._written >= EVERY:
            self.flush()

    def flush(self) -> None:
        """Writes what is not written yet, each stage after those before it: a later one alone would go on from
        nothing."""
        self._written = time.monotonic()
        try:
            while self._pending:
                stage = next(iter(self._pending))
                save(self._path(stage), self._pending[stage](), kind=KIND)
                del self._pending[stage]
        except OSError as error:
            first, reason = not self.trouble, error.strerror or str(error)
            self.trouble = f"the checkpoint in {str(self.folder)!r} cannot be written ({reason})"
            if first:
                warnings.warn(f"{self.trouble}: the fit goes on, and tries again", UserWarning, stacklevel=2)
            return
        self.trouble = ""

    def _path(self, stage: str) -> Path:
        return self.folder / f"{stage}.safetensors"


def _read(path: Path) -> dict[str, Any]:
    """The identity of a checkpoint that is there. Raises ValueError where it is damaged, or of another version."""
    try:
        kept = json.loads(path.read_bytes())
        version, _, settings = kept["version"], kept["data"], kept["settings"]
        settings["task"]
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{path}: is no checkpoint, or is damaged; name another folder") from None
    if version != __version__:
        raise ValueError(
            f"the checkpoint in {str(path.parent)!r} is of version {version} of pseudopoint, "
            f"and this is {__version__}: use that, or name another folder"
        )
    return kept


def _refuse_other(folder: Path, kept: dict[str, Any], identity: dict[str, Any]) -> None:
    what, remedy = f"the checkpoint in {str(folder)!r} is of a fit", "or name another folder"
    for name, value in identity["settings"].items():
        if (before := kept["settings"].get(name)) != value:
            raise ValueError(f"{what} with {name}={before}, not {value}: give that, {remedy}")
    if identity["data"] is not None and kept["data"] != identity["data"]:
        raise ValueError(f"{what} to other data: give the same table, target and rows held out, {remedy}")


def _try_to_write(folder: Path) -> None:
    """OSError, which says what to do, where no file can be made in the folder."""
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OSError(f"the folder {str(folder)!r} takes no checkpoint ({reason}): name another") from error
