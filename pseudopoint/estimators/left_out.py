"""Densities of rows left out, in closed form, of a fitted estimator with Gaussian noise."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import column_or_1d

from ..bounds import collapsed, folds_left_out, leave_one_out, loo_log_density, marginal_on_host
from ..data import dataset
from ..params import cast
from ..posteriors import Collapsed, Exact, Model
from ..processes import computing, one_blas_thread
from .checks import noise_of_rows, one_column, refuse_noise_of_warped, scaled_noise, weights
from .near import refuse_near_rows


def densities(model: Any, X: Any, y: Any, sample_weight: Any, noise: Any, folds: Any) -> np.ndarray:
    """log p(yᵢ | xᵢ, all rows but i), or but those of its fold where `folds` [N] are given, each [N], per unit of y;
    kernel, noise, scaling, warps and pseudo-points of the fitted `model` are held."""
    rows, scaling, precision = model._inputs(X), model.standardiser_, model._precision
    y, weight = one_column(y), weights(sample_weight, rows, precision)
    check_consistent_length(rows, y)
    inner, warp = model.likelihood_.warped or (model.likelihood_, None)
    exact = model.method_ == "exact"
    _refuse(model, inner)
    refuse_near_rows(model, "rows left out in closed form are not known")
    if noise is not None:
        refuse_noise_of_warped(warp)
    if np.ndim(y) != 1:
        raise ValueError(f"y has shape {np.shape(y)}, but it must be ({len(rows)},) for these rows of X")
    scaled = scaling.target(model._coded(y))
    known = None if noise is None else scaled_noise(noise_of_rows(noise, rows), scaling.target_scale, precision)
    with computing(precision), one_blas_thread():
        Z = None if exact else scaling.inputs(model.inducing_points_, precision)
        posterior = Exact() if Z is None else Collapsed(Z)
        core = cast(Model(model.kernel_, inner, posterior), precision)
        target = scaled if warp is None else np.asarray(warp(scaled))
        X = scaling.inputs(rows, precision)
        if model.mean_function_ is not None:  # y given f + m is y − m given f
            target = target - np.asarray(model.mean_function_(jnp.asarray(X)))
        data = dataset(X, target, weight, known, dtype=precision)
        predictor = (marginal_on_host if exact else collapsed)(core, data).predictor()
        if folds is None:
            left = leave_one_out(predictor, core.likelihood, data, exact)
        else:
            left = folds_left_out(predictor, core, data, _folds(folds, weight), exact)
        density = loo_log_density(core.likelihood, data, left)
    slope = 0.0 if warp is None else np.asarray(warp.log_slope(scaled))
    return np.asarray(density, np.float64) + slope - np.log(scaling.target_scale)


def _refuse(model: Any, likelihood: Any) -> None:
    if model.outputs_ is not None:
        raise ValueError("rows left out in closed form are of one output: refit without them, as cross_val_score does")
    if likelihood.gaussian_noise is None or model.method_ not in ("exact", "collapsed"):
        raise ValueError(
            "rows left out in closed form are for a Gaussian likelihood and method='exact' or 'collapsed', not for the "
            f"likelihood {likelihood.name} and {model.method_!r}: refit without them, as cross_val_score does"
        )
    if model.posterior != "whitened":
        raise ValueError(f"rows left out in closed form are for posterior='whitened', not {model.posterior!r}")


def _folds(folds: Any, weight: np.ndarray) -> np.ndarray:
    names = column_or_1d(folds)
    if len(names) != len(weight):
        raise ValueError(f"folds has {len(names)} names, but X has {len(weight)} rows: give one a row")
    if len(np.unique(names)) < 2:
        raise ValueError("folds has one name only: without that fold no row is left")
    if not (weight > 0).all():
        raise ValueError("sample_weight is zero in some rows: leave these out, as they belong to no fold")
    return names
