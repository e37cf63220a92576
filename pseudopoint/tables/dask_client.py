"""The client of a Dask cluster: how it begins, and how results are awaited, so that whatever dies is said or replaced.

Dask is an optional dependency, imported inside the functions.
"""

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from pseudopoint.optimise.result import FitError
from pseudopoint.tables.messages import TableError

POLL = 5.0  # seconds between two looks at the workers while results are awaited
NO_WORKER = 300.0  # seconds for which a cluster may be without a worker: an adaptive one has to start some


def imported(*names: str) -> list[Any]:
    """Modules of Dask. `TableError` where it is not installed."""
    from importlib import import_module

    try:
        return [import_module(name) for name in names]
    except ImportError:
        raise TableError("Dask is not installed: pip install 'pseudopoint[dask]'") from None


@contextmanager
def running_cluster(address: str | None = None, workers: int | None = None) -> Iterator[Any]:
    """A client of the cluster at an address ("tcp://…"), or of so many processes on this machine, which end with the
    `with` block and share its cores."""
    if address is not None and workers is not None:
        raise ValueError("name a cluster or a number of workers, not both")
    if address is None and (not workers or workers < 1):
        raise ValueError(f"workers={workers} must be at least 1")
    with ExitStack() as stack:
        yield _client_at(address, stack) if address is not None else _client_here(workers or 1, stack)


def _client_at(address: str, stack: ExitStack) -> Any:
    distributed, addressing = imported("distributed", "distributed.comm.addressing")
    try:
        addressing.parse_host_port(addressing.parse_address(address)[1])  # a client of what is none ends in noise
        return stack.enter_context(distributed.Client(address, timeout="10s", set_as_default=False))
    except (OSError, ValueError) as error:
        raise ValueError(f"no cluster answers at {address!r} ({error}): check the address") from None


def _client_here(workers: int, stack: ExitStack) -> Any:
    (distributed,) = imported("distributed")
    options: dict[str, Any] = {"processes": True, "threads_per_worker": 1, "dashboard_address": ":0"}
    try:
        cluster = stack.enter_context(distributed.LocalCluster(n_workers=workers, **options))
        client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
    except (OSError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise FitError(
            f"{workers} processes for the rows could not be started ({reason}): ask for fewer (--workers), or for none"
        ) from None
    with suppress(OSError):  # a worker that dies at once is replaced
        client.run(_take_share, workers)
    return client


def _take_share(workers: int, dask_worker: Any) -> None:
    """Runs on each worker of this machine: its own cores. Else XLA would take all of them in each worker, and more
    workers would not be faster. A worker that takes the place of one that died has all cores again."""
    if hasattr(os, "sched_setaffinity"):
        cores, k = sorted(os.sched_getaffinity(0)), int(dask_worker.name)
        mine = cores[k::workers] or [cores[k % len(cores)]]
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(int(thread), mine)


def current_client() -> Any:
    """The client that this process has made, or None."""
    with suppress(ImportError, ValueError):
        from distributed import default_client

        return default_client()
    return None


class WorkersLost(Exception):
    """None of the workers lives on which parts were placed."""


def workers_of(client: Any) -> list[str]:
    """Addresses of the workers. Where there is none, waits for one, and says so. `FitError` where none comes."""
    began, said = time.monotonic(), False
    while not (workers := sorted(_nthreads(client))):  # a background task of Dask can clear `scheduler_info`
        waited = time.monotonic() - began
        if waited > NO_WORKER:
            raise FitError(f"the cluster has had no worker for {NO_WORKER:.0f} s: start one, and fit again")
        if waited > POLL and not said:
            warnings.warn(f"the cluster has no worker: waiting {NO_WORKER:.0f} s for one", UserWarning, stacklevel=2)
            said = True
        time.sleep(min(1.0, POLL))
    return workers


def _nthreads(client: Any) -> Any:
    """Of each worker."""
    (comm,) = imported("distributed.comm")
    try:
        return client.nthreads()
    except OSError as error:  # no connection in time
        raise comm.CommClosedError(str(error)) from None


def wait_for(client: Any, futures: list[Any], places: frozenset[str] = frozenset()) -> None:
    """Until the futures are done. `WorkersLost` where they wait and no worker of `places` lives; `FitError` where no
    worker comes, or the scheduler has gone."""
    (distributed,) = imported("distributed")
    with answering():
        while True:
            with suppress(TimeoutError), client.as_current():
                distributed.wait(futures, timeout=POLL)
                return
            if not places & set(workers_of(client)) and places:
                raise WorkersLost


@contextmanager
def answering() -> Iterator[None]:
    """`FitError` where the scheduler has gone: futures are then cancelled, and connections closed."""
    comm, client = imported("distributed.comm", "distributed.client")
    try:
        yield
    except (CancelledError, comm.CommClosedError, client.ClosedClientError) as error:
        raise FitError(
            f"the scheduler of the cluster does not answer any more ({type(error).__name__}): start the cluster again, "
            "and fit again; a fit with a checkpoint can be resumed"
        ) from None


def results_of(client: Any, futures: Sequence[Any], places: frozenset[str] = frozenset()) -> Iterator[Any]:
    """What the futures hold, in order. `FitError` where a task ended several workers, and as `wait_for`."""
    (scheduler,) = imported("distributed.scheduler")
    for future in futures:
        wait_for(client, [future], places)
        try:
            yield future.result()
        except scheduler.KilledWorker as error:
            raise FitError(
                f"several workers of the cluster died at one task ({error}): use smaller partitions or more memory"
            ) from None
