"""Coordinate systems of one Gaussian q: of any, and of one with a diagonal covariance."""

from .dense import *
from .diagonal import *
