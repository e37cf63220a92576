"""Natural gradients for the orthogonally decoupled family: q(v) as for `NaturalGradient`, and three ways to move a.

(Salimbeni, Cheng, Boots and Deisenroth 2018, section 3.4.) With αᵢ and βᵢ the slope and the curvature of a row,
cᵢ = c(O, xᵢ) and C = c(O, O), the bound's slope in a is g = Σ αᵢcᵢ − Ca and its curvature C + Σ βᵢcᵢcᵢᵀ; both for all
rows, N/B times a batch's sums.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from ...bounds import expected_log_likelihood
from ...data import Dataset
from ...gaussians import MeanCovariance, MeanPrecision
from ...linalg import Factor, factorise, gram, invert
from ...params import trainable
from ...posteriors import Model, Orthogonal, OrthogonalBasis
from .base import (
    AbstractStepper,
    Guard,
    Info,
    Rows,
    all_finite,
    climbed,
    each,
    gaussian_entropy,
    majorises,
    next_precision,
)
from .schedules import Schedule, constant

__all__ = [
    "AbstractMeanStep",
    "ApproximateMean",
    "ExactMean",
    "JointMean",
    "OrthogonalNaturalGradient",
    "SampledColumns",
]


class Slopes(NamedTuple):
    """What a batch says of the mean: features, the curvature κᵢ of its rows, and the slopes in m and a."""

    A: Float[Array, "M B"]
    c: Float[Array, "G B"]
    curvature: Float[Array, " B"]
    dm: Float[Array, " M"]
    da: Float[Array, " G"]


class AbstractMeanStep(eqx.Module):
    """How (m, a) moves. The stepper averages Σ κᵢφᵢφᵢᵀ over batches, of the features φᵢ named here; κᵢ is the curvature
    βᵢ, or the majoriser's."""

    @abstractmethod
    def size(self, M: int, G: int) -> int:
        """K, the number of features."""

    @abstractmethod
    def features(self, basis: OrthogonalBasis, slopes: Slopes) -> Float[Array, "K B"]:
        """φᵢ; the first M are aᵢ."""

    @abstractmethod
    def move(
        self, basis: OrthogonalBasis, slopes: Slopes, curvature: Factor, gamma: Any, guard: Guard
    ) -> tuple[Float[Array, " M"], Float[Array, " G"]]:
        """Δm and Δa; `curvature` is that of I + Σ κᵢφᵢφᵢᵀ averaged. γ is guarded already."""


class AbstractBlindStep(AbstractMeanStep):
    """m and a each blind to the other: Δm = γ (I + Σ κᵢaᵢaᵢᵀ)⁻¹g_m and Δa = min(τ, τ*) d.

    A step in the direction d never goes beyond the top of the rows' quadratic minorants, τ* = gᵀd/(dᵀCd + Σ κᵢ(cᵢᵀd)²);
    so every τ is safe, where (16a) needs τ < 2/(1 + λmax).
    """

    tau: eqx.AbstractVar[Schedule]

    @abstractmethod
    def direction(self, C: Factor, slope: Float[Array, " G"]) -> Float[Array, " G"]:
        """d, of g."""

    def size(self, M: int, G: int) -> int:
        """M."""
        return M

    def features(self, basis: OrthogonalBasis, slopes: Slopes) -> Float[Array, "K B"]:
        """aᵢ."""
        return slopes.A

    def move(self, basis, slopes, curvature, gamma, guard):
        """γ (I + Σ κᵢaᵢaᵢᵀ)⁻¹g_m and min(τ, τ*) d."""
        d = self.direction(basis.C, slopes.da)
        top = slopes.da @ d / (d @ (basis.C.K @ d) + jnp.sum(slopes.curvature * (slopes.c.T @ d) ** 2))
        tau = jnp.minimum(guard.scale * self.tau(guard.steps), jnp.where(jnp.isfinite(top), top, 0.0))
        return gamma * curvature.solve(slopes.dm), tau * d


class ExactMean(AbstractBlindStep):
    """a ← a + τ C⁻¹g: (16a), with its erratum. The natural gradient, whose Fisher matrix for a is the prior's C: q's
    variance beyond Z is the prior's. So it knows nothing of the data's curvature, and converges at the rate of gradient
    descent, with condition number 1 + λmax(C⁻¹ Σ βᵢcᵢcᵢᵀ) ~ N c/σ². G³/3 a step for chol C.
    """

    tau: Schedule = eqx.field(static=True, default=constant(1.0))

    def direction(self, C: Factor, slope: Float[Array, " G"]) -> Float[Array, " G"]:
        """C⁻¹g."""
        return C.solve(slope)


