"""A fit to rows that are not all in memory: starts on a sample, then full passes by chunks or minibatches."""

from functools import partial
from typing import Any

import numpy as np

from ..bounds import COLLAPSED, collapsed_report, elbo, elbo_report, summed_gradient
from ..compilation import mode_of_one_evaluation, program
from ..data import Dataset, dataset, merge_duplicates
from ..gaussians import MeanPrecision
from ..kernels import AbstractKernel
from ..likelihoods import AbstractLikelihood
from ..optimise.fullbatch import FitError, Objective, lbfgsb_in_rounds
from ..optimise.minibatch.loop import TrainState, fit, start
from ..optimise.named import held_points, in_coordinates
from ..optimise.result import Progress
from ..params import cast, trainable
from ..posteriors import Model, Whitened
from ..rows import Rows
from .ends import fitted_by
from .families import family_steppers, going_on, prior_q
from .keeping import AbstractKeeper, continued, descent_kept, keeping_steps
from .methods import ended_steps, how_it_ended
from .near_rows import FEWEST, most_near_rows, near_rows_are_open, with_near_rows
from .objectives import FEW, MIN_GAIN, MIN_GAIN_OF_A_ROW, PROBE_ROWS, Report, explain, explained
from .prior import LengthscalePrior, log_prior, refuse_unfit_priors, users_priors
from .settings import COLLAPSED_ROWS, Fitted, Settings, choose_num_inducing, most_iterations
from .starts import Warm, from_kernel, start_plain, start_sparse

SETTLING = 2000  # steps of q alone at the end, at most one for each batch of rows


def fit_rows(
    kernel: AbstractKernel,
    likelihood: AbstractLikelihood,
    rows: Rows,
    few: Dataset,
    settings: Settings,
    keeper: AbstractKeeper,
    progress: Progress | None = None,
    warm: Warm | None = None,
) -> Fitted:
    """A model of `rows`, standardised, as `fit_model` makes one of a table in memory. `few` are a sample of the rows,
    on which pseudo-points and hyperparameters start.

    A Gaussian likelihood takes full passes up to 50,000 rows, or with method="collapsed" for any number, and
    minibatches otherwise. Rows drawn at random may correct the fit in the end (`with_near_rows`). Stages that the
    `keeper` has are not computed again. Raises FitError with cause and remedy.
    """
    method, reason = _chosen(settings, likelihood, len(rows))
    if isinstance(settings.inducing, str):
        M = settings.num_inducing or choose_num_inducing(len(rows), likelihood.latents)
        settings = settings._replace(num_inducing=M)
    model, prior = cast(Model(kernel, likelihood), few.X.dtype), LengthscalePrior.around(kernel, settings)
    refuse_unfit_priors(model, settings)
    warm = warm and warm._replace(model=cast(warm.model, few.X.dtype))
    conjugate = likelihood.gaussian_noise is not None and settings.posterior == "whitened"

    def first():
        if not conjugate:
            return start_plain(from_kernel(model, warm), few, settings)
        return start_sparse(model, few, settings, prior, warm)[:2]

    model, notes = keeper.stage("start", first)
    model = cast(model, few.X.dtype)
    run = _full_passes if method == "collapsed" else partial(_minibatches, conjugate)
    with explained(model, few):
        fitted = run(model, prior, rows, few, settings, keeper, progress, notes)
    if not np.isfinite(fitted.bound):
        raise FitError(explain(fitted.model, few))
    if len(rows) >= FEWEST and near_rows_are_open(fitted, few, len(rows), settings):
        drawn = _merged(rows.sample(most_near_rows(likelihood), settings.seed, everywhere=True))
        if len(drawn) >= FEWEST and near_rows_are_open(fitted, drawn, len(drawn), settings):
            fitted = with_near_rows(fitted, drawn, rows.total_weight, settings)
    return fitted._replace(method=method, reason=reason + fitted.reason, log_prior=log_prior(fitted.model, settings))


def _merged(rows: Dataset) -> Dataset:
    """With equal rows as one of their weight, as a table in memory has them."""
    return dataset(*merge_duplicates(*map(np.asarray, (rows.X, rows.y, rows.weight, rows.noise))), dtype=rows.X.dtype)


def _chosen(settings: Settings, likelihood: AbstractLikelihood, N: int) -> tuple[str, str]:
    if settings.optimiser != "auto":
        raise FitError(f"optimiser={settings.optimiser!r} needs the rows in memory: leave it out for a streamed table")
    if likelihood.varying_noise:
        raise FitError("noise that depends on x needs the rows in memory: use likelihood='gaussian' or 'student_t'")
    closed = likelihood.gaussian_noise is not None and settings.posterior == "whitened"
    if settings.method == "auto":
        if closed and N <= COLLAPSED_ROWS:
            return "collapsed", f"{N} rows: full passes are affordable up to {COLLAPSED_ROWS}"
        return "svgp", f"{N} rows: minibatches"
    if settings.method == "svgp" or (settings.method == "collapsed" and closed):
        return settings.method, "chosen by the user"
    if settings.method == "collapsed":
        raise FitError("method='collapsed' of a streamed table is for a Gaussian likelihood: use method='svgp'")
    raise FitError(f"method={settings.method!r} needs the rows in memory: use 'svgp' or 'collapsed'")


