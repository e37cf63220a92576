"""One natural step against Adam on q alone, Gaussian likelihood, synthetic sinusoid (Kobe 2021, figure 4.1).

q moves from N(0, I), on all rows; hyperparameters and Z (k-means) stay. "printed" are the thesis' hyperparameters;
"exchanged" takes its lengthscale for the variance and the reverse, since a lengthscale of 0.813 is longer than the
waves; "fitted" are the best ones for these rows and these Z. `gap` is the optimum, the collapsed bound, less the bound,
in nats, after `steps` steps.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from matplotlib.figure import Figure

from pseudopoint.bounds import collapsed, elbo
from pseudopoint.data import Dataset, dataset
from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.inducing import kmeans
from pseudopoint.initial import ulapane
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Gaussian
from pseudopoint.minimisers import lbfgsb
from pseudopoint.optimise import vfe
from pseudopoint.optimisers import AbstractStepper, NaturalGradient, Optax, constant
from pseudopoint.params import cast, free
from pseudopoint.posteriors import InducingPoints, Model, Whitened

SOURCE = "Kobe 2021, figure 4.1"
PUBLISHED = "N = 300, M = 10: NGD reaches the optimum in a single step of size 1; Adam takes thousands of iterations."
CUT = "Added to the thesis' one data set and its hyperparameters: five data sets, and two more sets of hyperparameters."
TABLES = ()
PRINTED = (0.813, 0.112, 0.045)  # lengthscale, kernel variance, noise variance
HYPER = ("printed", "exchanged", "fitted")
RULES = ("NGD", "Adam")
NEAR = (10.0, 1.0, 0.1, 0.01)  # nats from the optimum


@dataclass(frozen=True)
class Config:
    """The thesis' setting; the number of data sets is ours."""

    seeds: int = 5
    N: int = 300
    M: int = 10
    noise: float = 0.01
    steps: int = 10_000
    rate: float = 0.01
    jitter: float = 1e-10
    hyper: tuple[str, ...] = HYPER


FULL = Config()
QUICK = Config(seeds=1, N=100, steps=3000, hyper=("printed", "exchanged"))
COUNTS = ("seeds", "hyper")


def cases(config: Config) -> list[dict[str, Any]]:
    """Both rules at all hyperparameters, on every data set."""
    return [
        {"seed": seed, "hyper": hyper, "rule": rule}
        for seed in range(config.seeds)
        for hyper in config.hyper
        for rule in RULES
    ]


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """The gap after so many steps, and the steps it takes to be near."""
    data = sinusoid(config.N, config.noise, case["seed"])
    Z = kmeans(np.asarray(data.X), config.M, 0)
    hyper = hyperparameters(case["hyper"], case["seed"], config)
    optimum = float(collapsed(model_of(hyper, InducingPoints(Z, config.jitter)), data).vfe)
    coordinates = MeanPrecision if case["rule"] == "NGD" else MeanChol
    steps = min(config.steps, 20) if case["rule"] == "NGD" else config.steps
    first = model_of(hyper, whitened(coordinates, Z, config.jitter))
    gap = optimum - course(stepper(case["rule"], config.rate), first, data, steps)[0]
    at, there = thinned(steps), {str(nats): np.flatnonzero(gap <= nats) for nats in NEAR}
    return {
        "hyperparameters": [float(f"{number:.6g}") for number in hyper],
        "optimum": round(optimum, 6),
        "steps": at,
        "gap": [float(f"{gap[t]:.6g}") for t in at],
        "steps_to": {nats: int(found[0]) if len(found) else None for nats, found in there.items()},
    }


def sinusoid(N: int, noise: float, seed: int) -> Dataset:
    """x uniform on [−1, 1], f(x) = sin 3πx + 0.3 cos 9πx + 0.5 sin 7πx, noise of this variance (Kobe 4.1.3)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, N)
    f = np.sin(3 * np.pi * x) + 0.3 * np.cos(9 * np.pi * x) + 0.5 * np.sin(7 * np.pi * x)
    return dataset(x[:, None], f + np.sqrt(noise) * rng.normal(size=N))


def model_of(hyper: tuple[float, float, float], posterior: Any) -> Model:
    """Squared exponential kernel and Gaussian likelihood."""
    lengthscale, variance, noise = hyper
    return cast(Model(RBF(lengthscale, variance), Gaussian(noise), posterior), "float64")


def whitened(coordinates: Any, Z: np.ndarray, jitter: float) -> Whitened:
    """q(v) = N(0, I)."""
    return Whitened(Z, coordinates(np.zeros(len(Z)), np.eye(len(Z))), jitter)


@lru_cache(maxsize=1)
def hyperparameters(name: str, seed: int, config: Config) -> tuple[float, float, float]:
    """Lengthscale, kernel variance, noise variance."""
    if name == "printed":
        return PRINTED
    if name == "exchanged":
        return PRINTED[1], PRINTED[0], PRINTED[2]
    data = sinusoid(config.N, config.noise, seed)
    X, y = np.asarray(data.X), np.asarray(data.y)
    first = model_of((*ulapane(X, y), 0.1), InducingPoints(kmeans(X, config.M, 0), config.jitter))
    best: Any = lbfgsb(vfe, free(first, lambda m: m.posterior.Z), data, max_iter=500, scale=float(len(data))).model
    return float(best.kernel.lengthscale), float(best.kernel.variance), float(best.likelihood.variance)


@cache  # another stepper is another program
def stepper(rule: str, rate: float) -> AbstractStepper:
    """q alone moves."""
    held = (lambda m: m.kernel, lambda m: m.likelihood, lambda m: m.posterior.Z)
    return NaturalGradient(constant(1.0), tight=False) if rule == "NGD" else Optax(optax.adam(rate), held, False)


def course(stepper: AbstractStepper, model: Model, data: Dataset, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The bound [T + 1] and (lengthscale, kernel variance, noise variance) [T + 1, 3] before each of T full-batch steps
    and after the last."""
    bound, hyper = _course(stepper, model, data, steps)
    return np.asarray(bound), np.asarray(hyper)


