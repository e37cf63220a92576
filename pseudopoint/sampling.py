"""Functions drawn from a posterior, which can be evaluated anywhere, repeatedly, and differentiated.

Matheron's rule (Wilson et al. 2020, 2021) turns a path f̃ of the prior into one of the posterior. In the form of every
predictor here, E f = k(x, Zm)α and V f = k(x, x) − ‖w‖² + wᵀsw with w = W k(Zv, x) and a diagonal s, it reads
    f(x) = f̃(x) + k(x, Zv)Wᵀ(√s ε − W f̃(Zv) − h) + k(x, Zm)α,    h ~ N(0, I − W K_vv Wᵀ),  ε ~ N(0, I):
W f̃(Zv) + h is N(0, I), so the covariance is k − 2 wᵀw + wᵀw + wᵀsw. W may be singular, and is never inverted: h is W
times the noise or the jitter e ~ N(0, (WᵀW)⁻¹ − K_vv) that the textbook adds to f̃(Zv).

Paths of the prior are sums of features whose products have the mean k(x, z): x itself for `Linear`, 1 for `Constant`,
and for stationary kernels cos ωᵀx and sin ωᵀx with frequencies ω drawn from the kernel's spectrum (Rahimi and Recht
2007); for `OrthogonalAdditive` products of such waves of a few columns, each less its mean.
"""

from functools import partial, reduce, singledispatch
from itertools import combinations, product
from math import comb
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from .kernels import (
    RBF,
    AbstractKernel,
    Additive,
    Constant,
    Cosine,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    On,
    OrthogonalAdditive,
    Periodic,
    Product,
    RationalQuadratic,
    SpectralMixture,
    Sum,
    Tied,
    White,
    middle,
)
from .linalg import cholesky
from .params import Number
from .posteriors import Joined, PathsWithMean, Predictor, Predictors, WithMean

FARTHEST = 1e15  # beyond which the phase of a wave has no correct digit


class Feature(eqx.Module):
    """φ with E φ(x)ᵀφ(z) = variance · Π_l (Σ_d v_ld x_d z_d) · E cos ωᵀ(x − z): a product of kernels.

    `linear` has one v per factor; `omega`, of F frequencies, is None if no factor is stationary. Waves have phase 0 at
    `centre`, because ωᵀx of rows far from 0 would lose digits.
    """

    variance: Float[Array, ""]
    linear: tuple[Float[Array, " D"], ...]
    omega: Float[Array, "F D"] | None
    centre: Float[Array, " D"]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N K"]:
        """φ at the rows of X; K is 2F times D for each linear factor."""
        phi = jnp.sqrt(self.variance) * jnp.ones_like(X[:, :1])
        if self.omega is not None:
            # A row so far away that ωᵀx overflows gets an arbitrary phase, like every row that far from the others.
            angle = jnp.clip(X - self.centre, -FARTHEST, FARTHEST) @ self.omega.T
            phi = phi * jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=1) / len(self.omega) ** 0.5
        for v in self.linear:
            phi = (phi[:, :, None] * (jnp.sqrt(v) * X)[:, None, :]).reshape(len(X), -1)
        return phi

    def __mul__(self, other: "Feature") -> "Feature":
        """cos ωᵀδ · cos ω′ᵀδ and cos (ω + ω′)ᵀδ have one mean, so sums of draws are draws of the product's spectrum."""
        if not isinstance(other, Feature):  # Python then asks the other, as for any operator
            return NotImplemented
        waves = [f.omega for f in (self, other) if f.omega is not None]
        omega = sum(waves[1:], waves[0]) if waves else None
        return Feature(self.variance * other.variance, self.linear + other.linear, omega, self.centre)

    def on(self, columns: tuple[int, ...], centre: Float[Array, " D"]) -> "Feature":
        """The same feature of chosen columns among more; for a column that is chosen twice, both parts add."""
        at = np.asarray(columns)
        linear = tuple(jnp.zeros_like(centre).at[at].add(v) for v in self.linear)
        omega = self.omega
        if omega is not None:
            omega = jnp.zeros((len(omega), len(centre)), centre.dtype).at[:, at].add(omega)
        return Feature(self.variance, linear, omega, centre)

    def scaled(self, scale: Float[Array, " D"], centre: Float[Array, " D"]) -> "Feature":
        """The same feature of scale ∘ x."""
        omega = None if self.omega is None else self.omega * scale
        return Feature(self.variance, tuple(v * scale**2 for v in self.linear), omega, centre)