class ApproximateMean(AbstractBlindStep):
    """a ← a + τ (diag C)⁻¹g: (17), ε being the jitter of O. As `ExactMean`, without chol C."""

    tau: Schedule = eqx.field(static=True, default=constant(1.0))

    def direction(self, C: Factor, slope: Float[Array, " G"]) -> Float[Array, " G"]:
        """(diag C)⁻¹g."""
        return slope / jnp.diagonal(C.K)


class JointMean(AbstractMeanStep):
    """(m, a) together, by Gauss–Newton (methods c):
        [m; a] ← [m; a] + γ J⁻¹ [g_m; g_a],  J = [P, X; Xᵀ, C + Σ βᵢcᵢcᵢᵀ],  X = Σ βᵢaᵢcᵢᵀ,
    in the coordinates w of a = C^-½ᵀ w, where J ≥ I. At γ = 1 on all rows it solves a Gaussian likelihood; for others
    it is Newton's method for the mean, as `NaturalGradient` is for m alone. (M + G)³/3 more a step, and O(B(M + G)²).
    """

    def size(self, M: int, G: int) -> int:
        """M + G."""
        return M + G

    def features(self, basis: OrthogonalBasis, slopes: Slopes) -> Float[Array, "K B"]:
        """(aᵢ, C^-½cᵢ)."""
        return jnp.concatenate([slopes.A, basis.C.whiten(slopes.c)])

    def move(self, basis, slopes, curvature, gamma, guard):
        """g_w = C^-½g_a."""
        M, half = slopes.dm.shape[0], basis.C.inverse
        step = gamma * curvature.solve(jnp.concatenate([slopes.dm, half @ slopes.da]))
        return step[:M], half.T @ step[M:]


class OrthogonalState(NamedTuple):
    """S = P⁻¹ and ½ log |S| of the model's q, Σ κᵢφᵢφᵢᵀ averaged, the state of the optimiser of the rest, the guard."""

    cov: Float[Array, "*C M M"]
    half_logdet: Float[Array, "*C"]
    curvature: Float[Array, "*C K K"]
    rest: Any
    guard: Guard


class OrthogonalNaturalGradient(AbstractStepper):
    """A natural gradient step of size γ_t on q(v) = N(m, S), (16b) and (16c), one of the mean's coefficients a by
    `mean`, and an optax step on all other numbers, from one pass over the batch.

    P moves as by `NaturalGradient`: P ← (1 − γ)P − 2γ ∂E/∂S for log-concave likelihoods, by the improved Bayesian
    learning rule for others; and m by the curvature P, or that of the likelihood's majoriser, averaged likewise. `mean`
    is `JointMean()`, `ExactMean(τ)` for (16a) or `ApproximateMean(τ)` for (17). Adam on a, as the paper's own code has
    it, is `NaturalGradient` with Adam for the rest.

    Several latent functions each take the step of their own curvature, from what Z and O span for all of them; as they
    move at once, their likelihoods ask for the majoriser's (`majorised`).

    Steps that are not finite are rejected.
    """

    gamma: Schedule = eqx.field(static=True)
    mean: AbstractMeanStep = JointMean()
    rest: optax.GradientTransformation | None = eqx.field(static=True, default=None)
    frozen: tuple[Callable, ...] = eqx.field(static=True, default=())
    tight: bool = eqx.field(static=True, default=True)

    def init(self, model: Model, num_data: int) -> OrthogonalState:
        """Raises TypeError where the posterior is not `Orthogonal`, or its q not in `MeanPrecision` coordinates."""
        posterior = each(model.posterior)
        if not isinstance(posterior, Orthogonal) or not isinstance(posterior.q, MeanPrecision):
            raise TypeError(
                f"{type(self).__name__} needs Orthogonal (or IndependentLatents of it) with q in MeanPrecision "
                "coordinates: use NaturalGradient or Optax for others"
            )
        P = jnp.asarray(posterior.q.precision)
        cov, half_logdet = invert(P)
        rest = () if self.rest is None else self.rest.init(self._hyper(model).parts)
        M = P.shape[-1]
        K = self.mean.size(M, posterior.O.shape[0])
        # I + curvature is P on m, the prior on what else there is.
        curvature = jnp.zeros((*P.shape[:-2], K, K), P.dtype).at[..., :M, :M].set(P - jnp.eye(M, dtype=P.dtype))
        return OrthogonalState(cov, half_logdet, curvature, rest, Guard.start(cov.dtype))

    def _hyper(self, model):
        return trainable(model, lambda m: each(m.posterior).q, lambda m: each(m.posterior).a, *self.frozen)

    def step(
        self, model: Model, state: OrthogonalState, batch: Dataset, num_data: int, rows: Rows | None = None
    ) -> tuple[Model, OrthogonalState, Info]:
        """One pass: energy, its derivatives in (θ, m, S, a), all updates."""
        posterior, guard, hyper = each(model.posterior), state.guard, self._hyper(model)
        q, a = posterior.q, posterior.a

        def objective(parts, mean, cov, a):
            there = _with(hyper.rebuild(parts), MeanCovariance(mean, cov, known=True), a)
            expected, projection = expected_log_likelihood(there, batch, num_data, self.tight)
            return expected + projection.log_prior, projection

        at = (hyper.parts, q.mean, state.cov, a)
        (value, projection), (dv, dm, dS, da) = jax.value_and_grad(objective, (0, 1, 2, 3), has_aux=True)(*at)
        moved, _, rest, given = climbed(self.rest, hyper, dv, state.rest, guard)
        norm = jnp.sqrt(jnp.sum(dm**2) + jnp.sum(da**2)) if self.rest is None else given
        gamma = guard.scale * self.gamma(guard.steps)
        precision = next_precision(model.likelihood, q.precision, state.cov, -2 * dS, gamma)
        cov, half_logdet = invert(precision)

        def own(projection, kappa, dm, da, curvature):
            basis = OrthogonalBasis.of(posterior, projection.basis.kernel, projection.basis.Kuu)
            A, c, _ = basis(batch.X)
            slopes = Slopes(A, c, kappa, dm, da)
            curvature = (1 - gamma) * curvature + gamma * gram(self.mean.features(basis, slopes), kappa)
            factor = factorise(jnp.eye(len(curvature), dtype=curvature.dtype) + curvature)
            return curvature, *self.mean.move(basis, slopes, factor, gamma, guard)

        kappa = _curvature(model.likelihood, projection, batch, num_data, self.tight)
        curvature, by_mean, by_a = projection.map(own, also=(kappa, dm, da, state.curvature))

        moved = _with(moved, MeanPrecision(q.mean + by_mean, precision), a + by_a)
        new = (moved, cov, half_logdet, curvature, rest)
        old = (model, state.cov, state.half_logdet, state.curvature, state.rest)
        good = all_finite((value, half_logdet, moved, curvature, rest)) & guard.is_plausible(given)
        (model, cov, half_logdet, curvature, rest), guard = guard.accept_or_revert(good, new, old, given)
        info = Info(value + gaussian_entropy(state.half_logdet, q.mean.size), norm, jnp.asarray(gamma), ~good)
        return model, OrthogonalState(cov, half_logdet, curvature, rest, guard), info


