"""SOLVE-GP: one SVGP of all pseudo-points with a block-diagonal covariance, and steps that land on its optimum."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles as o
import pytest
from lattice import close, elbo, precision_form, problem, random_q, repeated, sparse

from pseudopoint import bounds
from pseudopoint.data import dataset, draw, take
from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Bernoulli, Gaussian, Softmax, StudentT
from pseudopoint.optimise.minibatch import NaturalGradient, SolveNaturalGradient, averaging, constant
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, IndependentLatents, Model, SolveGP, Whitened, block_optimum

N, M, M2 = 24, 6, 4
P = problem(0, weighted=True)
O = np.random.default_rng(8).normal(size=(M2, 2))
BOTH = P._replace(Z=np.concatenate([P.Z, O]))
V, W = random_q(0, M), random_q(1, M2)
PRIOR = ((np.zeros(M), np.eye(M)), (np.zeros(M2), np.eye(M2)))


def solve(v=V, w=W, p=P, likelihood=None) -> Model:
    """q(v)q(w) at Z and O."""
    posterior = SolveGP(p.Z, O, precision_form(*v), precision_form(*w), jitter=0.0)
    return eqx.tree_at(lambda m: m.likelihood, p.model(posterior), cast(likelihood or Gaussian(0.15), jnp.float64))


def together(v=V, w=W):
    """The mean and the block-diagonal covariance of (v, w)."""
    S = np.block([[v[1], np.zeros((M, M2))], [np.zeros((M2, M)), w[1]]])
    return np.concatenate([v[0], w[0]]), S


# --- the family ------------------------------------------------------------------------------------------------------


def test_bound_and_moments_are_those_of_the_dense_formulas_row_by_repeated_row():
    L = np.linalg.cholesky(BOTH.dense().Kuu)
    m, S = together()
    q = (L @ m, L @ S @ L.T)
    d, many = BOTH.dense(), repeated(BOTH).dense()
    ours = elbo(solve(), P.data(), P.Xs)
    close(ours.vfe, o.elbo_gaussian(many.Kff_diag, many.Kuf, many.Kuu, *q, many.noise, repeated(P).y), 1e-10)
    close(ours.moments, o.sparse_predict(d.Ksu, d.Kss_diag, d.Kuu, *q), 1e-10)


def test_the_divergence_is_the_dense_one_and_the_sum_of_two():
    projection = jax.jit(lambda m: m.posterior.project(m.kernel))(solve())
    m, S = together()
    close(projection.divergence, o.gauss_kl(m, S, 0 * m, np.eye(M + M2)), 1e-11)
    parts = [o.gauss_kl(*q, 0 * q[0], np.eye(len(q[0]))) for q in (V, W)]
    close(projection.divergence, sum(parts), 1e-11)


@jax.jit
def everything(model, data, Xs):
    """Both bounds with the tight one's gradient in all that both families share, and predictions."""
    hyper = trainable(model, lambda m: m.posterior)
    value, slope = jax.value_and_grad(lambda x: bounds.elbo(hyper.rebuild(x), data, N).value)(hyper.vector)
    at = lambda points: bounds.elbo(eqx.tree_at(_points, model, points), data, N).value
    vfe, predictor = bounds.elbo(model, data, N).standard, model.predictor()
    return (vfe, value, slope, *predictor(Xs), predictor.covariance(Xs)), jax.grad(at)(_points(model)), predictor.Zv


def _points(model):
    return [model.posterior.Z, *([model.posterior.O] if isinstance(model.posterior, SolveGP) else [])]


def test_it_is_one_svgp_of_all_pseudo_points_with_a_block_diagonal_covariance():
    ours, slopes, Zv = everything(solve(), P.data(), P.Xs)
    truth, slope, _ = everything(BOTH.whitened(*together()), P.data(), P.Xs)
    for a, b in zip(ours, truth, strict=True):
        close(a, b, 1e-10)
    close(np.concatenate(slopes), slope[0], 1e-9)
    close(Zv, BOTH.Z, 1e-15)
    assert ours[1] > ours[0]  # tight and standard


