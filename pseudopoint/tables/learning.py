"""What one reading of a large table tells: its encoder, exact means and variances, gaps, categories and the target."""

import math
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from pandas.util import hash_pandas_object

from pseudopoint.data import means_and_spreads
from pseudopoint.tables.columns import CONTRARY, Column, contrary_cells, odd_values, refuse_infinite
from pseudopoint.tables.encoder import TableEncoder
from pseudopoint.tables.formats import MAX_CATEGORIES, values_of
from pseudopoint.tables.messages import Oddity, TableError, describe, row_count
from pseudopoint.tables.missing import category_text, without_words
from pseudopoint.tables.source import Parts
from pseudopoint.tables.target import drop_missing_target, tidy

SAMPLE_ROWS = 100_000  # that decide how text is read, and the medians; of a smaller table all rows
SAMPLE_PARTS = 32  # from which they come
MOST_TEXTS = 10_000  # different texts of a column that are counted
HELD_OUT = 7  # of the generators that hold rows out


@dataclass(frozen=True)
class Moments:
    """Number, or weight, mean and standard deviation (population form) of some numbers, and the least and greatest."""

    count: int | float = 0
    mean: float = 0.0
    spread: float = 0.0
    least: float = np.inf
    most: float = -np.inf

    @classmethod
    def of(cls, values: np.ndarray, weight: np.ndarray | None = None) -> "Moments":
        """Of an array [n] whose numbers count by their weights [n], by default 1; no square overflows."""
        if not len(values):
            return cls()
        weight = np.ones(len(values)) if weight is None else weight
        (mean,), (spread,) = (part.tolist() for part in means_and_spreads(values[:, None], weight))
        return cls(float(np.sum(weight)), mean, spread, float(values.min()), float(values.max()))

    def __add__(self, other: "Moments") -> "Moments":
        """Of both together (Chan, Golub and LeVeque 1979), whose spread is √(p s² + q s′² + p q (m′ − m)²) for the
        shares p and q."""
        count = self.count + other.count
        if not count:
            return self
        p, q = self.count / count, other.count / count
        mean = p * self.mean + q * other.mean
        apart = float(np.sqrt(p * q)) * abs(2 * (other.mean / 2 - self.mean / 2)) if p and q else 0.0
        spread = math.hypot(float(np.sqrt(p)) * self.spread, float(np.sqrt(q)) * other.spread, apart)
        return Moments(count, mean, spread, min(self.least, other.least), max(self.most, other.most))


class LearnedTable(NamedTuple):
    """The encoder; rows with a target in each part that are not held out; means and standard deviations of the features
    [D]; moments of a target of numbers, or counts of the labels; notes; and a digest of these rows, whatever their
    order."""

    encoder: TableEncoder
    counts: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    target: Moments
    labels: dict[str, int]
    notes: list[str]
    digest: int


class _Counted(NamedTuple):
    """What is counted of a part, of rows that are not held out: those with a target, those without one, the targets,
    each column, and a digest."""

    rows: int
    gaps: int
    target: Moments
    labels: Counter
    tallies: list["_Tally"]
    digest: int

    @classmethod
    def nothing(cls, encoder: TableEncoder) -> "_Counted":
        return cls(0, 0, Moments(), Counter(), [_Tally(column) for column in encoder.columns], 0)

    def plus(self, other: "_Counted") -> "_Counted":
        """Of both; `self` is used up."""
        self.labels.update(other.labels)
        for tally, part in zip(self.tallies, other.tallies, strict=True):
            tally += part
        counts = self.rows + other.rows, self.gaps + other.gaps
        digest = (self.digest + other.digest) % 2**64
        return _Counted(*counts, self.target + other.target, self.labels, self.tallies, digest)


def held_out(rows: int, part: int, share: float, seed: int) -> np.ndarray:
    """Which rows of a part are held out: each with that probability, by a generator of (seed, part) alone."""
    if not share:
        return np.zeros(rows, bool)
    return np.random.default_rng([seed, HELD_OUT, part]).random(rows) < share


