"""Kernels: one conformance suite for all, their algebra, and what is special to one of them."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import KERNEL_CHECKS, KERNELS, coincident_rows, matrices, rows

from pseudopoint import kernels
from pseudopoint.kernels import (
    RBF,
    AbstractKernel,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    White,
)

GPFLOW = json.loads((Path(__file__).parent / "references" / "gpflow.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("check", KERNEL_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", KERNELS)
def test_conformance(name, check):
    check(KERNELS[name])


def test_every_kernel_of_the_package_is_in_the_conformance_list():
    def classes(node):
        nested = (*getattr(node, "kernels", ()), *([node.kernel] if hasattr(node, "kernel") else []))
        return {type(node)}.union(*(classes(child) for child in nested))

    listed = set().union(*(classes(make(3)) for make in KERNELS.values()))
    assert listed == {getattr(kernels, name) for name in kernels.__all__} - {AbstractKernel}


# --- GPflow ----------------------------------------------------------------------------------------------------------


def periodic(lengthscales, variance, period):
    # GPflow has ½ sin²(…)/l² where ours is 2 sin²(…)/ℓ²: ℓ = 2l.
    return Periodic(2 * np.array(lengthscales), variance, np.array(period))


STORED = {
    "squared_exponential": lambda lengthscales, variance: RBF(lengthscales, variance),
    "matern12": lambda lengthscales, variance: Matern12(lengthscales, variance),
    "matern32": lambda lengthscales, variance: Matern32(lengthscales, variance),
    "matern52": lambda lengthscales, variance: Matern52(lengthscales, variance),
    "rational_quadratic": lambda lengthscales, variance, alpha: RationalQuadratic(lengthscales, variance, alpha),
    "periodic": periodic,
    "linear": lambda variance: Linear(variance),
    "linear_ard": lambda variance: Linear(variance),
    "constant": lambda variance: Constant(variance),
}


@pytest.mark.parametrize("name", GPFLOW["kernels"])
def test_agrees_with_gpflow(name):
    case, inputs = GPFLOW["kernels"][name], GPFLOW["inputs"]
    K = STORED[name](**case["parameters"])(jnp.array(inputs["X"]), jnp.array(inputs["Z"]))
    np.testing.assert_allclose(K, case["K_XZ"], rtol=1e-12, atol=1e-14)


# --- algebra ---------------------------------------------------------------------------------------------------------


def pair():
    X, Z = coincident_rows()
    return jnp.asarray(X), jnp.asarray(Z)


def same(first, second, rtol=1e-14):
    X, Z = pair()
    np.testing.assert_allclose(first(X, Z), second(X, Z), rtol=rtol)
    np.testing.assert_allclose(first.diag(X), second.diag(X), rtol=rtol)


a, b, c = lambda: RBF(0.8, 1.7), lambda: Linear(np.array([0.2, 0.5, 0.1])), lambda: Matern12(1.1, 0.6)


def test_sums_and_products_act_entry_by_entry():
    X, Z = pair()
    np.testing.assert_array_equal((a() + b())(X, Z), a()(X, Z) + b()(X, Z))
    np.testing.assert_array_equal((a() * b())(X, Z), a()(X, Z) * b()(X, Z))


def test_sums_and_products_are_a_commutative_ring():
    same(a() + b(), b() + a())
    same(a() * b(), b() * a())
    same((a() + b()) + c(), a() + (b() + c()), rtol=1e-13)
    same((a() * b()) * c(), a() * (b() * c()), rtol=1e-13)
    same(a() * (b() + c()), a() * b() + a() * c(), rtol=1e-12)
    same(a() * Constant(1.0), a())


def test_a_kernel_on_columns_is_the_kernel_of_those_columns():
    X, Z = pair()
    kernel = RBF(np.array([0.8, 1.9]), 1.7)
    np.testing.assert_array_equal(kernel.on(2, 0)(X, Z), kernel(X[:, [2, 0]], Z[:, [2, 0]]))
    np.testing.assert_array_equal(Linear().on(2, 0).diag(X), Linear().diag(X[:, [2, 0]]))
    same(RBF(np.array([0.8, 1.9])).on(0, 2), RBF(np.array([1.9, 0.8])).on(2, 0))
    same(a().on(2, 0).on(1, 0, 2), a().on(2, 1))  # columns are numbered from the outside in


def test_on_distributes_over_sums_and_products():
    same((a() + c()).on(1, 2), a().on(1, 2) + c().on(1, 2))
    same((a() * c()).on(1, 2), a().on(1, 2) * c().on(1, 2))


def test_squared_exponentials_of_single_columns_multiply_to_the_joint_one():
    lengths = np.array([0.7, 1.3, 1.9])
    same(RBF(lengths[0]).on(0) * RBF(lengths[1]).on(1) * RBF(lengths[2]).on(2), RBF(lengths), rtol=1e-13)


def test_columns_that_are_not_held_have_no_influence():
    X, Z = pair()
    moved = X.at[:, 1].add(7.0)
    np.testing.assert_array_equal(a().on(0, 2)(moved, Z), a().on(0, 2)(X, Z))
    gradient = jax.grad(lambda X: jnp.sum(a().on(0, 2)(X, Z)))(X)
    np.testing.assert_array_equal(gradient[:, 1], 0.0)


@pytest.mark.parametrize("columns", [(3,), (0, 7), (-4,)])
def test_a_column_that_does_not_exist_is_an_error(columns):
    # JAX would clamp the index and silently use another column.
    X, Z = pair()
    with pytest.raises((IndexError, ValueError)):
        a().on(*columns)(X, Z)
    with pytest.raises((IndexError, ValueError)):
        Linear().on(*columns).diag(X)


# --- single kernels --------------------------------------------------------------------------------------------------


def white(X, Z):
    return np.asarray(White(0.3)(jnp.asarray(X), jnp.asarray(Z)))


def test_white_sees_equal_rows_only_however_close_the_others_are():
    X, _ = rows()
    np.testing.assert_array_equal(white(X, X), 0.3 * np.eye(7))
    np.testing.assert_array_equal(white(X, np.nextafter(X, np.inf)), np.zeros((7, 7)))
    X[2] = X[0]
    assert white(X, X)[0, 2] == 0.3


def test_white_sees_equal_rows_only_when_one_row_is_far_away():
    X, _ = rows()
    np.testing.assert_array_equal(white(X, np.vstack([X, np.full(3, 1e9)])), 0.3 * np.eye(7, 8))


def test_white_sees_equal_rows_only_among_tiny_numbers():
    X, _ = rows()
    np.testing.assert_array_equal(white(1e-200 * X, 1e-200 * X), 0.3 * np.eye(7))


def test_white_sees_equal_rows_among_many_columns():
    X = np.random.default_rng(0).normal(size=(60, 784)) + 100.0
    np.testing.assert_array_equal(white(X, X[:20]), 0.3 * np.eye(60, 20))


def test_minus_zero_is_zero():
    np.testing.assert_array_equal(white([[0.0, 1.0]], [[-0.0, 1.0]]), [[0.3]])


@pytest.mark.parametrize("separation", [1e-3, 1e-5, 1e-7, 1e-9])
def test_the_roughest_kernel_resolves_distances_down_to_rounding(separation):
    # Matérn-1/2 falls like 1 − r. r² carries an error of a few eps ‖x − centre‖², so r one of √(8 eps) ‖x − centre‖
    # at worst, once r itself is that small.
    X, Z = rows()
    Z[0] = X[0] + np.array([separation, 0.0, 0.0])
    K = np.asarray(matrices(Matern12(1.0, 1.0), X, Z)[0])
    squares = np.sum((X[0] - Z.mean(0)) ** 2) * 2
    noise = 8 * np.finfo(float).eps * squares
    assert abs(K[0, 0] - np.exp(-separation)) <= min(noise / separation, np.sqrt(noise))


def test_the_profile_of_every_stationary_kernel_starts_at_one():
    zero = jnp.zeros((1, 1))
    for kernel in (RBF(), Matern12(), Matern32(), Matern52(), RationalQuadratic()):
        assert kernel.profile(zero)[0, 0] == 1.0


def test_the_rational_quadratic_tends_to_the_squared_exponential():
    same(RationalQuadratic(0.9, 1.7, 1e9), RBF(0.9, 1.7), rtol=1e-7)


def test_the_periodic_kernel_repeats_and_is_the_squared_exponential_at_long_periods():
    X, Z = pair()
    kernel, period = Periodic(1.2, 1.7, np.array([1.1, 2.3, 0.7])), jnp.array([1.1, 2.3, 0.7])
    np.testing.assert_allclose(kernel(X + 3 * period, Z), kernel(X, Z), rtol=1e-12)
    # 2 sin²(πr/p)/ℓ² → ½ r²/ℓ'² with ℓ' = ℓp/2π
    same(Periodic(2 * np.pi * 0.9 / 1e4, 1.7, 1e4), RBF(0.9, 1.7), rtol=1e-6)


@pytest.mark.parametrize("field", ["lengthscale", "variance"])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_scales_that_are_not_positive_numbers_are_refused(field, value):
    with pytest.raises(ValueError, match="must be positive and finite"):
        RBF(**{field: value})
