"""Files written whole or not at all, and where files lie that can be made again.

What is at a path decides how it is written. Nothing, or a regular file: the new content lies beside it under a
temporary name, and one rename puts it there. Where a rename would lose something, the new content is collected first
and then written into the file that is there: a file of several hard links or of another owner, one in a folder that
cannot be written, one that is mounted. A pipe, a terminal or another character device, such as /dev/null, is written
into in the same way. A folder, a disk, a socket and a file without permission to write are refused.
"""

import errno
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO

__all__ = ["check_place", "make_folder", "scratch", "user_cache", "whole_file"]

NAME = 40  # characters of a file's name that its temporary name repeats: both fit into the 255 bytes of a name
# What a write, which knows no name, says of a disk.
DISK = {errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC)}


def user_cache() -> Path | None:
    """The user's folder for what can be made or fetched again: pseudopoint in $XDG_CACHE_HOME, else in ~/.cache.

    None where there is no such place: the user has no home, or it is relative or not there. A relative $XDG_CACHE_HOME
    is left unheeded, as its specification asks.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "pseudopoint"
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and a user whom the system does not know
        return None
    # An empty HOME would be the root folder; one that is not there is not ours to make.
    there = os.environ.get("HOME") != "" and home.is_absolute() and os.path.isdir(home)
    return home / ".cache" / "pseudopoint" if there else None


def scratch() -> Path:
    """A user's own folder among the system's temporary ones, for users who have no home. It may not be there yet."""
    user = getattr(os, "getuid", lambda: "user")()
    return Path(tempfile.gettempdir()) / f"pseudopoint-{user}"


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made where it is missing. Raises OSError, which says what to do, if it cannot be made."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file has its name" if os.path.isfile(folder) else (error.strerror or str(error)).lower()
        raise OSError(f"the folder {str(folder)!r} cannot be made ({reason}): name another") from error
    return folder


def check_place(path: str | os.PathLike[str]) -> None:
    """Raises OSError, with the reason, if `whole_file` could not write to `path`: before long work, not after it."""
    if not os.path.basename(os.fspath(path)):
        raise OSError(errno.EINVAL, "it is no name of a file", os.fspath(path))
    there = _status(path)
    if there is None or stat.S_ISREG(there.st_mode):
        if there is None or _renamed(path, there):
            _check_folder(path)
    elif stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", os.fspath(path))
    elif not (stat.S_ISCHR(there.st_mode) or stat.S_ISFIFO(there.st_mode)):
        raise OSError(errno.ENOTSUP, "it is a disk or a socket, not a file", os.fspath(path))
    if there is not None and _standard(there) is None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "it may not be written", os.fspath(path))


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BufferedIOBase]:
    """An open binary file that becomes `path` when the `with` block ends, and vanishes if the block raises anything.

    A regular file is replaced by one rename on one file system: a reader finds the old file or the new one, never a
    part. It keeps its permissions, owner and extended attributes, a symbolic link its target. What cannot be replaced
    without a loss is written into after the block has ended (see above): a file that has other hard links keeps them,
    and a reader may see a part of it for a moment; a full disk leaves it as it was.

    Raises OSError, which names `path`, if the file cannot be written there.
    """
    check_place(path)
    there = _status(path)
    replaced = there is None or (stat.S_ISREG(there.st_mode) and _renamed(path, there))
    with _replacing(path) if replaced else _filling(path) as file:
        yield file


@contextmanager
def _replacing(path: str | os.PathLike[str]) -> Iterator[BufferedIOBase]:
    """A new file beside the old one, which it replaces when the block ends."""
    target = os.path.realpath(path)
    name = f".{os.path.basename(target)[:NAME]}.{secrets.token_hex(4)}.part"
    temporary = os.path.join(os.path.dirname(target), name)
    try:
        with _naming(path, temporary):
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileNotFoundError):
                _keep_attributes(target, temporary)
            _rename(temporary, target)
    finally:  # gone already, unless something failed, KeyboardInterrupt included
        with suppress(OSError):
            os.unlink(temporary)


@contextmanager
def _filling(path: str | os.PathLike[str]) -> Iterator[BufferedIOBase]:
    """A file without a name, whose content goes into what is at `path` when the block ends."""
    with _naming(path), tempfile.TemporaryFile() as file:
        yield file
        there = os.stat(path)
        standard = _standard(there)
        if standard is None and stat.S_ISREG(there.st_mode):
            _overwrite(file, path)
            return
        if sys.stdout is not None:
            sys.stdout.flush()
        file.seek(0)
        # Without buffering, so that nothing is left to be written when a pipe is closed at its other end.
        with open(path if standard is None else os.dup(standard), "wb", buffering=0) as stream:
            while piece := memoryview(file.read(1 << 20)):
                while piece:
                    piece = piece[stream.write(piece) or 0 :]


def _rename(temporary: str, target: str) -> None:
    try:
        os.replace(temporary, target)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        with open(temporary, "rb") as file:  # the target is mounted, as containers have single files
            _overwrite(file, target)


def _overwrite(source: BinaryIO, target: str | os.PathLike[str]) -> None:
    """The content of a whole file becomes that of the regular file `target`. The space is taken before the first byte
    changes, so that a full disk leaves the old content; an interrupt waits for the end."""
    size = source.seek(0, os.SEEK_END)
    with open(target, "r+b") as file:
        before = os.fstat(file.fileno()).st_size
        try:
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError:
            file.truncate(before)
            raise
        try:
            _copy(source, file)
        except KeyboardInterrupt:
            _copy(source, file)
            raise


def _copy(source: BinaryIO, file: BinaryIO) -> None:
    source.seek(0)
    file.seek(0)
    shutil.copyfileobj(source, file)
    file.truncate()
    file.flush()
    os.fsync(file.fileno())


def _keep_attributes(old: str, new: str) -> None:
    """Owner, permissions and, where the system has them, extended attributes; not the times."""
    there = os.stat(old)
    if hasattr(os, "chown"):
        with suppress(OSError):
            os.chown(new, there.st_uid, there.st_gid)
    shutil.copymode(old, new)  # after the owner, whose change takes some away
    with suppress(OSError):
        shutil.copystat(old, new)
    os.utime(new)


def _status(path: str | os.PathLike[str]) -> os.stat_result | None:
    """What is at the end of all links; None if nothing is."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OSError(errno.EINVAL, "a null byte is in the name", os.fspath(path)) from error


def _check_folder(path: str | os.PathLike[str]) -> None:
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "its folder does not exist", os.fspath(path))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "its folder may not be written", os.fspath(path))


def _renamed(path: str | os.PathLike[str], there: os.stat_result) -> bool:
    """Whether the regular file can be replaced by a rename that loses neither a link nor the owner."""
    if _standard(there) is not None or there.st_nlink != 1:
        return False
    if not os.access(os.path.dirname(os.path.realpath(path)), os.W_OK | os.X_OK):
        return False
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        return True
    return there.st_uid == os.geteuid() and there.st_gid in {os.getegid(), *os.getgroups()}


def _standard(there: os.stat_result) -> int | None:
    """The descriptor of standard output or error if it is this file. /dev/stdout is, and to open it anew would begin
    at the file's start or, of a socket, fail."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), there):
                return descriptor
    return None


@contextmanager
def _naming(path: str | os.PathLike[str], temporary: str = "") -> Iterator[None]:
    """Errors of the disk name `path`, not a temporary file and not nothing."""
    try:
        yield
    except OSError as error:
        named = error.filename == temporary if error.filename is not None else error.errno in DISK
        if named:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
