"""What a command shows while it works: on a terminal, elsewhere, and with --json."""

import io
import logging

import pytest
from rich.console import Console

from pseudopoint.bar import EVERY, LOG, Bar
from pseudopoint.optimise.result import Record

pytestmark = pytest.mark.edge


def bar(terminal, silent=False):
    made = Bar(silent)
    made.console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    return made


def text_of(shown):
    file = shown.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def work(shown):
    with shown:
        logging.getLogger("pseudopoint.recipes.race").info("search: kernel (%s)", "matern32[1], rbf")
        shown.fitted(Record(3, -12.0, 0.1, 0.1, 0, 1.5, 30))
        logging.getLogger("pseudopoint.recipes.noise_choice").info("trying noise that depends on x")
    return text_of(shown)


def test_a_terminal_shows_what_is_tried_and_a_bar_with_the_time_left():
    text = work(bar(True))
    assert "search: kernel (matern32[1], rbf)" in text and "3/30" in text and "time left" in text
    assert "trying noise that depends on x" in text


def test_elsewhere_lines_come_every_five_seconds():
    assert work(bar(False)) == ""  # nothing took so long
    shown = bar(False)
    shown.said -= EVERY
    assert work(shown) == "search: kernel (matern32[1], rbf)\n"
    shown.said -= EVERY
    shown.fitted(Record(3, -12.0, 0.1, 0.1, 0, 1.5, 30))
    assert "fitting 3/30: bound -12.0  2.0 iterations/s" in text_of(shown)


def test_with_json_nothing_is_shown_and_the_log_is_left_as_it_was():
    before, handlers = LOG.level, list(LOG.handlers)
    for terminal in (False, True):
        shown = bar(terminal, silent=True)
        shown.said -= EVERY
        assert work(shown) == ""
    assert LOG.level == before and LOG.handlers == handlers
