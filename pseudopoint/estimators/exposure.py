"""Counts over an exposure: y ~ Poisson(E λ) with the rate λ = scale · e^f.

    log p(y | f) = E [ (y/E)(f + log scale) − λ − log Γ(y/E + 1) ] + c,
    c = y log E − log Γ(y + 1) + E log Γ(y/E + 1):

the log likelihood of the count per unit y/E, as often as the exposure says, and a constant that matters to the
evidence. So weights carry exposures, and every method of fitting takes them. Exposures are divided by their mean during
a fit, so that y/E and the weights keep their sizes.
"""

from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from scipy.special import gammaln

from ..likelihoods import AbstractLikelihood
from .checks import numbers
from .targets import Target


class Rates(NamedTuple):
    """What a fit sees of counts y [N] with exposures: the likelihood, y/E [N], weights wE [N], the unit in which E is
    measured, its weighted mean, and Σ w c."""

    target: Target
    y: np.ndarray
    weight: np.ndarray
    unit: float
    constant: float

    @classmethod
    def of(cls, target: Target, y: np.ndarray, weight: np.ndarray, exposure: np.ndarray) -> "Rates":
        """From counts, weights and exposures of the rows. Raises ValueError for another target."""
        likelihood = target.make(y, weight)
        _refuse_others(likelihood)
        unit = float(np.average(exposure, weights=weight))
        E = exposure / unit
        constant = y * np.log(E) - gammaln(y + 1) + E * gammaln(y / E + 1)
        if target.name == type(likelihood).__name__:  # an object of the user's, whose rate is for an exposure of 1
            target = target._replace(make=lambda y, weight: _scaled(likelihood, unit))
        return cls(target, y / E, weight * E, unit, float(weight @ constant))

    def begin(self, model: Any) -> None:
        """The estimator with λ a rate for an exposure of `unit`, before a fit that starts from what it learned."""
        model.likelihood_ = _scaled(model.likelihood_, self.unit)

    def finish(self, model: Any) -> None:
        """The fitted estimator with λ a rate for an exposure of 1, and its bounds those of the counts."""
        model.likelihood_ = _scaled(model.likelihood_, 1 / self.unit)
        for name in ("bound_", "bound_vfe_", "upper_bound_"):
            setattr(model, name, getattr(model, name) + self.constant)
        model.history_ = model.history_ | {"bound": model.history_["bound"] + self.constant}


def _scaled(likelihood: Any, factor: float) -> Any:
    return eqx.tree_at(lambda one: one.scale, likelihood, np.asarray(likelihood.scale * factor))


def _refuse_others(likelihood: AbstractLikelihood) -> None:
    if not likelihood.rates:
        raise ValueError(f"exposure has no meaning for the likelihood {likelihood.name}: it is for 'poisson'")


def checked_exposure(exposure: Any, rows: np.ndarray) -> np.ndarray:
    """Exposures of the rows, [N]. Raises ValueError for another shape, and numbers that are not positive."""
    E = numbers("exposure", exposure)
    if E.shape != (len(rows),):
        raise ValueError(f"exposure has shape {E.shape}, but X has {len(rows)} rows: give one number a row")
    bad = ~((E > 0) & (E < np.inf))
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"exposure holds {E[row]:g} in row {row}: exposures are positive numbers; leave such rows out")
    return E


def shift(model: Any, exposure: Any, rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """What the predictions of rows with exposures add to f: (log E,), or () without exposures."""
    if exposure is None:
        return ()
    _refuse_others(model.likelihood_)
    return (np.log(checked_exposure(exposure, rows)),)
