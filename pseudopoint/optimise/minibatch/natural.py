"""Natural gradients in mean and precision, the coordinates where they are cheapest."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...bounds import majorises
from ...gaussians import MeanPrecision
from ...linalg import invert, solve_positive
from ...posteriors import Model, Whitened, prior_factor
from ..transformation import GradientTransformation
from .energy import energy_gradients, gaussian_entropy, next_precision
from .schedules import Schedule
from .step import AbstractRule, Context, Proposal, VariationalStep

__all__ = ["DualRule", "NaturalGradient", "NaturalRule", "NaturalState"]


class NaturalState(NamedTuple):
    """S = P⁻¹ and ½ log |S| of the model's q, and the average P_ω where the likelihood needs a majoriser, else ()."""

    cov: Float[Array, "*C M M"]
    half_logdet: Float[Array, "*C"]
    majorised: Any


def _init(self: Any, model: Model, num_data: int) -> NaturalState:
    """S, and P for P_ω."""
    P = jnp.asarray(model.posterior.q.precision)
    cov, half_logdet = invert(P)
    return NaturalState(cov, half_logdet, P if majorises(model.likelihood) else ())


class NaturalRule(AbstractRule):
    """P ← (1 − γ)P − 2γ ∂E/∂S,  m ← m + γ P⁻¹ ∂E/∂m; see `NaturalGradient`."""

    name = "NaturalGradient"
    moves = {"q": MeanPrecision}
    by_energy = True
    init = _init

    def update(self, state: NaturalState, at: Context) -> Proposal:
        """One pass over the batch, and one Cholesky factor of P beside that of K_uu."""
        return _propose(state, at)[0]


class DualRule(AbstractRule):
    """`NaturalRule`, with the data's part of q(u) fixed while hyperparameters move: Λ = L(P − I)Lᵀ and λ = LPm (t-SVGP:
    Adam, Chang, Khan and Solin 2021; methods b)."""

    name = "NaturalGradient with dual=True"
    moves = {"q": MeanPrecision}
    family = Whitened
    one_kernel = True
    init = _init

    def update(self, state: NaturalState, at: Context) -> Proposal:
        """As `NaturalRule`, with q's part in the gradient in θ, for q follows θ: P(θ) = I + T(P − I)Tᵀ and
        P(θ) m(θ) = TPm, where T = L(θ)⁻¹L is I at the start of the step."""
        proposal, dm, dS = _propose(state, at)
        q, S = at.model.posterior.q, state.cov
        C = q.precision - jnp.eye(S.shape[-1], dtype=S.dtype)
        # With w = S ∂L/∂m and ∂L/∂S = ∂E/∂S + ½P:   T̄ = wmᵀ − m(Cw)ᵀ − 2S(∂L/∂S)SC
        w, m = S @ dm[..., None], q.mean[..., None]
        T_bar = w @ m.mT - m @ (C @ w).mT - S @ (2 * dS + q.precision) @ S @ C
        L = _prior(at.model).L
        _, pull = jax.vjp(lambda parts: _prior(at.hyper.rebuild(parts)).whiten(L), at.hyper.parts)
        (by_q,) = pull(jnp.sum(T_bar.reshape(-1, *L.shape), axis=0))
        return proposal._replace(gradient=jax.tree.map(jnp.add, proposal.gradient, by_q))

    def carry(self, old: Model, new: Model, proposal: Proposal) -> Proposal:
        """q, and P_ω where there is one, at the new θ."""
        (q,), majorised = proposal.values, proposal.state.majorised
        T, eye = _prior(new).whiten(_prior(old).L), jnp.eye(q.mean.shape[-1], dtype=q.mean.dtype)
        carried = lambda P: eye + T @ (P - eye) @ T.T
        precision, majorised = carried(q.precision), jax.tree.map(carried, majorised)
        cov, half_logdet = invert(precision)
        mean = (cov @ T @ q.precision @ q.mean[..., None])[..., 0]
        state, checked = NaturalState(cov, half_logdet, majorised), (half_logdet, mean, majorised)
        return proposal._replace(values=(MeanPrecision(mean, precision),), state=state, checked=checked)


def NaturalGradient(
    gamma: Schedule,
    hyper_optimiser: GradientTransformation | None = None,
    frozen: tuple[Callable, ...] = (),
    tight: bool = True,
    dual: bool = False,
) -> VariationalStep:
    """A natural gradient step of size γ_t on q, in `MeanPrecision` coordinates, and an optax step on all other numbers.

    With E the energy (the bound without q's entropy), differentiated in m and S as plain arrays (methods d.1):
        P ← (1 − γ)P − 2γ ∂E/∂S,        m ← m + γ P⁻¹ ∂E/∂m.
    For a log-concave likelihood −2 ∂E/∂S is at least the prior's precision, so P stays positive definite for every
    γ ∈ (0, 1]; for a Gaussian one, a full-batch step of size 1 lands on the optimum. A step takes two Cholesky factors,
    K_uu and P.

    For other likelihoods P takes the improved Bayesian learning rule, which is positive definite for every γ (Lin,
    Schmidt and Khan 2020; methods d.2), and the mean takes a majorise–minimise step, which increases the bound where a
    step of P's own may not (methods d.3):
        P ← P + γG + ½γ² G P⁻¹ G,  G = −2 ∂E/∂S − P;        m ← m + γ P_ω⁻¹ ∂E/∂m,
    with P_ω averaged over steps as P is. The mean takes P_ω too for likelihoods that ask for it (`majorised`): there
    steps of P's own overshoot, or several latent functions move at once, each without regard to the others.

    `dual` holds the data's contribution to q(u) fixed while the hyperparameters move, instead of m and S of v = L⁻¹u
    (t-SVGP: Adam, Chang, Khan and Solin 2021; methods b). The bound has the same value but another gradient in θ, and
    the same one where q is optimal. It takes two more Cholesky factors a step, and a `Whitened` posterior whose latent
    functions share their kernel.
    """
    return VariationalStep(DualRule() if dual else NaturalRule(), gamma, hyper_optimiser, frozen, tight)


def _propose(state, at):
    """The proposal of `NaturalRule`, ∂E/∂m and ∂E/∂S."""
    q, likelihood, gamma = at.model.posterior.q, at.model.likelihood, at.gamma
    value, (gradient, dm, dS), curvature = energy_gradients(at, q.mean, state.cov)
    precision = next_precision(likelihood, q.precision, state.cov, -2 * dS, gamma)
    cov, half_logdet = invert(precision)
    majorised = state.majorised
    if majorises(likelihood):
        # Averaged over batches as P is: one batch's own curvature has a low rank, and its errors are those of dm.
        majorised = (1 - gamma) * majorised + gamma * curvature
        step = solve_positive(majorised, dm)
    else:
        step = (cov @ dm[..., None])[..., 0]
    mean = q.mean + gamma * step
    bound = value + gaussian_entropy(state.half_logdet, q.mean.size)
    new, checked = NaturalState(cov, half_logdet, majorised), (half_logdet, mean, majorised)  # P is finite where |P| is
    proposal = Proposal((MeanPrecision(mean, precision),), new, bound, gradient, jnp.linalg.norm(dm), checked)
    return proposal, dm, dS


def _prior(model):
    return prior_factor(model.kernel, jnp.asarray(model.posterior.Z), model.posterior.jitter)
