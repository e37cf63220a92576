"""More rows for a fitted model, without the old ones: hyperparameters and pseudo-points are held, and its q is the
prior of q (Bui, Nguyen and Turner 2017)."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from ..bounds import (
    AtRows,
    constants_of,
    elbo_at,
    expected_precisions,
    expected_squares,
    marginals_of_rows,
    row_noise,
    varying_mixture_terms,
)
from ..bounds.collapsed import both_forms
from ..bounds.row_sums import feature_sums, statistics
from ..compilation import program
from ..data import Dataset, take
from ..gaussians import MeanPrecision
from ..likelihoods import NOISE_FLOOR, AbstractLikelihood, Gaussian
from ..linalg import factorise
from ..optimise.fullbatch import FitError, best_q
from ..posteriors import (
    Carried,
    CarriedBasis,
    IndependentLatents,
    Joined,
    Model,
    Predictor,
    Predictors,
    conditioned,
    freed,
    with_points,
)
from ..starts.inducing import added
from .objectives import padded_to_bucket

MOST_POINTS = 12_000  # of a model with a point at each row: its W has the square of them
FEATURES = 2e7  # numbers of the features of rows that are in memory together
CONVERGED = 1e-9  # nats a row: where the search for q ends
ROUNDS, SETTLED = 50, 1e-3  # of f and the precisions of new rows, and the change of these that ends them


class Updated(NamedTuple):
    """The predictor given more rows, and what they add to both forms of the bound, nats: a lower bound on
    log p(y₂ | y₁) for a Gaussian likelihood, and otherwise under the old q in place of p(f | y₁)."""

    predictor: Any
    value: float
    standard: float


def update(predictor: Any, likelihood: AbstractLikelihood, data: Dataset, at_rows: bool) -> Updated:
    """The predictor of a fitted model given the rows of `data` besides, all in the model's units and in float64.

    Under Gaussian noise the new q is known in closed form. Where the old q was the best one of its points, it is the
    best q for old and new rows together, and the bounds add up to that of all; without points (`at_rows`: one at each
    row) it is exact. A q of a smaller family, such as `Orthogonal`, is the prior as it is, and the sum an estimate: new
    rows move f(Z), and not what the mean has besides. For other
    likelihoods natural steps find the q of highest E_q[log p(y₂ | f)] − KL[q ‖ old q]. Raises FitError.
    """
    data = _rows(data, np.flatnonzero(np.asarray(data.weight) > 0))
    if at_rows and (M := predictor.s.shape[-1]) + len(data) > MOST_POINTS:
        raise FitError(
            f"a model of {M} rows without inducing points cannot take {len(data)} more, as it holds the square of "
            f"their number, at most {MOST_POINTS}²: fit to all rows with method='collapsed'"
        )
    if likelihood.gaussian_noise is not None:
        updated = (_at_rows if at_rows else _in_closed_form)(predictor, likelihood, data)
    else:
        updated = _converged(predictor, likelihood, data, at_rows)
    finite = np.isfinite(updated.value) and all(np.isfinite(x).all() for x in jax.tree.leaves(updated.predictor))
    if not finite:
        raise FitError(
            "the update is not finite: the new rows are far from what the model knows of this likelihood; fit to all "
            "rows instead"
        )
    return updated


def update_varying(predictor: Joined, likelihood: Any, data: Dataset, at_rows: bool) -> Updated:
    """`update` where noise depends on x: f is updated, and the noise held, as hyperparameters are. Under heavy tails
    each new row has a precision (methods h.4), the best one for q(f), which is found with q(f) in turn."""
    f, noise = predictor.parts
    mean, variance = (np.asarray(x) for x in marginals_of_rows(noise, data))
    own, weight = float(likelihood.scale) ** 2 * np.exp(2 * (mean - variance)), np.asarray(data.weight)
    given = lambda precision: Dataset(data.X, data.y, data.weight, jnp.asarray(own / precision))
    of_f = lambda rows: update(f, Gaussian(np.asarray(NOISE_FLOOR)), rows, at_rows)
    less = float(weight @ variance)  # E log s²e^{2g} is log of the rows' noise, and 2v more
    if not likelihood.heavy_tails:
        new = of_f(given(1.0))
    else:
        degrees = float(likelihood.degrees)
        best = lambda predictor: expected_precisions(expected_squares(predictor, data) / own, 1.0, degrees)
        precision = best(f)
        new = of_f(given(precision))
        for _ in range(ROUNDS):
            better = best(new.predictor)
            if np.all(np.abs(better / precision - 1) < SETTLED):
                break
            precision, new = better, of_f(given(better))
        less -= varying_mixture_terms(precision, weight, degrees)
    return Updated(Joined((new.predictor, noise)), new.value - less, new.standard - less)


def _rows(data: Dataset, rows: np.ndarray) -> Dataset:
    return jax.device_put(take(data, rows))


def add_points(predictor: Any, X: np.ndarray, count: int) -> Any:
    """The same predictions with at most `count` pseudo-points more: rows of X of greatest conditional variance given
    the points, one after another (Burt et al. 2020), while any is left."""
    first = _first(predictor)
    Z = np.asarray(first.Zv)
    more = added(first.kernel, Z, X, len(Z) + count)[len(Z) :]
    return _each(with_points, predictor, more) if len(more) else predictor


def add_points_of_f(predictor: Joined, X: np.ndarray, count: int) -> Joined:
    """`add_points` where noise depends on x: for f, as the noise is held."""
    f, *others = predictor.parts
    return Joined((add_points(f, X, count), *others))


def _first(predictor: Any) -> Predictor:
    """The predictor, or the first of those of several latent functions."""
    leading = predictor.map(lambda p: p)
    return jax.tree.map(lambda x: x[0], leading) if predictor.leading else leading


def _each(function: Any, predictor: Any, *X: np.ndarray) -> Any:
    """`function(predictor, *X)`, of several latent functions for each."""
    new = program(_mapped, "once", (0,))(function, predictor, *map(jnp.asarray, X))
    return _grouped(predictor, new)


def _mapped(function, predictor, *X):
    return predictor.map(lambda p: function(p, *X))


def _grouped(predictor: Any, each: Predictor) -> Any:
    """Predictors of the new `each` as the old ones are grouped, without points that the mean has twice."""
    if predictor.leading:
        return predictor.like(each)
    return each if each.shared else _merged(each)


def _merged(p: Predictor) -> Predictor:
    """The same mean by different points."""
    Zm, place = np.unique(np.asarray(p.Zm), axis=0, return_inverse=True)
    alpha = np.bincount(place.ravel(), np.asarray(p.alpha), len(Zm))
    return Predictor(p.kernel, Zm, alpha, p.Zv, p.W, p.s, p.jitter)


# --- Gaussian noise --------------------------------------------------------------------------------------------------


def _at_rows(predictor: Predictor, likelihood: AbstractLikelihood, data: Dataset) -> Updated:
    """Every row becomes a point (`conditioned`)."""
    noise = row_noise(Model(predictor.kernel, likelihood), data)
    new, factor, quadratic = conditioned(predictor, data, noise)
    value = float(-0.5 * (quadratic + constants_of(noise, data)) - factor.half_logdet())
    return Updated(new, value, value)


def _in_closed_form(predictor: Predictor, likelihood: AbstractLikelihood, data: Dataset) -> Updated:
    predictor, data = _free(predictor), padded_to_bucket(data)
    mean, _ = marginals_of_rows(predictor, data)
    rows = Dataset(data.X, data.y - mean, data.weight, data.noise)
    new, value, standard = program(_best, "once")(predictor, likelihood, rows)
    return Updated(_grouped(predictor, new), float(value), float(standard))


def _best(prior: Predictor, likelihood, rows: Dataset):
    """The collapsed bound with features φ in place of a, and residuals of the old mean in place of y."""
    basis = CarriedBasis(prior)
    noise = row_noise(Model(prior.kernel, likelihood), rows)
    s = statistics(partial(feature_sums, Partial(_features, basis), None), rows, noise)
    B = factorise(jnp.eye(len(s.b), dtype=s.b.dtype) + s.H)
    projection = Carried(MeanPrecision(B.solve(s.b), B.K)).on(basis)
    return projection.predictor(), *both_forms(s, B, B.quadratic(s.b))


def _features(basis, X):
    phi, _, residual = basis.rows(X)
    return phi, residual


# --- Other likelihoods -----------------------------------------------------------------------------------------------


def _converged(predictor: Any, likelihood: AbstractLikelihood, data: Dataset, at_rows: bool) -> Updated:
    """By natural steps, for as many rows at once as memory allows, and one block after another."""
    size, value, standard = max(1024, int(FEATURES) // predictor.s.size), 0.0, 0.0
    for start in range(0, len(data), size):
        rows = _rows(data, np.arange(start, min(start + size, len(data))))
        predictor = _each(with_points, predictor, np.asarray(rows.X)) if at_rows else _free(predictor)
        prior, rows = predictor, padded_to_bucket(rows)
        new, more = program(_natural, "brief")(prior, likelihood, rows)
        predictor, (value, standard) = _grouped(prior, new), (value + float(more[0]), standard + float(more[1]))
    return Updated(predictor, value, standard)


def _free(predictor: Any) -> Any:
    """The predictor with directions in which its q may move: that of `DiagonalPrecision` has none."""
    return predictor if np.all(np.asarray(predictor.s) > 0) else _each(freed, predictor)


def _natural(prior: Predictor | Predictors, likelihood, rows: Dataset):
    M, leading = prior.s.shape[-1], prior.leading
    start = jnp.zeros(M, rows.X.dtype), jnp.eye(M, dtype=rows.X.dtype)
    q = MeanPrecision(*(jnp.broadcast_to(x, (*leading, *x.shape)) for x in start))
    posterior = IndependentLatents(Carried(q), separate=True) if leading else Carried(q)
    basis = prior.map(CarriedBasis)
    at = AtRows(posterior, basis, posterior.on(basis).rows(rows.X), likelihood.at(rows), rows)
    at = at.with_q(best_q(at, tolerance=CONVERGED))
    bound = elbo_at(at, len(rows))
    new = at.projection.map(lambda projection: projection.predictor())
    return new, (bound.value, bound.standard)
