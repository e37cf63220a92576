"""What every kernel, likelihood and Gaussian must do. A new one joins with one line in its list.

`KERNELS`, `LIKELIHOODS` and `GAUSSIANS` name the implementations; `KERNEL_CHECKS`, `LIKELIHOOD_CHECKS` and
`GAUSSIAN_CHECKS` are functions of one of them that raise AssertionError, so that a kernel of your own can be checked
too. Run the checks inside `jax.enable_x64`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles as o
from scipy.integrate import quad

from pseudopoint import kernels as k
from pseudopoint.gaussians import AbstractGaussian, MeanChol, MeanCovariance, MeanPrecision, Natural
from pseudopoint.likelihoods import AbstractLikelihood, Gaussian
from pseudopoint.params import cast

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
    "matern12_ard": lambda D=3: k.Matern12(ard(D), 1.7),
    "matern32": lambda D=3: k.Matern32(one(D), 1.7),
    "matern32_ard": lambda D=3: k.Matern32(ard(D), 1.7),
    "matern52": lambda D=3: k.Matern52(one(D), 1.7),
    "matern52_ard": lambda D=3: k.Matern52(ard(D), 1.7),
    "rational_quadratic": lambda D=3: k.RationalQuadratic(one(D), 1.7, 0.8),
    "rational_quadratic_ard": lambda D=3: k.RationalQuadratic(ard(D), 1.7, 0.8),
    "periodic": lambda D=3: k.Periodic(2 * one(D), 1.7, 3.1),
    "periodic_ard": lambda D=3: k.Periodic(2 * ard(D), 1.7, np.linspace(2.1, 4.3, D)),
    "linear": lambda D=3: k.Linear(0.6 / D),
    "linear_ard": lambda D=3: k.Linear(0.6 / D * ard(D)),
    "constant": lambda D=3: k.Constant(0.4),
    "white": lambda D=3: k.White(0.3),
    "sum": lambda D=3: k.RBF(ard(D), 1.7) + k.Linear(0.6 / D) + k.Constant(0.4) + k.White(0.3),
    "product": lambda D=3: k.Matern32(ard(D), 1.7) * k.Linear(0.6 / D) * k.Periodic(2 * one(D), 0.8, 3.1),
    "on": lambda D=3: k.Matern52(np.array([1.9, 0.7]), 1.7).on(2, 0),
    "tree": lambda D=3: (k.RBF(one(D)) + k.Linear(0.6).on(1)) * k.Matern12(ard(D), 1.2) + k.White(0.3).on(0, 1),
}

Formula = Callable[[Any, Array, Array], Array]
FORMULAS: dict[type, Formula] = {
    k.RBF: lambda p, X, Z: o.rbf(X, Z, p.lengthscale, p.variance),
    k.Matern12: lambda p, X, Z: o.matern12(X, Z, p.lengthscale, p.variance),
    k.Matern32: lambda p, X, Z: o.matern32(X, Z, p.lengthscale, p.variance),
    k.Matern52: lambda p, X, Z: o.matern52(X, Z, p.lengthscale, p.variance),
    k.RationalQuadratic: lambda p, X, Z: o.rational_quadratic(X, Z, p.lengthscale, p.variance, p.alpha),
    k.Periodic: lambda p, X, Z: o.periodic(X, Z, p.lengthscale, p.variance, p.period),
    k.Linear: lambda p, X, Z: o.linear(X, Z, p.variance),
    k.Constant: lambda p, X, Z: o.constant(X, Z, p.variance),
    k.White: lambda p, X, Z: o.white(X, Z, p.variance),
    k.Sum: lambda p, X, Z: np.sum([formula(part, X, Z) for part in p.kernels], axis=0),
    k.Product: lambda p, X, Z: np.prod([formula(part, X, Z) for part in p.kernels], axis=0),
    k.On: lambda p, X, Z: formula(p.kernel, X[:, list(p.columns)], Z[:, list(p.columns)]),
}


def formula(kernel: k.AbstractKernel, X: Array, Z: Array) -> Array:
    """The kernel's matrix by its scalar formula, one pair of rows after another."""
    return FORMULAS[type(kernel)](kernel, X, Z)


@jax.jit
def matrices(kernel, X, Z):
    """K(X, Z), K(X, X) and the diagonal."""
    return kernel(X, Z), kernel(X, X), kernel.diag(X)


@jax.jit
def weighted(kernel, X, Z):
    """A number that depends on every entry of all three."""
    parts = matrices(kernel, X, Z)
    return sum(jnp.sum(jnp.cos(jnp.arange(part.size)).reshape(part.shape) * part) for part in parts)


gradient = jax.jit(jax.grad(weighted, (0, 1, 2)))


