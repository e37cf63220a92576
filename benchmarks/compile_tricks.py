"""What each trick that concerns the compiler gains: first fits and later ones, with the trick and without it.

    python benchmarks/compile_tricks.py [--rounds 5] [--tricks brief,once] [--quick] [--out FILE]

Every fit runs in a fresh process without a cache of compiled programs. A round runs each case once as it is and once
without each trick that it uses, and each round begins with another of them. A worker fits the same table three more
times, when nothing is left to compile. The package has no switch: a worker replaces parts of it before its first fit.

Writes a row for each trick and case: medians over rounds of the first fit and of a later fit, in seconds of wall clock
and of processor time, and the share of the time without the trick that it saves. Prints the same. --quick takes toy
sizes, to see that it works.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).parent / "results" / "compile_tricks.jsonl"
LATER = 3  # fits after the first one
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "exact": ("GPRegressor", 500, {}),
    "laplace": ("GPClassifier", 500, {"method": "laplace"}),
    "profile": ("GPClassifier", 600, {"method": "collapsed"}),
    "collapsed": ("GPRegressor", 3000, {"method": "collapsed", "num_inducing": 100}),
    "large": ("GPRegressor", 10_000, {"method": "collapsed", "num_inducing": 100}),
    "large-many": ("GPRegressor", 10_000, {"method": "collapsed", "num_inducing": 200}),
    "minibatches": ("GPClassifier", 10_000, {"method": "svgp", "num_inducing": 100, "max_iter": 1000}),
}
QUICK = {  # more than 5,000 rows where a sample of them comes first
    "exact": (60, {"max_iter": 3}),
    "laplace": (60, {"max_iter": 3}),
    "profile": (60, {"max_iter": 3, "num_inducing": 10}),
    "collapsed": (150, {"max_iter": 3, "num_inducing": 10}),
    "large": (5100, {"max_iter": 3, "num_inducing": 10}),
    "large-many": (5100, {"max_iter": 2, "num_inducing": 150}),
    "minibatches": (5100, {"max_iter": 20, "num_inducing": 10}),
}


# --- Without a trick ---


def _without_mode(mode: str) -> None:
    """Compiles programs of this mode as XLA does by default."""
    import jax

    jit: Any = jax.jit

    def plain(function, compiler_options=None, **options):
        found = compiler_options and ("once" if "xla_backend_optimization_level" in compiler_options else "brief")
        return jit(function, compiler_options=None if found == mode else compiler_options, **options)

    jax.jit = plain  # pyright: ignore[reportAttributeAccessIssue]


def _without_rows_of_weight_zero() -> None:
    """The sample of a large table has its own shape, and so its own program: the same rows, and no others."""
    from pseudopoint.data import take
    from pseudopoint.recipes import objectives

    sample = objectives.same_shape_sample
    objectives.same_shape_sample = lambda data, size, seed: take(sample(data, size, seed), np.arange(size))


def _without_warm_fit_by_the_bound() -> None:
    """Warm hyperparameters come from the exact evidence of 500 rows, whatever the number of points."""
    from pseudopoint.recipes import starts

    starts.ENOUGH_POINTS = np.inf


def _without_kept_predictor() -> None:
    """The predictor of Laplace's approximation comes from a program at the end of a fit."""
    from pseudopoint.compilation import program
    from pseudopoint.recipes import methods
    from pseudopoint.recipes.objectives import OfBound

    maximise = methods.maximise

    def without(objective, prior, model, data, *arguments, **options):
        if not objective.solved:
            return maximise(objective, prior, model, data, *arguments, **options)
        result = maximise(OfBound(objective.bound), prior, model, data, *arguments, **options)
        return result._replace(aux=program(objective, "once")(result.model, data)[1])

    methods.maximise = without


def _without_shared_kernel() -> None:
    """Every natural step towards the best q computes the kernel and its factor again."""
    from pseudopoint.bounds import AtRows
    from pseudopoint.optimise.fullbatch import inner
    from pseudopoint.posteriors import Model

    known = inner.energies_at

    def anew(at, num_data, tight=True):
        kernel = at.basis.kernel
        return known(AtRows.of(Model(kernel, at.likelihood, at.posterior), at.batch), num_data, tight)

    inner.energies_at = anew


