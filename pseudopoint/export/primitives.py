"""From a traced JAX function to ONNX nodes, one rule for each of JAX's primitives.

What depends on no row is computed here and becomes a constant. The number of rows is a symbol, so that a graph takes
any number of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from .functions import FUNCTIONS
from .graph import Graph, Value, element_type

ROWS = "N"
Rule = Callable[[Graph, Any, list[Value]], Value]

# Primitives that are one node, with the same inputs.
NODES = {
    "add": "Add",
    "add_any": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "max": "Max",
    "min": "Min",
    "pow": "Pow",
    "neg": "Neg",
    "abs": "Abs",
    "sign": "Sign",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "sin": "Sin",
    "cos": "Cos",
    "tanh": "Tanh",
    "logistic": "Sigmoid",
    "floor": "Floor",
    "ceil": "Ceil",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
    "eq": "Equal",
    "and": "And",
    "or": "Or",
    "not": "Not",
    "stop_gradient": "Identity",
    "copy": "Identity",
}
REDUCTIONS = {
    "reduce_sum": "ReduceSum",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
}
# Primitives that call a function, by the parameter that holds it.
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "checkpoint": "jaxpr", "remat": "jaxpr"}
CALLS |= {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr"}


def traced(graph: Graph, function: Callable[..., Sequence[Any]], X: str, columns: int) -> list[Value]:
    """The nodes of `function` of X [N, columns], in float64, and what it returns.

    Raises ValueError, in one sentence, for a function that needs to know N, or has a primitive without a rule.
    """
    (rows,) = jax.export.symbolic_shape(ROWS)
    try:
        closed = jax.make_jaxpr(function)(jax.ShapeDtypeStruct((rows, columns), jnp.float64))
    except (TypeError, jax.errors.JAXTypeError) as error:
        reason = str(error).partition("\n")[0]
        what = "a part of the model cannot be traced for any number of rows, as the export to ONNX does"
        raise ValueError(f"{what}: {reason}") from error
    return _run(graph, closed, [X])


def _run(graph: Graph, closed: Any, values: Sequence[Value]) -> list[Value]:
    jaxpr, constants = (closed.jaxpr, closed.consts) if isinstance(closed, ClosedJaxpr) else (closed, [])
    known: dict[Any, Value] = dict(zip(jaxpr.constvars, map(np.asarray, constants), strict=True))
    known |= dict(zip(jaxpr.invars, values, strict=True))
    read = lambda var: np.asarray(var.val) if isinstance(var, Literal) else known[var]
    for equation in jaxpr.eqns:
        results = _translated(graph, equation, [read(var) for var in equation.invars])
        known |= dict(zip(equation.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _translated(graph: Graph, equation: Any, values: list[Value]) -> Sequence[Value]:
    name = equation.primitive.name
    fixed = all(_is_fixed(var.aval.shape) for var in equation.outvars)
    if fixed and not any(isinstance(value, str) for value in values) and name not in CALLS:
        results = equation.primitive.bind(*values, **equation.params)
        return [np.asarray(x) for x in (results if equation.primitive.multiple_results else [results])]
    if name in CALLS:
        return _run(graph, equation.params[CALLS[name]], values)
    if name in SEVERAL:
        return SEVERAL[name](graph, equation, values)
    if name in NODES:
        return [graph.add(NODES[name], *values)]
    if name in FUNCTIONS:
        shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in equation.invars]
        return _run(graph, jax.make_jaxpr(FUNCTIONS[name])(*shapes), values)
    if name in REDUCTIONS:
        axes = np.array(equation.params["axes"], np.int64)
        return [graph.add(REDUCTIONS[name], values[0], axes, keepdims=0)] if len(axes) else values
    if name not in RULES:
        raise _unknown(name)
    return [RULES[name](graph, equation, values)]


def _unknown(what: str) -> ValueError:
    return ValueError(
        f"the model computes {what!r}, which the export to ONNX has no nodes for: use another kernel or likelihood, "
        "or save the model and load it with pseudopoint"
    )


# --- shapes ---


def _is_fixed(shape: Sequence[Any]) -> bool:
    return all(isinstance(size, int) for size in shape)


def _open(shape: Sequence[Any]) -> Value:
    """The shape for a Reshape, which finds the one size that is not known."""
    return np.array([size if isinstance(size, int) else -1 for size in shape], np.int64)


def _shape(graph: Graph, shape: Sequence[Any]) -> Value:
    """A shape with the number of rows in it."""
    if _is_fixed(shape):
        return np.array(shape, np.int64)
    if any(not isinstance(size, int) and str(size) != ROWS for size in shape):
        raise _unknown(f"an array of shape {tuple(map(str, shape))}")
    sizes = [graph.rows if not isinstance(size, int) else np.array([size], np.int64) for size in shape]
    return graph.add("Concat", *sizes, axis=0)


def _reshape(graph: Graph, equation: Any, values: list[Value]) -> Value:
    shape = equation.outvars[0].aval.shape
    if sum(not isinstance(size, int) for size in shape) > 1:
        raise _unknown(f"an array of shape {tuple(map(str, shape))}")
    return graph.add("Reshape", values[0], _open(shape))


def _broadcast(graph: Graph, equation: Any, values: list[Value]) -> Value:
    """To the rank of the result by a Reshape; and to its sizes by an Expand, where the number of rows is read only if
    the value has it not."""
    places, shape = equation.params["broadcast_dimensions"], equation.outvars[0].aval.shape
    before = equation.invars[0].aval.shape
    wide: list[Any] = [1] * len(shape)
    for place, size in zip(places, before, strict=True):
        wide[place] = size
    value = values[0]
    if tuple(wide) != tuple(before):
        value = graph.add("Reshape", value, _open(wide))
    missing = [1 if now is size or now == size else size for now, size in zip(wide, shape, strict=True)]
    return graph.add("Expand", value, _shape(graph, missing)) if any(size != 1 for size in missing) else value


# --- parts of arrays ---


def _gather(graph: Graph, equation: Any, values: list[Value]) -> Value:
    """Of x[…, i, …] along one axis, whole along the others; or of x[i:i + n] with a constant i."""
    x, at = values
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape, indices = equation.invars[0].aval.shape, equation.invars[1].aval.shape
    axes, places = tuple(numbers.collapsed_slice_dims), tuple(numbers.start_index_map)
    if not axes and len(indices) == 1 and not isinstance(at, str):
        starts = {axis: at[i] for i, axis in enumerate(places)}
        return _cut(graph, x, shape, sizes, [starts.get(axis, 0) for axis in range(len(shape))])
    rank = len(indices) - 1
    whole = all(size == of for axis, (size, of) in enumerate(zip(sizes, shape, strict=True)) if axis not in axes)
    kept = [i for i in range(rank + len(shape) - 1) if axes and not axes[0] <= i < axes[0] + rank]
    plain = len(axes) == 1 and places == axes and list(numbers.offset_dims) == kept
    if not (whole and plain) or numbers.operand_batching_dims:
        raise _unknown("gather of several axes")
    return graph.add("Gather", x, graph.add("Reshape", at, _open(indices[:-1])), axis=axes[0])


def _cut(graph: Graph, x: Value, shape: Sequence[Any], sizes: Sequence[Any], starts: Sequence[Any]) -> Value:
    """So many numbers along every axis, from `starts` on, which are constants as in `x[0]`."""
    axes = [axis for axis, (size, of) in enumerate(zip(sizes, shape, strict=True)) if size is not of and size != of]
    if any(isinstance(starts[axis], str) or not isinstance(shape[axis], int) for axis in axes):
        raise _unknown("a slice whose place depends on the rows")
    first = [int(np.clip(int(starts[axis]), 0, shape[axis] - sizes[axis])) for axis in axes]
    ends = [start + sizes[axis] for start, axis in zip(first, axes, strict=True)]
    return graph.add("Slice", x, *(np.array(part, np.int64) for part in (first, ends, axes)))


def _slice(graph: Graph, equation: Any, values: list[Value]) -> Value:
    starts, limits, strides = (equation.params[key] for key in ("start_indices", "limit_indices", "strides"))
    shape = equation.invars[0].aval.shape
    strides = [1] * len(shape) if strides is None else strides
    moved = lambda i: not (isinstance(starts[i], int) and starts[i] == 0 and strides[i] == 1) or limits[i] != shape[i]
    axes = [axis for axis in range(len(shape)) if moved(axis)]
    parts = [[of[axis] for axis in axes] for of in (starts, limits)]
    if not all(map(_is_fixed, parts)):
        raise _unknown("a slice of the rows")
    steps = [strides[axis] for axis in axes]
    return graph.add("Slice", values[0], *(np.array(part, np.int64) for part in (*parts, axes, steps)))


def _dynamic_slice(graph: Graph, equation: Any, values: list[Value]) -> Value:
    return _cut(graph, values[0], equation.invars[0].aval.shape, equation.params["slice_sizes"], values[1:])


def _stack(graph: Graph, equation: Any, values: list[Value]) -> Value:
    axis = np.array([equation.params["axis"]], np.int64)
    return graph.add("Concat", *(graph.add("Unsqueeze", x, axis) for x in values), axis=int(axis[0]))


# --- arithmetic ---


def _dot(graph: Graph, equation: Any, values: list[Value]) -> Value:
    """Any product of two arrays, as an Einsum."""
    (left, right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    a = [next(letters) for _ in equation.invars[0].aval.shape]
    b = [next(letters) for _ in equation.invars[1].aval.shape]
    for i, j in zip((*left, *batch_left), (*right, *batch_right), strict=True):
        b[j] = a[i]
    batch = [a[i] for i in batch_left]
    free = [a[i] for i in range(len(a)) if i not in (*left, *batch_left)]
    free += [b[j] for j in range(len(b)) if j not in (*right, *batch_right)]
    text = "".join
    return graph.add("Einsum", *values, equation=f"{text(a)},{text(b)}->{text(batch)}{text(free)}")


def _select(graph: Graph, equation: Any, values: list[Value]) -> Value:
    which, *cases = values
    if len(cases) != 2:
        raise _unknown("a choice among several arrays")
    return graph.add("Where", graph.add("Cast", which, to=element_type(bool)), cases[1], cases[0])


def _power(graph: Graph, equation: Any, values: list[Value]) -> Value:
    if equation.params["y"] == 2:
        return graph.add("Mul", values[0], values[0])
    return graph.add("Pow", values[0], np.asarray(equation.params["y"], equation.invars[0].aval.dtype))


def _round(graph: Graph, equation: Any, values: list[Value]) -> Value:
    """ONNX rounds halves to even numbers, as `jnp.round` does."""
    if equation.params["rounding_method"] != jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        raise _unknown("rounding away from zero")
    return graph.add("Round", *values)


def _is_finite(graph: Graph, equation: Any, values: list[Value]) -> Value:
    return graph.add("Not", graph.add("Or", graph.add("IsNaN", values[0]), graph.add("IsInf", values[0])))


def _all(graph: Graph, equation: Any, values: list[Value]) -> Value:
    """reduce_and, reduce_or."""
    kind = "ReduceMin" if equation.primitive.name == "reduce_and" else "ReduceMax"
    number = graph.add("Cast", values[0], to=element_type(np.int64))
    reduced = graph.add(kind, number, np.array(equation.params["axes"], np.int64), keepdims=0)
    return graph.add("Cast", reduced, to=element_type(bool))


def _arg(graph: Graph, equation: Any, values: list[Value]) -> Value:
    kind = "ArgMax" if equation.primitive.name == "argmax" else "ArgMin"
    at = graph.add(kind, values[0], axis=equation.params["axes"][0], keepdims=0)
    return graph.add("Cast", at, to=element_type(equation.params["index_dtype"]))


def _cumsum(graph: Graph, equation: Any, values: list[Value]) -> Value:
    axis = np.array(equation.params["axis"], np.int64)
    return graph.add("CumSum", values[0], axis, reverse=int(equation.params["reverse"]))


def _cast(graph: Graph, equation: Any, values: list[Value]) -> Value:
    return graph.add("Cast", values[0], to=element_type(equation.params["new_dtype"]))


def _sort(graph: Graph, equation: Any, values: list[Value]) -> Sequence[Value]:
    axis = equation.params["dimension"]
    count = equation.invars[0].aval.shape[axis]
    if len(values) > 1 or not isinstance(count, int):
        raise _unknown("a sort of rows, or of several arrays")
    return graph.add_many("TopK", 2, values[0], np.array([count], np.int64), axis=axis, largest=0)[:1]


def _reduce(graph: Graph, equation: Any, values: list[Value]) -> Sequence[Value]:
    """Of several arrays, each by itself, by sums."""
    body, half = equation.params["jaxpr"].jaxpr, len(values) // 2
    pairs = [(*each.invars, *each.outvars) for each in body.eqns if each.primitive.name == "add"]
    if pairs != list(zip(body.invars[:half], body.invars[half:], body.outvars, strict=True)) or len(body.eqns) != half:
        raise _unknown("a reduction that is no sum")
    axes = np.array(equation.params["dimensions"], np.int64)
    sums = [graph.add("ReduceSum", value, axes, keepdims=0) for value in values[:half]]
    return [graph.add("Add", total, start) for total, start in zip(sums, values[half:], strict=True)]


def _scan(graph: Graph, equation: Any, values: list[Value]) -> Sequence[Value]:
    """As ONNX's Scan, whose body has names of the outer graph for constants. It needs an array to go through: without
    one, the numbers 0, 1, …."""
    params, body = equation.params, graph.inner()
    m, n = params["num_consts"], params["num_carry"]
    closed = params["jaxpr"]
    if params["reverse"] or not isinstance(params["length"], int):
        raise _unknown("a loop through the rows, or backwards")
    carried, given = values[m : m + n], values[m + n :] or [np.arange(params["length"])]
    names = [body.new_name() for _ in (*carried, *given)]
    variables = closed.jaxpr.invars[m:]
    results = _run(body, closed, [*values[:m], *names[: len(variables)]])
    outputs = [body.add("Identity", result) for result in results]  # one that is passed on needs a name of its own
    types = [*(var.aval.dtype for var in variables), np.dtype(np.int64)]
    return graph.loop(
        body,
        [(name, dtype) for name, dtype in zip(names, types, strict=False)],
        [(name, var.aval.dtype) for name, var in zip(outputs, closed.jaxpr.outvars, strict=True)],
        [*carried, *given],
        len(given),
    )


SEVERAL: dict[str, Callable[[Graph, Any, list[Value]], Sequence[Value]]] = {
    "sort": _sort,
    "reduce": _reduce,
    "scan": _scan,
}
RULES: dict[str, Rule] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "round": _round,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": lambda g, e, v: g.add("Transpose", v[0], perm=e.params["permutation"]),
    "concatenate": lambda g, e, v: g.add("Concat", *v, axis=e.params["dimension"]),
    "gather": _gather,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "stack": _stack,
    "dot_general": _dot,
    "select_n": _select,
    "integer_pow": _power,
    "is_finite": _is_finite,
    "reduce_and": _all,
    "reduce_or": _all,
    "argmax": _arg,
    "argmin": _arg,
    "cumsum": _cumsum,
    "convert_element_type": _cast,
    "ne": lambda g, e, v: g.add("Not", g.add("Equal", *v)),
    "rem": lambda g, e, v: g.add("Mod", *v, fmod=1),
    "clamp": lambda g, e, v: g.add("Min", g.add("Max", v[1], v[0]), v[2]),
}
