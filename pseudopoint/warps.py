"""Monotone maps of one column of numbers, for inputs and for a target.

A stationary kernel takes a step of the same size for the same everywhere in a column. Where a column has a long tail,
most rows crowd in a fraction of it, and no lengthscale fits both. A warp spreads the rows; for a target, it makes the
noise of all rows alike. A warp of a target adds the sum of its `log_slope` to the log evidence, one of an input
nothing, because inputs are given.

All warps map standardised numbers to standardised numbers, are increasing, and have an inverse in closed form. Arrays
of NumPy give arrays of NumPy; those of JAX may be traced.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from .params import Number, Readable, real

Values = Float[Number, "..."] | np.floating
Figure = Float[Number, ""] | np.floating | float
KNOTS = 200  # of a rank-normal map: enough for a smooth one, few enough for a model file


def _library(x: Any) -> Any:
    """The library that computes with x: JAX or NumPy."""
    return jnp if isinstance(x, jax.Array) else np


class AbstractWarp(Readable):
    """x ↦ (w(x) − mean)/scale of an increasing w. `freedom` counts the numbers by which w is fitted to a target."""

    freedom: ClassVar[int] = 0
    learned: ClassVar[bool] = False  # by optimisers of a model
    if TYPE_CHECKING:  # else pyright takes these for the first arguments

        def __getattr__(self, name: str) -> Any: ...

    else:
        mean: eqx.AbstractVar[Figure]
        scale: eqx.AbstractVar[Figure]

    @abstractmethod
    def raw(self, x: Values) -> Values:
        """w(x)."""

    @abstractmethod
    def raw_inverse(self, w: Values) -> Values:
        """The x of w(x)."""

    def raw_log_slope(self, x: Values) -> Values:
        """log w′(x). Raises NotImplementedError for a warp of inputs alone."""
        raise NotImplementedError(f"{type(self).__name__} has no smooth slope, so it is for inputs alone")

    def __call__(self, x: Values) -> Values:
        """(w(x) − mean)/scale."""
        return (self.raw(x) - self.mean) / self.scale

    def inverse(self, z: Values) -> Values:
        """The x whose image is z."""
        return self.raw_inverse(self.mean + self.scale * z)

    def exponential(self) -> tuple[Figure, Figure, Figure, Any] | None:
        """(a, b, c) of an inverse exp(a + bz) − c, of which a normal z makes a lognormal number, and whether it is one
        everywhere; None of other inverses."""
        return None

    def log_slope(self, x: Values) -> Values:
        """The logarithm of the derivative, log w′(x) − log scale."""
        return self.raw_log_slope(x) - _library(x).log(self.scale)


def standardised(warp: AbstractWarp, x: Float[np.ndarray, " N"], weight: Float[np.ndarray, " N"]) -> Any:
    """The warp with the mean and scale for which the weighted column has mean 0 and standard deviation 1 after it."""
    w = np.asarray(warp.raw(x), float)
    mean = float(np.average(w, weights=weight))
    scale = float(np.sqrt(np.average((w - mean) ** 2, weights=weight))) or 1.0
    return eqx.tree_at(lambda warp: (warp.mean, warp.scale), warp, (np.asarray(mean), np.asarray(scale)))


class Logarithm(AbstractWarp):
    """log(x + shift). Below `start` it goes on as its tangent there, so that new rows of an input may lie anywhere.

    A target of positive amounts has start = −shift, the place of zero: what is predicted is positive, and the density
    of anything else is zero.
    """

    shift: Figure = real("learned")
    start: Figure = real("learned")
    mean: Figure = real("learned", default=0.0)
    scale: Figure = real("learned", default=1.0)

    def raw(self, x: Values) -> Values:
        """log(max(x, start) + shift), and the tangent."""
        xp, width = _library(x), self.start + self.shift
        tangent = xp.minimum(x - self.start, 0) / xp.where(width > 0, width, xp.inf)
        inside = xp.maximum(x, self.start) + self.shift
        return xp.where(inside > 0, xp.log(xp.where(inside > 0, inside, 1)), -xp.inf) + tangent

    def raw_inverse(self, w: Values) -> Values:
        """exp w − shift, and the tangent's inverse."""
        xp, width = _library(w), self.start + self.shift
        lowest = xp.where(width > 0, xp.log(xp.where(width > 0, width, 1)), -xp.inf)
        below = self.start + xp.where(width > 0, xp.minimum(w - lowest, 0), 0) * width
        return xp.where(w < lowest, below, xp.exp(w) - self.shift)

    def exponential(self) -> tuple[Figure, Figure, Figure, Any]:
        """Everywhere for a target, whose start is −shift."""
        return self.mean, self.scale, self.shift, self.start + self.shift <= 0

    def raw_log_slope(self, x: Values) -> Values:
        """−log(max(x, start) + shift)."""
        return -_library(x).log(_library(x).maximum(x, self.start) + self.shift)


