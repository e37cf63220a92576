"""The joint distribution of a real target at several rows."""

from typing import Any

import numpy as np

from ..processes import computing
from . import predictive
from .near import moved_covariance, normal_moments, place
from .serving import evaluate


def joint_moments(model: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and joint covariance of y in its own units, at rows that were checked."""
    warped = model.likelihood_.warped
    inner = model.likelihood_ if warped is None else warped[0]
    if not inner.additive:
        raise ValueError(
            f"return_cov is for real targets with noise, y = f + noise; the likelihood {model.likelihood_.name} has "
            "return_std"
        )
    mean, std = model._moments(rows)
    with computing(model._precision):
        X = model.standardiser_.inputs(rows, model._precision)
        w, K = (np.asarray(x, np.float64) for x in predictive.joint(model.predictor_, inner, X))
    if model.near_rows_ is not None:
        w, variance = evaluate(model, normal_moments, rows)
        K = moved_covariance(model.near_rows_, K, X, evaluate(model, place, rows)[2], variance)
    K = 0.5 * (K + K.T) if warped is None else model.likelihood_.covariance(w, 0.5 * (K + K.T))
    with np.errstate(over="ignore"):
        covariance = (K * model.standardiser_.target_scale) * model.standardiser_.target_scale
        np.fill_diagonal(covariance, std**2)
    if not np.isfinite(covariance).all():
        raise ValueError("the covariance is too large a number in squared units of y: ask for return_std")
    return mean, covariance
