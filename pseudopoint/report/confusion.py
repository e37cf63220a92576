"""The confusion matrix of a report, in HTML: names of classes may be of any length and in any script."""

from collections.abc import Sequence
from html import escape

import numpy as np
from jaxtyping import Int

from pseudopoint.report.markup import percent, shortened

__all__ = ["MAX_CLASSES", "confusion_table"]

MAX_CLASSES = 30
MAX_NUMBERED = 12  # classes; cells of more have no room for numbers

WHITE, BLUE = np.array([255, 255, 255]), np.array([37, 99, 168])


def confusion_table(counts: Int[np.ndarray, "C C"], classes: Sequence[str]) -> str:
    """Counts (rows: truth, columns: predicted) as a coloured table with a sentence on what they show.

    A cell's colour is its share of the row. At most `MAX_CLASSES` are shown, those with most rows, in their order.
    """
    shown: list[int] = np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[:MAX_CLASSES]).tolist()
    numbered = len(shown) <= MAX_NUMBERED
    header = "".join(f"<th{_hint(classes[j])}>{_name(classes[j])}</th>" for j in shown)
    rows = "".join(
        f"<tr><th{_hint(classes[i])}>{_name(classes[i])}</th>"
        + "".join(_cell(int(counts[i, j]), int(counts[i].sum()), classes[i], classes[j], numbered) for j in shown)
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
    error = f"‘{shortened(classes[j])}’ predicted for ‘{shortened(classes[i])}’"
    return f"{fact}; the most frequent error is {error}, {wrong[i, j]:,} of {counts[i].sum():,} rows."


def _cell(count: int, total: int, truth: str, predicted: str, numbered: bool) -> str:
    share = count / max(total, 1)
    red, green, blue = np.rint(WHITE + share * (BLUE - WHITE)).astype(int)
    ink = ";color:#fff" if share > 0.5 else ""
    hint = _hint(f"{count:,} of {total:,} rows of {shortened(truth)} predicted as {shortened(predicted)}")
    text = f"{count:,}" if numbered else ""
    return f'<td style="background:rgb({red},{green},{blue}){ink}"{hint}>{text}</td>'


def _name(text: str) -> str:
    return escape(shortened(text))


def _hint(text: str) -> str:
    return f' title="{escape(shortened(text, 200))}"'
