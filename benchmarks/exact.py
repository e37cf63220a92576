"""The exact evidence and its gradient beside what they cannot avoid, and a default fit of as many rows as `auto` takes.

    python benchmarks/exact.py 1000 2000 4000          value and gradient, beside potrf + potri and scikit-learn
    python benchmarks/exact.py 1000 2000 4000 --gpflow PYTHON      also beside GPflow, by a Python that has it
    python benchmarks/exact.py --fit 5000              a default fit
    python benchmarks/exact.py --laplace 1000 2000     Laplace's approximation of two classes, value and gradient,
                                                       beside the compiled program of its definition and scikit-learn

Rows of D = 8 columns in float64, Matérn 5/2 with a lengthscale a column. Sides take turns. LAPACK is SciPy's, with the
threads that it takes by itself and with one; scikit-learn's is `log_marginal_likelihood(eval_gradient=True)`, up to
2,000 rows. Each row of results/exact.jsonl has quartiles of seconds by the clock and of the processor's seconds.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import jax
import numpy as np
from provenance import RESULTS, ROOT, store
from scipy.linalg import get_lapack_funcs
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from pseudopoint import GPRegressor
from pseudopoint.bounds import evidence_on_host, given_evidence, given_laplace, laplace, mode_on_host
from pseudopoint.data import dataset
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Bernoulli, Gaussian
from pseudopoint.params import cast
from pseudopoint.posteriors import Model
from pseudopoint.processes import one_blas_thread

D = 8


def rows(N: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and a target of known noise, variance 0.04."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    return X, np.sin(2 * X[:, 0]) + np.cos(X[:, 1]) * X[:, 2] + 0.2 * rng.normal(size=N)


@jax.jit
def _slopes(model, data, given):
    return jax.value_and_grad(lambda model: given_evidence(model, (data, given)).value)(model)


def ours(X, y) -> Callable[[], object]:
    """Value and gradient as a fit computes them."""
    model, data = cast(Model(Matern52(np.full(D, 2.0), 1.5), Gaussian(0.1)), "float64"), dataset(X, y, dtype="float64")
    return lambda: jax.block_until_ready(_slopes(model, data, evidence_on_host(model, data)))


def potrf_and_potri(K) -> Callable[[], object]:
    """K⁻¹ by LAPACK."""
    potrf, potri = get_lapack_funcs(("potrf", "potri"), (K,))

    def run():
        factor, _ = potrf(K, lower=1, clean=0)
        return potri(factor, lower=1, overwrite_c=1)

    return run


def in_one_thread(run: Callable[[], object]) -> object:
    """The same with one BLAS thread."""
    with one_blas_thread():
        return run()


def scikit_learn(X, y) -> Callable[[], object]:
    """The same evidence with the same numbers."""
    # scikit-learn's own annotations are narrower than what it documents.
    kernel = ConstantKernel(1.5) * Matern(np.full(D, 2.0), nu=2.5) + WhiteKernel(0.1)  # pyright: ignore[reportArgumentType]
    model = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)  # pyright: ignore[reportArgumentType]
    return partial(model.log_marginal_likelihood, kernel.theta, eval_gradient=True)


@contextmanager
def gpflow(python: str, X, y) -> Iterator[Callable[[], object]]:
    """The same by GPflow, in a process of its own, which says what it took of the processor."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "rows.npz", X=X, y=y)
        words = [python, str(ROOT / "benchmarks" / "peers" / "gpflow_exact.py"), str(Path(folder) / "rows.npz")]
        environment = os.environ | {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        pipes: dict = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(words, text=True, env=environment, **pipes) as peer:
            assert peer.stdin is not None and peer.stdout is not None
            ask, answers = peer.stdin, peer.stdout

            def run():
                ask.write("\n")
                ask.flush()
                return float(answers.readline().split()[0])

            yield run
            ask.close()


def measured(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Quartiles of the seconds of each side, by the clock and by the processor; sides take turns."""
    seconds = {name: [] for name in sides}
    for run in sides.values():
        run()
    for _ in range(rounds):
        for name, run in sides.items():
            start = time.perf_counter(), time.process_time()
            used = run()
            taken = time.perf_counter() - start[0], time.process_time() - start[1]
            seconds[name].append((taken[0], used if isinstance(used, float) else taken[1]))
    quartiles = {name: np.quantile(taken, [0.25, 0.5, 0.75], axis=0).round(4) for name, taken in seconds.items()}
    return {name: {"clock": q[:, 0].tolist(), "processor": q[:, 1].tolist()} for name, q in quartiles.items()}


def evaluations(N: int, rounds: int, python: str | None) -> dict:
    """One row of results: value and gradient."""
    X, y = rows(N)
    with jax.enable_x64(True), gpflow(python, X, y) if python else nullcontext() as peer:
        K = np.asfortranarray(np.asarray(Matern52(np.full(D, 2.0), 1.5)(*[jax.numpy.asarray(X)] * 2)) + 0.1 * np.eye(N))
        lapack_by_itself = potrf_and_potri(K)
        sides = {"ours": ours(X, y), "potrf + potri": lapack_by_itself}
        sides["potrf + potri, one thread"] = partial(in_one_thread, lapack_by_itself)
        if peer is not None:
            sides["GPflow"] = peer
        if N <= 2000:
            sides["scikit-learn"] = scikit_learn(X, y)
        return {"case": "value and gradient", "N": N, "D": D, "rounds": rounds} | measured(sides, rounds)


@jax.jit
def _slopes_at_mode(model, data, at):
    return jax.value_and_grad(lambda model: given_laplace(model, (data, at)).value)(model)


@jax.jit
def _by_definition(model, data):
    return jax.value_and_grad(lambda model: laplace(model, data).value)(model)


def laplace_evaluations(N: int, rounds: int) -> dict:
    """One row of results: value and gradient of Laplace's approximation for the signs of the target."""
    X, y = rows(N)
    labels, scale = 1.0 * (y > 0), np.full(D, 2.0)
    kernel = ConstantKernel(1.5) * Matern(scale, nu=2.5)  # pyright: ignore[reportArgumentType]
    peer = GaussianProcessClassifier(kernel, optimizer=None).fit(X, labels)  # pyright: ignore[reportArgumentType]
    with jax.enable_x64(True):
        model = cast(Model(Matern52(scale, 1.5), Bernoulli("logit")), "float64")
        data = dataset(X, labels, dtype="float64")
        sides: dict[str, Callable[[], object]] = {
            "ours": lambda: jax.block_until_ready(_slopes_at_mode(model, data, mode_on_host(model, data))),
            "one program": lambda: jax.block_until_ready(_by_definition(model, data)),
            "scikit-learn": partial(peer.log_marginal_likelihood, kernel.theta, eval_gradient=True),
        }
        return {"case": "Laplace", "N": N, "D": D, "rounds": rounds} | measured(sides, rounds)


def fit(N: int) -> dict:
    """One row of results: a default fit in a fresh process."""
    X, y = rows(N + 1000)
    start = time.perf_counter(), time.process_time()
    model = GPRegressor().fit(X[:N], y[:N])
    taken = {"clock": time.perf_counter() - start[0], "processor": time.process_time() - start[1]}
    error = float(np.sqrt(np.mean((model.predict(X[N:]) - y[N:]) ** 2)))
    found = {"bound": model.bound_, "rmse": error, "iterations": model.n_iter_}
    return {"case": "default fit", "method": model.method_, "N": N, "D": D, **taken, **found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--laplace", action="store_true")
    parser.add_argument("--gpflow", metavar="PYTHON", help="a Python that has GPflow")
    arguments = parser.parse_args()
    for N in arguments.rows:
        if arguments.laplace:
            row = laplace_evaluations(N, arguments.rounds)
        else:
            row = fit(N) if arguments.fit else evaluations(N, arguments.rounds, arguments.gpflow)
        store(row, RESULTS / "exact.jsonl")
