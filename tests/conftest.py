"""Core tests run in float64 inside a scope; edge tests (estimators, command line) must get by without it."""

import jax
import pytest

EDGE = {"test_estimators", "test_cli", "test_tables", "test_report", "test_metrics", "test_persistence", "test_import"}


@pytest.fixture(autouse=True)
def float64(request):
    if request.module.__name__.split(".")[-1] in EDGE:
        yield
    else:
        with jax.enable_x64(True):
            yield
