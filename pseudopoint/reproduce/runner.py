"""Runs experiments row by row, resumes them, and makes the page of their rows."""

import gc
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from pseudopoint.datasets import DataError, data_folder, download, find
from pseudopoint.files import make_folder
from pseudopoint.processes import one_blas_thread, refuse_fork
from pseudopoint.reproduce.experiment import Experiment, ExperimentError, experiment, names
from pseudopoint.reproduce.page import Outcome, outcome, write_page
from pseudopoint.reproduce.rows import StoredRows

MANY_MAPS = 30_000  # memory maps, of which every compiled program holds some; beyond Linux's 65,530 XLA crashes


@dataclass(frozen=True)
class Step:
    """The progress of an experiment: the case just computed is number `done` of `total`."""

    name: str
    case: dict[str, Any]
    done: int
    total: int
    seconds: float


@dataclass(frozen=True)
class Job:
    """How to run experiments: `folder` has them, `data` their tables (see `datasets.data_folder`), and rows, figures
    and the page go to `out`.

    Without `compute` no row is computed, and the rows may come from another folder, `rows_from`. `fetch` downloads
    missing tables. `paper` takes the paper's own setting where the stored run has a smaller one: hours to days.
    """

    out: Path
    folder: Path
    data: Path | None = None
    rows_from: Path | None = None
    quick: bool = False
    compute: bool = True
    fetch: bool = False
    progress: Callable[[Step], None] | None = None
    paper: bool = False

    def config(self, module: Experiment) -> Any:
        """The config of an experiment's run."""
        return module.QUICK if self.quick else module.Config() if self.paper else module.FULL

    def rows(self, name: str, module: Experiment) -> StoredRows:
        """Its rows."""
        return StoredRows((self.rows_from or self.out) / f"{name}.jsonl", module, self.config(module))


@contextmanager
def computing() -> Iterator[None]:
    """float64, and LAPACK on one thread. ForkError if a computation would never end."""
    refuse_fork()
    with jax.enable_x64(True), one_blas_thread():
        yield


def stored_folder(folder: Path, paper: bool = False) -> Path:
    """The folder of the rows of the stored run, or of what is stored of the papers' own settings."""
    return folder / "results" / ("paper" if paper else "")


def listing(job: Job) -> list[dict[str, Any]]:
    """Every experiment by name: source, subject, tables needed, rows that the job has and rows that it wants; or an
    `error` if it cannot be used."""
    entries = []
    for name in names(job.folder):
        try:
            module = experiment(name, job.folder)
            rows = job.rows(name, module)
            about = (module.__doc__ or "").strip().splitlines()[0]
            entry = {"name": name, "source": module.SOURCE, "about": about, "tables": list(module.TABLES)}
            entries.append(entry | {"rows": len(rows.rows()), "wanted": len(rows.cases)})
        except Exception as error:
            entries.append({"name": name, "error": _sentence(error)})
    return entries


def reproduce(name: str, job: Job) -> dict[str, Any]:
    """Runs an experiment, or "all", and writes its rows, NAME.jsonl, its figure, NAME.png, and a page into `job.out`.

    Cases that have a row are not computed again. The page is NAME.html, or report.html for "all". An error in one of
    all experiments stops only that one, and the page says why it is untested.
    """
    if job.data is not None and not job.data.is_dir() and not job.fetch:
        raise DataError(f"there is no folder {str(job.data)!r} of data: name the one that has NAME.csv.gz")
    make_folder(job.out)
    outcomes = [_safely(each, job) for each in names(job.folder)] if name == "all" else [_one(name, job)]
    page = job.out / ("report.html" if name == "all" else f"{name}.html")
    write_page(page, outcomes, job.quick)
    return {"experiments": [outcome.summary() for outcome in outcomes], "report": str(page)}


def _one(name: str, job: Job) -> Outcome:
    module = experiment(name, job.folder)
    rows = job.rows(name, module)
    if job.compute:
        _compute(name, module, rows, job)
    return outcome(name, module, rows, job.out, quick=job.quick)


def _safely(name: str, job: Job) -> Outcome:
    """As `_one`, but an error becomes part of the outcome, beside the rows computed before it."""
    try:
        return _one(name, job)
    except Exception as error:  # not KeyboardInterrupt, which ends everything
        stopped = _sentence(error)
    finally:
        jax.clear_caches()
    try:
        module = experiment(name, job.folder)
        return outcome(name, module, job.rows(name, module), job.out, stopped, job.quick)
    except Exception:
        return Outcome.broken(name, stopped)


def _compute(name: str, module: Experiment, rows: StoredRows, job: Job) -> None:
    """Computes every missing case, in order, and writes each row before the next case."""
    missing = rows.missing()
    if not missing:
        return
    place, config = data_folder(job.data), job.config(module)
    for table in _tables(module, missing):
        try:
            find(table, place)
        except DataError:
            if not job.fetch:
                raise
            download(table, place)
    versions = {"pseudopoint": version("pseudopoint"), "jax": version("jax"), "commit": _commit(job.folder)}
    rows.mend()
    with computing():
        for case in missing:
            start = time.perf_counter()
            rows.append(case, module.run(case, config, place), versions)
            if job.progress is not None:
                done = len(rows.cases) - len(rows.missing())
                job.progress(Step(name, case, done, len(rows.cases), time.perf_counter() - start))
            maps = Path("/proc/self/maps")
            if maps.exists() and maps.read_bytes().count(b"\n") > MANY_MAPS:
                jax.clear_caches()
                gc.collect()


def _tables(module: Experiment, missing: list[dict[str, Any]]) -> list[str]:
    """Those that the cases name as their table; all of them where the cases name none."""
    named = {case["table"] for case in missing if "table" in case}
    return [table for table in module.TABLES if table in named or not named]


def _sentence(error: Exception) -> str:
    """Our own errors are sentences; others are named by their type, too."""
    text = " ".join(str(error).split())
    return text if isinstance(error, DataError | ExperimentError) else f"{type(error).__name__}: {text}"


def _commit(folder: Path) -> str:
    """The commit of a checkout, with a + if the code has changed since; "" if there is none."""
    git = lambda *words: subprocess.run(["git", "-C", folder.parent, *words], capture_output=True, text=True)
    try:
        if not (folder.parent / ".git").exists() or (head := git("rev-parse", "--short", "HEAD")).returncode:
            return ""
        changed = git("status", "--porcelain", "--", "pseudopoint", ":(glob)experiments/*.py").stdout
    except OSError:  # no git
        return ""
    return head.stdout.strip() + "+" * bool(changed)
