"""Steppers that remember what every row said last: after one epoch a batch's step is one for all rows.

A batch replaces what its rows said, and the sums over all rows follow by the difference. With whitened features aᵢ,
μᵢ = aᵢᵀm and sᵢ = aᵢᵀSaᵢ + vᵢdᵢ, a row of weight wᵢ says
    αᵢ = wᵢ ∂E[log p(yᵢ | f)]/∂μᵢ,        βᵢ = −2 wᵢ ∂E[log p(yᵢ | f)]/∂sᵢ,
and the derivatives of the bound, q's entropy aside, are Σ αᵢaᵢ − m in m and −½ (Σ βᵢaᵢaᵢᵀ + I) in S.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from ...data import Dataset
from ...gaussians import MeanChol, MeanPrecision
from ...linalg import Scalar, invert, quad_diag
from ...params import Trainable, trainable
from ...posteriors import IndependentLatents, Model, Whitened, features, prior_factor
from .base import AbstractStepper, Guard, Info, Rows, all_finite, climbed, with_q
from .schedules import Schedule, constant

__all__ = ["SAG", "SAGState", "Sites", "SitesState"]


class SitesState(NamedTuple):
    """The table of sites (λᵢ, βᵢ), or (λᵢ, βᵢ, ωᵢ); h = Σ λa; H = Σ βaaᵀ, and Σ ωaaᵀ; S = P⁻¹ and ½ log |S| of the
    model's q; the numbers of the model that the sums hold for; the guard."""

    table: Float[Array, "N K *C"]
    h: Float[Array, "*C M"]
    H: Float[Array, "K-1 *C M M"]
    cov: Float[Array, "*C M M"]
    half_logdet: Float[Array, "*C"]
    held: Float[Array, " P"]
    guard: Guard


class Sites(AbstractStepper):
    """Natural gradients for q alone, of size 1, from what all rows said last: incremental sites (methods d.4).

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
    incremental majorisation); m = Σ αᵢaᵢ is its fixed point too. So latent functions that move at once, each blind to
    the others, do no harm.

    Memory: 2N numbers, 3N with ω, times C for C latent functions. A step costs two Cholesky factors, K_uu and P, and
    one more with ω. Rounding adds up in the sums: after 100 epochs of 2,000 rows to 5e-13 of h, in float32 to 3e-4.

    Exact for one kernel, likelihood and Z: features are not stored, and what a row said with others cannot be
    subtracted. Where any number of the model but q has changed since `init`, steps are rejected.
    """

    gamma: Schedule = eqx.field(static=True, default=constant(1.0))
    tight: bool = eqx.field(static=True, default=True)

    def init(self, model: Model, num_data: int) -> SitesState:
        """No row seen. The model's q must be in `MeanPrecision` coordinates; it serves the first batch, and is
        forgotten.

        Raises TypeError for a likelihood that is not log-concave (a negative βᵢ may make P indefinite), for a posterior
        that is not `Whitened` or `IndependentLatents` of it with one kernel, and for other coordinates.
        """
        q, likelihood = model.posterior.q, model.likelihood
        _check_whitened(model, "Sites")
        if not likelihood.concave:
            name = likelihood.name
            raise TypeError(f"Sites needs a log-concave likelihood, which {name} is not: use NaturalGradient")
        if not isinstance(q, MeanPrecision):
            raise TypeError(f"Sites moves q in MeanPrecision coordinates, not in {type(q).__name__}")
        mean, precision = jnp.asarray(q.mean), jnp.asarray(q.precision)
        K = 3 if likelihood.majorised else 2
        table = jnp.zeros((num_data, K, *mean.shape[:-1]), mean.dtype)
        H = jnp.zeros((K - 1, *precision.shape), mean.dtype)
        cov, half_logdet = invert(precision)
        guard = Guard.start(mean.dtype)
        return SitesState(table, jnp.zeros_like(mean), H, cov, half_logdet, _others(model), guard)

    def step(
        self, model: Model, state: SitesState, batch: Dataset, num_data: int, rows: Rows | None = None
    ) -> tuple[Model, SitesState, Info]:
        """The batch's rows exchange their sites, and q becomes what all sites say.

        `rows` are needed unless the batch is the whole table: ValueError.
        """
        rows, first = _places(rows, batch, state.table, num_data)
        mean, guard = jnp.asarray(model.posterior.q.mean), state.guard
        said = _ask(model, (mean, state.cov, state.half_logdet), batch, num_data, self.tight)
        gamma = guard.scale * self.gamma(guard.steps)
        old = state.table[rows]
        new = (1 - gamma) * old + gamma * _sites(model.likelihood.at(batch.noise), said, batch)
        dh, dH = _sums(said.A, _where(first, new - old))
        h, H = state.h + dh, state.H + dH
        # P = I + Σ βaaᵀ;  m = (I + Σ ωaaᵀ)⁻¹ h, where ω = β unless it is majorised: the last of H either way.
        precision = jnp.eye(mean.shape[-1], dtype=mean.dtype) + H
        cov, half_logdet = invert(precision)
        q = MeanPrecision(_times(cov[-1], h), precision[0])
        now = (q, h, H, cov[0], half_logdet[0])
        good = (_others(model) == state.held).all() & jnp.isfinite(said.bound) & all_finite((now, new))
        before = (model.posterior.q, state.h, state.H, state.cov, state.half_logdet)
        (q, h, H, cov, half_logdet), guard = guard.accept_or_revert(good, now, before)
        table = _put(state.table, rows, first & good, new)
        slope = (num_data / len(batch)) * (said.alpha @ said.A.T) - mean
        info = Info(said.bound, jnp.linalg.norm(slope), jnp.asarray(gamma), ~good)
        return with_q(model, q), SitesState(table, h, H, cov, half_logdet, state.held, guard), info


