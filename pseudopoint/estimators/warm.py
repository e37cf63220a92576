"""What a second fit with `warm_start=True` starts from: all that the first one learned."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..data import Dataset, Standardiser, dataset
from ..kernels import AbstractKernel, InUnits, kinds
from ..likelihoods import AbstractLikelihood
from ..names import Settings
from ..params import cast
from ..posteriors import IndependentLatents, Model, Whitened, whitened_q
from ..starts.hyperparameters import named_kernel
from .checks import truth
from .choosing import Chosen


class Learned(NamedTuple):
    """What is kept of a fit: kernel and the kernel at the centre of its prior in the units of the fit, likelihood and
    warp of the target, the scaling, and inducing points in the units of X."""

    kernel: Any
    centre: Any
    likelihood: AbstractLikelihood
    warp: Any
    scaling: Standardiser
    points: np.ndarray | None
    predictor: Any

    def unfit(self, rows: tuple[np.ndarray, ...], own_units: bool) -> str:
        """Why rows (target, weight and noise, [N]) cannot have this likelihood, warp and kernel; "" where they can."""
        y, weight, noise = rows
        as_they_are = not self.scaling.mean.any() and np.all(self.scaling.scale == 1) and not self.scaling.warps
        if own_units and not as_they_are:
            return "the kernel is in the units of X, and the one that the last fit learned in standard deviations"
        name = self.likelihood.name if self.warp is None else f"the warp {type(self.warp).__name__}"
        if np.any(noise > 0) and (self.warp is not None or self.likelihood.gaussian_noise is None):
            return f"noise_variance does not go together with {name}, which the last fit learned"
        if self.warp is None:
            return ""
        with np.errstate(all="ignore"):
            bad = (weight > 0) & ~np.isfinite(np.asarray(self.warp(self.scaling.target(y))))
        return f"{name}, which the last fit learned, has no value for the target {y[bad][0]:g}" if bad.any() else ""

    def other_than(self, settings: Settings, asked: AbstractLikelihood) -> str:
        """Why this is another model than the settings name; "" where they name it, or leave it open ("auto")."""
        kernel = settings.kernel
        if isinstance(kernel, str) and kernel != "auto":
            kernel = named_kernel(kernel, 1.0, 1.0, len(self.scaling.mean))
        if isinstance(kernel, AbstractKernel) and kinds(kernel) != kinds(self.kernel):
            names = " and ".join(sorted(kinds(self.kernel)))
            return f"the last fit learned another kernel than the one that is asked for now ({names})"
        if settings.likelihood != "auto" and asked.name != self.likelihood.name:
            name = self.likelihood.name
            return f"the last fit learned another likelihood than the one that is asked for now ({name})"
        return ""

    def scaled_by(self, learned: Standardiser, own_units: bool) -> Standardiser:
        """The scaling of the fit; of inputs, where the kernel is in their units, that of the new rows will do."""
        if not own_units:
            return self.scaling
        return replace(learned, target_mean=self.scaling.target_mean, target_scale=self.scaling.target_scale)

    def chosen(self, data: Dataset, scaling: Standardiser, own_units: bool, precision: str) -> Chosen:
        """The data, whose target gets the warp, and the kernel at the centre of its prior."""
        y, jacobian = np.asarray(data.y), 0.0
        if self.warp is not None:
            jacobian = float(np.asarray(data.weight) @ np.asarray(self.warp.log_slope(y)))
            y = np.asarray(self.warp(y))
        rows = dataset(data.X, y, data.weight, data.noise, dtype=precision)
        return Chosen(_in_units(self.centre, scaling, own_units), rows, scaling, None, self.warp, jacobian)

    def settings(self, settings: Settings) -> Settings:
        """The settings with the learned points, unless these ask for others, and without what a search would try."""
        kept = isinstance(settings.inducing, str) and self.points is not None
        if kept and settings.num_inducing in (None, len(self.points)):  # pyright: ignore[reportArgumentType]
            settings = settings._replace(inducing=self.points)
        return settings._replace(likelihood=self.likelihood)

    def model(self, settings: Settings, scaling: Standardiser, own_units: bool, precision: str) -> Model:
        """Where the fit ended; with q for the posterior "whitened", in the precision of the new fit."""
        kernel = _in_units(self.kernel, scaling, own_units)
        start = Model(kernel, self.likelihood)
        predictor = self.predictor
        paired = self.likelihood.varying_noise and not predictor.stacked  # two predictors
        if self.points is None or paired or settings.posterior != "whitened":
            return start
        Z = scaling.inputs(self.points)
        given = predictor.map(lambda p: p)
        if not (given.shared and np.any(np.asarray(given.s) > 0)):
            return start
        q = cast(predictor, np.float64).map(whitened_q)
        posterior = Whitened(Z, q)
        posterior = IndependentLatents(posterior) if predictor.leading else posterior
        return cast(Model(kernel, self.likelihood, posterior), precision)


def learned_by(model: Any) -> Learned | None:
    """What the estimator learned, if it was fitted and its next fit is to start there."""
    if not truth("warm_start", model.warm_start) or not hasattr(model, "predictor_"):
        return None
    if model.outputs_ is not None:
        raise ValueError("warm_start is for one output: fit several with warm_start=False")
    if model.mean_function_ is not None:
        raise ValueError("warm_start is for models without a mean function: fit with warm_start=False")
    observed = model._observed()
    likelihood, warp = observed.warped or (observed, None)
    centre = model.kernel_ if model.centre_ is None else model.centre_
    at = model.kernel_, centre, likelihood, warp, model.standardiser_, model.inducing_points_
    return Learned(*at, model.predictor_)


def start_of(
    model: Any,
    settings: Settings,
    asked: AbstractLikelihood,
    rows: tuple[np.ndarray, ...],
    scaling: Standardiser,
    own_units: bool,
):
    """What a fit to targets, weights and known noise starts from, None where it begins anew; the scaling, `scaling`
    where the fit has its own; and what to say. `asked` is the likelihood by the settings."""
    learned = learned_by(model)
    if learned is None:
        return None, scaling, []
    if why := learned.unfit(rows, own_units) or learned.other_than(settings, asked):
        return None, scaling, [f"the fit began anew, in spite of warm_start: {why}"]
    return learned, learned.scaled_by(scaling, own_units), []


def refuse_other_classes(known: Any, classes: Any, what: str) -> None:
    """Raises ValueError where the classes or levels of a target are not those of the fit that is started from; None
    are those of other targets."""
    known, classes = (np.zeros(0) if each is None else each for each in (known, classes))
    if not np.array_equal(known, classes):
        raise ValueError(
            f"warm_start=True starts from a fit with the {what} {', '.join(map(str, known))}, and this target has "
            f"{', '.join(map(str, classes))}: give rows of the same, or warm_start=False"
        )


def _in_units(kernel: Any, scaling: Standardiser, own_units: bool) -> Any:
    return InUnits(kernel, scaling.mean, scaling.scale) if own_units else kernel
