"""What all estimators share: checks of settings and data, scaling of inputs, blocks of rows, files."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, check_X_y

from ..compilation import forget_programs, keeping_programs
from ..data import Standardiser, dataset, merge_duplicates
from ..kernels import AbstractKernel
from ..likelihoods import AbstractLikelihood, Offset
from ..means import ScaledMean
from ..names import SETTINGS, Settings, parameters
from ..optimise.result import Progress, Record
from ..persistence import load as load_tree
from ..persistence import reading, writing
from ..persistence import save as save_tree
from ..posteriors import WithMean
from ..processes import computing, one_blas_thread
from ..recipes import Fitted, Warm, fit_model
from ..starts.expressions import expressed, is_expression
from . import notes, predictive
from .checks import checked, refuse_large, refuse_non_finite, scaled_noise, unknown, validated, weights, whole
from .choosing import Chosen, as_chosen, searched, table
from .effects import Effects, effects_of
from .frames import encoded, gaps, is_lazy, is_table, restored
from .kernel_start import in_units_of_inputs, start_kernel, unrounded
from .lazy import over_partitions
from .means import around_mean
from .saving import rebuilt, tree_of
from .serving import block_sizes, evaluate, is_plain
from .targets import refuse_unfit, started
from .updating import TakesMoreRows
from .warm import learned_by, start_of

MERGED_ROWS = 500_000
LARGE_MAP = 2**30  # bytes of a memory map that is not read into memory
PARAMETERS = "    The parameters are the settings of `pseudopoint.names.Settings` (docs/settings.md)."


class AbstractEstimator(TakesMoreRows, BaseEstimator):
    """Glue between tables of numbers and the core. Final classes say what the target is."""

    if TYPE_CHECKING:  # parameters are attributes by scikit-learn's rules

        def __getattr__(self, name: str) -> Any: ...

    # What `fit` learns.
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
    log_prior_: Any = 0.0  # model files of version 0.1.0 have none
    history_: Any
    n_iter_: Any
    n_rejected_: Any
    converged_: Any
    selection_: Any = None  # model files of version 0.1.0 have none of these
    mean_: Any = None
    mean_function_: Any = None
    centre_: Any = None  # the kernel at the centre of the prior of its lengthscales
    near_rows_: Any = None
    rows_: Any = None  # the number of rows of a fit to a table by name
    outputs_: Any = None  # names of several outputs
    encoder_: Any = None  # of a table, and the names of its columns where `fit` was given it
    columns_: Any = None

    def __init_subclass__(cls):
        """A docstring that refers to `names` for its parameters has them from there. scikit-learn adds methods such as
        `set_fit_request`, by which its searches hand on weights and exposures."""
        super().__init_subclass__()
        if cls.__doc__ and PARAMETERS in cls.__doc__:
            given = list(inspect.signature(cls).parameters.values())
            text = parameters({each.name: (each.annotation, each.default) for each in given})
            cls.__doc__ = cls.__doc__.replace(PARAMETERS, f"    Parameters\n    ----------\n{text}")

    def _whole(self, fit: Callable[[Any], Any]):
        """`fit` applied to this estimator, whole or not at all: it learns on a copy, whose state this one takes over in
        one assignment. Whatever is raised, an interrupt too, leaves this one as it was."""
        learner = self._copy()
        fit(learner)
        self.__dict__ = learner.__dict__
        return self

    def _is_streamed(self, X, y, checkpoint, resume) -> bool:
        """Whether a fit goes through the rows part by part."""
        large = isinstance(X, np.memmap) and X.nbytes > LARGE_MAP
        return isinstance(y, str) or checkpoint is not None or resume or large or is_lazy(X)

    def _fit_streamed(self, X, y, refused, checkpoint, resume, progress):
        from .streaming import fit_streamed  # here, for it imports what reads tables

        return self._whole(lambda model: fit_streamed(model, X, y, refused, checkpoint, resume, progress))

    def fit_source(self, at):
        """Fit to an open source (`estimators.streaming.Streaming`), whole or not at all."""
        return self._whole(lambda model: model._fit_source(at))

    def _fit_source(self, at):
        raise NotImplementedError

    def _numbered(self, y):
        """Of a target given beside its rows, part by part: its labels, or None where it has none, and what is read."""
        return None, y.astype(np.float64) if isinstance(y, np.ndarray) and y.dtype.kind == "b" else y

    def fit_encoded(self, encoder: Any, X, y, sample_weight=None, progress: Progress | None = None, **columns):
        """`fit` to inputs X [N, D] and a target y [N] that a `tables.TableEncoder` made of a table; the command line's
        fit. Predictions take the table's columns by name, or arrays of the encoder's features."""
        more = columns | {"progress": progress, "encoder": encoder}
        return self._whole(lambda model: model._fit(X, y, sample_weight, **more))

    def _fit(self, X, y, sample_weight, *, progress, encoder):
        raise NotImplementedError

    def _copy(self):
        """The same settings and learned state, in an estimator of its own."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    @property
    def _precision(self) -> str:
        """Of all that is kept and predicted."""
        return "float32" if self.dtype == "float32" else "float64"

    def _settings(self) -> Settings:
        """The parameters, checked. Raises ValueError."""
        given = self.get_params(deep=False)
        settings = checked({name: given[name] for name in given if name in SETTINGS})  # a subclass may have more
        if not isinstance(settings.kernel, str | AbstractKernel):
            raise unknown("kernel", settings.kernel)
        return settings

    def _check_rows(self, X, y, sample_weight, **checks):
        """X as float64 and y as it is, finite, and weights."""
        checks = {"dtype": np.float64, "ensure_all_finite": False, "ensure_min_samples": 2} | checks
        known = self.columns_ is not None  # then scikit-learn has seen the table
        checks |= {} if known else {"reset": learned_by(self) is None}
        X, y = check_X_y(X, y, estimator=self, **checks) if known else validated(self, X, y, **checks)
        refuse_non_finite(X, self._names)
        weight = weights(sample_weight, X, self._precision)
        return np.asarray(X, np.float64), np.asarray(y), weight

    def _learn(
        self,
        settings: Settings,
        rows: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
        scale_target: bool,
        likelihood: Callable[[np.ndarray, np.ndarray], AbstractLikelihood],
        progress: Progress | None,
    ):
        """Fit to (X, y, weight, noise); `likelihood` is made from the scaled y and the weights."""
        forget_programs()
        vars(self).pop("rows_", None)
        given, (rows, said) = rows, _merged(rows)
        # "auto" is scaled, but for a kernel object, whose numbers are in the units of X.
        scaled, own = bool(settings.scale_inputs), in_units_of_inputs(settings)
        scaling = Standardiser.learn(*rows[:3], own or scaled, scale_target, not own)
        known, scaling, anew = start_of(self, settings, likelihood(*rows[1:3]), rows[1:], scaling, own)
        said += anew + notes.far_rows(rows[0], scaling, self._names)
        said += notes.lost_digits("the target", rows[1], scaling.target_mean, scaling.target_scale)
        scaling = unrounded(scaling, settings)
        with computing(self._precision), one_blas_thread(), keeping_programs():
            X, y, weight = scaling.inputs(rows[0], self._precision), scaling.target(rows[1]), rows[2]
            refuse_large(y, self._precision)
            coarse = notes.single_precision(rows[0]) if own or not scaled else []
            said += coarse if self._precision == "float32" else []
            described, variance = started(likelihood(y, weight), settings, y, weight, scale_target)
            if isinstance(settings.likelihood, AbstractLikelihood):
                refuse_unfit(described, scaling.target(given[1]), *given[1:3])
            if coarse:
                settings = settings._replace(dtype=self._precision)
            noise = scaled_noise(rows[3], scaling.target_scale, self._precision)
            data = dataset(X, y, weight, noise, dtype=self._precision)
            if known is not None:
                return self._fit_again(known, settings, data, scaling, own, said, progress)
            settings = self._with_kernel(settings, scaling)
            found = searched(settings, described, data, scaling, scale_target, whole=True, categories=self._categories)
            if found is None:
                kernel, about = start_kernel(settings, X, y, variance, scaling if own else None)
                chosen, said = Chosen(kernel, data, scaling), said + about
            else:
                chosen = as_chosen(found, rows[0], data, scaling, self._precision)
            self._fit_chosen(settings, chosen, described, own, said, progress)

    def _fit_again(self, known: Any, settings: Settings, data: Any, scaling: Standardiser, own: bool, said, progress):
        """The fit that starts where the last one ended."""
        start = known.model(settings, scaling, own, self._precision)
        warm = Warm(start, learned=True, widen=settings.likelihood == "auto")
        chosen = known.chosen(data, scaling, own, self._precision)._replace(warm=warm)
        self._fit_chosen(known.settings(settings), chosen, known.likelihood, own, said, progress)

    def _fit_chosen(self, settings: Settings, chosen: Any, likelihood, own_units: bool, said: list[str], progress):
        data = chosen.data
        settings = chosen.placed(settings)
        likelihood = around_mean(settings, likelihood, data)
        fitted = fit_model(chosen.kernel, likelihood, data, settings, progress, chosen.warm)
        self._keep(chosen, fitted, own_units, said)

    def _keep(self, chosen: Any, fitted: Fitted, own_units: bool, said: list[str]):
        self.selection_ = table(chosen.trials + fitted.trials)
        host, scaling = lambda tree: jax.tree.map(np.asarray, tree), chosen.scaling
        observed, fitted = chosen.of_target(fitted)
        self.kernel_, self.centre_ = host(fitted.model.kernel), host(chosen.kernel)
        self.likelihood_, self.mean_ = observed.parts()
        self.mean_function_ = observed.mean_function
        self.standardiser_, self.predictor_ = scaling, host(fitted.predictor)
        if own_units:  # the kernel is `InUnits`; from here on all is in the units of X
            self.kernel_, self.centre_ = self.kernel_.kernel, self.centre_.kernel
            self.standardiser_ = scaling.of_target()
            self.predictor_ = self.predictor_.moved(self.kernel_, scaling.points)
            if self.mean_function_ is not None:
                self.mean_function_ = ScaledMean(self.mean_function_, scaling.mean, scaling.scale)
        if self.mean_function_ is not None:
            self.predictor_ = WithMean(self.predictor_, self.mean_function_)
        self.near_rows_ = host(fitted.near_rows)
        points = fitted.model.posterior.points
        self.inducing_points_ = chosen.points(np.asarray(points[0], np.float64)) if points else None
        self.method_, self.reason_ = fitted.method, fitted.reason
        iterations, limit = (fitted.history[-1].step, fitted.history[-1].total) if fitted.history else (0, 0)
        said += notes.left_unwarped(getattr(self, "input_warp", "none"), scaling, self._names)
        self.notes_ = (*said, *fitted.notes, *notes.iteration_limit(fitted.converged, iterations, limit))
        self.bound_, self.bound_vfe_, self.upper_bound_ = fitted.bound, fitted.vfe, fitted.upper
        self.log_prior_ = fitted.log_prior
        columns = zip(*fitted.history, strict=True) if fitted.history else [()] * len(Record._fields)
        self.history_ = {name: np.asarray(column, float) for name, column in zip(Record._fields, columns, strict=True)}
        self.n_iter_ = iterations
        self.n_rejected_, self.converged_ = fitted.rejected, fitted.converged

    def _inputs(self, X):
        if not hasattr(self, "predictor_"):
            check_is_fitted(self)
        if self.encoder_ is not None and (self.columns_ is not None or is_table(X)):
            return encoded(self, X)
        if hasattr(self, "feature_names_in_") or not is_plain(X, self.n_features_in_):
            X = np.asarray(validated(self, X, reset=False, dtype=np.float64, ensure_all_finite=False))
        refuse_non_finite(X, self._names)
        return X

    def _with_kernel(self, settings: Settings, scaling: Standardiser) -> Settings:
        """The settings with the kernel that an expression says, of scaled inputs."""
        if not is_expression(settings.kernel):
            return settings
        kernel = expressed(settings.kernel, self._places(len(scaling.scale)), scaling.scale, 1.0)
        return settings._replace(kernel=kernel, scale_inputs=True)

    def _places(self, D: int) -> dict[str, tuple[int, ...]]:
        """The columns of numbers that belong to each name in a kernel's expression."""
        names = [f"x{j}" for j in range(D)] if self._names is None else list(map(str, self._names))
        places = {name: (j,) for j, name in enumerate(names)}
        return places if self.encoder_ is None else places | self.encoder_.places

    @property
    def _categories(self) -> list[tuple[int, ...]]:
        """The places of the 0/1 columns of each column of categories."""
        return [] if self.encoder_ is None else self.encoder_.categories

    @property
    def _names(self) -> Any:
        """Names of the columns of numbers, None where they have none."""
        return getattr(self, "feature_names_in_", None) if self.encoder_ is None else self.encoder_.feature_names

    @over_partitions
    def predict_latent(self, X, return_std=False):
        """Mean of the latent function f at the rows of X, [N], or of all C of them, [N, C], such as those of several
        outputs; with `return_std` also its standard deviation, of the same shape.

        f is what `likelihood_` describes the target by, p(y | f), its constant mean included: a logarithm of the rate
        for counts, log odds for two classes, without what near rows tell. For a real target (of "heteroscedastic", the
        first column) it is in the units of y, under a warp w⁻¹(f), and its deviation that of `predict` without noise.
        """
        rows, s, warped = self._inputs(X), self.standardiser_, self.likelihood_.warped is not None
        values = evaluate(self, predictive.latent_function(warped, return_std), rows)
        mean, variances = (values[0], [values[1]] * bool(return_std)) if return_std or warped else (values, [])
        told = [mean.T + (0.0 if self.mean_ is None else self.mean_), *(np.sqrt(v.T) for v in variances)]
        if self.likelihood_.additive or warped:
            for column, shift in zip(told, (s.target_mean, 0.0), strict=False):
                first = column if column.ndim == 1 or self.outputs_ else column[:, 0]
                first *= s.target_scale
                first += shift
        return tuple(told) if return_std else told[0]

    def _observed(self) -> AbstractLikelihood:
        """p(y | f) with the constant mean of f, where there is one."""
        return self.likelihood_ if self.mean_ is None else Offset(self.likelihood_, self.mean_)

    def effects(self, X, groups=None, *, level=0.9, rows=100, sample_weight=None) -> Effects:
        """What each input does to predictions: `Effects` of the columns of X [N, D], such as the training rows.

        A column's effect at a value t is the average prediction of the rows with the column set to t, less the average
        prediction of the rows: partial dependence, with an interval of probability `level`. If the function is a sum of
        functions of single columns, it is the column's function up to a constant. `groups`, lists of numbers of
        columns, are for columns that belong together, as those of a category. Averages are over at most `rows` rows of
        X, fewer for large models, drawn in proportion to `sample_weight` [N] where it is given, of f without near rows.
        Exact for real targets; of others intervals are of first order in the uncertainty of f, and probabilities of
        classes are those at its mean (methods j). Raises ValueError where groups do not have each column once.
        """
        if self.outputs_ is not None:
            raise ValueError("effects are of one output, and this model has several: fit each by itself")
        X = self._inputs(X)
        weight = None if sample_weight is None else weights(sample_weight, X, self._precision)
        return effects_of(self, X, groups, level, whole("rows", rows), weight)

    def _outputs(self) -> np.ndarray:
        """What `effects` are of: a factor of E y, or a matrix of the probabilities of classes."""
        raise NotImplementedError

    def warm_up(self):
        """Compile what predictions need, so that no later call waits for it: for a service, once after `load`.

        Blocks of rows have three sizes, each of which would otherwise be compiled when a call first needs it. Returns
        the estimator itself.
        """
        check_is_fitted(self)
        for rows in block_sizes(self):
            self.of_typical(rows, self._predictions)
        return self

    def of_typical(self, rows: int, predict: Callable[[Any], Any]):
        """`predict` of so many rows that predictions may be asked for; of a table they are gaps, without a warning."""
        if self.columns_ is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                return predict(gaps(self.columns_, rows))
        middle = np.zeros(self.n_features_in_)
        middle[self.standardiser_.columns] = self.standardiser_.mean
        return predict(np.tile(middle, (rows, 1)))

    def _predictions(self, X):
        """What `warm_up` compiles."""
        raise NotImplementedError

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
            model, extra = rebuilt(cls, tree)
            if model.encoder_ is None and isinstance(extra, dict) and isinstance(extra.get("encoder"), dict):
                model.encoder_ = restored(extra["encoder"])  # the command line keeps it there
            return model, extra


def _merged(rows: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]):
    """The distinct rows, of many those with a weight; and what to say of weights and of equal rows."""
    weight, said = rows[2], notes.unusual_weights(rows[2])
    if len(weight) > MERGED_ROWS:  # sorting them costs more than their repetitions
        return rows if weight.all() else jax.tree.map(lambda part: part[weight > 0], rows), said
    merged = merge_duplicates(*rows)
    return merged, said + notes.merged_rows(int(np.count_nonzero(weight)), len(merged[1]))
