"""Full-batch optimisers: each minimises an `Objective`."""

from ..result import *
from .inner import *
from .lbfgs import *
from .line_search import *
from .newton import *
from .objective import *
from .rounds import *
