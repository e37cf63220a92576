"""What every kernel, likelihood and Gaussian must do. A new one joins with one line in its list.

`KERNELS`, `LIKELIHOODS` and `GAUSSIANS` name the implementations; `KERNEL_CHECKS`, `LIKELIHOOD_CHECKS` and
`GAUSSIAN_CHECKS` are functions of one of them (of a likelihood's `Case`) that raise AssertionError, so that a kernel of
your own can be checked too. Run the checks inside `jax.enable_x64`.
"""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracles as o
from gaussian_checks import GAUSSIAN_CHECKS as GAUSSIAN_CHECKS
from likelihood_checks import LIKELIHOOD_CHECKS as LIKELIHOOD_CHECKS
from likelihood_checks import Case
from scipy import stats

from pseudopoint import kernels as k
from pseudopoint import means
from pseudopoint import priors as p
from pseudopoint.gaussians import (
    AbstractGaussian,
    Expectation,
    MeanChol,
    MeanCovariance,
    MeanLog,
    MeanPrecision,
    Natural,
    NaturalChol,
    NaturalLog,
)
from pseudopoint.likelihoods import (
    Bernoulli,
    Beta,
    Exponential,
    Gamma,
    Gaussian,
    GaussianPerOutput,
    Heteroscedastic,
    HeteroscedasticStudentT,
    Laplace,
    LogScale,
    NegativeBinomial,
    Offset,
    Ordinal,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
    Warped,
)
from pseudopoint.warps import YeoJohnson

Array = np.ndarray
KernelFactory = Callable[[int], k.AbstractKernel]

# --- kernels ---------------------------------------------------------------------------------------------------------


def one(D: int) -> float:
    """A lengthscale that keeps correlations between standard normal rows away from 0 and 1 for every D."""
    return 0.9 * float(np.sqrt(D / 3))


def ard(D: int) -> Array:
    """One such lengthscale a column: 0.7, 1.3, 1.9 for D = 3."""
    return np.linspace(0.7, 1.9, D) * np.sqrt(D / 3)


KERNELS: dict[str, KernelFactory] = {
    "rbf": lambda D=3: k.RBF(one(D), 1.7),
    "rbf_ard": lambda D=3: k.RBF(ard(D), 1.7),
    "matern12": lambda D=3: k.Matern12(one(D), 1.7),
    "matern32_ard": lambda D=3: k.Matern32(ard(D), 1.7),
    "matern52": lambda D=3: k.Matern52(one(D), 1.7),
    "rational_quadratic_ard": lambda D=3: k.RationalQuadratic(ard(D), 1.7, 0.8),
    "periodic_ard": lambda D=3: k.Periodic(2 * ard(D), 1.7, np.linspace(2.1, 4.3, D)),
    "additive": lambda D=3: k.Additive(ard(D), 0.4 * ard(D)),
    "orthogonal_additive": lambda D=3: k.OrthogonalAdditive(
        ard(D), 1.2 / D * np.linspace(0.7, 1.9, D), np.array([0.7, 1.3]), 0.2, np.linspace(0.8, 1.2, D)
    ),
    "linear": lambda D=3: k.Linear(0.6 / D),
    "linear_ard": lambda D=3: k.Linear(0.6 / D * ard(D)),
    "constant": lambda D=3: k.Constant(0.4),
    "white": lambda D=3: k.White(0.3),
    "sum": lambda D=3: k.RBF(ard(D), 1.7) + k.Constant(0.4) + k.White(0.3),
    "product": lambda D=3: k.Matern32(one(D), 1.7) * k.Linear(0.6 / D),
    "in_units": lambda D=3: k.InUnits(k.RBF(3 * ard(D), 1.7), np.linspace(-1.0, 2.0, D), 3 * np.ones(D)),
    "polynomial": lambda D=3: k.Polynomial(0.6 / D, 0.7, 3),
    "cosine": lambda D=3: k.Cosine(np.linspace(2.1, 4.3, D), 1.7),
    "arc_cosine": lambda D=3: k.ArcCosine(0.6 / D * ard(D), 0.7),
    "hamming": lambda D=3: k.Hamming(ard(D), 1.7),
    "changepoint": lambda D=3: k.Changepoint((k.RBF(ard(D), 1.7), k.Matern32(one(D), 0.4)), 0.2, 0.8, 1),
    "coregionalised": lambda D=3: k.Coregionalised(
        (k.RBF(ard(D - 1), 1.7), k.Matern32(one(D), 0.4)), [[0.9, 0.2], [-0.5, 0.7]]
    ),
    # In units in which differences of frequencies are small: finite differences err by (2π τ h)⁴.
    "spectral_mixture": lambda D=3: k.InUnits(
        k.SpectralMixture(np.array([1.7, 0.4]), np.array([[0.3], [0.6]]) / ard(D), np.array([[0.3], [0.15]]) / ard(D)),
        np.zeros(D),
        0.15 * np.ones(D),
    ),
    "coregion": lambda D=3: k.Coregion(np.array([[0.9, 0.1], [-0.4, 0.6], [0.3, 0.2]]), np.array([0.1, 0.3, 0.2]), 1),
    "tied": lambda D=3: k.Tied(
        k.Matern32(ard(min(D, 2)), 1.7), tuple(min(d, 1) for d in range(D)), np.linspace(0.8, 1.2, D)
    ),
    "on": lambda D=3: k.Matern52(np.array([1.9, 0.7]), 1.7).on(2, 0),
}

