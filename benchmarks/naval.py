"""Fit NAVAL as `peers/gpflow_sgpr.py` does, and print one line of JSON: our side of the comparison.

    python benchmarks/naval.py naval.csv.gz
    GPFLOW_ENV/bin/python benchmarks/peers/gpflow_sgpr.py naval.csv.gz --num-inducing 100 --iterations 150 \
        --single-lengthscale 4 --variance 2 --noise 0.1

In turn, several times, each in a fresh process: both sides then pay for compilation (or tracing), and neither for
imports. The setting is GPflow's own: one lengthscale, its starting values, k-means points that are learned, Titsias'
bound, 150 iterations of L-BFGS-B.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from baselines import split
from threadpoolctl import threadpool_limits

from pseudopoint.bounds import collapsed
from pseudopoint.data import Standardiser, dataset
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.optimise.fullbatch import Objective, lbfgsb
from pseudopoint.optimise.named import vfe
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, Model
from pseudopoint.starts.inducing import kmeans


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--num-inducing", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=150)
    arguments = parser.parse_args()
    X, y, X_test, y_test = split(arguments.table)
    with jax.enable_x64(True), threadpool_limits(1, user_api="blas"):
        start = time.perf_counter()
        units = Standardiser.learn(X, y, np.ones(len(y)), True, True)
        data = dataset(units.inputs(X), units.target(y))
        points = Collapsed(kmeans(data.X, arguments.num_inducing, 0))
        model = cast(Model(Matern52(4.0, 2.0), Gaussian(0.1), points), "float64")
        objective = Objective(vfe, trainable(model), data, scale=float(len(y)))
        result = lbfgsb(objective, max_iter=arguments.iterations)
        seconds = time.perf_counter() - start
        mean, variance = collapsed(result.model, data).predictor()(jnp.asarray(units.inputs(X_test)))
    error = units.target(y_test) - np.asarray(mean)
    variance = np.asarray(variance) + float(result.model.likelihood.variance)
    row = {
        "seconds": round(seconds, 2),
        "evaluations": result.evaluations,
        "bound_per_row": result.bound / len(y),
        "log_density": float(np.mean(-0.5 * np.log(2 * np.pi * variance) - 0.5 * error**2 / variance)),
        "rmse": float(np.sqrt(np.mean(error**2))),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
