"""Scikit-learn estimators: checking, scaling and glue. The mathematics is in the core."""

from .classifier import GPClassifier
from .regressor import GPRegressor
from .transformer import TableTransformer

__all__ = ["GPClassifier", "GPRegressor", "TableTransformer"]
