"""The report: one file, complete, harmless whatever text goes in, and the same for the same fit."""

import base64
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.image import imread

from pseudopoint.report import MAX_FEATURES, Report, write_report
from pseudopoint.tables import TableError


def example(rows: int = 300) -> Report:
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=rows), rng.uniform(0.5, 2.0, size=rows)
    return Report(
        title="naval.csv → decay",
        summary=[("Method", "collapsed, M = 100"), ("Test RMSE", "0.02")],
        notes=["12 rows without a target were dropped"],
        history=[(step, -100.0 / step, 0.1 * step) for step in range(1, 50)],
        y=rng.normal(mean, std),
        mean=mean,
        std=std,
        lower=mean - 1.645 * std,
        upper=mean + 1.645 * std,
        relevance=[("speed", 2.0), ("torque", 0.5)],
        bound=100.0,
        upper_bound=150.0,
        rows=1000,
        advice="More inducing points would hardly help.",
    )


class Page(HTMLParser):
    """Tags with their attributes, and the visible text."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def headings(self) -> int:
        return sum(tag == "h2" for tag, _ in self.tags)

    def images(self) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == "img"]


@pytest.fixture
def page(tmp_path):
    def write(report: Report) -> Page:
        write_report(tmp_path / "report.html", report)
        return Page((tmp_path / "report.html").read_text(encoding="utf-8"))

    return write


def test_everything_is_in_the_page(page):
    text = page(example()).text
    for part in [
        "naval.csv → decay",
        "collapsed, M = 100",
        "12 rows without a target were dropped",
        "Predictions on 300 test rows",
        "between the bound 100.0 and the upper bound 150.0: a gap of 50.0 nats, 0.05 nats a row",
        "More inducing points would hardly help.",
        "speed",
        "Calibration",
        "Standardised residuals",
        "Bound against step",
        "Bound against seconds",
    ]:
        assert part in text


def test_the_page_refers_to_nothing_outside_and_runs_nothing(page):
    allowed = {"html", "head", "meta", "title", "style", "body", "main", "section", "h1", "h2", "p", "div"}
    allowed |= {"table", "tr", "th", "td", "ul", "li", "figure", "figcaption", "img"}
    shown = page(example())
    assert {tag for tag, _ in shown.tags} <= allowed
    for _, attributes in shown.tags:
        assert not {"href", "srcset", "background"} & set(attributes)
        assert (attributes.get("src") or "data:").startswith("data:")
    assert not re.search(r"url\(|@import|https?:", shown.text)


def test_pictures_decode_and_have_a_text_of_their_own(page):
    images = page(example()).images()
    assert len(images) == 5
    assert len({image["alt"] for image in images}) == 5
    for image in images:
        kind, _, data = (image["src"] or "").partition(";base64,")
        pixels = imread(BytesIO(base64.b64decode(data, validate=True)), format="png")
        assert kind == "data:image/png" and image["alt"]
        assert pixels.shape[:2] == (560, 704) and pixels[:, :, :3].std() > 0.01


def test_the_texts_of_pictures_say_what_they_show(page):
    report = example()
    assert report.y is not None and report.lower is not None and report.upper is not None
    inside = 100 * np.mean((report.lower <= report.y) & (report.y <= report.upper))
    assert f"{inside:.3g} % lie inside their 90 % interval" in str(page(report).images()[0]["alt"])


def test_text_is_escaped_everywhere(page):
    evil = "<script>alert('x')</script>\" onload=\"x & $y_$ {title} <b>"
    report = replace(example(), title=evil, summary=[(evil, evil)], notes=[evil], relevance=[(evil, 1.0)], advice=evil)
    shown = page(report)
    assert not {"script", "b"} & {tag for tag, _ in shown.tags}
    assert shown.text.count(evil) == 7  # the title twice
    assert not any("onload" in attributes for _, attributes in shown.tags)


def test_parts_without_data_are_left_out(page):
    assert page(Report(title="empty")).headings() == 0
    assert page(replace(example(), std=None)).headings() == page(example()).headings() - 1
    one_step = page(replace(example(), history=[(1, 2.0, 3.0)]))
    assert "Training" not in one_step.text
    only_advice = page(Report(title="exact", advice="The exact GP has no inducing points."))
    assert only_advice.headings() == 1 and "no inducing points" in only_advice.text


@pytest.mark.parametrize("rows", [1, 2, 2001])
def test_any_number_of_test_rows(page, rows):
    shown = page(example(rows))
    assert len(shown.images()) == 5
    assert ("(2,000 drawn)" in shown.text) == (rows > 2000)


def test_rows_that_are_not_finite_are_not_drawn(page):
    y, mean = np.array([1.0, np.nan, 1.0, 1.0, 1.0]), np.array([1.0, 1.0, np.inf, 1.0, 1.0])
    std = np.array([1.0, 1.0, 1.0, 0.0, 1.0])
    report = Report(title="odd", y=y, mean=mean, std=std, lower=mean - std, upper=mean + std)
    assert "Predictions on 2 test rows" in page(report).text
    none = replace(report, std=np.zeros(5))
    assert page(none).headings() == 0


def test_far_residuals_are_counted(page):
    report = example()
    assert report.y is not None
    assert "2 beyond ±6" in page(replace(report, y=np.where(np.arange(300) < 2, 1e3, report.y))).text


def test_a_bound_that_is_flat_or_not_finite_is_drawn(page):
    history = [(1, float("nan"), 0.1), (2, 5.0, 0.2), (3, 5.0, 0.3)]
    assert "goes from 5.0 to 5.0 in 3 steps" in str(page(Report(title="flat", history=history)).images()[0]["alt"])


def test_the_most_relevant_inputs_come_first(page):
    relevance = [(f"x{i}", float(i)) for i in range(MAX_FEATURES + 5)] + [("nan", float("nan"))]
    text = page(Report(title="many", relevance=relevance)).text
    assert text.index("x24") < text.index("x23") < text.index("x5")
    assert "x4" not in text and "The other 5 are smaller." in text
    assert "x0" in page(Report(title="zeros", relevance=[("x0", 0.0)])).text


def test_the_same_fit_is_the_same_file(tmp_path):
    for name in ("a.html", "b.html"):
        write_report(tmp_path / name, example(2500))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_report_is_written_whole_or_not_at_all(tmp_path):
    write_report(tmp_path / "report.html", example())
    assert os.listdir(tmp_path) == ["report.html"]
    with pytest.raises(TableError, match="cannot be written"):
        write_report(tmp_path / "nowhere" / "report.html", example())


def test_no_global_state_of_matplotlib_is_touched(tmp_path):
    before = dict(rcParams)
    write_report(tmp_path / "report.html", example())
    assert dict(rcParams) == before
    code = "import sys, pseudopoint.report; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