class SAGState(NamedTuple):
    """The table of (αᵢ, βᵢ), and of aᵢ where hyperparameters move; which rows it has, and how many; h = Σ αa and
    H = Σ βaaᵀ over them; the states of the optimisers of q and of the rest; the numbers that the sums hold for; the
    guard."""

    table: Float[Array, "N 2 *C"]
    features: Any
    seen: Bool[Array, " N"]
    n: Int[Array, ""]
    h: Float[Array, "*C M"]
    H: Float[Array, "*C M M"]
    optimiser: Any
    rest: Any
    held: Any
    guard: Guard


class SAG(AbstractStepper):
    """The stochastic average gradient on the Cholesky parameterisation: Izmailov's svi-SAG (3.1), after Schmidt,
    Le Roux and Bach (2017). For any likelihood, as S = LLᵀ is always a covariance.

    With h = Σ αᵢaᵢ and H = Σ βᵢaᵢaᵢᵀ of what every row said last, the gradient of the bound is
        (N/n) h − m  in m,        −(N/n) tril(HL) − L + diag(1/Lᵢᵢ)  in L,
    and goes to any optax optimiser. n counts the rows seen so far: those not seen are taken to be like those that are
    (as Schmidt et al. weigh early iterations), so that the first step is the plain one of its batch, and after an epoch
    N/n is 1. Taking them to say nothing would pull q to the prior all through the first epoch.

    With `rest`, the other numbers but the `frozen` ones move too, by their plain minibatch gradient. What a row said is
    then kept with the features that it was said with, so that what is subtracted is exactly what was added; q follows
    with a lag of up to an epoch.

    Memory: αᵢ and βᵢ, 2N numbers, times C for C latent functions, and N flags; with `rest` also aᵢ: (M + 2)N numbers.
    Without `rest` the sums hold for one kernel, likelihood and Z: where any number of the model but q has changed
    since `init`, steps are rejected.
    """

    optimiser: optax.GradientTransformation = eqx.field(static=True)
    rest: optax.GradientTransformation | None = eqx.field(static=True, default=None)
    frozen: tuple[Callable, ...] = eqx.field(static=True, default=())
    tight: bool = eqx.field(static=True, default=True)

    def init(self, model: Model, num_data: int) -> SAGState:
        """No row seen. The model's q must be in `MeanChol` coordinates.

        Raises TypeError for other coordinates, and for a posterior that is not `Whitened` or `IndependentLatents` of it
        with one kernel.
        """
        q = model.posterior.q
        _check_whitened(model, "SAG")
        if not isinstance(q, MeanChol):
            raise TypeError(f"SAG moves q in MeanChol coordinates, not in {type(q).__name__}")
        mean, chol = jnp.asarray(q.mean), jnp.asarray(q.chol)
        zeros = partial(jnp.zeros, dtype=mean.dtype)
        kept, rest, held = (), (), _others(model)
        if self.rest is not None:
            kept, rest, held = zeros((num_data, mean.shape[-1])), self.rest.init(self._hyper(model).parts), ()
        return SAGState(
            zeros((num_data, 2, *mean.shape[:-1])),
            kept,
            jnp.zeros(num_data, bool),
            jnp.zeros((), int),
            jnp.zeros_like(mean),
            jnp.zeros_like(chol),
            self.optimiser.init((mean, chol)),
            rest,
            held,
            Guard.start(mean.dtype),
        )

    def _hyper(self, model):
        return trainable(model, lambda m: m.posterior.q, *self.frozen)

    def step(
        self, model: Model, state: SAGState, batch: Dataset, num_data: int, rows: Rows | None = None
    ) -> tuple[Model, SAGState, Info]:
        """The batch's rows say αᵢ and βᵢ anew, and q takes a step along the average of all.

        `rows` are needed unless the batch is the whole table: ValueError.
        """
        rows, first = _places(rows, batch, state.table, num_data)
        q, guard = model.posterior.q, state.guard
        mean, chol = jnp.asarray(q.mean), jnp.asarray(q.chol)
        hyper = None if self.rest is None else self._hyper(model)
        said = _ask(model, (mean, *_moments(chol)), batch, num_data, self.tight, hyper)
        new = _stack(said.alpha, said.beta)
        h, H = self._exchange(state, rows, first, said.A, new)
        n = state.n + jnp.sum(first & ~state.seen[rows])
        slope = _slope(mean, chol, h, H, num_data / n.astype(mean.dtype))
        updates, optimiser = self.optimiser.update(jax.tree.map(jnp.negative, slope), state.optimiser, (mean, chol))
        by_mean, by_chol = (guard.scale * jnp.asarray(update) for update in jax.tree.leaves(updates))
        moved, rest, norm, good = self._rest(model, state, hyper, said)
        norm = jnp.hypot(norm, _norm(slope))
        moved = with_q(moved, MeanChol(mean + by_mean, chol + by_chol))
        new_state = (moved, n, h, H, optimiser, rest)
        good = good & all_finite((said.bound, new_state, new)) & guard.is_plausible(norm)
        old_state = (model, state.n, state.h, state.H, state.optimiser, state.rest)
        (model, n, h, H, optimiser, rest), guard = guard.accept_or_revert(good, new_state, old_state, norm)
        put = lambda table, values: _put(table, rows, first & good, values)
        kept = state.features if self.rest is None else put(state.features, said.A.T)
        table, seen = put(state.table, new), put(state.seen, True)
        after = SAGState(table, kept, seen, n, h, H, optimiser, rest, state.held, guard)
        return model, after, Info(said.bound, _norm(slope), state.guard.scale, ~good)

    def _rest(self, model, state, hyper, said):
        """The model after a step of its other numbers, the state of their optimiser, the norm of their slope, and
        whether the sums hold."""
        if self.rest is None or hyper is None:
            return model, (), 0.0, (_others(model) == state.held).all()
        moved, _, rest, norm = climbed(self.rest, hyper, said.hyper, state.rest, state.guard)
        return moved, rest, norm, jnp.asarray(True)

    def _exchange(self, state, rows, first, A, new):
        """h and H with what these rows say in place of what they said."""
        old = state.table[rows]
        if self.rest is None:
            (dh, dH), (sh, sH) = _sums(A, _where(first, new - old)), (0, 0)
        else:
            (dh, dH), (sh, sH) = _sums(A, _where(first, new)), _sums(state.features[rows].T, _where(first, old))
        return state.h + (dh - sh), state.H + (dH - sH)[0]


