"""What is about XLA and not about Gaussian processes: compile modes, and programs kept between runs."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from .files import user_cache

__all__ = ["CompileMode", "keep_compiled", "program"]

CompileMode = Literal["brief", "once"] | None


@lru_cache(maxsize=64)
def program(function: Callable, compile_mode: CompileMode = None, static: tuple[int, ...] = ()) -> Callable:
    """`jax.jit` of a named function, the same for the same arguments. In compile_mode, it compiles in half the time:

    "brief", what runs a few hundred times for some milliseconds: its loops are written by XLA's older emitters, and no
    slower for it up to a million numbers or so (ARCHITECTURE.md). "once", what runs once and briefly: without LLVM's
    optimisation too, and exponentials take twice as long.
    """
    import jax  # here, for the command line keeps what is compiled before JAX is imported

    options: dict[str, Any] = _older() if compile_mode else {}
    if compile_mode == "once":
        options = options | {"xla_backend_optimization_level": 0}
    return jax.jit(function, static_argnums=static, compiler_options=options or None)


@cache
def _older() -> dict[str, Any]:
    """The option that chooses the older emitters; none where XLA has them no longer, which next to nothing tells."""
    import jax

    option = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda x: x, compiler_options=option).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return option


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
