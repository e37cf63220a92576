"""What a likelihood should say, from SciPy's distributions and dense sums, and nothing of the library.

A `Truth` holds the distribution of y given f, and integrates f out by brute force: Gauss–Legendre with 16 nodes on
hundreds of panels (one latent function) or a grid over all latent functions (several). Derivatives of expectations come
from Stein's identities, which differentiate the normal density instead of log p and so bear kinks and jumps:
    ∂E[g]/∂mean = E[(f − mean) g]/v,    ∂E[g]/∂v = ½ E[((f − mean)²/v − 1) g]/v.
For smooth g they are E[g′] and ½ E[g″].
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from scipy.special import expit, gammaln, log_expit, log_ndtr, log_softmax, logsumexp

Array = np.ndarray


class Truth(NamedTuple):
    """p(y | f), and averages over f ~ N(mean, variance); all take numbers, or arrays [C] for C latent functions."""

    log_prob: Callable[[Any, Any], Array]
    expectation: Callable[[Any, Any, Any], Array]  # the value, and then the slopes in mean and in variance
    log_density: Callable[[Any, Any, Any], float]
    predict: Callable[[Any, Any], tuple[float, float]]
    cdf: Callable[[Any, Any], Array] | None = None
    predictive_cdf: Callable[[Any, Any, Any], float] | None = None


# --- p(y | f) --------------------------------------------------------------------------------------------------------


def one_latent(given: Callable[[Array], Any]) -> Truth:
    """Of `given(f)`, one of SciPy's frozen distributions or something like it."""
    density = lambda d: getattr(d, "logpdf", None) or d.logpmf

    def log_prob(f: Any, y: Any) -> Any:
        with np.errstate(divide="ignore"):
            return density(given(np.asarray(f, float)))(y)

    def expectation(mean, variance, y):
        t, w = standard_nodes((y - mean) / np.sqrt(variance))
        g = log_prob(mean + np.sqrt(variance) * t, y)
        return np.array([w @ g, w @ (t * g) / np.sqrt(variance), 0.5 * w @ ((t**2 - 1) * g) / variance])

    def log_density(mean, variance, y):
        return dense_log_expect(lambda f: log_prob(f, y), mean, variance, y)

    def predict(mean, variance):
        t, w = standard_nodes()
        d = given(mean + np.sqrt(variance) * t)
        first = w @ d.mean()
        return float(first), float(w @ (d.var() + (d.mean() - first) ** 2))

    def cdf(f: Any, y: Any) -> Any:
        return given(np.asarray(f, float)).cdf(y)

    def predictive_cdf(mean, variance, y):
        with np.errstate(divide="ignore"):
            return np.exp(dense_log_expect(lambda f: np.log(cdf(f, y)), mean, variance, y))

    return Truth(log_prob, expectation, log_density, predict, cdf, predictive_cdf)


class Classes(NamedTuple):
    """Like SciPy's frozen distributions, from log P(y = k), [K, ...]."""

    log_p: Array

    def logpmf(self, y):
        return self.log_p[int(y)]

    def _numbers(self):
        return np.arange(len(self.log_p)).reshape((-1,) + (1,) * (self.log_p.ndim - 1))

    def mean(self):
        return np.sum(self._numbers() * np.exp(self.log_p), axis=0)

    def var(self):
        return np.sum((self._numbers() - self.mean()) ** 2 * np.exp(self.log_p), axis=0)

    def cdf(self, y):
        return np.sum(np.exp(self.log_p[: int(y) + 1]), axis=0)


class Laplace(NamedTuple):
    """scipy.stats.laplace, whose logpdf is the log of a pdf that underflows."""

    f: Array
    scale: float

    def logpdf(self, y):
        return -np.abs(y - self.f) / self.scale - np.log(2 * self.scale)

    def mean(self):
        return self.f

    def var(self):
        return stats.laplace(self.f, self.scale).var()

    def cdf(self, y):
        return stats.laplace(self.f, self.scale).cdf(y)


