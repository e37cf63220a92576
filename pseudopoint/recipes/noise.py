"""Noise that depends on x, by two Gaussian processes in turn: at the price of a few fits under Gaussian noise.

    y = f(x) + ε,   ε ~ N(0, s² e^{2g(x)}),   f and g Gaussian processes.
Given q(g), the best q(f) is that of a Gaussian likelihood whose row i has the noise variance 1/E s⁻²e^{−2g(xᵢ)}: an
exact or collapsed fit. Given f, the residual eᵢ of a row left out of f's fit has the variance s_i² + s² e^{2g(xᵢ)},
s_i² that of f without the row: a fit of one latent function g (`LogScale`). Residuals of the fit itself would be too
small, most of all where f follows single rows. (Goldberg et al. 1998; Kersting et al. 2007; the bound of both together
is that of Lázaro-Gredilla and Titsias 2011; methods h.)
"""

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..bounds import LeftOut, collapsed, leave_one_out, loo_log_density, marginals_of_rows
from ..data import Dataset
from ..kernels import AbstractKernel, Matern52
from ..likelihoods import NOISE_FLOOR, Gaussian, Heteroscedastic, LogScale
from ..optimise.fullbatch import FitError, OptimiseResult
from ..optimise.named import held_points
from ..params import cast
from ..posteriors import Joined, Model, Whitened
from ..starts.hyperparameters import robust
from ..starts.inducing import RACE_ROWS
from .ends import divergence, settle
from .families import prior_q
from .growth import Ended, with_more_points
from .objectives import OfBound, maximise
from .prior import LengthscalePrior
from .refit import refit
from .settings import Fitted, Settings, Trial, choose_num_inducing, most_iterations
from .starts import float32_start_on_sample, start_sparse

# log χ² of one degree of freedom: the mean and the variance of ½ log (e/sd)², e ~ N(0, sd²).
MEAN, VARIANCE = -0.6352, float(np.pi**2 / 8)
LEAST = 1e-2  # of its standard deviation: the smallest residual that the start of g distinguishes
LEAST_SIGNAL = 0.1  # variance of g at the start
POINTS, ITERATIONS = 100, 50  # of g, of which each row tells little
FEWEST = 50  # rows from which their noise is studied
ROWS = RACE_ROWS  # of which its kernel is learned
LEAST_NOISE = 0.05  # share of the rows with less noise than a start in float32 has to resolve
# So many times as large squared errors of rows left out are too many: as those under one variance, and as those of the
# mean of all rows, which extreme outliers do not exceed by much.
WORSE, WORSE_THAN_MEAN = 2.0, 1.1
LOG = logging.getLogger(__name__)
REFIT, ROUNDS = 6, 1  # iterations of f under the noise of g, and how often


class VaryingNoise(NamedTuple):
    """A fit with noise that depends on x, and whether it pays: the sums over rows of the leave-one-out log densities,
    in nats of the scaled target, with that noise and with one variance, and the standard error of their difference;
    and whether the squared errors of these rows are too many."""

    fitted: Fitted
    varying: float
    constant: float
    error: float
    misses: bool = False
    parts: tuple[Fitted, Fitted, OptimiseResult] | None = None  # f and g, where f was fitted again, and g's start

    @property
    def pays(self) -> bool:
        """Whether the log densities of rows left out gain more than twice the standard error of the gain, and their
        squared errors are not too many. They are where most rows have almost no noise: f then follows these rows alone,
        and predictions of the few others are far off."""
        return self.varying - self.constant > 2 * self.error and not self.misses


def misses(data: Dataset, mean: np.ndarray) -> bool:
    """Whether the squared errors of rows left out exceed those of the mean of all rows. Then noise that is symmetric
    about f does not describe them: where most have one value, such as zero, f follows these rows, whose density has no
    bound, and tells nothing of the others."""
    y, weight = np.asarray(data.y, float), np.asarray(data.weight, float)
    return bool(weight @ (y - mean) ** 2 > WORSE_THAN_MEAN * (weight @ (y - np.average(y, weights=weight)) ** 2))


