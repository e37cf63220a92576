"""A fit from start to finish, by each method."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import numpy as np

from ..bounds import (
    collapsed,
    collapsed_orthogonal,
    evidence_on_host,
    given_evidence,
    given_laplace,
    laplace,
    laplace_on_host,
    marginal,
    mode_on_host,
)
from ..data import Dataset
from ..gaussians import MeanPrecision
from ..kernels import AbstractKernel
from ..likelihoods import AbstractLikelihood, Gaussian, StudentT
from ..optimise.fullbatch import FitError, OptimiseResult
from ..optimise.minibatch import AbstractStepper, NaturalGradient, averaging
from ..optimise.minibatch.loop import TrainState, fit, start
from ..optimise.named import OPTIMISERS, Options, held_points, in_coordinates, optimise
from ..optimise.result import Progress, Record
from ..params import cast
from ..posteriors import CollapsedDecoupled, Model, Whitened
from ..starts.inducing import RACE_ROWS
from .ends import at_once, finish, finish_exact, finish_profile, fitted_by, settle
from .families import FAMILIES, SEEN, family_steppers, going_on, prior_q, steps_and_rate
from .growth import Ended, affordable_points, as_it_is, most_points, with_more_points
from .heavy_noise import with_heavy_tails
from .near_rows import near_rows_are_open, with_near_rows
from .noise import fit_noise
from .noise_choice import noise_is_open, with_noise_that_pays
from .objectives import (
    EXACT_SAMPLE,
    ROUGH,
    WINDOW_OF_MANY_ROWS,
    OfBound,
    Report,
    explain,
    explained,
    least_gain,
    maximise,
    maximise_profile,
    padded_to_bucket,
)
from .precision import FLOAT32_NOTE, resolved_in_float32
from .prior import LengthscalePrior, log_prior, refuse_unfit_priors, users_priors
from .settings import COLLAPSED_ROWS, Fitted, Settings, choose_method, choose_num_inducing, most_iterations
from .starts import (
    SAMPLE_ITERATIONS,
    Warm,
    begun,
    float32_start_on_sample,
    from_kernel,
    place_points,
    start_plain,
    start_raced,
    start_sparse,
    with_learned_q,
)
from .tails import fit_tails, noise_variance
from .widening import of_one_variance, widened

LOG = logging.getLogger(__name__)

Fit = Callable[[Model, Dataset, Settings, LengthscalePrior, Progress | None, Warm | None], Fitted]


def fit_model(
    kernel: AbstractKernel,
    likelihood: AbstractLikelihood,
    data: Dataset,
    settings: Settings,
    progress: Progress | None = None,
    warm: Warm | None = None,
) -> Fitted:
    """A model of `data` (standardised, [N, D]) by `settings.method`.

    `warm` is a better start than that of `kernel`, around which the prior of lengthscales is. Where it has heavy tails,
    for a Gaussian likelihood, the noise is Student-t, unless rows left out tell that another noise predicts better.

    Raises FitError with cause and remedy when a covariance matrix cannot be factorised, the fit is not finite, or the
    method does not suit the likelihood.
    """
    method, reason, run = _chosen(settings, likelihood, len(data))
    warm = warm and warm._replace(model=cast(warm.model, data.X.dtype))
    model = cast(Model(kernel, likelihood), data.X.dtype)
    refuse_unfit_priors(model, settings)
    prior = LengthscalePrior.around(model.kernel, settings)
    LOG.info("fitting by the method %s", method)
    tails, left_open = None if warm is None else warm.tails, settings._replace(likelihood="auto")
    if warm is not None and tails is not None and method == "svgp":
        model = cast(Model(kernel, StudentT(noise_variance(warm.model) ** 0.5, tails.degrees)), data.X.dtype)
        ended = Ended(_fit_minibatches(model, data, settings, prior, progress, warm), as_it_is)
    elif noise_is_open(settings, method, likelihood, data):
        normal = run(model, data, settings, prior, progress, warm)
        by_tails = partial(fit_tails, run, model, data, settings, prior, None)
        ended = with_noise_that_pays(normal, data, settings, prior, warm, by_tails)
    elif warm is not None and tails is not None:
        ended = fit_tails(run, model, data, settings, prior, progress, warm)._replace(given=None)
    else:
        fitted = run(model, data, settings, prior, progress, warm)
        again = warm is not None and warm.widen and noise_is_open(left_open, method, likelihood, data)
        given = partial(of_one_variance, fitted, data) if again else None
        ended = Ended(fitted, partial(_more_points, data, settings, prior), given)
    fitted = ended.fitted if ended.given is None else widened(ended.fitted, ended.given, data, settings, prior)
    if (M := most_points(fitted, data, settings, method)) > len(fitted.model.posterior.Z):
        fitted = ended.more(fitted, M)
    if not np.isfinite(fitted.bound):
        raise FitError(explain(fitted.model, data))
    if near_rows_are_open(fitted, data, len(data), left_open if warm is not None and warm.widen else settings):
        fitted = with_near_rows(fitted, data, data.total_weight, settings)
    return fitted._replace(method=method, reason=reason + fitted.reason, log_prior=log_prior(fitted.model, settings))


def _more_points(data, settings, prior, fitted: Fitted, M: int) -> Fitted:
    several = fitted.model.likelihood.latents > 1
    return fitted if several else with_more_points(fitted, data, settings, prior, M)


def _chosen(settings, likelihood, N: int) -> tuple[str, str, Fit]:
    """The method, why it was chosen, and the function that fits by it."""
    method, reason, optimiser = settings.method, "chosen by the user", settings.optimiser
    if optimiser != "auto":
        method, reason = _method_of(optimiser, method), f"optimiser={optimiser!r} is a way of it"
    if settings.posterior != "whitened":
        return _of_family(settings, method, likelihood, N)
    if method == "auto":
        method, reason = choose_method(N, likelihood)
    return method, reason, _fit_by(method if optimiser == "auto" else "svgp", likelihood)


def _method_of(optimiser, method) -> str:
    if optimiser not in OPTIMISERS:
        raise FitError(f"optimiser={optimiser!r} is unknown: use one of auto, {', '.join(OPTIMISERS)}")
    needed = OPTIMISERS[optimiser].method
    if method not in ("auto", needed):
        raise FitError(f"optimiser={optimiser!r} is for method={needed!r}, not {method!r}")
    return needed


def _of_family(settings, method, likelihood, N) -> tuple[str, str, Fit]:
    name = settings.posterior
    if name not in FAMILIES:
        raise FitError(f"posterior={name!r} is unknown: use one of {', '.join(FAMILIES)}")
    closed = name == "orthogonal" and likelihood.gaussian_noise is not None and settings.optimiser == "auto"
    if method == "auto":
        method = "collapsed" if closed and N <= COLLAPSED_ROWS else "svgp"
    fits: dict[str, Fit] = {"svgp": _fit_family} | ({"collapsed": _fit_orthogonal} if closed else {})
    if method not in fits:
        raise FitError(f"posterior={name!r} is for method='svgp', not {method!r}, with this likelihood and optimiser")
    return method, f"posterior={name!r}", fits[method]


def _fit_by(method, likelihood) -> Fit:
    name, conjugate = likelihood.name, likelihood.gaussian_noise is not None
    if method == "laplace" and conjugate:
        raise FitError("method='laplace' with a Gaussian likelihood is the exact method: use method='exact'")
    if method == "exact" and not conjugate and not likelihood.varying_noise:
        raise FitError(f"method='exact' needs a Gaussian likelihood, not {name}: use 'collapsed' or 'svgp'")
    if method == "laplace" and (likelihood.latents > 1 or not likelihood.smooth):
        raise FitError(
            f"method='laplace' needs one latent function and a smooth likelihood, which {name} has not: "
            "use 'collapsed' or 'svgp'"
        )
    return VARYING[method] if likelihood.varying_noise and method in VARYING else FITS[method, conjugate]


# --- Full passes -----------------------------------------------------------------------------------------------------


def _fit_whole(bound, model, data, settings, prior, progress, warm=None) -> Fitted:
    """A bound of the full Gaussian process, N³, by a compiled program."""
    model = (from_kernel if model.likelihood.gaussian_noise is None else begun)(model, warm)
    result = maximise(OfBound(bound, solved=True), prior, model, data, settings.max_iter or 200, progress)
    report = result.aux._replace(predictor=result.aux.predictor.first(len(data)))
    return fitted_by(result, report, ())


def _fit_laplace(model, data, settings, prior, progress, warm=None) -> Fitted:
    """Laplace's approximation; on CPUs its factors are the host's, where no W can be below 0."""
    if jax.default_backend() != "cpu" or not model.likelihood.concave:
        return _fit_whole(laplace, model, data, settings, prior, progress, warm)
    climb, most = partial(maximise, OfBound(given_laplace), prior, host=mode_on_host), settings.max_iter or 200
    result = climb(from_kernel(model, warm), data, most, progress)
    at = laplace_on_host(result.model, padded_to_bucket(data))
    return fitted_by(result, Report(at.value, at.standard, at.upper(), at.predictor()), ())


def _fit_exact(model, data, settings, prior, progress, warm=None) -> Fitted:
    """The exact evidence; on CPUs its factors are the host's."""
    if jax.default_backend() != "cpu":
        return _fit_whole(marginal, model, data, settings, prior, progress, warm)
    float32_start, max_iter = float32_start_on_sample(model.kernel, data, settings, True), settings.max_iter or 200
    climb = partial(maximise, OfBound(given_evidence), prior, host=evidence_on_host)
    large, model = len(data) > 2 * EXACT_SAMPLE, begun(model, warm)
    if large and warm is None:  # most iterations are on a sample, where one costs a tenth or less
        few = data.sample(EXACT_SAMPLE, settings.seed)
        model = climb(model, few, min(SAMPLE_ITERATIONS, 10 * max_iter), None).model
    # What a search or an earlier fit has left to gain soon falls below what any density shows.
    least, window = least_gain(data) if large or warm is not None else 0.0, WINDOW_OF_MANY_ROWS if large else None
    result = climb(model, data, max_iter, progress, float32_start=float32_start, min_gain=least, window=window)
    return finish_exact(result, data, (FLOAT32_NOTE,) * (float32_start is not None))


