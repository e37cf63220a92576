"""Classification: two classes or more."""

import warnings
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from ..likelihoods import Bernoulli
from ..optimise.result import Progress
from . import notes, predictive
from .base import AbstractEstimator
from .serving import evaluate
from .targets import class_likelihood

__all__ = ["GPClassifier"]

FEW, BRIEF = 50, 5  # rows and iterations of a fit to one class


class GPClassifier(ClassifierMixin, AbstractEstimator):
    """Gaussian process classification for tables of any size, with calibrated probabilities.

    Two classes: P(y = 1 | f) = σ(f), f ~ GP(0, k). C classes: C functions that share kernel and inducing points, and
    P(y = c | f) ∝ exp f_c. Probabilities integrate f. Inputs are scaled to mean 0 and standard deviation 1.

    Parameters
    ----------
    kernel, optimiser, posterior, num_inducing, inducing, learn_inducing, initial, lengthscale_prior, scale_inputs,
    dtype, random_state
        As for `GPRegressor`.
    likelihood : str or likelihood object, default "auto"
        "logit" or "probit" for two classes; "softmax", or "robustmax" for labels that may be wrong. "auto": logit for
        two classes, else softmax.
    method : {"auto", "laplace", "collapsed", "svgp"}, default "auto"
        "laplace": the full GP at the mode, O(N³), two classes (Rasmussen and Williams, 3.4). "collapsed": M inducing
        points, full passes, the best posterior at every step of the hyperparameters. "svgp": minibatches with natural
        gradients.
    max_iter : int, optional
        L-BFGS-B iterations (default 200), or minibatch steps for "svgp" (default 3000; 2000 with an
        optimiser by name).
    batch_size, learning_rate : int, float or None
        For "svgp"; None lets the optimiser choose.

    Attributes
    ----------
    classes_ : the labels, in the order of the columns of `predict_proba`. mean_ : the learned constant mean of the
    latent function, or of each: far from all rows the probabilities are those of the base rates. Others as for
    `GPRegressor`.

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

    def __init__(
        self,
        kernel: Any = "matern52",
        *,
        likelihood: Any = "auto",
        method: Any = "auto",
        optimiser: Any = "auto",
        posterior: Any = "whitened",
        num_inducing: Any = None,
        num_mean_inducing: Any = None,
        inducing: Any = "auto",
        learn_inducing: Any = True,
        initial: Any = "warm",
        lengthscale_prior: Any = 1.5,
        max_iter: Any = None,
        batch_size: Any = 512,
        learning_rate: Any = None,
        scale_inputs: Any = "auto",
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
        self.initial = initial
        self.lengthscale_prior = lengthscale_prior
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.scale_inputs = scale_inputs
        self.dtype = dtype
        self.random_state = random_state

    def fit(self, X, y, sample_weight=None, *, progress: Progress | None = None):
        """Fit to X [N, D] and labels y [N], of any type that sorts.

        `sample_weight` [N]: weight 2 means that the row was seen twice. `progress` is called with a `Record` after
        every iteration (or segment of minibatch steps). A target of one class is predicted, and said in `notes_`.
        Raises ValueError where the data or a setting is unfit; whatever is raised leaves the estimator as it was.
        """
        return self._whole(lambda model: model._fit(X, y, sample_weight, progress))

    def _fit(self, X, y, sample_weight, progress):
        self._check_settings()
        X, y, weight = self._check_rows(X, y, sample_weight)
        with (
            np.errstate(invalid="ignore", over="ignore"),
            warnings.catch_warnings(),
        ):  # of labels that are large numbers
            warnings.filterwarnings("ignore", "The number of unique classes")  # a note says so
            check_classification_targets(y)
        seen = weight > 0
        self.classes_ = np.unique(y[seen])
        rows = X[seen], np.searchsorted(self.classes_, y[seen]).astype(np.float64), weight[seen], np.zeros(seen.sum())
        if len(self.classes_) == 1:
            return self._learn_one_class(rows, progress)
        likelihood = class_likelihood(self.likelihood, len(self.classes_))
        self._learn(rows, False, lambda y, weight: likelihood, progress)
        self.notes_ += tuple(notes.many_classes(len(self.classes_), len(rows[1])))
        return self

    def _learn_one_class(self, rows, progress):
        """What is predicted needs no model; a few rows make one, so that there is all that other fits have."""
        few = tuple(column[:FEW] for column in rows)
        brief = GPClassifier(
            self.kernel, method="laplace", scale_inputs=self.scale_inputs, dtype=self.dtype, max_iter=BRIEF
        )
        brief._learn(few, False, lambda y, weight: Bernoulli(), progress)
        self.__dict__ |= {name: value for name, value in vars(brief).items() if name.endswith("_")}
        label = self.classes_.tolist()[0]
        self.reason_ = "the target holds one class"
        self.notes_ = (f"the target holds one class only, {label!r}, which is predicted with certainty",)

    def predict_log_proba(self, X):
        """log P(y = c | x), [N, C], columns in the order of `classes_`; no probability is clipped."""
        rows = self._inputs(X)
        if len(self.classes_) == 1:
            return np.zeros((len(rows), 1))
        return evaluate(self, predictive.log_probabilities, rows).T

    def predict_proba(self, X):
        """P(y = c | x), [N, C], columns in the order of `classes_`."""
        p = np.exp(self.predict_log_proba(X))
        p /= p.sum(axis=1, keepdims=True)
        return p

    def predict(self, X):
        """The most probable label of every row, [N]."""
        best = np.argmax(self.predict_log_proba(X), axis=1)
        return self.classes_[best]

    def log_density(self, X, y):
        """log P(yᵢ | xᵢ) for every row, [N]; −∞ for a label that was not learned."""
        log_p = self.predict_log_proba(X)
        y = np.asarray(y)
        if y.shape != (len(log_p),):
            raise ValueError(f"y has shape {y.shape}, but X has {len(log_p)} rows")
        places = {label: place for place, label in enumerate(self.classes_.tolist())}  # of labels of any type
        codes = np.array([places.get(label, -1) for label in y.tolist()])
        return np.where(codes >= 0, log_p[np.arange(len(y)), codes], -np.inf)
