"""Steppers for minibatches, and their step sizes."""

from .alternating import Alternate
from .columns import SampledColumns
from .coordinates import ForwardNaturalGradient
from .diagonal import DiagonalPrecisionAffine, DiagonalPrecisionFixedPoint, DiagonalPrecisionNaturalGradient
from .energy import with_q
from .gradient import Optax
from .incremental import SAG, Sites
from .natural import NaturalGradient
from .orthogonal import AbstractMeanStep, ApproximateMean, ExactMean, JointMean, OrthogonalNaturalGradient
from .schedules import averaging, constant, log_linear
from .solve import SolveNaturalGradient
from .step import AbstractRule, AbstractStepper, Context, Info, Proposal, VariationalStep

__all__ = [
    "AbstractMeanStep",
    "AbstractRule",
    "AbstractStepper",
    "Alternate",
    "ApproximateMean",
    "Context",
    "DiagonalPrecisionAffine",
    "DiagonalPrecisionFixedPoint",
    "DiagonalPrecisionNaturalGradient",
    "ExactMean",
    "ForwardNaturalGradient",
    "Info",
    "JointMean",
    "NaturalGradient",
    "Optax",
    "OrthogonalNaturalGradient",
    "Proposal",
    "SAG",
    "SampledColumns",
    "Sites",
    "SolveNaturalGradient",
    "VariationalStep",
    "averaging",
    "constant",
    "log_linear",
    "with_q",
]
