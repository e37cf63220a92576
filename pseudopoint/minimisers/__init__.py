"""Full-batch optimisers."""

from .base import FitError, Maximum
from .newton import projected_newton
from .quasi_newton import lbfgsb
from .search import LBFGS, AbstractDirection, Gradient, NaturalDirection, Transformed, line_search

__all__ = [
    "LBFGS",
    "AbstractDirection",
    "FitError",
    "Gradient",
    "Maximum",
    "NaturalDirection",
    "Transformed",
    "lbfgsb",
    "line_search",
    "projected_newton",
]
