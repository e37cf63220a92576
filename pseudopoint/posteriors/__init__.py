"""Posterior families, and the one thing that predicts."""

from .base import (
    AbstractPosterior,
    AbstractProjection,
    Marginals,
    Model,
    Predictor,
    directions,
    features,
    prior_factor,
)
from .decoupled import (
    CollapsedDecoupled,
    Decoupled,
    DecoupledProjection,
    Hybrid,
    InverseHybrid,
    Orthogonal,
    OrthogonalBasis,
)
from .dense import AtRows, Collapsed, Projection, Unwhitened, Whitened
from .diagonal import (
    AbstractPrecisionCoordinates,
    DiagonalPrecision,
    DiagonalPrecisionProjection,
    DirectPrecision,
    LogPrecision,
    PseudoObservations,
    SoftplusPrecision,
)
from .latents import IndependentLatents, Predictors, Projections
from .shrunk import ShrunkResidual, ShrunkResidualProjection
from .solve import BlockOptimum, SolveGP, SolveProjection, block_optimum

__all__ = [
    "AbstractPosterior",
    "AbstractProjection",
    "AbstractPrecisionCoordinates",
    "AtRows",
    "BlockOptimum",
    "Decoupled",
    "DecoupledProjection",
    "DirectPrecision",
    "Hybrid",
    "Collapsed",
    "InverseHybrid",
    "IndependentLatents",
    "LogPrecision",
    "Marginals",
    "CollapsedDecoupled",
    "Model",
    "Orthogonal",
    "OrthogonalBasis",
    "Predictor",
    "PseudoObservations",
    "Predictors",
    "Projection",
    "Projections",
    "DiagonalPrecision",
    "DiagonalPrecisionProjection",
    "ShrunkResidual",
    "ShrunkResidualProjection",
    "SoftplusPrecision",
    "SolveGP",
    "SolveProjection",
    "Unwhitened",
    "Whitened",
    "block_optimum",
    "directions",
    "features",
    "prior_factor",
]
