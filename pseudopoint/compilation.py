"""What concerns XLA, the compiler, and not Gaussian processes.

JAX traces a function once for each set of shapes, dtypes and static arguments, and XLA compiles what was traced. The
compiled program is fast, but a first fit spends more time on compilation than on arithmetic. Four things reduce it:

- *Compile modes* (`program`, `mode_of_evaluations`): programs that run briefly are compiled with fewer optimisations.
- *Whole functions* are compiled, because each operation outside of a compiled function is a program of its own.
- *One shape for several sizes* (`bucket`, `same_shape_sample`): tables are padded to a grid of sizes with rows of
  weight zero, so that tables of like size share programs. A sample of a table keeps the table's shape, so that the
  program for all rows serves for the sample too.
- *The persistent cache* (`keeping_programs`): compiled programs are kept on disk between processes.

JAX is imported inside the functions, because the command line imports this module before it knows whether it needs JAX.
"""

import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

from .files import user_cache

CompileMode = Literal["brief", "once"] | None
BRIEF = 1_000_000  # kernel values; with more, an evaluation takes so long that faster code repays its compilation


@lru_cache(maxsize=64)
def program(function: Callable, compile_mode: CompileMode = None, static: tuple[int, ...] = ()) -> Callable:
    """`jax.jit` of a named function, the same object for the same arguments.

    None compiles as XLA does by default. The other modes halve the time of compilation:
    "brief" is for programs that run a few hundred times, for milliseconds each. XLA's older emitters write the loops,
    which are as fast up to about a million numbers.
    "once" is for programs that run once and briefly, or compute next to nothing. In addition LLVM does not optimise the
    code, in which exponentials take twice as long.
    """
    import jax

    options: dict[str, Any] = _older_emitters() if compile_mode else {}
    if compile_mode == "once":
        options = options | {"xla_backend_optimization_level": 0}
    made = jax.jit(function, static_argnums=static, compiler_options=options or None)
    _PROGRAMS.add(made)
    return made


MOST = 64  # compiled programs, of some five megabytes each
_PROGRAMS: WeakSet[Any] = WeakSet()  # all that `program` has made and that is in use


def forget_programs() -> None:
    """Drops all compiled programs if there are more than `MOST`, so that a process that fits for days holds a bounded
    number of them. Called at the beginning of a fit. A dropped program is compiled, or read from disk, again."""
    if sum(made._cache_size() for made in _PROGRAMS) > MOST:
        for made in list(_PROGRAMS):
            made.clear_cache()


def mode_of_evaluations(kernel_values: int) -> CompileMode:
    """The mode for a bound that is evaluated a few hundred times and computes so many kernel values each time."""
    return "brief" if kernel_values <= BRIEF else None


def mode_of_one_evaluation(kernel_values: int) -> CompileMode:
    """The mode for a bound that is evaluated once or twice."""
    return "once" if kernel_values <= BRIEF else None


@cache
def _older_emitters() -> dict[str, Any]:
    """XLA's option that selects the older emitters; none if this XLA does not know it, which a tiny program shows."""
    import jax

    option = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda x: x, compiler_options=option).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return option


GROWTH = 1.12  # of a bucket over the one before


def bucket(count: int) -> int:
    """The smallest size ⌊1.12ᵏ⌋, k = 0, 1, …, that is at least `count`: less than 12 % more."""
    k = max(0, int(math.log(max(count, 1), GROWTH)) - 1)
    while int(GROWTH**k) < count:
        k += 1
    return int(GROWTH**k)


def same_shape_sample(data: Any, size: int, seed: int) -> Any:
    """A sample of `size` rows in arrays as long as those of `data`, a Dataset: the other rows have weight zero.

    The sample comes first, drawn at random from the rows whose weight is not zero already, whose number alone
    determines the draw.
    """
    import jax
    import numpy as np

    counts = np.asarray(data.weight) > 0
    order = np.random.default_rng(seed).permutation(np.flatnonzero(counts))
    order = np.concatenate([order, np.flatnonzero(~counts)])
    rows = jax.tree.map(lambda x: np.asarray(x)[order], data)
    return replace(rows, weight=np.where(np.arange(len(order)) < size, rows.weight, 0))


class _Keeping:
    """The open scopes of `keeping_programs` in this process, and what the first of them has changed."""

    def __init__(self):
        self.lock = threading.Lock()
        self.scopes = 0
        self.trimmed = False
        self.undo = ExitStack()


_KEEPING = _Keeping()
LIMIT = 256 * 2**20  # bytes of all kept programs


@contextmanager
def keeping_programs() -> Iterator[None]:
    """Programs that are compiled within this scope are kept in the user's cache folder, and found there by any later
    process.

    Programs are identified by their text, the versions and the processor, so a kept program equals a newly compiled
    one. The folder holds at most `LIMIT` bytes when a process begins to use it: the programs unused for longest are
    deleted. An environment variable JAX_COMPILATION_CACHE_DIR= (empty) turns this off. A folder that JAX was given by
    the user is respected. Without a folder that can be written, nothing is kept. A damaged file costs a compilation in
    every process, until it is deleted.

    JAX's settings belong to the process. Of scopes that overlap in several threads, the first to begin sets them and
    the last to end restores them, whatever is raised.
    """
    counted = _enter()
    try:
        yield
    finally:
        if counted:
            _leave()


def _enter() -> bool:
    """Whether a scope was opened."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return False
    with _KEEPING.lock:
        if _KEEPING.scopes == 0:
            if jax.config.values["jax_compilation_cache_dir"] is not None or (folder := _folder()) is None:
                return False
            _KEEPING.undo.enter_context(warnings.catch_warnings())  # the result is right, whatever is in the folder
            warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
            before = _configure(
                jax_compilation_cache_dir=str(folder),
                jax_persistent_cache_min_compile_time_secs=0.0,
                jax_persistent_cache_min_entry_size_bytes=-1,
            )
            _KEEPING.undo.callback(_configure, **before)
        _KEEPING.scopes += 1
    return True


def _leave() -> None:
    with _KEEPING.lock:
        _KEEPING.scopes -= 1
        if _KEEPING.scopes == 0:
            _KEEPING.undo.close()


def _configure(**settings: Any) -> dict[str, Any]:
    """Changes these settings of JAX, and returns what they were."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    before = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # JAX asks for the folder once, at the first compilation after this
    return before


def _folder() -> Path | None:
    """Where programs are kept, trimmed once in a process; None if nothing can be written there."""
    cache = user_cache()
    if cache is None:
        return None
    folder = cache / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not _KEEPING.trimmed:
            _trim(folder)
    except OSError:
        return None
    _KEEPING.trimmed = True
    return folder if os.access(folder, os.W_OK) else None


def _trim(folder: Path) -> None:
    files = sorted(((file.stat(), file) for file in folder.iterdir()), key=lambda at: at[0].st_atime, reverse=True)
    total = 0
    for stat, file in files:
        total += stat.st_size
        if total > LIMIT:
            with suppress(OSError):  # another process may have deleted it
                Path(file).unlink()
