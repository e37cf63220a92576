"""Two classes, ordered classes and proportions."""

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, log_ndtr
from jaxtyping import Array, Float
from scipy.special import betainc, expit, logit, ndtr, ndtri

from ..params import Number, known, positive, real
from .base import AbstractLikelihood, Latent, Moments, PerRow
from .quadrature import log_expect

__all__ = ["AbstractClasses", "Bernoulli", "Beta", "Ordinal"]


class AbstractClasses(AbstractLikelihood):
    """y is one of K classes 0, …, K − 1."""

    support: ClassVar[str] = "classes"

    @property
    @abstractmethod
    def classes(self) -> int:
        """K."""

    def log_probabilities(self, mean: Latent, variance: Latent) -> Float[Array, "K ..."]:
        """log P(y = k) for every class k."""
        return self._every(lambda y: self.log_density(mean, variance, y), mean)

    def _every(self, log_p, like):
        """log_p(y) for every class y, at rows such as those of `like`."""
        rows = like.shape[-1:] if self.latents > 1 else like.shape
        return jax.vmap(lambda k: log_p(jnp.full(rows, k)))(jnp.arange(self.classes, dtype=like.dtype))

    def moments(self, f: Latent) -> Moments:
        """Mean and variance of the class number, given f."""
        return _class_moments(self._every(lambda y: self.log_prob(f, y), f))

    def predict(self, mean: Latent, variance: Latent) -> Moments:
        """Mean and variance of the class number."""
        return _class_moments(self.log_probabilities(mean, variance))


def _class_moments(log_probabilities):
    p = jnp.exp(log_probabilities)
    numbers = jnp.arange(p.shape[0]).reshape((-1,) + (1,) * (p.ndim - 1))
    first = jnp.sum(numbers * p, axis=0)
    return Moments(first, jnp.sum((numbers - first) ** 2 * p, axis=0))


@jax.custom_jvp
def _log_sigmoid(x: PerRow) -> PerRow:
    """log σ(x) = min(x, 0) − log(1 + e^{−|x|}), with derivative σ(−x). JAX's own takes two exponentials for each."""
    return jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x)))


@_log_sigmoid.defjvp
def _log_sigmoid_jvp(primals, tangents):
    (x,), (tangent,) = primals, tangents
    return _log_sigmoid(x), jax.nn.sigmoid(-x) * tangent


