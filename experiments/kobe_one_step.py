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

import numpy as np
import optax
from matplotlib.figure import Figure

from pseudopoint.bounds import collapsed
from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.optimise.fullbatch import Objective, lbfgsb
from pseudopoint.optimise.minibatch import AbstractStepper, NaturalGradient, Optax, constant
from pseudopoint.optimise.named import vfe
from pseudopoint.params import trainable
from pseudopoint.posteriors import Collapsed
from pseudopoint.reproduce import Judgement, judged, within
from pseudopoint.starts.inducing import kmeans

from ._full_batches import course
from ._kobe import Hyper, hyperparameters, model_of, sinusoid, start, whitened
from ._rows import grouped, marks, number, panels, product
from .settings import HELD

SOURCE = "Kobe 2021, figure 4.1"
PUBLISHED = (
    "N = 300, M = 10: NGD reaches the optimum in a single step of size 1.",
    "Adam takes thousands of iterations.",
)
CUT = {
    "": "Five data sets in place of one. The thesis says that its hyperparameters are the optimal ones, which the "
    "printed ones are not here: findings are judged at these, at those that a fit finds, and at the printed ones "
    "exchanged."
}
NOTES = (
    "The thesis calls σ_SE a standard deviation where hyperparameters start, so it is squared there; its printed "
    "0.112 and 0.5 are read as variances. The printed lengthscale and variance look exchanged: with them exchanged, "
    "the bound of the first data set is 680 nats higher."
)
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
    return product(seed=range(config.seeds), hyper=config.hyper, rule=RULES)


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """The gap after so many steps, and the steps it takes to be near."""
    data = sinusoid(config.N, config.noise, case["seed"])
    Z = kmeans(np.asarray(data.X), config.M, 0)
    hyper = named(case["hyper"], case["seed"], config)
    optimum = float(collapsed(model_of(hyper, Collapsed(Z, config.jitter)), data).standard)
    coordinates = MeanPrecision if case["rule"] == "NGD" else MeanChol
    steps = min(config.steps, 20) if case["rule"] == "NGD" else config.steps
    first = model_of(hyper, whitened(coordinates, Z, config.jitter))
    gap = optimum - course(stepper(case["rule"], config.rate), first, data, steps).bound
    at, there = marks(steps, 40), {str(nats): np.flatnonzero(gap <= nats) for nats in NEAR}
    return {
        "hyperparameters": [number(x) for x in hyper],
        "optimum": round(optimum, 6),
        "steps": at,
        "gap": [number(gap[t]) for t in at],
        "steps_to": {nats: int(found[0]) if len(found) else None for nats, found in there.items()},
    }


@lru_cache(maxsize=1)
def named(name: str, seed: int, config: Config) -> Hyper:
    """Lengthscale, kernel variance, noise variance."""
    if name == "printed":
        return PRINTED
    if name == "exchanged":
        return PRINTED[1], PRINTED[0], PRINTED[2]
    data = sinusoid(config.N, config.noise, seed)
    hyper, Z = start(data, config.M, 0.1)
    first = trainable(model_of(hyper, Collapsed(Z, config.jitter)), HELD[2])
    result = lbfgsb(Objective(vfe, first, data, scale=float(len(data))), max_iter=500)
    lengthscale, variance, noise = map(float, hyperparameters(result.model))
    return lengthscale, variance, noise


@cache  # another stepper is another program
def stepper(rule: str, rate: float) -> AbstractStepper:
    """q alone moves."""
    return NaturalGradient(constant(1.0), tight=False) if rule == "NGD" else Optax(optax.adam(rate), HELD, False)


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Steps to within so many nats, the range over data sets; a line for hyperparameters and rule."""
    lines = [["hyperparameters", "rule", "gap at the start", "after one step"]]
    lines[0] += [f"steps to {nats:g} nats" for nats in NEAR] + ["data sets"]
    for (hyper, rule), of in grouped(rows, "hyper", "rule").items():
        gaps = [f"{np.median([row['gap'][t] for row in of]):.3g}" for t in (0, 1)]
        needs = [[row["steps_to"][str(nats)] for row in of] for nats in NEAR]
        counts = ["never" if None in need else f"{min(need)} to {max(need)}" for need in needs]
        lines.append([hyper, rule, *gaps, *counts, str(len(of))])
    return lines


def figure(rows: list[dict[str, Any]]) -> Figure:
    """The gap after so many steps, a line a data set; a panel for each set of hyperparameters."""
    picture, every = panels(rows, "hyper", 3.6, sharey=True)
    for axes, name, of in every:
        numbers = ", ".join(f"{x:.3g}" for x in of[0]["hyperparameters"])
        axes.set(title=f"{name}: ℓ, variance, noise\n{numbers}", xlabel="steps", xscale="symlog", yscale="log")
        for row in of:
            label = row["rule"] if row["seed"] == of[0]["seed"] else None
            color = "C3" if row["rule"] == "NGD" else "C0"
            axes.plot(row["steps"], np.maximum(row["gap"], 1e-6), color=color, label=label, lw=1)
        axes.legend()
    picture.axes[0].set_ylabel("nats below the optimum (no less than 1e-6)")
    return picture


def verdict(rows: list[dict[str, Any]]) -> list[Judgement]:
    """Is one natural step the optimum, and does Adam take thousands, at all hyperparameters?"""
    natural = {
        hyper: [row["gap"][1] for row in of]
        for (hyper, rule), of in grouped(rows, "hyper", "rule").items()
        if rule == "NGD"
    }
    adam = {hyper: of for (hyper, rule), of in grouped(rows, "hyper", "rule").items() if rule == "Adam"}
    most = lambda row: row["config"]["steps"]  # counts for those that never were there
    steps = {hyper: [row["steps_to"]["0.01"] or most(row) for row in of] for hyper, of in adam.items()}
    return [
        judged(
            {f"{hyper} hyperparameters": within(of, 1e-6) for hyper, of in natural.items()},
            "nats",
            "Nats from the optimum after one step, at most: "
            + ", ".join(f"{max(map(abs, of)):.1g} ({hyper} hyperparameters)" for hyper, of in natural.items())
            + "; 1e-6 counts as there.",
        ),
        judged(
            {f"{hyper} hyperparameters": [float(np.log(n / 1000)) for n in of] for hyper, of in steps.items()},
            "log of steps over 1000",
            "Adam's steps to 0.01 nats: "
            + ", ".join(f"{min(of)} to {max(of)} ({hyper} hyperparameters)" for hyper, of in steps.items())
            + ".",
        ),
    ]
