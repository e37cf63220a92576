"""The command line: options, progress and output. What the commands do is in `commands`; the settings of a fit and the
words that they take are those of `names`.

Everything heavy is imported inside a command, so that --help answers at once.
"""

import inspect as signatures
import json
import math
import sys
from collections.abc import Callable
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pseudopoint import __version__
from pseudopoint.bar import Bar
from pseudopoint.names import SETTINGS, TASKS, Setting
from pseudopoint.shell import at_once, run, visible

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Gaussian processes for tables of any size: calibrated predictions from one command.",
)
Task = StrEnum("Task", list(TASKS))
AUTO = Task("auto")
Format = StrEnum("Format", ["onnx"])
ONNX = Format("onnx")
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Table = Annotated[Path, typer.Argument(help="CSV, CSV.gz or Parquet; also a folder or a quoted glob of them.")]
ModelFile = Annotated[Path, typer.Argument(help="A model file written by fit.")]
Level = Annotated[float, typer.Option(help="Probability of the interval around each prediction; for numbers.")]
RENAMED = {"--interval": "--level", "--mean-inducing": "--num-mean-inducing", "--seed": "--random-state"}


def settings_as_options(command: Callable) -> Callable:
    """The command with an option for each of `SETTINGS` in place of its **settings. What is not given is None."""
    signature = signatures.signature(command)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    options = [_option(name, setting) for name, setting in SETTINGS.items()]
    vars(command)["__signature__"] = signature.replace(parameters=own + options)
    return command