class NegativeBinomial(NamedTuple):
    """scipy.stats.nbinom(r, r/(r + λ)), without its 1 − p, which has no digits left where λ is tiny."""

    rate: Array
    r: float

    def _scipy(self):
        return stats.nbinom(self.r, self.r / (self.r + self.rate))

    def logpmf(self, y):
        total = self.r + self.rate
        choose = gammaln(y + self.r) - gammaln(self.r) - gammaln(y + 1)
        return choose + self.r * np.log(self.r / total) + y * np.log(self.rate / total)

    def mean(self):
        return self.rate

    def var(self):
        return self._scipy().var()

    def cdf(self, y):
        return self._scipy().cdf(y)


def ordinal(f: Array, edges: Array, scale: float) -> Classes:
    """Differences of neighbouring Φ, of the lower tails or of the upper ones."""
    z = (np.concatenate([[-np.inf], edges, [np.inf]]).reshape((-1,) + (1,) * f.ndim) - f) / scale
    below, above = log_ndtr(z), log_ndtr(-z)
    upper = z[:-1] > 0
    large, small = np.where(upper, above[:-1], below[1:]), np.where(upper, above[1:], below[:-1])
    with np.errstate(divide="ignore"):
        return Classes(large + np.log(-np.expm1(small - large)))


class WarpedNormal:
    """Yeo and Johnson's power of y is N(f, sd²), 0 < power < 2."""

    def __init__(self, f: Array, sd: float, power: float):
        self.normal: Any = stats.norm(f, sd)
        self.power = power

    def warped(self, y: Any) -> Array:
        there: Any = stats.yeojohnson(np.atleast_1d(np.asarray(y, float)), self.power)
        return there.reshape(np.shape(y))

    def logpdf(self, y: Any) -> Array:
        return self.normal.logpdf(self.warped(y)) + (self.power - 1) * np.sign(y) * np.log1p(np.abs(y))

    def cdf(self, y: Any) -> Array:
        return self.normal.cdf(self.warped(y))

    def moment(self, g: Callable[[Array], Array]) -> Array:
        t, w = np.polynomial.hermite_e.hermegauss(120)
        z = self.normal.mean()[..., None] + self.normal.std()[..., None] * t
        y = np.where(z >= 0, inverse_power(np.abs(z), self.power), -inverse_power(np.abs(z), 2 - self.power))
        return g(y) @ (w / w.sum())

    def mean(self) -> Array:
        return self.moment(lambda y: y)

    def var(self) -> Array:
        return self.moment(lambda y: y**2) - self.mean() ** 2


def inverse_power(w: Array, power: float) -> Array:
    """((1 + y)^power − 1)/power = w."""
    return (1 + power * w) ** (1 / power) - 1


TRUTHS: dict[str, Callable[[Any], Truth]] = {
    "Gaussian": lambda p: one_latent(lambda f: stats.norm(f, np.sqrt(p.variance))),
    "GaussianPerOutput": lambda p: one_latent(lambda f: stats.norm(f, np.sqrt(p.variance[0]))),
    "Heteroscedastic": lambda p: heteroscedastic(float(p.scale)),
    "HeteroscedasticStudentT": lambda p: student_t_of_scale(float(p.scale), float(p.degrees)),
    "LogScale": lambda p: one_latent(lambda f: stats.norm(0, np.sqrt(p.known + p.scale**2 * np.exp(2 * f)))),
    "StudentT": lambda p: one_latent(lambda f: stats.t(p.degrees, f, p.scale)),
    "Laplace": lambda p: one_latent(lambda f: Laplace(f, float(p.scale))),
    "Bernoulli": lambda p: one_latent(lambda f: Classes(np.stack([LINKS[p.link](-f), LINKS[p.link](f)]))),
    "Ordinal": lambda p: one_latent(
        lambda f: ordinal(f, float(p.first) + np.cumsum(np.append(0.0, p.gaps)), float(p.scale))
    ),
    "Beta": lambda p: one_latent(lambda f: stats.beta(p.scale * expit(f), p.scale * expit(-f))),
    "Poisson": lambda p: one_latent(lambda f: stats.poisson(p.scale * np.exp(f))),
    "NegativeBinomial": lambda p: one_latent(lambda f: NegativeBinomial(p.scale * np.exp(f), float(p.shape))),
    "Gamma": lambda p: one_latent(lambda f: stats.gamma(p.shape, scale=p.scale * np.exp(f) / p.shape)),
    "Exponential": lambda p: one_latent(lambda f: stats.expon(scale=p.scale * np.exp(f))),
    "RobustMax": lambda p: robustmax(p.members, float(p.epsilon)),
    "Softmax": lambda p: softmax(p.members),
    "Warped": lambda p: one_latent(
        lambda f: WarpedNormal(f, np.sqrt(p.likelihood.variance), float(np.asarray(p.warp.power)))
    ),
    "Offset": lambda p: moved(TRUTHS[type(p.likelihood).__name__](p.likelihood), np.asarray(p.constant)),
}
LINKS = {"logit": log_expit, "probit": log_ndtr}


