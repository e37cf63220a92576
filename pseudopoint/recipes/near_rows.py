"""What the nearest rows tell beyond a fit with pseudo-points: learned by rows left out, and taken where they gain.

A few hundred pseudo-points hold what varies over long distances. What a table of many rows tells of short ones is left
in its errors: rows beside each other err alike. Their normal scores, or what the odds of their classes lack, are a
second Gaussian process, given the rows nearest to each new one (`posteriors.NearRows`, `NearClasses`; methods o). Its
numbers maximise the log density of rows left out (Rasmussen and Williams 2006, 5.4.2). Other rows, again left out, say
whether it pays.
"""

import logging
import time
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float, Int
from scipy.optimize import minimize
from scipy.special import ndtri

from ..bounds import marginals_of_rows
from ..compilation import bucket, program
from ..data import Dataset, dataset, take
from ..kernels import Matern32
from ..likelihoods import AbstractLikelihood
from ..likelihoods.quadrature import in_blocks
from ..params import cast
from ..posteriors import AbstractNearRows, NearClasses, NearRows
from .candidates import in_order
from .settings import Fitted, Settings, Trial

NEAREST = {"balanced": 64, "thorough": 128}
ROWS_A_POINT = 4  # fewer rows for each pseudo-point, and the errors of the fit's own rows are too small
MOST = 100_000  # rows that may be near, drawn from more: a prediction takes a distance to each
MOST_NUMBERS = 1_000_000  # of rows and classes: rows are at most so many over the number of classes
# Rows of classes, as a class tells less of a lengthscale than a number; and of a table that is read part by part, where
# few rows have pseudo-points, too.
FEWEST = 2000
MOST_COLUMNS = 100  # of which distances can tell something
SAMPLE, FEW = 1500, 32  # rows left out to learn by, and the nearest rows of each
# First lengthscales, times √D, and those of a second try where near rows do not pay: from too long ones, what only
# nearest rows share is not found. Classes, of which an iteration costs more, have one try.
STARTS = 0.3, 0.1
# Iterations of each round. After a round the near rows are chosen again by its lengthscales. If the density by these is
# not higher, half and then a quarter of the step are tried, and if neither is higher, the search ends. The first rounds
# are short, because rows that are near by wrong lengthscales lead astray.
ROUNDS = (3, 3, 5, 5, 10, 15)
ROUNDS_OF_CLASSES = (3, 3, 5, 5)  # an iteration costs more, and later ones gain little
SHARES = 1.0, 0.5, 0.25  # of a round's step
REACH = 7.0  # of logarithms, from their start
JUDGES = 2000  # rows that say whether it pays
WORTH = 0.01  # nats a row that have to be gained, beside twice the standard error
BLOCK = 128  # rows whose nearest ones are looked for together
SMALLEST = 1e-15  # probability beyond which a score is not distinguished
LOG = logging.getLogger(__name__)

PerRow = Float[np.ndarray, " N"]


def near_rows_are_open(fitted: Fitted, data: Dataset, N: int, settings: Settings) -> bool:
    """Whether near rows may correct a fit to N rows, of which `data` are all or some: it has pseudo-points for many
    rows of scaled columns, of which no noise is known, its target is real or a class, and the settings leave kernel
    and likelihood open."""
    left_open = settings.near_rows and settings.kernel == settings.likelihood == "auto" and settings.effort != "fast"
    plain = settings.optimiser == "auto" and settings.posterior == "whitened" and not settings.priors
    M = len(fitted.model.posterior.Z)
    many = 0 < ROWS_A_POINT * M <= N and settings.dtype != "float32"
    likelihood = fitted.model.likelihood
    real = likelihood.additive and likelihood.parts()[1] is None and not fitted.predictor.stacked
    described = real or likelihood.classes > 0 and N >= FEWEST
    scaled = settings.scale_inputs is not False and data.num_columns <= MOST_COLUMNS
    one = np.ndim(data.y) == 1 and not np.any(np.asarray(data.noise) > 0)
    return left_open and plain and many and described and likelihood.mean_function is None and scaled and one