class OrthogonalWaves(eqx.Module):
    """φ of one order of `OrthogonalAdditive`, F products of waves of o columns, drawn among all sets of as many.

    A wave of the column x is (cos ωt − r(x) exp(−½ω²s²), sin ωt), t = (x − mean)/ℓ and ω ~ N(0, 1), with the spread s
    in units of ℓ. r(x) = g(x)/√(E κ(s, s′)) makes the mean of each 0. `variance` [F] has each set's share.
    """

    kernel: OrthogonalAdditive
    places: Int[Array, "F o"]  # of the columns in the kernel
    columns: Int[Array, "F o"]  # of the columns in X
    scale: Float[Array, "F o"]
    omega: Float[Array, "F o"]
    variance: Float[Array, " F"]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N K"]:
        """φ at the rows of X; K is F 2^o."""
        phi = jnp.broadcast_to(jnp.sqrt(self.variance)[:, None], (len(X), len(self.variance), 1))
        for k in range(self.places.shape[1]):
            wave = self._wave(X[:, self.columns[:, k]] * self.scale[:, k], self.places[:, k], self.omega[:, k])
            phi = (phi[..., None] * wave[:, :, None, :]).reshape(*phi.shape[:2], -1)
        return phi.reshape(len(X), -1)

    def _wave(self, x, places, omega):
        at = lambda numbers: numbers if jnp.ndim(numbers) == 0 else jnp.asarray(numbers)[places]
        mean, spread, lengthscale = (at(n) for n in (self.kernel.mean, self.kernel.spread, self.kernel.lengthscale))
        t, s = jnp.clip((x - mean) / lengthscale, -FARTHEST, FARTHEST), spread / lengthscale
        r = jnp.sqrt((1 + 2 * s**2) / (1 + s**2)) * jnp.exp(-0.5 * t**2 / (1 + s**2))
        return jnp.stack([jnp.cos(omega * t) - r * jnp.exp(-0.5 * (omega * s) ** 2), jnp.sin(omega * t)], axis=-1)

    def __mul__(self, other):
        raise TypeError("a product with OrthogonalAdditive has no paths: its waves are not of a stationary kernel")

    __rmul__ = __mul__

    def on(self, columns: tuple[int, ...], centre: Float[Array, " D"]) -> "OrthogonalWaves":
        """The same feature of chosen columns among more."""
        return eqx.tree_at(lambda f: f.columns, self, jnp.asarray(columns)[self.columns])

    def scaled(self, scale: Float[Array, " D"], centre: Float[Array, " D"]) -> "OrthogonalWaves":
        """The same feature of scale ∘ x."""
        return eqx.tree_at(lambda f: f.scale, self, self.scale * scale[self.columns])


class Paths(eqx.Module):
    """S functions drawn from a posterior, f(x) = wᵀφ(x) + k(x, Zv)c + k(x, Zm)α, each with its own w and c."""

    kernel: AbstractKernel
    prior: tuple[Feature | OrthogonalWaves, ...]
    weights: Float[Array, "S K"]
    Zv: Float[Array, "M2 D"]
    update: Float[Array, "S M2"]
    Zm: Float[Array, "M1 D"]
    alpha: Float[Array, " M1"]
    shared: bool = eqx.field(static=True)

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "S N"]:
        """All S functions at the rows of X: N(K + M) numbers and S products with them."""
        Kvx = self.kernel(self.Zv, X)
        Kmx = Kvx if self.shared else self.kernel(self.Zm, X)
        return self.weights @ _features(self.prior, X).T + self.update @ Kvx + self.alpha @ Kmx


