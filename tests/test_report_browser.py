"""The report in a real browser, narrow and wide, light and dark: no errors, no overflow, no broken words."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape

import pytest
from test_report import classified, example

from pseudopoint.report import write_report

pytestmark = pytest.mark.edge

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --virtual-time-budget=2000""".split()
DARK = "--blink-settings=preferredColorScheme=0"  # 0 is dark, 1 is light

# What is measured: the width of the page, elements that stick out of it (not what scrolls by itself), words that are on
# two lines, and the colours of page and text.
MEASURE = """
<script>
window.failures = [];
window.onerror = (message) => window.failures.push(String(message));
window.addEventListener("load", () => {
  const width = document.documentElement.clientWidth, wide = [], broken = [];
  const scrolls = (node) => node.closest(".scroll, .wide") !== null;
  for (const node of document.querySelectorAll("main *")) {
    const box = node.getBoundingClientRect();
    if (box.width > 0 && !scrolls(node) && !node.closest("svg") && box.right > width + 1) wide.push(node.tagName);
  }
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    for (const word of text.data.matchAll(/[^\\s-]+/g)) {
      const range = document.createRange();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].filter((r) => r.width > 0).map((r) => Math.round(r.top)));
      if (tops.size > 1) broken.push(word[0]);
    }
  }
  const colour = (node, what) => getComputedStyle(node)[what];
  const found = {width, scroll: document.documentElement.scrollWidth, wide, broken, failures: window.failures,
    page: colour(document.body, "backgroundColor"), ink: colour(document.body, "color"),
    pictures: [...document.images].every((image) => image.complete && image.naturalWidth > 0)};
  window.parent.postMessage(JSON.stringify(found), "*");
});
</script>
"""
# A window of Chromium is at least 500 pixels wide, a frame is not.
FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><script>
window.addEventListener("message", (event) => {
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = event.data;
  document.body.append(out);
});
</script><body><iframe src="PAGE" width="WIDTH" height="2000" frameborder="0"></iframe></body>"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """What is measured of a report, by its name, the width of the window and the scheme."""
    if CHROMIUM is None:
        pytest.skip("CHROMIUM IS NOT INSTALLED: no report was looked at in a browser")
    folder = tmp_path_factory.mktemp("pages")
    long = [(name, f"{value} and more words, so that lines must break somewhere") for name, value in example().summary]
    write_report(folder / "numbers.html", replace(example(), summary=long))
    write_report(folder / "classes.html", classified(C=8))

    def measured(name, width, dark):
        page = (folder / f"{name}.html").read_text("utf-8").replace("</head>", f"{MEASURE}</head>")
        file = folder / f"{name}-measured.html"
        file.write_text(page, "utf-8")
        frame = folder / f"{name}-{width}.html"
        frame.write_text(FRAME.replace("PAGE", file.name).replace("WIDTH", str(width)), "utf-8")
        profile = f"--user-data-dir={tmp_path_factory.mktemp('profile')}"
        options = [*FLAGS, *[DARK] * dark, "--window-size=1500,2000", profile, "--dump-dom", frame.as_uri()]
        run = subprocess.run([str(CHROMIUM), *options], capture_output=True, text=True, timeout=120)
        match = re.search(r'<pre id="found">(.*?)</pre>', run.stdout, re.S)
        assert match, run.stderr[-2000:]
        return json.loads(unescape(match[1]))

    return measured


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("name", ["numbers", "classes"])
def test_a_report_opens_without_errors_overflow_and_broken_words(opened, name, width, dark):
    found = opened(name, width, dark)
    assert found["failures"] == [] and found["pictures"]
    assert abs(found["width"] - width) <= 20  # a scroll bar
    assert found["scroll"] <= found["width"] and found["wide"] == []
    assert found["broken"] == []
    brightness = {what: sum(map(int, re.findall(r"\d+", found[what])[:3])) for what in ("page", "ink")}
    assert (brightness["page"] < brightness["ink"]) == dark
