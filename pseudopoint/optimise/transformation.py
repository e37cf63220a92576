"""The type of optax optimisers, without an import of optax, which takes a third of a second."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

__all__ = ["GradientTransformation"]


@runtime_checkable
class GradientTransformation(Protocol):
    """What `optax.GradientTransformation` is: `init(parameters)` makes a state, and `update(gradient, state,
    parameters)` the change of the parameters and the next state."""

    @property
    def init(self) -> Callable[..., Any]: ...

    @property
    def update(self) -> Callable[..., Any]: ...
