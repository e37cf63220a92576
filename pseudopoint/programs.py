"""What XLA is told of programs that take longer to compile than to run."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Literal

import jax

__all__ = ["Haste", "program"]

Haste = Literal["brief", "once"] | None


@lru_cache(maxsize=64)
def program(function: Callable, haste: Haste = None, static: tuple[int, ...] = ()) -> Callable:
    """`jax.jit` of a named function, the same for the same arguments. In haste, it compiles in half the time:

    "brief", what runs a few hundred times for some milliseconds: its loops are written by XLA's older emitters, and no
    slower for it up to a million numbers or so (ARCHITECTURE.md). "once", what runs once and briefly: without LLVM's
    optimisation too, and exponentials take twice as long.
    """
    options: dict[str, Any] = _older() if haste else {}
    if haste == "once":
        options = options | {"xla_backend_optimization_level": 0}
    return jax.jit(function, static_argnums=static, compiler_options=options or None)


@cache
def _older() -> dict[str, Any]:
    """The option that chooses the older emitters; none where XLA has them no longer, which next to nothing tells."""
    option = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda x: x, compiler_options=option).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return option
