"""What is maximised: functions of (model, data), each with the posterior that attains it.

    marginal      log p(y), the exact evidence                      N³
    collapsed     the best q(u) integrated out                      N M²   full data, in chunks of rows
    collapsed_orthogonal, collapsed_decoupled: the same with G more points for the mean      N (M + G)²
    collapsed_solve                 the same with G more points for both, in a block of their own
    elbo          any q(u), any likelihood                          B M²   minibatches
    upper         an upper bound on log p(y)                        N M²   how much could more pseudo-points gain?
Always  VFE ≤ tight ≤ log p(y) ≤ upper.  A row's weight multiplies its log likelihood.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from .data import Dataset
from .gaussians import MeanPrecision
from .likelihoods import AbstractLikelihood, Gaussian
from .linalg import Scalar, factorise, lower_transposed_product, resolution
from .posteriors import (
    Model,
    Orthogonal,
    OrthogonalBasis,
    Predictor,
    Predictors,
    Shrunk,
    SolveGP,
    block_optimum,
    directions,
    features,
    prior_factor,
)
from .statistics import feature_sums, statistics, whitened_sums

__all__ = [
    "Collapsed",
    "collapsed",
    "collapsed_and_upper",
    "collapsed_decoupled",
    "collapsed_orthogonal",
    "collapsed_solve",
    "elbo",
    "energies",
    "energy",
    "expected_log_likelihood",
    "majorises",
    "marginal",
    "optimal_orthogonal",
    "shrunk",
    "upper",
]


@jax.jit
def marginal(model: Model, data: Dataset) -> tuple[Scalar, Predictor]:
    """log p(y) = log N(y; 0, K + Σ) of a Gaussian likelihood, Σ = diag((σ² + noiseᵢ)/wᵢ)  (Izmailov (4)).

    Weights must be positive. With weights, p(y) is that of the data with row i seen wᵢ times.
    """
    noise = _noise(model, data)
    K = model.kernel(data.X, data.X) + jnp.diag(noise / data.weight)
    factor = factorise(K, sharp=True)
    # Seen w times instead of once with variance σ²/w:  Σ [(w − 1) log 2πσ² + log w] more in −2 log p.
    constants = jnp.sum(data.weight * jnp.log(2 * jnp.pi * noise) - jnp.log(noise / data.weight))
    value = -0.5 * (factor.quadratic(data.y) + constants) - factor.half_logdet()
    alpha = factor.solve(data.y)
    predictor = Predictor(
        model.kernel, data.X, alpha, data.X, factor.inverse, jnp.zeros_like(alpha), factor.jitter, True
    )
    return value, predictor


class Collapsed(NamedTuple):
    """Both collapsed bounds at the same parameters, and the posterior that attains them."""

    tight: Scalar
    vfe: Scalar
    predictor: Predictor


@partial(jax.jit, static_argnames="chunk")
def collapsed(model: Model, data: Dataset, chunk: int | None = None) -> Collapsed:
    """log N(y; 0, Q + Σ) minus ½ Σ λᵢdᵢ (VFE: Titsias 2009, Kobe 2.17) or ½ Σ log(1 + λᵢdᵢ) (tight: Titsias 2025).

    Q = AᵀA with A = L⁻¹K_uf, dᵢ = kᵢᵢ − ‖aᵢ‖². With B = I + AΛAᵀ and b = AΛy,
        log N(y; 0, Q + Σ) = −½ [Σ log 2π/λᵢ + log |B| + yᵀΛy − bᵀB⁻¹b],
    and q(v) = N(B⁻¹b, B⁻¹) is optimal for both. Rows are summed in chunks: memory is O(chunk · M), N is free.
    """
    Kuu, _, s, B = _collapse(model, data, chunk)
    return _collapsed(model, Kuu, s, B)


@partial(jax.jit, static_argnames="chunk")
def collapsed_orthogonal(model: Model, data: Dataset, chunk: int | None = None) -> Collapsed:
    """The bounds of `Orthogonal` at its best (m, S, a): the log-determinant of Z, the quadratic form of Z ∪ O.

        −½ [Σ log 2π/λᵢ + log |B| + yᵀ(Q + Σ)⁻¹y] minus ½ Σ λᵢdᵢ or ½ Σ log(1 + λᵢdᵢ),  Q = Q_{Z ∪ O}
    (methods a.5). B and dᵢ are those of `collapsed`, of Z alone: O takes nothing from the variance, so the tight bound
    pays more here than there. With O at the rows the quadratic form is that of the exact evidence. The posterior needs
    Z, O and jitter: `MeanPoints`, or an `Orthogonal`, of which nothing else is read.
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
def collapsed_decoupled(model: Model, data: Dataset, chunk: int | None = None) -> Collapsed:
    """The bounds of `Decoupled` at its best (a, B): the log-determinant of Z, the quadratic form of O alone,
        −½ [Σ log 2π/λᵢ + log |B| + yᵀ(Q_O + Σ)⁻¹y] minus ½ Σ λᵢdᵢ or ½ Σ log(1 + λᵢdᵢ).
    The best mean is a = (K_OO + K_OfΛK_fO)⁻¹K_OfΛy. Where O holds Z, it is `collapsed_orthogonal`. For `MeanPoints`.
    """
    Z, O = jnp.asarray(model.posterior.Z), jnp.asarray(model.posterior.O)
    Kuu, Koo = (prior_factor(model.kernel, points, model.posterior.jitter) for points in (Z, O))
    basis = partial(_decoupled_features, model.kernel, Kuu, Z, Koo, O)
    s, M = _statistics(model, basis, data, chunk), Z.shape[0]
    B, J = (factorise(jnp.eye(H.shape[0], dtype=Z.dtype) + H) for H in (s.H[:M, :M], s.H[M:, M:]))
    alpha = Koo.inverse.T @ J.solve(s.b[M:])
    return _decoupled(model, s, B, J.quadratic(s.b[M:]), O, alpha, Z, Kuu)


