"""A fit from start to finish, by each method."""

from collections.abc import Callable

import jax
import numpy as np

from ..bounds import collapsed, collapsed_orthogonal, elbo
from ..compilation import program
from ..data import Dataset, chunked
from ..gaussians import MeanPrecision
from ..kernels import AbstractKernel
from ..likelihoods import AbstractLikelihood
from ..optimise.fullbatch import FitError, OptimiseResult, converge
from ..optimise.minibatch.loop import fit, start
from ..optimise.named import OPTIMISERS, RATE, STEPS, Options, in_coordinates, optimise
from ..optimise.result import Progress
from ..params import cast
from ..posteriors import Collapsed, CollapsedDecoupled, Model, Whitened
from ..starts.inducing import RACE_ROWS
from .families import FAMILIES, family_steppers, prior_q
from .objectives import (
    collapsed_objective,
    exact_evidence,
    explain,
    held_points,
    maximise,
    maximise_profile,
    mode_evidence,
    orthogonal_tight,
    orthogonal_vfe,
)
from .precision import FLOAT32_NOTE, minibatches_in_float32
from .prior import LengthscalePrior
from .settings import COLLAPSED_ROWS, Fitted, Settings, choose_method
from .starts import start_family, start_general, start_raced, start_sparse

__all__ = ["fit_model"]

AT_ONCE = 2e7  # numbers of the features of all rows that may be held together
MORE_STEPS, BOLD_RATE = (
    3000,
    0.05,
)  # of minibatches and Adam, for likelihoods that tell less of the latent function than a Gaussian does


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
    elif method == "auto" and settings.posterior == "whitened":
        method, reason = choose_method(len(data), likelihood)
    model = cast(Model(kernel, likelihood), data.X.dtype)
    if settings.posterior == "whitened":
        course = _course("svgp" if named else method, likelihood)
    else:
        method, reason, course = _family_course(settings, method, likelihood, len(data))
    fitted = course(model, data, settings, progress)
    if not np.isfinite(fitted.bound):
        raise FitError(explain(fitted.model, data))
    return fitted._replace(method=method, reason=reason)


def _method_of(optimiser, method):
    if optimiser not in OPTIMISERS:
        raise FitError(f"optimiser={optimiser!r} is unknown: use one of auto, {', '.join(OPTIMISERS)}")
    needed = OPTIMISERS[optimiser].method
    if method not in ("auto", needed):
        raise FitError(f"optimiser={optimiser!r} is for method={needed!r}, not {method!r}")
    return needed


def _course(method, likelihood) -> Callable[..., Fitted]:
    name = likelihood.name
    if likelihood.gaussian_noise is not None:
        if method == "laplace":
            raise FitError("method='laplace' with a Gaussian likelihood is the exact method: use method='exact'")
        return {"exact": _fit_exact, "collapsed": _fit_collapsed, "svgp": _fit_svgp}[method]
    if method == "exact":
        raise FitError(f"method='exact' needs a Gaussian likelihood, not {name}: use 'collapsed' or 'svgp'")
    if method == "laplace" and (likelihood.latents > 1 or not likelihood.smooth):
        raise FitError(
            f"method='laplace' needs one latent function and a smooth likelihood, which {name} has not: "
            "use 'collapsed' or 'svgp'"
        )
    return {"laplace": _fit_laplace, "collapsed": _fit_profile, "svgp": _fit_minibatches}[method]


def _family_course(settings, method, likelihood, N):
    """Method, reason and course of a posterior that the user named."""
    name = settings.posterior
    if name not in FAMILIES:
        raise FitError(f"posterior={name!r} is unknown: use one of {', '.join(FAMILIES)}")
    closed = name == "orthogonal" and likelihood.gaussian_noise is not None and settings.optimiser == "auto"
    if method == "auto":
        method = "collapsed" if closed and N <= COLLAPSED_ROWS else "svgp"
    if method not in ("svgp", "collapsed") or (method == "collapsed" and not closed):
        raise FitError(f"posterior={name!r} is for method='svgp', not {method!r}, with this likelihood and optimiser")
    course = _fit_orthogonal if method == "collapsed" else _fit_family
    return method, f"posterior={name!r}", course


def _fit_exact(model, data, settings, progress) -> Fitted:
    result, value, predictor = _evidence(exact_evidence, model, data, settings, progress)
    return _fitted(result, predictor, value, value, value, ())


