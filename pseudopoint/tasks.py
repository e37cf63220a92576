"""What the command line does, without a terminal: from files to files, and to one plain dictionary of results."""

import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pseudopoint import metrics
from pseudopoint.estimators import GPRegressor
from pseudopoint.history import Progress
from pseudopoint.kernels import AbstractStationary, Periodic
from pseudopoint.persistence import ModelFileError, describe
from pseudopoint.report import Report, write_report
from pseudopoint.tables import (
    Oddity,
    TableEncoder,
    TableError,
    drop_missing_target,
    read_chunks,
    read_table,
    write_chunks,
)
from pseudopoint.tables import describe as in_words

__all__ = ["demo", "fit_table", "inspect_model", "predict_table", "score_table"]

CHUNK_ROWS = 20_000
WORTH_IT = 0.01  # nats a row: a gap between the bounds that nobody would notice in predictions

Result = dict[str, Any]


def fit_table(
    table: str | Path,
    target: str,
    *,
    test_fraction: float = 0.1,
    test: str | Path | None = None,
    out: str | Path | None = None,
    report: str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **settings: Any,
) -> Result:
    """Fits `GPRegressor(**settings)` to a table, measures it on rows held out, writes the model file and the report.

    Rows are shuffled with `seed`; the last `test_fraction` of them are held out unless `test` names a table of its own.
    Raises TableError, FitError or ValueError, each with one sentence.
    """
    if not 0 <= test_fraction < 1:
        raise ValueError(f"the test fraction must be at least 0 and below 1, not {test_fraction}")
    _check_folders(out, report)
    train, dropped = drop_missing_target(read_table(table), target)
    held_out = None
    if test is None:
        train, held_out = _split(train, test_fraction, seed)
    encoder, notes = TableEncoder.learn(train, target)
    if dropped:
        notes.insert(0, f"{dropped} rows were dropped because their target {target!r} is missing")
    if test is not None:
        held_out, missing = drop_missing_target(read_table(test, encoder.text_columns), target)
        notes += [f"{missing} test rows were dropped because their target is missing"] if missing else []
    X, _ = encoder.inputs(train)
    y = encoder.target(train)
    start = time.perf_counter()
    model = GPRegressor(random_state=seed, **settings)
    model.fit(X, y, progress=progress)
    seconds = time.perf_counter() - start
    result: Result = {"target": target, "rows": len(y), "features": len(encoder.feature_names)}
    result |= _about(model, len(y)) | {"seconds": seconds, "test": None, "notes": [*notes, *model.notes_]}
    scored = None
    if held_out is not None and len(held_out):
        scored = _predictions(model, encoder, iter([held_out]))
        result["test"] = _measures(model, scored, 0.9)
        result["notes"] += scored.notes
    if out is not None:
        model.save(
            out, extra={"encoder": encoder.to_dict(), "rows": len(y), "seconds": seconds, "test": result["test"]}
        )
        result["model"] = str(out)
    if report is not None:
        write_report(report, _report(model, encoder, result, scored, Path(table).name))
        result["report"] = str(report)
    return result


def predict_table(model_file: str | Path, table: str | Path, out: str | Path, interval: float = 0.9) -> Result:
    """Writes mean, standard deviation and interval of every row of a table, in its order, chunk by chunk.

    Columns are TARGET_mean, TARGET_std, TARGET_lower_90 and TARGET_upper_90 (for an interval of 0.9).
    """
    model, encoder, _ = _load(model_file)
    rows, oddities = 0, []
    with write_chunks(out) as writer:
        for frame in read_chunks(table, CHUNK_ROWS, encoder):
            X, odd = encoder.encode(frame)
            writer.append(_prediction_frame(model, encoder.target_name, X, interval))
            rows, oddities = rows + len(frame), oddities + odd
    return {"rows": rows, "predictions": str(out), "columns": writer.columns, "notes": in_words(oddities)}


def score_table(model_file: str | Path, table: str | Path, interval: float = 0.9) -> Result:
    """How well a saved model predicts a table that holds the target: see `_measures`."""
    model, encoder, _ = _load(model_file)
    scored = _predictions(model, encoder, read_chunks(table, CHUNK_ROWS, encoder))
    if len(scored.y) == 0:
        raise TableError(f"the target {encoder.target_name!r} is missing in every row; give a table that holds it")
    return _measures(model, scored, interval) | {"notes": scored.notes}


