"""Covariance functions, whole matrices at a time.

A kernel is a formula: `kernel(X, Z)` is the matrix [k(xᵢ, zⱼ)], `kernel.diag(X)` its diagonal at Z = X. Stationary
kernels are one profile κ(r²) of the scaled squared distance r² = Σ_d (x_d − z_d)²/ℓ_d². Profiles are differentiated
with respect to r², where none but Matérn-1/2 has a singularity at zero distance. Kernels are added and multiplied with
+ and *, and `kernel.on(0, 2)` acts on input columns 0 and 2 alone.
"""

from .base import AbstractKernel, Constant, InUnits, On, Positive, Product, Scale, Sum, check_columns
from .distance import middle, squared_distance
from .plain import Linear, White
from .stationary import (
    RBF,
    AbstractStationary,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
)

__all__ = [
    "RBF",
    "AbstractKernel",
    "AbstractStationary",
    "Constant",
    "InUnits",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "On",
    "Periodic",
    "Positive",
    "Product",
    "RationalQuadratic",
    "Scale",
    "Sum",
    "White",
    "check_columns",
    "middle",
    "squared_distance",
]
