"""3. Time to quality: seconds from raw arrays to a given test log density, compilation included.

The rule, the same for all. Split: default_rng(0).permutation(N), the first 90 % train. M points for everybody, as many
as our default has. Peers train as their documentation advises, each for the same budget of seconds; their test log
density (of the standardised target) is measured now and then while the clock stands. The target is the best density
that any peer has reached within the budget, less 1 % of its size. A peer's time is that of its first look at or above
the target. Ours is an estimator, whole: `fit` to the end, as by default and with `effort="fast"`, which fits one
kernel, as the peers do. It has no looks inside. The default, which searches first, is fitted once. The fast fit is made
again with fewer and fewer iterations (half each time) while it still reaches the target, and then between the last two,
until they are an eighth apart; the shortest fit that reaches it is its time, and the first one's own time and density
stand beside it. Ours climbs in float32 where the noise allows it and ends in float64; so the fast fit with
dtype="float64" is another row, searched from twice the shortest's iterations on. Peers compute in the precision that
was asked for (`--dtype`). Imports are outside of the clock and stated.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cases
import numpy as np
from cases import Entry
from compare import Bench
from talk import WorkerError, settle

TABLES = {"naval": "regression", "kin40k": "regression", "protein": "regression", "magic": "classification"}
REGRESSION = (
    Entry("gpflow", "sgpr"), Entry("gpflow", "svgp"), Entry("gpytorch", "ngd"), Entry("gpytorch", "adam"),
    Entry("gpjax", ""),
)  # fmt: skip
BATCH = 256  # of peers
FEWEST = 2  # of our iterations


def split(path: Path, rows: int | None) -> dict[str, np.ndarray]:
    """Raw training and test arrays."""
    X, y = cases.read_table(path)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[: int(0.9 * len(y))][:rows], order[int(0.9 * len(y)) :][:rows]
    return {"X": X[train], "y": y[train], "X_test": X[test], "y_test": y[test]}


def target_of(curves: dict[Entry, list[dict]]) -> float:
    """The best that any peer reached, less 1 % of its size."""
    densities = [look["density"] for curve in curves.values() for look in curve if np.isfinite(look["density"])]
    best = max(densities, default=np.nan)
    return best - 0.01 * abs(best)


def reached(curve: list[dict], target: float) -> float | None:
    """Seconds at the first look at or above the target."""
    return next((look["seconds"] for look in curve if look["density"] >= target), None)


def quality(bench: Bench, data: Path | None, budget: float) -> Iterator[dict[str, Any]]:
    """Rows of every table."""
    for name, task in TABLES.items():
        if (bench.quick and name != "naval") or not bench.cases.search(name):
            continue
        path = cases.NAVAL if name == "naval" and data is None else (data or Path()) / f"{name}.csv.gz"
        if not path.exists():
            yield {
                "case": name,
                "library": "all",
                "variant": "",
                "error": f"no {name}.csv.gz: give its folder by --data",
            }
            continue
        yield from _table(name, task, split(path, 500 if bench.quick else None), bench, budget)


def _table(name: str, task: str, arrays: dict, bench: Bench, budget: float) -> Iterator[dict]:
    file = cases.write(bench.folder / "quality.npz", arrays, bench.dtype)
    N = len(arrays["y"])
    M = 20 if bench.quick else int(min(N, np.clip(2 * np.sqrt(N), 50, 300)))
    options = {"task": task, "M": M, "batch": BATCH, "budget": budget}
    facts = {"case": name, "N": N, "M": M, "task": task, "budget": budget, "batch_of_peers": BATCH}
    facts |= {"dtype": bench.dtype}
    curves, rows = {}, []
    for entry in [e for e in REGRESSION if task == "regression" or e.variant != "sgpr"]:
        row, answer = _once(entry, file, options, bench)
        curves[entry] = answer.get("curve", [])
        last = curves[entry][-1] if curves[entry] else {}
        rows.append(facts | row | {"looks": len(curves[entry]), "curve": curves[entry], "density": last.get("density")})
        bench.say(f"  {name} {entry.name}: {last or row.get('error')}\n")
    target = target_of(curves)
    for row, curve in zip(rows, curves.values(), strict=True):
        yield row | {"target": target, "seconds": reached(curve, target)}
    yield facts | _ours("", {}, name, file, options, target, bench, shorter=False)
    fast = _ours("fast", {"effort": "fast"}, name, file, options, target, bench)
    yield facts | fast
    first = 2 * fast["best_iterations"] if fast["best_iterations"] else None
    double = {"effort": "fast", "dtype": "float64"}
    yield facts | _ours("fast, float64", double, name, file, options, target, bench, first)


def _once(entry: Entry, file: str, options: dict, bench: Bench) -> tuple[dict, dict]:
    row: dict[str, Any] = {"library": entry.library, "variant": entry.variant}
    settle()
    worker = None
    try:
        worker = bench.workers.fresh(entry.library)
        row |= {"versions": worker.about["versions"], "import_seconds": worker.about["import_seconds"]}
        about = worker.ask("prepare", key="q", kind="quality", file=file, options=options | {"variant": entry.variant})
        row["about"] = about["about"]
        try:
            turn = worker.ask("turn", key="q")
            row |= {"whole_seconds": turn["seconds"], "peak_mb": turn["peak_mb"]}
        except WorkerError as error:  # what was seen before it failed counts
            row["error"] = str(error)
        return row, worker.ask("finish", key="q")
    except WorkerError as error:
        return {"error": str(error)} | row, {}
    finally:
        if worker is not None:
            worker.close()


def _ours(
    variant: str, settings: dict, name: str, file: str, options: dict, target: float, bench: Bench,
    first: int | None = None, shorter: bool = True,
) -> dict:  # fmt: skip
    """The fit with `first` iterations (None: the default's), and with `shorter` the shortest that reaches the
    target."""
    settings = settings | ({"num_inducing": options["M"]} if bench.quick else {})
    fits, iterations, enough, short = [], first, None, 0
    while iterations is None or iterations >= FEWEST:
        asked = options | {"settings": settings, "max_iter": iterations}
        row, answer = _once(Entry("ours", variant), file, asked, bench)
        if "error" in row:
            break
        fits.append({"max_iter": iterations, "seconds": row["whole_seconds"], **answer})
        bench.say(f"  {name} ours {variant}: {fits[-1]}\n")
        if answer["density"] >= target:
            enough = answer["iterations"]
        else:
            short = answer["iterations"]
        if bench.quick or not shorter or enough is None or (short and enough - short <= max(1, enough // 8)):
            break
        iterations = (enough + short) // 2
    good = [fit for fit in fits if fit["density"] >= target]
    best = min(good, key=lambda fit: fit["seconds"], default={"seconds": None, "iterations": None})
    default = {"whole_seconds": fits[0]["seconds"], "density": fits[0]["density"]} if fits and first is None else {}
    found = {"target": target, "seconds": best["seconds"], "best_iterations": best["iterations"], "fits": fits}
    return row | default | found
