"""What each input does to the predicted mean: partial dependence with its uncertainty, and shares of variance.

An effect is a linear functional of the posterior: averages of the function over rows. So its mean and variance are
sums over covariances, without sampling, for every kernel and posterior (methods j).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float
from scipy.special import ndtri

from ..compilation import bucket, keeping_programs
from ..params import cast
from ..processes import computing, one_blas_thread
from .checks import shown
from .serving import apply_learned

POINTS = 24  # of a curve
FEWEST = 16  # rows to average over
WORK = 4e9  # multiplications of all curves together, which bound the rows


class Effect(NamedTuple):
    """What columns of X do: `values` [P, G] of the G columns, in ascending order if there is one.

    `mean` [P] is by how much the average prediction differs from that of all rows when every row has these values,
    `std`, `lower` and `upper` [P] its uncertainty, in the units of y. For K > 2 classes they are [P, K], of the
    probability of each class; for two, of the probability of the second. `first` is the share of the variance of
    predictions that goes with the columns by themselves, `total` the share that changes with them if they are
    independent of the others; both lie between 0 and 1.
    """

    columns: tuple[int, ...]
    values: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    first: float
    total: float


class Effects(NamedTuple):
    """The effects of all columns, and `together`: the share of variance that no sum of effects of single columns has.

    The shares `first` and `together` sum to one. `level` [K] is the average prediction, which the effects are added to;
    `rows` [R, D] are the rows averaged over.
    """

    effects: tuple[Effect, ...]
    together: float
    level: np.ndarray
    rows: np.ndarray


def effects_of(
    model: Any,
    X: Float[np.ndarray, "N D"],
    groups: Sequence[Sequence[int]] | None,
    level: float,
    rows: int,
    weight: Float[np.ndarray, " N"] | None = None,
) -> Effects:
    """`AbstractEstimator.effects` of a fitted model, at rows that were checked; `weight` None counts all alike."""
    D = X.shape[1]
    sets = [(j,) for j in range(D)] if groups is None else [tuple(int(j) for j in group) for group in groups]
    if sorted(sum(sets, ())) != list(range(D)):
        raise ValueError(f"groups={shown(groups)} must name each of the {D} columns, 0 to {D - 1}, once")
    if not 0 < level < 1:
        raise ValueError(f"level={shown(level)} must lie between 0 and 1; 0.9 means 90 %")
    if len(X) == 0:
        raise ValueError("X has no rows: effects are averages over the rows of a table, such as the training rows")
    sample = _sample(X, min(rows, _affordable(model, len(sets))), weight)
    curves = [_values(X[:, list(group)]) for group in sets]
    learned, outputs = _learned(model), model._outputs()
    exponent = np.frexp(np.max(np.abs(outputs)))[1]
    outputs = np.ldexp(outputs, -exponent)  # at most 1: squares of a target may overflow, or be 0
    base, tables = np.empty(0), []
    with computing("float64"), one_blas_thread(), keeping_programs():
        at = model.standardiser_.inputs(sample)
        for group, values in zip(sets, curves, strict=True):
            V = np.concatenate([np.repeat(sample[:1], POINTS, axis=0), sample])
            V[:POINTS, list(group)] = values[np.minimum(np.arange(POINTS), len(values) - 1)]
            chosen = np.isin(np.arange(D), group)
            arguments = outputs, at, model.standardiser_.inputs(V), chosen[model.standardiser_.columns]
            base, *table = (np.asarray(x) for x in apply_learned(_table, *learned, *arguments))
            tables.append(table)
    shift = 0.0 if model.likelihood_.classes else model.standardiser_.target_mean
    return _assembled(sets, curves, tables, base, sample, level, shift, exponent)


def _learned(model: Any) -> tuple[Any, list]:
    """Predictor and likelihood in float64, taken apart."""
    predictor = model.predictor_
    if model.inducing_points_ is None:  # a point at each row, whose number changes with the table
        predictor = predictor.padded(bucket(len(predictor.Zv)))
    with computing("float64"):
        leaves, structure = jax.tree.flatten(cast((predictor, model._observed()), "float64"))
    return structure, leaves


def _affordable(model: Any, groups: int) -> int:
    """Rows R so that R (R + POINTS) predictions for each group of columns take `WORK`."""
    M = len(model.predictor_.Zv)
    simple = model.likelihood_.gaussian_noise is not None or model.likelihood_.classes
    each = M * (model.n_features_in_ + 20 if simple else M) * model.likelihood_.latents
    return max(FEWEST, int((WORK / (groups * each) + POINTS**2 / 4) ** 0.5 - POINTS / 2))


def _sample(X: np.ndarray, count: int, weight: np.ndarray | None) -> np.ndarray:
    """At most so many rows at random; with weights each is taken as often as its share of them says."""
    if weight is None and len(X) <= count:
        return X
    order = np.random.default_rng(0).permutation(len(X))
    if weight is not None:  # systematic sampling: equal steps along the sums of weights
        order = order[weight[order] > 0]
        sums = np.cumsum(weight[order] / weight.max())
        order = order[np.searchsorted(sums, sums[-1] * (np.arange(count) + 0.5) / count)]
    return X[np.sort(order[:count])]


def _values(columns: np.ndarray) -> np.ndarray:
    """Up to `POINTS` rows of values: all different ones; if these are too many, of one column even steps between the
    quantiles that leave out a two hundredth at either end, and of several columns the most frequent ones."""
    distinct, counts = np.unique(columns, axis=0, return_counts=True)
    if len(distinct) <= POINTS:
        return distinct
    if columns.shape[1] > 1:
        return distinct[np.sort(np.argsort(-counts, kind="stable")[:POINTS])]
    low, high = np.quantile(columns, [0.005, 0.995])
    return np.linspace(low, high, POINTS)[:, None] if low < high else distinct[[0, -1]]


def _table(predictor, likelihood, outputs, X, V, chosen):
    """Predictions h at the rows X, [R, K]; and with the chosen columns set to each row of V, h [P, R, K] and the
    variance [P, K] of their average over rows, less that of X."""
    base, slopes = _at(predictor, likelihood, outputs, X)

    def point(v):
        rows = jnp.where(chosen, v, X)
        h, w = _at(predictor, likelihood, outputs, rows)
        parts = _each(lambda p, w, w0: _variance(p, rows, w, X, w0), predictor, w / len(X), slopes / len(X))
        return h, jnp.sum(parts, axis=0)

    return base, *lax.map(point, V)


def _at(predictor, likelihood, outputs, X):
    """h [R, K], and its slopes in the mean of each of C latent functions, [C, R, K]: outputs · E y, or of classes
    outputs · P(y | f) at the mean of f, whose integrals over f would take longer than all else. NaN where the
    probability is a step in f."""
    mean, variance = predictor(X)
    classes = jnp.arange(float(likelihood.classes), dtype=X.dtype)

    def h(mean):
        if likelihood.classes:
            p = jax.vmap(lambda y: jnp.exp(likelihood.log_prob(mean, jnp.full(len(X), y))))(classes)
            return (outputs @ p).T
        return likelihood.predict(mean, variance).mean[:, None] * outputs

    latents = mean.shape[0] if mean.ndim > 1 else 1
    directions = jnp.broadcast_to(jnp.eye(latents, dtype=X.dtype)[:, :, None], (latents, latents, len(X)))
    slopes = jax.vmap(lambda direction: jax.jvp(h, (mean,), (direction.reshape(mean.shape),))[1])(directions)
    steps = jnp.any(outputs != 0) & ~jnp.any(slopes != 0)
    return h(mean), jnp.where(steps, jnp.nan, slopes)


def _each(function, predictor, *also):
    """function(predictor, *also) of each latent function, with a leading axis C, which `also` has too."""
    if not predictor.leading:
        return predictor.map(function, tuple(x[0] for x in also))[None]
    found = predictor.map(function, also)
    return found if predictor.stacked else jnp.stack(found.parts)


def _variance(p, X, w, Z, v):
    """The variance of Σ wᵢₖ f(xᵢ) − Σ vⱼₖ f(zⱼ) for each k, [K]."""
    quadratic = lambda w, K, v: jnp.sum(w * (K @ v), axis=0)
    prior = quadratic(w, p.kernel(X, X), w) - 2 * quadratic(w, p.kernel(X, Z), v) + quadratic(v, p.kernel(Z, Z), v)
    features = p.W @ (p.kernel(p.Zv, X) @ w - p.kernel(p.Zv, Z) @ v)
    return jnp.maximum(prior - (1 - p.s) @ features**2, 0)


def _assembled(sets, curves, tables, base, sample, level, shift, exponent) -> Effects:
    """Effects of predictions `base` [R, K] and of each group's table (methods j.2), which are over 2^exponent."""
    middle = base.mean(axis=0)
    reach = -float(ndtri(0.5 - level / 2))
    first = _first_shares([h[POINTS:].mean(axis=1) for h, _ in tables], base)
    found = []
    for group, values, (h, variance), share in zip(sets, curves, tables, first, strict=True):
        pairs = h[POINTS:]  # the columns of one row in another
        total = _ratio(np.sum(pairs.var(axis=0).mean(axis=0)), np.sum(pairs.var(axis=(0, 1))))
        mean, std = h[: len(values)].mean(axis=1) - middle, np.sqrt(variance[: len(values)])
        mean, std = np.ldexp(mean, exponent), np.ldexp(std, exponent)
        if mean.shape[1] == 1:
            mean, std = mean[:, 0], std[:, 0]
        ends = mean - reach * std, mean + reach * std
        found.append(Effect(tuple(group), values, mean, std, *ends, share, total))
    return Effects(tuple(found), max(0.0, 1 - sum(first)), np.ldexp(middle, exponent) + shift, sample)


def _first_shares(own: list[np.ndarray], base: np.ndarray) -> list[float]:
    """ρ² V[eⱼ]/Σ V[eₖ] of effects eⱼ [R, K] at the rows' own values, ρ their sum's correlation with predictions."""
    effects = [e - e.mean(axis=0) for e in own]
    together, centred = sum(effects), base - base.mean(axis=0)
    along = max(0.0, float(np.sum(together * centred)))
    explained = min(1.0, _ratio(along, np.sum(together**2) ** 0.5 * np.sum(centred**2) ** 0.5) ** 2)
    sizes = [float(np.sum(e**2)) for e in effects]
    return [explained * _ratio(size, sum(sizes)) for size in sizes]


def _ratio(part, whole) -> float:
    return float(part / whole) if whole > 0 else 0.0
