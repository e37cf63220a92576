"""What full-batch fits maximise, how they maximise it, and why a fit failed.

An objective is a function of (model, data) that returns (bound, aux), aux being what the end of a fit wants of the best
point, or () if nothing.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..bounds import AtRows, collapsed, collapsed_orthogonal, elbo_at, laplace, marginal
from ..bounds.row_sums import chunk_size
from ..compilation import mode_of_evaluations, same_shape_sample
from ..data import Dataset
from ..linalg import explain_failure
from ..optimise.fullbatch import FitError, Objective, OptimiseResult, best_q, lbfgsb_in_rounds
from ..optimise.minibatch import with_q
from ..params import Trainable, cast, trainable
from ..posteriors import Model
from ..starts.inducing import RACE_ROWS, sample
from .prior import Penalised
from .settings import COLLAPSED_ROWS

__all__ = [
    "box_around",
    "collapsed_objective",
    "collapsed_tight",
    "collapsed_vfe",
    "evidence",
    "exact_evidence",
    "explain",
    "held_points",
    "maximise",
    "maximise_profile",
    "mode_evidence",
    "orthogonal_tight",
    "orthogonal_vfe",
    "points",
    "profile",
    "subset",
]


FEW = 20  # numbers whose curvature L-BFGS-B learns without units
PROBE_ROWS = 2500  # rows on which the units of a round are measured, of a collapsed bound
NEAR = 1e-7  # nats a row: where the search for the best q of `profile` stops
MIN_GAIN = 0.02  # nats that ten iterations must gain where there are pseudo-points: an odds ratio of 1.02


def posterior_q(model: Model) -> Any:
    """The model's q."""
    return model.posterior.q


def points(model: Model) -> Any:
    """The model's pseudo-points, or their places."""
    return model.posterior.points


def held_points(settings) -> tuple:
    """What does not move where pseudo-points are to stay."""
    return () if settings.learn_inducing else (points,)


def evidence(model: Model, data: Dataset):
    """log p(y)."""
    return marginal(model, data).value, ()


def exact_evidence(model: Model, data: Dataset):
    """log p(y); it again, without the prior, and the predictor.

    The end of a fit then needs no program of its own, whose compilation takes a sixth of a small fit.
    """
    solution = marginal(model, data)
    return solution.value, (solution.value, solution.predictor())


def mode_evidence(model: Model, data: Dataset):
    """Laplace's approximation of log p(y); it again, and the predictor, as `exact_evidence`."""
    solution = laplace(model, data)
    return solution.value, (solution.value, solution.predictor())


def collapsed_tight(model: Model, data: Dataset):
    """The tight collapsed bound."""
    return collapsed(model, data).value, ()


def collapsed_vfe(model: Model, data: Dataset):
    """Titsias' collapsed bound."""
    return collapsed(model, data).standard, ()


def collapsed_objective(settings):
    """The collapsed bound that the settings ask for."""
    return collapsed_tight if settings.tight else collapsed_vfe


def orthogonal_tight(model: Model, data: Dataset):
    """The tight bound of the orthogonal family at its optimum."""
    return collapsed_orthogonal(model, data).value, ()


def orthogonal_vfe(model: Model, data: Dataset):
    """The standard bound of the orthogonal family at its optimum."""
    return collapsed_orthogonal(model, data).standard, ()


def profile(model: Model, data: Dataset):
    """max_q of the bound, found by natural steps from the model's q; that q, and the bound without the prior.

    At the optimum in q the bound's derivative in all else is the partial one (envelope theorem). The search for q stops
    when a step gains less than 1e-7 nats a row.
    """
    at = AtRows.of(model, data)
    q = lax.stop_gradient(best_q(lax.stop_gradient(at), tolerance=NEAR))
    value = elbo_at(at.with_q(q), len(data)).value
    return value, (q, value)


def _from_q(model: Model, aux: tuple[Any, Any]) -> Model:
    return with_q(model, aux[0])


def maximise_profile(prior, model, data: Dataset, max_iter: int, progress, *frozen) -> tuple[OptimiseResult, float]:
    """The maximum of `profile`, whose model has the best q, and the bound there without the prior."""
    result = maximise(profile, prior, model, data, max_iter, progress, posterior_q, *frozen, resume=_from_q)
    return result, float(result.aux[1])


