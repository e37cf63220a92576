"""A prior of lengthscales and those that a user gives, and objectives with their penalty."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..compilation import program
from ..kernels import AbstractKernel, lengthscales
from ..optimise.result import FitError
from ..params import Number
from ..posteriors import Model
from ..priors import FieldPriors
from .settings import Settings


class LengthscalePrior(eqx.Module):
    """log ℓ ~ N(log ℓ₀, s²) independently for every lengthscale of a kernel, where ℓ₀ is its starting value.

    With one lengthscale per column and few rows, the evidence has maxima at which columns are switched on and off by
    chance. The penalty ½ (log ℓ/ℓ₀)²/s² keeps ℓ within a factor of about e^{±2s} of ℓ₀, unless the rows say otherwise:
    their evidence grows with their number. s = ∞ is no prior. The papers have none.

    `given` are the user's own; one of a lengthscale takes the place of this one.
    """

    centres: tuple[Float[Number, "..."], ...]
    spread: Float[Number, ""]
    given: FieldPriors = FieldPriors({})

    @classmethod
    def around(cls, kernel: AbstractKernel, settings: Settings) -> "LengthscalePrior":
        """The priors of the settings, that of lengthscales centred on the kernel's."""
        given = users_priors(settings) or FieldPriors({})
        spread = np.inf if given.of_lengthscales else settings.lengthscale_prior
        # A Python number has a weak type. A cast prior has not, and for it everything would be compiled again.
        return cls(tuple(lengthscales(kernel)), jax.device_put(np.asarray(spread, float)), given)

    def penalty(self, kernel: AbstractKernel) -> Float[Array, ""]:
        """½ Σ (log ℓ − log ℓ₀)²/s²: −log p(log ℓ) up to a constant."""
        # Σⱼ (log ℓⱼ − log ℓ₀ⱼ)² / 2s²
        pairs = zip(lengthscales(kernel), self.centres, strict=True)
        return sum((jnp.sum((jnp.log(l / l0) / self.spread) ** 2) for l, l0 in pairs), jnp.asarray(0.0)) / 2

    def cost(self, model: Model) -> Float[Array, ""]:
        """`penalty` of the model's kernel, less the log density of the user's priors."""
        return self.penalty(model.kernel) - self.given.log_density(model)

    def log_density(self, model: Model) -> Float[Array, ""]:
        """−`cost`: log p of the model's numbers, up to a constant."""
        return -self.cost(model)


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
        return value - prior.cost(model), aux


def users_priors(settings: Settings) -> FieldPriors | None:
    """The priors that a user gives, None without any."""
    given: Any = settings.priors  # a dict, which `estimators.checks` makes of words
    return FieldPriors(given) if given else None


def refuse_unfit_priors(model: Model, settings: Settings) -> None:
    """Raises FitError, at the start of a fit, where the user's priors do not suit the model or the other settings."""
    given = users_priors(settings)
    if given is None:
        return
    if settings.optimiser != "auto":
        raise FitError(f"optimiser={settings.optimiser!r} has no priors: use optimiser='auto'")
    if model.likelihood.varying_noise:
        raise FitError("noise that depends on x is fitted in turns, without priors: use likelihood='gaussian'")
    try:
        given.refuse_unfit(model)
    except ValueError as error:
        raise FitError(str(error)) from None


def log_prior(model: Model, settings: Settings) -> float:
    """Σ log p of the model's numbers under the user's priors; 0 without any."""
    given = users_priors(settings)
    return 0.0 if given is None else float(program(_log_density, "once")(given, Model(model.kernel, model.likelihood)))


def _log_density(priors, model):
    return priors.log_density(model)