def fit_noise(
    fitted: Fitted, data: Dataset, settings: Settings, prior: LengthscalePrior, if_it_may_pay: bool = False
) -> VaryingNoise:
    """Noise that depends on x, from an exact or collapsed fit of `data` with one noise variance, of which nothing is
    repeated, and the prior of its kernel's lengthscales. `data` has no known noise.

    The fit that is returned has the likelihood `Heteroscedastic` and a `Joined` predictor of f and g. Its bound is that
    of the evidence of both. g has a Matérn kernel and at most 100 points. In the end q(f) is the best one for q(g).
    Deterministic for a seed. With `if_it_may_pay` f is not fitted again where `ROWS` rows, left out of the first fit,
    gain less than one standard error by the noise of g: `fitted` is returned, with what these rows tell. Raises
    FitError.
    """
    data = _rows(data, data.y, 0.0)
    constant, left = _left_out(fitted, data)
    rows, before = _residuals(data, left), left
    start = _noise_fit(rows, fitted, settings)
    if if_it_may_pay:
        first = _tried(fitted, start, rows, constant, settings)
        if first.varying - first.constant < first.error:
            return first
    noise, result = _settled(start.model, rows, start), fitted
    for _ in range(ROUNDS):
        most = most_iterations(settings, len(data), len(fitted.model.posterior.Z)) // 10 + 1
        result = _refit(result, data, noise, settings, prior, min(REFIT, most))
        _, left = _left_out(result, _with_noise(data, noise))
        rows = _residuals(data, left)
        noise = _settled(noise.model, rows, start)
    result = _refit(result, data, noise, settings, prior, 0)
    _, left = _left_out(result, _with_noise(data, noise))
    g = leave_one_out(noise.predictor, noise.model.likelihood, rows)
    varying = loo_log_density(noise.model.likelihood, _residuals(data, left), g)
    squared = [float(np.asarray(data.weight) @ (np.asarray(data.y) - each.mean) ** 2) for each in (left, before)]
    missed = squared[0] > WORSE * squared[1] or misses(data, left.mean)
    return _chosen(fitted, result, noise, start, data, varying, constant)._replace(misses=missed)


def with_points_of_f(
    first: Fitted, varying: VaryingNoise, data: Dataset, settings: Settings, prior: LengthscalePrior, M: int
) -> Fitted:
    """The fit `first`, which is that of f and g, with more pseudo-points for f under the noise of g; g is then settled
    by what f leaves."""
    assert varying.parts is not None
    data = _rows(data, data.y, 0.0)
    f, noise, start = varying.parts
    more = with_more_points(f, _with_noise(data, noise), settings, prior, M, hold_noise=True)
    if more is f:
        return first
    _, left = _left_out(more, _with_noise(data, noise))
    noise = _settled(noise.model, _residuals(data, left), start)
    found = _both(first, _refit(more, data, noise, settings, prior, 0), noise, data)
    return found._replace(notes=(*first.notes, *more.notes[len(f.notes) :])) if found.bound > first.bound else first


def _tried(fitted: Fitted, start: OptimiseResult, rows: Dataset, constant, settings: Settings) -> VaryingNoise:
    """The first fit, and what its residuals in a sample of the rows tell of the noise of g, as sums over all rows:
    that with one variance, `constant`, is known of every row, and its gain is estimated."""
    drawn = Dataset(rows.X, rows.y, rows.weight, np.asarray(constant))  # in place of the known noise
    few, of_few = rows.sample(ROWS, settings.seed), np.asarray(drawn.sample(ROWS, settings.seed).noise)
    noise = _settled(start.model, few, start)
    varying = loo_log_density(noise.model.likelihood, few, leave_one_out(noise.predictor, noise.model.likelihood, few))
    share, whole = rows.total_weight / few.total_weight, float(np.asarray(rows.weight, float) @ constant)
    sums = _sums(few, varying, of_few)
    return VaryingNoise(fitted, whole + share * (sums[0] - sums[1]), whole, share * sums[2])