def inspect_model(model_file: str | Path) -> Result:
    """What a model file holds."""
    model, encoder, extra = _load(model_file)
    header = describe(model_file)
    s, lengthscales = model.standardiser_, _lengthscales(model)
    names = [encoder.feature_names[i] for i in s.columns]
    in_units = None if lengthscales is None else dict(zip(names, (lengthscales * s.scale).tolist(), strict=True))
    result = {"model": str(model_file), "library_version": header["library_version"], "created": header["created"]}
    result |= {"target": encoder.target_name, "rows": extra["rows"], "features": encoder.feature_names}
    result |= _about(model, extra["rows"]) | {"kernel": model.kernel if isinstance(model.kernel, str) else "object"}
    result |= {"kernel_variance": _variance(model), "lengthscales": in_units}
    return result | {"noise_std": _noise_std(model), "seconds": extra["seconds"], "test": extra["test"]}


def demo(out: str | Path, progress: Progress | None = None) -> Result:
    """Fits the naval propulsion table that comes with the package: model file, predictions and report in `out`."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with resources.as_file(resources.files("pseudopoint") / "datasets" / "naval.csv.gz") as table:
        model_file = folder / "model.safetensors"
        result = fit_table(table, "y", out=model_file, report=folder / "report.html", progress=progress)
        _, held_out = _split(read_table(table), 0.1, 0)
        model, encoder, _ = _load(model_file)
        with write_chunks(folder / "predictions.csv") as writer:
            predicted = _prediction_frame(model, "y", encoder.inputs(held_out)[0], 0.9)
            writer.append(pd.concat([held_out[["y"]].reset_index(drop=True), predicted], axis=1))
    return result | {"predictions": str(folder / "predictions.csv")}


def _check_folders(*paths):
    """Found before an hour of fitting, not after."""
    for path in paths:
        if path is not None and not Path(path).resolve().parent.is_dir():
            raise TableError(f"the folder of {str(path)!r} does not exist; make it first")


def _split(frame, fraction, seed):
    rows = np.random.default_rng(seed).permutation(len(frame))
    cut = len(frame) - int(np.ceil(fraction * len(frame)))
    return frame.iloc[rows[:cut]], frame.iloc[rows[cut:]]


def _load(model_file) -> tuple[GPRegressor, TableEncoder, dict[str, Any]]:
    model, extra = GPRegressor.load_with_extra(model_file)
    if not isinstance(extra, dict) or "encoder" not in extra:
        raise ModelFileError(
            f"The model file {str(model_file)!r} knows no table: it was saved from Python; "
            "load it there, or fit with the command line."
        )
    return model, TableEncoder.from_dict(extra["encoder"]), extra


class Scored(NamedTuple):
    """Truth, mean and standard deviation of all rows that have a target, and notes."""

    y: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    notes: list[str]


def _predictions(model, encoder, frames: Iterator[pd.DataFrame]) -> Scored:
    parts: list[tuple] = []
    oddities: list[Oddity] = []
    missing = 0
    for frame in frames:
        y = encoder.target(frame)
        known = ~np.isnan(y)
        missing += int((~known).sum())
        if known.any():
            X, odd = encoder.encode(frame.loc[known])
            parts.append((y[known], *model.predict(X, return_std=True)))
            oddities += odd
    y, mean, std = (np.concatenate(column) for column in zip(*parts, strict=True)) if parts else (np.empty(0),) * 3
    notes = in_words(oddities)
    notes += [f"{missing} rows without a target were not scored"] if missing else []
    return Scored(y, mean, std, notes)


def _prediction_frame(model, target, X, interval) -> pd.DataFrame:
    mean, std = model.predict(X, return_std=True)
    lower, upper = metrics.interval(mean, std, interval)
    label = f"{100 * interval:g}"
    return pd.DataFrame(
        {
            f"{target}_mean": mean,
            f"{target}_std": std,
            f"{target}_lower_{label}": lower,
            f"{target}_upper_{label}": upper,
        }
    )


def _measures(model, scored: Scored, interval) -> Result:
    """Per row: errors and log density in units of the target, the latter also per standard deviation of the target."""
    y, mean, std, _ = scored
    density = metrics.mean_log_density(y, mean, std)
    lower, upper = metrics.interval(mean, std, interval)
    return {
        "rows": len(y),
        "rmse": metrics.rmse(y, mean),
        "mae": metrics.mae(y, mean),
        "r2": metrics.r2(y, mean),
        "log_density": density,
        "log_density_standardised": density + float(np.log(model.standardiser_.target_scale)),
        "interval": interval,
        "coverage": metrics.coverage(y, lower, upper),
    }


def _about(model, rows) -> Result:
    """The method, why it was chosen, and the bounds on the log evidence of the standardised target, in nats."""
    M = None if model.inducing_points_ is None else len(model.inducing_points_)
    gap = (model.upper_bound_ - model.bound_) / rows
    return {
        "method": model.method_,
        "reason": model.reason_,
        "inducing_points": M,
        "bound": model.bound_,
        "bound_vfe": model.bound_vfe_,
        "upper_bound": model.upper_bound_,
        "advice": _advice(M, gap),
        "iterations": model.n_iter_,
        "undone_steps": model.n_undone_,
        "jitter": float(model.predictor_.jitter),
    }


def _advice(M, gap) -> str:
    if M is None:
        return "The exact posterior: there are no inducing points to add."
    if gap < WORTH_IT:
        return f"More inducing points than {M} could gain at most {gap:.2g} nats a row with this kernel: enough."
    return (
        f"More inducing points than {M} could gain up to {gap:.2g} nats a row with this kernel "
        f"(the upper bound is loose: the gain is often far smaller); try {2 * M} and compare the test log density."
    )


def _lengthscales(model) -> np.ndarray | None:
    """One for each column that varies, in standardised units; None for kernels without."""
    if not isinstance(model.kernel_, AbstractStationary | Periodic):
        return None
    return np.broadcast_to(np.asarray(model.kernel_.lengthscale, float), len(model.standardiser_.columns))


def _variance(model) -> float | None:
    return float(model.kernel_.variance) if isinstance(model.kernel_, AbstractStationary | Periodic) else None


def _noise_std(model) -> float:
    return float(np.sqrt(model.likelihood_.variance)) * model.standardiser_.target_scale


def _report(model, encoder, result, scored, name) -> Report:
    history, lengthscales = model.history_, _lengthscales(model)
    names = [encoder.feature_names[i] for i in model.standardiser_.columns]
    columns = (history["step"].astype(int), history["bound"], history["seconds"])
    lower, upper = (None, None) if scored is None else metrics.interval(scored.mean, scored.std, 0.9)
    return Report(
        title=f"{encoder.target_name} in {name}",
        summary=[(label, value) for label, value in in_lines(result) if label != "note"],
        notes=result["notes"],
        history=list(zip(*(column.tolist() for column in columns), strict=True)),
        y=None if scored is None else scored.y,
        mean=None if scored is None else scored.mean,
        std=None if scored is None else scored.std,
        lower=lower,
        upper=upper,
        relevance=[] if lengthscales is None else list(zip(names, (1 / lengthscales).tolist(), strict=True)),
        bound=None if model.inducing_points_ is None else model.bound_,
        upper_bound=None if model.inducing_points_ is None else model.upper_bound_,
        rows=result["rows"],
        advice=result["advice"],
    )


def in_lines(result: Result) -> list[tuple[str, str]]:
    """A result as (label, text) pairs for people."""
    lines: list[tuple[str, str]] = []
    add = lambda label, text: lines.append((label, text))
    if "model" in result and "created" in result:
        add("model", f"{result['model']} (pseudopoint {result['library_version']}, {result['created']})")
    if "target" in result:
        features = result["features"] if isinstance(result["features"], int) else len(result["features"])
        add("data", f"{result['rows']:,} training rows, {features} features, target {result['target']!r}")
    if "method" in result:
        add("method", f"{result['method']} — {result['reason']}")
        if result["inducing_points"] is not None:
            add("inducing points", f"{result['inducing_points']}. {result['advice']}")
        bounds = f"{result['bound']:,.1f} nats"
        if result["inducing_points"] is not None:
            bounds += f" (Titsias' bound {result['bound_vfe']:,.1f}, upper bound {result['upper_bound']:,.1f})"
        add("bound", bounds)
    if "kernel_variance" in result:
        variance = "" if result["kernel_variance"] is None else f", variance {result['kernel_variance']:.4g}"
        add("kernel", f"{result['kernel']}{variance}")
        for name, value in (result["lengthscales"] or {}).items():
            add(f"lengthscale {name}", f"{value:.4g}")
        add("noise", f"standard deviation {result['noise_std']:.4g}")
    lines += _measure_lines(result if "rmse" in result else result.get("test"))
    if result.get("undone_steps"):
        add("undone steps", f"{result['undone_steps']} steps went bad and were undone and shortened")
    if "seconds" in result:
        add("time", f"{result['seconds']:.1f} s")
    if "created" not in result:
        lines += [(name, result[name]) for name in ("model", "predictions", "report") if result.get(name)]
    return lines + [("note", note) for note in result.get("notes", [])]


def _measure_lines(test) -> list[tuple[str, str]]:
    if not test:
        return []
    return [
        ("test rows", f"{test['rows']:,}"),
        ("RMSE", f"{test['rmse']:.5g}"),
        ("MAE", f"{test['mae']:.5g}"),
        ("R²", f"{test['r2']:.4f}"),
        (
            "log density",
            f"{test['log_density']:.4f} a row ({test['log_density_standardised']:.4f} with the target standardised)",
        ),
        ("coverage", f"{100 * test['coverage']:.1f} % of rows inside the {100 * test['interval']:g} % interval"),
    ]