Formula = Callable[[Any, Array, Array], Array]
FORMULAS: dict[type, Formula] = {
    k.RBF: lambda p, X, Z: o.rbf(X, Z, p.lengthscale, p.variance),
    k.Matern12: lambda p, X, Z: o.matern12(X, Z, p.lengthscale, p.variance),
    k.Matern32: lambda p, X, Z: o.matern32(X, Z, p.lengthscale, p.variance),
    k.Matern52: lambda p, X, Z: o.matern52(X, Z, p.lengthscale, p.variance),
    k.RationalQuadratic: lambda p, X, Z: o.rational_quadratic(X, Z, p.lengthscale, p.variance, p.alpha),
    k.Periodic: lambda p, X, Z: o.periodic(X, Z, p.lengthscale, p.variance, p.period),
    k.Additive: lambda p, X, Z: np.sum(
        [o.rbf(X[:, [d]], Z[:, [d]], p.lengthscale[d], p.variance[d]) for d in range(X.shape[1])], axis=0
    ),
    k.OrthogonalAdditive: lambda p, X, Z: o.orthogonal_additive(
        X, Z, p.lengthscale, p.variance, p.interaction, p.mean, p.spread
    ),
    k.Linear: lambda p, X, Z: o.linear(X, Z, p.variance),
    k.Constant: lambda p, X, Z: o.constant(X, Z, p.variance),
    k.White: lambda p, X, Z: o.white(X, Z, p.variance),
    k.Polynomial: lambda p, X, Z: o.polynomial(X, Z, p.variance, p.offset, p.degree),
    k.Cosine: lambda p, X, Z: o.cosine(X, Z, p.period, p.variance),
    k.ArcCosine: lambda p, X, Z: o.arc_cosine(X, Z, p.variance, p.offset),
    k.Hamming: lambda p, X, Z: o.hamming(X, Z, p.lengthscale, p.variance),
    k.Changepoint: lambda p, X, Z: o.changepoint(
        X[:, p.column], Z[:, p.column], [formula(part, X, Z) for part in p.kernels], p.location, p.width
    ),
    k.Coregionalised: lambda p, X, Z: o.coregionalised(
        outputs(X, len(p.W) + len(p.kernels)),
        outputs(Z, len(p.W) + len(p.kernels)),
        [formula(part, X[:, :-1], Z[:, :-1]) for part in p.kernels],
        np.concatenate([p.W, np.eye(len(p.kernels))]),
    ),
    k.SpectralMixture: lambda p, X, Z: o.spectral_mixture(X, Z, p.variance, p.frequency, p.bandwidth),
    k.Coregion: lambda p, X, Z: o.coregion(X[:, p.column], Z[:, p.column], p.factor, p.own),
    k.Sum: lambda p, X, Z: np.sum([formula(part, X, Z) for part in p.kernels], axis=0),
    k.Product: lambda p, X, Z: np.prod([formula(part, X, Z) for part in p.kernels], axis=0),
    k.InUnits: lambda p, X, Z: formula(p.kernel, X * p.scale + p.mean, Z * p.scale + p.mean),
    k.Tied: lambda p, X, Z: formula(untied(p), X * p.scale, Z * p.scale),
    k.On: lambda p, X, Z: formula(p.kernel, X[:, list(p.columns)], Z[:, list(p.columns)]),
}


