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

from pseudopoint.metrics import calibration_error
from pseudopoint.report import Input, Report, write_report
from pseudopoint.tables import TableError

pytestmark = pytest.mark.edge


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
        made="270 training rows · pseudopoint 1.2.3 · 2026-05-01",
        measures=[("RMSE", "0.02", "0.5", "typical error")],
        inputs=[column("speed", 2.0), column("torque", 0.5, 0.4), kinds()],
        effect="change of decay",
        loss="by how much the RMSE grows",
        beside=[("speed", rng.normal(size=rows))],
        worst=(["row", "actual"], [["1,234", "7.5"]]),
        advice="More inducing points would hardly help.",
    )


def column(name: str, importance: float, first: float = 0.5) -> Input:
    at = np.linspace(0, 9, 24)
    mean = np.sin(at)
    return Input(name, at.tolist(), mean, mean - 0.2, mean + 0.2, importance, first, first, rug=at.tolist())


def kinds() -> Input:
    mean = np.array([0.5, -0.5, -1.0])
    return Input("city", ["Oslo", "Rome", "(missing)"], mean, mean - 0.1, mean + 0.1, 0.1, 0.1, 0.2)


def classified(rows: int = 300, C: int = 3) -> Report:
    """Classes drawn from the probabilities predicted; the rows of class c are some 1 / (c + 1) of those of class 0."""
    rng = np.random.default_rng(0)
    P = rng.dirichlet(0.5 / np.arange(1.0, C + 1.0), size=rows)
    y = (rng.uniform(size=(rows, 1)) > P.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return Report(title="iris", y=y, probabilities=P, classes=[f"species {c}" for c in range(C)])


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

    def cells(self) -> list[str]:
        """The colours of the cells of the confusion matrix."""
        styles = [str(attributes["style"]) for tag, attributes in self.tags if tag == "td" and "style" in attributes]
        return [style.split(";")[0] for style in styles]

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
        "270 training rows · pseudopoint 1.2.3 · 2026-05-01",
        "typical error",
        "speed: change of decay",
        "by how much the RMSE grows when the column is shuffled",
        "Rows that surprised most",
        "1,234",
        "Against the prediction: the average error of a tenth of the rows is at most",
        "Against speed",
        "Oslo",
        "(missing)",
        "More inducing points would hardly help.",
        "speed",
        "Calibration",
        "Standardised residuals",
        "Objective against step",
        "Objective against seconds",
    ]:
        assert part in text


@pytest.mark.parametrize("classes", [False, True])
def test_the_page_refers_to_nothing_outside_and_runs_nothing(page, classes):
    allowed = {"html", "head", "meta", "title", "style", "body", "main", "section", "h1", "h2", "p", "div"}
    allowed |= {"table", "thead", "tr", "th", "td", "ul", "li", "figure", "figcaption", "img", "h3", "strong", "span"}
    allowed |= {"svg", "text", "path", "polyline", "polygon", "circle"}
    shown = page(classified() if classes else example())
    assert {tag for tag, _ in shown.tags} <= allowed
    for _, attributes in shown.tags:
        assert not {"href", "srcset", "background"} & set(attributes)
        assert (attributes.get("src") or "data:").startswith("data:")
    assert not re.search(r"url\(|@import|https?:", shown.text)


def test_pictures_decode_and_have_a_text_of_their_own(page):
    images = page(example()).images()
    assert len(images) == 7
    assert len({image["alt"] for image in images}) == 7
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
    report = replace(
        example(), title=evil, summary=[(evil, evil)], notes=[evil], inputs=[column(evil, 1.0)], advice=evil
    )
    shown = page(report)
    assert not {"script", "b"} & {tag for tag, _ in shown.tags}
    assert shown.text.count(evil) == 9  # the title twice, the column in its caption, its picture's text and the table
    assert not any("onload" in attributes for _, attributes in shown.tags)


def test_a_classification_shows_reliability_and_confusion(page):
    report = classified()
    shown = page(report)
    assert report.y is not None and report.probabilities is not None
    assert shown.headings() == 1 and "Predictions on 300 test rows" in shown.text and len(shown.images()) == 1
    error = f"expected calibration error {100 * calibration_error(report.y, report.probabilities):.3g} %"
    assert error in shown.text and error in str(shown.images()[0]["alt"])
    right = 100 * np.mean(report.y == report.probabilities.argmax(axis=1))
    assert f"Confusion: {right:.3g} % predicted right; the most frequent error is" in shown.text
    for name in report.classes:
        assert shown.text.count(name) >= 2


def test_the_figures_of_a_regression_make_way_for_those_of_a_classification(page):
    both = replace(example(), y=classified().y, probabilities=classified().probabilities, classes=("a", "b", "c"))
    shown = page(both)
    assert len(shown.images()) == 3 and "Standardised residuals" not in shown.text and "Reliability" in shown.text


def test_the_confusion_matrix_by_hand(page):
    P = np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.4, 0.6]])
    shown = page(Report(title="two", y=np.array([0, 0, 1, 1]), probabilities=P, classes=["no", "yes"]))
    assert "75 % predicted right; the most frequent error is ‘yes’ predicted for ‘no’, 1 of 2 rows" in shown.text
    hints = [str(attributes["title"]) for tag, attributes in shown.tags if tag == "td" and "title" in attributes]
    assert hints[0] == "1 of 2 rows of no predicted as no" and hints[2] == "0 of 2 rows of yes predicted as no"
    half, none, full = "rgb(146,177,212)", "rgb(255,255,255)", "rgb(37,99,168)"
    assert shown.cells() == [f"background:{color}" for color in (half, half, none, full)]
    faultless = page(Report(title="two", y=np.array([0, 1, 1, 1]), probabilities=P))
    assert "100 % predicted right." in faultless.text and "frequent error" not in faultless.text


