"""More rows for a fitted estimator: `update` and scikit-learn's `partial_fit`."""

from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted

from ..compilation import keeping_programs
from ..data import dataset, merge_duplicates
from ..params import cast
from ..processes import computing, one_blas_thread
from ..recipes import add_points, add_points_of_f, update, update_varying, with_more_rows
from .checks import (
    noise_of_rows,
    numbers,
    one_column,
    refuse_bad_target,
    refuse_noise_of_warped,
    scaled_noise,
    shown,
    weights,
    whole,
)
from .exposure import Rates, checked_exposure
from .near import refuse_near_rows
from .notes import updated
from .targets import Target, check_target


class TakesMoreRows:
    """What an estimator does with rows that come after its fit."""

    def update(self, X, y, sample_weight=None, *, noise_variance=None, exposure=None, new_inducing=0):
        """The fitted model given the rows X [N, D], y [N] besides those that it has seen, which are not needed.

        Hyperparameters, scaling, warps and inducing points are held; what was learned is the prior (Bui, Nguyen and
        Turner 2017). For Gaussian noise and posterior="whitened" this is the posterior of a fit to all rows with the
        same hyperparameters and points, and `bound_` its bound; for other likelihoods and posteriors it is the best one
        for the old q and the new rows, by the points of the covariance, and `bound_` an estimate.
        `new_inducing` more inducing points start at those new rows about which the old points say
        least. Columns and classes are those of the fit. The price is one pass over the new rows, N M²;
        a model with near rows (`near_rows_`) keeps the rows, and passes over all of them.

        Other arguments are those of `fit`. Raises ValueError or FitError; whatever is raised leaves the estimator as it
        was. Returns the estimator itself.
        """
        check_is_fitted(self)
        columns = {"sample_weight": sample_weight, "noise_variance": noise_variance, "exposure": exposure}
        return self._whole(lambda model: _update(model, X, y, columns, new_inducing))  # pyright: ignore

    def partial_fit(self, X, y, sample_weight=None, *, classes=None):
        """`fit` where there is no fit yet, and otherwise `update`: X [N, D], y [N].

        The first rows settle hyperparameters, scaling and inducing points: give as many as can be had. `classes` are
        those of scikit-learn's method; each has to be among the first rows. Raises ValueError or FitError.
        """
        if hasattr(self, "predictor_"):
            return self.update(X, y, sample_weight)
        for label in [] if classes is None else np.setdiff1d(classes, np.unique(np.asarray(y))).tolist():
            raise ValueError(f"the first rows have none of class {label!r}: fit to rows of every class")
        return self.fit(X, y, sample_weight)  # pyright: ignore


class _Seen(NamedTuple):
    """New rows as the model sees them: target and weights, known noise, and what their bound has besides."""

    y: np.ndarray
    weight: np.ndarray
    noise: np.ndarray
    likelihood: Any
    constant: float


def _update(model: Any, X: Any, y: Any, columns: dict[str, Any], new_inducing: Any) -> None:
    y = one_column(y)
    _refuse(model, y)
    more = 0 if new_inducing == 0 else whole("new_inducing", new_inducing)
    rows, at_rows = model._inputs(X), model.inducing_points_ is None
    if more and at_rows:
        raise ValueError(f"new_inducing={more} is for models with inducing points, and every row is one of this model")
    if columns["noise_variance"] is not None:
        refuse_near_rows(model, "update takes no noise_variance")
    check_consistent_length(rows, y)
    seen = _seen(model, rows, y, **columns)
    X, y, weight, noise = merge_duplicates(rows, seen.y, seen.weight, seen.noise)
    with computing("float64"), one_blas_thread(), keeping_programs():
        data = dataset(model.standardiser_.inputs(X), y, weight, noise, dtype="float64")
        predictor, likelihood = cast((model.predictor_, seen.likelihood), np.float64)
        varying = likelihood.varying_noise and not predictor.stacked
        if more:
            predictor = (add_points_of_f if varying else add_points)(predictor, np.asarray(data.X), more)
        new = (update_varying if varying else update)(predictor, likelihood, data, at_rows)
        if model.near_rows_ is not None:
            near = with_more_rows(model.near_rows_, new.predictor, likelihood, data)
            model.near_rows_ = jax.tree.map(np.asarray, near)
        predictor = jax.tree.map(np.asarray, cast(new.predictor, model._precision))
    model.predictor_ = predictor
    if more:
        model.inducing_points_ = model.standardiser_.points(np.asarray(predictor.Zv, np.float64))
    model.bound_ += new.value + seen.constant
    model.bound_vfe_ += new.standard + seen.constant
    model.upper_bound_ = model.bound_ if at_rows and likelihood.gaussian_noise is not None else np.inf
    model.rows_ = None if model.rows_ is None else model.rows_ + len(rows)
    model.notes_ = (*model.notes_, *updated(len(rows)))