def untied(kernel: k.Tied) -> Any:
    """The kernel inside, with a number for each column where it has one for each group."""
    names = {"lengthscale", "variance", "mean", "spread"} & {field.name for field in dataclasses.fields(kernel.kernel)}
    numbers = {name: np.asarray(getattr(kernel.kernel, name)) for name in names}
    return dataclasses.replace(kernel.kernel, **{n: x[list(kernel.groups)] for n, x in numbers.items() if x.ndim})


def outputs(X: Array, count: int) -> Array:
    """The number in the last column of rows (x, output)."""
    return np.nan_to_num(np.round(X[:, -1])).clip(0, count - 1).astype(int)


def formula(kernel: k.AbstractKernel, X: Array, Z: Array) -> Array:
    """The kernel's matrix by its scalar formula, one pair of rows after another."""
    return FORMULAS[type(kernel)](kernel, X, Z)


class Evaluation(NamedTuple):
    """K(X, Z), the diagonal at X, a number that depends on every entry of both, and its gradient in (kernel, X, Z)."""

    K: Any
    diagonal: Any
    value: Any
    gradient: Any


@jax.jit
def evaluate(kernel: k.AbstractKernel, X: Array, Z: Array) -> Evaluation:
    """All of a kernel in one compilation. X and Z have the same number of rows, so that (X, X) needs no second one."""

    def weighted(kernel, X, Z):
        K, diagonal = kernel(X, Z), kernel.diag(X)
        weights = np.cos(np.arange(K.size + diagonal.size)).astype(K.dtype)
        return weights @ jnp.concatenate([K.ravel(), diagonal]), (K, diagonal)

    (value, (K, diagonal)), gradient = jax.value_and_grad(weighted, (0, 1, 2), has_aux=True)(kernel, X, Z)
    return Evaluation(K, diagonal, value, gradient)


def rows(D: int = 3, seed: int = 20180301) -> tuple[Array, Array]:
    """Six rows X and six rows Z."""
    return tuple(np.random.default_rng(seed).normal(size=(2, 6, D)))


def coincident_rows(D: int = 3) -> tuple[Array, Array]:
    """The same with Z₀ = X₀, Z₁ = X₁, X₃ = X₂ and Z₄ = Z₃."""
    X, Z = rows(D)
    Z[:2], X[3], Z[4] = X[:2], X[2], Z[3]
    return X, Z


def finite_differences(f: Callable, arguments: Any, h: float = 1e-3) -> list[Array]:
    """The gradient of `f(*arguments)` leaf by leaf, entry by entry, from four points: the error is O(h⁴)."""
    leaves, structure = jax.tree.flatten(arguments)
    leaves = [np.array(leaf, float) for leaf in leaves]
    out = [np.zeros_like(leaf) for leaf in leaves]

    def at(i, index, shift):
        moved = [leaf.copy() for leaf in leaves]
        moved[i][index] += shift
        return float(f(*jax.tree.unflatten(structure, moved)))

    for i, leaf in enumerate(leaves):
        for index in np.ndindex(leaf.shape):
            near, far = (at(i, index, s * h) - at(i, index, -s * h) for s in (1, 2))
            out[i][index] = (8 * near - far) / (12 * h)
    return out


