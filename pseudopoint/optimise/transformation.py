"""The type of optax optimisers, without an import of optax, which takes a third of a second."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class GradientTransformation(Protocol):
    """What `optax.GradientTransformation` is."""

    @property
    def init(self) -> Callable[..., Any]:
        """The function of the parameters that makes the first state."""
        ...

    @property
    def update(self) -> Callable[..., Any]:
        """The function of (gradient, state, parameters) that gives the change of the parameters and the next state."""
        ...
