"""Rules that remember the last gradients of every row: after one epoch a batch's step is one for all rows.

A batch replaces the numbers of its rows, and the sums over all rows change by the difference. With whitened features
aᵢ, μᵢ = aᵢᵀm and sᵢ = aᵢᵀSaᵢ + vᵢdᵢ, a row of weight wᵢ has
    αᵢ = wᵢ ∂E[log p(yᵢ | f)]/∂μᵢ,        βᵢ = −2 wᵢ ∂E[log p(yᵢ | f)]/∂sᵢ,
and the gradients of the bound, q's entropy aside, are Σ αᵢaᵢ − m in m and −½ (Σ βᵢaᵢaᵢᵀ + I) in S.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from ...compilation import bucket
from ...gaussians import MeanChol, MeanPrecision
from ...linalg import Scalar, invert, quad_diag
from ...posteriors import Model, Whitened, features, prior_factor
from ..transformation import GradientTransformation
from .energy import with_q
from .schedules import FULL, Schedule
from .step import AbstractRule, Context, Proposal, VariationalStep

__all__ = ["AverageRule", "AverageState", "SAG", "Sites", "SitesRule", "SitesState"]


class SitesState(NamedTuple):
    """The table of sites (λᵢ, βᵢ), or (λᵢ, βᵢ, ωᵢ); h = Σ λa; H = Σ βaaᵀ, and Σ ωaaᵀ; S = P⁻¹ and ½ log |S| of the
    model's q; and `held`, the numbers of the model for which the sums are valid."""

    table: Float[Array, "N K *C"]
    h: Float[Array, "*C M"]
    H: Float[Array, "K-1 *C M M"]
    cov: Float[Array, "*C M M"]
    half_logdet: Float[Array, "*C"]
    held: Float[Array, " P"]


class SitesRule(AbstractRule):
    """Every row has a site, its share of q's natural parameters; see `Sites`."""

    name = "Sites"
    moves = {"q": MeanPrecision}
    family = Whitened
    one_kernel = True

    def init(self, model: Model, num_data: int) -> SitesState:
        """No row seen; the model's q serves the first batch, and is then forgotten. Raises TypeError for a likelihood
        that is not log-concave: a negative βᵢ may make P indefinite."""
        likelihood, q = model.likelihood, model.posterior.q
        if not likelihood.concave:
            raise TypeError(f"Sites needs a log-concave likelihood, not {likelihood.name}: use NaturalGradient")
        mean, precision = jnp.asarray(q.mean), jnp.asarray(q.precision)
        K = 3 if likelihood.majorised else 2
        table = jnp.zeros((num_data, K, *mean.shape[:-1]), mean.dtype)
        H = jnp.zeros((K - 1, *precision.shape), mean.dtype)
        cov, half_logdet = invert(precision)
        return SitesState(table, jnp.zeros_like(mean), H, cov, half_logdet, _others(model))

    def update(self, state: SitesState, at: Context) -> Proposal:
        """The batch's rows exchange their sites, and q follows from all sites."""
        rows, first = _places(at, state.table)
        mean = jnp.asarray(at.model.posterior.q.mean)
        batch = _row_gradients(at, mean, state.cov, state.half_logdet)
        old = state.table[rows]
        new = (1 - at.gamma) * old + at.gamma * _sites(at, batch)
        dh, dH = _sums(batch.A, _where(first, new - old))
        h, H = state.h + dh, state.H + dH
        # P = I + Σ βaaᵀ;  m = (I + Σ ωaaᵀ)⁻¹ h, where ω = β unless it is majorised: the last of H either way.
        precision = jnp.eye(mean.shape[-1], dtype=mean.dtype) + H
        cov, half_logdet = invert(precision)
        q = MeanPrecision(_times(cov[-1], h), precision[0])
        after = SitesState(state.table, h, H, cov[0], half_logdet[0], state.held)
        norm = jnp.linalg.norm((at.num_data / len(at.batch)) * (batch.alpha @ batch.A.T) - mean)
        checked, valid = (q, h, H, cov[0], half_logdet[0], new), (_others(at.model) == state.held).all()
        return Proposal((q,), after, batch.bound, batch.hyper, norm, checked, valid, (rows, first, new))

    def write(self, state: SitesState, proposal: Proposal, accepted: Bool[Array, ""]) -> SitesState:
        rows, first, new = proposal.written
        return state._replace(table=_put(state.table, rows, first & accepted, new))


