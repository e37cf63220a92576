"""Compiled programs kept between runs."""

import os
import subprocess
import sys

import pytest

from pseudopoint.compilation import keep_compiled

VARIABLES = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of a user who has set nothing."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what the test sets is rejected
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pseudopoint" / "compiled"


def test_jax_finds_what_an_earlier_process_compiled(folder):
    keep_compiled()
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    code = "import jax, jax.numpy as jnp; print(float(jax.jit(lambda x: jnp.sin(x) + 2)(1.0)))"
    run = lambda: subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, made = run(), sorted(folder.iterdir())
    assert made
    again = run()
    assert again.stdout == first.stdout and not again.stderr
    assert [file.name for file in sorted(folder.iterdir()) if "-cache" in file.name] == [
        file.name for file in made if "-cache" in file.name
    ]


def test_a_choice_of_the_user_is_respected(folder, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    keep_compiled()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "" and not folder.exists()


def test_what_was_unused_for_longest_goes_first(folder):
    folder.mkdir(parents=True)
    for age, name in enumerate("abc"):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1e9 - age, 1e9 - age))
    keep_compiled(limit=250)
    assert sorted(file.name for file in folder.iterdir()) == ["a", "b"]


def test_without_a_folder_nothing_is_kept(folder):
    folder.parent.mkdir()
    folder.write_text("a file")
    keep_compiled()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
