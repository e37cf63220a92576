"""How a regression model is fitted from start to finish: which method, how many pseudo-points, and each method's
course."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax

from .bounds import Collapsed, collapsed, marginal, upper
from .data import Dataset
from .gaussians import MeanPrecision
from .history import Progress, Record
from .inducing import candidates, sample
from .kernels import AbstractKernel, AbstractStationary, Periodic
from .likelihoods import Gaussian
from .linalg import explain_failure
from .minimisers import FitError, Maximum, lbfgsb
from .optimisers import NaturalGradient, averaging
from .params import cast, free
from .posteriors import InducingPoints, Model, Predictor, Whitened
from .training import fit, start

__all__ = ["METHODS", "Fitted", "Settings", "choose_method", "choose_num_inducing", "fit_regression"]

METHODS = ("auto", "exact", "collapsed", "svgp")
EXACT_ROWS = 1000
COLLAPSED_ROWS = 50_000
RACE_ROWS, RACE_ITERATIONS = 4000, 20
WARM_ROWS, WARM_ITERATIONS = 500, 50


class Settings(NamedTuple):
    """What a user may choose; None lets `fit_regression` choose."""

    method: str = "auto"
    num_inducing: int | None = None
    inducing: str | np.ndarray = "auto"
    learn_inducing: bool = True
    tight: bool = True
    warm: bool = False
    max_iter: int | None = None
    batch_size: int = 1024
    learning_rate: float = 0.02
    seed: int = 0


class Fitted(NamedTuple):
    """A fitted model, all it takes to predict, and what to tell the user. Bounds are of the standardised target."""

    model: Model
    predictor: Predictor
    method: str
    reason: str
    bound: float
    vfe: float
    upper: float
    history: tuple[Record, ...]
    undone: int
    converged: bool
    notes: tuple[str, ...]


def choose_method(N: int) -> tuple[str, str]:
    """The method for N rows, and why."""
    if N <= EXACT_ROWS:
        return "exact", f"{N} rows: the exact Gaussian process is affordable up to {EXACT_ROWS}"
    if N <= COLLAPSED_ROWS:
        return (
            "collapsed",
            f"{N} rows: too many for the exact method, and full passes are affordable up to {COLLAPSED_ROWS}",
        )
    return "svgp", f"{N} rows: minibatches, as full passes are slow beyond {COLLAPSED_ROWS}"


def choose_num_inducing(N: int) -> int:
    """M = 2√N between 50 and 300: the error falls fast with M at first, the cost rises with M²."""
    return int(min(N, np.clip(2 * np.sqrt(N), 50, 300)))


def fit_regression(
    kernel: AbstractKernel, likelihood: Gaussian, data: Dataset, settings: Settings, progress: Progress | None = None
) -> Fitted:
    """A Gaussian-likelihood model of `data` (standardised, [N, D]) by `settings.method`.

    Raises FitError with cause and remedy when a covariance matrix cannot be factorised or the fit is not finite.
    """
    method, reason = choose_method(len(data)) if settings.method == "auto" else (settings.method, "chosen by the user")
    model = cast(Model(kernel, likelihood), data.X.dtype)
    fitted = _COURSES[method](model, data, settings, progress)
    if not np.isfinite(fitted.bound):
        raise FitError(_explain(fitted.model, data))
    return fitted._replace(method=method, reason=reason)


def evidence(model: Model, data: Dataset):
    """log p(y)."""
    return marginal(model, data)[0]


def tight(model: Model, data: Dataset):
    """The tight collapsed bound."""
    return collapsed(model, data).tight


def vfe(model: Model, data: Dataset):
    """Titsias' collapsed bound."""
    return collapsed(model, data).vfe


def _fit_exact(model, data, settings, progress) -> Fitted:
    result = _maximise(evidence, model, data, settings.max_iter or 200, progress)
    value, predictor = marginal(result.model, data)
    value = float(value)
    return _fitted(result, predictor, value, value, value, ())


def _fit_collapsed(model, data, settings, progress) -> Fitted:
    model, notes = _start_sparse(model, data, settings)
    result = _maximise(_objective(settings), model, data, settings.max_iter or 200, progress, *_frozen(settings))
    return _finish(result, data, settings, notes)


def _fit_svgp(model, data, settings, progress) -> Fitted:
    """Minibatches; at the end q takes its optimum for all rows, a natural step of size 1."""
    model, notes = _start_sparse(model, data, settings)
    Z, dtype = model.posterior.Z, data.X.dtype
    q = MeanPrecision(jnp.zeros(len(Z), dtype), jnp.eye(len(Z), dtype=dtype))
    steps = settings.max_iter or 2000
    batch_size = min(settings.batch_size, len(data))
    stepper = _stepper(len(data), batch_size, steps, settings.learning_rate, settings.learn_inducing, settings.tight)
    state = start(Model(model.kernel, model.likelihood, Whitened(Z, q)), stepper, settings.seed)
    state, history = fit(state, stepper, data, steps=steps, batch_size=batch_size, progress=progress)
    learned = state.model
    model = Model(learned.kernel, learned.likelihood, InducingPoints(learned.posterior.Z))
    result = Maximum(model, np.nan, history, steps, history[-1].undone, True)
    return _finish(result, data, settings, notes)


