"""The parts of the benchmark. Each gives rows; every row says what it is about, and its ratio to the floor."""

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from statistics import median
from typing import Any

import cases
import numpy as np
from cases import Case, Entry
from compare import Bench, compare
from floor import Rates, collapsed_floor, predict_floor, read_rates, step_floor, strict
from talk import ENVIRONMENT, WorkerError, interpreter, settle

Rows = Iterator[dict[str, Any]]
JITTER = {"float64": 1e-7, "float32": 1e-4}
BY_CASE = ("steps", "collapsed", "predict", "quality")  # of which some cases may be asked for
COARSE = {"float64": 1.0, "float32": 1e4}  # times a case's tolerance


def chosen(all_cases: Iterable[Case], bench: Bench) -> list[Case]:
    """Those that are asked for."""
    return [case for case in all_cases if bench.cases.search(case.name)]


def fit_for(case: Case, bench: Bench) -> Case:
    """With the tolerance of the precision."""
    return case._replace(tolerance=case.tolerance * COARSE[bench.dtype])


def rates(bench: Bench, M: int, B: int) -> dict[str, float]:
    """This machine's rates now: the medians of three turns of our worker."""
    worker = bench.workers.get("ours")
    file = cases.write(bench.folder / "nothing.npz", {"X": np.zeros(1)}, bench.dtype)
    options = {"variant": "", "M": M, "B": B, "repeats": 5}
    worker.ask("prepare", key="rates", kind="rates", file=file, options=options)
    turns = [worker.ask("turn", key="rates")["rates"] for _ in range(3)]
    return read_rates({name: median(turn[name] for turn in turns) for name in turns[0]}, M, B)


def with_floor(rows: list[dict], r: Rates, M: int, floor: Callable) -> list[dict]:
    """Each row beside its floor: that of the tight bound for the tight bound, which no peer has."""
    for row in rows:
        tight = row["variant"] == "tight"
        seconds = floor(r, tight=tight)
        row |= {"floor_seconds": seconds, "strict_floor_seconds": floor(strict(r, M), tight=tight)}
        row |= {"gemm_gflops": r["gemm"] / 1e9, "exp_per_second": r["exp"]}
        if "seconds" in row:
            row["ratio_to_floor"] = row["seconds"] / seconds
    return rows


def steps(bench: Bench) -> Rows:
    """1. Training steps on NAVAL."""
    X, y = cases.naval(2000 if bench.quick else 10_740)
    for case in chosen(cases.step_cases(bench.quick), bench):
        f = case.facts
        yield from _step_rows(fit_for(case, bench), bench, X, y, f["M"], f["B"])


def _step_rows(case: Case, bench: Bench, X, y, M, B) -> list[dict]:
    f, o, D = case.facts, case.options, X.shape[1]
    turns = bench.repeats + 1
    arrays = {"X": X, "y": cases.targets(y, o["likelihood"]), "rows": cases.stream(len(y), B, o["steps"] * turns)}
    r = rates(bench, M, B)
    rows = compare(case, arrays | cases.start(X, M, JITTER[bench.dtype], f["latents"]), bench)
    natural, nodes = o["optimiser"] != "adam", 0 if o["likelihood"] == "gaussian" else 20
    floor = partial(step_floor, M=M, B=B, D=D, natural=natural, latents=f["latents"], nodes=nodes)
    return with_floor(rows, r, M, floor)