def _fit_collapsed(model, data, settings, prior, progress, warm=None) -> Fitted:
    """The collapsed bound, whose q is the best one."""
    model, notes, float32_start = start_sparse(model, data, settings, prior, warm)
    return _maximised(collapsed, prior, model, data, settings, progress, notes, float32_start=float32_start)


def _fit_orthogonal(model, data, settings, prior, progress, warm=None) -> Fitted:
    """The collapsed bound of the orthogonal family."""
    model = begun(model, warm)
    Z, O, notes = place_points(model, data, settings)
    model = Model(model.kernel, model.likelihood, CollapsedDecoupled(Z, O))
    return _maximised(collapsed_orthogonal, prior, model, data, settings, progress, notes)


def _maximised(bound, prior, model, data, settings, progress, notes, **options) -> Fitted:
    objective, held = OfBound(bound, settings.tight), held_points(settings)
    M, N = len(model.posterior.Z), len(data)
    if affordable_points(model, N, settings, "collapsed") > M:
        options["min_gain"] = ROUGH * least_gain(data)
    result = maximise(objective, prior, model, data, most_iterations(settings, N, M), progress, *held, **options)
    return finish(bound, result, data, settings, notes)


def _fit_varying(first: Fit, model, data, settings, prior, progress, warm=None) -> Fitted:
    """Noise that depends on x: the fit `first` with one variance, two Gaussian processes in turn (`fit_noise`), and
    heavy tails besides if the likelihood has them (`with_heavy_tails`)."""
    inside, constant = model.likelihood.parts()
    of_f = None if constant is None else np.asarray(constant) * np.asarray([1, 0], data.X.dtype)
    centred = data if of_f is None else replace(data, y=np.asarray(data.y) - of_f[0])
    one = cast(Model(model.kernel, Gaussian(np.asarray(inside.scale) ** 2)), data.X.dtype)
    settings = settings._replace(num_inducing=settings.num_inducing or choose_num_inducing(len(data)))  # to stay
    varying = fit_noise(first(one, centred, settings, prior, progress, warm), centred, settings, prior)
    fitted = with_heavy_tails(varying, centred, settings, prior)[0] if inside.heavy_tails else varying.fitted
    # A constant mean of the second function is in the scale.
    likelihood = model.likelihood.with_parts(fitted.model.likelihood, of_f)
    return fitted._replace(model=Model(fitted.model.kernel, likelihood, fitted.model.posterior))


