"""Full-batch optimisers."""

from .inner import converge
from .lbfgs import lbfgsb
from .line_search import LBFGS, AbstractDirection, Gradient, NaturalDirection, Transformed, line_search
from .newton import projected_newton
from .objective import FitError, OptimiseResult

__all__ = [
    "LBFGS",
    "AbstractDirection",
    "FitError",
    "Gradient",
    "OptimiseResult",
    "NaturalDirection",
    "Transformed",
    "converge",
    "lbfgsb",
    "line_search",
    "projected_newton",
]