def _option(name: str, setting: Setting) -> signatures.Parameter:
    kind, shown = int if setting.kind is Any else setting.kind, None
    if name in ("kernel", "priors"):  # words that may be added and multiplied, or listed
        kind, shown = str, "WORDS"
    elif setting.words:
        kind, shown = StrEnum(name, {str(word): str(word) for word in setting.words}), "WORD"
    words = f" One of {', '.join(map(str, setting.words))}." if setting.words else ""
    about = typer.Option(
        help=setting.help + words + _default(setting.default),
        metavar=shown,
        case_sensitive=False,
        show_default=False,
        rich_help_panel="Settings",
    )
    annotation = Annotated[kind | None, about]
    return signatures.Parameter(name, signatures.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _default(value: Any) -> str:
    return "" if value is None else f" Default: {value}."


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given, words as Python has them."""
    words = {name: {str(word): word for word in SETTINGS[name].words} for name in settings}
    return {name: words[name].get(str(value), value) for name, value in settings.items() if value is not None}


TestFrom = Annotated[
    str | None, typer.Option(metavar="TIME", help="Measure on the rows from this date or number on, in --time.")
]
TestLast = Annotated[float | None, typer.Option(help="Measure on this last share of the rows in time, such as 0.1.")]
Time = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="The column of the time. Default: the one column of dates.")
]
Weights = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="The column that says how often a row was seen; no input.")
]
Exposure = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="What a count refers to, such as time or persons; for poisson.")
]
Missing = Annotated[
    list[str] | None, typer.Option(metavar="WORD", help="A word that marks a missing value; may be repeated.")
]
Stream = Annotated[
    bool | None,
    typer.Option(
        "--stream/--no-stream",
        help="Read the table part by part. Default: tables larger than memory, folders and globs, checkpoints.",
    ),
]
Checkpoint = Annotated[
    Path | None, typer.Option(help="A folder that keeps the state of the fit, every minute and when stopped.")
]
Cluster = Annotated[str | None, typer.Option(metavar="ADDRESS", help="A Dask cluster whose workers hold the rows.")]
Workers = Annotated[int | None, typer.Option(help="Processes on this machine that share the rows, by Dask.")]


@app.command(epilog="`pseudopoint options` explains the words that settings take.")
@settings_as_options
def fit(
    table: Table,
    target: Annotated[str, typer.Option(help="The column to predict.")],
    task: Annotated[Task, typer.Option(help="What the target holds; auto finds out, and says why.")] = AUTO,
    test_fraction: Annotated[float, typer.Option(help="Share of rows held out to measure the fit.")] = 0.1,
    test: Annotated[Path | None, typer.Option(help="A table of its own to measure the fit on.")] = None,
    test_from: TestFrom = None,
    test_last: TestLast = None,
    time: Time = None,
    refit: Annotated[bool, typer.Option(help="Whether the model is fitted to all rows once it is measured.")] = True,
    weights: Weights = None,
    exposure: Exposure = None,
    missing: Missing = None,
    stream: Stream = None,
    checkpoint: Checkpoint = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the fit in the checkpoint's folder.")] = False,
    cluster: Cluster = None,
    workers: Workers = None,
    out: Annotated[Path | None, typer.Option(help="Write the model file here.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    as_json: Json = False,
    **settings: Any,
):
    """Fit a Gaussian process to a table, and measure it on rows held out.

    Numbers are a regression: also counts, positive amounts, proportions and ratings.
    Text, true/false values and two different numbers are classes.
    """
    commands = _commands()

    with Bar(as_json) as bar:
        files = {"test": test, "out": out, "report": report, "checkpoint": checkpoint}
        options: dict[str, Any] = {"task": str(task), "test_fraction": test_fraction, "missing": missing or ()}
        options |= {"stream": stream, "resume": resume, "refit": refit, "weights": weights, "exposure": exposure}
        options |= {"test_from": test_from, "test_last": test_last, "time_column": time}
        options |= {"cluster": cluster, "workers": workers}
        try:
            result = commands.fit_table(table, target, **options, **files, **_given(settings), progress=bar.fitted)
        except KeyboardInterrupt:
            if checkpoint is not None:
                Console(stderr=True).print(f"--resume goes on with the fit in {checkpoint}", markup=False)
            raise
    _show(result, as_json)
    if out is None and not as_json:
        Console(stderr=True).print("The model was not saved: give --out MODEL to keep it.")


@app.command()
def options(
    name: Annotated[str | None, typer.Argument(help="A setting of fit; all of them when absent.")] = None,
    as_json: Json = False,
):
    """Explain the settings of fit, word by word."""
    wanted = name and name.replace("-", "_")
    if wanted and wanted not in SETTINGS:
        raise ValueError(f"the setting {name!r} is unknown: use one of {', '.join(SETTINGS)}")
    chosen = {each: setting for each, setting in SETTINGS.items() if wanted in (None, each)}
    _show({each: _explained(setting) for each, setting in chosen.items()}, as_json, _option_lines)


def _explained(setting: Setting) -> dict[str, Any]:
    words = {str(word): text for word, text in setting.words.items()}
    return {"help": setting.help, "default": setting.default, "words": words}


def _option_lines(result: dict[str, Any]):
    for name, about in result.items():
        yield f"--{name.replace('_', '-')}", about["help"] + _default(about["default"])
        yield from ((f"    {word}", text) for word, text in about["words"].items())


@app.command()
def predict(
    model: ModelFile,
    table: Table,
    out: Annotated[Path, typer.Option(help="Write predictions here: .csv, .csv.gz or .parquet.")],
    level: Level = 0.9,
    as_json: Json = False,
):
    """Write predictions for every row of a table, in its order.

    Numbers: TARGET_mean, TARGET_std, TARGET_lower_90, TARGET_upper_90.
    Classes: TARGET_predicted, and the probability TARGET_p_LABEL of every class.
    """
    commands = _commands()

    _show(commands.predict_table(model, table, out, level), as_json)


@app.command()
def score(model: ModelFile, table: Table, level: Level = 0.9, weights: Weights = None, as_json: Json = False):
    """Measure a model on a table that holds the target.

    Numbers: RMSE, MAE, R², log density, share of rows inside the interval.
    Classes: accuracy, log density, Brier score, calibration error.
    """
    commands = _commands()

    _show(commands.score_table(model, table, level, weights), as_json)


@app.command()
def export(
    model: ModelFile,
    to: Annotated[Format, typer.Option(help="The format; onnx needs pip install 'pseudopoint[onnx]'.")] = ONNX,
    out: Annotated[Path | None, typer.Option(help="Write it here. Default: MODEL with the ending .onnx.")] = None,
    level: Level = 0.9,
    as_json: Json = False,
):
    """Write a model for other runtimes: its predictions as an ONNX graph.

    Inputs are the columns of the table as they are; outputs are named as those of predict.
    """
    commands = _commands()

    _show(commands.export_model(model, out, level), as_json)


@app.command()
def update(
    model: ModelFile,
    table: Table,
    out: Annotated[Path, typer.Option(help="Write the updated model file here; it may be MODEL itself.")],
    weights: Weights = None,
    new_inducing: Annotated[int, typer.Option(help="Inducing points to add where the old ones say least.")] = 0,
    as_json: Json = False,
):
    """Give a model the rows of a table besides those of its fit, without the old rows.

    Kernel, noise and inducing points stay as fitted. Under Gaussian noise the result is a fit of all rows.
    """
    commands = _commands()

    _show(commands.update_table(model, table, out, weights, new_inducing), as_json)


@app.command()
def inspect(model: ModelFile, as_json: Json = False):
    """Say what a model file holds.

    Kind, classes, kernel, lengthscales, likelihood, method, bound, rows, version.
    """
    commands = _commands()

    _show(commands.inspect_model(model), as_json)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the model, the predictions and the report.")] = Path("demo"),
    as_json: Json = False,
):
    """Fit the table of concrete strengths that comes with the package."""
    commands = _commands()

    with Bar(as_json) as bar:
        result = commands.demo(out, bar.fitted)
    _show(result, as_json)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment, or all. Without it they are listed.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small settings, which show that it works and test no finding.")
    ] = False,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's setting where the full run has a smaller one: hours to days.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for rows, figures and the page; else reproduction/full, quick, paper or stored."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the tables NAME.csv.gz; else PSEUDOPOINT_DATA.")
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch missing tables into the data folder.")] = False,
    stored: Annotated[bool, typer.Option("--stored", help="Compute nothing; show the rows of the stored run.")] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="Compute nothing; show the rows in OUT.")] = False,
    experiments: Annotated[Path | None, typer.Option(help="A folder of experiments of your own.")] = None,
    as_json: Json = False,
):
    """Reproduce the papers' figures and tables: one, or all. A run that was stopped goes on.

    Rows are in OUT/NAME.jsonl, the figure is OUT/NAME.png.
    The page is OUT/NAME.html, or OUT/report.html for all.
    """
    from pseudopoint import reproduce as work

    folder = work.experiments_folder(experiments)
    kind = "stored" if stored else "quick" if quick else "paper" if paper else "full"
    place = out or Path("reproduction") / kind
    rows_from, compute = work.stored_folder(folder, paper) if stored else place, not (stored or report_only)
    with Bar(as_json) as bar:
        job = work.Job(place, folder, data, rows_from, quick, compute, download, bar.reproduced, paper)
        result = {"experiments": work.listing(job)} if name is None else work.reproduce(name, job)
    _show(result, as_json, work.in_lines)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False):
    if version:
        print(f"pseudopoint {__version__}")
        raise typer.Exit


def _commands() -> Any:
    """The module; a signal while its libraries are imported, when there is nothing to undo, ends the process."""
    with at_once():
        from pseudopoint import commands
    return commands


def _show(result: dict[str, Any], as_json: bool, in_lines: Callable | None = None):
    if as_json:
        print(json.dumps(_plain(result), allow_nan=False))
        return
    from rich.table import Table as Grid

    if in_lines is None:
        from pseudopoint.commands import in_lines

    console, lines = Console(), in_lines(result)
    if not console.is_terminal:
        for label, text in lines:
            print(visible(f"{label}: {text}"))
        return
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for label, text in lines:
        grid.add_row(visible(label).replace("[", "\\["), visible(text).replace("[", "\\["))
    console.print(grid)


def _plain(value):
    """JSON has no NaN: what is not a finite number is null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main() -> None:
    """Run the command line. Every failure is one sentence on standard error and a non-zero exit status."""
    run(_start)


def _start():
    _refuse_old(sys.argv[1:])
    app()


def _refuse_old(arguments: list[str]) -> None:
    """Raises ValueError, which names the new option, for one of earlier versions."""
    for argument, following in pairwise([*arguments, ""]):
        option, _, value = argument.partition("=")
        if option in RENAMED:
            raise ValueError(f"the option {option} is called {RENAMED[option]} now")
        if option == "--inducing" and (value or following).isdigit():
            raise ValueError("the number of inducing points is --num-inducing now; --inducing says where they start")
