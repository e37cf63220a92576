"""One case: everybody prepares the same problem, values are compared, and then turns are taken, one at a time."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cases import Case, Entry, write
from talk import Process, WorkerError, Workers, settle


class Bench(NamedTuple):
    """How it is run: repeats, precision, where, which cases (a regular expression in their names), and whom to tell."""

    workers: Workers
    folder: Path
    repeats: int
    dtype: str
    quick: bool
    cases: re.Pattern
    say: Callable[[str], None]


class Runner:
    """An entry of a case on its worker: what has been measured so far, and why it stopped if it did."""

    def __init__(self, entry: Entry, worker: Process | None):
        self.entry, self.worker, self.durations = entry, worker, []
        self.row: dict[str, Any] = {"library": entry.library, "variant": entry.variant}
        if worker is not None:
            self.row["versions"] = worker.about["versions"]

    @property
    def alive(self) -> bool:
        """Whether it may take another turn."""
        return "error" not in self.row

    def ask(self, do: str, **message) -> dict:
        """An answer, or nothing and the reason in the row."""
        if not self.alive or self.worker is None:
            return {}
        try:
            return self.worker.ask(do, key=self.entry.name, **message)
        except WorkerError as error:
            self.row["error"] = str(error)
            return {}

    def prepare(self, case: Case, file: str) -> None:
        """Build, look at the value, and take the first turn, which compiles."""
        options = case.options | {"variant": self.entry.variant}
        answer = self.ask("prepare", kind=case.kind, file=file, options=options)
        self.row |= {"prepare_seconds": answer.get("seconds"), "about": answer.get("about")}
        self.row["base_mb"] = answer.get("base_mb")
        if case.kind == "steps":
            self.row["value"] = self.ask("value").get("value")
        first = self.ask("turn")
        self.row["first_seconds"] = first.get("seconds")
        self.row.setdefault("value", first.get("value"))
        if self.row["value"] is None:
            self.row["value"] = self.ask("value").get("value")

    def turn(self) -> None:
        """One timed turn."""
        settle()
        answer = self.ask("turn")
        if "seconds" in answer:
            self.durations.append(answer["seconds"])
            self.row["peak_mb"] = answer["peak_mb"]

    def result(self, unit: int) -> dict:
        """The row: seconds of one of `unit` things, median and quartiles."""
        if self.alive and self.durations:
            q1, median, q3 = np.quantile(np.array(self.durations) / unit, [0.25, 0.5, 0.75])
            self.row |= {"seconds": median, "q1": q1, "q3": q3, "repeats": len(self.durations)}
            if self.row.get("first_seconds"):
                self.row["compile_seconds"] = max(0.0, self.row["first_seconds"] - median * unit)
        return self.row


def compare(case: Case, arrays: dict, bench: Bench, own: bool = False, apart: bool = False) -> list[dict]:
    """Rows of a case. `own`: a process for each entry, so that its memory is its own; `apart`: and only while it is
    working, for problems of which not all fit into memory at once."""
    file = write(bench.folder / "problem.npz", arrays, bench.dtype)
    bench.say(f"  {case.name}: ")
    take = _apart if apart else _together
    start = time.perf_counter()
    runners = take(case, file, bench, own)
    facts = {"case": case.name, "dtype": bench.dtype} | case.facts
    rows = [facts | runner.result(case.options.get("steps") or case.options.get("calls", 1)) for runner in runners]
    bench.say(", ".join(_short(row) for row in rows) + f"   [{time.perf_counter() - start:.0f} s]\n")
    return rows


def _short(row: dict) -> str:
    name = f"{row['library']} {row['variant']}".strip()
    return f"{name} {1e3 * row['seconds']:.3g} ms" if "seconds" in row else f"{name} FAILED ({row.get('error')})"


def _runner(entry: Entry, bench: Bench, own: bool) -> Runner:
    try:
        worker = bench.workers.fresh(entry.library) if own else bench.workers.get(entry.library)
    except WorkerError as error:
        runner = Runner(entry, None)
        runner.row["error"] = str(error)
        return runner
    return Runner(entry, worker)


def _together(case: Case, file: str, bench: Bench, own: bool) -> list[Runner]:
    runners = [_runner(entry, bench, own) for entry in case.entries]
    for runner in runners:
        runner.prepare(case, file)
    check(case, runners)
    for i in range(bench.repeats):
        # Each round another one begins.
        for j in range(len(runners)):
            runner = runners[(i + j) % len(runners)]
            if runner.alive:
                runner.turn()
    for runner in runners:
        if case.kind == "steps":
            runner.row["end_value"] = runner.ask("value").get("value")
        runner.row |= runner.ask("finish")
        if own and runner.worker is not None:
            runner.worker.close()
    return runners


def _apart(case: Case, file: str, bench: Bench, own: bool) -> list[Runner]:
    rounds, turns = min(2, bench.repeats), max(1, min(3, bench.repeats // 2))
    last: dict[Entry, Runner] = {}
    for i in range(rounds):
        for j in range(len(case.entries)):
            entry = case.entries[(i + j) % len(case.entries)]
            before = last.get(entry)
            if before is not None and not before.alive:
                continue
            last[entry] = runner = _runner(entry, bench, True)
            runner.prepare(case, file)
            runner.durations += before.durations if before else []
            for _ in range(turns):
                if runner.alive:
                    runner.turn()
            if runner.worker is not None:
                runner.worker.close()
    runners = [last[entry] for entry in case.entries]
    check(case, runners)
    return runners


def check(case: Case, runners: list[Runner]) -> None:
    """Like with like: an entry whose value differs from ours is no comparison, and is taken out with that reason."""
    named = [r for r in runners if r.entry.name in case.check and r.alive]
    reference = next((r.row["value"] for r in named if r.entry.library == "ours"), None)
    for runner in named:
        with suppress(TypeError, ZeroDivisionError):
            runner.row["difference"] = abs(runner.row["value"] - reference) / abs(reference)
        bad = not runner.row.get("difference", np.inf) <= max(case.tolerance, case.loose.get(runner.entry.name, 0.0))
        if bad and runner.entry.library != "ours":
            runner.row["error"] = f"unlike: its value is {runner.row['value']!r}, ours {reference!r}"
