"""Regression: real targets, counts, positive amounts, proportions and ordered levels."""

from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any

import jax
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .. import sampling
from ..likelihoods import Gaussian, quantile
from ..metrics import interval
from ..optimise.result import Progress
from ..processes import computing
from . import notes, predictive
from .base import AbstractEstimator
from .checks import numbers, refuse_non_finite, shown, whole
from .serving import apply_learned, evaluate, in_blocks
from .targets import check_target, regression_likelihood

__all__ = ["GPRegressor"]

MAX_JOINT_ROWS = 5000
BELOW_ONE = float(np.nextafter(1, 0))  # the largest probability whose quantile is finite
LARGEST_TARGET = 1e305  # so that sums of a few predictions do not overflow


class GPRegressor(RegressorMixin, AbstractEstimator):
    """Gaussian process regression for tables of any size, with calibrated predictions.

    y = f(x) + ε, f ~ GP(0, k), ε ~ N(0, σ²), on inputs and target scaled to mean 0 and standard deviation 1 (undone
    exactly in everything that comes out); or another `likelihood` p(y | f). Whatever it is, predictions integrate f.

    Parameters
    ----------
    kernel : str or kernel object, default "matern52"
        "matern52", "matern32", "matern12", "rbf", "rational_quadratic", "periodic", "linear", each with one
        lengthscale a column; or an object such as ``Periodic(period=7.0) + RBF(30.0)``, whose numbers are the start.
        Its lengthscales, periods and column numbers are those of X, for inputs are then not scaled (`scale_inputs`);
        its variances are shares of the target's variance, unless ``scale_target=False``. ``RBF(30.0)`` has one
        lengthscale for all columns, ``RBF(30.0).ard(D)`` one for each of D.
    likelihood : str or likelihood object, default "gaussian"
        For real targets "gaussian", "heteroscedastic" (noise that depends on x), "student_t" and "laplace" (outliers);
        for counts "poisson" and "negative_binomial"; for positive targets "gamma" and "exponential"; for proportions
        "beta"; for a few ordered levels, such as ratings, "ordinal". An object starts from its own (scaled) numbers.
    method : {"auto", "exact", "laplace", "collapsed", "svgp"}, default "auto"
        "exact": the full GP, O(N³), Gaussian only. "laplace": the full GP at the mode, O(N³), any other likelihood of
        one latent function. "collapsed": M inducing points, full passes, O(NM²), the best posterior at every step of
        the hyperparameters (Titsias 2009; 2025; for other likelihoods by an inner loop of natural gradients). "svgp":
        minibatches with natural gradients, O(BM²) a step (Hensman et al. 2013; Salimbeni et al. 2018).
    optimiser : str, default "auto"
        One of the papers' methods by name, from a plain start: "NGD+Adam" (as "svgp" does), "Adam", "GD", "L-BFGS",
        "svi-natural", "svi-SAG", "svi-FG", "svi-L-BFGS-B", "vi-means", "means-PN", "t-SVGP" and others
        (`pseudopoint.optimise.named.OPTIMISERS` describes each); it implies the method.
    posterior : str, default "whitened"
        Family of the approximate posterior: "whitened", "unwhitened", "diagonal" (2M numbers: Kobe 2021), "orthogonal",
        "hybrid", "decoupled" (more points for the mean: Salimbeni et al. 2018; Cheng and Boots 2017) or "solve" (Shi,
        Titsias and Mnih 2020); all but the first are for large tables or for study.
    num_mean_inducing : int, optional
        How many more points the mean has, or the second block of "solve"; 2M when not given.
    num_inducing : int, optional
        M. Chosen from N when not given.
    inducing : {"auto", "kmeans", "rpcholesky", "greedy", "random"} or array [M, D], default "auto"
        Where inducing points start; an array is in the units of X.
    learn_inducing : bool, default True
        Whether inducing points move during the fit.
    bound : {"tight", "vfe"}, default "tight"
        The tight collapsed bound (Titsias 2025), or Titsias' of 2009. Never above the evidence, and tight ≥ vfe.
    initial : {"warm", "robust", "ulapane"}, default "warm"
        Start of lengthscales and variance, when `kernel` is a name. "robust": √D and the variance of y. "warm": the
        same, then an exact fit of few rows, for the sparse methods. "ulapane": the scheme of Ulapane et al. 2020.
    lengthscale_prior : float, default 1.5
        s of the prior log ℓ ~ N(log ℓ₀, s²) of every lengthscale, ℓ₀ its start: with few rows and many columns the
        likelihood alone switches columns on and off by chance. Full passes maximise the bound less ½ Σ (log ℓ/ℓ₀)²/s²;
        minibatches, which are for rows so many that it would not matter, and an optimiser by name leave it out.
        ``numpy.inf``: none, maximum likelihood.
    noise_variance : float, default 0.1
        Start of σ², as a share of the target's variance; for real targets.
    max_iter : int, optional
        L-BFGS-B iterations (default 200), or minibatch steps for "svgp" (default 3000; 2000 with
        `likelihood="gaussian"` or an optimiser by name).
    batch_size, learning_rate : int, float or None
        For "svgp"; None lets the optimiser choose.
    scale_inputs : {"auto", True, False}, default "auto"
        Standardise columns. "auto": for a kernel by name; a kernel object sees X as it is. Where True, the numbers of a
        kernel object are in standard deviations of the columns.
    scale_target : bool, default True
        Standardise a real target. Where False, a Gaussian process with a Gaussian likelihood has mean 0, which is what
        is predicted far from all rows.
    dtype : {"auto", "float64", "float32"}, default "auto"
        Precision of all computation. "auto": float64; but beyond 5,000 rows hyperparameters and points climb in
        float32, in about half the time, as long as the noise allows it. No global setting is touched.
    random_state : int, RandomState or None, default 0

    Attributes
    ----------
    method_, reason_ : the method that was used, and why.
    kernel_, likelihood_ : learned; of a kernel object lengthscales and periods are in the units of X, those of a kernel
    by name in standard deviations of the columns (`standardiser_.scale`); variances are those of the scaled target.
    mean_ : the learned constant mean of the latent function, None where the likelihood or the scaling has it.
    bound_, bound_vfe_, upper_bound_ : lower bounds on the log evidence of the scaled target, and an upper bound, in
    nats (infinite where none is known). inducing_points_ : [M, D] in the units and columns of X (None for "exact").
    levels_ : the values of an ordinal target. predictor_ : all that predicts. history_ : arrays step, bound,
    gradient_norm, step_size, rejected, seconds. n_iter_, n_rejected_, converged_. notes_ : sentences that a user should
    read: rows that were merged or are far from all others, a limit that was reached, weights of an unusual sum, …

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

    # Any: settings are checked by `fit`, as scikit-learn asks.
    def __init__(
        self,
        kernel: Any = "matern52",
        *,
        likelihood: Any = "gaussian",
        method: Any = "auto",
        optimiser: Any = "auto",
        posterior: Any = "whitened",
        num_inducing: Any = None,
        num_mean_inducing: Any = None,
        inducing: Any = "auto",
        learn_inducing: Any = True,
        bound: Any = "tight",
        initial: Any = "warm",
        lengthscale_prior: Any = 1.5,
        noise_variance: Any = 0.1,
        max_iter: Any = None,
        batch_size: Any = 1024,
        learning_rate: Any = None,
        scale_inputs: Any = "auto",
        scale_target: Any = True,
        dtype: Any = "auto",
        random_state: Any = 0,
    ):
        self.kernel = kernel
        self.likelihood = likelihood
        self.method = method
        self.optimiser = optimiser
        self.posterior = posterior
        self.num_inducing = num_inducing
        self.num_mean_inducing = num_mean_inducing
        self.inducing = inducing
        self.learn_inducing = learn_inducing
        self.bound = bound
        self.initial = initial
        self.lengthscale_prior = lengthscale_prior
        self.noise_variance = noise_variance
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.scale_inputs = scale_inputs
        self.scale_target = scale_target
        self.dtype = dtype
        self.random_state = random_state

    def fit(self, X, y, sample_weight=None, *, noise_variance=None, progress: Progress | None = None):
        """Fit to X [N, D] and y [N].

        Parameters
        ----------
        sample_weight : [N], optional. Weight 2 means that the row was seen twice.
        noise_variance : [N], optional. Known noise variance of each row, in squared units of y, on top of the learned
        σ²; for the Gaussian likelihood. progress : called with a `Record` after every iteration (or segment of
        minibatch steps).

        Raises
        ------
        ValueError : the data or a setting is unfit; the message names the column or setting and a remedy. Whatever is
        raised, an interrupt included, leaves the estimator as it was.
        """
        return self._whole(lambda model: model._fit(X, y, sample_weight, noise_variance, progress))

    def _fit(self, X, y, sample_weight, noise_variance, progress):
        self._check_settings()
        likelihood = regression_likelihood(self.likelihood, float(self.noise_variance))
        _refuse_bad_target(y)
        X, y, weight = self._check_rows(X, y, sample_weight, y_numeric=True)
        y = numbers("the target", y)
        known = np.zeros(len(y)) if noise_variance is None else _check_noise(noise_variance, X)
        if noise_variance is not None and not likelihood.known_noise:
            raise ValueError(f"noise_variance has no meaning for the likelihood {likelihood.name}: leave it out")
        check_target(likelihood, y)
        seen = y[weight > 0]
        constant = bool(np.all(seen == seen[0]))
        if constant and likelihood.support == "classes":  # one level has no edge to another
            likelihood = regression_likelihood("gaussian", self.noise_variance)
        self.levels_ = likelihood.levels(seen)
        target = y
        if self.levels_ is not None:
            target = np.searchsorted(self.levels_, y).clip(0, len(self.levels_) - 1).astype(np.float64)
        scale_target = bool(self.scale_target) and likelihood.support == "real"
        self._learn((X, target, weight, known), scale_target, likelihood.make, progress)
        self.notes_ += tuple(notes.constant_target(seen[0]) if constant else self._discrete(seen))
        return self

    def _discrete(self, y):
        """What to say where a density of real numbers describes a target of few values."""
        if not isinstance(self.likelihood_, Gaussian):  # whose noise is the only one with light tails
            return []
        return notes.discrete_target(y, float(np.sqrt(self.likelihood_.variance)) * self.standardiser_.target_scale)

    def predict(self, X, return_std=False, return_cov=False):
        """Mean of y at the rows of X [N, D], in the units of y; with `return_std` also its standard deviation [N], with
        `return_cov` its joint covariance [N, N]. Both include the noise.

        The covariance is that of f plus the noise variance on its diagonal, which is the squared standard deviation. It
        is for real targets and at most 5,000 rows. The mean alone takes O(M) a row, mean and standard deviation O(M²),
        under a Gaussian likelihood. Raises RuntimeError where both are asked for, as scikit-learn does, and ValueError
        for the covariance of other targets or more rows.
        """
        if return_std and return_cov:
            raise RuntimeError("ask for return_std or return_cov: the covariance has the variances on its diagonal")
        rows = self._inputs(X)
        if return_cov:
            return self._joint_moments(rows)
        if not return_std and self.levels_ is None:
            return self._in_units(evaluate(self, predictive.mean, rows))
        mean, std = self._moments(rows)
        return (mean, std) if return_std else mean

    def predict_interval(self, X, level=0.9):
        """Central intervals that hold y with probability `level`: [N, 2], lower and upper ends, in the units of y.

        The ends are the quantiles (1 ∓ level)/2 of y, f integrated out; for counts and levels they are values of y,
        which hold at least that probability.
        """
        if not (isinstance(level, Real) and 0 < level < 1):
            raise ValueError(f"level={shown(level)} must lie between 0 and 1; 0.9 means 90 %")
        rows = self._inputs(X)
        if isinstance(self.likelihood_, Gaussian):
            return np.column_stack(interval(*self._moments(rows), level))
        mean, variance = evaluate(self, predictive.latent, rows)
        with computing(self._precision):
            ends = [
                np.concatenate([quantile(self._observed(), m, v, p) for m, v in _cut(mean, variance)])
                for p in (0.5 - 0.5 * level, min(0.5 + 0.5 * level, BELOW_ONE))
            ]
        # Sorted, as the quantiles of nearly one probability are equal up to rounding.
        return np.sort(np.column_stack([self._in_units(end) for end in ends]), axis=1)

    def log_density(self, X, y):
        """log p(yᵢ | xᵢ) for every row, [N], per unit of y; a log probability for counts and levels."""
        rows = self._inputs(X)
        y = numbers("y", y)
        if y.shape != (len(rows),):
            raise ValueError(f"y has shape {y.shape}, but X has {len(rows)} rows")
        refuse_non_finite(np.empty((0, 0)), None, y)
        s, codes = self.standardiser_, y
        if self.levels_ is not None:
            codes = np.searchsorted(self.levels_, y).clip(0, len(self.levels_) - 1)
            unknown = self.levels_[codes] != y
            if unknown.any():
                raise ValueError(f"y holds {y[unknown][0]:g}, which is none of the levels that were learned")
        return evaluate(self, predictive.log_density, rows, s.target(codes)) - np.log(s.target_scale)

    def sample_y(self, X, n_samples=1, random_state=0):
        """Functions drawn from the posterior, at the rows of X: [N, n_samples], in the units of y.

        A draw is E[y | f] for one f, without the noise that `predict` includes. Rows are drawn jointly. Raises
        ValueError beyond 5,000 of them, where the joint covariance is too large.
        """
        rows, n = self._inputs(X), whole("n_samples", n_samples)
        _refuse_many(rows)
        lead = () if self.likelihood_.latents == 1 else (self.likelihood_.latents,)
        # Row by row: what later rows are does not matter to those before them.
        noise = check_random_state(random_state).standard_normal((len(rows), n, *lead)).T.astype(self._precision)
        with computing(self._precision):
            f = predictive.draw(self.predictor_, self.standardiser_.inputs(rows, self._precision), noise)
            draws = np.asarray(self._observed().moments(f).mean, np.float64)
        return self._in_units(draws).T

    def paths(self, n=1, random_state=None, *, features=1024) -> Callable[[Any], np.ndarray]:
        """n functions drawn from the posterior, to be evaluated anywhere, again and again: X [N, D] ↦ [n, N], the mean
        of y given f, in the units of X and y (`sampling.paths`, whose inputs and values are scaled).

        O(N(M + features)) for each function. Raises TypeError for a kernel of unknown spectrum, and for White.
        """
        check_is_fitted(self)
        n, features = whole("n", n), whole("features", features)
        fitted = self._copy()  # a later fit of this estimator does not change what was drawn
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        with computing(self._precision):
            drawn = sampling.paths(self.predictor_, seed, n, features)
            leaves, structure = jax.tree.flatten((drawn, self._observed()))
        width = n * (features + len(self.predictor_.Zv)) * self.likelihood_.latents
        apply = partial(apply_learned, predictive.mean_of_paths, structure, leaves)
        return lambda X: fitted._in_units(in_blocks(fitted, apply, width, fitted._inputs(X)))

    def _in_units(self, y):
        if self.levels_ is not None:
            return np.interp(y, np.arange(len(self.levels_)), self.levels_)
        return self.standardiser_.target_mean + self.standardiser_.target_scale * y

    def _moments(self, rows):
        """Mean and standard deviation of y in its own units, at rows that were checked."""
        if self.levels_ is not None:
            p, exponent = (
                np.exp(evaluate(self, predictive.log_probabilities, rows)),
                np.frexp(np.max(np.abs(self.levels_)))[1],
            )
            levels = np.ldexp(self.levels_, -exponent)  # at most 1: squares of levels may overflow
            mean = levels @ p
            std = np.sqrt(np.sum((levels[:, None] - mean) ** 2 * p, axis=0))
            return np.ldexp(mean, exponent), np.ldexp(std, exponent)
        mean, variance = evaluate(self, predictive.moments, rows)
        mean *= self.standardiser_.target_scale  # in place, as a million rows are 8 MB a copy
        mean += self.standardiser_.target_mean
        std = np.sqrt(variance, out=variance)
        std *= self.standardiser_.target_scale  # whose square may overflow
        return mean, std

    def _joint_moments(self, rows):
        """Mean and joint covariance of y in its own units, at rows that were checked."""
        if not self.likelihood_.additive:
            raise ValueError(
                f"return_cov is for real targets with noise, y = f + noise; the likelihood {self.likelihood_.name} has "
                "return_std"
            )
        _refuse_many(rows)
        mean, std = self._moments(rows)
        with computing(self._precision):
            K = predictive.covariance(self.predictor_, self.standardiser_.inputs(rows, self._precision))
            K = np.asarray(K, np.float64).reshape(-1, len(rows), len(rows))[0]  # of the first latent function
        with np.errstate(over="ignore"):
            covariance = (0.5 * (K + K.T) * self.standardiser_.target_scale) * self.standardiser_.target_scale
            np.fill_diagonal(covariance, std**2)
        if not np.isfinite(covariance).all():
            raise ValueError("the covariance is too large a number in squared units of y: ask for return_std")
        return mean, covariance


def _cut(*arrays):
    """Blocks of rows, for quantiles hold some hundred numbers a row."""
    return zip(*(np.array_split(a, -(-a.shape[-1] // 10_000), axis=-1) for a in arrays), strict=True)


def _refuse_many(rows):
    if len(rows) > MAX_JOINT_ROWS:
        raise ValueError(f"{len(rows)} rows together need a {len(rows)}² matrix: pass at most {MAX_JOINT_ROWS}")


def _check_noise(noise_variance, X):
    noise = numbers("noise_variance", noise_variance)
    if noise.shape != (len(X),):
        raise ValueError(f"noise_variance has shape {noise.shape}, but X has {len(X)} rows: give one number a row")
    if not ((noise >= 0) & (noise < np.inf)).all():
        raise ValueError("noise_variance must be zero or positive in every row")
    return noise


def _refuse_bad_target(y):
    """NaN, infinity and numbers too large for predictions in a target, by row; all else is left to scikit-learn's
    checks."""
    try:
        values = numbers("the target", y)
    except ValueError:
        return
    if values.ndim == 1:
        refuse_non_finite(np.empty((0, 0)), None, values)
        large = np.abs(values) > LARGEST_TARGET
        if large.any():
            row = int(np.argmax(large))
            raise ValueError(
                f"the target holds {values[row]:g} in row {row} ({large.sum()} such rows), but at most "
                f"{LARGEST_TARGET:g} is computed with: give it in a larger unit, or drop those rows"
            )
