"""What scaling of columns and target changes in a fit: nothing but units."""

# Settings are unpacked from dictionaries, and learned state has no declaration: a type checker can follow neither.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportAssignmentType=false

import numpy as np
import pytest
from fits import COLLAPSED, EXACT, D, N, new_rows, table
from sklearn.datasets import make_regression

from pseudopoint import GPRegressor

pytestmark = pytest.mark.edge


def transformed(settings, a, b, c, d):
    """A fit of a·X + b and c·y + d, and one of X and y, with what they predict at the same places."""
    (X, y), (rows, truth) = table(), new_rows()
    plain = GPRegressor(**settings, effort="fast").fit(X, y)
    moved = GPRegressor(**settings, effort="fast").fit(a * X + b, c * y + d)
    return plain, moved, (rows, truth), (a * rows + b, c * truth + d)


@pytest.mark.parametrize("settings", [EXACT, COLLAPSED], ids=["exact", "collapsed"])
def test_units_that_are_powers_of_two_change_no_bit(settings):
    a, c = np.array([2.0**20, 2.0**-30]), 2.0**12
    plain, moved, (rows, y), (far, z) = transformed(settings, a, 0.0, c, 0.0)
    (mean, std), (mean_far, std_far) = (m.predict(x, return_std=True) for m, x in ((plain, rows), (moved, far)))
    assert np.array_equal(mean_far, c * mean) and np.array_equal(std_far, c * std)
    np.testing.assert_allclose(moved.log_density(far, z), plain.log_density(rows, y) - np.log(c), rtol=1e-12)
    assert np.array_equal(moved.predict_interval(far), c * plain.predict_interval(rows))
    assert np.array_equal(moved.sample_y(far[:3], 2, 0), c * plain.sample_y(rows[:3], 2, 0))
    assert moved.bound_ == plain.bound_
    if settings is not EXACT:
        assert np.array_equal(moved.inducing_points_, a * plain.inducing_points_)


def test_any_units_and_origins_are_undone():
    # Few iterations, for a long climb multiplies the rounding of its first step.
    a, b, c, d = np.array([-1e6, 3e-5]), np.array([7.0, 0.3]), -2.7e4, 1e6
    plain, moved, (rows, y), (far, z) = transformed(EXACT | {"max_iter": 3}, a, b, c, d)
    (mean, std), (mean_far, std_far) = (m.predict(x, return_std=True) for m, x in ((plain, rows), (moved, far)))
    np.testing.assert_allclose((mean_far - d) / c, mean, rtol=1e-8)
    np.testing.assert_allclose(std_far, abs(c) * std, rtol=1e-8)
    np.testing.assert_allclose(moved.log_density(far, z), plain.log_density(rows, y) - np.log(abs(c)), rtol=1e-8)
    np.testing.assert_allclose(moved.predict_interval(far)[:, ::-1], c * plain.predict_interval(rows) + d, rtol=1e-8)


def test_a_small_spread_far_from_zero_is_learned():
    X, y = table()
    rows, _ = new_rows()
    plain, far = (
        GPRegressor(**EXACT, effort="fast").fit(X, y),
        GPRegressor(**EXACT, effort="fast").fit(1e6 + 1e-3 * X, y),
    )
    np.testing.assert_allclose(far.predict(1e6 + 1e-3 * rows), plain.predict(rows), rtol=1e-4)


def test_without_scaling_the_numbers_are_taken_as_they_are():
    X, y = make_regression(N, D, noise=1.0, random_state=0)
    model = GPRegressor(**EXACT, scale_inputs=False, scale_target=False, max_iter=5, effort="fast").fit(X, y)
    s = model.standardiser_
    assert (s.target_mean, s.target_scale) == (0, 1) and np.array_equal(s.inputs(X), X)
    assert model.score(X, y) > 0.5
