"""The papers' optimisers by name: each takes a model and a table, and gives a model and a history of the same form."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ..bounds import collapsed, elbo
from ..data import Dataset
from ..gaussians import AbstractGaussian, MeanChol, MeanPrecision
from ..params import trainable
from ..posteriors import Collapsed, Model, Whitened
from .fullbatch import FitError, Objective, OptimiseResult, converge, lbfgsb, projected_newton
from .minibatch import SAG, AbstractStepper, NaturalGradient, Optax, Sites, averaging, constant
from .minibatch.loop import fit, start
from .minibatch.schedules import Schedule
from .result import Progress

__all__ = ["OPTIMISERS", "RATE", "STEPS", "Optimiser", "Options", "in_coordinates", "optimise", "tight", "vfe"]


STEPS, RATE = 2000, 0.02  # of minibatches, and Adam's first rate


class Options(NamedTuple):
    """What may be chosen for any optimiser; None lets it choose.

    `learning_rate` is that of gradient descent or Adam, `gamma` a natural step size or a schedule of them (any optax
    schedule is one). `steps` are minibatch steps (default 2000), or iterations over all rows (default 200).
    """

    steps: int | None = None
    batch_size: int = 1024
    learning_rate: float | None = None
    gamma: float | Schedule | None = None
    learn_inducing: bool = True
    tight: bool = True
    seed: int = 0


class Optimiser(NamedTuple):
    """A method of the papers: the `method` of `recipes` that it is a way of, and the work."""

    method: str
    run: Callable[[Model, Dataset, Options, Progress | None], OptimiseResult]


def optimise(
    name: str, model: Model, data: Dataset, options: Options | None = None, progress: Progress | None = None
) -> OptimiseResult:
    """The model after an optimiser of `OPTIMISERS`, with its history.

    `model.posterior` is `Whitened` (or `IndependentLatents` of it), its q in any coordinates: it is brought to those
    that the optimiser moves, and returned in them. Those that integrate q out return the best q. Raises ValueError for
    a name that is not there, FitError where the likelihood does not fit the method, or the fit cannot go on.
    """
    if name not in OPTIMISERS:
        raise ValueError(f"optimiser={name!r} is unknown: use one of {', '.join(OPTIMISERS)}")
    return OPTIMISERS[name].run(model, data, options or Options(), progress)


def in_coordinates(model: Model, coordinates: type[AbstractGaussian]) -> Model:
    """The same model, its Gaussians in other coordinates. Ordinary gradients (`MeanChol`) take what is none as it is;
    else FitError."""
    convert = lambda q: coordinates.from_natural(q.to_natural())
    each = model.posterior.one
    names = [name for name in each.own if isinstance(getattr(each, name), AbstractGaussian)]
    if not names and coordinates is not MeanChol:
        raise FitError(f"{type(each).__name__} has no Gaussian q in coordinates: use 'Adam', 'GD' or 'L-BFGS'")
    for name in names:
        q = getattr(each, name)
        if not isinstance(q, coordinates):
            q = jax.jit(convert if q.mean.ndim == 1 else jax.vmap(convert))(q)
            each = eqx.tree_at(lambda p, name=name: getattr(p, name), each, q)
    return eqx.tree_at(lambda m: m.posterior.one, model, each)


def tight(model: Model, data: Dataset):
    """The tight collapsed bound."""
    return collapsed(model, data).value


def vfe(model: Model, data: Dataset):
    """Titsias' collapsed bound."""
    return collapsed(model, data).standard


def tight_elbo(model: Model, data: Dataset):
    """The tight bound of all rows at the model's own q."""
    return elbo(model, data, len(data)).value


def standard_elbo(model: Model, data: Dataset):
    """The standard bound of all rows at the model's own q."""
    return elbo(model, data, len(data)).standard


def _points(model):
    return model.posterior.points


def _stepping(coordinates, make, whole=False):
    """A stepper on minibatches, or on all rows every time."""

    def run(model, data, options, progress):
        steps = options.steps or (200 if whole else STEPS)
        batch_size = len(data) if whole else min(options.batch_size, len(data))
        stepper = make(len(data), batch_size, options._replace(steps=steps, seed=0))
        state = _start(in_coordinates(model, coordinates), stepper, data, options.seed)
        state, history = fit(state, stepper, data, steps=steps, batch_size=batch_size, progress=progress)
        return OptimiseResult(state.model, None, history[-1].bound, history, steps, state.rejected, True)

    return run


def _start(model, stepper, data, seed):
    try:
        return start(model, stepper, data, seed)
    except (TypeError, ValueError) as error:  # what a stepper cannot do, in its own words
        raise FitError(str(error)) from None


def _climbing(minimiser):
    """All rows, q by its Cholesky factor."""

    def run(model, data, options, progress):
        model = in_coordinates(model, MeanChol)
        bound = tight_elbo if options.tight else standard_elbo
        return minimiser(bound, model, () if options.learn_inducing else (_points,), data, options, progress)

    return run


def _means(minimiser):
    """All rows, q integrated out."""

    def run(model, data, options, progress):
        if model.likelihood.gaussian_noise is None:
            name = model.likelihood.name
            raise FitError(f"q can be integrated out for a Gaussian likelihood, not for {name}: use 'NGD+Adam'")
        points = Model(model.kernel, model.likelihood, Collapsed(model.posterior.Z, model.posterior.jitter))
        frozen = () if options.learn_inducing else (_points,)
        result = minimiser(tight if options.tight else vfe, points, frozen, data, options, progress)
        return result._replace(model=_with_best_q(result.model, data))

    return run