def moved(truth: Truth, c: Array) -> Truth:
    """p(y | f + c): f + c ~ N(mean + c, variance)."""
    cdf, below = truth.cdf, truth.predictive_cdf
    return Truth(
        lambda f, y: truth.log_prob(np.asarray(f) + c, y),
        lambda mean, variance, y: truth.expectation(np.asarray(mean) + c, variance, y),
        lambda mean, variance, y: truth.log_density(np.asarray(mean) + c, variance, y),
        lambda mean, variance: truth.predict(np.asarray(mean) + c, variance),
        None if cdf is None else lambda f, y: cdf(np.asarray(f) + c, y),
        None if below is None else lambda mean, variance, y: below(np.asarray(mean) + c, variance, y),
    )


# --- several latent functions ----------------------------------------------------------------------------------------


def heteroscedastic(scale: float) -> Truth:
    """y ~ N(f₁, s² e^{2f₂}). Given f₂, y ~ N(μ₁, v₁ + s² e^{2f₂}), as for the Gaussian; f₂ is integrated densely."""
    sd = lambda f2: scale * np.exp(f2)

    def expectation(mean, variance, y):
        (t2, w2), (t1, w1) = standard_nodes(), np.polynomial.hermite_e.hermegauss(12)
        t = np.stack(np.broadcast_arrays(t1[:, None], t2[None, :]))
        root = np.sqrt(np.asarray(variance))[:, None, None]
        f = np.asarray(mean)[:, None, None] + root * t
        g = np.outer(w1 / w1.sum(), w2) * stats.norm.logpdf(y, f[0], sd(f[1]))
        total = lambda h: np.sum(h * g, axis=(1, 2))
        return np.concatenate([total(np.ones_like(t))[:1], total(t / root), 0.5 * total((t**2 - 1) / root**2)])

    def log_density(mean, variance, y):
        given = lambda f2: stats.norm.logpdf(y, mean[0], np.sqrt(variance[0] + sd(f2) ** 2))
        return dense_log_expect(given, mean[1], variance[1])

    def predict(mean, variance):
        t, w = standard_nodes()
        return float(mean[0]), float(variance[0] + w @ sd(mean[1] + np.sqrt(variance[1]) * t) ** 2)

    def predictive_cdf(mean, variance, y):
        given = lambda f2: log_ndtr((y - mean[0]) / np.sqrt(variance[0] + sd(f2) ** 2))
        return float(np.exp(dense_log_expect(given, mean[1], variance[1])))

    log_prob = lambda f, y: stats.norm.logpdf(y, f[0], sd(f[1]))
    return Truth(log_prob, expectation, log_density, predict, None, predictive_cdf)