class YeoJohnson(AbstractWarp):
    """((1 + x)^λ − 1)/λ for x ≥ 0 and −((1 − x)^(2−λ) − 1)/(2 − λ) below (Yeo and Johnson 2000), 0 ≤ λ ≤ 2.

    Outside of that range the map would not reach all numbers, and a prediction could lie where no y is.
    """

    freedom: ClassVar[int] = 1
    power: Figure = real("learned")
    mean: Figure = real("learned", default=0.0)
    scale: Figure = real("learned", default=1.0)

    def raw(self, x: Values) -> Values:
        """With log(1 + |x|), whose multiples expm1 takes without loss near λ = 0 and x = 0."""
        xp = _library(x)
        size = xp.log1p(xp.abs(x))
        return xp.where(x >= 0, _grown(xp, size, self.power), -_grown(xp, size, 2 - self.power))

    def raw_inverse(self, w: Values) -> Values:
        """±expm1(log(1 + λ|w|)/λ), with 2 − λ below 0."""
        xp = _library(w)
        size = xp.abs(w)
        return xp.where(w >= 0, xp.expm1(_shrunk(xp, size, self.power)), -xp.expm1(_shrunk(xp, size, 2 - self.power)))

    def raw_log_slope(self, x: Values) -> Values:
        """(λ − 1) sign(x) log(1 + |x|)."""
        xp = _library(x)
        return (self.power - 1) * xp.sign(x) * xp.log1p(xp.abs(x))


SMALL = 1e-6  # a power below which the limit at 0 is as exact


def _grown(xp, size, power):
    """(e^(λs) − 1)/λ, s for λ = 0."""
    nonzero = xp.where(power > SMALL, power, 1)
    return xp.where(power > SMALL, xp.expm1(power * size) / nonzero, size)


def _shrunk(xp, w, power):
    """log(1 + λw)/λ, w for λ = 0."""
    nonzero = xp.where(power > SMALL, power, 1)
    return xp.where(power > SMALL, xp.log1p(power * w) / nonzero, w)


class SinhArcsinh(AbstractWarp):
    """sinh(tail · asinh((x − centre)/width) − skew) (Jones and Pewsey 2009; Rios and Tobar 2019).

    tail < 1 draws in heavy tails, skew bends the map to one side; at tail = 1 and skew = 0 it is linear.
    """

    freedom: ClassVar[int] = 4
    centre: Figure = real("learned")
    width: Figure = real("learned")
    skew: Figure = real("learned")
    tail: Figure = real("learned")
    mean: Figure = real("learned", default=0.0)
    scale: Figure = real("learned", default=1.0)

    def raw(self, x: Values) -> Values:
        """sinh u with u = tail · asinh((x − centre)/width) − skew."""
        return _library(x).sinh(self._inner(x))

    def raw_inverse(self, w: Values) -> Values:
        """centre + width · sinh((asinh w + skew)/tail)."""
        xp = _library(w)
        return self.centre + self.width * xp.sinh((xp.arcsinh(w) + self.skew) / self.tail)

    def raw_log_slope(self, x: Values) -> Values:
        """log tail + log cosh u − ½ log(1 + v²) − log width, v = (x − centre)/width."""
        xp, u = _library(x), self._inner(x)
        # log cosh u without overflow, and ½ log(1 + v²) = log cosh(asinh v)
        log_cosh = lambda u: xp.abs(u) + xp.log1p(xp.exp(-2 * xp.abs(u))) - np.log(2)
        flat = xp.arcsinh((x - self.centre) / self.width)
        return xp.log(self.tail) + log_cosh(u) - log_cosh(flat) - xp.log(self.width)

    def _inner(self, x):
        return self.tail * _library(x).arcsinh((x - self.centre) / self.width) - self.skew


class RankNormal(AbstractWarp):
    """The normal quantile of the share of rows below x: whatever the column, its rows are normal after it.

    It is linear between `knots` [K], quantiles of the column, whose images are `values` [K], and goes on as the line
    through the outermost tenth of them. For inputs alone, because its slope jumps.
    """

    knots: Float[np.ndarray, " K"] = real("learned")
    values: Float[np.ndarray, " K"] = real("learned")
    mean: Figure = real("learned", default=0.0)
    scale: Figure = real("learned", default=1.0)

    @classmethod
    def of(cls, x: Float[np.ndarray, " N"]) -> "RankNormal":
        """The map of a column of at least two different numbers."""
        levels = np.linspace(0, 1, min(KNOTS, len(x)) + 1)
        knots = np.unique(np.quantile(x, levels))
        ordered = np.sort(x)
        # A knot's share is the middle of its ties', so that a column of few values is mapped as evenly as it can be.
        ends = [np.searchsorted(ordered, knots, side) for side in ("left", "right")]
        share = (ends[0] + ends[1]) / (2 * len(x))
        return cls(knots, ndtri(np.clip(share, 0.5 / len(x), 1 - 0.5 / len(x))))

    def raw(self, x: Values) -> Values:
        """Linear interpolation."""
        return _interpolated(x, self.knots, self.values)

    def raw_inverse(self, w: Values) -> Values:
        """The same from values to knots."""
        return _interpolated(w, self.values, self.knots)


def _interpolated(x, at, values):
    xp, tenth = _library(x), max(1, len(at) // 10)
    if xp is np:
        inside = np.interp(x, at, values)
    else:  # as a sum over the pieces, without a search: a program that ONNX has nodes for
        share = xp.clip((x[..., None] - at[:-1]) / np.diff(at), 0, 1)
        inside = values[0] + share @ np.diff(values)
    for edge, other in ((0, tenth), (-1, -1 - tenth)):
        slope = (values[edge] - values[other]) / (at[edge] - at[other])
        beyond = x < at[edge] if edge == 0 else x > at[edge]
        inside = xp.where(beyond, values[edge] + (x - at[edge]) * slope, inside)
    return inside
