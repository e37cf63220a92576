"""The command line as a process of its own."""

import sys

# A shell that runs the tests in the background has them, and what they start, ignore Ctrl-C: here it is heeded again.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
COMMAND = [sys.executable, "-c", f"{HEED}; from pseudopoint.cli import main; main()"]
