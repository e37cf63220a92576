"""Hostile tables and files: fitted, predicted, scored and inspected, in Python or by the command line."""

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from hostile import Violation, answered, mostly
from hostile_tables import ARROW, CELLS, DAMAGES, HEADERS, WRITINGS, csv_bytes, parquet_bytes
from hypothesis import strategies as st

from pseudopoint.commands import fit_table, inspect_model, predict_table, score_table
from pseudopoint.persistence import ModelFileError

__all__ = ["Commands", "Files", "Tables", "commands", "files", "tables"]

BRIEF: dict[str, Any] = {"max_iter": 1, "initial": "robust", "effort": "fast"}
NAMES = ["x0", "x1", "x2"]


class Tables(NamedTuple):
    """A table to fit, and a table to predict with what was fitted: each (suffix, columns, header, writing, damage)."""

    train: tuple[str, tuple[str, ...], str, str, str]
    later: tuple[str, tuple[str, ...], str, str, str]
    target: str
    task: str
    test_fraction: float
    missing: tuple[str, ...]
    out: str
    N: int
    seed: int

    def write(self, folder: Path, which: str) -> Path:
        """The table's file."""
        suffix, columns, header, writing, damage = getattr(self, which)
        rng = np.random.default_rng([self.seed, which == "train"])
        names = HEADERS[header]([*NAMES[: len(columns) - 1], "y"])
        if suffix == ".parquet":
            data = parquet_bytes([ARROW[name](rng, self.N) for name in columns], names or list("abc")[: len(columns)])
        else:
            data = csv_bytes([CELLS[name](rng, self.N) for name in columns], names, writing)
        data = DAMAGES[damage](data, rng)
        path = folder / f"{which}{suffix}"
        path.write_bytes(gzip.compress(data) if suffix == ".csv.gz" else data)
        return path

    def run(self) -> str:
        """ "predicted", or an error."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            train, later = self.write(folder, "train"), self.write(folder, "later")
            try:
                return self.fit(folder, train, later)
            finally:
                whole(folder)

    def fit(self, folder: Path, train: Path, later: Path) -> str:
        """Fit, predict, inspect and score."""
        model, out = folder / "model.safetensors", folder / f"out{self.out}"
        fit = {"task": self.task, "test_fraction": self.test_fraction, "missing": self.missing, "out": model}
        result = fit_table(train, self.target, **fit, report=folder / "report.html", **BRIEF)
        answered(np.isfinite(result["bound"]), f"the bound is {result['bound']}")
        json.dumps(inspect_model(model), allow_nan=False)
        done = predict_table(model, later, out)
        predicted(out, done["rows"])
        scored = score_table(model, train)
        answered(json.dumps(scored) is not None, "scores are no JSON")
        return "predicted"


def predicted(out: Path, rows: int) -> None:
    """Violation unless a file of predictions is whole and finite."""
    frame = pd.read_parquet(out) if out.suffix == ".parquet" else pd.read_csv(out, dtype_backend="numpy_nullable")
    answered(len(frame) == rows and rows > 0, f"{len(frame)} predictions of {rows} rows")
    numbers = frame.select_dtypes("number").to_numpy(float, na_value=np.nan)
    answered(numbers.size and np.isfinite(numbers).all(), "a prediction in a file is not finite")


def whole(folder: Path) -> None:
    """Violation unless all that was written is whole: no temporary file, a model that loads, a page with its end."""
    for path in folder.iterdir():
        answered(not path.name.endswith(".part"), f"a temporary file is left: {path.name}")
        if path.name == "report.html":
            answered(path.read_text().rstrip().endswith("</html>"), "a report without its end")
        if path.name == "model.safetensors":
            try:
                inspect_model(path)
            except ModelFileError as error:
                raise Violation(f"a model was written that does not load: {error}") from error


class Commands(NamedTuple):
    """The same by the command line, which exits with 0 or 2 and shows no traceback."""

    case: Tables

    def run(self) -> str:
        """ "exit 0", or "exit 2"."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            train, later = self.case.write(folder, "train"), self.case.write(folder, "later")
            model, out = folder / "model.safetensors", folder / f"out{self.case.out}"
            words = [part for word in self.case.missing for part in ("--missing", word)]
            options = ["--max-iter", "1", "--initial", "robust", "--task", self.case.task, *words]
            status = command("fit", train, "--target", self.case.target, "--out", model, *options)
            status |= command("predict", model, later, "--out", out)
            if out.exists():
                predicted(out, len(pd.read_parquet(out) if out.suffix == ".parquet" else pd.read_csv(out)))
            whole(folder)
        return f"exit {status}"