def student_t_of_scale(scale: float, degrees: float) -> Truth:
    """y = f₁ + s e^{f₂} t. Given f₂ it is Student's; f₂ is on a grid of steps of 0.25 standard deviations: the nearest
    singularity of the density in f₂ is π/2 away, so that the error is e^{−π²/(0.25√v)}."""

    def given(f2: Any) -> Any:
        return one_latent(lambda f: stats.t(degrees, f, scale * np.exp(f2)))

    t = np.linspace(-9, 9, 73)
    w = np.exp(-0.5 * t**2) / np.sum(np.exp(-0.5 * t**2))
    nodes = lambda mean, variance: mean[1] + np.sqrt(variance[1]) * t
    spread = lambda f2: (scale * np.exp(f2)) ** 2 * degrees / (degrees - 2)

    def expectation(mean, variance, y):
        inner = np.array([given(f2).expectation(mean[0], variance[0], y) for f2 in nodes(mean, variance)])
        g, in_mean, in_variance = (w[:, None] * inner).T
        root = np.sqrt(variance[1])
        return np.array([g.sum(), in_mean.sum(), t @ g / root, in_variance.sum(), 0.5 * (t**2 - 1) @ g / variance[1]])

    def log_density(mean, variance, y):
        inner = [given(f2).log_density(mean[0], variance[0], y) for f2 in nodes(mean, variance)]
        return float(np.asarray(logsumexp(inner, b=w)))

    def predictive_cdf(mean, variance, y):
        return w @ [given(f2).predictive_cdf(mean[0], variance[0], y) for f2 in nodes(mean, variance)]

    def predict(mean, variance):
        x, weights = standard_nodes()
        return float(mean[0]), float(variance[0] + weights @ spread(mean[1] + np.sqrt(variance[1]) * x))

    log_prob = lambda f, y: given(f[1]).log_prob(f[0], y)
    return Truth(log_prob, expectation, log_density, predict, lambda f, y: given(f[1]).cdf(f[0], y), predictive_cdf)


def robustmax(C: int, epsilon: float) -> Truth:
    """1 − ε or ε/(C − 1). P(f_y is the largest) = E Π_{j≠y} Φ((f_y − μⱼ)/√vⱼ), densely; slopes by differences."""
    low, high = np.log(epsilon / (C - 1)), np.log1p(-epsilon)

    def share(mean, variance, y):
        rivals = np.arange(C) != y
        m, s = np.asarray(mean)[rivals, None], np.sqrt(np.asarray(variance)[rivals, None])
        given = lambda f: np.sum(log_ndtr((f - m) / s), axis=0)
        return np.exp(dense_log_expect(given, mean[int(y)], variance[int(y)]))

    def expectation(mean, variance, y):
        of = lambda a: low + (high - low) * share(a[:C], a[C:], y)
        at, slopes = np.concatenate([mean, variance]), np.full(2 * C, np.nan)
        own, rival = int(y), (int(y) + 1) % C  # one rival stands for all
        for i in (own, rival, C + own, C + rival):
            h = 1e-3 * np.eye(2 * C)[i] * (at[i] if i >= C else 1.0)
            near, far = (of(at + k * h) - of(at - k * h) for k in (1, 2))
            slopes[i] = (8 * near - far) / (12 * h[i])
        return np.array([of(at), *slopes])

    def log_density(mean, variance, y):
        p = share(mean, variance, y)
        return float(np.log((1 - epsilon) * p + epsilon * (1 - p) / (C - 1)))

    log_prob = lambda f, y: np.where(np.argmax(f, axis=0) == y, high, low)
    return Truth(log_prob, expectation, log_density, _class_moments(C, log_density))


