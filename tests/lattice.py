"""What tests of equivalences share: one random regression problem, as the library sees it and as the oracles do."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracles as o

from pseudopoint import bounds
from pseudopoint.data import Dataset, dataset
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.optimise.minibatch import NaturalGradient
from pseudopoint.params import cast
from pseudopoint.posteriors import Collapsed, Exact, Model, Unwhitened, Whitened

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

    Its models have no jitter, for no oracle has any; their q is in the coordinates of a natural step.
    """

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    noise: np.ndarray
    Z: np.ndarray
    Xs: jax.Array

    def data(self) -> Dataset:
        return dataset(self.X, self.y, self.weight, self.noise)

    def model(self, posterior=None) -> Model:
        return cast(
            Model(Matern52(LENGTHSCALE, np.asarray(VARIANCE)), Gaussian(NOISE), posterior or Exact()), jnp.float64
        )

    def sparse(self) -> Model:
        return self.model(Collapsed(self.Z, jitter=0.0))

    def unwhitened(self, mean, cov) -> Model:
        """q(u) = N(mean, cov)."""
        return self.model(Unwhitened(self.Z, precision_form(mean, cov), jitter=0.0))

    def whitened(self, mean, cov) -> Model:
        """q(v) = N(mean, cov) for v = L⁻¹u."""
        return self.model(Whitened(self.Z, precision_form(mean, cov), jitter=0.0))

    def both(self, mean, cov) -> tuple[Model, Model]:
        """The same q(u) = N(mean, cov) in both families."""
        return self.unwhitened(mean, cov), self.whitened(*whiten(self.dense().Kuu, mean, cov))

    def dense(self, lengthscale=LENGTHSCALE, variance=VARIANCE, noise=NOISE) -> Dense:
        k = lambda A, B: o.matern52(A, B, lengthscale, variance)
        X, Z, Xs = self.X, self.Z, np.asarray(self.Xs)
        diag = lambda A: np.full(len(A), variance)
        return Dense(k(X, X), diag(X), k(Z, X), k(Z, Z), noise + self.noise, k(Xs, X), k(Xs, Z), diag(Xs))


def problem(seed=0, N=24, M=6, *, weighted=False, everywhere=False) -> Problem:
    """Two inputs, noise of its own in every row; weights are 1, 2 and 3; `everywhere` puts Z at the rows of X."""
    rng = np.random.default_rng(seed)
    X, Xs = rng.normal(size=(N, 2)), rng.normal(size=(7, 2))
    noise = rng.uniform(0.0, 0.5, N)
    y = np.sin(2 * X[:, 0]) + X[:, 1] + np.sqrt(NOISE + noise) * rng.normal(size=N)
    weight = rng.permutation(np.arange(N) % 3 + 1.0) if weighted else np.ones(N)
    Z = X.copy() if everywhere else 1.3 * rng.normal(size=(M, 2))
    return Problem(X, y, weight, noise, Z, jnp.asarray(Xs))


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
    """N(mean, cov) as mean and precision."""
    precision = np.linalg.inv(cov)
    return MeanPrecision(mean, 0.5 * (precision + precision.T))


def whiten(Kuu, mean, cov) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of v = L⁻¹u."""
    L = np.linalg.cholesky(Kuu)
    return np.linalg.solve(L, mean), np.linalg.solve(L, np.linalg.solve(L, cov).T)


def moments(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """m and S of a model's q."""
    return np.asarray(model.posterior.q.mean), np.asarray(model.posterior.q.covariance())


def close(actual, desired, tolerance=1e-8):
    """Equal to `tolerance`, relative to the largest number in `desired` (or to 1, where that is larger)."""
    desired = np.asarray(desired)
    np.testing.assert_allclose(actual, desired, rtol=0, atol=tolerance * max(1.0, float(np.abs(desired).max())))


# Compiled once for each shape, for all tests: compilation is what these tests cost.


@jax.jit
def exact(model: Model, data: Dataset, Xs):
    """Evidence, and mean and variance at Xs."""
    solution = bounds.marginal(model, data)
    return solution.value, solution.predictor()(Xs)


class Sparse(NamedTuple):
    """Collapsed bounds, upper bound, and mean and variance at Xs."""

    vfe: jax.Array
    tight: jax.Array
    upper: jax.Array
    moments: tuple[jax.Array, jax.Array]


@partial(jax.jit, static_argnums=3)
def sparse(model: Model, data: Dataset, Xs, chunk: int | None = None) -> Sparse:
    solution = bounds.collapsed(model, data, chunk)
    return Sparse(solution.standard, solution.value, solution.upper(), solution.predictor()(Xs))


class Elbo(NamedTuple):
    """The standard and the tight evidence lower bound, and mean and variance at Xs."""

    vfe: jax.Array
    tight: jax.Array
    moments: tuple[jax.Array, jax.Array]


@jax.jit
def elbo(model: Model, data: Dataset, Xs) -> Elbo:
    bound = bounds.elbo(model, data, len(data))
    return Elbo(bound.standard, bound.value, model.predictor()(Xs))


@partial(jax.jit, static_argnums=(2, 4))
def _step(model, batch, num_data, gamma, tight):
    stepper = NaturalGradient(lambda _: gamma, tight=tight)
    return stepper.step(model, stepper.init(model, num_data), batch, num_data)


def natural_step(model: Model, batch: Dataset, num_data: int, gamma: float, tight: bool = True) -> Model:
    """The model after one step of size γ by the library's natural gradient stepper, which may not refuse it."""
    model, _, info = _step(model, batch, num_data, jnp.asarray(gamma), tight)
    assert not info.rejected
    return model
