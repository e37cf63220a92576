"""Where a fit starts: pseudo-points, warm hyperparameters, and the choice among several starts."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..bounds import collapsed, marginal
from ..compilation import same_shape_sample
from ..data import Dataset
from ..kernels import AbstractKernel, lengthscales
from ..names import POSTERIORS
from ..optimise.fullbatch import OptimiseResult
from ..optimise.named import held_points
from ..params import cast, trainable
from ..posteriors import Collapsed, Model
from ..starts.inducing import RACE_ROWS, candidates
from .families import FAMILIES, several
from .objectives import OfBound, box_around, maximise, maximise_profile, profile, subset
from .precision import FLOAT32_NOTE, Float32Start, float32_start_of
from .settings import COLLAPSED_ROWS, HeavyTails, choose_num_inducing

RACE_ITERATIONS = 14
SHORT_RACE = 8  # iterations that contain an inner loop each
SMALL = 500  # rows up to which every start is fitted to the end
SAMPLE_ITERATIONS, SAMPLE_SHARE = 70, 1 / 3  # beyond `RACE_ROWS` rows
BRIEF_SAMPLE = 30  # iterations there after a search, which leaves points to be moved
WARM_ROWS, WARM_ITERATIONS = 500, 50
ENOUGH_POINTS = 150  # from which a warm fit has one row for each point
ERROR_ROWS = 300  # whose leave-one-out error estimates the noise
FLOAT32_ROWS = 1500  # from which an exact fit gains by a start in float32 more than its programs take to compile
WARM_FACTOR = 10  # by which a number of the kernel may grow or shrink on few rows, or on a sample after a search

Notes = tuple[str, ...]


class Warm(NamedTuple):
    """A better start than that of a model: kernel and likelihood with Gaussian noise that a search found, with `tails`
    where it found Student-t noise; or, `learned`, all that an earlier fit ended with, and its posterior where q is
    known; `widen` says whether its variances may be widened."""

    model: Model
    tails: HeavyTails | None = None
    learned: bool = False
    widen: bool = False


def num_points(model, data, settings) -> int:
    """M, as given or chosen."""
    if not isinstance(settings.inducing, str):
        return len(settings.inducing)
    return settings.num_inducing or choose_num_inducing(len(data), model.likelihood.latents)


def place_points(model, data, settings):
    """Z [M, D], by k-means unless the settings say how, O by k-means with another seed for a posterior that has more
    points ([0, D] for others), and notes."""
    automatic = isinstance(settings.inducing, str) and settings.inducing == "auto"
    place = lambda how, M, seed: next(iter(candidates(how, model.kernel, data, M, seed).items()))
    M, seed, name = num_points(model, data, settings), settings.seed, settings.posterior
    placement, Z = place("kmeans" if automatic else settings.inducing, M, seed)
    O, notes = np.zeros((0, data.X.shape[1])), _notes(placement, len(Z), M)
    if FAMILIES[name].more_points:
        _, O = place("kmeans", settings.num_mean_inducing or 2 * M, seed + 1)
        notes += (f"posterior {name} ({POSTERIORS.get(name, 'of your own')}): {len(O)} more points",)
    return jnp.asarray(Z, data.X.dtype), jnp.asarray(O, data.X.dtype), notes


def start_plain(model, data, settings) -> tuple[Model, Notes]:
    """The posterior of the settings at its prior, and where its points came from."""
    Z, O, notes = place_points(model, data, settings)
    return _at_prior(model, Z, O, settings.posterior), notes


def _at_prior(model, Z, O, name) -> Model:
    posterior = FAMILIES[name].start(Z, O, model.kernel)
    return Model(model.kernel, model.likelihood, several(posterior, model.likelihood.latents))


def _notes(placement, used, M) -> Notes:
    notes = (f"inducing points: {used}, started by {placement}",)
    if used < M:
        notes += (f"only {used} of {M} inducing points used: there are no more distinct rows for them",)
    return notes


def start_raced(model, data, settings, prior) -> tuple[Model, Notes]:
    """`Whitened` at the prior, from the placement whose short fit has the highest bound (`_best`).

    Several latent functions take one placement, because their fits are too slow for a choice.
    """
    if model.likelihood.latents > 1:
        return start_plain(model, data, settings)
    M, starts = num_points(model, data, settings), {}
    for name, Z in candidates(settings.inducing, model.kernel, data, M, settings.seed).items():
        starts[name] = _at_prior(model, jnp.asarray(Z, data.X.dtype), None, "whitened")

    fit = lambda start, few, length: maximise_profile(prior, start, few, length, None, *held_points(settings))[0]
    length = min(SHORT_RACE, (settings.max_iter or 200) // 4 + 1)
    name, start = _best(profile, starts, fit, data, settings, length)
    return start, _notes(name, len(start.posterior.Z), M)


def start_sparse(model, data, settings, prior, given=None) -> tuple[Model, Notes, Float32Start | None]:
    """A `Collapsed` model, where its points came from, and the test for a start in float32.

    Up to `RACE_ROWS` rows the starts are every placement with the hyperparameters as they are and with warm ones. All
    are fitted for a few iterations, because the bound before is a poor judge: points move, and the hyperparameters with
    them. Warm hyperparameters are not always better: few rows may mislead (rows that repeat look free of noise).

    Beyond, one start is fitted to a sample of the rows for many iterations, each a fraction of one on all rows. It ends
    higher than the best of many starts would.
    """
    M, starts, bases = num_points(model, data, settings), {}, {"": model}
    float32_start = float32_start_on_sample(model.kernel, data, settings)
    if given is not None:  # by a search, which tried several starts, or by a fit
        base = begun(model, given) if given.learned else _limited(given.model, model, data.X.dtype)
        bases = {" (warm_start)" if given.learned else " (search)": base}
    elif settings.warm:
        warm = _warm(model, data, settings, prior, np.float32 if float32_start else data.X.dtype)
        bases = ({} if len(data) > RACE_ROWS else bases) | {" (warm)": warm}
    for origin, base in bases.items():
        for name, Z in candidates(settings.inducing, base.kernel, data, M, settings.seed).items():
            posterior = Collapsed(jnp.asarray(Z, data.X.dtype))
            starts[name + origin] = Model(base.kernel, base.likelihood, posterior)
    length = max(RACE_ITERATIONS, settings.max_iter or 200) if len(data) <= SMALL else RACE_ITERATIONS
    bound, options = OfBound(collapsed, settings.tight), {"float32_start": float32_start}
    held, brief = held_points(settings), given is not None and len(data) > RACE_ROWS
    most = BRIEF_SAMPLE if brief else max(length, SAMPLE_ITERATIONS)
    # The first long steps may switch off a part of a kernel that a search found, which then has no gradient.
    box = lambda start: box_around(trainable(start, *held), np.log(WARM_FACTOR), np.inf, np.inf) if brief else None

    def fit(start, few, length):
        return maximise(bound, prior, start, few, min(length, most), None, *held, box=box(start), **options)

    if given is not None and given.learned and len(starts) == 1:
        name, start = next(iter(starts.items()))
    else:
        name, start = _best(bound, starts, fit, data, settings, length)
    notes = _notes(name, len(start.posterior.Z), M) + (FLOAT32_NOTE,) * (float32_start is not None)
    return start, notes, float32_start


def float32_start_on_sample(kernel: AbstractKernel, data: Dataset, settings, exact=False) -> Float32Start | None:
    """The test for a start in float32 of a collapsed or exact fit; None where there are too few rows for it to pay, or
    the settings refuse it."""
    if not settings.float32_start or len(data) <= (FLOAT32_ROWS if exact else RACE_ROWS):
        return None
    few = data.sample(ERROR_ROWS, settings.seed)
    return float32_start_of(kernel, few, data.total_weight, few.X if exact else None)


def _best(objective, starts: dict[str, Model], fit: Callable[..., OptimiseResult], data, settings, length: int):
    """The name of the start whose fit of `length` iterations has the highest bound, and the model where it ended.

    Beyond `RACE_ROWS` rows there is one start, which is fitted for longer to a subset of the rows.
    """
    large = len(data) > RACE_ROWS
    if len(starts) == 1 and not large:
        return next(iter(starts.items()))
    model = next(iter(starts.values()))
    few = subset(objective, data, num_points(model, data, settings), settings.seed, RACE_ROWS, SAMPLE_SHARE)
    length = min(SAMPLE_ITERATIONS, 10 * (settings.max_iter or 200)) if large else length
    results = {name: fit(start, few, length) for name, start in starts.items()}
    name = max(results, key=lambda name: results[name].bound)
    return name, results[name].model


def _warm(model, data, settings, prior, dtype) -> Model:
    """The model with hyperparameters from an exact fit to a few rows, within limits.

    A sparse bound has local optima in which a weak input is ignored for good. An exact fit to few rows shows which
    inputs matter before any pseudo-point is placed. What few rows cannot show is limited: the noise starts no smaller
    than usual, the variance no larger (on NAVAL it reached 218, from where 200 iterations did not return), and no
    lengthscale above twice its start, where its gradient would vanish. The gradient also vanishes where a lengthscale
    is below the distance of any two values of a column, and the first long steps of L-BFGS-B may end there. So the
    kernel stays in a box: one column of NAVAL has 19 values, and without the box three samples of ten ended there.
    """
    start, few = _on_few_rows(model, data, settings)
    start, few, prior = cast((start, few, prior), dtype)
    objective = OfBound(collapsed, settings.tight) if start.posterior.points else OfBound(marginal)
    held = held_points(settings)
    box = box_around(trainable(start, *held), kernel=np.log(WARM_FACTOR), likelihood=np.inf, posterior=0.0)
    learned = maximise(objective, prior, start, few, WARM_ITERATIONS, None, *held, box=box).model
    return _limited(learned, model, data.X.dtype)


def _limited(learned: Model, model: Model, dtype) -> Model:
    """What few rows cannot show is limited by the start `model` (`_warm`)."""
    noise = lambda likelihood: float(np.mean(likelihood.gaussian_noise))  # of several outputs the mean
    noisier = max(learned.likelihood, model.likelihood, key=noise)
    kernel, start = limited_lengthscales(learned.kernel, model.kernel), model.kernel.scales
    if kernel.scales is not None and start is not None:
        variance = np.minimum(kernel.scales[1], np.asarray(start[1]))
        kernel = eqx.tree_at(lambda k: k.scales[1], kernel, variance)
    return cast(Model(kernel, noisier), dtype)


def from_kernel(model: Model, warm: Warm | None) -> Model:
    """The model with the kernel of a warmer start, if there is one: of a search within the limits of what few rows
    show."""
    if warm is None or warm.learned:
        return begun(model, warm)
    return Model(limited_lengthscales(warm.model.kernel, model.kernel), model.likelihood)


def begun(model: Model, warm: Warm | None) -> Model:
    """The model with what a warmer start has, if there is one; the likelihood of a fit is the model's already."""
    if warm is None:
        return model
    return Model(warm.model.kernel, model.likelihood if warm.learned else warm.model.likelihood)


