"""How a model is fitted from start to finish: which method, how many pseudo-points, and each method's course."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .bounds import Collapsed, collapsed, elbo, marginal, upper
from .data import Dataset, chunked
from .gaussians import MeanPrecision
from .history import Progress, Record
from .inducing import candidates, sample
from .kernels import AbstractKernel, AbstractStationary, Periodic
from .laplace import laplace
from .likelihoods import AbstractLikelihood, Gaussian
from .likelihoods import Laplace as DoubleExponential
from .linalg import explain_failure
from .minimisers import FitError, Maximum, lbfgsb
from .optimise import OPTIMISERS, Options, in_coordinates, optimise, tight, vfe
from .optimisers import converge
from .params import cast, free
from .posteriors import InducingPoints, Latents, Model, Predictor, Predictors, Whitened

__all__ = ["METHODS", "Fitted", "Settings", "choose_method", "choose_num_inducing", "fit_model"]

METHODS = ("auto", "exact", "laplace", "collapsed", "svgp")
EXACT_ROWS = 1000
COLLAPSED_ROWS = 50_000
FULL_BATCH = 2000  # rows, for likelihoods without a closed form
AT_ONCE = 2e7  # numbers of the features of all rows that may be held together
RACE_ROWS, RACE_ITERATIONS = 4000, 20
BOLD_RATE = 0.03  # of Adam, for likelihoods that tell less of the latent function than a Gaussian does
SMALL = 500  # rows for which the race goes on to the end
WARM_ROWS, WARM_ITERATIONS = 500, 50


class Settings(NamedTuple):
    """What a user may choose; None lets `fit_model` choose."""

    method: str = "auto"
    optimiser: str = "auto"
    num_inducing: int | None = None
    inducing: str | np.ndarray = "auto"
    learn_inducing: bool = True
    tight: bool = True
    warm: bool = False
    max_iter: int | None = None
    batch_size: int = 1024
    learning_rate: float | None = None
    seed: int = 0


class Fitted(NamedTuple):
    """A fitted model, all it takes to predict, and what to tell the user. Bounds are of the standardised target.

    Only a Gaussian likelihood has an upper bound; else `upper` is infinite. With `laplace`, the "bound" is none: it is
    Laplace's approximation of the log evidence.
    """

    model: Model
    predictor: Predictor | Predictors
    method: str
    reason: str
    bound: float
    vfe: float
    upper: float
    history: tuple[Record, ...]
    undone: int
    converged: bool
    notes: tuple[str, ...]


def choose_method(N: int, likelihood: AbstractLikelihood) -> tuple[str, str]:
    """The method for N rows, and why."""
    if not isinstance(likelihood, Gaussian):
        # Several latent functions take more steps to their best posterior, each blind to the others.
        most = FULL_BATCH if likelihood.latents == 1 else FULL_BATCH // (2 * likelihood.latents)
        if N <= most:
            return "collapsed", f"{N} rows: few enough for full passes with the best posterior at every step"
        return "svgp", f"{N} rows: minibatches, as full passes are slow for this likelihood beyond {most}"
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


def fit_model(
    kernel: AbstractKernel,
    likelihood: AbstractLikelihood,
    data: Dataset,
    settings: Settings,
    progress: Progress | None = None,
) -> Fitted:
    """A model of `data` (standardised, [N, D]) by `settings.method`.

    Raises FitError with cause and remedy when a covariance matrix cannot be factorised or the fit is not finite, and
    where the method has no use for the likelihood.
    """
    method, reason = settings.method, "chosen by the user"
    named = settings.optimiser != "auto"
    if named:
        method, reason = _method_of(settings.optimiser, method), f"optimiser={settings.optimiser!r} is a way of it"
    elif method == "auto":
        method, reason = choose_method(len(data), likelihood)
    model = cast(Model(kernel, likelihood), data.X.dtype)
    fitted = _course("svgp" if named else method, likelihood)(model, data, settings, progress)
    if not np.isfinite(fitted.bound):
        raise FitError(_explain(fitted.model, data))
    return fitted._replace(method=method, reason=reason)


def _method_of(optimiser, method):
    if optimiser not in OPTIMISERS:
        raise FitError(f"optimiser={optimiser!r} is unknown: use one of auto, {', '.join(OPTIMISERS)}")
    needed = OPTIMISERS[optimiser].method
    if method not in ("auto", needed):
        raise FitError(f"optimiser={optimiser!r} is for method={needed!r}, not {method!r}")
    return needed


def _course(method, likelihood) -> Callable[..., Fitted]:
    name = type(likelihood).__name__
    if isinstance(likelihood, Gaussian):
        if method == "laplace":
            raise FitError("method='laplace' with a Gaussian likelihood is the exact method: use method='exact'")
        return {"exact": _fit_exact, "collapsed": _fit_collapsed, "svgp": _fit_svgp}[method]
    if method == "exact":
        raise FitError(f"method='exact' needs a Gaussian likelihood, not {name}: use 'collapsed' or 'svgp'")
    if method == "laplace" and (likelihood.latents > 1 or isinstance(likelihood, DoubleExponential)):
        raise FitError(
            f"method='laplace' needs one latent function and a smooth likelihood, which {name} has not: "
            "use 'collapsed' or 'svgp'"
        )
    return {"laplace": _fit_laplace, "collapsed": _fit_profile, "svgp": _fit_minibatches}[method]


def evidence(model: Model, data: Dataset):
    """log p(y)."""
    return marginal(model, data)[0]


def mode_evidence(model: Model, data: Dataset):
    """Laplace's approximation of log p(y)."""
    return laplace(model, data)[0]