def with_near_rows(fitted: Fitted, data: Dataset, total: float, settings: Settings) -> Fitted:
    """The fit with the correction by near rows where that pays, and with what was compared in its trials.

    The weights of all rows add up to `total`. `data` are all rows, or as many drawn from them as may be near.
    """
    LOG.info("learning what near rows tell")
    began, likelihood = time.perf_counter(), fitted.model.likelihood
    order = in_order(data)  # so that neither samples nor ties depend on the order of rows
    order = np.random.default_rng(settings.seed).permutation(order[np.asarray(data.weight)[order] > 0])
    rows = take(data, order[: most_near_rows(likelihood)])
    moments = predicted(fitted.predictor, rows)
    learners, judges = np.split(np.arange(min(len(rows), SAMPLE + JUDGES)), [min(SAMPLE, len(rows) // 3)])
    some = made(likelihood, moments, rows, NEAREST[settings.effort])

    def tried(start):
        near = learned(some, learners, ROUNDS_OF_CLASSES if likelihood.classes else ROUNDS, start)
        densities = program(_densities)(near, likelihood, moments[..., judges], judges)
        return near, _compared(np.asarray(densities, float), np.asarray(rows.weight, float)[judges])

    near, told = tried(STARTS[0])
    if not told.pays and not likelihood.classes:
        near, told = max((near, told), tried(STARTS[1]), key=lambda each: (each[1].pays, each[1].after))
    seconds = time.perf_counter() - began
    trials = (
        Trial("near rows", "none", total * told.before, not told.pays, 0.0),
        Trial("near rows", f"the {near.count} nearest", total * told.after, told.pays, seconds),
    )
    note = (
        f"near rows: log density of a row by the others near it {told.after:.3f}, by the fit alone {told.before:.3f} "
        f"(standard error of the difference {told.error:.3f})"
    )
    kept = near if told.pays else None
    return fitted._replace(near_rows=kept, trials=(*fitted.trials, *trials), notes=(*fitted.notes, note))


def most_near_rows(likelihood: AbstractLikelihood) -> int:
    """How many rows may be near."""
    return min(MOST, MOST_NUMBERS // max(likelihood.classes, 1))


class _Told(NamedTuple):
    """The mean log density of rows without near rows and with them, and the standard error of their difference."""

    before: float
    after: float
    error: float

    @property
    def pays(self) -> bool:
        return self.after - self.before > max(WORTH, 2 * self.error)


def _compared(densities: Float[np.ndarray, "2 n"], weight: PerRow) -> _Told:
    before, after = np.average(densities, axis=1, weights=weight)
    gain = densities[1] - densities[0]
    spread = np.average((gain - (after - before)) ** 2, weights=weight)
    rows = np.sum(weight) ** 2 / np.sum(weight**2)  # of equal weights, that would tell as much
    return _Told(float(before), float(after), float(np.sqrt(spread / rows)))


def with_more_rows(
    near: AbstractNearRows, predictor: Any, likelihood: AbstractLikelihood, data: Dataset
) -> AbstractNearRows:
    """With more rows, as the predictor that has seen them predicts all; what was learned is held."""
    old = np.asarray(near.weight) > 0
    both = lambda before, new: np.concatenate([np.asarray(before, float)[old], np.asarray(new, float)])
    rows = dataset(both(near.X, data.X), both(near.y, data.y), both(near.weight, data.weight))
    rows = take(rows, np.flatnonzero(np.asarray(rows.weight) > 0)[-most_near_rows(likelihood) :])
    more = made(likelihood, predicted(predictor, rows), rows, near.count)
    return cast(replace(more, **{name: getattr(near, name) for name in near.learned}), near.X.dtype)


def predicted(predictor: Any, data: Dataset) -> Float[np.ndarray, "2 ... N"]:
    """Means and variances of all latent functions at the rows."""
    return np.stack(marginals_of_rows(predictor, data))


def made(likelihood: Any, moments: Any, rows: Dataset, count: int) -> AbstractNearRows:
    """`NearRows` of these rows, or `NearClasses`, padded to a `bucket`, with any numbers."""
    D, more, count = rows.num_columns, bucket(len(rows)) - len(rows), min(count, len(rows) - 1)
    kernel = Matern32(np.ones(D), 0.5)
    pad = lambda each: np.pad(np.asarray(each, rows.X.dtype), [(0, more), *[(0, 0)] * (np.ndim(each) - 1)])
    of: dict[str, Any] = {"kernel": kernel, "count": count}
    of |= {name: pad(getattr(rows, name)) for name in ("X", "y", "weight")}
    if likelihood.classes:
        log_p = np.maximum(in_blocks(program(_log_p), likelihood, *moments), np.log(SMALLEST))
        near = NearClasses(**of, log_p=pad(log_p.T))
    else:
        near = NearRows(**of, z=pad(scores(likelihood, moments, rows.y)), noise=np.asarray(0.5))
    return cast(near, rows.X.dtype)


def scores(likelihood: AbstractLikelihood, moments: Any, y: PerRow) -> PerRow:
    """Φ⁻¹(P(Y ≤ yᵢ)) of each row, between −8 and 8."""
    mean, variance = moments
    below = np.asarray(likelihood.predictive_cdf(mean, variance, y), float)
    return ndtri(np.clip(below, SMALLEST, 1 - SMALLEST))


def learned(near: AbstractNearRows, rows: Int[np.ndarray, " n"], rounds=ROUNDS, first=STARTS[0]) -> AbstractNearRows:
    """With numbers of the highest mean log density of these rows, each given the others near it by these numbers.
    Lengthscales start at `first` times √D."""
    few, D = replace(near, count=min(FEW, near.count)), near.X.shape[1]
    vector = start = np.r_[0.0, np.log(np.full(D, first * D**0.5))]
    box = list(zip(start - REACH, start + REACH, strict=True))
    chosen = lambda vector: program(_nearest)(_at(vector, few), rows)
    slopes = lambda vector, J: [np.asarray(x, float) for x in program(_slopes)(vector, few, rows, J)]
    J = chosen(vector)
    lowest = slopes(vector, J)[0]
    for iterations in rounds:
        found = minimize(slopes, vector, (J,), jac=True, method="L-BFGS-B", bounds=box, options={"maxiter": iterations})
        for share in () if np.array_equal(found.x, vector) else SHARES:
            at = vector + share * (found.x - vector)
            value = slopes(at, J_at := chosen(at))[0]
            if value < lowest:
                break
        else:
            break
        vector, J, lowest = at, J_at, value
    return jax.tree.map(np.asarray, cast(_at(vector, near), near.X.dtype))


def _at(vector, near: AbstractNearRows) -> Any:
    """With other numbers: the first, and the logarithms of lengthscales."""
    vector = jnp.asarray(vector, near.X.dtype)
    return near.at(vector[0], jnp.exp(vector[1:]))


def _nearest(near: AbstractNearRows, rows):
    blocks = jnp.pad(rows, (0, -len(rows) % BLOCK), mode="edge").reshape(-1, BLOCK)
    found = lax.map(lambda block: near.nearest(jnp.asarray(near.X)[block], block), blocks)
    return found.reshape(-1, near.count)[: len(rows)]


def _slopes(vector, near: AbstractNearRows, rows, nearest):
    """Value and gradient of −(Σ wᵢ log p(i | rows nearest to it) + log prior of lengthscales)/Σ wᵢ."""

    def loss(vector):
        weight, apart = jnp.asarray(near.weight)[rows], vector[1:] - jnp.mean(vector[1:])
        prior = -0.5 * jnp.sum(apart**2) / near.spread**2
        at = _at(vector, near)
        return -(weight @ at.log_density(rows, at.left_out(rows, nearest)) + prior) / jnp.sum(weight)

    return jax.value_and_grad(loss)(vector)


def _log_p(likelihood, mean, variance):
    return likelihood.log_probabilities(mean, variance)


def _densities(near: AbstractNearRows, likelihood: AbstractLikelihood, moments, rows):
    """log p(yᵢ) of these rows by the fit, whose moments are given, and with near rows without each: [2, n]."""
    y = jnp.asarray(near.y)[rows]
    h = jnp.stack(near.left_out(rows, _nearest(near, rows))).reshape(2, -1, len(rows))
    with_h = jnp.concatenate([moments.reshape(2, -1, len(rows)), h], axis=1)
    before = likelihood.log_density(moments[0], moments[1], y)
    return jnp.stack([before, near.likelihood(likelihood).log_density(with_h[0], with_h[1], y)])
