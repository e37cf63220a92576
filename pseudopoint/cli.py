"""The command line: options, progress and words. What the commands do is in `commands`.

Everything heavy is imported inside a command, so that --help answers at once.
"""

import json
import math
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pseudopoint import __version__
from pseudopoint.compilation import keep_compiled
from pseudopoint.optimise.result import Record
from pseudopoint.shell import run, visible

__all__ = ["main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Gaussian processes for tables of any size: calibrated predictions from one command.",
)
Task = StrEnum("Task", ["auto", "regression", "classification"])
Method = StrEnum("Method", ["auto", "exact", "laplace", "collapsed", "svgp"])
Likelihood = StrEnum(
    "Likelihood",
    "auto gaussian heteroscedastic student_t laplace poisson negative_binomial gamma exponential beta ordinal "
    "logit probit softmax robustmax",
)
Kernel = StrEnum("Kernel", ["matern52", "matern32", "matern12", "rbf", "rational_quadratic", "periodic", "linear"])
Precision = StrEnum("Precision", ["auto", "float64", "float32"])
Initial = StrEnum("Initial", ["warm", "robust", "ulapane"])

OPTIMISER = (
    "One of the papers' optimisers by name, which implies the method: NGD, NGD+Adam, Adam, GD, L-BFGS, svi-natural, "
    "svi-SAG, svi-FG, svi-L-BFGS-B, vi-means, means-L-BFGS-B, means-PN, t-SVGP, sites."
)

POSTERIOR = "Family of the approximate posterior: whitened, unwhitened, diagonal, decoupled, hybrid, orthogonal, solve."

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Table = Annotated[Path, typer.Argument(help="CSV, CSV.gz or Parquet.")]
ModelFile = Annotated[Path, typer.Argument(help="A model file written by fit.")]
Interval = Annotated[float, typer.Option(help="Probability of the interval; for numbers.")]


@app.command()
def fit(
    table: Table,
    target: Annotated[str, typer.Option(help="The column to predict.")],
    task: Annotated[Task, typer.Option(help="auto goes by the target or the likelihood, and says why.")] = Task.auto,
    likelihood: Annotated[
        Likelihood,
        typer.Option(help="How the target scatters; for classes: logit, probit, softmax, robustmax."),
    ] = Likelihood.auto,
    test_fraction: Annotated[float, typer.Option(help="Share of rows held out to measure the fit.")] = 0.1,
    test: Annotated[Path | None, typer.Option(help="A table of its own to measure the fit on.")] = None,
    missing: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="A word that marks a missing value; may be repeated.")
    ] = None,
    kernel: Annotated[Kernel, typer.Option()] = Kernel.matern52,
    method: Annotated[
        Method,
        typer.Option(
            help="auto chooses by the number of rows, and says why. exact: gaussian only; laplace: any other."
        ),
    ] = Method.auto,
    optimiser: Annotated[str, typer.Option(help=OPTIMISER)] = "auto",
    posterior: Annotated[str, typer.Option(help=POSTERIOR)] = "whitened",
    mean_inducing: Annotated[
        int | None, typer.Option(min=1, help="Points of the mean alone, for such a posterior.")
    ] = None,
    inducing: Annotated[int | None, typer.Option(min=1, help="Number of inducing points; chosen when absent.")] = None,
    max_iter: Annotated[int | None, typer.Option(min=1, help="Iterations, or minibatch steps of svgp.")] = None,
    initial: Annotated[Initial, typer.Option(help="Where hyperparameters start.")] = Initial.warm,
    lengthscale_prior: Annotated[
        float, typer.Option(help="Standard deviation of log lengthscales around their start; inf: no prior.")
    ] = 1.5,
    dtype: Annotated[
        Precision, typer.Option(help="auto: float64, but large tables climb in float32 where the noise allows it.")
    ] = Precision.auto,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the model file here.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    as_json: Json = False,
):
    """Fit a Gaussian process to a table, and measure it on rows held out.

    The target may hold numbers (regression, also of counts, positive amounts, proportions and ratings) or classes:
    text, true/false values, or two different numbers.
    """
    from pseudopoint import commands

    settings = {"kernel": str(kernel), "method": str(method), "optimiser": optimiser, "num_inducing": inducing}
    settings |= {"posterior": posterior, "num_mean_inducing": mean_inducing}
    settings |= {"max_iter": max_iter, "initial": str(initial), "dtype": str(dtype)}
    settings |= {"lengthscale_prior": lengthscale_prior}
    with _Progress() as progress:
        result = commands.fit_table(
            table,
            target,
            task=str(task),
            likelihood=str(likelihood),
            test_fraction=test_fraction,
            test=test,
            missing=missing or (),
            out=out,
            report=report,
            seed=seed,
            progress=None if as_json else progress,
            **settings,
        )
    _show(result, as_json)
    if out is None and not as_json:
        Console(stderr=True).print("The model was not saved: give --out MODEL to keep it.")


