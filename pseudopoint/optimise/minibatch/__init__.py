"""Steppers for minibatches, and their step sizes."""

from .alternating import Alternate
from .base import AbstractStepper, Info, with_q
from .coordinates import ForwardNaturalGradient
from .decoupled import (
    AbstractMeanStep,
    ApproximateMean,
    ExactMean,
    JointMean,
    OrthogonalNaturalGradient,
    SampledColumns,
)
from .diagonal import DiagonalPrecisionAffine, DiagonalPrecisionFixedPoint, DiagonalPrecisionNaturalGradient
from .gradient import Optax
from .incremental import SAG, Sites
from .natural import NaturalGradient
from .schedules import averaging, constant, log_linear
from .solve import SolveNaturalGradient

__all__ = [
    "AbstractMeanStep",
    "AbstractStepper",
    "Alternate",
    "ApproximateMean",
    "ExactMean",
    "ForwardNaturalGradient",
    "Info",
    "JointMean",
    "NaturalGradient",
    "Optax",
    "OrthogonalNaturalGradient",
    "SAG",
    "SampledColumns",
    "DiagonalPrecisionAffine",
    "DiagonalPrecisionFixedPoint",
    "DiagonalPrecisionNaturalGradient",
    "Sites",
    "SolveNaturalGradient",
    "averaging",
    "constant",
    "log_linear",
    "with_q",
]
