"""Predictions of a fitted estimator that near rows correct: the likelihood, the predictor, and functions drawn."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..likelihoods import AbstractLikelihood, Warped, WithNearRows
from ..posteriors import Joined, NearRows


def predictive_likelihood(model: Any) -> AbstractLikelihood:
    """p(y | f) by which a fitted estimator predicts: with what near rows tell, where there are such."""
    likelihood, near = model._observed(), model.near_rows_
    if near is None:
        return likelihood
    inner, warp = likelihood.warped or (likelihood, None)
    moved = WithNearRows(inner, near.noise)
    return moved if warp is None else Warped(moved, warp)


def with_near_rows(predictor: Any, near: NearRows | None) -> Any:
    """The predictor of all latent functions, that of near rows the last."""
    return predictor if near is None else Joined((*getattr(predictor, "parts", (predictor,)), near))


def refuse_near_rows(model: Any, what: str) -> None:
    """ValueError for what is not known of a fit that near rows correct."""
    if model.near_rows_ is not None:
        raise ValueError(f"{what} for a model whose predictions near rows correct: fit with near_rows=False")


class MovedPaths(eqx.Module):
    """Functions drawn from a fit, moved by what near rows tell: about the mean of the prediction, as far from it as its
    variance says. What two rows have in common is that of the fit itself. `predictor` is `with_near_rows`."""

    paths: Any
    predictor: Joined
    likelihood: AbstractLikelihood

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "*C S N"]:
        """All functions at the rows of X."""
        return moved(self.paths(X), *place(self.predictor, self.likelihood, X))


def place(predictor: Joined, likelihood: AbstractLikelihood, X: Float[Array, "N D"]) -> Float[Array, "3 N"]:
    """The mean of the first latent function by the fit, by the fit with near rows, and the ratio of their standard
    deviations."""
    mean, variance = predictor(X)
    after, spread = (each if each.ndim == 1 else each[0] for each in likelihood.latent(mean, variance))
    return jnp.stack([mean[0], after, jnp.sqrt(spread / jnp.maximum(variance[0], jnp.finfo(mean.dtype).tiny))])


def moved(f: Any, before: Any, after: Any, factor: Any) -> Any:
    """Draws f [*C, S, N] whose first function has another mean and standard deviation, [N] each."""
    change = lambda first: after + factor * (first - before)
    return change(f) if f.ndim == 2 else jnp.concatenate([change(f[:1]), f[1:]])


def normal(predictor: Joined, likelihood: AbstractLikelihood, X: Float[Array, "N D"]) -> Float[Array, "2 N"]:
    """Mean and variance of the normal variable that stands for w(y), y the target and w its warp."""
    inner, _ = likelihood.warped or (likelihood, None)
    return jnp.stack(inner.normal(*predictor(X)))


def corrected_covariance(K: np.ndarray, factor: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """A joint covariance with f `factor` times as far from its mean, and these variances."""
    K = factor[:, None] * K * factor
    np.fill_diagonal(K, variance)
    return K