@partial(jax.jit, static_argnames="chunk")
def collapsed_solve(model: Model, data: Dataset, chunk: int | None = None) -> Collapsed:
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
    return Collapsed(fit - 0.5 * s.log_trace, fit - 0.5 * s.trace, predictor)


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


def _decoupled(model, s, B, explained, Zm, alpha, Z, Kuu) -> Collapsed:
    """Both bounds, with bᵀJ⁻¹b of the mean explained."""
    fit = -0.5 * (s.log_noise + s.yy - explained) - B.half_logdet()
    predictor = Predictor(model.kernel, Zm, alpha, Z, *_directions(B, Kuu), Kuu.jitter)
    return Collapsed(fit - 0.5 * s.log_trace, fit - 0.5 * s.trace, predictor)


def _directions(B, Kuu):
    """W and s of S = B⁻¹. Its eigenvalues, not those of B: an error of ε ‖B‖ would be seen in the largest of S."""
    return directions(lower_transposed_product(B.inverse, B.inverse), Kuu.inverse)


@partial(jax.jit, static_argnames="chunk")
def upper(model: Model, data: Dataset, chunk: int | None = None) -> Scalar:
    """U = −½ [Σ log 2π/λᵢ + log |B| + yᵀ(Q + Σ + tI)⁻¹y] ≥ log p(y), t = Σ dᵢ  (Titsias 2014; methods a.6)."""
    _, noisier, s, B = _collapse(model, data, chunk)
    return _upper(noisier, s, B)


@partial(jax.jit, static_argnames="chunk")
def collapsed_and_upper(model: Model, data: Dataset, chunk: int | None = None) -> tuple[Collapsed, Scalar]:
    """`collapsed` and `upper`, for two passes over the rows in place of three."""
    Kuu, noisier, s, B = _collapse(model, data, chunk)
    return _collapsed(model, Kuu, s, B), _upper(noisier, s, B)