def command(*words: Any) -> int:
    """The exit status. Violation where it is neither 0 nor 2, or a traceback or a bug is shown."""
    line = [sys.executable, "-m", "pseudopoint", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(line, capture_output=True, text=True, timeout=110, env=environment, errors="replace")
    said = done.stderr[-600:]
    answered(done.returncode in (0, 2), f"exit status {done.returncode} of {words[0]}: {said}")
    for bad in ("Traceback", "a bug in pseudopoint", "Warning"):
        answered(bad not in done.stderr, f"{words[0]} shows {bad!r}: {said}")
    return done.returncode


PATHS = (
    *(
        "",
        ".",
        "/",
        "/dev/null",
        "/dev/null.csv",
        "missing.csv",
        "folder.csv",
        "unreadable.csv",
        "no/such/folder/t.csv",
    ),
    *("loop.csv", "pipe.csv", "nul\0.csv", "n" * 300 + ".csv", "line\nbreak.csv", "t.xlsx", "t", "t.CSV"),
    *("dangling.csv", "t.csv/under.csv", "~/t.csv", "t.csv.gz", "t.parquet", " ", "t.csv"),
)


class Files(NamedTuple):
    """A path that is odd, or a model file that is damaged, in one place of one call."""

    call: str
    path: str
    damage: str
    seed: int

    def run(self) -> str:
        """ "predicted", or an error."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            furnish(folder)
            here, before = os.getcwd(), (folder / "model").read_bytes()
            os.chdir(folder)
            try:
                return self.act(before)
            finally:
                os.chdir(here)
                whole(folder)

    def act(self, model: bytes) -> str:
        """One call."""
        if self.call == "fit":
            fit_table(self.path, "y", **BRIEF)
        elif self.call == "fit to":
            fit_table("t.csv", "y", out=self.path, **BRIEF)
        elif self.call == "report to":
            fit_table("t.csv", "y", report=self.path, **BRIEF)
        elif self.call == "predict":
            predict_table("model", self.path, "out.csv")
        elif self.call == "predict to":
            predict_table("model", "t.csv", self.path)
        elif self.call == "load":
            inspect_model(self.path)
        else:
            return self.damaged(model)
        return f"done: {self.call}"

    def damaged(self, model: bytes) -> str:
        """A damaged model file is refused, or is what it was."""
        predict_table("model", "t.csv", "before.csv")
        Path("model").write_bytes(DAMAGES[self.damage](model, np.random.default_rng(self.seed)))
        predict_table("model", "t.csv", "after.csv")
        answered(
            Path("before.csv").read_bytes() == Path("after.csv").read_bytes(), "a damaged model predicts otherwise"
        )
        return "done: damaged, but the same"


_MODEL: list[bytes] = []


def furnish(folder: Path) -> None:
    """A folder with a good table and model, and much that is neither."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=12), "y": rng.normal(size=12)})
    frame.to_csv(folder / "t.csv", index=False)
    if not _MODEL:
        fit_table(folder / "t.csv", "y", out=folder / "model", **BRIEF)
        _MODEL.append((folder / "model").read_bytes())
    (folder / "model").write_bytes(_MODEL[0])
    (folder / "folder.csv").mkdir()
    (folder / "loop.csv").symlink_to("loop.csv")
    (folder / "dangling.csv").symlink_to("nowhere/at/all.csv")
    (folder / "unreadable.csv").write_bytes(b"x,y\n1,2\n")
    (folder / "unreadable.csv").chmod(0)
    os.mkfifo(folder / "pipe.csv")
    (folder / "line\nbreak.csv").write_bytes((folder / "t.csv").read_bytes())


_TABLE_PARTS = st.tuples(mostly("plain", HEADERS), mostly("plain", WRITINGS), mostly("none", DAMAGES))


@st.composite
def one_table(draw, suffix: str) -> tuple:
    """(suffix, columns, header, writing, damage)."""
    header, writing, damage = draw(_TABLE_PARTS)
    if suffix == ".parquet":
        target = draw(mostly("double", ARROW))
        columns = draw(st.lists(st.sampled_from(list(ARROW)), min_size=1, max_size=2))
        return suffix, (*columns, target), "repeated" if header == "repeated" else "plain", "plain", damage
    target = draw(mostly("numbers", [*CELLS, "classes", "classes"]))
    columns = draw(st.lists(mostly("numbers", CELLS), min_size=1, max_size=2))
    return suffix, (*columns, target), header, writing, damage


@st.composite
def tables(draw) -> Tables:
    """A case of `Tables`: what is predicted is mostly a table as the one that was fitted."""
    suffix = draw(st.sampled_from([".csv", ".csv", ".csv", ".csv.gz", ".parquet"]))
    train = draw(one_table(suffix))
    other = draw(one_table(draw(st.sampled_from([".csv", ".parquet"]))))
    later = draw(st.sampled_from([train, train, (*train[:4], "none"), other]))
    target = draw(mostly("y", ["x0", "z", "", "Y", " y ", "y_mean"]))
    task, fraction = draw(mostly("auto", ["regression", "classification"])), draw(mostly(0.0, [0.1, 0.5, 0.99]))
    missing = draw(mostly((), [("NA",), ("?", "-"), ("",), ("1",), ("nan", "inf")]))
    out = draw(mostly(".csv", [".csv.gz", ".parquet", ".xlsx", ""]))
    N = draw(st.sampled_from([12, 12, 24]))
    return Tables(train, later, target, task, fraction, missing, out, N, draw(st.integers(0, 999)))


def commands() -> st.SearchStrategy:
    """A case of `Commands`."""
    return tables().map(Commands)


def files() -> st.SearchStrategy:
    """A case of `Files`."""
    calls = ["fit", "fit to", "report to", "predict", "predict to", "load"]
    place = st.builds(Files, st.sampled_from(calls), st.sampled_from(PATHS), st.just("none"), st.just(0))
    place = place.filter(lambda case: case.path != "pipe.csv" or case.call == "load")  # a pipe waits for its other end
    damage = st.sampled_from(["cut", "flipped", "flipped", "flipped", "NUL", "empty", "noise", "gzip", "long line"])
    return st.one_of(place, st.builds(Files, st.just("damaged"), st.just(""), damage, st.integers(0, 2**16)))
