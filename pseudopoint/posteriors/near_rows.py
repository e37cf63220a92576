"""What the training rows nearest to a new row tell of it, beyond what pseudo-points can hold."""

import math
from abc import abstractmethod
from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from ..kernels import AbstractStationary
from ..likelihoods import AbstractLikelihood, WithNearClasses, WithNearRows
from ..likelihoods.gaussian import log_normal
from ..linalg import inverses, solutions
from ..params import Number

__all__ = ["AbstractNearRows", "Corrected", "NearClasses", "NearRows"]

Moments = tuple[Float[Array, "*C B"], Float[Array, "*C B"]]
STEPS = 20  # towards the mode of what classes of near rows tell
NUMBERS = 2**21  # that are in memory together
TILE = 4096  # rows whose distances stay in the cache


class Corrected(eqx.Module):
    """The latent functions of a fit, and after them those of near rows, [C, N]."""

    predictor: Any
    near: "AbstractNearRows"

    def __call__(self, X: Float[Array, "N D"]) -> Moments:
        """Mean and variance of each at the rows of X."""
        both = zip(self.predictor(X), self.near(X), strict=True)
        return tuple(jnp.concatenate([each.reshape(-1, len(X)) for each in pair]) for pair in both)  # pyright: ignore


class AbstractNearRows(eqx.Module):
    """Latent functions h given the `count` rows of X nearest to x, by distances of k (methods o).

    Rows of weight 0 are never near: they pad X to a size that many tables share. Nearest rows in place of all are the
    approximation of Vecchia (1988) for a new row.
    """

    # The names of what is learned; all else is of the rows. And the standard deviation of the logarithms of
    # lengthscales about their mean, before rows are seen.
    learned: ClassVar[tuple[str, ...]]
    spread: ClassVar[float]
    kernel: eqx.AbstractVar[AbstractStationary]
    X: eqx.AbstractVar[Float[Number, "N D"]]
    y: eqx.AbstractVar[Float[Number, " N"]]
    weight: eqx.AbstractVar[Float[Number, " N"]]
    count: eqx.AbstractVar[int]

    @abstractmethod
    def given(self, X: Float[Number, "B D"], rows: Int[Number, "B m"], weight: Float[Number, "B m"]) -> Moments:
        """Mean and variance of h at the rows of X given these near rows, of such weights."""

    @abstractmethod
    def log_density(self, rows: Int[Number, " B"], h: Moments) -> Float[Array, " B"]:
        """The log density of what is described at these rows."""

    @abstractmethod
    def at(self, first: Float[Number, ""], lengthscale: Float[Number, " D"]) -> "AbstractNearRows":
        """With lengthscales and one more number, any real one, which says how much h varies. It starts at 0."""

    @abstractmethod
    def likelihood(self, inner: AbstractLikelihood) -> AbstractLikelihood:
        """p(y) given the latent functions of the fit, whose likelihood is `inner`, and h."""

    def __call__(self, X: Float[Number, "B D"]) -> Moments:
        """Mean and variance of h at the rows of X."""
        rows = self.nearest(X)
        return self.given(X, rows, jnp.asarray(self.weight)[rows])

    def left_out(self, rows: Int[Number, " B"], nearest: Int[Number, "B m"]) -> Moments:
        """Mean and variance of h at these rows given those nearest to each. Of a row that was seen several times
        (`nearest`), one is left out."""
        again = nearest == jnp.asarray(rows)[:, None]
        return self.given(jnp.asarray(self.X)[rows], nearest, jnp.asarray(self.weight)[nearest] - again)

    def nearest(self, X: Float[Number, "B D"], but: Int[Number, " B"] | None = None) -> Int[Array, "B m"]:
        """The numbers of the `count` nearest rows, for each row of X; with `but` without the row of that number, unless
        it was seen more than once. Weights say that if all are whole numbers; others, as those that balance classes,
        make a row important, and not two.

        They lie in the count + 1 groups of rows whose nearest ones are nearest: before that of any other group come
        `count` rows and perhaps the one left out. So distances to all rows are computed tile by tile, and are never in
        memory together: of a group their minimum is kept.
        """
        A, B = (self.kernel.placed(jnp.asarray(rows)) for rows in (X, self.X))
        size, D = _group_size(len(B), self.count), B.shape[1]
        tile = size * -(-len(B) // (size * -(-len(B) // TILE)))  # all tiles are equally long
        pad = lambda each: jnp.pad(each, [(0, -len(B) % tile), *[(0, 0)] * (each.ndim - 1)])
        B, weight = pad(B), pad(jnp.asarray(self.weight))

        def least(part):
            rows, weight = part
            squared = jnp.sum(A**2, axis=1)[:, None] - 2 * A @ rows.T + jnp.sum(rows**2, axis=1)
            return jnp.min(jnp.where(weight > 0, squared, jnp.inf).reshape(len(A), -1, size), axis=2)

        minima = jnp.moveaxis(lax.map(least, (B.reshape(-1, tile, D), weight.reshape(-1, tile))), 0, 1)
        groups = _smallest(minima.reshape(len(A), -1), min(self.count + 1, len(B) // size))
        rows = (size * groups[:, :, None] + jnp.arange(size)).reshape(len(A), -1)
        squared = jnp.sum((B.reshape(-1, size, D)[groups].reshape(len(A), -1, D) - A[:, None]) ** 2, axis=2)
        squared = jnp.where(weight[rows] > 0, squared, jnp.inf)
        if but is not None:
            again = (weight[but] > 1) & jnp.all(weight == jnp.round(weight))
            squared = jnp.where((rows == but[:, None]) & ~again[:, None], jnp.inf, squared)
        return jnp.take_along_axis(rows, _smallest(squared, self.count), axis=1)

    @property
    def width(self) -> int:
        """How many numbers a prediction holds for each row, by which blocks are cut: those of a factor, or of the rows
        of groups, which count a sixteenth because they are made and read once."""
        candidates = (self.count + 1) * _group_size(len(self.X), self.count) * self.X.shape[1]
        return max(self.count**2, candidates // 16)

    def _of(self, rows, *columns):
        """Values of the columns at rows [B, m]."""
        return [jnp.asarray(each)[rows] for each in columns]

    def _covariances(self, x, X, noise):
        """k(X, X) with noise on its diagonal, and k(X, x)."""
        # Differences to x: nothing cancels where a lengthscale is far below the distance of the rows from the middle.
        near, origin = X - x, jnp.zeros_like(x)[None]
        return self.kernel(near, near) + jnp.diag(noise), self.kernel(near, origin)[:, 0]


def _group_size(N: int, count: int) -> int:
    """Rows of a group. There are about four times as many groups as rows in `count` groups, and few of both."""
    return max(1, math.isqrt(N // (4 * count)))


def _smallest(values: Float[Array, "B N"], count: int) -> Int[Array, "B m"]:
    """The numbers of the `count` smallest values of each row."""
    # XLA has a fast selection for float32 alone. An error of 1e-7 of the distance exchanges equally near rows.
    return lax.top_k(-values.astype(jnp.float32), count)[1]


@final
class NearRows(AbstractNearRows):
    """z(x) = h(x) + ε with h ~ GP(0, k) and εᵢ ~ N(0, noise/weightᵢ), given the `count` rows of X nearest to x.

    zᵢ is the normal score of a target yᵢ, by which its prediction was off: Φ⁻¹(P(Y ≤ yᵢ | xᵢ)) (methods o).
    """

    learned: ClassVar[tuple[str, ...]] = ("kernel", "noise")
    spread: ClassVar[float] = float("inf")
    kernel: AbstractStationary
    noise: Float[Number, ""]
    X: Float[Number, "N D"]
    z: Float[Number, " N"]
    y: Float[Number, " N"]
    weight: Float[Number, " N"]
    count: int = eqx.field(static=True)

    def given(self, X: Float[Number, "B D"], rows: Int[Number, "B m"], weight: Float[Number, "B m"]) -> Moments:
        """Mean and variance of h given these rows: with C = k(J, J) + noise/weight, a = C⁻¹k(J, x) and b = C⁻¹z_J,
            E h = k(x, J) b,    V h = k(x, x) − k(x, J) a.

        a and b are constants of the gradient, which is that of
            k(x, J) b + aᵀz − aᵀC b    and    k(x, x) − 2k(x, J) a + aᵀC a:
        the same values, stationary in a and b, so that no derivative of a factor is needed.
        """
        near, z = self._of(rows, self.X, self.z)
        C, k = jax.vmap(self._covariances)(jnp.asarray(X), near, self.noise / jnp.asarray(weight))
        a, b = jnp.moveaxis(solutions(C, jnp.stack([k, z], axis=2)), 2, 0)
        prior = self.kernel.diag(jnp.zeros_like(jnp.asarray(X)))
        inner, Ca = lambda u, v: jnp.sum(u * v, axis=1), jnp.einsum("bij,bj->bi", C, a)
        mean, variance = inner(k, b) + inner(a, z) - inner(Ca, b), prior - 2 * inner(k, a) + inner(Ca, a)
        return mean, jnp.maximum(variance, jnp.finfo(prior.dtype).eps * prior)

    def log_density(self, rows: Int[Number, " B"], h: Moments) -> Float[Array, " B"]:
        """log N(zᵢ; E h, V h + noise)."""
        return log_normal(jnp.asarray(self.z)[rows], h[0], h[1] + self.noise)

    def at(self, first: Float[Number, ""], lengthscale: Float[Number, " D"]) -> "NearRows":
        """`first` is the logit of the noise, and k(x, x) = 1 − noise."""
        noise = jax.nn.sigmoid(first)
        where = lambda near: (near.noise, near.kernel.variance, near.kernel.lengthscale)
        return eqx.tree_at(where, self, (noise, 1 - noise, lengthscale))

    def likelihood(self, inner: AbstractLikelihood) -> AbstractLikelihood:
        """Another location and scale."""
        return WithNearRows(inner, self.noise)


@final
class NearClasses(AbstractNearRows):
    """P(y = c) ∝ P₀(y = c | x) exp h_c(x) with h_c ~ GP(0, k) for each class c, given the `count` rows nearest to x.

    log_pᵢ are the logarithms of the probabilities P₀ that the fit gives a training row, all classes'. h is at the mode
    given the classes of near rows (methods o), and has no variance. Far from all rows it is 0.
    """

    learned: ClassVar[tuple[str, ...]] = ("kernel",)
    spread: ClassVar[float] = 1.0
    kernel: AbstractStationary
    X: Float[Number, "N D"]
    log_p: Float[Number, "N C"]
    y: Float[Number, " N"]
    weight: Float[Number, " N"]
    count: int = eqx.field(static=True)

    def given(self, X: Float[Number, "B D"], rows: Int[Number, "B m"], weight: Float[Number, "B m"]) -> Moments:
        """What 20 steps towards the mode of h given the classes of these rows reach, and zeros, [C, B].

        With K = k(J, J), weights W, Y the classes as rows of zeros and one 1, and P(h) the probabilities at J, the
        steps are, from α = 0,
            α ← (K + 2W⁻¹)⁻¹(Kα + 2(Y − P(Kα))),    and in the end h(x) = k(x, J) α.
        Each raises the density, for ½ I is an upper bound of the curvature of log Σ exp h (Böhning 1992).
        """
        rows, weight, (C, m) = jnp.asarray(rows), jnp.asarray(weight), (self.log_p.shape[1], rows.shape[1])
        numbers = m * (m + STEPS * C)  # of each row, for a gradient
        size = max(1, min(NUMBERS // numbers, len(X)))
        fill = lambda each: jnp.pad(each, [(0, -len(each) % size), *[(0, 0)] * (each.ndim - 1)], mode="edge")
        blocks = [fill(each).reshape(-1, size, *each.shape[1:]) for each in (jnp.asarray(X), rows, weight)]
        # A gradient computes again what it needs of a block, so that memory does not grow.
        modes = lax.map(jax.checkpoint(lambda block: self._modes(*block)), blocks)  # pyright: ignore
        h = modes.reshape(-1, C)[: len(X)].T
        return h, jnp.zeros_like(h)

    def _modes(self, x, rows, weight):
        X, log_p, y = self._of(rows, self.X, self.log_p, self.y)
        noise = 2 / weight
        A, k = jax.vmap(self._covariances)(x, X, noise)
        B, Y = inverses(A), jax.nn.one_hot(y.astype(int), log_p.shape[2], dtype=x.dtype)
        KB = jnp.eye(noise.shape[1], dtype=x.dtype) - noise[:, :, None] * B

        def step(state, _):
            h, _ = state
            target = h + 2 * (Y - jax.nn.softmax(log_p + h, axis=2))
            return (KB @ target, target), None

        target = lax.scan(step, (jnp.zeros_like(log_p), jnp.zeros_like(log_p)), length=STEPS)[0][1]
        return jnp.einsum("bi,bij,bjc->bc", k, B, target)

    def log_density(self, rows: Int[Number, " B"], h: Moments) -> Float[Array, " B"]:
        """log P(yᵢ)."""
        log_p, y = self._of(rows, self.log_p, self.y)
        log_p = jax.nn.log_softmax(log_p + h[0].T, axis=1)
        return jnp.take_along_axis(log_p, y.astype(int)[:, None], axis=1)[:, 0]

    def at(self, first: Float[Number, ""], lengthscale: Float[Number, " D"]) -> "NearClasses":
        """`first` is the logarithm of k(x, x)."""
        return eqx.tree_at(
            lambda near: (near.kernel.variance, near.kernel.lengthscale), self, (jnp.exp(first), lengthscale)
        )

    def likelihood(self, inner: AbstractLikelihood) -> AbstractLikelihood:
        """Other odds."""
        return WithNearClasses(inner)
