"""Block natural gradients for SOLVE-GP: the precisions of v and w separately, their means jointly."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...bounds import energies, majorises
from ...gaussians import AbstractGaussian, MeanCovariance, MeanPrecision
from ...kernels import AbstractKernel
from ...linalg import invert
from ...params import Number
from ...posteriors import AbstractPosterior, Model, OrthogonalBasis, SolveGP, SolveProjection
from ...posteriors.base import Points
from .energy import gaussian_entropy, next_precision, two_gradients
from .step import AbstractRule, Context, Proposal

__all__ = ["SolveNaturalGradient", "SolveRule", "SolveState"]


class Blocks(NamedTuple):
    """J = [[P, X], [Xᵀ, P_w]], with a leading axis for several latent functions."""

    P: Float[Array, "*C M M"]
    X: Float[Array, "*C M M2"]
    Pw: Float[Array, "*C M2 M2"]


class SolveState(NamedTuple):
    """S and S_w, ½ log |S| of each, X averaged over steps, and J_ω where the likelihood needs a majoriser, else ()."""

    cov: Float[Array, "*C M M"]
    cov_w: Float[Array, "*C M2 M2"]
    half_logdet: tuple[Float[Array, "*C"], Float[Array, "*C"]]
    X: Float[Array, "*C M M2"]
    majorised: Any


class SolveRule(AbstractRule):
    """A natural gradient step of size γ_t on q(v) and q(w), both in `MeanPrecision` coordinates (methods c).

    P and P_w move as by `NaturalRule`, and so does X = (N/B) Σ βᵢaᵢcᵢᵀ. X is averaged as they are, because J is then an
    average of positive definite matrices; one batch's X beside averaged P and P_w would not give one. The means take
    one joint step,
        P ← (1 − γ)P − 2γ ∂E/∂S,  P_w and X likewise;      [m; m_w] ← [m; m_w] + γ J⁻¹ [∂E/∂m; ∂E/∂m_w],
    J = [[P, X], [Xᵀ, P_w]] by its blocks. At γ = 1 on all rows it lands on the optimum of a Gaussian likelihood, though
    q(v)q(w) has no X. For likelihoods that are not log-concave, or ask for a majoriser, P takes the improved Bayesian
    learning rule and the means take J_ω of the majoriser. Five Cholesky factors a step: K_uu, C, P, P_w and
    P_w − XᵀSX.
    """

    name = "SolveNaturalGradient"
    moves = {"q": MeanPrecision, "r": MeanPrecision}
    family = SolveGP

    def init(self, model: Model, num_data: int) -> SolveState:
        """X = 0."""
        P, Pw = (jnp.asarray(q.precision) for q in self.fields(model))
        (cov, one), (cov_w, two) = _invert(P), _invert(Pw)
        X = jnp.zeros((*P.shape[:-1], Pw.shape[-1]), P.dtype)
        return SolveState(cov, cov_w, (one, two), X, Blocks(P, X, Pw) if majorises(model.likelihood) else ())

    def update(self, state: SolveState, at: Context) -> Proposal:
        """One pass over the batch: E and its gradients in (θ, m, m_w, S, X, S_w)."""
        (q, r), likelihood, gamma = self.fields(at.model), at.model.likelihood, at.gamma
        means, covs = (q.mean, r.mean), Blocks(state.cov, jnp.zeros_like(state.X), state.cov_w)

        def objective(parts, means, covs):
            return energies(_probed(at.hyper.rebuild(parts), means, covs), at.batch, at.num_data, at.tight)

        value, (gradient, dm, dS), (_, _, minorant) = two_gradients(objective, at.hyper.parts, means, covs)
        target, average = _curvature(dS), lambda old, new: (1 - gamma) * old + gamma * new
        P = next_precision(likelihood, q.precision, state.cov, target.P, gamma)
        Pw = next_precision(likelihood, r.precision, state.cov_w, target.Pw, gamma)
        J = Blocks(P, average(state.X, target.X), Pw)
        (cov, one), (cov_w, two) = _invert(P), _invert(Pw)
        metric, inverse, majorised = J, cov, state.majorised
        if majorises(likelihood):
            metric = majorised = jax.tree.map(average, majorised, _curvature(minorant))
            inverse, _ = _invert(metric.P)
        m, mw = (mean + gamma * step for mean, step in zip(means, _solve(metric, inverse, *dm), strict=True))
        bound = value + sum(gaussian_entropy(of, x.size) for of, x in zip(state.half_logdet, means, strict=True))
        values, new = (MeanPrecision(m, P), MeanPrecision(mw, Pw)), SolveState(cov, cov_w, (one, two), J.X, majorised)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in dm))
        return Proposal(values, new, bound, gradient, norm, (one, two, values))


SolveNaturalGradient = SolveRule.stepper


class _Probed(AbstractPosterior):
    """`SolveGP` with a covariance of v and w, `probe`: it is zero, and the energy's gradient in it gives X."""

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

    def basis(self, kernel: AbstractKernel) -> OrthogonalBasis:
        return self._solve.basis(kernel)

    def on(self, basis: OrthogonalBasis) -> SolveProjection:
        return eqx.tree_at(lambda p: p.probe, self._solve.on(basis), self.probe, is_leaf=lambda x: x is None)


def _probed(model, means, covs):
    one, q, r = model.posterior.one, MeanCovariance(means[0], covs.P), MeanCovariance(means[1], covs.Pw)
    probed = _Probed(Z=one.Z, O=one.O, q=q, r=r, probe=covs.X, jitter=one.jitter)
    return eqx.tree_at(lambda m: m.posterior.one, model, probed)


def _curvature(gradient):
    """−2 ∂E/∂S, by blocks. X stands in the joint matrix twice, so ∂E/∂X is twice its gradient there."""
    return Blocks(-(gradient.P + gradient.P.mT), -gradient.X, -(gradient.Pw + gradient.Pw.mT))


def _solve(J, inverse, g, gw):
    """J⁻¹[g; g_w] with P⁻¹ known: δ_w = (P_w − XᵀP⁻¹X)⁻¹(g_w − XᵀP⁻¹g), δ = P⁻¹(g − Xδ_w)."""
    SX = inverse @ J.X
    schur, _ = _invert(J.Pw - J.X.mT @ SX)
    dw = (schur @ (gw[..., None] - SX.mT @ g[..., None]))[..., 0]
    return (inverse @ (g[..., None] - J.X @ dw[..., None]))[..., 0], dw


def _invert(P):
    """`invert`, also of an empty matrix."""
    return invert(P) if P.shape[-1] else (P, jnp.zeros(P.shape[:-2], P.dtype))