def profile(model: Model, data: Dataset, q: MeanPrecision):
    """The bound at its best q, found from `q` by natural steps; and that q, for the next search to begin at.

    At the optimum in q the bound's derivative in all else is the partial one (envelope theorem).
    """
    held = _with_q(lax.stop_gradient(model), q)
    q = lax.stop_gradient(converge(held, data).posterior.q)
    return elbo(_with_q(model, q), data, len(data))[0], q


def _fit_exact(model, data, settings, progress) -> Fitted:
    result = _maximise(evidence, model, data, settings.max_iter or 200, progress)
    value, predictor = marginal(result.model, data)
    value = float(value)
    return _fitted(result, predictor, value, value, value, ())


def _fit_collapsed(model, data, settings, progress) -> Fitted:
    model, notes = _start_sparse(model, data, settings)
    result = _maximise(_objective(settings), model, data, settings.max_iter or 200, progress, *_frozen(settings))
    return _finish(result, data, settings, notes)


def _fit_laplace(model, data, settings, progress) -> Fitted:
    result = _maximise(mode_evidence, model, data, settings.max_iter or 200, progress)
    value, predictor = laplace(result.model, data)
    return _fitted(result, predictor, float(value), float(value), np.inf, ())


def _fit_profile(model, data, settings, progress) -> Fitted:
    """L-BFGS-B on all but q, with an inner loop of natural gradients to the best q at every step."""
    model, notes = _start_general(model, data, settings)
    held = (_posterior_q, *_frozen(settings))
    result = _maximise(profile, model, data, settings.max_iter or 200, progress, *held, carry=model.posterior.q)
    return _settle(result, _with_q(result.model, result.carry), data, notes)


