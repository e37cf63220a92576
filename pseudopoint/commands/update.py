"""More rows for a model file, without the rows that it was fitted to."""

import time
from pathlib import Path

import numpy as np
import pandas as pd

from pseudopoint.commands.about import about
from pseudopoint.commands.kinds import AbstractKind, Result
from pseudopoint.commands.steps import CHUNK_ROWS, check_places, load_model, saved, weigher
from pseudopoint.estimators.notes import updated
from pseudopoint.tables import TableError, table_chunks
from pseudopoint.tables import describe as in_words


def update_table(
    model_file: str | Path, table: str | Path, out: str | Path, weights: str | None = None, new_inducing: int = 0
) -> Result:
    """Writes to `out` the model given the rows of a table besides (`GPRegressor.update`), chunk by chunk.

    Rows without a target are left out. The column `weights` says how often a row was seen; `new_inducing` more inducing
    points start among the first 20,000 rows of which one has weight. `out` may be the model file itself, which stays as
    it was where the update fails. Raises TableError, FitError or ValueError, each with one sentence.
    """
    began, (kind, extra) = time.perf_counter(), load_model(model_file)
    check_places(out, tables=[table])
    model, target = kind.model, kind.encoder.target_name
    before, new, taught, dropped, oddities = model.notes_, 0, False, 0, []
    weigh, text = weigher(table, weights, kind)
    for frame in table_chunks(table, CHUNK_ROWS, kind.encoder, text):
        y = kind.encoder.target(frame)
        there = ~np.asarray(pd.isna(y))
        dropped += int((~there).sum())
        frame, y = frame.loc[there], y[there]
        if len(frame):
            X, odd = _inputs(kind, frame, y)
            weight = None if weigh is None else weigh(frame)
            new, oddities = new + len(frame), oddities + odd
            if weight is None or weight.any():  # rows that were never seen teach nothing
                more = 0 if taught else new_inducing
                model.update(X, y, weight, exposure=kind.exposures(frame), new_inducing=more)
                taught = True
    if new == 0:
        raise TableError(f"no row has a target {target!r}: give a table that has")
    if not taught:
        raise TableError(f"the weights {weights!r} are zero in every row with a target: give a row a positive weight")
    model.notes_ = (*before, *updated(new))
    rows = extra["rows"] + new
    result = {"target": target, "rows": rows, "new_rows": new, "features": kind.encoder.feature_names}
    result |= {"task": kind.task} | about(kind, rows) | {"test": None}
    notes = [f"{dropped} rows without a target were left out"] if dropped else []
    result |= {"notes": [*notes, *in_words(oddities)], **saved(kind, result | {"seconds": extra["seconds"]}, out)}
    return result | {"seconds": time.perf_counter() - began}


def _inputs(kind: AbstractKind, frame: pd.DataFrame, y: np.ndarray):
    """The inputs of the rows, whose targets the model knows. Raises TableError or ValueError, which name a row."""
    places = np.asarray(frame.index) + 1
    known = kind.learned(y, places)
    if not known.all():
        row = int(np.argmin(known))
        raise TableError(
            f"the target {kind.encoder.target_name!r} holds {y[row]!r} in row {places[row]}, which the fit did not "
            "see: fit to all rows"
        )
    return kind.encoder.encode(frame)