class PriorPaths(eqx.Module):
    """S functions drawn from a prior, wᵀφ(x)."""

    prior: tuple[Feature | OrthogonalWaves, ...]
    weights: Float[Array, "S K"]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "S N"]:
        """All S functions at the rows of X."""
        return self.weights @ _features(self.prior, X).T


def prior_paths(
    kernel: AbstractKernel, centre: Float[Number, " D"], seed: int, count: int, features: int
) -> PriorPaths:
    """`count` functions drawn from the prior of a kernel, by waves about `centre`, as those of `paths`."""
    waves, weights = jax.random.split(jax.random.key(seed))
    prior = _prior(jax.tree.map(jnp.asarray, kernel), waves, features, jnp.asarray(centre))
    size = _features(prior, jnp.asarray(centre)[None]).shape[1]
    return PriorPaths(prior, jax.random.normal(weights, (count, size), jnp.asarray(centre).dtype))


class SeveralPaths(eqx.Module):
    """S draws of each of C latent functions; every number of `base` has a leading axis C."""

    base: Paths

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "C S N"]:
        """All functions at the rows of X."""
        return jax.vmap(lambda paths: paths(X))(self.base)


def paths(
    predictor: Predictor | Predictors | Joined | WithMean, key, count: int, features: int = 1024
) -> Paths | SeveralPaths | Joined | PathsWithMean:
    """`count` functions drawn from q(f): a callable from X [N, D] to [count, N]; for C latent functions [C, count, N].

    They have the mean and the covariance of `predictor`, except that random waves stand for a stationary prior. The
    error of this is kᵢᵢ · O(1/√features) in covariances; the mean and, but for `OrthogonalAdditive`, the variances of
    the prior are exact. Amid dense data the posterior of a rough kernel depends on its rarest, highest frequencies:
    there, use more features. `Linear` and `Constant` are exact.

    X and the values are in the units of the predictor, which are scaled in a fitted estimator: `GPRegressor.paths`
    converts units. All draws share the waves. `key` is a seed or a key of jax.random. The cost is M³ + count · M
    (features + M). The functions are differentiable in X. Numbers become arrays of the dtype of the scope.

    Raises TypeError for a kernel of unknown spectrum (see `spectrum`), for White, whose draws are no functions, and for
    a predictor of several targets with one covariance.
    """
    predictor = jax.tree.map(jnp.asarray, predictor)
    key = key if jnp.issubdtype(getattr(key, "dtype", int), jax.dtypes.prng_key) else jax.random.key(key)
    keys = jax.random.split(key, predictor.leading) if predictor.leading else key
    drawn: Any = predictor.map(lambda p, key: _paths(p, key, count, features), (keys,))
    return predictor.around(SeveralPaths(drawn) if predictor.stacked else drawn)


def _paths(p: Predictor, key, count: int, features: int) -> Paths:
    if jnp.ndim(p.alpha) > 1:  # one draw of noise for all of them would make their errors equal
        raise TypeError("paths are of one target: draw those of each, with its own row of `alpha` and its own key")
    waves, *keys = jax.random.split(key, 4)
    Zv = jnp.asarray(p.Zv)
    prior = _prior(p.kernel, waves, features, middle(Zv))
    sizes = (_features(prior, Zv[:1]).shape[1], len(Zv), len(p.s))
    normal = [jax.random.normal(k, (count, size), Zv.dtype) for k, size in zip(keys, sizes, strict=True)]
    return _posterior(p, prior, *normal)


def _posterior(
    p: Predictor, prior: tuple[Feature | OrthogonalWaves, ...], w: Array, xi: Array, epsilon: Array
) -> Paths:
    """Matheron's rule, linear in the standard normal w [S, K], ξ [S, M2] and ε [S, M2]."""
    Zv, W = jnp.asarray(p.Zv), p.W
    # R = I − WKWᵀ is a difference, but ‖w‖² ≤ kᵢᵢ: its rounding errors become as many ε of kᵢᵢ in the variance.
    h = xi @ _root(jnp.eye(len(Zv), dtype=Zv.dtype) - W @ p.kernel(Zv, Zv) @ W.T).T
    update = (epsilon * jnp.sqrt(p.s) - w @ _features(prior, Zv).T @ W.T - h) @ W
    return Paths(p.kernel, prior, w, Zv, update, jnp.asarray(p.Zm), jnp.asarray(p.alpha), p.shared)