def softmax(C: int) -> Truth:
    """e^{f_y}/Σ e^{fⱼ} on a grid over the latent functions whose variance is positive (three at most).

    The trapezoidal rule with steps of 0.4 standard deviations: the nearest pole of log p is π away, so that the error
    is about e^{−2π·π/(0.4√v)}, 1e-10 at v = 5.
    """

    @lru_cache(2)
    def grid(mean, variance):
        t = np.linspace(-8.4, 8.4, 43)
        w = np.exp(-0.5 * t**2) / np.sum(np.exp(-0.5 * t**2))
        moving = [c for c in range(C) if variance[c] > 0]
        axes = np.stack([a.ravel() for a in np.meshgrid(*[t] * len(moving), indexing="ij")])
        weights = np.ones(1)
        for _ in moving:
            weights = np.outer(weights, w).ravel()
        T = np.zeros((C, axes.shape[1]))
        T[moving] = axes
        f = np.asarray(mean)[:, None] + np.sqrt(np.asarray(variance))[:, None] * T
        return T, weights, log_softmax(f, axis=0)

    def expectation(mean, variance, y):
        T, w, log_p = grid(tuple(mean), tuple(variance))
        v = np.where(np.asarray(variance) > 0, variance, np.nan)  # no identity there
        g = w * log_p[int(y)]
        return np.concatenate([[g.sum()], T @ g / np.sqrt(v), 0.5 * ((T**2 - 1) @ g) / v])

    def log_density(mean, variance, y):
        _, w, log_p = grid(tuple(mean), tuple(variance))
        return float(np.asarray(logsumexp(log_p[int(y)], b=w)))

    log_prob = lambda f, y: log_softmax(f, axis=0)[int(y)]
    return Truth(log_prob, expectation, log_density, _class_moments(C, log_density))


def _class_moments(C, log_density):
    def predict(mean, variance):
        p, numbers = np.exp([log_density(mean, variance, y) for y in range(C)]), np.arange(C)
        first = float(p @ numbers)
        return first, float(p @ (numbers - first) ** 2)

    return predict


# --- dense quadrature ------------------------------------------------------------------------------------------------

GAUSS_LEGENDRE = np.polynomial.legendre.leggauss(16)
REACH = np.concatenate([[0.0], np.geomspace(1e-7, 1e3, 61)])  # ends of panels that grow with the distance to a centre


def panels(ends: Array) -> tuple[Array, Array]:
    """Nodes and weights on the intervals between the sorted ends."""
    x, w = GAUSS_LEGENDRE
    half = 0.5 * np.diff(ends)[:, None]
    return (0.5 * (ends[1:] + ends[:-1])[:, None] + half * x).ravel(), (half * w).ravel()


@lru_cache(64)
def standard_nodes(centre: float = 0.0) -> tuple[Array, Array]:
    """Nodes t and weights of N(0, 1) over ±14 (so exact also for e^{t√20}); panels crowd at the centre, may be a kink.

    Elsewhere they are an eighth wide.
    """
    ends = np.concatenate([np.linspace(-14.0, 14.0, 225), centre + REACH, centre - REACH])
    t, w = panels(np.unique(np.clip(ends, -14.0, 14.0)))
    return t, w * np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi)


def top(h: Callable[[Array], Array], low: float, high: float) -> float:
    """Where h is largest, by ever finer grids."""
    for _ in range(4):
        f = np.linspace(low, high, 401)
        i = int(np.argmax(h(f)))
        low, high = f[max(i - 2, 0)], f[min(i + 2, 400)]
    return 0.5 * (low + high)


def dense_log_expect(log_g: Callable[[Array], Array], mean: float, variance: float, *extra: float) -> float:
    """log E[g(f)], f ~ N(mean, variance): panels crowd at mean, at the top of g, at that of their product, and more."""
    sd = np.sqrt(variance)
    log_normal = lambda f: -0.5 * ((f - mean) / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))
    low, high = min(mean - 14 * sd, -50.0), max(mean + 14 * sd, 50.0)
    product = lambda f: np.maximum(log_g(f), -1e300) + log_normal(f)
    f = np.linspace(low, high, 2001)
    half = np.nonzero(np.diff(log_g(f) > np.max(log_g(f)) - np.log(2)))[0]  # edges of plateaus
    centres = [mean, top(log_g, low, high), top(product, low, high), *f[half], *extra]
    ends = [mean + sd * np.linspace(-14, 14, 113), *(c + s * REACH for c in centres for s in (-1, 1))]
    f, w = panels(np.unique(np.clip(np.concatenate(ends), low, high)))
    return float(np.asarray(logsumexp(product(f), b=w)))
