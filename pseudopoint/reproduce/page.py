"""One HTML file that says of every experiment what was published and what was found; and the same as lines."""

import io
import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from pseudopoint.files import whole_file
from pseudopoint.report import markup
from pseudopoint.reproduce.experiment import Experiment, Row, differences
from pseudopoint.reproduce.findings import MARKS, VERDICTS, Judgement, overall
from pseudopoint.reproduce.rows import StoredRows

QUICK = "not judged"
WORDS = (*VERDICTS, QUICK)
STYLE = (resources.files("pseudopoint") / "reproduce" / "page.css").read_text("utf-8")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one experiment; `html` is its part of the page, without heading and verdict."""

    name: str
    source: str
    verdict: str
    why: str
    rows: int
    wanted: int
    findings: list[dict[str, Any]]
    html: str

    @staticmethod
    def broken(name: str, why: str) -> "Outcome":
        """That of an experiment that cannot be used."""
        return Outcome(name, "", "untested", why, 0, 0, [], "")

    def summary(self) -> dict[str, Any]:
        """All but the HTML, for programs and for lines in the terminal."""
        return {part: value for part, value in asdict(self).items() if part != "html"}


def outcome(
    name: str, module: Experiment, rows: StoredRows, out: Path, stopped: str = "", quick: bool = False
) -> Outcome:
    """Judges the rows that there are, draws them, and keeps the figure as NAME.png in `out`.

    `stopped` says why some are missing. An experiment without rows, or whose own functions fail on them, is untested.
    A quick run is not judged: its settings are too small.
    """
    found, wanted, findings, shown = rows.rows(), len(rows.cases), [], ""
    verdict, why = "untested", "no row is there yet"
    if found:
        try:
            if quick:
                verdict, why = QUICK, "a quick run has no verdict: its settings are too small to test the findings"
            else:
                findings = judgements(module, found)
                verdict, why = overall(findings, limits(module, rows))
            shown = _picture(name, module.figure(found), out, found) + _table(module.table(found))
        except Exception as error:
            verdict, findings = "untested", []
            why = f"its rows cannot be judged: {type(error).__name__}: {error}"
    if stopped:
        verdict = "untested"
        why = f"it stopped after {len(found)} of {wanted} rows: {stopped} (so far: {why})" if found else stopped
    listed = [{"number": i, "published": text} | of._asdict() for i, text, of in numbered(module, findings)]
    html = _findings(listed) + _facts(module, rows, found) + shown
    return Outcome(name, module.SOURCE, verdict, why, len(found), wanted, listed, html)


def limits(module: Experiment, rows: StoredRows) -> list[str]:
    """Why the rows cannot agree in full: fields that are not at the paper's setting, what else CUT names, rows whose
    code no commit has, and missing rows."""
    found, wanted = rows.rows(), len(rows.cases)
    return [
        *differences(module, rows.config),
        *(["others, named below"] if module.CUT.get("") else []),
        *([f"{loose} rows of code without a commit"] if (loose := without_commit(found)) else []),
        *([f"{len(found)} of {wanted} rows"] if len(found) < wanted else []),
    ]


def without_commit(found: list[Row]) -> int:
    """How many rows were made by code with uncommitted changes."""
    return sum(str(row.get("commit", "")).endswith("+") for row in found)


def judgements(module: Experiment, found: list[Row]) -> list[Judgement]:
    """One for each published finding. ValueError where the experiment gives another number, or an unknown mark."""
    findings = list(module.verdict(found))
    if len(findings) != len(module.PUBLISHED):
        raise ValueError(f"{len(module.PUBLISHED)} findings are published, {len(findings)} are judged")
    for of in findings:
        if of.mark not in MARKS:
            raise ValueError(f"its mark is {of.mark!r}, which is none of {', '.join(MARKS)}")
    return findings


def numbered(module: Experiment, findings: list[Judgement]) -> list[tuple[int, str, Judgement]]:
    """Number, published text and judgement."""
    return [(i, text, of) for i, (text, of) in enumerate(zip(module.PUBLISHED, findings, strict=False), 1)]


def write_page(path: Path, outcomes: list[Outcome], quick: bool) -> None:
    """The page, whole or not at all, with nothing to fetch from anywhere."""
    title = "Published findings, and what came out" + " (quick run)" * quick
    note = "A quick run shows that everything works; its settings are too small to test the findings." if quick else ""
    head = markup.paragraph(note)
    if len(outcomes) > 1:
        counts = {word: sum(outcome.verdict == word for outcome in outcomes) for word in WORDS}
        verdicts = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        head = markup.paragraph(verdicts) + head + _contents(outcomes)
    parts = [f"<section>{head}</section>" if head else "", *map(_section, outcomes)]
    with whole_file(path) as file:
        file.write(markup.page(title, parts, STYLE))


def in_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """A listing of experiments, or the result of a run, as (label, text) pairs."""
    if "report" not in result:
        return [(entry["name"], _about(entry)) for entry in result["experiments"]]
    lines = [
        (entry["name"], f"{entry['verdict']} ({entry['rows']} of {entry['wanted']} rows): {entry['why']}")
        for entry in result["experiments"]
    ]
    return [*lines, ("report", result["report"])]


def _about(entry: dict[str, Any]) -> str:
    if "error" in entry:
        return f"cannot be used: {entry['error']}"
    tables = f"tables {', '.join(entry['tables'])}" if entry["tables"] else "synthetic data"
    return f"{entry['source']}. {entry['about']} [{tables}; {entry['rows']} of {entry['wanted']} rows]"


def _contents(outcomes: list[Outcome]) -> str:
    lines = "".join(
        f'<tr><td><a href="#{escape(o.name)}">{escape(o.name)}</a></td><td>{escape(o.source)}</td>'
        f"<td>{_badge(o.verdict)}</td><td>{o.rows} of {o.wanted} rows</td></tr>"
        for o in outcomes
    )
    return f'<div class="scroll"><table>{lines}</table></div>'


def _section(o: Outcome) -> str:
    judged = f"<p>{_badge(o.verdict)} {escape(o.why)}</p>"
    return f'<section id="{escape(o.name)}"><h2>{escape(o.name)}: {escape(o.source)}</h2>{judged}{o.html}</section>'


def _badge(word: str) -> str:
    return f'<span class="verdict {escape(word.replace(" ", "-"))}">{escape(word)}</span>'


def _findings(findings: list[dict[str, Any]]) -> str:
    """Every published finding with its mark, margin, spread and our numbers."""
    lines = "".join(
        f"<tr><td>{of['number']}</td><td>{escape(of['published'])}</td><td>{_badge(of['mark'])}</td>"
        f"<td>{escape(' '.join(in_figures(of)))}</td><td>{escape(of['said'])}</td></tr>"
        for of in findings
    )
    head = "".join(f"<th>{name}</th>" for name in ("", "published", "mark", "margin", "ours"))
    return f'<table class="findings"><thead><tr>{head}</tr></thead>{lines}</table>' if lines else ""


def in_figures(of: dict[str, Any]) -> list[str]:
    """Margin, spread and where, in words."""
    if of["margin"] is None:
        return []
    spread = "" if of["spread"] is None else f"± {of['spread']:.3g}"
    where = f"({of['where']})" if of["where"] else ""
    runs = f"{of['runs']} run{'s' * (of['runs'] != 1)}"
    return [part for part in (f"{of['margin']:.3g}", spread, of["unit"] + ",", runs, where) if part]


def _facts(module: Experiment, rows: StoredRows, found: list[Row]) -> str:
    """The setting of this run, what differs from the paper's, and the versions."""
    others = f"; {rows.others} rows of other settings in the file were left out" if rows.others else ""
    made = sorted({", ".join(f"{name} {row[name]}" for name in ("pseudopoint", "jax", "commit")) for row in found})
    facts = [
        ("Compared", " ".join((module.__doc__ or "").split())),
        ("Published", "" if found else " ".join(module.PUBLISHED)),
        ("Setting", _setting(module, rows.config)),
        ("Not the paper's", " ".join(f"{name}: {text}" if name else text for name, text in module.CUT.items())),
        ("Data", ", ".join(module.TABLES) or "made by formula"),
        ("Rows", f"{len(found)} of {len(rows.cases)}{others}"),
        ("Made by", "; ".join(made)),
        ("Notes", getattr(module, "NOTES", "")),
    ]
    return f"<dl>{''.join(f'<dt>{label}</dt><dd>{escape(text)}</dd>' for label, text in facts if text)}</dl>"


