"""Coordinate systems of one Gaussian q: of any, and of one with a diagonal covariance."""

from .dense import (
    AbstractGaussian,
    AbstractViaNatural,
    Expectation,
    MeanChol,
    MeanCovariance,
    MeanLog,
    MeanPrecision,
    Natural,
    NaturalChol,
    NaturalLog,
    forward,
    natural_gradient,
    step_along,
    to_expectation_slope,
)
from .diagonal import MeanDiagonal

__all__ = [
    "AbstractGaussian",
    "AbstractViaNatural",
    "Expectation",
    "MeanChol",
    "MeanCovariance",
    "MeanDiagonal",
    "MeanLog",
    "MeanPrecision",
    "Natural",
    "NaturalChol",
    "NaturalLog",
    "forward",
    "natural_gradient",
    "step_along",
    "to_expectation_slope",
]