class Bernoulli(AbstractClasses):
    """P(y = 1 | f) = σ(f) with link "logit", Φ(f) with link "probit"; y is 0 or 1."""

    concave: ClassVar[bool] = True
    curvature: ClassVar[float] = 1.0
    link: Literal["logit", "probit"] = eqx.field(static=True, default="logit")

    def __check_init__(self):
        if self.link not in ("logit", "probit"):
            raise ValueError(f"link={self.link!r} is unknown: use 'logit' or 'probit'")

    def base_level(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """logit or probit of the share of ones, at least half a row of either class."""
        share = (weight @ y + 0.5) / (weight.sum() + 1)
        return np.asarray(logit(share) if self.link == "logit" else ndtri(share))

    @property
    def classes(self) -> int:
        return 2

    def log_prob(self, f: PerRow, y: PerRow) -> PerRow:
        """log σ(±f) or log Φ(±f), with the sign of 2y − 1."""
        signed = (2 * y - 1) * f
        return _log_sigmoid(signed) if self.link == "logit" else log_ndtr(signed)

    def log_density(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """log Φ(±μ/√(1 + v)) for the probit; by quadrature for the logit."""
        if self.link == "probit":
            return log_ndtr((2 * y - 1) * mean / jnp.sqrt(1 + variance))
        return log_expect(lambda f: self.log_prob(f, y), mean, variance, *self.peak_hint(y))


BEYOND = 1e6  # stands for an infinite edge


class Ordinal(AbstractClasses):
    """Ordered classes: P(y ≤ k | f) = Φ((eₖ − f)/scale), with K − 1 rising edges eₖ.

    For a continuous target Salimbeni et al. (2018, 5.4) use 51 bins: edges np.linspace(-2, 2, 50), scale learned. With
    `learn_edges` do not learn the scale, too: the kernel's variance has the same effect.
    """

    concave: ClassVar[bool] = True
    ordered: ClassVar[bool] = True
    first: Float[Number, ""] = real("learn_edges")
    gaps: Float[Number, " K2"] = positive(1e-6, "learn_edges")
    scale: Float[Number, ""] = positive(1e-4, "learn_scale", default=1.0)
    learn_edges: bool = eqx.field(static=True, default=False)
    learn_scale: bool = eqx.field(static=True, default=True)

    def __init__(self, edges: Any, scale: Any = 1.0, learn_edges: bool = False, learn_scale: bool = True):
        edges = np.asarray(edges, float)
        if edges.ndim != 1 or len(edges) < 1 or not (np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
            raise ValueError("edges must be a list of rising finite numbers, one fewer than there are classes")
        self.first, self.gaps, self.scale = edges[0], np.diff(edges), scale
        self.learn_edges, self.learn_scale = learn_edges, learn_scale

    def arguments(self) -> dict[str, Any]:
        """Those of `__init__`: edges in place of `first` and `gaps`."""
        edges = np.cumsum(np.append(self.first, self.gaps)) if known(self.gaps) else self.gaps
        return {"edges": edges, "scale": self.scale, "learn_edges": self.learn_edges, "learn_scale": self.learn_scale}

    @property
    def has_constant(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        # Learned edges can all move together.
        return self.learn_edges

    @property
    def classes(self) -> int:
        return self.gaps.shape[0] + 2

    def edges(self) -> Float[Array, " K1"]:
        """e₀ < e₁ < …, [K − 1]."""
        return jnp.concatenate([jnp.zeros(1, jnp.result_type(self.first)), jnp.cumsum(self.gaps)]) + self.first

    def _ends(self, y):
        """Lower and upper edge of the class y."""
        far = jnp.full(1, BEYOND, jnp.result_type(self.first))
        ends = jnp.concatenate([-far, self.edges(), far])
        k = y.astype(int)
        return ends[k], ends[k + 1]

    def _log_mass(self, mean, std, y):
        """log(Φ(b) − Φ(a)) for a and b = (edge − mean)/std, in the lower tail, which keeps the digits."""
        lower, upper = self._ends(y)
        a, b = (lower - mean) / std, (upper - mean) / std
        a, b = jnp.where(a + b > 0, -b, a), jnp.where(a + b > 0, -a, b)
        top = log_ndtr(b)
        return top + jnp.log1p(-jnp.exp(jnp.minimum(log_ndtr(a) - top, -1e-30)))

    def log_prob(self, f: PerRow, y: PerRow) -> PerRow:
        """log [Φ((e_y − f)/s) − Φ((e_{y−1} − f)/s)]."""
        return self._log_mass(f, self.scale, y)

    def log_density(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """As `log_prob`, with s² + v for s²."""
        return self._log_mass(mean, jnp.sqrt(self.scale**2 + variance), y)

    def predictive_cdf(self, mean: PerRow, variance: PerRow, y: PerRow) -> PerRow:
        """Φ((e_y − μ)/√(s² + v))."""
        return ndtr((np.asarray(self._ends(y)[1]) - mean) / np.sqrt(self.scale**2 + variance))


class Beta(AbstractLikelihood):
    """Proportions: y ~ Beta(s m, s(1 − m)) with m = σ(f) and one learned `scale` s (Salimbeni et al. 2018, 5.4)."""

    support: ClassVar[str] = "unit"
    scale: Float[Number, ""] = positive(1e-3, default=10.0)

    def base_level(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """logit of the mean."""
        return np.asarray(logit(np.average(y, weights=weight)))

    def _shapes(self, f):
        return self.scale * jax.nn.sigmoid(f), self.scale * jax.nn.sigmoid(-f)

    def log_prob(self, f: PerRow, y: PerRow) -> PerRow:
        """(α − 1) log y + (β − 1) log(1 − y) − log B(α, β), α = s σ(f), β = s σ(−f)."""
        alpha, beta = self._shapes(f)
        log_beta = gammaln(alpha) + gammaln(beta) - gammaln(self.scale)
        return (alpha - 1) * jnp.log(y) + (beta - 1) * jnp.log1p(-y) - log_beta

    def moments(self, f: PerRow) -> Moments:
        """m, m(1 − m)/(s + 1)."""
        m = jax.nn.sigmoid(f)
        return Moments(m, m * jax.nn.sigmoid(-f) / (self.scale + 1))

    def cdf(self, f: PerRow, y: PerRow) -> PerRow:
        """I_y(α, β)."""
        alpha, beta = (np.maximum(self.scale * expit(sign * f), 1e-30) for sign in (1, -1))  # NaN at 0
        return betainc(alpha, beta, y)

    def peak_hint(self, y: PerRow) -> tuple[PerRow, PerRow]:
        """logit y, 1/√((s + 1) y(1 − y))."""
        return jnp.log(y) - jnp.log1p(-y), 1 / jnp.sqrt((self.scale + 1) * y * (1 - y))
