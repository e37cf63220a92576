"""Gaussian processes for tables of any size: scikit-learn estimators and a command line over a small JAX core."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .estimators import GPClassifier as GPClassifier
    from .estimators import GPRegressor as GPRegressor
    from .estimators import TableTransformer as TableTransformer
    from .export import to_onnx as to_onnx
    from .kernels import RBF as RBF
    from .kernels import ArcCosine as ArcCosine
    from .kernels import Changepoint as Changepoint
    from .kernels import Constant as Constant
    from .kernels import Coregion as Coregion
    from .kernels import Cosine as Cosine
    from .kernels import Hamming as Hamming
    from .kernels import Linear as Linear
    from .kernels import Matern12 as Matern12
    from .kernels import Matern32 as Matern32
    from .kernels import Matern52 as Matern52
    from .kernels import Periodic as Periodic
    from .kernels import Polynomial as Polynomial
    from .kernels import RationalQuadratic as RationalQuadratic
    from .kernels import SpectralMixture as SpectralMixture
    from .kernels import Tied as Tied
    from .kernels import White as White
    from .optimise.result import FitError as FitError
    from .persistence import ModelFileError as ModelFileError
    from .processes import ForkError as ForkError

# Names are imported when they are first used, because scikit-learn, pandas and matplotlib take seconds.
_HOME = {
    "estimators": "GPClassifier GPRegressor TableTransformer",
    "export": "to_onnx",
    "kernels": "RBF ArcCosine Changepoint Constant Coregion Cosine Hamming Linear Matern12 Matern32 Matern52 Periodic "
    "Polynomial RationalQuadratic SpectralMixture Tied White",
    "optimise.result": "FitError",
    "persistence": "ModelFileError",
    "processes": "ForkError",
}
_MODULE = {name: module for module, names in _HOME.items() for name in names.split()}
__all__ = sorted(_MODULE)


def __getattr__(name: str):
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