def Sites(gamma: Schedule = FULL, tight: bool = True) -> VariationalStep:
    """Natural gradients for q alone, of size 1, from the last site of every row: incremental sites (methods d.4).

    A row's site is its share of q's natural parameters, λᵢ = αᵢ + βᵢμᵢ and βᵢ; 0, as in the prior, until it is seen.
        P = I + Σ βᵢaᵢaᵢᵀ,        m = P⁻¹ Σ λᵢaᵢ.
    For a Gaussian likelihood one epoch is exact, in any order. For others the steps lose their noise as they converge,
    so that no schedule is needed: `gamma` < 1 only damps, (1 − γ) old site + γ new site. It is the stochastic average
    gradient of conjugate-computation variational inference (Khan and Lin 2017), and t-SVGP's sites (Adam et al. 2021)
    one batch at a time.

    Where a step of P's own would overshoot (`likelihood.majorised`) the mean takes the majoriser's curvature ωᵢ in
    place of βᵢ (methods d.3): a row's third number is ωᵢ, and
        λᵢ = αᵢ + ωᵢμᵢ,        m = (I + Σ ωᵢaᵢaᵢᵀ)⁻¹ Σ λᵢaᵢ,
    the top of the sum of the rows' quadratic minorants, each from where the row was seen last (Mairal 2015's
    incremental majorisation); m = Σ αᵢaᵢ is its fixed point too. So latent functions may move at once, each without
    regard to the others.

    Memory: 2N numbers, 3N with ω, times C for C latent functions. A step costs two Cholesky factors, K_uu and P, and
    one more with ω. Rounding adds up in the sums: after 100 epochs of 2,000 rows to 5e-13 of h, in float32 to 3e-4.

    Exact for one kernel, likelihood and Z: features are not stored, and sites of other hyperparameters cannot be
    subtracted. Where any number of the model but q has changed since `init`, steps are rejected. A step raises
    ValueError without the batch's row numbers, unless the batch is the whole table.
    """
    return VariationalStep(SitesRule(), gamma, None, (_all,), tight)


class AverageState(NamedTuple):
    """The table of (αᵢ, βᵢ), and of aᵢ where hyperparameters move; which rows it has, and how many; h = Σ αa and
    H = Σ βaaᵀ over them; the state of q's optimiser; and the numbers for which the sums are valid, () where aᵢ are
    stored."""

    table: Float[Array, "N 2 *C"]
    features: Any
    seen: Bool[Array, " N"]
    n: Int[Array, ""]
    h: Float[Array, "*C M"]
    H: Float[Array, "*C M M"]
    optimiser: Any
    held: Any


