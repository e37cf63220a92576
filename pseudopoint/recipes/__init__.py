"""How a model is fitted from start to finish: which method, how many pseudo-points, and each method's course."""

from .categories import Ties
from .families import FAMILIES
from .keeping import AbstractKeeper, Nothing
from .methods import fit_model
from .near_rows import with_more_rows
from .search import Found, search
from .settings import COLLAPSED_ROWS, Fitted, Settings, Trial, choose_method, choose_num_inducing
from .starts import Warm
from .streamed import fit_rows
from .update import Updated, add_points, add_points_of_f, update, update_varying
