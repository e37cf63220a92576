"""Hostile cases: whatever is passed, every case ends in predictions that are finite and of the right shape, or in one
sentence of ours.

A case is named by words and small numbers, so that what it printed repeats it:

    python tests/hostile.py --cases 10000 --seed 0              # count by outcome, and every violation
    python tests/hostile.py --kind tables --cases 500           # of one kind: arrays, settings, tables, files, commands
    python tests/hostile.py --repeat "Arrays('GPRegressor', …)" # one case, with its traceback

What is raised has to be a ValueError or an OSError whose sentence is ours, or scikit-learn's about an argument (whose
convention has a TypeError for sparse matrices, and lines that show an array). A warning, NaN, another error, a
traceback at the command line, and two minutes without an answer are violations.
"""

import argparse
import os
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # before JAX is imported; the tests' conftest says why
    os.environ["JAX_COMPILATION_CACHE_DIR"] = ""
    if tuple(int(part) for part in version("jax").split(".")[:2]) <= (0, 10):
        flags = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
        os.environ.setdefault("XLA_FLAGS", f"{flags} --xla_cpu_parallel_codegen_split_count=1")
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import pseudopoint

__all__ = ["Violation", "answered", "judged", "many", "mostly"]

SECONDS = 120
KNOWN = ("A column-vector y was", "X (has|does not have valid) feature names")
PACKAGE = str(Path(pseudopoint.__file__).parent)


class Violation(AssertionError):
    """What no case may end in."""


class Hang(BaseException):
    """No answer in time."""


def mostly(plain: Any, others) -> st.SearchStrategy:
    """`plain` in more than half of the cases, for a case with one fault tells more than one with five."""
    return st.one_of(st.just(plain), st.just(plain), st.sampled_from(list(others)))


def answered(good: Any, what: str) -> None:
    """Violation unless `good`."""
    if not good:
        raise Violation(what)


def judged(case: Any) -> str:
    """How the case ended: "predicted", or what refused it, in general words. Raises Violation."""
    try:
        with _strict(), _in_time():
            return case.run()
    except Violation:
        raise
    except (Hang, Exception) as error:
        return refusal(error)


def refusal(error: BaseException) -> str:
    """The kind of sentence that refused a case. Raises Violation where it is none of ours."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    theirs = any("sklearn/utils" in file for file in files)
    sentence, name = str(error), type(error).__name__
    if not isinstance(error, ValueError | OSError) and not (theirs and isinstance(error, TypeError)):
        raise Violation(f"{name}: {sentence[:300]} ({_where(error)})") from error
    if not theirs:
        answered_by_us(sentence, traceback.extract_tb(error.__traceback__)[-1])
    general = re.sub(r"'[^']*'|\"[^\"]*\"|/\S+|-?\d[\d.,e+-]*", "…", sentence.partition("\n")[0])
    return f"{'scikit-learn: ' if theirs else ''}{name}: {general[:70]}"


def _where(error: BaseException) -> str:
    """The innermost line of ours, or of a test, that an error came through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    return f"{Path(frames[-1].filename).name}:{frames[-1].name}: {frames[-1].line}"


def answered_by_us(sentence: str, last: traceback.FrameSummary) -> None:
    """Violation where a sentence is more than one line, or was made elsewhere: no line of ours raised it."""
    answered("\n" not in sentence, f"several lines: {sentence!r:.300}")
    answered(8 < len(sentence) < 2000 and " " in sentence, f"no sentence: {sentence!r:.300}")
    ours = last.filename.startswith(PACKAGE) and "raise" in (last.line or "")
    answered(ours or "equinox" in last.filename, f"a sentence of {last.filename}:{last.name}: {sentence!r:.300}")


@contextmanager
def _strict() -> Iterator[None]:
    """A warning is an error: users would see it. Except those that scikit-learn's own estimators give too."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for known in (
            "A column-vector y was",
            "X (has|does not have valid) feature names",
            "The number of unique classes",
        ):
            warnings.filterwarnings("ignore", known)
        yield


@contextmanager
def _in_time() -> Iterator[None]:
    """Hang is raised where there is no answer in time."""

    def late(*_):
        raise Hang(f"no answer in {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def many(strategy: st.SearchStrategy, count: int, start: int, each: Callable[[Any], None]) -> None:
    """`each` of `count` cases of the strategy, the same ones for the same `start`."""
    checks: Any = list(HealthCheck)

    @seed(start)
    @settings(max_examples=count, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=checks)
    @given(strategy)
    def run(case):
        each(case)

    run()


class Found(NamedTuple):
    """Counts of outcomes, and what to repeat."""

    outcomes: Counter
    violations: dict[str, list[str]]

    def add(self, case: Any) -> None:
        """One more case."""
        started = time.perf_counter()
        try:
            self.outcomes[judged(case)] += 1
        except Violation as violation:
            self.outcomes["VIOLATION"] += 1
            kind = re.sub(r"/\S+|\d+", "…", str(violation))
            self.violations.setdefault(kind, []).append(repr(case))
            if len(self.violations[kind]) == 1:
                print(f"VIOLATION {violation}\n    {case!r}", flush=True)
        forget_programs()
        if (took := time.perf_counter() - started) > 20:
            print(f"slow ({took:.0f} s): {case!r}", flush=True)

    def show(self) -> None:
        """The count by outcome, and the violations."""
        print(f"\n{self.outcomes.total()} cases")
        for outcome, count in self.outcomes.most_common():
            print(f"{count:7d}  {outcome}")
        for violation, cases in self.violations.items():
            print(f"\n{len(cases)} × {violation}\n    {cases[0]}")


def forget_programs() -> None:
    """Linux allows a process 65,530 memory maps, and every compiled program keeps some."""
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > 30_000:
        import jax

        jax.clear_caches()


def main() -> None:
    """Many cases by hand."""
    import hostile_cases

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=["all", *hostile_cases.KINDS], default="all")
    parser.add_argument("--repeat", help="a case, as a run printed it")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35))
    if options.repeat:
        case = eval(options.repeat, dict(vars(hostile_cases)))
        try:
            print(judged(case))
        except Violation:
            traceback.print_exc()
        return
    found = Found(Counter(), {})
    try:
        for kind, share in hostile_cases.shares(options.kind).items():
            many(hostile_cases.KINDS[kind], round(share * options.cases), options.seed, found.add)
    except KeyboardInterrupt:
        print("interrupted")
    found.show()
    sys.exit(bool(found.violations))


if __name__ == "__main__":
    sys.modules["hostile"] = sys.modules["__main__"]  # whose Violation is the one that cases raise
    main()
