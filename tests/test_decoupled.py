"""The decoupled families against dense Gaussians and each other, their optima, and their natural gradients."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast`; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false

from functools import cache, partial
from itertools import combinations

import decoupled_oracles as d
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles as o
import pytest
from lattice import (
    LENGTHSCALE,
    NOISE,
    VARIANCE,
    close,
    elbo,
    exact,
    precision_form,
    problem,
    random_q,
    repeated,
    sparse,
)

from pseudopoint import bounds
from pseudopoint.gaussians import MeanChol
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import (
    CollapsedDecoupled,
    Decoupled,
    Hybrid,
    IndependentLatents,
    InverseHybrid,
    Orthogonal,
    Unwhitened,
)

N, M, G, JITTER = 24, 6, 5, 1e-3
with jax.enable_x64(True):
    P = problem(3, N, M, weighted=True)
    ROWS = P.data()
Z, rng = P.Z, np.random.default_rng(11)
O = rng.normal(size=(G, 2))
MEAN, S = random_q(1, M)
a, b, R = rng.normal(size=G), rng.normal(size=M), np.tril(rng.normal(size=(M, M)))
XS = np.asarray(P.Xs)
ALL_NOISE = NOISE + P.noise


def k(A, B):
    return o.matern52(A, B, LENGTHSCALE, VARIANCE)


def chol(A):
    return np.linalg.cholesky(A)


# q(u) = N(MEAN, S) in all; those of (8) have R for the covariance.
K = d.joint(k, Z, O, JITTER)
KUU = K[:M, :M]
L = chol(KUU)
WHITE = MeanChol(np.linalg.solve(L, MEAN), np.linalg.solve(L, chol(S)))
BOTH = np.concatenate([O, Z])
FAMILIES = {
    "orthogonal": Orthogonal(Z, O, WHITE, a, jitter=JITTER),
    "hybrid": Hybrid(Z, O, WHITE, a, jitter=JITTER),
    "decoupled": Decoupled(Z, O, a, R, jitter=JITTER),
    "inverse hybrid": InverseHybrid(Z, O, a, b, R, jitter=JITTER),
}
EACH = pytest.mark.parametrize("name", FAMILIES)


def truth(name, X):
    """Mean and variance at X, and q at the points in which the KL is taken, by the dense formulas."""
    if name in ("orthogonal", "hybrid"):
        mean = {"orthogonal": d.orthogonal_mean, "hybrid": d.hybrid_mean}[name]
        # At the points themselves the mean is that of f plus the jitter's share.
        there = K[M:, M:] - K[M:, :M] @ np.linalg.solve(KUU, K[:M, M:])
        at_O = there @ a + K[M:, :M] @ np.linalg.solve(KUU, MEAN)
        q = d.at_all(K, np.concatenate([MEAN, at_O]), S)
        if name == "hybrid":
            u = MEAN + K[:M, M:] @ a
            q = d.at_all(K, np.concatenate([u, there @ a + K[M:, :M] @ np.linalg.solve(KUU, u)]), S)
        return mean(k, KUU, X, Z, O, MEAN, a), d.variance(k, KUU, X, Z, S), d.divergence(q, K)
    coefficients = np.concatenate([np.zeros(M) if name == "decoupled" else b, a])
    mean = k(X, np.concatenate([Z, O])) @ coefficients
    return (
        mean,
        d.inverse_variance(k, KUU, X, Z, R @ R.T),
        d.divergence(d.inverse_at_all(K, M, K @ coefficients, R @ R.T), K),
    )


@jax.jit
def everything(model, data, Xs):
    """KL, E log p + entropy, q(f) at the rows, predictions at Xs, and both bounds."""
    projection = model.posterior.project(model.kernel)
    marginals, predictor = projection.marginals(data.X), projection.predictor()
    bound = bounds.elbo(model, data, N)
    kl = projection.divergence
    return kl, marginals, predictor(Xs), predictor.covariance(Xs), bound.standard, bound.value


@cache
def ours(name):
    return everything(P.model(FAMILIES[name]), ROWS, P.Xs)


# --- The families ---


@EACH
def test_the_divergence_is_that_of_dense_gaussians_at_all_points(name):
    close(ours(name)[0], truth(name, XS)[2], 1e-10)
    assert ours(name)[0] > 1


@EACH
def test_marginals_and_predictions_are_those_of_the_dense_formula(name):
    _, marginals, predicted, joint, _, _ = ours(name)
    mean, variance, _ = truth(name, P.X)
    close(marginals.mean, mean, 1e-10)
    close(marginals.explained + marginals.residual, variance, 1e-10)
    close(predicted, truth(name, XS)[:2], 1e-10)
    close(np.diag(joint), predicted[1], 1e-12)
    # The residual is that of Z alone: O takes nothing from the variance (the trap of methods a.5).
    close(marginals.residual, VARIANCE - np.diag(o.nystrom(k(Z, P.X), KUU)), 1e-10)


@EACH
def test_the_bounds_are_those_of_the_dense_formula(name):
    mean, variance, kl = truth(name, P.X)
    vfe = d.fit(mean, variance, P.y, ALL_NOISE, P.weight) - kl
    x = P.weight * (VARIANCE - np.diag(o.nystrom(k(Z, P.X), KUU))) / ALL_NOISE
    close(ours(name)[4], vfe, 1e-10)
    close(ours(name)[5], vfe + 0.5 * np.sum(x - np.log1p(x)), 1e-10)


@EACH
def test_gradients_are_those_of_finite_differences(name):
    every = trainable(P.model(FAMILIES[name]))
    value = jax.jit(lambda v: bounds.elbo(every.rebuild(v), ROWS, N).value)
    check_gradient(value, every.vector)


def check_gradient(value, at, count=6):
    slope = np.asarray(jax.jit(jax.grad(value))(at))
    directions = np.random.default_rng(5).normal(size=(count, len(at)))
    for direction in directions:
        h = 1e-5
        # Two central differences and Richardson's extrapolation: h⁴
        one, two = ((value(at + s * h * direction) - value(at - s * h * direction)) / (2 * s * h) for s in (1, 2))
        close(slope @ direction, (4 * one - two) / 3, 1e-6)


def test_the_quadratic_term_from_some_columns_is_right_on_average():
    @jax.jit
    def value(posterior, columns):
        model = P.model(eqx.tree_at(lambda p: p.columns, posterior, columns, is_leaf=lambda x: x is None))
        return model.posterior.project(model.kernel).log_prior

    for name in ("orthogonal", "hybrid", "decoupled"):
        posterior = cast(FAMILIES[name], jnp.float64)
        few = [value(posterior, jnp.asarray(columns)) for columns in combinations(range(G), 2)]
        close(np.mean(few), value(posterior, None), 1e-12)
        assert np.std(few) > 0.1


@pytest.mark.parametrize("name", ["orthogonal", "hybrid", "decoupled"])
def test_with_some_columns_a_slope_takes_memory_linear_in_the_number_of_mean_points(name):
    def bytes_of(size, count):
        columns = None if count is None else jnp.arange(count)
        posterior = eqx.tree_at(
            lambda p: (p.O, p.a, p.columns),
            cast(FAMILIES[name], jnp.float64),
            (jnp.ones((size, 2)), jnp.ones(size), columns),
            is_leaf=lambda x: x is None,
        )
        numbers = trainable(P.model(posterior))
        slope = jax.jit(jax.grad(lambda x: bounds.energy(numbers.rebuild(x), ROWS, N)))
        used = slope.lower(numbers.vector).compile().memory_analysis()
        assert used is not None
        return used.temp_size_in_bytes

    few, twice = bytes_of(2000, 10), bytes_of(4000, 10)
    assert twice < 2.2 * few < 0.1 * bytes_of(2000, None)


# --- The lattice ---


def test_orthogonal_without_mean_points_is_whitened():
    empty = Orthogonal(Z, np.zeros((0, 2)), precision_form(MEAN, S), np.zeros(0), jitter=0.0)
    plain, decoupled = (elbo(model, ROWS, P.Xs) for model in (P.whitened(MEAN, S), P.model(empty)))
    for theirs, ours in zip(jax.tree.leaves(plain), jax.tree.leaves(decoupled), strict=True):
        close(ours, theirs, 1e-14)
    of, coupled = bounds.collapsed_orthogonal(P.model(empty), ROWS), sparse(P.sparse(), ROWS, P.Xs)
    close((of.standard, of.value), (coupled.vfe, coupled.tight), 1e-12)
    close(of.predictor()(P.Xs), coupled.moments, 1e-10)


def test_mean_points_at_the_pseudo_points_or_twice_change_nothing():
    # c(O, O) is of the jitter's size there, or singular.
    (tight, vfe, predicted), _, best = optimum(mean_points(np.concatenate([O, Z, O]), None), ROWS, P.Xs)
    (tight_once, vfe_once, predicted_once), _, _ = optimum(mean_points(O, None), ROWS, P.Xs)
    close((tight, vfe), (tight_once, vfe_once), 1e-7)
    close(predicted, predicted_once, 1e-6)
    close(best.posterior.a[:G], best.posterior.a[G + M :], 1e-6)


def test_decoupled_with_the_same_points_twice_is_unwhitened():
    # S = K − K(B⁻¹ + K)⁻¹K, m = Ka
    cov = KUU - KUU @ np.linalg.solve(np.linalg.inv(R @ R.T) + KUU, KUU)
    posterior = Decoupled(Z, Z, b, R, jitter=JITTER)
    plain = P.model(Unwhitened(Z, precision_form(KUU @ b, cov), jitter=JITTER))
    for ours, theirs in zip(*(jax.tree.leaves(elbo(m, ROWS, P.Xs)) for m in (P.model(posterior), plain)), strict=True):
        close(ours, theirs, 1e-9)


def test_hybrids_are_orthogonal_at_matching_parameters():
    shifted = MeanChol(np.linalg.solve(L, MEAN + K[:M, M:] @ a), WHITE.chol)
    orthogonal = everything(P.model(Orthogonal(Z, O, shifted, a, jitter=JITTER)), ROWS, P.Xs)
    for theirs, mine in zip(jax.tree.leaves(orthogonal), jax.tree.leaves(ours("hybrid")), strict=True):
        close(mine, theirs, 1e-10)
    # S = (I + LᵀBL)⁻¹, and k_xZ b = aᵀLᵀb
    half = np.linalg.inv(chol(np.eye(M) + L.T @ R @ R.T @ L)).T
    hybrid = Hybrid(Z, O, MeanChol(L.T @ b, chol(half @ half.T)), a, jitter=JITTER)
    for theirs, mine in zip(
        jax.tree.leaves(everything(P.model(hybrid), ROWS, P.Xs)), jax.tree.leaves(ours("inverse hybrid")), strict=True
    ):
        close(mine, theirs, 1e-9)


@pytest.mark.parametrize("name", ["orthogonal", "decoupled"])
def test_several_latent_functions_are_single_ones_side_by_side(name):
    second = {
        "orthogonal": Orthogonal(Z, O, MeanChol(b, np.eye(M) + np.abs(R)), 2 * a, jitter=JITTER),
        "decoupled": Decoupled(Z, O, 2 * a, np.eye(M), jitter=JITTER),
    }
    pair = [cast(p, jnp.float64) for p in (FAMILIES[name], second[name])]
    own = lambda p: [getattr(p, field) for field in p.own]
    each = eqx.tree_at(own, pair[0], jax.tree.map(lambda *x: jnp.stack(x), *map(own, pair)))

    @jax.jit
    def look(posterior, kernel, X):
        projection = posterior.project(kernel)
        predictor = projection.predictor()
        return (tuple(projection.marginals(X)), predictor(X), predictor.covariance(X)), projection.divergence

    kernel = P.model().kernel
    several, divergence = look(IndependentLatents(base=each), kernel, P.Xs)
    single = [look(p, kernel, P.Xs) for p in pair]
    for c in range(2):
        for mine, alone in zip(jax.tree.leaves(several), jax.tree.leaves(single[c][0]), strict=True):
            close(mine[c], alone, 1e-12)
    close(divergence, single[0][1] + single[1][1], 1e-12)


# --- Optima for a Gaussian likelihood ---


@partial(jax.jit, static_argnums=3)
def optimum(model, data, Xs, chunk=None):
    """Collapsed bounds and predictions, and those of the model that attains them."""
    best = bounds.optimal_orthogonal(model, data, chunk)
    look = lambda bound, predictor: (bound.value, bound.standard, predictor(Xs))
    of = bounds.collapsed_orthogonal(model, data, chunk)
    return look(of, of.predictor()), look(bounds.elbo(best, data, N), best.predictor()), best


def mean_points(O=O, jitter: float | None = 0.0):
    return P.model(CollapsedDecoupled(Z, O, jitter))


def collapsed_truth(Qmean, tight=False):
    """Of all rows of P, each as often as its weight says (tight: a row's weight is within the logarithm)."""
    r = P if tight else repeated(P)
    noise = (NOISE + r.noise) / (P.weight if tight else 1)
    value = d.collapsed(Qmean(r.X), VARIANCE * np.ones(len(r.y)), k(Z, r.X), k(Z, Z), noise, r.y, tight)
    # Seen w times instead of once with variance σ²/w: as in `bounds.marginal`.
    w = P.weight
    return value - (0.5 * np.sum((w - 1) * np.log(2 * np.pi * ALL_NOISE) + np.log(w)) if tight else 0)


def Q_of(points):
    return lambda X: o.nystrom(k(points, X), k(points, points))


@pytest.mark.parametrize("jitter", [0.0, None])
def test_the_collapsed_bounds_are_those_of_the_elbo_at_the_optimum(jitter):
    (tight, vfe, predicted), (tight_there, vfe_there, predicted_there), _ = optimum(mean_points(O, jitter), ROWS, P.Xs)
    close(tight_there, tight, 1e-9)
    close(vfe_there, vfe, 1e-9)
    close(predicted_there, predicted, 1e-9)
    assert tight > vfe


def test_the_collapsed_bounds_are_those_of_the_dense_formula_also_in_chunks():
    for chunk in (None, 7):
        (tight, vfe, _), _, _ = optimum(mean_points(), ROWS, P.Xs, chunk)
        close(vfe, collapsed_truth(Q_of(np.concatenate([Z, O]))), 1e-9)
        close(tight, collapsed_truth(Q_of(np.concatenate([Z, O])), True), 1e-9)


def test_the_best_parameters_leave_no_slope():
    _, _, best = optimum(mean_points(), ROWS, P.Xs)
    slopes = jax.jit(jax.grad(lambda model: bounds.elbo(model, ROWS, N).value))
    slope, scale = slopes(best), slopes(P.model(Orthogonal(Z, O, precision_form(MEAN, S), a, jitter=0.0)))
    assert np.abs(slope.posterior.a).max() < 1e-9 * np.abs(scale.posterior.a).max()
    assert np.abs(slope.posterior.q.mean).max() < 1e-9 * np.abs(scale.posterior.q.mean).max()
    assert np.abs(slope.posterior.q.precision).max() < 1e-10


def test_with_mean_points_at_the_rows_the_quadratic_form_is_exact():
    (tight, vfe, predicted), _, _ = optimum(mean_points(P.X), ROWS, P.Xs)
    close(vfe, collapsed_truth(lambda X: k(X, X)), 1e-8)
    evidence, (mean, _) = exact(P.model(), ROWS, P.Xs)
    close(predicted[0], mean, 1e-8)
    coupled = sparse(P.sparse(), ROWS, P.Xs)
    (tight_few, vfe_few, _), _, _ = optimum(mean_points(), ROWS, P.Xs)
    assert coupled.vfe < vfe_few < vfe < tight <= evidence and coupled.tight < tight_few < tight


def test_the_residual_of_all_points_would_give_a_lower_bound():
    # SOLVE-GP's residual, given Z and O, within the logarithm leaves ‖C^-½c‖²/σ² outside it (the trap of methods a.5).
    Qz, Qzo = Q_of(Z)(P.X), Q_of(np.concatenate([Z, O]))(P.X)
    between, beyond = np.diag(Qzo - Qz) * P.weight / ALL_NOISE, (VARIANCE - np.diag(Qzo)) * P.weight / ALL_NOISE
    trap = collapsed_truth(Q_of(np.concatenate([Z, O]))) + 0.5 * np.sum(beyond - np.log1p(beyond))
    (tight, vfe, _), _, _ = optimum(mean_points(), ROWS, P.Xs)
    close(tight - trap, 0.5 * np.sum(between + np.log1p(beyond) - np.log1p(between + beyond)), 1e-8)
    assert vfe < trap < tight - 1


@pytest.mark.parametrize("family", ["orthogonal", "decoupled"])
def test_the_collapsed_bound_has_the_gradients_of_finite_differences(family):
    every = trainable(mean_points(O, 1e-6))
    of = {"orthogonal": bounds.collapsed_orthogonal, "decoupled": bounds.collapsed_decoupled}[family]
    check_gradient(jax.jit(lambda v: of(every.rebuild(v), ROWS).value), every.vector)


def test_the_decoupled_optimum_is_that_of_its_parameters_and_with_all_points_the_orthogonal_one():
    of = bounds.collapsed_decoupled(mean_points(), ROWS)
    close(of.standard, collapsed_truth(Q_of(O)), 1e-9)
    precision = P.weight / ALL_NOISE
    best = np.linalg.solve(k(O, O) + (k(O, P.X) * precision) @ k(P.X, O), k(O, P.X) @ (precision * P.y))
    T = np.linalg.solve(k(Z, Z), k(Z, P.X))
    there = elbo(P.model(Decoupled(Z, O, best, chol((T * precision) @ T.T), jitter=0.0)), ROWS, P.Xs)
    close(there.vfe, of.standard, 1e-9)
    close(there.tight, of.value, 1e-9)
    close(there.moments, of.predictor()(P.Xs), 1e-8)
    both = bounds.collapsed_decoupled(mean_points(BOTH), ROWS)
    (tight, vfe, predicted), _, _ = optimum(mean_points(), ROWS, P.Xs)
    close(both.value, tight, 1e-8)
    close(both.standard, vfe, 1e-8)
    close(both.predictor()(P.Xs), predicted, 1e-8)
