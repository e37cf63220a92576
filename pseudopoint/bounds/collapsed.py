"""Bounds with the best q(u) of a Gaussian likelihood integrated out, at N M² in chunks of rows, and an upper bound."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..data import Dataset
from ..gaussians import MeanPrecision
from ..linalg import Scalar, factorise, lower_transposed_product
from ..posteriors import (
    Model,
    Orthogonal,
    OrthogonalBasis,
    Predictor,
    SolveGP,
    block_optimum,
    directions,
    features,
    prior_factor,
)
from .exact import row_noise
from .row_sums import feature_sums, statistics, whitened_sums

__all__ = [
    "CollapsedBounds",
    "collapsed",
    "collapsed_and_upper",
    "collapsed_decoupled",
    "collapsed_orthogonal",
    "collapsed_solve",
    "optimal_orthogonal",
    "upper",
]


class CollapsedBounds(NamedTuple):
    """Both collapsed bounds at the same parameters, and the posterior that attains them."""

    tight: Scalar
    vfe: Scalar
    predictor: Predictor


@partial(jax.jit, static_argnames="chunk")
def collapsed(model: Model, data: Dataset, chunk: int | None = None) -> CollapsedBounds:
    """log N(y; 0, Q + Σ) minus ½ Σ λᵢdᵢ (VFE: Titsias 2009, Kobe 2.17) or ½ Σ log(1 + λᵢdᵢ) (tight: Titsias 2025).

    Q = AᵀA with A = L⁻¹K_uf, dᵢ = kᵢᵢ − ‖aᵢ‖². With B = I + AΛAᵀ and b = AΛy,
        log N(y; 0, Q + Σ) = −½ [Σ log 2π/λᵢ + log |B| + yᵀΛy − bᵀB⁻¹b],
    and q(v) = N(B⁻¹b, B⁻¹) is optimal for both. Rows are summed in chunks: memory is O(chunk · M), N is free.
    """
    Kuu, _, s, B = _collapse(model, data, chunk)
    return _collapsed(model, Kuu, s, B)


@partial(jax.jit, static_argnames="chunk")
def collapsed_orthogonal(model: Model, data: Dataset, chunk: int | None = None) -> CollapsedBounds:
    """The bounds of `Orthogonal` at its best (m, S, a): the log-determinant of Z, the quadratic form of Z ∪ O.

        −½ [Σ log 2π/λᵢ + log |B| + yᵀ(Q + Σ)⁻¹y] minus ½ Σ λᵢdᵢ or ½ Σ log(1 + λᵢdᵢ),  Q = Q_{Z ∪ O}
    (methods a.5). B and dᵢ are those of `collapsed`, of Z alone: O takes nothing from the variance, so the tight bound
    pays more here than there. With O at the rows the quadratic form is that of the exact evidence. The posterior needs
    Z, O and jitter: `CollapsedDecoupled`, or an `Orthogonal`, of which nothing else is read.
    """
    basis, s, B, J = _orthogonal_optimum(model, data, chunk)
    mean, a = _split_mean(basis, J.solve(s.b))
    alpha = jnp.concatenate([basis.Kuu.inverse.T @ (mean - basis.A_O @ a), a])
    return _decoupled(model, s, B, J.quadratic(s.b), jnp.concatenate([basis.Z, basis.O]), alpha, basis.Z, basis.Kuu)


@partial(jax.jit, static_argnames="chunk")
def optimal_orthogonal(model: Model, data: Dataset, chunk: int | None = None) -> Model:
    """The model with the `Orthogonal` posterior that attains `collapsed_orthogonal` (appendix E): P = B, and (m, a)
    together from one system of size M + G."""
    basis, s, B, J = _orthogonal_optimum(model, data, chunk)
    mean, a = _split_mean(basis, J.solve(s.b))
    posterior = Orthogonal(Z=basis.Z, O=basis.O, q=MeanPrecision(mean, B.K), a=a, jitter=model.posterior.jitter)
    return Model(model.kernel, model.likelihood, posterior)


@partial(jax.jit, static_argnames="chunk")
def collapsed_decoupled(model: Model, data: Dataset, chunk: int | None = None) -> CollapsedBounds:
    """The bounds of `Decoupled` at its best (a, B): the log-determinant of Z, the quadratic form of O alone,
        −½ [Σ log 2π/λᵢ + log |B| + yᵀ(Q_O + Σ)⁻¹y] minus ½ Σ λᵢdᵢ or ½ Σ log(1 + λᵢdᵢ).
    The best mean is a = (K_OO + K_OfΛK_fO)⁻¹K_OfΛy. Where O holds Z, it is `collapsed_orthogonal`. For
    `CollapsedDecoupled`.
    """
    Z, O = jnp.asarray(model.posterior.Z), jnp.asarray(model.posterior.O)
    Kuu, Koo = (prior_factor(model.kernel, points, model.posterior.jitter) for points in (Z, O))
    basis = partial(_decoupled_features, model.kernel, Kuu, Z, Koo, O)
    s, M = _statistics(model, basis, data, chunk), Z.shape[0]
    B, J = (factorise(jnp.eye(H.shape[0], dtype=Z.dtype) + H) for H in (s.H[:M, :M], s.H[M:, M:]))
    alpha = Koo.inverse.T @ J.solve(s.b[M:])
    return _decoupled(model, s, B, J.quadratic(s.b[M:]), O, alpha, Z, Kuu)


@partial(jax.jit, static_argnames="chunk")
def collapsed_solve(model: Model, data: Dataset, chunk: int | None = None) -> CollapsedBounds:
    """The bounds of `SolveGP` at its best q(v)q(w): with B = I + Σ λᵢφᵢφᵢᵀ, φᵢ = [aᵢ; cᵢ], and its diagonal blocks,
        −½ [Σ log 2π/λᵢ + log |P| + log |P_w| + yᵀΛy − bᵀB⁻¹b] minus ½ Σ λᵢdᵢ or ½ Σ log(1 + λᵢdᵢ)
    (methods c). dᵢ is what neither Z nor O explains: here O takes its part of the variance. Of the posterior nothing
    but Z, O and jitter is read, and the predictor is that of the best q.
    """
    projection = model.posterior.project(model.kernel)
    s = _statistics(model, partial(_solve_features, projection), data, chunk)
    best = block_optimum(s.H, s.b, model.posterior.Z.shape[0])
    posterior = SolveGP(Z=model.posterior.Z, O=model.posterior.O, q=best.q, r=best.r, jitter=model.posterior.jitter)
    fit = -0.5 * (s.log_noise + s.yy) + best.gain
    predictor = posterior.project(model.kernel).predictor()
    return CollapsedBounds(fit - 0.5 * s.log_trace, fit - 0.5 * s.trace, predictor)


def _solve_features(projection, X):
    A, C, d = projection.features(X)
    return jnp.concatenate([A, C]), d


def _orthogonal_optimum(model, data, chunk):
    """J = I + Σ λᵢφᵢφᵢᵀ with φ = (a, C^-½c), whose leading block is B: the posterior's precision of all of Z ∪ O, and
    the statistics of φ."""
    basis = OrthogonalBasis.of(model.posterior, model.kernel)
    s = _statistics(model, partial(_orthogonal_features, basis), data, chunk)
    J, M = jnp.eye(s.H.shape[0], dtype=s.H.dtype) + s.H, basis.Z.shape[0]
    return basis, s, factorise(J[:M, :M]), factorise(J)


def _orthogonal_features(basis, X):
    A, c, d = basis(X)
    return jnp.concatenate([A, basis.C.whiten(c)]), d


def _decoupled_features(kernel, Kuu, Z, Koo, O, X):
    A, d = features(kernel, Kuu, Z, X)
    return jnp.concatenate([A, Koo.whiten(kernel(O, X))]), d


def _split_mean(basis, solution):
    """m and a = C^-½ᵀ w of (m, w)."""
    M = basis.Z.shape[0]
    return solution[:M], basis.C.inverse.T @ solution[M:]


def _decoupled(model, s, B, explained, Zm, alpha, Z, Kuu) -> CollapsedBounds:
    """Both bounds, with bᵀJ⁻¹b of the mean explained."""
    fit = -0.5 * (s.log_noise + s.yy - explained) - B.half_logdet()
    predictor = Predictor(model.kernel, Zm, alpha, Z, *_directions(B, Kuu), Kuu.jitter)
    return CollapsedBounds(fit - 0.5 * s.log_trace, fit - 0.5 * s.trace, predictor)


def _directions(B, Kuu):
    """W and s of S = B⁻¹. Its eigenvalues, not those of B: an error of ε ‖B‖ would be seen in the largest of S."""
    return directions(lower_transposed_product(B.inverse, B.inverse), Kuu.inverse)


@partial(jax.jit, static_argnames="chunk")
def upper(model: Model, data: Dataset, chunk: int | None = None) -> Scalar:
    """U = −½ [Σ log 2π/λᵢ + log |B| + yᵀ(Q + Σ + tI)⁻¹y] ≥ log p(y), t = Σ dᵢ  (Titsias 2014; methods a.6)."""
    _, noisier, s, B = _collapse(model, data, chunk)
    return _upper(noisier, s, B)


@partial(jax.jit, static_argnames="chunk")
def collapsed_and_upper(model: Model, data: Dataset, chunk: int | None = None) -> tuple[CollapsedBounds, Scalar]:
    """`collapsed` and `upper`, for two passes over the rows in place of three."""
    Kuu, noisier, s, B = _collapse(model, data, chunk)
    return _collapsed(model, Kuu, s, B), _upper(noisier, s, B)


def _collapse(model, data, chunk):
    """K_uu; `Statistics` as a function of more noise on every row; those without more, and their B = I + AΛAᵀ."""
    Z = jnp.asarray(model.posterior.Z)
    Kuu = prior_factor(model.kernel, Z, model.posterior.jitter)
    sums, noise = partial(whitened_sums, model.kernel, Kuu, Z, chunk), row_noise(model, data)
    noisier = partial(statistics, sums, data, noise)
    s = noisier()
    return Kuu, noisier, s, factorise(jnp.eye(len(Z), dtype=Z.dtype) + s.H)


def _collapsed(model, Kuu, s, B) -> CollapsedBounds:
    Z = jnp.asarray(model.posterior.Z)
    fit = -0.5 * (s.log_noise + s.yy - B.quadratic(s.b)) - B.half_logdet()
    alpha = Kuu.inverse.T @ B.solve(s.b)
    predictor = Predictor(model.kernel, Z, alpha, Z, *_directions(B, Kuu), Kuu.jitter, True)
    return CollapsedBounds(fit - 0.5 * s.log_trace, fit - 0.5 * s.trace, predictor)


def _upper(noisier, s, B):
    r = noisier(s.residual)
    quadratic = r.yy - factorise(jnp.eye(len(r.b), dtype=r.b.dtype) + r.H).quadratic(r.b)
    return -0.5 * (s.log_noise + quadratic) - B.half_logdet()


def _statistics(model, basis, data, chunk):
    """`Statistics` of any features and residuals, X ↦ (A, d)."""
    return statistics(partial(feature_sums, basis, chunk), data, row_noise(model, data))