def test_with_the_priors_covariance_of_w_it_is_the_orthogonally_decoupled_family():
    # E f = aᵀm + c(x, O)a,  V f = aᵀSa + k − ‖a‖²,  KL = KL[q(v)] + ½ aᵀC a  (methods a.5), here with a = L_c⁻ᵀ m_w
    k = lambda A, B: o.matern52(A, B, np.array([0.8, 1.3]), 1.7)
    X, model = np.asarray(P.Xs), solve(V, (W[0], np.eye(M2)))
    inverse = np.linalg.inv(k(P.Z, P.Z))
    c = lambda A, B: k(A, B) - k(A, P.Z) @ inverse @ k(P.Z, B)
    a = np.linalg.solve(np.linalg.cholesky(c(O, O)).T, W[0])
    A = np.linalg.solve(np.linalg.cholesky(k(P.Z, P.Z)), k(P.Z, X))
    mean, variance = A.T @ V[0] + c(X, O) @ a, np.sum(A * (V[1] @ A), axis=0) + np.diag(c(X, X))
    close(elbo(model, P.data(), P.Xs).moments, (mean, variance), 1e-10)
    projection = jax.jit(lambda m: m.posterior.project(m.kernel))(model)
    close(projection.divergence, o.gauss_kl(*V, 0 * V[0], np.eye(M)) + 0.5 * a @ c(O, O) @ a, 1e-10)


def test_without_further_points_it_is_the_whitened_family():
    nothing = MeanPrecision(np.zeros(0), np.zeros((0, 0)))
    empty = P.model(SolveGP(P.Z, np.zeros((0, 2)), precision_form(*V), nothing, jitter=0.0))
    ours, _, _ = everything(empty, P.data(), P.Xs)
    truth, _, _ = everything(P.whitened(*V), P.data(), P.Xs)
    for a, b in zip(ours, truth, strict=True):
        close(a, b, 1e-13)
    new, *_ = step(SolveNaturalGradient(constant(0.7)), empty, P.data())
    old, *_ = step(NaturalGradient(constant(0.7)), P.whitened(*V), P.data())
    for a, b in zip(jax.tree.leaves(new.posterior.q), jax.tree.leaves(old.posterior.q), strict=True):
        close(a, b, 1e-12)


def test_points_that_are_there_already_do_no_harm():
    # C is zero but for the jitter, which is that of the joint matrix.
    O = np.concatenate([P.Z[:2], P.Z[2:3] + 1e-9, [[0.3, 0.1]]])
    q, r = precision_form(*V), precision_form(*W)
    model = P.model(SolveGP(P.Z, O, q, r))
    ours, slopes, _ = everything(model, P.data(), P.Xs)
    truth, _, _ = everything(P.model(Whitened(np.concatenate([P.Z, O]), precision_form(*together()))), P.data(), P.Xs)
    close(ours[4], truth[4], 1e-6)
    close(ours[0], truth[0], 1e-6)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((ours, slopes)))


# --- steps -----------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=(3,))
def _run(stepper, model, data, steps):
    def body(carry, _):
        model, state, info = stepper.step(*carry, data, len(data))
        return (model, state), info

    (model, state), info = jax.lax.scan(body, (model, stepper.init(model, len(data))), length=steps)
    return model, state, info


def step(stepper, model, data, steps=1):
    """After so many steps on all rows, with what each of them reports."""
    return _run(stepper, model, data, steps)


@jax.jit
def slope_in_q(model, data):
    """The gradient of both bounds in mean and precision of v and w."""
    at = trainable(model, lambda m: m.kernel, lambda m: m.likelihood, lambda m: [m.posterior.Z, m.posterior.O])
    return [jax.grad(lambda x, t=t: bounds.elbo(at.rebuild(x), data, N).choose(t))(at.vector) for t in (True, False)]


def statistics():
    """Σ λφφᵀ, Σ λyφ with joint features, and what the bound has beside them, in NumPy."""
    d = BOTH.dense()
    phi = np.linalg.solve(np.linalg.cholesky(d.Kuu), d.Kuf)
    precision = P.weight / d.noise
    residual = d.Kff_diag - np.sum(phi**2, axis=0)
    rest = -0.5 * np.sum(P.weight * np.log(2 * np.pi * d.noise) + precision * P.y**2)
    return (phi * precision) @ phi.T, phi @ (precision * P.y), rest, precision * residual


