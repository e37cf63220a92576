"""Core tests run in float64 inside a scope; tests marked `edge` (estimators, command line) must get by without it.

Tests marked `default_flags` run with XLA's own flags, as users have them, in a run of their own: `make test` does both.
"""

import ctypes
import gc
import os
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

# Most of a test's time is XLA's compilation, and most of that makes code fast which runs once: without it, compilation
# takes a fifth; in one part less still, for beside another worker there is no core for more. A flag that a later XLA no
# longer knows would be fatal, hence the version. Read at the first computation, and by the processes that tests start.
# An empty XLA_FLAGS asks for XLA's own.
HASTE = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
if tuple(int(part) for part in version("jax").split(".")[:2]) <= (0, 10):
    os.environ.setdefault("XLA_FLAGS", HASTE)

# Tracing makes objects by the hundred thousand, few of them in cycles: to look for these takes a tenth of the time.
gc.set_threshold(100_000, 20, 50)

# Nothing is read from, or left in, the folder where the command line keeps compiled programs.
os.environ["JAX_COMPILATION_CACHE_DIR"] = ""

# Processes that tests start import the package beside these tests, whatever else is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
)

import jax  # noqa: E402
import pytest  # noqa: E402


def pytest_runtest_setup(item):
    if item.get_closest_marker("default_flags") and os.environ.get("XLA_FLAGS"):
        pytest.skip("needs XLA's own flags: XLA_FLAGS= python -m pytest -m default_flags")


@pytest.fixture(autouse=True)
def float64(request):
    if request.node.get_closest_marker("edge"):
        yield
    else:
        with jax.enable_x64(True):
            yield


@pytest.fixture(autouse=True, scope="session")
def many_programs():
    """A fit drops all programs where there are more than a user's process needs, and the next tests would compile them
    again. What a worker holds is bounded by `few_programs`."""
    from pseudopoint import compilation  # after jaxtyping's hook

    compilation.MOST = 1000


@pytest.fixture(scope="module")
def brief_search():
    """For tests of what comes after a search: all its parts are tried, on 200 rows in place of 600, and of its kernels
    two in place of nine. A search takes most of the time of a small fit."""
    from importlib import import_module

    search = import_module("pseudopoint.recipes.search")  # of the package, it is the function
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(search.SAMPLE, "balanced", 200)
        patch.setattr(search, "GRAMMAR", ("matern32",))
        yield


# Bytes of memory that a worker may hold before it lets go of compiled programs, and by which it may grow after that.
MEMORY, GROWTH = 2.0e9, 0.5e9
held = MEMORY - GROWTH  # after programs were let go the last time; freed memory may stay with the process


def _memory() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") if statm.exists() else 0


@pytest.fixture(autouse=True)
def few_programs():
    """A worker lets go of compiled programs once it holds much memory. Each program also keeps memory maps, of which
    Linux allows a process 65,530; beyond that XLA's compiler crashes."""
    global held
    yield
    if _memory() > held + GROWTH:
        jax.clear_caches()
        gc.collect()
        with suppress(OSError, AttributeError):  # of the GNU C library: gives freed memory back
            ctypes.CDLL(None).malloc_trim(0)
        held = max(_memory(), MEMORY - GROWTH)
