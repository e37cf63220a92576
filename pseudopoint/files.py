"""Files written whole or not at all, and where files lie that can be made again."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path

__all__ = ["make_folder", "user_cache", "whole_file"]


def user_cache() -> Path:
    """The user's folder for what can be made or fetched again: pseudopoint in $XDG_CACHE_HOME, else in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pseudopoint"


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made where it is missing. Raises OSError, which says what to do, if it cannot be made."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file has its name" if folder.is_file() else (error.strerror or str(error)).lower()
        raise OSError(f"the folder {str(folder)!r} cannot be made ({reason}): name another") from error
    return folder


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BufferedIOBase]:
    """An open binary file that becomes `path` when the `with` block ends, and vanishes if the block raises anything.

    It lies beside `path` under a temporary name, so that the last step is one rename on one file system: a reader finds
    the old file or the new one, never a part. An existing file keeps its permissions, a symbolic link its target.
    Raises OSError if the file cannot be made there.
    """
    target = os.path.realpath(path)
    if os.path.isdir(target):
        raise IsADirectoryError(None, "it is a folder", os.fspath(path))
    temporary = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.{secrets.token_hex(4)}.part")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    finally:  # gone already, unless something failed, KeyboardInterrupt included
        with suppress(OSError):
            os.unlink(temporary)
