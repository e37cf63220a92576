"""Our own steps and bounds in two checkouts, in turn: what a change to the code does to their time.

    python benchmarks/ours.py OTHER_CHECKOUT [--rounds 9] [--cases "adam|student"] [--out FILE.jsonl]

One process for each checkout, by the checkout's own copy of this file, stays alive, compiles a case once, and waits on
its input while the other takes its turn.
Prints, for each case, the medians and quartiles in milliseconds, wall clock and processor time (which other work on
the machine disturbs less), of OTHER_CHECKOUT and of this one, and their ratio. With --out, rows of results/ours.jsonl.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from provenance import store

M, B, N, D, STEPS = 500, 1024, 10_000, 16, 10


def cases() -> dict[str, Any]:
    """By name, what a turn does: STEPS steps, or one value and gradient, as a partial of a compiled function. In a
    worker, from its own checkout."""
    import jax
    import optax

    from pseudopoint.bounds import collapsed
    from pseudopoint.data import dataset, draw, take
    from pseudopoint.gaussians import MeanChol, MeanPrecision
    from pseudopoint.kernels import RBF
    from pseudopoint.likelihoods import Bernoulli, Gaussian, RobustMax, Softmax, StudentT
    from pseudopoint.optimise.minibatch import NaturalGradient, Optax, constant
    from pseudopoint.params import cast, trainable
    from pseudopoint.posteriors import Collapsed, IndependentLatents, Model, Whitened

    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    data = dataset(X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=N))
    digits, signs = dataset(X, np.argmax(X[:, :10], axis=1)), dataset(X, (X[:, 0] > 0) * 1.0)
    adam, gaussian, precision = optax.adam(0.01), Gaussian(0.1), lambda M: MeanPrecision(np.zeros(M), np.eye(M))

    def steps(likelihood, posterior, stepper, size=B):
        model = cast(Model(RBF(np.full(D, 4.0), 2.0), likelihood, posterior), "float64")
        table = signs if isinstance(likelihood, Bernoulli) else data if likelihood.latents == 1 else digits
        batches = take(table, draw(N, size, 0, 0, STEPS))

        @jax.jit
        def run(model, state):
            def body(carry, batch):
                model, state, info = stepper.step(*carry, batch, N)
                return (model, state), info.bound

            return jax.lax.scan(body, (model, state), batches)

        state = stepper.init(model, N)
        return partial(run, model, state)

    def bound(tight, M=M):
        model = cast(Model(RBF(np.full(D, 4.0), 2.0), gaussian, Collapsed(X[:M], 1e-10)), "float64")
        every = trainable(model)
        of = lambda vector: collapsed(every.rebuild(vector), data).choose(tight)
        slope = jax.jit(jax.value_and_grad(of))
        return partial(slope, every.vector)

    def orthogonal():
        from pseudopoint.optimise.minibatch import OrthogonalNaturalGradient  # older checkouts lack it
        from pseudopoint.posteriors import Orthogonal

        posterior = Orthogonal(Z=X[:300], O=X[300:1000], q=precision(300), a=np.zeros(700))
        return steps(gaussian, posterior, OrthogonalNaturalGradient(constant(0.1), hyper_optimiser=adam))

    dense, chol = (lambda q, M=M: Whitened(X[:M], q, None)), lambda M: MeanChol(np.zeros(M), np.eye(M))
    natural, slow = NaturalGradient(constant(0.1), adam, tight=False), Optax(adam, tight=False)

    def ten(likelihood, q, stepper):
        each = jax.tree.map(lambda part: np.broadcast_to(part, (10, *part.shape)), q)
        return steps(
            likelihood, IndependentLatents(dense(each, len(q.mean))), stepper, 256 if len(q.mean) == 100 else B
        )

    return {
        "natural, 100": lambda: steps(gaussian, dense(precision(100), 100), natural, 256),
        "natural": lambda: steps(gaussian, dense(precision(M)), natural),
        "natural, 1000": lambda: steps(gaussian, dense(precision(1000), 1000), natural, 2048),
        "adam, 1000": lambda: steps(gaussian, dense(chol(1000), 1000), slow, 2048),
        "student, 1000": lambda: steps(StudentT(0.3, 4.0), dense(precision(1000), 1000), natural, 2048),
        "natural, tight": lambda: steps(gaussian, dense(precision(M)), NaturalGradient(constant(0.1), adam)),
        "bernoulli, 100": lambda: steps(Bernoulli(), dense(precision(100), 100), natural, 256),
        "bernoulli, adam, 100": lambda: steps(Bernoulli(), dense(chol(100), 100), slow, 256),
        "adam, 100": lambda: steps(gaussian, dense(chol(100), 100), slow, 256),
        "adam": lambda: steps(gaussian, dense(chol(M)), slow),
        "student": lambda: steps(StudentT(0.3, 4.0), dense(precision(M)), natural),
        "softmax, adam": lambda: ten(Softmax(10), chol(100), slow),
        "softmax, natural": lambda: ten(Softmax(10), precision(100), natural),
        "robust-max, adam": lambda: ten(RobustMax(10), chol(100), slow),
        "robust-max, natural": lambda: ten(RobustMax(10), precision(100), natural),
        "robust-max, adam, 500": lambda: ten(RobustMax(10), chol(M), slow),
        "robust-max, natural, 500": lambda: ten(RobustMax(10), precision(M), natural),
        "orthogonal": orthogonal,
        "collapsed, 100": lambda: bound(False, 100),
        "collapsed": lambda: bound(False),
        "collapsed, 1000": lambda: bound(False, 1000),
        "collapsed, tight": lambda: bound(True),
    }


def work() -> None:
    """A case's name in, its seconds out, wall clock and processor; its first turn compiles before."""
    import jax
    import scipy.linalg  # noqa: F401, JAX's LAPACK, which a limit can hold only once it is loaded
    from threadpoolctl import threadpool_limits

    with jax.enable_x64(True), threadpool_limits(1, user_api="blas"):
        known, made = cases(), {}
        for line in sys.stdin:
            name = line.strip()
            if name not in made:
                made = {name: known[name]()}
                jax.block_until_ready(made[name]())
            wall, cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(made[name]())
            print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)


