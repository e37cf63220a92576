"""Gaussian processes of one and two inputs, reconstructed from exact values (Izmailov's review, 1.2 and figure 1).

f is drawn from the GP at the data points and on a grid. Rows hold one draw: mean and standard deviation on the grid,
and f there. `through` is the largest |E f(xᵢ) − fᵢ| at the data, `formula` the largest difference from K(X*, X) K(X,
X)⁻¹ f computed by NumPy; `covered` is the share of the grid, over all draws, where f lies within two standard
deviations.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from pseudopoint.bounds import marginal
from pseudopoint.data import dataset
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Gaussian
from pseudopoint.params import cast
from pseudopoint.posteriors import Model
from pseudopoint.reproduce import Judgement, untested

SOURCE = "Izmailov, review of GP methods, 1.2, figure 1"
PUBLISHED = ("No finding: pictures of one- and two-dimensional Gaussian processes, reconstructed from their values.",)
CUT = {
    "": "Data and kernel are lost with the figure: ours are drawn from the process itself, with a squared exponential."
}
TABLES = ()
LENGTHSCALE = {1: 0.12, 2: 0.3}
POINTS = {1: 8, 2: 25}


@dataclass(frozen=True)
class Config:
    """All ours. Noise-free, but for what the arithmetic needs."""

    grid: tuple[int, int] = (81, 16)  # points along an axis, for one and two inputs
    draws: int = 500
    noise: float = 1e-8


FULL = Config()
QUICK = Config(draws=20)


def cases(config: Config) -> list[dict[str, Any]]:
    """One and two inputs."""
    return [{"inputs": 1}, {"inputs": 2}]


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """One reconstruction to look at, and how well all of them hold."""
    D, rng = case["inputs"], np.random.default_rng(case["inputs"])
    lengthscale, N = LENGTHSCALE[D], POINTS[D]
    X = rng.uniform(0, 1, (N, D))
    axis = np.linspace(0, 1, config.grid[D - 1])
    grid = np.stack(np.meshgrid(*[axis] * D, indexing="ij"), axis=-1).reshape(-1, D)
    every = np.concatenate([X, grid])
    values, vectors = np.linalg.eigh(covariance(every, every, lengthscale))
    root = vectors * np.sqrt(np.maximum(values, 0))
    model = cast(Model(RBF(lengthscale, 1.0), Gaussian(config.noise)), "float64")
    K = covariance(X, X, lengthscale) + config.noise * np.eye(N)
    inside, through, formula, shown = [], 0.0, 0.0, None
    for _ in range(config.draws):
        f = root @ rng.normal(size=len(every))
        predictor = marginal(model, dataset(X, f[:N])).predictor()
        mean, variance = (np.asarray(x) for x in predictor(jnp.asarray(every)))
        std = np.sqrt(variance)
        inside.append(np.abs(f - mean)[N:] <= 2 * std[N:] + 1e-6)
        through = max(through, float(np.abs(mean - f)[:N].max()))
        # E f* = K(X*, X) K(X, X)⁻¹ f
        dense = covariance(every, X, lengthscale) @ np.linalg.solve(K, f[:N])
        formula = max(formula, float(np.abs(mean - dense).max()))
        shown = shown or {"mean": mean[N:], "std": std[N:], "truth": f[N:], "values": f[:N]}
    assert shown is not None
    drawn: dict[str, Any] = {name: [round(float(x), 3) for x in numbers] for name, numbers in shown.items()}
    drawn["X"] = [[round(float(x), 4) for x in row] for row in X]
    return drawn | {"through": through, "formula": formula, "covered": float(np.mean(inside))}


def covariance(A: np.ndarray, B: np.ndarray, lengthscale: float) -> np.ndarray:
    """exp(−½ ‖a − b‖²/ℓ²)."""
    return np.exp(-0.5 * np.sum((A[:, None] - B) ** 2, axis=-1) / lengthscale**2)


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A line a number of inputs."""
    lines = [["inputs", "data points", "draws", "|mean − f| at the data", "|mean − formula|", "within 2 std"]]
    for row in rows:
        sizes = [str(n) for n in (row["inputs"], len(row["X"]), row["config"]["draws"])]
        lines.append([*sizes, f"{row['through']:.1g}", f"{row['formula']:.1g}", f"{row['covered']:.3f}"])
    return lines


def figure(rows: list[dict[str, Any]]) -> Figure:
    """One input: mean, two standard deviations, f, data. Two inputs: the mean and its standard deviation as maps."""
    panels = [(row, name) for row in rows for name in (("mean",) if row["inputs"] == 1 else ("mean", "std", "truth"))]
    picture = Figure(figsize=(1 + 3.8 * len(panels), 4), layout="constrained")
    for axes, (row, name) in zip(picture.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        X = np.array(row["X"])
        if row["inputs"] == 1:
            x = np.linspace(0, 1, len(row["mean"]))
            mean, std = np.array(row["mean"]), np.array(row["std"])
            axes.fill_between(x, mean - 2 * std, mean + 2 * std, alpha=0.25, label="mean ± 2 standard deviations")
            axes.plot(x, mean, label="mean")
            axes.plot(x, row["truth"], ":", color="gray", label="f")
            axes.plot(X[:, 0], row["values"], "k+", ms=10, label="data")
            axes.set(xlabel="x", ylabel="f(x)", title="one input")
            axes.set_ylim(-3, 4.5)
            axes.legend(fontsize="small", loc="upper right")
        else:
            side = int(np.sqrt(len(row[name])))
            axis = np.linspace(0, 1, side)
            words = {"mean": "mean", "std": "standard deviation", "truth": "f"}[name]
            shape = np.reshape(row[name], (side, side)).T
            picture.colorbar(axes.contourf(axis, axis, shape, levels=15), ax=axes)
            axes.plot(*X.T, "k+", ms=8)
            axes.set(xlabel="x₁", ylabel="x₂", title=f"two inputs: {words}", aspect="equal")
    return picture


def verdict(rows: list[dict[str, Any]]) -> list[Judgement]:
    """None is possible: the review says nothing of its pictures. How well ours hold is said beside them."""
    covered = " and ".join(f"{100 * row['covered']:.1f} %" for row in rows)
    through, formula = (max(row[name] for row in rows) for name in ("through", "formula"))
    return [
        untested(
            f"The mean is within {through:.1g} of f at the data, and within {formula:.1g} of the review's formula "
            f"everywhere; f lies within two standard deviations on {covered} of the grid (95.4 % is right)."
        )
    ]