def rows(D: int = 3) -> tuple[Array, Array]:
    """Seven rows X and five rows Z, none of them close."""
    rng = np.random.default_rng(20180301)
    return rng.normal(size=(7, D)), rng.normal(size=(5, D))


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
        kernel = make(3)
        K, Kxx, _ = matrices(kernel, X, Z)
        assert K.shape == (7, 5)
        np.testing.assert_allclose(K, formula(kernel, X, Z), rtol=0, atol=1e-12)
        np.testing.assert_allclose(Kxx, formula(kernel, X, X), rtol=0, atol=1e-12)


def check_diagonal(make: KernelFactory) -> None:
    for D in (3, 784):
        X, Z = coincident_rows(D)
        _, Kxx, diagonal = matrices(make(D), X, Z)
        assert diagonal.shape == (7,)
        np.testing.assert_allclose(diagonal, np.diag(Kxx), rtol=1e-12)


def check_symmetry(make: KernelFactory) -> None:
    X, Z = coincident_rows()
    K, Kxx, _ = matrices(make(3), X, Z)
    np.testing.assert_allclose(Kxx, Kxx.T, rtol=0, atol=1e-15)
    np.testing.assert_allclose(K, make(3)(jnp.asarray(Z), jnp.asarray(X)).T, rtol=0, atol=1e-14)


def check_positive_semidefinite(make: KernelFactory) -> None:
    X = jnp.asarray(np.random.default_rng(1).normal(size=(40, 3)))
    K = np.asarray(make(3)(X, X))
    assert np.linalg.eigvalsh(K).min() > -1e-13 * np.trace(K)


def check_gradient_away_from_coincidence(make: KernelFactory) -> None:
    arguments = (make(3), *rows())
    for ours, truth in zip(
        jax.tree.leaves(gradient(*arguments)), finite_differences(weighted, arguments), strict=True
    ):
        np.testing.assert_allclose(ours, truth, rtol=1e-8, atol=1e-9)


def check_gradient_at_coincident_points(make: KernelFactory) -> None:
    # Where the kernel has a kink, 0 is the symmetric choice, and symmetric differences agree with it.
    arguments = (make(3), *coincident_rows())
    for ours, truth in zip(
        jax.tree.leaves(gradient(*arguments)), finite_differences(weighted, arguments), strict=True
    ):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, truth, rtol=1e-6, atol=1e-7)


def check_784_columns(make: KernelFactory) -> None:
    kernel, (X, Z) = make(784), coincident_rows(784)
    np.testing.assert_allclose(matrices(kernel, X, Z)[0], formula(kernel, X, Z), rtol=0, atol=1e-12)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(kernel, X, Z)))


def check_offset_inputs(make: KernelFactory) -> None:
    # Rounded to multiples of 2⁻²⁰, rows keep all their digits at 10⁶; what is left is the rounding of x/ℓ or 2πx/p, of
    # relative size eps. Without centring, ‖x‖² would lose 10⁶ times more.
    X, Z = (np.round(A * 2**20) / 2**20 + 1e6 for A in coincident_rows())
    kernel = make(3)
    truth = formula(kernel, X, Z)
    error = np.abs(np.asarray(matrices(kernel, X, Z)[0]) - truth).max()
    assert error <= 40 * np.finfo(float).eps * 1e6 * max(1.0, np.abs(truth).max())


def check_nan_is_not_hidden(make: KernelFactory) -> None:
    kernel, (X, Z) = make(3), rows()
    X[1], Z[2] = np.nan, np.nan
    lost = np.isnan(formula(kernel, X, rows()[1]))
    K = np.asarray(matrices(kernel, X, rows()[1])[0])
    np.testing.assert_array_equal(np.isnan(K), lost)
    lost = np.isnan(formula(kernel, rows()[0], Z))
    assert np.isnan(np.asarray(matrices(kernel, rows()[0], Z)[0]))[lost].all()


def check_nan_hyperparameters_are_not_hidden(make: KernelFactory) -> None:
    leaves, structure = jax.tree.flatten(make(3))
    for i, leaf in enumerate(leaves):
        bad = [np.full_like(leaf, np.nan) if i == j else other for j, other in enumerate(leaves)]
        assert np.isnan(matrices(jax.tree.unflatten(structure, bad), *rows())[0]).all()


def check_float32(make: KernelFactory) -> None:
    X, Z = coincident_rows()
    truth = formula(make(3), X, Z)
    K, Kxx, diagonal = matrices(cast(make(3), jnp.float32), X.astype(np.float32), Z.astype(np.float32))
    assert {K.dtype, Kxx.dtype, diagonal.dtype} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(K, truth, rtol=0, atol=64 * np.finfo(np.float32).eps * max(1.0, np.abs(truth).max()))


