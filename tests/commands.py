"""The command line: as a process of its own, and in the process of the tests."""

import sys
from contextlib import chdir
from pathlib import Path

from typer.testing import CliRunner

from pseudopoint.cli import app

# A shell that runs the tests in the background has them, and what they start, ignore Ctrl-C: here it is heeded again.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
COMMAND = [sys.executable, "-c", f"{HEED}; from pseudopoint.cli import main; main()"]


def here(folder: Path, *arguments: object):
    """A command in this process, which spares the start of another one and its compilations."""
    with chdir(folder):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])