def test_one_full_step_of_a_gaussian_likelihood_lands_on_the_optimum_with_weights_and_noise_of_rows():
    model, _, info = step(SolveNaturalGradient(constant(1.0)), solve(), P.data())
    assert not info.rejected.any()
    H, b, rest, x = statistics()
    best = block_optimum(jnp.asarray(H), jnp.asarray(b), M)
    for ours, truth in zip((model.posterior.q, model.posterior.r), (best.q, best.r), strict=True):
        close(ours.mean, truth.mean, 1e-9)
        close(ours.precision, truth.precision, 1e-9)
    for slope in slope_in_q(model, P.data()):
        close(slope, np.zeros_like(slope), 1e-8)
    reached = elbo(model, P.data(), P.Xs)
    close(reached.tight, rest + best.gain - 0.5 * np.sum(np.log1p(x)), 1e-9)
    close(reached.vfe, rest + best.gain - 0.5 * np.sum(x), 1e-9)
    integrated = bounds.collapsed_solve(solve(), P.data(), 7)
    close(integrated.value, reached.tight, 1e-9)
    close(integrated.standard, reached.vfe, 1e-9)
    for ours, truth in zip(integrated.predictor()(P.Xs), model.predictor()(P.Xs), strict=True):
        close(ours, truth, 1e-9)
    # More than Z alone, less than a full covariance of all points.
    less, more = (sparse(p.sparse(), p.data(), p.Xs) for p in (P, BOTH))
    assert less.vfe + 1 < reached.vfe < more.vfe and reached.tight < more.tight
    close(info.bound[0], elbo(solve(), P.data(), P.Xs).tight, 1e-10)


def test_the_collapsed_bound_has_the_slope_of_the_bound_at_the_best_q():
    model, *_ = step(SolveNaturalGradient(constant(1.0)), solve(), P.data())
    rest = trainable(model, lambda m: [m.posterior.q, m.posterior.r])

    @jax.jit
    def slopes(x):
        collapsed = jax.grad(lambda x: bounds.collapsed_solve(rest.rebuild(x), P.data()).value)
        return collapsed(x), jax.grad(lambda x: bounds.elbo(rest.rebuild(x), P.data(), N).value)(x)

    close(*slopes(rest.vector), 1e-8)


