"""Fits of estimators to tables by name, which need not fit into memory."""

from collections.abc import Callable, Collection
from contextlib import closing, nullcontext
from typing import Any, NamedTuple, cast

import narwhals as nw
import numpy as np
from sklearn.base import is_classifier

from ..compilation import forget_programs, keeping_programs
from ..data import Dataset, Standardiser, dataset
from ..likelihoods import AbstractLikelihood
from ..names import Settings
from ..optimise.result import Progress
from ..processes import computing, one_blas_thread
from ..recipes import AbstractKeeper, Found, Nothing, Trial, fit_rows
from ..tables import (
    LearnedTable,
    PartReader,
    Parts,
    TableEncoder,
    TableRows,
    arrays_source,
    dask_source,
    learn_table,
    open_source,
)
from . import notes
from .checkpoints import Checkpoint, opened
from .checks import unmasked
from .choosing import Chosen, as_chosen, searched
from .frames import is_lazy, is_table
from .kernel_start import in_units_of_inputs, start_kernel, unrounded
from .means import around_mean
from .targets import started
from .warm import learned_by

FEW = 20_000  # rows of the sample on which a fit starts
TARGET = "the target"  # the name of y, where X and y are arrays


class Streaming(NamedTuple):
    """What a fit to a source is given: the source, the target's name, words for gaps, the share of rows held out, its
    checkpoint (or None), progress, labels whose numbers the target holds (None: it is what it is), whether the target
    came beside the columns and not among them, and what looks at the encoder before the fit."""

    source: Parts
    target: str
    missing: Collection[str] = ()
    share: float = 0.0
    checkpoint: Checkpoint | None = None
    progress: Progress | None = None
    labels: np.ndarray | None = None
    arrays: bool = False
    look: Callable[[TableEncoder], Any] = lambda encoder: None

    def learned(self, settings: Settings, classes: bool, check: Callable = lambda y, rows: None) -> LearnedTable:
        """What one pass over the table tells."""
        given = self.missing, self.share, settings.seed, check
        learned = learn_table(self.source, self.target, classes, *given)
        self.look(learned.encoder)
        if self.arrays and self.target == TARGET:
            _refuse_gaps(learned, self.source)
        return learned


def fit_streamed(model: Any, X: Any, y: Any, refused: dict[str, Any], checkpoint: Any, resume: bool, progress: Any):
    """Fit an estimator to a table by name, X, whose column y is the target, or to arrays, part by part.

    `refused` are the arguments that such a fit does not take. Raises ValueError, TableError or FitError.
    """
    for name, value in refused.items():
        if value is not None:
            raise ValueError(
                f"{name} needs the rows in memory: leave it out of a fit to a table by name or a checkpoint"
            )
    if learned_by(model) is not None:
        raise ValueError("warm_start needs the rows in memory: fit a table by name with warm_start=False")
    arrays = not isinstance(y, str)
    kept = opened(checkpoint, resume)
    if kept is not None:
        kept.refuse_other(task_of(is_classifier(model)), model._settings())
    options = {"checkpoint": kept, "progress": progress, "arrays": arrays}
    names = list(getattr(nw.from_native(X) if is_table(X) else X, "columns", ()))
    if arrays and not is_lazy(X):
        X, y = _checked(X, y)
    options["labels"], y = model._numbered(y) if arrays else (None, y)
    if is_lazy(X):
        model._fit_source(Streaming(*dask_source(X, y, TARGET), **options))
    else:
        with nullcontext(arrays_source(cast(np.ndarray, X), y, TARGET)) if arrays else open_source(X) as source:
            model._fit_source(Streaming(source, TARGET if arrays else y, **options))
    if arrays and names and all(isinstance(name, str) for name in names):  # numbers are no names to scikit-learn
        model.feature_names_in_ = np.asarray(names, object)


def task_of(classes: bool) -> str:
    """Its word, by which a checkpoint knows it."""
    return "classification" if classes else "regression"


def _identity(learned: LearnedTable, target: str) -> list[Any]:
    """Of the rows of a fit: the target, the features, how many rows there are, and their digest."""
    return [target, learned.encoder.feature_names, int(learned.counts.sum()), str(learned.digest)]


def _refuse_gaps(learned: LearnedTable, source: Parts) -> None:
    """Arrays have no gaps; those of a table are filled, and columns of gaps alone are left out."""
    full = {column.name for column in learned.encoder.columns if not column.indicator} | {TARGET}
    gaps = [f"column {name}" for name in source.columns if name not in full]
    for name in gaps + ["the target"] * int(learned.counts.sum() < len(source)):
        raise ValueError(f"{name} contains NaN: drop those rows or impute the values")