KERNEL_CHECKS = (
    check_matrix_is_the_formula,
    check_diagonal,
    check_symmetry,
    check_positive_semidefinite,
    check_gradient_away_from_coincidence,
    check_gradient_at_coincident_points,
    check_784_columns,
    check_offset_inputs,
    check_nan_is_not_hidden,
    check_nan_hyperparameters_are_not_hidden,
    check_float32,
)

# --- likelihoods -----------------------------------------------------------------------------------------------------

LIKELIHOODS: dict[str, Callable[[], AbstractLikelihood]] = {
    "gaussian": lambda: Gaussian(0.3),
    "gaussian_small_noise": lambda: Gaussian(1e-4),
}


def over_the_line(g: Callable[[float], float], centre: float, sd: float) -> float:
    """∫ g(y) dy over centre ± 12 sd."""
    cuts = centre + sd * np.array([-12.0, -4.0, -2.0, 0.0, 2.0, 4.0, 12.0])
    pieces = zip(cuts[:-1], cuts[1:], strict=True)
    return sum(quad(g, a, b, epsabs=1e-13, epsrel=1e-12, limit=200)[0] for a, b in pieces)


# How to sum over all values of y, given about where they lie.
TOTALS: dict[type, Callable[[Callable[[float], float], float, float], float]] = {Gaussian: over_the_line}

MEANS, VARIANCES = np.array([0.0, -1.3, 2.4]), np.array([1e-3, 0.7, 5.0])


def row(value: Any) -> Array:
    """One row."""
    return np.array([value], float)


@jax.jit
def log_prob(likelihood, f, y):
    """`log_prob` of one row."""
    return likelihood.log_prob(f, y)[0]


@jax.jit
def log_density(likelihood, mean, variance, y):
    """`log_density` of one row."""
    return likelihood.log_density(mean, variance, y)[0]


def check_log_prob_is_normalised(likelihood: AbstractLikelihood) -> None:
    for f in (-2.0, 0.4):
        sd = float(likelihood.predict(jnp.array([f]), jnp.array([0.0])).variance[0]) ** 0.5
        p = lambda y, f=f: float(jnp.exp(log_prob(likelihood, row(f), row(y))))
        np.testing.assert_allclose(TOTALS[type(likelihood)](p, f, sd), 1.0, rtol=1e-10)


def check_expectation(likelihood: AbstractLikelihood) -> None:
    y = MEANS[::-1] + 0.2
    ours = likelihood.expectation(jnp.asarray(MEANS), jnp.asarray(VARIANCES), jnp.asarray(y))
    for value, mean, variance, target in zip(ours, MEANS, VARIANCES, y, strict=True):
        g = lambda f, target=target: float(log_prob(likelihood, row(f), row(target)))
        np.testing.assert_allclose(value, o.expect_normal(g, mean, variance), rtol=1e-10)


def check_log_density(likelihood: AbstractLikelihood) -> None:
    y = MEANS + np.array([0.01, -0.4, 1.1])
    ours = likelihood.log_density(jnp.asarray(MEANS), jnp.asarray(VARIANCES), jnp.asarray(y))
    for value, mean, variance, target in zip(ours, MEANS, VARIANCES, y, strict=True):
        g = lambda f, target=target: float(jnp.exp(log_prob(likelihood, row(f), row(target))))
        width = np.sqrt(float(likelihood.predict(jnp.array([target]), jnp.array([0.0])).variance[0]))
        breaks = [target + s * width for s in (-8.0, -3.0, -1.0, 0.0, 1.0, 3.0, 8.0)]
        np.testing.assert_allclose(value, np.log(o.expect_normal(g, mean, variance, breaks)), rtol=1e-9, atol=1e-9)


