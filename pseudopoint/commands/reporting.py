"""The report of a fit, from what the commands know."""

import datetime
from typing import Any

import numpy as np
import pandas as pd

from pseudopoint import __version__
from pseudopoint.commands.about import trials
from pseudopoint.commands.explained import inputs, residual_columns, surprising
from pseudopoint.commands.kinds import AbstractKind, Result, Scored
from pseudopoint.commands.words import in_lines
from pseudopoint.estimators.notes import discrete_target
from pseudopoint.report import Report

ELSEWHERE = {"RMSE", "MAE", "R²", "log density", "coverage", "accuracy", "Brier score", "calibration error"}
ELSEWHERE |= {"test rows", "note"}


def report_of(
    kind: AbstractKind,
    result: Result,
    X: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray | None,
    scored: Scored | None,
    held_out: pd.DataFrame | None,
    name: str,
) -> Report:
    """Of a model that was fitted to the rows X, y of the table `name`, with weights if there were any."""
    history, target = kind.model.history_, kind.encoder.target_name
    columns = (history["step"].astype(int), history["bound"], history["seconds"])
    shown, together = inputs(kind, X, weight, scored)
    numbers = kind.task == "regression"
    measured = scored is not None and scored.rows > 0
    more: dict[str, Any] = {}
    if scored is not None and measured:
        more = kind.pictures(scored) | {"worst": surprising(kind, shown, scored, held_out)}
        more |= {"beside": residual_columns(kind, shown, scored)} if numbers else {}
    return Report(
        title=f"{target} in {name}",
        made=_made(result),
        measures=_measures(result["test"], target),
        summary=_summary(result),
        notes=result["notes"],
        history=list(zip(*(column.tolist() for column in columns), strict=True)),
        trials=trials(kind.model),
        inputs=shown,
        together=together,
        near_rows=kind.model.near_rows_ is not None,
        effect=_effect(kind, target),
        loss="by how much the RMSE grows" if numbers else "by how much the log probability of the true class falls",
        advice=result["advice"],
        level=kind.level,
        discrete=" ".join(discrete_target(y, result["noise_std"])) if numbers and result["noise_std"] else "",
        **more,
    )


def _effect(kind: AbstractKind, target: str) -> str:
    """What the effects of columns are in; of counts they are those of an exposure of 1."""
    if kind.task == "regression":
        return (
            f"change of {target}" if kind.exposure is None else f"change of {target} per unit of {kind.exposure.name}"
        )
    classes = kind.model.classes_
    return f"change of the probability of {str(classes[1])!r}" if len(classes) == 2 else "change of probabilities"


def _summary(result: Result) -> list[tuple[str, str]]:
    """How it was fitted; measures, notes and advice have places of their own."""
    short = {"inducing points": str(result["num_inducing"])}
    return [(label, short.get(label, text)) for label, text in in_lines(result) if label not in ELSEWHERE]


def _made(result: Result) -> str:
    today = datetime.date.today()
    rows = f"{result['rows']:,} training rows, {len(result['features'])} inputs"
    return f"{rows} · pseudopoint {__version__} · {today.day} {today:%B %Y}"


def _measures(test: dict[str, Any] | None, target: str) -> list[tuple[str, str, str, str]]:
    """Measures on test rows, each beside that of a prediction which knows no inputs."""
    if not test:
        return []
    rows = f"{test['rows']:,} test rows, which the fit did not see"
    if "accuracy" in test:
        return [
            ("accuracy", _share(test["accuracy"]), _share(test["majority_accuracy"]), f"rows predicted right; {rows}"),
            (
                "log density",
                _number(test["log_density"]),
                _number(test["log_density_of_shares"]),
                "mean log probability of the true class; nearer to 0 is better",
            ),
            ("Brier score", _number(test["brier"]), "", "from 0, certain and right, to 2, certain and wrong"),
            (
                "calibration error",
                _share(test["calibration_error"]),
                "",
                "how far stated probabilities are from shares",
            ),
        ]
    level = _share(test["level"])
    explained = f"share of the variance of {target} that is explained"
    return [
        ("R²", _number(test["r2"]), "0", f"{explained}; {rows}"),
        ("RMSE", _number(test["rmse"]), _number(test["rmse_of_mean"]), f"typical error, in the units of {target}"),
        ("MAE", _number(test["mae"]), _number(test["mae_of_median"]), "average size of the error"),
        ("coverage", _share(test["coverage"]), level, f"rows inside their {level} interval; {level} is right"),
        (
            "log density",
            _number(test["log_density"]),
            _number(test["log_density_of_normal"]),
            "how probable the truths were; higher is better",
        ),
    ]


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