def _fit_minibatches(model, data, settings, progress) -> Fitted:
    """Natural gradients and Adam on minibatches, or a named optimiser; then q settles with all else held fixed."""
    model, notes = _start_general(model, data, settings)
    result = _optimise(_named(settings), model, data, settings, progress)
    learned = in_coordinates(result.model, MeanPrecision)
    features = len(data) * len(learned.posterior.Z) * learned.likelihood.latents
    if features <= AT_ONCE:
        learned = _converge(learned, data)
    else:  # one more epoch: the mean of all its batches
        steps = -(-len(data) // settings.batch_size)
        options = Options(steps, settings.batch_size, tight=settings.tight, seed=settings.seed)
        learned = optimise("NGD", learned, data, options).model
    return _settle(result, learned, data, notes)


_converge = jax.jit(converge)


def _fit_svgp(model, data, settings, progress) -> Fitted:
    """As for any likelihood; but q then takes its optimum for all rows, a natural step of size 1."""
    if settings.optimiser == "auto":
        model, notes = _start_sparse(model, data, settings)
        posterior = Whitened(model.posterior.Z, _prior_q(len(model.posterior.Z), 1, data.X.dtype))
        model = Model(model.kernel, model.likelihood, posterior)
    else:
        model, notes = _start_general(model, data, settings)
    result = _optimise(_named(settings), model, data, settings, progress)
    return _finish(_with_points(result), data, settings, notes)


def _named(settings):
    return "NGD+Adam" if settings.optimiser == "auto" else settings.optimiser


def _optimise(name, model, data, settings, progress) -> Maximum:
    rate = settings.learning_rate
    if rate is None and settings.optimiser == "auto" and not isinstance(model.likelihood, Gaussian):
        rate = BOLD_RATE
    options = Options(
        settings.max_iter,
        settings.batch_size,
        rate,
        learn_inducing=settings.learn_inducing,
        tight=settings.tight,
        seed=settings.seed,
    )
    try:
        return optimise(name, model, data, options, progress)
    except FitError as error:
        raise FitError(f"{error}: {_explain(model, data)}" if "not finite" in str(error) else str(error)) from None


def _with_points(result: Maximum) -> Maximum:
    model = result.model
    return result._replace(model=Model(model.kernel, model.likelihood, InducingPoints(model.posterior.Z)))


def _settle(result: Maximum, model: Model, data, notes) -> Fitted:
    """The bound and the predictor of a model whose q is at its best; the bound from chunks of rows."""
    size = max(1024, int(AT_ONCE) // (len(model.posterior.Z) * model.likelihood.latents))
    if len(data) <= size:
        value, predictor = _elbo(model, data, len(data))
    else:
        stack = chunked(data, size)
        parts = [_elbo(model, jax.tree.map(lambda x, i=i: x[i], stack), size) for i in range(len(stack.y))]
        # Every chunk pays the KL divergence of its own: all but one are given back.
        divergence = _divergence(model)
        value, predictor = sum(part[0] + divergence for part in parts) - divergence, parts[0][1]
    return _fitted(result._replace(model=model), predictor, float(value), float(value), np.inf, notes)


@partial(jax.jit, static_argnums=2)
def _elbo(model, data, num_data):
    return elbo(model, data, num_data)


@jax.jit
def _divergence(model):
    """KL[q(u) ‖ p(u)]."""
    return model.posterior.project(model.kernel).divergence


def _posterior_q(model):
    return model.posterior.q


def _with_q(model, q):
    return eqx.tree_at(_posterior_q, model, q)


def _prior_q(M, C, dtype) -> MeanPrecision:
    """N(0, I), of C latent functions with a leading axis where C > 1."""
    lead = () if C == 1 else (C,)
    return MeanPrecision(jnp.zeros((*lead, M), dtype), jnp.broadcast_to(jnp.eye(M, dtype=dtype), (*lead, M, M)))


def _start_general(model, data, settings):
    """Pseudo-points by k-means unless another way is asked for, and q(v) = p(v)."""
    M, C = settings.num_inducing or choose_num_inducing(len(data)), model.likelihood.latents
    way = "kmeans" if isinstance(settings.inducing, str) and settings.inducing == "auto" else settings.inducing
    if not isinstance(way, str):
        M = len(way)
    ((name, points),) = candidates(way, model.kernel, data, M, settings.seed).items()
    Z = jnp.asarray(points, data.X.dtype)
    posterior = Whitened(Z, _prior_q(len(Z), C, data.X.dtype))
    model = Model(model.kernel, model.likelihood, posterior if C == 1 else _several(posterior))
    return model, _points_notes(name, len(Z), M)


def _several(posterior) -> Latents:
    return Latents(each=posterior)  # pyright: ignore[reportCallIssue]


def _points_notes(name, used, M):
    notes = (f"inducing points: {used}, started by {name}",)
    if used < M:
        notes += (f"only {used} of {M} inducing points used: there are no more distinct rows for them",)
    return notes


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
        length = max(RACE_ITERATIONS, settings.max_iter or 200) if len(data) <= SMALL else RACE_ITERATIONS
        race = lambda runner: _maximise(_objective(settings), runner, few, length, None, *_frozen(settings))
        results = {name: race(runner) for name, runner in runners.items()}
        name = max(results, key=lambda name: results[name].bound)
        runners[name] = results[name].model
    return runners[name], _points_notes(name, len(runners[name].posterior.Z), M)


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


def _maximise(objective, model, data, max_iter, progress, *frozen, carry=None) -> Maximum:
    scale = float(len(data))
    try:
        return lbfgsb(
            objective, free(model, *frozen), data, carry=carry, max_iter=max_iter, progress=progress, scale=scale
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
