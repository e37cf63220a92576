"""Fitted models as ONNX graphs: predictions without Python, JAX or this package.

`graph` holds nodes, `functions` has what runtimes lack in double precision, `primitives` translates a traced JAX
function, `columns` encodes the columns of a table, and `model` puts them together.
"""

from .model import to_onnx as to_onnx
