"""The oracles against each other: identities and inequalities that need no library."""

import numpy as np
import oracles as o
import pytest
from scipy.stats import norm

SEEDS = range(4)


def problem(seed, N=18, M=5, D=2, heteroscedastic=True):
    """Make a random regression problem: Kff, Kuf, Kuu, noise, y."""
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(N, D)), rng.normal(size=(M, D))
    noise = rng.uniform(0.05, 0.6, N) if heteroscedastic else np.full(N, 0.2)
    y = np.sin(X.sum(1)) + np.sqrt(noise) * rng.normal(size=N)
    k = lambda A, B: o.matern52(A, B, np.array([0.8, 1.3]), 1.7)
    return k(X, X), k(Z, X), k(Z, Z) + 1.7e-6 * np.eye(M), noise, y


def random_q(seed, Kuu):
    """Make a random q(u), neither the prior nor the optimum."""
    rng = np.random.default_rng(100 + seed)
    R = rng.normal(size=Kuu.shape)
    return rng.normal(size=len(Kuu)), R @ R.T / len(Kuu) + 0.3 * np.eye(len(Kuu))


def central_difference(f, x, h=1e-5):
    """Return the gradient of a scalar function of an array, entry by entry."""
    out = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = h
        out[index] = (f(x + step) - f(x - step)) / (2.0 * h)
    return out


# --- kernels ---------------------------------------------------------------------------------------------------------