@app.command()
def predict(
    model: ModelFile,
    table: Table,
    out: Annotated[Path, typer.Option(help="Write predictions here: .csv, .csv.gz or .parquet.")],
    interval: Interval = 0.9,
    as_json: Json = False,
):
    """Write predictions for every row of a table, in its order.

    Numbers: TARGET_mean, TARGET_std, TARGET_lower_90, TARGET_upper_90. Classes: TARGET_predicted, and the probability
    TARGET_p_LABEL of every class.
    """
    from pseudopoint import commands

    _show(commands.predict_table(model, table, out, interval), as_json)


@app.command()
def score(model: ModelFile, table: Table, interval: Interval = 0.9, as_json: Json = False):
    """Measure a model on a table that holds the target.

    Numbers: RMSE, MAE, R², log density, coverage. Classes: accuracy, log density, Brier score, calibration error.
    """
    from pseudopoint import commands

    _show(commands.score_table(model, table, interval), as_json)


@app.command()
def inspect(model: ModelFile, as_json: Json = False):
    """Say what a model file holds: kind, classes, kernel, lengthscales, likelihood, method, bound, rows, version."""
    from pseudopoint import commands

    _show(commands.inspect_model(model), as_json)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the model, the predictions and the report.")] = Path("demo"),
    as_json: Json = False,
):
    """Fit the naval propulsion table that comes with the package."""
    from pseudopoint import commands

    with _Progress() as progress:
        result = commands.demo(out, None if as_json else progress)
    _show(result, as_json)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment, or all; without it they are listed.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small settings: that it works, not what it finds.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for rows, figures and the page [reproduction/full, quick or stored].")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with NAME.csv.gz; else PSEUDOPOINT_DATA.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch missing tables into the data folder.")] = False,
    stored: Annotated[bool, typer.Option("--stored", help="Compute nothing: show the rows of the stored run.")] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="Compute nothing: show the rows in OUT.")] = False,
    experiments: Annotated[Path | None, typer.Option(help="A folder of experiments of your own.")] = None,
    as_json: Json = False,
):
    """Reproduce the papers' figures and tables: NAME, or all of them; run again, it goes on where it stopped.

    Each experiment's rows are in OUT/NAME.jsonl, its figure in OUT/NAME.png; the page is OUT/NAME.html, or
    OUT/report.html for all.
    """
    from pseudopoint import reproduce as work

    folder = work.experiments_folder(experiments)
    place = out or Path("reproduction") / ("stored" if stored else "quick" if quick else "full")
    rows_from = work.stored_folder(folder) if stored else place
    if name is None:
        result: dict[str, Any] = {"experiments": work.listing(rows_from, folder, quick)}
    else:
        compute = not (stored or report_only)
        with _Rows(as_json) as progress:
            job = work.Job(place, folder, data, rows_from, quick, compute, download, progress)
            result = work.reproduce(name, job)
    _show(result, as_json, work.in_lines)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False):
    if version:
        print(f"pseudopoint {__version__}")
        raise typer.Exit


class _Progress:
    """A bar with objective, speed and time left; where the output is no terminal, a plain line every five seconds."""

    def __init__(self):
        self.console, self.spoken = Console(stderr=True), 0.0
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self):
        return self

    def __call__(self, record: Record):
        speed = record.step / max(record.seconds, 1e-9)
        text = f"objective {record.bound:,.1f}  {speed:.1f} steps/s"
        if not self.console.is_terminal:
            if record.seconds - self.spoken >= 5:
                self.spoken = record.seconds
                self.console.print(f"step {record.step} of {record.total}: {text}", highlight=False)
            return
        if self.bar is None:
            self.bar, self.task = _bar(self.console, record.total)
        self.bar.update(self.task, completed=record.step, text=text)

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.stop()


class _Rows:
    """A bar over the rows of each experiment; where the output is no terminal, a plain line a row."""

    def __init__(self, silent: bool):
        self.console, self.silent = Console(stderr=True), silent
        self.bar: Any = None
        self.name: str = ""
        self.task: Any = None

    def __enter__(self):
        return self

    def __call__(self, step):
        if self.silent:
            return
        text = ", ".join(str(value) for value in step.case.values())
        if not self.console.is_terminal:
            line = f"{step.name} {step.done}/{step.total}: {text} ({step.seconds:.1f} s)"
            self.console.print(line, highlight=False, markup=False)
            return
        if step.name != self.name:
            self.__exit__()
            self.name, (self.bar, self.task) = step.name, _bar(self.console, step.total, step.name)
        self.bar.update(self.task, completed=step.done, text=text.replace("[", "\\["))

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.stop()


def _bar(console, total, name="fitting"):
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    counts = TextColumn("{task.completed}/{task.total}  {task.fields[text]}  time left")
    bar = Progress(name, BarColumn(), counts, TimeRemainingColumn(), console=console, transient=True)
    bar.start()
    return bar, bar.add_task("fit", total=total, text="")


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
    keep_compiled()
    app()
