"""Posterior families, and the one thing that predicts."""

from .base import AbstractPosterior, AbstractProjection, Marginals, Model, Predictor, features, prior_factor
from .dense import InducingPoints, Projection, Unwhitened, Whitened
from .latents import Latents, Predictors, Projections

__all__ = [
    "AbstractPosterior",
    "AbstractProjection",
    "InducingPoints",
    "Latents",
    "Marginals",
    "Model",
    "Predictor",
    "Predictors",
    "Projection",
    "Projections",
    "Unwhitened",
    "Whitened",
    "features",
    "prior_factor",
]