def compare(other: Path, rounds: int, names: Sequence[str], out: Path | None) -> None:
    """Both checkouts, case by case, in turn."""
    of = subprocess.run(
        ["git", "-C", str(other), "describe", "--always", "--exclude=*", "--dirty=+"], capture_output=True, text=True
    ).stdout.strip()
    workers = [
        subprocess.Popen(
            [sys.executable, str(checkout / "benchmarks/ours.py"), "--work"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout)},
        )
        for checkout in (other, Path(__file__).parents[1])
    ]

    def turn(worker, name):
        worker.stdin.write(name + "\n")
        worker.stdin.flush()
        if not (line := worker.stdout.readline()):
            sys.exit(f"the worker of {worker.args} ended in case {name!r}: its message stands above")
        return json.loads(line)

    for name in names:
        per = 1e3 / (1 if name.startswith("collapsed") else STEPS)
        taken = per * np.array([[turn(worker, name) for worker in workers] for _ in range(rounds + 1)])[1:]
        low, middle, high = np.quantile(taken, (0.25, 0.5, 0.75), axis=0)
        text = [
            f"{kind} {middle[0, k]:.4g} ({low[0, k]:.4g} to {high[0, k]:.4g}), {middle[1, k]:.4g} ({low[1, k]:.4g} to "
            f"{high[1, k]:.4g}), ratio {middle[1, k] / middle[0, k]:.2f}"
            for k, kind in enumerate(("wall", "processor"))
        ]
        print(f"{name}: {'; '.join(text)}", flush=True)
        if out is not None:
            sides = {kind: {"other": taken[:, 0, k], "ours": taken[:, 1, k]} for k, kind in enumerate(("wall", "cpu"))}
            quartiles = {kind: {who: np.quantile(t, (0.25, 0.5, 0.75)).tolist() for who, t in each.items()}
                         for kind, each in sides.items()}  # fmt: skip
            store({"case": name, "other": of, "milliseconds": quartiles, "rounds": rounds}, out)
    for worker in workers:
        worker.communicate()  # closes its input and waits


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cases", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", action="store_true")
    options = parser.parse_args()
    if options.work:
        work()
    elif options.other is None or not (options.other / "pseudopoint").is_dir():
        parser.error("name another checkout of this repository, as git worktree add makes one")
    else:
        every = list(cases())
        chosen = options.cases.split("|") if options.cases else every
        if unknown := set(chosen) - set(every):
            parser.error(f"no case {', '.join(sorted(unknown))}; there are {'|'.join(every)}")
        compare(options.other.resolve(), options.rounds, chosen, options.out)