def _fit_profile(model, data, settings, prior, progress, warm=None) -> Fitted:
    """The bound at its best q, which an inner loop of natural gradients finds at every step of L-BFGS-B."""
    model, notes = start_raced(from_kernel(model, warm), data, settings, prior)
    model = with_learned_q(model, warm)
    first = _float32_first(model, data, settings)
    notes += (FLOAT32_NOTE,) * first
    options = {"float32_start": (lambda model: True) if first else None}
    max_iter, held = settings.max_iter or 200, held_points(settings)
    return finish_profile(*maximise_profile(prior, model, data, max_iter, progress, *held, **options), notes)


def _float32_first(model, data, settings, many: float | int = np.inf) -> bool:
    """Whether a fit begins in float32, where that resolves the bound: with several latent functions, which spend most
    of their time in exponentials, or beyond `many` rows."""
    pays = model.likelihood.latents > 1 or len(data) > many
    return settings.float32_start and pays and resolved_in_float32(model, data.total_weight)


# --- Minibatches -----------------------------------------------------------------------------------------------------


def _fit_svgp(model, data, settings, prior, progress, warm=None) -> Fitted:
    """Natural gradients and Adam on minibatches, or a named optimiser, under Gaussian noise; in the end q is the best
    one for all rows."""
    if settings.optimiser == "auto":
        model, notes, _ = start_sparse(model, data, settings, prior, warm)
        Z = model.posterior.Z
        model = with_learned_q(Model(model.kernel, model.likelihood, Whitened(Z, prior_q(Z))), warm)
    else:
        model, notes = start_plain(begun(model, warm), data, settings)
    result = _optimise(model, data, settings, progress)
    return finish(collapsed, result, data, settings, notes)