def learn_table(
    source: Parts,
    target: str,
    classes: bool = False,
    missing: Collection[str] = (),
    share: float = 0.0,
    seed: int = 0,
    check: Callable[[np.ndarray, np.ndarray], None] = lambda y, rows: None,
) -> LearnedTable:
    """The encoder of a table, as `TableEncoder.learn` makes it, and moments of its features, from one pass.

    Formats of text columns, medians, and columns that are left out come from a sample of at most 100,000 rows, which of
    a smaller table are all. Where the sample leaves the order of day and month or the decimal mark open, other rows
    decide, for which the table is read once more. Gaps, categories, means and variances are exact, of rows with a
    target that are not `held_out`. `check` is given every target of numbers and the numbers of its rows, from 1.
    `TableError` as `TableEncoder.learn`.
    """
    frame, whole = sample_of(source, share, seed)
    frame, _ = drop_missing_target(frame, target, classes, missing)
    given = target, classes, missing
    encoder, notes = TableEncoder.learn(frame, *given)
    counts, found = _count(source, encoder, share, seed, check)
    if any(tally.contrary for tally in found.tallies):
        again, said = TableEncoder.learn(frame, *given, whole=_with_contrary(frame, found.tallies))
        if again != encoder:
            encoder, notes = again, said
            counts, found = _count(source, encoder, share, seed, check)
    N, tallies = int(counts.sum()), found.tallies
    if not N:
        raise TableError(f"the target {target!r} is missing in every row; name a column that holds values")
    encoder = replace(encoder, columns=tuple(tally.column() for tally in tallies))
    mean, spread = (np.concatenate(parts) for parts in zip(*(tally.moments(N) for tally in tallies), strict=True))
    dropped = f"{row_count(found.gaps)} were dropped because the target is missing"
    said = [*source.notes, *[dropped] * (found.gaps > 0)]
    said += notes if whole else [f"{note} (of a sample of {len(frame):,} rows)" for note in notes]
    said += [] if whole else [note for tally in tallies for note in tally.notes(N)]
    return LearnedTable(encoder, counts, mean, spread, found.target, dict(found.labels), said, found.digest)


def _with_contrary(frame: pd.DataFrame, tallies: list["_Tally"]) -> pd.DataFrame:
    """A sample, and rows that hold the `contrary` cells of the whole table alone, which decide how columns are read."""
    n, most = len(frame), max(len(tally.contrary) for tally in tallies)
    told = frame.reset_index(drop=True).reindex(range(n + most))
    for tally in tallies:
        if tally.contrary:
            told.loc[n : n + len(tally.contrary) - 1, tally.learned.name] = tally.contrary
    told.attrs = frame.attrs
    return told


def _count(
    source: Parts, encoder: TableEncoder, share: float, seed: int, check: Callable
) -> tuple[np.ndarray, _Counted]:
    """How many rows each part has, and what is counted of all: one pass over the table."""
    columns = [encoder.target_name, *(column.name for column in encoder.columns)]
    counts, total = np.zeros(len(source.parts), int), _Counted.nothing(encoder)
    counted = source.each(partial(_counted, encoder, share, seed, check), range(len(source.parts)), columns)
    for i, part in enumerate(counted):
        counts[i] = part.rows
        total = total.plus(part)
    return counts, total


def _counted(encoder: TableEncoder, share: float, seed: int, check: Callable, i: int, frame: pd.DataFrame) -> _Counted:
    frame = without_words(tidy(frame), encoder.missing)
    y = encoder.target(frame)
    there = ~np.asarray(pd.isna(y))
    if not encoder.classes:
        check(y[there], np.asarray(frame.index)[there] + 1)
    taught = ~held_out(len(frame), i, share, seed)
    encoder.encode(frame.loc[there & ~taught])  # what cannot be measured is refused before the fit
    gaps = int((taught & ~there).sum())
    there &= taught
    rows, y = frame.loc[there], y[there]
    tallies = [_Tally(column) for column in encoder.columns]
    digest = _digest([y, *(tally.count(rows) for tally in tallies)])
    classes = encoder.classes
    of_target, labels = Moments() if classes else Moments.of(y), Counter(y.tolist() if classes else ())
    return _Counted(len(rows), gaps, of_target, labels, tallies, digest)


def _digest(columns: list[np.ndarray]) -> int:
    """Of the rows of some columns, whatever their order: the sum of a hash of each row, modulo 2⁶⁴."""
    hashes = cast(Any, hash_pandas_object)(pd.DataFrame(dict(enumerate(columns))), index=False)
    return int(hashes.to_numpy().sum())


