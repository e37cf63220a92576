"""Theorems that tie the methods together: exact GP, collapsed bounds, elbo, natural gradients; and dense oracles."""

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
    close,
    elbo,
    exact,
    moments,
    natural_step,
    problem,
    random_q,
    repeated,
    sparse,
    whiten,
)

from pseudopoint import bounds
from pseudopoint.data import dataset, draw, take
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.kernels import RBF, Constant, Linear, Matern12, Matern32, Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, Model, Whitened

SEEDS = range(3)
BOTH = pytest.mark.parametrize("bound", ["vfe", "tight"])


# --- Against the dense oracles, with noise of its own in every row ---


@pytest.mark.parametrize("seed", SEEDS)
def test_the_evidence_and_the_exact_posterior_equal_the_oracles(seed):
    p = problem(seed)
    d = p.dense()
    value, predictions = exact(p.model(), p.data(), p.Xs)
    close(value, o.exact_log_evidence(d.Kff, d.noise, p.y), 1e-10)
    close(predictions, o.exact_posterior(d.Kff, d.Ksf, d.Kss_diag, d.noise, p.y), 1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_collapsed_bounds_and_their_posterior_equal_the_oracles(seed):
    p = problem(seed)
    d = p.dense()
    arguments = d.Kff_diag, d.Kuf, d.Kuu, d.noise, p.y
    bound = sparse(p.sparse(), p.data(), p.Xs)
    close(bound.vfe, o.vfe_bound(*arguments), 1e-11)
    close(bound.tight, o.tight_bound(*arguments), 1e-11)
    close(bound.upper, o.upper_bound(*arguments), 1e-11)
    m, S = o.optimal_q(d.Kuf, d.Kuu, d.noise, p.y)
    close(bound.moments, o.sparse_predict(d.Ksu, d.Kss_diag, d.Kuu, m, S), 1e-11)


def test_the_tight_bound_is_the_maximum_of_its_definition():
    p = problem(1, N=8, M=3)
    d = p.dense()
    maximum, shrinkage = o.tight_bound_by_definition(d.Kff, d.Kuf, d.Kuu, d.noise, p.y)
    close(sparse(p.sparse(), p.data(), p.Xs).tight, maximum, 1e-8)
    residual = d.Kff_diag - np.diag(o.nystrom(d.Kuf, d.Kuu))
    best = Gaussian(jnp.asarray(d.noise)).shrinkage(jnp.asarray(residual), jnp.ones(8))
    np.testing.assert_allclose(best, shrinkage, rtol=5e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_elbo_equals_the_oracle_for_any_q_in_both_families(seed):
    p = problem(seed)
    d, (m, S) = p.dense(), random_q(seed, len(p.Z))
    arguments = d.Kff_diag, d.Kuf, d.Kuu, m, S, d.noise, p.y
    for model in p.both(m, S):
        bound = elbo(model, p.data(), p.Xs)
        close(bound.vfe, o.elbo_gaussian(*arguments), 1e-11)
        close(bound.tight, o.elbo_tight_gaussian(*arguments), 1e-11)
        close(bound.moments, o.sparse_predict(d.Ksu, d.Kss_diag, d.Kuu, m, S), 1e-11)


def oracle_bounds(p, vector):
    """Evidence, VFE, tight and upper bound at (log ℓ, log variance, log σ², Z) in one vector."""
    d = p._replace(Z=vector[4:].reshape(-1, 2)).dense(np.exp(vector[:2]), np.exp(vector[2]), np.exp(vector[3]))
    arguments = d.Kff_diag, d.Kuf, d.Kuu, d.noise, p.y
    evidence = o.exact_log_evidence(d.Kff, d.noise, p.y)
    return np.array([evidence, o.vfe_bound(*arguments), o.tight_bound(*arguments), o.upper_bound(*arguments)])


def test_gradients_of_all_bounds_equal_finite_differences_of_the_oracles():
    # The rules for the derivatives of factors are written by hand; here they meet matrices made without the library.
    p = problem(2, N=9, M=3)
    data, vector = p.data(), np.concatenate([np.log([*LENGTHSCALE, VARIANCE, NOISE]), p.Z.ravel()])

    def library(vector):
        kernel, likelihood = Matern52(jnp.exp(vector[:2]), jnp.exp(vector[2])), Gaussian(jnp.exp(vector[3]))
        model = Model(kernel, likelihood, Collapsed(vector[4:].reshape(-1, 2), jitter=0.0))
        bound = sparse(model, data, p.Xs)
        return jnp.stack([exact(model, data, p.Xs)[0], bound.vfe, bound.tight, bound.upper])

    h = 1e-5
    steps = h * np.eye(len(vector))
    differences = [(oracle_bounds(p, vector + step) - oracle_bounds(p, vector - step)) / (2 * h) for step in steps]
    close(jax.jit(jax.jacrev(library))(jnp.asarray(vector)), np.transpose(differences), 1e-8)


# --- Exact = collapsed (Z = X) = elbo at the optimal q = one natural step of size 1 ---


@BOTH
def test_with_inducing_points_at_all_rows_every_method_is_the_exact_one(bound):
    p = problem(3, everywhere=True)
    d, N = p.dense(), len(p.y)
    evidence, predictions = exact(p.model(), p.data(), p.Xs)
    collapsed = sparse(p.sparse(), p.data(), p.Xs)
    stepped = natural_step(p.whitened(*random_q(3, N)), p.data(), N, 1.0, bound == "tight")
    optimal = whiten(d.Kuu, *o.optimal_q(d.Kuf, d.Kuu, d.noise, p.y))
    for method in (collapsed, *(elbo(model, p.data(), p.Xs) for model in (p.whitened(*optimal), stepped))):
        close(getattr(method, bound), evidence, 1e-9)
        close(method.moments, predictions, 1e-9)
    close(collapsed.upper, evidence, 1e-9)


@BOTH
@pytest.mark.parametrize("seed", SEEDS)
def test_the_collapsed_bound_is_the_elbo_at_the_optimal_q_and_one_natural_step_reaches_it(seed, bound):
    p = problem(seed, weighted=True)
    r, start = repeated(p), random_q(seed, len(p.Z))
    d = r.dense()
    collapsed = sparse(p.sparse(), p.data(), p.Xs)
    optimal = p.both(*o.optimal_q(d.Kuf, d.Kuu, d.noise, r.y))
    stepped = [natural_step(model, p.data(), len(p.y), 1.0, bound == "tight") for model in p.both(*start)]
    for model in (*optimal, *stepped):
        method = elbo(model, p.data(), p.Xs)
        close(getattr(method, bound), getattr(collapsed, bound), 1e-10)
        close(method.moments, collapsed.moments, 1e-10)
    # The optimum is one, and the steps did not start there.
    assert getattr(elbo(p.whitened(*start), p.data(), p.Xs), bound) < getattr(collapsed, bound) - 1


# --- Whitened = unwhitened ---


@pytest.mark.parametrize("gamma", [0.1, 0.7])
def test_a_natural_step_of_any_size_is_the_same_in_both_families(gamma):
    # A natural gradient does not depend on coordinates, and u = Lv is linear.
    p = problem(4)
    batch = take(p.data(), np.arange(8))
    unwhitened, whitened = (natural_step(x, batch, len(p.y), gamma) for x in p.both(*random_q(4, len(p.Z))))
    for a, b in zip(whiten(p.dense().Kuu, *moments(unwhitened)), moments(whitened), strict=True):
        close(a, b, 1e-10)
    for a, b in zip(*(jax.tree.leaves(elbo(x, p.data(), p.Xs)) for x in (unwhitened, whitened)), strict=True):
        close(a, b, 1e-10)


# --- VFE ≤ tight ≤ log p(y) ≤ upper ---


def log_scale(low, high):
    return st.floats(np.log(low), np.log(high)).map(np.exp)


PROBLEMS = {  # N, M, D and a kernel of one lengthscale and two variances
    "one row": (1, 1, 1, lambda l, v, w: Matern52(l, v) + Constant(w)),
    "M > N": (14, 20, 3, lambda l, v, w: RBF(np.full(3, l), v) + Matern12(2 * l, w).on(0, 2)),
    "M < N": (24, 6, 2, lambda l, v, w: Matern32(l, v) * Linear(w) + RBF(np.full(2, l), v)),
}


@jax.jit
def all_bounds(model, data):
    bound = bounds.collapsed(model, data)
    return bound.standard, bound.value, bounds.marginal(model, data).value, bound.upper()


@settings(deadline=None, max_examples=150)
@given(
    shape=st.sampled_from(sorted(PROBLEMS)),
    seed=st.integers(0, 2**32 - 1),
    hyper=st.tuples(log_scale(0.05, 20), log_scale(1e-3, 30), log_scale(1e-3, 30)),
    noise=log_scale(1e-3, 10),
    duplicates=st.booleans(),
)
def test_vfe_is_below_tight_below_the_evidence_below_the_upper_bound(shape, seed, hyper, noise, duplicates):
    N, M, D, kernel = PROBLEMS[shape]
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(N, D)), rng.normal(size=(M, D))
    if duplicates:
        X[N // 2 :] = X[: N - N // 2]
        Z[M // 2 :] = X[rng.integers(0, N, M - M // 2)]
    rows = dataset(X, 3 * rng.normal(size=N), rng.uniform(0.2, 5, N), rng.uniform(0, 1, N) * rng.integers(0, 2, N))
    model = cast(Model(kernel(*hyper), Gaussian(noise), Collapsed(Z)), jnp.float64)
    vfe, tight, evidence, above = (float(value) for value in all_bounds(model, rows))
    rounding = 1e-9 * (1 + float(jnp.sum(rows.weight * rows.y**2)) / noise)
    assert np.isfinite([vfe, tight, evidence, above]).all()
    assert vfe <= tight + rounding
    assert tight <= evidence + rounding
    assert evidence <= above + rounding


@pytest.mark.parametrize("seed", SEEDS)
def test_more_inducing_points_tighten_every_bound(seed):
    # Nested points (Titsias 2009; Bauer et al. 2016): the lower bounds rise and the upper bound falls.
    p = problem(seed)
    few = p._replace(Z=np.concatenate([p.Z[:3], 1e3 + p.Z[3:]]))  # far away, a point explains nothing: three are left
    a, b = (sparse(x.sparse(), x.data(), x.Xs) for x in (few, p))
    assert a.vfe < b.vfe
    assert a.tight < b.tight
    assert a.upper > b.upper


# --- Chunks and minibatches ---


def test_chunks_change_neither_bounds_nor_gradients_nor_the_posterior():
    p = problem(5, weighted=True)
    start, data = trainable(p.sparse()), p.data()

    @partial(jax.jit, static_argnums=1)
    @partial(jax.value_and_grad, has_aux=True)
    def mixture(vector, chunk):  # of three bounds, because one reverse pass costs as much to compile as three
        bound = sparse(start.rebuild(vector), data, p.Xs, chunk)
        return bound.vfe + 2 * bound.tight + 3 * bound.upper, bound

    whole, summed = mixture(start.vector, None), mixture(start.vector, 7)  # the last chunk of 7 is not full
    for a, b in zip(jax.tree.leaves(summed), jax.tree.leaves(whole), strict=True):
        close(a, b, 1e-10)


@jax.jit
def energies_and_gradient(start, batches):
    def mixture(vector, batch):
        model = start.rebuild(vector)
        energies = jnp.stack([bounds.energy(model, batch, 24, tight) for tight in (False, True)])
        return energies[0] + 2 * energies[1], energies

    return jax.lax.map(lambda batch: jax.grad(mixture, has_aux=True)(start.vector, batch), batches)


def test_minibatches_average_to_the_full_bound_and_its_gradient():
    p = problem(6, weighted=True)
    model, data = p.whitened(*random_q(6, len(p.Z))), p.data()
    start = trainable(model)
    gradient, full = energies_and_gradient(start, take(data, np.arange(24)[None]))
    close(full[0] + model.posterior.q.entropy(), elbo(model, data, p.Xs)[:2], 1e-12)
    for batch_size, count in [(6, 4), (5, 24)]:  # one epoch, where B divides N, or the B epochs of N batches
        some, energies = energies_and_gradient(start, take(data, draw(24, batch_size, 0, 0, count)))
        close(jnp.mean(energies, axis=0), full[0], 1e-10)
        close(jnp.mean(some, axis=0), gradient[0], 1e-10)
        assert (jnp.std(energies, axis=0) > 1).all()  # no batch is the whole


# --- Weights ---


@pytest.mark.parametrize("seed", SEEDS)
def test_weight_w_is_w_times_the_row(seed):
    p = problem(seed, weighted=True)
    r = repeated(p)
    assert len(r.y) == p.weight.sum() > len(p.y)
    q = random_q(seed, len(p.Z))
    for a, b in [
        [exact(x.model(), x.data(), x.Xs) for x in (p, r)],
        # A row of weight w has one shrinkage vᵢ and one residual dᵢ, w rows have w of each.
        [sparse(x.sparse(), x.data(), x.Xs)._replace(tight=0, upper=0) for x in (p, r)],
        [elbo(x.unwhitened(*q), x.data(), x.Xs)._replace(tight=0) for x in (p, r)],
    ]:
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            close(x, y, 1e-10)


def test_rows_of_weight_zero_change_nothing():
    p = problem(7)
    zero = np.arange(24) % 3 == 0
    absurd = p._replace(y=np.where(zero, 50.0, p.y), weight=np.where(zero, 0.0, 1.0))
    without = p._replace(X=p.X[~zero], y=p.y[~zero], weight=p.weight[~zero], noise=p.noise[~zero])
    q = random_q(7, len(p.Z))
    for a, b in [
        [sparse(x.sparse(), x.data(), x.Xs) for x in (absurd, without)],
        [elbo(x.unwhitened(*q), x.data(), x.Xs) for x in (absurd, without)],
    ]:
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            close(x, y, 1e-11)


# --- The natural step in closed form ---


@pytest.mark.parametrize("gamma", [0.05, 0.4, 1.0])
def test_a_natural_step_is_a_step_along_the_inverse_fisher_matrix(gamma):
    p = problem(8, N=12, M=3)
    d, (m, S) = p.dense(), random_q(8, 3)
    gradient = o.elbo_gaussian_gradient(d.Kuf, d.Kuu, m, S, d.noise, p.y)
    expected = o.fisher_natural_gradient_step(m, S, *gradient, gamma)
    stepped = natural_step(p.unwhitened(m, S), p.data(), len(p.y), gamma)
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
    start = p.whitened(outlier * mean, scale * cov)
    batch = take(p._replace(y=outlier * p.y).data(), np.random.default_rng(seed).permutation(24)[:8])
    q = natural_step(start, batch, len(p.y), gamma).posterior.q
    excess = np.asarray(q.precision - (1 - gamma) * start.posterior.q.precision - gamma * jnp.eye(len(p.Z)))
    assert np.linalg.eigvalsh(excess).min() >= -1e-12 * np.linalg.norm(q.precision, 2)
    assert np.isfinite(np.asarray(q.mean)).all()


def test_the_precision_stays_symmetric_and_positive_definite_over_many_steps():
    p = problem(9)
    q = MeanPrecision(np.zeros(6), np.eye(6))
    model = p.model(Whitened(p.Z, q, jitter=0.0))
    for step, rows in enumerate(draw(24, 8, 0, 0, 60)):
        model = natural_step(model, take(p.data(), rows), 24, 1 / (1 + step % 7))
    P = np.asarray(model.posterior.q.precision)
    close(P, P.T, 1e-13)
    assert np.linalg.eigvalsh(P).min() >= 1 - 1e-12
