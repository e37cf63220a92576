"""Rows on a Dask cluster: sums, fits and predictions are those of the same rows in memory, whatever dies meanwhile."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

from pseudopoint import FitError, GPClassifier, GPRegressor, commands
from pseudopoint.bounds import COLLAPSED, ELBO, summed_gradient
from pseudopoint.data import Dataset, Standardiser
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Bernoulli, Gaussian, Softmax, StudentT
from pseudopoint.optimise.minibatch import NaturalGradient, constant
from pseudopoint.optimise.minibatch.apart import steps_apart
from pseudopoint.optimise.named import adam
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, Model, Whitened
from pseudopoint.recipes.families import FAMILIES, prior_q, several
from pseudopoint.tables import DaskRows, DaskSource, PartReader, TableRows, dask_source, learn_table, running_cluster

pytestmark = [
    pytest.mark.edge,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
distributed = pytest.importorskip("distributed")

N = 240
rng = np.random.default_rng(4)
TABLE = pd.DataFrame({"a": rng.normal(size=N), "c": rng.choice(["x", "y"], N), "b": rng.normal(size=N)})
TABLE["y"] = 5 + np.sin(2 * TABLE.a) + (TABLE.c == "x") + 0.2 * rng.normal(size=N)
TABLE.loc[7, "b"] = np.nan
LABELS = TABLE.assign(y=np.where(TABLE.y > 5.5, "high", "low"))
QUICK = {"effort": "fast", "num_inducing": 5, "inducing": "kmeans", "initial": "robust"}
COLLAPSED_FIT = QUICK | {"method": "collapsed", "max_iter": 6}
SVGP_FIT = QUICK | {"method": "svgp", "max_iter": 20, "batch_size": 32}


@pytest.fixture(autouse=True)
def _in_time():
    """A worker that blocks fails the test, and not the whole run."""

    def late(*_):
        raise TimeoutError("a test of the cluster took more than four minutes")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(240)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def client():
    with running_cluster(workers=2) as client, client.as_current():
        yield client


def parts(frame=TABLE, order=None):
    """Five partitions, of unequal lengths."""
    frames = [frame.iloc[a:b] for a, b in ((0, 10), (10, 80), (80, 81), (81, 200), (200, N))]
    frames = frames if order is None else [frames[i] for i in order]
    return dd.concat([dd.from_pandas(each, npartitions=1, sort=False) for each in frames])


CODES = {
    "gaussian": (Gaussian(0.2), lambda y: y),
    "student_t": (StudentT(0.4), lambda y: y),
    "bernoulli": (Bernoulli(), lambda y: (y > 5.5).astype(float)),
    "softmax": (Softmax(3), lambda y: np.digitize(y, [5.0, 6.0]).astype(float)),
}


@pytest.mark.parametrize("order", [None, [3, 0, 4, 2, 1]])
def test_every_bound_and_gradient_is_that_of_memory_in_any_order(client, order):
    source, _ = dask_source(parts(order=order), "y", "")
    assert isinstance(source, DaskSource) and source.client is client
    learned = learn_table(source, "y")
    scaling = Standardiser.of_moments((learned.mean, learned.spread), np.zeros((2, len(learned.mean))), (0.0, 1.0))
    nothing = lambda model, prior: 0.0
    for name, (likelihood, codes) in CODES.items() if order is None else [("gaussian", CODES["gaussian"])]:
        reader = PartReader(learned.encoder, (0.0, 0), codes, scaling, None, "float64")
        rows: Any = source.spread(TableRows(source, reader, learned.counts))
        here = in_memory(reader)
        Z = np.asarray(here.X[:4])
        with jax.enable_x64(True):
            kernel = Matern52(np.ones(here.num_columns), 1.0)
            start = several(FAMILIES["whitened"].start(jax.numpy.asarray(Z), None, kernel), likelihood.latents)
            posterior = Collapsed(Z) if name == "gaussian" else start
            numbers = trainable(cast(Model(kernel, likelihood, posterior), "float64"))
            bound = COLLAPSED if name == "gaussian" else ELBO
            of = lambda at: summed_gradient(bound, True, nothing, numbers, numbers.vector, (at, ()))  # noqa: B023
            close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-9)
            jax.tree.map(close, of(rows), of(here))
        rows.close()


def _numbers(model: Any, chunk: Dataset) -> Any:
    return np.sum(chunk.weight), chunk.weight @ chunk.X


@pytest.mark.parametrize("order", [None, [3, 0, 4, 2, 1]])
@pytest.mark.parametrize("name", CODES)
def test_a_step_whose_batch_stays_on_the_workers_is_that_of_memory(client, name, order):
    source, _ = dask_source(parts(order=order), "y", "")
    learned = learn_table(source, "y")
    scaling = Standardiser.of_moments((learned.mean, learned.spread), np.zeros((2, len(learned.mean))), (0.0, 1.0))
    likelihood, codes = CODES[name]
    reader = PartReader(learned.encoder, (0.0, 0), codes, scaling, None, "float64")
    rows: Any = source.spread(TableRows(source, reader, learned.counts))
    here = in_memory(reader)
    with jax.enable_x64(True):
        Z = jax.numpy.asarray(here.X[:4])
        kernel = Matern52(np.ones(here.num_columns), 1.0)
        one = Whitened(Z, prior_q(Z))
        model = cast(Model(kernel, likelihood, several(one, likelihood.latents)), "float64")
        stepper = NaturalGradient(constant(1.0), adam(0.01, 10))
        state = stepper.init(model, N)
        for moved in range(2):  # the second one from a q that is not the prior
            (apart, inner), info = steps_apart(stepper, model, state, rows, N, 0, range(moved, moved + 1))
            model, state, whole = stepper.step(model, state, jax.device_put(here), N)
            close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
            jax.tree.map(close, (apart, inner, info.bound[0]), (model, state, whole.bound))
        batches = [rows.batch_sum(_numbers, model, 48, 3, step) for step in range(10)]  # two epochs of five
    counts = [float(count) for count, _ in batches]
    assert max(abs(count - 48) for count in counts) <= len(source.parts)
    assert len({float(x[0]) for _, x in batches}) == 10
    both = jax.tree.map(lambda *x: np.sum(x, axis=0), *batches)
    # Every row once an epoch, but for one of each part that a random phase has put off, and one taken before.
    assert abs(float(both[0]) - 2 * N) <= len(source.parts)
    rows.close()


def test_large_batches_of_a_fit_are_drawn_on_the_workers(client, monkeypatch):
    settings: dict[str, Any] = SVGP_FIT | {"max_iter": 60}
    sent = GPClassifier(**settings).fit(parts(LABELS), "y")
    monkeypatch.setattr("pseudopoint.optimise.minibatch.apart.CHUNK", 30)
    monkeypatch.setattr(DaskRows, "minibatches", lambda *_: pytest.fail("a batch came to this process"))
    model = GPClassifier(**settings).fit(parts(LABELS), "y")
    assert model.bound_ == pytest.approx(sent.bound_, abs=0.02 * N)


def in_memory(reader: PartReader) -> Dataset:
    return reader(0, TABLE)


@pytest.mark.parametrize("settings, frame", [(COLLAPSED_FIT, TABLE), (SVGP_FIT, LABELS)], ids=["full", "batches"])
def test_a_fit_is_that_of_memory_and_predicts_partitions(client, settings, frame):
    make = GPClassifier if frame is LABELS else GPRegressor
    model, whole = make(**settings).fit(parts(frame), "y"), make(**settings).fit(frame, "y")
    np.testing.assert_allclose(model.bound_, whole.bound_, rtol=1e-7)
    X = parts(frame)[["a", "c", "b"]]
    predicted = model.predict(X)
    assert hasattr(predicted, "__dask_graph__")
    in_memory_too = model.predict(frame[["a", "c", "b"]])  # in blocks of another size
    if frame is LABELS:
        np.testing.assert_array_equal(predicted.compute(), in_memory_too)
    else:
        np.testing.assert_allclose(predicted.compute(), in_memory_too, rtol=1e-13)
    for y in (frame["y"], parts(frame)["y"]):
        assert model.score(X, y) == pytest.approx(model.score(frame[["a", "c", "b"]], frame["y"]))


def test_arrays_of_dask_and_a_fit_without_a_cluster():
    X, y = rng.normal(size=(60, 2)), rng.normal(size=60)
    model = GPRegressor(**COLLAPSED_FIT).fit(da.from_array(X, chunks=(25, 1)), da.from_array(y, chunks=17))
    whole = GPRegressor(**COLLAPSED_FIT, dtype="float64").fit(X, y, checkpoint=None)
    assert model.n_features_in_ == whole.n_features_in_ == 2 and model.rows_ == 60
    mean, std = model.predict(da.from_array(X, chunks=(25, 1)), return_std=True)
    assert mean.shape == (60,)
    np.testing.assert_array_equal(np.stack([mean, std]), np.stack(model.predict(X, return_std=True)))
    assert model.predict_interval(da.from_array(X, chunks=25)).compute().shape == (60, 2)
    with pytest.raises(ValueError, match="as many targets as rows"):
        GPRegressor().fit(da.from_array(X), da.from_array(y[:9]))


def test_a_worker_that_dies_during_a_fit_loses_nothing(client):
    whole, killed = GPRegressor(**COLLAPSED_FIT).fit(parts(), "y"), []

    def kill(record):
        if record.step == 2:
            workers = client.run(os.getpid)
            killed.append(next(iter(workers.values())))
            os.kill(killed[0], signal.SIGKILL)

    model = GPRegressor(**COLLAPSED_FIT).fit(parts(), "y", progress=kill)
    assert killed
    np.testing.assert_allclose(model.bound_, whole.bound_, rtol=1e-8)
    client.wait_for_workers(2, timeout=60)


@pytest.mark.filterwarnings("ignore:the cluster has no worker")
def test_the_only_worker_may_die(monkeypatch):
    """One in its place has another address, and Dask never gave it what was meant for the dead one."""
    monkeypatch.setattr("pseudopoint.tables.dask_client.POLL", 0.5)
    killed: list[int] = []

    def kill(record):
        if record.step == 2:
            killed.extend(alone.run(os.getpid).values())
            os.kill(killed[0], signal.SIGKILL)

    with running_cluster(workers=1) as alone, alone.as_current():
        model = GPRegressor(**COLLAPSED_FIT).fit(parts(), "y", progress=kill)
        whole = GPRegressor(**COLLAPSED_FIT).fit(parts(), "y")
    assert len(killed) == 1
    np.testing.assert_allclose(model.bound_, whole.bound_, rtol=1e-8)


def test_a_cluster_without_workers_is_said(monkeypatch):
    monkeypatch.setattr("pseudopoint.tables.dask_client.NO_WORKER", 1.5)
    monkeypatch.setattr("pseudopoint.tables.dask_client.POLL", 0.5)
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as empty, distributed.Client(empty):
        with pytest.warns(UserWarning, match="has no worker: waiting"), pytest.raises(FitError, match="had no worker"):
            GPRegressor(**COLLAPSED_FIT).fit(parts(), "y")


@pytest.mark.filterwarnings("ignore:the cluster has no worker")
def test_a_scheduler_that_dies_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("pseudopoint.tables.dask_client.POLL", 0.5)
    TABLE.to_parquet(tmp_path / "t.parquet")
    dask = [sys.executable, "-m", "dask"]
    at = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(tmp_path / "at.json")]
    quiet: dict[str, Any] = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with contextlib.ExitStack() as stack:

        def begin(*words):
            process = stack.enter_context(subprocess.Popen([*dask, *words], **quiet))
            stack.callback(process.kill)
            return process

        scheduler = begin("scheduler", "--port", "0", *at)
        while not (tmp_path / "at.json").exists():
            time.sleep(0.1)
        address = json.loads((tmp_path / "at.json").read_text())["address"]
        begin("worker", address, "--no-nanny", "--nthreads", "1")
        given: dict[str, Any] = {"cluster": address, "progress": lambda record: scheduler.kill()}
        with pytest.raises(FitError, match="the scheduler of the cluster does not answer any more"):
            commands.fit_table(tmp_path / "t.parquet", "y", **given, **COLLAPSED_FIT)


def _die(workers, dask_worker):
    if not os.path.exists(path := os.environ["PSEUDOPOINT_DIED"]):
        open(path, "w").close()
        os._exit(1)


def test_a_worker_that_dies_at_the_start_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("PSEUDOPOINT_DIED", str(tmp_path / "died"))
    monkeypatch.setattr("pseudopoint.tables.dask_client._take_share", _die)
    with running_cluster(workers=1) as alone:
        assert alone.submit(os.getpid).result() and (tmp_path / "died").exists()


def test_workers_that_cannot_be_started_are_said(monkeypatch):
    def fail(*_, **options):
        raise RuntimeError("Nanny failed to start.\nmore")

    monkeypatch.setattr(distributed, "LocalCluster", fail)
    with pytest.raises(FitError, match=r"could not be started \(Nanny failed to start.\): ask for fewer"):
        with running_cluster(workers=3):
            pass


def test_workers_are_asked_of_the_scheduler_and_not_of_the_clients_memory(client, monkeypatch):
    """Dask refreshes that memory in the background, without the workers, at any moment."""
    monkeypatch.setattr(client, "scheduler_info", lambda **_: {"workers": {}})
    assert GPRegressor(**COLLAPSED_FIT).fit(parts(), "y").rows_ == N


def test_the_command_line_fits_on_workers(tmp_path):
    for i in range(3):
        TABLE.iloc[80 * i : 80 * (i + 1)].to_parquet(tmp_path / f"{i}.parquet", row_group_size=30)
    files = str(tmp_path / "*.parquet")
    spread = commands.fit_table(files, "y", workers=2, **COLLAPSED_FIT)
    here = commands.fit_table(files, "y", **COLLAPSED_FIT)
    np.testing.assert_allclose(spread["bound"], here["bound"], rtol=1e-7)
    assert spread["test"]["rows"] == here["test"]["rows"] and spread["rows"] == here["rows"]
    with pytest.raises(ValueError, match="no cluster answers at"):
        commands.fit_table(files, "y", cluster="tcp://127.0.0.1:1", **COLLAPSED_FIT)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ValueError, match="'nonsense' .missing port number"):
        patch.setattr(distributed, "Client", None)  # its finaliser prints a traceback after 20 s
        commands.fit_table(files, "y", cluster="nonsense", **COLLAPSED_FIT)
    with pytest.raises(ValueError, match="a cluster or a number of workers"):
        commands.fit_table(files, "y", cluster="tcp://127.0.0.1:1", workers=2, **COLLAPSED_FIT)
