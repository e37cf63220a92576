"""`python -m pseudopoint` is the command line; so is the script `pseudopoint`."""

import signal


def main() -> None:
    """The command line. While its libraries are imported there is nothing to undo: Ctrl-C just ends the process."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pseudopoint.cli import main as command

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


if __name__ == "__main__":
    main()
