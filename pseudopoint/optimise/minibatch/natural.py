"""Natural gradients in one pass over a batch, guarded."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from ...data import Dataset
from ...gaussians import MeanPrecision
from ...linalg import invert, solve_positive
from ...params import trainable
from ...posteriors import IndependentLatents, Model, Whitened, prior_factor
from .base import (
    AbstractStepper,
    Guard,
    Info,
    Rows,
    all_finite,
    climbed,
    energy_slopes,
    gaussian_entropy,
    majorises,
    next_precision,
    with_q,
)
from .schedules import Schedule

__all__ = ["NaturalGradient", "NaturalState"]


class NaturalState(NamedTuple):
    """S = P⁻¹ and ½ log |S| of the model's q, P_ω (where the likelihood asks for it), the state of the optimiser of the
    rest, and the guard."""

    cov: Float[Array, "*C M M"]
    half_logdet: Float[Array, "*C"]
    majorised: Any
    rest: Any
    guard: Guard


class NaturalGradient(AbstractStepper):
    """A natural gradient step of size γ_t on q, and an optax step on all other numbers, from one pass over the batch.

    With E the `energy` (the bound without q's entropy), differentiated in m and S as plain arrays (methods d.1):
        P ← (1 − γ)P − 2γ ∂E/∂S,        m ← m + γ P⁻¹ ∂E/∂m.
    For a log-concave likelihood −2 ∂E/∂S is at least the prior's precision, so P stays positive definite for every
    γ ∈ (0, 1]; for a Gaussian one, a full-batch step of size 1 lands on the optimum. Two Cholesky factors a step, K_uu
    and P.

    For others P takes the improved Bayesian learning rule, positive definite for every γ (Lin, Schmidt and Khan 2020;
    methods d.2), and the mean a majorise–minimise step, which goes up where P's own may not (methods d.3):
        P ← P + γG + ½γ² G P⁻¹ G,  G = −2 ∂E/∂S − P;        m ← m + γ P_ω⁻¹ ∂E/∂m,
    with P_ω averaged over steps as P is. The mean does so too for likelihoods that ask for it (`majorised`): steps of
    P's own would overshoot, or several latent functions move at once, each blind to the others.

    `dual` holds the data's contribution to q(u) fixed while the hyperparameters move, and not m and S of v = L⁻¹u
    (t-SVGP: Adam, Chang, Khan and Solin 2021; methods b). The bound has the same value but another slope in θ, and the
    same where q is optimal; q is carried along. It costs two more Cholesky factors a step.
    """

    gamma: Schedule = eqx.field(static=True)
    rest: optax.GradientTransformation | None = eqx.field(static=True, default=None)
    frozen: tuple[Callable, ...] = eqx.field(static=True, default=())
    tight: bool = eqx.field(static=True, default=True)
    dual: bool = eqx.field(static=True, default=False)

    def init(self, model: Model, num_data: int) -> NaturalState:
        """Raises TypeError where the model's q is not in `MeanPrecision` coordinates, ValueError where `dual` has no
        meaning."""
        if not isinstance(model.posterior.q, MeanPrecision):
            raise TypeError(
                f"{type(self).__name__} needs a posterior with q in MeanPrecision coordinates: use Optax for others"
            )
        if self.dual and not _whitened(model.posterior):
            raise ValueError(
                "dual=True needs the posterior Whitened, or IndependentLatents of it that share one kernel"
            )
        q = model.posterior.q
        cov, half_logdet = invert(jnp.asarray(q.precision))
        rest = () if self.rest is None else self.rest.init(self._hyper(model).parts)
        majorised = jnp.asarray(q.precision) if majorises(model.likelihood) else ()
        return NaturalState(cov, half_logdet, majorised, rest, Guard.start(cov.dtype))

    def _hyper(self, model):
        return trainable(model, lambda m: m.posterior.q, *self.frozen)

    def step(
        self, model: Model, state: NaturalState, batch: Dataset, num_data: int, rows: Rows | None = None
    ) -> tuple[Model, NaturalState, Info]:
        """One pass: energy, its derivatives in (θ, m, S), both updates."""
        q, hyper, guard = model.posterior.q, self._hyper(model), state.guard

        value, (dv, dm, dS), curvature = energy_slopes(hyper, q.mean, state.cov, batch, num_data, self.tight)
        if self.dual:
            dv = jax.tree.map(jnp.add, dv, _dual_slope(hyper, model, q, state.cov, dm, dS))
        moved, parts, rest, given = climbed(self.rest, hyper, dv, state.rest, guard)
        norm = jnp.linalg.norm(dm) if self.rest is None else given
        gamma = guard.scale * self.gamma(guard.steps)
        precision = next_precision(model.likelihood, q.precision, state.cov, -2 * dS, gamma)
        cov, half_logdet = invert(precision)
        majorised = state.majorised
        if majorises(model.likelihood):
            # Averaged over batches as P is: one batch's own curvature would be of low rank, and go with its slope.
            majorised = (1 - gamma) * majorised + gamma * curvature
            step = solve_positive(majorised, dm)
        else:
            step = (cov @ dm[..., None])[..., 0]
        mean = q.mean + gamma * step
        if self.dual:
            mean, precision, majorised = _carried(model, moved, mean, precision, majorised)
            cov, half_logdet = invert(precision)
        moved = with_q(moved, MeanPrecision(mean, precision))
        new = (moved, cov, half_logdet, majorised, rest)
        old = (model, state.cov, state.half_logdet, state.majorised, state.rest)
        # P is finite where its determinant is, all that came of the free numbers and their gradient where these are.
        good = all_finite((value, half_logdet, mean, majorised, parts, norm)) & guard.is_plausible(given)
        (model, cov, half_logdet, majorised, rest), guard = guard.accept_or_revert(good, new, old, given)
        info = Info(value + gaussian_entropy(state.half_logdet, q.mean.size), norm, jnp.asarray(gamma), ~good)
        return model, NaturalState(cov, half_logdet, majorised, rest, guard), info


def _whitened(posterior):
    shared = isinstance(posterior, IndependentLatents) and not posterior.separate
    return isinstance(posterior.base if shared else posterior, Whitened)


def _prior(model):
    return prior_factor(model.kernel, jnp.asarray(model.posterior.Z), model.posterior.jitter)


def _dual_slope(hyper, model, q, S, dm, dS):
    """What ∂L/∂θ gains when q follows θ with the data's part Λ = L(P − I)Lᵀ of its precision, and λ = LPm, held fixed:
    P(θ) = I + T(P − I)Tᵀ,   P(θ) m(θ) = TPm,   T = L(θ)⁻¹L = I here.
    """
    C = q.precision - jnp.eye(S.shape[-1], dtype=S.dtype)
    # With w = S ∂L/∂m and ∂L/∂S = ∂E/∂S + ½P:   T̄ = wmᵀ − m(Cw)ᵀ − 2S(∂L/∂S)SC
    w, m = S @ dm[..., None], q.mean[..., None]
    T_bar = w @ m.mT - m @ (C @ w).mT - S @ (2 * dS + q.precision) @ S @ C
    L = _prior(model).L
    _, pull = jax.vjp(lambda parts: _prior(hyper.rebuild(parts)).whiten(L), hyper.parts)
    return pull(jnp.sum(T_bar.reshape(-1, *L.shape), axis=0))[0]


def _carried(old, new, mean, precision, majorised):
    """q, and P_ω where there is one, after θ has moved with the data's part of it held fixed."""
    T, eye = _prior(new).whiten(_prior(old).L), jnp.eye(mean.shape[-1], dtype=mean.dtype)
    carry = lambda P: eye + T @ (P - eye) @ T.T
    moved = carry(precision)
    cov, _ = invert(moved)
    return (cov @ T @ precision @ mean[..., None])[..., 0], moved, jax.tree.map(carry, majorised)
