"""Rows: drawn without replacement, cut into chunks, merged, and scaled. Nothing is lost on the way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pseudopoint.data import WRITTEN, Standardiser, chunked, dataset, draw, drawn, merge_duplicates, take

few = settings(max_examples=40, deadline=None)
rng = np.random.default_rng(11)


def table(N=7, D=2):
    return dataset(rng.normal(size=(N, D)), rng.normal(size=N), rng.uniform(1, 2, N), rng.uniform(0, 1, N))


# --- draw ------------------------------------------------------------------------------------------------------------


@few
@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 5), st.integers(1, 9))
def test_every_row_is_drawn_once_an_epoch(N, batch_size, seed, count):
    batches = draw(N, batch_size, seed, 0, count)
    assert batches.shape == (count, batch_size)
    stream = batches.ravel()
    for start in range(0, stream.size, N):
        epoch = stream[start : start + N]
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(range(N))


@few
@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 5), st.integers(0, 9), st.integers(1, 9))
def test_a_resumed_stream_goes_on_where_it_stopped(N, batch_size, seed, step, count):
    whole = draw(N, batch_size, seed, 0, step + count)
    np.testing.assert_array_equal(draw(N, batch_size, seed, step, count), whole[step:])


def test_epochs_and_seeds_differ():
    first, second = draw(50, 50, 0, 0, 2)
    other = draw(50, 50, 1, 0, 1)[0]
    assert (first != second).any() and (first != other).any() and (second != other).any()


@pytest.mark.parametrize("N", [WRITTEN + 1, 3 * WRITTEN // 2, 2 * WRITTEN])
def test_a_permutation_that_is_not_written_down_is_one_and_looks_random(N):
    first, second = drawn(N, (0,), 0, N), drawn(N, (0,), N, 2 * N)
    for epoch in (first, second):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(N))
        a_batch = np.bincount(epoch[:1024] * 8 // N, minlength=8)
        assert ((a_batch - 128) ** 2 / 128).sum() < 30  # χ² with 7 degrees of freedom: p < 1e-4 beyond
    correlation = lambda a, b: abs(np.corrcoef(a, b)[0, 1]) * N**0.5
    assert max(correlation(first, second), correlation(first[1:], first[:-1]), correlation(first, np.arange(N))) < 4


def test_drawing_from_many_rows_is_as_quick_as_from_few():
    assert draw(10**12, 100, 0, 3, 2).shape == (2, 100)  # a permutation of them would not fit


def test_drawing_late_is_as_quick_as_drawing_early():
    # Step 10⁶ needs the permutation of its own epoch, not of those before it: this would not end otherwise.
    assert draw(10_000, 100, 0, 10**12, 1).shape == (1, 100)


# --- dataset, take, chunked ------------------------------------------------------------------------------------------


def test_weights_are_one_and_noise_is_zero_by_default():
    data = dataset([[1.0], [2.0]], [3, 4])
    np.testing.assert_array_equal(data.weight, [1.0, 1.0])
    np.testing.assert_array_equal(data.noise, [0.0, 0.0])
    assert len(data) == 2
    assert {x.dtype for x in (data.X, data.y, data.weight, data.noise)} == {jnp.dtype(jnp.float64)}


def test_one_dtype_for_all_columns():
    data = dataset(np.ones((2, 1)), np.ones(2), np.ones(2), np.ones(2), dtype=jnp.float32)
    assert {x.dtype for x in (data.X, data.y, data.weight, data.noise)} == {jnp.dtype(jnp.float32)}


def test_take_gathers_rows_and_stacks_of_rows():
    data, rows = table(), np.array([[3, 0], [6, 6]])
    stack = take(data, rows)
    assert (stack.X.shape, stack.y.shape, len(stack)) == ((2, 2, 2), (2, 2), 2)
    for batch in range(2):
        for name in ("X", "y", "weight", "noise"):
            np.testing.assert_array_equal(getattr(stack, name)[batch], getattr(data, name)[rows[batch]])


@pytest.mark.parametrize("size, count", [(1, 7), (2, 4), (3, 3), (6, 2), (7, 1), (20, 1)])
def test_chunks_hold_all_rows_in_order_and_rows_of_weight_zero(size, count):
    data = table()
    stack, size = jax.jit(chunked, static_argnums=1)(data, size), min(size, 7)
    assert stack.X.shape == (count, size, 2) and stack.y.shape == stack.weight.shape == stack.noise.shape
    assert stack.y.shape == (count, size)
    for name in ("X", "y", "weight", "noise"):
        whole = getattr(stack, name).reshape(count * size, *getattr(data, name).shape[1:])
        np.testing.assert_array_equal(whole[:7], getattr(data, name))
    np.testing.assert_array_equal(stack.weight.ravel()[7:], 0.0)
    # Rows that are there: a likelihood may have no logarithm of a row of zeros, and 0 · (−∞) is NaN.
    for name in ("X", "y", "noise"):
        filled = getattr(stack, name).reshape(count * size, *getattr(data, name).shape[1:])[7:]
        np.testing.assert_array_equal(filled, np.broadcast_to(getattr(data, name)[0], filled.shape))


# --- merge_duplicates ------------------------------------------------------------------------------------------------

cells = st.sampled_from([0.0, -0.0, 1.0, -2.5])
lines = st.tuples(cells, cells, cells, st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 1.0, 2.0, 0.25]))
tables = st.lists(lines, min_size=1, max_size=12).filter(lambda rows: any(row[-1] > 0 for row in rows))


def merged(lines):
    columns = np.array(lines)
    return merge_duplicates(columns[:, :2], columns[:, 2], columns[:, 4], columns[:, 3])


@few
@given(tables)
def test_merging_sums_the_weights_of_equal_rows(lines):
    truth: dict[tuple, float] = {}
    for *row, weight in lines:
        if weight > 0:
            truth[tuple(row)] = truth.get(tuple(row), 0.0) + weight  # −0.0 == 0.0, also as keys
    X, y, weight, noise = merged(lines)
    keys = [tuple(row) for row in np.column_stack([X, y, noise])]
    assert len(set(keys)) == len(keys)
    assert dict(zip(keys, weight, strict=True)) == truth


@few
@given(tables, st.randoms(use_true_random=False))
def test_merging_does_not_depend_on_the_order_of_rows(lines, random):
    shuffled = random.sample(lines, len(lines))
    for ours, truth in zip(merged(shuffled), merged(lines), strict=True):
        assert ours.tobytes() == truth.tobytes()  # which also tells −0.0 from 0.0


def test_minus_zero_is_merged_with_zero_in_either_order():
    rows = [(0.0, 1.0, -0.0, 0.0, 1.0), (-0.0, 1.0, 0.0, 0.0, 2.0)]
    for lines in (rows, rows[::-1], [(-0.0, 1.0, -0.0, 0.0, 3.0)]):
        X, y, weight, _ = merged(lines)
        assert (X.tobytes(), y.tobytes()) == (np.array([[0.0, 1.0]]).tobytes(), np.array([0.0]).tobytes())
        np.testing.assert_array_equal(weight, [3.0])


@few
@given(tables)
def test_merging_twice_changes_nothing(lines):
    X, y, weight, noise = merged(lines)
    for ours, truth in zip(merge_duplicates(X, y, weight, noise), (X, y, weight, noise), strict=True):
        np.testing.assert_array_equal(ours, truth)


def test_weight_two_is_two_rows():
    X, y, noise = rng.normal(size=(5, 2)), rng.normal(size=5), np.zeros(5)
    weight = np.array([1.0, 2.0, 3.0, 1.0, 2.0])
    index = np.repeat(np.arange(5), weight.astype(int))
    repeated = merge_duplicates(X[index], y[index], np.ones(9), noise[index])
    for ours, truth in zip(repeated, merge_duplicates(X, y, weight, noise), strict=True):
        np.testing.assert_array_equal(ours, truth)


def test_rows_that_differ_in_noise_or_target_alone_stay_apart():
    X, weight = np.zeros((3, 1)), np.ones(3)
    y, noise = np.array([1.0, 1.0, 2.0]), np.array([0.0, 0.1, 0.0])
    assert len(merge_duplicates(X, y, weight, noise)[1]) == 3


# --- Standardiser ----------------------------------------------------------------------------------------------------


def learn(X, y, weight=None, scale_inputs=True, scale_target=True):
    return Standardiser.learn(X, y, np.ones(len(y)) if weight is None else weight, scale_inputs, scale_target)


X, y = (
    rng.normal(size=(20, 3)) * np.array([1e-6, 1.0, 1e6]) + np.array([5.0, 0.0, -1e7]),
    3e4 + 1e3 * rng.normal(size=20),
)
WEIGHT = rng.integers(1, 4, 20)


def test_standardised_columns_have_weighted_mean_zero_and_variance_one():
    scaling = learn(X, y, WEIGHT)
    for column in (*scaling.inputs(X).T, scaling.target(y)):
        np.testing.assert_allclose(np.average(column, weights=WEIGHT), 0.0, atol=1e-9)
        np.testing.assert_allclose(np.average(column**2, weights=WEIGHT), 1.0, rtol=1e-9)


def test_a_weight_is_a_repetition():
    index = np.repeat(np.arange(20), WEIGHT)
    weighted, repeated = learn(X, y, WEIGHT), learn(X[index], y[index])
    np.testing.assert_allclose(weighted.mean, repeated.mean, rtol=1e-14)
    np.testing.assert_allclose(weighted.scale, repeated.scale, rtol=1e-9)
    np.testing.assert_allclose(weighted.target(y), repeated.target(y), rtol=1e-10, atol=1e-12)


def test_the_inverse_is_exact_to_rounding():
    scaling = learn(X, y, WEIGHT)
    np.testing.assert_allclose(scaling.inputs(X) * scaling.scale + scaling.mean, X, rtol=4e-16)
    np.testing.assert_allclose(scaling.target(y) * scaling.target_scale + scaling.target_mean, y, rtol=4e-16)


def test_units_do_not_matter():
    a, b = np.array([1e-3, 7.0, 1e4]), np.array([0.0, -3.0, 10.0])
    np.testing.assert_allclose(learn(a * X + b, y).inputs(a * X + b), learn(X, y).inputs(X), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(learn(X, 1e-3 * y - 5).target(1e-3 * y - 5), learn(X, y).target(y), atol=1e-11)


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e9, 1e-200])
def test_a_constant_column_keeps_its_place_and_is_ignored(constant):
    wide = np.insert(X, 1, constant, axis=1)
    for scale_inputs in (True, False):
        scaling, without = learn(wide, y, WEIGHT, scale_inputs), learn(X, y, WEIGHT, scale_inputs)
        changed = wide + np.array([0.0, 99.0, 0.0, 0.0])
        for rows in (wide, changed):
            np.testing.assert_array_equal(scaling.inputs(rows), np.insert(without.inputs(X), 1, 0.0, axis=1))
        np.testing.assert_array_equal(scaling.varies, [True, False, True, True])
        np.testing.assert_allclose(scaling.points(scaling.inputs(wide)), wide if scale_inputs else wide * [1, 0, 1, 1])


def test_a_column_that_varies_only_in_rows_of_weight_zero_is_constant():
    wide = np.insert(X, 3, np.eye(20)[4], axis=1)
    weight = np.where(np.arange(20) == 4, 0.0, 1.0)
    np.testing.assert_array_equal(learn(wide, y, weight).varies, [True, True, True, False])


def test_where_columns_are_the_users_own_a_constant_one_stays_as_it_is():
    wide = np.insert(X, 1, 7.0, axis=1)
    scaling = Standardiser.learn(wide, y, np.ones(20), False, True, ignore_constant=False)
    np.testing.assert_array_equal(scaling.inputs(wide), wide)


@pytest.mark.parametrize("unit", [1e-300, 1e-170, 1.0, 1e170, 1e300])
def test_columns_and_targets_of_any_size_are_scaled(unit):
    small = np.linspace(0, 500, 20)[:, None]
    scaling, plain = learn(unit * small, unit * small[:, 0]), learn(small, small[:, 0])
    np.testing.assert_allclose(scaling.inputs(unit * small), plain.inputs(small), atol=1e-12)
    np.testing.assert_allclose(scaling.target(unit * small[:, 0]), plain.target(small[:, 0]), atol=1e-12)


@pytest.mark.parametrize("far", [1e9, -999999.0, 9.97e36, 1e300])
def test_a_far_row_does_not_make_all_others_one(far):
    column = rng.normal(size=(200, 1))
    spoiled = np.vstack([column, [[far]]])
    scaling = learn(spoiled, spoiled[:, 0])
    others = scaling.inputs(spoiled)[:200, 0]
    assert 0.5 < others.std() < 2 and np.abs(np.median(others)) < 0.1
    assert abs(scaling.inputs(spoiled)[200, 0]) > 1e5


def test_a_column_of_heavy_tails_or_of_zeros_is_scaled_by_its_standard_deviation():
    for column in (np.exp(rng.normal(size=500)), rng.standard_t(2, size=500), (np.arange(500) < 3.0) * 1e9):
        assert abs(learn(column[:, None], column).inputs(column[:, None]).std() - 1) < 1e-9


def test_numbers_that_are_not_scaled_may_be_of_any_size():
    nanoseconds = 1.7e18 + 1e17 * np.arange(20.0)[:, None]
    as_they_are = learn(nanoseconds, y, scale_inputs=False)
    np.testing.assert_array_equal(as_they_are.inputs(nanoseconds, "float32"), nanoseconds.astype(np.float32))
    assert np.isfinite(as_they_are.inputs(np.array([[1.7e308]]), "float32")).all()


def test_no_input_is_beyond_what_can_be_squared():
    scaling = learn(X, y)
    for dtype, largest in (("float64", 1e100), ("float32", 1e15)):
        far = scaling.inputs(np.array([[1.7e308, -1.7e308, 1e300]]), dtype)
        assert far.dtype == dtype and (np.abs(far) <= largest).all() and (np.abs(far) > 0.99 * largest).all()


def test_with_nothing_but_constant_columns_all_are_kept_and_finite():
    flat = np.tile([0.1, 7.0], (20, 1))
    scaling = learn(flat, y)
    np.testing.assert_array_equal(scaling.columns, [0, 1])
    np.testing.assert_allclose(scaling.inputs(flat), 0.0, atol=1e-14)


def test_without_scaling_numbers_stay_as_they_are():
    scaling = learn(X, y, scale_inputs=False, scale_target=False)
    np.testing.assert_array_equal(scaling.inputs(X), X)
    np.testing.assert_array_equal(scaling.target(y), y)


def test_a_constant_target_is_scaled_to_zeros():
    flat = np.full(20, 7.5)
    scaling = learn(X, flat)
    np.testing.assert_array_equal(scaling.target(flat), 0.0)
    np.testing.assert_array_equal(scaling.target(flat) * scaling.target_scale + scaling.target_mean, flat)