def check_matrix_is_the_formula(make: KernelFactory) -> None:
    for X, Z in (rows(), coincident_rows()):
        K = evaluate(make(3), X, Z).K
        assert K.shape == (6, 6)
        np.testing.assert_allclose(K, formula(make(3), X, Z), rtol=0, atol=1e-12)


def check_diagonal(make: KernelFactory) -> None:
    for D in (3, 784):
        X, _ = coincident_rows(D)
        of = evaluate(make(D), X, X)
        assert of.diagonal.shape == (6,)
        np.testing.assert_allclose(of.diagonal, np.diag(of.K), rtol=1e-12)


def check_symmetry(make: KernelFactory) -> None:
    X, Z = coincident_rows()
    K = evaluate(make(3), X, X).K
    np.testing.assert_allclose(K, K.T, rtol=0, atol=1e-15)
    np.testing.assert_allclose(evaluate(make(3), X, Z).K, evaluate(make(3), Z, X).K.T, rtol=0, atol=1e-14)


def check_multiple(make: KernelFactory) -> None:
    multiple, once = evaluate(make(3).times(2.5), *rows()), evaluate(make(3), *rows())
    np.testing.assert_allclose(multiple.K, 2.5 * np.asarray(once.K), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(multiple.diagonal, 2.5 * np.asarray(once.diagonal), rtol=1e-12)


def check_positive_semidefinite(make: KernelFactory) -> None:
    for seed in range(20):
        X, _ = rows(seed=seed)
        K = np.asarray(evaluate(make(3), X, X).K)
        assert np.linalg.eigvalsh(K).min() > -1e-14 * np.trace(K)


def check_gradient_away_from_coincidence(make: KernelFactory) -> None:
    arguments = (make(3), *rows())
    truth = finite_differences(lambda *a: evaluate(*a).value, arguments)
    for ours, true in zip(jax.tree.leaves(evaluate(*arguments).gradient), truth, strict=True):
        np.testing.assert_allclose(ours, true, rtol=1e-8, atol=1e-9)


def check_gradient_at_coincident_points(make: KernelFactory) -> None:
    # Where the kernel has a kink, 0 is the symmetric choice, and symmetric differences agree with it.
    arguments = (make(3), *coincident_rows())
    truth = finite_differences(lambda *a: evaluate(*a).value, arguments)
    for ours, true in zip(jax.tree.leaves(evaluate(*arguments).gradient), truth, strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, true, rtol=1e-7, atol=1e-8)


def check_784_columns(make: KernelFactory) -> None:
    of = evaluate(make(784), *coincident_rows(784))
    np.testing.assert_allclose(of.K, formula(make(784), *coincident_rows(784)), rtol=0, atol=1e-12)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(of.gradient))


def check_offset_inputs(make: KernelFactory) -> None:
    # Rounded to multiples of 2⁻²⁰, rows keep all their digits at 10⁶; what is left is the rounding of x/ℓ or 2πx/p, of
    # relative size eps. Without centring, ‖x‖² would lose 10⁶ times more.
    X, Z = (np.round(A * 2**20) / 2**20 + 1e6 for A in coincident_rows())
    truth = formula(make(3), X, Z)
    error = np.abs(np.asarray(evaluate(make(3), X, Z).K) - truth).max()
    assert error <= 10 * np.finfo(float).eps * 1e6 * max(1.0, np.abs(truth).max())


