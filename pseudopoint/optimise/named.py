"""The papers' optimisers by name: each takes a model and a table, and returns a model and a history."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from ..bounds import Chosen, collapsed, elbo
from ..data import Dataset
from ..gaussians import AbstractGaussian, MeanChol, MeanPrecision
from ..params import trainable
from ..posteriors import Model
from .fullbatch import FitError, Objective, OptimiseResult, converge, lbfgsb, projected_newton
from .minibatch import SAG, AbstractStepper, Alternate, NaturalGradient, Optax, Sites, averaging, constant, with_q
from .minibatch.loop import fit, start
from .minibatch.schedules import Schedule
from .result import Progress
from .transformation import GradientTransformation

STEPS, RATE = 2000, 0.02  # of minibatches, and Adam's first rate
DESCENT_RATE = 0.1


class Options(NamedTuple):
    """What may be chosen for any optimiser; None lets it choose.

    `learning_rate` is that of gradient descent or Adam, `gamma` a natural step size or a schedule of them (any optax
    schedule is one). `steps` are minibatch steps (default 2000), or iterations over all rows (default 200). `prior` is
    that of `VariationalStep`, for optimisers that are one.
    """

    steps: int | None = None
    batch_size: int = 1024
    learning_rate: float | None = None
    gamma: float | Schedule | None = None
    learn_inducing: bool = True
    tight: bool = True
    seed: int = 0
    prior: Any = None


class Optimiser(NamedTuple):
    """A method of the papers: the `method` of an estimator that it belongs to, and the work."""

    method: str
    run: Callable[[Model, Dataset, Options, Progress | None], OptimiseResult]


def optimise(
    name: str, model: Model, data: Dataset, options: Options | None = None, progress: Progress | None = None
) -> OptimiseResult:
    """The model after an optimiser of `OPTIMISERS`, with its history.

    `model.posterior` is `Whitened` (or `IndependentLatents` of it), its q in any coordinates: it is brought to those
    that the optimiser moves, and returned in them. Optimisers that integrate q out return the best q. Raises ValueError
    for an unknown name, FitError where the likelihood does not fit the method, or the fit cannot go on.
    """
    if name not in OPTIMISERS:
        raise ValueError(f"optimiser={name!r} is unknown: use one of {', '.join(OPTIMISERS)}")
    return OPTIMISERS[name].run(model, data, options or Options(), progress)


def in_coordinates(model: Model, coordinates: type[AbstractGaussian]) -> Model:
    """The same model, its q in other coordinates, and what other Gaussians it has in `MeanChol`, for ordinary gradients
    move them. A posterior without one stays as it is for `MeanChol`, as these move any numbers; for others FitError."""
    convert = lambda kind, q: kind.from_natural(q.to_natural())
    one = model.posterior.one
    # A family's fields are of any type: those that are Gaussians have coordinates.
    names = [name for name in one.own if isinstance(getattr(one, name), AbstractGaussian)]
    if not names and coordinates is not MeanChol:
        raise FitError(f"{type(one).__name__} has no Gaussian q in coordinates: use 'Adam', 'GD' or 'L-BFGS'")
    for name in names:
        q, kind = getattr(one, name), coordinates if name == "q" else MeanChol
        if not isinstance(q, kind):
            several = min(map(jnp.ndim, jax.tree.leaves(q))) > 1  # `mean` of some coordinates is computed from one q
            q = jax.jit(jax.vmap(partial(convert, kind)) if several else partial(convert, kind))(q)
            one = eqx.tree_at(lambda p, name=name: getattr(p, name), one, q)
    return eqx.tree_at(lambda m: m.posterior.one, model, one)


def _elbo(model: Model, data: Dataset):
    """The bound of all rows at the model's own q."""
    return elbo(model, data, len(data))


tight, vfe = Chosen(collapsed, True), Chosen(collapsed, False)
tight_elbo, standard_elbo = Chosen(_elbo, True), Chosen(_elbo, False)


