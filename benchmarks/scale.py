"""What a streamed fit costs beside the same fit in memory: seconds of a step or a pass, and peak memory.

    python benchmarks/scale.py --rows 20000000 --columns 8
    python benchmarks/scale.py --rows 1000000 --cases collapsed,collapsed-memory,cluster-1,cluster-2

Writes a Parquet table of so many rows (once, in --folder), then runs each case in a process of its own, because peak
memory is that of a process: minibatch steps and full passes, streamed and in memory, scoring, and on one and two
workers of a Dask cluster, each with its own cores, full passes (cluster-1) and steps of 100,000 rows (batches-1).
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from provenance import ROOT, store

GROUP = 100_000  # rows of a row group
STEPS = {"svgp": 400, "collapsed": 4, "batches": 40}
LARGE = 100_000  # rows of a batch that is drawn on the workers
CASES = "svgp,svgp-memory,collapsed,collapsed-memory,score"


def write(path: Path, rows: int, columns: int) -> None:
    """A smooth target of two columns, with noise."""
    rng, names = np.random.default_rng(0), [f"x{j}" for j in range(columns)]
    schema = pa.schema([(name, pa.float64()) for name in [*names, "y"]])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, GROUP):
            X = rng.normal(size=(min(GROUP, rows - start), columns))
            y = np.sin(2 * X[:, 0]) * np.cos(X[:, 1 % columns]) + 0.3 * rng.normal(size=len(X))
            writer.write_table(pa.table([*X.T, y], schema=schema))


def case(path: Path, method: str, place: str, M: int) -> dict:
    """Seconds of one step or pass, by the history, and peak memory in MB."""
    from pseudopoint import GPRegressor

    options = {"method": "svgp", "batch_size": LARGE} if method == "batches" else {"method": method}
    steps = STEPS[method]
    model = GPRegressor(effort="fast", num_inducing=M, max_iter=steps, inducing="kmeans", dtype="float64", **options)
    begin = time.perf_counter()
    if place == "memory":
        table = pq.read_table(path)
        X = np.column_stack([table[name] for name in table.column_names if name != "y"])
        model.fit(X, table["y"].to_numpy())
    elif place:
        on_cluster(model, path, int(place))
    else:
        model.fit(path, "y")
    seconds, made = model.history_["seconds"], model.history_["step"]
    each = float((seconds[-1] - seconds[0]) / max(made[-1] - made[0], 1))
    found = {"seconds_each": each, "seconds": time.perf_counter() - begin, "steps": int(made[-1])}
    return found | {"bound": float(model.bound_)}


def on_cluster(model, path: Path, workers: int) -> None:
    """The fit, on so many workers of a local cluster, which have one core each."""
    from dask import dataframe

    from pseudopoint.processes import cores
    from pseudopoint.tables import running_cluster

    with running_cluster(workers=max(workers, cores())) as client, client.as_current():
        client.retire_workers(sorted(client.nthreads())[workers:])
        model.fit(dataframe.read_parquet(path, split_row_groups=True), "y")


def score(path: Path, M: int) -> dict:
    """Seconds of a score of all rows by a model of the first of them."""
    from pseudopoint.commands import fit_table, score_table

    with tempfile.TemporaryDirectory() as folder:
        head, model = Path(folder) / "head.parquet", Path(folder) / "model"
        pq.write_table(pq.ParquetFile(path).read_row_group(0).slice(0, 20_000), head)
        fit_table(head, "y", out=model, effort="fast", method="collapsed", num_inducing=M, max_iter=5)
        begin = time.perf_counter()
        result = score_table(model, path)
        return {"seconds": time.perf_counter() - begin, "rows": result["rows"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--inducing", type=int, default=300)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "scale.jsonl")
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--here", action="store_true", help="the one case in this process; for workers")
    given = parser.parse_args()
    path = given.folder / f"scale-{given.rows}x{given.columns}.parquet"
    if not path.exists():
        write(path, given.rows, given.columns)
    if not given.here:
        for name in given.cases.split(","):
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--cases", name, "--here"], check=True)
        return
    method, _, place = given.cases.replace("cluster", "collapsed").partition("-")
    found = score(path, given.inducing) if method == "score" else case(path, method, place, given.inducing)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row = {"suite": "scale", "case": given.cases, "rows": given.rows, "columns": given.columns, "M": given.inducing}
    store(row | found | {"peak_mb": peak}, given.out)


if __name__ == "__main__":
    main()