def _collapse(model, data, chunk):
    """K_uu; `Statistics` as a function of more noise on every row; those without more, and their B = I + AΛAᵀ."""
    Z = jnp.asarray(model.posterior.Z)
    Kuu = prior_factor(model.kernel, Z, model.posterior.jitter)
    sums, noise = partial(whitened_sums, model.kernel, Kuu, Z, chunk), _noise(model, data)
    noisier = partial(statistics, sums, data, noise)
    s = noisier()
    return Kuu, noisier, s, factorise(jnp.eye(len(Z), dtype=Z.dtype) + s.H)


def _collapsed(model, Kuu, s, B) -> Collapsed:
    Z = jnp.asarray(model.posterior.Z)
    fit = -0.5 * (s.log_noise + s.yy - B.quadratic(s.b)) - B.half_logdet()
    alpha = Kuu.inverse.T @ B.solve(s.b)
    predictor = Predictor(model.kernel, Z, alpha, Z, *_directions(B, Kuu), Kuu.jitter, True)
    return Collapsed(fit - 0.5 * s.log_trace, fit - 0.5 * s.trace, predictor)


def _upper(noisier, s, B):
    r = noisier(s.residual)
    quadratic = r.yy - factorise(jnp.eye(len(r.b), dtype=r.b.dtype) + r.H).quadratic(r.b)
    return -0.5 * (s.log_noise + quadratic) - B.half_logdet()


def _statistics(model, basis, data, chunk):
    """`Statistics` of any features and residuals, X ↦ (A, d)."""
    return statistics(partial(feature_sums, basis, chunk), data, _noise(model, data))


def _noise(model, data):
    """σ² + noiseᵢ, no less than the share of kᵢᵢ that the arithmetic resolves: beneath it a variance is rounding error.

    Without noise in the target, σ²/kᵢᵢ → 0 climbs the evidence for ever, and past the resolution everything computed is
    nonsense: a lower bound above the upper one, errors of many standard deviations.
    """
    likelihood = model.likelihood.at(data.noise)
    if not isinstance(likelihood, Gaussian):
        raise TypeError(f"{likelihood.name} has no bound in closed form: use elbo")
    return jnp.maximum(likelihood.variance, resolution(data.X.dtype) * model.kernel.diag(data.X))


def expected_log_likelihood(model: Model, batch: Dataset, num_data: int, tight: bool = True):
    """(N/B) Σ_batch E_q[log p(yᵢ | fᵢ)], and the projection it used.

    Tight: q(f | u) may shrink the residual variance dᵢ by vᵢ at a cost of ½(vᵢ − 1 − log vᵢ); at the best vᵢ a Gaussian
    likelihood pays ½ log(1 + λᵢdᵢ) instead of ½ λᵢdᵢ (methods a.2). vᵢ = 1 is the standard bound (Kobe 2.25).
    """
    projection, likelihood = model.posterior.project(model.kernel), model.likelihood.at(batch.noise)
    if tight and likelihood.shrinks:
        mean, explained, d = projection.marginals(batch.X)
        v = likelihood.shrinkage(d, batch.weight)
        variance, cost = explained + v * d, 0.5 * jnp.sum(v - 1 - jnp.log(v))
    else:
        (mean, variance), cost = projection.moments(batch.X), 0.0
    fit = jnp.sum(batch.weight * likelihood.expectation(mean, variance, batch.y))
    return (num_data / len(batch)) * (fit - cost), projection


def energy(model: Model, batch: Dataset, num_data: int, tight: bool = True) -> Scalar:
    """E_q[log p(y | f)] + E_q[log p(u)]: the bound without the entropy of q.

    It never factorises S. The entropy's natural gradient is −θ, known without differentiation, so this is all that a
    natural step differentiates.
    """
    expected, projection = expected_log_likelihood(model, batch, num_data, tight)
    return expected + projection.log_prior


