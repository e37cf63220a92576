"""What tests of equivalences share: one random regression problem, as the library sees it and as the oracles do."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracles as o

from pseudopoint import bounds
from pseudopoint.data import Dataset, dataset
from pseudopoint.gaussians import MeanCovariance, MeanPrecision
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.optimisers import NaturalGradient
from pseudopoint.params import cast
from pseudopoint.posteriors import InducingPoints, Model, Unwhitened, Whitened

LENGTHSCALE, VARIANCE, NOISE = np.array([0.8, 1.3]), 1.7, 0.15


class Dense(NamedTuple):
    """What the oracles ask for."""

    Kff: np.ndarray
    Kff_diag: np.ndarray
    Kuf: np.ndarray
    Kuu: np.ndarray
    noise: np.ndarray
    Ksf: np.ndarray
    Ksu: np.ndarray
    Kss_diag: np.ndarray


class Problem(NamedTuple):
    """The arrays of a problem; `noise` is what a row carries beyond σ² = NOISE, Xs are rows to predict.

    Its models have no jitter, for no oracle has any.
    """

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    noise: np.ndarray
    Z: np.ndarray
    Xs: np.ndarray

    def data(self) -> Dataset:
        return dataset(self.X, self.y, self.weight, self.noise)

    def model(self, posterior=None) -> Model:
        return cast(Model(Matern52(LENGTHSCALE, np.asarray(VARIANCE)), Gaussian(NOISE), posterior), jnp.float64)

    def sparse(self) -> Model:
        return self.model(InducingPoints(self.Z, jitter=0.0))

    def whitened(self, q) -> Model:
        return self.model(Whitened(self.Z, q, jitter=0.0))

    def unwhitened(self, q) -> Model:
        return self.model(Unwhitened(self.Z, q, jitter=0.0))

    def dense(self, lengthscale=LENGTHSCALE, variance=VARIANCE, noise=NOISE) -> Dense:
        k = lambda A, B: o.matern52(A, B, lengthscale, variance)
        X, Z, Xs = self.X, self.Z, self.Xs
        diag = lambda A: np.full(len(A), variance)
        return Dense(k(X, X), diag(X), k(Z, X), k(Z, Z), noise + self.noise, k(Xs, X), k(Xs, Z), diag(Xs))


def problem(seed=0, N=24, M=6, *, weighted=False, everywhere=False) -> Problem:
    """Two inputs, noise of its own in every row; weights are whole numbers; `everywhere` puts Z at the rows of X."""
    rng = np.random.default_rng(seed)
    X, Xs = rng.normal(size=(N, 2)), rng.normal(size=(7, 2))
    noise = rng.uniform(0.0, 0.5, N)
    y = np.sin(2 * X[:, 0]) + X[:, 1] + np.sqrt(NOISE + noise) * rng.normal(size=N)
    weight = rng.integers(1, 4, N).astype(float) if weighted else np.ones(N)
    return Problem(X, y, weight, noise, X.copy() if everywhere else 1.3 * rng.normal(size=(M, 2)), Xs)


def repeated(p: Problem) -> Problem:
    """Every row as often as its weight says."""
    rows = np.repeat(np.arange(len(p.y)), p.weight.astype(int))
    return p._replace(X=p.X[rows], y=p.y[rows], weight=np.ones(len(rows)), noise=p.noise[rows])


def random_q(seed: int, M: int) -> tuple[np.ndarray, np.ndarray]:
    """A mean and a covariance, neither the prior's nor the optimum's."""
    rng = np.random.default_rng([7, seed])
    R = rng.normal(size=(M, M))
    return rng.normal(size=M), R @ R.T / M + 0.3 * np.eye(M)


def precision_form(mean, cov) -> MeanPrecision:
    """N(mean, cov) in the coordinates of a natural step."""
    precision = np.linalg.inv(cov)
    return MeanPrecision(mean, 0.5 * (precision + precision.T))


def whiten(Kuu, mean, cov) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of v = L⁻¹u."""
    L = np.linalg.cholesky(Kuu)
    return np.linalg.solve(L, mean), np.linalg.solve(L, np.linalg.solve(L, cov).T)


def both_forms(p: Problem, mean, cov, form=MeanCovariance) -> tuple[Model, Model]:
    """The same q(u) = N(mean, cov) in the unwhitened and in the whitened family."""
    return p.unwhitened(form(mean, cov)), p.whitened(form(*whiten(p.dense().Kuu, mean, cov)))


def moments(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """m and S of a model's q."""
    return np.asarray(model.posterior.q.mean), np.asarray(model.posterior.q.covariance())


def close(actual, desired, tolerance=1e-8):
    """Equal to `tolerance`, relative to the largest number in `desired` (or to 1, where that is larger)."""
    desired = np.asarray(desired)
    np.testing.assert_allclose(actual, desired, rtol=0, atol=tolerance * max(1.0, float(np.abs(desired).max())))


# Compiled once for each shape, for all tests.
elbo = jax.jit(bounds.elbo, static_argnums=(2, 3))
predict = jax.jit(lambda predictor, X: predictor(X))


@partial(jax.jit, static_argnums=(2, 4))
def _step(model, batch, num_data, gamma, tight):
    stepper = NaturalGradient(lambda _: gamma, tight=tight)
    return stepper.step(model, stepper.init(model), batch, num_data)


def natural_step(model: Model, batch: Dataset, num_data: int, gamma: float, tight: bool = True) -> Model:
    """The model after one step of size γ by the library's natural gradient stepper, which may not refuse it."""
    model, _, info = _step(model, batch, num_data, jnp.asarray(gamma), tight)
    assert info.undone == 0
    return model
