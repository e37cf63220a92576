"""What experiments of Izmailov's review share: sets and their start, fits made for so many passes, table and figure.

What the numbers mean is said in `izmailov_svi`.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from pseudopoint.bounds import elbo
from pseudopoint.data import Dataset, dataset
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Gaussian
from pseudopoint.metrics import r2
from pseudopoint.optimise.fullbatch import FitError, OptimiseResult
from pseudopoint.optimise.named import Options, optimise
from pseudopoint.params import cast
from pseudopoint.posteriors import Model, Whitened
from pseudopoint.starts.inducing import kmeans

from ._rows import number, product
from .settings import parts

TABLES = ("boston", "concrete", "abalone", "kin8nm")
# Generated sets by N, D and lengthscale; x uniform on [0, 1]ᴰ, kernel variance 1, noise variance 0.01.
DRAWN = {"GP, 1000 rows": (1000, 2, 0.2), "GP, 5000 rows": (5000, 3, 0.4)}
SIZES = {"GP, 1000 rows": 50, "boston": 50, "concrete": 50, "GP, 5000 rows": 100, "abalone": 100, "kin8nm": 100}  # M
BIG = {"kin40k": 200}  # M
BATCHES = ("svi-natural", "svi-SAG")
WITH_RATE = (*BATCHES, "svi-FG")


def cases(config: Any, methods: Sequence[str]) -> list[dict[str, Any]]:
    """Every method on every set, with each step size if it has one."""
    rates = {method: config.rates if method in WITH_RATE else (None,) for method in methods}
    pairs = product(set=config.sets, method=methods)
    return [pair | {"rate": rate} for pair in pairs for rate in rates[pair["method"]]]


def problem(folder: Path, name: str, M: int, config: Any) -> tuple[Dataset, Dataset, Model]:
    """90 % of the rows for training, the rest, and a model at the start that the config has."""
    return _problem(folder, name, M, config.lengthscale, config.variance, config.noise)


@lru_cache(maxsize=1)  # cases that follow each other share it
def _problem(folder, name, M, lengthscale, variance, noise):
    train, test = drawn(*DRAWN[name]) if name in DRAWN else parts(folder, name, 0)[:2]
    Z = kmeans(np.asarray(train.X), M, 0)
    q = MeanPrecision(np.zeros(M), np.eye(M))
    kernel = RBF(lengthscale * float(np.sqrt(train.X.shape[1])), variance)
    return train, test, cast(Model(kernel, Gaussian(noise), Whitened(Z, q)), "float64")


def drawn(N: int, D: int, lengthscale: float) -> tuple[Dataset, Dataset]:
    """Rows for training and for testing, f drawn from the GP; standardised as tables are."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (N, D))
    norms = np.sum(X**2, axis=1)
    K = np.exp(-0.5 * np.maximum(norms[:, None] + norms - 2 * X @ X.T, 0) / lengthscale**2)
    y = np.linalg.cholesky(K + 0.01 * np.eye(N)) @ rng.normal(size=N)  # noise and all
    X, y, n = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std(), N // 10
    return dataset(X[n:], y[n:]), dataset(X[:n], y[:n])


def curve(
    method: str,
    model: Model,
    train: Dataset,
    test: Dataset,
    passes: Sequence[float],
    batch: int,
    rate: float | None = None,
) -> dict[str, Any]:
    """A fit made for each number of passes; a minimiser that converged is not asked again.

    Its steps: N/B a pass for minibatches, else an evaluation each (an L-BFGS-B iteration may take more than one), but
    for projected Newton, whose Hessian takes 2P gradients, P = 3.
    """
    N, steps, result = len(train), 0, None
    done = [[0.0, 0.0, *quality(model, train, test), 0]]
    B = min(batch, N) if method in BATCHES else N
    cost = 2 * 3 + 2 if method == "means-PN" else B / N
    for budget in passes:
        last, steps = steps, max(1, round(budget / cost))
        if steps == last or (result is not None and method not in WITH_RATE and result.converged):
            continue
        try:
            result = optimise(method, model, train, Options(steps, B, rate, learn_inducing=False, tight=False))
        except FitError:  # every step rejected: the step size is too long
            break
        done.append([budget, result.evaluations * B / N, *quality(result.model, train, test), result.rejected])
    columns = zip(("made_for", "passes", "r2", "bound", "rejected"), zip(*done, strict=True), strict=True)
    figures = {name: [number(x) for x in column] for name, column in columns}
    return figures | {
        "N": N,
        "D": test.X.shape[1],
        "M": len(model.posterior.Z),
        "pass_seconds": result and pace(result, B / N),
    }


