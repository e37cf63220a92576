"""Programs compiled in haste compute the same, and an XLA without the option is not asked for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint import programs
from pseudopoint.programs import program


def wave(x, n):
    """Something of loops, a reduction and a product."""
    return jnp.sum(jnp.exp(-x[:, None] * x), axis=0) @ x + n


@pytest.mark.parametrize("haste", [None, "brief", "once"])
def test_haste_changes_no_number(haste):
    x = np.linspace(-1.0, 1.0, 50)
    truth = np.exp(-x[:, None] * x).sum(0) @ x + 3
    compiled = program(wave, haste, (1,))
    np.testing.assert_allclose(compiled(x, 3), truth, rtol=1e-12)
    assert program(wave, haste, (1,)) is compiled


def test_each_haste_is_asked_for_by_its_options(monkeypatch):
    asked = []
    monkeypatch.setattr(programs, "_older", lambda: {"older": True})
    monkeypatch.setattr(jax, "jit", lambda function, **options: asked.append(options["compiler_options"]) or function)
    for haste in (None, "brief", "once"):
        program.__wrapped__(wave, haste)
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
