"""Classification: two classes or more."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from .. import names
from ..kernels import AbstractKernel
from ..likelihoods import AbstractLikelihood, Bernoulli
from ..means import AbstractMean
from ..optimise.result import Progress
from . import notes, predictive
from .base import AbstractEstimator
from .checks import nanoseconds, no_type_check, one_column, refuse_non_finite, store
from .frames import given, plain_labels
from .lazy import ScoresPartitions, over_partitions
from .serving import evaluate
from .targets import class_likelihood
from .updating import codes_of_classes, target_of_classes
from .warm import learned_by, refuse_other_classes

FEW, BRIEF = 50, 5  # rows and iterations of a fit to one class


class GPClassifier(ScoresPartitions, ClassifierMixin, AbstractEstimator):
    """Gaussian process classification for tables of any size, with calibrated probabilities.

    Two classes: P(y = 1 | f) = σ(f), f ~ GP(0, k). C classes: C functions that share kernel and inducing points, and
    P(y = c | f) ∝ exp f_c. Probabilities integrate f. Inputs are scaled to mean 0 and standard deviation 1.

    The parameters are the settings of `pseudopoint.names.Settings` (docs/settings.md).

    What a fit learns, beside what `GPRegressor` has:

    - `classes_`: the labels, in the order of the columns of `predict_proba`.
    - `mean_`: the constant mean of the latent function, or of each. Far from all rows the probabilities are those of
      the base rates.
    - `near_rows_`: the training rows whose classes change the odds (`posteriors.NearClasses`), None without.

    Examples
    --------
    >>> import numpy as np
    >>> from pseudopoint import GPClassifier
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> y = np.where(np.sin(X[:, 0]) > 0, "up", "down")
    >>> model = GPClassifier().fit(X, y)
    >>> model.predict([[1.5], [4.5]]).tolist()
    ['up', 'down']
    """

    classes_: Any

    @no_type_check
    def __init__(
        self,
        kernel: names.Kernel | str | AbstractKernel = "auto",
        *,
        likelihood: names.ClassLikelihood | AbstractLikelihood = "auto",
        mean: names.Mean | AbstractMean = "auto",
        input_warp: names.InputWarp = "auto",
        near_rows: bool = True,
        effort: names.Effort = "balanced",
        method: names.Method = "auto",
        optimiser: names.Optimiser = "auto",
        posterior: names.Posterior = "whitened",
        num_inducing: int | None = None,
        num_mean_inducing: int | None = None,
        inducing: names.Placement | ArrayLike = "auto",
        learn_inducing: bool = True,
        initial: names.Initial = "warm",
        lengthscale_prior: float = 1.5,
        priors: str | dict | None = None,
        max_iter: int | None = None,
        batch_size: int = 512,
        learning_rate: float | None = None,
        scale_inputs: names.ScaleInputs = "auto",
        dtype: names.Dtype = "auto",
        random_state: int | np.random.RandomState | None = 0,
        warm_start: bool = False,
    ):
        store(locals())

    def fit(self, X, y, sample_weight=None, *, progress: Progress | None = None, checkpoint=None, resume: bool = False):
        """Fit to X [N, D], an array or a table as in `GPRegressor.fit`, and labels y [N], of any type that sorts; or to
        a table by name, whose labels are text.

        `sample_weight` [N]: weight 2 means that the row was seen twice. `progress` is called with a `Record` after
        every iteration (or segment of minibatch steps). `checkpoint` and `resume` are those of `GPRegressor.fit`. A
        target of one class is predicted, and said in `notes_`; part by part it is refused. Raises ValueError where the
        data or a setting is unfit; whatever is raised leaves the estimator as it was.
        """
        if self._is_streamed(X, y, checkpoint, resume):
            return self._fit_streamed(X, y, {"sample_weight": sample_weight}, checkpoint, resume, progress)
        return self._whole(lambda model: model._fit(X, y, sample_weight, progress=progress))

    def _fit_source(self, at):
        from .streaming import learn_source

        settings = self._settings()
        learned = at.learned(settings, True)
        known = np.array(sorted(learned.labels), object)  # text, of arrays the numbers of their labels
        self.classes_ = known if at.labels is None else at.labels
        if len(known) == 1:
            raise ValueError(
                f"the target holds one class only, {self.classes_.tolist()[0]!r}: there is nothing to learn"
            )
        likelihood = class_likelihood(settings.likelihood, len(known))
        places = (lambda y: np.searchsorted(known, y)) if at.labels is None else np.asarray
        codes = lambda y: places(y).astype(np.float64)
        learn_source(self, settings, at, learned, codes, False, lambda y, weight: likelihood)

    def _numbered(self, y):
        from ..tables import numbered

        y = plain_labels(y)
        if isinstance(y, np.ndarray):  # and not of a cluster
            _refuse_missing(y)
            _check_types(y)
        labels, numbers = numbered(y)
        _check_labels(labels)
        return plain_labels(labels), numbers

    def _fit(self, X, y, sample_weight, *, progress=None, encoder=None):
        settings = self._settings()
        given_rows = given(self, X, y, sample_weight, classes=True, encoder=encoder)
        _refuse_missing(given_rows.y)
        X, y, weight = self._check_rows(given_rows.X, plain_labels(given_rows.y), *given_rows.columns)
        _check_labels(y)
        seen = weight > 0
        known, self.classes_ = getattr(self, "classes_", None), np.unique(y[seen])
        if learned_by(self) is not None:
            refuse_other_classes(known, self.classes_, "classes")
        rows = X[seen], np.searchsorted(self.classes_, y[seen]).astype(np.float64), weight[seen], np.zeros(seen.sum())
        if len(self.classes_) == 1:
            self._learn_one_class(settings, rows, progress)
            self.notes_ = (*given_rows.notes, *self.notes_)
            return self
        likelihood = class_likelihood(settings.likelihood, len(self.classes_))
        self._learn(settings, rows, False, lambda y, weight: likelihood, progress)
        self.notes_ = (*given_rows.notes, *self.notes_, *notes.many_classes(len(self.classes_), len(rows[1])))
        return self

    def _learn_one_class(self, settings, rows, progress):
        """What is predicted needs no model; a few rows make one, so that there is all that other fits have."""
        X, y, weight, noise = (column[:FEW] for column in rows)
        of_all = {name: getattr(settings, name) for name in ("kernel", "scale_inputs", "dtype")}
        brief = names.Settings(**of_all, method="laplace", max_iter=BRIEF, effort="fast")
        self._learn(brief, (X, y, weight, noise), False, lambda y, weight: Bernoulli(), progress)
        label = self.classes_.tolist()[0]
        self.reason_ = "the target holds one class"
        self.notes_ = (f"the target holds one class only, {label!r}, which is predicted with certainty",)

    @over_partitions
    def predict_log_proba(self, X):
        """log P(y = c | x), [N, C], columns in the order of `classes_`; no probability is clipped."""
        rows = self._inputs(X)
        if len(self.classes_) == 1:
            return np.zeros((len(rows), 1))
        return evaluate(self, predictive.log_probabilities, rows).T

    @over_partitions
    def predict_proba(self, X):
        """P(y = c | x), [N, C], columns in the order of `classes_`."""
        p = np.exp(self.predict_log_proba(X))
        p /= p.sum(axis=1, keepdims=True)
        return p

    @over_partitions
    def predict(self, X):
        """The most probable label of every row, [N]."""
        best = np.argmax(self.predict_log_proba(X), axis=1)
        return self.classes_[best]

    def _predictions(self, X):
        return self.predict_proba(X)

    def _coded(self, y):
        if len(self.classes_) == 1:
            raise ValueError("the fit saw one class only, so that it learned nothing to update: fit to all rows")
        return target_of_classes(self, y)

    def _outputs(self):
        classes = len(self.classes_)
        if classes == 1:  # predicted with certainty
            return np.zeros((1, 2))
        return np.array([[0.0, 1.0]]) if classes == 2 else np.eye(classes)

    def log_density(self, X, y):
        """log P(yᵢ | xᵢ) for every row, [N]; −∞ for a label that was not learned."""
        log_p = self.predict_log_proba(X)
        y = np.asarray(one_column(y))
        if y.shape != (len(log_p),):
            raise ValueError(f"y has shape {y.shape}, but X has {len(log_p)} rows")
        codes = codes_of_classes(self, y)
        return np.where(codes >= 0, log_p[np.arange(len(y)), codes], -np.inf)


def _refuse_missing(y):
    """Raises ValueError where a row has no label, in any type that says so; `given` drops such rows of a table."""
    if y is None or isinstance(y, np.ndarray) and y.dtype != object:
        missing = np.ravel(y != y)
    else:
        import pandas as pd  # here, because a fit to arrays needs it for nothing else

        missing = np.ravel(pd.isna(y))
    if np.any(missing):
        raise ValueError(
            f"the target has no label in {np.sum(missing)} of {len(missing)} rows, first in row "
            f"{int(np.argmax(missing))}: drop those rows"
        )


def _check_types(y):
    """Raises ValueError for labels of several types."""
    kinds = {"text" if isinstance(label, str) else type(label).__name__ for label in y} if y.dtype == object else ()
    if len(kinds) > 1:
        raise ValueError(
            f"the labels are of several types ({', '.join(sorted(kinds))}), which do not sort: give them one type"
        )


def _check_labels(y):
    """Raises ValueError for what are no labels, such as real numbers."""
    _check_types(y)
    if y.dtype.kind in "Mm":
        refuse_non_finite(np.empty((0, 0)), None, nanoseconds(y))
    with np.errstate(invalid="ignore", over="ignore"), warnings.catch_warnings():  # of labels that are large numbers
        warnings.filterwarnings("ignore", "The number of unique classes")  # a note says so
        check_classification_targets(y)
