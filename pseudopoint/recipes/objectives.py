"""What full-batch fits maximise, how they maximise it, and why a fit failed.

An objective is a function of (model, data) that returns (bound, aux), aux being what the end of a fit wants of the best
point, or () if nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..bounds import AtRows, collapsed, elbo_at
from ..bounds.row_sums import chunk_size
from ..compilation import bucket, mode_of_evaluations, same_shape_sample
from ..data import Dataset, padded
from ..devices import Devices, over_devices
from ..linalg import explain_failure
from ..optimise.fullbatch import ROUND, FitError, Objective, OptimiseResult, best_q, lbfgsb_in_rounds
from ..optimise.minibatch import with_q
from ..optimise.named import posterior_q
from ..params import Trainable, cast, trainable
from ..posteriors import Model
from ..starts.inducing import RACE_ROWS
from .prior import Penalised
from .settings import COLLAPSED_ROWS

FEW = 20  # numbers whose curvature L-BFGS-B learns without units
PROBE_ROWS = 2500  # rows on which the units of a round are measured, or two q are compared
NEAR = 1e-7  # nats a row: where the search for the best q of `profile` stops
EXACT_SAMPLE = 1000  # rows of a sample of which the exact evidence is affordable many times
# Nats that ten iterations must gain where there are pseudo-points, or many rows: an odds ratio of 1.02, or for large
# tables what no density of a new row shows.
MIN_GAIN, MIN_GAIN_OF_A_ROW = 0.02, 1e-4
ROUGH = 10.0  # times as much where pseudo-points are added next: an iteration with these gains more
LEADS = 0.05  # of its length, by which a gradient in float32 may be off where it leads
WINDOW_OF_MANY_ROWS = 5  # iterations that must gain as much beyond `RACE_ROWS` rows, where each is expensive


def padded_to_bucket(data: Dataset) -> Dataset:
    """The rows, padded to a size that tables of like size share (`bucket`), so that they share programs too."""
    return padded(data, bucket(len(data)))


def least_gain(data: Dataset) -> float:
    """What ten iterations must gain, or five beyond `RACE_ROWS` rows, nats."""
    return max(MIN_GAIN, MIN_GAIN_OF_A_ROW * np.count_nonzero(data.weight))


class Report(NamedTuple):
    """What a fit tells of a bound: both forms, the upper bound (infinite where none is known) and the predictor."""

    value: Any
    standard: Any
    upper: Any
    predictor: Any


@dataclass(frozen=True)
class OfBound:
    """The objective of a bound, of its tight or its standard form. With `solved`, aux is the `Report` of a bound in
    closed form: the end of a fit then needs no program of its own, whose compilation takes a sixth of a small fit.

    Instances of the same bound are equal, so that it is compiled once.
    """

    bound: Callable[[Model, Any], Any]
    tight: bool = True
    solved: bool = False

    def __call__(self, model: Model, data: Any):
        """(bound, aux)."""
        at = self.bound(model, data)
        if not self.solved:
            return at.choose(self.tight), ()
        upper = jnp.asarray(at.upper(), at.value.dtype)
        return at.choose(self.tight), Report(at.value, at.standard, upper, at.predictor())


def profile(model: Model, data: Dataset):
    """max_q of the bound, found by natural steps from the model's q; that q, and the bound without the prior.

    At the optimum in q the bound's derivative in all else is the partial one (envelope theorem). The search for q stops
    when a step gains less than 1e-7 nats a row.
    """

    def of(share: Dataset, devices: Devices):
        at = AtRows.of(model, share)
        q = lax.stop_gradient(best_q(lax.stop_gradient(at), devices, tolerance=NEAR))
        return devices.mean(elbo_at(at.with_q(q), devices.count * len(share)).value), q

    value, q = over_devices(of, data)
    return value, (q, value)


def _from_q(model: Model, aux: tuple[Any, Any]) -> Model:
    return with_q(model, aux[0])


def maximise_profile(
    prior, model, data: Dataset, max_iter: int, progress, *frozen, float32_start=None
) -> tuple[OptimiseResult, float]:
    """The maximum of `profile`, whose model has the best q, and the bound there without the prior."""
    options = {"resume": _from_q, "float32_start": float32_start}
    result = maximise(profile, prior, model, data, max_iter, progress, posterior_q, *frozen, **options)
    return result, float(result.aux[1])


def maximise(
    objective,
    prior,
    model,
    data,
    max_iter,
    progress,
    *frozen,
    resume=None,
    float32_start=None,
    box=None,
    host=None,
    min_gain=None,
    window=None,
) -> OptimiseResult:
    """L-BFGS-B on all numbers of the model except the frozen ones, under the prior of its lengthscales.

    The rows are padded to a bucket. More than 20 numbers are in units of their own, except within a `box`. `resume`,
    `float32_start`, `box`, `min_gain` and `window` are those of `Objective` and `lbfgsb_in_rounds`; where none is given
    `min_gain` is `least_gain` if there are pseudo-points, and `window` is 5 beyond 5,000 rows. With `host`, the
    objective is a function of the model and (data, host(model, data)). Raises FitError with cause and remedy.
    """
    window = window or (WINDOW_OF_MANY_ROWS if len(data) > RACE_ROWS else None)
    numbers, data, M = trainable(model, *frozen), padded_to_bucket(data), len(model.posterior.Z)
    penalised = _penalised(objective, prior, numbers, data, host, resume, progress)
    probe = None
    if numbers.size > FEW and box is None and (M or max_iter > ROUND):
        probe = (data.sample(EXACT_SAMPLE, 0) if host else subset(objective, data, M, 0, PROBE_ROWS)), prior
    min_gain = (least_gain(data) if M else 0.0) if min_gain is None else min_gain
    rounds = {"probe": probe, "float32_start": float32_start, "box": box, "min_gain": min_gain, "window": window}
    with explained(model, data):
        return lbfgsb_in_rounds(penalised, max_iter=max_iter, **rounds)


def _penalised(objective, prior, numbers, data, host=None, resume=None, progress=None) -> Objective:
    """The objective of `maximise`, of the numbers of a model and padded rows."""
    M, C = len(numbers.model.posterior.Z), numbers.model.likelihood.latents
    return Objective(
        Penalised(objective),
        numbers,
        (data, prior),
        has_aux=True,
        resume=resume,
        scale=float(np.count_nonzero(data.weight)),
        progress=progress,
        compile_mode="once" if host else mode_of_evaluations(len(data) * (M or len(data)) * C),
        before=host and (lambda model, given: ((given[0], host(model, given[0])), given[1])),  # of (rows, prior)
    )


def float32_leads(objective, prior, model, data, *frozen) -> bool:
    """Whether the gradient at the model is the same in float32, but for 0.05 of its length. Raises FitError where the
    objective is not finite. Values say less: rounding may shift a bound as a whole, or tilt it about a value that is
    nearly right."""
    at = _penalised(objective, prior, trainable(model, *frozen), padded_to_bucket(data))
    (_, gradient), (value, rounded) = at.start(), at.start_in_float32()
    return bool(np.isfinite(value) and np.linalg.norm(rounded - gradient) <= LEADS * np.linalg.norm(gradient))


def curvature(objective, prior, model, data, places: np.ndarray, host=None) -> np.ndarray:
    """−∂²/∂ξᵢ∂ξⱼ of the objective less the penalty, nats, [P, P], in the P unconstrained numbers of the model at
    `places`, by differences of gradients, one for each number. Raises FitError where the objective is not finite."""
    at = _penalised(objective, prior, trainable(model), padded_to_bucket(data), host)
    _, gradient = at.start()
    x, step = at.best.copy(), np.finfo(float).eps ** (1 / 3)
    moved = [at(x + step * (np.arange(len(x)) == i)) for i in places]
    rows = [(slope - gradient)[places] if np.isfinite(value) else 0 * x[places] for value, slope in moved]
    H = at.scale / step * np.reshape(rows, (len(places), len(places)))
    return 0.5 * (H + H.T)


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
    skips = objective in (OfBound(collapsed, True), OfBound(collapsed, False))
    if not skips or not RACE_ROWS < len(data) <= COLLAPSED_ROWS:
        return cast(data.sample(RACE_ROWS, seed), data.X.dtype)
    least, data = max(least, int(share * len(data))), padded_to_bucket(data)
    size = chunk_size(len(data), M)
    count = size * -(-least // size)
    return data if np.count_nonzero(data.weight) <= count else cast(same_shape_sample(data, count, seed), data.X.dtype)


@contextmanager
def explained(model: Any, data: Dataset) -> Iterator[None]:
    """A FitError of an optimiser gets its cause and a remedy."""
    try:
        yield
    except FitError as error:
        raise FitError(f"{error}: {explain(model, data)}" if error.bare else str(error)) from None


def explain(model: Any, data: Dataset) -> str:
    """Why a bound is not finite: the data, or the covariance of the points that are factorised."""
    for name, values in (("inputs", data.X), ("target", data.y), ("weights", data.weight), ("noise", data.noise)):
        if not np.isfinite(np.asarray(values)).all():
            return f"the {name} contain NaN or infinity: drop or impute those rows"
    likelihood, count = model.likelihood.at(data), np.count_nonzero(data.weight)
    f = jnp.zeros((likelihood.latents, len(data)) if likelihood.latents > 1 else len(data), data.X.dtype)
    terms = np.asarray(likelihood.expectation(f, f + jnp.mean(model.kernel.diag(data.X)), data.y.T))
    bad = ~np.isfinite(terms) & (np.asarray(data.weight) > 0)
    if bad.any():
        value = float(np.ravel(np.asarray(data.y).T)[int(np.argmax(bad))])
        return (
            f"the likelihood {likelihood.name} gives E log p(y | f) = {terms[bad][0]:g} for the (scaled) target "
            f"{value:g}, and for {bad.sum()} of {count} rows: use a likelihood for such targets"
        )
    exact = not model.posterior.points
    points = data.sample(2000, 0).X if exact else model.posterior.Z
    K = np.asarray(model.kernel(jnp.asarray(points), jnp.asarray(points)))
    return explain_failure(K, "the covariance of the " + ("rows" if exact else "inducing points"), np.asarray(points))
