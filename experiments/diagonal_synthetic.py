"""The O(M) posterior on the synthetic GP of Kobe 2021 (4.1.3; figures 4.7 and 4.8): N = 1000, M = 50.

    python experiments/diagonal_synthetic.py --out experiments/results/diagonal_synthetic.jsonl
    python experiments/diagonal_synthetic.py --table experiments/results/diagonal_synthetic.jsonl

"truth" and "ulapane": q alone moves, on all rows, from μ = 0 and g = 1, at the hyperparameters that made the data and
at the thesis' start; gaps are nats below the dense optimum there. "joint": the hyperparameters and Z move too, by Adam
at 0.01 from the thesis' start; gaps are nats below the exact evidence at the hyperparameters that made the data.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from settings import computing, write

from pseudopoint.bounds import collapsed, elbo, marginal
from pseudopoint.data import Dataset, dataset
from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.inducing import kmeans
from pseudopoint.initial import ulapane
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Gaussian
from pseudopoint.optimisers import (
    AbstractStepper,
    Alternate,
    NaturalGradient,
    Optax,
    ShiftAffine,
    ShiftFixedPoint,
    ShiftNaturalGradient,
    constant,
    log_linear,
)
from pseudopoint.params import cast
from pseudopoint.posteriors import DirectShift, InducingPoints, LogShift, Model, Shifted, SoftplusShift, Whitened

PUBLISHED = (
    "Figure 4.7: jointly with the hyperparameters and without minibatches, O(M) with its natural gradients converges "
    "faster than dense natural gradients and Adam, to the same bound (read off the figure, no number is printed)."
)
TRUTH = (0.1, 0.5, 0.01)  # lengthscale, kernel variance, noise variance
HELD = (lambda m: m.kernel, lambda m: m.likelihood, lambda m: m.posterior.Z)


@dataclass(frozen=True)
class Config:
    """The thesis' setting; the number of data sets is ours."""

    seeds: int = 5
    N: int = 1000
    M: int = 50
    steps: int = 2000
    rate: float = 0.01
    jitter: float = 1e-10
    at: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


def data_of(config: Config, seed: int) -> Dataset:
    """x uniform on [−1, 1], f drawn from the GP, noise added."""
    rng = np.random.default_rng(seed)
    lengthscale, variance, noise = TRUTH
    X = rng.uniform(-1, 1, (config.N, 1))
    values, vectors = np.linalg.eigh(variance * np.exp(-0.5 * ((X - X.T) / lengthscale) ** 2))
    f = (vectors * np.sqrt(np.maximum(values, 0))) @ rng.normal(size=config.N)
    return dataset(X, f + np.sqrt(noise) * rng.normal(size=config.N))


def model_of(hyper: tuple[float, float, float], posterior: Any) -> Model:
    """Squared exponential kernel and Gaussian likelihood."""
    lengthscale, variance, noise = hyper
    return cast(Model(RBF(lengthscale, variance), Gaussian(noise), posterior), "float64")


def rules(config: Config, joint: bool) -> dict[str, tuple[AbstractStepper, str]]:
    """Steppers by name, and the form of q that each one moves. Jointly, Adam's step comes first and the natural one on
    q is made from where it arrived (Kobe 4.1.1); "one pass" makes both from the same point.
    """
    adam, held = optax.adam(config.rate), () if joint else HELD
    ramp = log_linear(1e-4, 0.1, 40)  # the thesis' schedule, printed for NAVAL
    both = lambda step: Alternate(Optax(adam, (lambda m: m.posterior.q,), False), step) if joint else step
    out: dict[str, tuple[AbstractStepper, str]] = {
        "exact": (both(ShiftNaturalGradient(constant(1.0))), "log"),
        "fixed point": (both(ShiftFixedPoint(constant(1.0))), "log"),
        "thesis, γ = 0.1": (both(ShiftAffine(constant(0.1))), "log"),
        "thesis, γ → 0.1": (both(ShiftAffine(ramp)), "log"),
        "thesis for g, exact mean": (both(ShiftAffine(constant(1.0), newton=True)), "log"),
        "Adam, log g": (Optax(adam, held, False), "log"),
        "Adam, softplus g": (Optax(adam, held, False), "softplus"),
        "Adam, g": (Optax(adam, held, False), "direct"),
    }
    if joint:
        out["exact, one pass"] = (ShiftNaturalGradient(constant(1.0), adam), "log")
        out["dense, natural"] = (both(NaturalGradient(constant(1.0), tight=False)), "dense")
        out["dense, Adam"] = (Optax(adam, held, False), "cholesky")
    return out