def _fit_collapsed(model, data, settings, progress) -> Fitted:
    prior = LengthscalePrior.around(model.kernel, settings)
    model, notes, float32_start = start_sparse(model, data, settings, prior)
    objective, held, max_iter = collapsed_objective(settings), held_points(settings), settings.max_iter or 200
    result = maximise(objective, prior, model, data, max_iter, progress, *held, float32_start=float32_start)
    return _finish(result, data, settings, notes)


def _fit_laplace(model, data, settings, progress) -> Fitted:
    result, value, predictor = _evidence(mode_evidence, model, data, settings, progress)
    return _fitted(result, predictor, value, value, np.inf, ())


def _evidence(objective, model, data, settings, progress):
    """Its maximum, its value there, and the posterior."""
    prior = LengthscalePrior.around(model.kernel, settings)
    result = maximise(objective, prior, model, data, settings.max_iter or 200, progress)
    value, predictor = result.aux
    return result, float(value), predictor


def _fit_profile(model, data, settings, progress) -> Fitted:
    """L-BFGS-B on all but q, with an inner loop of natural gradients to the best q at every step."""
    prior = LengthscalePrior.around(model.kernel, settings)
    model, notes = start_raced(model, data, settings, prior)
    result, bound = maximise_profile(prior, model, data, settings.max_iter or 200, progress, *held_points(settings))
    return _fitted(result, program(_predictor, "once")(result.model), bound, bound, np.inf, notes)


