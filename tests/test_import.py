"""What importing costs and touches, and that every module imports only from those above it."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import pseudopoint

pytestmark = pytest.mark.edge

PACKAGE = Path(pseudopoint.__file__).parent
ORDER = """
    names files processes compilation params priors means linalg rows warps data devices kernels likelihoods gaussians
    posteriors sampling bounds optimise starts recipes persistence metrics tables datasets estimators export report
    reproduce commands shell bar cli
""".split()
CORE = ORDER[: ORDER.index("recipes") + 1]
EDGE_LIBRARIES = {"sklearn", "pandas", "pyarrow", "narwhals", "typer", "rich", "matplotlib", "dask", "distributed"}
HEAVY = ["jax", "sklearn", "pandas", "matplotlib", "scipy", "equinox", "typer"]


def in_a_fresh_process(code):
    """The JSON that the code prints last, run by a Python that has imported nothing of ours."""
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_importing_the_package_imports_nothing_heavy():
    code = "import json, sys, pseudopoint; print(json.dumps(sorted(sys.modules)))"
    assert not set(HEAVY) & set(in_a_fresh_process(code))


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"], ["options"]])
def test_help_imports_nothing_heavy_but_typer(arguments):
    code = f"""
import json, sys
from pseudopoint.cli import app
try:
    app({arguments})
except SystemExit:
    print(json.dumps(sorted(sys.modules)))
"""
    assert not {*HEAVY, "numpy"} - {"typer"} & set(in_a_fresh_process(code))


def test_the_core_is_imported_without_the_libraries_of_the_edge():
    code = "import json, sys, pseudopoint.recipes; print(json.dumps(sorted(sys.modules)))"
    assert not EDGE_LIBRARIES & set(in_a_fresh_process(code))


def test_no_global_setting_changes_by_importing_or_by_a_fit_in_float64():
    code = """
import json, warnings
import jax, numpy as np
settings = lambda: {name: repr(value) for name, value in jax.config.values.items()}
before, errors, filters = settings(), np.geterr(), list(warnings.filters)
import pseudopoint
X = np.linspace(0, 1, 12)[:, None]
model = pseudopoint.GPRegressor(max_iter=2).fit(X, np.sin(6 * X[:, 0]))
double = model.predictor_.alpha.dtype.name
single = jax.numpy.ones(2).dtype.name
print(json.dumps([settings() == before, np.geterr() == errors, jax.config.jax_enable_x64, double, single]))
"""
    assert in_a_fresh_process(code) == [True, True, False, "float64", "float32"]


def test_every_public_name_is_there_and_no_other():
    for name in pseudopoint.__all__:
        assert getattr(pseudopoint, name).__name__ == name and name in dir(pseudopoint)
    with pytest.raises(AttributeError, match="no attribute 'GPClassifer'"):
        getattr(pseudopoint, "GPClassifer")  # noqa: B009


# --- Layers ---


def sources(module):
    folder = PACKAGE / module
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{module}.py"]


def imports(tree):
    """(level, module, names) of every import statement in the tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [alias.name for alias in node.names]


def own(path, level, module, names):
    """The modules of the package that an import in the file reaches, named as in ORDER."""
    depth = len(path.relative_to(PACKAGE).parts)
    parts = module.split(".") if module else []
    if level == 0:
        parts = parts[1:] if parts[:1] == ["pseudopoint"] else None
    elif level < depth:
        parts = None  # inside a folder, which is one module
    if parts is None:
        return set()
    return {parts[0]} if parts else set(names) - {"__version__"}


def test_the_order_is_that_of_the_package():
    there = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(ORDER) == there - {"__init__", "__main__"}


@pytest.mark.parametrize("module", ORDER)
def test_a_module_imports_only_from_those_above_it(module):
    allowed = set(ORDER[: ORDER.index(module) + 1])
    for path in sources(module):
        for statement in imports(ast.parse(path.read_text())):
            assert own(path, *statement) <= allowed, f"{path.name} imports {statement[1:]}"


def test_names_imports_the_standard_library_alone():
    (path,) = sources("names")
    assert {name.split(".")[0] for _, name, _ in imports(ast.parse(path.read_text()))} <= sys.stdlib_module_names


@pytest.mark.parametrize("module", CORE)
def test_a_core_module_imports_no_library_of_the_edge_at_its_top(module):
    bodies = [node for path in sources(module) for node in ast.parse(path.read_text()).body]
    tops: list[ast.stmt] = [node for node in bodies if isinstance(node, ast.Import | ast.ImportFrom)]
    libraries = {name.split(".")[0] for level, name, _ in imports(ast.Module([*tops], [])) if level == 0}
    assert not libraries & EDGE_LIBRARIES
