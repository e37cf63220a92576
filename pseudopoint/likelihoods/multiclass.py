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
from .base import PerRow, Slopes
from .bounded import AbstractClasses
from .quadrature import expect, plus_gumbel, rule

__all__ = ["RobustMax", "Softmax"]

Several = Float[Array, "C ..."]


class AbstractRace(AbstractClasses):
    """One latent function for each class; the class of the largest is the likeliest."""

    members: eqx.AbstractVar[int]

    def __check_init__(self):
        if not isinstance(self.members, int) or self.members < 2:
            raise ValueError(f"members={self.members!r} must be a whole number of at least two classes")

    @property
    def classes(self) -> int:
        return self.members

    @property
    def latents(self) -> int:
        return self.members

    def log_density(self, mean: Several, variance: Several, y: PerRow) -> PerRow:
        return self._of(self.log_probabilities(mean, variance), y)

    def _own(self, a, y):
        return jax.nn.one_hot(y.astype(int), self.members, dtype=a.dtype, axis=0)

    def _of(self, a, y):
        return jnp.sum(self._own(a, y) * a, axis=0)


class RobustMax(AbstractRace):
    """P(y | f) = 1 − ε if f_y is the largest, else ε/(C − 1) (Hernández-Lobato et al. 2011).

    A wrong label costs no more than log ε; ε = 1e-3 as in Salimbeni et al. 2018, 5.5, unless `learn_epsilon`.
    """

    members: int = eqx.field(static=True)
    epsilon: Float[Number, ""] = bounded(1e-6, 0.5, "learn_epsilon", default=1e-3)
    learn_epsilon: bool = eqx.field(static=True, default=False)

    def log_prob(self, f: Several, y: PerRow) -> PerRow:
        """log(1 − ε) or log(ε/(C − 1))."""
        return jnp.where(jnp.argmax(f, axis=0) == y, jnp.log1p(-self.epsilon), self._log_wrong())

    def _log_wrong(self):
        return jnp.log(self.epsilon / (self.members - 1))

    def expectation(self, mean: Several, variance: Several, y: PerRow) -> PerRow:
        """p log(1 − ε) + (1 − p) log(ε/(C − 1)), p = P(f_y is largest) = E_{f_y} Π_{j≠y} Φ((f_y − μⱼ)/√vⱼ), by
        Gauss–Hermite with 20 nodes over f_y."""
        others, std = 1 - self._own(mean, y), jnp.sqrt(jnp.maximum(variance, 1e-12))
        largest = lambda f: jnp.exp(jnp.sum(others * log_ndtr((f[:, None] - mean) / std), axis=1))  # f [Q, N]
        p = expect(largest, self._of(mean, y), self._of(variance, y))
        return p * jnp.log1p(-self.epsilon) + (1 - p) * self._log_wrong()

    def log_probabilities(self, mean: Several, variance: Several) -> Several:
        """log[(1 − ε)p_c + ε(1 − p_c)/(C − 1)], p_c = ∫ N(t; μ_c, v_c) Π_{j≠c} Φ((t − μⱼ)/√vⱼ) dt.

        By Gauss–Legendre with 8 nodes between neighbours of the points at 0, 1, 2, 3.2, 5 and 8 standard deviations
        from every mean, the same for all classes.
        """
        rows = (mean.reshape(self.members, -1).T, variance.reshape(self.members, -1).T)
        p = lax.map(lambda row: _shares(*row), rows, batch_size=64).T.reshape(mean.shape)
        return jnp.log((1 - self.epsilon) * p + self.epsilon * (1 - p) / (self.members - 1))


ENDS = np.array([-8.0, -5.0, -3.2, -2.0, -1.0, 0.0, 1.0, 2.0, 3.2, 5.0, 8.0])
LEGENDRE = np.polynomial.legendre.leggauss(8)


def _shares(mean, variance):
    """P(f_c is the largest) for one row, [C]."""
    std = jnp.sqrt(jnp.maximum(variance, 1e-12))
    ends = jnp.sort((mean[:, None] + std[:, None] * jnp.asarray(ENDS, mean.dtype)).ravel())
    half = 0.5 * jnp.diff(ends)[:, None]
    x, w = (jnp.asarray(a, mean.dtype) for a in LEGENDRE)
    t = (0.5 * (ends[1:] + ends[:-1])[:, None] + half * x).ravel()
    z = (t - mean[:, None]) / std[:, None]
    log_below = log_ndtr(z)
    density = jnp.exp(-0.5 * z**2 + jnp.sum(log_below, axis=0) - log_below) / std[:, None]
    p = density @ (half * w).ravel()
    return p / jnp.sum(p)


