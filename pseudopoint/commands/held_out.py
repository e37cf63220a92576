"""Which rows a fit learns from and which measure it: at random, the last ones in time, or a table of its own."""

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pseudopoint.commands.side_columns import SideColumn, exposures, weights
from pseudopoint.estimators.targets import check_target, regression_likelihood
from pseudopoint.tables import TableEncoder, TableError, class_target, drop_missing_target, number_target, read_table
from pseudopoint.tables.formats import Format, column_formats, values_of


class HeldOut(NamedTuple):
    """What measures a fit: a share of the rows at random; the last share of them in time, or those from a time on, by
    the column `time`; or a table of its own."""

    fraction: float = 0.1
    test: str | Path | None = None
    start: str | None = None
    last: float | None = None
    time: str | None = None

    @property
    def in_time(self) -> bool:
        """Whether rows are held out by time."""
        return self.start is not None or self.last is not None

    def checked(self) -> "HeldOut":
        """Itself. Raises ValueError where two ways are asked for, or a share is none."""
        if not 0 <= self.fraction < 1:
            raise ValueError(f"the test fraction must be at least 0 and below 1, not {self.fraction}")
        if self.last is not None and not 0 < self.last < 1:
            raise ValueError(
                f"--test-last must lie between 0 and 1, not {self.last}: 0.1 is the last tenth of the rows"
            )
        given = {"--test": self.test, "--test-from": self.start, "--test-last": self.last}
        if len(names := [name for name, value in given.items() if value is not None]) > 1:
            raise ValueError(f"{' and '.join(names)} are ways to hold rows out: give one of them")
        if self.time is not None and not self.in_time:
            raise ValueError("--time names the column for --test-from or --test-last: give one of them")
        return self


class Rows(NamedTuple):
    """Training rows, rows held out (None: there are none), all rows that have a target, the encoder of the training
    rows, the weights of all rows and of those held out (None: they have none), the column of exposures, notes on the
    rows, and those of the encoder. Exposures stay in the tables, and the encoder does not know them."""

    train: pd.DataFrame
    held_out: pd.DataFrame | None
    whole: pd.DataFrame
    encoder: TableEncoder
    weight: pd.Series | None
    held_weight: pd.Series | None
    exposure: SideColumn | None
    notes: list[str]
    learned: list[str]

    def readable(self) -> "Rows":
        """The same. `TableError` where the encoder cannot read the rows to measure: said before the fit, not after."""
        if self.held_out is not None:
            self.encoder.encode(self.held_out)
        return self


def rows_of(
    frame: pd.DataFrame,
    target: str,
    model: Any,
    classes: bool,
    held_out: HeldOut,
    missing: Collection[str] = (),
    weighted: str | None = None,
    exposure: str | None = None,
) -> Rows:
    """The rows of a table for a fit of `model`. The columns `weighted`, how often a row was seen, and `exposure`, what
    its count refers to, are no inputs.

    Rows held out by time are no earlier than any training row, of which alone the encoder knows; only how dates and
    numbers are written is read off all rows, as the split reads them. Raises TableError.
    """
    if exposure is not None and (classes or exposure in (target, weighted)):
        raise ValueError(
            f"--exposure {exposure!r} is for counts, and a column of its own: name another, or leave it out"
        )
    frame, dropped = drop_missing_target(frame, target, classes=classes)
    notes = [f"{dropped} rows were dropped because their target {target!r} is missing"] if dropped else []
    if not classes:  # whatever the split: a row that the likelihood cannot describe is an error in any of them
        numbers = number_target(frame, target)
        check_target(regression_likelihood(model.likelihood, 1.0), numbers, np.asarray(frame.index) + 1)
    weigh = None if weighted is None else SideColumn.of(frame, weighted)
    weight = _weight(frame, weigh, target)
    frame = frame if weigh is None else frame.drop(columns=weigh.name)
    of_counts = None if exposure is None else SideColumn.of(frame, exposure)
    learn = partial(learned_encoder, target=target, classes=classes, missing=missing, exposure=of_counts)
    if held_out.in_time:
        train, measured, said = _split_in_time(frame, target, held_out)
        encoder, learned = learn(train, whole=frame, own_kinds=True)
        return Rows(train, measured, frame, encoder, weight, weight, of_counts, notes + said, learned)
    labels = class_target(frame, target) if classes else None
    own = held_out.test is not None
    train, measured = (frame, None) if own else split(frame, held_out.fraction, model.random_state, labels)
    encoder, learned = learn(train, whole=frame)
    held_weight = weight
    if held_out.test is not None:
        text = [name for column in (weigh, of_counts) if column is not None for name in column.text]
        table = read_table(held_out.test, [*encoder.text_columns, *text])
        measured, gaps = drop_missing_target(table, target, classes, missing, encoder.target_format)
        notes += [f"{gaps} test rows were dropped because their target is missing"] if gaps else []
        held_weight = _weight(measured, weigh, target)
    return Rows(train, measured, frame, encoder, weight, held_weight, of_counts, notes, learned)


