"""The commands predict, score, inspect and demo, and fit of a table in memory; `streamed` has fit as a whole."""

import os
import re
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict
from functools import partial
from glob import glob
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pseudopoint.commands.about import about, chosen, kernel_variance, lengthscales
from pseudopoint.commands.choice import choose_task
from pseudopoint.commands.enough import advice
from pseudopoint.commands.held_out import HeldOut, Rows, learned_encoder, rows_of, split
from pseudopoint.commands.kinds import LEVEL, AbstractKind, Classification, Regression, Result, Scored
from pseudopoint.commands.reporting import report_of
from pseudopoint.commands.side_columns import CHUNK_ROWS, SideColumn
from pseudopoint.commands.side_columns import weights as weights_of
from pseudopoint.estimators import GPClassifier, GPRegressor
from pseudopoint.estimators.checks import seed_of
from pseudopoint.estimators.frames import restored
from pseudopoint.files import check_place, make_folder
from pseudopoint.optimise.result import Progress
from pseudopoint.persistence import ModelFileError, describe, reading
from pseudopoint.report import write_report
from pseudopoint.tables import TableEncoder, TableError, read_table, table_chunks, write_chunks
from pseudopoint.tables import describe as in_words
from pseudopoint.tables.formats import Format

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
    test_from: str | None = None,
    test_last: float | None = None,
    time_column: str | None = None,
    refit: bool = True,
    weights: str | None = None,
    exposure: str | None = None,
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
    default. Held out are `test_fraction` of the rows, shuffled with `random_state`; or the last in time, from
    `test_from` on or the share `test_last`, by the column `time_column` (default: the one column of dates); or the
    table `test`. Of these, rows whose class training never had are counted and not measured. Then the model is fitted
    to all rows of `table`, unless `refit` is False: the measures, and the pictures of the report, are those of the fit
    without the rows held out. The column `weights` says how often a row was seen, `exposure` what a count refers to (as
    in `GPRegressor.fit`); they are no inputs. Cells that hold one of the words in `missing` are gaps, here and in every
    table that the model meets. Raises TableError, FitError or ValueError, each with one sentence.
    """
    held_out = HeldOut(test_fraction, test, test_from, test_last, time_column).checked()
    check_places(out, report, tables=[table, test])
    frame, classes, why = choose_task(table, target, task, likelihood, missing)
    make = partial(make_estimator, classes, settings, likelihood, random_state)
    rows = rows_of(frame, target, make(), classes, held_out, missing, weights, exposure).readable()
    start = time.perf_counter()
    measured = _fitted(make(), rows.train, rows.encoder, rows.weight, rows.exposure, progress)
    scored = _scored(measured.kind, rows, report is not None)
    refitted = refit and test is None and scored is not None and scored.rows > 0
    final, learned = measured, rows.learned
    if refitted:
        encoder, learned = learned_encoder(rows.whole, target, classes, missing, rows.exposure)
        final = _fitted(make(), rows.whole, encoder, rows.weight, rows.exposure, progress)
    result = result_of(final.kind, len(final.y), why, time.perf_counter() - start, refitted)
    result["advice"] = advice(final.kind.model, final.X, final.y, final.weight)
    result["test"] = measured.kind.measures(scored) if scored is not None and scored.rows else None
    result["notes"] = [*rows.notes, *learned, *result["notes"], *(scored.notes if scored is not None else [])]
    result |= saved(final.kind, result, out, final.seen)
    return result | reported(report, measured, result, scored, rows.held_out, table)


class Fitted(NamedTuple):
    """A fitted model with its encoder, and inputs [N, D], target [N] and weights [N] (None: all are 1) of its rows, or
    of some of them."""

    kind: AbstractKind
    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None = None

    @property
    def seen(self) -> float | int:
        """How many rows the weights count."""
        return len(self.y) if self.weight is None else float(np.sum(self.weight))


def _fitted(
    model: Any,
    frame: pd.DataFrame,
    encoder: TableEncoder,
    weight: pd.Series | None,
    exposure: SideColumn | None,
    progress: Progress | None,
) -> Fitted:
    """The model fitted to the rows of a table that has targets."""
    weights = None if weight is None else weight.loc[frame.index].to_numpy()
    X, y = encoder.inputs(frame)[0], encoder.target(frame)
    kind = (Classification if encoder.classes else Regression)(model, encoder, LEVEL, exposure)
    more = {} if exposure is None else {"exposure": kind.exposures(frame)}
    model.fit_encoded(encoder, X, y, weights, progress, **more)
    return Fitted(kind, X, y, weights)


def _scored(kind: AbstractKind, rows: Rows, keep: bool) -> Scored | None:
    if rows.held_out is None or not len(rows.held_out):
        return None
    weight = rows.held_weight
    weigh = None if weight is None else lambda frame: weight.loc[frame.index].to_numpy()
    return kind.score([rows.held_out], keep=keep, weigh=weigh)


def result_of(kind: AbstractKind, rows: int, why: str, seconds: float, refitted: bool = False) -> Result:
    """What is known of a model that was fitted to so many rows of a table, without a test."""
    names = kind.encoder.feature_names
    result: Result = {"target": kind.encoder.target_name, "rows": rows, "features": names}
    result |= {"task": kind.task, "task_reason": why} | about(kind, rows) | {"seconds": seconds, "test": None}
    return result | {"refitted": refitted, "notes": named_columns(kind.model.notes_, names)}


def predict_table(model_file: str | Path, table: str | Path, out: str | Path, level: float = LEVEL) -> Result:
    """Writes predictions for every row of a table, in its order, chunk by chunk.

    Regression: columns TARGET_mean, TARGET_std, TARGET_lower_90 and TARGET_upper_90 (at level 0.9).
    Classification: TARGET_predicted, the most probable label, and its probability TARGET_p_LABEL for every class.
    """
    kind, _ = load_model(model_file, level)
    check_places(out, tables=[table, model_file])
    rows, oddities = 0, []
    with write_chunks(out) as writer:
        for frame in table_chunks(table, CHUNK_ROWS, kind.encoder, kind.text):
            X, odd = kind.encoder.encode(frame)
            writer.append(kind.predictions(X, kind.exposures(frame)))
            rows, oddities = rows + len(frame), oddities + odd
    return {"rows": rows, "predictions": str(out), "columns": writer.columns, "notes": in_words(oddities)}


def score_table(model_file: str | Path, table: str | Path, level: float = LEVEL, weights: str | None = None) -> Result:
    """How well a saved model predicts a table that holds the target: the measures of `Regression`, `Classification`.
    The column `weights` says how often each row counts."""
    kind, _ = load_model(model_file, level)
    tally = kind.tally()
    weigh, text = weigher(table, weights, kind)
    scored = kind.score(table_chunks(table, CHUNK_ROWS, kind.encoder, text), tally.add, weigh=weigh)
    if scored.rows == 0:
        why = "; ".join(scored.notes) or "it is missing in every row"
        raise TableError(f"no row has a target {kind.encoder.target_name!r} to score ({why}); give a table that has")
    return {"task": kind.task} | tally.result() | {"notes": scored.notes}


def weigher(table: str | Path, name: str | None, kind: AbstractKind) -> tuple[Any, tuple[str, ...]]:
    """What tells the weights of rows of a table, None without a column of them, and the columns to read as text."""
    if name is None:
        return None, kind.text
    column = SideColumn.of_table(table, name, kind.encoder)
    return (lambda frame: weights_of(frame, column, kind.encoder.target_name)), (*kind.text, *column.text)


def inspect_model(model_file: str | Path) -> Result:
    """What a model file holds."""
    kind, extra = load_model(model_file)
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
    result |= about(kind, extra.get("seen", extra["rows"])) | {
        "kernel": chosen(model).get("kernel", _kernel_by_name(model))
    }
    result |= {"kernel_variance": kernel_variance(model), "lengthscales": in_units}
    return result | {"seconds": extra["seconds"], "test": extra["test"]}


def demo(out: str | Path, progress: Progress | None = None) -> Result:
    """Fits the table of concrete strengths that comes with the package: model file, predictions and report in
    `out`."""
    folder = make_folder(out)
    with resources.as_file(resources.files("pseudopoint") / "datasets" / DEMO) as table:
        model_file = folder / "model.safetensors"
        files: dict[str, Any] = {"out": model_file, "report": folder / "report.html"}
        result = fit_table(table, DEMO_TARGET, refit=False, progress=progress, **files)
        _, held_out = split(read_table(table), 0.1, 0)
        kind, _ = load_model(model_file)
        with write_chunks(folder / "predictions.csv") as writer:
            predicted = kind.predictions(kind.encoder.inputs(held_out)[0])
            writer.append(pd.concat([held_out[[DEMO_TARGET]].reset_index(drop=True), predicted], axis=1))
    return result | {"predictions": str(folder / "predictions.csv")}


def _kernel_by_name(model: Any) -> str:
    """What the settings say, "auto" being Matérn 5/2 where no search was made."""
    if not isinstance(model.kernel, str):
        return "object"
    return "matern52" if model.kernel == "auto" else model.kernel


def make_estimator(classes: bool, settings: dict[str, Any], likelihood: str, random_state: int) -> Any:
    """The estimator with these settings. Raises ValueError for one that it does not have."""
    estimator = GPClassifier if classes else GPRegressor
    settings = settings | {"random_state": seed_of(random_state)}
    settings |= {"likelihood": likelihood} if likelihood != "auto" else {}
    if strange := settings.keys() - estimator().get_params():
        names = ", ".join(sorted(strange))
        raise ValueError(f"{names}: no setting of {estimator.__name__}, which fits this target; leave it out")
    return estimator(**settings)


def named_columns(notes, names: list[str]) -> list[str]:
    """What an estimator says of column 3, of the third feature of the table."""
    name = lambda match: f"column {names[int(match[1])]!r}:"
    return [re.sub(r"^column (\d+):", name, note) for note in notes]


def check_places(*paths, tables: Iterable[str | Path | None] = ()):
    """Found before an hour of fitting, not after: a place that nothing can be written to, one that is named for two
    files, and a table that is read, whose rows would be lost."""
    read = {os.path.realpath(file) for table in tables if table is not None for file in _files_of(table)}
    taken = set()
    for path in filter(None, paths):
        try:
            check_place(path)
        except OSError as error:
            raise TableError(f"{path}: cannot be written ({error.strerror}); check the path and permissions") from None
        at = os.path.realpath(path)
        if at in read:
            raise TableError(f"{path}: is a table that is read here, which would be lost; name another file to write")
        if at in taken:
            raise TableError(f"{path}: is named for two files, of which one would be lost; name two")
        taken |= {at} if os.path.isfile(at) or not os.path.exists(at) else set()


def _files_of(table: str | Path) -> list[str | Path]:
    """The file, those of the folder, or those that the pattern names."""
    inside = os.path.join(table, "**") if os.path.isdir(table) else str(table)
    return [table, *glob(inside, recursive=True)]


def saved(kind: AbstractKind, result: Result, out, seen: float | int | None = None) -> Result:
    """Writes the model file, where asked for, and says where it is; `seen` counts rows by their weights."""
    if out is None:
        return {}
    extra: dict[str, Any] = {"encoder": kind.encoder.to_dict(), "exposure": None, "exposure_format": None}
    if kind.exposure is not None:
        format = kind.exposure.format
        extra |= {"exposure": kind.exposure.name, "exposure_format": None if format is None else asdict(format)}
    extra |= {"seen": result["rows"] if seen is None else seen} | {
        name: result[name] for name in ("rows", "seconds", "test")
    }
    kind.model.save(out, extra=extra)
    return {"model": str(out)}


def reported(
    report, measured: Fitted, result: Result, scored: Scored | None, held_out: pd.DataFrame | None, table
) -> Result:
    """Writes the report of the fit that was measured, where asked for, and says where it is."""
    if report is None:
        return {}
    kind, X, y, weight = measured
    write_report(report, report_of(kind, result, X, y, weight, scored, held_out, Path(table).name))
    return {"report": str(report)}


def load_model(model_file: str | Path, level: float = LEVEL) -> tuple[AbstractKind, dict[str, Any]]:
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
        name, format = extra.get("exposure"), extra.get("exposure_format")
        exposure = None if name is None else SideColumn(name, None if format is None else Format(**format))
        kind = (Classification if classes else Regression)(model, restored(extra["encoder"]), level, exposure)
        return kind, extra | {"test": test or None}
