"""The only folder that factorises covariances: positive definite matrices, their factors, the derivatives of both."""

from .factor import Factor, default_jitter, explain_failure, factorise, min_noise_ratio, through_whitening
from .functions import eigh, exp_symmetric, log_symmetric, lower_root
from .inverses import Scalar, cholesky, inverse_of_chol, invert, refined_inverse, solve_positive, solve_square
from .products import (
    dots,
    gram,
    lower_product,
    lower_transposed_product,
    quad_diag,
    square,
    symmetric,
    symmetric_product,
    transposed_product,
    tril_product,
)

__all__ = [
    "Factor",
    "Scalar",
    "cholesky",
    "default_jitter",
    "dots",
    "eigh",
    "exp_symmetric",
    "explain_failure",
    "factorise",
    "gram",
    "inverse_of_chol",
    "invert",
    "log_symmetric",
    "lower_product",
    "lower_root",
    "lower_transposed_product",
    "quad_diag",
    "min_noise_ratio",
    "refined_inverse",
    "solve_positive",
    "solve_square",
    "square",
    "symmetric",
    "symmetric_product",
    "through_whitening",
    "transposed_product",
    "tril_product",
]