def quality(model: Model, train: Dataset, test: Dataset) -> tuple[float, float]:
    """R² on the test rows, and the standard bound of all training rows, at the model's own q."""
    bound, mean = _quality(model, train, test.X)
    return r2(np.asarray(test.y), np.asarray(mean)), float(bound)


@jax.jit
def _quality(model, train, X):
    return elbo(model, train, len(train)).standard, model.predictor()(X)[0]


def pace(result: OptimiseResult, share: float) -> float | None:
    """Seconds a pass, a bound being `share` of one, over records of as many steps as the first, whose program had been
    compiled by then; None if there are none."""
    if not result.history:
        return None
    last = result.history[-1]
    steps, seconds = (
        np.diff([0, *values]) for values in zip(*((r.step, r.seconds) for r in result.history), strict=True)
    )
    like = (steps == steps[0]) & (np.arange(len(steps)) > 0)
    passes = share * result.evaluations * steps[like].sum() / last.step
    return float(f"{seconds[like].sum() / passes:.4g}") if like.any() else None


def best(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """By set and method, the row with the step size whose bound is highest in the end."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: np.nan_to_num(row["bound"][-1], nan=-np.inf)):
        found.setdefault(row["set"], {})[row["method"]] = row
    sets, methods = (dict.fromkeys(row[name] for row in rows) for name in ("set", "method"))
    return {name: {method: found[name][method] for method in methods if method in found[name]} for name in sets}


def complete(rows: list[dict[str, Any]], methods: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """As `best`, the sets that have all of these methods."""
    return {name: found for name, found in best(rows).items() if set(methods) <= set(found)}


def within(row: dict[str, Any], passes: float, by: str = "passes") -> float:
    """Test R² after the longest fit of no more passes; without one, that of the start."""
    return [score for at, score in zip(row[by], row["r2"], strict=True) if at <= passes or at == 0][-1]


def after(row: dict[str, Any], passes: float) -> float:
    """Test R² after the fit made for so many passes; what has converged stays there."""
    return within(row, passes, "made_for")


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Test R² after so many passes, and what a pass costs; a line a set and method."""
    marks = sorted({budget for row in rows for budget in row["config"]["passes"]})
    lines = [["set", "N", "D", "M", "method", "step", *(f"R², {mark:g} passes" for mark in marks)]]
    lines[0] += ["bound at the end", "ms a pass", "rejected"]
    for name, methods in best(rows).items():
        for method, row in methods.items():
            line = [name, *(str(row[key]) for key in ("N", "D", "M")), method, f"{row.get('rate') or ''}"]
            line += [f"{after(row, mark):.4f}" for mark in marks] + [f"{row['bound'][-1]:.1f}"]
            milliseconds = "" if row["pass_seconds"] is None else f"{1000 * row['pass_seconds']:.3g}"
            lines.append([*line, milliseconds, f"{row['rejected'][-1]:.0f}"])
    return lines


def figure(rows: list[dict[str, Any]]) -> Figure:
    """Test R² against passes over the data, and against seconds; a column a set."""
    sets = best(rows)
    picture = Figure(figsize=(1 + 3.4 * len(sets), 6.5), layout="constrained")
    grid = picture.subplots(2, len(sets), squeeze=False, sharey="col")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for column, (name, found) in zip(grid.T, sets.items(), strict=True):
        first = next(iter(found.values()))
        column[0].set(title=f"{name}\nn = {first['N']}, d = {first['D']}, m = {first['M']}", ylabel="test R²")
        column[0].set(xlabel="passes over the data")
        column[0].set_xscale("symlog", linthresh=1)
        column[1].set(xlabel="seconds, without compilation", ylabel="test R²")
        times = [row["passes"][1] * row["pass_seconds"] for row in found.values() if row["pass_seconds"]]
        column[1].set_xscale("symlog", linthresh=min(times, default=1))
        for method, row in found.items():
            look: dict[str, Any] = {"color": f"C{methods.index(method)}", "marker": "."}
            label = f"{method}, step {row['rate']:g}" if row.get("rate") else method
            column[0].plot(row["passes"], row["r2"], label=label, **look)
            if row["pass_seconds"] is not None:
                column[1].plot(np.array(row["passes"]) * row["pass_seconds"], row["r2"], **look)
        low = min(min(row["r2"]) for row in found.values())
        column[0].set_ylim(max(low, -0.1) - 0.03, 1.02)
        column[0].legend(fontsize="x-small", loc="best")
    return picture
