"""What a shell sees of the command line: streams that are closed or full, signals, odd names, a user without a home."""

import os
import signal
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pseudopoint import GPRegressor, cli, shell

pytestmark = [pytest.mark.edge, pytest.mark.skipif(os.name == "nt", reason="a POSIX shell")]
MAIN = "from pseudopoint.cli import main; main()"


def python(code, *arguments, **options):
    settings: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 300} | options
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], text=True, **settings)


# --- A user without a home ---

NO_HOME = """
import os, pwd, sys
def nobody(*_):
    raise KeyError("no such user")
pwd.getpwuid = nobody
"""
ENVIRONMENTS = {
    "no HOME, no entry of the user": (NO_HOME, {}),
    "a HOME that is not there": ("", {"HOME": "{folder}/missing"}),
    "a HOME that cannot be written": ("", {"HOME": "/proc"}),
    "a relative HOME": ("", {"HOME": "missing", "XDG_CACHE_HOME": "missing"}),
    "nothing but PATH": ("", {}),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shell")
    x = np.linspace(0, 6, 24)
    pd.DataFrame({"x": x, "y": np.sin(x)}).to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_commands_work_without_a_home(table, tmp_path, name):
    before, environment = ENVIRONMENTS[name]
    environment = {key: value.format(folder=tmp_path) for key, value in environment.items()}
    environment |= {key: os.environ[key] for key in ("PATH", "PYTHONPATH", "XLA_FLAGS") if key in os.environ}
    arguments = [
        "fit",
        table,
        "--target",
        "y",
        "--method",
        "exact",
        "--initial",
        "robust",
        "--max-iter",
        1,
        "--effort",
        "fast",
    ]
    code = (
        before + "import tempfile; tempfile.tempdir = '.'\n" + MAIN
    )  # what is made for the time is seen in the folder
    done = python(code, *arguments, "--report", "r.html", "--out", "m", cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["m", "r.html"]


def test_tables_of_experiments_have_a_place_without_a_home(tmp_path):
    code = NO_HOME + "from pseudopoint.datasets import data_folder, load; print(len(load('naval').y), data_folder())"
    done = python(
        code, env={"PATH": os.environ["PATH"], "PYTHONPATH": os.environ["PYTHONPATH"], "TMPDIR": str(tmp_path)}
    )
    assert done.stdout.split() == ["11934", str(tmp_path / f"pseudopoint-{os.getuid()}")], done.stderr
    assert list(tmp_path.iterdir()) == []


# --- Streams ---


def test_output_that_cannot_be_written_is_one_sentence():
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        done = python(MAIN, "--version", stdout=full)
    assert done.returncode == 2
    assert done.stderr.startswith("pseudopoint: the output: cannot be read or written (No space left on device); check")
    assert done.stderr.count("\n") == 1


def test_a_reader_who_has_left_is_told_nothing():
    reading, writing = os.pipe()
    os.close(reading)
    done = python(MAIN, "--version", stdout=writing)
    os.close(writing)
    assert done.returncode != 0 and done.stderr == ""


def test_streams_that_are_closed_never_become_a_file(tmp_path):
    code = """
import os, sys
for descriptor in (0, 1, 2):
    os.close(descriptor)
sys.stdin = sys.stdout = sys.stderr = None
from pseudopoint.files import whole_file
from pseudopoint.shell import run

def command():
    with whole_file("f") as file:
        print("lost")
        os.write(1, b"what a library prints")
        os.write(2, b"what a library prints")
        file.write(b"content")

run(command)
"""
    assert python(code, cwd=tmp_path).returncode == 0
    assert (tmp_path / "f").read_bytes() == b"content" and len(list(tmp_path.iterdir())) == 1


def test_characters_that_the_output_lacks_are_escaped():
    code = "from pseudopoint.shell import run; run(lambda: print('R² — \\udcff'))"
    done = python(code, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout) == (0, "R\\xb2 \\u2014 \\udcff\n"), done.stderr


@pytest.mark.parametrize("name", ["no\nsuch", "\x1b[2Jno", "\udcff\udcfe", "a" * 5000, "", "'\"[bold]"])
@pytest.mark.parametrize("command", ["inspect", "fit", "predict", "demo"])
def test_an_odd_name_is_refused_in_one_line(tmp_path, monkeypatch, capsys, command, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    arguments = {
        "inspect": ["inspect", name],
        "fit": ["fit", name, "--target", "y"],
        "predict": ["predict", name, name, "--out", "x.csv"],
        "demo": ["demo", "--out", f"file/{name}"],
    }[command]
    monkeypatch.setattr(sys, "argv", ["pseudopoint", *arguments])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with pytest.raises(SystemExit) as done:
        cli.main()
    out, error = capsys.readouterr()
    assert (done.value.code, out, error.count("\n")) == (2, "", 1), error
    assert error.startswith("pseudopoint: ") and "bug" not in error and error[:-1].isprintable()


def test_a_name_with_a_line_feed_is_one_line_of_the_result(table, tmp_path, monkeypatch, capsys):
    X = np.linspace(0, 6, 12)[:, None]
    model = GPRegressor(method="exact", max_iter=1, initial="robust", effort="fast").fit(X, np.sin(X[:, 0]))
    monkeypatch.chdir(tmp_path)
    cli._show({"model": "a\nb", "notes": ["c\x1bd"]}, False)
    assert capsys.readouterr().out == "model: a\\nb\nnote: c\\x1bd\n"
    model.save("a\nb")
    assert os.listdir(tmp_path) == ["a\nb"]


@pytest.mark.parametrize(
    "error, sentence",
    [
        (
            OSError(28, "No space left on device", "p.csv"),
            "p.csv: cannot be read or written (No space left on device);",
        ),
        (OSError("our own sentence"), "our own sentence"),
        (MemoryError(), "MemoryError: the computer has too little memory"),
        (ValueError("two\nlines"), "two\\nlines"),
    ],
)
def test_what_the_system_says_is_made_a_sentence(error, sentence, capsys, monkeypatch):
    def command():
        raise error

    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # the output of these tests goes on
    with pytest.raises(SystemExit) as done:
        shell.run(command)
    assert done.value.code == 2 and capsys.readouterr().err.startswith(f"pseudopoint: {sentence}")


def test_a_program_that_cannot_be_kept_is_no_matter(tmp_path):
    """JAX's cache in a place where no file can be written: the command says nothing of it, and does its work."""
    code = "from pseudopoint.shell import run\nimport jax\nrun(lambda: print(jax.jit(lambda x: x + 1)(1.0)))"
    (tmp_path / "cache").symlink_to("/proc")
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = python(code, env=os.environ | cache)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2.0\n", "")


def test_ctrl_c_while_the_command_line_is_imported_just_ends_it(tmp_path):
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Import:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Import())
sys.argv = ["pseudopoint", "--version"]
from pseudopoint.__main__ import main
main()
"""
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


# --- Signals ---

WRITING = """
import signal, sys, time
from pseudopoint.files import whole_file
from pseudopoint.shell import run
if sys.argv[1] == "heed":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGHUP", "SIGTERM"):  # which a shell in the background may ignore
        signal.signal(getattr(signal, name), signal.SIG_DFL)
else:
    for name in ("SIGINT", "SIGHUP", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)

def command():
    with whole_file("f") as file:
        file.write(b"a part")
        print("ready", flush=True)
        time.sleep(1 if sys.argv[1] == "ignore" else 60)

run(command)
"""
WORDS = {"SIGINT": "interrupted", "SIGTERM": "stopped by SIGTERM", "SIGHUP": "stopped by SIGHUP"}


def sent(name, folder, way="heed", code=WRITING):
    """What becomes of a command that gets the signal while it writes a file."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code, way], cwd=folder, **pipes)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(getattr(signal, name))
    return process.returncode, *process.communicate(timeout=60), process.wait()


@pytest.mark.parametrize("name", WORDS)
def test_a_signal_leaves_no_part_of_a_file(tmp_path, name):
    *_, error, status = sent(name, tmp_path)
    assert error == f"pseudopoint: {WORDS[name]}; no file was left half written\n"
    assert status == 128 + getattr(signal, name) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", WORDS)
def test_a_signal_that_is_ignored_stays_so(tmp_path, name):
    *_, error, status = sent(name, tmp_path, "ignore")
    assert (error, status) == ("", 0) and (tmp_path / "f").read_bytes() == b"a part"


def test_an_interrupt_that_an_import_swallows_ends_the_process(tmp_path):
    """It was lost, and the fit went on to its end."""
    code = """
import os, signal, sys
from pseudopoint.shell import at_once, run
def command():
    with at_once():
        try:
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        except BaseException:
            pass
    print("went on")
run(command)
"""
    for name, status in (("SIGINT", 130), ("SIGTERM", 143)):
        done = python(code, name)
        assert (done.returncode, done.stdout) == (status, "") and WORDS[name] in done.stderr


def test_an_interrupt_that_a_library_makes_another_error_is_one_still(tmp_path):
    sleep = "time.sleep(1 if"
    broken = f"try: {sleep}", "        except KeyboardInterrupt: raise ImportError('half imported')\n"
    code = WRITING.replace(sleep, broken[0]).replace("\nrun(command)", f"{broken[1]}\nrun(command)")
    *_, error, status = sent("SIGINT", tmp_path, code=code)
    assert (error, status) == ("pseudopoint: interrupted; no file was left half written\n", 130)
    assert list(tmp_path.iterdir()) == []


def test_a_warning_is_one_sentence():
    code = "import warnings; from pseudopoint.shell import run; run(lambda: warnings.warn('the disk is\\nfull'))"
    assert python(code).stderr == "pseudopoint: the disk is\\nfull\n"


def test_the_handlers_of_a_caller_come_back(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = [signal.getsignal(getattr(signal, name)) for name in WORDS]
    shell.run(lambda: None)
    assert [signal.getsignal(getattr(signal, name)) for name in WORDS] == before
