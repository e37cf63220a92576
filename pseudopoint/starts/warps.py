"""Which warps a column of inputs or a target may take, with numbers that suit its rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize, minimize_scalar

from ..warps import AbstractWarp, Logarithm, RankNormal, SinhArcsinh, YeoJohnson, standardised

__all__ = ["Warps", "input_warps", "penalty", "target_warps"]

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

    "log" is offered where all values are on the same side of the user's zero, at `zeros` [D], and differ by a factor of
    five. The power of "yeo_johnson" makes the column as normal as it can.
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
    y: Column, weight: Column, zero: float, misfit: Callable[[Column], float]
) -> dict[str, tuple[AbstractWarp | None, float]]:
    """The warps of a standardised target, by name, each with the numbers of highest profile log likelihood
        −½ Σw log zᵀK⁻¹z + Σ wᵢ log w′(yᵢ),    z = w(y) − mean,
    (Box and Cox 1964, for correlated rows), where `misfit`(z) = zᵀK⁻¹z, and that likelihood less `penalty`. "none"
    stays as it is; "log" is offered where all rows are above the user's zero, which stands at `zero`."""

    def loss(warp) -> float:
        with np.errstate(all="ignore"):
            z = warp.raw(y)
            value = 0.5 * np.sum(weight) * np.log(misfit(z - np.average(z, weights=weight)))
            value -= weight @ warp.raw_log_slope(y)
        return float(value) if np.isfinite(value) else np.inf

    power = _least(lambda power: loss(YeoJohnson(power)))
    found: dict[str, Any] = {"yeo_johnson": YeoJohnson(power), "sinh_arcsinh": _best_sinh(y, loss)}
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


def _best_sinh(y, loss) -> SinhArcsinh:
    quarter, middle, three = np.quantile(y, [0.25, 0.5, 0.75])
    width = float(three - quarter) / 1.35 or 1.0

    def warp(numbers):
        centre, log_width, skew, log_tail = numbers
        return SinhArcsinh(float(middle + width * centre), float(width * np.exp(log_width)), skew, np.exp(log_tail))

    found = minimize(lambda numbers: loss(warp(numbers)), np.zeros(4), method="Nelder-Mead", bounds=REACH)
    return warp(found.x)