def likeness(bench: Bench) -> Rows:
    """0. Ten steps: libraries agree after them, not only at the start, where they take the same ones.

    Natural steps with everything else held are the same in all. With Adam for Z alone ours and GPyTorch agree, which
    move both from one pass; GPflow steps q first and looks again. With Adam for all, Adam sees log x here and
    softplus⁻¹ x in peers (of σ in GPJax, of σ² in others), so they only come near.
    """
    X, y = cases.naval(2000)
    plain = [(likelihood, "natural") for likelihood in cases.ONE[: 1 if bench.quick else None]]
    for likelihood, optimiser in [*plain, ("gaussian", "ngd+adam of Z"), ("gaussian", "ngd+adam")]:
        entries = [Entry("ours", ""), Entry("gpflow", ""), Entry("gpytorch", "whitened")]
        entries += [Entry("gpjax", "")] * (optimiser != "ngd+adam of Z")
        options = {"likelihood": likelihood, "optimiser": optimiser, "steps": 5, "gamma": 0.02, "rate": 0.01}
        names = tuple(entry.name for entry in entries)
        facts = {"M": 50, "B": 128, "D": 16, "latents": 1} | options
        loose = cases.LOOSE.get(likelihood, {})
        case = Case(f"{likelihood} {optimiser}", "steps", tuple(entries), options, facts, names, loose=loose)
        arrays = {"X": X, "y": cases.targets(y, likelihood), "rows": cases.stream(len(y), 128, 15)}
        arrays |= cases.start(X, 50, JITTER[bench.dtype])
        rows = compare(fit_for(case, bench), arrays, bench._replace(repeats=1))
        for row in rows:  # two turns of five steps each; ours is another rule where log p is not concave
            if row.get("end_value") is not None and rows[0].get("end_value"):
                row["end_difference"] = abs(row["end_value"] / rows[0]["end_value"] - 1)
        yield from rows


def collapsed(bench: Bench) -> Rows:
    """2. Value and gradient of the collapsed bound; memory is that of a process of its own."""
    for case in chosen(cases.collapsed_cases(bench.quick), bench):
        N, M = case.facts["N"], case.facts["M"]
        X, y = cases.synthetic(N, 16)
        r = rates(bench, M, min(N, 8192))
        # GPyTorch adds no jitter here unless it must; so the others have next to none.
        arrays = {"X": X, "y": y} | cases.start(X, M, 1e-10 if bench.dtype == "float64" else 1e-5)
        rows = compare(fit_for(case, bench), arrays, bench, own=True, apart=N * M > 5e7)
        yield from with_floor(rows, r, M, partial(collapsed_floor, N=N, M=M, D=16))


def predict(bench: Bench) -> Rows:
    """4. Mean and standard deviation of new rows, by the same posterior; scikit-learn's is that of M rows."""
    X, y = cases.synthetic(2000, 16)
    for case in chosen(cases.predict_cases(bench.quick), bench):
        n, M = case.facts["rows"], case.facts["M"]
        r = rates(bench, M, 8192)
        arrays = {"X": X, "y": y, "new": cases.synthetic(n, 16, 1)[0]}
        arrays |= cases.start(X, M, 1e-10 if bench.dtype == "float64" else 1e-5)
        # The root of q is not needed, and the new rows are most of the memory before the start.
        arrays = {name: a for name, a in arrays.items() if not name.startswith(("root", "mean"))}
        few = bench._replace(repeats=min(3, bench.repeats)) if n >= 1_000_000 else bench
        rows = compare(fit_for(case, bench), arrays, few, own=True)
        yield from with_floor(rows, r, M, lambda r, tight, n=n, M=M: predict_floor(r, n, M, 16))


IMPORTS = {
    "ours": "from pseudopoint import GPRegressor",
    "gpflow": "import gpflow",
    "gpytorch": "import gpytorch",
    "gpjax": "import gpjax",
    "sklearn": "from sklearn.gaussian_process import GaussianProcessRegressor",
}


COLD = tuple(Entry(library, "") for library in ("ours", "gpflow", "gpytorch", "sklearn")) + (
    Entry("ours", "fast"),
    Entry("gpjax", "scipy"),
    Entry("gpjax", "lbfgs"),
)


