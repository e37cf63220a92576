"""What is believed of lengthscales before any row is seen, and bounds that take it into account."""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..kernels import AbstractKernel, lengthscales
from ..params import Number
from .settings import Settings

__all__ = ["LengthscalePrior", "Penalised"]


class LengthscalePrior(eqx.Module):
    """log ℓ ~ N(log ℓ₀, s²) for every lengthscale of a kernel on its own, where ℓ₀ is what it starts from.

    With a lengthscale a column and few rows the evidence has maxima at which columns are switched on and off by chance.
    A term of ½ (log ℓ/ℓ₀)²/s² nats holds ℓ within a factor of e^{±2s} or so unless the rows, whose evidence grows with
    their number, say otherwise. s = ∞ is no prior. Ours: the papers maximise the bound alone.
    """

    centres: tuple[Float[Number, "..."], ...]
    spread: Float[Number, ""]

    @classmethod
    def around(cls, kernel: AbstractKernel, settings: Settings) -> "LengthscalePrior":
        """The prior that was asked for, its centre where the kernel stands now."""
        # A Python number would be of a weak type: another one than the cast prior's, for which all is compiled again.
        return cls(tuple(lengthscales(kernel)), jax.device_put(np.asarray(settings.lengthscale_prior, float)))

    def penalty(self, kernel: AbstractKernel) -> Float[Array, ""]:
        """½ Σ (log ℓ − log ℓ₀)²/s²: −log p(log ℓ) less its least value."""
        # Σⱼ (log ℓⱼ − log ℓ₀ⱼ)² / 2s²
        pairs = zip(lengthscales(kernel), self.centres, strict=True)
        return sum((jnp.sum((jnp.log(l / l0) / self.spread) ** 2) for l, l0 in pairs), jnp.asarray(0.0)) / 2


@dataclass(frozen=True)
class Penalised:
    """An objective (model, data) ↦ (bound, aux) with the penalty subtracted: (model, (data, prior)) ↦ (bound, aux).

    Instances with the same objective are equal, so that it is compiled once; the prior's numbers come with the data.
    """

    objective: Callable

    def __call__(self, model, rows):
        """The bound less the penalty, and aux as it is."""
        data, prior = rows
        value, aux = self.objective(model, data)
        return value - prior.penalty(model.kernel), aux
