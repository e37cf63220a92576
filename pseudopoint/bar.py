"""Progress of a command on a terminal."""

from typing import Any

from rich.console import Console

from pseudopoint.optimise.result import Record

__all__ = ["Bar"]


class Bar:
    """Progress on standard error: a bar on a terminal, plain lines elsewhere, of a fit one every five seconds."""

    def __init__(self, silent: bool):
        self.console, self.silent, self.said = Console(stderr=True), silent, 0.0
        self.name: str = ""
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self):
        return self

    def fitted(self, record: Record):
        """An iteration of a fit is done."""
        text = f"bound {record.bound:,.1f}  {record.step / max(record.seconds, 1e-9):.1f} iterations/s"
        if self.console.is_terminal or record.seconds - self.said >= 5:
            self.said = record.seconds
            self._tell("fitting", record.step, record.total, text)

    def reproduced(self, step: Any):
        """A row of an experiment is done."""
        text = ", ".join(str(value) for value in step.case.values())
        self._tell(step.name, step.done, step.total, f"{text} ({step.seconds:.1f} s)")

    def _tell(self, name: str, done: int, total: int, text: str):
        if self.silent:
            return
        if not self.console.is_terminal:
            self.console.print(f"{name} {done}/{total}: {text}", highlight=False, markup=False)
            return
        if name != self.name:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self.__exit__()
            columns = BarColumn(), TextColumn("{task.completed}/{task.total}  {task.fields[text]}  time left")
            self.bar = Progress(name, *columns, TimeRemainingColumn(), console=self.console, transient=True)
            self.bar.start()
            self.name, self.task = name, self.bar.add_task(name, total=total, text="")
        self.bar.update(self.task, completed=done, total=total, text=text.replace("[", "\\["))

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.stop()