def cold(bench: Bench) -> Rows:
    """5. Import in a fresh process (beside Python's own start), and the first fit of 1,000 rows in one."""
    X, y = cases.naval(1200)
    y = y + 0.1 * np.random.default_rng(2).normal(size=len(y))
    n = 200 if bench.quick else 1000
    arrays = {"X": X[:n, 2:], "y": y[:n], "X_test": X[1000:, 2:], "y_test": y[1000:]}
    file = cases.write(bench.folder / "cold.npz", arrays, "float64")
    rounds = 1 if bench.quick else min(3, bench.repeats)
    entries = [entry for entry in COLD if entry.variant != "scipy" or not bench.quick]  # the slowest
    rows = {e: {"case": f"cold N={n}", "N": n, "library": e.library, "variant": e.variant} for e in entries}
    taken: dict[Entry, list[dict]] = {entry: [] for entry in entries}
    for _ in range(rounds):
        for entry, row in rows.items():
            if "error" not in row:
                try:
                    taken[entry].append(_cold_once(entry, bench, file, row))
                    if not np.isfinite(taken[entry][-1]["density"]):
                        row["error"] = "its fit ended in NaN"
                except (WorkerError, subprocess.SubprocessError, OSError) as error:
                    row["error"] = str(error)
    for entry, row in rows.items():
        for name in taken[entry][0] if taken[entry] else ():
            row[name] = median(each[name] for each in taken[entry])
        bench.say(f"  cold {entry.name}: {row.get('total_seconds', np.nan):.1f} s, {row.get('error', 'done')}\n")
        yield row


def _cold_once(entry: Entry, bench: Bench, file: str, row: dict) -> dict:
    seconds, python = {}, interpreter(entry.library, bench.workers.envs)
    for name, code in (("python_seconds", "pass"), ("import_seconds", IMPORTS[entry.library])):
        settle()
        start = time.perf_counter()
        subprocess.run([python, "-c", code], check=True, capture_output=True, timeout=300, env=os.environ | ENVIRONMENT)
        seconds[name] = time.perf_counter() - start
    settle()
    start = time.perf_counter()
    worker = bench.workers.fresh(entry.library)
    try:
        answer = worker.ask("prepare", key="cold", kind="cold", file=file, options={"variant": entry.variant})
        turn = worker.ask("turn", key="cold")
        seconds |= {"seconds": turn["seconds"], "total_seconds": time.perf_counter() - start}
        seconds |= {"peak_mb": turn["peak_mb"], "density": worker.ask("value", key="cold")["value"]}
    finally:
        worker.close()
    row |= {"about": answer["about"], "versions": worker.about["versions"]}
    return seconds


GROWTH = {  # what grows: its sizes, and the others
    "M": ((50, 100, 200, 400, 800), {"B": 1024, "D": 16}),
    "B": ((128, 256, 512, 1024, 2048, 4096), {"M": 200, "D": 16}),
    "D": ((2, 4, 8, 16, 32, 64), {"M": 200, "B": 1024}),
    "N": ((5_000, 10_000, 20_000, 40_000, 80_000, 160_000), {"M": 200, "D": 16}),
}
GROWTH_QUICK = {
    "M": ((10, 20, 40), {"B": 64, "D": 4}),
    "N": ((500, 1000, 2000), {"M": 20, "D": 4}),
}


def growth(bench: Bench) -> Rows:
    """6. Our step (Gaussian, natural gradient and Adam, tight) against M, B and D; our collapsed bound against N."""
    for symbol, (sizes, others) in (GROWTH_QUICK if bench.quick else GROWTH).items():
        for size in sizes:
            at = others | {symbol: size}
            yield from ({"grows": symbol, "size": size} | row for row in _growth_rows(symbol, at, bench))


def _growth_rows(symbol: str, at: dict, bench: Bench) -> list[dict]:
    entries, M, D = (Entry("ours", "tight"),), at["M"], at["D"]
    if symbol == "N":
        N = at["N"]
        X, y = cases.synthetic(N, D)
        r = rates(bench, M, min(N, 8192))
        case = Case(f"growth N={N}", "collapsed", entries, {}, at)
        rows = compare(case, {"X": X, "y": y} | cases.start(X, M, JITTER[bench.dtype]), bench)
        return with_floor(rows, r, M, partial(collapsed_floor, N=N, M=M, D=D))
    X, y = cases.synthetic(12_000, D)
    n = max(2, min(50, round(2e9 / (8 * M * M * at["B"] + 10 * M**3))))
    options = {"likelihood": "gaussian", "optimiser": "ngd+adam", "steps": n, "gamma": 0.02, "rate": 0.01}
    case = Case(f"growth {symbol}={at[symbol]}", "steps", entries, options, at | options | {"latents": 1})
    return _step_rows(case, bench, X, y, M, at["B"])