def _checked(X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """X [N, D] and y [N], of which [N, 1] is one; what a mask hides is NaN, which is refused later."""
    X, y = np.asanyarray(unmasked(X)), np.asanyarray(unmasked(y))
    y = y[:, 0] if y.shape[1:] == (1,) else y
    if X.ndim != 2 or y.shape != X.shape[:1] or X.dtype.kind not in "biuf":
        raise ValueError(f"X has shape {X.shape} and y {y.shape}: give an array of numbers [N, D] and one [N]")
    return X, y


def learn_source(
    model: Any,
    settings: Settings,
    at: Streaming,
    learned: LearnedTable,
    codes: Callable[[np.ndarray], np.ndarray],
    scale_target: bool,
    likelihood: Callable[[np.ndarray, np.ndarray], AbstractLikelihood],
) -> None:
    """Fit an estimator to the rows of a source, as `AbstractEstimator._learn` does to arrays; `codes` maps targets to
    numbers."""
    forget_programs()
    precision, D = model._precision, len(learned.mean)
    as_it_is = Standardiser(np.arange(D), np.zeros(D), np.ones(D), 0.0, 1.0)
    reader = PartReader(learned.encoder, (at.share, settings.seed), codes, as_it_is, None, "float64")
    raw_rows = at.source.spread(TableRows(at.source, reader, learned.counts))
    if len(raw_rows) < 2:
        raise ValueError(f"a fit needs at least 2 rows with a target, and {at.target!r} has one in the table")
    keeper = at.checkpoint or Nothing()
    if at.checkpoint is not None:
        at.checkpoint.begin(task_of(learned.encoder.classes), settings, _identity(learned, at.target))
    model.encoder_, model.columns_ = None if at.arrays and at.target == TARGET else learned.encoder, None
    try:
        with computing(precision), one_blas_thread(), keeping_programs():
            raw = raw_rows.sample(FEW, settings.seed)
            _fit(model, settings, at, learned, raw_rows, raw, scale_target, likelihood, keeper)
    finally:
        keeper.flush()
    if at.checkpoint is not None and at.checkpoint.trouble:
        model.notes_ = (*model.notes_, at.checkpoint.trouble)
    vars(model).pop("feature_names_in_", None)
    model.n_features_in_, model.rows_ = D, len(raw_rows)


def _fit(model, settings, at, learned, raw_rows, raw: Dataset, scale_target, likelihood, keeper: AbstractKeeper):
    precision, said = model._precision, list(learned.notes)
    scaled = bool(settings.scale_inputs)
    own = in_units_of_inputs(settings)
    target = (learned.target.mean, learned.target.spread) if scale_target else (0.0, 1.0)
    moments = learned.mean, learned.spread
    scaling = Standardiser.of_moments(moments, raw.X, target, own or scaled, ignore_constant=not own)
    ends = learned.target.least, learned.target.most
    said += notes.lost_digits("the target", ends, scaling.target_mean, scaling.target_scale)
    scaling = unrounded(scaling, settings)
    y = scaling.target(np.asarray(raw.y))
    settings = model._with_kernel(settings, scaling)
    few = dataset(scaling.inputs(raw.X, precision), y, dtype=precision)
    ones = np.ones_like(y)
    described, variance = started(likelihood(y, ones), settings, y, ones, scale_target)

    def choose():
        least, categories = learned.target.least, model._categories
        found = searched(settings, described, few, scaling, scale_target, least, categories=categories)
        if found is not None:
            return _tree(found.base, found.model, found.inputs, found.target, found.trials)
        kernel, about = start_kernel(settings, np.asarray(few.X), y, variance, scaling if own else None)
        return _tree(kernel, notes=about)

    tree = keeper.stage("chosen", choose)
    chosen, said = Chosen(tree["kernel"], few, scaling), said + tree["notes"]
    if tree["warm"] is not None:
        trials = tuple(Trial(*trial) for trial in tree["trials"])
        found = Found("", tree["kernel"], tree["warm"], tuple(tree["warps"]), tree["warp"], trials)
        chosen = as_chosen(found, raw.X, few, scaling, precision)
    with closing(raw_rows.scaled(chosen.scaling, chosen.warp, precision)) as rows:
        if chosen.warp is not None:
            chosen = chosen._replace(jacobian=keeper.stage("jacobian", rows.log_slopes))
        settings = chosen.placed(settings)
        centred = around_mean(settings, described, chosen.data)
        given = chosen.kernel, centred, rows, chosen.data, settings, keeper, at.progress, chosen.warm
        fitted = fit_rows(*given)
    model._keep(chosen, fitted, own, said)


def _tree(kernel, warm=None, warps=(), warp=None, trials=(), notes=()) -> dict[str, Any]:
    """What is kept of a choice."""
    trials = [list(trial) for trial in trials]
    return {"kernel": kernel, "warm": warm, "warps": warps, "warp": warp, "trials": trials, "notes": list(notes)}
