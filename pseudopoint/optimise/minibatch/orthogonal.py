"""Natural gradients for the orthogonally decoupled family: q(v) as in `NaturalGradient`, and three steps for a.

(Salimbeni, Cheng, Boots and Deisenroth 2018, section 3.4.) With αᵢ and βᵢ the gradient and the curvature of a row,
cᵢ = c(O, xᵢ) and C = c(O, O), the bound's gradient in a is g = Σ αᵢcᵢ − Ca and its curvature C + Σ βᵢcᵢcᵢᵀ. Both are
over all rows: N/B times a batch's sums.
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...bounds import expected_log_likelihood
from ...gaussians import MeanCovariance, MeanPrecision
from ...linalg import Factor, factorise, gram, invert
from ...posteriors import Model, Orthogonal, OrthogonalBasis
from .energy import gaussian_entropy, majorises, next_precision, row_curvatures
from .guard import Guard
from .schedules import FULL, Schedule
from .step import AbstractRule, Context, Proposal

__all__ = [
    "AbstractMeanStep",
    "ApproximateMean",
    "ExactMean",
    "JointMean",
    "OrthogonalNaturalGradient",
    "OrthogonalRule",
    "OrthogonalState",
]


class MeanGradients(NamedTuple):
    """Of one batch: its features aᵢ and cᵢ, the curvature κᵢ of its rows, and the gradients in m and a."""

    A: Float[Array, "M B"]
    c: Float[Array, "G B"]
    curvature: Float[Array, " B"]
    dm: Float[Array, " M"]
    da: Float[Array, " G"]


class AbstractMeanStep(eqx.Module):
    """How (m, a) moves. The rule averages Σ κᵢφᵢφᵢᵀ over batches, of the features φᵢ named here; κᵢ is the curvature
    βᵢ, or that of the majoriser."""

    @abstractmethod
    def size(self, M: int, G: int) -> int:
        """K, the number of features."""

    @abstractmethod
    def features(self, basis: OrthogonalBasis, batch: MeanGradients) -> Float[Array, "K B"]:
        """φᵢ; the first M are aᵢ."""

    @abstractmethod
    def move(
        self, basis: OrthogonalBasis, batch: MeanGradients, curvature: Factor, gamma: Any, guard: Guard
    ) -> tuple[Float[Array, " M"], Float[Array, " G"]]:
        """Δm and Δa; `curvature` is the averaged I + Σ κᵢφᵢφᵢᵀ. γ has the guard's scale in it."""


class AbstractSeparateMean(AbstractMeanStep):
    """m and a without regard to each other: Δm = γ (I + Σ κᵢaᵢaᵢᵀ)⁻¹g_m and Δa = min(τ, τ*) d.

    τ* = gᵀd/(dᵀCd + Σ κᵢ(cᵢᵀd)²) is the top of the rows' quadratic minorants in the direction d, and no step goes
    beyond it. So every τ is safe, where (16a) needs τ < 2/(1 + λmax).
    """

    tau: eqx.AbstractVar[Schedule]

    @abstractmethod
    def direction(self, C: Factor, gradient: Float[Array, " G"]) -> Float[Array, " G"]:
        """d, of g."""

    def size(self, M: int, G: int) -> int:
        """M."""
        return M

    def features(self, basis: OrthogonalBasis, batch: MeanGradients) -> Float[Array, "K B"]:
        """aᵢ."""
        return batch.A

    def move(self, basis, batch, curvature, gamma, guard):
        """γ (I + Σ κᵢaᵢaᵢᵀ)⁻¹g_m and min(τ, τ*) d."""
        d = self.direction(basis.C, batch.da)
        top = batch.da @ d / (d @ (basis.C.K @ d) + jnp.sum(batch.curvature * (batch.c.T @ d) ** 2))
        tau = jnp.minimum(guard.scale * self.tau(guard.steps), jnp.where(jnp.isfinite(top), top, 0.0))
        return gamma * curvature.solve(batch.dm), tau * d


class ExactMean(AbstractSeparateMean):
    """a ← a + τ C⁻¹g: (16a), with its erratum. It is the natural gradient: the Fisher matrix of a is the prior's C, for
    q's variance beyond Z is the prior's. So it ignores the data's curvature, and converges at the rate of gradient
    descent, with condition number 1 + λmax(C⁻¹ Σ βᵢcᵢcᵢᵀ) ~ N c/σ². G³/3 a step for chol C.
    """

    tau: Schedule = eqx.field(static=True, default=FULL)

    def direction(self, C: Factor, gradient: Float[Array, " G"]) -> Float[Array, " G"]:
        """C⁻¹g."""
        return C.solve(gradient)


class ApproximateMean(AbstractSeparateMean):
    """a ← a + τ (diag C)⁻¹g: (17), ε being the jitter of O. As `ExactMean`, without chol C."""

    tau: Schedule = eqx.field(static=True, default=FULL)

    def direction(self, C: Factor, gradient: Float[Array, " G"]) -> Float[Array, " G"]:
        """(diag C)⁻¹g."""
        return gradient / jnp.diagonal(C.K)