@eqx.filter_jit
def _course(stepper, model, data, steps: int):
    hyper = lambda m: jnp.stack([m.kernel.lengthscale, m.kernel.variance, m.likelihood.variance])

    def body(carry, _):
        model, state, info = stepper.step(*carry, data, len(data))
        return (model, state), (info.bound, hyper(carry[0]))

    (model, _), (bound, path) = lax.scan(body, (model, stepper.init(model, len(data))), None, steps)
    last = elbo(model, data, len(data), tight=False)[0]
    return jnp.append(bound, last), jnp.concatenate([path, hyper(model)[None]])


def thinned(steps: int, points: int = 40) -> list[int]:
    """0, 1, … `steps`, ever further apart."""
    return [0, *map(int, np.unique(np.round(np.geomspace(1, steps, points))))]


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Steps to within so many nats, the range over data sets; a line for hyperparameters and rule."""
    lines = [["hyperparameters", "rule", "gap at the start", "after one step"]]
    lines[0] += [f"steps to {nats:g} nats" for nats in NEAR] + ["data sets"]
    for hyper, rule in dict.fromkeys((row["hyper"], row["rule"]) for row in rows):
        of = [row for row in rows if (row["hyper"], row["rule"]) == (hyper, rule)]
        gaps = [f"{np.median([row['gap'][t] for row in of]):.3g}" for t in (0, 1)]
        needs = [[row["steps_to"][str(nats)] for row in of] for nats in NEAR]
        counts = ["never" if None in need else f"{min(need)} to {max(need)}" for need in needs]
        lines.append([hyper, rule, *gaps, *counts, str(len(of))])
    return lines


def figure(rows: list[dict[str, Any]]) -> Figure:
    """The gap after so many steps, a line a data set; a panel for each set of hyperparameters."""
    names = [name for name in HYPER if any(row["hyper"] == name for row in rows)]
    picture = Figure(figsize=(1 + 3.6 * len(names), 4), layout="constrained")
    for axes, name in zip(picture.subplots(1, len(names), squeeze=False, sharey=True)[0], names, strict=True):
        of = [row for row in rows if row["hyper"] == name]
        numbers = ", ".join(f"{number:.3g}" for number in of[0]["hyperparameters"])
        axes.set(title=f"{name}: ℓ, variance, noise\n{numbers}", xlabel="steps", xscale="symlog", yscale="log")
        for row in of:
            label = row["rule"] if row["seed"] == of[0]["seed"] else None
            color = "C3" if row["rule"] == "NGD" else "C0"
            axes.plot(row["steps"], np.maximum(row["gap"], 1e-6), color=color, label=label, lw=1)
        axes.legend()
    picture.axes[0].set_ylabel("nats below the optimum (no less than 1e-6)")
    return picture


def verdict(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """Is one natural step the optimum everywhere, and does Adam take thousands at the printed hyperparameters?"""
    natural = [abs(row["gap"][1]) for row in rows if row["rule"] == "NGD"]
    adam = {name: [row for row in rows if (row["hyper"], row["rule"]) == (name, "Adam")] for name in HYPER}
    if not natural or not adam["printed"]:
        return "untested", "It takes both rules at the printed hyperparameters."
    steps = lambda name: [row["steps_to"]["0.01"] or np.inf for row in adam[name]]
    text = f"After one natural step the bound is within {max(natural):.1g} nats of its optimum in all {len(natural)} "
    text += "runs. Adam's steps to 0.01 nats: " + ", ".join(
        f"{min(steps(name)):.0f} to {max(steps(name)):.0f} ({name} hyperparameters)" for name in HYPER if adam[name]
    )
    good = max(natural) < 1e-6 and min(steps("printed")) >= 1000
    return ("agrees" if good else "disagrees"), text + "."
