"""The columns of a table as inputs of an ONNX graph, encoded as `tables.TableEncoder` does.

Numbers come as float64 [N, 1], NaN where there is none, and text as strings [N, 1] without blanks around it, "" where
there is none. True/false values are 1 and 0, and moments are numbers in the units of docs/tables.md.
"""

from typing import Any

import numpy as np
from onnx import helper

from ..tables import TableEncoder
from ..tables.columns import Column
from ..tables.missing import CANONICAL
from .graph import Graph, element_type

UNITS = {
    "number": "a number",
    "boolean": "1 for true, 0 for false",
    "date": "days since 1970-01-01, UTC",
    "time": "hours",
    "duration": "days",
    "category": "text",
}


def read_rows(graph: Graph, columns: int) -> tuple[list[Any], str]:
    """The one input X [N, columns] of a model that knows no table, and its name."""
    graph.rows = graph.add("Shape", "X", start=0, end=1)
    return [helper.make_tensor_value_info("X", element_type(np.float64), ["N", columns])], "X"


def encoded(graph: Graph, encoder: TableEncoder) -> tuple[list[Any], str]:
    """One input a column of the table, and the name of the features [N, D]."""
    graph.rows = graph.add("Shape", encoder.columns[0].name, start=0, end=1)
    words = {*encoder.missing, *encoder.csv_missing}
    inputs = []
    for column in encoder.columns:
        kind = element_type(str if column.kind == "category" else np.float64)
        inputs.append(helper.make_tensor_value_info(column.name, kind, ["N", 1], UNITS[column.kind]))
    features = [part for column in encoder.columns for part in _features(graph, column, words)]
    return inputs, graph.add("Concat", *features, axis=1)


def _features(graph: Graph, column: Column, words: set[str]) -> list[str]:
    """The blocks of features of one column, as `tables.columns.encode_column` has them."""
    number = lambda truth: graph.add("Cast", truth, to=element_type(np.float64))
    if column.kind == "category":
        known = np.array([[name for name in column.categories]], object)
        gap = _is_one_of(graph, column.name, np.array([["", *sorted(words)]], object))
        same = graph.add("Equal", column.name, known)
        there = number(graph.add("And", same, graph.add("Not", gap)))
        return [there, number(gap)] if column.indicator else [there]
    gap = graph.add("IsNaN", column.name)
    numbers = [float(word) for word in sorted(words) if CANONICAL.fullmatch(word)] if column.kind == "number" else []
    if numbers:
        gap = graph.add("Or", gap, _is_one_of(graph, column.name, np.array([numbers])))
    filled = graph.add("Where", gap, np.array([[column.fill]]), column.name)
    return [filled, number(gap)] if column.indicator else [filled]


def _is_one_of(graph: Graph, name: str, words: np.ndarray) -> str:
    """Whether a cell is one of the words [1, K], [N, 1]."""
    number = graph.add("Cast", graph.add("Equal", name, words), to=element_type(np.int64))
    return graph.add("Cast", graph.add("ReduceMax", number, np.array([1]), keepdims=1), to=element_type(bool))
