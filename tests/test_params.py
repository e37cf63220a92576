"""Human values in the model, unconstrained numbers in the optimiser: the walk between the two loses nothing."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pseudopoint.kernels import RBF, Linear
from pseudopoint.params import Number, bounded, cast, positive, trainable


class Part(eqx.Module):
    scale: Number = positive()


class Toy(eqx.Module):
    offset: Number  # free
    parts: tuple[Part, ...]
    count: Any
    scales: Number = positive()
    noise: Number = positive(1e-8)
    share: Number = bounded(0.2, 0.7)
    name: str = eqx.field(static=True, default="toy")


def toy(scales=(0.5, 2.0), noise=0.1, share=0.3, offset=-4.0):
    return Toy(np.array(offset), (Part(3.0), Part(7.0)), np.array(5), np.array(scales), noise, share)


@jax.jit
def rebuilt(every, vector):
    return every.rebuild(vector)


@jax.jit
def freed(model):
    return trainable(model)


@jax.jit
def slope(every, vector):
    """The gradient of the sum of all numbers of the model."""
    return jax.grad(lambda v: sum(jnp.sum(x) for x in jax.tree.leaves(every.rebuild(v))))(vector)


def numbers(model):
    """Everything but the count: [offset, part, part, scales, noise, share]."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(model) if np.asarray(leaf).dtype != int])


# --- there and back --------------------------------------------------------------------------------------------------

SCALES = st.floats(1e-11, 1e17)


@settings(max_examples=25, deadline=None)
@given(st.tuples(SCALES, SCALES), st.floats(1e-7, 1e17), st.floats(0.2001, 0.6999), st.floats(-1e300, 1e300))
def test_model_to_vector_to_model_is_the_identity(scales, noise, share, offset):
    model = cast(toy(scales, noise, share, offset), jnp.float64)
    every = freed(model)
    back = rebuilt(every, every.vector)
    np.testing.assert_allclose(numbers(back), numbers(model), rtol=1e-13)
    assert jax.tree.structure(back) == jax.tree.structure(model)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-13.0, 13.0), min_size=7, max_size=7))
def test_vector_to_model_to_vector_is_the_identity(vector):
    back = freed(rebuilt(freed(cast(toy(), jnp.float64)), np.array(vector)))
    np.testing.assert_allclose(back.vector, vector, rtol=1e-9, atol=1e-9)  # σ(13) leaves nine digits


def test_the_vector_is_in_the_order_of_the_leaves():
    vector = freed(cast(toy(), jnp.float64)).vector
    share = np.log((0.3 - 0.2) / (0.7 - 0.3))
    truth = [-4.0, np.log(3.0), np.log(7.0), np.log(0.5), np.log(2.0), np.log(0.1 - 1e-8), share]
    np.testing.assert_allclose(vector, truth, rtol=1e-14)


def test_a_step_is_a_relative_change_of_a_scale():
    every = freed(cast(toy((1e-6, 1e6)), jnp.float64))
    moved = rebuilt(every, every.vector + 0.1)
    np.testing.assert_allclose(moved.scales, np.array([1e-6, 1e6]) * np.exp(0.1), rtol=1e-14)


def test_the_derivative_is_that_of_the_chain_rule():
    every = freed(cast(toy(), jnp.float64))
    # ∂(lower + eˣⁱ) = x − lower, ∂ of the sigmoid = (x − lower)(upper − x)/(upper − lower)
    np.testing.assert_allclose(
        slope(every, every.vector), [1.0, 3.0, 7.0, 0.5, 2.0, 0.1 - 1e-8, 0.1 * 0.4 / 0.5], rtol=1e-13
    )


def test_other_numbers_and_static_fields_stay():
    every = freed(cast(toy(), jnp.float64))
    back = rebuilt(every, every.vector + 1.0)
    assert every.vector.shape == (7,)
    assert (int(back.count), back.name) == (5, "toy")


def test_kernels_made_outside_float64_keep_all_digits():
    with jax.enable_x64(False):
        kernel: Any = RBF(0.1, 0.3) + Linear(0.7)
    rbf, linear = cast(kernel, jnp.float64).kernels
    assert (float(rbf.lengthscale), float(rbf.variance), float(linear.variance)) == (0.1, 0.3, 0.7)


class Named(eqx.Module):
    parts: dict[str, Part]
    scales: dict[str, Number] = positive()


def test_positive_numbers_in_dictionaries_stay_positive():
    every = trainable(cast(Named({"a": Part(0.5)}, {"b": np.asarray(0.25)}), jnp.float64))
    np.testing.assert_allclose(every.vector, np.log([0.5, 0.25]), rtol=1e-14)


# --- bounds ----------------------------------------------------------------------------------------------------------

ANY = st.floats(allow_nan=False)  # ±infinity included


