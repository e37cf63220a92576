"""What belongs to a process as a whole: the threads of its BLAS, and whether it is a fork of one that has computed."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["ForkError", "computing", "one_blas_thread", "refuse_fork"]


class ForkError(OSError):
    """A process was forked after JAX had computed in it, and would compute: it would wait for ever."""


class _Process:
    """The one state of this process."""

    def __init__(self):
        self.lock = threading.Lock()
        self.inside = 0  # scopes that hold BLAS to one thread
        self.libraries: ThreadpoolController | None = None
        self.limit: Any = None
        self.computed = False
        self.forked = False


_PROCESS = _Process()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """LAPACK on one thread: its threads and XLA's take the cores from each other.

    The number of threads is the process's, so scopes that overlap in several threads count as one: the first to begin
    limits, the last to end, by whatever exception, gives back what was before the first.
    """
    process, counted = _PROCESS, False
    try:
        with process.lock:
            if process.inside == 0:
                process.libraries = process.libraries or _blas()
                _let_go(process.libraries)
                process.limit = process.libraries.limit(limits=1)
            process.inside += 1
            counted = True
        yield
    finally:
        if counted:
            _leave(process)


def _blas() -> ThreadpoolController:
    """The libraries, looked for once: NumPy's and SciPy's are there by now. The search holds the dynamic loader's lock
    and waits for Python's, so that it could block beside a thread that imports a library."""
    return ThreadpoolController().select(user_api="blas")


def _let_go(libraries: ThreadpoolController) -> None:
    """Later versions of threadpoolctl heed the thread alone that was first to set a limit: from any other, a limit or
    its end would be lost."""
    for library in libraries.lib_controllers:
        getattr(library, "clear_controlling_thread", lambda force: None)(force=True)


def _leave(process: _Process) -> None:
    with process.lock:
        process.inside -= 1
        if process.inside == 0 and process.libraries is not None:
            _let_go(process.libraries)
            process.limit.restore_original_limits()
            _let_go(process.libraries)
            process.limit = None


def refuse_fork() -> None:
    """Before JAX computes. Raises ForkError in a child that was forked after JAX had computed in its parent: JAX's
    threads are not there, and a computation waits for them for ever. A child that was forked before may compute."""
    if _PROCESS.forked:
        raise ForkError(
            "this process was forked from one in which JAX had computed, and would wait for ever: start workers by "
            "'spawn' or 'forkserver' (multiprocessing.get_context) or by joblib's default, 'loky'"
        )
    _PROCESS.computed = True


def computing(dtype: str) -> AbstractContextManager:
    """JAX in "float64" or "float32", within this scope and thread only. Raises ForkError where it would never end."""
    import jax  # here, as the command line imports this module before it says where JAX keeps programs

    refuse_fork()
    return jax.enable_x64(dtype == "float64")


def _before_fork() -> None:
    """In the parent, whose locks are free sooner or later. JAX may have computed without us; the question whether it
    has is none of its public functions, and where it is gone our own answer remains."""
    started = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", lambda: False)
    _PROCESS.computed = bool(_PROCESS.computed or started())


def _after_fork() -> None:
    """In the child: the thread that held the lock may not be there."""
    _PROCESS.forked, _PROCESS.lock = _PROCESS.computed, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
