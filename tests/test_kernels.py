"""Kernels: one conformance suite for all, their algebra, and what is special to one of them."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

import json
from functools import cache
from inspect import isabstract, isclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import KERNEL_CHECKS, KERNELS, coincident_rows, evaluate, formula, rows

from pseudopoint import kernels
from pseudopoint.kernels import (
    RBF,
    Constant,
    Cosine,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    Product,
    RationalQuadratic,
    Tied,
    White,
    squared_distance,
)
from pseudopoint.params import cast

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
    public = vars(kernels).values()
    assert listed == {c for c in public if isclass(c) and issubclass(c, kernels.AbstractKernel) and not isabstract(c)}


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


@cache
def stored_matrices():
    inputs = GPFLOW["inputs"]
    every = lambda X, Z: {name: STORED[name](**case["parameters"])(X, Z) for name, case in GPFLOW["kernels"].items()}
    return jax.jit(every)(np.array(inputs["X"]), np.array(inputs["Z"]))


@pytest.mark.parametrize("name", GPFLOW["kernels"])
def test_agrees_with_gpflow(name):
    np.testing.assert_allclose(stored_matrices()[name], GPFLOW["kernels"][name]["K_XZ"], rtol=1e-12, atol=1e-14)


# --- algebra ---------------------------------------------------------------------------------------------------------

RADIAL, INNER, ROUGH = RBF(0.8, 1.7), Linear(np.array([0.2, 0.5, 0.1])), Matern12(1.1, 0.6)
LENGTHS = np.array([0.7, 1.3, 1.9])
LAWS = {
    "a + b = b + a": (RADIAL + INNER, INNER + RADIAL),
    "ab = ba": (RADIAL * INNER, INNER * RADIAL),
    "(a + b) + c = a + (b + c)": ((RADIAL + INNER) + ROUGH, RADIAL + (INNER + ROUGH)),
    "(ab)c = a(bc)": ((RADIAL * INNER) * ROUGH, RADIAL * (INNER * ROUGH)),
    "a(b + c) = ab + ac": (RADIAL * (INNER + ROUGH), RADIAL * INNER + RADIAL * ROUGH),
    "1a = a": (Constant(1.0) * RADIAL, RADIAL),
    "2a has twice the variance": (2.0 * RADIAL, RBF(0.8, 3.4)),
    "2a = a2": (2 * RADIAL, RADIAL * np.float64(2.0)),
    "a + 0.1 adds a constant": (RADIAL + 0.1, RADIAL + Constant(0.1)),
    "0.5 + a adds a constant": (np.float32(0.5) + RADIAL, Constant(0.5) + RADIAL),
    "sum of a list": (sum([RADIAL, INNER, ROUGH]), RADIAL + INNER + ROUGH),
    "(a + b) on S = a on S + b on S": ((RADIAL + ROUGH).on(1, 2), RADIAL.on(1, 2) + ROUGH.on(1, 2)),
    "(ab) on S = (a on S)(b on S)": ((RADIAL * ROUGH).on(1, 2), RADIAL.on(1, 2) * ROUGH.on(1, 2)),
    "columns are numbered from the outside in": (RADIAL.on(2, 0).on(1, 0, 2), RADIAL.on(2, 1)),
    "columns keep their order": (RBF(LENGTHS[:2]).on(2, 0), RBF(LENGTHS[1::-1]).on(0, 2)),
    "squared exponentials of single columns multiply to the joint one": (
        RBF(LENGTHS[0]).on(0) * RBF(LENGTHS[1]).on(1) * RBF(LENGTHS[2]).on(2),
        RBF(LENGTHS),
    ),
}


@cache
def sides():
    every = lambda X, Z: {law: [(k(X, Z), k.diag(X)) for k in pair] for law, pair in LAWS.items()}
    return jax.jit(every)(*coincident_rows())


@pytest.mark.parametrize("law", LAWS)
def test_sums_products_and_columns_obey(law):
    left, right = sides()[law]
    np.testing.assert_allclose(left[0], right[0], rtol=1e-13)
    np.testing.assert_allclose(left[1], right[1], rtol=1e-13)


def test_columns_that_are_not_chosen_have_no_influence():
    X, Z = coincident_rows()
    moved = X + np.array([0.0, 7.0, 0.0])
    kernel = KERNELS["on"](3)  # on columns 2 and 0
    np.testing.assert_array_equal(evaluate(kernel, moved, Z).K, evaluate(kernel, X, Z).K)
    np.testing.assert_array_equal(evaluate(kernel, X, Z).gradient[1][:, 1], 0.0)


@pytest.mark.parametrize("columns", [(3,), (0, 7), (-4,)])
def test_a_column_that_does_not_exist_is_an_error(columns):
    # JAX would clamp the index and silently use another column.
    X = jax.ShapeDtypeStruct((6, 3), jnp.float64)
    with pytest.raises((IndexError, ValueError)):
        jax.eval_shape(RBF().on(*columns), X, X)
    with pytest.raises((IndexError, ValueError)):
        jax.eval_shape(RBF().on(*columns).diag, X)


@pytest.mark.parametrize(
    "other",
    ["2", None, True, 1j, np.ones(3), np.array(2.0), [1.0], RBF, jnp.ones(2)],
    ids=lambda other: repr(other)[:20],
)
def test_what_is_neither_kernel_nor_number_is_refused_in_a_sentence(other):
    for combined in (
        lambda: RADIAL + other,
        lambda: other + RADIAL,
        lambda: RADIAL * other,
        lambda: other * RADIAL,
    ):
        with pytest.raises(TypeError, match=r"by a kernel or a positive number, not \w+$"):
            combined()


def test_powers_and_numbers_that_are_not_positive_are_refused_in_a_sentence():
    with pytest.raises(TypeError, match=r"power: write k \* k"):
        _ = RADIAL**2
    for number in (-1.0, np.nan, np.inf, 0):
        with pytest.raises(ValueError, match="^variance=.* must be positive and finite"):
            _ = RADIAL * number


# --- what is printed -------------------------------------------------------------------------------------------------

LONG = np.linspace(1, 2, 784)
PRINTED = {
    "Matern52(lengthscale=[0.3123, 2.4], variance=1.7)": Matern52(np.array([0.31234, 2.4]), 1.7),
    "RBF(lengthscale=[1.0, 1.001, 1.003, 1.004, 1.005, 1.006, …, 2.0], variance=1.0)": RBF(LONG),
    "Constant(variance=2.0) * RBF(lengthscale=0.8, variance=1.7) + Constant(variance=0.1)": 2.0 * RADIAL + 0.1,
    "(Linear(variance=0.2) + Constant(variance=0.3)) * White(variance=1.0)": (Linear(0.2) + 0.3) * White(),
    "(Linear(variance=0.2) * White(variance=1.0)).on(0, 2)": (Linear(0.2) * White()).on(0, 2),
    "White(variance=1.0) + (White(variance=2.0) + White(variance=3.0))": White() + (White(2) + White(3)),
    "White(variance=1.0) * (White(variance=2.0) * White(variance=3.0))": White() * (White(2) * White(3)),
    "InUnits(kernel=RBF(lengthscale=1.0, variance=1.0), mean=[0.5], scale=[2.0], learned=False)": kernels.InUnits(
        RBF(), np.array([0.5]), np.array([2.0])
    ),
}


@pytest.mark.parametrize("text", PRINTED)
def test_a_kernel_is_printed_as_the_expression_that_makes_it(text):
    assert str(PRINTED[text]) == f"{PRINTED[text]}" == text


@pytest.mark.parametrize("name", KERNELS)
def test_a_multiple_of_a_kernel_is_of_its_kind_unless_no_number_of_it_is_a_factor(name):
    kernel = KERNELS[name](3)
    assert isinstance(kernel.times(2.5), Product if name in ("polynomial", "arc_cosine", "coregion") else type(kernel))


@pytest.mark.parametrize("inside", [Polynomial(np.ones(2), 0.7), Cosine(np.array([2.1, 3.2]), 1.7), Linear(np.ones(2))])
def test_a_multiple_of_a_kernel_with_shared_numbers_is_one_whatever_is_inside(inside):
    X, kernel = rows()[0], Tied(inside, (0, 1, 1))
    np.testing.assert_allclose(evaluate(kernel.times(2.5), X, X).K, 2.5 * evaluate(kernel, X, X).K, rtol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_the_representation_of_a_kernel_evaluates_to_it(name):
    kernel = KERNELS[name](3)
    again = eval(repr(kernel), dict(vars(kernels)))
    assert repr(again) == repr(kernel)
    X, Z = rows()
    np.testing.assert_array_equal(evaluate(again, X, Z).K, evaluate(kernel, X, Z).K)


def test_a_kernel_is_printed_on_any_device_in_any_precision_and_while_it_is_traced():
    assert repr(cast(RBF(0.3, 1.7), jnp.float32)) == "RBF(lengthscale=0.3, variance=1.7)"
    seen = []
    jax.jit(lambda kernel: seen.append((str(kernel), repr(kernel))))(RBF(0.3))
    assert all(text.startswith("RBF(lengthscale=") for text in seen[0])


# --- single kernels --------------------------------------------------------------------------------------------------


def white(X, Z):
    return np.asarray(evaluate(KERNELS["white"](3), X, Z).K)


def test_white_sees_equal_rows_only_however_close_the_others_are():
    X, _ = rows()
    np.testing.assert_array_equal(white(X, X), 0.3 * np.eye(6))
    np.testing.assert_array_equal(white(X, np.nextafter(X, np.inf)), np.zeros((6, 6)))
    X[2] = X[0]
    assert white(X, X)[0, 2] == 0.3


def test_white_sees_equal_rows_only_when_one_row_is_far_away():
    X, _ = rows()
    X[5] = 1e9
    np.testing.assert_array_equal(white(X, X), 0.3 * np.eye(6))


def test_white_sees_equal_rows_only_among_tiny_numbers():
    X, _ = rows()
    np.testing.assert_array_equal(white(1e-200 * X, 1e-200 * X), 0.3 * np.eye(6))


def test_white_takes_minus_zero_for_zero():
    X, Z = rows()
    X[0], Z[0] = [0.0, 1.0, 0.0], [-0.0, 1.0, 0.0]
    assert white(X, Z)[0, 0] == 0.3


@pytest.mark.parametrize("D", [300, 2000])
def test_a_row_is_at_distance_zero_from_itself_in_any_number_of_columns(D):
    # Both sums that make up r² round differently; Matérn-1/2 would turn 1e-15 into a correlation of 1 − 3e-8.
    distance = jax.jit(squared_distance)
    for seed in range(20):
        X, _ = rows(D, seed)
        np.testing.assert_array_equal(np.diag(distance(X, X)), 0.0)


@pytest.mark.parametrize("separation", [1e-3, 1e-5, 1e-7, 1e-9])
def test_the_roughest_kernel_resolves_distances_down_to_rounding(separation):
    # Matérn-1/2 falls like 1 − r. r² carries an error of a few eps ‖x − centre‖², so r one of a few √eps ‖x − centre‖
    # at worst, once r itself is that small.
    X, Z = rows()
    Z[0] = X[0] + np.array([separation, 0.0, 0.0])
    K = np.asarray(evaluate(Matern12(1.0, 1.0), X, Z).K)
    noise = 16 * np.finfo(float).eps * 2 * np.sum((X[0] - Z.mean(0)) ** 2)
    assert abs(K[0, 0] - np.exp(-separation)) <= min(noise / separation, np.sqrt(noise))


def test_the_rational_quadratic_tends_to_the_squared_exponential():
    X, Z = rows()
    far = evaluate(RationalQuadratic(LENGTHS, 1.7, 1e9), X, Z).K
    np.testing.assert_allclose(far, evaluate(RBF(LENGTHS, 1.7), X, Z).K, rtol=0, atol=1e-8)


def test_the_periodic_kernel_repeats_and_is_the_squared_exponential_at_long_periods():
    X, Z = rows()
    period = np.array([1.1, 2.3, 0.7])
    kernel = Periodic(LENGTHS, 1.7, period)
    np.testing.assert_allclose(evaluate(kernel, X + 3 * period, Z).K, evaluate(kernel, X, Z).K, rtol=1e-12)
    # 2 sin²(πr/p)/ℓ² → ½ r²/ℓ'² with ℓ = 2πℓ'/p
    slow = Periodic(2 * np.pi * LENGTHS / 1e4, 1.7, np.full(3, 1e4))
    np.testing.assert_allclose(evaluate(slow, X, Z).K, evaluate(RBF(LENGTHS, 1.7), X, Z).K, rtol=0, atol=1e-6)


@pytest.mark.parametrize("field", ["lengthscale", "variance"])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, np.array([1.0, -1.0])])
def test_scales_that_are_not_positive_numbers_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"^{field}=.* must be positive and finite$"):
        RBF(**{field: value})


@pytest.mark.parametrize("value", ["wide", 1j, 10**400, ["a"]])
def test_scales_that_are_no_numbers_are_refused_by_name(value):
    with pytest.raises(ValueError, match="^lengthscale=.* must hold real numbers"):
        RBF(value)


def test_kernels_compute_in_the_precision_of_their_numbers():
    X = jax.ShapeDtypeStruct((6, 3), jnp.float32)
    for make in KERNELS.values():
        kernel = cast(make(3), jnp.float32)
        assert jax.eval_shape(kernel, X, X).dtype == jax.eval_shape(kernel.diag, X).dtype == jnp.float32


def test_float32_keeps_six_digits_of_a_centred_table():
    X, Z = rows()
    K = evaluate(cast(KERNELS["rbf_ard"](3), jnp.float32), X.astype(np.float32), Z.astype(np.float32)).K
    np.testing.assert_allclose(K, formula(KERNELS["rbf_ard"](3), X, Z), rtol=0, atol=2e-6)
