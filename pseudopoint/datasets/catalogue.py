"""The data sets by name: what is in each table and where it comes from. `catalogue.csv` is the list itself."""

import csv
from dataclasses import dataclass
from importlib import resources

__all__ = ["CATALOGUE", "Source"]


@dataclass(frozen=True)
class Source:
    """One table, NAME.csv.gz: a header, numeric columns only, the target last.

    `classes` is 0 for a regression, else the target holds the codes 0, …, classes − 1. `sha256` is that of the file,
    `contents` that of the numbers in it, however they were compressed (`loading.contents`). `licence` is the one
    commonly stated; [v] where the origin's own words were read.
    """

    name: str
    task: str
    rows: int
    classes: int
    sha256: str
    contents: str
    origin: str
    licence: str
    columns: tuple[str, ...]

    @property
    def target(self) -> str:
        """The name of the last column."""
        return self.columns[-1]


def _catalogue() -> dict[str, Source]:
    text = (resources.files("pseudopoint") / "datasets" / "catalogue.csv").read_text(encoding="utf-8")
    return {line["name"]: _source(**line) for line in csv.DictReader(text.splitlines())}


def _source(rows: str, classes: str, columns: str, **texts: str) -> Source:
    return Source(rows=int(rows), classes=int(classes), columns=tuple(columns.split()), **texts)


CATALOGUE: dict[str, Source] = _catalogue()