def with_learned_q(model: Model, warm: Warm | None) -> Model:
    """The model with the q of an earlier fit, where that is known at the same points."""
    if warm is None or warm.model.posterior.closed_form:
        return model
    Z, learned = model.posterior.Z, warm.model.posterior.Z
    same = np.shape(Z) == np.shape(learned) and np.allclose(Z, learned)
    return Model(model.kernel, model.likelihood, warm.model.posterior) if same else model


def limited_lengthscales(learned: AbstractKernel, start: AbstractKernel) -> AbstractKernel:
    """The kernel with no lengthscale above twice that of `start`, a kernel of the same form."""
    pairs = zip(lengthscales(learned), lengthscales(start), strict=True)
    limited = [jnp.minimum(l, 2 * l0) for l, l0 in pairs]
    return eqx.tree_at(lengthscales, learned, limited) if limited else learned


def _on_few_rows(model, data, settings) -> tuple[Model, Dataset]:
    """A model and a sample of rows whose exact evidence is to be maximised.

    With many pseudo-points, as many rows with a point at each: there the collapsed bound is the evidence, and its
    program is needed later in any case.
    """
    M = num_points(model, data, settings)
    if len(data) <= RACE_ROWS or M < ENOUGH_POINTS:
        return model, data.sample(WARM_ROWS, settings.seed)
    rows = data if len(data) <= COLLAPSED_ROWS else data.sample(RACE_ROWS, settings.seed)
    few = same_shape_sample(rows, M, settings.seed)
    return Model(model.kernel, model.likelihood, Collapsed(few.X[:M])), few
