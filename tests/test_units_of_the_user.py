"""Columns, lengthscales, periods, points and drawn functions are those of the user's table."""

# Settings are unpacked from dictionaries, and learned state has no declaration: a type checker can follow neither.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportOptionalMemberAccess=false

import jax
import numpy as np
import pytest
from fits import COLLAPSED, EXACT, METHODS, N, table

from pseudopoint import GPRegressor
from pseudopoint.data import dataset
from pseudopoint.kernels import RBF, Linear, Matern52, Periodic, White
from pseudopoint.likelihoods import Gaussian
from pseudopoint.params import cast
from pseudopoint.posteriors import Model
from pseudopoint.recipes import Settings, starts
from pseudopoint.recipes.prior import LengthscalePrior

pytestmark = pytest.mark.edge


# --- A constant column silently changes the user's kernel ---


def with_constants(X):
    return np.column_stack([np.ones(len(X)), X[:, 0], np.full(len(X), -3.0), X[:, 1]])


def test_columns_of_a_kernel_are_numbered_as_the_users_table_has_them():
    X, y = table()
    wide = with_constants(X)
    here = GPRegressor(RBF(1.0).on(0) + RBF(30.0).on(1), max_iter=20, effort="fast").fit(X, y)
    there = GPRegressor(RBF(1.0).on(1) + RBF(30.0).on(3), max_iter=20, effort="fast").fit(wide, y)
    np.testing.assert_allclose(there.predict(wide), here.predict(X), rtol=1e-9)
    assert there.bound_ == pytest.approx(here.bound_, rel=1e-9)
    four = GPRegressor(RBF(np.ones(4)), max_iter=3, scale_inputs=True, effort="fast").fit(wide, y)
    assert four.kernel_.lengthscale.shape == (4,)


@pytest.mark.parametrize("kernel", ["matern52", RBF([1.0, 1.0, 1.0, 30.0])])
def test_inducing_points_are_in_the_users_columns(kernel):
    X, y = table()
    model = GPRegressor(kernel, **COLLAPSED, effort="fast").fit(with_constants(X), y)
    assert model.inducing_points_.shape == (8, 4)
    if isinstance(kernel, str):
        np.testing.assert_array_equal(model.inducing_points_[:, [0, 2]], np.tile([1.0, -3.0], (8, 1)))
    again = GPRegressor(**COLLAPSED | {"inducing": model.inducing_points_}, learn_inducing=False, effort="fast")
    np.testing.assert_allclose(again.fit(with_constants(X), y).inducing_points_[:, 1].min(), 5, atol=2.5)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RBF(np.ones(3)), "the kernel RBF has 3 numbers in lengthscale, but it sees 2 columns"),
        (
            RBF(1.0) * Periodic(1.0, 1.0, np.ones(4)),
            "the kernel Periodic has 4 numbers in period, but it sees 2 columns",
        ),
        (RBF(np.ones(2)).on(1), "the kernel RBF has 2 numbers in lengthscale, but it sees 1 column: give"),
        (Linear(np.ones(3)) + White(), "the kernel Linear has 3 numbers in variance"),
        (RBF().on(0, 2), r"a kernel is on columns \(0, 2\), but the inputs have 2, which are 0 to 1"),
    ],
)
def test_a_kernel_that_does_not_fit_the_columns_is_one_sentence(kernel, message):
    with pytest.raises(ValueError, match=message) as error:
        GPRegressor(kernel, effort="fast").fit(*table())
    assert "\n" not in str(error.value)


# --- A kernel object's numbers are in the user's units ---


def test_a_period_of_seven_days_is_seven_days():
    days = np.arange(200.0)
    y = 3 * np.sin(2 * np.pi * days / 7) + 0.2 * np.random.default_rng(0).normal(size=200)
    model = GPRegressor(Periodic(period=7.0), effort="fast").fit(days[:150, None], y[:150])
    assert np.sqrt(np.mean((model.predict(days[150:, None]) - y[150:]) ** 2)) < 0.4
    assert abs(float(model.kernel_.period) - 7) < 0.05
    assert model.get_params()["scale_inputs"] == "auto"


def test_scaled_units_are_there_for_who_asks():
    X, y = table()
    scaled = GPRegressor(Matern52([1.0, 1.0]), scale_inputs=True, max_iter=30, effort="fast").fit(X, y)
    s = scaled.standardiser_
    raw = GPRegressor(Matern52(s.scale), max_iter=30, effort="fast").fit(X, y)
    np.testing.assert_allclose(raw.kernel_.lengthscale, scaled.kernel_.lengthscale * s.scale, rtol=1e-3)
    np.testing.assert_allclose(raw.predict(X), scaled.predict(X), rtol=1e-4)
    np.testing.assert_allclose(s.inputs(X), (X - X.mean(axis=0)) / X.std(axis=0), atol=1e-12)


