"""Scikit-learn estimators: checking, scaling and glue. The mathematics is in the core."""

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

from .data import Standardiser, dataset, merge_duplicates
from .history import Progress, Record
from .initial import named_kernel, robust, ulapane
from .kernels import AbstractKernel
from .likelihoods import Gaussian
from .linalg import factorise
from .metrics import interval
from .persistence import load as load_tree
from .persistence import save as save_tree
from .recipes import METHODS, Fitted, Settings, fit_regression

__all__ = ["GPRegressor"]

BLOCK = 2**22  # numbers of K_uf held at once while predicting
MAX_JOINT_ROWS = 5000
MERGED_ROWS = 500_000
_CHOICES = {
    "method": METHODS,
    "bound": ("tight", "vfe"),
    "initial": ("warm", "robust", "ulapane"),
    "dtype": ("float64", "float32"),
}


@contextmanager
def computing(dtype: str) -> Iterator[None]:
    """JAX in the given precision, within this scope and thread only."""
    with jax.enable_x64(dtype == "float64"):
        yield


class GPRegressor(RegressorMixin, BaseEstimator):
    """Gaussian process regression for tables of any size, with calibrated predictions.

    y = f(x) + ε, f ~ GP(0, k), ε ~ N(0, σ²), on inputs and target scaled to mean 0 and standard deviation 1 (undone
    exactly in everything that comes out).

    Parameters
    ----------
    kernel : str or kernel object, default "matern52"
        "matern52", "matern32", "matern12", "rbf", "rational_quadratic", "periodic", "linear", each with one
        lengthscale a column; or an object such as ``RBF(1.0) + White(0.1)``, whose numbers are the start, in scaled
        units.
    method : {"auto", "exact", "collapsed", "svgp"}, default "auto"
        "exact": the full GP, O(N³). "collapsed": M inducing points, full passes, O(NM²) (Titsias 2009; 2025). "svgp":
        minibatches with natural gradients, O(BM²) a step (Hensman et al. 2013; Salimbeni et al. 2018).
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
        same, then an exact fit of 500 rows, for the sparse methods. "ulapane": the scheme of Ulapane et al. 2020.
    noise_variance : float, default 0.1
        Start of σ², as a share of the target's variance.
    max_iter : int, optional
        L-BFGS-B iterations (default 200), or minibatch steps for "svgp" (default 2000).
    batch_size, learning_rate : int, float
        For "svgp".
    scale_inputs, scale_target : bool, default True
        Standardise columns and target.
    dtype : {"float64", "float32"}, default "float64"
        Precision of all computation. No global setting is touched.
    random_state : int, RandomState or None, default 0

    Attributes
    ----------
    method_, reason_ : the method that was used, and why.
    kernel_, likelihood_ : learned, in scaled units.
    bound_, bound_vfe_, upper_bound_ : lower bounds on the log evidence of the scaled target, and an upper bound, in
    nats. inducing_points_ : [M, D] in the units of X (None for "exact").
    predictor_ : all that predicts. history_ : arrays step, bound, gradient_norm, step_size, undone, seconds. n_iter_,
    n_undone_, converged_, notes_.

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

    # Any: settings are checked by `fit`, as scikit-learn asks.
    def __init__(
        self,
        kernel: Any = "matern52",
        *,
        method: Any = "auto",
        num_inducing: Any = None,
        inducing: Any = "auto",
        learn_inducing: Any = True,
        bound: Any = "tight",
        initial: Any = "warm",
        noise_variance: Any = 0.1,
        max_iter: Any = None,
        batch_size: Any = 1024,
        learning_rate: Any = 0.02,
        scale_inputs: Any = True,
        scale_target: Any = True,
        dtype: Any = "float64",
        random_state: Any = 0,
    ):
        self.kernel = kernel
        self.method = method
        self.num_inducing = num_inducing
        self.inducing = inducing
        self.learn_inducing = learn_inducing
        self.bound = bound
        self.initial = initial
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
        σ². progress : called with a `Record` after every iteration (or segment of minibatch steps).

        Raises
        ------
        ValueError : the data or a setting is unfit; the message names the column or setting and a remedy.
        """
        self._check_settings()
        _refuse_bad_target(y)
        checks = {"y_numeric": True, "dtype": np.float64, "ensure_all_finite": False, "ensure_min_samples": 2}
        X, y = (np.asarray(array, np.float64) for array in validate_data(self, X, y, **checks))
        _refuse_non_finite(X, y, getattr(self, "feature_names_in_", None))
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        extra = np.zeros(len(y)) if noise_variance is None else _check_noise(noise_variance, X)
        if not weight.sum() > 0:
            raise ValueError("sample_weight is zero for every row: give at least one row a positive weight")
        if np.ptp(y[weight > 0]) == 0:
            value = y[weight > 0][0]
            raise ValueError(f"the target is constant ({value:g} in every row): there is nothing to learn from it")
        rows = X, y, weight, extra
        if len(y) <= MERGED_ROWS:  # beyond, sorting the rows costs more than their repetitions
            rows = merge_duplicates(*rows)
        scaling = Standardiser.learn(*rows[:3], self.scale_inputs, self.scale_target)
        with computing(self.dtype), threadpool_limits(1, user_api="blas"):
            fitted = self._fit(scaling, rows, progress)
        self._keep(scaling, fitted)
        return self

    def _check_settings(self):
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown: use one of {', '.join(allowed)}")
        for name in ("num_inducing", "max_iter", "batch_size"):
            value = getattr(self, name)
            if not (value is None and name != "batch_size" or isinstance(value, Integral) and int(value) > 0):
                raise ValueError(f"{name}={value!r} must be a positive whole number")
        for name in ("learning_rate", "noise_variance"):
            value = getattr(self, name)
            if not (isinstance(value, Real) and 0 < float(value) < np.inf):
                raise ValueError(f"{name}={value!r} must be a positive number")

    def _given_points(self, D):
        """Inducing points given as an array, or the name of a method."""
        if isinstance(self.inducing, str):
            return self.inducing
        points = np.asarray(self.inducing, np.float64)
        if points.ndim != 2 or len(points) == 0:
            raise ValueError(f"inducing has shape {points.shape}: give an array [M, {D}] of at least one point")
        if points.shape[1] != D:
            raise ValueError(f"inducing has {points.shape[1]} columns, but X has {D}: give an array [M, {D}]")
        if not np.isfinite(points).all():
            raise ValueError("inducing contains NaN or infinity: give finite points")
        return points

    def _fit(self, scaling, rows, progress) -> Fitted:
        X, y, weight, extra = rows
        X, y, extra = scaling.inputs(X), scaling.target(y), extra / scaling.target_scale**2
        data = dataset(X, y, weight, extra, dtype=self.dtype)
        kernel = self.kernel
        if not isinstance(kernel, AbstractKernel):
            start = ulapane if self.initial == "ulapane" else robust
            lengthscale, variance = start(X, y)
            kernel = named_kernel(kernel, lengthscale, variance, X.shape[1])
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        inducing = self._given_points(len(rows[0][0]))
        if not isinstance(inducing, str):
            inducing = scaling.inputs(inducing)
        settings = Settings(
            method=self.method,
            num_inducing=self.num_inducing,
            inducing=inducing,
            learn_inducing=self.learn_inducing,
            tight=self.bound == "tight",
            warm=self.initial == "warm" and isinstance(self.kernel, str),
            max_iter=self.max_iter,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            seed=int(seed),
        )
        return fit_regression(kernel, Gaussian(self.noise_variance), data, settings, progress)

    def _keep(self, scaling, fitted):
        host = lambda tree: jax.tree.map(np.asarray, tree)
        self.standardiser_ = scaling
        self.kernel_, self.likelihood_ = host(fitted.model.kernel), host(fitted.model.likelihood)
        self.predictor_ = host(fitted.predictor)
        points = None if fitted.model.posterior is None else np.asarray(fitted.model.posterior.Z, np.float64)
        self.inducing_points_ = None if points is None else points * scaling.scale + scaling.mean
        self.method_, self.reason_, self.notes_ = fitted.method, fitted.reason, fitted.notes
        self.bound_, self.bound_vfe_, self.upper_bound_ = fitted.bound, fitted.vfe, fitted.upper
        columns = zip(*fitted.history, strict=True) if fitted.history else [()] * len(Record._fields)
        self.history_ = {name: np.asarray(column, float) for name, column in zip(Record._fields, columns, strict=True)}
        self.n_iter_ = fitted.history[-1].step if fitted.history else 0
        self.n_undone_, self.converged_ = fitted.undone, fitted.converged

    def predict(self, X, return_std=False):
        """Mean of y at the rows of X [N, D], in the units of y; with `return_std` also its standard deviation, noise
        included."""
        mean, variance = self._moments(X)
        return (mean, np.sqrt(variance)) if return_std else mean

    def predict_interval(self, X, coverage=0.9):
        """Central intervals that hold y with probability `coverage`: [N, 2], lower and upper ends, in y's units."""
        mean, variance = self._moments(X)
        return np.column_stack(interval(mean, np.sqrt(variance), coverage))

    def log_density(self, X, y):
        """log p(yᵢ | xᵢ) for every row, [N], per unit of y."""
        mean, variance = self._moments(X)
        y = np.asarray(y, np.float64)
        if y.shape != mean.shape:
            raise ValueError(f"y has shape {y.shape}, but X has {len(mean)} rows")
        return -0.5 * (np.log(2 * np.pi * variance) + (y - mean) ** 2 / variance)

    def sample(self, X, n=1, random_state=None):
        """n functions drawn from the posterior, at the rows of X: [n, N], in the units of y, without observation noise.

        Rows are drawn jointly; raises ValueError beyond 5,000 of them, where the joint covariance is too large.
        """
        check_is_fitted(self)
        X = self._inputs(X)
        if len(X) > MAX_JOINT_ROWS:
            raise ValueError(f"a joint sample at {len(X)} rows needs a {len(X)}² matrix: pass at most {MAX_JOINT_ROWS}")
        noise = check_random_state(random_state).standard_normal((n, len(X)))
        with computing(self.dtype):
            mean, L = _joint(self.predictor_, jnp.asarray(X, self.dtype))
            draws = np.asarray(mean + jnp.asarray(noise, self.dtype) @ L.T, np.float64)
        return self.standardiser_.target_mean + self.standardiser_.target_scale * draws

    def _inputs(self, X):
        X = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=False)
        _refuse_non_finite(X, None, getattr(self, "feature_names_in_", None))
        return self.standardiser_.inputs(X)

    def _moments(self, X):
        """Mean and variance of y in its own units, in blocks of rows: memory does not grow with N."""
        check_is_fitted(self)
        X = self._inputs(X)
        size = min(_power_of_two(len(X)), _power_of_two(BLOCK // len(self.predictor_.Zv)))
        mean, variance = np.empty(len(X)), np.empty(len(X))
        with computing(self.dtype):
            for start in range(0, len(X), size):
                rows = X[start : start + size]
                padded = np.zeros((size, X.shape[1]), self.dtype)  # one shape, one compilation
                padded[: len(rows)] = rows
                m, v = _predict(self.predictor_, self.likelihood_, padded)
                mean[start : start + size], variance[start : start + size] = m[: len(rows)], v[: len(rows)]
        s = self.standardiser_
        return s.target_mean + s.target_scale * mean, s.target_scale**2 * variance

    def save(self, path, *, extra=None, classes=()):
        """Write the fitted model to one file (safetensors with JSON metadata, no pickle), atomically.

        `extra` is a tree (dicts, lists, numbers, strings, arrays) to keep beside it. Kernel classes of your own are
        named in `classes`, here and in `load`. A `random_state` that is a generator is not kept. Raises ModelFileError.
        """
        check_is_fitted(self)
        parameters = self.get_params()
        if not isinstance(self.random_state, int | np.integer):
            parameters["random_state"] = None
        state = {name: value for name, value in vars(self).items() if name.endswith("_")}
        if "feature_names_in_" in state:  # an array of objects: a list of strings in the file
            state["feature_names_in_"] = [str(name) for name in state["feature_names_in_"]]
        tree = {"parameters": parameters, "state": state, "extra": extra}
        save_tree(path, tree, kind="GPRegressor", classes=classes)

    @classmethod
    def load(cls, path, classes=()):
        """The model saved at `path`; it predicts bit for bit what the saved one did.

        Raises ModelFileError on a missing, damaged, truncated, foreign or newer file.
        """
        return cls.load_with_extra(path, classes)[0]

    @classmethod
    def load_with_extra(cls, path, classes=()) -> "tuple[GPRegressor, Any]":
        """The model saved at `path`, and the `extra` that was saved beside it."""
        tree = load_tree(path, kind="GPRegressor", classes=classes)
        model = cls(**tree["parameters"])
        for name, value in tree["state"].items():
            setattr(model, name, np.asarray(value, object) if name == "feature_names_in_" else value)
        return model, tree["extra"]


@jax.jit
def _predict(predictor, likelihood, X):
    return likelihood.predict(*predictor(X))


@jax.jit
def _joint(predictor, X):
    covariance = predictor.covariance(X)
    return predictor(X)[0], factorise(covariance, 1e-10 if X.dtype == jnp.float64 else 1e-6).L


def _power_of_two(n: int) -> int:
    return 1 << max(0, int(n) - 1).bit_length()


def _check_noise(noise_variance, X):
    noise = np.asarray(noise_variance, np.float64)
    if noise.shape != (len(X),):
        raise ValueError(f"noise_variance has shape {noise.shape}, but X has {len(X)} rows: give one number a row")
    if not ((noise >= 0) & (noise < np.inf)).all():
        raise ValueError("noise_variance must be zero or positive in every row")
    return noise


def _refuse_bad_target(y):
    """NaN and infinity in a numeric target, by row; all else is left to scikit-learn's checks."""
    try:
        values = np.asarray(y)
        values = values if np.iscomplexobj(values) else values.astype(np.float64)
    except (TypeError, ValueError):
        return
    if values.ndim == 1 and not np.iscomplexobj(values):
        _refuse_non_finite(np.empty((0, 0)), values, None)


def _refuse_non_finite(X, y, names):
    """NaN and infinity, by the name of the column."""
    columns = [("target", y)] if y is not None else []
    if not np.isfinite(X).all():
        columns += [(f"column {names[j] if names is not None else j!r}", X[:, j]) for j in range(X.shape[1])]
    for name, values in columns:
        bad = ~np.isfinite(values)
        if bad.any():
            what = "NaN" if np.isnan(values).any() else "infinity (inf)"
            raise ValueError(
                f"{name} contains {what} in {bad.sum()} of {len(values)} rows, first in row {int(np.argmax(bad))}: "
                "drop those rows or impute the values"
            )
