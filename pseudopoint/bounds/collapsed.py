"""Bounds of a Gaussian likelihood with the best q(u) integrated out, and an upper bound: N M², in chunks of rows."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from ..data import Dataset
from ..gaussians import MeanPrecision
from ..linalg import factorise, lower_transposed_product
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
from .bound import Solution
from .exact import num_targets, residuals, row_noise
from .row_sums import feature_sums, statistics, whitened_sums

__all__ = ["collapsed", "collapsed_decoupled", "collapsed_orthogonal", "collapsed_solve", "optimal_orthogonal"]


@partial(jax.jit, static_argnames="chunk")
def collapsed(model: Model, data: Dataset, chunk: int | None = None) -> Solution:
    """log N(y; 0, Q + Σ) minus ½ Σ log(1 + λᵢdᵢ) (Titsias 2025), or the standard ½ Σ λᵢdᵢ (Titsias 2009, Kobe 2.17).

    λᵢ = wᵢ/σᵢ² with σᵢ² = σ² + noiseᵢ, Q = AᵀA with A = L⁻¹K_uf, dᵢ = kᵢᵢ − ‖aᵢ‖². With B = I + AΛAᵀ and b = AΛy,
        log N(y; 0, Q + Σ) = −½ [Σ wᵢ log 2πσᵢ² + log |B| + yᵀΛy − bᵀB⁻¹b],
    and q(v) = N(B⁻¹b, B⁻¹) is optimal for both. Rows are summed in chunks, so that memory is O(chunk · M) for any N. Of
    the posterior only Z and jitter are read. Of a target [N, C] the bound is that of C independent functions of one
    prior, which share all factors. The upper bound takes a second pass over the rows:
        U = −½ [Σ wᵢ log 2πσᵢ² + log |B| + yᵀ(Q + Σ + tI)⁻¹y] ≥ log p(y), t = Σ dᵢ  (Titsias 2014; methods a.6).
    """
    data = residuals(model, data)
    Z, noise = jnp.asarray(model.posterior.Z), row_noise(model, data)
    Kuu = prior_factor(model.kernel, Z, model.posterior.jitter)
    s = statistics(partial(whitened_sums, model.kernel, Kuu, Z, chunk), data, noise)
    B = factorise(jnp.eye(len(Z), dtype=Z.dtype) + s.H)
    predictor = Partial(collapsed_predictor, model.kernel, Z, (Kuu.inverse.T @ B.solve(s.b)).T, Kuu, B)
    return _solution(model, data, noise, chunk, s, B, B.quadratic(s.b), Z, Kuu, predictor)


@partial(jax.jit, static_argnames="chunk")
def collapsed_orthogonal(model: Model, data: Dataset, chunk: int | None = None) -> Solution:
    """The bounds of `Orthogonal` at its best (m, S, a): the log-determinant of Z, the quadratic form of Z ∪ O.

        −½ [Σ wᵢ log 2πσᵢ² + log |B| + yᵀ(Q + Σ)⁻¹y] minus ½ Σ log(1 + λᵢdᵢ) or ½ Σ λᵢdᵢ,  Q = Q_{Z ∪ O}
    (methods a.5). B and dᵢ are those of `collapsed`, of Z alone. O does not reduce the variance, so the tight bound
    gains more here than there. With O at the rows the quadratic form is that of the exact evidence. Of the posterior
    only Z, O and jitter are read. The upper bound is that of Z.
    """
    data = residuals(model, data)
    basis, noise, s, B, J = _orthogonal_optimum(model, data, chunk)
    mean, a = _split_mean(basis, J.solve(s.b))
    alpha = jnp.concatenate([basis.Kuu.inverse.T @ (mean - basis.A_O @ a), a])
    predictor = Partial(
        _decoupled_predictor, model.kernel, jnp.concatenate([basis.Z, basis.O]), alpha, basis.Z, basis.Kuu, B
    )
    return _solution(model, data, noise, chunk, s, B, J.quadratic(s.b), basis.Z, basis.Kuu, predictor)


@partial(jax.jit, static_argnames="chunk")
def optimal_orthogonal(model: Model, data: Dataset, chunk: int | None = None) -> Model:
    """The model with the `Orthogonal` posterior that attains `collapsed_orthogonal` (appendix E): P = B, and (m, a)
    together from one system of size M + G."""
    basis, _, s, B, J = _orthogonal_optimum(model, residuals(model, data), chunk)
    mean, a = _split_mean(basis, J.solve(s.b))
    posterior = Orthogonal(Z=basis.Z, O=basis.O, q=MeanPrecision(mean, B.K), a=a, jitter=model.posterior.jitter)
    return Model(model.kernel, model.likelihood, posterior)


@partial(jax.jit, static_argnames="chunk")
def collapsed_decoupled(model: Model, data: Dataset, chunk: int | None = None) -> Solution:
    """The bounds of `Decoupled` at its best (a, B): the log-determinant of Z, the quadratic form of O alone,
        −½ [Σ wᵢ log 2πσᵢ² + log |B| + yᵀ(Q_O + Σ)⁻¹y] minus ½ Σ log(1 + λᵢdᵢ) or ½ Σ λᵢdᵢ.
    The best mean is a = (K_OO + K_OfΛK_fO)⁻¹K_OfΛy. Where O holds Z, it is `collapsed_orthogonal`. Of the posterior
    only Z, O and jitter are read. The upper bound is that of Z.
    """
    data = residuals(model, data)
    Z, O = jnp.asarray(model.posterior.Z), jnp.asarray(model.posterior.O)  # pyright: ignore[reportAttributeAccessIssue]
    Kuu, Koo = (prior_factor(model.kernel, points, model.posterior.jitter) for points in (Z, O))
    basis, noise, M = partial(_decoupled_features, model.kernel, Kuu, Z, Koo, O), row_noise(model, data), len(Z)
    s = statistics(partial(feature_sums, basis, chunk), data, noise)
    B, J = (factorise(jnp.eye(len(H), dtype=Z.dtype) + H) for H in (s.H[:M, :M], s.H[M:, M:]))
    alpha = Koo.inverse.T @ J.solve(s.b[M:])
    predictor = Partial(_decoupled_predictor, model.kernel, O, alpha, Z, Kuu, B)
    return _solution(model, data, noise, chunk, s, B, J.quadratic(s.b[M:]), Z, Kuu, predictor)


@partial(jax.jit, static_argnames="chunk")
def collapsed_solve(model: Model, data: Dataset, chunk: int | None = None) -> Solution:
    """The bounds of `SolveGP` at its best q(v)q(w): with B = I + Σ λᵢφᵢφᵢᵀ, φᵢ = [aᵢ; cᵢ], and its diagonal blocks,
        −½ [Σ wᵢ log 2πσᵢ² + log |P| + log |P_w| + yᵀΛy − bᵀB⁻¹b] minus ½ Σ log(1 + λᵢdᵢ) or ½ Σ λᵢdᵢ
    (methods c). dᵢ is the variance that neither Z nor O explains. The posterior is a `SolveGP`, of which only Z, O and
    jitter are read. No upper bound is known.
    """
    data, basis = residuals(model, data), model.posterior.basis(model.kernel)
    s = statistics(partial(feature_sums, partial(_solve_features, basis), chunk), data, row_noise(model, data))
    best = block_optimum(s.H, s.b, len(basis.Z))
    posterior = SolveGP(Z=basis.Z, O=basis.O, q=best.q, r=best.r, jitter=model.posterior.jitter)
    fit = -0.5 * (s.log_noise + s.yy) + best.gain
    return Solution(fit - 0.5 * s.log_trace, fit - 0.5 * s.trace, Partial(_solve_predictor, posterior, basis))


def _solve_features(basis, X):
    A, C, d = basis.rows(X)
    return jnp.concatenate([A, C]), d


@jax.jit
def _solve_predictor(posterior, basis) -> Predictor:
    return posterior.on(basis).predictor()


def _orthogonal_optimum(model, data, chunk):
    """The basis, the rows' noise, the statistics of the features φ = (a, C^-½c), the factor of B, and that of
    J = I + Σ λᵢφᵢφᵢᵀ, the precision of the posterior at Z ∪ O, whose leading block is B."""
    basis, noise = OrthogonalBasis.of(model.posterior, model.kernel), row_noise(model, data)
    s = statistics(partial(feature_sums, partial(_orthogonal_features, basis), chunk), data, noise)
    J, M = jnp.eye(len(s.H), dtype=s.H.dtype) + s.H, len(basis.Z)
    return basis, noise, s, factorise(J[:M, :M]), factorise(J)


def _orthogonal_features(basis, X):
    A, c, d = basis(X)
    return jnp.concatenate([A, basis.C.whiten(c)]), d


def _decoupled_features(kernel, Kuu, Z, Koo, O, X):
    A, d = features(kernel, Kuu, Z, X)
    return jnp.concatenate([A, Koo.whiten(kernel(O, X))]), d


def _split_mean(basis, solution):
    """m and a = C^-½ᵀ w of (m, w)."""
    M = len(basis.Z)
    return solution[:M], basis.C.inverse.T @ solution[M:]


def _solution(model, data, noise, chunk, s, B, explained, Z, Kuu, predictor) -> Solution:
    """Both bounds and the upper bound of Z; `explained` is bᵀJ⁻¹b, the part of yᵀΛy that the best mean explains."""
    above = partial(_upper, chunk), model.kernel, Kuu, Z, data, noise, s.residual, s.log_noise, B.half_logdet()
    return Solution(*both_forms(s, B, explained), predictor, Partial(*above))


def both_forms(s, B, explained):
    """The tight and the standard bound from the sums over rows."""
    fit, C = -0.5 * (s.yy - explained), num_targets(s.b)
    fit -= C * (0.5 * s.log_noise + B.half_logdet())
    return fit - 0.5 * C * s.log_trace, fit - 0.5 * C * s.trace


@partial(jax.jit, static_argnums=0)
def _upper(chunk, kernel, Kuu, Z, data, noise, extra, log_noise, half_logdet):
    s = statistics(partial(whitened_sums, kernel, Kuu, Z, chunk), data, noise, extra)
    quadratic = s.yy - factorise(jnp.eye(len(Z), dtype=Z.dtype) + s.H).quadratic(s.b)
    return -0.5 * quadratic - num_targets(s.b) * (0.5 * log_noise + half_logdet)


@jax.jit
def collapsed_predictor(kernel, Z, alpha, Kuu, B) -> Predictor:
    return Predictor(kernel, Z, alpha, Z, *_directions(B, Kuu), Kuu.jitter, True)


@jax.jit
def _decoupled_predictor(kernel, points, alpha, Z, Kuu, B) -> Predictor:
    return Predictor(kernel, points, alpha, Z, *_directions(B, Kuu), Kuu.jitter)


def _directions(B, Kuu):
    """W and s of S = B⁻¹, from the eigenvalues of S: those of B have errors of ε ‖B‖, which would spoil the largest of
    S."""
    return directions(lower_transposed_product(B.inverse, B.inverse), Kuu.inverse)