def _setting(module: Experiment, config: dict[str, Any]) -> str:
    """The config, and the value that `--paper` takes where it differs."""
    paper, cut = json.loads(json.dumps(asdict(module.Config()))), differences(module, config)
    differs = lambda name: f" (with --paper: {paper[name]})" if name in cut else ""
    return ", ".join(f"{name} = {value}{differs(name)}" for name, value in config.items())


def digest(found: list[Row]) -> str:
    """A word that other rows do not have."""
    return sha256(json.dumps(found).encode()).hexdigest()[:16]


def _picture(name: str, figure: Figure, out: Path, found: list[Row]) -> str:
    """The figure as NAME.png, in 64 colours (a quarter of the bytes), and the same bytes inside the page. The file says
    of which rows it is made (`digest`)."""
    drawn, image, rows = io.BytesIO(), io.BytesIO(), PngInfo()
    rows.add_text("rows", digest(found))
    figure.savefig(drawn, format="png", dpi=110)
    few = Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    few.save(image, format="png", optimize=True, pnginfo=rows)
    with whole_file(out / f"{name}.png") as file:
        file.write(image.getvalue())
    alt = f"Figure of the experiment {name}; the table below has its numbers."
    return f"<figure>{markup.embedded(image.getvalue(), alt)}</figure>"


def _table(lines: list[list[str]]) -> str:
    head, *body = lines
    cells = lambda line, tag: "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in line)
    rows = "".join(f"<tr>{cells(line, 'td')}</tr>" for line in body)
    return f'<div class="scroll"><table><thead><tr>{cells(head, "th")}</tr></thead>{rows}</table></div>'