def _fit_minibatches(model, data, settings, prior, progress, warm=None) -> Fitted:
    """As `_fit_svgp` under any likelihood; in the end q converges with all else held fixed."""
    model, notes = start_plain(from_kernel(model, warm), data, settings)
    model = with_learned_q(model, warm)
    float32_start = settings.optimiser == "auto" and _float32_first(model, data, settings, RACE_ROWS)
    given = (*(cast((model, data), np.float32) if float32_start else (model, data)), settings, progress)
    auto, again = settings.optimiser == "auto", warm is not None and warm.learned
    result = _learn(*given, prior, again)[0] if auto else _optimise(*given)
    learned = cast(in_coordinates(result.model, MeanPrecision), data.X.dtype)
    few = len(data) <= at_once(learned)
    notes += (FLOAT32_NOTE,) * float32_start
    ended = settle(result, learned, data, notes, settings.tight, converged=few)
    if not few:
        # A named optimiser may have left q far from its best, which then counts for nothing.
        gamma = averaging(len(data), min(settings.batch_size, len(data)), seen=SEEN if auto else 1.0)
        settling = NaturalGradient(gamma, tight=settings.tight)
        after = _after_an_epoch(start(learned, settling, data, settings.seed + 1), settling, data, settings)
        ended = max(ended, settle(result, after, data, notes, settings.tight), key=lambda fitted: fitted.bound)
    return ended._replace(reason=how_it_ended(settings, result))


