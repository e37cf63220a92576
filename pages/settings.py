"""docs/settings.md: every setting and its words, from `pseudopoint.names`."""

from textwrap import fill

from pseudopoint.names import ESTIMATORS, SETTINGS

PAGE = """# Settings

`GPRegressor(NAME=...)`, `GPClassifier(NAME=...)`, or `pseudopoint fit --NAME ...` with hyphens for underscores. This
page is made from `pseudopoint/names.py` by `python pages/settings.py > docs/settings.md`. Defaults are those of
`GPRegressor`; `GPClassifier` has `batch_size=512`, and no `bound`, `initial_noise`,
`num_latents`, `outputs`, `target_warp` and `scale_target`. `warm_start` is of Python alone.
"""


def lines(text: str, indent: str = "") -> str:
    """Lines of at most 120 characters; a long word, such as a link, is not cut."""
    return fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def page() -> str:
    """docs/settings.md: every setting and its words."""
    parts = [PAGE]
    for name, setting in (SETTINGS | ESTIMATORS).items():
        default = "" if setting.default is None else f" Default: `{setting.default}`."
        parts.append(f"\n## {name}\n\n{lines(setting.help + default)}\n")
        parts += [f"\n{lines(f'In Python: {setting.python}')}\n"] if setting.python else []
        parts += [
            "\n" * bool(setting.words),
            *(lines(f"- `{word}`: {text}.", "  ") + "\n" for word, text in setting.words.items()),
        ]
    return "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
