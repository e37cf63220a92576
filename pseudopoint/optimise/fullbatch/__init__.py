"""Full-batch optimisers."""

from .inner import best_q, converge
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
    "best_q",
    "converge",
    "lbfgsb",
    "line_search",
    "projected_newton",
]
