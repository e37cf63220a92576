"""A worker's side of the conversation: a line of JSON in, a line of JSON out. Standard library and NumPy alone.

A worker calls `serve` with what it can prepare. It works only when asked, and waits on its standard input otherwise, so
that of all workers one is busy at a time.
"""

import json
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Task(NamedTuple):
    """Prepared work. `turn` does it once, and is done when it returns; `value` is a number by which libraries are
    compared, now; `about` says how the library was used; `finish` gives more figures at the end."""

    turn: Callable[[], Any]
    value: Callable[[], float] | None = None
    about: str = ""
    finish: Callable[[], dict] | None = None


def peak_mb() -> float:
    """The largest resident memory of this process so far, MB.

    VmHWM where there is one: ru_maxrss also knows the memory of the parent that the process was forked from.
    """
    try:
        with open("/proc/self/status") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["VmHWM"].split()[0]) / 1024
    except (OSError, KeyError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def log_normal(y, mean, variance) -> float:
    """The mean of log N(y; mean, variance)."""
    y, mean, variance = (np.asarray(a, np.float64).ravel() for a in (y, mean, variance))
    return float(np.mean(-0.5 * np.log(2 * np.pi * variance) - 0.5 * (y - mean) ** 2 / variance))


def log_bernoulli(y, p) -> float:
    """The mean of log p(y), p the probabilities of 1; no probability is clipped."""
    y, p = np.asarray(y, np.float64).ravel(), np.asarray(p, np.float64).ravel()
    with np.errstate(divide="ignore"):
        return float(np.mean(np.log(np.where(y == 1, p, 1 - p))))


def milestones(first: int, last: int, ratio: float = 1.3) -> list[int]:
    """Step numbers at which a training is looked at: geometric, ending with `last`."""
    steps, at = [], float(first)
    while at < last:
        steps.append(round(at))
        at = max(at * ratio, at + 1)
    return [*steps, last]


class Curve:
    """Test log density against seconds of training: a clock that stands still while it is measured."""

    def __init__(self, budget: float):
        self.budget, self.spent, self.rows = budget, 0.0, []
        self.start = time.perf_counter()

    def look(self, step: int, density: Callable[[], float]) -> bool:
        """Note the density now; True while there is time left."""
        self.spent += time.perf_counter() - self.start
        self.rows.append({"step": step, "seconds": self.spent, "density": float(density())})
        self.start = time.perf_counter()
        return self.spent < self.budget and np.isfinite(self.rows[-1]["density"])


def words(error: Exception) -> str:
    """The error on one line, without paths of this machine or a traceback inside of it."""
    text = " ".join(re.sub(r'File "[^"]*", line \d+, in \S+', "", str(error)).split())
    return f"{type(error).__name__}: {re.sub(r'(/[^/ ]+)+/', '', text)[:200]}"


def _reply(channel, message):
    channel.write(json.dumps(message) + "\n")
    channel.flush()


def _timed(function):
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


class Worker:
    """What a worker does when asked: `prepare` a task, take a `turn` at it, say its `value`, `finish` it."""

    def __init__(self, kinds: dict[str, Callable[..., Task]], versions: dict[str, str]):
        self.kinds, self.versions, self.tasks = kinds, versions, {}

    def hello(self):
        return {"versions": self.versions, "kinds": list(self.kinds)}

    def prepare(self, key: str, kind: str, file: str, options: dict):
        with np.load(file) as arrays:
            problem = dict(arrays)
        base, calls = peak_mb(), options.pop("calls", 1)
        task, seconds = _timed(lambda: self.kinds[kind](problem, **options))
        self.tasks[key] = task._replace(turn=lambda: [task.turn() for _ in range(calls)][-1])
        return {"seconds": seconds, "about": task.about, "base_mb": base}

    def turn(self, key: str):
        info, seconds = _timed(self.tasks[key].turn)
        return {"seconds": seconds, "peak_mb": peak_mb()} | (info if isinstance(info, dict) else {})

    def value(self, key: str):
        task = self.tasks[key]
        return {"value": None if task.value is None else float(task.value())}

    def finish(self, key: str):
        task = self.tasks.pop(key)
        return task.finish() if task.finish else {}


def serve(kinds: dict[str, Callable[..., Task]], versions: dict[str, str]) -> None:
    """Answer until the input ends. What libraries print goes to standard error."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(kinds, versions)
    for line in sys.stdin:
        message = json.loads(line)
        try:
            _reply(channel, {"ok": getattr(worker, message.pop("do"))(**message)})
        except Exception as error:  # a failure is a result of the comparison
            traceback.print_exc()
            _reply(channel, {"error": words(error)})
