"""Rows of results: one line of JSON each, kept as soon as it is there, and never twice."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pseudopoint.files import whole_file
from pseudopoint.reproduce.experiment import Case, Experiment, ExperimentError, Row

__all__ = ["Rows"]


class Rows:
    """The rows of one experiment under one config, in NAME.jsonl.

    The file may hold rows of other configs: they are left alone and counted in `others`. A last line that was cut off
    by a kill is dropped. Of two rows of one case the later counts.
    """

    def __init__(self, path: Path, module: Experiment, config: Any):
        self.path, self.config = path, json.loads(json.dumps(asdict(config)))
        self.counts = tuple(getattr(module, "COUNTS", ()))
        self.cases: list[Case] = json.loads(json.dumps(module.cases(config)))
        keys = [_key(case) for case in self.cases]
        if len(set(keys)) < len(keys):
            raise ExperimentError(f"{module.__name__}.cases gives one case twice")
        wanted, self.others = set(keys), 0
        names = list(self.cases[0]) if self.cases else []
        if any(set(case) != set(names) for case in self.cases):
            raise ExperimentError(f"{module.__name__}.cases gives cases of different keys")
        self.found: dict[str, Row] = {}
        for row in _read(path):
            key = _key({name: row.get(name) for name in names})
            if self._setting(row.get("config", {})) == self._setting(self.config) and key in wanted:
                self.found[key] = row
            else:
                self.others += 1

    def missing(self) -> list[Case]:
        """The cases that have no row yet, in the experiment's order."""
        return [case for case in self.cases if _key(case) not in self.found]

    def rows(self) -> list[Row]:
        """The rows that are there, in the experiment's order: a resumed run gives the same list."""
        return [self.found[_key(case)] for case in self.cases if _key(case) in self.found]

    def append(self, case: Case, figures: dict[str, Any], versions: dict[str, str]) -> None:
        """Writes one row in a single call to the system, so that Ctrl-C leaves it whole or not there."""
        taken = sorted(set(figures) & {*case, "config", *versions})
        if taken:
            raise ExperimentError(f"run gives {', '.join(taken)}, which the row has already")
        line = json.dumps(case | figures | {"config": self.config} | versions, default=_plain)
        with self.path.open("ab", buffering=0) as file:
            file.write(line.encode() + b"\n")
            os.fsync(file.fileno())
        self.found[_key(case)] = json.loads(line)

    def mend(self) -> None:
        """Drops a last line that is not whole, and gives a whole one its line feed: before the first `append`."""
        if not self.path.exists() or not (content := self.path.read_bytes()) or content.endswith(b"\n"):
            return
        last = content.rpartition(b"\n")[2]
        with whole_file(self.path) as file:
            file.write(content[: -len(last)] if _row(last) is None else content + b"\n")

    def _setting(self, config: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in config.items() if name not in self.counts}


def _key(case: Case) -> str:
    return json.dumps(case, sort_keys=True)


def _read(path: Path) -> list[Row]:
    """The rows of a file; none if there is no file. A line that is no row is refused, but for a last one cut off."""
    if not path.exists():
        return []
    lines, rows = path.read_bytes().split(b"\n"), []
    for number, line in enumerate(lines, 1):
        row = _row(line)
        if row is not None:
            rows.append(row)
        elif line.strip() and number < len(lines):  # a line feed follows
            raise ExperimentError(f"{path}, line {number} is no row (a JSON object); delete that line")
    return rows


def _row(line: bytes) -> Row | None:
    """What the line says, if it is a whole JSON object."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _plain(value: Any) -> Any:
    """Arrays and their scalars as JSON has them."""
    return value.tolist()
