"""A fitted estimator as an ONNX file."""

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri
from sklearn.utils.validation import check_is_fitted

from ..data import LARGEST, Standardiser
from ..estimators import predictive
from ..estimators.near import refuse_near_rows
from ..estimators.serving import SquarePredictor
from ..files import whole_file
from ..processes import computing

TOLERANCE = 1e-9  # of the probabilities of levels, as in `likelihoods.intervals`


def to_onnx(model: Any, path: Any, *, level: float = 0.9) -> list[str]:
    """Writes a fitted estimator as an ONNX file, and returns the names of its outputs.

    The graph takes any number N of rows in the units of the table: one input for each of its columns, [N, 1], float64
    for numbers and strings for text; or X [N, D] of a model that was fitted to an array. Scaling, warps and all that
    predicts are inside, in float64. Outputs of a regression are mean and std [N], of real targets with normal noise and
    of ordinal levels also lower and upper, the ends of the central interval of probability `level`; of classes
    predicted [N] and probability [N, C]. With a table their names begin with that of the target, and end with "_" where
    a column of the table has that name.

    Needs the package onnx. Raises ImportError without it, and ValueError for a model that computes what the export has
    no nodes for, such as the likelihood robustmax, a special function of a kernel of your own, or predictions
    that near rows correct.
    """
    check_is_fitted(model)
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must lie between 0 and 1; 0.9 means 90 %")
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise ImportError("the export needs onnx: pip install 'pseudopoint[onnx]'") from None
    labels = getattr(model, "classes_", None)
    if labels is not None and len(labels) == 1:
        raise ValueError("the model has one class only, which it predicts with certainty: there is nothing to export")
    if getattr(model, "outputs_", None) is not None:
        raise ValueError("the export to ONNX is for models of one target, and this one has several: fit each by itself")
    refuse_near_rows(model, "the export to ONNX has no nodes")
    with computing("float64"):
        names, content = _graph(model, level, labels)
    with whole_file(path) as file:
        file.write(content)
    return names


def _graph(model: Any, level: float, labels: Any) -> tuple[list[str], bytes]:
    from onnx import helper

    from .columns import encoded, read_rows
    from .graph import Graph, element_type
    from .primitives import traced

    graph, encoder = Graph(), model.encoder_
    inputs, X = read_rows(graph, model.n_features_in_) if encoder is None else encoded(graph, encoder)
    function = _regression(model, level) if labels is None else _classes(model)
    made = traced(graph, function, X, model.n_features_in_ if encoder is None else len(encoder.feature_names))
    names, types = ["mean", "std", "lower", "upper"], [np.float64] * len(made)
    shapes: list[list[Any]] = [["N"]] * len(made)
    if labels is not None:
        known = np.asarray(labels) if np.asarray(labels).dtype.kind in "iub" else np.asarray(labels).astype(str)
        best = graph.add("Gather", known, graph.add("ArgMax", made[0], axis=1, keepdims=0))
        names, types, shapes = ["predicted", "probability"], [known.dtype, np.float64], [["N"], ["N", len(known)]]
        made = [best, *made]
    prefix = "" if encoder is None else f"{encoder.target_name}_"
    columns = {column.name for column in inputs}
    outputs = [
        helper.make_tensor_value_info(_free(prefix + name, columns), element_type(dtype), shape)
        for name, dtype, shape in zip(names, types, shapes, strict=False)
    ]
    for output, value in zip(outputs, made, strict=True):
        graph.add("Identity", value, output=output.name)
    whole = graph.model(
        inputs, outputs, {"classes": json.dumps(np.asarray(labels).tolist())} if labels is not None else {}
    )
    return [output.name for output in outputs], whole.SerializeToString()


def _free(name: str, taken: set[str]) -> str:
    """The name, with "_" at its end where an input has it."""
    while name in taken:
        name += "_"
    return name


def _parts(model: Any) -> tuple[Any, Any]:
    """The predictor with its points prepared, and p(y | f), in float64."""
    square = model.predictor_.each(SquarePredictor.of, SquarePredictor.common)
    double = lambda x: jnp.asarray(x, np.float64 if np.asarray(x).dtype.kind == "f" else None)
    return jax.tree.map(double, (square, model._observed()))


def _scaled(s: Standardiser, X: Any) -> Any:
    """`Standardiser.inputs` of rows that are traced."""
    if len(s.columns) < X.shape[1]:
        X = X[:, s.columns]
    rows = jnp.clip((X - s.mean) / s.scale, -LARGEST["float64"], LARGEST["float64"])
    if not any(s.warps):
        return rows
    columns = [rows[:, j] if warp is None else warp(rows[:, j]) for j, warp in enumerate(s.warps)]
    return jnp.clip(jnp.stack(columns, axis=1), -LARGEST["float64"], LARGEST["float64"])


def _classes(model: Any) -> Callable[[Any], list[Any]]:
    """X to the probabilities [N, C]."""
    predictor, likelihood = _parts(model)

    def function(X):
        p = jnp.exp(predictive.log_probabilities(predictor, likelihood, _scaled(model.standardiser_, X)))
        return [(p / jnp.sum(p, axis=0)).T]

    return function


def _regression(model: Any, level: float) -> Callable[[Any], list[Any]]:
    """X to mean, standard deviation and, where quantiles have a closed form, ends of the interval of y."""
    (predictor, likelihood), s, levels = _parts(model), model.standardiser_, model.levels_
    inner, warp = likelihood.warped or (likelihood, None)
    tails = 0.5 - 0.5 * level, 0.5 + 0.5 * level

    def function(X):
        mean, variance = predictor(_scaled(s, X))
        if levels is not None:
            return _of_levels(jnp.exp(likelihood.log_probabilities(mean, variance)), levels, tails)
        expected, spread = likelihood.predict(mean, variance)
        ends = []
        if inner.gaussian_noise is not None:
            ends = [mean + jnp.sqrt(variance + inner.gaussian_noise) * z for z in ndtri(tails)]
            ends = ends if warp is None else [warp.inverse(end) for end in ends]
        first, *others = (s.target_mean + s.target_scale * value for value in (expected, *ends))
        return [first, s.target_scale * jnp.sqrt(spread), *others]

    return function


def _of_levels(p: Any, levels: np.ndarray, tails: tuple[float, float]) -> list[Any]:
    """The same of levels with probabilities p [L, N]: an end is the first level that the tail reaches."""
    mean = levels @ p
    std = jnp.sqrt(jnp.sum((levels[:, None] - mean) ** 2 * p, axis=0))
    below = jnp.cumsum(p, axis=0)[:-1]
    ends = [levels[0] + np.diff(levels) @ jnp.where(below < tail - TOLERANCE, 1.0, 0.0) for tail in tails]
    return [mean, std, *ends]
