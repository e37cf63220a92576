"""What README.md, CONTRIBUTING.md and docs/*.md show can be pasted, in its order, and prints what stands there.

A page is one session: one namespace, and one folder with the tables of `write_tables`. A ```python block is executed;
a ```text block right after it is what it prints. In a ```console block each `$ pseudopoint …` runs in this process, and
the lines after it are what it prints. There `...` stands for anything, and a number with decimals may differ by two
units of the last digit shown. After `<!-- file: NAME -->` a block is saved and not executed. After
`<!-- not run: REASON -->` it is not run, but its options must exist.
"""

import importlib
import re
import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from pseudopoint.cli import app
from pseudopoint.names import POSTERIORS
from pseudopoint.recipes import FAMILIES

pytestmark = pytest.mark.edge

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(
    r"(?:^ *<!-- (?:not run: (?P<reason>[^\n]*)|file: (?P<file>\S+)) -->\n)?"
    r"^ *```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.M | re.S,
)
NUMBER = r"(-?\d+(?:,\d{3})*\.\d+)"
OPTION = re.compile(r"(?<!\S)--[a-z][\w-]*")


class Block(NamedTuple):
    line: int
    language: str
    text: str
    reason: str | None  # why it is not run
    file: str | None  # where the reader saves it
    after: bool  # nothing but blank lines stand between it and the block before


def blocks(page: str) -> list[Block]:
    found, end = [], 0
    for match in FENCE.finditer(page):
        line, after = page.count("\n", 0, match.start("text")), not page[end : match.start()].strip()
        found.append(Block(line, match["language"], dedent(match["text"]), match["reason"], match["file"], after))
        end = match.end()
    return found


def commands(text: str) -> list[tuple[str, str]]:
    """(command, what is shown of its output) for each line that begins with "$ "; a backslash joins it to the next."""
    first, *parts = re.split(r"^\$ ", re.sub(r"\\\n", " ", text), flags=re.M)
    assert not first.strip(), "a console block begins with '$ '"
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def options() -> dict[str, set[str]]:
    """The options of each command of the package."""
    found: Any = typer.main.get_command(app)
    return {
        name: {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        for name, command in found.commands.items()
    }


def alike(shown: str, printed: str) -> bool:
    """The same words, and decimals within two units of the last digit shown."""
    pattern, numbers = "", []
    for piece in re.split(rf"(\.\.\.|\s+|{NUMBER[1:-1]})", shown.strip()):
        if re.fullmatch(NUMBER, piece):
            pattern, numbers = pattern + NUMBER, [*numbers, piece]
        else:
            pattern += ".*?" if piece == "..." else r"\s+" if piece.isspace() else re.escape(piece)
    match = re.fullmatch(pattern, printed.strip(), re.S)
    value = lambda text: float(text.replace(",", ""))
    unit = lambda text: 10.0 ** -len(text.partition(".")[2])
    return match is not None and all(
        abs(value(a) - value(b)) <= 2.01 * unit(a) for a, b in zip(numbers, match.groups(), strict=True)
    )


def write_tables(folder: Path) -> None:
    """The reader's own tables, by the names that pages give them."""
    rng = np.random.default_rng(0)
    houses, later = _houses(rng, 80), _houses(rng, 20)
    houses.to_csv(folder / "houses.csv", index=False)
    later.to_csv(folder / "later.csv", index=False)
    later.drop(columns="price").head(9).to_csv(folder / "new.csv", index=False)
    houses["sold"] = np.where(houses["price"] > np.median(houses["price"]), "late", "early")
    houses.drop(columns="price").to_csv(folder / "sales.csv", index=False)


def _houses(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    size, age = rng.uniform(40, 200, rows), rng.integers(0, 90, rows)
    houses = pd.DataFrame({"size": size.round(1), "age": age, "city": rng.choice(["Oslo", "Rome"], rows)})
    price = 2000 * size - 900 * age + 80_000 * (houses["city"] == "Oslo") + 8000 * rng.standard_normal(rows)
    return houses.assign(price=price.round(-2))


def run_python(block: Block, page: str, namespace: dict) -> str:
    out = StringIO()
    with redirect_stdout(out):
        exec(compile("\n" * block.line + block.text, page, "exec"), namespace)
    return out.getvalue()


def run_console(block: Block, page: str) -> None:
    for command, shown in commands(block.text):
        name, *words = shlex.split(command, comments=True)
        assert name == "pseudopoint", f"{page}:{block.line}: {name} is not run: say why"
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, f"{page}:{block.line}: {command}\n{done.output}{done.exception!r}"
        assert not shown or alike(shown, done.stdout), f"{page}:{block.line} prints\n{done.stdout}"


@pytest.fixture
def _own_names():
    """Names that a page adds are gone after it."""
    with patch.dict(FAMILIES), patch.dict(POSTERIORS):
        yield


@pytest.mark.usefixtures("_own_names")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_blocks_of_a_page_run_in_their_order(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path)
    namespace, printed = {"__name__": "__main__"}, None
    for block in blocks(path.read_text()):
        if block.file is not None:
            file = tmp_path / block.file
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text)
        elif block.language == "text":
            assert printed is None or not block.after or alike(block.text, printed), f"{path}:{block.line}: {printed}"
        elif block.reason is None and block.language == "python":
            printed = run_python(block, str(path), namespace)
            continue
        elif block.reason is None:
            run_console(block, path.name)
        printed = None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_block_says_what_it_is_and_every_option_exists(path):
    page, known = path.read_text(), options()
    for block in blocks(page):
        assert block.language in ("python", "console", "text"), f"{path.name}:{block.line}: {block.language!r}"
        for command, _ in commands(block.text) if block.language == "console" else ():
            name, *words = shlex.split(command, comments=True)
            if Path(name).name == "pseudopoint":
                asked = {word for word in words if word.startswith("--")}
                assert asked <= known[words[0]], f"{path.name}:{block.line}: {command}"
    prose = FENCE.sub("", page)
    assert "```" not in prose, "a block that is not closed"
    assert not re.search(r"^    (?:\$|pseudopoint|make|python|pip) ", prose, re.M), "commands stand in console blocks"
    every = set.union(*known.values()) | {"--help", "--version"}
    for span in re.findall(r"`((?:pseudopoint |--)[^`]+)`", prose):
        if path.parent.name == "docs" or path.name == "README.md":
            assert span.startswith("--only") or set(OPTION.findall(span)) <= every, f"{path.name}: {span}"


def test_the_pages_of_figures_are_what_stored_rows_make(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    performance = importlib.import_module("performance")
    again = "run python benchmarks/performance.py"
    assert performance.PAGE.read_text() == performance.page(), again
    assert performance.README.read_text() == performance.with_summary(performance.README.read_text()), again


def test_the_reader_of_pages_sees_what_is_wrong():
    page = (
        "# A\n```python\nprint(1)\n```\n\n```text\n1\n```\n\nB\n<!-- not run: a network -->\n```console\n$ pip x\n```\n"
    )
    assert [(b.line, b.language, b.reason, b.after) for b in blocks(page)] == [
        (2, "python", None, False),
        (6, "text", None, True),
        (12, "console", "a network", False),
    ]
    assert commands("$ a \\\n  b\nout\n$ c\n") == [("a    b", "out\n"), ("c", "")]
    assert alike("a 1.25 b\n...", "a 1.27   b\nc") and alike("1,234.5 [...]", "1,234.6 [2]")
    assert not alike("a 1.25", "a 1.28") and not alike("12 rows", "13 rows") and not alike("a", "a b")
    assert "--target" in options()["fit"] and "--target" not in options()["predict"]
