"""Steppers for minibatches, and their step sizes."""

from .base import AbstractStepper, Info
from .gradient import Optax
from .natural import NaturalGradient, converge
from .schedules import averaging, constant, log_linear

__all__ = ["AbstractStepper", "Info", "NaturalGradient", "Optax", "averaging", "constant", "converge", "log_linear"]
