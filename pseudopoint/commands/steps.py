"""The commands: fit, predict, score, inspect, demo."""

import re
import time
from collections.abc import Collection
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from pseudopoint.commands.about import about, chosen, kernel_variance, lengthscales
from pseudopoint.commands.choice import choose_task
from pseudopoint.commands.enough import advice
from pseudopoint.commands.kinds import LEVEL, AbstractKind, Classification, Regression, Result
from pseudopoint.commands.reporting import report_of
from pseudopoint.estimators import GPClassifier, GPRegressor
from pseudopoint.estimators.checks import seed_of
from pseudopoint.estimators.targets import check_target, regression_likelihood
from pseudopoint.files import check_place, make_folder
from pseudopoint.optimise.result import Progress
from pseudopoint.persistence import ModelFileError, describe, reading
from pseudopoint.report import write_report
from pseudopoint.tables import (
    TableEncoder,
    TableError,
    class_target,
    drop_missing_target,
    number_target,
    read_chunks,
    read_table,
    write_chunks,
)
from pseudopoint.tables import describe as in_words
from pseudopoint.tables.columns import Kind

__all__ = ["demo", "fit_table", "inspect_model", "predict_table", "score_table"]

CHUNK_ROWS = 20_000
DEMO, DEMO_TARGET = "concrete_demo.csv.gz", "strength_MPa"
RENAMED = {"interval": "level"}  # measures by their names in model files of earlier versions


def fit_table(
    table: str | Path,
    target: str,
    *,
    task: str = "auto",
    likelihood: str = "auto",
    test_fraction: float = 0.1,
    test: str | Path | None = None,
    missing: Collection[str] = (),
    out: str | Path | None = None,
    report: str | Path | None = None,
    random_state: int = 0,
    progress: Progress | None = None,
    **settings: Any,
) -> Result:
    """Fits `GPRegressor(**settings)` or `GPClassifier(**settings)` to a table, measures it on rows held out, writes
    the model file and the report.

    `task` is one of `names.TASKS`, and the result says why. `likelihood` is one of the estimator's; "auto" is its
    default. Rows are shuffled with `random_state`; the last `test_fraction` of them are held out unless `test` names a
    table of its own; of these, rows whose class training never had are counted and not measured. Cells that hold one of
    the words in `missing` are gaps, here and in every table that the model meets. Raises TableError, FitError or
    ValueError, each with one sentence.
    """
    if not 0 <= test_fraction < 1:
        raise ValueError(f"the test fraction must be at least 0 and below 1, not {test_fraction}")
    _check_places(out, report)
    frame, classes, why = choose_task(table, target, task, likelihood, missing)
    settings |= {"random_state": seed_of(random_state)}
    settings |= {"likelihood": likelihood} if likelihood != "auto" else {}
    model = _estimator(classes, settings)
    train, held_out, encoder, notes = _rows(frame, target, model, classes, test, test_fraction, missing)
    X, y = encoder.encode(train)[0], encoder.target(train)
    start = time.perf_counter()
    model.fit(X, y, progress=progress)
    seconds = time.perf_counter() - start
    kind = (Classification if classes else Regression)(model, encoder)
    result: Result = {"target": target, "rows": len(y), "features": encoder.feature_names}
    result |= {"task": kind.task, "task_reason": why} | about(kind, len(y)) | {"advice": advice(model, X, y)}
    result |= {"seconds": seconds, "test": None, "notes": [*notes, *_by_name(model.notes_, encoder.feature_names)]}
    scored = None
    if held_out is not None and len(held_out):
        scored = kind.score([held_out], keep=report is not None)
        result["test"] = kind.measures(scored) if scored.rows else None
        result["notes"] += scored.notes
    result |= _saved(kind, result, out)
    if report is not None:
        write_report(report, report_of(kind, result, X, y, scored, held_out, Path(table).name))
    return result | ({} if report is None else {"report": str(report)})