class AverageRule(AbstractRule):
    """q moves along the average of the rows' last gradients, by an optax optimiser; see `SAG`. `stores_features` where
    hyperparameters move."""

    name = "SAG"
    moves = {"q": MeanChol}
    family = Whitened
    one_kernel = True
    optimises = True
    optimiser: GradientTransformation = eqx.field(static=True)
    stores_features: bool = eqx.field(static=True)

    def init(self, model: Model, num_data: int) -> AverageState:
        mean, chol = jnp.asarray(model.posterior.q.mean), jnp.asarray(model.posterior.q.chol)
        zeros = lambda *shape: jnp.zeros((num_data, *shape), mean.dtype)
        stored, held = (zeros(mean.shape[-1]), ()) if self.stores_features else ((), _others(model))
        table, seen, n = zeros(2, *mean.shape[:-1]), jnp.zeros(num_data, bool), jnp.zeros((), int)
        sums = jnp.zeros_like(mean), jnp.zeros_like(chol)
        return AverageState(table, stored, seen, n, *sums, self.optimiser.init((mean, chol)), held)

    def update(self, state: AverageState, at: Context) -> Proposal:
        """The batch's rows exchange αᵢ and βᵢ, and q takes a step along the average of all."""
        rows, first = _places(at, state.table)
        q = at.model.posterior.q
        mean, chol = jnp.asarray(q.mean), jnp.asarray(q.chol)
        L = jnp.tril(chol)
        diagonal = jnp.diagonal(L, axis1=-2, axis2=-1)
        batch = _row_gradients(at, mean, L @ L.mT, jnp.sum(jnp.log(jnp.abs(diagonal)), axis=-1))
        new = _stacked(batch.alpha, batch.beta)
        old = state.table[rows]
        A, change = batch.A, _where(first, new - old)
        if self.stores_features:  # the old numbers belong to other features
            A = jnp.concatenate([A, state.features[rows].T], axis=1)
            change = jnp.concatenate([_where(first, new), -_where(first, old)])
        dh, dH = _sums(A, change)
        h, H = state.h + dh, state.H + dH[0]
        n = state.n + jnp.sum(first & ~state.seen[rows])
        scale = at.num_data / n.astype(mean.dtype)
        by_chol = -scale * jnp.tril(H @ L) - L + jnp.eye(L.shape[-1], dtype=L.dtype) / diagonal[..., None]
        gradient = scale * h - mean, by_chol
        updates, optimiser = self.optimiser.update(jax.tree.map(jnp.negative, gradient), state.optimiser, (mean, chol))
        mean, chol = jax.tree.map(lambda x, update: x + at.gamma * update, (mean, chol), updates)
        norm = jnp.sqrt(sum(jnp.sum(part**2) for part in gradient))
        valid = True if self.stores_features else (_others(at.model) == state.held).all()
        after = state._replace(n=n, h=h, H=H, optimiser=optimiser)
        checked, written = (mean, chol, h, H, optimiser, new), (rows, first, new, batch.A.T)
        return Proposal((MeanChol(mean, chol),), after, batch.bound, batch.hyper, norm, checked, valid, written)

    def write(self, state: AverageState, proposal: Proposal, accepted: Bool[Array, ""]) -> AverageState:
        rows, first, new, features = proposal.written
        put = lambda table, values: _put(table, rows, first & accepted, values)
        state = state._replace(table=put(state.table, new), seen=put(state.seen, True))
        return state._replace(features=put(state.features, features)) if self.stores_features else state


def SAG(
    optimiser: GradientTransformation,
    hyper_optimiser: GradientTransformation | None = None,
    frozen: tuple[Callable, ...] = (),
    tight: bool = True,
) -> VariationalStep:
    """The stochastic average gradient for q, in `MeanChol` coordinates: Izmailov's svi-SAG (3.1), after Schmidt, Le
    Roux and Bach (2017). For any likelihood, as S = LLᵀ is always a covariance.

    With h = Σ αᵢaᵢ and H = Σ βᵢaᵢaᵢᵀ of the rows' last numbers, the gradient of the bound is
        (N/n) h − m  in m,        −(N/n) tril(HL) − L + diag(1/Lᵢᵢ)  in L,
    and goes to any optax `optimiser`. n counts the rows seen so far: those not seen are taken to be like those that are
    (as Schmidt et al. weigh early iterations), so that the first step is the plain one of its batch, and after an epoch
    N/n is 1. Taking them to be without information would pull q to the prior all through the first epoch.

    With a `hyper_optimiser`, the other numbers but the `frozen` ones move too, by their plain minibatch gradient. A
    row's numbers are then stored with the features that they were computed with, so that what is subtracted is exactly
    what was added; q follows with a lag of up to an epoch.

    Memory: αᵢ and βᵢ, 2N numbers, times C for C latent functions, and N flags; with a `hyper_optimiser` also aᵢ:
    (M + 2)N numbers. Without one the sums are valid for one kernel, likelihood and Z: where any number of the model but
    q has changed since `init`, steps are rejected. A step raises ValueError without the batch's row numbers, unless the
    batch is the whole table.
    """
    moves = hyper_optimiser is not None
    return VariationalStep(AverageRule(optimiser, moves), FULL, hyper_optimiser, frozen if moves else (_all,), tight)


class RowGradients(NamedTuple):
    """Of a batch: its estimate of the bound, features, moments of q(fᵢ), αᵢ, βᵢ, and ∂ bound/∂(hyperparameters)."""

    bound: Scalar
    A: Float[Array, "M B"]
    mean: Float[Array, "*C B"]
    variance: Float[Array, "*C B"]
    alpha: Float[Array, "*C B"]
    beta: Float[Array, "*C B"]
    hyper: Any


