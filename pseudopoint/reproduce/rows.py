"""Rows of results: one line of JSON each, written as soon as it is computed, and never twice."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pseudopoint.files import whole_file
from pseudopoint.reproduce.experiment import Case, Experiment, ExperimentError, Row


class StoredRows:
    """The rows of one experiment under one config, in NAME.jsonl.

    Rows of other configs stay in the file and are counted in `others`. A last line that a kill cut off is dropped. Of
    two rows of one case the later counts.
    """

    def __init__(self, path: Path, module: Experiment, config: Any):
        self.path, self.config = path, json.loads(json.dumps(asdict(config)))
        self.counts = tuple(getattr(module, "COUNTS", ()))
        self.cases: list[Case] = json.loads(json.dumps(module.cases(config)))
        wanted, self.others = {_key(case) for case in self.cases}, 0
        if len(wanted) < len(self.cases):
            raise ExperimentError(f"{module.__name__}.cases gives one case twice")
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
        """The rows that there are, in the experiment's order, which is the same after a resumed run."""
        return [self.found[_key(case)] for case in self.cases if _key(case) in self.found]

    def append(self, case: Case, figures: dict[str, Any], versions: dict[str, str]) -> None:
        """Writes one row in a single system call, so that Ctrl-C leaves all of it or nothing."""
        taken = sorted(set(figures) & {*case, "config", *versions})
        if taken:
            raise ExperimentError(f"run gives {', '.join(taken)}, which the row has already")
        row = case | figures | {"config": self.config} | versions
        line = json.dumps(row, default=lambda array: array.tolist())
        with self.path.open("ab", buffering=0) as file:
            file.write(line.encode() + b"\n")
            os.fsync(file.fileno())
        self.found[_key(case)] = json.loads(line)

    def mend(self) -> None:
        """Drops a last line that was cut off, or adds its line feed. Call it before the first `append`."""
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
    """The rows of a file, if there is one. `ExperimentError` at a line that is no row, except for a last one cut
    off."""
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
    """The row of the line, if it is a whole JSON object."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
