"""Posterior families, and the one thing that predicts."""

from .base import (
    AbstractPosterior,
    AbstractProjection,
    Marginals,
    Model,
    Predictor,
    TriangularPredictor,
    directions,
    features,
    prior_factor,
)
from .decoupled import Decoupled, DecoupledProjection, Hybrid, InverseHybrid, MeanPoints, Orthogonal, OrthogonalBasis
from .dense import AtRows, InducingPoints, Projection, Unwhitened, Whitened
from .diagonal import (
    AbstractShift,
    DirectShift,
    LogShift,
    PseudoObservations,
    Shifted,
    ShiftedProjection,
    SoftplusShift,
)
from .latents import Latents, Predictors, Projections
from .shrunk import Shrunk, ShrunkProjection
from .solve import BlockOptimum, SolveGP, SolveProjection, block_optimum

__all__ = [
    "AbstractPosterior",
    "AbstractProjection",
    "AbstractShift",
    "AtRows",
    "BlockOptimum",
    "Decoupled",
    "DecoupledProjection",
    "DirectShift",
    "Hybrid",
    "InducingPoints",
    "InverseHybrid",
    "Latents",
    "LogShift",
    "Marginals",
    "MeanPoints",
    "Model",
    "Orthogonal",
    "OrthogonalBasis",
    "Predictor",
    "PseudoObservations",
    "Predictors",
    "Projection",
    "Projections",
    "Shifted",
    "ShiftedProjection",
    "Shrunk",
    "ShrunkProjection",
    "SoftplusShift",
    "SolveGP",
    "SolveProjection",
    "TriangularPredictor",
    "Unwhitened",
    "Whitened",
    "block_optimum",
    "directions",
    "features",
    "prior_factor",
]
