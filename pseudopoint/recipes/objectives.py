"""What is maximised over hyperparameters, by what, and why it could not be."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..bounds import AtRows, collapsed_orthogonal, elbo_at, laplace, marginal
from ..bounds.row_sums import chunk_size
from ..data import Dataset
from ..linalg import explain_failure
from ..optimise.fullbatch import FitError, OptimiseResult, best_q, lbfgsb
from ..optimise.minibatch import with_q
from ..optimise.named import tight, vfe
from ..params import cast, trainable
from ..posteriors import Model
from ..starts.inducing import RACE_ROWS, first, sample
from .prior import Penalised
from .settings import COLLAPSED_ROWS

__all__ = [
    "climb_profile",
    "collapsed_objective",
    "evidence",
    "exact_evidence",
    "explain",
    "fewer",
    "held_points",
    "maximise",
    "mode_evidence",
    "orthogonal_tight",
    "orthogonal_vfe",
    "points",
    "profile",
    "unread",
]


FEW = 20  # numbers that L-BFGS-B comes to know by itself
BRIEF = 1_000_000  # covariances of rows with points, or with each other, with which an evaluation is brief
PROBE_ROWS = 2500  # that tell the units of a round, of a collapsed bound
NEAR = 1e-7  # nats a row that the last step to the best q of `profile` may gain
ENOUGH = 0.02  # nats that ten iterations are to gain where there are pseudo-points: of evidence, an odds ratio of 1.02


def posterior_q(model: Model) -> Any:
    """The model's q, or its place."""
    return model.posterior.q


def points(model: Model) -> Any:
    """The model's pseudo-points, or their places."""
    return model.posterior.points


def collapsed_objective(settings):
    """The collapsed bound that was asked for."""
    return tight if settings.tight else vfe


def held_points(settings) -> tuple:
    """What does not move where pseudo-points are to stay."""
    return () if settings.learn_inducing else (points,)


def evidence(model: Model, data: Dataset):
    """log p(y)."""
    return marginal(model, data).value


def orthogonal_tight(model: Model, data: Dataset):
    """The tight bound of the orthogonal family at its best."""
    return collapsed_orthogonal(model, data).value


def orthogonal_vfe(model: Model, data: Dataset):
    """The standard bound of the orthogonal family at its best."""
    return collapsed_orthogonal(model, data).standard


def exact_evidence(model: Model, data: Dataset, last: Any):
    """log p(y); it again, and the posterior: the end of a fit needs no program of its own, whose compilation would be a
    sixth of a small fit. `last` has that shape and is not read."""
    solution = marginal(model, data)
    return solution.value, (solution.value, solution.predictor())


def mode_evidence(model: Model, data: Dataset, last: Any):
    """Laplace's approximation of log p(y); it again, and the posterior, as `exact_evidence`."""
    solution = laplace(model, data)
    return solution.value, (solution.value, solution.predictor())


def unread(objective, model: Model, data: Dataset):
    """A `last` for these two."""
    shapes = jax.eval_shape(lambda model, data: objective(model, data, None)[1], model, data)
    # Not by jnp.zeros, which compiles a program for every shape.
    return jax.device_put(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes))


def profile(model: Model, data: Dataset, last: tuple[Any, Any]):
    """The bound at its best q, found by natural steps from the q of `last`; and that q, for the next search to begin
    at, with its bound, which no prior takes anything from.

    At the optimum in q the bound's derivative in all else is the partial one (envelope theorem). Near enough is where
    a step gains less than `NEAR` nats a row (ARCHITECTURE.md).
    """
    at = AtRows.of(model, data)
    q = lax.stop_gradient(best_q(lax.stop_gradient(at).with_q(last[0]), tolerance=NEAR))
    value = elbo_at(at.with_q(q), len(data)).value
    return value, (q, value)


def climb_profile(prior, model: Model, data: Dataset, max_iter: int, progress, *held) -> tuple[OptimiseResult, float]:
    """The maximum of `profile`, its model with the best q, and the bound there."""
    last = model.posterior.q, jax.device_put(np.zeros((), data.X.dtype))
    result = maximise(profile, prior, model, data, max_iter, progress, posterior_q, *held, carry=last)
    q, bound = result.carry
    return result._replace(model=with_q(result.model, q)), float(bound)


def maximise(
    objective, prior, model, data, max_iter, progress, *frozen, carry=None, coarse=None, box=None
) -> OptimiseResult:
    """L-BFGS-B on all numbers of the model but the frozen ones, under the prior of its lengthscales; where many,
    in units of their own unless within a `box`, and in float32 as long as `coarse` has it (`lbfgsb`).

    Raises FitError with cause and remedy.
    """
    bound, rows, numbers = Penalised(objective), (data, prior), trainable(model, *frozen)
    M, C = len(model.posterior.Z), model.likelihood.latents
    probe = (fewer(objective, data, M, 0, PROBE_ROWS), prior) if numbers.size > FEW and box is None else None
    scale = float(np.count_nonzero(data.weight))
    enough, compile_mode = ENOUGH if M else 0.0, "brief" if len(data) * (M or len(data)) * C <= BRIEF else None
    options = {"max_iter": max_iter, "progress": progress, "scale": scale, "probe": probe, "enough": enough}
    try:
        return lbfgsb(bound, numbers, rows, carry=carry, coarse=coarse, box=box, compile_mode=compile_mode, **options)
    except FitError as error:
        raise FitError(f"{error}: {explain(model, data)}") from None


def fewer(objective, data: Dataset, M: int, seed: int, least: int, share: float = 0.0) -> Dataset:
    """`RACE_ROWS` rows at random; of a collapsed bound whole chunks of `least` rows or more, and of that share of all.

    A collapsed bound passes over chunks of rows of weight zero, so it is given all rows: the program for all of them
    serves, and none is compiled for fewer. Beyond `COLLAPSED_ROWS`, where minibatches follow, fewer rows are fewer.
    """
    if objective not in (tight, vfe) or not RACE_ROWS < len(data) <= COLLAPSED_ROWS:
        return cast(sample(data, RACE_ROWS, seed), data.X.dtype)
    size = chunk_size(len(data), M)
    count = size * -(-max(least, int(share * len(data))) // size)
    return data if np.count_nonzero(data.weight) <= count else cast(first(data, count, seed), data.X.dtype)


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