class JointMean(AbstractMeanStep):
    """(m, a) together, by Gauss–Newton (methods c):
        [m; a] ← [m; a] + γ J⁻¹ [g_m; g_a],  J = [P, X; Xᵀ, C + Σ βᵢcᵢcᵢᵀ],  X = Σ βᵢaᵢcᵢᵀ,
    in the coordinates w of a = C^-½ᵀ w, where J ≥ I. At γ = 1 on all rows it solves a Gaussian likelihood; for others
    it is Newton's method for the mean, as `NaturalGradient` is for m alone. (M + G)³/3 more a step, and O(B(M + G)²).
    """

    def size(self, M: int, G: int) -> int:
        """M + G."""
        return M + G

    def features(self, basis: OrthogonalBasis, batch: MeanGradients) -> Float[Array, "K B"]:
        """(aᵢ, C^-½cᵢ)."""
        return jnp.concatenate([batch.A, basis.C.whiten(batch.c)])

    def move(self, basis, batch, curvature, gamma, guard):
        """g_w = C^-½g_a."""
        M, half = batch.dm.shape[0], basis.C.inverse
        step = gamma * curvature.solve(jnp.concatenate([batch.dm, half @ batch.da]))
        return step[:M], half.T @ step[M:]


class OrthogonalState(NamedTuple):
    """S = P⁻¹ and ½ log |S| of the model's q, and Σ κᵢφᵢφᵢᵀ averaged over steps."""

    cov: Float[Array, "*C M M"]
    half_logdet: Float[Array, "*C"]
    curvature: Float[Array, "*C K K"]


class OrthogonalRule(AbstractRule):
    """A natural gradient step of size γ_t on q(v) = N(m, S), (16b) and (16c), in `MeanPrecision` coordinates, and a
    step of the mean's coefficients a by `mean`.

    P moves as by `NaturalRule`: P ← (1 − γ)P − 2γ ∂E/∂S for log-concave likelihoods, by the improved Bayesian learning
    rule for others. m moves by the curvature P, or by that of the likelihood's majoriser, averaged likewise. `mean` is
    `JointMean()`, `ExactMean(τ)` for (16a) or `ApproximateMean(τ)` for (17). Adam on a, as in the paper's own code, is
    `NaturalGradient` with Adam as its `hyper_optimiser`.

    Several latent functions each take the step of their own curvature, from what Z and O span for all of them. They
    move at once, so their likelihoods ask for the majoriser's curvature (`majorised`).
    """

    name = "OrthogonalNaturalGradient"
    moves = {"q": MeanPrecision, "a": object}
    family = Orthogonal
    mean: AbstractMeanStep = JointMean()

    def init(self, model: Model, num_data: int) -> OrthogonalState:
        """I + curvature is P on m, and the prior on all else."""
        posterior = model.posterior.one
        P = jnp.asarray(posterior.q.precision)
        M = P.shape[-1]
        K = self.mean.size(M, posterior.O.shape[0])
        curvature = jnp.zeros((*P.shape[:-2], K, K), P.dtype).at[..., :M, :M].set(P - jnp.eye(M, dtype=P.dtype))
        cov, half_logdet = invert(P)
        return OrthogonalState(cov, half_logdet, curvature)

    def update(self, state: OrthogonalState, at: Context) -> Proposal:
        """One pass over the batch: E and its gradients in (θ, m, S, a)."""
        posterior = at.model.posterior.one
        q, a, batch = posterior.q, posterior.a, at.batch

        def energy(parts, mean, cov, a):
            there = _with(at.hyper.rebuild(parts), MeanCovariance(mean, cov, known=True), a)
            expected, projection = expected_log_likelihood(there, batch, at.num_data, at.tight)
            return expected + projection.log_prior, projection

        start = (at.hyper.parts, q.mean, state.cov, a)
        (value, projection), gradients = jax.value_and_grad(energy, (0, 1, 2, 3), has_aux=True)(*start)
        gradient, dm, dS, da = gradients
        precision = next_precision(at.model.likelihood, q.precision, state.cov, -2 * dS, at.gamma)
        cov, half_logdet = invert(precision)

        def moved(projection, kappa, dm, da, curvature):
            basis = OrthogonalBasis.of(posterior, projection.basis.kernel, projection.basis.Kuu)
            A, c, _ = basis(batch.X)
            of = MeanGradients(A, c, kappa, dm, da)
            curvature = (1 - at.gamma) * curvature + at.gamma * gram(self.mean.features(basis, of), kappa)
            factor = factorise(jnp.eye(len(curvature), dtype=curvature.dtype) + curvature)
            return curvature, *self.mean.move(basis, of, factor, at.gamma, at.guard)

        beta, omega = row_curvatures(at.model, projection, batch, at.num_data, at.tight)
        kappa = omega if majorises(at.model.likelihood) else beta
        curvature, by_mean, by_a = projection.map(moved, also=(kappa, dm, da, state.curvature))
        values = (MeanPrecision(q.mean + by_mean, precision), a + by_a)
        bound = value + gaussian_entropy(state.half_logdet, q.mean.size)
        norm = jnp.sqrt(jnp.sum(dm**2) + jnp.sum(da**2))
        new, checked = OrthogonalState(cov, half_logdet, curvature), (half_logdet, values, curvature)
        return Proposal(values, new, bound, gradient, norm, checked)


OrthogonalNaturalGradient = OrthogonalRule.stepper


def _with(model, q, a):
    return eqx.tree_at(lambda m: [m.posterior.one.q, m.posterior.one.a], model, [q, a])
