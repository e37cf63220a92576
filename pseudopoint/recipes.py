"""How a regression model is fitted from start to finish: which method, how many pseudo-points, and each method's
course."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

from .bounds import Collapsed, collapsed, marginal, upper
from .data import Dataset
from .gaussians import MeanPrecision
from .history import Progress, Record
from .inducing import place, sample
from .kernels import AbstractKernel
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
WARM_ROWS = 4000


class Settings(NamedTuple):
    """What a user may choose; None lets `fit_regression` choose."""

    method: str = "auto"
    num_inducing: int | None = None
    inducing: str | np.ndarray = "auto"
    learn_inducing: bool = True
    tight: bool = True
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
    return _fitted(result, predictor, (value, value, value), ())


def _fit_collapsed(model, data, settings, progress) -> Fitted:
    model, notes = _place(model, data, settings)
    frozen = () if settings.learn_inducing else (lambda m: m.posterior.Z,)
    objective = tight if settings.tight else vfe
    result = _maximise(objective, model, data, settings.max_iter or 200, progress, *frozen)
    return _finish(result, data, settings, notes)


def _fit_svgp(model, data, settings, progress) -> Fitted:
    """Hyperparameters start from a collapsed fit of a sample; then minibatches; q ends at its optimum for all rows."""
    model, notes = _place(model, data, settings)
    frozen = () if settings.learn_inducing else (lambda m: m.posterior.Z,)
    rows = cast(sample(data, WARM_ROWS, settings.seed), data.X.dtype)
    warm = _maximise(tight if settings.tight else vfe, model, rows, 30, None, *frozen).model
    M, dtype = len(warm.posterior.Z), data.X.dtype
    q = MeanPrecision(jnp.zeros(M, dtype), jnp.eye(M, dtype=dtype))
    steps = settings.max_iter or 2000
    batch_size = min(settings.batch_size, len(data))
    rate = optax.cosine_decay_schedule(settings.learning_rate, steps)
    stepper = NaturalGradient(averaging(len(data), batch_size, 5.0), optax.adam(rate), frozen, settings.tight)
    state = start(Model(warm.kernel, warm.likelihood, Whitened(warm.posterior.Z, q)), stepper, settings.seed)
    state, history = fit(state, stepper, data, steps=steps, batch_size=batch_size, progress=progress)
    learned = state.model
    model = Model(learned.kernel, learned.likelihood, InducingPoints(learned.posterior.Z))
    result = Maximum(model, np.nan, history, steps, history[-1].undone, True)
    return _finish(result, data, settings, notes)


_COURSES: dict[str, Callable[..., Fitted]] = {"exact": _fit_exact, "collapsed": _fit_collapsed, "svgp": _fit_svgp}


def _place(model, data, settings):
    """The model with pseudo-points, and notes on where they came from."""
    M = settings.num_inducing or choose_num_inducing(len(data))
    if not isinstance(settings.inducing, str):
        M = len(settings.inducing)
    Z, name = place(settings.inducing, model, data, M, settings.seed)
    notes = (f"inducing points: {len(Z)}, started by {name}",)
    if len(Z) < M:
        notes += (f"{M} inducing points asked for, {len(Z)} used: there are no more distinct rows to place them on",)
    return Model(model.kernel, model.likelihood, InducingPoints(jnp.asarray(Z, data.X.dtype))), notes


def _maximise(objective, model, data, max_iter, progress, *frozen) -> Maximum:
    try:
        return lbfgsb(objective, free(model, *frozen), data, max_iter=max_iter, progress=progress, scale=len(data))
    except FitError as error:
        raise FitError(f"{error}: {_explain(model, data)}") from None


def _finish(result: Maximum, data, settings, notes) -> Fitted:
    """The natural step of size 1 on all rows: the optimal q for the learned parameters, and the bounds around it."""
    c: Collapsed = collapsed(result.model, data)
    bounds = (float(c.tight if settings.tight else c.vfe), float(c.vfe), float(upper(result.model, data)))
    return _fitted(result, c.predictor, bounds, notes)


def _fitted(result, predictor, bounds, notes) -> Fitted:
    return Fitted(result.model, predictor, "", "", *bounds, result.history, result.undone, result.converged, notes)


def _explain(model: Any, data: Dataset) -> str:
    """Why a bound is not finite: the data, or the covariance of the points that are factorised."""
    for name, values in (("inputs", data.X), ("target", data.y), ("weights", data.weight), ("noise", data.noise)):
        if not np.isfinite(np.asarray(values)).all():
            return f"the {name} contain NaN or infinity: drop or impute those rows"
    exact = model.posterior is None
    points = sample(data, 2000, 0).X if exact else model.posterior.Z
    K = np.asarray(model.kernel(jnp.asarray(points), jnp.asarray(points)))
    return explain_failure(K, "the covariance of the " + ("rows" if exact else "inducing points"), np.asarray(points))
