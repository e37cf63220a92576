"""Which warps a column of inputs or a target may take, with numbers that suit its rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize, minimize_scalar

from ..warps import AbstractWarp, Logarithm, RankNormal, SinhArcsinh, YeoJohnson, standardised

Warps = tuple[AbstractWarp | None, ...]
FEW_VALUES = 8  # a column of fewer different values stays as it is
WIDE = 5.0  # ratio of two values of a positive column from which a logarithm is offered
POWERS = (0.0, 2.0)  # of Yeo and Johnson
# Of centre, log width, skew and log tail: far from where a warp would put most rows in one place.
REACH = ((-3, 3), (-2.5, 1.5), (-2, 2), (-1.6, 0.7))
Column = Float[np.ndarray, " N"]


def input_warps(
    X: Float[np.ndarray, "N D"], weight: Column, zeros: Float[np.ndarray, " D"]
) -> list[dict[str, AbstractWarp]]:
    """The warps of each column of standardised inputs, by name; none for a column of few values.

    "log" is offered where all values are above the user's zero, at `zeros` [D], and differ by a factor of five.
    The power of "yeo_johnson" makes the column as normal as it can.
    """
    return [_of_column(x, weight, zero) for x, zero in zip(X.T, zeros, strict=True)]


def _of_column(x, weight, zero) -> dict[str, AbstractWarp]:
    if len(np.unique(x)) < FEW_VALUES:
        return {}
    size = float(np.sum(weight))

    def normality(power):  # the profile likelihood of a normal column (Box and Cox 1964)
        warp = YeoJohnson(power)
        w = warp.raw(x)
        spread = np.average((w - np.average(w, weights=weight)) ** 2, weights=weight)
        return 0.5 * size * np.log(spread) - weight @ warp.raw_log_slope(x)

    power = _least(normality)
    offered: dict[str, AbstractWarp] = {"yeo_johnson": YeoJohnson(power), "rank_normal": RankNormal.of(x)}
    low = np.min(x) - zero
    if low > 0 and np.max(x) - zero > WIDE * low:
        offered["log"] = Logarithm(-zero, float(np.min(x)))
    return {name: standardised(warp, x, weight) for name, warp in offered.items()}


def target_warps(
    y: Column, weight: Column, zero: float, inverse: Float[np.ndarray, "N N"]
) -> dict[str, tuple[AbstractWarp | None, float]]:
    """The warps of a standardised target, by name, each with the numbers of highest profile log likelihood
        −½ Σw log zᵀK⁻¹z + Σ wᵢ log w′(yᵢ),    z = w(y) − mean,
    (Box and Cox 1964, for correlated rows), where `inverse` is K⁻¹, and that likelihood less `penalty`. "none" stays as
    it is; "log" is offered where all rows are above the user's zero, which stands at `zero`."""

    def loss(warp) -> float:
        with np.errstate(all="ignore"):
            z = warp.raw(y)
            z = z - np.average(z, weights=weight)
            value = 0.5 * np.sum(weight) * np.log(z @ inverse @ z) - weight @ warp.raw_log_slope(y)
        return float(value) if np.isfinite(value) else np.inf

    power = _least(lambda power: loss(YeoJohnson(power)))
    found: dict[str, Any] = {"yeo_johnson": YeoJohnson(power), "sinh_arcsinh": _best_sinh(y, weight, inverse)}
    if np.min(y) > zero:
        found["log"] = Logarithm(-zero, zero)
    losses = {name: loss(warp) for name, warp in found.items()}
    usable = {name: found[name] for name, value in losses.items() if np.isfinite(value)}
    offered: dict[str, tuple[AbstractWarp | None, float]] = {"none": (None, -loss(YeoJohnson(1.0)))}
    for name, warp in usable.items():
        offered[name] = standardised(warp, y, weight), -losses[name] - penalty(warp, len(y))
    return offered


def penalty(warp: AbstractWarp, rows: int) -> float:
    """½ log N for each number that was fitted to the target, nats (Schwarz 1978): what the maximum over these numbers
    overstates the evidence by."""
    return 0.5 * warp.freedom * float(np.log(rows))


def _least(loss: Callable[[float], float]) -> float:
    """The power of least loss."""
    result: Any = minimize_scalar(loss, bounds=POWERS, method="bounded")
    return float(result.x)


def _best_sinh(y: Column, weight: Column, inverse: Float[np.ndarray, "N N"]) -> SinhArcsinh:
    """By L-BFGS-B in centre, log width, skew and log tail, of the target in units of its middle half."""
    quarter, middle, three = np.quantile(y, [0.25, 0.5, 0.75])
    width = float(three - quarter) / 1.35 or 1.0
    x = (y - middle) / width
    with np.errstate(all="ignore"):
        found = minimize(_sinh_loss, np.zeros(4), (x, weight, inverse), method="L-BFGS-B", jac=True, bounds=REACH)
    centre, log_width, skew, log_tail = (float(number) for number in found.x)
    return SinhArcsinh(float(middle) + width * centre, width * np.exp(log_width), skew, np.exp(log_tail))


def _sinh_loss(numbers: Float[np.ndarray, " 4"], x: Column, weight: Column, inverse: Any) -> tuple[float, np.ndarray]:
    """½ Σw log zᵀK⁻¹z − Σ wᵢ log z′(xᵢ) of z = sinh u, u = tail · asinh v − skew, v = (x − centre)/width, and its
    gradient."""
    centre, log_width, skew, log_tail = numbers
    width, tail, one = np.exp(log_width), np.exp(log_tail), np.ones_like(x)
    v = (x - centre) / width
    flat = np.arcsinh(v)
    u, slope = tail * flat - skew, 1 / np.sqrt(1 + v**2)
    size = np.abs(u)
    log_slope = log_tail + size + np.log1p(np.exp(-2 * size)) - np.log(2) + np.log(slope) - log_width
    du = np.stack([-tail * slope / width, -tail * v * slope, -one, tail * flat])
    more = np.stack([v * slope**2 / width, v**2 * slope**2 - one, 0 * one, one])
    centred = lambda z: z - np.average(z, axis=-1, weights=weight)[..., None]
    z, dz, total = centred(np.sinh(u)), centred(np.cosh(u) * du), np.sum(weight)
    solved = inverse @ z
    misfit = z @ solved
    value = 0.5 * total * np.log(misfit) - weight @ log_slope
    gradient = total * (dz @ solved) / misfit - (np.tanh(u) * du + more) @ weight
    return (float(value), gradient) if np.isfinite(value) and np.isfinite(gradient).all() else (1e300, np.zeros(4))
