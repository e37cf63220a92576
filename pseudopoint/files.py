"""Files written whole or not at all, and folders for files that can be made again.

What is at a path decides how it is written:

- nothing, or a regular file: a temporary file beside it gets the content, and one rename puts it in place;
- a regular file that a rename would harm (several hard links, another owner, a read-only folder, a mount), a pipe, a
  terminal or another character device: the content is collected first and then written into it;
- a folder, a disk, a socket, or a file without write permission: refused with OSError.
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

FilePath = str | os.PathLike[str]
NAME = 40  # characters of a file's name that its temporary name repeats; a name has at most 255 bytes
# Errors of a disk. A failed write does not name its file.
DISK = {errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC)}


def user_cache() -> Path | None:
    """The user's folder for files that can be made again: pseudopoint in $XDG_CACHE_HOME, else in ~/.cache.

    None if the home is unknown, relative or missing. A relative $XDG_CACHE_HOME is ignored, as its specification asks.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "pseudopoint"
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and no entry of the user
        return None
    # An empty HOME would mean the root folder.
    usable = os.environ.get("HOME") != "" and home.is_absolute() and os.path.isdir(home)
    return home / ".cache" / "pseudopoint" if usable else None


def scratch() -> Path:
    """A folder of this user among the system's temporary ones, for users without a home. It may not exist yet."""
    user = getattr(os, "getuid", lambda: "user")()
    return Path(tempfile.gettempdir()) / f"pseudopoint-{user}"


def make_folder(path: FilePath) -> Path:
    """The folder, made if it is missing. OSError, which says what to do, if it cannot be made."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file has its name" if os.path.isfile(folder) else (error.strerror or str(error)).lower()
        raise OSError(f"the folder {str(folder)!r} cannot be made ({reason}): name another") from error
    return folder


def check_place(path: FilePath) -> None:
    """OSError, with the reason, if `whole_file` could not write to `path`. Call it before long work."""
    _is_replaced(path)


@contextmanager
def whole_file(path: FilePath) -> Iterator[BufferedIOBase]:
    """An open binary file that becomes `path` when the `with` block ends, and vanishes if the block raises.

    One rename replaces a regular file: readers see the old file or the new one, never a part. The new file keeps
    permissions, owner and extended attributes, and a symbolic link keeps its target. A file that is written into
    instead (see above) keeps its hard links. Readers may see a part of it for a moment; a full disk changes nothing.

    OSError, which names `path`, if the file cannot be written.
    """
    with _replacing(path) if _is_replaced(path) else _filling(path) as file:
        yield file


def _is_replaced(path: FilePath) -> bool:
    """Whether a rename replaces what is at `path`; otherwise it is written into. OSError if neither is possible."""
    name = os.fspath(path)
    if not os.path.basename(name):
        raise OSError(errno.EINVAL, "it is no name of a file", name)
    try:
        folder, there = os.path.dirname(os.path.realpath(path)), None
        with suppress(FileNotFoundError):
            there = os.stat(path)
    except ValueError as error:
        raise OSError(errno.EINVAL, "a null byte is in the name", name) from error
    writable = os.access(folder, os.W_OK | os.X_OK)
    if there is None:
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, "its folder does not exist", name)
        if not writable:
            raise PermissionError(errno.EACCES, "its folder may not be written", name)
        return True
    regular = stat.S_ISREG(there.st_mode)
    if stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", name)
    if not (regular or stat.S_ISCHR(there.st_mode) or stat.S_ISFIFO(there.st_mode)):
        raise OSError(errno.ENOTSUP, "it is a disk or a socket, not a file", name)
    if _standard_stream(there) is not None:
        return False
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "it may not be written", name)
    if not regular or there.st_nlink != 1 or not writable:
        return False
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        return True
    return there.st_uid == os.geteuid() and there.st_gid in {os.getegid(), *os.getgroups()}


@contextmanager
def _replacing(path: FilePath) -> Iterator[BufferedIOBase]:
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
            try:
                os.replace(temporary, target)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                with open(temporary, "rb") as file:  # the target is a mount: containers mount single files
                    _overwrite(file, target)
    finally:  # after any failure, KeyboardInterrupt included
        with suppress(OSError):
            os.unlink(temporary)


@contextmanager
def _filling(path: FilePath) -> Iterator[BufferedIOBase]:
    """A file without a name, whose content is written into what is at `path` when the block ends."""
    with _naming(path), tempfile.TemporaryFile() as file:
        yield file
        there = os.stat(path)
        standard = _standard_stream(there)
        if standard is None and stat.S_ISREG(there.st_mode):
            _overwrite(file, path)
            return
        if sys.stdout is not None:
            sys.stdout.flush()
        file.seek(0)
        # Unbuffered, so that closing a broken pipe writes nothing.
        with open(path if standard is None else os.dup(standard), "wb", buffering=0) as stream:
            while piece := memoryview(file.read(1 << 20)):
                while piece:
                    piece = piece[stream.write(piece) or 0 :]


def _overwrite(source: BinaryIO, target: FilePath) -> None:
    """Write the whole of `source` into the regular file `target`.

    Space is allocated first, so that a full disk leaves the old content. An interrupt takes effect after the copy.
    """
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
    shutil.copymode(old, new)  # after chown, which clears some permissions
    with suppress(OSError):
        shutil.copystat(old, new)
    os.utime(new)


def _standard_stream(there: os.stat_result) -> int | None:
    """The descriptor of standard output or error if it is this file, as /dev/stdout is.

    Opening it again would start at the beginning of the file, or fail for a socket.
    """
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), there):
                return descriptor
    return None


@contextmanager
def _naming(path: FilePath, temporary: str = "") -> Iterator[None]:
    """Errors of the disk name `path` instead of the temporary file or no file."""
    try:
        yield
    except OSError as error:
        if error.filename == temporary if error.filename is not None else error.errno in DISK:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
