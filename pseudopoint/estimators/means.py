"""The mean function that a setting names: where its numbers start, and the likelihood around it."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..data import Dataset
from ..likelihoods import AbstractLikelihood, Around, Offset
from ..means import AbstractMean, ConstantMean, LinearMean
from ..names import Settings
from .checks import shown, unknown


def has_mean(settings: Settings, likelihood: AbstractLikelihood) -> bool:
    """Whether the settings give this likelihood a mean that is a function, or a constant that it lacks."""
    gaussian = likelihood.gaussian_noise is not None
    return settings.mean not in ("auto", "zero") and (gaussian or settings.mean != "constant")


def around_mean(settings: Settings, likelihood: AbstractLikelihood, data: Dataset) -> AbstractLikelihood:
    """The likelihood with the mean of the settings, which starts from (a sample of) the rows. Raises ValueError."""
    if settings.mean == "zero":
        return likelihood
    y, weight = np.asarray(data.y, float), np.asarray(data.weight, float)
    if not has_mean(settings, likelihood):
        return Offset.around(likelihood, y, weight)
    if likelihood.varying_noise:
        raise ValueError(f"mean={shown(settings.mean)} is for noise of one variance: use likelihood='gaussian'")
    if likelihood.gaussian_noise is not None and settings.mean == "constant":
        return Around(likelihood, ConstantMean(float(np.average(y, weights=weight))))
    mean = _linear(likelihood, data, y, weight) if settings.mean == "linear" else settings.mean
    if not isinstance(mean, AbstractMean):  # a check of what a user passes
        raise unknown("mean", mean)
    _refuse_unfit(mean, likelihood, data)
    return Around(likelihood, mean)


def _linear(likelihood: AbstractLikelihood, data: Dataset, y: np.ndarray, weight: np.ndarray) -> LinearMean:
    """Least squares for a Gaussian likelihood, else no slope at the base rate."""
    X = np.asarray(data.X, float)
    if likelihood.gaussian_noise is None:
        base = np.asarray(likelihood.base_level(y, weight), float)
        if likelihood.has_constant:
            base = np.zeros_like(base)
        return LinearMean(np.zeros((*base.shape, X.shape[1])), base, not likelihood.has_constant)
    root = np.sqrt(weight)
    found = np.linalg.lstsq(root[:, None] * np.column_stack([X, np.ones(len(X))]), root * y, rcond=1e-8)[0]
    return LinearMean(found[:-1], found[-1])


def _refuse_unfit(mean: Any, likelihood: AbstractLikelihood, data: Dataset) -> None:
    rows = np.asarray(data.X)[:2]
    expected = (likelihood.latents, len(rows)) if likelihood.latents > 1 else (len(rows),)
    try:
        at = np.asarray(mean(jnp.asarray(rows)))
    except TypeError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"the mean {type(mean).__name__} cannot be computed for inputs {rows.shape}: {reason}"
        ) from None
    if at.shape != expected or not np.isfinite(at).all():
        raise ValueError(
            f"the mean {type(mean).__name__} gives {shown(at)} for {len(rows)} rows: it must give finite numbers of "
            f"shape {expected}"
        )
