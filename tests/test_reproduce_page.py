"""The page of experiments: it says everything, needs nothing else, and a browser shows it."""

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import pytest
from matplotlib.image import imread
from toy_experiments import add, make_toy

from pseudopoint.reproduce import Job, experiments_folder, reproduce, stored_folder


@pytest.fixture
def toy(tmp_path) -> Path:
    return make_toy(tmp_path / "experiments")


class Page(HTMLParser):
    """Tags with their attributes, and the visible text."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_the_page_says_everything_and_needs_nothing_else(toy, tmp_path):
    add(toy, "more", ("Nobody", "<script>alert(1)</script>"))
    reproduce("all", Job(tmp_path, toy))
    page = Page(tmp_path / "report.html")
    for part in [
        "Published findings, and what came out",
        "Nobody 1999, figure 1",
        "<script>alert(1)</script> 1999, figure 1",
        "Squares grow <b>fast</b>.",
        "numbers = 4 (with --paper: 5), power = [2]",
        "numbers: The fifth number.",
        "9.25 ± 0.354 units, 2 runs",
        "4 rows, the last value is 9.0.",
        "value & more",
        "made by formula",
        "2 agrees in part",
    ]:
        assert part in page.text
    assert not {"script", "link", "iframe", "b"} & {tag for tag, _ in page.tags}
    addresses = [
        str(value) for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")
    ]
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in addresses)
    assert "url(" not in (tmp_path / "report.html").read_text()
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 2 and all(attributes["alt"] for attributes in images)
    for attributes in images:
        picture = imread(BytesIO(base64.b64decode(str(attributes["src"]).split(",")[1])), format="png")
        assert picture.ndim == 3 and picture.std() > 0.05
    targets = {attributes.get("id") for _, attributes in page.tags}
    assert {address[1:] for address in addresses if address.startswith("#")} <= targets
    assert imread(tmp_path / "squares.png").ndim == 3


def test_the_same_rows_are_the_same_page(toy, tmp_path):
    reproduce("all", Job(tmp_path / "a", toy))
    reproduce("all", Job(tmp_path / "b", toy, rows_from=tmp_path / "a", compute=False))
    assert (tmp_path / "a" / "report.html").read_bytes() == (tmp_path / "b" / "report.html").read_bytes()
    assert not (tmp_path / "b" / "squares.jsonl").exists()


def test_a_browser_shows_every_picture_and_complains_of_nothing(toy, tmp_path):
    """The page as the stored run makes it, with a script that writes down what the browser made of it."""
    candidates = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")
    browser = next(filter(None, map(shutil.which, candidates)), None)
    if browser is None:
        pytest.skip("NOT TESTED: no Chromium is installed, so no browser has opened the report")
    folder = experiments_folder()
    result = reproduce("all", Job(tmp_path, folder, rows_from=stored_folder(folder), compute=False))
    script = """<script>addEventListener("load", () => { document.title = JSON.stringify({
        widths: [...document.images].map(image => image.naturalWidth),
        fetched: performance.getEntriesByType("resource").filter(one => !one.name.startsWith("data:")).length,
        wide: document.documentElement.scrollWidth > innerWidth,
        sections: document.querySelectorAll("section[id]").length}) })</script>"""
    page = (tmp_path / "report.html").read_text()
    (tmp_path / "checked.html").write_text(page.replace("</head>", f"{script}</head>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1200,900"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run(
        [browser, *flags, (tmp_path / "checked.html").as_uri()], capture_output=True, text=True, timeout=100, check=True
    )
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout)
    assert title, done.stderr
    seen = json.loads(title[1])
    shown = sum(entry["rows"] > 0 for entry in result["experiments"])
    assert len(seen["widths"]) == shown >= 2 and min(seen["widths"]) > 200
    assert seen["fetched"] == 0 and not seen["wide"] and seen["sections"] == len(result["experiments"])
    assert "CONSOLE" not in done.stderr, done.stderr
