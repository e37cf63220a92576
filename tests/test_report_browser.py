"""The report in a real browser, narrow and wide, light and dark: no errors, no overflow, no broken words."""

from dataclasses import replace

import pytest
from browser import CHROMIUM, WIDTHS, check, measured
from test_report import classified, example

from pseudopoint.report import write_report

pytestmark = pytest.mark.edge


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_report_opens_without_errors_overflow_and_broken_words(dark, tmp_path):
    if CHROMIUM is None:
        pytest.skip("CHROMIUM IS NOT INSTALLED: no report was looked at in a browser")
    long = [(name, f"{value} and more words, so that lines must break somewhere") for name, value in example().summary]
    write_report(tmp_path / "numbers.html", replace(example(), summary=long))
    write_report(tmp_path / "classes.html", classified(C=8))
    pages = [tmp_path / f"{name}.html" for name in ("numbers", "classes")]
    found = measured(pages, dark, tmp_path, scrolls=".scroll, .wide")
    for page in pages:
        for width in WIDTHS:
            check(found[page.name, width], width, dark)