def points(model: Model) -> Any:
    """The model's pseudo-points."""
    return model.posterior.points


def posterior_q(model: Model) -> Any:
    """The model's q."""
    return model.posterior.q


def held_points(options: Any) -> tuple:
    """What does not move where pseudo-points are to stay, by options or settings."""
    return () if options.learn_inducing else (points,)


# --- Minibatches -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _made(make, N: int, B: int, options: Options) -> AbstractStepper:
    """Made once for the same options: a new optax optimiser is a new function, which JAX would compile again."""
    return make(N, B, options)


def _steps(
    coordinates: type[AbstractGaussian],
    make: Callable[[int, int, Options], AbstractStepper],
    whole: bool = False,
    q_alone: bool = False,
):
    """The stepper of (N, B, options) on minibatches, or on all rows every time; `q_alone` moves nothing but q."""

    def run(model, data, options, progress):
        one = model.posterior.one
        if q_alone and (still := [name for name in one.own if name != "q"]):
            raise FitError(
                f"{type(one).__name__} has {' and '.join(still)} to learn besides q, which this optimiser would leave "
                "as the prior has it: use 'NGD+Adam', 'Adam' or 'L-BFGS'"
            )
        steps = (200 if whole else STEPS) if options.steps is None else options.steps
        batch_size = len(data) if whole else min(options.batch_size, len(data))
        stepper: Any = _made(make, len(data), batch_size, options._replace(steps=steps, seed=0, prior=None))
        if options.prior is not None:
            stepper = replace(stepper, prior=options.prior)
        try:
            state = start(in_coordinates(model, coordinates), stepper, data, options.seed)
        except (TypeError, ValueError) as error:  # the stepper's sentence on what it cannot move
            raise FitError(str(error)) from None
        state, history = fit(state, stepper, data, steps=steps, batch_size=batch_size, progress=progress)
        return OptimiseResult(state.model, None, history[-1].bound, history, steps, state.rejected, True)

    return run


def _descent(N, options):
    """Gradient descent on the bound of a row, so that a rate means the same for every table."""
    import optax

    rate = DESCENT_RATE if options.learning_rate is None else options.learning_rate
    return optax.chain(optax.scale(1 / N), optax.sgd(optax.cosine_decay_schedule(rate, options.steps)))


def _adam(N, options):
    return adam(RATE if options.learning_rate is None else options.learning_rate, options.steps)


@lru_cache(maxsize=64)
def adam(rate: float, steps: int) -> GradientTransformation:
    """Adam, its rate falling to 0 along a cosine. The same object for the same numbers: JAX compiles a step again for
    another optimiser, which is a new function."""
    import optax

    return optax.adam(optax.cosine_decay_schedule(rate, steps))


def _gamma(options, default: Schedule) -> Schedule:
    if options.gamma is None:
        return default
    return options.gamma if callable(options.gamma) else constant(float(options.gamma))


def _slow(N, B, options) -> Schedule:
    """Steps of q that are small enough for hyperparameters to move with it."""
    return _gamma(options, averaging(N, B, 5.0, 0.1))


def _natural(N, B, options):
    return NaturalGradient(_gamma(options, averaging(N, B)), tight=options.tight)


def _natural_beside(others, N, B, options, dual=False):
    return NaturalGradient(_slow(N, B, options), others(N, options), held_points(options), options.tight, dual)


def _alternating(N, B, options):
    """Adam's step on all but q, then a natural one on q from where it arrived (Salimbeni et al. 2018, 5.3)."""
    natural = NaturalGradient(_slow(N, B, options), tight=options.tight)
    return Alternate(Optax(_adam(N, options), (posterior_q, *held_points(options)), options.tight), natural)


def _ordinary(by, N, B, options):
    return Optax(by(N, options), held_points(options), options.tight)


def _averaged(N, B, options):
    descent = _descent(N, options)
    return SAG(descent, descent, held_points(options), options.tight)


