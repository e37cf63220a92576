"""What is known of a fitted model, as plain values."""

import dataclasses
from typing import Any

import numpy as np

from pseudopoint.commands.enough import advice_without_rows
from pseudopoint.commands.kinds import AbstractKind, Result


def about(kind: AbstractKind, rows: float | int) -> Result:
    """The likelihood, the method and why it was chosen, and bounds on the log evidence of the scaled target, in nats;
    `rows` are counted by their weights.

    Where no upper bound is known, it is None, and so is Titsias' bound, which is for Gaussian likelihoods. With
    Laplace's method `bound` is its approximation of the log evidence.
    """
    model = kind.model
    M = None if model.inducing_points_ is None else len(model.inducing_points_)
    known = bool(np.isfinite(model.upper_bound_))
    warped = model.likelihood_.warped
    parameters = _numbers(model.likelihood_ if warped is None else warped[0])
    likelihood = {"likelihood": model.likelihood_.name, "likelihood_parameters": parameters}
    likelihood["latent_mean"] = None if model.mean_ is None else np.asarray(model.mean_).tolist()
    if model.mean_function_ is not None:
        likelihood["mean_function"] = _numbers(model.mean_function_)
    return likelihood | {
        "chosen": chosen(model),
        "method": model.method_,
        "reason": model.reason_,
        "num_inducing": M,
        "bound": model.bound_,
        "bound_vfe": model.bound_vfe_ if known else None,
        "upper_bound": model.upper_bound_ if known else None,
        "advice": advice_without_rows(model, rows),
        "n_iter": model.n_iter_,
        "n_rejected": model.n_rejected_,
        "jitter": float(model.predictor_.jitter),
        **kind.about(),
    }


def trials(model: Any) -> list[tuple[str, str, float, bool]]:
    """What a search tried: part, choice, log density in nats, whether it was taken; none where there was no search."""
    table = model.selection_ or {}
    names = ("part", "choice", "log_density", "chosen")
    columns = [np.asarray(table[name]).tolist() for name in names if name in table]
    return list(zip(*columns, strict=True))


def chosen(model: Any) -> dict[str, str]:
    """The choice of a search for each part of the model."""
    return {part: choice for part, choice, _, taken in trials(model) if taken and choice != "as before"}


def lengthscales(model: Any) -> dict[int, tuple[float, float | None]] | None:
    """Of every column that varies, by its number, in the kernel's units and in those of the column (None where a warp
    bends them); None for kernels without."""
    scaling = model.standardiser_
    scales = model.kernel_.widths(len(scaling.columns))
    if scales is None:
        return None
    warps = scaling.warps or (None,) * len(scales)
    in_units = [
        float(scale) if warp is None else None for scale, warp in zip(scales * scaling.scale, warps, strict=True)
    ]
    each = zip(scaling.columns.tolist(), scales.tolist(), in_units, scaling.varies, strict=True)
    return {column: (scaled, units) for column, scaled, units, varies in each if varies}


def kernel_variance(model: Any) -> float | None:
    """In units of the scaled target; None for kernels without."""
    return None if model.kernel_.scales is None else float(model.kernel_.scales[1])


def _numbers(likelihood: Any) -> dict[str, Any]:
    """The numbers of a likelihood, learned or held, by name, and its link if it has one."""
    fields = {field.name: getattr(likelihood, field.name) for field in dataclasses.fields(likelihood)}
    arrays = {name: value.tolist() for name, value in fields.items() if isinstance(value, np.ndarray | np.generic)}
    return {name: value for name, value in fields.items() if isinstance(value, str)} | arrays
