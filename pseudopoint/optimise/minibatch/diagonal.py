"""Natural gradients of the O(M) posterior q(u) = N(Kμ, (K⁻¹ + diag g)⁻¹) of `DiagonalPrecision`.

In (m, g), m = Kμ, its Fisher matrix is block diagonal: S⁻¹ and ½ S∘S, as ∂S/∂gᵢ = −S eᵢeᵢᵀS. The natural gradient is
    Δm = S ∂L/∂m,        Δg = −2 (S∘S)⁻¹ diag(S (∂L/∂S) S) = 2 (S∘S)⁻¹ ∂L/∂g,
or in (θ₁, g), θ₁ = S⁻¹m, the same Δg and Δθ₁ = ∂L/∂m + m∘Δg. In μ, with ∂L/∂μ = K ∂L/∂m, Δμ = (K + KGK)⁻¹ ∂L/∂μ, and
for any positive definite P_* in place of S⁻¹ it is (KP_*K)⁻¹ ∂L/∂μ: no K⁻¹ is formed. Jitter enters these
preconditioners alone, so it slows steps but does not move where they end.

What else moves with the hyperparameters depends on q's coordinates. `PseudoObservations` hold θ = S⁻¹m, and q follows
the prior. The other coordinates hold μ, as the thesis does, whose Z stays: where Z is learned and K ill-conditioned,
k(x, Z)μ is a small sum of large terms, and a step of Z throws it far off. Gradients then grow up to 500-fold a step,
until their squares overflow, and fill Adam's second moment, which stalls for good. No guard can tell such a step from a
good one, but coordinates can (experiments/naval_diagonal.py with Z learned, at one rate: −4,081 with μ held, 20,065
with θ held; 31,550 where the rate falls).
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...bounds import expected_log_likelihood
from ...linalg import default_jitter, factorise, gram
from ...posteriors import DiagonalPrecision, Model
from .energy import row_curvatures, with_q
from .step import AbstractRule, Context, Proposal

__all__ = ["DiagonalPrecisionAffine", "DiagonalPrecisionFixedPoint", "DiagonalPrecisionNaturalGradient"]

Vector = Float[Array, " M"]
Matrix = Float[Array, "M M"]


class Local(NamedTuple):
    """One latent function at the start of a step. `shift` is g̃, g with the posterior's jitter, and `dshift` ∂g̃/∂g. Of
    the batch there are k_ux and, of its log likelihood scaled to all rows, −2 ∂/∂V f (`beta`) and the majoriser's
    curvature (`omega`), each [B]. `dmu` and `dg` are ∂L/∂μ and ∂L/∂g, `curvature` is Σ ωᵢaᵢaᵢᵀ, aᵢ = L⁻¹k_ui, averaged
    over steps.
    """

    K: Matrix
    S: Matrix
    shift: Vector
    dshift: Vector
    Kux: Float[Array, "M B"]
    beta: Float[Array, " B"]
    omega: Float[Array, " B"]
    mu: Vector
    g: Vector
    dmu: Vector
    dg: Vector
    curvature: Matrix


class AbstractDiagonalRule(AbstractRule):
    """A step of (μ, g), rejected where some g is not positive after it. The state is the averaged curvature of `Local`.
    The bound is the standard one: the posterior leaves no residual to shrink."""

    moves = {"q": object}
    family = DiagonalPrecision

    @abstractmethod
    def move(self, at: Local, gamma: Any, jitter: float) -> tuple[Vector, Vector, Matrix]:
        """μ, g and the averaged curvature after the step, for one latent function."""

    def init(self, model: Model, num_data: int) -> Float[Array, "*C M M"]:
        g = jnp.asarray(model.posterior.q.g)
        return jnp.zeros((*g.shape, g.shape[-1]), g.dtype)

    def update(self, state: Float[Array, "*C M M"], at: Context) -> Proposal:
        """One pass over the batch: the bound and its gradients in (θ, μ, g)."""
        posterior, batch = at.model.posterior, at.batch
        jitter = default_jitter(batch.X.dtype) if posterior.jitter is None else posterior.jitter

        def bound(parts, q):
            moved = with_q(at.hyper.rebuild(parts), q)
            expected, projection = expected_log_likelihood(moved, batch, at.num_data, tight=False)
            return expected - projection.divergence, projection

        start = (at.hyper.parts, posterior.q)
        (value, projection), (gradient, dq) = jax.value_and_grad(bound, (0, 1), has_aux=True)(*start)

        def moved(p, q, dq, beta, omega, curvature):
            g, K, epsilon = jnp.asarray(q.g), p.basis.K, p.basis.jitter
            place = lambda mu, g: q.moved(mu, g, K, g / (1 + epsilon * g))
            dmu, dg = jax.vjp(place, p.mu, g)[1](dq)
            dshift, Kux = 1 / (1 + epsilon * g) ** 2, p.rows(batch.X)[0]
            local = Local(K, p.covariance(), p.g, dshift, Kux, beta, omega, p.mu, g, dmu, dg, curvature)
            mu, g, curvature = self.move(local, at.gamma, jitter)
            # More than half of what the jitter allows changes nothing, and would overflow in the end.
            return place(mu, jnp.minimum(g, 1 / epsilon)), curvature, dmu

        rows = row_curvatures(at, projection, False)
        q, curvature, dmu = projection.map(moved, also=(posterior.q, dq, *rows, state))
        norm, positive = jnp.linalg.norm(dmu), (q.g > 0).all()
        return Proposal((q,), curvature, value, gradient, norm, (q, curvature), positive)


class NaturalDiagonalRule(AbstractDiagonalRule):
    """The exact natural gradient in g, and a step of the mean preconditioned by the likelihood's curvature:
        g ← g + δ + ½ min(δ, 0)²/g,  δ = max(γΔg, −g),        μ ← μ + γ H⁻¹ ∂L/∂μ,  H = K + Σᵢ ωᵢ k_ui k_uiᵀ.
    The second-order term is that of the improved Bayesian learning rule (Lin, Schmidt and Khan 2020): it keeps g
    positive, g + δ + ½δ²/g = ½g (1 + (1 + δ/g)²). Where g grows it is not needed, and would overshoot a thousandfold
    from a g that is a thousand times too small. Below δ = −g it would turn back, and at δ = −2g stand still far from
    any optimum, so δ ends at −g: no step does more than halve g. Where gᵢ < 1e-4/Sᵢᵢ would go on to 0, a bound of the
    family, its direction is solved apart from the others: F⁻¹ would spread it, and hold them off their own optimum
    (Bertsekas 1982, on projected Newton steps).

    ωᵢ are those of `likelihood.majoriser`, averaged over steps; H = KP_*K for the precision P_* that they give, so with
    a Gaussian likelihood and all rows γ = 1 lands on the optimal mean, which is also that of a dense q. Four Cholesky
    factors a step: of K + G⁻¹, S∘S, K and I + Σ ωᵢaᵢaᵢᵀ.
    """

    name = "DiagonalPrecisionNaturalGradient"

    def move(self, at: Local, gamma: Any, jitter: float) -> tuple[Vector, Vector, Matrix]:
        """The natural gradient in g."""
        held = (at.dg < 0) & (at.g * jnp.diagonal(at.S) < 1e-4)
        delta = precision_direction(at.S, at.dshift, at.dg, held, jitter)
        delta = jnp.maximum(gamma * delta, -at.g)
        g = at.g + delta + 0.5 * jnp.minimum(delta, 0) ** 2 / at.g
        mu, curvature = _mean_step(at, gamma, jitter)
        return mu, _above_zero(g, at.K), curvature


class FixedPointRule(AbstractDiagonalRule):
    """∂L/∂g = 0 by fixed-point iteration. With the data's term T and the KL, ∂L/∂g = ∂T/∂g − ½(S∘S)g; at the optimum
        (S∘S)g = 2 ∂T/∂g = (W∘W)β,   W = S K⁻¹K_uf = K_uf − K(K + G⁻¹)⁻¹K_uf,   βᵢ = −2 ∂/∂V fᵢ E log p(yᵢ | fᵢ),
    and g ← g ∘ [(W∘W)β / ((S∘S)g)]^γ stays positive where β ≥ 0 (a log-concave likelihood; elsewhere the ratio is held
    at 1/10 or more). The mean as in `DiagonalPrecisionNaturalGradient`. Three Cholesky factors a step: of K + G⁻¹, K
    and I + Σ ωᵢaᵢaᵢᵀ.
    """

    name = "DiagonalPrecisionFixedPoint"

    def move(self, at: Local, gamma: Any, jitter: float) -> tuple[Vector, Vector, Matrix]:
        """Multiplicative in g: the ratio is 1 + 2 ∂L/∂g / ((S∘S)g)."""
        ratio = 1 + 2 * at.dg / (at.dshift * ((at.S**2) @ at.shift))
        mu, curvature = _mean_step(at, gamma, jitter)
        return mu, _above_zero(at.g * jnp.maximum(ratio, 0.1) ** gamma, at.K), curvature


class AffineRule(AbstractDiagonalRule):
    """Kobe 2021, section 3.2: (μ, g) taken for natural parameters, which they are not. (3.20) with the Jacobian of the
    left inverse θ ↦ (K⁻¹Sθ₁, diag(S⁻¹ − K⁻¹)) for the ∂θ_affine/∂θ that (3.19) asks for, amounts to
        Δμ = K⁻¹S ∂L/∂m = (K + KGK)⁻¹ ∂L/∂μ,        Δg = −2 diag(∂L/∂S) = diag(K⁻¹K_uf β K_fu K⁻¹) − g:
    the natural gradient of a dense q, less what it does off the diagonal. With β ≥ 0 it keeps g positive for γ ≤ 1. It
    ends where g is the diagonal of a dense optimum's precision, which is not a stationary point of the bound within
    the family. It alone needs K⁻¹ (with the posterior's jitter), and its mean overshoots while S is too wide, by a
    factor of γ P_*/P; `newton` takes the mean's step of `DiagonalPrecisionNaturalGradient` instead, which leaves only g
    to the rule. To reproduce the thesis; otherwise use `DiagonalPrecisionNaturalGradient`.
    """

    name = "DiagonalPrecisionAffine"
    newton: bool = eqx.field(static=True, default=False)

    def move(self, at: Local, gamma: Any, jitter: float) -> tuple[Vector, Vector, Matrix]:
        """Additive in g and μ."""
        prior = factorise(at.K, jitter)
        A = prior.inverse.T @ (prior.inverse @ at.Kux)
        g = at.g + gamma * ((A**2) @ at.beta - at.g)
        if self.newton:
            mu, curvature = _mean_step(at, gamma, jitter)
            return mu, g, curvature
        metric = factorise(at.K + (at.K * at.shift) @ at.K, jitter)
        return at.mu + gamma * metric.solve(at.dmu), g, at.curvature


DiagonalPrecisionNaturalGradient = NaturalDiagonalRule.stepper
DiagonalPrecisionFixedPoint = FixedPointRule.stepper
DiagonalPrecisionAffine = AffineRule.stepper


def precision_direction(
    S: Float[Array, "M M"], dshift: Float[Array, " M"], dg: Float[Array, " M"], held: Bool[Array, " M"], jitter: float
) -> Float[Array, " M"]:
    """Δg = F⁻¹ ∂L/∂g with F = ½ D(S∘S)D, D = diag(dshift) (1 without jitter in the posterior). S∘S is positive definite
    as S is (Schur's product theorem). With s the diagonal of S and R its correlations, S∘S = diag(s)(R∘R)diag(s): so
    scaled, the jitter on R∘R is the same for wide and narrow uᵢ. F loses what couples those `held` to others.
    """
    s = jnp.diagonal(S)
    R = S / jnp.sqrt(jnp.outer(s, s))
    s = s * dshift
    coupled = jnp.outer(~held, ~held) | jnp.eye(len(s), dtype=bool)
    return 2 * factorise(jnp.where(coupled, R**2, 0), jitter).solve(dg / s) / s


def _above_zero(g, K):
    """g, but at least 1e-10/Kᵢᵢ, a precision that carries no information on uᵢ: steps towards 0 would underflow."""
    return jnp.maximum(g, 1e-10 / jnp.diagonal(K))


def _mean_step(at, gamma, jitter):
    """μ + γ H⁻¹ ∂L/∂μ, H = K + Σ ω k_ui k_uiᵀ = L (I + Σ ω aᵢaᵢᵀ) Lᵀ, and the average of the last sum, aᵢ = L⁻¹k_ui.

    H itself has at least the condition number of K squared, and a jitter relative to it would drown all that K has
    below a thousandth (NAVAL: 12,000 nats off after 2,000 steps). The average starts at 0, so a first step is a full
    one whatever γ, and no step is longer than with a fresh sum.
    """
    prior = factorise(at.K, jitter)
    curvature = (1 - gamma) * at.curvature + gamma * gram(prior.inverse @ at.Kux, at.omega)
    inner = factorise(jnp.eye(len(at.mu), dtype=at.mu.dtype) + curvature)
    return at.mu + gamma * (prior.inverse.T @ inner.solve(prior.inverse @ at.dmu)), curvature