def _after_an_epoch(state: TrainState, settling: AbstractStepper, data, settings) -> Model:
    """With q alone moved for one epoch, whose decreasing step sizes average its batches; as it is where all steps are
    rejected."""
    B = min(settings.batch_size, len(data))
    try:
        return fit(state, settling, data, steps=-(-len(data) // B), batch_size=B)[0].model
    except FitError:
        return state.model


def _fit_family(model, data, settings, prior, progress, warm=None) -> Fitted:
    """Any posterior family: its own natural gradient and Adam for all else, then an epoch for q alone; or a named
    optimiser."""
    model, notes = start_plain(begun(model, warm), data, settings)
    if settings.optimiser != "auto":
        result = _optimise(model, data, settings, progress)
        return settle(result, result.model, data, notes, settings.tight)
    result, settling, last = _learn(model, data, settings, progress, users_priors(settings))
    ended = settle(result, result.model, data, notes, settings.tight)
    if settling is not None:
        state = going_on(start(result.model, settling, data, settings.seed + 1), last)
        after = _after_an_epoch(state, settling, data, settings)
        ended = max(ended, settle(result, after, data, notes, settings.tight), key=lambda fitted: fitted.bound)
    return ended._replace(reason=how_it_ended(settings, result))


def _learn(
    model, data, settings, progress, prior, learned=False
) -> tuple[OptimiseResult, AbstractStepper | None, TrainState]:
    """The steps of `family_steppers`, the stepper that settles q, and the state that these steps end with. `learned`
    says that q was learned before."""
    given = settings, len(data), model.likelihood, cast(prior, data.X.dtype), SEEN if learned else 1.0
    learning, settling, options = family_steppers(*given)
    with explained(model, data):
        state, history = fit(start(model, learning, data, settings.seed), learning, data, progress=progress, **options)
    return ended_steps(state, history, options["until_flat"]), settling, state


def ended_steps(state: TrainState, history: tuple[Record, ...], until_flat: bool) -> OptimiseResult:
    """What steps on minibatches return. Those that end where the bound is flat have not converged at their limit."""
    converged = not until_flat or history[-1].step < history[0].total
    return OptimiseResult(state.model, None, history[-1].bound, history, history[-1].step, state.rejected, converged)


def how_it_ended(settings, result: OptimiseResult) -> str:
    """What `reason_` adds where steps ended before their number was reached."""
    most, steps = result.history[0].total, result.history[-1].step
    if settings.optimiser != "auto" or steps >= most:
        return ""
    return f"; ended after {steps:,} of at most {most:,} steps, because the bound was flat"


def _optimise(model, data, settings, progress) -> OptimiseResult:
    """The named optimiser, or "NGD+Adam, one pass" with our steps and rate."""
    name, (steps, rate) = settings.optimiser, (settings.max_iter, settings.learning_rate)
    if name == "auto":
        name, (steps, rate) = "NGD+Adam, one pass", steps_and_rate(settings, model.likelihood)
    given = {"learn_inducing": settings.learn_inducing, "tight": settings.tight, "seed": settings.seed}
    given["prior"] = users_priors(settings)
    with explained(model, data):
        return optimise(name, model, data, Options(steps, settings.batch_size, rate, **given), progress)


# By method, and whether the likelihood has Gaussian noise; below, of noise that depends on x.
FITS: dict[tuple[str, bool], Fit] = {
    ("exact", True): _fit_exact,
    ("collapsed", True): _fit_collapsed,
    ("svgp", True): _fit_svgp,
    ("laplace", False): _fit_laplace,
    ("collapsed", False): _fit_profile,
    ("svgp", False): _fit_minibatches,
}
VARYING: dict[str, Fit] = {
    "exact": partial(_fit_varying, _fit_exact),
    "collapsed": partial(_fit_varying, _fit_collapsed),
}
