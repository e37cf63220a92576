"""kill -9: a fit with a checkpoint goes on, and ends bit for bit as one that was not disturbed."""

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.edge


def test_a_fit_that_is_killed_at_three_moments_ends_as_one_that_was_not(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    import survival  # pyright: ignore[reportMissingImports]

    whole, seconds = survival.prepared(tmp_path)
    found = survival.survived(tmp_path, "fit", [0.5 * seconds, 0.7 * seconds, 0.8 * seconds], whole)
    assert found["kills"] == found["resumed"] > 0 and found["same"] == 1
    sys.modules.pop("survival")
