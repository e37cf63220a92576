"""One row, however far from all others, changes what is computed of no other row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import KERNELS
from hypothesis import given, settings
from hypothesis import strategies as st

from pseudopoint.kernels import middle, squared_distance
from pseudopoint.params import cast

MAGNITUDES = {np.float64: (1e4, 1e7, 1e9, 1e37, 1e160, 1e300, 1.7e308), np.float32: (1e4, 1e7, 9.97e36, 3e38)}
GROWING = ("linear", "product", "polynomial", "arc_cosine")  # kernels whose variance grows with the row
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}


def table(D, dtype, seed=0, N=8):
    return np.random.default_rng(seed).uniform(0, 6, (N, D)).astype(dtype)


@pytest.mark.parametrize("dtype", MAGNITUDES)
@pytest.mark.parametrize("D", [3, 5])
@pytest.mark.parametrize("name", KERNELS)
def test_a_far_row_changes_no_covariance_of_others(name, D, dtype):
    kernel, X = cast(KERNELS[name](D), dtype), table(D, dtype)
    covariances = jax.jit(lambda X: (kernel(X, X), kernel.diag(X)))
    alone = covariances(np.vstack([X, X[:1]]))
    for magnitude in MAGNITUDES[dtype]:
        for sign in (-1, 1):
            far = np.vstack([X, X[:1]])
            far[-1, D - 1] = sign * magnitude
            for before, after in zip(alone, covariances(far), strict=True):
                others = tuple(slice(0, 8) for _ in before.shape)
                np.testing.assert_allclose(after[others], before[others], rtol=TOLERANCE[dtype], atol=1e-12)
                if not any(
                    word in name for word in ("linear", "product", "polynomial", "arc_cosine")
                ):  # whose variance grows with the row
                    assert jnp.isfinite(after).all()


@pytest.mark.parametrize("D", [3, 5])
@pytest.mark.parametrize("name", ["rbf", "rbf_ard", "matern32_ard", "matern52", "rational_quadratic_ard"])
def test_a_far_row_has_nothing_to_do_with_the_others(name, D):
    kernel, X = cast(KERNELS[name](D), np.float64), jnp.asarray(table(D, np.float64))
    for magnitude in MAGNITUDES[np.float64][2:]:
        far = jnp.full((1, D), magnitude)
        assert float(jnp.max(jnp.abs(kernel(X, far)))) < 1e-12
        np.testing.assert_allclose(kernel.diag(far), kernel.diag(X)[:1])
        np.testing.assert_allclose(kernel(far, far), kernel.diag(far)[:, None], rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    D=st.sampled_from([1, 2, 3]),
    rows=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=6, max_size=6),
)
def test_up_to_three_columns_a_distance_is_of_its_two_rows_alone_whatever_they_are(D, rows):
    X = jnp.asarray(np.resize(np.array(rows), (4, D)))
    whole = np.asarray(squared_distance(X, X))
    assert np.isfinite(whole).all()
    for i in range(4):
        for j in range(4):
            np.testing.assert_array_equal(np.asarray(squared_distance(X[i : i + 1], X[j : j + 1]))[0, 0], whole[i, j])


def test_most_of_the_rows_may_be_far_where_columns_are_few():
    X = jnp.vstack([jnp.full((7, 2), -999999.0), jnp.array([[0.0, 0.0], [0.5, 0.0]])])
    assert abs(float(squared_distance(X, X)[7, 8]) - 0.25) < 1e-15


def test_derivatives_are_finite_beside_a_far_row():
    for D in (3, 5):
        X = table(D, np.float64)
        X[3] = 1e200
        for name in ("rbf_ard", "matern12", "matern52", "rational_quadratic_ard", "periodic_ard"):
            kernel = cast(KERNELS[name](D), np.float64)
            total = lambda kernel, X: jnp.sum(jnp.sin(kernel(X, X)))
            slopes = jax.tree.leaves(jax.jit(jax.grad(total, (0, 1)))(kernel, X))
            assert all(jnp.isfinite(slope).all() for slope in slopes), name


def test_the_middle_is_a_row_value_that_few_rows_do_not_move():
    X = table(4, np.float64, N=100)
    X[7], X[50:55] = 1e300, -1e300
    X = jnp.asarray(X)
    assert (np.asarray(middle(X)) > 0).all() and (np.asarray(middle(X)) < 6).all()
    assert middle(X[:1]).shape == middle(X[:0]).shape == (4,)
