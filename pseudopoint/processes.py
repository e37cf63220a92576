"""The whole process: its cores and threads, those of its BLAS, and whether it was forked after JAX had computed."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from threadpoolctl import ThreadpoolController


class ForkError(OSError):
    """A process was forked after JAX had computed in it. A computation in the child would wait for ever."""


class _Process:
    """The state of this process."""

    def __init__(self):
        self.lock = threading.Lock()
        self.inside = 0  # open scopes of `one_blas_thread`
        self.libraries: ThreadpoolController | None = None
        self.limit: Any = None
        self.computed = False
        self.forked = False


_PROCESS = _Process()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """BLAS and LAPACK on one thread, because their threads and XLA's compete for the cores.

    The limit belongs to the process. Of scopes that overlap in several threads, the first to begin sets it and the last
    to end restores the number from before, whatever is raised.
    """
    process, counted = _PROCESS, False
    try:
        with process.lock:
            if process.inside == 0:
                # Searched once. The search holds the dynamic loader's lock and waits for Python's, so that it could
                # block beside a thread that imports a library. NumPy's and SciPy's libraries are loaded by now.
                process.libraries = process.libraries or ThreadpoolController().select(user_api="blas")
                _disown(process.libraries)
                process.limit = process.libraries.limit(limits=1)
            process.inside += 1
            counted = True
        yield
    finally:
        if counted:
            with process.lock:
                process.inside -= 1
                if process.inside == 0 and process.libraries is not None:
                    _disown(process.libraries)
                    process.limit.restore_original_limits()
                    _disown(process.libraries)


def _disown(libraries: ThreadpoolController) -> None:
    """Let any thread change the limit: later versions of threadpoolctl ignore all but the first to set one."""
    for library in libraries.lib_controllers:
        getattr(library, "clear_controlling_thread", lambda force: None)(force=True)


def refuse_fork() -> None:
    """Call this before JAX computes. ForkError in a child that was forked after JAX had computed in its parent.

    Such a child lacks JAX's threads, and a computation would wait for them. A child forked earlier may compute.
    """
    if _PROCESS.forked:
        raise ForkError(
            "this process was forked from one in which JAX had computed, and would wait for ever: start workers by "
            "'spawn' or 'forkserver' (multiprocessing.get_context) or by joblib's default, 'loky'"
        )
    _PROCESS.computed = True


def computing(dtype: str) -> AbstractContextManager:
    """JAX in "float64" or "float32", within this scope and thread only. Raises ForkError where it would never end."""
    refuse_fork()
    return _precision(dtype == "float64", "highest")


@contextmanager
def _precision(x64: bool, products: str | None) -> Iterator[None]:
    """JAX with or without float64, and that precision of matrix products. By default GPUs round the factors of a
    float32 product to ten bits, which puts an error of 1e-3 a row into a log evidence."""
    import jax  # here, as the command line imports this module before it says where JAX keeps programs

    with jax.enable_x64(x64), jax.default_matmul_precision(products):  # pyright: ignore[reportArgumentType]
        yield


def same_precision() -> Callable[[], AbstractContextManager]:
    """What opens, in another thread, the scope of JAX's precision that this thread is in."""
    import jax

    now: Any = jax.config
    return partial(_precision, now.jax_enable_x64, now.jax_default_matmul_precision)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(function: Callable[[Any], Any], tasks: Mapping[Any, Any]) -> dict[Any, Any]:
    """{name: function(task)}, in as many threads as there are cores, each in JAX's precision of this thread."""
    precision, count = same_precision(), min(cores(), len(tasks))

    def in_scope(task):
        with precision():
            return function(task)

    if count < 2:
        return {name: function(task) for name, task in tasks.items()}
    pool = ThreadPoolExecutor(count)
    try:
        return dict(zip(tasks, pool.map(in_scope, tasks.values()), strict=True))
    finally:
        pool.shutdown(cancel_futures=True)


def _before_fork() -> None:
    """Runs in the parent. JAX may have computed without us, which only a private function of JAX tells; where it is
    missing, our own record counts."""
    started = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", lambda: False)
    _PROCESS.computed = bool(_PROCESS.computed or started())


def _after_fork() -> None:
    """Runs in the child, where the thread that held the lock may not exist."""
    _PROCESS.forked, _PROCESS.lock = _PROCESS.computed, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