def predict_table(model_file: str | Path, table: str | Path, out: str | Path, level: float = LEVEL) -> Result:
    """Writes predictions for every row of a table, in its order, chunk by chunk.

    Regression: columns TARGET_mean, TARGET_std, TARGET_lower_90 and TARGET_upper_90 (at level 0.9).
    Classification: TARGET_predicted, the most probable label, and its probability TARGET_p_LABEL for every class.
    """
    kind, _ = _load(model_file, level)
    rows, oddities = 0, []
    with write_chunks(out) as writer:
        for frame in read_chunks(table, CHUNK_ROWS, kind.encoder):
            X, odd = kind.encoder.encode(frame)
            writer.append(kind.predictions(X))
            rows, oddities = rows + len(frame), oddities + odd
    return {"rows": rows, "predictions": str(out), "columns": writer.columns, "notes": in_words(oddities)}


def score_table(model_file: str | Path, table: str | Path, level: float = LEVEL) -> Result:
    """How well a saved model predicts a table that holds the target: the measures of `Regression`, `Classification`."""
    kind, _ = _load(model_file, level)
    scored = kind.score(read_chunks(table, CHUNK_ROWS, kind.encoder))
    if scored.rows == 0:
        why = "; ".join(scored.notes) or "it is missing in every row"
        raise TableError(f"no row has a target {kind.encoder.target_name!r} to score ({why}); give a table that has")
    return {"task": kind.task} | kind.measures(scored) | {"notes": scored.notes}


def inspect_model(model_file: str | Path) -> Result:
    """What a model file holds."""
    kind, extra = _load(model_file)
    model, encoder, header = kind.model, kind.encoder, describe(model_file)
    scales = lengthscales(model)
    in_units = (
        None
        if scales is None
        else {encoder.feature_names[j]: scale for j, (_, scale) in scales.items() if scale is not None}
    )
    result = {"model": str(model_file), "library_version": header["library_version"], "created": header["created"]}
    result |= {"kind": header["kind"], "task": kind.task}
    result |= {"target": encoder.target_name, "rows": extra["rows"], "features": encoder.feature_names}
    result |= about(kind, extra["rows"]) | {"kernel": chosen(model).get("kernel", _kernel_by_name(model))}
    result |= {"kernel_variance": kernel_variance(model), "lengthscales": in_units}
    return result | {"seconds": extra["seconds"], "test": extra["test"]}


def demo(out: str | Path, progress: Progress | None = None) -> Result:
    """Fits the table of concrete strengths that comes with the package: model file, predictions and report in
    `out`."""
    folder = make_folder(out)
    with resources.as_file(resources.files("pseudopoint") / "datasets" / DEMO) as table:
        model_file = folder / "model.safetensors"
        result = fit_table(table, DEMO_TARGET, out=model_file, report=folder / "report.html", progress=progress)
        _, held_out = split(read_table(table), 0.1, 0)
        kind, _ = _load(model_file)
        with write_chunks(folder / "predictions.csv") as writer:
            predicted = kind.predictions(kind.encoder.inputs(held_out)[0])
            writer.append(pd.concat([held_out[[DEMO_TARGET]].reset_index(drop=True), predicted], axis=1))
    return result | {"predictions": str(folder / "predictions.csv")}


def _kernel_by_name(model: Any) -> str:
    """What the settings say, "auto" being Matérn 5/2 where no search was made."""
    if not isinstance(model.kernel, str):
        return "object"
    return "matern52" if model.kernel == "auto" else model.kernel


def _estimator(classes: bool, settings: dict[str, Any]) -> Any:
    """The estimator with these settings. Raises ValueError for one that it does not have."""
    estimator = GPClassifier if classes else GPRegressor
    if strange := settings.keys() - estimator().get_params():
        names = ", ".join(sorted(strange))
        raise ValueError(f"{names}: no setting of {estimator.__name__}, which fits this target; leave it out")
    return estimator(**settings)


def _by_name(notes, names: list[str]) -> list[str]:
    """What an estimator says of column 3, of the third feature of the table."""
    name = lambda match: f"column {names[int(match[1])]!r}:"
    return [re.sub(r"^column (\d+):", name, note) for note in notes]


def _check_places(*paths):
    """Found before an hour of fitting, not after."""
    for path in paths:
        if path is None:
            continue
        try:
            check_place(path)
        except OSError as error:
            raise TableError(f"{path}: cannot be written ({error.strerror}); check the path and permissions") from None


