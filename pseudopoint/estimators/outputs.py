"""Regression of several outputs: y [N, P], with gaps, as one function of (x, output)."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from ..data import Standardiser, dataset, merge_duplicates
from ..kernels import Coregionalised
from ..likelihoods import AbstractLikelihood, GaussianPerOutput
from ..names import Settings
from ..optimise.result import Progress
from ..posteriors import OfOutputs
from ..processes import computing, one_blas_thread
from ..recipes import Fitted, choose_num_inducing
from ..starts.inducing import candidates
from ..starts.outputs import latent_points, mixing, moments_of_outputs, stacked
from . import notes, predictive
from .base import in_units_of_inputs, start_kernel
from .checks import numbers, refuse_large
from .choosing import given_points
from .frames import as_pandas, given, is_table

__all__ = ["fit_outputs", "joint_draws", "joint_moments", "refuse_outputs", "several_columns"]

LARGEST_TARGET = 1e100  # whose square is a number
# What settings do not go together with several outputs: the words that do, of each.
ALLOWED: dict[str, tuple] = {
    "likelihood": ("auto", "gaussian"),
    "input_warp": ("auto", "none"),
    "target_warp": ("auto", "none"),
    "method": ("auto", "exact", "collapsed", "svgp"),
    "optimiser": ("auto",),
    "posterior": ("whitened",),
}


def several_columns(y: Any) -> bool:
    """Whether a target has more than one column."""
    try:
        shape = getattr(y, "shape", None) or np.shape(y)
    except ValueError:  # of ragged lists, which is for the checks of one target to say
        return False
    return len(shape) == 2 and shape[1] > 1


def refuse_outputs(model: Any, what: str) -> None:
    """Raises ValueError where the model has several outputs and `what` is for one."""
    if model.outputs_ is not None:
        raise ValueError(f"{what} is for one output, and this model has {len(model.outputs_)}: fit each by itself")


class Stacked(NamedTuple):
    """What is fitted, as `choosing.Chosen`: kernel, rows (x, p) and the scaling of x and of each output."""

    kernel: Coregionalised
    data: Any
    scaling: Standardiser
    warm: Any = None
    trials: tuple = ()

    def placed(self, settings: Settings) -> Settings:
        """The settings, whose inducing points are placed already."""
        return settings

    def points(self, Z: np.ndarray) -> np.ndarray:
        """[M, D + 1]: inducing points in the units of X, and the number k of the latent function of each."""
        return np.column_stack([self.scaling.points(Z[:, :-1]), Z[:, -1] - len(self.kernel.W)])

    def of_target(self, fitted: Fitted) -> tuple[AbstractLikelihood, Fitted]:
        """The likelihood of all outputs, and the fit with a predictor of all."""
        predictor = OfOutputs(fitted.predictor, len(self.kernel.W))
        return jax.tree.map(np.asarray, fitted.model.likelihood), fitted._replace(predictor=predictor)


def fit_outputs(model: Any, X: Any, Y: Any, refused: dict[str, Any], sample_weight: Any, progress: Progress | None):
    """`GPRegressor.fit` of several outputs, on a copy of the estimator. Raises ValueError."""
    settings = model._settings()
    names, Y = _matrix(Y)
    _refuse(settings, refused, len(names))
    some = ~np.isnan(Y).all(axis=1)
    # A table drops its rows without a target, and encodes its columns whatever the target is.
    placeholder = np.where(some, np.arange(len(Y)), np.nan)
    rows = given(model, X, placeholder, sample_weight, Y, classes=False)
    weight, Y = rows.columns
    X, _, weight = model._check_rows(rows.X, np.zeros(len(Y)), weight)
    keep = (weight > 0) & ~np.isnan(Y).all(axis=1)
    said = [*rows.notes, *notes.unusual_weights(weight)]
    X, Y, weight = X[keep], Y[keep], weight[keep]
    for name, values in zip(names, Y.T, strict=True):
        if np.isnan(values).all():
            raise ValueError(f"the output {name} has no value in any row that counts: leave that column of y out")
    gaps = int(np.isnan(Y).sum())
    said += [f"{gaps:,} of {Y.size:,} values of the outputs are gaps, which predictions fill"] if gaps else []
    _learn(model, settings, X, Y, weight, said, progress)
    model.outputs_, model.levels_ = names, None
    return model


def _learn(model, settings, X, Y, weight, said, progress):
    own, scaled, precision = in_units_of_inputs(settings), bool(settings.scale_inputs), model._precision
    P, K = Y.shape[1], settings.num_latents or Y.shape[1]
    scaling = Standardiser.learn(X, Y[:, 0], weight, own or scaled, False, ignore_constant=not own)
    if settings.scale_target:
        mean, scale = moments_of_outputs(Y, weight)
        scaling = replace(scaling, target_mean=mean, target_scale=scale)
    else:
        scaling = replace(scaling, target_mean=np.zeros(P), target_scale=np.ones(P))
    said = said + notes.far_rows(X, scaling, model._names)
    with computing(precision), one_blas_thread():
        Y, inputs = scaling.target(Y), scaling.inputs(X, precision)
        refuse_large(np.nan_to_num(Y), precision)
        table = stacked(inputs.astype(np.float64), Y, weight)
        data = dataset(*merge_duplicates(*table, np.zeros(len(table[1]))), dtype=precision)
        settings = model._with_kernel(settings, scaling, 1.0)
        first = ~np.isnan(Y[:, 0])
        base, about = start_kernel(settings, inputs[first], Y[first, 0], True, scaling if own else None)
        mixed = settings.outputs == "coregionalised"
        kernel = Coregionalised((base,) * K, mixing(Y, K) if mixed else np.eye(P), mixed)
        Z = _points(settings, base, data, inputs, scaling, P, K)
        settings = settings._replace(likelihood="gaussian", inducing=Z)
        likelihood = GaussianPerOutput(np.full(P, settings.initial_noise))
        model._fit_chosen(settings, Stacked(kernel, data, scaling), likelihood, False, said + about, progress)


def _points(settings, base, data, inputs, scaling, P, K) -> np.ndarray:
    """Inducing points of the latent functions: the same places for each, as many in all as the settings say."""
    if not isinstance(settings.inducing, str):
        return latent_points(given_points(settings.inducing, scaling, inputs.shape[1]), P, K)
    M = settings.num_inducing or choose_num_inducing(len(data))
    how = "kmeans" if settings.inducing == "auto" else settings.inducing
    rows = dataset(inputs, np.zeros(len(inputs)), dtype=inputs.dtype)
    (Z,) = candidates(how, base, rows, max(1, M // K), settings.seed).values()
    return latent_points(np.asarray(Z, np.float64), P, K)


def _matrix(Y: Any) -> tuple[list[str], np.ndarray]:
    """Names of the outputs and their values, NaN where there is a gap. Raises ValueError for infinite ones."""
    names = [f"y{p}" for p in range(Y.shape[1] if hasattr(Y, "shape") else np.shape(Y)[1])]
    if is_table(Y):
        Y = as_pandas(Y)
        names = list(Y.columns)
    Y = numbers("the target", Y)
    for name, values in zip(names, Y.T, strict=True):
        large = np.abs(values) > LARGEST_TARGET
        if large.any():
            raise ValueError(
                f"the output {name} holds {values[large][0]:g} in row {int(np.argmax(large))}, but at most "
                f"{LARGEST_TARGET:g} is computed with: give it in a larger unit, or make it a gap (NaN)"
            )
    return names, Y


def _refuse(settings: Settings, refused: dict[str, Any], P: int) -> None:
    for name, words in ALLOWED.items():
        value = getattr(settings, name)
        if not (isinstance(value, str) and value in words):
            raise ValueError(
                f"{name}={value!r} is for one output, and y has {P}: use {words[-1]!r}, or fit each output by itself"
            )
    for name, value in refused.items():
        if value is not None:
            raise ValueError(f"{name} is for one output, and y has {P}: leave it out, or fit each output by itself")
    if settings.num_latents is not None and (settings.outputs == "independent" or settings.num_latents > P):
        raise ValueError(
            f"num_latents={settings.num_latents} is for outputs='coregionalised', and at most the number of outputs, "
            f"here {P}, with outputs={settings.outputs!r}: leave it out"
        )


def joint_moments(model: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean [N, P] and joint covariance [N, P, N, P] of all outputs, in their units, with the noise on its diagonal."""
    mean, std = model._moments(rows)
    scale = model.standardiser_.target_scale
    with computing(model._precision):
        K = model.predictor_.joint(model.standardiser_.inputs(rows, model._precision))
        K = np.asarray(K, np.float64).transpose(1, 0, 3, 2)  # of [P, N, P, N]
    K = 0.5 * (K + K.transpose(2, 3, 0, 1)) * scale[:, None, None] * scale
    K.reshape(mean.size, mean.size)[np.diag_indices(mean.size)] = std.ravel() ** 2
    return mean, K


def joint_draws(model: Any, rows: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Outputs drawn jointly, [P, S, N] and scaled, from standard normal noise of that shape."""
    with computing(model._precision):
        X = model.standardiser_.inputs(rows, model._precision)
        return np.asarray(model.predictor_.drawn(predictive.draw, X, normal), np.float64)
