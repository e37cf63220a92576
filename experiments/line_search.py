"""Which direction is best, in every parameterisation? Salimbeni, Eleftheriadis and Hensman 2018, figures 2 and 8 to 13.

    python experiments/line_search.py --data FOLDER --out experiments/results/line_search.jsonl
    python experiments/line_search.py --table experiments/results/line_search.jsonl

q alone moves, on all rows; every step's length is found by Brent's method. The optimum is that of `converge`, full
natural steps until nothing is gained.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np
import optax
from settings import computing, start, training_part, write

from pseudopoint.gaussians import MeanChol, MeanCovariance, MeanLog, Natural, NaturalChol, NaturalLog
from pseudopoint.likelihoods import Bernoulli, Gaussian, StudentT
from pseudopoint.minimisers import LBFGS, Gradient, NaturalDirection, Transformed, line_search
from pseudopoint.optimise import in_coordinates, standard_elbo
from pseudopoint.optimisers import converge
from pseudopoint.params import free

PUBLISHED = (
    "The natural gradient direction converges faster for all likelihoods and parameterisations; its best step size "
    "goes up to 1; for a Gaussian likelihood one natural step of size 1 is the solution."
)
TABLES = {
    "energy": lambda: Gaussian(1.0),
    "boston": lambda: StudentT(1.0, 3.0),
    "pima": lambda: Bernoulli("logit"),
}
COORDINATES = {
    "natural": Natural,
    "natural-sqrt": NaturalChol,
    "natural-log": NaturalLog,
    "mean/var": MeanCovariance,
    "mean/var-sqrt": MeanChol,
    "mean/var-log": MeanLog,
}
DIRECTIONS = {
    "NGD": NaturalDirection(),
    "GD": Gradient(),
    "Adam": Transformed(optax.adam(1.0)),
    "L-BFGS": LBFGS(),
}


@dataclass(frozen=True)
class Config:
    """The paper's setting; the noise of the likelihoods, which it does not print, is 1, the default of its library."""

    splits: int = 5
    inducing: int = 100
    iterations: int = 100
    near: tuple[float, ...] = (1.0, 0.1, 0.01)  # nats from the optimum that count as there


def run(config: Config, folder: Path, out: Path) -> None:
    """One row a table, split, parameterisation and direction; those that are in the file already are left alone."""
    done = {key(json.loads(line)) for line in out.read_text().splitlines()} if out.exists() else set()
    for split in range(config.splits):
        for table, likelihood in TABLES.items():
            data = training_part(folder, table, split, scale_target=table != "pima")
            model = start(data, likelihood(), config.inducing)
            best = float(jax.jit(standard_elbo)(jax.jit(lambda m, d: converge(m, d, tight=False))(model, data), data))
            for coordinates, cls in COORDINATES.items():
                first = in_coordinates(model, cls)
                held = (lambda m: m.kernel, lambda m: m.likelihood, lambda m: m.posterior.Z)
                for name, direction in DIRECTIONS.items():
                    row = {"table": table, "split": split, "coordinates": coordinates, "direction": name}
                    if key(row) in done:
                        continue
                    result = line_search(
                        standard_elbo, free(first, *held), data, direction, max_iter=config.iterations, tolerance=1e-12
                    )
                    gaps = [best - record.bound for record in result.history]
                    row |= {"optimum": best, "gap": [round(gap, 6) for gap in gaps]}
                    row |= {"step_size": [float(f"{record.step_size:.4g}") for record in result.history]}
                    row |= {"evaluations": result.evaluations, "seconds": round(result.history[-1].seconds, 2)}
                    write(out, row | {"config": asdict(config)})
                    print(table, split, coordinates, name, len(gaps), f"{gaps[-1]:.3g}", flush=True)


def key(row: dict) -> tuple:
    """What makes a row another one."""
    return row["table"], row["split"], row["coordinates"], row["direction"]


def iterations_to(row: dict, nats: float) -> float:
    """How many steps until the bound is so near its optimum; infinite where it never was."""
    there = np.flatnonzero(np.array(row["gap"]) <= nats)
    return float(there[0] + 1) if len(there) else np.inf


def summary(rows: list[dict], nats: float = 0.1) -> str:
    """Median iterations over splits to within `nats`, a line a table and parameterisation, in Markdown."""
    lines = ["| table | coordinates | " + " | ".join(DIRECTIONS) + " |", "|---|---|" + "---|" * len(DIRECTIONS)]
    for table in TABLES:
        for coordinates in COORDINATES:
            cells = []
            for name in DIRECTIONS:
                of = [r for r in rows if key(r)[0] == table and key(r)[2:] == (coordinates, name)]
                if not of:
                    cells.append("")
                    continue
                counts = [iterations_to(row, nats) for row in of]
                median = float(np.median(counts))
                most = len(max(of, key=lambda r: len(r["gap"]))["gap"])
                gap = float(np.median([row["gap"][-1] for row in of]))
                cells.append(f"{median:.0f}" if np.isfinite(median) else f"not in {most} ({gap:.3g} nats off)")
            lines.append(f"| {table} | {coordinates} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Runs, or prints the table of rows that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--splits", type=int, default=Config.splits)
    parser.add_argument("--iterations", type=int, default=Config.iterations)
    arguments = parser.parse_args()
    if arguments.table:
        print(summary([json.loads(line) for line in arguments.table.read_text().splitlines()]))
        return
    with computing():
        run(Config(splits=arguments.splits, iterations=arguments.iterations), arguments.data, arguments.out)


if __name__ == "__main__":
    main()
