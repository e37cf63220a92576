"""p(y | f): the distribution of an observation, given the latent functions."""

from .around import *
from .base import *
from .bounded import *
from .gaussian import *
from .intervals import *
from .multiclass import *
from .near_rows import *
from .offset import *
from .positive import *
from .robust import *
from .varying import *
from .warped import *
