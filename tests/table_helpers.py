"""Short ways to learn an encoder and to see what it makes of a table."""

import numpy as np
import pandas as pd

from pseudopoint.tables import TableEncoder

nan = float("nan")


def learn(**columns) -> tuple[TableEncoder, list[str]]:
    rows = len(next(iter(columns.values())))
    return TableEncoder.learn(pd.DataFrame({**columns, "y": np.arange(float(rows))}), "y")


def encode(encoder: TableEncoder, **columns) -> tuple[list[list[float]], list[str]]:
    X, notes = encoder.inputs(pd.DataFrame(columns))
    return X.tolist(), notes


def column(encoder: TableEncoder, values) -> list[float]:
    (name,) = (column.name for column in encoder.columns)
    X, _ = encoder.inputs(pd.DataFrame({name: values}))
    return X[:, 0].tolist()


def write(path, content: bytes):
    path.write_bytes(content)
    return path
