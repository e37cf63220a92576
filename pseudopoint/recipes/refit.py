"""A Gaussian fit that goes on from where another ended, for rows whose noise or weights are other ones."""

from typing import Any

import jax
import numpy as np

from ..bounds import collapsed, evidence_on_host, given_evidence, marginal
from ..data import Dataset
from ..optimise.fullbatch import OptimiseResult
from ..optimise.named import held_points
from ..params import trainable
from ..posteriors import Model
from .ends import finish, finish_exact
from .objectives import OfBound, box_around, maximise
from .prior import LengthscalePrior
from .settings import Fitted, Settings

# By which logarithms of the kernel's numbers may move: where the noise is not right yet, single rows mislead.
REACH = 1.0


def refit(
    model: Model,
    data: Dataset,
    settings: Settings,
    prior: LengthscalePrior,
    iterations: int,
    noise: float = np.inf,
    float32_start: Any = None,
    reach: float = REACH,
) -> Fitted:
    """An exact or collapsed fit by at most so many iterations; without any, the best q of the model as it is.

    `noise` is how far the logarithm of the noise variance may move: 0 holds it, by the box and not frozen, so that the
    program of the first fit serves. `reach` is how far those of the kernel's numbers may.
    """
    exact, host = not model.posterior.points, {}
    objective = OfBound(marginal) if exact else OfBound(collapsed, settings.tight)
    if exact and jax.default_backend() == "cpu":
        objective, host = OfBound(given_evidence), {"host": evidence_on_host}
    result = OptimiseResult(model, None, np.nan, (), 0, 0, True)
    if iterations:
        held = held_points(settings)
        free = np.isinf(reach) and np.isinf(noise)
        box = None if free else box_around(trainable(model, *held), kernel=reach, likelihood=noise, posterior=np.inf)
        options = {"box": box, "float32_start": None if exact else float32_start} | host
        result = maximise(objective, prior, model, data, iterations, None, *held, **options)
    return finish_exact(result, data, ()) if exact else finish(collapsed, result, data, settings, ())