KERNELS = {
    "rbf": lambda X, Z: o.rbf(X, Z, np.array([0.7, 1.9]), 1.7),
    "matern12": lambda X, Z: o.matern12(X, Z, np.array([0.7, 1.9]), 1.7),
    "matern32": lambda X, Z: o.matern32(X, Z, np.array([0.7, 1.9]), 1.7),
    "matern52": lambda X, Z: o.matern52(X, Z, np.array([0.7, 1.9]), 1.7),
    "rational_quadratic": lambda X, Z: o.rational_quadratic(X, Z, np.array([0.7, 1.9]), 1.7, 0.8),
    "periodic": lambda X, Z: o.periodic(X, Z, np.array([0.7, 1.9]), 1.7, np.array([1.1, 2.3])),
    "linear": lambda X, Z: o.linear(X, Z, np.array([0.4, 1.7])),
    "constant": lambda X, Z: o.constant(X, Z, 1.7),
    "white": lambda X, Z: o.white(X, Z, 1.7),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_symmetric_and_positive_semidefinite(name):
    X = np.random.default_rng(0).normal(size=(12, 2))
    K = KERNELS[name](X, X)
    assert K.shape == (12, 12)
    assert np.array_equal(K, K.T)
    assert np.linalg.eigvalsh(K).min() > -1e-12 * np.trace(K)
    if name != "linear":
        np.testing.assert_allclose(np.diag(K), 1.7)


def test_kernels_at_a_value_computed_by_hand():
    # r = 1: exp(-1/2), exp(-1), (1 + √3) exp(-√3), (1 + √5 + 5/3) exp(-√5), (3/2)^(-1) at α = 1
    X, Z = np.array([[0.0]]), np.array([[2.0]])
    np.testing.assert_allclose(o.rbf(X, Z, 2.0, 1.0), 0.6065306597126334)
    np.testing.assert_allclose(o.matern12(X, Z, 2.0, 1.0), 0.36787944117144233)
    np.testing.assert_allclose(o.matern32(X, Z, 2.0, 1.0), 0.48335772, rtol=1e-7)
    np.testing.assert_allclose(o.matern52(X, Z, 2.0, 1.0), 0.52399411, rtol=1e-7)
    np.testing.assert_allclose(o.rational_quadratic(X, Z, 2.0, 1.0, 1.0), 2.0 / 3.0)
    np.testing.assert_allclose(o.periodic(X, Z, 2.0, 1.0, 4.0), 0.6065306597126334)  # sin² = 1
    np.testing.assert_allclose(o.linear(np.array([[1.0, 2.0]]), np.array([[3.0, 5.0]]), 2.0), 26.0)


def test_the_rational_quadratic_tends_to_the_squared_exponential():
    X, Z = np.random.default_rng(1).normal(size=(2, 6, 2))
    far = o.rational_quadratic(X, Z, 0.9, 1.7, 1e8)
    np.testing.assert_allclose(far, o.rbf(X, Z, 0.9, 1.7), rtol=1e-6, atol=1e-12)


def test_the_periodic_kernel_repeats():
    X, Z = np.random.default_rng(2).normal(size=(2, 6, 2))
    period = np.array([1.1, 2.3])
    shifted = o.periodic(X + 3.0 * period, Z, 0.9, 1.7, period)
    np.testing.assert_allclose(shifted, o.periodic(X, Z, 0.9, 1.7, period), rtol=1e-10)


def test_white_sees_equal_rows_only():
    X = np.array([[0.0, 1.0], [0.0, 2.0]])
    np.testing.assert_array_equal(o.white(X, np.array([[0.0, 2.0]]), 0.3), [[0.0], [0.3]])


# --- Gaussians -------------------------------------------------------------------------------------------------------


def test_gauss_kl_is_an_expectation_in_one_dimension():
    m0, v0, m1, v1 = 0.3, 0.7, -1.1, 2.2
    g = lambda f: float(norm.logpdf(f, m0, np.sqrt(v0)) - norm.logpdf(f, m1, np.sqrt(v1)))
    kl = o.gauss_kl(np.array([m0]), np.array([[v0]]), np.array([m1]), np.array([[v1]]))
    np.testing.assert_allclose(kl, o.expect_normal(g, m0, v0), rtol=1e-10)


def test_gauss_kl_vanishes_only_at_equality():
    m, S = random_q(0, np.eye(4))
    assert abs(o.gauss_kl(m, S, m, S)) < 1e-12
    assert o.gauss_kl(m, S, m + 0.1, S) > 0.0
    assert o.gauss_kl(m, S, m, 1.1 * S) > 0.0


def test_expect_normal_gives_known_expectations():
    mean, var = -0.4, 1.9
    np.testing.assert_allclose(o.expect_normal(lambda f: f**4, mean, var), mean**4 + 6 * mean**2 * var + 3 * var**2)
    np.testing.assert_allclose(o.expect_normal(np.exp, mean, var), np.exp(mean + 0.5 * var), rtol=1e-10)
    probit = norm.cdf(mean / np.sqrt(1.0 + var))
    np.testing.assert_allclose(o.expect_normal(lambda f: float(norm.cdf(f)), mean, var), probit, rtol=1e-10)
    step = o.expect_normal(lambda f: float(f > 0.7), mean, var, breaks=[0.7])
    np.testing.assert_allclose(step, norm.sf(0.7, mean, np.sqrt(var)), rtol=1e-10)


# --- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_with_inducing_inputs_on_the_data_every_bound_is_the_evidence(seed):
    K, _, _, noise, y = problem(seed)
    exact = o.exact_log_evidence(K, noise, y)
    for bound in (o.vfe_bound, o.tight_bound, o.upper_bound):
        np.testing.assert_allclose(bound(np.diag(K), K, K, noise, y), exact, rtol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_with_inducing_inputs_on_the_data_prediction_is_exact(seed):
    K, Ksf, Kss, noise, y = problem(seed)
    exact = o.exact_posterior(K, Ksf, np.diag(Kss), noise, y)
    sparse = o.sparse_predict(Ksf, np.diag(Kss), K, *o.optimal_q(K, K, noise, y))
    np.testing.assert_allclose(sparse, exact, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_bounds_are_ordered(seed):
    K, Kuf, Kuu, noise, y = problem(seed)
    args = (np.diag(K), Kuf, Kuu, noise, y)
    exact = o.exact_log_evidence(K, noise, y)
    assert o.vfe_bound(*args) < o.tight_bound(*args) < exact < o.upper_bound(*args)


def test_the_upper_bound_uses_the_trace_of_the_residual():
    # D = t e₅e₅ᵀ and y along e₅, orthogonal to Q: the quadratic forms agree, the determinants differ by 1 + t / noise₅.
    Kuf, t, noise = np.eye(5)[:2], 0.9, np.array([0.3, 0.2, 0.5, 0.4, 0.25])
    K, y = Kuf.T @ Kuf + t * np.diag(np.eye(5)[4]), 3.0 * np.eye(5)[4]
    gap = o.upper_bound(np.diag(K), Kuf, np.eye(2), noise, y) - o.exact_log_evidence(K, noise, y)
    np.testing.assert_allclose(gap, 0.5 * np.log1p(t / noise[4]), rtol=1e-12)


@pytest.mark.parametrize("heteroscedastic", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_tight_bound_is_the_maximum_of_its_definition(seed, heteroscedastic):
    K, Kuf, Kuu, noise, y = problem(seed, N=8, M=3, heteroscedastic=heteroscedastic)
    value, v = o.tight_bound_by_definition(K, Kuf, Kuu, noise, y)
    np.testing.assert_allclose(o.tight_bound(np.diag(K), Kuf, Kuu, noise, y), value, rtol=1e-7)
    d = np.diag(K - o.nystrom(Kuf, Kuu))
    np.testing.assert_allclose(v, 1.0 / (1.0 + d / noise), rtol=1e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_elbo_at_the_optimal_q_is_the_collapsed_bound(seed):
    K, Kuf, Kuu, noise, y = problem(seed)
    args, q = (np.diag(K), Kuf, Kuu), o.optimal_q(Kuf, Kuu, noise, y)
    np.testing.assert_allclose(o.elbo_gaussian(*args, *q, noise, y), o.vfe_bound(*args, noise, y), rtol=1e-9)
    np.testing.assert_allclose(o.elbo_tight_gaussian(*args, *q, noise, y), o.tight_bound(*args, noise, y), rtol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_elbo_elsewhere_is_lower_and_is_its_definition(seed):
    K, Kuf, Kuu, noise, y = problem(seed)
    m, S = random_q(seed, Kuu)
    elbo = o.elbo_gaussian(np.diag(K), Kuf, Kuu, m, S, noise, y)
    assert (
        elbo
        < o.elbo_tight_gaussian(np.diag(K), Kuf, Kuu, m, S, noise, y)
        < o.tight_bound(np.diag(K), Kuf, Kuu, noise, y)
    )
    assert elbo < o.vfe_bound(np.diag(K), Kuf, Kuu, noise, y)
    mean, var = o.sparse_predict(Kuf.T, np.diag(K), Kuu, m, S)
    rows = zip(mean, var, noise, y, strict=True)
    fit = sum(o.expect_normal(lambda f, e=e, t=t: float(norm.logpdf(t, f, np.sqrt(e))), a, b) for a, b, e, t in rows)
    np.testing.assert_allclose(elbo, fit - o.gauss_kl(m, S, np.zeros_like(m), Kuu), rtol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_optimal_q_and_the_elbo_have_the_printed_form(seed):
    # Kobe (2.18), (2.19) and the three terms of (2.25), one noise for all rows.
    K, Kuf, Kuu, noise, y = problem(seed, heteroscedastic=False)
    beta, Ki = 1.0 / noise[0], np.linalg.inv(Kuu)
    precision = beta * Ki @ Kuf @ Kuf.T @ Ki + Ki
    m, S = o.optimal_q(Kuf, Kuu, noise, y)
    np.testing.assert_allclose(S, np.linalg.inv(precision), rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(m, beta * np.linalg.solve(precision, Ki @ Kuf @ y), rtol=1e-6)
    m, S = random_q(seed, Kuu)
    value = -o.gauss_kl(m, S, np.zeros_like(m), Kuu)
    for i, k in enumerate(Kuf.T):
        value += norm.logpdf(y[i], k @ Ki @ m, beta**-0.5) - 0.5 * beta * (K[i, i] - k @ Ki @ k)
        value -= 0.5 * np.trace(S @ (beta * Ki @ np.outer(k, k) @ Ki))
    np.testing.assert_allclose(o.elbo_gaussian(np.diag(K), Kuf, Kuu, m, S, noise, y), value, rtol=1e-9)


# --- natural gradient ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [o.elbo_gaussian, o.elbo_tight_gaussian])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_gradient_of_both_bounds_is_that_of_finite_differences(seed, bound):
    K, Kuf, Kuu, noise, y = problem(seed, M=4)
    m, S = random_q(seed, Kuu)
    dm, dS = o.elbo_gaussian_gradient(Kuf, Kuu, m, S, noise, y)
    f = lambda m, S: bound(np.diag(K), Kuf, Kuu, m, S, noise, y)
    np.testing.assert_allclose(dm, central_difference(lambda x: f(x, S), m), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dS, central_difference(lambda x: f(m, x), S), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_unit_step_solves_the_gaussian_case_from_any_start(seed):
    _, Kuf, Kuu, noise, y = problem(seed, M=4)
    m, S = random_q(seed, Kuu)
    step = o.fisher_natural_gradient_step(m, S, *o.elbo_gaussian_gradient(Kuf, Kuu, m, S, noise, y), 1.0)
    best = o.optimal_q(Kuf, Kuu, noise, y)
    np.testing.assert_allclose(step[0], best[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(step[1], best[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("gamma", [0.1, 0.5])
def test_a_shorter_step_is_a_convex_combination_of_natural_parameters(gamma):
    # Conjugate case: θ_new = (1 - γ) θ + γ θ_best, because ∂L/∂η = θ_best - θ (Hensman et al. 2013).
    _, Kuf, Kuu, noise, y = problem(0, M=4)
    m, S = random_q(0, Kuu)
    new_m, new_S = o.fisher_natural_gradient_step(m, S, *o.elbo_gaussian_gradient(Kuf, Kuu, m, S, noise, y), gamma)
    best_m, best_S = o.optimal_q(Kuf, Kuu, noise, y)
    P, best_P, new_P = (np.linalg.inv(A) for A in (S, best_S, new_S))
    np.testing.assert_allclose(new_P, (1.0 - gamma) * P + gamma * best_P, rtol=1e-6)
    np.testing.assert_allclose(new_P @ new_m, (1.0 - gamma) * P @ m + gamma * best_P @ best_m, rtol=1e-6)


def test_the_brute_force_step_is_the_closed_form_for_any_gradient():
    # Δθ = γ ∂L/∂η: P_new = P - 2γ ∂L/∂S, P_new m_new = P m + γ (∂L/∂m - 2 ∂L/∂S m), Salimbeni (10).
    rng = np.random.default_rng(5)
    m, S = random_q(5, np.eye(4))
    dm, R = rng.normal(size=4), 0.1 * rng.normal(size=(4, 4))
    dS, gamma, P = -R @ R.T, 0.3, np.linalg.inv(S)
    new_m, new_S = o.fisher_natural_gradient_step(m, S, dm, dS, gamma)
    new_P = P - 2.0 * gamma * dS
    np.testing.assert_allclose(new_S, np.linalg.inv(new_P), rtol=1e-9)
    np.testing.assert_allclose(new_m, np.linalg.solve(new_P, P @ m + gamma * (dm - 2.0 * dS @ m)), rtol=1e-9)
