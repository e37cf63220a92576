"""`fit` of tables that need not fit into memory, and the choice between that and a fit in memory."""

import glob
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pseudopoint.commands.choice import implied_task, numbers_of, recognised
from pseudopoint.commands.kinds import AbstractKind, Classification, Regression, Result, Scored
from pseudopoint.commands.steps import CHUNK_ROWS, Fitted, check_places, make_estimator, reported, result_of, saved
from pseudopoint.commands.steps import fit_table as fit_in_memory
from pseudopoint.estimators.checkpoints import Checkpoint, opened
from pseudopoint.estimators.streaming import Streaming, task_of
from pseudopoint.optimise.result import Progress
from pseudopoint.tables import (
    Parts,
    TableEncoder,
    TableSource,
    file_parts,
    looks_like_classes,
    open_source,
    running_cluster,
    table_chunks,
    table_head,
)
from pseudopoint.tables.learning import held_out, sample_of
from pseudopoint.tables.missing import without_words
from pseudopoint.tables.source import table_bytes, table_files
from pseudopoint.tables.target import require

MOST_HELD_OUT = 100_000  # rows of a streamed table
IN_MEMORY = {"test_from": "test-from", "test_last": "test-last", "time_column": "time", "weights": "weights"}
IN_MEMORY |= {"exposure": "exposure"}
SHARE = 0.7  # of the free memory that a fit in memory may take
# Where Linux says how much memory a container may take, and takes: control groups of both versions.
CONTAINER = [
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
]


def fit_table(
    table: str | Path,
    target: str,
    *,
    stream: bool | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    cluster: str | None = None,
    workers: int | None = None,
    **options: Any,
) -> Result:
    """`steps.fit_table`, which has the other options, or the same part by part: `stream` says which. Where it is None,
    tables of several files, fits with a checkpoint, and tables that would not fit into memory are streamed.

    `checkpoint` is a folder that keeps the state of the fit, from which `resume` goes on. `cluster` is the address of a
    Dask cluster whose workers hold the rows, `workers` a number of processes on this machine that do. A streamed fit
    holds out at most 100,000 rows. Raises TableError, FitError or ValueError, each with one sentence.
    """
    pattern = glob.has_magic(str(table)) and not Path(table).exists()  # which may match one file today, more tomorrow
    several = pattern or Path(table).is_dir() or len(table_files(table)) > 1
    needed = several or checkpoint is not None or resume or cluster is not None or workers is not None
    if stream is False and needed:
        raise ValueError(
            "a checkpoint, a folder, several files and a cluster need a streamed fit: leave --no-stream out"
        )
    if stream or needed or (stream is None and table_bytes(table) > SHARE * _free_memory()):
        places = {"checkpoint": checkpoint, "cluster": cluster, "workers": workers}
        return _fit_streamed(table, target, resume=resume, **places, **options)
    return fit_in_memory(table, target, **options)


def _free_memory() -> float:
    """Bytes that this process may still take, of the machine or of its container, whichever is less; infinite where the
    system does not say."""
    return min(_of_machine(), *(_of_container(Path(folder), *names) for folder, *names in CONTAINER))


def _of_machine() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        names = getattr(os, "sysconf_names", {})
        known = "SC_PHYS_PAGES" in names
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) if known else float("inf")


def _of_container(folder: Path, limit: str, used: str, cache: str) -> float:
    try:
        most, now = ((folder / name).read_text().strip() for name in (limit, used))
        lines = (folder / "memory.stat").read_text().splitlines()
        kept = next(int(line.split()[1]) for line in lines if line.startswith(f"{cache} "))  # is given back if needed
        return float(most) - float(now) + kept if most != "max" else float("inf")
    except (OSError, StopIteration, ValueError):
        return float("inf")


def _fit_streamed(
    table: str | Path,
    target: str,
    *,
    checkpoint: str | Path | None,
    resume: bool,
    cluster: str | None,
    workers: int | None,
    task: str = "auto",
    likelihood: str = "auto",
    test_fraction: float = 0.1,
    test: str | Path | None = None,
    missing: Collection[str] = (),
    out: str | Path | None = None,
    report: str | Path | None = None,
    random_state: int = 0,
    refit: bool = True,
    progress: Progress | None = None,
    **settings: Any,
) -> Result:
    """As `steps.fit_table`; a streamed fit is not repeated on all rows, whatever `refit` says."""
    _refuse_in_memory(settings, test_fraction)
    check_places(out, report, tables=[table, test])
    kept, head = opened(checkpoint, resume), _head_of(test, target)
    make = partial(_made, settings, likelihood, random_state, kept)
    files_of_table = _opened(table, target, task, likelihood, missing, make)
    with files_of_table as (files, classes, why), _spread(cluster, workers) as spread:
        model, source = make(classes), spread(files)
        share = 0.0 if test is not None else min(test_fraction, MOST_HELD_OUT / len(source))
        start = time.perf_counter()
        model.fit_source(Streaming(source, target, missing, share, kept, progress, look=partial(_look_at, head)))
        kind = (Classification if classes else Regression)(model, model.encoder_)
        result = result_of(kind, int(model.rows_), why, time.perf_counter() - start)
        try:
            scored = _scored(kind, source, share, test, report is not None)
        except BaseException:  # the fit is not lost with its measures
            saved(kind, result, out)
            raise
        result |= saved(kind, _with_measures(result, kind, scored), out)
        some = Fitted(kind, *_first_rows(kind, source, share))
    return result | reported(report, some, result, scored, None, table)