@settings(max_examples=25, deadline=None)
@given(st.lists(ANY, min_size=7, max_size=7))
def test_no_vector_leaves_the_bounds_or_the_finite_numbers(vector):
    every = freed(cast(toy(), jnp.float64))
    model = rebuilt(every, np.array(vector))
    for scale in (*model.scales, *(part.scale for part in model.parts)):
        assert 0 < scale < np.inf
    assert 1e-8 < model.noise < np.inf
    assert 0.2 <= model.share <= 0.7


class Interval(eqx.Module):
    x: Number = bounded(0.3, 0.9)
    y: Number = bounded(0.6, 1.7)


@pytest.mark.parametrize("xi", [40.0, np.inf, -40.0, -np.inf])
def test_rounding_does_not_leave_an_interval_either(xi):
    every = freed(cast(Interval(0.5, 1.0), jnp.float64))
    model = rebuilt(every, np.full(2, xi))
    assert 0.3 <= model.x <= 0.9
    assert 0.6 <= model.y <= 1.7


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("xi", [1e3, -1e3, 1e30, -1e30])
def test_overflow_stays_finite_and_so_does_its_derivative(dtype, xi):
    every = freed(cast(toy(), dtype))
    vector = np.full(7, xi, dtype)
    assert np.isfinite(numbers(rebuilt(every, vector))).all()
    assert np.isfinite(slope(every, vector)).all()


def test_a_value_on_its_bound_starts_a_hair_inside():
    every = freed(cast(toy(noise=1e-8, share=0.2), jnp.float64))
    assert np.isfinite(every.vector).all()
    back = rebuilt(every, every.vector)
    assert 1e-8 < back.noise < 1.01e-8
    assert 0.2 < back.share < 0.2 + 1e-6


# --- frozen ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frozen, free_numbers",
    [
        ([lambda m: m.scales], [0, 1, 2, 5, 6]),
        ([lambda m: m.scales, lambda m: m.offset], [1, 2, 5, 6]),
        ([lambda m: (m.noise, m.share)], [0, 1, 2, 3, 4]),
        ([lambda m: m.parts], [0, 3, 4, 5, 6]),
        ([lambda m: m.parts[1]], [0, 1, 3, 4, 5, 6]),
        ([lambda m: m], []),
    ],
)
def test_frozen_numbers_do_not_move_and_the_others_do(frozen, free_numbers):
    model = cast(toy(), jnp.float64)
    some = trainable(model, *frozen)
    np.testing.assert_allclose(some.vector, np.asarray(freed(model).vector)[np.array(free_numbers, int)], rtol=1e-15)
    moved = numbers(rebuilt(some, some.vector + 1.0)) != numbers(model)
    np.testing.assert_array_equal(np.flatnonzero(moved), free_numbers)


def test_a_frozen_number_does_not_freeze_its_namesakes():
    # One array object may stand in two places of a model.
    shared = jnp.asarray(0.7)
    some = trainable(RBF(shared, shared), lambda kernel: kernel.lengthscale)
    np.testing.assert_allclose(some.vector, [np.log(0.7)], rtol=1e-14)
    moved = some.rebuild(some.vector + 1.0)
    assert moved.lengthscale == 0.7
    np.testing.assert_allclose(moved.variance, 0.7 * np.e, rtol=1e-14)


# --- what is refused, and what is converted --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, 0, [1.0, -1.0], np.array([1.0, 0.0]), jnp.array(-1.0)])
def test_a_number_that_is_not_positive_is_refused_by_name_of_its_fault(value):
    with pytest.raises(ValueError, match=r"^scale=.+ must be positive and finite$"):
        Part(value)


@pytest.mark.parametrize("value", [0.1, 0.8, np.nan, np.array([0.3, 2.0])])
def test_a_number_outside_its_interval_is_refused(value):
    with pytest.raises(ValueError, match=r"^share=.+ must be between 0\.2 and 0\.7$"):
        toy(share=value)


@pytest.mark.parametrize("value", [2, [2, 3], (2, 3), np.array([2, 3]), np.float32(2.0), np.arange(1, 3)])
def test_integers_become_numbers_that_can_be_learned(value):
    part = Part(value)
    assert trainable(cast(part, jnp.float64)).vector.size == np.size(value)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_cast_changes_floating_numbers_and_nothing_else(dtype):
    mixed = cast((toy(), 0.5, np.float32(0.25), jnp.ones(2, jnp.float32), 3, True, "text", None), dtype)
    floating = [*jax.tree.leaves(eqx.filter(mixed[0], eqx.is_inexact_array)), *mixed[1:4]]
    assert len(floating) == 9
    assert all(isinstance(leaf, jax.Array) and leaf.dtype == dtype for leaf in floating)
    assert mixed[0].count.dtype == np.asarray(5).dtype
    assert mixed[4:] == (3, True, "text", None)
