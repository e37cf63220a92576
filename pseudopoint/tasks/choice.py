"""Regression or classification: what the user says, or what the target looks like."""

from pathlib import Path
from typing import NamedTuple

import pandas as pd

from pseudopoint.estimators.targets import CLASSIFICATION, REGRESSION
from pseudopoint.tables import looks_like_classes, read_table

__all__ = ["TASKS", "Choice", "choose_task"]

TASKS = ("auto", "regression", "classification")
FEW = 30  # whole numbers that may be the codes of classes


class Choice(NamedTuple):
    """The table, whether its target holds classes, and why."""

    frame: pd.DataFrame
    classes: bool
    reason: str


def choose_task(table: str | Path, target: str, task: str, likelihood: str) -> Choice:
    """The table at `table`, read as the task needs it: a target of classes is text, or "01" would be 1.

    `task` and the name of a `likelihood` may leave it to the target ("auto"). Raises ValueError if they contradict each
    other or are unknown, TableError as `read_table`.
    """
    if task not in TASKS:
        raise ValueError(f"the task {task!r} is unknown: use one of {', '.join(TASKS)}")
    implied = _implied(likelihood)
    if "auto" not in (task, implied) and task != implied:
        raise ValueError(f"the likelihood {likelihood!r} is for {implied}, not {task}; leave one of the two out")
    if task == "auto" and implied == "auto":
        return _recognised(table, target)
    classes = "classification" in (task, implied)
    reason = "chosen by the user" if task != "auto" else f"the likelihood {likelihood!r} is for it"
    return Choice(read_table(table, [target] if classes else []), classes, reason)


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


def _recognised(table: str | Path, target: str) -> Choice:
    frame = read_table(table)
    classes, reason = looks_like_classes(frame, target)
    numbers = pd.api.types.is_numeric_dtype(frame[target]) and not pd.api.types.is_bool_dtype(frame[target])
    if classes:
        hint = "; --task regression takes them as numbers" if numbers else ""
        return Choice(read_table(table, [target]), True, reason + hint)
    distinct = pd.Series(frame[target].dropna().unique())
    codes = numbers and 2 < len(distinct) <= FEW and bool((distinct % 1 == 0).all())
    return Choice(frame, False, reason + ("; --task classification takes them as classes" if codes else ""))
