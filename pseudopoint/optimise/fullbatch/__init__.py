"""Full-batch optimisers: each minimises an `Objective`."""

from ..result import FitError, OptimiseResult
from .inner import best_q, converge
from .lbfgs import lbfgsb
from .line_search import LBFGS, AbstractDirection, Gradient, NaturalDirection, Transformed, line_search
from .newton import projected_newton
from .objective import Objective
from .rounds import lbfgsb_in_rounds

__all__ = [
    "LBFGS",
    "AbstractDirection",
    "FitError",
    "Gradient",
    "NaturalDirection",
    "Objective",
    "OptimiseResult",
    "Transformed",
    "best_q",
    "converge",
    "lbfgsb",
    "lbfgsb_in_rounds",
    "line_search",
    "projected_newton",
]
