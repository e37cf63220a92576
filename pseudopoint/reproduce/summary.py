"""The page of the stored run as Markdown, from the rows and what was published:
`python -m pseudopoint.reproduce.summary > experiments/results/README.md`.
"""

import textwrap
from pathlib import Path

from pseudopoint.reproduce.experiment import Experiment, experiment, experiments_folder, names
from pseudopoint.reproduce.findings import overall
from pseudopoint.reproduce.page import in_figures, judgements, limits, numbered, without_commit
from pseudopoint.reproduce.rows import StoredRows
from pseudopoint.reproduce.runner import stored_folder

WIDTH = 120
HEAD = """# Results

Stored runs of the experiments: each file holds one line of JSON for each case, with the config, the versions and the
commit that made it (a `+` after it: with uncommitted changes). `NAME.png` is the figure drawn from these rows. This
page is made of the rows and of what was published: `python -m pseudopoint.reproduce.summary`.

- To see figures and tables too: `pseudopoint reproduce all --stored`.
- To compute what is missing: `pseudopoint reproduce NAME --data FOLDER --out experiments/results`.
- To run the papers' settings where the stored run has smaller ones, hours to days, and to go on after a stop:
  `pseudopoint reproduce NAME --paper --data FOLDER` ([docs/reproduce.md](../../docs/reproduce.md)).
- To draw the figures again: `pseudopoint reproduce all --stored --out experiments/results`.

Each published finding has a mark. The *margin* is the mean over runs (splits or data sets) of how far ours are on the
published side, and the *spread* its standard deviation over them; of several tables the one that supports the finding
least counts. A finding *agrees* if the margin is above the spread, *disagrees* if it is below −spread, and is *within
the spread* otherwise. *One run* has no spread and agrees with nothing. *Rate at the edge*: a best learning rate is the
smallest or largest that was run. An experiment *agrees* if all its findings do, at the paper's settings and with
no row missing; with some it *agrees in part*; with none it *disagrees* if one is contradicted, else it is *undecided*.
"""


def summary(folder: Path | None = None) -> str:
    """All of the page."""
    place = experiments_folder(folder)
    modules = {name: experiment(name, place) for name in names(place)}
    rows = {
        name: StoredRows(stored_folder(place) / f"{name}.jsonl", module, module.FULL)
        for name, module in modules.items()
    }
    words = {name: verdict(modules[name], rows[name]) for name in modules}
    lines = ["| experiment | published in | verdict | rows |", "|---|---|---|---|"]
    for name, module in modules.items():
        count = f"{len(rows[name].rows())} of {len(rows[name].cases)}"
        lines.append(f"| [{name}](#{name}) | {cell(module.SOURCE)} | {words[name]} | {count} |")
    parts = [part(name, module, rows[name], words[name]) for name, module in modules.items()]
    return "\n".join([HEAD, *lines, "", *parts])


def verdict(module: Experiment, rows: StoredRows) -> str:
    """One word for all findings."""
    found = rows.rows()
    return overall(judgements(module, found), limits(module, rows))[0] if found else "untested"


def part(name: str, module: Experiment, rows: StoredRows, word: str) -> str:
    """The findings of an experiment, what is not the paper's setting, and what a reader needs to know."""
    lines = [f"## {name}", "", filled(f"{module.SOURCE}: **{word}**. {about(module)}"), ""]
    found = rows.rows()
    if found:
        lines += ["| | published | mark | margin ± spread | ours |", "|---|---|---|---|---|"]
        for i, published, of in numbered(module, judgements(module, found)):
            figures = " ".join(in_figures(of._asdict()))
            lines.append(f"| {i} | {cell(published)} | {of.mark} | {cell(figures)} | {cell(of.said)} |")
    else:
        lines.append("No row is stored yet.")
    lines.append("")
    cut = [f"{f'`{field}`: ' * bool(field)}{text}" for field, text in module.CUT.items()]
    if loose := without_commit(found):
        cut.append(f"{loose} rows are of code with uncommitted changes.")
    if cut:
        lines += ["Not the paper's setting:", "", *(filled(f"- {text}", "  ") for text in cut), ""]
    if notes := getattr(module, "NOTES", ""):
        lines += [filled(notes), ""]
    return "\n".join(lines)


def about(module: Experiment) -> str:
    """The first line of its docstring."""
    return (module.__doc__ or "").strip().splitlines()[0]


def cell(text: str) -> str:
    """For a table."""
    return " ".join(text.split()).replace("|", "\\|")


def filled(text: str, indent: str = "") -> str:
    """In lines of the documents' width."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    print(summary().rstrip("\n"))
