"""Regression: real targets, counts, positive amounts, proportions and ordered levels."""

from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .. import names, sampling
from ..kernels import AbstractKernel
from ..likelihoods import AbstractLikelihood, quantile
from ..means import AbstractMean
from ..metrics import interval
from ..optimise.result import Progress
from ..processes import computing
from . import notes, outputs, predictive
from .base import AbstractEstimator
from .checks import (
    LARGEST_TARGET,
    no_type_check,
    noise_of_rows,
    numbers,
    one_column,
    refuse_bad_target,
    shown,
    store,
    truth,
    whole,
)
from .exposure import Rates, checked_exposure, shift
from .frames import given
from .joint import joint_moments
from .lazy import ScoresExposures, over_partitions
from .left_out import densities
from .near import correlated, likelihood_of_draws, move, moved_paths, numbers_a_row, place, predictive_likelihood
from .serving import apply_learned, evaluate, in_blocks
from .targets import check_target, regression_likelihood
from .updating import target_of_numbers
from .warm import learned_by, refuse_other_classes

MAX_JOINT_ROWS = 5000
BELOW_ONE = float(np.nextafter(1, 0))  # the largest probability whose quantile is finite


class GPRegressor(ScoresExposures, RegressorMixin, AbstractEstimator):
    """Gaussian process regression for tables of any size, with calibrated predictions.

    y = f(x) + ε, f ~ GP(0, k), ε ~ N(0, σ²), on inputs and target scaled to mean 0 and standard deviation 1 (undone
    exactly in everything that comes out); or another `likelihood` p(y | f). Whatever it is, predictions integrate f.
    What the settings leave open, a search by the evidence of a sample of rows decides (`recipes.search`).

    The parameters are the settings of `pseudopoint.names.Settings` (docs/settings.md).

    What a fit learns:

    - `method_`, `reason_`: the method that was used, and why. `selection_`: what a search tried, a dict of columns
      part, choice, log_density (nats of the sample, or for the last parts of rows left out), chosen, seconds.
    - `kernel_`, `likelihood_`: of a kernel object lengthscales and periods are in the units of X, of a kernel by name
      in standard deviations of the columns (`standardiser_.scale`); variances are those of the scaled target. A kernel
      without a factor among its numbers may have become a product with a constant (part "variance" of `selection_`).
    - `mean_`: the constant mean of the latent function, None where the likelihood or the scaling has it.
    - `bound_`, `bound_vfe_`, `upper_bound_`: lower bounds on the log evidence of the scaled target, and an upper bound,
      in nats (infinite where none is known). `log_prior_`: that of `priors`, which no bound
      has. `inducing_points_`: [M, D] in the units of X, None for "exact".
    - `encoder_`: what encodes the columns of a table, None where X was an array. `columns_`: their names. `levels_`:
      the values of an ordinal target. `outputs_`: the names of several outputs. `predictor_`: all that predicts f.
    - `near_rows_`: the training rows whose errors correct predictions (`posteriors.NearRows`), None without. What
      they leave of the noise of `likelihood_` is the share `near_rows_.noise`.
    - `history_`: arrays step, total, bound (what was climbed: less the prior's penalty, and of the warped target),
      gradient_norm, step_size, rejected, seconds. `n_iter_`, `n_rejected_`, `converged_`. `notes_`: sentences to read,
      such as on rows that were merged or are far from all others.

    Examples
    --------
    >>> import numpy as np
    >>> from pseudopoint import GPRegressor
    >>> X = np.linspace(0, 6, 50)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> model = GPRegressor().fit(X, y)
    >>> mean, std = model.predict([[1.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.5)) < 0.01)
    True
    """

    levels_: Any = None  # model files that are older than ordinal targets have none

    @no_type_check
    def __init__(
        self,
        kernel: names.Kernel | str | AbstractKernel = "auto",
        *,
        likelihood: names.RegressionLikelihood | AbstractLikelihood = "auto",
        mean: names.Mean | AbstractMean = "auto",
        input_warp: names.InputWarp = "auto",
        target_warp: names.TargetWarp = "auto",
        outputs: names.Outputs = "independent",
        num_latents: int | None = None,
        near_rows: bool = True,
        effort: names.Effort = "balanced",
        method: names.Method = "auto",
        optimiser: names.Optimiser = "auto",
        posterior: names.Posterior = "whitened",
        num_inducing: int | None = None,
        num_mean_inducing: int | None = None,
        inducing: names.Placement | ArrayLike = "auto",
        learn_inducing: bool = True,
        bound: names.Bound = "tight",
        initial: names.Initial = "warm",
        lengthscale_prior: float = 1.5,
        priors: str | dict | None = None,
        initial_noise: float = 0.1,
        max_iter: int | None = None,
        batch_size: int = 1024,
        learning_rate: float | None = None,
        scale_inputs: names.ScaleInputs = "auto",
        scale_target: bool = True,
        dtype: names.Dtype = "auto",
        random_state: int | np.random.RandomState | None = 0,
        warm_start: bool = False,
    ):
        store(locals())

    def fit(
        self,
        X,
        y,
        sample_weight=None,
        *,
        noise_variance=None,
        exposure=None,
        progress: Progress | None = None,
        checkpoint=None,
        resume: bool = False,
    ):
        """Fit to X [N, D] and y [N], or y [N, P] of P outputs with NaN in gaps (docs/several_outputs.md); or to a table
        X by name (Parquet or CSV files, a folder or glob of them, a table of Arrow, a DataFrame) whose column is called
        y, part by part, so that it need not fit into memory.

        X may be a table (pandas, polars, Arrow) of numbers, text, categories, true/false values, dates and gaps, which
        are encoded as the command line's tables are (docs/tables.md); rows whose target is a gap are then left out, and
        `notes_` says so. A target of durations is read in days, dates in an array X as nanoseconds.

        Parameters
        ----------
        sample_weight : [N], optional. Weight 2 means that the row was seen twice. noise_variance : [N], optional. Known
        noise variance of each row, in squared units of y, on top of the learned σ²; for the Gaussian likelihood.
        exposure : [N], optional. Counts y ~ Poisson(E λ) over an exposure E (time, area, persons), for
        likelihood="poisson": λ is learned. progress : called with a `Record` after every iteration (or segment of
        minibatch steps). checkpoint : a folder in which the state of the fit is kept, every minute and when it is
        stopped; with `resume` the fit that was stopped goes on. Such a fit reads arrays part by part, too.

        Raises
        ------
        ValueError : the data or a setting is unfit; the message names the column or setting and a remedy. Whatever is
        raised, an interrupt included, leaves the estimator as it was.
        """
        if self._is_streamed(X, y, checkpoint, resume):
            refused = {"sample_weight": sample_weight, "noise_variance": noise_variance, "exposure": exposure}
            return self._fit_streamed(X, y, refused, checkpoint, resume, progress)
        if outputs.several_columns(y):
            refused = {"noise_variance": noise_variance, "exposure": exposure}
            return self._whole(lambda model: outputs.fit_outputs(model, X, y, refused, sample_weight, progress))
        return self._whole(lambda model: model._fit(X, y, sample_weight, noise_variance, exposure, progress=progress))

    def _fit_source(self, at):
        from .streaming import learn_source

        outputs.refuse_alone(settings := self._settings())
        likelihood = regression_likelihood(settings.likelihood, settings.initial_noise)
        if likelihood.support == "classes":
            raise ValueError("an ordinal target needs the rows in memory: use another likelihood")
        learned = at.learned(settings, False, lambda y, rows: check_target(likelihood, y, rows))
        if max(abs(learned.target.least), abs(learned.target.most)) > LARGEST_TARGET:
            raise ValueError(f"the target holds numbers beyond {LARGEST_TARGET:g}: give it in a larger unit")
        scale_target = settings.scale_target and likelihood.support == "real"
        self.levels_ = self.outputs_ = None
        learn_source(self, settings, at, learned, lambda y: y, scale_target, likelihood.make)

    def _fit(self, X, y, sample_weight, noise_variance=None, exposure=None, *, progress=None, encoder=None):
        outputs.refuse_alone(settings := self._settings())
        likelihood = regression_likelihood(settings.likelihood, settings.initial_noise)
        rows = given(self, X, y, sample_weight, noise_variance, exposure, classes=False, encoder=encoder)
        X, y, (sample_weight, noise_variance, exposure) = rows.X, rows.y, rows.columns
        refuse_bad_target(y)
        X, y, weight = self._check_rows(X, y, sample_weight, y_numeric=True)
        y = numbers("the target", y)
        known = np.zeros(len(y)) if noise_variance is None else noise_of_rows(noise_variance, X)
        if noise_variance is not None and not likelihood.known_noise:
            raise ValueError(f"noise_variance has no meaning for the likelihood {likelihood.name}: leave it out")
        check_target(likelihood, y, rows.places)
        seen = y[weight > 0]
        constant = exposure is None and bool(np.all(seen == seen[0]))
        if constant and likelihood.support == "classes":  # one level has no edge to another
            likelihood = regression_likelihood("gaussian", settings.initial_noise)
        before, self.levels_ = self.levels_, likelihood.levels(seen)
        if (started := learned_by(self)) is not None:
            refuse_other_classes(before, self.levels_, "levels")
        self.outputs_ = None
        target = y
        if self.levels_ is not None:
            target = np.searchsorted(self.levels_, y).clip(0, len(self.levels_) - 1).astype(np.float64)
        rates = None if exposure is None else Rates.of(likelihood, target, weight, checked_exposure(exposure, X))
        if rates is not None and started is not None:
            rates.begin(self)
        if rates is not None:
            target, weight, likelihood = rates.y, rates.weight, rates.target
        scale_target = settings.scale_target and likelihood.support == "real"
        self._learn(settings, (X, target, weight, known), scale_target, likelihood.make, progress)
        if rates is not None:
            rates.finish(self)
        variance = self.likelihood_.gaussian_noise  # None of other noise, whose tails are not light
        noise = np.inf if variance is None else float(np.sqrt(variance)) * self.standardiser_.target_scale
        about = notes.constant_target(seen[0]) if constant else notes.discrete_target(seen, noise)
        self.notes_ = (*rows.notes, *self.notes_, *about)
        return self

    @over_partitions
    def predict(self, X, return_std=False, return_cov=False, *, exposure=None):
        """Mean of y at the rows of X [N, D], in the units of y; with `return_std` also its standard deviation [N], with
        `return_cov` its joint covariance [N, N]. Both include the noise. Of P outputs mean and standard deviation are
        [N, P], and the covariance of all of them together is [N, P, N, P]. `exposure` [N] is that of counts, here and
        below: 1 by default.

        The covariance is that of f plus the noise variance on its diagonal, which is the squared standard deviation. It
        is for real targets and at most 5,000 rows. The mean alone takes O(M) a row, mean and standard deviation O(M²),
        under a Gaussian likelihood; near rows take O(N) more. Raises RuntimeError where both are asked for, as
        scikit-learn does, and ValueError for the covariance of other targets or more rows.
        """
        if return_std and return_cov:
            raise RuntimeError("ask for return_std or return_cov: the covariance has the variances on its diagonal")
        rows = self._inputs(X)
        moved = shift(self, exposure, rows)
        if return_cov:
            self._refuse_many(rows)
            of = joint_moments if self.outputs_ is None else outputs.joint_moments
            return of(self, rows)
        if not return_std and self.levels_ is None:
            return self._in_units(evaluate(self, predictive.mean, rows, *moved).T)
        mean, std = self._moments(rows, *moved)
        return (mean, std) if return_std else mean

    def __sklearn_tags__(self):
        tags = RegressorMixin.__sklearn_tags__(self)
        tags.target_tags.multi_output = True
        return tags

    def _predictions(self, X):
        return self.predict(X), self.predict(X, return_std=True), self.predict_interval(X)

    def _outputs(self):
        return np.array([[self.standardiser_.target_scale]]) if self.levels_ is None else self.levels_[None, :]

    @over_partitions
    def predict_interval(self, X, level=0.9, *, exposure=None):
        """Central intervals that hold y with probability `level`: [N, 2], lower and upper ends, in the units of y; of P
        outputs [N, P, 2].

        The ends are the quantiles (1 ∓ level)/2 of y, f integrated out; for counts and levels they are values of y,
        which hold at least that probability.
        """
        if not (isinstance(level, Real) and 0 < level < 1):
            raise ValueError(f"level={shown(level)} must lie between 0 and 1; 0.9 means 90 %")
        rows = self._inputs(X)
        moved = shift(self, exposure, rows)
        if self.likelihood_.gaussian_noise is not None:
            return np.stack(interval(*self._moments(rows), level), axis=-1)
        mean, variance = evaluate(self, predictive.latent, rows)
        mean = sum(moved, mean)
        likelihood = predictive_likelihood(self)
        with computing(self._precision):
            above = min(0.5 + 0.5 * level, BELOW_ONE)
            of = lambda p: np.concatenate([quantile(likelihood, m, v, p) for m, v in _cut(mean, variance)])
            ends = [of(1 - above), of(above)]
        # Sorted, as the quantiles of nearly one probability are equal up to rounding.
        ends = np.sort(np.column_stack(ends), axis=1)
        return self._in_units(ends) if self.levels_ is None else self.levels_[ends.astype(int)]

    def log_density(self, X, y, *, exposure=None):
        """log p(yᵢ | xᵢ) for every row, [N], per unit of y; a log probability for counts and levels.

        Of y [N, P] that of every output by itself, [N, P]: NaN in the gaps.
        """
        rows, y = self._inputs(X), numbers("y", one_column(y) if self.outputs_ is None else y)
        shape = (len(rows),) if self.outputs_ is None else (len(rows), len(self.outputs_))
        if y.shape != shape:
            raise ValueError(f"y has shape {y.shape}, but it must be {shape} for these rows of X")
        if self.outputs_ is not None:
            return outputs.density_of_outputs(self, rows, y)
        s, target = self.standardiser_, target_of_numbers(self, y)
        moved = shift(self, exposure, rows)
        return evaluate(self, predictive.log_density, rows, s.target(target), *moved) - np.log(s.target_scale)

    def loo_log_density(self, X, y, sample_weight=None, *, noise_variance=None):
        """log p(yᵢ | xᵢ, all other rows) for every row of a table that the model was fitted to, [N], per unit of y.

        In closed form, at the price of one prediction of these rows: N³ for "exact", N M² for "collapsed" (Rasmussen
        and Williams 2006, 5.12; methods h.1). Hyperparameters, scaling and inducing points stay as they are, which have
        seen every row: compare models by it, and report rows that were held out. Of a row of weight w > 1 one of w
        copies is left out. The sum is the pseudo-likelihood. Raises ValueError for other likelihoods and methods.
        """
        return densities(self, X, y, sample_weight, noise_variance, None)

    def kfold_log_density(self, X, y, folds, sample_weight=None, *, noise_variance=None):
        """log p(yᵢ | xᵢ, all rows outside the fold of row i), [N], per unit of y; `folds` [N] names the fold of each.

        As `loo_log_density`, in closed form (methods h.3): for rows that belong together, such as those of one patient
        or one week, of which one tells of the others. A fold of n rows takes n³ more.
        """
        return densities(self, X, y, sample_weight, noise_variance, folds)

    def sample_y(self, X, n_samples=1, random_state=0, *, noise=False):
        """Functions drawn from the posterior, at the rows of X: [N, n_samples], in the units of y; of P outputs, drawn
        jointly, [N, P, n_samples].

        A draw is E[y | f] for one f; with `noise` it is y, for normal noise of one variance (of w(y) under a warp).
        Raises ValueError beyond 5,000 rows, where the joint covariance is too large, and for other noise.
        """
        rows, n, state = self._inputs(X), whole("n_samples", n_samples), check_random_state(random_state)
        self._refuse_many(rows)
        # Row by row: what later rows are does not matter to those before them.
        normal = state.standard_normal((len(rows), n, *self.predictor_.leading)).T.astype(self._precision)
        likelihood, noise = likelihood_of_draws(self), truth("noise", noise)
        if self.outputs_ is not None:
            f = draws = outputs.joint_draws(self, rows, normal)
        else:
            with computing(self._precision):
                X = self.standardiser_.inputs(rows, self._precision)
                f = predictive.draw(self.predictor_, X, normal)
                if (near := self.near_rows_) is not None:
                    xi = correlated(near, X, state.standard_normal((len(rows), n)).T.astype(self._precision))
                    f = move(f, evaluate(self, place, rows), xi, near.noise)
                draws = np.asarray(predictive.mean_given(likelihood, self._scaled_levels()[0], f), np.float64)
        draws = predictive.with_noise(likelihood, f, state) if noise else draws
        return np.swapaxes(self._in_units(draws.T), 1, -1)

    def paths(self, n=1, random_state=None, *, features=1024) -> Callable[[Any], np.ndarray]:
        """n functions drawn from the posterior, to be evaluated anywhere, again and again: X [N, D] ↦ [n, N], the mean
        of y given f, in the units of X and y (`sampling.paths`, whose inputs and values are scaled).

        O(N(M + features)) for each function. Raises TypeError for a kernel of unknown spectrum, and for White.
        """
        check_is_fitted(self)
        if self.outputs_ is not None:
            raise ValueError(f"paths is for one output, and this model has {len(self.outputs_)}: fit each by itself")
        n, features = whole("n", n), whole("features", features)
        fitted = self._copy()  # a later fit of this estimator does not change what was drawn
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        with computing(self._precision):
            drawn = moved_paths(self, sampling.paths(self.predictor_, seed, n, features), seed + 1, n, features)
            leaves, structure = jax.tree.flatten((drawn, likelihood_of_draws(self), self._scaled_levels()[0]))
        width = n * (features + numbers_a_row(self.predictor_, self.near_rows_)) * self.likelihood_.latents
        apply = partial(apply_learned, predictive.mean_of_paths, structure, leaves)
        return lambda X: fitted._in_units(in_blocks(fitted, apply, width, fitted._inputs(X)))

    def _coded(self, y):
        return target_of_numbers(self, y)

    def _in_units(self, y):
        if self.levels_ is not None:
            return np.ldexp(y, self._scaled_levels()[1])
        return self.standardiser_.target_mean + self.standardiser_.target_scale * y

    def _scaled_levels(self) -> tuple[Any, Any]:
        """The levels over a power of two, at most 1, as their squares may overflow, and its exponent; None without."""
        if self.levels_ is None:
            return None, 0
        exponent = np.frexp(np.max(np.abs(self.levels_)))[1]
        return np.ldexp(self.levels_, -exponent), exponent

    def _moments(self, rows, *moved):
        """Mean and standard deviation of y in its own units, at rows that were checked."""
        if self.levels_ is not None:
            p = np.exp(evaluate(self, predictive.log_probabilities, rows))
            levels, exponent = self._scaled_levels()
            mean = levels @ p
            std = np.sqrt(np.sum((levels[:, None] - mean) ** 2 * p, axis=0))
            return np.ldexp(mean, exponent), np.ldexp(std, exponent)
        mean, variance = (part.T for part in evaluate(self, predictive.moments, rows, *moved))
        mean *= self.standardiser_.target_scale  # in place, as a million rows are 8 MB a copy
        mean += self.standardiser_.target_mean
        std = np.sqrt(variance, out=variance)
        std *= self.standardiser_.target_scale  # whose square may overflow
        return mean, std

    def _refuse_many(self, rows):
        N, most = len(rows), MAX_JOINT_ROWS // len(self.outputs_ or (1,))
        if N > most:
            raise ValueError(f"{N} rows together need a {N}² matrix: pass at most {most}")


def _cut(*arrays):
    """Blocks of rows, for quantiles hold some hundred numbers a row."""
    return zip(*(np.array_split(a, max(1, -(-a.shape[-1] // 10_000)), axis=-1) for a in arrays), strict=True)
