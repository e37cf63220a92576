"""Posteriors whose q is the best one, integrated out of the bound: nothing of q is left to learn or to store."""

from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Float

from ..kernels import AbstractKernel
from ..params import Number
from .base import AbstractPosterior, Points

__all__ = ["AbstractClosedForm", "Collapsed", "CollapsedDecoupled", "Exact"]


class AbstractClosedForm(AbstractPosterior):
    """No q of its own: `remedy` names the bounds that integrate it out, and give the predictor of the best one."""

    closed_form: ClassVar[bool] = True
    own: ClassVar[tuple[str, ...]] = ()
    remedy: ClassVar[str]

    @property
    def q(self) -> Any:
        """No numbers."""
        return ()

    def basis(self, kernel: AbstractKernel) -> Any:
        """Raises TypeError."""
        raise TypeError(f"{type(self).__name__} has no q of its own, as the best one is integrated out: {self.remedy}")

    on = basis  # pyright: ignore[reportAssignmentType]


class Exact(AbstractClosedForm):
    """The posterior given all rows, without pseudo-points."""

    remedy: ClassVar[str] = "use bounds.marginal, or bounds.laplace unless the likelihood is Gaussian"

    places: ClassVar[tuple[str, ...]] = ()
    Z = property(lambda self: np.zeros((0, 0)))
    jitter = property(lambda self: 0.0)


class Collapsed(AbstractClosedForm):
    """The best q(u) at pseudo-points Z."""

    remedy: ClassVar[str] = "use bounds.collapsed"
    Z: Points
    jitter: float | None = eqx.field(static=True, default=None)


class CollapsedDecoupled(AbstractClosedForm):
    """The best q with points Z of the covariance and O of the mean."""

    places: ClassVar[tuple[str, ...]] = ("Z", "O")
    remedy: ClassVar[str] = "use bounds.collapsed_orthogonal or bounds.collapsed_decoupled"
    Z: Points
    O: Float[Number, "G D"]
    jitter: float | None = eqx.field(static=True, default=None)
