"""Whether more inducing points would help: what is known for certain, what can be computed, and what is estimated."""

from typing import Any

import jax
import numpy as np

from pseudopoint.bounds import marginal
from pseudopoint.compilation import keeping_programs, program
from pseudopoint.data import dataset
from pseudopoint.likelihoods import Around
from pseudopoint.params import cast
from pseudopoint.posteriors import Exact, Model
from pseudopoint.processes import computing, one_blas_thread

WORTH_IT = 0.01  # nats a row: a gain that nobody would notice in predictions
AFFORDABLE = 3_000  # rows whose exact evidence takes a few seconds
OPEN = 0.05  # a share of the variance
SAMPLE = 1_000  # rows whose residual variance is looked at


def _certain(model: Any, rows: float | int) -> str | None:
    """What is known for certain of a model that was fitted to so many rows: that there are no inducing points, or that
    the gap to the upper bound is small. None if neither is."""
    if model.inducing_points_ is None:
        what = "The full Gaussian process at its mode" if model.method_ == "laplace" else "The exact posterior"
        return f"{what}: there are no inducing points to add."
    M, gap = len(model.inducing_points_), (model.upper_bound_ - model.bound_) / rows
    if gap < WORTH_IT:
        return f"{M} inducing points are enough: the bound is at most {gap:.2g} nats a row below the evidence."
    return None


def advice_without_rows(model: Any, rows: float | int) -> str:
    """What a model tells by itself that was fitted to so many rows, counted by their weights."""
    if (known := _certain(model, rows)) is not None:
        return known
    M = len(model.inducing_points_)
    return f"To see whether more inducing points than {M} help, try {2 * M} and compare the test log density."


def advice(model: Any, X: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None) -> str:
    """One or two sentences on M for a model that was fitted to X [N, D] and y [N] with these weights (1 without any).

    Figures are a row that was seen, of which a row of weight 2 is two.

    In this order: what is certain (`_certain`); the exact evidence of the same kernel and noise, for at most
    `AFFORDABLE` rows of a Gaussian likelihood; else ½ log(1 + d/σ²) a row, what the bound loses to the variance d that
    the points leave open (methods a.1); of other likelihoods, the share of d in the variance of the prior.
    """
    weight = np.ones(len(y)) if weight is None else np.asarray(weight, float)
    X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
    rows = float(np.sum(weight))
    if (known := _certain(model, rows)) is not None:
        return known
    M = len(model.inducing_points_)
    warped = model.likelihood_.warped
    noise = (model.likelihood_ if warped is None else warped[0]).gaussian_noise
    if len(y) <= AFFORDABLE and noise is not None:
        lost = (_evidence(model, X, y, weight) - model.bound_) / rows
        if lost > -WORTH_IT:  # less would be no rounding: such a bound is of other rows
            known = f"the exact evidence of this kernel and noise is {max(0.0, lost):.2g} nats a row above the bound"
            return _judged(M, lost < WORTH_IT, known)
    sample = np.random.default_rng(0).choice(len(y), min(SAMPLE, len(y)), replace=False)
    left, prior = _variances(model, X[sample])
    if noise is not None:
        lost = float(np.average(0.5 * np.log1p(left / noise), weights=weight[sample]))
        known = f"the variance that they leave open costs the bound {lost:.2g} nats a row"
        return _judged(M, lost < WORTH_IT, known)
    share = float(np.average(left / np.maximum(prior, np.finfo(float).tiny), weights=weight[sample]))
    return _judged(M, share < OPEN, f"they leave open {100 * share:.2g} % of the variance of the latent function")


def _judged(M: int, enough: bool, known: str) -> str:
    if enough:
        return f"{M} inducing points are enough: {known}."
    return f"More inducing points than {M} may help: {known}. Try {2 * M} and compare the log density of the test rows."


def _evidence(model: Any, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> float:
    """log p(y) of the scaled target of rows with weights, under the kernel and the noise that were learned."""
    s, warped = model.standardiser_, model.likelihood_.warped
    likelihood, target, slope = model.likelihood_, s.target(y), 0.0
    if warped is not None:
        likelihood, slope = warped[0], float(weight @ np.asarray(warped[1].log_slope(target)))
        target = warped[1](target)
    with computing("float64"), one_blas_thread(), keeping_programs():
        if model.mean_function_ is not None:
            likelihood = Around(likelihood, model.mean_function_)
        data = dataset(s.inputs(X), target, weight, dtype="float64")
        return float(marginal(cast(Model(model.kernel_, likelihood, Exact()), "float64"), data).value) + slope


def _variances(model: Any, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the points leave open of the prior variance of the first latent function, and this variance."""
    with computing("float64"), one_blas_thread(), keeping_programs():
        found = program(_of_first)(cast(model.predictor_, "float64"), model.standardiser_.inputs(X))
        return np.asarray(found[0]), np.asarray(found[1])


def _of_first(predictor, X):
    found = predictor.map(lambda p: (p.marginals(X).residual, p.prior(X)))
    if predictor.stacked:
        return jax.tree.map(lambda part: part[0], found)
    return found.parts[0] if predictor.leading else found
