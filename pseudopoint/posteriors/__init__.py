"""Posterior families, and the one thing that predicts."""

from .base import *
from .decoupled import *
from .dense import *
from .diagonal import *
from .latents import *
from .shrunk import *
from .solve import *