def _weight(frame: pd.DataFrame, column: SideColumn | None, target: str) -> pd.Series | None:
    """The weights of rows; None where all count alike, as those of a test table without such a column do."""
    if column is None or column.name not in frame.columns:
        return None
    return pd.Series(weights(frame, column, target), frame.index)


def learned_encoder(
    frame: pd.DataFrame,
    target: str,
    classes: bool,
    missing: Collection[str],
    exposure: SideColumn | None,
    whole: pd.DataFrame | None = None,
    own_kinds: bool = False,
) -> tuple[TableEncoder, list[str]]:
    """`TableEncoder.learn` of the table without its exposures. Raises TableError."""
    if exposure is None:
        return TableEncoder.learn(frame, target, classes, missing, whole, own_kinds)
    exposures(frame, exposure)
    whole = None if whole is None else whole.drop(columns=exposure.name)
    return TableEncoder.learn(frame.drop(columns=exposure.name), target, classes, missing, whole, own_kinds)


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


def _split_in_time(frame: pd.DataFrame, target: str, asked: HeldOut) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Rows before a time, and those from it on: rows of one time are on one side."""
    name, format = _time_column(frame, target, asked.time)
    times = _times(pd.Series(frame[name]), format)
    known = ~np.isnan(times)
    if not known.any():
        raise TableError(f"column {name!r} holds no times: name another by --time")
    if asked.start is not None:
        (start,) = _times(pd.Series([asked.start]), format)
        if np.isnan(start):
            raise ValueError(f"--test-from {asked.start!r} is no {format.kind}, which the column {name!r} holds")
    else:
        ordered = np.sort(times[known])
        start = ordered[len(ordered) - int(np.ceil((asked.last or 0) * len(ordered)))]
    later, earlier = known & (times >= start), known & (times < start)
    if not (later.any() and earlier.any()):
        where = "before" if later.any() else "from"
        raise TableError(f"no row lies {where} the time at which rows are held out, by column {name!r}: give another")
    notes = [f"the {later.sum():,} rows held out are the last ones in time, by column {name!r}"]
    if not known.all():
        notes.append(
            f"{(~known).sum():,} rows without a time in {name!r} neither taught the measured fit nor measure it"
        )
    return frame.loc[earlier], frame.loc[later], notes


def _time_column(frame: pd.DataFrame, target: str, name: str | None) -> tuple[str, Format]:
    formats = {column: found for column, (found, _) in column_formats(frame).items() if column != target}
    if name is None:
        dates = [column for column, found in formats.items() if found.kind == "date"]
        if len(dates) != 1:
            which = f"dates in {', '.join(map(repr, dates))}" if dates else "no column of dates"
            raise TableError(f"the table has {which}: name the column of the time by --time COLUMN")
        return dates[0], formats[dates[0]]
    if name not in formats:
        raise TableError(f"the table has no column {name!r} beside the target; --time has to name one")
    if formats[name].kind in ("category", "boolean"):
        raise TableError(f"column {name!r} holds no dates and no numbers: name another by --time")
    return name, formats[name]


def _times(series: pd.Series, format: Format) -> np.ndarray:
    return values_of(series, format)[0]
