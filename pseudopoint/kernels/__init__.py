"""Covariance functions, whole matrices at a time.

A kernel is a formula: `kernel(X, Z)` is the matrix [k(xᵢ, zⱼ)], `kernel.diag(X)` its diagonal at Z = X. Stationary
kernels are one profile κ(r²) of the scaled squared distance r² = Σ_d (x_d − z_d)²/ℓ_d². Profiles are differentiated
with respect to r², where none but Matérn-1/2 has a singularity at zero distance. Kernels are added and multiplied with
+ and *, and `kernel.on(0, 2)` acts on input columns 0 and 2 alone.
"""

from .additive import *
from .base import *
from .coregionalised import *
from .distance import *
from .further import *
from .orthogonal_additive import *
from .plain import *
from .stationary import *
from .tied import *
