"""Tables whose parts are on the workers of a Dask cluster: what is done to a part is done where it is.

Dask is an optional dependency, imported inside the functions. Everything that a worker holds is the result of tasks
whose origin is the table, so that a worker that dies loses nothing: the others compute its parts again.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, final

import jax
import numpy as np
import pandas as pd

from pseudopoint.compilation import bucket, keeping_programs
from pseudopoint.data import Dataset, drawn, in_chunks, take
from pseudopoint.processes import computing
from pseudopoint.rows import CHUNK, Part, pull_chunks, sum_chunks
from pseudopoint.tables.dask_client import (
    WorkersLost,
    answering,
    current_client,
    imported,
    results_of,
    wait_for,
    workers_of,
)
from pseudopoint.tables.messages import TableError, refuse_repeated
from pseudopoint.tables.rows import AbstractTableRows, TableRows
from pseudopoint.tables.source import Part as Place
from pseudopoint.tables.source import TableSource, in_arrow
from pseudopoint.tables.target import distinct_labels, numbers_of_labels

FAN = 8  # sums that are added up at a time


@final
class DaskSource:
    """A `Parts` that are delayed objects of Dask, of which `read` makes DataFrames.

    `client` runs what is done to them; without one, parts are computed one after another in this process.
    """

    def __init__(
        self,
        delayed: Sequence[Any],
        columns,
        rows: Sequence[int],
        client: Any,
        read: Callable,
        notes=(),
        separator: str = "",
    ):
        self._delayed, self._read = [part for part, count in zip(delayed, rows, strict=True) if count], read
        if not self._delayed:
            raise TableError("the table has no rows")
        counts = [int(count) for count in rows if count]
        self.parts = tuple(Place("a partition of Dask", i, count) for i, count in enumerate(counts))
        self.columns, self.client, self.notes, self.separator = tuple(columns), client, tuple(notes), separator
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(int)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def part(self, i: int, columns: Collection[str] | None = None) -> pd.DataFrame:
        return next(self.each(_itself, [i], columns))

    def each(self, function: Callable[[int, pd.DataFrame], Any], order: Sequence[int], columns=None) -> Iterator[Any]:
        """As `Parts.each`, on the workers; results come in order."""
        tasks = self.tasks(function, order, columns)
        if self.client is None:
            return (task.compute(scheduler="synchronous") for task in tasks)
        return results_of(self.client, self.client.compute(tasks))

    def tasks(self, function: Callable[[int, pd.DataFrame], Any], order: Sequence[int], columns=None) -> list[Any]:
        """function(i, part i) for each i in order, delayed."""
        (dask,) = imported("dask")
        apply = dask.delayed(_applied, pure=False)
        names = [name for name in self.columns if columns is None or name in columns]
        at = lambda i: (self._delayed[i], self._read, int(self.starts[i]), self.parts[i].rows, names)
        return [apply(function, int(i), *at(i)) for i in order]

    def spread(self, rows: TableRows) -> Any:
        """As `Parts.spread`: the rows stay on the workers."""
        return rows if self.client is None else DaskRows(self, rows.reader, rows.counts)


@final
class DaskRows(AbstractTableRows):
    """The rows of a fit on the workers of a cluster, encoded and scaled.

    Sums run where the rows are: one task for each worker, which carries the parameters and adds up the chunks of the
    parts that this worker holds; sums of workers are added in a tree. Minibatches and samples come to this process; of
    large batches (`batch_sum`) each worker draws those of its own parts.
    """

    _places: frozenset[str] = frozenset()  # workers on which the parts were placed

    def sum(self, function: Part, parameters: Any) -> Any:
        return self._over_workers(sum_chunks, None, function, parameters)

    def batch_sum(self, function: Part, parameters: Any, batch_size: int, seed: int, step: int) -> Any:
        """As `BatchSums.batch_sum`. Of a part of n rows, steps take the places from ⌊ns + φ⌋ to ⌊n(s + B/N) + φ⌋ of its
        rows, permuted again and again (`data.drawn`), where s = step · B/N and φ in [0, 1) is random: an epoch has
        each row once, whatever worker holds it."""
        return self._over_workers(sum_chunks, (batch_size / len(self), seed, step), function, parameters)

    def pull(self, function: Part, parameters: Any, cotangents: Any) -> Any:
        return self._over_workers(pull_chunks, None, function, parameters, cotangents)

    def _held(self) -> dict[int, Any]:
        """Futures of the parts, by number. They are placed on the workers in turn, as many rows on each."""
        if not self._kept:
            client, order, reader = self.source.client, self.order, self.reader
            workers = workers_of(client)
            self._places = frozenset(workers)
            before = np.cumsum([0, *self.counts[order][:-1]])
            place = np.minimum(before * len(workers) // len(self), len(workers) - 1)
            futures = {}
            for w, worker in enumerate(workers):
                mine = [i for i, at in zip(order, place, strict=True) if at == w]
                tasks = self.source.tasks(reader, mine, reader.columns)
                made = client.compute(tasks, workers=[worker], allow_other_workers=True)
                futures |= dict(zip(mine, made, strict=True))
            self._kept = futures
        return self._kept

    def _read(self, order: Sequence[int]) -> Iterator[Dataset]:
        for i in order:
            yield self._again(lambda i=i: next(results_of(self.source.client, [self._held()[i]], self._places)))

    def _again(self, compute: Callable[[], Any]) -> Any:
        """What is computed from the parts; they are placed anew where all workers that they were placed on have died.
        (Dask computes what was lost on those that are left. Where none was left for a moment, tasks that were meant for
        the dead ones wait for these alone.)"""
        while True:
            try:
                with answering():
                    return compute()
            except WorkersLost:
                self._kept = {}

    def _over_workers(self, *what: Any) -> Any:
        return self._again(partial(self._summed, *what))

    def _summed(self, task: Callable, batch: tuple[float, int, int] | None, function: Part, *given: Any) -> Any:
        """The sum of task(function, *given, …) over all workers, of all rows or those of a batch (`_drawn_of`)."""
        client, futures, submit = self.source.client, self._held(), _submitting(self.source.client)
        given = jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, given)
        wait_for(client, list(futures.values()), self._places)  # those that were lost are computed again
        size, sums = min(CHUNK, bucket(int(self.counts.max()))), []
        numbers = {future.key: i for i, future in futures.items()}
        for workers, mine in _by_worker(client, list(futures.values())):
            places = [numbers[future.key] for future in mine]
            at = task, function, given, mine, places, batch, self.reader.dtype, size
            sums.append(submit(_on_worker, *at, workers=workers, allow_other_workers=bool(workers)))
        while len(sums) > FAN:
            sums = [submit(_added, sums[i : i + FAN]) for i in range(0, len(sums), FAN)]
        return _added(list(results_of(client, sums, self._places)))


def _by_worker(client: Any, futures: list[Any]) -> list[tuple[list[str] | None, list[Any]]]:
    """The parts that each worker holds; one that none holds now, its worker having died, stands alone."""
    held, where = {}, client.who_has(futures)
    for future in futures:
        places = sorted(where.get(future.key, ()))
        held.setdefault(places[0] if places else future.key, ([places[0]] if places else None, []))[1].append(future)
    return list(held.values())


def _submitting(client: Any) -> Callable[..., Any]:
    def submit(*task: Any, **options: Any) -> Any:
        with warnings.catch_warnings():  # parameters of 10 MB are no mistake: each worker gets them once
            warnings.filterwarnings("ignore", "Sending large graph")
            return client.submit(*task, pure=False, **options)

    return submit


def _on_worker(
    task: Callable, function: Part, given: tuple, parts: list[Dataset], numbers: list[int], batch, dtype: str, size: int
) -> Any:
    """Runs on a worker: the sum over its parts, in chunks of one size, so that one program serves."""
    if batch is None:
        chunks = (chunk for part in parts for chunk in in_chunks(iter([part]), size))
    else:
        rows = [_drawn_of(part, i, *batch) for i, part in zip(numbers, parts, strict=True)]
        chunks = in_chunks(iter(rows), bucket(max(sum(map(len, rows)), 1)))
    # Dask gives BLAS one thread. `one_blas_thread` searches libraries, and could block for ever
    # beside the worker's other threads, which import some.
    with computing(dtype), keeping_programs():
        return jax.tree.map(np.asarray, task(function, *given, chunks))


def _drawn_of(part: Dataset, i: int, share: float, seed: int, step: int) -> Dataset:
    """The rows of the i-th part that are in a batch, which has such a share of all rows."""
    phase = np.random.default_rng([seed, i]).uniform()
    first, last = (int(len(part) * share * s + phase) for s in (step, step + 1))
    return take(part, drawn(len(part), (seed, i), first, last))


def _added(sums: list[Any]) -> Any:
    """Their sum, in order. A worker may have had no row of a batch."""
    total, *more = (each for each in sums if each is not None)
    for each in more:
        total = jax.tree.map(np.add, total, each)
    return total


def _applied(function: Callable, i: int, part: Any, read: Callable, start: int, rows: int, names: list[str]) -> Any:
    """Runs on a worker: function(i, part), whose index counts the rows of the whole table."""
    frame = read(part, names)
    if len(frame) != rows:
        raise TableError(f"the partition {i} has {len(frame):,} rows, and had {rows:,} before: persist the collection")
    return function(i, frame.set_axis(pd.RangeIndex(start, start + rows), axis=0))


def _itself(i: int, frame: pd.DataFrame) -> pd.DataFrame:
    return frame


# --- Sources ---------------------------------------------------------------------------------------------------------


def file_parts(source: TableSource, client: Any) -> DaskSource:
    """The parts of files, which the workers read: each has to see the files at the same paths."""
    (dask,) = imported("dask")
    one = [dask.delayed(source.only(i), pure=False, traverse=False) for i in range(len(source.parts))]
    rows = [part.rows for part in source.parts]
    return DaskSource(one, source.columns, rows, client, _of_file, source.notes, source.separator)


def dask_source(X: Any, y: Any, target: str) -> tuple[DaskSource, str]:
    """The partitions of a dask DataFrame X, whose column is called y or which y, a dask Series, belongs to; or the
    blocks of rows of dask arrays X [N, D] and y [N]. Also the name of the target.

    `distributed`'s current client runs what is done to them; without one, this process does.
    """
    (dask,) = imported("dask")
    client = current_client()
    if hasattr(X, "to_delayed") and hasattr(X, "columns"):
        if not isinstance(y, str):
            target = str(getattr(y, "name", None) or "target")
            while getattr(y, "name", None) is None and target in X.columns:
                target += "_"
            if not hasattr(y, "__dask_graph__") or target in X.columns:
                raise ValueError("y has to be the name of a column of X, or a dask Series of another name")
            X = X.assign(**{target: y})
        else:
            target = y
        X = X.rename(columns={name: str(name) for name in X.columns})
        refuse_repeated(list(X.columns))
        delayed, columns = X.to_delayed(), list(X.columns)
    else:
        delayed, columns = _blocks(dask, X, y, target)
    sizes = [dask.delayed(len, pure=False)(part) for part in delayed]
    rows = _computed(dask, client, sizes)
    return DaskSource(delayed, columns, rows, client, _of_partition), target


def numbered(y: Any) -> tuple[np.ndarray, Any]:
    """The different labels of an array [N] or a collection of Dask, sorted, and the same of their numbers, NaN in
    gaps."""
    if y.ndim != 1:
        raise ValueError(f"y has {y.ndim} dimensions: give one label a row, [N]")
    if not hasattr(y, "__dask_graph__"):
        labels = np.unique(distinct_labels(y))
        return labels, numbers_of_labels(labels, y)
    (dask,) = imported("dask")
    client, found = current_client(), [dask.delayed(distinct_labels)(part) for part in y.to_delayed()]
    labels = np.unique(np.concatenate(_computed(dask, client, found)))
    if not hasattr(y, "map_partitions"):
        return labels, y.map_blocks(partial(numbers_of_labels, labels), dtype=np.float64)
    as_series = lambda part: pd.Series(numbers_of_labels(labels, part), part.index, name=part.name)
    return labels, y.map_partitions(as_series, meta=(y.name, np.float64))


def _computed(dask: Any, client: Any, tasks: list[Any]) -> list[Any]:
    """On the cluster, or here."""
    if client is None:
        return list(dask.compute(*tasks, scheduler="synchronous"))
    return list(results_of(client, client.compute(tasks)))


def _blocks(dask: Any, X: Any, y: Any, target: str) -> tuple[list[Any], list[str]]:
    """Blocks of rows of arrays, as DataFrames of columns 0, 1, … and the target."""
    if getattr(X, "ndim", 0) != 2 or getattr(y, "ndim", 0) != 1 or not hasattr(y, "to_delayed"):
        raise ValueError("X and y have to be dask arrays [N, D] and [N], or X a dask DataFrame and y a column's name")
    X = X.rechunk({1: -1})
    if np.isnan(X.shape[0]) or np.isnan(y.shape[0]):
        X, y = X.compute_chunk_sizes(), y.compute_chunk_sizes()
    if X.shape[0] != y.shape[0]:
        raise ValueError(f"X has shape {X.shape} and y {y.shape}: give as many targets as rows")
    pairs = zip(X.to_delayed()[:, 0], y.rechunk((X.chunks[0],)).to_delayed(), strict=True)
    frame, D = dask.delayed(_frame, pure=False), X.shape[1]
    return [frame(*pair, target) for pair in pairs], [*map(str, range(D)), target]


def _frame(X: np.ndarray, y: np.ndarray, target: str) -> pd.DataFrame:
    return pd.DataFrame(X, columns=[*map(str, range(X.shape[1]))]).assign(**{target: y})


def _of_file(source: TableSource, names: list[str]) -> pd.DataFrame:
    return source.part(0, names)


def _of_partition(frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """As a Parquet file would have it."""
    return in_arrow(frame.loc[:, names]).to_pandas(ignore_metadata=True)
