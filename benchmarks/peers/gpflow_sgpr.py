"""Fit one regression table with GPflow's SGPR and print one line of JSON: the peer's side of a comparison.

    pip install "gpflow==2.11.2" "tensorflow==2.21.0" "tf-keras==2.21.0" "numpy<2" "setuptools<81" scikit-learn pandas
    python benchmarks/peers/gpflow_sgpr.py TABLE.csv.gz --num-inducing 100 --iterations 200
    python benchmarks/peers/gpflow_sgpr.py naval.csv.gz --num-inducing 100 --iterations 150 \
        --single-lengthscale 4 --variance 2 --noise 0.1

The setting: rows in the order of default_rng(0).permutation(N), the first 90 % train; columns that are constant in the
training part dropped; inputs and target standardised with the training part. Matérn-5/2 with one lengthscale per
column, started at √D, variance 1, noise variance 0.1; inducing inputs at scikit-learn's k-means centres (n_init=1,
random_state=0) and learned with the rest; the collapsed bound by SciPy's L-BFGS-B, maxcor=20. GPflow's default jitter.

`seconds` is the fit from raw arrays to a learned model: standardising, k-means, tracing and optimisation, without
imports, reading and testing. `seconds_tracing` is the first evaluation less the median of the others; several seconds
of it are TensorFlow's start in a fresh process, which --warm-up keeps out. Test figures are per row of the test part
in standardised units; bound_per_row is the bound over the number of training rows. A difference in the last bit of the
standardised inputs moves the bound after a fixed number of iterations: by about 0.005 a row on yacht.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # TensorFlow Probability does not import with Keras 3
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gpflow
import numpy as np
import pandas as pd
from sklearn.cluster import KMeans

WARM_UP = dict(num_inducing=5, iterations=2)


class TimedScipy(gpflow.optimizers.Scipy):
    """GPflow's SciPy wrapper, noting how long every evaluation of loss and gradient takes."""

    def __init__(self):
        super().__init__()
        self.durations: list[float] = []

    def eval_func(self, *args, **kwargs):
        evaluate = super().eval_func(*args, **kwargs)

        def timed(x):
            start = time.perf_counter()
            out = evaluate(x)
            self.durations.append(time.perf_counter() - start)
            return out

        return timed


def load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read a table whose last column is the target y."""
    table = pd.read_csv(path)
    return table.drop(columns="y").to_numpy(dtype=np.float64), table["y"].to_numpy(dtype=np.float64)


def fit(X: np.ndarray, y: np.ndarray, options: argparse.Namespace):
    """Fit from raw training arrays; return the model, the transform of raw (X, y), the optimiser and the timings."""
    start = time.perf_counter()
    varying = np.ptp(X, axis=0) > 0.0
    keep = lambda X: np.ascontiguousarray(X[:, varying])
    mean, scale, y_mean, y_scale = keep(X).mean(0), keep(X).std(0), y.mean(), y.std()
    transform = lambda X, y: ((keep(X) - mean) / scale, ((y - y_mean) / y_scale)[:, None])
    Xs, ys = transform(X, y)

    before_kmeans = time.perf_counter()
    Z = KMeans(options.num_inducing, n_init=1, random_state=0).fit(Xs).cluster_centers_
    after_kmeans = time.perf_counter()

    D = Xs.shape[1]
    lengthscales = np.full(D, np.sqrt(D)) if options.single_lengthscale is None else options.single_lengthscale
    kernel = gpflow.kernels.Matern52(variance=options.variance, lengthscales=lengthscales)
    model = gpflow.models.SGPR((Xs, ys), kernel, Z, noise_variance=options.noise)
    optimizer = TimedScipy()
    limits = dict(maxiter=options.iterations, maxcor=20)
    result = optimizer.minimize(model.training_loss, model.trainable_variables, method="L-BFGS-B", options=limits)
    seconds = time.perf_counter() - start

    rest = float(np.median(optimizer.durations[1:]))
    timings = dict(
        seconds=seconds,
        seconds_kmeans=after_kmeans - before_kmeans,
        seconds_tracing=optimizer.durations[0] - rest,
        milliseconds_per_evaluation=1e3 * rest,
        evaluations=len(optimizer.durations),
        iterations=int(result.nit),
        message=str(result.message),
    )
    return model, transform, timings


def main() -> None:
    """Run one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--num-inducing", type=int, required=True, metavar="M")
    parser.add_argument("--iterations", type=int, required=True, metavar="K")
    parser.add_argument("--single-lengthscale", type=float, metavar="L", help="one shared lengthscale, started at L")
    parser.add_argument("--variance", type=float, default=1.0, metavar="V")
    parser.add_argument("--noise", type=float, default=0.1, metavar="S", help="noise variance at the start")
    parser.add_argument("--warm-up", action="store_true", help="fit 50 toy rows first, so that TensorFlow has started")
    options = parser.parse_args()

    if options.warm_up:
        rng = np.random.default_rng(0)
        fit(rng.normal(size=(50, 2)), rng.normal(size=50), argparse.Namespace(**vars(options) | WARM_UP))
    X, y = load(options.table)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = np.split(order, [int(0.9 * len(y))])
    model, transform, timings = fit(X[train], y[train], options)

    Xt, yt = transform(X[test], y[test])
    bound = float(model.elbo())
    mean, _ = model.predict_y(Xt)
    figures = dict(
        library=f"gpflow {gpflow.__version__}",
        table=options.table.name.removesuffix(".csv.gz"),
        N=len(y),
        N_train=len(train),
        D=Xt.shape[1],
        M=options.num_inducing,
        **timings,
        bound=bound,
        bound_per_row=bound / len(train),
        test_log_density=float(np.mean(model.predict_log_density((Xt, yt)))),
        test_rmse=float(np.sqrt(np.mean((mean.numpy() - yt) ** 2))),
        noise_variance=float(model.likelihood.variance.numpy()),
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