def _sites(N, B, options):
    return Sites(_gamma(options, constant(1.0)), options.tight)


# --- All rows --------------------------------------------------------------------------------------------------------


def _with_own_q(minimise, max_iter):
    """On the bound at the model's own q, which moves by its Cholesky factor."""

    def run(model, data, options, progress):
        model = in_coordinates(model, MeanChol)
        return _maximum(minimise, max_iter, _elbo, model, held_points(options), data, options, progress)

    return run


def _with_best_q(minimise, max_iter):
    """On the collapsed bound, in which q is integrated out; in the end q is the best one."""

    def run(model, data, options, progress):
        if model.likelihood.gaussian_noise is None:
            name = model.likelihood.name
            raise FitError(f"q can be integrated out for a Gaussian likelihood, not for {name}: use 'NGD+Adam'")
        frozen = (posterior_q, *held_points(options))
        result = _maximum(minimise, max_iter, collapsed, model, frozen, data, options, progress)
        return result._replace(model=_settled(result.model, data))

    return run


@jax.jit
def _settled(model, data):
    M, dtype = len(model.posterior.Z), data.X.dtype
    prior = MeanPrecision(jnp.zeros(M, dtype), jnp.eye(M, dtype=dtype))
    return converge(with_q(model, prior), data)


def _maximum(minimise, max_iter, bound, model, frozen, data, options, progress) -> OptimiseResult:
    numbers, chosen = trainable(model, *frozen), Chosen(bound, options.tight)
    objective = Objective(chosen, numbers, data, scale=float(len(data)), progress=progress)
    return minimise(objective, max_iter=max_iter if options.steps is None else options.steps)


def _fixed_points(run):
    """As Izmailov's methods: pseudo-points stay where they started."""
    return lambda model, data, options, progress: run(model, data, options._replace(learn_inducing=False), progress)


_OWN_Q, _BEST_Q = _with_own_q(lbfgsb, 200), _with_best_q(lbfgsb, 200)

# By the names of `names.OPTIMISERS`.
OPTIMISERS: dict[str, Optimiser] = {
    # Salimbeni, Eleftheriadis and Hensman 2018
    "NGD": Optimiser("svgp", _steps(MeanPrecision, _natural, q_alone=True)),
    "NGD+Adam": Optimiser("svgp", _steps(MeanPrecision, _alternating)),
    "Adam": Optimiser("svgp", _steps(MeanChol, partial(_ordinary, _adam))),
    "GD": Optimiser("svgp", _steps(MeanChol, partial(_ordinary, _descent))),
    "L-BFGS": Optimiser("svgp", _OWN_Q),
    # Izmailov: pseudo-points fixed
    "svi-natural": Optimiser("svgp", _fixed_points(_steps(MeanPrecision, partial(_natural_beside, _descent)))),
    "svi-SAG": Optimiser("svgp", _fixed_points(_steps(MeanChol, _averaged))),
    "svi-FG": Optimiser("svgp", _fixed_points(_steps(MeanChol, partial(_ordinary, _descent), whole=True))),
    "svi-L-BFGS-B": Optimiser("svgp", _fixed_points(_OWN_Q)),
    "vi-means": Optimiser("collapsed", _fixed_points(_BEST_Q)),
    "means-L-BFGS-B": Optimiser("collapsed", _fixed_points(_BEST_Q)),
    "means-PN": Optimiser("collapsed", _fixed_points(_with_best_q(projected_newton, 50))),
    # Beyond the papers
    "NGD+Adam, one pass": Optimiser("svgp", _steps(MeanPrecision, partial(_natural_beside, _adam))),
    "t-SVGP": Optimiser("svgp", _steps(MeanPrecision, partial(_natural_beside, _adam, dual=True))),
    "sites": Optimiser("svgp", _steps(MeanPrecision, _sites, q_alone=True)),
}