def check_predictive_moments(likelihood: AbstractLikelihood) -> None:
    means, variances = likelihood.predict(jnp.asarray(MEANS), jnp.asarray(VARIANCES))
    for mean, variance, m, v in zip(means, variances, MEANS, VARIANCES, strict=True):
        p = lambda y, m=m, v=v: float(jnp.exp(log_density(likelihood, row(m), row(v), row(y))))
        total = lambda g, mean=mean, variance=variance: TOTALS[type(likelihood)](g, float(mean), float(variance) ** 0.5)
        np.testing.assert_allclose(total(lambda y, p=p: y * p(y)), mean, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(total(lambda y, p=p, mean=mean: (y - mean) ** 2 * p(y)), variance, rtol=1e-9)


def check_finite_far_out(likelihood: AbstractLikelihood) -> None:
    f, y = jnp.array([-30.0, 30.0, -30.0, 30.0]), jnp.array([1.0, 1.0, 0.0, 0.0])
    v = jnp.array([1e-6, 1e-6, 1e3, 1e3])
    for function, arguments in (
        (likelihood.log_prob, (f, y)),
        (likelihood.expectation, (f, v, y)),
        (likelihood.log_density, (f, v, y)),
    ):
        assert np.isfinite(function(*arguments)).all()
        total = lambda *a, function=function: jnp.sum(function(*a))
        assert all(np.isfinite(g).all() for g in jax.grad(total, tuple(range(len(arguments))))(*arguments))
    assert all(np.isfinite(moment).all() for moment in likelihood.predict(f, v))


def tight_term(likelihood: AbstractLikelihood, v: Any, weight: float, mean: float, explained: float, d: float) -> float:
    """The bound's term of one row as a function of v: w E[log p(y | f)] − ½(v − 1 − log v), at y = 0.7."""
    variance = row(explained + float(v) * d)
    fit = float(likelihood.expectation(jnp.asarray(row(mean)), jnp.asarray(variance), jnp.asarray(row(0.7)))[0])
    return weight * fit - 0.5 * (float(v) - 1 - np.log(float(v)))


def check_shrinkage_never_loosens_the_bound(likelihood: AbstractLikelihood) -> None:
    for weight, d in ((1.0, 0.5), (3.0, 0.01), (0.5, 20.0), (1.0, 0.0), (0.0, 0.5)):
        v = likelihood.shrinkage(jnp.asarray(row(d)), jnp.asarray(row(weight)))[0]
        assert 0 < float(v) <= 1
        terms = (tight_term(likelihood, at, weight, 0.2, 0.1, d) for at in (v, 1.0))
        assert next(terms) >= next(terms)


LIKELIHOOD_CHECKS = (
    check_log_prob_is_normalised,
    check_expectation,
    check_log_density,
    check_predictive_moments,
    check_finite_far_out,
    check_shrinkage_never_loosens_the_bound,
)

# --- Gaussians -------------------------------------------------------------------------------------------------------

GAUSSIANS: dict[str, type[AbstractGaussian]] = {
    "mean_covariance": MeanCovariance,
    "mean_chol": MeanChol,
    "mean_precision": MeanPrecision,
}


def moments(M: int = 6, scale: float = 1.0) -> tuple[Array, Array]:
    """A mean and a covariance of the given size, neither diagonal nor close to the identity."""
    rng = np.random.default_rng(7)
    R = rng.normal(size=(M, M))
    return rng.normal(size=M), scale * (R @ R.T / M + 0.1 * np.eye(M))


def natural(m: Array, S: Array) -> Natural:
    """θ = (S⁻¹m, −½S⁻¹) by NumPy."""
    P = np.linalg.inv(S)
    return Natural(jnp.asarray(P @ m), jnp.asarray(-0.25 * (P + P.T)))


def check_moments(cls: type[AbstractGaussian]) -> None:
    for scale in (1.0, 1e-8):  # a jitter of 1e-6 or 1e-8 would show in all digits of the second
        m, S = moments(scale=scale)
        q = cls.from_natural(natural(m, S))
        np.testing.assert_allclose(q.mean, m, rtol=1e-10)
        np.testing.assert_allclose(q.covariance(), S, rtol=1e-10, atol=1e-11 * scale)


def check_natural_round_trips(cls: type[AbstractGaussian]) -> None:
    for scale in (1.0, 1e-8, 1e8):
        m, S = moments(scale=scale)
        theta = natural(m, S)
        q = cls.from_natural(theta)
        for ours, truth in zip(q.to_natural(), theta, strict=True):
            np.testing.assert_allclose(ours, truth, rtol=1e-10, atol=1e-10 * float(np.abs(truth).max()))
        again = cls.from_natural(q.to_natural())
        for ours, truth in zip(jax.tree.leaves(again), jax.tree.leaves(q), strict=True):
            np.testing.assert_allclose(ours, truth, rtol=1e-10, atol=1e-10 * float(np.abs(truth).max()))


def check_entropy(cls: type[AbstractGaussian]) -> None:
    for scale in (1.0, 1e-8):
        m, S = moments(scale=scale)
        q = cls.from_natural(natural(m, S))
        np.testing.assert_allclose(q.half_logdet(), 0.5 * np.linalg.slogdet(S)[1], rtol=1e-12)
        np.testing.assert_allclose(q.entropy(), 0.5 * np.linalg.slogdet(2 * np.pi * np.e * S)[1], rtol=1e-12)


def check_not_positive_definite_is_nan(cls: type[AbstractGaussian]) -> None:
    m, S = moments()
    S = S - 2 * np.linalg.eigvalsh(S)[0] * np.eye(6)  # one negative eigenvalue
    assert np.isnan(cls.from_natural(natural(m, S)).entropy())


GAUSSIAN_CHECKS = (check_moments, check_natural_round_trips, check_entropy, check_not_positive_definite_is_nan)
