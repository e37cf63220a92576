"""What a real browser makes of a page, at a width and in a colour scheme: errors, overflow, broken words, colours."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --virtual-time-budget=10000""".split()
WIDTHS = (400, 1400)
DARK = "--blink-settings=preferredColorScheme=0"  # 0 is dark, 1 is light
Measured = dict[tuple[str, int], Any]

# What is measured: the width of the page, elements that stick out of it (not what scrolls by itself), words that are on
# two lines, and the colours of page and text.
MEASURE = """
<script>
window.failures = [];
window.onerror = (message) => window.failures.push(String(message));
window.addEventListener("load", () => {
  const width = document.documentElement.clientWidth, wide = [], broken = [];
  const scrolls = (node) => node.closest("SCROLLS") !== null;
  for (const node of document.querySelectorAll("main *")) {
    const box = node.getBoundingClientRect();
    if (box.width > 0 && !scrolls(node) && !node.closest("svg") && box.right > width + 1) wide.push(node.tagName);
  }
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    if (text.parentElement.closest("BREAKS")) continue;
    for (const word of text.data.matchAll(/[^\\s\\-–/]+/g)) {
      const range = document.createRange();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].filter((r) => r.width > 0).map((r) => Math.round(r.top)));
      if (tops.size > 1) broken.push(word[0]);
    }
  }
  const colour = (node, what) => getComputedStyle(node)[what];
  const found = {address: location.href, asked: innerWidth, width, wide, broken,
    scroll: document.documentElement.scrollWidth, failures: window.failures,
    page: colour(document.body, "backgroundColor"), ink: colour(document.body, "color"),
    pictures: [...document.images].every((image) => image.complete && image.naturalWidth > 0)};
  window.parent.postMessage(JSON.stringify(found), "*");
});
</script>
"""
# A window of Chromium is at least 500 pixels wide, a frame is not.
FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><script>
window.addEventListener("message", (event) => {
  const found = JSON.parse(event.data);
  if (!("failures" in found)) return;
  const out = document.createElement("pre");
  out.className = "found";
  out.textContent = event.data;
  document.body.append(out);
});
</script><body>FRAMES</body>"""


def measured(pages: list[Path], dark: bool, profile: Path, scrolls: str = ".never", breaks: str = ".never") -> Measured:
    """What is measured of pages, by name and width, in one browser.

    A page is copied beside itself. `scrolls` selects elements that may be wider than the window, as they scroll by
    themselves, `breaks` those in which a long word may be cut.
    """
    script = MEASURE.replace("SCROLLS", scrolls).replace("BREAKS", breaks)
    copies = {page.with_name(f"measured-{page.name}"): page for page in pages}
    style = 'height="2000" frameborder="0"'
    frames = [f'<iframe src="{c.as_uri()}" width="{width}" {style}></iframe>' for c in copies for width in WIDTHS]
    (profile / "frame.html").write_text(FRAME.replace("FRAMES", "\n".join(frames)), "utf-8")
    options = [*FLAGS, *[DARK] * dark, "--window-size=1500,2000", f"--user-data-dir={profile}", "--dump-dom"]
    try:
        for copy, page in copies.items():
            copy.write_text(page.read_text("utf-8").replace("</head>", f"{script}</head>"), "utf-8")
        command = [str(CHROMIUM), *options, (profile / "frame.html").as_uri()]
        run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    finally:
        for copy in copies:
            copy.unlink(missing_ok=True)
    found = [json.loads(unescape(each)) for each in re.findall(r'<pre class="found">(.*?)</pre>', run.stdout, re.S)]
    assert len(found) == len(frames), run.stderr[-2000:]
    names = {copy.as_uri(): page.name for copy, page in copies.items()}
    return {(names[each["address"]], each["asked"]): each for each in found}


def check(found: Any, width: int, dark: bool) -> None:
    """No errors, no overflow, no broken words, and the colours of the scheme."""
    assert found["failures"] == [] and found["pictures"]
    assert abs(found["width"] - width) <= 20  # a scroll bar
    assert found["scroll"] <= found["width"] and found["wide"] == []
    assert found["broken"] == []
    brightness = {what: sum(map(int, re.findall(r"\d+", found[what])[:3])) for what in ("page", "ink")}
    assert (brightness["page"] < brightness["ink"]) == dark
