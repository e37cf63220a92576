"""Theorems that tie the methods together: exact GP, collapsed bounds, uncollapsed bounds, natural gradients, oracles."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles as o
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lattice import (
    LENGTHSCALE,
    NOISE,
    VARIANCE,
    both_forms,
    close,
    elbo,
    moments,
    natural_step,
    precision_form,
    predict,
    problem,
    random_q,
    repeated,
    whiten,
)

from pseudopoint import bounds
from pseudopoint.bounds import collapsed, marginal, upper
from pseudopoint.data import dataset, draw, take
from pseudopoint.gaussians import MeanChol, MeanCovariance, MeanPrecision
from pseudopoint.kernels import RBF, Constant, Linear, Matern12, Matern32, RationalQuadratic
from pseudopoint.likelihoods import Gaussian
from pseudopoint.params import cast, free
from pseudopoint.posteriors import InducingPoints, Model

SEEDS = range(3)
BOTH = pytest.mark.parametrize("tight", [False, True], ids=["vfe", "tight"])


def value_of(bound, tight):
    """The one of the two collapsed bounds that `tight` asks for."""
    return bound.tight if tight else bound.vfe


# --- Against the dense oracles, with noise of its own in every row ---


@pytest.mark.parametrize("seed", SEEDS)
def test_the_evidence_and_the_exact_posterior_equal_the_oracles(seed):
    p = problem(seed)
    d = p.dense()
    value, predictor = marginal(p.model(), p.data())
    close(value, o.exact_log_evidence(d.Kff, d.noise, p.y), 1e-11)
    close(predict(predictor, p.Xs), o.exact_posterior(d.Kff, d.Ksf, d.Kss_diag, d.noise, p.y), 1e-11)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_collapsed_bounds_and_their_posterior_equal_the_oracles(seed):
    p = problem(seed)
    d = p.dense()
    arguments = d.Kff_diag, d.Kuf, d.Kuu, d.noise, p.y
    bound = collapsed(p.sparse(), p.data())
    close(bound.vfe, o.vfe_bound(*arguments), 1e-11)
    close(bound.tight, o.tight_bound(*arguments), 1e-11)
    close(upper(p.sparse(), p.data()), o.upper_bound(*arguments), 1e-11)
    m, S = o.optimal_q(d.Kuf, d.Kuu, d.noise, p.y)
    close(predict(bound.predictor, p.Xs), o.sparse_predict(d.Ksu, d.Kss_diag, d.Kuu, m, S), 1e-11)


def test_the_tight_bound_is_the_maximum_of_its_definition():
    p = problem(1, N=8, M=3)
    d = p.dense()
    maximum, shrinkage = o.tight_bound_by_definition(d.Kff, d.Kuf, d.Kuu, d.noise, p.y)
    close(collapsed(p.sparse(), p.data()).tight, maximum, 1e-9)
    residual = d.Kff_diag - np.diag(o.nystrom(d.Kuf, d.Kuu))
    likelihood = Gaussian(jnp.asarray(d.noise))
    np.testing.assert_allclose(shrinkage, likelihood.shrinkage(jnp.asarray(residual), jnp.ones(8)), rtol=1e-4)


@BOTH
@pytest.mark.parametrize("seed", SEEDS)
def test_elbo_equals_the_oracle_for_any_q_in_both_families(seed, tight):
    p = problem(seed)
    d, (m, S) = p.dense(), random_q(seed, len(p.Z))
    oracle = o.elbo_tight_gaussian if tight else o.elbo_gaussian
    value = oracle(d.Kff_diag, d.Kuf, d.Kuu, m, S, d.noise, p.y)
    moments = o.sparse_predict(d.Ksu, d.Kss_diag, d.Kuu, m, S)
    for model in both_forms(p, m, S):
        bound, predictor = elbo(model, p.data(), len(p.y), tight)
        close(bound, value, 1e-11)
        close(predict(predictor, p.Xs), moments, 1e-11)


def oracle_bounds(p, vector):
    """Evidence, VFE, tight and upper bound at (log ℓ, log variance, log σ², Z) in one vector."""
    lengthscale, variance, noise = np.exp(vector[:2]), np.exp(vector[2]), np.exp(vector[3])
    d = p._replace(Z=vector[4:].reshape(-1, 2)).dense(lengthscale, variance, noise)
    arguments = d.Kff_diag, d.Kuf, d.Kuu, d.noise, p.y
    exact = o.exact_log_evidence(d.Kff, d.noise, p.y)
    return np.array([exact, o.vfe_bound(*arguments), o.tight_bound(*arguments), o.upper_bound(*arguments)])


def test_gradients_of_all_bounds_equal_finite_differences_of_the_oracles():
    # The rules for the derivatives of factors are written by hand; here they meet matrices made without the library.
    p = problem(2, N=9, M=3)
    vector = np.concatenate([np.log([*LENGTHSCALE, VARIANCE, NOISE]), p.Z.ravel()])

    def library(vector):
        model = p.sparse()
        kernel = type(model.kernel)(jnp.exp(vector[:2]), jnp.exp(vector[2]))
        likelihood = Gaussian(jnp.exp(vector[3]))
        model = Model(kernel, likelihood, InducingPoints(vector[4:].reshape(-1, 2), jitter=0.0))
        bound = collapsed(model, p.data())
        return jnp.stack([marginal(model, p.data())[0], bound.vfe, bound.tight, upper(model, p.data())])

    h = 1e-5
    differences = [
        (oracle_bounds(p, vector + step) - oracle_bounds(p, vector - step)) / (2 * h)
        for step in h * np.eye(len(vector))
    ]
    close(jax.jit(jax.jacrev(library))(jnp.asarray(vector)), np.transpose(differences), 1e-8)


# --- Exact = collapsed (Z = X) = elbo at the optimal q = one natural step of size 1 ---


@BOTH
def test_at_all_rows_as_inducing_points_every_method_is_the_exact_one(tight):
    p = problem(3, everywhere=True)
    d, N = p.dense(), len(p.y)
    evidence, exact = marginal(p.model(), p.data())
    bound = collapsed(p.sparse(), p.data())
    optimal = p.unwhitened(MeanCovariance(*o.optimal_q(d.Kuf, d.Kuu, d.noise, p.y)))
    stepped = natural_step(p.whitened(precision_form(*random_q(3, N))), p.data(), N, 1.0, tight)
    values = [value_of(bound, tight), elbo(optimal, p.data(), N, tight)[0], elbo(stepped, p.data(), N, tight)[0]]
    close(values, np.full(3, evidence), 1e-9)
    close(upper(p.sparse(), p.data()), evidence, 1e-9)
    for predictor in [
        bound.predictor,
        elbo(optimal, p.data(), N, tight)[1],
        elbo(stepped, p.data(), N, tight)[1],
    ]:
        close(predict(predictor, p.Xs), predict(exact, p.Xs), 1e-8)


@BOTH
@pytest.mark.parametrize("seed", SEEDS)
def test_the_collapsed_bound_is_the_elbo_at_the_optimal_q_and_one_natural_step_reaches_it(seed, tight):
    p = problem(seed, weighted=True)
    N, Kuu = len(p.y), p.dense().Kuu
    bound = collapsed(p.sparse(), p.data())
    r = repeated(p)
    d = r.dense()
    optimal = both_forms(p, *o.optimal_q(d.Kuf, d.Kuu, d.noise, r.y))
    mean, cov = random_q(seed, len(p.Z))
    starts = p.unwhitened(precision_form(mean, cov)), p.whitened(precision_form(*whiten(Kuu, mean, cov)))
    for model in [*optimal, *(natural_step(start, p.data(), N, 1.0, tight) for start in starts)]:
        value, predictor = elbo(model, p.data(), N, tight)
        close(value, value_of(bound, tight), 1e-10)
        close(predict(predictor, p.Xs), predict(bound.predictor, p.Xs), 1e-10)
    elsewhere = elbo(p.whitened(MeanCovariance(mean, cov)), p.data(), N, tight)[0]
    assert elsewhere < value_of(bound, tight) - 1  # the optimum is one, and the start was not there


# --- Whitened = unwhitened ---


@pytest.mark.parametrize("gamma", [0.1, 0.7])
def test_a_natural_step_of_any_size_is_the_same_in_both_families(gamma):
    # A natural gradient does not depend on coordinates, and u = Lv is linear.
    p = problem(4)
    Kuu, (mean, cov) = p.dense().Kuu, random_q(4, len(p.Z))
    unwhitened, whitened = both_forms(p, mean, cov, precision_form)
    batch = take(p.data(), np.arange(8))
    unwhitened, whitened = (natural_step(model, batch, len(p.y), gamma) for model in (unwhitened, whitened))
    for a, b in zip(whiten(Kuu, *moments(unwhitened)), moments(whitened), strict=True):
        close(a, b, 1e-10)
    a, b = (elbo(model, p.data(), len(p.y), True) for model in (unwhitened, whitened))
    close(a[0], b[0], 1e-10)
    close(predict(a[1], p.Xs), predict(b[1], p.Xs), 1e-10)


# --- VFE ≤ tight ≤ log p(y) ≤ upper ---


@jax.jit
def all_bounds(model, data):
    bound = collapsed(model, data)
    return bound.vfe, bound.tight, marginal(model, data)[0], upper(model, data)


log_scale = lambda low, high: st.floats(np.log(low), np.log(high)).map(np.exp)
SHAPES = [(1, 1, 1), (9, 4, 2), (15, 22, 1), (30, 6, 4)]


@settings(deadline=None, max_examples=120)
@given(
    shape=st.sampled_from(SHAPES),
    seed=st.integers(0, 2**32 - 1),
    lengthscale=log_scale(0.05, 20),
    variances=st.tuples(*[log_scale(1e-3, 30)] * 5),
    noise=log_scale(1e-3, 10),
    repeats=st.booleans(),
    jitter=st.sampled_from([None, 1e-4]),
)
def test_vfe_is_below_tight_below_the_evidence_below_the_upper_bound(
    shape, seed, lengthscale, variances, noise, repeats, jitter
):
    N, M, D = shape
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(N, D)), rng.normal(size=(M, D))
    if repeats:
        X[N // 2 :] = X[: N - N // 2]
        Z[M // 2 :] = X[rng.integers(0, N, M - M // 2)]
    rows = dataset(X, 3 * rng.normal(size=N), rng.uniform(0.2, 5, N), rng.uniform(0, 1, N) * rng.integers(0, 2, N))
    a, b, c, d, e = (np.asarray(v) for v in variances)
    smooth = RBF(lengthscale, a) * Linear(b) if D == 1 else RBF(np.full(D, lengthscale), a)
    kernel = smooth + Matern32(lengthscale, c) + Matern12(lengthscale, d) * RationalQuadratic(1.0, e) + Constant(b)
    model = cast(Model(kernel, Gaussian(np.asarray(noise)), InducingPoints(Z, jitter)), jnp.float64)
    vfe, tight, evidence, above = map(float, all_bounds(model, rows))
    rounding = 1e-9 * (1 + float(jnp.sum(rows.y**2 / noise)))
    assert np.isfinite([vfe, tight, evidence, above]).all()
    assert vfe <= tight + rounding
    assert tight <= evidence + rounding
    assert evidence <= above + rounding


@pytest.mark.parametrize("seed", SEEDS)
def test_more_inducing_points_never_lower_the_evidence_estimate(seed):
    # Nested inducing points: the collapsed bounds rise and the upper bound falls (Titsias 2009; Bauer et al. 2016).
    p = problem(seed, N=20, M=9)
    few, some, all_ = (p._replace(Z=Z) for Z in (p.Z[:4], p.Z, np.concatenate([p.Z, p.X])))
    values = [collapsed(q.sparse(), q.data())[:2] for q in (few, some)]
    assert values[0][0] < values[1][0] and values[0][1] < values[1][1]
    assert upper(few.sparse(), few.data()) > upper(some.sparse(), some.data())
    del all_


# --- Chunks and minibatches ---


@pytest.mark.parametrize("chunk", [1, 7, 24])
def test_chunks_change_neither_bounds_nor_gradients_nor_predictions(chunk):
    p = problem(5, weighted=True)
    start = free(p.sparse())

    @partial(jax.jit, static_argnums=1)
    def everything(vector, chunk):
        def values(vector):
            model = start.rebuild(vector)
            bound = collapsed(model, p.data(), chunk)
            return jnp.stack([bound.vfe, bound.tight, upper(model, p.data(), chunk)]), bound.predictor(p.Xs)

        (bounds, predictions), pullback = jax.vjp(values, vector)
        zeros = jax.tree.map(jnp.zeros_like, predictions)
        return bounds, predictions, jax.vmap(lambda e: pullback((e, zeros))[0])(jnp.eye(3))

    for whole, summed in zip(*(everything(start.vector, size) for size in (None, chunk)), strict=True):
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(summed), strict=True):
            close(b, a, 1e-10)


@BOTH
@pytest.mark.parametrize(("batch_size", "count"), [(6, 4), (1, 24), (5, 24)])
def test_minibatches_average_to_the_full_bound_and_its_gradient(batch_size, count, tight):
    # B divides N: over one epoch. Otherwise over B epochs, which N batches are.
    p = problem(6, weighted=True)
    N, (mean, cov) = len(p.y), random_q(6, len(p.Z))
    start = free(p.whitened(MeanChol(mean, np.linalg.cholesky(cov))))

    @jax.jit
    @partial(jax.vmap, in_axes=(None, 0))
    def of(vector, batch):
        energy = lambda vector: bounds.energy(start.rebuild(vector), batch, N, tight)
        return jax.value_and_grad(energy)(vector), bounds.elbo(start.rebuild(vector), batch, N, tight)[0]

    rows = draw(N, batch_size, 0, 0, count)
    batches, full = take(p.data(), rows), take(p.data(), np.arange(N)[None])
    for average, desired in zip(
        jax.tree.leaves(of(start.vector, batches)), jax.tree.leaves(of(start.vector, full)), strict=True
    ):
        close(jnp.mean(average, axis=0), desired[0], 1e-10)


# --- Weights ---


@pytest.mark.parametrize("seed", SEEDS)
def test_weight_w_is_w_times_the_row(seed):
    p = problem(seed, weighted=True)
    r = repeated(p)
    assert len(r.y) > len(p.y)
    (a, exact), (b, repeats) = (marginal(x.model(), x.data()) for x in (p, r))
    close(a, b, 1e-10)
    close(predict(exact, p.Xs), predict(repeats, p.Xs), 1e-10)
    a, b = (collapsed(x.sparse(), x.data()) for x in (p, r))
    close(a.vfe, b.vfe, 1e-10)
    close(predict(a.predictor, p.Xs), predict(b.predictor, p.Xs), 1e-10)
    q = MeanCovariance(*random_q(seed, len(p.Z)))
    a, b = (elbo(x.unwhitened(q), x.data(), len(x.y), False)[0] for x in (p, r))
    close(a, b, 1e-10)


def test_rows_of_weight_zero_change_nothing():
    p = problem(7)
    n = 5
    padded = p._replace(
        X=np.concatenate([p.X, 9 * np.ones((n, 2))]),
        y=np.concatenate([p.y, np.full(n, 50.0)]),
        weight=np.concatenate([p.weight, np.zeros(n)]),
        noise=np.concatenate([p.noise, np.ones(n)]),
    )
    for a, b in zip(
        jax.tree.leaves(collapsed(p.sparse(), p.data())), jax.tree.leaves(collapsed(padded.sparse(), padded.data()))
    ):
        close(b, a, 1e-11)
    close(upper(padded.sparse(), padded.data()), upper(p.sparse(), p.data()), 1e-11)


# --- The natural step in closed form ---


@BOTH
@pytest.mark.parametrize("gamma", [0.05, 0.4, 1.0])
def test_a_natural_step_is_a_step_along_the_inverse_fisher_matrix(gamma, tight):
    p = problem(8, N=12, M=3)
    d, (m, S) = p.dense(), random_q(8, 3)
    gradient = o.elbo_gaussian_gradient(d.Kuf, d.Kuu, m, S, d.noise, p.y)
    expected = o.fisher_natural_gradient_step(m, S, *gradient, gamma)
    stepped = natural_step(p.unwhitened(precision_form(m, S)), p.data(), len(p.y), gamma, tight)
    for a, b in zip(moments(stepped), expected, strict=True):
        close(a, b, 1e-9)


@settings(deadline=None, max_examples=60)
@given(
    gamma=st.floats(0, 1, exclude_min=True),
    seed=st.integers(0, 2**32 - 1),
    scale=log_scale(1e-3, 1e3),
    outlier=st.sampled_from([1.0, 1e6]),
)
def test_a_natural_step_keeps_the_precision_above_its_share_of_the_prior(gamma, seed, scale, outlier):
    # P_new ≽ (1 − γ) P + γ I for a log-concave likelihood, whatever the batch (methods d.2).
    p = problem(seed)
    mean, cov = random_q(seed, len(p.Z))
    start = precision_form(outlier * mean, scale * cov)
    batch = take(p._replace(y=outlier * p.y).data(), np.random.default_rng(seed).permutation(24)[:4])
    stepped = natural_step(p.whitened(start), batch, len(p.y), gamma).posterior.q
    excess = np.asarray(stepped.precision) - (1 - gamma) * start.precision - gamma * np.eye(len(p.Z))
    assert np.linalg.eigvalsh(excess).min() >= -1e-10 * np.linalg.norm(stepped.precision, 2)
    assert np.isfinite(np.asarray(stepped.mean)).all()


def test_the_precision_stays_symmetric_over_many_steps():
    p = problem(9)
    model = p.whitened(MeanPrecision(np.zeros(6), np.eye(6)))
    for step, rows in enumerate(draw(24, 4, 0, 0, 60)):
        model = natural_step(model, take(p.data(), rows), 24, 1 / (1 + step % 7))
    P = np.asarray(model.posterior.q.precision)
    close(P, P.T, 1e-13)
