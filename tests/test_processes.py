"""Fits in several threads leave BLAS as it was, and a forked child says what to do where it would wait for ever."""

import os
import pickle
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from pseudopoint import ForkError, GPRegressor, processes
from pseudopoint.processes import one_blas_thread
from pseudopoint.reproduce.runner import computing

pytestmark = pytest.mark.edge
X = np.linspace(0, 6, 20)[:, None]
Y = np.sin(X[:, 0])


LIBRARIES = ThreadpoolController().select(user_api="blas")


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in LIBRARIES.info()}


@pytest.fixture(autouse=True)
def two_threads():
    """BLAS as a user has it, on more than one thread; and as it was after the test, whatever the test finds."""
    with LIBRARIES.limit(limits=2):
        assert blas_threads() == {2}
        yield


def fit(progress=None):
    GPRegressor(method="exact", max_iter=2, initial="robust", effort="fast").fit(X, Y, progress=progress)


def overlapping(first, second):
    """Runs both in threads: the second begins when the first has, and ends after it."""
    begun, joined, ended = threading.Event(), threading.Event(), threading.Event()

    def run_first():
        try:
            first(lambda *_: (begun.set(), joined.wait(20)))
        finally:
            ended.set()

    def run_second():
        begun.wait(20)
        second(lambda *_: (joined.set(), ended.wait(20)))

    threads = [threading.Thread(target=run, daemon=True) for run in (run_first, run_second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert not any(thread.is_alive() for thread in threads) and joined.is_set() and ended.is_set()


def scope(inside):
    with one_blas_thread():
        assert blas_threads() == {1}
        inside()
        assert blas_threads() == {1}


def experiment(inside):
    with computing():
        inside()


@pytest.mark.parametrize("second", [fit, scope, experiment])
@pytest.mark.parametrize("first", [fit, scope, experiment])
def test_what_overlaps_in_two_threads_leaves_blas_as_it_was(first, second):
    overlapping(first, second)
    assert blas_threads() == {2}


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit, MemoryError])
def test_a_fit_that_is_broken_off_leaves_blas_as_it_was(error):
    def stop(_):
        raise error

    def broken(inside):
        with pytest.raises(error):
            fit(lambda record: (inside(), stop(record)))

    broken(lambda: None)
    assert blas_threads() == {2}
    overlapping(broken, fit)
    assert blas_threads() == {2}


def test_scopes_within_each_other_count_as_one():
    with one_blas_thread():
        scope(lambda: None)
        assert blas_threads() == {1}
    assert blas_threads() == {2} and processes._PROCESS.inside == 0


# --- Forks ---

START = """
import multiprocessing, os, sys, warnings
warnings.simplefilter("ignore")  # JAX warns of the fork itself
import numpy as np
from pseudopoint import ForkError, GPClassifier, GPRegressor

X, y = np.linspace(0, 6, 12)[:, None], np.sin(np.linspace(0, 6, 12))
new = lambda: GPRegressor(method="exact", max_iter=1, initial="robust")

def answer(use, pipe):
    try:
        pipe.send(np.asarray(use()).tolist())
    except ForkError as error:
        pipe.send(str(error))

def in_child(use):
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=answer, args=(use, theirs))
    child.start()
    found = ours.recv() if ours.poll(60) else "it hung"
    child.kill()
    child.join()
    return found
"""


def python(code, *arguments):
    done = subprocess.run([sys.executable, "-c", START + code, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@forks
def test_a_child_forked_after_jax_has_computed_says_what_to_do():
    code = """
model = new().fit(X, y)
counts = GPRegressor(method="laplace", likelihood="poisson", max_iter=1, initial="robust").fit(X, np.arange(12.0))
classes = GPClassifier(method="laplace", max_iter=1, initial="robust").fit(X, y > 0)
uses = [
    lambda: model.predict(X), lambda: model.predict(X, return_std=True), lambda: model.log_density(X, y),
    lambda: model.sample_y(X), lambda: counts.predict_interval(X), lambda: classes.predict_proba(X),
    lambda: classes.predict(X), lambda: new().fit(X, y).bound_, lambda: in_child(lambda: model.predict(X)),
]
for use in uses:
    print(in_child(use))
print(model.predict(X).shape, in_child(lambda: model.get_params()["max_iter"]))
"""
    *told, after = python(code)
    assert len(told) == 9 and all("forked" in line and "'spawn'" in line and "'loky'" in line for line in told), told
    assert after == "(12,) 1"  # the parent goes on, and a child may do what computes nothing


@forks
def test_a_child_of_a_parent_that_computed_with_jax_alone_says_it_too():
    code = """
import jax.numpy as jnp
(jnp.ones(3) + 1).block_until_ready()
print(in_child(lambda: new().fit(X, y).bound_))
"""
    assert "'spawn'" in python(code)[0]


@forks
def test_a_child_forked_before_jax_has_computed_computes(tmp_path):
    path = tmp_path / "model"
    model = GPRegressor(method="exact", max_iter=1, initial="robust", effort="fast").fit(
        np.linspace(0, 6, 12)[:, None], np.arange(12)
    )
    model.save(path)
    code = """
import jax
model = GPRegressor.load(sys.argv[1])
for _ in range(2):
    print(in_child(lambda: model.predict(X)))
print(model.predict(X).tolist())
"""
    first, second, parent = python(code, str(path))
    assert first == second == parent and first.startswith("[")


def test_the_error_passes_between_processes():
    error = pickle.loads(pickle.dumps(ForkError("one sentence")))
    assert type(error) is ForkError and str(error) == "one sentence" and isinstance(error, OSError)


def test_products_are_of_full_precision_in_the_scope_and_in_its_threads():
    # Else a GPU rounds the factors of a float32 product to ten bits. A CPU does not, so the program tells.
    def precision(_):
        return str(jax.make_jaxpr(lambda a: a @ a)(np.ones((2, 2), np.float32)))

    before = jax.config.values["jax_default_matmul_precision"]
    with processes.computing("float32"):
        found = [precision(0), *processes.side_by_side(precision, {0: 0, 1: 1, 2: 2}).values()]
    assert len(found) == 4 and all("HIGHEST" in text for text in found)
    assert jax.config.values["jax_default_matmul_precision"] == before and "HIGHEST" not in precision(0)
