"""What a command owes the shell that started it: open streams, one sentence for every failure, an exit status, and
nothing left behind when it is stopped."""

import _thread
import io
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pseudopoint.files import user_cache

__all__ = ["run", "visible"]

_stopped: list[int] = []  # the signals that came


def run(command: Callable[[], Any]) -> None:
    """Run the command. Every failure is one sentence on standard error and an exit status: 2 for what the user can
    mend, 1 for a bug, 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP. Where nobody reads the output any more, it ends
    without a word."""
    open_streams()
    quiet_libraries()
    sys.unraisablehook = _unraisable
    with _heeding():
        try:
            _command(command)
        except KeyboardInterrupt:
            _interrupted()
        except SystemExit as done:
            if done.code == 130 or _stopped:  # 130 is typer's way to say Ctrl-C
                _interrupted()
            raise
        except Exception as error:
            if _stopped:  # an interrupt inside a library's import comes out as that library's own error
                _interrupted()
            _failed(error)


def visible(text: str) -> str:
    """The text in one line, with escapes for what would not show: line feeds, terminal codes, undecodable bytes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def open_streams() -> None:
    """Standard streams that are closed get an empty device: else the next file opened would be one of them, and what
    libraries print would go into it. Characters that a terminal or locale lacks are escaped, not an error."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free, which is this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def quiet_libraries() -> None:
    """matplotlib warns where it cannot keep its fonts in the user's home, and makes a folder for the time. Where there
    is no home it is told of a folder that cannot be, for it would make the home itself. JAX warns where a program
    cannot be kept, which changes no result."""
    warnings.filterwarnings("ignore", "Error (writing|reading) persistent compilation cache")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    if user_cache() is None:
        os.environ.setdefault("MPLCONFIGDIR", os.path.join(os.devnull, "none"))


def _command(command: Callable[[], Any]) -> None:
    """With all output written: a full disk and a reader who has left are told of here."""
    try:
        command()
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def _failed(error: Exception) -> None:
    if isinstance(error, OSError):
        with suppress(OSError, ValueError):  # output that was refused is not tried again at the exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        sys.exit(141)
    if isinstance(error, ValueError | OSError | MemoryError):
        _fail(_told(error), 2)
    if os.environ.get("PSEUDOPOINT_TRACEBACK"):
        raise error
    _fail(f"a bug in pseudopoint: {type(error).__name__}: {error} (PSEUDOPOINT_TRACEBACK=1 shows where)", 1)


def _told(error: Exception) -> str:
    """Our own errors are sentences; those of the system are made one."""
    if isinstance(error, OSError) and error.strerror:
        where = "the output" if error.filename is None else str(error.filename)
        return f"{where}: cannot be read or written ({error.strerror}); check the path, permissions and space"
    return str(error) or f"{type(error).__name__}: the computer has too little memory"


@contextmanager
def _heeding() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, so that files half written vanish; those that are ignored,
    as by nohup, stay so."""
    _stopped.clear()
    before = {}
    for name, default in {
        "SIGINT": signal.default_int_handler,
        "SIGTERM": signal.SIG_DFL,
        "SIGHUP": signal.SIG_DFL,
    }.items():
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is default:
            with suppress(ValueError):  # only the main thread may
                before[number] = signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, _: Any) -> None:
    _stopped.append(number)
    raise KeyboardInterrupt


def _unraisable(lost: Any) -> None:
    """An interrupt that lands in a finaliser or in a callback of the garbage collector (JAX has one) cannot be raised
    there: Python would print its traceback and go on. Raised again a moment later, outside, it does what was meant."""
    if lost.exc_type is not KeyboardInterrupt:
        return sys.__unraisablehook__(lost)
    _thread.start_new_thread(_again, ())  # returns at once: a `Thread` waits here, and would be interrupted itself


def _again() -> None:
    time.sleep(0.01)
    _thread.interrupt_main()


def _interrupted() -> None:
    """Leave at once: what was being written is gone already, and XLA, torn down while it computes, crashes."""
    number = _stopped[0] if _stopped else signal.SIGINT
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # sent again on the way out, they would change nothing but the status
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    with suppress(OSError):
        sys.stdout.flush()
    word = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
    _fail(f"{word}; no file was left half written", 128 + number, os._exit)


def _fail(sentence: str, status: int, leave: Callable[[int], Any] = sys.exit) -> None:
    with suppress(OSError):
        print(f"pseudopoint: {visible(sentence)}", file=sys.stderr, flush=True)
    leave(status)
