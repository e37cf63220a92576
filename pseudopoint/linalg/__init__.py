"""Positive definite matrices, their factors and the derivatives of both. Only this folder factorises covariances."""

from .blocked import *
from .factor import *
from .functions import *
from .inverses import *
from .many import *
from .products import *
from .tiles import *