@jax.jit
def _with_best_q(points: Model, data) -> Model:
    M = points.posterior.Z.shape[0]
    prior = MeanPrecision(jnp.zeros(M, data.X.dtype), jnp.eye(M, dtype=data.X.dtype))
    posterior = Whitened(points.posterior.Z, prior, points.posterior.jitter)
    return converge(Model(points.kernel, points.likelihood, posterior), data)


def _quasi_newton(bound, model, frozen, data, options, progress):
    objective = Objective(bound, trainable(model, *frozen), data, scale=float(len(data)), progress=progress)
    return lbfgsb(objective, max_iter=options.steps or 200)


def _newton(bound, model, frozen, data, options, progress):
    objective = Objective(bound, trainable(model, *frozen), data, scale=float(len(data)), progress=progress)
    return projected_newton(objective, max_iter=options.steps or 50)


# Each is made once for the same options: a new optax optimiser is a new function, which JAX would compile again.


def _frozen(options: Options) -> tuple:
    return () if options.learn_inducing else (_points,)


def _descent(N, rate, steps):
    """Gradient descent on the bound of a row, so that a rate means the same for every table."""
    return optax.chain(optax.scale(1 / N), optax.sgd(optax.cosine_decay_schedule(rate, steps)))


def _adam(options, rate=RATE):
    return optax.adam(optax.cosine_decay_schedule(options.learning_rate or rate, options.steps))


def _gamma(options, default: Schedule) -> Schedule:
    if options.gamma is None:
        return default
    return options.gamma if callable(options.gamma) else constant(float(options.gamma))


@lru_cache(maxsize=32)
def _natural(N: int, B: int, options: Options) -> AbstractStepper:
    return NaturalGradient(_gamma(options, averaging(N, B)), tight=options.tight)


@lru_cache(maxsize=32)
def _natural_and_adam(N: int, B: int, options: Options, dual: bool = False) -> AbstractStepper:
    gamma = _gamma(options, averaging(N, B, 5.0, 0.1))
    return NaturalGradient(gamma, _adam(options), _frozen(options), options.tight, dual)


@lru_cache(maxsize=32)
def _natural_and_descent(N: int, B: int, options: Options) -> AbstractStepper:
    descent = _descent(N, options.learning_rate or 0.1, options.steps)
    return NaturalGradient(_gamma(options, averaging(N, B, 5.0, 0.1)), descent, _frozen(options), options.tight)


@lru_cache(maxsize=32)
def _all_by_adam(N: int, B: int, options: Options) -> AbstractStepper:
    return Optax(_adam(options), _frozen(options), options.tight)


@lru_cache(maxsize=32)
def _all_by_descent(N: int, B: int, options: Options) -> AbstractStepper:
    rate = options.learning_rate or 0.1
    return Optax(_descent(N, rate, options.steps), _frozen(options), options.tight)


@lru_cache(maxsize=32)
def _averaged(N: int, B: int, options: Options) -> AbstractStepper:
    rate = options.learning_rate or 0.1
    descent = _descent(N, rate, options.steps)
    return SAG(descent, descent, _frozen(options), options.tight)


@lru_cache(maxsize=32)
def _sites(N: int, B: int, options: Options) -> AbstractStepper:
    return Sites(_gamma(options, constant(1.0)), options.tight)


def _fixed_points(run):
    """As Izmailov's methods: pseudo-points stay where they started."""
    return lambda model, data, options, progress: run(model, data, options._replace(learn_inducing=False), progress)


# By the names of `names.OPTIMISERS`.
OPTIMISERS: dict[str, Optimiser] = {
    # Salimbeni, Eleftheriadis and Hensman 2018
    "NGD": Optimiser("svgp", _stepping(MeanPrecision, _natural)),
    "NGD+Adam": Optimiser("svgp", _stepping(MeanPrecision, _natural_and_adam)),
    "Adam": Optimiser("svgp", _stepping(MeanChol, _all_by_adam)),
    "GD": Optimiser("svgp", _stepping(MeanChol, _all_by_descent)),
    "L-BFGS": Optimiser("svgp", _climbing(_quasi_newton)),
    # Izmailov: pseudo-points fixed
    "svi-natural": Optimiser("svgp", _fixed_points(_stepping(MeanPrecision, _natural_and_descent))),
    "svi-SAG": Optimiser("svgp", _fixed_points(_stepping(MeanChol, _averaged))),
    "svi-FG": Optimiser("svgp", _fixed_points(_stepping(MeanChol, _all_by_descent, whole=True))),
    "svi-L-BFGS-B": Optimiser("svgp", _fixed_points(_climbing(_quasi_newton))),
    "vi-means": Optimiser("collapsed", _fixed_points(_means(_quasi_newton))),
    "means-L-BFGS-B": Optimiser("collapsed", _fixed_points(_means(_quasi_newton))),
    "means-PN": Optimiser("collapsed", _fixed_points(_means(_newton))),
    # Beyond the papers
    "t-SVGP": Optimiser("svgp", _stepping(MeanPrecision, partial(_natural_and_adam, dual=True))),
    "sites": Optimiser("svgp", _stepping(MeanPrecision, _sites)),
}
