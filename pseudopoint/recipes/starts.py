"""Where a fit starts: pseudo-points, warm hyperparameters, and races between them."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..compilation import same_shape_sample
from ..data import Dataset
from ..names import POSTERIORS
from ..optimise.fullbatch import OptimiseResult
from ..params import cast, trainable
from ..posteriors import Collapsed, Model, Whitened
from ..starts.inducing import RACE_ROWS, candidates, sample
from .families import FAMILIES, prior_q, several
from .objectives import (
    box_around,
    collapsed_objective,
    evidence,
    held_points,
    maximise,
    maximise_profile,
    profile,
    subset,
)
from .precision import FLOAT32_NOTE, Float32Start, float32_start_of
from .settings import COLLAPSED_ROWS, choose_num_inducing

__all__ = ["start_family", "start_general", "start_raced", "start_sparse"]

RACE_ITERATIONS = 14
SHORT_RACE = 8  # iterations, where each takes an inner loop
SMALL = 500  # rows for which the race goes on to the end
SAMPLE_ITERATIONS, SAMPLE_SHARE = 70, 1 / 3  # beyond `RACE_ROWS` rows
WARM_ROWS, WARM_ITERATIONS = 500, 50
ENOUGH_POINTS = 150  # for a warm fit of as many rows
ERROR_ROWS = 300  # of which each is foretold by the others
WARM_FACTOR = 10  # by which a number of the kernel may become larger or smaller


def start_general(model, data, settings):
    """Pseudo-points by k-means unless another way is asked for, and q(v) = p(v)."""
    way = "kmeans" if isinstance(settings.inducing, str) and settings.inducing == "auto" else settings.inducing
    ((name, runner),) = _general(model, data, settings, way).items()
    return runner, points_notes(name, len(runner.posterior.Z), asked(data, settings))


def start_raced(model, data, settings, prior):
    """The same from the start that climbs highest, as in `start_sparse`; several latent functions climb too slowly."""
    if model.likelihood.latents > 1:
        return start_general(model, data, settings)
    runners = _general(model, data, settings, settings.inducing)

    climb = lambda runner, few, length: maximise_profile(prior, runner, few, length, None, *held_points(settings))[0]
    race = min(SHORT_RACE, (settings.max_iter or 200) // 4 + 1)
    name, runner = _best(profile, runners, climb, data, settings, race)
    return runner, points_notes(name, len(runner.posterior.Z), asked(data, settings))


def _general(model, data, settings, way) -> dict[str, Model]:
    """A model for every way to place the points."""
    C, runners = model.likelihood.latents, {}
    for name, placed in candidates(way, model.kernel, data, asked(data, settings), settings.seed).items():
        Z = jnp.asarray(placed, data.X.dtype)
        runners[name] = Model(model.kernel, model.likelihood, several(Whitened(Z, prior_q(Z)), C))
    return runners


def asked(data, settings) -> int:
    """M, as asked for or chosen."""
    if not isinstance(settings.inducing, str):
        return len(settings.inducing)
    return settings.num_inducing or choose_num_inducing(len(data))


def _best(objective, runners: dict[str, Model], climb: Callable[..., OptimiseResult], data, settings, race: int):
    """The name of the start whose climb ends highest, and where it stands: after `race` iterations; beyond
    `RACE_ROWS` rows, where there is one start, after more on a sample of the rows."""
    large = len(data) > RACE_ROWS
    if len(runners) == 1 and not large:
        return next(iter(runners.items()))
    few = subset(objective, data, asked(data, settings), settings.seed, RACE_ROWS, SAMPLE_SHARE)
    length = min(SAMPLE_ITERATIONS, 10 * (settings.max_iter or 200)) if large else race
    results = {name: climb(runner, few, length) for name, runner in runners.items()}
    name = max(results, key=lambda name: results[name].bound)
    return name, results[name].model


def start_family(model, data, settings):
    """A posterior family at its start: Z by k-means, or as asked, and more points O by k-means with another seed."""
    way = "kmeans" if isinstance(settings.inducing, str) and settings.inducing == "auto" else settings.inducing
    M, family = asked(data, settings), FAMILIES[settings.posterior]
    place = lambda way, M, seed: next(iter(candidates(way, model.kernel, data, M, seed).items()))
    name, Z = place(way, M, settings.seed)
    notes = points_notes(name, len(Z), M)
    G = settings.num_mean_inducing or 2 * M
    O = place("kmeans", G, settings.seed + 1)[1] if family.more_points else np.zeros((0, data.X.shape[1]))
    if family.more_points:
        notes += (f"posterior {settings.posterior} ({POSTERIORS[settings.posterior]}): {len(O)} more points",)
    posterior = family.start(jnp.asarray(Z, data.X.dtype), jnp.asarray(O, data.X.dtype), model.kernel)
    return Model(model.kernel, model.likelihood, several(posterior, model.likelihood.latents)), notes


def points_notes(name, used, M):
    notes = (f"inducing points: {used}, started by {name}",)
    if used < M:
        notes += (f"only {used} of {M} inducing points used: there are no more distinct rows for them",)
    return notes


def start_sparse(model, data, settings, prior) -> tuple[Model, tuple[str, ...], Float32Start | None]:
    """The model with pseudo-points, notes on where they came from, and the test for a start in float32.

    Up to `RACE_ROWS` rows several starts are tried: each climbs for a few iterations, and the best goes on from where
    it stands. The bound before climbing is a poor judge: points move, and take the hyperparameters along. Warm
    hyperparameters race against cold ones, for few rows may mislead (rows that repeat look free of noise).

    Beyond, one start climbs the bound of a sample of the rows for many iterations, each a fraction of one on all rows:
    what is left to climb on all rows starts higher than from the best of a race.
    """
    M, runners, bases, float32_start = asked(data, settings), {}, {"": model}, None
    if settings.float32_start and len(data) > RACE_ROWS:
        few, rows = sample(data, ERROR_ROWS, settings.seed), float(np.sum(data.weight))
        float32_start = float32_start_of(model.kernel, few, rows)
    if settings.warm:
        warm = _warm(model, data, settings, prior, np.float32 if float32_start else data.X.dtype)
        bases = ({} if len(data) > RACE_ROWS else bases) | {" (warm)": warm}
    for origin, base in bases.items():
        for name, Z in candidates(settings.inducing, base.kernel, data, M, settings.seed).items():
            posterior = Collapsed(jnp.asarray(Z, data.X.dtype))
            runners[name + origin] = Model(base.kernel, base.likelihood, posterior)
    race = max(RACE_ITERATIONS, settings.max_iter or 200) if len(data) <= SMALL else RACE_ITERATIONS
    objective, held = collapsed_objective(settings), held_points(settings)
    climb = lambda runner, few, length: maximise(
        objective, prior, runner, few, length, None, *held, float32_start=float32_start
    )
    name, runner = _best(objective, runners, climb, data, settings, race)
    notes = points_notes(name, len(runner.posterior.Z), M) + (FLOAT32_NOTE,) * (float32_start is not None)
    return runner, notes, float32_start


def _warm(model, data, settings, prior, dtype) -> Model:
    """The model with hyperparameters from an exact fit of a few rows, tempered.

    Sparse bounds have optima in which a weak input is ignored for good; an exact fit of few rows tells which inputs
    matter before any pseudo-point is placed. What it cannot know from few rows is held back: the noise starts no
    smaller than usual, the variance no larger (on NAVAL it came to 218, from where 200 iterations did not find back),
    and no input starts as irrelevant, where its gradient would vanish. It vanishes too where a lengthscale is below the
    distance of any two values of a column, and L-BFGS-B's first long steps may reach that place: so the kernel stays in
    a box (one column of NAVAL has 19 values, and without the box three samples of ten ended there, for good).
    """
    start, few = _on_few_rows(model, data, settings)
    start, few, prior = cast((start, few, prior), dtype)
    objective = evidence if not start.posterior.points else collapsed_objective(settings)
    held = held_points(settings)
    box = box_around(trainable(start, *held), kernel=np.log(WARM_FACTOR), likelihood=np.inf, posterior=0.0)
    learned = maximise(objective, prior, start, few, WARM_ITERATIONS, None, *held, box=box).model
    noisier = max(learned.likelihood, model.likelihood, key=lambda likelihood: float(likelihood.gaussian_noise))
    kernel = learned.kernel
    if kernel.scales is not None:
        lengthscale, variance = (np.asarray(x) for x in model.kernel.scales)
        bounded = np.minimum(kernel.scales[0], 2 * lengthscale), np.minimum(kernel.scales[1], variance)
        kernel = eqx.tree_at(lambda k: k.scales, kernel, bounded)
    return cast(Model(kernel, noisier), data.X.dtype)


def _on_few_rows(model, data, settings) -> tuple[Model, Dataset]:
    """A model and a sample of rows whose exact evidence is to be maximised.

    With many pseudo-points, as many rows with a point at each: there the collapsed bound is the evidence, and its
    program is needed later in any case.
    """
    M = asked(data, settings)
    if len(data) <= RACE_ROWS or M < ENOUGH_POINTS:
        return model, sample(data, WARM_ROWS, settings.seed)
    rows = data if len(data) <= COLLAPSED_ROWS else sample(data, RACE_ROWS, settings.seed)
    few = same_shape_sample(rows, M, settings.seed)
    return Model(model.kernel, model.likelihood, Collapsed(few.X[:M])), few
