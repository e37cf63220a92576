"""The model: all that a fit learns."""

from typing import Any

import equinox as eqx

from ..kernels import AbstractKernel
from ..likelihoods import AbstractLikelihood
from .base import AbstractPosterior
from .closed_form import Exact

__all__ = ["Model"]


class Model(eqx.Module):
    """Prior, likelihood and approximate posterior. Without a posterior given, it is exact."""

    kernel: AbstractKernel
    likelihood: AbstractLikelihood
    posterior: AbstractPosterior = Exact()

    def predictor(self) -> Any:
        """The `Predictor` or `Predictors` of the posterior's q. Raises TypeError if q is integrated out."""
        return self.posterior.project(self.kernel).predictor()
