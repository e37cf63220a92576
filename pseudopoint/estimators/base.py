"""What all estimators share: checks of settings and data, scaling of inputs, blocks of rows, files."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from numbers import Integral
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ..data import LARGEST, Standardiser, dataset, merge_duplicates
from ..kernels import AbstractKernel, InUnits, check_columns
from ..likelihoods import AbstractLikelihood, Offset
from ..linalg import factorise
from ..optimise.named import OPTIMISERS
from ..optimise.result import Progress, Record
from ..persistence import load as load_tree
from ..persistence import reading, writing
from ..persistence import save as save_tree
from ..processes import one_blas_thread, refuse_fork
from ..recipes import FAMILIES, METHODS, Fitted, Settings, fit_model
from ..starts.hyperparameters import KERNELS, named_kernel, robust, ulapane
from . import notes
from .checks import (
    choice,
    numbers,
    positive,
    refuse_large,
    refuse_non_finite,
    seed_of,
    shown,
    truth,
    validated,
    weights,
    whole,
)
from .saving import rebuilt, tree_of

__all__ = ["AbstractEstimator", "apply_learned", "computing", "joint"]

BLOCK = 2**19  # numbers of a block of rows: its few arrays stay in a processor's cache, and below the 32 MB at which
# glibc gives memory back to the system after every block, to be cleared again page by page
NODES = 512  # at most so many quadrature nodes a row
MERGED_ROWS = 500_000
_CHOICES = {
    "method": METHODS,
    "optimiser": ("auto", *OPTIMISERS),
    "posterior": tuple(FAMILIES),
    "bound": ("tight", "vfe"),
    "initial": ("warm", "robust", "ulapane"),
    "dtype": ("auto", "float64", "float32"),
    "scale_inputs": ("auto", True, False),
}


_ON_DEVICE: WeakKeyDictionary["AbstractEstimator", tuple] = WeakKeyDictionary()


def computing(dtype: str) -> AbstractContextManager:
    """JAX in the given precision, within this scope and thread only. Raises ForkError where it would never end."""
    refuse_fork()
    return jax.enable_x64(dtype == "float64")


class AbstractEstimator(BaseEstimator):
    """Glue between tables of numbers and the core. Final classes say what the target is."""

    # Settings that every final class has, and what `fit` learns.
    kernel: Any
    likelihood: Any
    method: Any
    optimiser: Any
    posterior: Any
    num_mean_inducing: Any
    num_inducing: Any
    inducing: Any
    learn_inducing: Any
    initial: Any
    lengthscale_prior: Any
    max_iter: Any
    batch_size: Any
    learning_rate: Any
    scale_inputs: Any
    dtype: Any
    random_state: Any
    standardiser_: Standardiser
    likelihood_: Any
    predictor_: Any
    inducing_points_: Any
    n_features_in_: int
    kernel_: Any
    method_: Any
    reason_: Any
    notes_: Any
    bound_: Any
    bound_vfe_: Any
    upper_bound_: Any
    history_: Any
    n_iter_: Any
    n_rejected_: Any
    converged_: Any
    mean_: Any = None  # model files of version 0.1.0 have none

    def _whole(self, fit: Callable[[Any], Any]):
        """`fit` applied to this estimator, whole or not at all: it learns on a copy, whose state this one takes over in
        one assignment. Whatever is raised, an interrupt too, leaves this one as it was."""
        learner = self._copy()
        fit(learner)
        self.__dict__ = learner.__dict__
        return self

    def _copy(self):
        """The same settings and learned state, in an estimator of its own."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    @property
    def _precision(self) -> str:
        """Of all that is kept and predicted."""
        return "float32" if self.dtype == "float32" else "float64"

    def _check_settings(self):
        if not isinstance(self.kernel, str | AbstractKernel):
            raise ValueError(f"kernel={shown(self.kernel)} is unknown: use one of {', '.join(KERNELS)}, or an object")
        for name, allowed in _CHOICES.items():
            if hasattr(self, name):
                choice(name, getattr(self, name), allowed)
        for name in ("num_inducing", "num_mean_inducing", "max_iter"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        whole("batch_size", self.batch_size)
        for name in ("learning_rate", "noise_variance"):
            if name != "learning_rate" or self.learning_rate is not None:
                positive(name, getattr(self, name, 1.0))
        for name in ("learn_inducing", "scale_target"):
            truth(name, getattr(self, name, True))
        positive("lengthscale_prior", self.lengthscale_prior, infinite=True)
        seed_of(self.random_state if isinstance(self.random_state, Integral) else 0)

    def _check_rows(self, X, y, sample_weight, **checks):
        """X as float64 and y as it is, finite, and weights."""
        checks = {"dtype": np.float64, "ensure_all_finite": False, "ensure_min_samples": 2} | checks
        X, y = validated(self, X, y, **checks)
        refuse_non_finite(X, getattr(self, "feature_names_in_", None))
        weight = weights(sample_weight, X, self._precision)
        return np.asarray(X, np.float64), np.asarray(y), weight

    def _learn(
        self,
        rows: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
        scale_target: bool,
        likelihood: Callable[[np.ndarray, np.ndarray], AbstractLikelihood],
        progress: Progress | None,
    ):
        """Fit to (X, y, weight, noise); `likelihood` is made from the scaled y and the weights."""
        given, said = rows, notes.unusual_weights(rows[2])
        if len(rows[1]) <= MERGED_ROWS:  # beyond, sorting the rows costs more than their repetitions
            rows = merge_duplicates(*rows)
            said += notes.merged_rows(int(np.count_nonzero(given[2])), len(rows[1]))
        scaled = bool(self.scale_inputs)  # "auto" is, but for the kernel
        own = isinstance(self.kernel, AbstractKernel) and (self.scale_inputs == "auto" or not scaled)  # in units of X
        scaling = Standardiser.learn(*rows[:3], own or scaled, scale_target, ignore_constant=not own)
        said += notes.far_rows(rows[0], scaling, getattr(self, "feature_names_in_", None))
        with computing(self._precision), one_blas_thread():
            X, y, weight, noise = rows
            X, y = scaling.inputs(X, self._precision), scaling.target(y)
            refuse_large(y, self._precision)
            with np.errstate(over="ignore"):  # noise beyond which a row tells nothing more
                noise = noise / scaling.target_scale / scaling.target_scale  # whose square may overflow
                noise = np.minimum(noise, LARGEST[self._precision])
            coarse = notes.single_precision(rows[0]) if own or not scaled else []
            said += coarse if self.dtype == "float32" else []
            described = likelihood(y, weight)
            if isinstance(self.likelihood, AbstractLikelihood):
                _refuse_unfit(described, scaling.target(given[1]), *given[1:3])
            kernel, about_kernel = self._kernel(X, y, scale_target, scaling if own else None)
            data = dataset(X, y, weight, noise, dtype=self._precision)
            settings = self._settings(scaling, X.shape[1])._replace(float32_start=self.dtype == "auto" and not coarse)
            fitted = fit_model(kernel, Offset.around(described, y, weight), data, settings, progress)
            self._keep(scaling, fitted, said + about_kernel)
        return self

    def _kernel(self, X, y, scaled, units):
        """The kernel at its start, as a function of scaled inputs, and what to say about it; `units` are those of an
        object's numbers where it has not standard deviations."""
        if isinstance(self.kernel, AbstractKernel):
            check_columns(self.kernel, X.shape[1])
            kernel = self.kernel if units is None else InUnits(self.kernel, units.mean, units.scale)
            return kernel, notes.start_of_kernel(self.kernel, kernel, X)
        lengthscale, variance = (ulapane if self.initial == "ulapane" else robust)(X, y)
        # Without a scaled target, f is a logarithm or the like: of the size of one.
        return named_kernel(self.kernel, lengthscale, variance if scaled else 1.0, X.shape[1]), []

    def _settings(self, scaling, D) -> Settings:
        inducing: Any = self.inducing
        if not isinstance(inducing, str):
            inducing = _given_points(inducing, scaling, D)
        return Settings(
            method=self.method,
            optimiser=self.optimiser,
            posterior=self.posterior,
            num_mean_inducing=_int(self.num_mean_inducing),
            num_inducing=_int(self.num_inducing),
            inducing=inducing,
            learn_inducing=bool(self.learn_inducing),
            tight=getattr(self, "bound", "tight") == "tight",
            warm=self.initial == "warm" and isinstance(self.kernel, str),
            lengthscale_prior=positive("lengthscale_prior", self.lengthscale_prior, infinite=True),
            max_iter=_int(self.max_iter),
            batch_size=int(self.batch_size),
            learning_rate=None if self.learning_rate is None else float(self.learning_rate),
            seed=seed_of(self.random_state),
        )

    def _keep(self, scaling, fitted: Fitted, said: list[str]):
        host = lambda tree: jax.tree.map(np.asarray, tree)
        self.kernel_, observed = host(fitted.model.kernel), host(fitted.model.likelihood)
        self.likelihood_, self.mean_ = observed, None
        if isinstance(observed, Offset):
            self.likelihood_, self.mean_ = observed.likelihood, observed.constant
        self.standardiser_, self.predictor_ = scaling, host(fitted.predictor)
        if isinstance(self.kernel_, InUnits):  # from here on all is in the units of X
            self.kernel_ = self.kernel_.kernel
            self.standardiser_ = scaling.of_target()
            self.predictor_ = self.predictor_.moved(self.kernel_, scaling.points)
        points = None if fitted.model.posterior is None else np.asarray(fitted.model.posterior.Z, np.float64)
        self.inducing_points_ = None if points is None else scaling.points(points)
        self.method_, self.reason_ = fitted.method, fitted.reason
        iterations = fitted.history[-1].step if fitted.history else 0
        self.notes_ = (
            *said,
            *fitted.notes,
            *notes.iteration_limit(fitted.converged, iterations, int(self.max_iter or 200)),
        )
        self.bound_, self.bound_vfe_, self.upper_bound_ = fitted.bound, fitted.vfe, fitted.upper
        columns = zip(*fitted.history, strict=True) if fitted.history else [()] * len(Record._fields)
        self.history_ = {name: np.asarray(column, float) for name, column in zip(Record._fields, columns, strict=True)}
        self.n_iter_ = iterations
        self.n_rejected_, self.converged_ = fitted.rejected, fitted.converged

    def _inputs(self, X):
        if not hasattr(self, "predictor_"):
            check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        if names is not None or not _plain(X, self.n_features_in_):
            X = np.asarray(validated(self, X, reset=False, dtype=np.float64, ensure_all_finite=False))
        refuse_non_finite(X, names)
        return X

    def _blocks(self, function: Callable[..., Any], X, *columns) -> np.ndarray:
        """`function(predictor, likelihood, X, *columns)`, [..., N], in blocks of rows, so that memory does not grow
        with N. `function` is compiled here, and its X scaled."""
        with computing(self._precision):
            width, structure, leaves = self._learned(self._precision)
        return self._each(partial(apply_learned, function, structure, leaves), width, X, *columns)

    def _each(self, apply: Callable[..., Any], width: int, X, *columns) -> np.ndarray:
        """`apply(X, *columns)` in blocks of rows, of which each has so many numbers. ValueError where one is NaN, or
        too large a number."""
        whole, precision = np.empty(0), self._precision
        with computing(precision):
            size = min(_power_of_two(len(X)), _power_of_two(BLOCK // max(width, NODES)))
            for start in range(0, len(X), size):
                block = [array[start : start + size] for array in (X, *columns)]
                # Of the class: a method of an equinox object is wrapped anew each time, which a single row would feel.
                block[0], count = Standardiser.inputs(self.standardiser_, block[0], precision), len(block[0])
                if count < size:  # one shape, one compilation: the last block is filled up with its first row
                    block = [np.concatenate([a, np.repeat(a[:1], size - count, axis=0)]) for a in block]
                block = [a.astype(precision, copy=False) for a in block]
                part = np.asarray(apply(*block))
                if start == 0:
                    whole = np.empty((*part.shape[:-1], len(X)))
                whole[..., start : start + count] = part[..., :count]
        bad = ~(whole < np.inf)  # log densities may be −∞
        if bad.any():
            row = int(np.argmax(bad.reshape(-1, len(X)).any(axis=0)))
            raise ValueError(
                f"what is predicted for row {row} is no finite number: its values, such as {np.max(np.abs(X[row])):g}, "
                "are too far from all training rows for this kernel and likelihood"
            )
        return whole

    def _observed(self) -> AbstractLikelihood:
        """p(y | f) with the constant mean of f, where there is one."""
        return self.likelihood_ if self.mean_ is None else Offset(self.likelihood_, self.mean_)

    def _learned(self, precision):
        """Numbers a row; and predictor and likelihood, taken apart and on the device. That is done once, for a
        single row would feel it. Not an attribute: it is neither learned nor to be copied or saved."""
        kept = _ON_DEVICE.get(self)
        if kept is None or kept[0] is not self.predictor_ or kept[1] is not self.likelihood_ or kept[2] != precision:
            served = self.predictor_.triangular() if precision == "float64" else self.predictor_
            leaves, structure = jax.tree.flatten((served, self._observed()))
            width, leaves = len(self.predictor_.Zv) * self.likelihood_.latents, jax.device_put(leaves)
            kept = _ON_DEVICE[self] = self.predictor_, self.likelihood_, precision, width, structure, leaves
        return kept[3:]

    def save(self, path, *, extra=None, classes: Sequence[type] = ()):
        """Write the fitted model to one file (safetensors with JSON metadata, no pickle), atomically.

        `extra` is a tree (dicts, lists, numbers, strings, arrays) to keep beside it. Kernel classes of your own are
        named in `classes`, here and in `load`. A `random_state` that is a generator is not kept. Raises ModelFileError.
        """
        check_is_fitted(self)
        with writing(path):
            tree = tree_of(self, extra)
        save_tree(path, tree, kind=type(self).__name__, classes=classes)

    @classmethod
    def load(cls, path, classes: Sequence[type] = ()):
        """The model saved at `path`; it predicts bit for bit what the saved one did.

        Raises ModelFileError on a missing, damaged, truncated, foreign or newer file.
        """
        return cls.load_with_extra(path, classes)[0]

    @classmethod
    def load_with_extra(cls, path, classes: Sequence[type] = ()):
        """The model saved at `path`, and the `extra` that was saved beside it."""
        tree = load_tree(path, kind=cls.__name__, classes=classes)
        with reading(path):
            return rebuilt(cls, tree)


@jax.jit
def joint(predictor, X):
    """Means [N] or [C, N] and lower roots of the joint covariances of f at the rows of X.

    In units of the prior's standard deviations, and with jitter in those: what is drawn at a row does not depend on the
    rows after it.
    """
    level = 1e-12 if X.dtype == jnp.float64 else 1e-6
    # A row of no variance, as `Linear` has at 0, is no reason to divide by it.
    scale = jnp.sqrt(jnp.maximum(predictor.prior(X), jnp.finfo(X.dtype).tiny))
    eye = level * jnp.eye(len(X), dtype=X.dtype)
    K = predictor.covariance(X) / scale[..., :, None] / scale[..., None, :] + eye
    root = jnp.vectorize(lambda K: factorise(K).L, signature="(n,n)->(n,n)")(K)
    return predictor(X)[0], scale[..., :, None] * root


@partial(jax.jit, static_argnums=(0, 1))
def apply_learned(function, structure, leaves, *rows):
    """`function` of what was taken apart into `structure` and `leaves`, and of rows; compiled once for each."""
    return function(*jax.tree.unflatten(structure, leaves), *rows)


def _refuse_unfit(likelihood, scaled, y, weight):
    """A target that a likelihood (of the user's own, perhaps) has no finite log density for, at f = 0."""
    f = np.zeros((likelihood.latents, len(y)) if likelihood.latents > 1 else len(y))
    with np.errstate(all="ignore"):
        value = np.asarray(likelihood.log_prob(f, scaled))
    bad = ~np.isfinite(value) & (weight > 0)
    if bad.any():
        row = int(np.argmax(bad))
        aside = (
            "" if scaled[row] == y[row] else f", {scaled[row]:g} when scaled (scale_target=False leaves it as it is)"
        )
        raise ValueError(
            f"the likelihood {likelihood.name} gives log p(y | f = 0) = {value[row]:g} for the target {y[row]:g} in "
            f"row {row}{aside} ({bad.sum()} such rows): use a likelihood for such targets"
        )


def _plain(X: Any, columns: int) -> bool:
    """Whether it is an array as predictions need it: scikit-learn's checks take as long as one row's prediction."""
    return type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2 and X.shape[1] == columns and len(X) > 0


def _power_of_two(n: int) -> int:
    return 1 << max(0, int(n) - 1).bit_length()


def _int(setting: Any) -> int | None:
    """A whole number as Python's own: a search over an array gives NumPy's."""
    return None if setting is None else int(setting)


def _given_points(points: Any, scaling: Standardiser, D: int) -> np.ndarray:
    """Inducing points given as an array, scaled."""
    points = numbers("inducing", points)
    if points.ndim != 2 or len(points) == 0:
        raise ValueError(f"inducing has shape {points.shape}: give an array [M, {D}] of at least one point")
    if points.shape[1] != D:
        raise ValueError(f"inducing has {points.shape[1]} columns, but X has {D}: give an array [M, {D}]")
    if not np.isfinite(points).all():
        raise ValueError("inducing contains NaN or infinity: give finite points")
    return scaling.inputs(points)
