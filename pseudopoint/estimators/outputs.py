"""Regression of several outputs: y [N, P], with gaps, as one function of (x, output)."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from ..compilation import forget_programs, keeping_programs
from ..data import Standardiser, dataset, merge_duplicates
from ..kernels import Coregionalised
from ..likelihoods import AbstractLikelihood, Gaussian, GaussianPerOutput
from ..names import Settings
from ..optimise.result import Progress
from ..posteriors import AlikeOutputs, MixedOutputs, Model
from ..processes import computing, one_blas_thread
from ..recipes import COLLAPSED_ROWS, Fitted, Warm, choose_num_inducing
from ..starts.inducing import candidates
from ..starts.outputs import latent_points, mixing, moments_of_outputs, stacked
from . import notes, predictive
from .checks import numbers, refuse_large
from .choosing import Chosen, given_points, searched
from .frames import as_pandas, given, is_table
from .kernel_start import in_units_of_inputs, start_kernel, unrounded
from .serving import evaluate
from .targets import size_of
from .warm import learned_by

LARGEST_TARGET = 1e100  # whose square is a number
# What settings do not go together with several outputs: the words that do, of each.
ALLOWED: dict[str, tuple] = {
    "likelihood": ("auto", "gaussian"),
    "target_warp": ("auto", "none"),
    "method": ("auto", "exact", "collapsed", "svgp"),
    "optimiser": ("auto",),
    "posterior": ("whitened",),
    "mean": ("auto", "zero"),
}


def several_columns(y: Any) -> bool:
    """Whether a target has more than one column."""
    try:
        shape = getattr(y, "shape", None) or np.asarray(y).shape
    except (TypeError, ValueError):  # of ragged lists and the like, which is for the checks of one target to say
        return False
    return len(shape) == 2 and shape[1] > 1


def refuse_alone(settings: Settings) -> None:
    """Raises ValueError for settings of several outputs where there is one."""
    if settings.outputs != "independent" or settings.num_latents is not None:
        raise ValueError("outputs and num_latents are for several outputs, and the target has one: leave them out")


class Alike(NamedTuple):
    """What is fitted, as `choosing.Chosen`: independent outputs of one kernel and noise, which share all factors."""

    kernel: Any
    data: Any
    scaling: Standardiser
    warm: Any = None
    trials: tuple = ()

    placed = Chosen.placed
    points = Chosen.points

    def of_target(self, fitted: Fitted) -> tuple[AbstractLikelihood, Fitted]:
        """The likelihood of all outputs, and the fit with a predictor of all."""
        P = self.data.y.shape[1]
        likelihood = GaussianPerOutput(np.full(P, np.asarray(fitted.model.likelihood.gaussian_noise)))
        return likelihood, fitted._replace(predictor=AlikeOutputs(fitted.predictor, P))


class Stacked(NamedTuple):
    """What is fitted, as `choosing.Chosen`: outputs as one function of rows (x, p), with noise of each output."""

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
        predictor = MixedOutputs(fitted.predictor, len(self.kernel.W))
        return jax.tree.map(np.asarray, fitted.model.likelihood), fitted._replace(predictor=predictor)


def fit_outputs(model: Any, X: Any, Y: Any, refused: dict[str, Any], sample_weight: Any, progress: Progress | None):
    """`GPRegressor.fit` of several outputs, on a copy of the estimator. Raises ValueError."""
    settings = model._settings()
    if learned_by(model) is not None:
        raise ValueError("warm_start is for one output: fit several with warm_start=False")
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
    keep = np.flatnonzero(keep)[np.lexsort((*X[keep].T, *Y[keep].T))]  # whatever the order of rows
    X, Y, weight = X[keep], Y[keep], weight[keep]
    for name, values in zip(names, Y.T, strict=True):
        if np.isnan(values).all():
            raise ValueError(f"the output {name} has no value in any row that counts: leave that column of y out")
    gaps = int(np.isnan(Y).sum())
    said += notes.constant_outputs(names, Y)
    said += [f"{gaps:,} of {Y.size:,} values of the outputs are gaps, which predictions fill"] if gaps else []
    _learn(model, settings, X, Y, names, weight, said, progress)
    model.outputs_, model.levels_ = names, None
    return model


def _learn(model, settings, X, Y, names, weight, said, progress):
    own, scaled, precision = in_units_of_inputs(settings), bool(settings.scale_inputs), model._precision
    scaling = Standardiser.learn(X, Y[:, 0], weight, own or scaled, False, ignore_constant=not own)
    P = Y.shape[1]
    mean, scale = moments_of_outputs(Y, weight) if settings.scale_target else (np.zeros(P), np.ones(P))
    scaling = replace(scaling, target_mean=mean, target_scale=scale)
    said = said + notes.far_rows(X, scaling, model._names)
    for p, values in enumerate(Y.T):
        said += notes.lost_digits(f"the output {names[p]}", values[~np.isnan(values)], mean[p], scale[p])
    scaling = unrounded(scaling, settings)
    forget_programs()
    with computing(precision), one_blas_thread(), keeping_programs():
        Y = scaling.target(Y)
        refuse_large(np.nan_to_num(Y), precision)
        settings = model._with_kernel(settings, scaling)
        if not settings.scale_target:
            settings = settings._replace(initial_noise=settings.initial_noise * size_of(Y))
        found = _searched(settings, scaling.inputs(X, precision), Y, weight, scaling)
        if found is None:
            first = ~np.isnan(Y[:, 0])
            rows = scaling.inputs(X[first], precision), Y[first, 0]
            base, about = start_kernel(settings, *rows, None, scaling if own else None)
            said = said + about
        else:
            base, scaling = found.base, replace(scaling, warps=found.inputs if any(found.inputs) else ())
        alike = settings.outputs == "independent" and settings.method != "svgp" and not np.isnan(Y).any()
        alike = alike and (settings.method != "auto" or len(Y) <= COLLAPSED_ROWS)
        make = _alike if alike else _stacked
        chosen, likelihood, settings = make(
            settings, base, found, scaling.inputs(X, precision), Y, weight, scaling, precision
        )
        settings = settings._replace(likelihood="gaussian")  # whose noise does not depend on x
        model._fit_chosen(settings, chosen, likelihood, False, said, progress)


def _searched(settings, inputs, Y, weight, scaling):
    """What a search finds, by the evidence of rows that have all outputs, for one kernel of all of them."""
    rows = ~np.isnan(Y).any(axis=1)
    rows = rows if rows.sum() > 1 else np.arange(len(Y)) < 2  # too few, of which the search says so
    X, w = inputs[rows], weight[rows]
    numbered = dataset(X, np.arange(len(X)), w, dtype=inputs.dtype)
    settings, noise = settings._replace(target_warp="none"), Gaussian(settings.initial_noise)
    of_inputs = replace(scaling, target_mean=0.0, target_scale=1.0)
    return searched(settings, noise, numbered, of_inputs, settings.scale_target, levels=np.nan_to_num(Y[rows]))


def _alike(settings, base, found, inputs, Y, weight, scaling, precision):
    data = dataset(inputs, Y, weight, np.zeros(len(Y)), dtype=precision)
    warm, trials = (None, ()) if found is None else (Warm(found.model), found.trials)
    return Alike(base, data, scaling, warm, trials), Gaussian(settings.initial_noise), settings


def _stacked(settings, base, found, inputs, Y, weight, scaling, precision):
    X, y, w = stacked(inputs.astype(np.float64), Y, weight)
    data = dataset(*merge_duplicates(X, y, w, np.zeros(len(y))), dtype=precision)
    mixed, P = settings.outputs == "coregionalised", Y.shape[1]
    K = (settings.num_latents or P) if mixed else P
    W = mixing(Y, K) if mixed else np.eye(P)
    of_latents = lambda kernel: Coregionalised((kernel,) * K, W, mixed)
    of_outputs = lambda noise: GaussianPerOutput(np.full(P, np.asarray(noise)))
    warm, trials = None, ()
    if found is not None:
        at = found.model
        warm = Warm(Model(of_latents(at.kernel), of_outputs(at.likelihood.gaussian_noise)))
        trials = found.trials
    settings = settings._replace(inducing=_points(settings, base, len(data), inputs, weight, scaling, P, K))
    return Stacked(of_latents(base), data, scaling, warm, trials), of_outputs(settings.initial_noise), settings


def _points(settings, base, N, inputs, weight, scaling, P, K) -> np.ndarray:
    """Inducing points of the latent functions: the same places for each, as many in all as the settings say."""
    if not isinstance(settings.inducing, str):
        return latent_points(given_points(settings.inducing, scaling, inputs.shape[1]), P, K)
    M = settings.num_inducing or choose_num_inducing(N)
    how = "kmeans" if settings.inducing == "auto" else settings.inducing
    rows = dataset(inputs, np.zeros(len(inputs)), weight, np.zeros(len(inputs)), dtype=inputs.dtype)
    (Z,) = candidates(how, base, rows, max(1, M // K), settings.seed).values()
    return latent_points(np.asarray(Z, np.float64), P, K)


def _matrix(Y: Any) -> tuple[list[str], np.ndarray]:
    """Names of the outputs and their values, NaN where there is a gap. Raises ValueError for infinite ones."""
    names = [f"y{p}" for p in range((getattr(Y, "shape", None) or np.asarray(Y).shape)[1])]
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


def density_of_outputs(model: Any, rows: np.ndarray, y: np.ndarray) -> np.ndarray:
    """log p(y_np | xₙ) of every output by itself, [N, P], NaN in the gaps of y."""
    scaled = model.standardiser_.target(np.nan_to_num(y))
    density = evaluate(model, predictive.log_density, rows, scaled).T - np.log(model.standardiser_.target_scale)
    return np.where(np.isnan(y), np.nan, density)


def joint_moments(model: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean [N, P] and joint covariance [N, P, N, P] of all outputs, in their units, with the noise on its diagonal."""
    mean, std = model._moments(rows)
    scale = model.standardiser_.target_scale
    with computing(model._precision):
        K = predictive.joint_outputs(model.predictor_, model.standardiser_.inputs(rows, model._precision))
        K = np.asarray(K, np.float64).transpose(1, 0, 3, 2)  # of [P, N, P, N]
    K = 0.5 * (K + K.transpose(2, 3, 0, 1)) * scale[:, None, None] * scale
    np.einsum("npnp->np", K)[:] = std**2
    return mean, K


def joint_draws(model: Any, rows: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Outputs drawn jointly, [P, S, N] and scaled, from standard normal noise of that shape."""
    with computing(model._precision):
        X = model.standardiser_.inputs(rows, model._precision)
        return np.asarray(model.predictor_.drawn(predictive.draw, X, normal), np.float64)
