"""p(y | f): what is observed, given the latent functions."""

from .base import AbstractLikelihood, Moments
from .bounded import AbstractClasses, Bernoulli, Beta, Ordinal
from .gaussian import Gaussian, Heteroscedastic
from .multiclass import RobustMax, Softmax
from .offset import Offset
from .positive import Exponential, Gamma, NegativeBinomial, Poisson
from .quantiles import quantile
from .robust import Laplace, StudentT

__all__ = [
    "AbstractClasses",
    "AbstractLikelihood",
    "Bernoulli",
    "Beta",
    "Exponential",
    "Gamma",
    "Gaussian",
    "Heteroscedastic",
    "Laplace",
    "Moments",
    "NegativeBinomial",
    "Offset",
    "Ordinal",
    "Poisson",
    "RobustMax",
    "Softmax",
    "StudentT",
    "quantile",
]
