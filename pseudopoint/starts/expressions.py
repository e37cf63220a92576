"""Kernels in words: "matern52 + periodic(day, 7) + linear(day)".

    expression → term + … + term,  term → factor * … * factor,  factor → word | word(arguments) | (expression)

A word is one of `names.KERNELS`, or polynomial, arc_cosine, hamming, cosine, constant or white. Its arguments are
columns, by name (in quotes where that is no plain word; x0, x1, … where columns have no names), and then a number: the
period of periodic and cosine, the first variance of constant and white, and otherwise the first lengthscale, in the
units of the columns. Without columns a word is of all of them.
"""

import ast
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from .. import kernels as k
from .hyperparameters import KERNELS

PLAIN = {"constant": k.Constant, "white": k.White}  # of a variance alone
FURTHER = {
    "polynomial": lambda scale, v: k.Polynomial(np.full(len(scale), v**0.5 / 2 / len(scale)), v**0.5 / 2),
    "arc_cosine": lambda scale, v: k.ArcCosine(np.full(len(scale), v / 2 / len(scale)), v / 2),
    "hamming": lambda scale, v: k.Hamming(np.full(len(scale), float(len(scale))), v),
}
WAVES = {"periodic": lambda period, v: k.Periodic(np.ones(len(period)), v, period), "cosine": k.Cosine}
COLUMNS_ALONE = ("linear", *FURTHER)  # words that take no number
WORDS = [*KERNELS, *FURTHER, "cosine", *PLAIN]
HELP = "write words such as matern52 + periodic(day, 7)"


def is_expression(kernel: object) -> bool:
    """Whether a setting is more than one word."""
    return isinstance(kernel, str) and not kernel.strip().isidentifier()


def expressed(
    text: str, columns: Mapping[str, tuple[int, ...]], scale: Float[np.ndarray, " D"], variance: float
) -> k.AbstractKernel:
    """The kernel that an expression says, of columns that were divided by `scale`.

    Each of its terms starts with an equal share of `variance`. `columns` has the places of the columns of each name.
    ValueError says what cannot be read.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"kernel={text!r} cannot be read: {HELP}") from None
    return _Reader(text, columns, np.where(np.isfinite(scale), scale, 1.0)).sum(tree, variance)


class _Reader:
    """Reads one expression, from its tree as Python reads it; nothing of it is run."""

    def __init__(self, text: str, columns: Mapping[str, tuple[int, ...]], scale: np.ndarray):
        self.text, self.columns, self.scale = text, columns, scale

    def sum(self, node: ast.expr, variance: float) -> k.AbstractKernel:
        terms = _flat(node, ast.Add)
        parts = [self.product(term, variance / len(terms)) for term in terms]
        return sum(parts[1:], parts[0])

    def product(self, node: ast.expr, variance: float) -> k.AbstractKernel:
        first, *others = _flat(node, ast.Mult)
        result = self.factor(first, variance)
        for other in others:
            result = result * self.factor(other, 1.0)
        return result

    def factor(self, node: ast.expr, variance: float) -> k.AbstractKernel:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
            return self.sum(node, variance)
        name, arguments = node, []
        if isinstance(node, ast.Call) and not node.keywords:
            name, arguments = node.func, node.args
        words = [word for word in WORDS if isinstance(name, ast.Name) and name.id == word]
        if not words:
            found = ast.unparse(node)
            raise ValueError(
                f"kernel={self.text!r} has {found!r}, which is no kernel: use {', '.join(WORDS)}, as in "
                "matern52 + periodic(day, 7)"
            )
        return self.made(words[0], arguments, variance)

    def made(self, word: str, arguments: list[ast.expr], variance: float) -> k.AbstractKernel:
        constants = [node for node in arguments if isinstance(node, ast.Constant) and not isinstance(node.value, str)]
        numbers: list[Any] = [node.value for node in constants]
        places = [self.place(node) for node in arguments if node not in constants]
        if len(numbers) > 1 or any(not (isinstance(x, int | float) and 0 < x < np.inf) for x in numbers):
            raise ValueError(f"kernel={self.text!r}: {word} takes columns and then one positive number")
        if (numbers and word in COLUMNS_ALONE) or (places and word in PLAIN):
            raise ValueError(f"kernel={self.text!r}: {word} takes {'columns' if numbers else 'a number'} alone")
        if word in PLAIN:
            return PLAIN[word](numbers[0] if numbers else variance)
        chosen = tuple(dict.fromkeys(sum(places, ()))) or tuple(range(len(self.scale)))
        scale = self.scale[list(chosen)]
        if word in WAVES:
            kernel = WAVES[word](numbers[0] / scale if numbers else np.ones(len(chosen)), variance)
        else:
            lengthscale = numbers[0] / scale if numbers else np.full(len(chosen), len(chosen) ** 0.5)
            kernel = (KERNELS | FURTHER)[word](lengthscale, variance)
        return kernel.on(*chosen) if places else kernel

    def place(self, node: ast.expr) -> tuple[int, ...]:
        name = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
        if name not in self.columns:
            there = ", ".join(list(self.columns)[:30])
            raise ValueError(f"kernel={self.text!r} names {ast.unparse(node)}, but the columns are {there}")
        return self.columns[str(name)]


def _flat(node: ast.expr, operation: type[ast.operator]) -> list[ast.expr]:
    """The operands of a chain of one operation."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, operation):
        return [*_flat(node.left, operation), *_flat(node.right, operation)]
    return [node]
