"""The built site (`make docs`): every page in a real browser, narrow and wide, light and dark; every link in it."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import CHROMIUM, WIDTHS, check, measured

pytestmark = pytest.mark.edge

SITE = Path(__file__).parent.parent / "site"
PAGES = sorted(page for page in SITE.glob("*.html") if not page.name.startswith(("404", "measured-")))


@pytest.fixture(autouse=True)
def _built():
    if not PAGES:
        pytest.skip("THE SITE IS NOT BUILT: no page was looked at; make docs builds it")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_opens_without_errors_overflow_and_broken_words(dark, tmp_path):
    if CHROMIUM is None:
        pytest.skip("CHROMIUM IS NOT INSTALLED: no page was looked at in a browser")
    scrolls, breaks = ".md-typeset__scrollwrap, .highlight, .md-sidebar", "code, .doc-heading, .md-sidebar"
    found = measured(PAGES, dark, tmp_path, scrolls, breaks)
    for page in PAGES:
        for width in WIDTHS:
            check(found[page.name, width], width, dark)


def test_every_link_leads_to_a_file_and_a_place_in_it():
    pages = {page.resolve(): page.read_text("utf-8") for page in SITE.rglob("*.html") if page.name != "404.html"}
    places = {page: set(re.findall(r'(?:id|name)="([^"]+)"', text)) for page, text in pages.items()}
    dead = set()
    for page, text in pages.items():
        for address in re.findall(r'(?:href|src)="([^"]+)"', text):
            if re.match(r"[a-z]+:", address):
                continue
            file, _, anchor = address.partition("#")
            there = (page.parent / unquote(file)).resolve() if file else page
            known = there.exists() and (not anchor or there not in places or unquote(anchor) in places[there])
            if not known and anchor != "__skip":
                dead.add((page.name, address))
    assert not dead
