"""The page of a report and the pieces of HTML that it is made of. All text is escaped here.

The confusion matrix is HTML and no picture, because names of classes may be of any length and in any script.
"""

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template

import numpy as np
from jaxtyping import Real
from matplotlib.figure import Figure

Picture = tuple[Figure, str, str]  # with its caption, and a text for those who cannot see it

TEMPLATE = Template((resources.files("pseudopoint") / "report" / "page.html").read_text("utf-8"))
MAX_CLASSES = 30
MAX_NUMBERED = 12  # classes; cells of more have no room for numbers
WHITE, BLUE = np.array([255, 255, 255]), np.array([37, 99, 168])


def page(title: str, parts: Iterable[str], style: str = "") -> bytes:
    """The file of a page whose parts are HTML; `style` is CSS beyond that of the template."""
    return TEMPLATE.substitute(title=escape(title), body="\n".join(filter(None, parts)), style=style).encode()


def section(title: str, content: str) -> str:
    """A part of the page; `content` is HTML."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def paragraph(text: str) -> str:
    """The text as a paragraph; nothing if there is none."""
    return f"<p>{escape(text)}</p>" if text else ""


def grid(figures: Iterable[Picture]) -> str:
    """Pictures beside each other, as many as fit."""
    return f'<div class="grid">{"".join(picture(*figure) for figure in figures)}</div>'


def picture(figure: Figure, caption: str, alt: str) -> str:
    """The figure as a PNG inside the page."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=160, metadata={"Software": None})
    return f"<figure><figcaption>{escape(caption)}</figcaption>{embedded(image.getvalue(), alt)}</figure>"


def embedded(image: bytes, alt: str) -> str:
    """A PNG inside the page."""
    return f'<img alt="{escape(alt)}" src="data:image/png;base64,{base64.b64encode(image).decode()}">'


def percent(share: float) -> str:
    """`93.1 %`."""
    return f"{100.0 * share:.3g} %"


def confusion_table(counts: Real[np.ndarray, "C C"], classes: Sequence[str]) -> str:
    """Counts or weights (rows: truth, columns: predicted) as a coloured table with a sentence on what they show.

    A cell's colour is its share of the row. At most `MAX_CLASSES` are shown, those with most rows, in their order.
    """
    shown: list[int] = np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[:MAX_CLASSES]).tolist()
    numbered = len(shown) <= MAX_NUMBERED
    header = "".join(f"<th{_hint(classes[j])}>{_name(classes[j])}</th>" for j in shown)
    rows = "".join(
        f"<tr><th{_hint(classes[i])}>{_name(classes[i])}</th>"
        + "".join(_cell(counts[i, j], counts[i].sum(), classes[i], classes[j], numbered) for j in shown)
        + "</tr>"
        for i in shown
    )
    table = f'<table class="confusion{" numbers" * numbered}"><thead><tr><th></th>{header}</tr></thead>{rows}</table>'
    rest = f" Shown are the {MAX_CLASSES} most frequent of {len(counts):,} classes." if len(shown) < len(counts) else ""
    caption = escape(f"{_fact(counts, classes)} Rows are true classes, columns predicted ones.{rest}")
    return f'<figure class="wide"><figcaption>{caption}</figcaption>{table}</figure>'


def _fact(counts: np.ndarray, classes: Sequence[str]) -> str:
    fact = f"Confusion: {percent(np.trace(counts) / counts.sum())} predicted right"
    wrong = counts - np.diag(np.diag(counts))
    i, j = divmod(int(np.argmax(wrong)), len(wrong))
    if wrong[i, j] == 0:
        return f"{fact}."
    error = f"‘{_shortened(classes[j])}’ predicted for ‘{_shortened(classes[i])}’"
    return f"{fact}; the most frequent error is {error}, {_count(wrong[i, j])} of {_count(counts[i].sum())} rows."


def _count(weight: float) -> str:
    return f"{weight:,.0f}" if weight == round(weight) else f"{weight:,.3g}"


def _cell(count: float, total: float, truth: str, predicted: str, numbered: bool) -> str:
    share = count / total if total > 0 else 0.0
    red, green, blue = np.rint(WHITE + share * (BLUE - WHITE)).astype(int)
    ink = ";color:#fff" if share > 0.5 else ""
    hint = _hint(f"{_count(count)} of {_count(total)} rows of {_shortened(truth)} predicted as {_shortened(predicted)}")
    text = _count(count) if numbered else ""
    return f'<td style="background:rgb({red},{green},{blue}){ink}"{hint}>{text}</td>'


def _name(text: str) -> str:
    return escape(_shortened(text))


def _hint(text: str) -> str:
    return f' title="{escape(_shortened(text, 200))}"'


def _shortened(text: str, most: int = 24) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
