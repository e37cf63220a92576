"""Streamed fits, predictions and scores of a table that does not fit into the memory that the process may take."""

import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.edge,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA counts all memory on Linux alone"),
]

# The limit counts private memory that can be written: not the addresses that XLA reserves, and not the libraries.
# CAP is what may be added once these are loaded. Most of what a streamed fit adds are programs and their compilation.
# The table alone takes more than CAP, so that reading it whole has to fail.
CODE = """
import resource, sys
from pathlib import Path
import jax, numpy as np, pandas as pd, pyarrow as pa, pyarrow.parquet as pq
from pseudopoint.commands import fit_table, predict_table, score_table

CAP, GROUP, GROUPS, TEXT = 600 * 2**20, 20_000, 40, 1100
folder, rng = Path(sys.argv[1]), np.random.default_rng(0)
a, kind = rng.normal(size=GROUP), rng.integers(0, 3, GROUP)
y = np.sin(a) + kind + 0.1 * rng.normal(size=GROUP)
part = pa.table({"a": a, "kind": np.array([letter * TEXT for letter in "abc"])[kind], "y": y})
assert part.nbytes * GROUPS > 1.3 * CAP
with pq.ParquetWriter(folder / "t.parquet", part.schema) as writer:
    for _ in range(GROUPS):
        writer.write_table(part)
jax.numpy.ones(3) + 1

held = next(line for line in open("/proc/self/status") if line.startswith("VmData:"))
cap = int(held.split()[1]) * 1024 + CAP
resource.setrlimit(resource.RLIMIT_DATA, (cap, cap))
settings = {"effort": "fast", "kernel": "rbf", "num_inducing": 5, "inducing": "kmeans", "initial": "robust"}
steps = {"method": "svgp", "batch_size": 1000, "max_iter": 20, "likelihood": "gaussian"}
fitted = fit_table(folder / "t.parquet", "y", stream=True, out=folder / "m", **settings, **steps)
scored = score_table(folder / "m", folder / "t.parquet")
predicted = predict_table(folder / "m", folder / "t.parquet", folder / "p.parquet")
assert fitted["rows"] + fitted["test"]["rows"] == scored["rows"] == predicted["rows"] == GROUP * GROUPS
assert scored["r2"] > 0.9
try:
    pd.read_parquet(folder / "t.parquet")
except (MemoryError, pa.ArrowMemoryError):
    print("does not fit in memory")
"""


def test_a_table_larger_than_the_memory_is_fitted_scored_and_predicted(tmp_path):
    run = subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["does not fit in memory"]
