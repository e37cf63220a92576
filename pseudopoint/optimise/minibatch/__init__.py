"""Steppers for minibatches, and their step sizes."""

from .alternating import *
from .base import *
from .coordinates import *
from .decoupled import *
from .diagonal import *
from .gradient import *
from .incremental import *
from .natural import *
from .schedules import *
from .solve import *
