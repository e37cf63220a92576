"""An ONNX graph while it is built."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import onnx
from jaxtyping import Shaped
from onnx import helper, numpy_helper

Value = str | Shaped[np.ndarray, "..."]  # the name of a tensor that depends on the rows, or a constant
OPSET, IR_VERSION = 20, 10  # the first that compare text, and what reads them


def element_type(dtype: Any) -> int:
    """ONNX's number of a type of NumPy."""
    dtype = np.dtype(dtype)
    return onnx.TensorProto.STRING if dtype.kind in "UO" else helper.np_dtype_to_tensor_dtype(dtype)


class Graph:
    """Nodes in the order of computation, and the constants that they read. A graph inside another one (`inner`) has
    nodes of its own, and sees the names and adds to the constants of the outer one."""

    def __init__(self, outer: "Graph | None" = None):
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = [] if outer is None else outer.constants
        self.numbers: Any = count() if outer is None else outer.numbers
        self.rows: str = "" if outer is None else outer.rows  # the tensor [N], one number

    def inner(self) -> "Graph":
        """A graph for the body of a loop."""
        return Graph(self)

    def new_name(self) -> str:
        """A name that no column has."""
        return f"pseudopoint/{next(self.numbers)}"

    def name(self, value: Value) -> str:
        """The name of a value; a constant becomes one of the graph's."""
        if isinstance(value, str):
            return value
        name = self.new_name()
        self.constants.append(_tensor(np.asarray(value), name))
        return name

    def add(self, kind: str, *inputs: Value, output: str = "", domain: str = "", **attributes: Any) -> str:
        """A node with one output, whose name is returned."""
        return self.add_many(kind, 1, *inputs, outputs=[output] if output else None, domain=domain, **attributes)[0]

    def add_many(
        self, kind: str, number: int, *inputs: Value, outputs: Sequence[str] | None = None, **attributes: Any
    ) -> list[str]:
        """A node with several outputs."""
        names = list(outputs) if outputs else [self.new_name() for _ in range(number)]
        self.nodes.append(helper.make_node(kind, [self.name(value) for value in inputs], names, **attributes))
        return names

    def loop(self, body: "Graph", inputs: list, outputs: list, values: Sequence[Value], scanned: int) -> list[str]:
        """A Scan: `inputs` and `outputs` are (name, type) of the body; its last `scanned` inputs go through arrays."""
        info = lambda each: [helper.make_tensor_value_info(name, element_type(dtype), None) for name, dtype in each]
        graph = helper.make_graph(body.nodes, "body", info(inputs), info(outputs))
        return self.add_many("Scan", len(outputs), *values, body=graph, num_scan_inputs=scanned)

    def model(self, inputs: Sequence[Any], outputs: Sequence[Any], about: dict[str, str]) -> onnx.ModelProto:
        """The whole as a model that ONNX's checker accepts; `about` are its properties."""
        graph = helper.make_graph(self.nodes, "pseudopoint", inputs, outputs, self.constants)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="pseudopoint")
        helper.set_model_props(model, about)
        onnx.checker.check_model(model, full_check=True)
        return model


def _tensor(array: np.ndarray, name: str) -> onnx.TensorProto:
    if array.dtype.kind in "UO":
        text: Any = [str(x).encode() for x in array.ravel()]
        return helper.make_tensor(name, onnx.TensorProto.STRING, array.shape, text)
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