def posterior_of(form: str, Z: np.ndarray, jitter: float) -> Any:
    """μ = 0 and g = 1; a dense q starts at N(0, I)."""
    M = len(Z)
    zero, one, eye = np.zeros(M), np.ones(M), np.eye(M)
    q: dict[str, Any] = {"log": LogShift, "softplus": SoftplusShift, "direct": DirectShift}
    if form in q:
        return Shifted(Z, q[form](zero, one), jitter)
    return Whitened(Z, MeanPrecision(zero, eye) if form == "dense" else MeanChol(zero, eye), jitter)


def course(stepper: AbstractStepper, model: Model, data: Dataset, steps: int) -> tuple[np.ndarray, Model, int]:
    """The bound before each step and after the last, the model there, and how many steps were undone."""

    @jax.jit
    def run(model):
        def body(carry, _):
            model, state, info = stepper.step(carry[0], carry[1], data, len(data))
            return (model, state), (info.bound, info.undone)

        (model, _), (bound, undone) = jax.lax.scan(body, (model, stepper.init(model, len(data))), None, steps)
        return bound, model, undone.sum(), elbo(model, data, len(data), tight=False)[0]

    bound, model, undone, last = run(model)
    return np.append(bound, last), model, int(undone)


def run(config: Config, out: Path) -> None:
    """One row a data set, setting and rule; those that are in the file already are left alone."""
    done = {key(json.loads(line)) for line in out.read_text().splitlines()} if out.exists() else set()
    for seed in range(config.seeds):
        data = data_of(config, seed)
        Z = kmeans(np.asarray(data.X), config.M, 0)
        start = (*ulapane(np.asarray(data.X), np.asarray(data.y)), 0.1)
        evidence = float(marginal(model_of(TRUTH, None), data)[0])
        for setting, hyper in {"truth": TRUTH, "joint": start, "ulapane": start}.items():
            optimum = float(collapsed(model_of(hyper, InducingPoints(Z, config.jitter)), data).vfe)
            target = evidence if setting == "joint" else optimum
            for name, (stepper, form) in rules(config, setting == "joint").items():
                row: dict[str, Any] = {"setting": setting, "seed": seed, "rule": name}
                if key(row) in done:
                    continue
                first = model_of(hyper, posterior_of(form, Z, config.jitter))
                bound, model, undone = course(stepper, first, data, config.steps)
                near = np.flatnonzero(target - bound <= 2)
                row |= {"target": target, "gap": {t: float(f"{target - bound[t]:.6g}") for t in config.at}}
                row |= {"steps_to_2_nats": int(near[0]) if len(near) else None, "undone": undone}
                if setting == "joint":
                    kernel: Any = model.kernel
                    row |= {"learned": [float(kernel.lengthscale), float(kernel.variance)]}
                    row["learned"].append(float(model.likelihood.variance))  # pyright: ignore[reportAttributeAccessIssue]
                write(out, row | {"config": asdict(config)})
                print(setting, seed, name, row["steps_to_2_nats"], f"{target - bound[-1]:.4g}", undone, flush=True)


def key(row: dict) -> tuple:
    """What makes a row another one."""
    return row["setting"], row["seed"], row["rule"]


def summary(rows: list[dict]) -> str:
    """Median gaps over data sets after so many steps, a line a setting and rule, in Markdown."""
    steps = ("1", "5", "20", "50", "200", "2000")
    lines = ["| setting | rule | " + " | ".join(f"{t} steps" for t in steps) + " | first within 2 nats | worst end |"]
    lines.append("|---|---|" + "---|" * (len(steps) + 2))
    for setting, rule in dict.fromkeys((row["setting"], row["rule"]) for row in rows):
        of = [row for row in rows if (row["setting"], row["rule"]) == (setting, rule)]
        gaps = [f"{np.median([row['gap'][t] for row in of]):.4g}" for t in steps]
        near = [np.inf if row["steps_to_2_nats"] is None else row["steps_to_2_nats"] for row in of]
        gaps.append(f"{min(near):.0f} to {max(near):.0f}" if np.isfinite(min(near)) else "never")
        gaps.append(f"{max(row['gap'][steps[-1]] for row in of):.4g}")
        lines.append(f"| {setting} | {rule} | " + " | ".join(gaps) + " |")
    return "\n".join(lines)


def main() -> None:
    """Runs, or prints the table of rows that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--seeds", type=int, default=Config.seeds)
    parser.add_argument("--steps", type=int, default=Config.steps)
    arguments = parser.parse_args()
    if arguments.table:
        print(summary([json.loads(line) for line in arguments.table.read_text().splitlines()]))
        return
    with computing():
        at = tuple(t for t in Config.at if t <= arguments.steps)
        run(Config(seeds=arguments.seeds, steps=arguments.steps, at=at), arguments.out)


if __name__ == "__main__":
    main()
