"""Settings of the estimators, right, borderline and wrong, each value under a name that is short to print."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pseudopoint import likelihoods as of
from pseudopoint import names
from pseudopoint.kernels import RBF, Constant, Linear, Matern12, Matern52, Periodic, RationalQuadratic, White

__all__ = ["SETTINGS", "SETUPS", "WRONG", "of_classes", "settings_of"]


def _named(*values: Any) -> dict[str, Callable[[], Any]]:
    """Values under their own words."""
    return {repr(value): lambda value=value: value for value in values}


WRONG = _named(None, True, "word", -1, 0, 1.5, np.nan, [], {}, object, b"auto", np.float64(2), 10**400)

OBJECTS: dict[str, Callable[[], Any]] = {
    "RBF()": lambda: RBF(),
    "RBF(1e-300)": lambda: RBF(1e-300),
    "RBF(1e300)": lambda: RBF(1e300),
    "RBF(5e-324)": lambda: RBF(5e-324),
    "RBF(0)": lambda: RBF(0.0),
    "RBF(-1)": lambda: RBF(-1.0),
    "RBF(nan)": lambda: RBF(np.nan),
    "RBF(inf)": lambda: RBF(np.inf),
    "RBF('1')": lambda: RBF("1"),  # pyright: ignore[reportArgumentType]
    "RBF(None)": lambda: RBF(None),  # pyright: ignore[reportArgumentType]
    "RBF(1, 1e300)": lambda: RBF(1.0, 1e300),
    "RBF(1, 1e-300)": lambda: RBF(1.0, 1e-300),
    "RBF([1e-300, 1e300])": lambda: RBF([1e-300, 1e300]),
    "RBF of 3": lambda: RBF(np.ones(3)),
    "RBF [2, 2]": lambda: RBF(np.ones((2, 2))),  # pyright: ignore[reportArgumentType]
    "RBF of none": lambda: RBF(np.ones(0)),
    "on 0": lambda: RBF().on(0),
    "on -1": lambda: RBF().on(-1),
    "on 9": lambda: RBF().on(9),
    "on none": lambda: RBF().on(),
    "on 0, 0": lambda: RBF().on(0, 0),
    "on 0.5": lambda: RBF().on(0.5),  # pyright: ignore[reportArgumentType]
    "on 'x'": lambda: RBF().on("x"),  # pyright: ignore[reportArgumentType]
    "sum on": lambda: RBF(2.0).on(0) + Matern52(1.0),
    "product": lambda: RBF(2.0) * Periodic(1.0, 1e-300),
    "Periodic": lambda: Periodic(1e300),
    "Linear": lambda: Linear(1e-300),
    "Linear + White": lambda: Linear() + White(1e-9),
    "White": lambda: White(),
    "Constant": lambda: Constant(),
    "Constant(1e300)": lambda: Constant(1e300),
    "Matern12(1e-9)": lambda: Matern12(1e-9),
    "RationalQuadratic": lambda: RationalQuadratic(),
    "class": lambda: RBF,
    "scikit-learn's": lambda: __import__("sklearn.gaussian_process.kernels").gaussian_process.kernels.RBF(),
    "function": lambda: lambda X, Z: X @ Z.T,
    "two of them": lambda: [RBF(), RBF()],
}
DESCRIBED: dict[str, Callable[[], Any]] = {
    "Gaussian": lambda: of.Gaussian(),
    "Gaussian(1e-300)": lambda: of.Gaussian(1e-300),
    "Gaussian(1e300)": lambda: of.Gaussian(1e300),
    "Gaussian(0)": lambda: of.Gaussian(0.0),
    "Gaussian(nan)": lambda: of.Gaussian(np.nan),
    "StudentT": lambda: of.StudentT(),
    "StudentT(1e300)": lambda: of.StudentT(1e300),
    "Poisson": lambda: of.Poisson(),
    "Poisson(1e-300)": lambda: of.Poisson(1e-300),
    "Bernoulli": lambda: of.Bernoulli(),
    "Bernoulli('probit')": lambda: of.Bernoulli("probit"),
    "Bernoulli('word')": lambda: of.Bernoulli("word"),  # pyright: ignore[reportArgumentType]
    "Softmax(2)": lambda: of.Softmax(2),
    "Softmax(3)": lambda: of.Softmax(3),
    "Softmax(1)": lambda: of.Softmax(1),
    "RobustMax(2)": lambda: of.RobustMax(2),
    "Ordinal": lambda: of.Ordinal([-1.0, 0.0, 1.0]),
    "Ordinal unsorted": lambda: of.Ordinal([1.0, -1.0, 0.0]),
    "Ordinal of none": lambda: of.Ordinal([]),
    "Beta": lambda: of.Beta(),
    "class": lambda: of.Gaussian,
}
GIVEN: dict[str, Callable[[], Any]] = {
    "zeros [1, 2]": lambda: np.zeros((1, 2)),
    "zeros [3, 2]": lambda: np.zeros((3, 2)),
    "huge": lambda: 1e300 * np.arange(6.0).reshape(3, 2),
    "far": lambda: 1e9 + np.arange(6.0).reshape(3, 2),
    "NaN": lambda: np.full((3, 2), np.nan),
    "[3, 1]": lambda: np.zeros((3, 1)),
    "[3]": lambda: np.zeros(3),
    "[0, 2]": lambda: np.zeros((0, 2)),
    "text": lambda: np.array([["a", "b"]]),
    "list": lambda: [[0.0, 1.0], [1.0, 0.0]],
    "ragged": lambda: [[0.0], [1.0, 0.0]],
    "complex": lambda: np.ones((2, 2)) + 1j,
    "integers": lambda: np.arange(4).reshape(2, 2),
}

SETTINGS: dict[str, dict[str, Callable[[], Any]]] = {
    "kernel": _named(*names.KERNELS) | OBJECTS,
    "likelihood": _named(*names.REGRESSION, *names.CLASSIFICATION) | DESCRIBED,
    "input_warp": _named(*names.INPUT_WARPS),
    "target_warp": _named(*names.TARGET_WARPS),
    "effort": _named(*names.EFFORTS, 1),
    "method": _named(*names.METHODS),
    "optimiser": _named(*names.OPTIMISERS),
    "posterior": _named(*names.POSTERIORS),
    "num_inducing": _named(1, 3, 100, 10**9, np.int64(3), 3.0, "3"),
    "num_mean_inducing": _named(1, 5, 100, np.int32(3)),
    "inducing": _named(*names.PLACEMENTS) | GIVEN,
    "learn_inducing": _named(False, 1, "no", np.bool_(False), np.array([True, False])),
    "bound": _named("tight", "vfe", np.str_("vfe")),
    "initial": _named(*names.INITIALS),
    "lengthscale_prior": _named(1.5, 1e-300, 1e300, np.inf, -np.inf, "1"),
    "initial_noise": _named(0.1, 1e-300, 1e300, 5e-324, np.inf, np.float32(0.1), "0.1", [0.1]),
    "max_iter": _named(1, 2, np.int64(1), 1.0, "1", np.array(1)),
    "batch_size": _named(1, 5, 512, 10**12, np.int64(4), 4.0),
    "learning_rate": _named(0.1, 1e-300, 1e300, 1.0, np.inf, "0.1"),
    "scale_inputs": _named("auto", False, np.bool_(True), 1, "True", np.array([True, False])),
    "scale_target": _named(True, False, 0, "yes", np.array([True, False])),
    "dtype": _named("auto", "float64", "float32", np.float32, np.dtype("float64"), float),
    "random_state": _named(1, -1, 2**32, 2**70, np.int64(5), np.random.RandomState(0), np.random.default_rng(0))
    | WRONG,
}

# What cases of hostile arrays are fitted with: every method, few programs.
FAST = ("effort", "'fast'")
FIT = (("max_iter", "2"), ("initial", "'robust'"), FAST)
FEW = (*FIT, ("num_inducing", "3"))
SETUPS: dict[str, tuple[tuple[str, str], ...]] = {
    "exact": FIT,
    "single": (*FIT, ("dtype", "'float32'")),
    "collapsed": (*FEW, ("method", "'collapsed'")),
    "svgp": (*FEW, ("method", "'svgp'")),
    "search": (("max_iter", "2"),),
    "warm": (("max_iter", "2"), FAST, ("method", "'collapsed'"), ("num_inducing", "3")),
    "ulapane": (("max_iter", "2"), FAST, ("initial", "'ulapane'")),
    "object": (*FIT, ("kernel", "'linear'")),
    "kernel": (*FIT, ("kernel", "RBF()")),
    "sum": (*FIT, ("kernel", "sum on")),
    "raw": (*FIT, ("scale_inputs", "False"), ("scale_target", "False")),
    **{name: (*FIT, ("likelihood", repr(name))) for name in list(names.REGRESSION)[1:]},
}


def settings_of(pairs) -> dict[str, Any]:
    """The settings of (name, words of the value) pairs."""
    return {name: (SETTINGS[name] | WRONG)[words]() for name, words in pairs}


def of_classes(name: str) -> bool:
    """Whether GPClassifier has the setting too."""
    return name not in ("bound", "initial_noise", "scale_target", "target_warp")
