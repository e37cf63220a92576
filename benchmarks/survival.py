"""Kills a fit with a checkpoint (-9) at random moments, and resumes it: how many went on, how many ended bit for bit.

    python benchmarks/survival.py --kills 50 --seed 0
    python benchmarks/survival.py --workers 10 --seed 0

The fit takes minibatches, writes its state after every segment, and is resumed until it ends. A kill falls at any
moment from the import of the library to the end of the fit; a fit is killed up to five times. One row goes to
results/survival.jsonl: `same` of `fits` ended with the numbers of a fit that was not disturbed.

With --workers so many fits run on the two workers of a Dask cluster, in turn full passes and steps on large batches, of
which one is killed at a random iteration; `same` are those whose bound is that of a fit that was not disturbed to 1e-8.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

__all__ = ["prepared", "survived"]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "survival.jsonl"
KILLS_OF_A_FIT = 5
CHILD = """
import sys
from pseudopoint import GPRegressor
from pseudopoint.estimators import checkpoints
checkpoints.EVERY = 0.0
model = GPRegressor(effort="fast", method="svgp", num_inducing=4, inducing="kmeans", initial="robust", batch_size=16,
                    max_iter=400)
model.fit("t.csv", "y", checkpoint=sys.argv[1], resume=True)
model.save(sys.argv[1] + ".model")
"""


def _child(folder: Path, name: str) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-c", CHILD, name]
    return subprocess.Popen(line, cwd=folder, env=environment, stderr=subprocess.PIPE, start_new_session=True)


def _predictions(folder: Path, name: str) -> np.ndarray:
    from pseudopoint import GPRegressor

    model = GPRegressor.load(folder / f"{name}.model")
    return np.concatenate([[model.bound_], *model.predict(np.eye(2), return_std=True)])


def prepared(folder: Path) -> tuple[np.ndarray, float]:
    """What a fit ends with that is not disturbed, and the seconds it takes once its programs are compiled."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    table = np.column_stack([X, np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=120)])
    np.savetxt(folder / "t.csv", table, delimiter=",", header="a,b,y", comments="")
    seconds = 0.0
    for name in ("first", "whole"):
        start = time.perf_counter()
        _finished(_child(folder, name))
        seconds = time.perf_counter() - start
    return _predictions(folder, "whole"), seconds


def _finished(child: subprocess.Popen) -> None:
    _, error = child.communicate()
    if child.returncode:
        raise RuntimeError(f"a fit that was not killed ended with {child.returncode}: {error.decode()[-2000:]}")


def survived(folder: Path, name: str, moments: list[float], whole: np.ndarray) -> dict[str, int]:
    """Kills a fit after so many seconds, resumes it, kills it again, and then lets it finish: how many kills came
    before the end, how many of them while steps were kept, after how many it went on, and whether the numbers
    are the same in the end, bit for bit."""
    kills, within, resumed = 0, 0, 0
    for after in [*moments, None]:
        child = _child(folder, name)
        if after is not None:
            time.sleep(after)
        alive = after is not None and child.poll() is None
        if alive:
            within += (folder / name / "steps.safetensors").exists()
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        if not alive and child.returncode:  # it did not go on
            break
        resumed = kills
        kills += alive
    else:
        return _counts(kills, within, resumed, np.array_equal(_predictions(folder, name), whole))
    return _counts(kills, within, resumed, False)


def _counts(kills: int, within: int, resumed: int, same: bool) -> dict[str, int]:
    return {"fits": 1, "kills": kills, "within_steps": within, "resumed": resumed, "same": int(same)}


def workers_killed(fits: int, moments: random.Random) -> dict[str, int]:
    """A worker killed in each of so many fits: how many were, and how many of the fits have the same bound."""
    import pandas as pd
    from dask import dataframe

    from pseudopoint import GPRegressor
    from pseudopoint.tables import running_cluster

    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(40_000, 3)), columns=list("abc"))
    table["y"] = np.sin(2 * table.a) * np.cos(table.b) + 0.3 * rng.normal(size=len(table))
    common = {"effort": "fast", "num_inducing": 20, "inducing": "kmeans", "initial": "robust"}
    ways = [{"method": "collapsed", "max_iter": 8}, {"method": "svgp", "batch_size": 10_000, "max_iter": 100}]
    total, undisturbed = Counter(), []
    with running_cluster(workers=2) as client, client.as_current():
        rows = dataframe.from_pandas(table, npartitions=8)

        def fit(way: int, at: float) -> float:
            def kill(record) -> None:
                if at <= record.step / record.total < 1 and not killed:
                    killed.append(moments.choice(sorted(client.run(os.getpid).values())))
                    os.kill(killed[0], signal.SIGKILL)

            killed = []
            model = GPRegressor(**common | ways[way]).fit(rows, "y", progress=kill)
            client.wait_for_workers(2, timeout=120)
            total["kills"] += len(killed)
            return float(model.bound_)

        undisturbed = [fit(way, 2.0) for way in (0, 1)]
        for i in range(fits):
            bound = fit(i % 2, moments.uniform(0, 0.5))
            total["fits"] += 1
            total["same"] += bool(np.isclose(bound, undisturbed[i % 2], rtol=1e-8))
            print(dict(total), flush=True)
    return dict(total)


def main() -> None:
    """Many kills, and one row."""
    from provenance import store

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=0, help="kill a worker in so many fits on a cluster")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    moments, total = random.Random(options.seed), Counter()
    if options.workers:
        found = workers_killed(options.workers, moments)
        return store({"case": "workers", "seed": options.seed} | found, RESULTS)
    with tempfile.TemporaryDirectory() as name:
        whole, seconds = prepared(Path(name))
        while total["kills"] < options.kills:
            few = min(KILLS_OF_A_FIT, options.kills - total["kills"])
            at = [moments.uniform(0, seconds) for _ in range(few)]
            total.update(survived(Path(name), f"fit{total['fits']}", at, whole))
            print(dict(total), flush=True)
    store({"seed": options.seed} | dict(total), RESULTS)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
