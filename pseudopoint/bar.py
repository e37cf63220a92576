"""Progress of a command on a terminal."""

import logging
import time
from typing import Any

from rich.console import Console

from pseudopoint.optimise.result import Record

EVERY = 5.0  # seconds between lines where there is no terminal
LOG = logging.getLogger("pseudopoint")


class Bar(logging.Handler):
    """Progress on standard error: of a fit a bar on a terminal, plain lines elsewhere, one every five seconds.

    While it is open it also says what the package's log tells: what a search tries, and which fit begins.
    """

    def __init__(self, silent: bool):
        super().__init__(logging.INFO)
        self.console, self.silent, self.said = Console(stderr=True), silent, time.monotonic()
        self.showing: str = ""
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self):
        self.level_before = LOG.level
        LOG.setLevel(logging.INFO)
        LOG.addHandler(self)
        return self

    def emit(self, record: logging.LogRecord):
        """A line of the package's log: what is being done."""
        if self._line(text := record.getMessage()):
            self.stop()
            self.showing, self.bar = "", self.console.status(text.replace("[", "\\["))
            self.bar.start()

    def fitted(self, record: Record):
        """An iteration of a fit is done."""
        text = f"bound {record.bound:,.1f}  {record.step / max(record.seconds, 1e-9):.1f} iterations/s"
        self._tell("fitting", record.step, record.total, text)

    def reproduced(self, step: Any):
        """A row of an experiment is done."""
        text = ", ".join(str(value) for value in step.case.values())
        self._tell(step.name, step.done, step.total, f"{text} ({step.seconds:.1f} s)", every=0.0)

    def _tell(self, name: str, done: int, total: int, text: str, every: float = EVERY):
        if not self._line(f"{name} {done}/{total}: {text}", every):
            return
        if name != self.showing:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self.stop()
            columns = BarColumn(), TextColumn("{task.completed}/{task.total}  {task.fields[text]}  time left")
            self.bar = Progress(name, *columns, TimeRemainingColumn(), console=self.console, transient=True)
            self.bar.start()
            self.showing, self.task = name, self.bar.add_task(name, total=total, text="")
        self.bar.update(self.task, completed=done, total=total, text=text.replace("[", "\\["))

    def _line(self, text: str, every: float = EVERY) -> bool:
        """Whether there is a terminal, which shows more; elsewhere prints a line each so many seconds."""
        if self.silent or self.console.is_terminal:
            return not self.silent
        if time.monotonic() - self.said >= every:
            self.said = time.monotonic()
            self.console.print(text, highlight=False, markup=False)
        return False

    def stop(self):
        """Takes away what the terminal shows."""
        if self.bar is not None:
            self.bar.stop()

    def __exit__(self, *_):
        self.stop()
        LOG.removeHandler(self)
        LOG.setLevel(self.level_before)