def _rows(frame, target, model, classes, test, test_fraction, missing):
    """Training rows, rows held out (None: there are none), the encoder, and what to say about them."""
    frame, dropped = drop_missing_target(frame, target, classes=classes)
    notes = [f"{dropped} rows were dropped because their target {target!r} is missing"] if dropped else []
    if not classes:  # whatever the split: a row that the likelihood cannot describe is an error in any of them
        numbers = number_target(frame, target)
        check_target(regression_likelihood(model.likelihood, 1.0), numbers, np.asarray(frame.index) + 1)
    labels = class_target(frame, target) if classes else None
    train, held_out = (frame, None) if test is not None else split(frame, test_fraction, model.random_state, labels)
    encoder, learned = TableEncoder.learn(train, target, classes, missing, whole=frame)
    if test is not None:
        table = read_table(test, encoder.text_columns)
        held_out, gaps = drop_missing_target(table, target, classes, missing, encoder.target_format)
        learned += [f"{gaps} test rows were dropped because their target is missing"] if gaps else []
    return train, held_out, encoder, notes + learned


def split(frame: pd.DataFrame, fraction: float, seed: int, labels=None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and held-out rows at random; of every class of `labels` the same share, as far as whole rows allow, and
    at least one for training."""
    rows = np.random.default_rng(seed).permutation(len(frame))
    if labels is not None:
        # The k-th of n rows of a class has its place at (k + ½)/n.
        groups = pd.Series(labels[rows]).groupby(labels[rows])
        rows = rows[np.argsort((groups.cumcount() + 0.5) / groups.transform("size"), kind="stable")]
    cut = len(frame) - int(np.ceil(fraction * len(frame)))
    train, held_out = rows[:cut], rows[cut:]
    if labels is not None:
        only = ~pd.Index(labels[held_out]).isin(labels[train]) & ~pd.Index(labels[held_out]).duplicated()
        train, held_out = np.concatenate([train, held_out[only]]), held_out[~only]
    return frame.iloc[train], frame.iloc[held_out]


def _saved(kind: AbstractKind, result: Result, out) -> Result:
    """Writes the model file, where asked for, and says where it is."""
    if out is None:
        return {}
    extra = {"encoder": kind.encoder.to_dict()} | {name: result[name] for name in ("rows", "seconds", "test")}
    kind.model.save(out, extra=extra)
    return {"model": str(out)}


def _load(model_file, level: float = LEVEL) -> tuple[AbstractKind, dict[str, Any]]:
    """The model and its encoder, of either kind, and what was saved beside them."""
    classes = describe(model_file)["kind"] == GPClassifier.__name__
    model, extra = (GPClassifier if classes else GPRegressor).load_with_extra(model_file)
    if not isinstance(extra, dict) or "encoder" not in extra:
        raise ModelFileError(
            f"The model file {str(model_file)!r} knows no table: it was saved from Python; "
            "load it there, or fit with the command line."
        )
    with reading(model_file):
        test = {RENAMED.get(name, name): value for name, value in (extra["test"] or {}).items()}
        kind = (Classification if classes else Regression)(model, _encoder(extra["encoder"]), level)
        return kind, extra | {"test": test or None}


def _encoder(fields: Any) -> TableEncoder:
    """The encoder of a model file, if this version knows all of it: a field left out would change the inputs."""
    newer = ModelFileError("describes its table in a way that this pseudopoint does not know; upgrade pseudopoint")
    try:
        encoder = TableEncoder.from_dict(fields)
    except TableError:
        raise newer from None
    if _lost(fields, encoder.to_dict()) or any(column.kind not in get_args(Kind) for column in encoder.columns):
        raise newer
    return encoder


def _lost(stored: Any, kept: Any) -> bool:
    """Whether `stored` has a key, at any depth, that `kept` has not."""
    if isinstance(stored, dict):
        return any(key not in kept or _lost(value, kept[key]) for key, value in stored.items())
    return isinstance(stored, list | tuple) and any(map(_lost, stored, kept))
