"""Regression or classification: what the user says, or what the target looks like."""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from pseudopoint.names import CLASSIFICATION, REGRESSION, TASKS
from pseudopoint.tables import TableError, looks_like_classes, number_target, read_table

FEW = 30  # whole numbers that may be the codes of classes


class Choice(NamedTuple):
    """The table, whether its target holds classes, and why."""

    frame: pd.DataFrame
    classes: bool
    reason: str


def choose_task(table: str | Path, target: str, task: str, likelihood: str, missing: Collection[str] = ()) -> Choice:
    """The table at `table`, read as the task needs it: a target of classes is text, or "01" would be 1.

    Cells with a word in `missing` are gaps.
    `task` and the name of a `likelihood` may leave it to the target ("auto"). Raises ValueError if they contradict each
    other or are unknown, TableError as `read_table`.
    """
    chosen, reason = implied_task(task, likelihood)
    if chosen != "auto":
        classes = chosen == "classification"
        return Choice(read_table(table, [target] if classes else [], missing), classes, reason)
    frame = read_table(table, missing=missing)
    classes, reason = recognised(frame, target)
    return Choice(read_table(table, [target], missing) if classes else frame, classes, reason)


def implied_task(task: str, likelihood: str) -> tuple[str, str]:
    """The task that the user's words say, "auto" if they leave it open, and why. Raises ValueError if they contradict
    each other or are unknown."""
    if task not in TASKS:
        raise ValueError(f"the task {task!r} is unknown: use one of {', '.join(TASKS)}")
    implied = _implied(likelihood)
    if "auto" not in (task, implied) and task != implied:
        raise ValueError(f"the likelihood {likelihood!r} is for {implied}, not {task}; leave one of the two out")
    if task != "auto":
        return task, "chosen by the user"
    return implied, f"the likelihood {likelihood!r} is for it"


def _implied(likelihood: str) -> str:
    """The task that a likelihood is for."""
    if likelihood == "auto":
        return "auto"
    if likelihood in CLASSIFICATION:
        return "classification"
    if likelihood in REGRESSION:
        return "regression"
    names = ", ".join([*CLASSIFICATION, *REGRESSION])
    raise ValueError(f"the likelihood {likelihood!r} is unknown: use one of {names}")


def recognised(frame: pd.DataFrame, target: str) -> tuple[bool, str]:
    """Whether the target of these rows holds classes, and why, with what the user may say instead."""
    classes, reason = looks_like_classes(frame, target)
    numbers = numbers_of(frame, target)
    if classes:
        return True, reason + ("; --task regression takes them as numbers" if len(numbers) else "")
    distinct = np.unique(numbers)
    codes = 2 < len(distinct) <= FEW and bool((distinct % 1 == 0).all())
    return False, reason + ("; --task classification takes them as classes" if codes else "")


def numbers_of(frame: pd.DataFrame, target: str) -> np.ndarray:
    """The target's numbers without gaps, none if it does not hold numbers alone."""
    try:
        y = number_target(frame, target)
    except TableError:
        return np.array([])
    return y[~np.isnan(y)]
