"""What a command needs from the shell and owes it: open streams, one sentence for every failure, an exit status, and no
half-written files when it is stopped."""

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

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_received: list[int] = []  # signals
_at_once: list[bool] = []  # not empty inside of `at_once`


def run(command: Callable[[], Any]) -> None:
    """Run the command and end the process after a failure, with one sentence on standard error and an exit status.

    The status is 2 for what the user can correct, 1 for a bug, 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP. If the
    reader of the output has gone, the command ends silently with 141.
    """
    _open_streams()
    _quiet_libraries()
    sys.unraisablehook = _unraisable
    with _handle_signals():
        try:
            try:
                command()
            except SystemExit:
                sys.stdout.flush()
                raise
            sys.stdout.flush()  # here a full disk and a reader that has gone are reported
        except KeyboardInterrupt:
            _interrupted()
        except SystemExit as done:
            if done.code == 130 or _received:  # typer reports Ctrl-C by 130
                _interrupted()
            raise
        except Exception as error:
            if _received:  # an interrupt inside a library's import is raised as that library's own error
                _interrupted()
            _failed(error)


@contextmanager
def at_once() -> Iterator[None]:
    """Signals end the process and raise nothing: libraries that are imported may swallow what is raised in them, or
    crash of it."""
    _at_once.append(True)
    try:
        yield
    finally:
        _at_once.clear()


def visible(text: str) -> str:
    """The text in one line, with escapes for line feeds, terminal codes and undecodable bytes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _open_streams() -> None:
    """Open the null device for standard streams that are closed. The next file opened would else take their place, and
    get what libraries print. Characters that the terminal or locale lacks are escaped."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _quiet_libraries() -> None:
    """Silence warnings about caches, which change no result: JAX's of programs and matplotlib's of fonts. Others are
    one sentence each.

    Without a home matplotlib gets a folder that cannot exist, because it would create the home.
    """
    warnings.filterwarnings("ignore", "Error (writing|reading) persistent compilation cache")
    warnings.formatwarning = lambda message, *_, **__: f"pseudopoint: {visible(str(message))}\n"
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    if user_cache() is None:
        os.environ.setdefault("MPLCONFIGDIR", os.path.join(os.devnull, "none"))


def _failed(error: Exception) -> None:
    if isinstance(error, OSError):
        with suppress(OSError, ValueError):  # so that refused output is not written again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        sys.exit(141)
    if isinstance(error, OSError) and error.strerror:  # the system's; our own errors are sentences
        where = "the output" if error.filename is None else str(error.filename)
        _fail(f"{where}: cannot be read or written ({error.strerror}); check the path, permissions and space", 2)
    if isinstance(error, ValueError | OSError | MemoryError):
        _fail(str(error) or f"{type(error).__name__}: the computer has too little memory", 2)
    if os.environ.get("PSEUDOPOINT_TRACEBACK"):
        raise error
    _fail(f"a bug in pseudopoint: {type(error).__name__}: {error} (PSEUDOPOINT_TRACEBACK=1 shows where)", 1)


@contextmanager
def _handle_signals() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, so that half-written files vanish. Signals that are ignored,
    as by nohup, stay ignored."""
    _received.clear()
    before = {}
    for number in SIGNALS:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            with suppress(ValueError):  # only the main thread may set handlers
                before[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _: Any) -> None:
    _received.append(number)
    if _at_once:
        _interrupted()
    raise KeyboardInterrupt


def _unraisable(lost: Any) -> None:
    """An interrupt inside a finaliser or a callback of the garbage collector (JAX has one) cannot be raised there:
    Python would print its traceback and go on. It is raised again a moment later, outside."""
    if lost.exc_type is not KeyboardInterrupt:
        return sys.__unraisablehook__(lost)

    def again():
        time.sleep(0.01)
        _thread.interrupt_main()

    _thread.start_new_thread(again, ())  # returns at once: `Thread.start` waits, and could be interrupted itself


def _interrupted() -> None:
    """Leave at once. Half-written files are gone already, and XLA crashes if it is torn down while it computes."""
    number = _received[0] if _received else signal.SIGINT
    for each in SIGNALS:  # sent again now, they could only change the status
        signal.signal(each, signal.SIG_IGN)
    with suppress(OSError):
        sys.stdout.flush()
    word = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
    _fail(f"{word}; no file was left half written", 128 + number, os._exit)


def _fail(sentence: str, status: int, leave: Callable[[int], Any] = sys.exit) -> None:
    with suppress(OSError):
        print(f"pseudopoint: {visible(sentence)}", file=sys.stderr, flush=True)
    leave(status)
