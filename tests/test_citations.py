"""Every citation, and every link between documents, leads somewhere; and documents keep to their sizes."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.edge

ROOT = Path(__file__).parent.parent
PYTHON = sorted(
    p for folder in ("pseudopoint", "tests", "experiments", "benchmarks") for p in (ROOT / folder).rglob("*.py")
)
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(p for folder in ("docs", "experiments", "benchmarks") for p in (ROOT / folder).rglob("*.md")),
    ]
)
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))

NAME = r"(?:(?:de|van|von|Le) )?[A-ZÀ-Þ][a-zß-ÿ][\w’-]*"
NAMES = rf"{NAME}(?:(?:, {NAME})*,? and {NAME}|(?:, {NAME})* et al\.)?"
BY_YEAR = re.compile(rf"({NAMES}),? \(?((?:19|20)\d\d)((?:[,;] (?:and )?(?:19|20)\d\d)*)(?![\w-])")
# "Kobe (2.25)", "Nocedal and Wright 7.4", "(Kobe 2.25": a lone name with a bare number may be a version of a program.
BY_NUMBER = re.compile(
    rf"({NAMES}|GPML)(?:'s|’s)? \((?!(?:19|20)\d\d\b)\d+(?:\.\d+)*\)|({NAME} and {NAME}),? \d+\.\d|\(({NAME}) \d+\.\d"
)
METHODS = re.compile(r"\bmethods ((?:[a-o](?:\.\d+)?(?![\w.]\w)(?:, | and |; )?)+)(?=[).,;:\]]|$)")
DATES = {"Jan", "January", "Dec", "December", "Nobody"}  # of examples in code; Nobody wrote the papers of examples
NOT_NAMES = {"SAG", "Figure", "Table"}


def prose(text):
    """The text of a Python file or a document in one line: strings that were cut are joined, and comments too."""
    text = re.sub(r'"\s*\n\s*f?"', "", text)
    return re.sub(r"\s*\n[\s#>]*", " ", text)


def citations(text):
    """Names with a year, and names with a number of an equation, as they stand in docs/references.md."""
    text = prose(text)
    for names, year, more in BY_YEAR.findall(text):
        for each in (year, *re.findall(r"\d{4}", more)):
            yield f"{names} {each}"
    for forms in BY_NUMBER.findall(text):
        yield "".join(forms)


def sections(text):
    """The sections of docs/methods.md that a text cites: "a.3", or "c"."""
    for group in METHODS.findall(prose(text)):
        yield from re.findall(r"[a-o](?:\.\d+)?", group.replace(" and ", ", "))


def keys(references):
    """What the first column of every table names; a key that stands twice would be of two papers."""
    rows = [line.split("|")[1] for line in references.splitlines() if line.startswith("|")]
    every = [key.strip() for row in rows for key in row.split(";") if key.strip() not in ("cited as", "---")]
    assert len(every) == len(set(every))
    return set(every)


def unresolved(text, known):
    return sorted({c for c in citations(text) if c not in known and c.split()[0] not in DATES | NOT_NAMES})


def headings(path):
    """The headings of a document, and the anchors that they make."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.M)
    return titles, [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


def dead_links(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or (anchor and anchor not in headings(there)[1]):
            yield target


def shown(path):
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def known():
    return keys((ROOT / "docs" / "references.md").read_text())


def test_citations_are_found_and_one_of_nothing_is_told():
    text = """By Titsias (2009), Kobe 2021 (3.5) and Kobe (2.17), (Izmailov 3.3), Nocedal and Wright 7.4; Wilson et al.
    # 2020, 2021; after Schmidt, Le Roux and Bach (2017). methods a.1 and d.2). (methods c) Methods are many."""
    assert set(citations(text)) == {
        "Titsias 2009",
        "Kobe 2021",
        "Kobe",
        "Izmailov",
        "Nocedal and Wright",
        "Wilson et al. 2020",
        "Wilson et al. 2021",
        "Schmidt, Le Roux and Bach 2017",
    }
    assert set(sections(text)) == {"a.1", "d.2", "c"}
    assert unresolved("as Titsias (2009) and Bach 1899 (2) have it", {"Titsias 2009"}) == []
    assert unresolved("as Bach (1999) and Kobe (2.1) have it", {"Titsias 2009"}) == ["Bach 1999", "Kobe"]


@pytest.mark.parametrize("path", PYTHON, ids=shown)
def test_every_citation_in_code_is_in_references_and_methods(path, known):
    if path == Path(__file__):
        return
    titles, _ = headings(ROOT / "docs" / "methods.md")
    assert unresolved(path.read_text(), known) == []
    assert set(sections(path.read_text())) <= {title.split()[0] for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_every_citation_and_link_in_a_document_resolves(path, known):
    assert path.name == "references.md" or unresolved(path.read_text(), known) == []
    assert list(dead_links(path)) == []


@pytest.mark.parametrize("path", DECISIONS, ids=shown)
def test_a_decision_is_one_screen_in_five_parts_and_in_the_index(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 45
    assert text.startswith(f"# {path.name[:4]} ")
    assert all(f"**{part}" in text for part in ("Context", "Decision", "Rejected", "Price", "Evidence"))
    assert f"]({path.name})" in (path.parent / "README.md").read_text()


def test_the_architecture_is_two_screens():
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    assert len(lines) <= 120 and max(map(len, lines)) <= 120
