"""Compile modes change the program and not the result; samples keep the shape; programs are kept between runs."""

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint import compilation
from pseudopoint.compilation import keep_compiled, program, same_shape_sample
from pseudopoint.data import dataset

VARIABLES = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")


# --- Compile modes ---


def wave(x, n):
    """Something of loops, a reduction and a product."""
    return jnp.sum(jnp.exp(-x[:, None] * x), axis=0) @ x + n


X = np.linspace(-1.0, 1.0, 50)
TRUTH = np.exp(-X[:, None] * X).sum(0) @ X + 3


@pytest.mark.default_flags
def test_modes_make_three_different_programs_that_compute_the_same():
    """Under the flags of the other tests they would be three equal programs: nothing could differ."""
    sizes = []
    for compile_mode in (None, "brief", "once"):
        function: Any = program(wave, compile_mode, (1,))
        compiled = function.lower(X, 3).compile()
        np.testing.assert_allclose(compiled(X), TRUTH, rtol=1e-12)
        sizes.append(len(compiled.runtime_executable().serialize()))
    quick, brief, once = sizes
    assert once < 0.9 * brief  # without LLVM's optimisation no loop is unrolled
    assert not compilation._older_emitters() or abs(brief / quick - 1) > 0.02  # the older emitters write other loops


@pytest.mark.parametrize("compile_mode", [None, "brief", "once"])
def test_a_program_is_made_once_for_the_same_arguments(compile_mode):
    compiled = program(wave, compile_mode, (1,))
    np.testing.assert_allclose(compiled(X, 3), TRUTH, rtol=1e-12)
    assert program(wave, compile_mode, (1,)) is compiled


@pytest.mark.parametrize("compile_mode", ["brief", "once"])
def test_an_xla_without_the_older_emitters_compiles_all_the_same(compile_mode, monkeypatch):
    jit, wanted = jax.jit, []

    def without_them(function, compiler_options=None, **options):
        if compiler_options and compiler_options.pop("xla_cpu_use_fusion_emitters", None) is not None:
            wanted.append(function)
            compiler_options = {"xla_no_such_option": True}
        return jit(function, compiler_options=compiler_options, **options)

    monkeypatch.setattr(jax, "jit", without_them)
    compilation._older_emitters.cache_clear()
    function = lambda x, n: wave(x, n)
    np.testing.assert_allclose(program(function, compile_mode, (1,))(X, 3), TRUTH, rtol=1e-12)
    compilation._older_emitters.cache_clear()
    assert len(wanted) == 1  # asked of a tiny program, and not again


# --- Samples of the same shape ---


def test_a_sample_of_the_same_shape_comes_first_and_the_other_rows_weigh_nothing():
    X = np.arange(50.0)[:, None]
    whole = dataset(X, 2 * X[:, 0], weight=1 + X[:, 0], noise=4 * X[:, 0])
    data = same_shape_sample(whole, 20, 0)
    x = np.asarray(data.X)[:, 0]
    assert sorted(x) == X[:, 0].tolist() and np.array_equal(data.y, 2 * x) and np.array_equal(data.noise, 4 * x)
    assert np.array_equal(data.weight, np.where(np.arange(50) < 20, 1 + x, 0)) and x[:20].max() > 25
    assert set(np.asarray(same_shape_sample(data, 10, 1).X)[:10, 0]) < set(x[:20])  # rows of weight zero are left out


# --- Programs kept between runs ---


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a user who has set nothing."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that the test's own settings are taken back
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


def test_programs_unused_for_longest_go_first(folder):
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
