"""Two outputs that share structure, half of one missing: together, and each by itself.

    python benchmarks/outputs.py [--seeds 0,1,2] [--gaps random,block] [--lengthscales 0.8,1.2] [--out rows.jsonl]

400 rows of two columns in [0, 10]². f₁ = g₁ and f₂ = 0.8 g₁ + 0.6 g₂; g₁ has an RBF kernel with a lengthscale of 0.8 or
1.2, g₂ one of 3; noise has standard deviations 0.1 and 0.2. The second output is missing in half of the rows, at random
or on one side, and its log density is of those rows. "independent" outputs with gaps have a kernel and noise each, as
two fits have.
"""

import argparse
import time
from itertools import product
from pathlib import Path

import numpy as np
from provenance import store

N = 400


def rows(seed: int, gaps: str, shared: float):
    """X [N, 2], Y [N, 2], and which rows miss the second output."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 10, (N, 2))

    def g(lengthscale):
        omega, phase = rng.normal(size=(2, 500)) / lengthscale, rng.uniform(0, 2 * np.pi, 500)
        return np.cos(X @ omega + phase) @ rng.normal(size=500) * (2 / 500) ** 0.5

    first, second = g(shared), g(3.0)
    Y = np.column_stack([first, 0.8 * first + 0.6 * second]) + rng.normal(size=(N, 2)) * [0.1, 0.2]
    return X, Y, (rng.permutation(N) < N // 2) if gaps == "random" else X[:, 0] > np.median(X[:, 0])


def fit_here(fit: str, seed: int, gaps: str, shared: float) -> dict:
    """One fit, and what it says of the values that it has not seen."""
    from pseudopoint import GPRegressor

    X, Y, missing = rows(seed, gaps, shared)
    seen = np.where(missing[:, None] & np.array([False, True]), np.nan, Y)
    began = time.perf_counter()
    model = GPRegressor(outputs=fit, effort="fast", random_state=seed).fit(X, seen)
    seconds = time.perf_counter() - began
    density, error = model.log_density(X[missing], Y[missing])[:, 1], (model.predict(X) - Y)[missing, 1]
    low, high = model.predict_interval(X[missing], 0.9)[:, 1].T
    row = {
        "lengthscale": shared,
        "gaps": gaps,
        "fit": fit,
        "seed": seed,
        "N": N,
        "method": model.method_,
        "seconds": seconds,
    }
    row |= {"log_density": density.mean(), "log_density_error": density.std() / len(density) ** 0.5}
    row |= {"rmse": np.mean(error**2) ** 0.5, "bound": model.bound_}
    row |= {"coverage_90": np.mean((Y[missing, 1] >= low) & (Y[missing, 1] <= high))}
    return {key: round(float(value), 5) if isinstance(value, float) else value for key, value in row.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--gaps", default="random,block")
    parser.add_argument("--lengthscales", default="0.8,1.2", help="of the function that both outputs share")
    parser.add_argument("--out", type=Path, help="append the rows to this file, a line of JSON each")
    arguments = parser.parse_args()
    lists = (getattr(arguments, name).split(",") for name in ("lengthscales", "gaps", "seeds"))
    for shared, gaps, seed in product(*lists):
        for fit in ("coregionalised", "independent"):
            store(fit_here(fit, int(seed), gaps, float(shared)), arguments.out)


if __name__ == "__main__":
    main()
