"""Posterior families, and the one thing that predicts."""

from .base import (
    AbstractBasis,
    AbstractPosterior,
    AbstractProjection,
    Marginals,
    PointsBasis,
    Predictor,
    directions,
    features,
    log_standard_normal,
    prior_factor,
)
from .closed_form import AbstractClosedForm, Collapsed, CollapsedDecoupled, Exact
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
from .model import Model
from .orthogonal import Decoupled, DecoupledProjection, Hybrid, InverseHybrid, Orthogonal, OrthogonalBasis
from .shrunk import ShrunkResidual, ShrunkResidualProjection
from .solve import BlockOptimum, SolveBasis, SolveGP, SolveProjection, block_optimum
from .whitened import Projection, Unwhitened, Whitened

__all__ = [
    "AbstractBasis",
    "AbstractClosedForm",
    "AbstractPosterior",
    "AbstractPrecisionCoordinates",
    "AbstractProjection",
    "BlockOptimum",
    "Collapsed",
    "CollapsedDecoupled",
    "Decoupled",
    "DecoupledProjection",
    "DiagonalPrecision",
    "DiagonalPrecisionProjection",
    "DirectPrecision",
    "Exact",
    "Hybrid",
    "IndependentLatents",
    "InverseHybrid",
    "LogPrecision",
    "Marginals",
    "Model",
    "Orthogonal",
    "OrthogonalBasis",
    "PointsBasis",
    "Predictor",
    "Predictors",
    "Projection",
    "Projections",
    "PseudoObservations",
    "ShrunkResidual",
    "ShrunkResidualProjection",
    "SoftplusPrecision",
    "SolveBasis",
    "SolveGP",
    "SolveProjection",
    "Unwhitened",
    "Whitened",
    "block_optimum",
    "directions",
    "features",
    "log_standard_normal",
    "prior_factor",
]
