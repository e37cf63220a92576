"""The tight bound with one v for all rows, for likelihoods that have no better one."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles as o
import pytest
from lattice import close, precision_form, problem, random_q

from pseudopoint import bounds
from pseudopoint.data import dataset
from pseudopoint.likelihoods import Bernoulli, Gaussian, Softmax, StudentT
from pseudopoint.optimise.minibatch import NaturalGradient, constant
from pseudopoint.params import cast
from pseudopoint.posteriors import IndependentLatents, Model, ShrunkResidual, Whitened

P = problem(0)
N, M = len(P.y), len(P.Z)
Q = random_q(0, M)
LIKELIHOODS = {"bernoulli": Bernoulli(), "student_t": StudentT(0.3, 4.0)}


def rows(likelihood):
    """The problem's rows, or their signs."""
    y = (P.y > 0).astype(float) if isinstance(likelihood, Bernoulli) else P.y
    return dataset(P.X, y)


def model(likelihood, v=None, q=Q) -> Model:
    """q at the problem's points, shrunk or not."""
    whitened = P.whitened(*q).posterior
    posterior = whitened if v is None else ShrunkResidual(base=whitened, num_data=N, v=v)
    return eqx.tree_at(lambda m: m.likelihood, P.model(posterior), cast(likelihood, jnp.float64))


value = jax.jit(lambda model, data: bounds.elbo(model, data, N).value)


def test_the_divergence_is_that_of_dense_gaussians_of_rows_and_pseudo_points():
    v, d = 0.6, P.dense()
    L = np.linalg.cholesky(d.Kuu)
    m, S = L @ Q[0], L @ Q[1] @ L.T
    A = np.linalg.solve(d.Kuu, d.Kuf).T
    Kff = np.asarray(jax.jit(lambda k, X: k(X, X))(P.model().kernel, P.X))
    joint = lambda cov, D: np.block([[A @ cov @ A.T + D, A @ cov], [cov @ A.T, cov]])
    D = Kff - A @ d.Kuf + 1e-9 * np.eye(N)
    mean = np.concatenate([A @ m, m])
    truth = o.gauss_kl(mean, joint(S, v * D), 0 * mean, joint(d.Kuu, D))
    ours = jax.jit(lambda m: m.posterior.project(m.kernel).divergence)(model(Gaussian(0.1), v))
    close(ours, truth, 1e-7)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_best_v_is_the_top_of_the_bound_and_v_1_the_standard_one(name):
    likelihood = LIKELIHOODS[name]
    data, plain = rows(likelihood), model(likelihood)
    best = bounds.shrunk(plain, data)
    v = float(best.posterior.v)
    bound = lambda v: float(value(model(likelihood, jnp.asarray(v)), data))
    assert 0 < v < 1 and bound(v) > bound(1.0) + 1e-3
    close(bound(1.0), bounds.elbo(plain, data, N).standard, 1e-12)
    assert bound(v) >= max(bound(v * (1 + step)) for step in (-0.1, -1e-3, 1e-3, 0.1))
    again = bounds.shrunk(best, data)
    close(again.posterior.v, v, 1e-9)


def test_for_a_gaussian_likelihood_the_best_v_pays_the_logarithm_of_the_mean():
    # −½ N log(1 + d̄/σ²) in place of −½ Σ dᵢ/σ²; the bound with a v for each row is higher still.
    data, plain = rows(None), model(Gaussian(0.1))
    best = bounds.shrunk(plain, data)
    standard, tight = (float(bounds.elbo(plain, data, N).choose(t)) for t in (False, True))
    d = np.asarray(plain.posterior.project(plain.kernel).marginals(data.X).residual)
    truth = standard + 0.5 * np.sum(d / 0.1) - 0.5 * N * np.log1p(d.mean() / 0.1)
    close(bounds.elbo(best, data, N).standard, truth, 1e-9)
    assert standard < truth < tight


def test_it_is_below_the_evidence():
    # Two rows: the evidence by a product rule of Gauss and Hermite.
    few = dataset(P.X[:2], np.array([1.0, 0.0]))
    one = model(Bernoulli(), 0.7, (Q[0][:1], Q[1][:1, :1]))
    one = eqx.tree_at(lambda m: m.posterior.base.Z, one, P.Z[:1])
    one = eqx.tree_at(lambda m: m.posterior, one, ShrunkResidual(base=one.posterior.base, num_data=2, v=0.7))
    K = np.asarray(one.kernel(few.X, few.X))
    t, w = np.polynomial.hermite_e.hermegauss(80)
    f = np.linalg.cholesky(K) @ np.stack([a.ravel() for a in np.meshgrid(t, t)])
    p = 1 / (1 + np.exp(-f[0])) * 1 / (1 + np.exp(f[1]))
    evidence = np.log(np.sum(np.outer(w, w).ravel() * p) / (2 * np.pi))
    step = NaturalGradient(constant(1.0), tight=False)
    state = step.init(one, 2)
    for _ in range(5):
        one, state, _ = jax.jit(lambda *at: step.step(*at, few, 2))(one, state)
    best = bounds.shrunk(one, few)
    standard = float(bounds.elbo(one.__class__(one.kernel, one.likelihood, one.posterior.base), few, 2).value)
    assert standard < float(bounds.elbo(best, few, 2).value) < evidence


def test_any_stepper_learns_v_with_the_hyperparameters_and_several_functions_share_it():
    C, rng = 3, np.random.default_rng(3)
    each = Whitened(P.Z, jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * C), precision_form(*Q)))
    y = rng.integers(C, size=N).astype(float)
    start = Model(P.model().kernel, Softmax(C), ShrunkResidual(base=IndependentLatents(base=each), num_data=N, v=0.99))
    start, data = cast(start, "float64"), dataset(P.X, y)
    held = (lambda m: m.kernel, lambda m: m.likelihood, lambda m: m.posterior.Z)
    stepper = NaturalGradient(constant(0.5), optax.adam(0.05), held)
    state, step, bound = stepper.init(start, N), jax.jit(lambda *at: stepper.step(*at, data, N)), []
    at = start
    for _ in range(150):
        at, state, info = step(at, state)
        bound.append(float(info.bound))
    close(at.posterior.v, bounds.shrunk(at, data).posterior.v, 2e-3)
    assert float(at.posterior.v) < 0.97 and bound[-1] > bound[0]
    # Predictions are those of q, whatever v.
    plain = Model(at.kernel, at.likelihood, at.posterior.base)
    for a, b in zip(at.predictor()(P.Xs), plain.predictor()(P.Xs), strict=True):
        close(a, b, 1e-12)
