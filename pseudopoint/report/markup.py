"""The page that holds a report, and the pieces of HTML that it is made of; whatever text goes in is escaped here."""

import base64
import io
from collections.abc import Iterable
from html import escape

from matplotlib.figure import Figure

__all__ = ["PAGE", "STYLE", "Picture", "grid", "paragraph", "percent", "picture", "section", "shortened"]

Picture = tuple[Figure, str, str]  # with its caption, and a text for those who cannot see it


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
    data = base64.b64encode(image.getvalue()).decode()
    source = f'src="data:image/png;base64,{data}"'
    return f'<figure><figcaption>{escape(caption)}</figcaption><img alt="{escape(alt)}" {source}></figure>'


def percent(share: float) -> str:
    """`93.1 %`."""
    return f"{100.0 * share:.3g} %"


def shortened(text: str, most: int = 24) -> str:
    """The text, or its beginning and `…`, in at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""

STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #f5f6f8; color: #1f2733; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 .75rem; }
section { background: #fff; border: 1px solid #e3e6eb; border-radius: 10px; padding: 1rem 1.25rem; margin: 0 0 1rem; }
p { margin: 0 0 .5rem; max-width: 48rem; }
ul { margin: 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem 0; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: 400; color: #5a6472; padding-right: 1.5rem; }
tr + tr { border-top: 1px solid #eef0f3; }
.bars { width: 100%; max-width: 48rem; }
.bars th { width: 32%; }
.bars td:last-child { width: 4.5rem; padding-left: .75rem; text-align: right; }
.bar { height: .8rem; margin-top: .35rem; border-radius: 2px; background: #2563a8; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: 1.25rem; }
figure { margin: 0; max-width: 34rem; display: flex; flex-direction: column; justify-content: flex-end; }
figcaption { font-size: .9rem; margin-bottom: .4rem; }
img { display: block; width: 100%; height: auto; }
.classes { display: flex; flex-wrap: wrap; gap: 1.25rem 2.5rem; align-items: flex-start; }
.classes figure { flex: 0 1 26rem; max-width: 100%; }
.classes .wide { flex: 0 1 auto; display: block; overflow-x: auto; }
.wide figcaption { width: 0; min-width: max(100%, 20rem); }
.confusion { font-size: .85rem; margin-top: .4rem; }
.confusion tr + tr { border: 0; }
.confusion th { padding: 0 .5rem 0 0; text-align: right; vertical-align: middle; white-space: nowrap; }
.confusion thead th { padding: .4rem 0 0; text-align: left; writing-mode: vertical-rl; transform: rotate(180deg); }
.confusion td { min-width: 1.1rem; height: 1.4rem; padding: 0; border: 1px solid #fff; text-align: center; }
.numbers td { min-width: 2.4rem; height: 2rem; padding: 0 .3rem; vertical-align: middle; }
"""