def _curvature(likelihood, projection, batch, num_data, tight) -> Float[Array, "*C B"]:
    """κᵢ = (N/B) wᵢβᵢ, or ωᵢ in place of βᵢ where steps of βᵢ would overshoot."""
    likelihood = likelihood.at(batch.noise)
    mean, explained, d = projection.marginals(batch.X)
    v = likelihood.shrinkage(d, batch.weight) if tight else 1.0
    at = mean, explained + v * d, batch.y
    slopes = likelihood.expectation_gradients(*at)
    kappa = likelihood.majoriser(*at, slopes) if majorises(likelihood) else -2 * slopes[1]
    return (num_data / len(batch)) * batch.weight * kappa


def _with(model, q, a):
    """The model with another q and a."""
    return eqx.tree_at(lambda m: [each(m.posterior).q, each(m.posterior).a], model, [q, a])


class SampledColumns(AbstractStepper):
    """Any stepper, with the quadratic term of a in every step from `count` columns drawn anew without replacement
    (appendix A.3): O(G · count) in place of O(G²), without bias. For posteriors with `columns`, trained by `Optax` or
    `NaturalGradient`; `OrthogonalNaturalGradient` forms C in any case.

    Columns depend on (seed, step) alone. `where` finds the posterior: `lambda m: m.posterior.base` in
    `IndependentLatents`.
    """

    stepper: AbstractStepper
    count: int = eqx.field(static=True)
    seed: int = eqx.field(static=True, default=0)
    where: Callable[[Any], Any] = eqx.field(static=True, default=lambda model: model.posterior)

    def init(self, model: Model, num_data: int) -> tuple[Any, Any]:
        """The stepper's state, and the number of steps."""
        return self.stepper.init(model, num_data), jnp.zeros((), int)

    def step(
        self, model: Model, state: Any, batch: Dataset, num_data: int, rows: Rows | None = None
    ) -> tuple[Model, Any, Info]:
        """The stepper's step; the model that comes back has no columns drawn. `info.bound` is an estimate."""
        inner, steps = state
        key = jax.random.fold_in(jax.random.key(self.seed), steps)
        columns = jax.random.choice(key, self.where(model).O.shape[0], (self.count,), replace=False)
        model, inner, info = self.stepper.step(self._with_columns(model, columns), inner, batch, num_data, rows)
        return self._with_columns(model, None), (inner, steps + 1), info

    def _with_columns(self, model, columns):
        return eqx.tree_at(lambda m: self.where(m).columns, model, columns, is_leaf=lambda x: x is None)