def check_nan_is_not_hidden(make: KernelFactory) -> None:
    (X, Z), bad = rows(), rows()[0]
    bad[1] = np.nan
    np.testing.assert_array_equal(np.isnan(evaluate(make(3), bad, Z).K), np.isnan(formula(make(3), bad, Z)))
    assert np.isnan(np.asarray(evaluate(make(3), X, bad).K))[np.isnan(formula(make(3), X, bad))].all()


def check_nan_hyperparameters_are_not_hidden(make: KernelFactory) -> None:
    X, _ = rows()
    leaves, structure = jax.tree.flatten(make(3))
    for i in range(len(leaves)):
        bad = [np.full_like(leaf, np.nan) if i == j else leaf for j, leaf in enumerate(leaves)]
        assert np.isnan(evaluate(jax.tree.unflatten(structure, bad), X, X).K).any()


KERNEL_CHECKS = (
    check_matrix_is_the_formula,
    check_diagonal,
    check_symmetry,
    check_multiple,
    check_positive_semidefinite,
    check_gradient_away_from_coincidence,
    check_gradient_at_coincident_points,
    check_784_columns,
    check_offset_inputs,
    check_nan_is_not_hidden,
    check_nan_hyperparameters_are_not_hidden,
)

# --- likelihoods: the checks are in likelihood_checks.py, the truth in likelihood_oracles.py --------------------------