def _fit_minibatches(model, data, settings, progress) -> Fitted:
    """Natural gradients and Adam on minibatches, or a named optimiser; then q settles with all else held fixed."""
    model, notes = start_general(model, data, settings)
    large = settings.optimiser == "auto" and len(data) > RACE_ROWS
    float32_start = settings.float32_start and large and minibatches_in_float32(model, len(data))
    at = cast((model, data), np.float32) if float32_start else (model, data)
    result = _optimise(_named(settings), *at, settings, progress)
    learned = cast(in_coordinates(result.model, MeanPrecision), data.X.dtype)
    at_once = len(data) <= _at_once(learned)
    if not at_once:  # one more epoch: the mean of all its batches
        steps = -(-len(data) // settings.batch_size)
        options = Options(steps, settings.batch_size, tight=settings.tight, seed=settings.seed)
        learned = optimise("NGD", learned, data, options).model
    return _settle(result, learned, data, notes + (FLOAT32_NOTE,) * float32_start, to_the_best=at_once)


def _fit_svgp(model, data, settings, progress) -> Fitted:
    """As for any likelihood; but q then takes its optimum for all rows, a natural step of size 1."""
    if settings.optimiser == "auto":
        prior = LengthscalePrior.around(model.kernel, settings)
        model, notes, _ = start_sparse(model, data, settings, prior)
        posterior = Whitened(model.posterior.Z, prior_q(model.posterior.Z))
        model = Model(model.kernel, model.likelihood, posterior)
    else:
        model, notes = start_general(model, data, settings)
    result = _optimise(_named(settings), model, data, settings, progress)
    return _finish(_with_points(result), data, settings, notes)


def _fit_orthogonal(model, data, settings, progress) -> Fitted:
    """The orthogonal family with its best (m, S, a) integrated out."""
    prior = LengthscalePrior.around(model.kernel, settings)
    model, notes = start_family(model, data, settings)
    model = Model(model.kernel, model.likelihood, CollapsedDecoupled(model.posterior.Z, model.posterior.O))
    objective = orthogonal_tight if settings.tight else orthogonal_vfe
    result = maximise(objective, prior, model, data, settings.max_iter or 200, progress, *held_points(settings))
    return _finish(result, data, settings, notes, _solved_orthogonal)


def _fit_family(model, data, settings, progress) -> Fitted:
    """Any posterior on minibatches: its own natural gradient, and Adam for all else; then an epoch for q alone."""
    model, notes = start_family(model, data, settings)
    if settings.optimiser != "auto":
        result = _optimise(settings.optimiser, model, data, settings, progress)
        return _settle(result, result.model, data, notes)
    B, (steps, rate) = min(settings.batch_size, len(data)), _steps_and_rate(settings, model.likelihood)
    held = held_points(settings)
    learning, settling = family_steppers(settings.posterior, len(data), B, steps, rate, held, settings.tight)
    state = start(model, learning, data, settings.seed)
    state, history = fit(state, learning, data, steps=steps, batch_size=B, progress=progress)
    result, model = OptimiseResult(state.model, None, np.nan, history, steps, state.rejected, True), state.model
    if settling is not None:
        state = start(model, settling, data, settings.seed + 1)
        model = fit(state, settling, data, steps=-(-len(data) // B), batch_size=B)[0].model
    return _settle(result, model, data, notes)


def _named(settings):
    return "NGD+Adam" if settings.optimiser == "auto" else settings.optimiser


def _steps_and_rate(settings, likelihood):
    steps, rate = (STEPS, RATE) if likelihood.gaussian_noise is not None else (MORE_STEPS, BOLD_RATE)
    return settings.max_iter or steps, settings.learning_rate or rate


def _optimise(name, model, data, settings, progress) -> OptimiseResult:
    auto = settings.optimiser == "auto"
    steps, rate = _steps_and_rate(settings, model.likelihood) if auto else (settings.max_iter, settings.learning_rate)
    options = Options(
        steps,
        settings.batch_size,
        rate,
        learn_inducing=settings.learn_inducing,
        tight=settings.tight,
        seed=settings.seed,
    )
    try:
        return optimise(name, model, data, options, progress)
    except FitError as error:
        raise FitError(f"{error}: {explain(model, data)}" if "not finite" in str(error) else str(error)) from None


def _with_points(result: OptimiseResult) -> OptimiseResult:
    model = result.model
    return result._replace(model=Model(model.kernel, model.likelihood, Collapsed(model.posterior.Z)))


def _at_once(model: Model) -> int:
    """Rows whose features may be held together."""
    return max(1024, int(AT_ONCE) // (len(model.posterior.Z) * model.likelihood.latents))


def _settle(result: OptimiseResult, model: Model, data, notes, to_the_best: bool = False) -> Fitted:
    """The bound and the predictor of a model whose q is at its best, or is to go there, which takes all rows at once;
    the bound from chunks of rows."""
    size = _at_once(model)
    if len(data) <= size:
        value, standard, predictor, model = program(_best_elbos if to_the_best else _elbos, "once")(model, data)
    else:
        stack, elbos = chunked(data, size), program(_elbos)
        parts = [elbos(model, jax.tree.map(lambda x, i=i: x[i], stack)) for i in range(len(stack.y))]
        # Every chunk pays the KL divergence of its own: all but one are given back.
        divergence, predictor = _divergence(model), parts[0][2]
        value, standard = (sum(part[i] + divergence for part in parts) - divergence for i in (0, 1))
    return _fitted(result._replace(model=model), predictor, float(value), float(standard), np.inf, notes)


def _elbos(model, data):
    """The tight bound, the standard one, the posterior that attains them, and the model."""
    bound = elbo(model, data, len(data))
    return bound.value, bound.standard, _predictor(model), model


def _predictor(model):
    return model.posterior.project(model.kernel).predictor()


def _best_elbos(model, data):
    """The same with q at its best."""
    return _elbos(converge(model, data), data)


@jax.jit
def _divergence(model):
    """KL[q(u) ‖ p(u)]."""
    return model.posterior.project(model.kernel).divergence


def _finish(result: OptimiseResult, data, settings, notes, solved: Callable | None = None) -> Fitted:
    """The natural step of size 1 on all rows: the optimal q for the learned parameters, and the bounds around it."""
    few = len(data) <= _at_once(result.model)
    finish = program(solved or _solved, "once" if few else None)
    value, standard, above, predictor = finish(result.model, data)
    bound = float(value if settings.tight else standard)
    return _fitted(result, predictor, bound, float(standard), float(above), notes)


def _solved(model, data):
    """Bounds, upper bound and predictor of the best q, in one program."""
    return _all_of(collapsed(model, data))


def _solved_orthogonal(model, data):
    return _all_of(collapsed_orthogonal(model, data))


def _all_of(solution):
    return solution.value, solution.standard, solution.upper(), solution.predictor()


def _fitted(result, predictor, bound, vfe, upper, notes) -> Fitted:
    return Fitted(
        result.model, predictor, "", "", bound, vfe, upper, result.history, result.rejected, result.converged, notes
    )
