"""The error and the notes that tables give rise to, and how lists read in a sentence."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


class TableError(ValueError):
    """A table that cannot be read, encoded or written. The message says what, where and what to do."""


@dataclass(frozen=True)
class Oddity:
    """Something odd in some rows of one column, with examples. It becomes a note and does not stop a prediction."""

    column: str
    finding: str
    consequence: str
    rows: int
    examples: tuple[str, ...] = ()


def describe(oddities: Iterable[Oddity]) -> list[str]:
    """One sentence for each kind of oddity in each column; the rows of several chunks are added up."""
    groups: dict[tuple[str, str, str], list[Oddity]] = {}
    for oddity in oddities:
        groups.setdefault((oddity.column, oddity.finding, oddity.consequence), []).append(oddity)
    return [
        f"column {column!r}: {finding} in {row_count(sum(oddity.rows for oddity in group))}"
        f"{quoted_examples(example for oddity in group for example in oddity.examples)}; {consequence}"
        for (column, finding, consequence), group in groups.items()
    ]


def row_count(rows: int) -> str:
    """`1 row`, `2 rows`, `274,361 rows`."""
    return f"{rows:,} row{'' if rows == 1 else 's'}"


def quoted_examples(texts: Iterable[str], most: int = 3) -> str:
    """The first distinct texts in brackets, cut to a readable length, such as ` ('Oslo', 'Bergen', …)`; `` if none."""
    distinct = list(dict.fromkeys(texts))
    if not distinct:
        return ""
    shown = [repr(text if len(text) <= 40 else f"{text[:40]}…") for text in distinct[:most]]
    return f" ({', '.join(shown + ['…'] * (len(distinct) > most))})"


def listed(names: Iterable[object], most: int = 30) -> str:
    """The names in quotes, the rest of a long list only counted."""
    names = list(names)
    rest = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([repr(str(name)) for name in names[:most]] + rest)


def refuse_repeated(names: Iterable[str], place: str = "") -> None:
    """`TableError` if columns share a name; `place` comes first in its message."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise TableError(f"{place}more than one column is called {listed(repeated)}; rename all but one")
