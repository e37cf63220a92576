"""The posterior whose prior is a learned q (`Carried`), against dense formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles as o
import pytest

from pseudopoint.gaussians import MeanCovariance, MeanPrecision
from pseudopoint.kernels import Matern52
from pseudopoint.posteriors import Carried, CarriedBasis, Predictor

M1, M2, D = 4, 5, 2
rng = np.random.default_rng(8)
LENGTHS, VARIANCE = np.array([0.8, 1.3]), 1.7
X = rng.normal(size=(7, D))
MEAN, R = rng.normal(size=M2), rng.normal(size=(M2, M2))
COV = R @ R.T / M2 + 0.1 * np.eye(M2)


def k(A, B):
    return o.matern52(A, B, LENGTHS, VARIANCE)


def prior_of(shared: bool, s: np.ndarray) -> Predictor:
    """A predictor: W any square root of K⁻¹ at Zv, and a mean with the same points or its own."""
    Zv = rng.normal(size=(M2, D))
    Zm = Zv if shared else rng.normal(size=(M1, D))
    rotation = np.linalg.qr(rng.normal(size=(M2, M2)))[0]
    W = rotation @ np.linalg.inv(np.linalg.cholesky(k(Zv, Zv)))
    fields = (Zm, rng.normal(size=len(Zm)), Zv, W, s, np.zeros(()))
    return Predictor(Matern52(LENGTHS, VARIANCE), *map(jnp.asarray, fields), shared=shared)


def dense(p: Predictor, m: np.ndarray, S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of f at X: f = prior mean + φᵀz + what Z does not explain, z ~ N(m, S), φ = √s ∘ W k(Zv, ·).
    The prior itself is that of m = 0 and S = I."""
    w = np.asarray(p.W) @ k(np.asarray(p.Zv), X)
    phi = np.sqrt(np.asarray(p.s))[:, None] * w
    mean = np.asarray(p.alpha) @ k(np.asarray(p.Zm), X) + m @ phi
    return mean, k(X, X) - w.T @ w + phi.T @ S @ phi


SHARES = {"some": np.array([0.0, 0.1, 0.4, 0.9, 1.0]), "none": np.zeros(M2), "all": np.ones(M2)}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("share", SHARES)
def test_marginals_and_the_predictor_are_those_of_the_dense_formula(share, shared):
    p = prior_of(shared, SHARES[share])
    projection = Carried(MeanCovariance(jnp.asarray(MEAN), jnp.asarray(COV))).on(CarriedBasis(p))
    mean, cov = dense(p, MEAN, COV)
    marginals = projection.marginals_at(projection.rows(jnp.asarray(X)))
    np.testing.assert_allclose(marginals.moments, (mean, np.diag(cov)), rtol=1e-9)
    ahead = projection.predictor()
    np.testing.assert_allclose(ahead(jnp.asarray(X)), (mean, np.diag(cov)), rtol=1e-9)
    np.testing.assert_allclose(ahead.covariance(jnp.asarray(X)), cov, rtol=1e-8, atol=1e-9)


def test_at_its_prior_nothing_changes_and_the_divergence_is_zero():
    p = prior_of(True, SHARES["some"])
    projection = Carried(MeanPrecision(jnp.zeros(M2), jnp.eye(M2))).on(CarriedBasis(p))
    np.testing.assert_allclose(projection.divergence, 0, atol=1e-12)
    mean, variance = projection.predictor()(jnp.asarray(X))
    np.testing.assert_allclose((mean, variance), p(jnp.asarray(X)), rtol=1e-10)
    of_prior = dense(p, 0 * MEAN, np.eye(M2))
    np.testing.assert_allclose((mean, variance), (of_prior[0], np.diag(of_prior[1])), rtol=1e-9)


def test_the_divergence_is_that_of_q_from_the_q_that_was_carried():
    p = prior_of(True, SHARES["some"])
    projection = Carried(MeanCovariance(jnp.asarray(MEAN), jnp.asarray(COV))).on(CarriedBasis(p))
    np.testing.assert_allclose(projection.divergence, o.gauss_kl(MEAN, COV, 0 * MEAN, np.eye(M2)), rtol=1e-10)
    gradient = jax.grad(lambda m: Carried(MeanCovariance(m, jnp.asarray(COV))).on(CarriedBasis(p)).divergence)
    np.testing.assert_allclose(gradient(jnp.asarray(MEAN)), MEAN, rtol=1e-10)
