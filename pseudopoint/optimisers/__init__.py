"""Steppers for minibatches, and their step sizes."""

from .alternating import Alternate
from .base import AbstractStepper, Info, with_q
from .coordinates import ForwardNaturalGradient
from .gradient import Optax
from .incremental import SAG, Sites
from .natural import NaturalGradient, converge
from .schedules import averaging, constant, log_linear

__all__ = [
    "AbstractStepper",
    "Alternate",
    "ForwardNaturalGradient",
    "Info",
    "NaturalGradient",
    "Optax",
    "SAG",
    "Sites",
    "averaging",
    "constant",
    "converge",
    "log_linear",
    "with_q",
]