def _seen(model: Any, rows: np.ndarray, y: Any, sample_weight: Any, noise_variance: Any, exposure: Any) -> _Seen:
    weight = weights(sample_weight, rows, model._precision)
    observed, scaling = model._observed(), model.standardiser_
    likelihood, warp = observed.warped or (observed, None)
    inner, mean = likelihood.parts()
    target = model._coded(y)
    noise = np.zeros(len(rows))
    if noise_variance is not None:
        if likelihood.gaussian_noise is None:
            raise ValueError(f"noise_variance has no meaning for the likelihood {likelihood.name}: leave it out")
        refuse_noise_of_warped(warp)
        noise = scaled_noise(noise_of_rows(noise_variance, rows), scaling.target_scale, "float64")
    constant = 0.0
    if exposure is not None:
        of = Target(type(inner).__name__, lambda y, weight: inner, inner.support)
        rates = Rates.of(of, target, weight, checked_exposure(exposure, rows))
        target, weight, constant = rates.y, rates.weight, rates.constant
        likelihood = observed.with_parts(rates.target.make(target, weight), mean)
    elif likelihood.additive or likelihood.support == "real":
        target = scaling.target(target)
    if warp is not None:
        constant += float(weight @ np.asarray(warp.log_slope(target)))
        target = np.asarray(warp(target))
        if not np.isfinite(target).all():
            row = int(np.argmin(np.isfinite(target)))
            raise ValueError(f"the target in row {row} has no value under the warp that was learned: leave it out")
    if mean is not None and inner.varying_noise and not model.predictor_.stacked:  # two predictors: f by itself
        likelihood, target = inner, target - np.asarray(mean)[0]
    return _Seen(target, weight, noise, likelihood, constant)


def target_of_numbers(model: Any, y: Any) -> np.ndarray:
    """The target of a regression as numbers, as its likelihood takes them. Raises ValueError."""
    refuse_bad_target(y)
    y = numbers("the target", y)
    if model.levels_ is None:
        inner, _ = model.likelihood_.warped or (model.likelihood_, None)
        check_target(Target(inner.name, lambda y, weight: inner, inner.support), y)
        return y
    codes = np.searchsorted(model.levels_, y).clip(0, len(model.levels_) - 1)
    _refuse_unlearned(y, model.levels_[codes] == y, "level")
    return codes.astype(np.float64)


def codes_of_classes(model: Any, y: np.ndarray) -> np.ndarray:
    """The numbers of labels, of any type, −1 for one that was not learned."""
    known, exact = model.classes_, np.ones(len(y), bool)
    if y.dtype.kind in "Mm" and y.dtype.kind == known.dtype.kind:  # dates in the same unit, unless that loses a time
        exact, y = y.astype(known.dtype).astype(y.dtype) == y, y.astype(known.dtype)
    places = {label: code for code, label in enumerate(known.tolist())}
    return np.where(exact, np.array([places.get(label, -1) for label in y.tolist()], int), -1)


def target_of_classes(model: Any, y: Any) -> np.ndarray:
    """The numbers of labels. Raises ValueError for one that was not learned."""
    codes = codes_of_classes(model, y := np.asarray(y))
    _refuse_unlearned(y, codes >= 0, "class")
    return codes.astype(np.float64)


def _refuse_unlearned(y: np.ndarray, known: np.ndarray, what: str) -> None:
    if not known.all():
        row = int(np.argmin(known))
        raise ValueError(
            f"the target holds {shown(y.tolist()[row])} in row {row} ({(~known).sum()} such rows), a {what} that the "
            "fit did not see: fit to rows that have it"
        )


def _refuse(model: Any, y: Any) -> None:
    if model.outputs_ is not None:
        raise ValueError("update is for one output, and this model has several: fit to all rows")
    if model.mean_function_ is not None:
        raise ValueError("update is for models without a mean function, and this one has one: fit to all rows")
    if isinstance(y, str) or y is None:
        raise ValueError("update takes the target as an array y [N], of as many rows as X")
    if np.ndim(y) != 1:
        raise ValueError(f"y has shape {np.shape(y)}: update takes one target, [N]")