def _root(R):
    """L with LLᵀ = R + δI for 0 ≤ R ≤ I, which may be singular. δ starts at 10ε and grows tenfold until it succeeds."""
    R, eye = 0.5 * (R + R.T), jnp.eye(len(R), dtype=R.dtype)
    attempt = lambda level: cholesky(R + level * eye)
    level = jnp.asarray(10 * jnp.finfo(R.dtype).eps, R.dtype)
    failed = lambda at: ~jnp.isfinite(at[1]).all() & (at[0] < 1e-2)
    return lax.while_loop(failed, lambda at: (10 * at[0], attempt(10 * at[0])), (level, attempt(level)))[1]


def _features(prior, X):
    return jnp.concatenate([feature(X) for feature in prior], axis=1)


# --- the prior: a kernel as a sum of products ------------------------------------------------------------------------


@singledispatch
def _prior(kernel, key, F: int, centre) -> tuple[Feature | OrthogonalWaves, ...]:
    """Features of a kernel, one `Feature` per summand. By default a kernel is stationary."""
    omega = spectrum(kernel, key, (F, len(centre)), centre.dtype)
    return (Feature(jnp.asarray(kernel.variance, centre.dtype), (), omega, centre),)


@_prior.register
def _(kernel: Linear, key, F, centre):
    one = jnp.ones((), centre.dtype)
    return (Feature(one, (jnp.broadcast_to(kernel.variance, centre.shape),), None, centre),)


@_prior.register
def _(kernel: SpectralMixture, key, F, centre):
    # Of each component ω ~ N(2π frequency, (2π bandwidth)²).
    keys = jax.random.split(key, len(kernel.variance))
    drawn = lambda key, f, b: 2 * jnp.pi * (f + b * jax.random.normal(key, (F, len(centre)), centre.dtype))
    parts = zip(keys, jnp.asarray(kernel.variance, centre.dtype), kernel.frequency, kernel.bandwidth, strict=True)
    return tuple(Feature(v, (), drawn(key, f, b), centre) for key, v, f, b in parts)


@_prior.register
def _(kernel: Constant, key, F, centre):
    return (Feature(jnp.asarray(kernel.variance, centre.dtype), (), None, centre),)


@_prior.register
def _(kernel: Sum, key, F, centre):
    return sum(_parts(kernel, key, F, centre), ())


@_prior.register
def _(kernel: Product, key, F, centre):
    # (a + b)(c + d) = ac + ad + bc + bd
    return tuple(reduce(lambda a, b: a * b, factors) for factors in product(*_parts(kernel, key, F, centre)))


