"""What concerns XLA, the compiler, and not Gaussian processes.

JAX traces a function once for each set of shapes, dtypes and static arguments, and XLA compiles what was traced. The
compiled program is fast, but a first fit spends more time on compilation than on arithmetic. Four things reduce it:

- *Compile modes* (`program`, `mode_of_evaluations`): programs that run briefly are compiled with fewer optimisations.
- *Whole functions* are compiled, because each operation outside of a compiled function is a program of its own.
- *One shape for several sizes* (`bucket`, `same_shape_sample`): tables are filled up to a grid of sizes with rows of
  weight zero, so that tables of like size share programs. A sample of a table keeps the table's shape, so that the
  program for all rows serves for the sample too.
- *The persistent cache* (`keep_compiled`): compiled programs are kept on disk between runs of the command line.

JAX is imported inside the functions, because `keep_compiled` has to run before JAX is imported, and the command line
imports this module before it knows whether it needs JAX.
"""

import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from .files import user_cache

__all__ = ["CompileMode", "bucket", "keep_compiled", "mode_of_evaluations", "program", "same_shape_sample"]

CompileMode = Literal["brief", "once"] | None
BRIEF = 1_000_000  # kernel values; with more, an evaluation takes so long that faster code repays its compilation


@lru_cache(maxsize=64)
def program(function: Callable, compile_mode: CompileMode = None, static: tuple[int, ...] = ()) -> Callable:
    """`jax.jit` of a named function, the same object for the same arguments.

    None compiles as XLA does by default. The other modes halve the time of compilation:
    "brief" is for programs that run a few hundred times, for milliseconds each. XLA's older emitters write the loops,
    which are as fast up to about a million numbers.
    "once" is for programs that run once and briefly. In addition LLVM does not optimise the code, in which exponentials
    take twice as long.
    """
    import jax

    options: dict[str, Any] = _older_emitters() if compile_mode else {}
    if compile_mode == "once":
        options = options | {"xla_backend_optimization_level": 0}
    return jax.jit(function, static_argnums=static, compiler_options=options or None)


def mode_of_evaluations(kernel_values: int) -> CompileMode:
    """The mode for a bound that is evaluated a few hundred times and computes so many kernel values each time."""
    return "brief" if kernel_values <= BRIEF else None


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


def keep_compiled(limit: int = 256 * 2**20) -> None:
    """Makes JAX, when it is imported later in this process, keep compiled programs in the user's cache folder.

    The folder holds at most `limit` bytes; the programs unused for longest are deleted first. It sets environment
    variables that are not set yet: JAX_COMPILATION_CACHE_DIR= (empty) turns the cache off, another folder is respected.
    Without a cache folder that can be written, nothing is kept. Programs are identified by their text, the versions and
    the processor, so a kept program equals a newly compiled one.
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
            with suppress(OSError):  # another process may have deleted it
                Path(file).unlink()
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
