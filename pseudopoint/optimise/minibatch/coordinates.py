"""Natural gradient steps in whatever coordinates q has, guarded."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from ...data import Dataset
from ...gaussians import MeanCovariance, Natural, step_along, to_expectation_slope
from ...params import trainable
from ...posteriors import Model
from .base import AbstractStepper, Guard, Info, Rows, all_finite, climbed, energy_slopes, gaussian_entropy, with_q
from .schedules import Schedule

__all__ = ["ForwardNaturalGradient", "ForwardState"]


class Reading(NamedTuple):
    """What a step asks of q: all finite, if q is a Gaussian that numbers can hold."""

    mean: Float[Array, "*C M"]
    cov: Float[Array, "*C M M"]
    theta: Natural
    half_logdet: Float[Array, "*C"]


class ForwardState(NamedTuple):
    """The model's q as read, the state of the optimiser of the rest, and the guard."""

    reading: Reading
    rest: Any
    guard: Guard


class ForwardNaturalGradient(AbstractStepper):
    """A natural gradient step of size γ_t in q's own coordinates ξ, and an optax step on all other numbers, from one
    pass over the batch (Salimbeni et al. 2018, (5), (10) and section 5.3).

    With E the `energy` (the bound without q's entropy), differentiated in m and S as plain arrays, η the expectation
    and θ the natural parameters, of which −θ is the entropy's natural gradient:
        ξ ← ξ + γ (∂ξ/∂θ) (∂E/∂η − θ).
    All coordinates follow the same path as γ → 0. Steps differ: in `Natural` ones, one of size 1 on all rows solves a
    Gaussian likelihood; `NaturalGradient` makes the same step there at two factorisations, and has rules for the
    likelihoods that are not log-concave. Roots and logarithms stay positive definite for every γ; where the others do
    not, or numbers overflow, the step is rejected. So it is where it overshoots without bound, as a root can that jumps
    across zero again and again. With P* = −2 ∂E/∂S, the eigenvalues of P*S go to 1 on the path; a step after which
    their sum is more than 2 tr(P*S) + 2M has left it.
    """

    gamma: Schedule = eqx.field(static=True)
    rest: optax.GradientTransformation | None = eqx.field(static=True, default=None)
    frozen: tuple[Callable, ...] = eqx.field(static=True, default=())
    tight: bool = eqx.field(static=True, default=True)

    def init(self, model: Model, num_data: int) -> ForwardState:
        """The state before the first step; the model's q may be any `AbstractGaussian`."""
        reading = _read(model.posterior.q)
        rest = () if self.rest is None else self.rest.init(self._hyper(model).parts)
        return ForwardState(reading, rest, Guard.start(reading.cov.dtype))

    def _hyper(self, model):
        return trainable(model, lambda m: m.posterior.q, *self.frozen)

    def step(
        self, model: Model, state: ForwardState, batch: Dataset, num_data: int, rows: Rows | None = None
    ) -> tuple[Model, ForwardState, Info]:
        """One pass: energy, its derivatives in (θ_hyper, m, S), both updates."""
        hyper, guard, at = self._hyper(model), state.guard, state.reading

        value, (dv, dm, dS), _ = energy_slopes(hyper, at.mean, at.cov, batch, num_data, self.tight)
        moved, _, rest, given = climbed(self.rest, hyper, dv, state.rest, guard)
        norm = jnp.linalg.norm(dm) if self.rest is None else given
        gamma = guard.scale * self.gamma(guard.steps)

        def stepped(q, at, dm, dS):
            slope = to_expectation_slope(at.mean, MeanCovariance(dm, dS))
            return step_along(q, jax.tree.map(jnp.subtract, slope, at.theta), gamma)

        q = _each(stepped, dm)(model.posterior.q, at, dm, dS)
        new, old = (with_q(moved, q), _read(q), rest), (model, at, state.rest)
        trace = lambda S: -2 * jnp.sum(dS * S, axis=(-2, -1))  # tr(P*S)
        near = (trace(new[1].cov) <= 2 * jnp.abs(trace(at.cov)) + 2 * dm.shape[-1]).all()
        good = near & all_finite((value, new)) & guard.is_plausible(given)
        (model, reading, rest), guard = guard.accept_or_revert(good, new, old, given)
        info = Info(value + gaussian_entropy(at.half_logdet, at.mean.size), norm, jnp.asarray(gamma), ~good)
        return model, ForwardState(reading, rest, guard), info


def _read(q):
    one = lambda q: Reading(jnp.asarray(q.mean), q.covariance(), q.to_natural(), q.half_logdet())
    return _each(one, min(jax.tree.leaves(q), key=jnp.ndim))(q)


def _each(function, vector):
    """The function of one q; or of several, along the leading axis that `vector` then has too."""
    return jax.vmap(function) if jnp.ndim(vector) > 1 else function
