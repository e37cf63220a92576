"""Compile modes change the program and not the result; samples keep the shape; programs are kept between runs."""

import json
import os
import subprocess
import sys
from itertools import cycle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint import compilation
from pseudopoint.compilation import bucket, keeping_programs, program, same_shape_sample
from pseudopoint.data import dataset

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


# --- Programs kept between processes ---

NAMES = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
settings = lambda: [getattr(jax.config, name) for name in NAMES]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a user who has set nothing."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compilation._KEEPING, "trimmed", False)
    before = settings()
    jax.config.update(NAMES[0], None)
    yield tmp_path / "pseudopoint" / "compiled"
    jax.config.update(NAMES[0], before[0])
    assert settings() == before


FIT = """
import json, sys, warnings
warnings.simplefilter("error")
import jax, numpy as np
compiled = []
listen = lambda event, **_: compiled.append(event) if event.endswith("cache_misses") else None
jax.monitoring.register_event_listener(listen)
from pseudopoint import GPRegressor
X = np.random.default_rng(0).normal(size=(int(sys.argv[1]), 2))
before = dict(jax.config.values)
mean, std = GPRegressor(max_iter=3, effort=sys.argv[2]).fit(X, np.sin(X[:, 0])).predict(X[:40], return_std=True)
assert dict(jax.config.values) == before
print(json.dumps([len(compiled), mean.tolist(), std.tolist()]))
"""


def in_a_process(rows=60, effort="balanced"):
    run = subprocess.run([sys.executable, "-c", FIT, str(rows), effort], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_a_second_process_compiles_nothing_for_a_bucket_that_was_seen(folder):
    first = in_a_process()
    assert first[0] > 0 and list(folder.iterdir())
    assert in_a_process() == [0, *first[1:]]
    # Without a search, which may choose another kernel for other rows.
    assert bucket(64) == bucket(60) == 66 and in_a_process(60, "fast") and in_a_process(64, "fast")[0] == 0


def test_two_processes_may_write_at_the_same_time(folder):
    command = [sys.executable, "-c", FIT, "60", "fast"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    (one, said), (two, also) = (process.communicate() for process in both)
    assert not said and not also and json.loads(one)[1:] == json.loads(two)[1:]
    assert in_a_process(effort="fast")[0] == 0


DAMAGES = [lambda of: b"", lambda of: of[: len(of) // 2], lambda of: of[:20] + of[24:]]


def test_a_damaged_file_costs_a_compilation_and_says_nothing(folder):
    first = in_a_process(effort="fast")
    files = sorted(folder.glob("*-cache"))
    assert len(files) >= len(DAMAGES)
    for file, damage in zip(files, cycle(DAMAGES), strict=False):
        file.write_bytes(damage(file.read_bytes()))
    assert in_a_process(effort="fast")[1:] == first[1:]


def test_scopes_of_several_threads_restore_what_the_first_one_found(folder):
    before, inside = settings(), []
    outer, inner = keeping_programs(), keeping_programs()
    outer.__enter__()
    inside.append(settings())
    inner.__enter__()
    outer.__exit__(None, None, None)
    inside.append(settings())
    inner.__exit__(None, None, None)
    assert settings() == before and inside == [[str(folder), 0.0, -1]] * 2


def test_a_choice_of_the_user_is_respected(folder, tmp_path, monkeypatch):
    jax.config.update(NAMES[0], str(tmp_path))
    before = settings()
    with keeping_programs():
        assert settings() == before
    jax.config.update(NAMES[0], None)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    with keeping_programs():
        assert settings()[0] is None
    assert not folder.exists()


def test_programs_unused_for_longest_go_first(folder, monkeypatch):
    monkeypatch.setattr(compilation, "LIMIT", 250)
    folder.mkdir(parents=True)
    for age, name in enumerate("abc"):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1e9 - age, 1e9 - age))
    with keeping_programs():
        assert sorted(file.name for file in folder.iterdir()) == ["a", "b"]


def test_without_a_folder_nothing_is_kept(folder):
    folder.parent.mkdir()
    folder.write_text("a file")
    with keeping_programs():
        assert settings()[0] is None
