"""Full-batch optimisers."""

from .base import FitError, Maximum
from .quasi_newton import lbfgsb

__all__ = ["FitError", "Maximum", "lbfgsb"]