def _sums(data: Dataset, varying, constant) -> tuple[float, float, float]:
    """Σ wᵢ of both log densities, and the standard error of their difference."""
    weight = np.asarray(data.weight, float)
    total, gain = np.sum(weight), varying - constant
    spread = np.sum(weight * (gain - (weight @ gain) / total) ** 2) * total / max(total - 1, 1)
    return float(weight @ varying), float(weight @ constant), float(np.sqrt(spread))


def noise_may_vary(settings: Settings, method: str, data: Dataset) -> bool:
    """Whether it is to be found out if the noise of a Gaussian fit depends on x: the settings leave the likelihood and
    the optimiser open and have no priors, no noise is known, and rows and target are enough to tell."""
    left_open = settings.likelihood == "auto" and settings.effort != "fast" and settings.optimiser == "auto"
    left_open = left_open and not settings.priors
    whole = method in ("exact", "collapsed") and settings.posterior == "whitened" and settings.dtype != "float32"
    enough = len(data) >= FEWEST and np.ptp(np.asarray(data.y)) > 0 and not np.any(np.asarray(data.noise) > 0)
    return left_open and whole and bool(enough)


def with_noise_that_pays(fitted: Fitted, data: Dataset, settings: Settings, prior: LengthscalePrior) -> Ended:
    """The fit, under Gaussian noise and without a mean function, with noise that depends on x where rows left out are
    predicted better, else as it is; with what was compared in `trials`."""
    more = lambda fitted, M: with_more_points(fitted, data, settings, prior, M)
    LOG.info("trying noise that depends on x")
    began = time.perf_counter()
    try:
        varying = fit_noise(fitted, data, settings, prior, if_it_may_pay=True)
    except FitError:
        return Ended(fitted, more)
    seconds, pays = time.perf_counter() - began, varying.pays
    trials = (
        Trial("noise", "one variance", varying.constant, not pays, 0.0),
        Trial("noise", "depends on x", varying.varying, pays, seconds),
    )
    if not pays:
        return Ended(fitted._replace(trials=trials), more)
    points_of_f = lambda fitted, M: with_points_of_f(fitted, varying, data, settings, prior, M)
    return Ended(varying.fitted._replace(trials=trials), points_of_f)


def _left_out(fitted: Fitted, data: Dataset) -> tuple[Float[np.ndarray, " N"], LeftOut]:
    """The log density of each row left out, and f there."""
    model, exact = fitted.model, not fitted.model.posterior.points
    left = leave_one_out(fitted.predictor, model.likelihood, data, exact)
    return loo_log_density(model.likelihood, data, left), left


def _residuals(data: Dataset, left: LeftOut) -> Dataset:
    """Residuals of rows left out, with the variance of f there as their known one."""
    return _rows(data, np.asarray(data.y) - left.mean, left.variance)


def _rows(data: Dataset, y, noise) -> Dataset:
    """The rows with another target and other noise variances."""
    arrays = (np.array(np.broadcast_to(x, len(data)), data.X.dtype) for x in (y, data.weight, noise))
    return Dataset(data.X, *arrays)


def _with_noise(data: Dataset, noise: Fitted) -> Dataset:
    """The rows with the noise variances 1/E s⁻²e^{−2g} = s² e^{2μ − 2v} under q(g)."""
    mean, variance = marginals_of_rows(noise.predictor, data)
    return _rows(data, data.y, _scale(noise) ** 2 * np.exp(2 * (mean - variance)))


def _scale(noise: Fitted) -> float:
    likelihood: Any = noise.model.likelihood
    return float(likelihood.scale)


