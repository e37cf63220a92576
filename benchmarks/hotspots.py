"""Where the time of a step goes, by line of code: XLA's own trace, each operation led back to the line it came from.

    python benchmarks/hotspots.py "adam, 100" [--turns 20] [--lines 25]

The cases are those of `ours.py`. XLA fuses operations of several lines: a fusion counts for the line of its root. Times
are of the compiled operations while they run, and may overlap, for two may run at a time; what is missing to the wall
clock is XLA between them.
"""

import argparse
import gzip
import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import jax
import ours
from threadpoolctl import threadpool_limits

HERE = "pseudopoint/"


def lines_of(text: str) -> dict[str, str]:
    """File and line of every operation of a compiled program: the innermost frame in this package."""

    def entries(title: str) -> dict[int, str]:
        block = re.search(rf"^{title}\n((?:\d+ .*\n)*)", text, re.MULTILINE)
        return {int(line.split(" ", 1)[0]): line.split(" ", 1)[1] for line in block[1].splitlines()} if block else {}

    files, locations, frames = (entries(title) for title in ("FileNames", "FileLocations", "StackFrames"))
    field = lambda name, entry: int(found[1]) if (found := re.search(rf"\b{name}=(\d+)", entry)) else 0

    def line(frame: int) -> str:
        while frame:
            place, parent = locations[field("file_location_id", frames[frame])], field("parent_frame_id", frames[frame])
            name = files[field("file_name_id", place)].strip('"')
            if HERE in name:
                return f"{name.rpartition(HERE)[2]}:{field('line', place)}"
            frame = parent if parent != frame else 0
        return "elsewhere"

    found = re.findall(r"^\s*(?:ROOT )?%([\w.-]+) = .*?metadata=\{[^}]*stack_frame_id=(\d+)", text, re.MULTILINE)
    return {name: line(int(frame)) for name, frame in found}


def traced(turn: Callable, turns: int) -> tuple[float, dict[str, float], dict[str, float]]:
    """Wall-clock seconds a turn; seconds and calls a turn by operation."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, 3
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            start = time.perf_counter()
            for _ in range(turns):
                jax.block_until_ready(turn())
            wall = time.perf_counter() - start
        (file,) = Path(folder).rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    seconds, calls = defaultdict(float), defaultdict(float)
    for event in events:
        if event.get("ph") == "X":
            seconds[event["name"]] += event["dur"] / 1e6 / turns
            calls[event["name"]] += 1 / turns
    return wall / turns, seconds, calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--lines", type=int, default=25)
    parser.add_argument("--operations", action="store_true", help="operations by name, not by line")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)  # a program from there may name old lines
    known = ours.cases()
    if options.case not in known:
        parser.error(f"no case {options.case!r}; there are {'|'.join(known)}")
    turn, per = known[options.case](), 1e3 / (1 if options.case.startswith("collapsed") else ours.STEPS)
    where = lines_of(turn.func.lower(*turn.args).compile().as_text())
    with threadpool_limits(1, user_api="blas"):
        jax.block_until_ready(turn())
        wall, seconds, calls = traced(turn, options.turns)
    times, counts = defaultdict(float), defaultdict(float)
    for name in seconds.keys() & where.keys():
        key = f"{where[name]}  {name}" if options.operations else where[name]
        times[key] += seconds[name]
        counts[key] += calls[name]
    print(f"{options.case}: {per * wall:.3g} ms, of which operations {per * sum(times.values()):.3g} ms")
    for key, value in sorted(times.items(), key=lambda item: -item[1])[: options.lines]:
        print(f"{per * value:9.3g} ms {per / 1e3 * counts[key]:6.1f} times  {key}")


if __name__ == "__main__":
    main()