def _row_gradients(at: Context, mean, cov, half_logdet) -> RowGradients:
    """One pass over a batch, with q = N(mean, cov). ∂/∂μᵢ and ∂/∂sᵢ are those of shifts of them, at 0."""
    batch, scale = at.batch, at.num_data / len(at.batch)
    zero = jnp.zeros((*mean.shape[:-1], len(batch)), mean.dtype)

    def expected(by_mean, by_variance, parts):
        model = at.hyper.rebuild(parts)
        Z, likelihood = jnp.asarray(model.posterior.Z), model.likelihood.at(batch)
        A, d = features(model.kernel, prior_factor(model.kernel, Z, model.posterior.jitter), Z, batch.X)
        v = likelihood.shrinkage(d, batch.weight) if at.tight else jnp.ones_like(d)
        mu, s = mean @ A + by_mean, quad_diag(cov, A) + v * d + by_variance
        fit = jnp.sum(batch.weight * likelihood.expectation(mu, s, batch.y))
        return scale * (fit - 0.5 * jnp.sum(v - 1 - jnp.log(v))), (A, mu, s)

    start = (zero, zero, at.hyper.parts)
    (value, (A, mu, s)), gradients = jax.value_and_grad(expected, (0, 1, 2), has_aux=True)(*start)
    alpha, by_variance, hyper = gradients
    # −KL[q(v) ‖ N(0, I)] = ½ (log |S| − tr S − ‖m‖² + M)
    trace = jnp.trace(cov, axis1=-2, axis2=-1).sum()
    bound = value + jnp.sum(half_logdet) - 0.5 * (trace + jnp.sum(mean**2) - mean.size)
    return RowGradients(bound, A, mu, s, alpha / scale, -2 * by_variance / scale, hyper)


def _sites(at: Context, batch: RowGradients) -> Float[Array, "B K *C"]:
    """(λᵢ, βᵢ), or (λᵢ, βᵢ, ωᵢ)."""
    likelihood = at.model.likelihood.at(at.batch)
    if not likelihood.majorised:
        return _stacked(batch.alpha + batch.beta * batch.mean, batch.beta)
    moments = batch.mean, batch.variance, at.batch.y
    omega = at.batch.weight * likelihood.majoriser(*moments, likelihood.expectation_gradients(*moments))
    return _stacked(batch.alpha + omega * batch.mean, batch.beta, omega)


def _stacked(*values: Float[Array, "*C B"]) -> Float[Array, "B K *C"]:
    """K numbers a row, as tables hold them."""
    return jnp.moveaxis(jnp.stack(values), -1, 0)


def _sums(A: Float[Array, "M B"], values: Float[Array, "B K *C"]):
    """Σ xᵢaᵢ [*C, M] of the first of K values, and Σ xᵢaᵢaᵢᵀ [K − 1, *C, M, M] of the others."""
    linear, quadratic = values[:, 0], jnp.moveaxis(values[:, 1:], 0, -1)
    return jnp.moveaxis(linear, 0, -1) @ A.T, (A * quadratic[..., None, :]) @ A.T


def _places(at: Context, table) -> tuple[Int[Array, " B"], Bool[Array, " B"]]:
    """The row numbers, and which of them stand there for the first time: a batch that spans two epochs may hold a row
    twice, and its old numbers are subtracted once."""
    N = len(table)
    if isinstance(at.num_data, int) and N not in (at.num_data, bucket(at.num_data)):
        raise ValueError(f"the state is that of a table of {N} rows, not of {at.num_data}")
    if at.rows is None:
        if len(at.batch) != N:
            raise ValueError("a stepper that remembers rows needs the numbers of a batch's rows")
        return jnp.arange(N), jnp.ones(N, bool)
    rows = jnp.asarray(at.rows)
    order = jnp.argsort(rows)
    fresh = jnp.diff(rows[order], prepend=-1) != 0
    return rows, jnp.zeros(rows.shape, bool).at[order].set(fresh)


def _put(table, rows, chosen, values):
    """The table with these values in the chosen rows: O(B), where a choice between two tables would be O(N)."""
    return table.at[jnp.where(chosen, rows, len(table))].set(values, mode="drop")


def _where(first, values):
    """0 in rows that are not first."""
    return jnp.where(first.reshape(-1, *(1,) * (values.ndim - 1)), values, 0)


def _others(model):
    """All numbers of a model but those of q."""
    return ravel_pytree(with_q(model, ()))[0]


_all = lambda model: model  # frozen, so that no gradient in hyperparameters is traced
_times = jnp.vectorize(jnp.matmul, signature="(m,m),(m)->(m)")
