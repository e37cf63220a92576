"""What a hostile world passes to an estimator: inputs, targets, weights, settings and questions, each by its name.

Every maker takes a generator of random numbers and sizes, and returns what is passed. Names make a case short to print
and exact to repeat. Sizes are few, since every new shape of an array is compiled anew.
"""

import tempfile
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

__all__ = ["INPUTS", "NOISES", "QUESTIONS", "ROWS", "TARGETS", "WEIGHTS"]

Make = Callable[[np.random.Generator, int, int], Any]


def _plain(rng, N, D):
    return rng.normal(size=(N, D))


def _spoiled(value, rng, N, D, share=0.1):
    X = _plain(rng, N, D)
    X[rng.integers(N), rng.integers(D)] = value
    return X


def _read_only(rng, N, D):
    X = _plain(rng, N, D)
    X.flags.writeable = False
    return X


def _memory_map(rng, N, D):
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file.name, _plain(rng, N, D))
        return np.load(file.name, mmap_mode="r")


def _masked(rng, N, D):
    X = _plain(rng, N, D)
    return np.ma.masked_array(X, mask=X > 1)  # pyright: ignore[reportArgumentType]


def _constant_column(value, rng, N, D):
    X = _plain(rng, N, D)
    X[:, rng.integers(D)] = value
    return X


def _times(factor, rng, N, D):
    return factor * _plain(rng, N, D)


def _mixed_magnitudes(rng, N, D):
    return rng.choice([-1, 1], (N, D)) * 10 ** rng.uniform(-305, 307, (N, D))


def _magnitude_a_column(rng, N, D):
    return _plain(rng, N, D) * 10.0 ** rng.integers(-300, 300, D)


def _as(dtype, rng, N, D):
    return (100 * _plain(rng, N, D)).astype(dtype)


def _objects(value, rng, N, D):
    X = _plain(rng, N, D).astype(object)
    X[rng.integers(N), rng.integers(D)] = value
    return X


def _frame(columns, rng, N, D):
    return pd.DataFrame(_plain(rng, N, D), columns=columns(D))


def _frame_of(dtype, rng, N, D):
    return pd.DataFrame((10 * _plain(rng, N, D)).round()).astype(dtype)


def _frame_with_gap(dtype, rng, N, D):
    frame = _frame_of(dtype, rng, N, D)
    frame.iloc[0, 0] = pd.NA
    return frame


def _record(rng, N, D):
    return np.array([tuple(row) for row in _plain(rng, N, D)], dtype=[(f"c{j}", float) for j in range(D)])


