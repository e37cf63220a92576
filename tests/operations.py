"""How much arithmetic a program does, counted in its jaxpr: nothing is compiled or timed."""

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.interpreters.partial_eval import dce_jaxpr

__all__ = ["operations"]


def operations(function: Callable, *arguments: Any) -> Counter:
    """Multiply-adds of matrix products ("products"), how often each size is factorised ("cholesky 64") or solved with a
    triangle ("solve 64"), and of how many numbers the error function is taken ("erf"), by a program without its dead
    code.

    The body of a loop counts as often as it runs. That of a `while`, whose number nobody knows, counts under names that
    begin with "while"; of a `cond` the dearest branch counts.
    """
    program = jax.make_jaxpr(function)(*arguments)
    jaxpr, _ = dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))
    return _count(jaxpr)


def _count(jaxpr: Jaxpr) -> Counter:
    total: Counter = Counter()
    equation: Any
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        shapes = [variable.aval.shape for variable in equation.invars]
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            inner = prod(shapes[0][axis] for axis in contracted)
            total["products"] += prod(equation.outvars[0].aval.shape) * inner
        elif name in ("cholesky", "triangular_solve"):
            *batch, M, _ = shapes[0]
            total[f"{'cholesky' if name == 'cholesky' else 'solve'} {M}"] += prod(batch)
        elif name == "erf":
            total[name] += prod(shapes[0])
        elif name == "while":
            for key in ("cond_jaxpr", "body_jaxpr"):
                total.update({f"while {what}": n for what, n in _count(equation.params[key].jaxpr).items()})
        elif name == "cond":
            total.update(max((_count(b.jaxpr) for b in equation.params["branches"]), key=lambda c: c["products"]))
        else:
            times = equation.params.get("length", 1) if name == "scan" else 1
            for inside in _inside(equation.params.values()):
                total.update({what: times * n for what, n in _count(inside).items()})
    return total


def _inside(values):
    """The programs among an equation's parameters; of a custom derivative, the one that runs."""
    for value in values:
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
