"""Kills the command line (-9) at random moments of fit, predict and save: no file is damaged, and none is lost.

    python tests/kill.py --kills 100 --seed 0

Before each kill there is a good model file and a good file of predictions, which the command is about to replace. After
it each of them is the old one or the new one, whole: it loads, and holds all rows. The table is as it was. What may be
left beside them is a temporary file (`.NAME.….part`), which nothing could have removed; the next run is none the worse.
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
import pandas as pd

__all__ = ["killed", "prepared"]

ROOT = Path(__file__).parent.parent
ROWS = 60_000  # of the table to predict: enough that writing takes a while


def _run(folder: Path, *words: str) -> subprocess.Popen:
    """The command line, in its own session."""
    line = [sys.executable, "-m", "pseudopoint", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(line, cwd=folder, env=environment, stdout=quiet, stderr=quiet, start_new_session=True)


FIT = (
    "fit",
    "t.csv",
    "--target",
    "y",
    "--out",
    "model",
    "--report",
    "report.html",
    "--max-iter",
    "5",
    "--effort",
    "fast",
)
PREDICT = ("predict", "model", "many.csv", "--out", "out.csv")


def prepared(folder: Path) -> dict[str, float]:
    """Fills a folder with tables, a model, a report and predictions. How long each command takes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": X.sum(axis=1)}).to_csv(folder / "t.csv", index=False)
    pd.DataFrame(rng.normal(size=(ROWS, 2)), columns=["a", "b"]).to_csv(folder / "many.csv", index=False)
    seconds = {}
    for name, words in {"fit": FIT, "predict": PREDICT}.items():
        start = time.perf_counter()
        if status := _run(folder, *words).wait():
            raise RuntimeError(f"{name} ended with {status} before any kill")
        seconds[name] = time.perf_counter() - start
    return seconds


def contents(folder: Path) -> dict[str, bytes]:
    """What every file holds, temporary ones aside."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith(".part")}


def killed(folder: Path, name: str, after: float) -> str:
    """Kills a command after so many seconds, or as soon as its temporary file is there (`after` < 0). How it ended.

    Raises AssertionError if a file is damaged or lost.
    """
    before = contents(folder)
    process = _run(folder, *(FIT if name == "fit" else PREDICT))
    _wait(folder, process, after)
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    parts = [path for path in folder.iterdir() if path.name.endswith(".part")]
    whole(folder, before)
    for part in parts:
        part.unlink()
    return f"{name}: " + ("not killed, done" if not alive else "killed while it wrote" if parts else "killed")


def _wait(folder: Path, process: subprocess.Popen, after: float) -> None:
    end = time.perf_counter() + (after if after >= 0 else 60)
    while time.perf_counter() < end and process.poll() is None:
        if after < 0 and any(path.name.endswith(".part") for path in folder.iterdir()):
            time.sleep(-after)
            return
        time.sleep(0.001)


def whole(folder: Path, before: dict[str, bytes]) -> None:
    """AssertionError unless all files are there, and each is the old one or a whole new one."""
    from pseudopoint import GPRegressor

    after = contents(folder)
    assert after.keys() == before.keys(), f"files {sorted(after)} are not {sorted(before)}"
    for table in ("t.csv", "many.csv"):
        assert after[table] == before[table], f"{table} has changed"
    GPRegressor.load(folder / "model").predict([[0.0, 0.0]])
    assert after["report.html"].rstrip().endswith(b"</html>"), "a report without its end"
    if after["out.csv"] != before["out.csv"]:
        frame = pd.read_csv(folder / "out.csv")
        assert len(frame) == ROWS and np.isfinite(frame.to_numpy()).all(), "predictions are not whole"


def main() -> None:
    """Many kills by hand: at any moment of the command, and every other time while a file is being written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    moments, outcomes = random.Random(options.seed), Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds = prepared(folder)
        print(f"undisturbed: {', '.join(f'{name} {value:.1f} s' for name, value in seconds.items())}", flush=True)
        for kill in range(options.kills):
            command = "fit" if kill % 2 else "predict"
            anywhere = kill % 4 < 2
            after = moments.uniform(0, seconds[command]) if anywhere else -moments.uniform(0, 0.02)
            outcomes[killed(folder, command, after)] += 1
            if kill % 20 == 19:
                print(kill + 1, dict(outcomes), flush=True)
    print(f"{options.kills} kills, no file damaged or lost: {dict(outcomes)}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
