"""Periods of a target along its columns, as starts of a periodic kernel: the evidence has a maximum at each, so narrow
that a climb from elsewhere does not find it."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.signal import lombscargle

FEWEST = 3  # cycles within a column's range: fewer are a trend, which any smooth kernel follows
FINENESS = 5  # frequencies tried for each that the column's range tells apart
BY_CHANCE = 1e-3  # probability that noise alone has a peak as high


class Wave(NamedTuple):
    """A period along a column, in the column's units, how often the column's range has it, and of how many frequencies
    of all columns it is the best."""

    column: int
    period: float
    cycles: float
    tried: int

    @property
    def penalty(self) -> float:
        """The logarithm of that number, nats: what the best evidence of so many kernels overstates that of all of them
        by, each as likely as the other."""
        return float(np.log(self.tried))


def waves(
    X: Float[np.ndarray, "N D"], Y: Float[np.ndarray, "N K"], weight: Float[np.ndarray, " N"], most: int = 2
) -> list[Wave]:
    """At most `most` periods, strongest first: peaks of the Lomb–Scargle periodogram of Y along one column.

    The periodogram P(ω) ∈ [0, 1] is the share of the target's variance, less a parabola along the column, that
    a cos ωx + b sin ωx + c explains (VanderPlas 2018). Each wave is subtracted before the next is looked for. A peak
    counts where noise alone, in J frequencies, has one as high with probability J (1 − P)^((N − 3)/2) < 0.001.
    Frequencies reach from three cycles in the column's range to half as many as the column has different values.
    """
    found: list[Wave] = []
    tried = sum(len(_cycles(x)) for x in X.T)
    for _ in range(most):
        chances = [_peak(x, Y, weight) for x in X.T]
        j = int(np.argmin([chance for chance, _ in chances]))
        chance, cycles = chances[j]
        if not chance < np.log(BY_CHANCE):
            break
        length = float(np.ptp(X[:, j]))
        found.append(Wave(j, length / cycles, cycles, tried))
        angle = 2 * np.pi * cycles / length * X[:, j]
        Y = _residuals(np.column_stack([np.ones(len(Y)), np.cos(angle), np.sin(angle)]), Y, weight)
    return found


def _cycles(x) -> Float[np.ndarray, " J"]:
    return np.arange(FEWEST, len(np.unique(x)) / 2, 1 / FINENESS)


def _peak(x, Y, weight) -> tuple[float, float]:
    """The logarithm of the probability that noise has a peak as high as the highest along x, and its cycles."""
    length, cycles = np.ptp(x), _cycles(x)
    if not len(cycles):
        return np.inf, 0.0
    z = (x - x.min()) / length
    Y = _residuals(np.vander(z, 3), Y, weight)
    options = {"weights": weight, "floating_mean": True, "normalize": True}
    size = weight @ Y**2
    power = sum(s * lombscargle(z, y, 2 * np.pi * cycles, **options) for y, s in zip(Y.T, size, strict=True) if s > 0)
    share = np.clip(power / max(np.sum(size), 1e-300), 0.0, 1 - 1e-12)
    at = int(np.argmax(share))
    chance = np.log(len(cycles)) + (len(x) - 3) / 2 * np.log1p(-share[at])
    return float(chance), float(cycles[at])


def _residuals(A, Y, weight):
    """Y less its weighted least squares fit by the columns of A."""
    root = np.sqrt(weight)[:, None]
    return Y - A @ np.linalg.lstsq(root * A, root * Y, rcond=None)[0]
