"""What README.md, CONTRIBUTING.md and docs/*.md show can be pasted, in their order, and prints what stands there.

A page is one session: one namespace and one folder, with the tables of `TABLES`. A ```python block is executed; if a
```text block follows, it is what was printed. In a ```console block every `$ pseudopoint …` is run by the command line
in this process, and other lines are what was printed; `...` stands for anything. Decimals may differ by two units of the
last digit shown. A block after `<!-- file: NAME -->` is saved and not executed. A block after `<!-- not run: REASON -->`
is not run, but its options must exist.
"""

import re
import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from pseudopoint.cli import app

pytestmark = pytest.mark.edge

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(
    r"(?:^ *<!-- (?:not run: (?P<reason>[^\n]*)|file: (?P<file>\S+)) -->\n)?"
    r"^ *```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.M | re.S,
)
NUMBER = re.compile(r"(-?\d+(?:,\d{3})*(?:\.\d+)?)")
LANGUAGES = {"python", "console", "text"}


class Block(NamedTuple):
    line: int
    language: str
    text: str
    reason: str | None  # why it is not run
    file: str | None  # where the reader saves it
    after: bool  # nothing but blank lines between the block before and this one


def blocks(page: str) -> list[Block]:
    found, end = [], -1
    for match in FENCE.finditer(page):
        line = page.count("\n", 0, match.start("text"))
        between = page[end : match.start()] if end >= 0 else "x"
        found.append(
            Block(line, match["language"], dedent(match["text"]), match["reason"], match["file"], not between.strip())
        )
        end = match.end()
    return found


def commands(text: str) -> list[tuple[str, str]]:
    """(command, what is shown of its output) for each `$` line, a backslash joining it to the next."""
    parts = re.split(r"^\$ ", re.sub(r"\\\n", " ", text), flags=re.M)
    assert not parts[0].strip(), "a console block begins with '$ '"
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts[1:])]


def options(command: str) -> set[str]:
    """The options in a command of pseudopoint that it does not have."""
    words = shlex.split(command, comments=True)
    tree = typer.main.get_command(app)
    every = {name: {o for p in each.params for o in p.opts} for name, each in tree.commands.items()}  # pyright: ignore
    return {word for word in words[2:] if word.startswith("--")} - every[words[1]]


def alike(shown: str, printed: str) -> bool:
    """The same words, numbers within two units of the last digit shown; `...` is anything."""
    pattern, digits = "", []
    for piece in re.split(r"(\.\.\.|\s+|-?\d+(?:,\d{3})*(?:\.\d+)?)", shown.strip()):
        if NUMBER.fullmatch(piece) and "." in piece:
            pattern, digits = pattern + NUMBER.pattern, [*digits, piece]
        else:
            pattern += r".*?" if piece == "..." else r"\s+" if piece.isspace() else re.escape(piece)
    match = re.fullmatch(pattern, printed.strip(), re.S)
    number = lambda text: float(text.replace(",", ""))
    unit = lambda text: 10.0 ** -len(text.partition(".")[2])
    return match is not None and all(
        abs(number(a) - number(b)) <= 2.01 * unit(a) for a, b in zip(digits, match.groups(), strict=True)
    )


def write_tables(folder: Path) -> None:
    """The reader's own tables, by the names that pages give them."""
    rng = np.random.default_rng(0)
    size, age = rng.uniform(40, 200, 80), rng.integers(0, 90, 80)
    houses = pd.DataFrame({"size": size.round(1), "age": age, "city": rng.choice(["Oslo", "Rome"], 80)})
    price = 2000 * size - 900 * age + 80_000 * (houses["city"] == "Oslo") + 8000 * rng.standard_normal(80)
    houses["price"] = price.round(-2)
    houses.to_csv(folder / "houses.csv", index=False)
    houses.drop(columns="price").head(9).to_csv(folder / "new.csv", index=False)
    houses["sold"] = np.where(price > np.median(price), "late", "early")
    houses["visits"] = rng.poisson(size / 40)
    houses.drop(columns="price").to_csv(folder / "sales.csv", index=False)


def run_python(block: Block, page: str, namespace: dict) -> str:
    out = StringIO()
    with redirect_stdout(out):
        exec(compile("\n" * block.line + block.text, page, "exec"), namespace)
    return out.getvalue()


def run_console(block: Block, page: str) -> None:
    for command, shown in commands(block.text):
        words = shlex.split(command, comments=True)
        assert words[0] == "pseudopoint", f"{page}:{block.line}: {words[0]} is not run: say why"
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, f"{page}:{block.line}: {command}\n{done.output}{done.exception!r}"
        assert not shown.strip() or alike(shown, done.stdout), f"{page}:{block.line} prints\n{done.stdout}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_blocks_of_a_page_run_in_their_order(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path)
    namespace, printed = {"__name__": "__main__"}, None
    for block in blocks(path.read_text()):
        if block.language == "text":
            assert printed is None or not block.after or alike(block.text, printed), f"{path}:{block.line}: {printed}"
            printed = None
        elif block.file is not None:
            file = tmp_path / block.file
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text)
        elif block.reason is None and block.language == "python":
            printed = run_python(block, str(path), namespace)
        elif block.reason is None:
            run_console(block, path.name)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_block_says_what_it_is_and_every_option_exists(path):
    page = path.read_text()
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{path.name}:{block.line}: {block.language!r}"
        assert block.reason is None or len(block.reason) > 10
        for command, _ in commands(block.text) if block.language == "console" else ():
            if command.startswith("pseudopoint ") and not command.startswith("pseudopoint --"):
                assert options(command) == set(), f"{path.name}:{block.line}"
    prose = FENCE.sub("", page)
    assert "```" not in prose, "a block that is not closed"
    assert not re.search(r"^    (?:\$|pseudopoint|make|python|pip) ", prose, re.M), "commands stand in console blocks"
    every = {option for command in typer.main.get_command(app).commands.values() for p in command.params for option in p.opts}  # fmt: skip # pyright: ignore
    for span in re.findall(r"`([^`\n]+)`", prose):
        if path.name != "CONTRIBUTING.md" and re.match(r"(?:pseudopoint|--)", span):
            assert set(re.findall(r"(?<!\S)--[a-z][\w-]*", span)) <= every | {"--help", "--version"}, span


def test_the_reader_of_pages_sees_what_is_wrong():
    page = "Text\n```python\nprint(1)\n```\n\n```text\n1\n```\n<!-- not run: needs a network -->\n```console\n$ pip x\n```\n"
    found = blocks(page)
    assert [(b.line, b.language, b.reason or b.file, b.after) for b in found] == [
        (2, "python", None, False),
        (6, "text", None, True),
        (10, "console", "needs a network", True),
    ]
    assert commands("$ a \\\n  b\nout\n$ c\n") == [("a    b", "out\n"), ("c", "")]
    assert alike("a 1.25 b ...", "a 1.27   b\nc") and not alike("a 1.25", "a 1.28") and not alike("12 rows", "13 rows")
    assert options("pseudopoint predict m t --out x --no-such") == {"--no-such"}