EULER = float(np.euler_gamma)
STEPS = 44
NEAR = 6.0  # steps are even up to this distance from the lower end, and grow beyond
REACH = 5.5  # standard deviations


class Softmax(AbstractRace):
    """P(y | f) = e^{f_y}/Σⱼ e^{fⱼ}.

    The Gumbel-max trick makes every expectation an integral over one variable: with standard Gumbel variables Gⱼ, the
    largest fⱼ + Gⱼ is distributed as log Σ e^{fⱼ} + G, and belongs to class c with probability e^{f_c}/Σ e^{fⱼ}. With
    Fⱼ(t) = P(fⱼ + Gⱼ ≤ t) = E exp(−e^{fⱼ − t}) and independent fⱼ
        E log Σ e^{fⱼ} = E max − γ_Euler,   P(max ≤ t) = Π Fⱼ(t),        P(y = c) = ∫ F′_c(t) Π_{j≠c} Fⱼ(t) dt.
    """

    concave: ClassVar[bool] = True  # in each latent function by itself
    majorised: ClassVar[bool] = True
    coupled: ClassVar[bool] = True
    curvature: ClassVar[float] = 0.25
    members: int = eqx.field(static=True)

    def base_level(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Logarithms of the classes' shares, with half a row added to each, less their mean."""
        level = np.log(np.bincount(y.astype(int), weights=weight, minlength=self.members) + 0.5)
        return level - level.mean()

    def log_prob(self, f: Several, y: PerRow) -> PerRow:
        """f_y − log Σ e^{fⱼ}."""
        return self._of(f, y) - logsumexp(f, axis=0)

    def expectation(self, mean: Several, variance: Several, y: PerRow) -> PerRow:
        """μ_y − E log Σ e^{fⱼ}: each Fⱼ(t) in closed form (`plus_gumbel`), 44 trapezoids for E max.

        The error of the value, and of its gradients, is 1e-8 (1 + |value|) for variances up to 100 in any mixture, 3e-7
        up to 300, and 1e-4 up to 10⁴. The gradients are equally close to those of the computed value.
        """
        return self._of(mean, y) - _expected_log_sum(mean, variance)

    def log_probabilities(self, mean: Several, variance: Several) -> Several:
        """log ∫ F′_c(t) Π_{j≠c} Fⱼ(t) dt by 160 trapezoids and 40 Gauss–Hermite nodes, normalised.

        The nodes are too few for a wide f_c (an error of 4e-6 at a variance of 10, 7e-3 at 100). For variances above 3,
        probabilities above 1e-3 are computed as in `expectation`, whose errors are absolute and small beside them.
        """
        low, width = _range(mean, variance, 40.0)
        rates = _rates(mean, variance, low + width, 40)

        def add(sums, share):
            F, slope = _below(rates, (1 - share) * width)
            terms = jnp.log(slope) - jnp.log(F) + jnp.sum(jnp.log(F), axis=0)
            return jnp.logaddexp(sums, jnp.where(jnp.isfinite(terms), terms, -jnp.inf)), None

        shares = jnp.arange(161, dtype=mean.dtype) / 160
        sums, _ = lax.scan(add, jnp.full_like(mean, -jnp.inf), shares)
        rare, p = sums - logsumexp(sums, axis=0), _log_sum_and_slopes(mean, variance)[1]
        wide = (jnp.max(variance, axis=0) > 3) & (p > 1e-3)
        log_p = jnp.where(wide, jnp.log(jnp.where(wide, p, 1)), rare)
        return log_p - logsumexp(log_p, axis=0)

    def majoriser(self, mean: Several, variance: Several, y: PerRow, slopes: Slopes) -> Several:
        """ω_c = E p_c, or 2 E p_c(1 − p_c) in rows where one class has more than half.

        Both diag(p) and 2 diag(p(1 − p)) are upper bounds of diag(p) − ppᵀ, the curvature of all latent functions
        together (the second by Gershgorin's theorem); diag(p(1 − p)) is not. The second is small where p is near 0 or
        1.
        """
        p = self._own(mean, y) - slopes[0]
        return jnp.maximum(jnp.where(jnp.max(p, axis=0) > 0.5, -4 * slopes[1], p), 0)

    def curvature_along(self, y: PerRow, slopes: Slopes, v: Several) -> Several:
        """diag(E p) v − E p (E p)ᵀ v, which exceeds the curvature E[diag(p) − ppᵀ] by the covariance of p. Both are 0
        where all latent functions rise together, which the majoriser takes for steep."""
        p = self._own(v, y) - slopes[0]
        return p * (v - jnp.sum(p * v, axis=0))


@jax.custom_jvp
def _expected_log_sum(mean, variance):
    """E log Σ e^{fⱼ}."""
    return _log_sum_and_slopes(mean, variance)[0]


@_expected_log_sum.defjvp
def _expected_log_sum_jvp(primals, tangents):
    value, by_mean, by_variance = _log_sum_and_slopes(*primals)
    return value, jnp.sum(by_mean * tangents[0] + by_variance * tangents[1], axis=0)


def _log_sum_and_slopes(mean, variance):
    """E log Σ e^{fⱼ} and its derivatives in μ_c and v_c, from one pass.

    With P = Π Fⱼ, ∂F/∂μ = −F′ and ∂F/∂v = ½F″ (`plus_gumbel`) they are low − γ_Euler + ∫ (1 − P) dt,
    ∫ F′_c Π_{j≠c} Fⱼ dt and −½ ∫ F″_c Π_{j≠c} Fⱼ dt, by trapezoids in u of t = low + 6 sinh u. A class whose mean is d
    above low has a standard deviation of at least (d − 3.6)/5.5, so that steps may grow with d.
    """
    low, high = _ends(mean, variance)
    step = jnp.arcsinh((high - low) / NEAR) / STEPS
    below = plus_gumbel(variance)

    def add(sums, k):
        F, first, second = below(low - mean + NEAR * jnp.sinh(k * step))
        P = jnp.prod(F, axis=0)
        others = P / jnp.where(F == 0, 1, F)
        terms = 1 - P, first * others, -0.5 * second * others
        # The last step stands for all steps beyond, where 1 − P falls as e^{−t}: h(1 + e^{−h} + e^{−2h} + …)
        weight = NEAR * jnp.cosh(k * step) * step
        weight = jnp.where(k == STEPS, weight / -jnp.expm1(-weight), weight)
        return jax.tree.map(lambda a, b: a + weight * b, sums, terms), None

    zeros = (jnp.zeros_like(low), jnp.zeros_like(mean), jnp.zeros_like(mean))
    (above, by_mean, by_variance), _ = lax.scan(add, zeros, jnp.arange(1, STEPS + 1, dtype=mean.dtype))
    # Half of the first step, where P = 0. E log Σ e^{fⱼ} increases with every v_c, so the rule's error is cut at 0.
    return low + 0.5 * NEAR * step + above - EULER, by_mean, jnp.maximum(by_variance, 0)


def _ends(mean, variance):
    """The range of the largest fⱼ + Gⱼ. The lower end is the highest of a few points where P is negligible, as the
    largest of many classes is far above the lower end of one."""
    std = jnp.sqrt(jnp.maximum(variance, 1e-12))
    low = jnp.max(mean - REACH * std, axis=0) - 3.6
    high = jnp.max(mean + jnp.minimum(REACH * std, 3 * std + 0.5 * variance), axis=0) + 16.0
    std = jnp.sqrt(std**2 + np.pi**2 / 6)  # of f + G, above whose lower tail that of a Gaussian is
    for reach in (4.0, 3.0, 2.0, 1.0, 0.0):
        t = jnp.max(mean - reach * std, axis=0)
        P = jnp.prod(0.5 + 0.5 * lax.erf((t - mean) / std * np.sqrt(0.5)), axis=0)
        low = jnp.where(P < 1e-9, jnp.maximum(low, t + EULER), low)
    return low, high


def _rates(mean, variance, high, order):
    """Weights and e^{f − high} at the Gauss–Hermite nodes f, as a list: XLA does not fuse a sum over an array's
    axis."""
    std = jnp.sqrt(jnp.maximum(variance, 1e-12))
    return [(float(w), jnp.exp(mean + float(x) * std - high)) for x, w in zip(*rule(order), strict=True)]


def _below(rates, exponent):
    """E e^{−x} and E x e^{−x}, x = e^{f − t}: F and F′."""
    growth = jnp.exp(exponent)
    F = slope = 0.0
    for weight, rate in rates:
        x = jnp.minimum(rate * growth, 1000.0)  # where e^{−x} = 0
        e = weight * jnp.exp(-x)
        F, slope = F + e, slope + x * e
    return F, slope


def _range(mean, variance, beyond):
    """The lower end and the width of the range of the largest fⱼ + Gⱼ, with a finite exponential of the width."""
    std = jnp.sqrt(jnp.maximum(variance, 1e-12))
    low = jnp.max(mean - 7 * std, axis=0) - 4.0
    high = jnp.max(mean + jnp.minimum(7 * std, 3 * std + 0.5 * variance), axis=0) + beyond
    return low, jnp.minimum(high - low, 80.0 if mean.dtype == jnp.float32 else 600.0)
