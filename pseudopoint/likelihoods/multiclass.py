"""C classes from C latent functions, f [C, N]."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import log_ndtr, logsumexp
from jaxtyping import Array, Float

from ..params import Number, bounded
from .base import Rows
from .bounded import AbstractClasses
from .quadrature import expect, hermite, log_expect

__all__ = ["RobustMax", "Softmax"]

Several = Float[Array, "C ..."]


def _members(C: int) -> None:
    if not isinstance(C, int) or C < 2:
        raise ValueError(f"members={C!r} must be a whole number of at least two classes")


class RobustMax(AbstractClasses):
    """P(y | f) = 1 − ε if f_y is the largest, else ε/(C − 1): wrong labels cost no more than log ε.

    Hernández-Lobato et al. 2011; ε = 1e-3 as in Salimbeni et al. 2018, 5.5, unless `learn_epsilon`.
    """

    majorised: ClassVar[bool] = True
    members: int = eqx.field(static=True)
    epsilon: Float[Number, ""] = bounded(1e-6, 0.5, "learn_epsilon", default=1e-3)
    learn_epsilon: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        _members(self.members)

    @property
    def classes(self) -> int:
        """C."""
        return self.members

    @property
    def latents(self) -> int:
        """One a class."""
        return self.members

    def log_prob(self, f: Several, y: Rows) -> Rows:
        """log(1 − ε) or log(ε/(C − 1))."""
        return jnp.where(jnp.argmax(f, axis=0) == y, jnp.log1p(-self.epsilon), self._log_wrong())

    def _log_wrong(self):
        return jnp.log(self.epsilon / (self.members - 1))

    def expectation(self, mean: Several, variance: Several, y: Rows) -> Rows:
        """p log(1 − ε) + (1 − p) log(ε/(C − 1)), p = P(f_y is largest) = E_{f_y} Π_{j≠y} Φ((f_y − μⱼ)/√vⱼ).

        One integral over f_y, by Gauss–Hermite with 20 nodes.
        """
        own = jax.nn.one_hot(y.astype(int), self.members, dtype=mean.dtype, axis=0)
        pick = lambda a: jnp.sum(own * a, axis=0)
        p = expect(lambda f: jnp.exp(_log_largest(f, mean, variance, own)), pick(mean), pick(variance))
        return p * jnp.log1p(-self.epsilon) + (1 - p) * self._log_wrong()

    def log_density(self, mean: Several, variance: Several, y: Rows) -> Rows:
        """log[(1 − ε)p + ε(1 − p)/(C − 1)]."""
        own = jax.nn.one_hot(y.astype(int), self.members, dtype=mean.dtype, axis=0)
        pick = lambda a: jnp.sum(own * a, axis=0)
        rival = jnp.argmax(jnp.where(own > 0, -jnp.inf, mean), axis=0)[None]
        at = lambda a: jnp.take_along_axis(a, rival, axis=0)[0]
        log_p = log_expect(
            lambda f: _log_largest(f, mean, variance, own),
            pick(mean),
            pick(variance),
            at(mean),
            jnp.sqrt(jnp.maximum(at(variance), 1e-12)),
        )
        p = jnp.exp(jnp.minimum(log_p, 0.0))
        return jnp.log((1 - self.epsilon) * p + self.epsilon * (1 - p) / (self.members - 1))


def _log_largest(f, mean, variance, own):
    """Σ_{j≠y} log Φ((f − μⱼ)/√vⱼ) at nodes f [Q, N] of f_y."""
    std = jnp.sqrt(jnp.maximum(variance, 1e-12))
    return jnp.sum((1 - own) * log_ndtr((f[:, None] - mean) / std), axis=1)


EULER = float(np.euler_gamma)


class Softmax(AbstractClasses):
    """P(y | f) = e^{f_y}/Σⱼ e^{fⱼ}.

    Expectations are integrals over one variable each, by a race: with Gⱼ standard Gumbel variables, the largest
    fⱼ + Gⱼ is log Σ e^{fⱼ} + G in law, and it is that of class c with probability e^{f_c}/Σ e^{fⱼ}. Given t,
    P(fⱼ + Gⱼ ≤ t) = Fⱼ(t) = E exp(−e^{fⱼ − t}), so with independent fⱼ
        E log Σ e^{fⱼ} = E max − γ_Euler,   P(max ≤ t) = Π Fⱼ(t),        P(y = c) = ∫ F′_c(t) Π_{j≠c} Fⱼ(t) dt.
    """

    concave: ClassVar[bool] = True  # in each latent function by itself
    majorised: ClassVar[bool] = True
    members: int = eqx.field(static=True)

    def __check_init__(self):
        _members(self.members)

    @property
    def classes(self) -> int:
        """C."""
        return self.members

    @property
    def latents(self) -> int:
        """One a class."""
        return self.members

    def log_prob(self, f: Several, y: Rows) -> Rows:
        """f_y − log Σ e^{fⱼ}."""
        return self._of(f, y) - logsumexp(f, axis=0)

    def _of(self, a, y):
        return jnp.sum(jax.nn.one_hot(y.astype(int), self.members, dtype=a.dtype, axis=0) * a, axis=0)

    def expectation(self, mean: Several, variance: Several, y: Rows) -> Rows:
        """μ_y − E log Σ e^{fⱼ}: 12 Gauss–Hermite nodes for each Fⱼ(t), 56 trapezoids for E max."""
        low, high = _range(mean, variance, 14.0)
        steps = 56
        f, weights = hermite(mean, variance, 12)
        rate = jnp.exp(f - high)

        @jax.checkpoint
        def below(share):
            # P(max ≤ t) at t = low + share · (high − low)
            F = jnp.sum(weights * jnp.exp(-rate * jnp.exp((1 - share) * (high - low))), axis=0)
            return jnp.prod(jnp.maximum(F, 0), axis=0)

        shares = jnp.arange(1, steps + 1, dtype=mean.dtype) / steps
        inside, _ = lax.scan(lambda sum, share: (sum + below(share), None), jnp.zeros_like(high), shares)
        # E max = high − ∫ P(max ≤ t) dt below + ∫ P(max > t) dt above, where P(max > t) ≈ Σ E e^{fⱼ − t}.
        above = jnp.sum(jnp.sum(weights * rate, axis=0), axis=0)
        largest = high - (high - low) / steps * (inside - 0.5 * below(jnp.ones((), mean.dtype))) + above
        return self._of(mean, y) - largest + EULER

    def log_probabilities(self, mean: Several, variance: Several) -> Float[Array, "C ..."]:
        """log ∫ F′_c(t) Π_{j≠c} Fⱼ(t) dt by 160 trapezoids and 40 Gauss–Hermite nodes, normalised."""
        low, high = _range(mean, variance, 40.0)
        f, weights = hermite(mean, variance, 40)
        log_weights = jnp.log(weights)

        def add(sums, share):
            a = f - (low + share * (high - low))
            log_F = logsumexp(log_weights - jnp.exp(a), axis=0)
            log_slope = logsumexp(log_weights + a - jnp.exp(a), axis=0)
            return jnp.logaddexp(sums, log_slope - log_F + jnp.sum(log_F, axis=0)), None

        shares = jnp.arange(161, dtype=mean.dtype) / 160
        sums, _ = lax.scan(add, jnp.full_like(mean, -jnp.inf), shares)
        return sums - logsumexp(sums, axis=0)

    def log_density(self, mean: Several, variance: Several, y: Rows) -> Rows:
        """log P(y)."""
        return self._of(self.log_probabilities(mean, variance), y)

    def majoriser(self, mean: Several, variance: Several, y: Rows) -> Several:
        """ω_c = E p_c, or 2 E p_c(1 − p_c) in rows where one class has more than half.

        Both diag(p) and 2 diag(p(1 − p)) are above diag(p) − ppᵀ, the curvature of all latent functions together (the
        second by Gershgorin's theorem), and β_c = E p_c(1 − p_c) alone is not. The second is small where all is clear.
        """
        total = lambda mean, variance: jnp.sum(self.expectation(mean, variance, y))
        slope, half_curvature = jax.grad(total, (0, 1))(mean, variance)
        p = jax.nn.one_hot(y.astype(int), self.members, dtype=mean.dtype, axis=0) - slope
        return jnp.maximum(jnp.where(jnp.max(p, axis=0) > 0.5, -4 * half_curvature, p), 0)


def _range(mean, variance, beyond):
    """Where the largest fⱼ + Gⱼ lies: the ends carry no derivative, for the integrand is flat there."""
    std = jnp.sqrt(jnp.maximum(variance, 1e-12))
    low = jnp.max(mean - 7 * std, axis=0) - 4.0
    high = jnp.max(mean + jnp.minimum(7 * std, 3 * std + 0.5 * variance), axis=0) + beyond
    return lax.stop_gradient(low), lax.stop_gradient(high)