def maximise(
    objective, prior, model, data, max_iter, progress, *frozen, resume=None, float32_start=None, box=None
) -> OptimiseResult:
    """L-BFGS-B on all numbers of the model except the frozen ones, under the prior of its lengthscales.

    More than 20 numbers are in units of their own, except within a `box`. `resume`, `float32_start` and `box` are those
    of `Objective` and `lbfgsb_in_rounds`. Raises FitError with cause and remedy.
    """
    numbers = trainable(model, *frozen)
    M, C = len(model.posterior.Z), model.likelihood.latents
    penalised = Objective(
        Penalised(objective),
        numbers,
        (data, prior),
        has_aux=True,
        resume=resume,
        scale=float(np.count_nonzero(data.weight)),
        progress=progress,
        compile_mode=mode_of_evaluations(len(data) * (M or len(data)) * C),
    )
    probe = (subset(objective, data, M, 0, PROBE_ROWS), prior) if numbers.size > FEW and box is None else None
    rounds = {"probe": probe, "float32_start": float32_start, "box": box, "min_gain": MIN_GAIN if M else 0.0}
    try:
        return lbfgsb_in_rounds(penalised, max_iter=max_iter, **rounds)
    except FitError as error:
        raise FitError(f"{error}: {explain(model, data)}") from None


def box_around(numbers: Trainable, kernel: float, likelihood: float, posterior: float) -> tuple[np.ndarray, np.ndarray]:
    """A box for L-BFGS-B: each unconstrained number of a part of the model within that distance of its value now.

    A distance of 0 holds a part. Unlike a frozen part it still belongs to the trainable numbers, so that the program
    compiled for all of them serves.
    """
    model = numbers.model
    leaves = [len(jax.tree.leaves(part)) for part in (model.kernel, model.likelihood, model.posterior)]
    reach = np.repeat([kernel, likelihood, posterior], leaves)[list(numbers.leaf_indices)]
    reach = np.repeat(reach, [np.size(part) for part in numbers.parts])
    at = np.concatenate([np.ravel(part) for part in numbers.parts])
    return at - reach, at + reach


def subset(objective, data: Dataset, M: int, seed: int, least: int, share: float = 0.0) -> Dataset:
    """Rows that represent all: `RACE_ROWS` at random, or for a collapsed bound at least `least` and that share of all.

    A collapsed bound skips chunks of rows that all have weight zero. So its subset is whole chunks of the full table,
    for which the program of all rows serves. Beyond `COLLAPSED_ROWS` rows there is no such program, as minibatches
    follow.
    """
    if objective not in (collapsed_tight, collapsed_vfe) or not RACE_ROWS < len(data) <= COLLAPSED_ROWS:
        return cast(sample(data, RACE_ROWS, seed), data.X.dtype)
    size = chunk_size(len(data), M)
    count = size * -(-max(least, int(share * len(data))) // size)
    return data if np.count_nonzero(data.weight) <= count else cast(same_shape_sample(data, count, seed), data.X.dtype)


def explain(model: Any, data: Dataset) -> str:
    """Why a bound is not finite: the data, or the covariance of the points that are factorised."""
    for name, values in (("inputs", data.X), ("target", data.y), ("weights", data.weight), ("noise", data.noise)):
        if not np.isfinite(np.asarray(values)).all():
            return f"the {name} contain NaN or infinity: drop or impute those rows"
    likelihood, count = model.likelihood.at(data.noise), np.count_nonzero(data.weight)
    f = jnp.zeros((likelihood.latents, len(data)) if likelihood.latents > 1 else len(data), data.X.dtype)
    terms = np.asarray(likelihood.expectation(f, f + jnp.mean(model.kernel.diag(data.X)), data.y))
    bad = ~np.isfinite(terms) & (np.asarray(data.weight) > 0)
    if bad.any():
        value = float(data.y[int(np.argmax(bad))])
        return (
            f"the likelihood {likelihood.name} gives E log p(y | f) = {terms[bad][0]:g} for the (scaled) target "
            f"{value:g}, and for {bad.sum()} of {count} rows: use a likelihood for such targets"
        )
    exact = not model.posterior.points
    points = sample(data, 2000, 0).X if exact else model.posterior.Z
    K = np.asarray(model.kernel(jnp.asarray(points), jnp.asarray(points)))
    return explain_failure(K, "the covariance of the " + ("rows" if exact else "inducing points"), np.asarray(points))
