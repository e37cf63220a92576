"""Programs compiled in compile_mode compute the same, and an XLA without the option is not asked for it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint import compilation as programs
from pseudopoint.compilation import program


def wave(x, n):
    """Something of loops, a reduction and a product."""
    return jnp.sum(jnp.exp(-x[:, None] * x), axis=0) @ x + n


X = np.linspace(-1.0, 1.0, 50)
TRUTH = np.exp(-X[:, None] * X).sum(0) @ X + 3


@pytest.mark.default_flags
def test_haste_makes_three_different_programs_that_compute_the_same():
    """Under the flags of the other tests they would be three equal programs: nothing could differ."""
    sizes = []
    for compile_mode in (None, "brief", "once"):
        function: Any = program(wave, compile_mode, (1,))
        compiled = function.lower(X, 3).compile()
        np.testing.assert_allclose(compiled(X), TRUTH, rtol=1e-12)
        sizes.append(len(compiled.runtime_executable().serialize()))
    quick, brief, once = sizes
    assert once < 0.9 * brief  # without LLVM's optimisation no loop is unrolled
    assert not programs._older() or abs(brief / quick - 1) > 0.02  # the older emitters write other loops


@pytest.mark.parametrize("compile_mode", [None, "brief", "once"])
def test_a_program_is_made_once_for_the_same_arguments(compile_mode):
    compiled = program(wave, compile_mode, (1,))
    np.testing.assert_allclose(compiled(X, 3), TRUTH, rtol=1e-12)
    assert program(wave, compile_mode, (1,)) is compiled


def test_each_haste_is_asked_for_by_its_options(monkeypatch):
    asked = []
    monkeypatch.setattr(programs, "_older", lambda: {"older": True})
    monkeypatch.setattr(jax, "jit", lambda function, **options: asked.append(options["compiler_options"]) or function)
    for compile_mode in (None, "brief", "once"):
        program.__wrapped__(wave, compile_mode)
    assert asked == [None, {"older": True}, {"older": True, "xla_backend_optimization_level": 0}]


def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch):
    jit = jax.jit
    unknown = lambda function, compiler_options=None, **rest: jit(
        function, compiler_options=compiler_options and {"xla_no_such_option": True}, **rest
    )
    monkeypatch.setattr(jax, "jit", unknown)
    assert programs._older.__wrapped__() == {}
    monkeypatch.undo()
    assert programs._older.__wrapped__() in ({}, {"xla_cpu_use_fusion_emitters": False})
