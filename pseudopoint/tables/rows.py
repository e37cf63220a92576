"""Rows of a table on disk as `Rows`: encoded and scaled part by part, read ahead, and shuffled for minibatches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, final

import jax
import numpy as np
import pandas as pd

from pseudopoint.data import Dataset, Standardiser, in_chunks, take
from pseudopoint.rows import Part, joined, pull_chunks, sum_chunks
from pseudopoint.tables.encoder import TableEncoder
from pseudopoint.tables.learning import held_out
from pseudopoint.tables.source import Parts

BUFFER = 262_144  # rows of a window, at least, among which minibatches are mixed
SAMPLE_PARTS = 64  # of which a sample is drawn, at most, if it need not be from everywhere


@dataclass(frozen=True)
class PartReader:
    """From a part of a table to its rows that have a target and are not held out, encoded and scaled.

    `held` are the share of rows held out and the seed; `target` maps what the encoder reads to numbers. `scaling`
    scales inputs and target, and `warp`, where there is one, bends the scaled target.
    """

    encoder: TableEncoder
    held: tuple[float, int]
    target: Callable[[np.ndarray], np.ndarray]
    scaling: Standardiser
    warp: Any
    dtype: str

    @property
    def columns(self) -> list[str]:
        """Those that it reads."""
        return [self.encoder.target_name, *(column.name for column in self.encoder.columns)]

    def __call__(self, i: int, frame: pd.DataFrame) -> Dataset:
        """The rows of the i-th part."""
        frame, y = self._there(i, frame)
        X = self.scaling.inputs(self.encoder.encode(frame)[0], self.dtype)
        y = (y if self.warp is None else self.warp(y)).astype(self.dtype)
        return Dataset(X, y, np.ones_like(y), np.zeros_like(y))

    def log_slope(self, i: int, frame: pd.DataFrame) -> float:
        """Σ log w′(y) of the warp over the rows of the i-th part."""
        return float(np.sum(self.warp.log_slope(self._there(i, frame)[1])))

    def _there(self, i: int, frame: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
        y = self.encoder.target(frame)
        there = ~np.asarray(pd.isna(y)) & ~held_out(len(frame), i, *self.held)
        return frame.loc[there], self.scaling.target(self.target(y[there]))


class AbstractTableRows(ABC):
    """The rows of a source as a `PartReader` reads them; `Rows` says what they are asked for. `counts` are the rows of
    each part.

    Minibatches: in each epoch the parts are permuted by the generator of [seed, epoch]; consecutive ones make windows
    of at least `BUFFER` rows, which are permuted by that of [seed, epoch, 1 + window]; batches are cut from the
    windows as they follow each other. A table of one window is permuted as in memory.
    """

    def __init__(self, source: Parts, reader: PartReader, counts: np.ndarray):
        self.source: Any = source
        self.reader, self.counts = reader, counts
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(int)
        self._whole: Dataset | None = None  # all rows, where they are one window
        self._windows: dict[tuple[int, int, int], Future] = {}
        self._kept: dict[int, Any] = {}  # parts that a cluster holds
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="window")

    @abstractmethod
    def _read(self, order: Sequence[int]) -> Iterator[Dataset]:
        """Some parts as the reader makes them."""

    def scaled(self, scaling: Standardiser, warp: Any, dtype: str) -> "AbstractTableRows":
        """The same rows, scaled in another way."""
        reader = replace(self.reader, scaling=scaling, warp=warp, dtype=dtype)
        return type(self)(self.source, reader, self.counts)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def num_columns(self) -> int:
        return len(self.reader.scaling.columns)

    @property
    def total_weight(self) -> float:
        return float(len(self))

    def for_batches(self, batch_size: int) -> tuple[Any, int]:
        return self, min(batch_size, len(self))

    def minibatches(self, batch_size: int, seed: int, step: int, count: int) -> tuple[Dataset, np.ndarray]:
        at, last, pieces, N = step * batch_size, (step + count) * batch_size, [], len(self)
        while at < last:
            epoch, place = divmod(at, N)
            windows = self._plan(seed, epoch)
            ends = np.cumsum([self.counts[window].sum() for window in windows])
            w = int(np.searchsorted(ends, place, side="right"))
            data, rows = self._window(seed, epoch, w, windows)
            start = place - (ends[w] - len(rows))
            stop = min(len(rows), start + last - at)
            pieces.append((take(data, np.arange(start, stop)), rows[start:stop]))
            at += int(stop - start)
        stack = lambda *x: np.concatenate(x).reshape(count, batch_size, *x[0].shape[1:])
        batches, numbers = zip(*pieces, strict=True)
        return jax.tree.map(stack, *batches), stack(*numbers)

    def sample(self, size: int, seed: int, everywhere: bool = False) -> Dataset:
        """As `Rows.sample`; unless `everywhere`, from at most 64 parts, evenly spaced, where there are more."""
        parts = np.flatnonzero(self.counts)
        if len(parts) > SAMPLE_PARTS and not everywhere:
            parts = parts[np.linspace(0, len(parts) - 1, SAMPLE_PARTS).astype(int)]
        ends = np.cumsum(self.counts[parts])
        total, rng = int(ends[-1]), np.random.default_rng(seed)
        chosen = np.arange(total) if size >= total else np.sort(rng.choice(total, size, replace=False))
        starts = ends - self.counts[parts]
        of_part = [chosen[slice(*np.searchsorted(chosen, at))] - at[0] for at in zip(starts, ends, strict=True)]
        read = [k for k, numbers in enumerate(of_part) if len(numbers)]
        pieces = zip(self._read(parts[read].tolist()), read, strict=True)
        return joined([take(data, of_part[k]) for data, k in pieces])

    def log_slopes(self) -> float:
        """Σ log w′(y) of the warp over all rows, 0 without one: one more pass."""
        reader = self.reader
        return 0.0 if reader.warp is None else sum(self.source.each(reader.log_slope, self.order, reader.columns))

    @property
    def order(self) -> list[int]:
        """The parts that have rows."""
        return np.flatnonzero(self.counts).tolist()

    def close(self) -> None:
        """Ends the thread that reads windows, and lets a cluster forget the rows."""
        self._pool.shutdown(cancel_futures=True)
        self._kept = {}

    def _plan(self, seed: int, epoch: int) -> list[np.ndarray]:
        """The parts of each window of an epoch."""
        order = np.flatnonzero(self.counts)
        if len(self) <= BUFFER:
            return [order]
        order = np.random.default_rng([seed, epoch]).permutation(order)
        ends = np.cumsum(self.counts[order])
        cuts, filled = [], 0
        for place, end in enumerate(ends[:-1]):
            if end - filled >= BUFFER:
                cuts.append(place + 1)
                filled = end
        return np.split(order, cuts) if cuts else [np.sort(order)]

    def _window(self, seed: int, epoch: int, w: int, windows: list[np.ndarray]) -> tuple[Dataset, np.ndarray]:
        """A window, permuted, and its row numbers; the next one is read meanwhile."""
        following = (w + 1, epoch, windows) if w + 1 < len(windows) else (0, epoch + 1, self._plan(seed, epoch + 1))
        wanted = {(seed, epoch, w): windows[w]}
        if len(windows) > 1:
            wanted[seed, following[1], following[0]] = following[2][following[0]]
        for key, parts in wanted.items():
            if key not in self._windows:
                self._windows[key] = self._pool.submit(self._shuffled, key, parts, len(windows) == 1)
        for key in self._windows.keys() - wanted.keys():
            del self._windows[key]
        return self._windows[seed, epoch, w].result()

    def _shuffled(self, key: tuple[int, int, int], parts: np.ndarray, only: bool) -> tuple[Dataset, np.ndarray]:
        seed, epoch, w = key
        data = self._whole if only and self._whole is not None else joined(list(self._read(parts.tolist())))
        self._whole = data if only else None
        rows = np.concatenate([np.arange(int(self.starts[i]), int(self.starts[i + 1])) for i in parts])
        order = np.random.default_rng([seed, epoch] if only else [seed, epoch, 1 + w]).permutation(len(rows))
        return take(data, order), rows[order]


@final
class TableRows(AbstractTableRows):
    """Rows that are read from the source whenever they are needed; nothing but one window of minibatches is kept."""

    def _read(self, order: Sequence[int]) -> Iterator[Dataset]:
        return self.source.each(self.reader, order, self.reader.columns)

    def _chunks(self) -> Iterator[Dataset]:
        return in_chunks(self._read(self.order), len(self))

    def sum(self, function: Part, parameters: Any) -> Any:
        return sum_chunks(function, parameters, self._chunks())

    def pull(self, function: Part, parameters: Any, cotangents: Any) -> Any:
        return pull_chunks(function, parameters, cotangents, self._chunks())
