"""How large the package, its files and its functions may be."""

import ast
from pathlib import Path

import pytest

import pseudopoint

pytestmark = pytest.mark.edge

PACKAGE = Path(pseudopoint.__file__).parent
FILES = {str(path.relative_to(PACKAGE)): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
ALL_LINES = 31_760  # lower it with the package: the aim is 12,500
FILE_LINES = 400
FUNCTION_LINES = 40  # its docstring apart


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """All lines from `def` to the end, without those of the docstring."""
    first, end = function.body[0], function.end_lineno or 0
    docstring = 0
    if ast.get_docstring(function) is not None:
        docstring = (first.end_lineno or 0) - first.lineno + 1
    return end - function.lineno + 1 - docstring


def test_no_file_is_long():
    assert {name: text.count("\n") for name, text in FILES.items() if text.count("\n") > FILE_LINES} == {}


def test_no_function_is_long():
    functions = [
        (name, node)
        for name, text in FILES.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert {(name, f.name): lines_of(f) for name, f in functions if lines_of(f) > FUNCTION_LINES} == {}


def test_the_package_does_not_grow():
    assert sum(text.count("\n") for text in FILES.values()) <= ALL_LINES
