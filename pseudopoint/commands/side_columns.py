"""Columns beside the inputs and the target: how often a row was seen, and what its count refers to."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from pseudopoint.tables import TableEncoder, TableError, number_target, table_chunks, table_head
from pseudopoint.tables.formats import Format, column_format
from pseudopoint.tables.target import require

CHUNK_ROWS = 20_000


class SideColumn(NamedTuple):
    """The name of such a column, and how its cells are written, which is decided once: by the table of a fit, also for
    all tables that the model meets. None, of earlier versions, leaves it to each table."""

    name: str
    format: Format | None = None

    @classmethod
    def of(cls, frame: pd.DataFrame, name: str) -> "SideColumn":
        """By the cells of this table. Raises TableError."""
        require(frame, [name])
        return cls(name, column_format(frame, name))

    @classmethod
    def of_table(cls, table: str | Path, name: str, encoder: TableEncoder) -> "SideColumn":
        """By all cells of the column of a table that is read in chunks, in a pass of its own. Raises TableError."""
        head = table_head(table)
        require(head, [name])
        chunks = table_chunks(table, CHUNK_ROWS, encoder, (name,))
        cells = pd.concat([frame[name].drop_duplicates() for frame in chunks]).drop_duplicates(ignore_index=True)
        rows = head.reindex(range(max(len(head), len(cells)))).assign(**{name: cells})
        rows.attrs = head.attrs
        return cls.of(rows, name)

    @property
    def text(self) -> tuple[str, ...]:
        """Its name if a CSV file must be read with it as text."""
        return (self.name,) if self.format is not None and self.format.is_text else ()


def exposures(frame: pd.DataFrame, column: SideColumn) -> np.ndarray:
    """The exposure of every row of a table. Raises TableError where one is no number above 0."""
    name, E = column.name, number_target(frame, column.name, format=column.format, role="exposure")
    for row in np.flatnonzero(~(E > 0))[:1]:
        what = "no value" if np.isnan(E[row]) else f"{E[row]:g}"
        raise TableError(f"the exposure {name!r} holds {what} in row {frame.index[row] + 1}; an exposure is above 0")
    return E


def weights(frame: pd.DataFrame, column: SideColumn, target: str) -> np.ndarray:
    """The weight of every row of a table. Raises ValueError or TableError."""
    name = column.name
    if name == target:
        raise ValueError(f"--weights {name!r} is the target: name another column")
    weight = number_target(frame, name, format=column.format, role="weight")
    for row in np.flatnonzero(~(weight >= 0))[:1]:
        what = "no value" if np.isnan(weight[row]) else f"{weight[row]:g}"
        raise TableError(f"the weights {name!r} hold {what} in row {frame.index[row] + 1}; a weight is at least 0")
    return weight