INPUTS: dict[str, Make] = {
    "plain": _plain,
    "huge": partial(_times, 1e300),
    "largest": lambda rng, N, D: rng.choice([-1.0, 1.0, 0.5], (N, D)) * np.finfo(float).max,
    "tiny": partial(_times, 1e-300),
    "denormal": lambda rng, N, D: rng.integers(0, 9, (N, D)) * 5e-324,
    "mixed magnitudes": _mixed_magnitudes,
    "a magnitude a column": _magnitude_a_column,
    "far row": partial(_spoiled, 1e9),
    "farthest row": partial(_spoiled, -1.7e308),
    "duplicated rows": lambda rng, N, D: np.tile(_plain(rng, N // 2, D), (2, 1)),
    "one row many times": lambda rng, N, D: np.tile(_plain(rng, 1, D), (N, 1)),
    "zeros": lambda rng, N, D: np.zeros((N, D)),
    "constant column": partial(_constant_column, 3.0),
    "huge constant column": partial(_constant_column, -1.7e308),
    "nearly constant": lambda rng, N, D: 1e16 + rng.choice([0, 2], (N, D)),
    "sorted": lambda rng, N, D: np.arange(1.0 * N * D).reshape(N, D),
    "two values": lambda rng, N, D: rng.choice([0.0, 1.0], (N, D)),
    "negative zeros": lambda rng, N, D: rng.choice([-0.0, 0.0], (N, D)),
    "int8": partial(_as, np.int8),
    "int64 of any size": lambda rng, N, D: rng.integers(-(2**63), 2**63 - 1, (N, D)),
    "uint64": lambda rng, N, D: rng.integers(2**63, 2**64 - 1, (N, D), dtype=np.uint64),
    "bool": partial(_as, bool),
    "float16": partial(_as, np.float16),
    "float32": partial(_as, np.float32),
    "longdouble": partial(_as, np.longdouble),
    "longdouble beyond double": lambda rng, N, D: _as(np.longdouble, rng, N, D) * np.longdouble(10) ** 400,
    "big-endian": partial(_as, ">f8"),
    "complex": partial(_as, complex),
    "objects": partial(_objects, 1.5),
    "integers beyond double": partial(_objects, 10**400),
    "fractions": partial(_objects, Fraction(1, 3)),
    "decimals": partial(_objects, Decimal("0.1")),
    "None inside": partial(_objects, None),
    "pd.NA inside": partial(_objects, pd.NA),
    "text inside": partial(_objects, "abc"),
    "a number as text inside": partial(_objects, "1.5"),
    "a list inside": lambda rng, N, D: [[*row[:-1], [1.0, 2.0]] for row in _plain(rng, N, D).tolist()],
    "text": partial(_as, str),
    "bytes": partial(_as, "S8"),
    "dates": lambda rng, N, D: np.datetime64("2020-01-01") + rng.integers(0, 99, (N, D)),
    "durations": lambda rng, N, D: rng.integers(0, 99, (N, D)).astype("m8[s]"),
    "NaN": partial(_spoiled, np.nan),
    "inf": partial(_spoiled, np.inf),
    "-inf": partial(_spoiled, -np.inf),
    "all NaN": lambda rng, N, D: np.full((N, D), np.nan),
    "1-D": lambda rng, N, D: _plain(rng, N, 1)[:, 0],
    "3-D": lambda rng, N, D: _plain(rng, N, D)[None],
    "0-D": lambda rng, N, D: np.float64(1.0),
    "zero rows": lambda rng, N, D: np.zeros((0, D)),
    "zero columns": lambda rng, N, D: np.zeros((N, 0)),
    "one row": lambda rng, N, D: _plain(rng, 1, D),
    "two rows": lambda rng, N, D: _plain(rng, 2, D),
    "lists": lambda rng, N, D: _plain(rng, N, D).tolist(),
    "ragged lists": lambda rng, N, D: [list(range(1 + i % 2)) for i in range(N)],
    "Fortran order": lambda rng, N, D: np.asfortranarray(_plain(rng, N, D)),
    "strided": lambda rng, N, D: _plain(rng, 2 * N, 2 * D)[::-2, ::2],
    "broadcast": lambda rng, N, D: np.broadcast_to(_plain(rng, N, 1), (N, D)),
    "read-only": _read_only,
    "memory-mapped": _memory_map,
    "masked": _masked,
    "structured": _record,
    "sparse": lambda rng, N, D: scipy.sparse.csr_matrix(_plain(rng, N, D)),
    "sparse array": lambda rng, N, D: scipy.sparse.coo_array(_plain(rng, N, D)),
    "frame": partial(_frame, lambda D: [f"x{j}" for j in range(D)]),
    "frame numbered": partial(_frame, lambda D: list(range(D))),
    "frame of odd names": partial(_frame, lambda D: ["", "a\nb", "\U0001f600'\""][:D]),
    "frame of one name": partial(_frame, lambda D: ["x"] * D),
    "frame of mixed names": partial(_frame, lambda D: [0, "x", None][:D]),
    "frame of levels": partial(_frame, lambda D: pd.MultiIndex.from_tuples([("a", j) for j in range(D)])),
    "frame Int64": partial(_frame_of, "Int64"),
    "frame Float32": partial(_frame_of, "Float32"),
    "frame boolean": lambda rng, N, D: (_frame_of(float, rng, N, D) > 0).astype("boolean"),
    "frame of categories": partial(_frame_of, "category"),
    "frame of text": partial(_frame_of, "string"),
    "frame sparse": partial(_frame_of, pd.SparseDtype(float)),
    "frame arrow": partial(_frame_of, "double[pyarrow]"),
    "frame with gap": partial(_frame_with_gap, "Int64"),
    "frame arrow with gap": partial(_frame_with_gap, "int64[pyarrow]"),
    "frame of objects": partial(_frame_of, object),
    "series": lambda rng, N, D: pd.Series(_plain(rng, N, 1)[:, 0]),
    "None": lambda rng, N, D: None,
    "word": lambda rng, N, D: "data.csv",
    "dictionary": lambda rng, N, D: {"a": [1.0] * N},
    "set": lambda rng, N, D: {1.0, 2.0},
    "generator": lambda rng, N, D: (row for row in _plain(rng, N, D)),
}


def _y(rng, N, D=1):
    return rng.normal(size=N)


def _y_with(value, rng, N, D):
    y = _y(rng, N).astype(object)
    y[rng.integers(N)] = value
    return y


def _floats_with(value, rng, N, D):
    y = _y(rng, N)
    y[rng.integers(N)] = value
    return y


def _labels(*labels):
    return lambda rng, N, D: np.array([labels[i % len(labels)] for i in range(N)], dtype=object)


TARGETS: dict[str, Make] = {
    "plain": _y,
    "counts": lambda rng, N, D: rng.poisson(3, N),
    "positive": lambda rng, N, D: rng.gamma(2, size=N),
    "unit": lambda rng, N, D: rng.uniform(0.01, 0.99, N),
    "levels": lambda rng, N, D: np.arange(N) % 4,
    "levels apart": lambda rng, N, D: np.array([-1e9, 0.5, 7e200])[np.arange(N) % 3],
    "two classes": lambda rng, N, D: np.arange(N) % 2,
    "yes and no": _labels("no", "yes"),
    "three classes": _labels("b", "a", "c"),
    "as many classes as rows": lambda rng, N, D: np.arange(N).astype(str),
    "booleans": lambda rng, N, D: np.arange(N) % 2 == 0,
    "bytes": lambda rng, N, D: np.array([b"a", b"b"] * N)[:N],
    "tuples": _labels((1, 2), (3, 4)),
    "labels of mixed types": _labels("a", 1),
    "labels and None": _labels("a", "b", None),
    "labels and NaN": _labels("a", "b", np.nan),
    "floats as labels": _labels(0.5, 1.5),
    "None": lambda rng, N, D: None,
    "all None": _labels(None),
    "constant": lambda rng, N, D: np.full(N, 3.5),
    "zeros": lambda rng, N, D: np.zeros(N),
    "huge constant": lambda rng, N, D: np.full(N, -1.7e308),
    "denormal constant": lambda rng, N, D: np.full(N, 5e-324),
    "huge": lambda rng, N, D: 1e300 * _y(rng, N),
    "largest": lambda rng, N, D: rng.choice([-1, 1], N) * np.finfo(float).max,
    "tiny": lambda rng, N, D: 1e-300 * _y(rng, N),
    "denormal": lambda rng, N, D: rng.integers(0, 9, N) * 5e-324,
    "huge counts": lambda rng, N, D: np.floor(10 ** rng.uniform(0, 300, N)),
    "huge positive": lambda rng, N, D: 10 ** rng.uniform(-300, 300, N),
    "near the ends": lambda rng, N, D: rng.choice([1e-300, 1 - 1e-16, 0.5], N),
    "one count": lambda rng, N, D: np.eye(1, N)[0],
    "mixed magnitudes": lambda rng, N, D: rng.choice([-1, 1], N) * 10 ** rng.uniform(-300, 300, N),
    "far value": partial(_floats_with, 1e200),
    "offset": lambda rng, N, D: 1e15 + _y(rng, N),
    "NaN": partial(_floats_with, np.nan),
    "inf": partial(_floats_with, np.inf),
    "text inside": partial(_y_with, "abc"),
    "numbers as text": lambda rng, N, D: _y(rng, N).astype(str),
    "None inside": partial(_y_with, None),
    "pd.NA inside": partial(_y_with, pd.NA),
    "beyond double": partial(_y_with, 10**400),
    "decimals": partial(_y_with, Decimal("0.1")),
    "complex": lambda rng, N, D: _y(rng, N) + 1j,
    "float16": lambda rng, N, D: _y(rng, N).astype(np.float16),
    "longdouble": lambda rng, N, D: _y(rng, N).astype(np.longdouble) * np.longdouble(10) ** 400,
    "uint64": lambda rng, N, D: rng.integers(2**63, 2**64 - 1, N, dtype=np.uint64),
    "dates": lambda rng, N, D: np.datetime64("2020-01-01") + np.arange(N),
    "column": lambda rng, N, D: _y(rng, N)[:, None],
    "two columns": lambda rng, N, D: rng.normal(size=(N, 2)),
    "too short": lambda rng, N, D: _y(rng, N - 1),
    "number": lambda rng, N, D: 3.0,
    "list": lambda rng, N, D: _y(rng, N).tolist(),
    "masked": lambda rng, N, D: np.ma.masked_array(_y(rng, N), mask=np.arange(N) < 2),  # pyright: ignore
    "read-only": lambda rng, N, D: np.broadcast_to(_y(rng, 1), N),
    "series of another index": lambda rng, N, D: pd.Series(_y(rng, N), index=range(N, 0, -1)),
    "Int64 with gap": lambda rng, N, D: pd.Series([pd.NA, *range(N - 1)], dtype="Int64"),
    "categories": lambda rng, N, D: pd.Series(pd.Categorical(np.array(["u", "v"])[np.arange(N) % 2])),
    "frame": lambda rng, N, D: pd.DataFrame({"y": _y(rng, N)}),
    "sparse": lambda rng, N, D: scipy.sparse.csr_matrix(_y(rng, N)),
}

WEIGHTS: dict[str, Make] = {
    "none": lambda rng, N, D: None,
    "ones": lambda rng, N, D: np.ones(N),
    "some zero": lambda rng, N, D: (np.arange(N) % 2).astype(float),
    "all but one zero": lambda rng, N, D: np.eye(1, N)[0],
    "zeros": lambda rng, N, D: np.zeros(N),
    "sum of 1": lambda rng, N, D: np.full(N, 1 / N),
    "tiny": lambda rng, N, D: np.full(N, 1e-300),
    "denormal": lambda rng, N, D: np.full(N, 5e-324),
    "huge": lambda rng, N, D: np.full(N, 1e300),
    "largest": lambda rng, N, D: np.full(N, np.finfo(float).max),
    "mixed magnitudes": lambda rng, N, D: 10 ** rng.uniform(-300, 300, N),
    "a million": lambda rng, N, D: np.full(N, 1e6),
    "negative": lambda rng, N, D: np.full(N, -1.0),
    "NaN": lambda rng, N, D: np.full(N, np.nan),
    "inf": lambda rng, N, D: np.full(N, np.inf),
    "integers": lambda rng, N, D: np.arange(1, N + 1),
    "text": lambda rng, N, D: ["a"] * N,
    "number": lambda rng, N, D: 2.0,
    "too short": lambda rng, N, D: np.ones(N - 1),
    "column": lambda rng, N, D: np.ones((N, 1)),
    "series": lambda rng, N, D: pd.Series(np.ones(N), index=range(N, 0, -1)),
}
NOISES = WEIGHTS

ROWS = (
    *(
        "plain",
        "huge",
        "largest",
        "denormal",
        "mixed magnitudes",
        "far row",
        "farthest row",
        "duplicated rows",
        "zeros",
    ),
    *("int8", "bool", "float16", "longdouble", "longdouble beyond double", "complex", "objects", "text", "NaN", "inf"),
    *("1-D", "3-D", "0-D", "zero rows", "zero columns", "one row", "lists", "ragged lists", "Fortran order", "strided"),
    *(
        "broadcast",
        "read-only",
        "memory-mapped",
        "masked",
        "sparse",
        "frame",
        "frame of odd names",
        "frame of one name",
    ),
    *(
        "frame with gap",
        "frame arrow",
        "None",
        "word",
        "series",
        "None inside",
        "pd.NA inside",
        "integers beyond double",
    ),
)

LEVELS = (0.9, 1e-300, 1e-16, 1 - 1e-16, 1 - 1e-12, 0.0, 1.0, np.nan, 90, "0.9", None, True, np.float32(0.9), [0.5])
COUNTS = (2, 1, 0, -1, 2.5, "two", None, True, np.int64(2))
SEEDS = (0, None, -1, "seed", 2**40, np.random.RandomState(0), np.int32(3), 1.5)
QUESTIONS = {
    "predict": (None,),
    "predict with std": (None,),
    "predict with cov": (None,),
    "predict_latent": (None,),
    "interval": LEVELS,
    "log_density": tuple(TARGETS),
    "sample": COUNTS,
    "sample by seed": SEEDS,
    "paths": COUNTS,
    "paths by seed": SEEDS,
    "paths of features": (64, 1, 0, -1, 2.5, "many", None),
    "predict_proba": (None,),
    "predict_log_proba": (None,),
    "score": ("plain", "counts", "yes and no", "constant", "huge", "NaN"),
    "save and load": (None,),
    "clone": (None,),
    "pickle": (None,),
    "refit refused": ("NaN", "text inside", "zero rows", "one row"),
}
