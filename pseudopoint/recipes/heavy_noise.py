"""Noise that depends on x and has heavy tails: f and g in turn, as in `noise`, with the rows' precisions of `tails`.

    y = f(x) + ε,   ε ~ N(0, s² e^{2g(x)}/ρ),   ρ ~ Gamma(ν/2, ν/2),   f and g Gaussian processes   (methods h.5)
Given q(g) and q(ρ), the best q(f) is that of a Gaussian likelihood whose row i has the noise variance
s² e^{2μ − 2v}/E ρᵢ. Given q(f) and q(ρ), a residual times √E ρᵢ tells of g what one of normal noise does. Given q(f)
and q(g), residuals of rows left out have a Student-t density, whose s and ν are learned, and of which E ρᵢ follow.
"""

import numpy as np
from scipy.special import ndtri

from ..bounds import gain_over_normal, loo_log_density
from ..data import Dataset
from ..likelihoods import Heteroscedastic
from .noise import Turns, VaryingNoise, both_functions, few_iterations, misses, refitted, rows_of
from .prior import LengthscalePrior
from .settings import Fitted, Settings
from .tails import DEGREES_AT_START

ROUNDS = 2
LEAST = 1e-6  # share of a distribution function that it is computed to


def promised(varying: VaryingNoise, data: Dataset) -> float:
    """What a Student-t density gains over the standard normal one, nats, for the errors of rows left out of both
    functions, each made a standard normal variable by its distribution function."""
    assert varying.turns is not None and varying.without_rows is not None
    mean, variance = (np.stack(both) for both in zip(*varying.without_rows, strict=True))
    likelihood = Heteroscedastic(np.asarray(varying.turns.scale))
    share = likelihood.predictive_cdf(mean, variance, np.asarray(data.y, float))
    z = ndtri(np.clip(share, LEAST, 1 - LEAST))
    weight = np.asarray(data.weight, float)
    spread = np.average(z**2, weights=weight)
    of_spread = 0.5 * data.total_weight * (spread - 1 - np.log(spread))  # of the best normal density
    return gain_over_normal(z**2, weight, DEGREES_AT_START) + float(of_spread)


def with_heavy_tails(
    varying: VaryingNoise, data: Dataset, settings: Settings, prior: LengthscalePrior
) -> tuple[Fitted, Turns, float]:
    """The fit from where that with normal noise ended, its functions in turn, and the sum over rows of the log
    densities of rows left out; −∞ where f `misses` them. Raises FitError."""
    assert varying.turns is not None
    data = rows_of(data, data.y, 0.0)
    turns, iterations = varying.turns._replace(degrees=DEGREES_AT_START), few_iterations(varying.fitted, data, settings)
    turns = turns.settled(data)
    for _ in range(ROUNDS):
        turns = refitted(turns, data, settings, prior, iterations).settled(data)
    turns = refitted(turns, data, settings, prior, 0)
    density = _of_rows_left_out(turns, data)
    note = (
        f"noise: heavy tails besides, {turns.degrees:.3g} degrees of freedom; "
        f"log density of a row left out {density / data.total_weight:.3f}"
    )
    fitted = both_functions(varying.fitted, turns, data)
    return fitted._replace(notes=(*varying.fitted.notes, note)), turns, density


def _of_rows_left_out(turns: Turns, data: Dataset) -> float:
    f, g = turns.without_rows(data)
    if misses(data, f.mean):
        return -np.inf
    return float(np.asarray(data.weight, float) @ loo_log_density(turns.likelihood, data, f, g))