LARGE = ("large", "large-many")
TRICKS: dict[str, tuple[str, Callable[[], None], tuple[str, ...]]] = {
    "brief": ("XLA's older emitters where an evaluation is brief", lambda: _without_mode("brief"), tuple(CASES)),
    "once": ("no LLVM optimisation of what runs once", lambda: _without_mode("once"), tuple(CASES)),
    "weight-zero": ("one program for the sample and for all rows", _without_rows_of_weight_zero, LARGE),
    "warm-by-bound": ("no program for a warm fit", _without_warm_fit_by_the_bound, LARGE[1:]),
    "kept-predictor": ("no program for the predictor", _without_kept_predictor, ("laplace",)),
    "shared-kernel": ("one kernel matrix for all natural steps", _without_shared_kernel, ("profile",)),
}


# --- One process ---


def table(case: str, N: int) -> tuple[np.ndarray, np.ndarray]:
    """Eight standard normal columns; waves and a trend in some of them, with noise; a sign for classifiers."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 8))
    y = np.sin(2 * X[:, 0]) + np.cos(X[:, 1] * X[:, 2]) + 0.5 * X[:, 3] + 0.3 * rng.normal(size=N)
    return X, (y > 0) if CASES[case][0] == "GPClassifier" else y


def work(case: str, off: str, quick: bool) -> dict[str, Any]:
    """Seconds of a first fit and of later ones, from arrays to a fitted estimator; imports come before."""
    import pseudopoint

    name, N, settings = CASES[case]
    if quick:
        N, settings = QUICK[case][0], settings | QUICK[case][1]
    X, y = table(case, N)
    if off != "nothing":
        TRICKS[off][1]()
    model: Any = getattr(pseudopoint, name)(random_state=0, **settings)
    times = []
    for _ in range(1 + LATER):
        wall, processor = time.perf_counter(), time.process_time()
        model.fit(X, y)
        times.append((time.perf_counter() - wall, time.process_time() - processor))
    first, later = times[0], np.median(times[1:], axis=0).tolist()
    return {
        "first": first[0], "first_processor": first[1], "later": later[0], "later_processor": later[1],
        "bound": float(model.bound_), "iterations": int(model.n_iter_),
    }  # fmt: skip


# --- All of them ---


def measure(case: str, off: str, quick: bool) -> dict[str, Any]:
    """`work` in a fresh process. Raises CalledProcessError where it fails."""
    command = [sys.executable, __file__, "--worker", case, off, *(["--quick"] if quick else [])]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": "", "PYTHONPATH": str(Path(__file__).parents[1])}
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def rows(rounds: int, tricks: list[str], quick: bool) -> list[dict[str, Any]]:
    """A row for each trick and case."""
    made, command = [], " ".join(["python benchmarks/compile_tricks.py", *sys.argv[1:]])
    about = f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}"
    for case in CASES:
        variants = ["nothing", *(trick for trick in tricks if case in TRICKS[trick][2])]
        if len(variants) == 1:
            continue
        seen: dict[str, list[dict[str, Any]]] = {off: [] for off in variants}
        for turn in range(rounds):
            for off in np.roll(variants, -turn).tolist():
                seen[off].append(measure(case, off, quick))
        medians = {off: {key: float(np.median([r[key] for r in of])) for key in of[0]} for off, of in seen.items()}
        for off in variants[1:]:
            on, without = medians["nothing"], medians[off]
            gains = {f"gain_{k}": round(1 - on[k] / without[k], 4) for k in on if k.startswith(("first", "later"))}
            row = {"trick": off, "what": TRICKS[off][0], "case": case, "rounds": rounds, "quick": quick} | gains
            made.append(row | {"with": on, "without": without, "machine": about, "command": command})
            shares = "".join(f"{key[5:]} {gain:7.1%}  " for key, gain in gains.items())
            print(f"{off:16s}{case:14s}{shares}", flush=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tricks", default=",".join(TRICKS), help="names, separated by commas")
    parser.add_argument("--quick", action="store_true", help="toy sizes")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--worker", nargs=2, metavar=("CASE", "OFF"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(work(*options.worker, quick=options.quick)))
        return
    made = rows(options.rounds, options.tricks.split(","), options.quick)
    options.out.write_text("".join(json.dumps(row) + "\n" for row in made))


if __name__ == "__main__":
    main()