def test_one_epoch_of_averaging_ends_at_the_optimum_of_all_rows():
    # Only because X is averaged as P is.
    B = 6
    data, stepper = P.data(), SolveNaturalGradient(averaging(N, B))
    model = solve()
    state = stepper.init(model, N)
    one = jax.jit(lambda *a: stepper.step(*a, N))
    for t in range(N // B):
        model, state, info = one(model, state, take(data, draw(N, B, 0, t, 1)[0]))
        assert not info.rejected
    best, _, _ = step(SolveNaturalGradient(constant(1.0)), solve(), data)
    for a, b in zip(jax.tree.leaves(model.posterior), jax.tree.leaves(best.posterior), strict=True):
        close(a, b, 1e-9)


CASES = {
    "Bernoulli": (Bernoulli(), lambda y: (y > 0).astype(float)),
    "Student-t": (StudentT(0.3, 3.0), lambda y: np.where(np.arange(N) % 8 == 0, y + 9, y)),
}


@pytest.mark.parametrize("name", CASES)
def test_other_likelihoods_climb_at_every_full_step_to_where_the_slope_is_zero(name):
    likelihood, target = CASES[name]
    data = dataset(P.X, target(P.y), P.weight)
    model, state, info = step(
        SolveNaturalGradient(constant(1.0), tight=False), solve(*PRIOR, likelihood=likelihood), data, 60
    )
    assert not info.rejected.any() and (np.diff(info.bound) > -1e-9).all() and info.bound[-1] > info.bound[0] + 5
    slope = slope_in_q(model, data)[1]
    close(slope, np.zeros_like(slope), 1e-6)


def test_the_curvature_of_the_majoriser_is_averaged_over_steps():
    start, data = solve(*PRIOR, likelihood=StudentT(0.3, 3.0)), P.data()
    half, full = (step(SolveNaturalGradient(constant(g)), start, data)[1].rule.majorised for g in (0.5, 1.0))
    close(half.X, 0.5 * full.X, 1e-12)
    close(half.P, 0.5 * (np.eye(M) + full.P), 1e-12)
    close(half.Pw, 0.5 * (np.eye(M2) + full.Pw), 1e-12)
    assert np.abs(full.X).max() > 0.1


def several(qs, rs, likelihood):
    stack = lambda trees: jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    each = SolveGP(P.Z, O, *(stack([precision_form(*q) for q in of]) for of in (qs, rs)), jitter=0.0)
    model = P.model(IndependentLatents(each))
    return eqx.tree_at(lambda m: m.likelihood, model, cast(likelihood, jnp.float64))


def test_several_latent_functions_are_single_ones_side_by_side():
    qs, rs = [random_q(c, M) for c in range(2)], [random_q(5 + c, M2) for c in range(2)]
    run = jax.jit(
        lambda m: (p := m.posterior.project(m.kernel), p.marginals(P.data().X), p.predictor()(P.Xs), p.divergence)[1:]
    )
    marginals, predictions, divergence = run(several(qs, rs, Softmax(2)))
    single = [run(solve(q, r)) for q, r in zip(qs, rs, strict=True)]
    for c in range(2):
        for ours, truth in zip((*marginals, *predictions), (*single[c][0], *single[c][1]), strict=True):
            close(ours[c], truth, 1e-11)
    close(divergence, single[0][2] + single[1][2], 1e-11)


def test_several_latent_functions_climb_together():
    data = dataset(P.X, (P.y > 0).astype(float))
    model = several([PRIOR[0]] * 2, [PRIOR[1]] * 2, Softmax(2))
    _, state, info = step(SolveNaturalGradient(constant(1.0)), model, data, 30)
    assert not info.rejected.any() and (np.diff(info.bound) > -1e-9).all() and info.bound[-1] > info.bound[0] + 3
    assert state.rule.X.shape == (2, M, M2) and float(info.gradient_norm[-1]) < 1e-6


def test_hyperparameters_get_the_gradient_of_the_bound_from_the_same_pass():
    stepper = SolveNaturalGradient(constant(0.3), optax.sgd(0.1), (lambda m: m.posterior.O,))
    frozen = (lambda m: [m.posterior.q, m.posterior.r], lambda m: m.posterior.O)
    hyper = trainable(solve(), *frozen)
    slope = jax.jit(jax.grad(lambda x: bounds.elbo(hyper.rebuild(x), P.data(), N).value))(hyper.vector)
    new, _, _ = step(stepper, solve(), P.data())
    close(trainable(new, *frozen).vector - hyper.vector, 0.1 * slope, 1e-11)
    np.testing.assert_array_equal(new.posterior.O, O)
    alone, _, _ = step(SolveNaturalGradient(constant(0.3)), solve(), P.data())
    for a, b in zip(*(jax.tree.leaves([m.posterior.q, m.posterior.r]) for m in (new, alone)), strict=True):
        close(a, b, 1e-12)


def test_a_bad_batch_is_undone():
    bad = eqx.tree_at(lambda d: d.y, P.data(), P.data().y.at[3].set(jnp.nan))
    model, state, info = step(SolveNaturalGradient(constant(1.0)), solve(), bad)
    assert info.rejected.all() and float(state.guard.scale) == 0.5
    for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(solve()), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "posterior",
    [
        Collapsed(P.Z),
        Whitened(P.Z, precision_form(*V)),
        SolveGP(P.Z, O, precision_form(*V), MeanChol(W[0], np.linalg.cholesky(W[1]))),
    ],
)
def test_other_families_and_coordinates_are_refused(posterior):
    with pytest.raises(TypeError, match="needs the posterior SolveGP"):
        SolveNaturalGradient(constant(1.0)).init(P.model(posterior), N)


def test_in_float32_a_step_is_that_of_float64():
    double, _, _ = step(SolveNaturalGradient(constant(1.0)), solve(), P.data())
    kernel = Matern52(np.array([0.8, 1.3]), np.asarray(1.7))
    posterior = SolveGP(P.Z, O, precision_form(*V), precision_form(*W))
    single = cast(Model(kernel, Gaussian(0.15), posterior), jnp.float32)
    new, _, info = step(SolveNaturalGradient(constant(1.0)), single, cast(P.data(), jnp.float32))
    assert new.posterior.q.mean.dtype == jnp.float32 and not info.rejected.any()
    close(new.posterior.r.mean, double.posterior.r.mean, 5e-3)
    close(new.posterior.q.mean, double.posterior.q.mean, 5e-3)
