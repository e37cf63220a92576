"""Compiled programs, kept between runs of the command line: a second fit of a table starts at once."""

import os
from contextlib import suppress
from pathlib import Path

from .files import user_cache

__all__ = ["keep_compiled"]


def keep_compiled(limit: int = 256 * 2**20) -> None:
    """Has JAX, when it is imported later in this process, keep what it compiles in the user's cache folder, of at most
    `limit` bytes (those unused for longest go).

    It sets environment variables that are not set: JAX_COMPILATION_CACHE_DIR= (empty) turns it off, another folder is
    respected. Where there is no such folder, or it cannot be written, nothing is kept. Programs are keyed by their
    text, the versions and the processor, so that a kept one is the same as a new one.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    cache = user_cache()
    if cache is None:
        return
    folder = cache / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(((file.stat(), file) for file in folder.iterdir()), key=lambda at: at[0].st_atime, reverse=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK):
        return
    total = 0
    for stat, file in files:
        total += stat.st_size
        if total > limit:
            with suppress(OSError):  # another process may have been faster
                Path(file).unlink()
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