class Said(NamedTuple):
    """What a batch says: its estimate of the bound, features, q(fᵢ), αᵢ and βᵢ, and ∂ bound/∂θ if asked."""

    bound: Scalar
    A: Float[Array, "M B"]
    mean: Float[Array, "*C B"]
    variance: Float[Array, "*C B"]
    alpha: Float[Array, "*C B"]
    beta: Float[Array, "*C B"]
    hyper: Any


def _sites(likelihood, said: Said, batch) -> Float[Array, "B K *C"]:
    """(λᵢ, βᵢ), or (λᵢ, βᵢ, ωᵢ)."""
    if not likelihood.majorised:
        return _stack(said.alpha + said.beta * said.mean, said.beta)
    at = said.mean, said.variance, batch.y
    omega = batch.weight * likelihood.majoriser(*at, likelihood.expectation_gradients(*at))
    return _stack(said.alpha + omega * said.mean, said.beta, omega)


def _stack(*values: Float[Array, "*C B"]) -> Float[Array, "B K *C"]:
    """K numbers a row, as tables hold them."""
    return jnp.moveaxis(jnp.stack(values), -1, 0)


def _ask(model, q, batch, num_data, tight, hyper: Trainable | None = None) -> Said:
    """One pass over a batch, with q as (m, S, ½ log |S|). ∂/∂μᵢ and ∂/∂sᵢ are those of shifts of them, at 0."""
    mean, cov, half_logdet = q
    share = num_data / len(batch)
    none = jnp.zeros((*mean.shape[:-1], len(batch)), mean.dtype)

    def expected(by_mean, by_variance, parts):
        at = model if hyper is None else hyper.rebuild(parts)
        Z, likelihood = jnp.asarray(at.posterior.Z), at.likelihood.at(batch.noise)
        A, d = features(at.kernel, prior_factor(at.kernel, Z, at.posterior.jitter), Z, batch.X)
        v = likelihood.shrinkage(d, batch.weight) if tight else jnp.ones_like(d)
        mu, s = mean @ A + by_mean, quad_diag(cov, A) + v * d + by_variance
        fit = jnp.sum(batch.weight * likelihood.expectation(mu, s, batch.y))
        return share * (fit - 0.5 * jnp.sum(v - 1 - jnp.log(v))), (A, mu, s)

    parts = () if hyper is None else hyper.parts
    over = (0, 1) if hyper is None else (0, 1, 2)
    (value, (A, mu, s)), (alpha, slope, *rest) = jax.value_and_grad(expected, over, has_aux=True)(none, none, parts)
    # −KL[q(v) ‖ N(0, I)] = ½ (log |S| − tr S − ‖m‖² + M)
    trace = jnp.trace(cov, axis1=-2, axis2=-1).sum()
    bound = value + jnp.sum(half_logdet) - 0.5 * (trace + jnp.sum(mean**2) - mean.size)
    return Said(bound, A, mu, s, alpha / share, -2 * slope / share, rest[0] if rest else None)


