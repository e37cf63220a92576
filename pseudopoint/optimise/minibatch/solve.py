"""Block natural gradients for SOLVE-GP: precisions of v and w each for itself, means of both at once."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from ...bounds import energies
from ...data import Dataset
from ...gaussians import AbstractGaussian, MeanCovariance, MeanPrecision
from ...kernels import AbstractKernel
from ...linalg import invert
from ...params import Number, trainable
from ...posteriors import AbstractPosterior, Model, SolveBasis, SolveGP, SolveProjection
from ...posteriors.base import Points
from .base import (
    AbstractStepper,
    Guard,
    Info,
    Rows,
    all_finite,
    both_slopes,
    climbed,
    each,
    gaussian_entropy,
    majorises,
    next_precision,
)
from .schedules import Schedule

__all__ = ["SolveNaturalGradient", "SolveState"]


class Blocks(NamedTuple):
    """J = [[P, X], [Xᵀ, P_w]], with a leading axis for several latent functions."""

    P: Float[Array, "*C M M"]
    X: Float[Array, "*C M M2"]
    Pw: Float[Array, "*C M2 M2"]


class SolveState(NamedTuple):
    """S and S_w with ½ log |S| of each, X averaged over steps, J_ω (where the likelihood asks for it), the state of the
    optimiser of the rest, and the guard."""

    cov: Float[Array, "*C M M"]
    cov_w: Float[Array, "*C M2 M2"]
    half_logdet: tuple[Float[Array, "*C"], Float[Array, "*C"]]
    X: Float[Array, "*C M M2"]
    majorised: Any
    rest: Any
    guard: Guard


class SolveNaturalGradient(AbstractStepper):
    """A natural gradient step of size γ_t on q(v) and q(w) of `SolveGP`, and an optax step on all other numbers, from
    one pass over the batch (methods c).

    P and P_w move as by `NaturalGradient`, and so does X = (N/B) Σ βᵢaᵢcᵢᵀ: averaged as they are, so that J is an
    average of positive definite matrices; one batch's X beside averaged P, P_w is not. The means take one joint step,
        P ← (1 − γ)P − 2γ ∂E/∂S,  P_w and X likewise;      [m; m_w] ← [m; m_w] + γ J⁻¹ [∂E/∂m; ∂E/∂m_w],
    J = [[P, X], [Xᵀ, P_w]] by its blocks. At γ = 1 on all rows it lands on the optimum of a Gaussian likelihood, though
    q(v)q(w) has no X. For likelihoods that are not log-concave, or ask for it, P takes the improved Bayesian learning
    rule and the means J_ω of the majoriser. Five Cholesky factors a step: K_uu, C, P, P_w and P_w − XᵀSX.
    """

    gamma: Schedule = eqx.field(static=True)
    rest: optax.GradientTransformation | None = eqx.field(static=True, default=None)
    frozen: tuple[Callable, ...] = eqx.field(static=True, default=())
    tight: bool = eqx.field(static=True, default=True)

    def init(self, model: Model, num_data: int) -> SolveState:
        """Raises TypeError where the posterior is not `SolveGP`, or its q and r not in `MeanPrecision` coordinates."""
        q, r = _own(model.posterior)
        if not (isinstance(q, MeanPrecision) and isinstance(r, MeanPrecision)):
            raise TypeError(
                f"{type(self).__name__} needs SolveGP (or IndependentLatents of it) with q and r in MeanPrecision "
                "coordinates: use NaturalGradient or Optax for others"
            )
        P, Pw = jnp.asarray(q.precision), jnp.asarray(r.precision)
        (cov, one), (cov_w, two) = _invert(P), _invert(Pw)
        X = jnp.zeros((*P.shape[:-1], Pw.shape[-1]), P.dtype)
        rest = () if self.rest is None else self.rest.init(self._hyper(model).parts)
        majorised = Blocks(P, X, Pw) if majorises(model.likelihood) else ()
        return SolveState(cov, cov_w, (one, two), X, majorised, rest, Guard.start(cov.dtype))

    def _hyper(self, model):
        return trainable(model, lambda m: [each(m.posterior).q, each(m.posterior).r], *self.frozen)

    def step(
        self, model: Model, state: SolveState, batch: Dataset, num_data: int, rows: Rows | None = None
    ) -> tuple[Model, SolveState, Info]:
        """One pass: energy, its derivatives in (θ, m, m_w, S, X, S_w), all updates."""
        (q, r), guard, hyper = _own(model.posterior), state.guard, self._hyper(model)
        means, covs = (q.mean, r.mean), Blocks(state.cov, jnp.zeros_like(state.X), state.cov_w)

        def objective(parts, means, covs):
            return energies(_probed(hyper.rebuild(parts), means, covs), batch, num_data, self.tight)

        value, (dv, dm, dS), (_, _, curvature) = both_slopes(objective, hyper.parts, means, covs)
        moved, _, rest, given = climbed(self.rest, hyper, dv, state.rest, guard)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in dm)) if self.rest is None else given
        gamma = guard.scale * self.gamma(guard.steps)
        J = self._precisions(model, state, gamma, _curvature(dS))
        (cov, one), (cov_w, two) = _invert(J.P), _invert(J.Pw)
        inverse, metric, majorised = cov, J, state.majorised
        if majorises(model.likelihood):
            metric = majorised = _average(gamma, state.majorised, _curvature(curvature))
            inverse, _ = _invert(metric.P)
        m, mw = (a + gamma * step for a, step in zip(means, _solve(metric, inverse, *dm), strict=True))
        moved = _with(moved, MeanPrecision(m, J.P), MeanPrecision(mw, J.Pw))
        good = all_finite((value, one, two, moved, rest)) & guard.is_plausible(given)
        bound = value + gaussian_entropy(state.half_logdet[0], m.size) + gaussian_entropy(state.half_logdet[1], mw.size)
        new = SolveState(cov, cov_w, (one, two), J.X, majorised, rest, guard)
        (model, state), guard = guard.accept_or_revert(good, (moved, new), (model, state), given)
        return model, state._replace(guard=guard), Info(bound, norm, jnp.asarray(gamma), ~good)

    def _precisions(self, model, state, gamma, target):
        q, r = _own(model.posterior)
        move = lambda P, S, target: next_precision(model.likelihood, P, S, target, gamma)
        P, Pw = move(q.precision, state.cov, target.P), move(r.precision, state.cov_w, target.Pw)
        return Blocks(P, (1 - gamma) * state.X + gamma * target.X, Pw)


class _Probed(AbstractPosterior):
    """`SolveGP` with a covariance of v and w that is zero, to take a slope in it."""

    own: ClassVar[tuple[str, ...]] = ("q", "r", "probe")
    Z: Points
    O: Float[Number, "M2 D"]
    q: AbstractGaussian
    r: AbstractGaussian
    probe: Float[Array, "*C M M2"]
    jitter: float | None = eqx.field(static=True, default=None)

    @property
    def _solve(self) -> SolveGP:
        return SolveGP(Z=self.Z, O=self.O, q=self.q, r=self.r, jitter=self.jitter)

    def basis(self, kernel: AbstractKernel) -> SolveBasis:
        """That of `SolveGP`."""
        return self._solve.basis(kernel)

    def on(self, basis: SolveBasis) -> SolveProjection:
        """That of `SolveGP`, with the probe."""
        return eqx.tree_at(lambda p: p.probe, self._solve.on(basis), self.probe, is_leaf=lambda x: x is None)


def _own(posterior) -> Any:
    one = each(posterior)
    return (one.q, one.r) if isinstance(one, SolveGP) else (None, None)


def _with(model, q, r):
    return eqx.tree_at(lambda m: [each(m.posterior).q, each(m.posterior).r], model, [q, r])


def _probed(model, means, covs):
    one, q, r = each(model.posterior), MeanCovariance(means[0], covs.P), MeanCovariance(means[1], covs.Pw)
    probed = _Probed(Z=one.Z, O=one.O, q=q, r=r, probe=covs.X, jitter=one.jitter)
    return eqx.tree_at(lambda m: each(m.posterior), model, probed)


def _curvature(slope):
    """−2 ∂E/∂S of each block, [a; c][a; c]ᵀ: X stands in the joint matrix twice, so that ∂E/∂X is twice ∂E/∂S there."""
    return Blocks(-(slope.P + slope.P.mT), -slope.X, -(slope.Pw + slope.Pw.mT))


def _average(gamma, old, new):
    return Blocks(*((1 - gamma) * a + gamma * b for a, b in zip(old, new, strict=True)))


def _solve(J, inverse, g, gw):
    """J⁻¹[g; g_w] with P⁻¹ known: δ_w = (P_w − XᵀP⁻¹X)⁻¹(g_w − XᵀP⁻¹g), δ = P⁻¹(g − Xδ_w)."""
    SX = inverse @ J.X
    schur, _ = _invert(J.Pw - J.X.mT @ SX)
    dw = (schur @ (gw[..., None] - SX.mT @ g[..., None]))[..., 0]
    return (inverse @ (g[..., None] - J.X @ dw[..., None]))[..., 0], dw


def _invert(P):
    """`invert`, also of nothing."""
    return invert(P) if P.shape[-1] else (P, jnp.zeros(P.shape[:-2], P.dtype))
