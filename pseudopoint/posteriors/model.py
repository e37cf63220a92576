"""All that a fit learns."""

from typing import Any

import equinox as eqx

from ..kernels import AbstractKernel
from ..likelihoods import AbstractLikelihood
from .base import AbstractPosterior
from .closed_form import Exact

__all__ = ["Model"]


class Model(eqx.Module):
    """Prior, observation and approximate posterior: everything that is learned."""

    kernel: AbstractKernel
    likelihood: AbstractLikelihood
    posterior: AbstractPosterior = Exact()

    def predictor(self) -> Any:
        """That of the posterior's q, a `Predictor` or `Predictors`. Raises TypeError where q is integrated out."""
        return self.posterior.project(self.kernel).predictor()