def test_points_of_a_kernel_object_move_in_standard_deviations_of_the_columns():
    X, y = table(n=200)
    settings = METHODS["svgp"] | {"max_iter": 60}
    plain = GPRegressor(Matern52([1.5, 40.0]), **settings, effort="fast").fit(X, y)
    units = np.array([2.0**20, 2.0**-20])
    moved = GPRegressor(Matern52([1.5, 40.0] * units), **settings, effort="fast").fit(units * X, y)
    np.testing.assert_allclose(moved.predict(units * X), plain.predict(X), rtol=1e-8)
    np.testing.assert_allclose(moved.inducing_points_, units * plain.inducing_points_, rtol=1e-8)
    np.testing.assert_allclose(moved.kernel_.lengthscale, units * plain.kernel_.lengthscale, rtol=1e-8)


def test_a_warm_start_is_that_of_any_units():
    X, y = table()
    settings, y = Settings(num_inducing=8, effort="fast"), (y - y.mean()) / y.std()
    lengthscales = []
    with jax.enable_x64(True):
        for unit in (1.0, 1024.0):
            model = cast(Model(Matern52(unit * np.array([1.4, 40.0])), Gaussian(0.1)), np.float64)
            prior = LengthscalePrior.around(model.kernel, settings)
            warm = starts._warm(model, dataset(unit * X, y), settings, prior, np.float64)
            lengthscales.append(np.asarray(warm.kernel.lengthscale) / unit)
    np.testing.assert_allclose(lengthscales[0], lengthscales[1], rtol=1e-6)


def test_one_lengthscale_for_many_columns_is_said_and_one_for_each_is_easy():
    X, y = table()
    model = GPRegressor(Matern52(3.0), max_iter=3, effort="fast").fit(X, y)
    assert "one lengthscale for all 2 columns; Matern52(…).ard(2) has one for each" in " ".join(model.notes_)
    kernel = (Matern52(3.0).on(0, 1) + RBF(2.0) * Periodic(1.0)).ard(2)
    parts = kernel.kernels[0].kernel, *kernel.kernels[1].kernels
    assert [np.shape(part.lengthscale) for part in parts] == [(2,), (2,), (2,)]
    assert GPRegressor(Matern52(3.0).ard(2), max_iter=3, effort="fast").fit(X, y).kernel_.lengthscale.shape == (2,)
    assert (Matern52(3.0).ard(2).lengthscale == 3).all() and (RBF(2.0).on(3, 5).ard(9).kernel.lengthscale.shape) == (2,)


@pytest.mark.parametrize(("lengthscale", "said"), [(1e-6, "no two rows are related"), (1e9, "all rows are alike")])
def test_a_kernel_that_starts_far_from_the_units_of_its_columns_is_said(lengthscale, said):
    model = GPRegressor(Matern52([lengthscale, lengthscale]), max_iter=3, effort="fast").fit(*table())
    assert said in " ".join(model.notes_)


def test_drawn_functions_take_rows_and_give_values_in_the_users_units():
    X, y = table()
    for model in (GPRegressor(**EXACT, effort="fast").fit(X, y), GPRegressor(**COLLAPSED, effort="fast").fit(X, y)):
        mean, std = model.predict(X[:5], return_std=True)
        noise = model.standardiser_.target_scale**2 * float(model.likelihood_.variance)
        draws = model.paths(3000, 0, features=4096)
        values = draws(X[:5])
        assert values.shape == (3000, 5)
        np.testing.assert_allclose(values.mean(axis=0), mean, atol=0.1 * y.std())
        prior = model.standardiser_.target_scale**2 * float(model.kernel_.variance)
        np.testing.assert_allclose(values.var(axis=0), std**2 - noise, atol=3 * prior / 4096**0.5)
        assert np.array_equal(draws(X[:5]), values)
        model.fit(2 * X, 3 * y)
        assert np.array_equal(draws(X[:5]), values)  # what was drawn stays


def test_drawn_rates_are_rates():
    X, _ = table()
    counts = np.random.default_rng(1).poisson(np.exp(np.sin(X[:, 0])))
    rates = GPRegressor(likelihood="poisson", max_iter=5, effort="fast").fit(X, counts).paths(50, 0)(X)
    assert rates.shape == (50, N) and (rates > 0).all()
