"""One HTML file that says of every experiment what was published and what came out."""

import base64
import io
import json
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from pseudopoint.files import whole_file
from pseudopoint.report.markup import PAGE, STYLE, paragraph
from pseudopoint.reproduce.experiment import Experiment, Row
from pseudopoint.reproduce.rows import Rows

__all__ = ["Outcome", "outcome", "write_page"]

WORDS = ("agrees", "disagrees", "untested")

MORE_STYLE = """
figure { max-width: none; margin: .75rem 0; }
img { width: auto; max-width: 100%; }
.scroll { overflow-x: auto; margin: .75rem 0; }
.scroll td, .scroll th { padding: .2rem 1.25rem .2rem 0; white-space: nowrap; }
.scroll thead th { color: #1f2733; border-bottom: 1px solid #9aa3af; }
dl { display: grid; grid-template-columns: 8rem 1fr; gap: .3rem 1rem; margin: 0; }
dt { color: #5a6472; }
dd { margin: 0; max-width: 48rem; overflow-wrap: anywhere; }
.verdict { display: inline-block; padding: 0 .6rem; border-radius: 999px; color: #fff; background: #5a6472; }
.agrees { background: #1f7a44; }
.disagrees { background: #b3361b; }
.aside { color: #5a6472; font-size: .9rem; }
a { color: #2563a8; }
"""


@dataclass(frozen=True)
class Outcome:
    """What came of one experiment; `html` is its part of the page, without heading and verdict."""

    name: str
    source: str
    verdict: str
    why: str
    rows: int
    wanted: int
    html: str

    @staticmethod
    def broken(name: str, why: str) -> "Outcome":
        """One that cannot be used at all."""
        return Outcome(name, "", "untested", why, 0, 0, "")

    def summary(self) -> dict[str, Any]:
        """For programs, and for the lines in the terminal."""
        return {part: getattr(self, part) for part in ("name", "source", "verdict", "why", "rows", "wanted")}


def outcome(name: str, module: Experiment, rows: Rows, out: Path, stopped: str = "") -> Outcome:
    """Judges the rows that are there, draws them, and keeps the figure as NAME.png in `out`.

    `stopped` says why some are not there. An experiment without rows, or whose own functions fail on them, is untested.
    """
    found = rows.rows()
    verdict, why, shown = _judged(name, module, found, out) if found else ("untested", "no row is there yet", "")
    if stopped:
        verdict = "untested"
        why = (
            f"it stopped after {len(found)} of {len(rows.cases)} rows: {stopped} (so far: {why})" if found else stopped
        )
    html = _facts(module, rows, found) + shown
    return Outcome(name, module.SOURCE, verdict, why, len(found), len(rows.cases), html)


def _judged(name: str, module: Experiment, found: list[Row], out: Path) -> tuple[str, str, str]:
    try:
        verdict, why = module.verdict(found)
        if verdict not in WORDS:
            raise ValueError(f"its verdict is {verdict!r}, which is none of {', '.join(WORDS)}")
        return verdict, why, _picture(name, module.figure(found), out) + _table(module.table(found))
    except Exception as error:
        return "untested", f"its rows cannot be judged: {type(error).__name__}: {error}", ""


def write_page(path: Path, outcomes: list[Outcome], quick: bool) -> None:
    """The page, whole or not at all, with nothing to fetch from anywhere."""
    title = "Published findings, and what came out" + " (quick run)" * quick
    counts = {word: sum(outcome.verdict == word for outcome in outcomes) for word in WORDS}
    head = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    note = "A quick run shows that everything works; its settings are too small to test the findings." if quick else ""
    body = f"<section>{paragraph(head)}{paragraph(note)}{_contents(outcomes)}</section>" if len(outcomes) > 1 else ""
    if len(outcomes) == 1:
        body = f"<section>{paragraph(note)}</section>" if note else ""
    body += "\n".join(_section(outcome) for outcome in outcomes)
    page = PAGE.format(title=escape(title), style=STYLE + MORE_STYLE, body=body)
    with whole_file(path) as file:
        file.write(page.encode())


def _contents(outcomes: list[Outcome]) -> str:
    lines = "".join(
        f'<tr><td><a href="#{escape(o.name)}">{escape(o.name)}</a></td><td>{escape(o.source)}</td>'
        f"<td>{_badge(o)}</td><td>{o.rows} of {o.wanted} rows</td></tr>"
        for o in outcomes
    )
    return f'<div class="scroll"><table>{lines}</table></div>'


def _section(o: Outcome) -> str:
    judged = f"<p>{_badge(o)} {escape(o.why)}</p>"
    return f'<section id="{escape(o.name)}"><h2>{escape(o.name)}: {escape(o.source)}</h2>{judged}{o.html}</section>'


def _badge(o: Outcome) -> str:
    return f'<span class="verdict {escape(o.verdict)}">{escape(o.verdict)}</span>'


def _facts(module: Experiment, rows: Rows, found: list[Row]) -> str:
    """What was published, in which setting this was run, what was left out, and by which versions."""
    others = f"; {rows.others} rows of other settings in the file were left out" if rows.others else ""
    made = sorted({", ".join(f"{name} {row[name]}" for name in ("pseudopoint", "jax", "commit")) for row in found})
    facts = [
        ("Compared", " ".join((module.__doc__ or "").split())),
        ("Published", module.PUBLISHED),
        ("Setting", _setting(module, rows.config)),
        ("Left out", module.CUT or "nothing"),
        ("Data", ", ".join(module.TABLES) or "made by formula"),
        ("Rows", f"{len(found)} of {len(rows.cases)}{others}"),
        ("Made by", "; ".join(made)),
    ]
    return f"<dl>{''.join(f'<dt>{label}</dt><dd>{escape(text)}</dd>' for label, text in facts if text)}</dl>"


def _setting(module: Experiment, config: dict[str, Any]) -> str:
    """The config, and the paper's value where ours is another."""
    paper = json.loads(json.dumps(asdict(module.Config())))
    differs = lambda name: f" (the paper: {paper[name]})" if name in paper and paper[name] != config[name] else ""
    return ", ".join(f"{name} = {value}{differs(name)}" for name, value in config.items())


def _picture(name: str, figure: Figure, out: Path) -> str:
    """The figure as NAME.png, in 64 colours (a quarter of the bytes), and the same bytes inside the page."""
    drawn, image = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(image, format="png", optimize=True)
    with whole_file(out / f"{name}.png") as file:
        file.write(image.getvalue())
    alt = f"Figure of the experiment {name}; the table below has its numbers."
    source = f"data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}"
    return f'<figure><img alt="{escape(alt)}" src="{source}"></figure>'


def _table(lines: list[list[str]]) -> str:
    head, *body = lines
    cells = lambda line, tag: "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in line)
    rows = "".join(f"<tr>{cells(line, 'td')}</tr>" for line in body)
    return f'<div class="scroll"><table><thead><tr>{cells(head, "th")}</tr></thead>{rows}</table></div>'