def _penalty(model: Model, prior: LengthscalePrior) -> Any:
    return prior.cost(model)


def _full_passes(model, prior, rows: Rows, few: Dataset, settings, keeper, progress, notes) -> Fitted:
    """L-BFGS-B on the collapsed bound, whose value and gradient take two passes over the rows."""
    numbers, scale = trainable(model, *held_points(settings)), rows.total_weight
    compute = lambda *at: summed_gradient(COLLAPSED, settings.tight, _penalty, *at)
    options: dict[str, Any] = {"has_aux": True, "scale": scale, "progress": progress, "compute": compute}
    objective = Objective(COLLAPSED.whole, numbers, (rows, prior), **options)
    descent_kept(keeper, "descent", objective)
    probe = (_probe(few), prior) if numbers.size > FEW else None
    gain = max(MIN_GAIN, MIN_GAIN_OF_A_ROW * scale)
    most = most_iterations(settings, len(rows), len(model.posterior.Z))
    ended = keeper.load("descended")
    if ended is None and len(objective.history) < most:
        result = lbfgsb_in_rounds(objective, max_iter=most, probe=probe, min_gain=gain)
        keeper.save("descended", lambda: {"converged": bool(result.converged)}, now=True)
    else:  # all iterations had been made when the run was stopped
        objective.start()
        result = objective.result(ended is not None and ended["converged"])
    return fitted_by(result, Report(*collapsed_report(result.model, rows)), notes, settings.tight)


def _minibatches(conjugate, model, prior, rows: Rows, few: Dataset, settings, keeper, progress, notes) -> Fitted:
    """Natural gradients and Adam on minibatches; in the end q is the best one, or goes on alone where that helps."""
    if conjugate:
        Z = model.posterior.Z
        model = Model(model.kernel, model.likelihood, Whitened(Z, prior_q(Z)))
    elif settings.posterior == "whitened":
        model = in_coordinates(model, MeanPrecision)
    given = users_priors(settings) if conjugate or settings.posterior != "whitened" else cast(prior, few.X.dtype)
    learning, settling, options = family_steppers(settings, len(rows), model.likelihood, given)
    begin = start(model, learning, rows, settings.seed)
    state, history = _steps("steps", begin, learning, rows, keeper, progress=progress, **options)
    result = ended_steps(state, history, options["until_flat"])
    if conjugate:
        return fitted_by(result, Report(*collapsed_report(result.model, rows)), notes, settings.tight)
    better = result.model
    if settling is not None:
        better = _settled(state, settling, rows, few, settings.seed + 1, options["batch_size"], keeper)
    settled = result._replace(model=better)
    ended = fitted_by(settled, Report(*elbo_report(better, rows)), notes, settings.tight)
    return ended._replace(reason=how_it_ended(settings, result))


def _settled(state: TrainState, settling: Any, rows: Rows, few: Dataset, seed: int, B: int, keeper) -> Model:
    """With q alone moved for an epoch, or for `SETTLING` batches of B rows; as it was where many steps in a row are
    rejected, or where the bound of a sample is no higher. (Bounds of all rows would take one more pass.)"""
    begin = going_on(start(state.model, settling, rows, seed), state)
    epoch = {"steps": min(-(-len(rows) // B), SETTLING), "batch_size": B}
    try:
        after = _steps("settling", begin, settling, rows, keeper, **epoch)[0].model
    except FitError:
        return state.model
    some = _probe(few)
    bound = program(elbo, mode_of_one_evaluation(len(some) * len(after.posterior.Z)))
    chosen = (bound(each, some, len(rows)) for each in (state.model, after))
    before, now = (float(each.value if settling.tight else each.standard) for each in chosen)
    return after if now > before or not np.isfinite(before) else state.model


def _probe(few: Dataset) -> Dataset:
    """Up to `PROBE_ROWS` rows of the sample."""
    return cast(few.sample(PROBE_ROWS, 0), few.X.dtype)


def _steps(stage, begin, stepper, rows, keeper, **options):
    """The steps of one stage, from where a run that was stopped had kept them."""
    state, made = continued(keeper, stage, begin)
    if made and made[-1].step >= made[-1].total:
        return state, made
    return fit(state, stepper, rows, made=made, keep=keeping_steps(keeper, stage), **options)