def _made(settings: dict[str, Any], likelihood: str, seed: int, kept: Checkpoint | None, classes: bool) -> Any:
    """The estimator, unless the checkpoint is of one with other settings."""
    model = make_estimator(classes, settings, likelihood, seed)
    if kept is not None:
        kept.refuse_other(task_of(classes), model._settings())
    return model


def _with_measures(result: Result, kind: AbstractKind, scored: Scored | None) -> Result:
    if scored is not None:
        result["test"] = kind.measures(scored) if scored.rows else None
        result["notes"] += scored.notes
    return result


def _head_of(test: str | Path | None, target: str) -> pd.DataFrame | None:
    """The first rows of a table for measures, if there is one. `TableError` where it has none, or lacks the target."""
    head = None if test is None else table_head(test)
    if head is not None:
        require(head, [target])
    return head


def _look_at(head: pd.DataFrame | None, encoder: TableEncoder) -> None:
    """`TableError` where the encoder cannot read the first rows of a table for measures: said before the fit."""
    if head is not None:
        encoder.target(head)
        encoder.encode(head)


@contextmanager
def _spread(cluster: str | None, workers: int | None) -> Iterator[Callable[[TableSource], Any]]:
    """What places the parts of files on the workers of a cluster, where there is one."""
    if cluster is None and workers is None:
        yield lambda files: files
    else:
        with running_cluster(cluster, workers) as client:
            yield lambda files: file_parts(files, client)


def _refuse_in_memory(settings: dict[str, Any], test_fraction: float) -> None:
    """Takes options of a fit in memory out of the settings, or refuses them; and a share that is none."""
    if not 0 <= test_fraction < 1:
        raise ValueError(f"the test fraction must be at least 0 and below 1, not {test_fraction}")
    for option, name in IN_MEMORY.items():
        if settings.pop(option, None) is not None:
            raise ValueError(f"--{name} needs the rows in memory: leave it out of a streamed fit")


@contextmanager
def _opened(
    table: Any, target: str, task: str, likelihood: str, missing: Collection[str], make: Callable[[bool], Any]
) -> Iterator[tuple[TableSource, bool, str]]:
    """The table, whether its target holds classes, and why: by what the user says, or by rows of many parts. In files
    that are converted, a target of classes is text: the first rows say what it will be, and where they mislead, files
    are converted again. What `make` of an estimator refuses is refused before files are read, where the user says."""
    chosen, why = implied_task(task, likelihood)
    auto, first = chosen == "auto", chosen == "classification"
    if auto:
        first, _ = looks_like_classes(without_words(table_head(table), missing), target)
    else:
        make(first)
    with open_source(table, [target] if first else [], missing) as files:
        found, why = _recognised(files, target, missing) if auto else (first, why)
        if found == first:
            yield files, found, why
            return
    with open_source(table, [target] if found else [], missing) as files:
        yield files, found, why


def _recognised(files: TableSource, target: str, missing: Collection[str]) -> tuple[bool, str]:
    """Whether the target holds classes, and why, by a sample; two different numbers have to be all that there are."""
    require(pd.DataFrame(columns=files.columns), [target])
    frame, whole = sample_of(files, 0.0, 0, [target])
    frame = without_words(frame, missing)
    classes, why = recognised(frame, target)
    two = set(numbers_of(frame, target)) if classes and not whole else set()
    numbers = lambda i, part: set(numbers_of(without_words(part, missing), target))
    if two and any(found - two for found in files.each(numbers, range(len(files.parts)), [target])):
        return False, f"the target {target!r} holds more than two different numbers"
    return classes, why if whole else f"{why} (in {len(frame):,} of its rows)"


def _scored(kind: AbstractKind, source: Parts, share: float, test: str | Path | None, keep: bool):
    """The rows held out, or those of the test table; None if there are none."""
    if test is not None:
        return kind.score(table_chunks(test, CHUNK_ROWS, kind.encoder, kind.text), keep=keep)
    return kind.score(_held_out(source, share, kind.model.random_state), keep=keep) if share else None


def _first_rows(kind: AbstractKind, source: Parts, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of training rows of the first part that has any, for the pictures of a report."""
    for i, part in enumerate(source.parts):
        frame = source.part(i)
        y = kind.encoder.target(frame)
        taught = ~held_out(part.rows, i, share, kind.model.random_state) & ~np.asarray(pd.isna(y))
        if taught.any():
            rows = np.flatnonzero(taught)[:CHUNK_ROWS]
            return kind.encoder.inputs(frame.iloc[rows])[0], y[rows]
    raise AssertionError("a fitted table has training rows")


def _held_out(source: Parts, share: float, seed: int) -> Iterator[pd.DataFrame]:
    for i, part in enumerate(source.parts):
        held = held_out(part.rows, i, share, seed)
        if held.any():
            yield source.part(i).loc[held]
