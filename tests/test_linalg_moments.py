"""`Factor.moments` against its formula in sixty digits, and in float32 against the two steps that it takes at once."""

from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint.linalg import factorise, quad_diag

M, B = 6, 4
rng = np.random.default_rng(0)
rbf = lambda X, Z: np.exp(-0.5 * ((X[:, None] - Z) ** 2).sum(-1))
factor = jax.jit(factorise)


def problem(gap):
    """K, k, the prior variances, m and S, of points that stand `gap` apart; the jitter is in K."""
    Z, X = gap * np.arange(M)[:, None], rng.uniform(0, gap * (M - 1), (B, 1))
    root = rng.normal(size=(M, M))
    return rbf(Z, Z) + 1e-8 * np.eye(M), rbf(Z, X), np.ones(B), rng.normal(size=M), root @ root.T / M


# --- the formula in decimal numbers ----------------------------------------------------------------------------------

exactly = np.vectorize(Decimal, otypes=[object])


def decimal_moments(K, k, prior, m, S):
    """μ = kᵀL⁻ᵀm and v = kᵢᵢ − kᵀK⁻¹k + kᵀL⁻ᵀSL⁻¹k, row by row, of a lower triangular L with LLᵀ = K."""
    L, A = 0 * K, k.copy()
    for i in range(len(K)):
        for j in range(i + 1):
            rest = K[i, j] - L[i, :j] @ L[j, :j]
            L[i, j] = rest.sqrt() if i == j else rest / L[j, j]
        A[i] = (k[i] - L[i, :i] @ A[:i]) / L[i, i]
    return A.T @ m, prior - (A * A).sum(axis=0) + (A * (S @ A)).sum(axis=0)


def decimal_slopes(arguments, alpha, g, h=Decimal("1e-25")):
    """The gradient of αᵀμ + gᵀv entry by entry; K and S are moved as symmetric matrices."""

    def at(i, index, shift):
        moved = [argument.copy() for argument in arguments]
        moved[i][index] += shift / 2
        moved[i][index[::-1] if i in (0, 4) else index] += shift / 2
        mu, v = decimal_moments(*moved)
        return alpha @ mu + g @ v

    for i, argument in enumerate(arguments):
        slope = [(at(i, index, h) - at(i, index, -h)) / (2 * h) for index in np.ndindex(argument.shape)]
        yield np.reshape(slope, argument.shape).astype(float)


@jax.jit
def value_and_slopes(arguments, alpha, g):
    value, pull = jax.vjp(lambda K, *rest: factorise(K).moments(*rest), *arguments)
    return value, pull((alpha, g))


@pytest.mark.parametrize("gap, condition", [(2.0, 1e0), (0.2, 1e8)])
def test_moments_and_their_slopes_in_all_arguments_are_those_of_sixty_digits(gap, condition):
    arguments, (alpha, g) = problem(gap), rng.normal(size=(2, B))
    cond = np.linalg.cond(arguments[0])
    assert 0.5 < cond / condition < 2
    value, slopes = value_and_slopes(arguments, alpha, g)
    with localcontext() as context:
        context.prec = 60
        exact = [exactly(argument) for argument in arguments]
        truth = [np.asarray(part, float) for part in decimal_moments(*exact)]
        true_slopes = list(decimal_slopes(exact, exactly(alpha), exactly(g)))
    # ε cond(L) for what holds L⁻¹ once on each side, ε cond(K) for the slopes in K and k, which hold K⁻¹. A formula
    # with K⁻¹ in place of L⁻¹ would have ε cond(K) in all.
    close = lambda ours, truth, cond: np.abs(ours - truth).max() < 10 * np.finfo(float).eps * cond * np.abs(truth).max()
    for ours, exact_part in zip(value, truth, strict=True):
        assert close(ours, exact_part, np.sqrt(cond))
    for ours, exact_part, power in zip(slopes, true_slopes, (1, 1, 0.5, 0.5, 0.5), strict=True):
        assert close(ours, exact_part, cond**power)


# --- rounding --------------------------------------------------------------------------------------------------------


@jax.jit
def at_once(F, k, prior, m, S):
    return F.moments(k, prior, m, S)


@jax.jit
def in_two_steps(F, k, prior, m, S):
    A = F.whiten(k)
    return m @ A, prior - jnp.sum(A**2, axis=0) + quad_diag(S, A)


@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])  # of S
def test_in_single_precision_moments_lose_no_more_than_three_times_what_two_steps_lose(size):
    rng, M, N = np.random.default_rng(2), 50, 300
    Z, X, root = rng.normal(size=(M, 2)), rng.normal(size=(N, 2)), rng.normal(size=(M, M))
    arguments = rbf(Z, X), np.ones(N), rng.normal(size=M), size * root @ root.T / M
    single = [argument.astype(np.float32) for argument in arguments]
    # From one factor, whose own error is larger than all that follows: float32 has taken half the digits there.
    F = factor((rbf(Z, Z) + 1e-5 * np.eye(M)).astype(np.float32))
    double = lambda tree: jax.tree.map(lambda leaf: np.asarray(leaf, float), tree)
    truth = in_two_steps(double(F), *double(single))
    bound = np.finfo(np.float32).eps * np.linalg.cond(double(F.L))
    for ours, two, exact in zip(at_once(F, *single), in_two_steps(F, *single), truth, strict=True):
        assert ours.dtype == jnp.float32
        lost, lost_in_two = (np.abs(double(part) - exact).max() for part in (ours, two))
        assert lost < 3 * lost_in_two and lost < bound * np.abs(exact).max()


def test_a_variance_that_rounding_swallowed_is_the_floor_and_moves_with_the_prior_alone():
    K, k, prior, m, S = problem(2.0)
    k[:, 0], prior[0] = K[:, 0], K[0, 0] * (1 - 1e-12)  # known at a pseudo-point: less than nothing is left
    pull = jax.jit(lambda *x: jax.vjp(lambda K, *rest: factorise(K).moments(*rest)[1], *x))
    v, slopes = pull(K, k, prior, m, 0 * S)
    floor = np.finfo(float).eps
    assert v[0] == floor * prior[0] and (np.asarray(v[1:]) > 1e-3).all()
    by_K, by_k, by_prior, by_m, by_S = slopes(np.eye(B)[0])
    np.testing.assert_array_equal(by_prior, [floor, 0, 0, 0])
    assert not any(np.any(slope) for slope in (by_K, by_k, by_m, by_S))


def test_several_latent_functions_have_each_its_own_moments():
    K, k, prior, m, S = problem(1.0)
    means, covs = np.stack([m, -2 * m]), np.stack([S, 3 * S])
    several = jax.jit(jax.vmap(at_once, (None, None, None, 0, 0)))(factor(K), k, prior, means, covs)
    for c in range(2):
        alone = at_once(factor(K), k, prior, means[c], covs[c])
        np.testing.assert_allclose([several[0][c], several[1][c]], alone, rtol=1e-12)