# The tolerances, where there is no closed form, are those of Gauss–Hermite quadrature with 20 nodes (but Softmax), at
# variances v to 0.5 and at v = 5. log p(y | f) has poles or bends at a distance a from the real line, about its width
# in f, and the error falls with a/√v: 1e-11 where a > 2√v; no digits where a is far below √v/3, the distance of nodes.
LIKELIHOODS: dict[str, Callable[[], Case]] = {
    "gaussian": lambda: Case(Gaussian(0.3), 1),
    "gaussian_per_output": lambda: Case(GaussianPerOutput([0.3]), 1),
    "gaussian_small_noise": lambda: Case(Gaussian(1e-4), 1),
    "heteroscedastic": lambda: Case(Heteroscedastic(0.4), 1),
    "heteroscedastic_student_t": lambda: Case(HeteroscedasticStudentT(0.4, 4.0), 2, (1e-8, 1e-3)),
    "log_scale": lambda: Case(LogScale(0.4, 0.05), 1, (1e-6, 2e-2)),
    "student_t": lambda: Case(StudentT(0.8, 4.0), 2),
    "student_t_small_scale": lambda: Case(StudentT(0.05, 3.0), 2),
    "laplace": lambda: Case(Laplace(0.3), 1),
    "laplace_small_scale": lambda: Case(Laplace(0.01), 1),
    "bernoulli_logit": lambda: Case(Bernoulli("logit"), 0, (1e-11, 1e-5)),
    "bernoulli_probit": lambda: Case(Bernoulli("probit"), 0, (1e-11, 1e-5)),
    "ordinal": lambda: Case(Ordinal([-1.0, 0.2, 1.3], 0.6), 1, (1e-8, 3e-4)),
    "ordinal_edges": lambda: Case(Ordinal([-1.0, 0.2, 1.3], 0.6, learn_edges=True, learn_scale=False), 3, (1e-8, 3e-4)),
    "ordinal_51_bins": lambda: Case(Ordinal(np.linspace(-2, 2, 50), 0.3), 1, (3e-6, 1e-3)),
    "beta": lambda: Case(Beta(10.0), 1, (1e-11, 3e-4)),
    "beta_flat": lambda: Case(Beta(2.5), 1, (1e-11, 3e-4)),
    "poisson": lambda: Case(Poisson(1.7), 1),
    "negative_binomial": lambda: Case(NegativeBinomial(1.7, 0.8), 2, (1e-11, 2e-5)),
    "gamma": lambda: Case(Gamma(1.7, 0.8), 2),
    "exponential": lambda: Case(Exponential(1.7), 1),
    "robustmax_3": lambda: Case(RobustMax(3), 0, (3e-6, 1e-5)),
    "robustmax_10": lambda: Case(RobustMax(10, 0.01, learn_epsilon=True), 1, (1e-4, 1e-4)),
    "softmax_3": lambda: Case(Softmax(3), 0, (1e-8, 1e-8)),
    "warped_gaussian": lambda: Case(Warped(Gaussian(0.3), YeoJohnson(0.6)), 1, (1e-6, 1e-4)),
    "offset_student_t": lambda: Case(Offset(StudentT(0.8, 4.0), 0.7), 3),
    "offset_beta": lambda: Case(Offset(Beta(10.0), -0.7), 2, (1e-11, 3e-4)),
    "offset_heteroscedastic": lambda: Case(Offset(Heteroscedastic(0.4), np.array([0.5, -0.3])), 3),
    "offset_bernoulli": lambda: Case(Offset(Bernoulli("logit"), -1.5), 1, (1e-11, 1e-5)),
    "offset_softmax_3": lambda: Case(Offset(Softmax(3), np.array([1.0, 0.2, -1.2])), 3, (1e-8, 1e-8)),
    "softmax_10": lambda: Case(Softmax(10), 0, (1e-8, 1e-8)),
}
# Mean functions of two columns, each with what it computes.
MEANS = {
    "constant": (means.ConstantMean(0.7), lambda X: np.full(len(X), 0.7)),
    "linear": (means.LinearMean(np.array([1.0, -2.0]), 0.5), lambda X: X @ [1.0, -2.0] + 0.5),
    "linear_of_three": (
        means.LinearMean(np.arange(6.0).reshape(3, 2), np.arange(3.0)),
        lambda X: (X @ np.arange(6.0).reshape(3, 2).T + np.arange(3.0)).T,
    ),
    "scaled": (
        means.ScaledMean(means.LinearMean(np.array([1.0, -2.0])), np.array([1.0, 2.0]), np.array([2.0, 4.0])),
        lambda X: (X - [1.0, 2.0]) / [2.0, 4.0] @ [1.0, -2.0],
    ),
}
# Priors, each with its distribution by SciPy.
PRIORS = {
    "normal": (p.Normal(0.5, 2.0), stats.norm(0.5, 2.0)),
    "log_normal": (p.LogNormal(0.5, 0.7), stats.lognorm(0.7, scale=np.exp(0.5))),
    "half_normal": (p.HalfNormal(0.3), stats.halfnorm(scale=0.3)),
    "gamma": (p.Gamma(3.0, 2.0), stats.gamma(3.0, scale=0.5)),
}
LIKELIHOODS_OF_CLASSES = [name for name, make in LIKELIHOODS.items() if make().likelihood.support == "classes"]

# --- Gaussians: the checks are in gaussian_checks.py -----------------------------------------------------------------

GAUSSIANS: dict[str, type[AbstractGaussian]] = {
    "natural": Natural,
    "natural_chol": NaturalChol,
    "natural_log": NaturalLog,
    "expectation": Expectation,
    "mean_covariance": MeanCovariance,
    "mean_chol": MeanChol,
    "mean_log": MeanLog,
    "mean_precision": MeanPrecision,
}

# What a coordinate system cannot keep, by its definition; `test_gaussians.py` says how much it keeps instead.
# H₂ = S + mmᵀ: beside |m|² = 7, all but 8 digits of an S of 1e-8 are rounded away. Logarithm: an eigenvalue has an
# error of ε λmax, and here they spread over 18 orders of magnitude; a Cholesky factor does not mind the units of a row.
GAUSSIAN_EXEMPTIONS: dict[str, set[str]] = {
    "expectation": {"check_moments", "check_natural_round_trips", "check_entropy"},
    "natural_log": {"check_small_directions_keep_their_digits"},
    "mean_log": {"check_small_directions_keep_their_digits"},
}