def _slope(mean, chol, h, H, scale):
    """The gradient of the bound in m, and in the lower triangle of L."""
    L = jnp.tril(chol)
    inverse_diagonal = jnp.eye(L.shape[-1], dtype=L.dtype) / jnp.diagonal(L, axis1=-2, axis2=-1)[..., None]
    return scale * h - mean, -scale * jnp.tril(H @ L) - L + inverse_diagonal


def _norm(slope):
    return jnp.sqrt(sum(jnp.sum(part**2) for part in slope))


def _moments(chol):
    """S = LLᵀ and ½ log |S|."""
    L = jnp.tril(chol)
    return L @ L.mT, jnp.sum(jnp.log(jnp.abs(jnp.diagonal(L, axis1=-2, axis2=-1))), axis=-1)


def _sums(A: Float[Array, "M B"], values: Float[Array, "B K *C"]):
    """Σ xᵢaᵢ [*C, M] of the first of K values, and Σ xᵢaᵢaᵢᵀ [K − 1, *C, M, M] of the others."""
    linear, quadratic = values[:, 0], jnp.moveaxis(values[:, 1:], 0, -1)
    return jnp.moveaxis(linear, 0, -1) @ A.T, (A * quadratic[..., None, :]) @ A.T


def _places(rows, batch, table, num_data) -> tuple[Int[Array, " B"], Bool[Array, " B"]]:
    """The rows' numbers, and which of them stand there for the first time: a batch that spans two epochs may hold a row
    twice, and what the row said before is subtracted once."""
    if len(table) != num_data:
        raise ValueError(f"the state is that of a table of {len(table)} rows, not of {num_data}")
    if rows is None:
        if len(batch) != num_data:
            raise ValueError("a stepper that remembers rows needs the numbers of a batch's rows")
        return jnp.arange(num_data), jnp.ones(num_data, bool)
    rows = jnp.asarray(rows)
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


def _check_whitened(model, name):
    posterior = model.posterior
    several = isinstance(posterior, IndependentLatents)
    each = posterior.base if several else posterior
    if not isinstance(each, Whitened) or (several and posterior.separate):
        raise TypeError(
            f"{name} needs a Whitened posterior, or IndependentLatents of one with one kernel for all: "
            "use NaturalGradient or Optax"
        )


_times = jnp.vectorize(jnp.matmul, signature="(m,m),(m)->(m)")
