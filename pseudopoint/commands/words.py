"""Results as lines for people."""

from typing import Any

Lines = list[tuple[str, str]]
SHOWN = 10  # classes, or numbers of a list
TELLING = 0.1  # nats a row


def in_lines(result: dict[str, Any]) -> Lines:
    """A result as (label, text) pairs for people."""
    lines: Lines = []
    add = lambda label, text: lines.append((label, text))
    if "model" in result and "created" in result:
        add("model", f"{result['model']} (pseudopoint {result['library_version']}, {result['created']})")
        add("kind", f"{result['kind']}, for {result['task']}")
    if "target" in result:
        new = f", {result['new_rows']:,} of them new" if "new_rows" in result else ""
        features = f"{len(result['features'])} features, target {result['target']!r}"
        add("data", f"{result['rows']:,} training rows{new}, {features}")
    if "task_reason" in result:
        add("task", f"{result['task']} — {result['task_reason']}")
    if result.get("classes"):
        add("classes", f"{len(result['classes'])}: {_listed([repr(label) for label in result['classes']])}")
    lines += _model_lines(result) if "method" in result else []
    lines += _measure_lines(result if "log_density" in result else result.get("test"))
    if result.get("refitted"):
        add("then", "fitted to all rows, those that measured it included; --no-refit leaves them out")
    if result.get("n_rejected"):
        add("rejected steps", f"{result['n_rejected']} steps went bad and were rejected and shortened")
    if "seconds" in result:
        add("time", f"{result['seconds']:.1f} s")
    if "exported" in result:
        add("exported", result["exported"])
        lines += [(name, _listed(result[name])) for name in ("inputs", "outputs")]
    if "created" not in result:
        lines += [(name, result[name]) for name in ("model", "predictions", "report") if result.get(name)]
    return lines + [("note", note) for note in result.get("notes", [])]


def _model_lines(result: dict[str, Any]) -> Lines:
    lines = [("method", f"{result['method']} — {result['reason']}")]
    if result.get("chosen"):
        lines.append(("chosen", ", ".join(f"{part}: {choice}" for part, choice in result["chosen"].items())))
    if result["num_inducing"] is not None:
        lines.append(("inducing points", f"{result['num_inducing']}. {result['advice']}"))
    lines.append(_bound_line(result))
    if "kernel_variance" in result:
        variance = "" if result["kernel_variance"] is None else f", variance {result['kernel_variance']:.4g}"
        lines.append(("kernel", f"{result['kernel']}{variance}"))
        lines += [(f"lengthscale {name}", f"{value:.4g}") for name, value in (result["lengthscales"] or {}).items()]
    if result["noise_std"] is None:
        numbers = [f"{name} {_value(value)}" for name, value in result["likelihood_parameters"].items()]
        if result.get("latent_mean") is not None:
            numbers.append(f"mean of the latent function {_value(result['latent_mean'])}")
        aside = " (of the standardised target)" if numbers and result.get("target_scale", 1.0) != 1.0 else ""
        lines.append(("likelihood", ", ".join([result["likelihood"], *numbers]) + aside))
    elif "kernel_variance" in result:
        lines.append(("noise", f"standard deviation {result['noise_std']:.4g}"))
    return lines


def _bound_line(result: dict[str, Any]) -> tuple[str, str]:
    value = f"{result['bound']:,.1f} nats"
    if result["method"] == "laplace":
        return "log evidence", f"{value} by Laplace's approximation, which is no bound"
    # A gap of more nats a row says nothing: the upper bound is loose.
    known = result["num_inducing"] is not None and result["upper_bound"] is not None
    if known and result["upper_bound"] - result["bound"] < TELLING * result["rows"]:
        value += f" (Titsias' bound {result['bound_vfe']:,.1f}, upper bound {result['upper_bound']:,.1f})"
    return "bound", value


def _measure_lines(test: dict[str, Any] | None) -> Lines:
    if not test:
        return []
    lines = [("test rows", f"{test['rows']:,}")]
    return lines + (_class_lines(test) if "accuracy" in test else _number_lines(test))


def _number_lines(test: dict[str, Any]) -> Lines:
    standardised = test["log_density_standardised"]
    aside = "" if standardised is None else f" ({standardised:.4f} with the target standardised)"
    # Model files of earlier versions have no measures of predictions without inputs.
    beside = lambda name, what: f" ({what} would have {test[name]:.5g})" if test.get(name) is not None else ""
    return [
        ("RMSE", f"{test['rmse']:.5g}{beside('rmse_of_mean', 'always the mean')}"),
        ("MAE", f"{test['mae']:.5g}{beside('mae_of_median', 'always the median')}"),
        ("R²", f"{test['r2']:.4f}"),
        ("log density", f"{test['log_density']:.4f} a row{aside}"),
        ("coverage", f"{100 * test['coverage']:.1f} % of rows inside the {100 * test['level']:g} % interval"),
    ]


def _class_lines(test: dict[str, Any]) -> Lines:
    always = f"always {test['majority_class']!r} would have {test['majority_accuracy']:.4f}"
    return [
        ("accuracy", f"{test['accuracy']:.4f} ({always})"),
        ("log density", f"{test['log_density']:.4f} a row, the mean log probability of the true class"),
        ("Brier score", f"{test['brier']:.4f}, from 0 to 2"),
        ("calibration error", f"{test['calibration_error']:.4f}, expected over 15 bins"),
    ]


def _value(value: Any) -> str:
    if isinstance(value, list):
        return _listed([f"{item:.4g}" for item in value], " ")
    return value if isinstance(value, str) else f"{value:.4g}"


def _listed(texts: list[str], comma: str = ", ") -> str:
    return comma.join(texts[:SHOWN] + ["…"] * (len(texts) > SHOWN))
