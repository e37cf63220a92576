"""Where a stored row comes from: machine, day, commit and command."""

import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def store(row: dict, out: Path | None, of: str | None = None) -> None:
    """Prints the row with its provenance and the load of the machine, and appends it to a file of JSON lines. `of` is
    the commit that was measured, where it is not that of this checkout."""
    row |= {"load": round(os.getloadavg()[0], 1)} | provenance() | ({"commit": of} if of is not None else {})
    line = json.dumps(row, default=float, ensure_ascii=False)
    print(line, flush=True)
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


@cache  # the code that runs is that of the start
def provenance() -> dict[str, str]:
    """What every row of `results` says of its run. A commit with a "+" had changes that were not committed."""
    return {"machine": machine(), "date": str(datetime.date.today()), "commit": commit(), "command": command()}


def machine() -> str:
    """What it ran on, in words."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def commit() -> str:
    """The commit of the checkout; "" where git does not tell."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def command() -> str:
    """The command line, with FOLDER for the folders of this machine."""
    words = ["FOLDER" if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["python", os.path.relpath(sys.argv[0], ROOT), *words])
