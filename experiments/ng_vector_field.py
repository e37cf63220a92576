"""Two parameters: the natural gradient against the ordinary one, arrows and paths (Salimbeni et al. 2018, figure 1).

A Bernoulli likelihood, eight rows of our own (and four more data sets of eight, which are drawn), one pseudo-point,
q(v) = N(m, s²). In each of three systems of
coordinates ξ, on a grid of (m, log s): `natural_off` and `ordinary_off` are the median angles, in degrees, between a
gradient and the way to the optimum, in ξ; `natural_length` and `ordinary_length` its length over that of the way, as
quantiles of 10, 50 and 90 %. Paths follow very small steps of either from one q to where it stands still. Bound,
arrows and paths are given in (m, s), whatever ξ is, so that they may be compared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from scipy.integrate import solve_ivp

from pseudopoint.data import dataset
from pseudopoint.gaussians import MeanChol, MeanCovariance, MeanPrecision, Natural, natural_gradient
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Bernoulli
from pseudopoint.optimise.fullbatch import converge
from pseudopoint.optimise.minibatch import with_q
from pseudopoint.optimise.named import in_coordinates, standard_elbo
from pseudopoint.params import cast
from pseudopoint.posteriors import Model, Whitened
from pseudopoint.reproduce import Judgement, judged, untested, within

from ._rows import grouped, product

SOURCE = "Salimbeni, Eleftheriadis and Hensman 2018, figure 1"
PUBLISHED = (
    "The natural gradient is correctly scaled.",
    "It points in a better direction than the ordinary one.",
    "Very small steps of it take a path that does not depend on the parameterisation.",
)
CUT = {
    "": "The paper does not print its data: eight rows of our own, and four data sets that are drawn, so that there is "
    "a spread. Each system of coordinates counts for itself."
}
TABLES = ()
SAME = 0.01  # distance in (m, s)
COORDINATES = {"mean/var-sqrt": MeanChol, "mean/var": MeanCovariance, "natural": Natural}


@dataclass(frozen=True)
class Config:
    """One pseudo-point; data, grid and start are ours."""

    lengthscale: float = 1.0
    variance: float = 2.0
    means: tuple[float, float, int] = (-1.5, 3.0, 19)
    log_stds: tuple[float, float, int] = (-2.0, 0.7, 19)
    start: tuple[float, float] = (-1.0, 0.2)  # m, s
    points: int = 40  # of a path
    every: int = 3  # point of the grid has arrows
    sets: int = 5
    coordinates: tuple[str, ...] = tuple(COORDINATES)


FULL = Config()
QUICK = Config(
    means=(-1.5, 3.0, 10), log_stds=(-2.0, 0.7, 10), points=20, sets=1, coordinates=("mean/var-sqrt", "natural")
)
COUNTS = ("coordinates", "sets")


def cases(config: Config) -> list[dict[str, Any]]:
    """Every system of coordinates on every data set."""
    return product(data=range(config.sets), coordinates=config.coordinates)


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """Fields and paths."""
    bound, fields, xi, back = functions(case["coordinates"], case["data"], config)
    best = optimum(case["data"], config)
    means, log_stds = (np.linspace(*ends) for ends in (config.means, config.log_stds))
    grid = np.stack(np.meshgrid(means, np.exp(log_stds)), -1)  # [s, m, 2]
    place, first = each(xi, grid), np.asarray(xi(np.array(config.start)))
    way = xi(best) - place
    figures: dict[str, Any] = {"optimum": rounded(best), "bound": rounded(each(bound, grid))}
    for name, field in fields.items():
        arrows = each(field, place)
        length, distance = (np.linalg.norm(a, axis=-1) for a in (arrows, way))
        cosine = np.clip(np.sum(arrows * way, -1) / (length * distance), -1, 1)
        figures[f"{name}_off"] = float(f"{np.median(np.degrees(np.arccos(cosine))):.4g}")
        figures[f"{name}_length"] = rounded(np.quantile(length / distance, (0.1, 0.5, 0.9)))
        # An arrow of ξ as one of (m, s): (∂(m, s)/∂ξ) field(ξ)
        push = lambda x, field=field: jax.jvp(back, (x,), (field(x),))[1]
        figures[f"{name}_arrows"] = rounded(each(push, place[:: config.every, :: config.every]), 3)
        figures[f"{name}_path"] = rounded(path(field, first, back, config.points), 6)
    return figures


def each(function: Callable, grid: Any) -> np.ndarray:
    """The function at every point of a grid, [s, m, 2]."""
    return np.asarray(jax.jit(lambda g: jax.lax.map(jax.vmap(function), g))(jnp.asarray(grid)))


def rounded(values: Any, digits: int = 5) -> Any:
    """Lists of numbers with so many digits."""
    return np.vectorize(lambda x: float(f"{x:.{digits}g}"))(np.asarray(values)).tolist()


@cache
def model_of(number: int, config: Config) -> tuple[Model, Any]:
    """Eight rows, most of them 1, and the start. Data set 0 is written down; in others inputs are uniform, and one to
    three rows are 0."""
    x, y = np.array([-1.2, -0.9, -0.5, -0.2, 0.1, 0.4, 0.8, 1.3]), np.array([0, 1, 1, 1, 1, 0, 1, 1])
    if number:
        rng = np.random.default_rng(number)
        x, y = np.sort(rng.uniform(-1.5, 1.5, 8)), rng.permutation(np.arange(8) >= rng.integers(1, 4)).astype(int)
    data = dataset(x[:, None], y, dtype=float)
    q, kernel = MeanPrecision(np.zeros(1), np.eye(1)), Matern52(config.lengthscale, config.variance)
    return cast(Model(kernel, Bernoulli("logit"), Whitened(np.zeros((1, 1)), q, 1e-10)), "float64"), data


@cache
def optimum(number: int, config: Config) -> np.ndarray:
    """m and s of the best q."""
    model, data = model_of(number, config)
    best: Any = in_coordinates(jax.jit(lambda m, d: converge(m, d, tight=False))(model, data), MeanChol)
    return np.array([best.posterior.q.mean[0], best.posterior.q.chol[0, 0]])


@cache
def functions(name: str, number: int, config: Config) -> tuple[Callable, dict[str, Callable], Callable, Callable]:
    """The bound of (m, s), the natural and the ordinary gradient in ξ, and the maps (m, s) ↦ ξ and back."""
    (model, data), cls = model_of(number, config), COORDINATES[name]
    of = lambda q: standard_elbo(with_q(model, q), data)
    flat = lambda q: jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(q)])
    q_of = lambda ms: MeanChol(ms[:1], ms[1:].reshape(1, 1))
    shaped = lambda xi: cls(xi[:1], xi[1:].reshape(1, 1))
    fields = {
        "natural": jax.jit(lambda xi: flat(natural_gradient(of, shaped(xi)))),
        "ordinary": jax.jit(jax.grad(lambda xi: of(shaped(xi)))),
    }
    xi = jax.jit(lambda ms: flat(cls.from_natural(q_of(ms).to_natural())))
    back = jax.jit(lambda xi: flat(MeanChol.from_natural(shaped(xi).to_natural())))
    return lambda ms: of(q_of(ms)), fields, xi, back


def path(field: Callable, first: np.ndarray, back: Callable, points: int) -> np.ndarray:
    """dξ/dt = field(ξ), in (m, s), at points evenly spaced along the way."""
    slope = lambda t, xi: np.asarray(field(xi))
    end = 2000 / min(float(np.linalg.norm(slope(0, first))), 1)
    solution = solve_ivp(slope, (0, end), first, method="LSODA", rtol=1e-9, atol=1e-11)
    way = np.asarray(jax.jit(jax.vmap(back))(jnp.asarray(solution.y.T)))
    along = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(way, axis=0), axis=1))])
    return np.stack([np.interp(np.linspace(0, along[-1], points), along, column) for column in way.T], -1)


def apart(rows: list[dict], name: str) -> dict[str, list[float]]:
    """The largest distance in (m, s) between a path and the one in the first coordinates, at equal shares of their
    lengths, for each data set; by coordinates."""
    paths = {(row["data"], row["coordinates"]): np.array(row[f"{name}_path"]) for row in rows}
    first, *others = dict.fromkeys(of for _, of in paths)
    far = lambda number, of: float(np.max(np.linalg.norm(paths[number, of] - paths[number, first], axis=1)))
    return {of: [far(number, of) for number, name in paths if name == of and (number, first) in paths] for of in others}


def table(rows: list[dict]) -> list[list[str]]:
    """A line a data set, system of coordinates and gradient."""
    lines = [["data", "coordinates", "gradient", "degrees off the way to the optimum"]]
    lines[0].append("length over that of the way (10 to 90 %)")
    for row in rows:
        for name in ("natural", "ordinary"):
            low, middle, high = row[f"{name}_length"]
            shown = f"{middle:.3g} ({low:.3g} to {high:.3g})"
            lines.append([str(row["data"]), row["coordinates"], name, f"{row[f'{name}_off']:.1f}", shown])
    return lines


def figure(rows: list[dict]) -> Figure:
    """The bound, directions of both gradients and both paths in (m, s), a panel a system of coordinates, of the first
    data set."""
    rows = [row for row in rows if row["data"] == rows[0]["data"]]
    picture = Figure(figsize=(1 + 4.2 * len(rows), 4.6), layout="constrained")
    panels = picture.subplots(1, len(rows), squeeze=False)[0]
    for axes, row in zip(panels, rows, strict=True):
        config, bound = row["config"], np.array(row["bound"])
        m, s = np.linspace(*config["means"]), np.exp(np.linspace(*config["log_stds"]))
        levels = bound.max() - np.geomspace(0.02, bound.max() - bound.min(), 14)[::-1]
        axes.contour(m, s, bound, levels=levels, colors="lightgrey", linestyles="solid", linewidths=0.8)
        at = np.meshgrid(m[:: config["every"]], s[:: config["every"]])
        for name, colour in (("natural", "C0"), ("ordinary", "C1")):
            arrows = np.array(row[f"{name}_arrows"])
            arrows /= np.linalg.norm(arrows, axis=-1, keepdims=True)
            axes.quiver(*at, *np.moveaxis(arrows, -1, 0), color=colour, alpha=0.6, angles="xy", scale=22, width=0.004)
            axes.plot(*np.array(row[f"{name}_path"]).T, color=colour, label=f"{name} gradient: path, directions")
        axes.plot(*row["optimum"], "k*", markersize=10, label="optimum")
        axes.set(
            title=f"gradients in {row['coordinates']} coordinates",
            xlabel="mean m of q(v)",
            ylabel="standard deviation s of q(v)",
        )
        axes.set(xlim=(m[0], m[-1]), ylim=(0, s[-1]))
    picture.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    return picture


def verdict(rows: list[dict]) -> list[Judgement]:
    """Better direction, better length, one path for all coordinates? Data sets are the runs."""
    by = {name: of for (name,), of in grouped(rows, "coordinates").items()}
    if len(by) < 2:
        return [untested("It takes two systems of coordinates.")] * 3
    off = lambda row, name: abs(float(np.log(row[f"{name}_length"][1])))
    middle = lambda of, what: np.median([row[what] if what.endswith("off") else row[what][1] for row in of])
    words = [
        f"{name}: natural {middle(of, 'natural_off'):.1f}° off the way to the optimum and "
        f"{middle(of, 'natural_length'):.2g} of it long, ordinary {middle(of, 'ordinary_off'):.1f}° and "
        f"{middle(of, 'ordinary_length'):.2g}"
        for name, of in by.items()
    ]
    said = f"Medians over the grid and over data sets: {'; '.join(words)}."
    paths, ordinary = apart(rows, "natural"), apart(rows, "ordinary")
    furthest = lambda of: max(max(distances) for distances in of.values())
    lengths = {name: [off(row, "ordinary") - off(row, "natural") for row in of] for name, of in by.items()}
    angles = {name: [row["ordinary_off"] - row["natural_off"] for row in of] for name, of in by.items()}
    return [
        judged(lengths, "logs of the length", said),
        judged(angles, "degrees", said),
        judged(
            {name: within(of, SAME) for name, of in paths.items()},
            "units of m and s",
            f"Between coordinates natural paths are at most {furthest(paths):.1g} apart, ordinary ones "
            f"{furthest(ordinary):.2g}; {SAME:g} counts as the same.",
        ),
    ]