def sample_of(
    source: Parts, share: float, seed: int, columns: Collection[str] | None = None
) -> tuple[pd.DataFrame, bool]:
    """At most `SAMPLE_ROWS` rows that are not held out, of some columns or all, and whether they are all."""
    whole = len(source) <= SAMPLE_ROWS
    parts = range(len(source.parts))
    if not whole and len(parts) > SAMPLE_PARTS:
        parts = np.linspace(0, len(parts) - 1, SAMPLE_PARTS).astype(int).tolist()
    rows = sum(source.parts[i].rows for i in parts)
    portion = 1.0 if whole else SAMPLE_ROWS / rows
    frame = _together(list(source.each(partial(_sampled, share, seed, portion), parts, columns)))
    frame.attrs["separator"] = source.separator  # which pandas drops where it joins parts
    return frame, whole


def _together(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """The rows of parts of a table. A column of pandas' categories stays one if the parts have different ones, of which
    `pd.concat` would make text."""
    for name in frames[0].columns:
        columns = [frame[name] for frame in frames]
        if any(isinstance(column.dtype, pd.CategoricalDtype) for column in columns):
            columns = [column.astype("category") for column in columns]
            known = reduce(pd.Index.union, (column.cat.categories for column in columns))
            frames = [
                frame.assign(**{name: column.cat.set_categories(known)})
                for frame, column in zip(frames, columns, strict=True)
            ]
    return pd.concat(frames)


def _sampled(share: float, seed: int, portion: float, i: int, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a part that are not held out, or at most that portion of them."""
    frame = frame.loc[~held_out(len(frame), i, share, seed)]
    size = int(np.ceil(len(frame) * portion))
    if size >= len(frame):
        return frame
    return frame.iloc[np.sort(np.random.default_rng([seed, i]).choice(len(frame), size, replace=False))]


class _Tally:
    """What is counted of one column."""

    def __init__(self, column: Column):
        self.learned, self.gaps, self.values, self.texts = column, 0, Moments(), Counter()
        self.odd: list[Oddity] = []
        self.contrary: list[str] = []

    def count(self, frame: pd.DataFrame) -> np.ndarray:
        """The rows of a part; returns their cells as they are read."""
        column, series = self.learned, cast(pd.Series, frame[self.learned.name])
        if column.kind == "category":
            text = category_text(series)
            self.texts = Counter(text[~np.asarray(pd.isna(text))].tolist())
            self.gaps = len(text) - self.texts.total()
            return text
        values, unread = values_of(series, column.format)
        refuse_infinite(column.name, values, series)
        self.odd = odd_values(column, series, values, unread)
        self.contrary = contrary_cells(column, unread)
        there = ~np.isnan(values)
        self.gaps, self.values = int((~there).sum()), Moments.of(values[there])
        return values

    def __iadd__(self, other: "_Tally") -> "_Tally":
        """Of the rows of both; once there are `MOST_TEXTS` texts, of no others."""
        self.gaps += other.gaps
        self.values += other.values
        self.odd += other.odd
        self.contrary = [*dict.fromkeys([*self.contrary, *other.contrary])][:CONTRARY]
        room = len(self.texts) < MOST_TEXTS
        self.texts.update(other.texts if room else {word: n for word, n in other.texts.items() if word in self.texts})
        return self

    def column(self) -> Column:
        """The rule, with an indicator where there are gaps, and the most frequent categories of all rows."""
        kept = sorted(sorted(self.texts, key=lambda text: (-self.texts[text], text))[:MAX_CATEGORIES])
        return replace(self.learned, indicator=self.gaps > 0, categories=tuple(kept))

    def moments(self, N: int) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of the features of N rows."""
        column = self.column()
        shares = [self.texts[text] / N for text in column.categories]
        shares += [self.gaps / N] * column.indicator
        mean, spread = shares, [float(np.sqrt(p * (1 - p))) for p in shares]
        if column.kind != "category":
            fill = Moments(self.gaps, column.fill, 0.0)
            values = self.values + fill
            mean, spread = [values.mean, *mean], [values.spread, *spread]
        return np.asarray(mean, float), np.asarray(spread, float)

    def notes(self, N: int) -> list[str]:
        """What was odd in all rows, and gaps that the sample did not show."""
        said = [note.replace("of which training had", "of which a sample had") for note in describe(self.odd)]
        if not self.gaps or self.learned.indicator:
            return said
        return [*said, f"column {self.learned.name!r}: {row_count(self.gaps)} of {N:,} without a value, marked"]
