"""Predictions of a fitted estimator that near rows correct: the likelihood, the predictor, and functions drawn."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..likelihoods import AbstractLikelihood, Warped
from ..linalg import factorise
from ..posteriors import AbstractNearRows, Corrected, NearRows
from ..sampling import prior_paths

JITTER = 1e-10  # of a correlation of new rows that are drawn together


def predictive_likelihood(model: Any) -> AbstractLikelihood:
    """p(y | f) by which a fitted estimator predicts: with what near rows tell, where there are such."""
    return _inside(model, lambda inner, near: near.likelihood(inner))


def likelihood_of_draws(model: Any) -> AbstractLikelihood:
    """p(y | f) for functions f that were drawn: near rows leave a share t of the noise."""
    return _inside(model, lambda inner, near: inner.noise_times(float(near.noise)))


def _inside(model, change):
    likelihood, near = model._observed(), model.near_rows_
    if near is None:
        return likelihood
    inner, warp = likelihood.warped or (likelihood, None)
    return change(inner, near) if warp is None else Warped(change(inner, near), warp)


def corrected(predictor: Any, near: AbstractNearRows | None) -> Any:
    """The predictor of all latent functions, those of near rows the last."""
    return predictor if near is None else Corrected(predictor, near)


def numbers_a_row(predictor: Any, near: AbstractNearRows | None) -> int:
    """How many numbers a prediction takes for each row, by which blocks of rows are cut."""
    width = len(predictor.Zv) * int(np.prod(predictor.leading))
    return width if near is None else max(width, near.width)


def refuse_near_rows(model: Any, what: str) -> None:
    """ValueError for what is not known of a fit that near rows correct."""
    if model.near_rows_ is not None:
        raise ValueError(f"{what} for a model whose predictions near rows correct: fit with near_rows=False")


# --- Functions drawn: f becomes m + sη + √t (f − m) + s√ν ξ, ξ of the correlation of h (methods o) --------------------


def place(predictor: Corrected, likelihood: Any, X: Float[Array, "N D"]) -> Float[Array, "3 N"]:
    """m, m + sη, and s√ν."""
    mean, variance = predictor(X)
    after, spread = (each if each.ndim == 1 else each[0] for each in likelihood.latent(mean, variance))
    inner, _ = likelihood.warped or (likelihood, None)
    return jnp.stack([mean[0], after, jnp.sqrt(jnp.maximum(spread - inner.noise * variance[0], 0))])


def move(f: Any, place: Any, xi: Any, noise: Any) -> Any:
    """Draws f [*C, S, N] of the fit, whose first function is moved; ξ [S, N]."""
    before, after, spread = place
    change = lambda first: after + noise**0.5 * (first - before) + spread * xi
    return change(f) if f.ndim == 2 else jnp.concatenate([change(f[0])[None], f[1:]])


class MovedPaths(eqx.Module):
    """Functions drawn from a fit, moved. `predictor` and `likelihood` are those of predictions."""

    paths: Any
    xi: Any
    predictor: Corrected
    likelihood: AbstractLikelihood
    noise: Any

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "*C S N"]:
        """All functions at the rows of X."""
        return move(self.paths(X), place(self.predictor, self.likelihood, X), self.xi(X), self.noise)


def moved_paths(model: Any, drawn: Any, seed: int, count: int, features: int) -> Any:
    """Paths of the fit as they are, or moved."""
    if (near := model.near_rows_) is None:
        return drawn
    centre = np.average(np.asarray(near.X), axis=0, weights=np.asarray(near.weight) > 0)
    xi = prior_paths(_correlation(near), centre, seed, count, features)
    return MovedPaths(drawn, xi, corrected(model.predictor_, near), predictive_likelihood(model), near.noise)


@jax.jit
def correlated(near: NearRows, X: Float[Array, "N D"], normal: Float[Array, "S N"]) -> Float[Array, "S N"]:
    """ξ at the rows of X, jointly: what later rows are does not matter to those before them."""
    return normal @ factorise(_correlation(near)(X, X), JITTER).L.T


def normal_moments(predictor: Corrected, likelihood: AbstractLikelihood, X: Float[Array, "N D"]) -> Float[Array, "2 N"]:
    """Mean and variance of the normal variable that stands for w(y), y the target and w its warp."""
    inner, _ = likelihood.warped or (likelihood, None)
    return jnp.stack(inner.normal(*predictor(X)))


def moved_covariance(near: NearRows, K: np.ndarray, X: Any, spread: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """The joint covariance of w(y) from that of f, with these variances on its diagonal."""
    X = jnp.asarray(X)
    xi = np.asarray(_correlation(near)(X, X), float)
    K = float(near.noise) * K + spread[:, None] * xi * spread
    np.fill_diagonal(K, variance)
    return K


def _correlation(near: NearRows) -> Any:
    return eqx.tree_at(lambda kernel: kernel.variance, near.kernel, jnp.ones_like(near.kernel.variance))