@_prior.register
def _(kernel: Additive, key, F, centre):
    D = len(centre)
    pairs = zip(*(jnp.broadcast_to(x, (D,)) for x in (kernel.lengthscale, kernel.variance)), strict=True)
    parts = Sum(tuple(RBF(lengthscale, variance).on(d) for d, (lengthscale, variance) in enumerate(pairs)))
    return _prior(parts, key, -(-F // D), centre)


@_prior.register
def _(kernel: OrthogonalAdditive, key, F, centre):
    D, weights = len(centre), jnp.concatenate([jnp.ones(1), jnp.atleast_1d(kernel.interaction)])
    orders = range(1, min(len(weights), D) + 1)
    keys, each = jax.random.split(key, len(orders)), -(-F // len(orders))
    return tuple(_of_order(kernel, k, each, o, weights[o - 1], centre) for k, o in zip(keys, orders, strict=True))


def _of_order(kernel, key, F, order, weight, centre):
    """w_o Σ Π a_d over the sets of o of D columns, as a mean over F sets: all of them in turn, or some at random."""
    D, (one, two) = len(centre), jax.random.split(key)
    if comb(D, order) <= F:
        sets = jnp.asarray(list(combinations(range(D), order)))
        places = sets[jax.random.permutation(one, F) % len(sets)]
    else:
        places = jnp.argsort(jax.random.uniform(one, (F, D)), axis=1)[:, :order]
    variance = jnp.broadcast_to(jnp.asarray(kernel.variance, centre.dtype), (D,))[places]
    omega = jax.random.normal(two, places.shape, centre.dtype)
    size = weight * jnp.prod(variance, axis=1) * (comb(D, order) / F)
    return OrthogonalWaves(kernel, places, places, jnp.ones_like(omega), omega, size)


@_prior.register
def _(kernel: On, key, F, centre):
    chosen = _prior(kernel.kernel, key, F, centre[np.asarray(kernel.columns)])
    return tuple(feature.on(kernel.columns, centre) for feature in chosen)


@_prior.register
def _(kernel: Tied, key, F, centre):
    scale = jnp.broadcast_to(jnp.asarray(kernel.scale, centre.dtype), centre.shape)
    return tuple(feature.scaled(scale, centre) for feature in _prior(kernel.wide(), key, F, centre * scale))


def _parts(kernel, key, F, centre):
    keys = jax.random.split(key, len(kernel.kernels))
    return [_prior(part, k, F, centre) for part, k in zip(kernel.kernels, keys, strict=True)]


# --- spectra ---------------------------------------------------------------------------------------------------------


@singledispatch
def spectrum(kernel, key, shape: tuple[int, int], dtype) -> Float[Array, "F D"]:
    """Frequencies ω [F, D] with k(x, z) = variance · E cos ωᵀ(x − z): draws from the spectral density (Bochner).

    For your own stationary kernel with a field `variance`, `@spectrum.register` a function of these arguments.
    """
    raise TypeError(f"{type(kernel).__name__} has no known spectrum, so no paths: register one with sampling.spectrum")


@spectrum.register
def _(kernel: White, key, shape, dtype):
    raise TypeError("White has no paths, as its values at any two points are independent: leave it out of the kernel")


@spectrum.register
def _(kernel: RBF, key, shape, dtype):
    # ω ~ N(0, 1/ℓ²)
    return jax.random.normal(key, shape, dtype) / kernel.lengthscale


def _student(kernel, key, shape, dtype, nu):
    # κ = E exp(−r²τ/2) with 2ν/τ ~ χ² of 2ν degrees of freedom: ω is Student's t with as many, jointly in all columns.
    chi2 = lambda key: jnp.sum(jax.random.normal(key, (shape[0], int(2 * nu)), dtype) ** 2, axis=1)
    return _mixture(kernel, key, shape, dtype, lambda key: 2 * nu / chi2(key))


for _kind, _nu in ((Matern12, 0.5), (Matern32, 1.5), (Matern52, 2.5)):
    spectrum.register(_kind, partial(_student, nu=_nu))


@spectrum.register
def _(kernel: RationalQuadratic, key, shape, dtype):
    # (1 + r²/2α)^(−α) = E exp(−r²τ/2) with τ ~ Gamma(α, α)
    alpha = jnp.asarray(kernel.alpha, dtype)
    return _mixture(kernel, key, shape, dtype, lambda key: jax.random.gamma(key, alpha, shape[:1], dtype) / alpha)


def _mixture(kernel, key, shape, dtype, tau):
    one, two = jax.random.split(key)
    return jnp.sqrt(tau(one))[:, None] * jax.random.normal(two, shape, dtype) / kernel.lengthscale


@spectrum.register
def _(kernel: Periodic, key, shape, dtype):
    # exp(a cos t − a) = Σ e⁻ᵃI_n(a) cos nt with a = 1/ℓ²: of n, the law of a difference of two Poisson(a/2) (Skellam)
    rate = jnp.broadcast_to(0.5 / jnp.asarray(kernel.lengthscale, dtype) ** 2, shape[1:])
    one, two = (jax.random.poisson(k, rate, shape).astype(dtype) for k in jax.random.split(key))
    return 2 * jnp.pi * (one - two) / kernel.period


@spectrum.register
def _(kernel: Cosine, key, shape, dtype):
    # one wave
    return jnp.broadcast_to(2 * jnp.pi / jnp.asarray(kernel.period, dtype), shape)