_COURSES: dict[str, Callable[..., Fitted]] = {"exact": _fit_exact, "collapsed": _fit_collapsed, "svgp": _fit_svgp}


@lru_cache(maxsize=32)
def _stepper(num_data, batch_size, steps, learning_rate, learn_inducing, tight):
    """Made once for the same settings: a new optax optimiser is a new function, which JAX would compile again."""
    rest = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    return NaturalGradient(averaging(num_data, batch_size, 5.0), rest, () if learn_inducing else (_points,), tight)


def _points(model):
    return model.posterior.Z


def _objective(settings):
    return tight if settings.tight else vfe


def _frozen(settings):
    return () if settings.learn_inducing else (_points,)


def _start_sparse(model, data, settings):
    """The model with pseudo-points, and notes on where they came from.

    Where several starts are tried, each climbs the bound of a sample of rows for a few iterations, and the best goes on
    from where it stands. The bound before climbing is a poor judge: points move, and take the hyperparameters along.
    Warm hyperparameters race against cold ones, for few rows may mislead (rows that repeat look free of noise).
    """
    M = settings.num_inducing or choose_num_inducing(len(data))
    if not isinstance(settings.inducing, str):
        M = len(settings.inducing)
    runners = {}
    for origin, base in ({"": model} | ({" (warm)": _warm(model, data, settings)} if settings.warm else {})).items():
        for name, Z in candidates(settings.inducing, base.kernel, data, M, settings.seed).items():
            points = InducingPoints(jnp.asarray(Z, data.X.dtype))
            runners[name + origin] = Model(base.kernel, base.likelihood, points)
    name = next(iter(runners))
    if len(runners) > 1:
        few = cast(sample(data, RACE_ROWS, settings.seed), data.X.dtype)
        race = lambda runner: _maximise(_objective(settings), runner, few, RACE_ITERATIONS, None, *_frozen(settings))
        results = {name: race(runner) for name, runner in runners.items()}
        name = max(results, key=lambda name: results[name].bound)
        runners[name] = results[name].model
    used = len(runners[name].posterior.Z)
    notes = (f"inducing points: {used}, started by {name}",)
    if used < M:
        notes += (f"only {used} of {M} inducing points used: there are no more distinct rows for them",)
    return runners[name], notes


def _warm(model, data, settings):
    """The model with hyperparameters from an exact fit of a few rows, tempered.

    Sparse bounds have optima in which a weak input is ignored for good; an exact fit of few rows tells which inputs
    matter before any pseudo-point is placed. What it cannot know from few rows is held back: the noise starts no
    smaller than usual, and no input starts as irrelevant, where its gradient would vanish.
    """
    few = cast(sample(data, WARM_ROWS, settings.seed), data.X.dtype)
    learned = _maximise(evidence, model, few, WARM_ITERATIONS, None).model
    noise = Gaussian(jnp.maximum(learned.likelihood.variance, model.likelihood.variance))
    kernel = learned.kernel
    if isinstance(kernel, AbstractStationary | Periodic):
        longest = 2 * jnp.sqrt(jnp.asarray(data.X.shape[1], data.X.dtype))
        kernel = eqx.tree_at(lambda k: k.lengthscale, kernel, jnp.minimum(kernel.lengthscale, longest))
    return Model(kernel, noise)


def _maximise(objective, model, data, max_iter, progress, *frozen) -> Maximum:
    try:
        return lbfgsb(
            objective, free(model, *frozen), data, max_iter=max_iter, progress=progress, scale=float(len(data))
        )
    except FitError as error:
        raise FitError(f"{error}: {_explain(model, data)}") from None


def _finish(result: Maximum, data, settings, notes) -> Fitted:
    """The natural step of size 1 on all rows: the optimal q for the learned parameters, and the bounds around it."""
    c: Collapsed = collapsed(result.model, data)
    bound = float(c.tight if settings.tight else c.vfe)
    return _fitted(result, c.predictor, bound, float(c.vfe), float(upper(result.model, data)), notes)


def _fitted(result, predictor, bound, vfe, upper, notes) -> Fitted:
    return Fitted(
        result.model, predictor, "", "", bound, vfe, upper, result.history, result.undone, result.converged, notes
    )


def _explain(model: Any, data: Dataset) -> str:
    """Why a bound is not finite: the data, or the covariance of the points that are factorised."""
    for name, values in (("inputs", data.X), ("target", data.y), ("weights", data.weight), ("noise", data.noise)):
        if not np.isfinite(np.asarray(values)).all():
            return f"the {name} contain NaN or infinity: drop or impute those rows"
    exact = model.posterior is None
    points = sample(data, 2000, 0).X if exact else model.posterior.Z
    K = np.asarray(model.kernel(jnp.asarray(points), jnp.asarray(points)))
    return explain_failure(K, "the covariance of the " + ("rows" if exact else "inducing points"), np.asarray(points))
