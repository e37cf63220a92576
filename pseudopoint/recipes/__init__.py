"""How a model is fitted from start to finish: which method, how many pseudo-points, and each method's course."""

from .families import FAMILIES
from .methods import fit_model
from .search import Found, search
from .settings import Fitted, Settings, Trial, choose_method, choose_num_inducing

__all__ = [
    "FAMILIES",
    "Fitted",
    "Found",
    "Settings",
    "Trial",
    "choose_method",
    "choose_num_inducing",
    "fit_model",
    "search",
]
