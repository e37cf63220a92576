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
from .diagonal import ShiftAffine, ShiftFixedPoint, ShiftNaturalGradient
from .gradient import Optax
from .incremental import SAG, Sites
from .inner import converge
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
    "ShiftAffine",
    "ShiftFixedPoint",
    "ShiftNaturalGradient",
    "Sites",
    "SolveNaturalGradient",
    "averaging",
    "constant",
    "converge",
    "log_linear",
    "with_q",
]
