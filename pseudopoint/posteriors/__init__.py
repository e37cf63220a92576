"""Posterior families, and the one thing that predicts."""

from .base import *
from .carried import *
from .closed_form import *
from .diagonal import *
from .latents import *
from .model import *
from .near_rows import *
from .orthogonal import *
from .outputs import *
from .shrunk import *
from .solve import *
from .whitened import *
from .with_mean import *