def energies(model: Model, batch: Dataset, num_data: int, tight: bool = True) -> tuple[Scalar, Scalar]:
    """The `energy`, and from the same pass −½ (N/B) Σ ωᵢ V fᵢ + E_q[log p(u)] with constant ωᵢ: −2 ∂/∂S of that is a
    precision P_ω with which a step of the mean of size 1 goes up, whatever the curvature of log p(y | f) (methods d.3).
    Where the likelihood needs none (`majorises`) the second is the energy again, with P* for P_ω. Not for second
    derivatives.
    """
    if not majorises(model.likelihood):
        value = energy(model, batch, num_data, tight)
        return value, value
    projection, scale = model.posterior.project(model.kernel), num_data / len(batch)
    numbers, rest = eqx.partition(model.likelihood.at(batch.noise), eqx.is_inexact_array)
    at = numbers, *projection.moments(batch.X)
    # Slopes are computed with the value, at constants, for both: E + (slopes)ᵀ(x − constants) has E's value and its
    # first derivatives. By themselves they would run the quadrature again, and ω's own derivatives would be traced.
    constants = lax.stop_gradient(at)
    given = lambda numbers, mean, variance: eqx.combine(numbers, rest).expectation(mean, variance, batch.y)
    expected, pull = jax.vjp(given, *constants)
    along = jax.tree.map(lambda slope, x, c: jnp.sum(slope * (x - c)), pull(batch.weight), at, constants)
    fit = jnp.sum(batch.weight * expected) + sum(jax.tree.leaves(along))
    (numbers, mean, variance), (_, *slopes) = constants, pull(jnp.ones_like(expected))
    omega = eqx.combine(numbers, rest).majoriser(mean, variance, batch.y, tuple(slopes))
    below = -0.5 * jnp.sum(batch.weight * omega * at[2])
    return scale * fit + projection.log_prior, scale * below + projection.log_prior


def majorises(likelihood: AbstractLikelihood) -> bool:
    """Whether the mean moves with the curvature of a majoriser, and not with that of log p(y | f)."""
    return likelihood.majorised or not likelihood.concave


@jax.jit
def shrunk(model: Model, data: Dataset, iterations: int = 30) -> Model:
    """The model with the posterior `Shrunk` and its v at the top of the bound of all rows, for the model's q:
    v = 1/(1 + Σ wᵢβᵢdᵢ/CN), βᵢ = −2 ∂E[log p(yᵢ | f)]/∂variance at explained + v dᵢ  (methods a.3), a fixed point.
    """
    each = model.posterior.each if isinstance(model.posterior, Shrunk) else model.posterior
    mean, explained, d = each.project(model.kernel).marginals(data.X)
    likelihood = model.likelihood.at(data.noise)

    def better(_, v):
        fit = lambda v: jnp.sum(data.weight * likelihood.expectation(mean, explained + v * d, data.y))
        # Where the log density is not concave β may be negative, and v above 1: no more than twice the prior's.
        return 1 / (1 + jnp.maximum(-2 * jax.grad(fit)(v) / d.size, -0.5))

    v = lax.fori_loop(0, iterations, better, jnp.ones((), data.X.dtype))
    posterior = Shrunk(each=each, num_data=len(data), v=v)  # pyright: ignore[reportCallIssue]
    return Model(model.kernel, model.likelihood, posterior)


def elbo(model: Model, batch: Dataset, num_data: int, tight: bool = True) -> tuple[Scalar, Predictor | Predictors]:
    """E_q[log p(y | f)] − KL[q(u) ‖ p(u)], unbiased from a batch of `num_data` rows  (Kobe 2.25, with its erratum)."""
    expected, projection = expected_log_likelihood(model, batch, num_data, tight)
    return expected - projection.divergence, projection.predictor()
