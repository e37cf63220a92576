"""Steppers for minibatches, and their step sizes."""

from .combined import *
from .coordinates import *
from .diagonal import *
from .energy import *
from .gradient import *
from .incremental import *
from .natural import *
from .orthogonal import *
from .schedules import *
from .solve import *
from .step import *
from .stopping import *