def _noise_fit(rows: Dataset, fitted: Fitted, settings: Settings) -> OptimiseResult:
    """Kernel and points of g, with the scale of the noise, at the prior of g: by a collapsed fit to ½ log e², whose
    noise is ½ log χ² (nearly a normal variable of variance π²/8)."""
    e, known = np.asarray(rows.y, float), np.asarray(rows.noise, float)
    least = LEAST**2 * (known + np.average(e**2, weights=rows.weight) + np.finfo(float).tiny)
    target = 0.5 * np.log(np.maximum(e**2, least)) - MEAN
    level = np.average(target, weights=rows.weight)
    target = _rows(rows, target - level, 0.0).sample(ROWS, settings.seed)
    model = Model(_kernel_of_noise(fitted, target), Gaussian(VARIANCE))
    count = min(settings.num_inducing or choose_num_inducing(len(rows)), POINTS, len(target))
    own = settings._replace(num_inducing=count, inducing="kmeans", initial="robust", dtype="float64")
    prior = LengthscalePrior.around(model.kernel, own)
    model, _, _ = start_sparse(cast(model, rows.X.dtype), target, own, prior)
    iterations = min(ITERATIONS, settings.max_iter or ITERATIONS)
    result = maximise(OfBound(collapsed, own.tight), prior, model, target, iterations, None, *held_points(own))
    learned, Z = result.model, result.model.posterior.Z
    likelihood = LogScale(np.exp(level), 0.0)
    return result._replace(model=cast(Model(learned.kernel, likelihood, Whitened(Z, prior_q(Z))), rows.X.dtype))


def _kernel_of_noise(fitted: Fitted, target: Dataset) -> AbstractKernel:
    X, y = np.asarray(target.X), np.asarray(target.y)
    lengthscale, _ = robust(X, y)
    variance = max(float(np.average(y**2, weights=target.weight)) - VARIANCE, LEAST_SIGNAL)
    make = lambda lengthscale: Matern52(lengthscale, variance)
    return fitted.model.kernel.beside(make, np.full(X.shape[1], lengthscale))


def _settled(model: Model, rows: Dataset, start: OptimiseResult) -> Fitted:
    """The best q(g) for these residuals."""
    return settle(start, model, rows, (), converged=True)


def _refit(fitted: Fitted, data: Dataset, noise: Fitted, settings: Settings, prior, iterations: int) -> Fitted:
    """f under the noise of g, from where it ended; with no iterations its best q alone."""
    model, data = fitted.model, _with_noise(data, noise)
    floor = cast(Gaussian(NOISE_FLOOR), data.X.dtype)
    model = Model(model.kernel, floor, model.posterior)
    float32_start = _float32_start(model, data, settings) if iterations and model.posterior.points else None
    return refit(model, data, settings, prior, iterations, 0.0, float32_start)


def _float32_start(model: Model, data: Dataset, settings: Settings) -> Callable[[Model], bool] | None:
    """The test for float32, which reads the noise of the likelihood: here of the rows that have the least."""
    test = float32_start_on_sample(model.kernel, data, settings)
    least = Gaussian(np.quantile(np.asarray(data.noise), LEAST_NOISE))
    return test and (lambda model: test(Model(model.kernel, least, model.posterior)))


def _chosen(first: Fitted, f: Fitted, noise: Fitted, start, data: Dataset, varying, constant) -> VaryingNoise:
    """The model of both, and what rows left out tell."""
    weight = np.asarray(data.weight, float)
    total, sums = np.sum(weight), _sums(data, varying, constant)
    note = (
        f"noise: log density of a row left out {sums[0] / total:.3f}, with one variance {sums[1] / total:.3f} "
        f"(standard error of the difference {sums[2] / total:.3f})"
    )
    both = _both(first, f, noise, data)._replace(notes=(*first.notes, note))
    return VaryingNoise(both, *sums, parts=(f, noise, start))


def _both(first: Fitted, f: Fitted, noise: Fitted, data: Dataset) -> Fitted:
    """The fit with model and predictor of both functions, and both forms of the bound of both."""
    _, v = marginals_of_rows(noise.predictor, data)
    # E log s²e^{2g} is log of the rows' noise, and 2v more.
    less = float(np.asarray(data.weight, float) @ v + divergence(noise.model))
    likelihood = cast(Heteroscedastic(_scale(noise)), data.X.dtype)
    both = Model(f.model.kernel, likelihood, f.model.posterior), Joined((f.predictor, noise.predictor))
    return first.refitted(Fitted(*both, "", "", f.bound - less, f.vfe - less, np.inf, (), 0, True, ()))
