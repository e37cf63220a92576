"""Natural gradients of the O(M) posterior against brute force, where they end, and how they are kept safe."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

import diagonal_oracles as d
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles as o
import pytest
from diagonal_checks import (
    IDS,
    RULES,
    M,
    N,
    everything,
    given,
    gradient,
    random_shift,
    shifted,
    slopes,
    steps,
)
from lattice import LENGTHSCALE, NOISE, VARIANCE, close, precision_form, problem

from pseudopoint import bounds
from pseudopoint.data import dataset, take
from pseudopoint.kernels import RBF, Matern52
from pseudopoint.likelihoods import Bernoulli, Gaussian, Heteroscedastic, StudentT
from pseudopoint.optimise.fullbatch import converge
from pseudopoint.optimise.minibatch import (
    DiagonalPrecisionAffine,
    DiagonalPrecisionFixedPoint,
    DiagonalPrecisionNaturalGradient,
    constant,
)
from pseudopoint.optimise.minibatch.diagonal import Local, NaturalDiagonalRule, precision_direction
from pseudopoint.params import cast
from pseudopoint.posteriors import DiagonalPrecision, IndependentLatents, LogPrecision, Model, Whitened

# --- the natural gradient --------------------------------------------------------------------------------------------


def test_the_direction_is_brute_force_in_all_coordinates():
    p, (mu, g) = given(), random_shift(1)
    K = p.dense().Kuu
    m, S = d.moments(K, mu, g)
    dm, dS = slopes(p, m, S)
    _, (dmu, dg) = gradient(shifted(p, mu, g), p.data())
    close(dmu, K @ dm, 1e-11)
    close(dg, -np.diag(S @ dS @ S), 1e-11)
    delta = np.asarray(precision_direction(jnp.asarray(S), jnp.ones(M), dg, jnp.zeros(M, bool), 0.0))
    of = d.coordinates(K)
    start = {"m": m, "mu": mu, "theta": np.linalg.solve(S, m)}
    vector = {"m": S @ dm, "mu": np.linalg.solve(K + K @ np.diag(g) @ K, dmu), "theta": dm + m * delta}
    for name in of:
        close(np.concatenate([vector[name], delta]), d.natural_gradient(of[name], np.r_[start[name], g], dm, dS), 1e-10)
    F, D = d.fisher(of["theta"], np.r_[start["theta"], g]), np.diag(m)
    close(F, np.block([[S, -S @ D], [-D @ S, 0.5 * S * S + D @ S @ D]]), 1e-12)
    close(d.fisher(of["m"], np.r_[m, g])[:M, M:], np.zeros((M, M)), 1e-12)


@pytest.mark.parametrize("jitter", [0.0, 1e-3])
def test_a_step_of_g_follows_the_natural_gradient_also_with_jitter_in_the_posterior(jitter):
    # With jitter the family is that of g̃ = g/(1 + εk̄g), in the coordinate g. The solve has the same jitter.
    p, (mu, g) = given(), random_shift(1)
    K, k = p.dense().Kuu, jitter * VARIANCE
    family = lambda xi: d.coordinates(K)["mu"](np.concatenate([xi[:M], xi[M:] / (1 + k * xi[M:])]))
    xi = np.r_[mu, g]
    F, slope = d.fisher(family, xi)[M:, M:], d.slope(family, xi, *slopes(p, *family(xi)))[M:]
    delta = np.linalg.solve(F + jitter * np.diag(np.diag(F)), slope)
    gamma = 1e-3
    ours, _ = steps(DiagonalPrecisionNaturalGradient, gamma, shifted(p, mu, g, jitter=jitter), p.data(), 1)
    close(ours.posterior.q.g, g + gamma * delta + 0.5 * gamma**2 * np.minimum(delta, 0) ** 2 / g, 1e-11)


def test_the_rule_of_the_thesis_is_the_dense_direction_cut_off_and_not_the_natural_gradient():
    p, (mu, g) = given(), random_shift(1)
    K = p.dense().Kuu
    m, S = d.moments(K, mu, g)
    dm, dS = slopes(p, m, S)
    brute = d.natural_gradient(d.coordinates(K)["mu"], np.r_[mu, g], dm, dS)
    gamma = 1e-2
    after, _ = steps(DiagonalPrecisionAffine, gamma, shifted(p, mu, g), p.data(), 1)
    close((after.posterior.q.mu - mu) / gamma, brute[:M], 1e-9)
    close((after.posterior.q.g - g) / gamma, -2 * np.diag(dS), 1e-9)
    # The same from (3.20): ∂L/∂η times the Jacobian of θ ↦ (K⁻¹Sθ₁, diag(P − K⁻¹)), by differences along Δθ = ∂L/∂η.
    h = 1e-7
    at = lambda s: (np.linalg.inv(S) @ m + s * (dm - 2 * dS @ m), np.linalg.inv(S) - 2 * s * dS)
    pulled = lambda s: np.r_[np.linalg.solve(K, np.linalg.solve(at(s)[1], at(s)[0])), np.diag(at(s)[1])]
    affine = (pulled(h) - pulled(-h)) / (2 * h)
    close(np.r_[after.posterior.q.mu - mu, after.posterior.q.g - g] / gamma, affine, 1e-6)
    assert np.abs(-2 * np.diag(dS) / brute[M:] - 1).max() > 1


def test_the_rule_of_the_thesis_ends_where_the_bound_still_climbs():
    p = given()
    start = shifted(p, np.zeros(M), np.ones(M))
    thesis, _ = steps(RULES[2], 1.0, start, p.data())
    exact, _ = steps(DiagonalPrecisionNaturalGradient, 1.0, start, p.data())
    dense = p.dense()
    A = np.linalg.solve(dense.Kuu, dense.Kuf)
    # diag(∂L/∂S) = 0: g is the diagonal of the dense optimum's precision without the prior's.
    close(thesis.posterior.q.g, (A**2) @ (p.weight / dense.noise), 1e-9)
    low, (dmu, dg) = gradient(thesis, p.data())
    high, (_, dg_exact) = gradient(exact, p.data())
    close(dmu, 0 * dmu, 1e-9)
    scaled = lambda model, dg: np.abs(model.posterior.q.g * dg).max()
    assert scaled(exact, dg_exact) < 1e-6 and scaled(thesis, dg) > 0.05 and high > low + 0.01


# --- where steps end -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_one_full_step_lands_on_the_mean_of_the_dense_optimum(rule):
    p = given()
    after, _ = steps(rule, 1.0, shifted(p, *random_shift()), p.data(), 1)
    dense = p.dense()
    m, _ = o.optimal_q(dense.Kuf, dense.Kuu, dense.noise / p.weight, p.y)
    close(dense.Kuu @ after.posterior.q.mu, m, 1e-8)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_at_z_equal_to_x_every_rule_ends_in_the_exact_posterior(rule):
    # (K⁻¹ + Λ)⁻¹ is the posterior itself: the family holds it, and g = Λ is the precision of the rows.
    p = problem(5, 8, everywhere=True)
    after, _ = steps(rule, 1.0, shifted(p, *random_shift(2, 8)), p.data())
    close(after.posterior.q.g, 1 / p.dense().noise, 1e-5)
    close(gradient(after, p.data())[0], bounds.marginal(p.model(), p.data()).value, 1e-9)


def test_the_two_exact_rules_end_in_one_stationary_point_below_the_dense_optimum():
    p = given()
    start = shifted(p, np.zeros(M), np.ones(M))
    ends = [steps(rule, 1.0, start, p.data())[0] for rule in RULES[:2]]
    dense = p.dense()
    vfe = bounds.collapsed(p.sparse(), p.data()).standard
    for model in ends:
        bound, slope = gradient(model, p.data())
        close(slope[1] * model.posterior.q.g, np.zeros(M), 1e-6)
        assert vfe - 2 < bound < vfe
        # (S∘S)g = (W∘W)λ
        g = np.asarray(model.posterior.q.g)
        S = d.moments(dense.Kuu, g, g)[1]
        W = S @ np.linalg.solve(dense.Kuu, dense.Kuf)
        close((S * S) @ g, (W * W) @ (p.weight / dense.noise), 1e-7)
    close(ends[0].posterior.q.g, ends[1].posterior.q.g, 1e-4)


@pytest.mark.parametrize("rule", RULES[:2], ids=IDS[:2])
def test_classification_ends_in_a_stationary_point_below_the_dense_optimum(rule):
    p = given()
    data = dataset(p.X, (p.y > 0).astype(float))
    model, info = steps(rule, 1.0, shifted(p, np.zeros(M), np.ones(M), likelihood=Bernoulli("logit")), data)
    bound, (dmu, dg) = gradient(model, data)
    close(dmu, np.zeros(M), 1e-6)
    close(dg * model.posterior.q.g, np.zeros(M), 1e-6)
    q = precision_form(np.zeros(M), np.eye(M))
    dense = cast(Model(model.kernel, Bernoulli("logit"), Whitened(p.Z, q, 0.0)), jnp.float64)
    best = bounds.elbo(converge(dense, data, tight=False), data, N).standard
    assert best - 0.5 < bound < best and info.bound[0] < bound and not info.rejected.any()


# --- safety ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.1, 1.0])
def test_g_stays_positive_for_every_step_and_any_likelihood(gamma):
    # Outliers make log p(y | f) convex: ∂/∂V E log p > 0 there, and the target of g negative.
    p = given()
    y = p.y + 8 * (np.arange(N) % 3 == 0)
    data = dataset(p.X, y)
    start = shifted(p, np.zeros(M), random_shift(4)[1], likelihood=StudentT(0.1, 3.0))
    for rule in RULES[:2]:
        model, info = steps(rule, gamma, start, data)
        assert not info.rejected.any() and (model.posterior.q.g > 0).all()
        assert info.bound[-1] > info.bound[0] + 10


def test_the_guard_undoes_what_leaves_the_family():
    p = given()
    data = dataset(p.X, np.full(N, 9.0))
    wide = shifted(p, np.zeros(M), np.full(M, 1e-3), likelihood=StudentT(0.1, 3.0))
    model, info = steps(RULES[2], 1.0, wide, data, 1)
    assert info.rejected.all()
    for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(wide), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_step_shrinks_g_the_more_the_lower_its_target_and_never_more_than_by_half():
    # ½g (1 + (1 + x)²) alone has a minimum at x = −1 and, at x = −2, a fixed point where nothing is stationary.
    g, one = jnp.ones(7), jnp.ones((1, 1))
    x = jnp.array([-50.0, -2.0, -1.0, -0.5, -1e-6, 0.0, 3.0])
    zeros = jnp.zeros((1, 1))

    def after(x):
        at = Local(one, one, g[:1], g[:1], zeros, zeros[0], zeros[0], g[:1], g[:1], g[:1], 0.5 * x[None], one)
        return NaturalDiagonalRule().move(at, 1.0, 0.0)[1][0]

    ours = jax.jit(jax.vmap(after))(x)
    close(ours, [0.5, 0.5, 0.5, 0.625, 1 - 1e-6, 1.0, 4.0], 1e-11)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_minibatches_with_hyperparameters_in_the_same_pass_climb(rule):
    p = problem(0, 96, M)
    every = p.data()
    start = shifted(p, np.zeros(M), np.ones(M), jitter=None)
    one = rule(constant(0.1), hyper_optimiser=optax.adam(0.02), frozen=(lambda m: m.kernel.variance,))

    @jax.jit
    def run(model):
        def body(carry, batch):
            model, state, info = one.step(*carry, batch, 96)
            return (model, state), info

        rows = np.random.default_rng(1).integers(0, 96, (150, 16))
        return jax.lax.scan(body, (model, one.init(model, 96)), take(every, rows))

    (model, state), info = run(start)
    assert not info.rejected.any() and state.guard.scale == 1 and (model.posterior.q.g > 0).all()
    assert model.kernel.variance == start.kernel.variance
    assert (model.kernel.lengthscale != start.kernel.lengthscale).all() and (
        model.posterior.Z != start.posterior.Z
    ).any()
    optimum, _ = steps(rule, 1.0, start, every)
    assert gradient(model, every)[0] > gradient(optimum, every)[0] - 1


# --- several functions, single precision -----------------------------------------------------------------------------


@pytest.mark.parametrize("separate", [False, True], ids=["shared", "separate"])
def test_several_latent_functions_are_single_ones_side_by_side(separate):
    p = given()
    scales = [LENGTHSCALE, 1.4 * LENGTHSCALE if separate else LENGTHSCALE]
    singles = [
        eqx.tree_at(lambda m: m.kernel, shifted(p, *random_shift(c)), cast(Matern52(scale, VARIANCE), jnp.float64))
        for c, scale in enumerate(scales)
    ]
    stack = lambda *leaves: jnp.stack(leaves)
    q = jax.tree.map(stack, *(s.posterior.q for s in singles))
    kernel = jax.tree.map(stack, *(s.kernel for s in singles)) if separate else singles[0].kernel
    several = IndependentLatents(base=DiagonalPrecision(jnp.asarray(p.Z), q, 0.0), separate=separate)

    @jax.jit
    def all_of(several, kernel):
        projection = several.project(kernel)
        predictor = projection.predictor()
        return projection.divergence, predictor(p.Xs), predictor.share.jitter, predictor.own.W

    divergence, moments, jitter, W = all_of(several, kernel)
    alone = [everything(s, p.Xs) for s in singles]
    close(divergence, sum(a[0] for a in alone), 1e-12)
    close(moments, np.stack([a[2:4] for a in alone], axis=1), 1e-12)
    assert (jitter == 0).all() and W.shape == (2, M, M)

    data = dataset(p.X, p.y)
    model = cast(Model(kernel, Heteroscedastic(0.5), several), jnp.float64)
    after, info = steps(RULES[int(separate)], 0.5, model, data)
    assert not info.rejected.any() and info.bound[-1] > info.bound[0] + 5
    assert after.posterior.q.g.shape == (2, M) and (after.posterior.q.g > 0).all()


def test_functions_without_a_common_likelihood_step_as_if_alone():
    # The second function is all but zero, so the first one sees a Gaussian likelihood of variance 0.5².
    p, (mu, g) = given(), random_shift()
    data = dataset(p.X, p.y)
    kernels = [cast(Matern52(LENGTHSCALE, v), jnp.float64) for v in (VARIANCE, 1e-14)]
    q = cast(LogPrecision(np.stack([mu, 0 * mu]), np.stack([g, np.ones(M)])), jnp.float64)
    several = IndependentLatents(base=DiagonalPrecision(jnp.asarray(p.Z), q, 0.0), separate=True)
    two = cast(Model(jax.tree.map(lambda *k: jnp.stack(k), *kernels), Heteroscedastic(0.5), several), jnp.float64)
    one = shifted(p, mu, g, likelihood=Gaussian(0.25))
    after, single = (steps(DiagonalPrecisionFixedPoint, 0.5, m, data, 1)[0].posterior.q for m in (two, one))
    close(after.g[0], single.g, 1e-8)
    close(after.mu[0], single.mu, 1e-8)


def test_single_precision_fits_as_double_does():
    p = given()
    with jax.enable_x64(False):
        kernel, posterior = RBF(LENGTHSCALE, VARIANCE), DiagonalPrecision(p.Z, LogPrecision(np.zeros(M), np.ones(M)))
        model = cast(Model(kernel, Gaussian(NOISE), posterior), jnp.float32)
        after, info = steps(DiagonalPrecisionNaturalGradient, 1.0, model, dataset(p.X, p.y, dtype=jnp.float32))
        assert after.posterior.q.g.dtype == jnp.float32 and not info.rejected.any()
    double = cast(model, jnp.float64)
    truth, exact = steps(DiagonalPrecisionNaturalGradient, 1.0, double, dataset(p.X, p.y))
    np.testing.assert_allclose(info.bound[-1], exact.bound[-1], atol=1e-2)
    np.testing.assert_allclose(after.posterior.q.g, truth.posterior.q.g, rtol=2e-2)