@pytest.mark.parametrize(("C", "shown", "numbers"), [(2, 2, True), (12, 12, True), (13, 13, False), (40, 30, False)])
def test_the_most_frequent_classes_are_shown_and_numbered_if_few(page, C, shown, numbers):
    report = classified(2000, C)
    result = page(report)
    assert len(result.cells()) == shown**2
    assert ("numbers" in [name for _, tag in result.tags for name in str(tag.get("class")).split()]) == numbers
    assert ("Shown are the 30 most frequent of 40 classes." in result.text) == (C > shown)
    assert report.y is not None
    rarest = np.argsort(-np.bincount(report.y, minlength=C), kind="stable")[shown:]
    headers = [attributes["title"] for tag, attributes in result.tags if tag == "th" and "title" in attributes]
    assert len(headers) == 2 * shown and not {f"species {c}" for c in rarest} & set(headers)


def test_names_of_classes_are_escaped_and_shortened(page):
    evil = "<script>alert('x')</script>\" onload=\"x & $y_$ {title} <b>"
    shown = page(replace(classified(), classes=[evil, "x" * 500, "四 $\\frac$"]))
    assert not {"script", "b"} & {tag for tag, _ in shown.tags}
    assert not any("onload" in attributes for _, attributes in shown.tags)
    assert evil[:23] + "…" in shown.text and evil not in shown.text and "x" * 24 not in shown.text
    assert "四 $\\frac$" in shown.text and all(len(tag.get("title") or "") <= 200 for _, tag in shown.tags)


@pytest.mark.parametrize("rows", [1, 2, 20_000])
@pytest.mark.parametrize("C", [1, 2, 5])
def test_any_number_of_classes_and_rows(page, rows, C):
    assert len(page(classified(rows, C)).images()) == 1


def test_a_class_without_test_rows_and_a_certain_prediction_are_drawn(page):
    certain = Report(title="sure", y=np.array([0, 1]), probabilities=np.eye(3)[:2], classes=["a", "b", "c"])
    assert "expected calibration error 0 %" in page(certain).text


def test_probabilities_that_are_not_finite_are_not_drawn(page):
    report = classified(3)
    assert report.probabilities is not None
    P = report.probabilities * [[1.0], [np.nan], [1.0]]
    assert "Predictions on 2 test rows" in page(replace(report, probabilities=P)).text
    assert page(replace(report, probabilities=np.full((3, 3), np.nan))).headings() == 0


def test_classes_that_do_not_belong_together_are_an_error(page):
    with pytest.raises(ValueError, match="names 2 classes, but its probabilities have 3 columns"):
        page(replace(classified(), classes=["a", "b"]))
    with pytest.raises(ValueError, match="class code 3"):
        page(replace(classified(3), y=np.array([0, 1, 3])))
    assert "species" not in page(replace(classified(), classes=())).text


def test_parts_without_data_are_left_out(page):
    assert page(Report(title="empty")).headings() == 0
    assert page(replace(example(), std=None)).headings() == page(example()).headings() - 2
    one_step = page(replace(example(), history=[(1, 2.0, 3.0)]))
    assert "Training" not in one_step.text
    only_advice = page(Report(title="exact", advice="The exact GP has no inducing points."))
    assert only_advice.headings() == 1 and "no inducing points" in only_advice.text


@pytest.mark.parametrize("rows", [1, 2, 2001])
def test_any_number_of_test_rows(page, rows):
    shown = page(example(rows))
    assert len(shown.images()) == (7 if rows > 2 else 5)
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


def test_pictures_of_effects_have_one_scale_and_a_curve_each(page):
    shown = page(Report(title="effects", inputs=[column(f"x{i}", 1.0) for i in range(15)] + [kinds()]))
    assert [tag for tag, _ in shown.tags].count("svg") == 12  # the first twelve
    assert [tag for tag, _ in shown.tags].count("polyline") == 12
    lines = {attributes["points"] for tag, attributes in shown.tags if tag == "polyline"}
    assert len(lines) == 1 and "x14" in shown.text and "city" in shown.text


def test_importances_that_are_unknown_or_nothing_are_shown(page):
    text = page(Report(title="odd", inputs=[column("a", float("nan")), column("b", 0.0, 0.0)], loss="loss")).text
    assert "–" in text and "+0" in text and "0.0 %" in text


@pytest.mark.parametrize("near", [False, True])
def test_effects_say_that_they_leave_out_what_near_rows_do(page, near):
    text = page(Report(title="near", inputs=[column("a", 1.0)], near_rows=near)).text
    assert ("nearest training rows" in text) == near


def test_effects_on_classes_are_a_line_each(page):
    mean = np.column_stack([np.sin(np.arange(5.0)), np.cos(np.arange(5.0))])
    each = Input(
        "x", [0.0, 1.0, 2.0, 3.0, 4.0], mean, mean * np.nan, mean * np.nan, 0.1, 0.5, 0.5, lines=("red", "blue")
    )
    shown = page(Report(title="classes", inputs=[each, replace(each, name="k", values=list("abcde"))]))
    tags = [tag for tag, _ in shown.tags]
    assert tags.count("polyline") == 2 and "polygon" not in tags and tags.count("circle") == 10
    assert shown.text.count("● blue") == 2


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
