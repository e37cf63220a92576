"""Noise that depends on x, by two Gaussian processes in turn: at the price of a few fits under Gaussian noise.

    y = f(x) + ε,   ε ~ N(0, s² e^{2g(x)}),   f and g Gaussian processes.
Given q(g), the best q(f) is that of a Gaussian likelihood whose row i has the noise variance 1/E s⁻²e^{−2g(xᵢ)}: an
exact or collapsed fit. Given f, the residual eᵢ of a row left out of f's fit has the variance s_i² + s² e^{2g(xᵢ)},
s_i² that of f without the row: a fit of one latent function g (`LogScale`). Residuals of the fit itself would be too
small, most of all where f follows single rows. (Goldberg et al. 1998; Kersting et al. 2007; the bound of both together
is that of Lázaro-Gredilla and Titsias 2011; methods h.)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..bounds import (
    LeftOut,
    best_scale_and_degrees,
    collapsed,
    expected_precisions,
    leave_one_out,
    loo_log_density,
    marginals_of_rows,
    varying_mixture_terms,
)
from ..data import Dataset
from ..kernels import AbstractKernel, Matern52
from ..likelihoods import (
    NOISE_FLOOR,
    AbstractLikelihood,
    Gaussian,
    Heteroscedastic,
    HeteroscedasticStudentT,
    LogScale,
)
from ..optimise.fullbatch import OptimiseResult
from ..optimise.named import held_points
from ..params import cast
from ..posteriors import Joined, Model, Whitened
from ..starts.hyperparameters import robust
from ..starts.inducing import RACE_ROWS
from .ends import divergence, settle
from .families import prior_q
from .growth import with_more_points
from .objectives import OfBound, maximise
from .prior import LengthscalePrior
from .refit import refit
from .settings import Fitted, Settings, choose_num_inducing, most_iterations
from .starts import float32_start_on_sample, start_sparse
from .widening import GivenNoise

# log χ² of one degree of freedom: the mean and the variance of ½ log (e/sd)², e ~ N(0, sd²).
MEAN, VARIANCE = -0.6352, float(np.pi**2 / 8)
LEAST = 1e-2  # of its standard deviation: the smallest residual that the start of g distinguishes
LEAST_SIGNAL = 0.1  # variance of g at the start
POINTS, ITERATIONS = 100, 50  # of g, of which each row tells little
ROWS = RACE_ROWS  # of which its kernel is learned
LEAST_NOISE = 0.05  # share of the rows with less noise than a start in float32 has to resolve
# So many times as large squared errors of rows left out are too many: as those under one variance, and as those of the
# mean of all rows, which extreme outliers do not exceed by much.
WORSE, WORSE_THAN_MEAN = 2.0, 1.1
REFIT, ROUNDS = 6, 1  # iterations of f under the noise of g, and how often

PerRow = Float[np.ndarray, " N"]


class Turns(NamedTuple):
    """f and g, each fitted to what the other leaves, the residuals of g, and its start. Heavy tails have ν degrees of
    freedom, and the rows the precisions E ρᵢ beside those of g (methods h.5); normal noise has ν = ∞ and E ρᵢ = 1."""

    f: Fitted
    g: Fitted
    rows: Dataset
    start: OptimiseResult
    degrees: float = np.inf
    precision: PerRow | float = 1.0

    @property
    def scale(self) -> float:
        """s."""
        likelihood: Any = self.g.model.likelihood
        return float(likelihood.scale)

    @property
    def likelihood(self) -> AbstractLikelihood:
        """That of y."""
        normal = not np.isfinite(self.degrees)
        return Heteroscedastic(self.scale) if normal else HeteroscedasticStudentT(self.scale, self.degrees)

    def with_scale(self, scale: float, dtype: Any) -> "Turns":
        """With another s."""
        model = self.g.model
        of_g = Model(model.kernel, cast(LogScale(scale, 0.0), dtype), model.posterior)
        return self._replace(g=self.g._replace(model=of_g))

    def of(self, data: Dataset) -> Dataset:
        """The rows with the noise variances 1/(E ρᵢ E s⁻²e^{−2g}) = s² e^{2μ − 2v}/E ρᵢ under q(g)."""
        mean, variance = marginals_of_rows(self.g.predictor, data)
        return rows_of(data, data.y, self.scale**2 * np.exp(2 * (mean - variance)) / self.precision)

    def without_rows(self, data: Dataset) -> tuple[LeftOut, LeftOut]:
        """f and g without each row."""
        return left_out(self.f, self.of(data)), self.g_without_rows()

    def g_without_rows(self) -> LeftOut:
        """g without each row."""
        return leave_one_out(self.g.predictor, self.g.model.likelihood, self.rows)

    def residuals(self, data: Dataset, left: LeftOut) -> Dataset:
        """Residuals of rows left out times √E ρᵢ, with the variance of f there, times E ρᵢ, as their known one."""
        root = np.sqrt(self.precision)
        return rows_of(data, root * (np.asarray(data.y) - left.mean), self.precision * left.variance)

    def settled(self, data: Dataset) -> "Turns":
        """With the best q(g) for what f leaves; and before it, of heavy tails, with s, ν and E ρᵢ."""
        left = left_out(self.f, self.of(data))
        turns = self._with_precisions(data, left) if np.isfinite(self.degrees) else self
        rows = turns.residuals(data, left)
        return turns._replace(g=_settled(turns.g.model, rows, self.start), rows=rows)

    def _with_precisions(self, data: Dataset, left: LeftOut) -> "Turns":
        """The variance of f counts as noise: the distances of the rows in the fit itself would be too small."""
        own = np.asarray(self._replace(precision=1.0).of(data).noise, float)
        squared = (np.asarray(data.y, float) - left.mean) ** 2 / (own + left.variance)
        variance, degrees = best_scale_and_degrees(squared, np.asarray(data.weight, float), 1.0, self.degrees)
        turns = self.with_scale(self.scale * variance**0.5, data.X.dtype)
        return turns._replace(degrees=degrees, precision=expected_precisions(squared, variance, degrees))


class VaryingNoise(NamedTuple):
    """A fit with noise that depends on x, and whether it pays: the sums over rows of the leave-one-out log densities,
    in nats of the scaled target, with that noise and with one variance, and the standard error of their difference;
    and whether the squared errors of these rows are too many."""

    fitted: Fitted
    varying: float
    constant: float
    error: float
    misses: bool = False
    turns: Turns | None = None  # where f was fitted again
    without_rows: tuple[LeftOut, LeftOut] | None = None

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
    data = rows_of(data, data.y, 0.0)
    before = left_out(fitted, data)
    constant = loo_log_density(fitted.model.likelihood, data, before)
    rows = rows_of(data, np.asarray(data.y) - before.mean, before.variance)
    start = _noise_fit(rows, fitted, settings)
    if if_it_may_pay:
        first = _tried(fitted, start, rows, constant, settings)
        if first.varying - first.constant < first.error:
            return first
    turns = Turns(fitted, _settled(start.model, rows, start), rows, start)
    for _ in range(ROUNDS):
        turns = refitted(turns, data, settings, prior, few_iterations(fitted, data, settings)).settled(data)
    turns = refitted(turns, data, settings, prior, 0)
    left, g = turns.without_rows(data)
    varying = loo_log_density(turns.g.model.likelihood, turns.residuals(data, left), g)
    squared = [float(np.asarray(data.weight) @ (np.asarray(data.y) - each.mean) ** 2) for each in (left, before)]
    missed = squared[0] > WORSE * squared[1] or misses(data, left.mean)
    sums = _sums(data, varying, constant)
    note = _told(sums, data.total_weight)
    both = both_functions(fitted, turns, data)
    both = both._replace(notes=(*fitted.notes, note))
    return VaryingNoise(both, *sums, missed, turns, (left, g))


def few_iterations(fitted: Fitted, data: Dataset, settings: Settings) -> int:
    """How many of f follow a change of its noise."""
    most = most_iterations(settings, len(data), len(fitted.model.posterior.Z)) // 10 + 1
    return min(REFIT, most)


def with_points_of_f(
    first: Fitted, turns: Turns, data: Dataset, settings: Settings, prior: LengthscalePrior, M: int
) -> Fitted:
    """The fit `first`, which is that of f and g, with more pseudo-points for f under the noise of g; g is then settled
    by what f leaves."""
    data, f = rows_of(data, data.y, 0.0), turns.f
    more = with_more_points(f, turns.of(data), settings, prior, M, hold_noise=True)
    if more is f:
        return first
    turns = turns._replace(f=more).settled(data)
    turns = refitted(turns, data, settings, prior, 0)
    found = both_functions(first, turns, data)
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


def left_out(fitted: Fitted, data: Dataset) -> LeftOut:
    """f without each row."""
    return leave_one_out(fitted.predictor, fitted.model.likelihood, data, not fitted.model.posterior.points)


def rows_of(data: Dataset, y, noise) -> Dataset:
    """The rows with another target and other noise variances."""
    arrays = (np.array(np.broadcast_to(x, len(data)), data.X.dtype) for x in (y, data.weight, noise))
    return Dataset(data.X, *arrays)


def _noise_fit(rows: Dataset, fitted: Fitted, settings: Settings) -> OptimiseResult:
    """Kernel and points of g, with the scale of the noise, at the prior of g: by a collapsed fit to ½ log e², whose
    noise is ½ log χ² (nearly a normal variable of variance π²/8)."""
    e, known = np.asarray(rows.y, float), np.asarray(rows.noise, float)
    least = LEAST**2 * (known + np.average(e**2, weights=rows.weight) + np.finfo(float).tiny)
    target = 0.5 * np.log(np.maximum(e**2, least)) - MEAN
    level = np.average(target, weights=rows.weight)
    target = rows_of(rows, target - level, 0.0).sample(ROWS, settings.seed)
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


def refitted(turns: Turns, data: Dataset, settings: Settings, prior: LengthscalePrior, iterations: int) -> Turns:
    """f under the noise of g, from where it ended; with no iterations its best q alone."""
    model, data = turns.f.model, turns.of(data)
    floor = cast(Gaussian(NOISE_FLOOR), data.X.dtype)
    model = Model(model.kernel, floor, model.posterior)
    float32_start = _float32_start(model, data, settings) if iterations and model.posterior.points else None
    return turns._replace(f=refit(model, data, settings, prior, iterations, 0.0, float32_start))


def _float32_start(model: Model, data: Dataset, settings: Settings) -> Callable[[Model], bool] | None:
    """The test for float32, which reads the noise of the likelihood: here of the rows that have the least."""
    test = float32_start_on_sample(model.kernel, data, settings)
    least = Gaussian(np.quantile(np.asarray(data.noise), LEAST_NOISE))
    return test and (lambda model: test(Model(model.kernel, least, model.posterior)))


def _told(sums: tuple[float, float, float], total: float) -> str:
    varying, constant, error = (each / total for each in sums)
    return (
        f"noise: log density of a row left out {varying:.3f}, with one variance {constant:.3f} "
        f"(standard error of the difference {error:.3f})"
    )


def both_functions(first: Fitted, turns: Turns, data: Dataset) -> Fitted:
    """The fit `first` with model and predictor of both functions, and both forms of the bound of both."""
    weight, f = np.asarray(data.weight, float), turns.f
    _, v = marginals_of_rows(turns.g.predictor, data)
    # E log s²e^{2g} is log of the rows' noise, and 2v more.
    less = float(weight @ v + divergence(turns.g.model))
    if np.isfinite(turns.degrees):
        less -= varying_mixture_terms(np.asarray(turns.precision), weight, turns.degrees)
    both = Model(f.model.kernel, cast(turns.likelihood, data.X.dtype), f.model.posterior)
    predictor = Joined((f.predictor, turns.g.predictor))
    return first.refitted(Fitted(both, predictor, "", "", f.bound - less, f.vfe - less, np.inf, (), 0, True, ()))


def given_noise(turns: Turns, data: Dataset) -> GivenNoise:
    """What a fit of f and g ended with."""
    data = rows_of(data, data.y, 0.0)
    times = lambda factor: turns.with_scale(turns.scale * factor**0.5, data.X.dtype)
    return GivenNoise(
        turns.f,
        turns.of(data),
        observed=lambda model, factor: times(factor).likelihood,
        again=lambda f, factor: both_functions(f, times(factor)._replace(f=f), data),
        beside=turns.g_without_rows,
        learned=False,
    )
