"""Rounds of L-BFGS-B that begin in float32, on functions whose maximum is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from test_fullbatch import TOP, at, hill, hill_with_aux, level, one_more, watched

from pseudopoint.optimise.fullbatch import Objective, lbfgs, lbfgsb_in_rounds


def fine_hill(point, data):
    """`hill`, finite in float64 alone if `data` is infinite."""
    far = jnp.isinf(data) & (point.x.dtype == jnp.float32)
    return hill(point, jnp.where(far, jnp.nan, jnp.where(jnp.isinf(data), 7.0, data)))


def climbed(float32_start, function=level, data=7.0, **options):
    """The result, and whether each evaluation was in float32."""
    bound, seen = watched(function)
    objective = Objective(bound, at(5.0, 5.0, 5.0), np.float64(data), scale=options.pop("scale", 1.0))
    result = lbfgsb_in_rounds(objective, probe=np.float64(3.0), float32_start=float32_start, **options)
    return result, np.array([x.dtype == np.float32 for x, *_ in seen])


def test_what_float32_cannot_resolve_is_left_to_float64():
    result, in_float32 = climbed(lambda model: True, hill)
    assert in_float32[0] and not in_float32[-1] and (np.diff(in_float32.astype(int)) <= 0).all()  # never back
    assert result.model.x.dtype == jnp.float64 and result.converged
    np.testing.assert_allclose(result.bound, 7.0, rtol=1e-9)
    np.testing.assert_allclose(result.model.x, TOP, atol=1e-3)
    assert [record.step for record in result.history] == list(range(1, len(result.history) + 1))


def test_rounds_are_in_float32_as_long_as_the_model_allows_it():
    asked = []

    def first_round_alone(model):
        asked.append(model.x.dtype)
        return len(asked) == 1

    result, in_float32 = climbed(first_round_alone, max_iter=20)
    assert in_float32[0] and not in_float32[-1]
    assert asked == [jnp.float64] * 2 and len(result.history) == 20  # not asked again
    assert result.bound == float(jax.jit(level)(result.model, 7.0))  # as float64 has it
    whole, in_float32 = climbed(lambda model: True, max_iter=4)
    assert in_float32.all() and len(whole.history) == 4 and not whole.converged
    assert whole.model.x.dtype == jnp.float64
    np.testing.assert_allclose(whole.bound, level(whole.model, 7.0), rtol=1e-6)


def test_what_resumes_is_of_float64_also_where_iterations_end_in_float32():
    numbers = at(5.0, 5.0, 5.0, frozen=[lambda p: p.scale])
    objective = Objective(hill_with_aux, numbers, 7.0, has_aux=True, resume=one_more)
    result = lbfgsb_in_rounds(objective, max_iter=3, float32_start=lambda model: True)
    assert len(result.history) == 3 and not result.converged
    np.testing.assert_array_equal(result.aux[1], result.model.x)


@pytest.mark.parametrize("float32_start", [None, lambda model: False])
def test_without_leave_no_evaluation_is_in_float32(float32_start):
    result, in_float32 = climbed(float32_start, hill)
    assert not in_float32.any()
    np.testing.assert_allclose(result.bound, 7.0, rtol=1e-9)


def test_a_start_that_is_not_finite_in_float32_is_left_to_float64():
    result, in_float32 = climbed(lambda model: True, fine_hill, np.inf)
    assert in_float32.sum() == 1 and in_float32[0] and result.rejected == 1
    np.testing.assert_allclose(result.bound, 7.0, rtol=1e-9)


@pytest.mark.parametrize("float32_start", [None, lambda model: True], ids=["float64", "float32 first"])
def test_the_least_gain_is_asked_of_each_round_and_again_in_float64(float32_start):
    result, in_float32 = climbed(float32_start, min_gain=0.01, scale=10.0)
    assert result.converged and result.bound > 7.0 - 0.05
    assert in_float32.any() == (float32_start is not None) and not in_float32[-1]


def rough_hill(point, data):
    """`level`; in float32 rounded to hundredths, and where `data` is negative one too high."""
    if point.x.dtype == jnp.float64:
        return level(point, data)
    value, slope = jnp.round(level(point, data), 2) + (data < 0), level(point, data)
    return lax.stop_gradient(value) + slope - lax.stop_gradient(slope)


def test_iterations_in_float32_count_where_precisions_agree():
    agreed, in_float32 = climbed(lambda model: True, min_gain=0.01, window=5)
    other, in_rough = climbed(lambda model: True, rough_hill, -7.0, min_gain=0.01, window=5)
    assert agreed.converged and agreed.bound > 7.0 - 0.01
    assert other.converged and other.bound > -7.0 - 0.01
    assert np.sum(~in_rough) >= np.sum(~in_float32) + 4  # whose five iterations are its own


def test_a_search_along_a_line_in_float32_ends_where_rounding_is_all_that_is_left(monkeypatch):
    brief, in_float32 = climbed(lambda model: True, rough_hill)
    monkeypatch.setattr(lbfgs, "FLOAT32_TRIALS", np.inf)
    longer, searched = climbed(lambda model: True, rough_hill)
    assert brief.converged and len(brief.history) == len(longer.history)
    assert np.sum(in_float32) < np.sum(searched) - 20  # as many evaluations as SciPy's search has, and as many again
    np.testing.assert_allclose(brief.bound, 7.0, atol=1e-6)
