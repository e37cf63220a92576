"""What a search chooses for an estimator: when there is one, and how its warps enter the data and the likelihood."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from ..data import Dataset, Standardiser, dataset
from ..kernels import AbstractKernel
from ..likelihoods import AbstractLikelihood, Warped
from ..names import Settings
from ..params import cast
from ..posteriors import Model
from ..processes import computing
from ..recipes import Fitted, Found, Ties, Trial, Warm, choose_method, search
from ..starts.responses import response
from .checks import nanoseconds, numbers, shown
from .means import has_mean

FEWEST = 20  # rows: fewer tell nothing of kernels and warps


class Chosen(NamedTuple):
    """What is fitted: a kernel at the centre of its prior, data and scaling with warps, a warmer start if one is known,
    the warp of the target and Σ wᵢ log w′(yᵢ), and what was tried."""

    kernel: AbstractKernel
    data: Dataset
    scaling: Standardiser
    warm: Warm | None = None
    warp: Any = None
    jacobian: float = 0.0
    trials: tuple[Trial, ...] = ()

    def placed(self, settings: Settings) -> Settings:
        """The settings with inducing points, where these are given as an array, scaled."""
        if isinstance(settings.inducing, str):
            return settings
        return settings._replace(inducing=given_points(settings.inducing, self.scaling, self.data.X.shape[1]))

    def points(self, Z: np.ndarray) -> np.ndarray:
        """Inducing points in the units of X."""
        return self.scaling.points(Z)

    def of_target(self, fitted: Fitted) -> tuple[AbstractLikelihood, Fitted]:
        """The likelihood of the target itself, and the fit with bounds on its evidence."""
        observed = jax.tree.map(np.asarray, fitted.model.likelihood)
        if self.warp is None:
            return observed, fitted
        bounds = {name: getattr(fitted, name) + self.jacobian for name in ("bound", "vfe", "upper")}
        return Warped(observed, self.warp), fitted._replace(**bounds)


def searched(
    settings: Settings,
    likelihood: AbstractLikelihood,
    data: Dataset,
    scaling: Standardiser,
    scale_target: bool,
    least: float = np.inf,
    levels: np.ndarray | None = None,
    whole: bool = False,
    categories: Sequence[tuple[int, ...]] = (),
) -> Found | None:
    """What the search finds, of standardised data; None where there is none: `effort="fast"`, a kernel object, columns
    or a real target that are not scaled, priors, a mean function, an optimiser or posterior by name, few rows, or a
    constant target. `least` is the least target of all rows, where `data` are a sample. Targets of several columns are
    `levels`, whose rows the target counts. With `whole` the data are all rows of one target, whose fit may have
    Student-t noise and be exact. `categories` has the places of the 0/1 columns of each column of categories.

    Raises ValueError for a warp that is asked for where there is none.
    """
    additive = likelihood.gaussian_noise is not None or likelihood.varying_noise
    free = additive and not np.any(np.asarray(data.noise) > 0)
    warp_target, tails = free and settings.target_warp != "none", whole and free and settings.likelihood == "auto"
    method = choose_method(len(data), likelihood)[0] if settings.method == "auto" else settings.method
    against = _against(settings, likelihood, data, additive and not scale_target)
    if against or not scaling.varies.any():
        _refuse(settings, "input_warp", against)
        _refuse(settings, "target_warp", against)
        return None
    if not warp_target:
        _refuse(settings, "target_warp", ["noise_variance" if additive else f"the likelihood {likelihood.name}"])
    scale = np.where(scaling.varies, scaling.scale, 1.0)
    zeros = np.where(scaling.varies, -scaling.mean / scale, -np.inf)
    zero = -scaling.target_mean / scaling.target_scale if least > 0 else np.inf
    with computing("float64"):  # whatever the fit's own precision
        y = np.asarray(data.y, float)
        if levels is None:
            y, levels = response(likelihood, y, np.asarray(data.weight, float))
        rows = data if additive else dataset(data.X, y, data.weight, dtype=data.X.dtype)
        if not np.ptp(y) > 0:  # a likelihood may say nothing of where its rows are
            return None
        ties, exact = Ties.of(categories, scaling), whole and method == "exact"
        noise = None if isinstance(settings.likelihood, str) else likelihood.gaussian_noise
        if noise is None or np.ndim(noise):
            return search(rows, settings, zeros, zero, warp_target, levels, tails, ties, exact)
        # A likelihood object of one noise variance stays as it is.
        settings = settings._replace(initial_noise=float(noise))
        found = search(rows, settings, zeros, zero, warp_target, levels, tails, ties, exact)
        return found._replace(model=cast(Model(found.model.kernel, likelihood), np.float64))


def _against(settings: Settings, likelihood: AbstractLikelihood, data: Dataset, unscaled: bool) -> list[str]:
    """What a search does not go together with."""
    reasons = {
        "effort='fast'": settings.effort == "fast",
        "a kernel object": not isinstance(settings.kernel, str),
        "scale_inputs=False": settings.scale_inputs is False,
        "scale_target=False": unscaled,
        "priors": bool(settings.priors),
        f"mean={shown(settings.mean)}": has_mean(settings, likelihood),
        f"optimiser={settings.optimiser!r}": settings.optimiser != "auto",
        f"posterior={settings.posterior!r}": settings.posterior != "whitened",
        f"fewer than {FEWEST} different rows": len(data) < FEWEST,
        "a constant target": not np.ptp(np.asarray(data.y)) > 0,
    }
    return [reason for reason, holds in reasons.items() if holds]


def _refuse(settings: Settings, name: str, against: list[str]) -> None:
    word = getattr(settings, name)
    if word not in ("auto", "none") and against:
        raise ValueError(f"{name}={word!r} does not go together with {against[0]}: use {name}='none'")


def as_chosen(found: Found, X: np.ndarray, data: Dataset, scaling: Standardiser, precision: str) -> Chosen:
    """The data, of which X are the inputs in the user's units, with the warps that were found."""
    if any(warp is not None for warp in found.inputs):
        scaling = replace(scaling, warps=found.inputs)
    y, jacobian = np.asarray(data.y), 0.0
    if found.target is not None:
        jacobian = float(np.asarray(data.weight) @ found.target.log_slope(y))
        y = found.target(y)
    warped = dataset(scaling.inputs(X, precision), y, data.weight, data.noise, dtype=precision)
    warm = Warm(found.model, found.tails)
    return Chosen(found.base, warped, scaling, warm, found.target, jacobian, found.trials)


def given_points(points: Any, scaling: Standardiser, D: int) -> np.ndarray:
    """Inducing points given as an array, scaled."""
    points = numbers("inducing", nanoseconds(points))
    if points.ndim != 2 or len(points) == 0:
        raise ValueError(f"inducing has shape {points.shape}: give an array [M, {D}] of at least one point")
    if points.shape[1] != D:
        raise ValueError(f"inducing has {points.shape[1]} columns, but X has {D}: give an array [M, {D}]")
    if not np.isfinite(points).all():
        raise ValueError("inducing contains NaN or infinity: give finite points")
    return scaling.inputs(points)


def table(trials: Sequence[Trial]) -> dict[str, Any]:
    """`selection_`: what was tried, in columns."""
    return {
        "part": [trial.part for trial in trials],
        "choice": [trial.choice for trial in trials],
        "log_density": np.array([trial.evidence for trial in trials]),
        "chosen": np.array([trial.chosen for trial in trials], bool),
        "seconds": np.array([trial.seconds for trial in trials]),
    }
