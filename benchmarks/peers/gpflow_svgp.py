"""Fit one classification table with GPflow's SVGP and print one line of JSON: the peer's side of a comparison.

    pip install "gpflow==2.11.2" "tensorflow==2.21.0" "tf-keras==2.21.0" "numpy<2" "setuptools<81" scikit-learn pandas
    python benchmarks/peers/gpflow_svgp.py TABLE.csv.gz
    python benchmarks/peers/gpflow_svgp.py letter.csv.gz --gamma 0.01
    python benchmarks/peers/gpflow_svgp.py letter.csv.gz --likelihood softmax

The setting: rows in the order of default_rng(S).permutation(N), S of --split, the first 90 % train; columns that are
constant in the training part dropped; inputs standardised with the training part; categories one-hot (adult).
Matérn-5/2 with one lengthscale per column, started at √D, variance 1; M inducing inputs at scikit-learn's k-means
centres (n_init=1, random_state=0), learned with the rest; whitened; no mean function; GPflow's default jitter. Two
classes: Bernoulli, probit, one latent function. More: one latent function a class, all with one kernel and the same
inducing inputs, and RobustMax (20-point quadrature, ε fixed unless --learn-epsilon) or Softmax (Monte Carlo). Every
step draws one batch, takes a natural-gradient step on q(u) with it, γ log-linear from --gamma-start to --gamma over
--gamma-steps, then an Adam step on the kernel and the inducing inputs with the same batch: both in one tf.function.

`seconds` is the fit from raw arrays to a learned model: standardising, k-means, tracing and optimisation, without
imports, reading and testing. `seconds_tracing` is the first step less the median of the others; some of it is
TensorFlow's start in a fresh process, which --warm-up keeps out. `bound_per_row` is the bound on all training rows,
over their number. The probit of GPflow keeps probabilities within [0.001, 0.999]; its multi-class probabilities are
used as they come, and need not add up to exactly 1. A failure prints a line with `error` and the `step` it came at.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # TensorFlow Probability does not import with Keras 3
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gpflow
import numpy as np
import tensorflow as tf
from classification_tables import as_line, error_text, load, name_of, scores, split, standardiser
from sklearn.cluster import KMeans

BLOCK = 4096  # rows at a time for the bound and the predictions
WARM_UP = dict(num_inducing=5, steps=2, batch=16)


def likelihood_for(classes: int, options: argparse.Namespace):
    """Bernoulli for two classes; RobustMax or Softmax for more."""
    if classes == 2:
        return gpflow.likelihoods.Bernoulli()
    if options.likelihood == "softmax":
        return gpflow.likelihoods.Softmax(classes)
    link = gpflow.likelihoods.RobustMax(classes, epsilon=options.epsilon)
    gpflow.set_trainable(link.epsilon, options.learn_epsilon)
    return gpflow.likelihoods.MultiClass(classes, invlink=link)


def labels_for(classes: int, y: np.ndarray) -> np.ndarray:
    """Labels as the likelihood takes them, in a column: Bernoulli real numbers, Softmax integers."""
    return y.astype(np.float64 if classes == 2 else np.int32)[:, None]


def fit(X: np.ndarray, y: np.ndarray, classes: int, options: argparse.Namespace, progress: dict):
    """Fit from raw training arrays with labels 0 … classes-1; return the model and the map of raw inputs.

    Timings go to `progress`, as they come, so that they outlive a crash.
    """
    start = time.perf_counter()
    transform = standardiser(X)
    Xs, ys = transform(X), labels_for(classes, y)
    N, D = Xs.shape

    before_kmeans = time.perf_counter()
    M = min(options.num_inducing, N)
    Z = KMeans(M, n_init=1, random_state=0).fit(Xs).cluster_centers_
    progress["seconds_kmeans"] = time.perf_counter() - before_kmeans

    batch = min(options.batch, N)
    data = tf.data.Dataset.from_tensor_slices((Xs, ys)).shuffle(N, seed=options.seed).repeat().batch(batch)
    batches = iter(data.prefetch(tf.data.AUTOTUNE))
    model = gpflow.models.SVGP(
        gpflow.kernels.Matern52(variance=1.0, lengthscales=np.full(D, np.sqrt(D))),
        likelihood_for(classes, options),
        Z,
        num_latent_gps=1 if classes == 2 else classes,
        whiten=True,
        num_data=N,
    )
    gpflow.set_trainable(model.q_mu, False)  # left to the natural gradient
    gpflow.set_trainable(model.q_sqrt, False)
    gamma = tf.Variable(options.gamma_start, dtype=tf.float64)
    natural, adam = gpflow.optimizers.NaturalGradient(gamma), tf.keras.optimizers.Adam(options.learning_rate)

    @tf.function
    def step():
        rows = next(batches)
        loss = lambda: model.training_loss(rows)
        natural.minimize(loss, [(model.q_mu, model.q_sqrt)])
        adam.minimize(loss, model.trainable_variables)

    schedule = np.geomspace(options.gamma_start, options.gamma, options.gamma_steps)
    durations = []
    for i in range(options.steps):
        progress["step"] = i
        before = time.perf_counter()
        gamma.assign(schedule[min(i, len(schedule) - 1)])
        step()
        durations.append(time.perf_counter() - before)
    progress.pop("step", None)
    rest = float(np.median(durations[1:])) if len(durations) > 1 else 0.0
    progress["seconds"] = time.perf_counter() - start
    progress["seconds_tracing"] = durations[0] - rest
    progress["milliseconds_per_step"] = 1e3 * rest
    return model, transform


def in_blocks(function, *arrays: np.ndarray) -> np.ndarray:
    """Concatenate function's results on BLOCK rows at a time."""
    cuts = range(0, len(arrays[0]), BLOCK)
    return np.concatenate([function(*(a[c : c + BLOCK] for a in arrays)).numpy() for c in cuts])


def bound(model, X: np.ndarray, ys: np.ndarray) -> float:
    """Evidence lower bound on all rows, a block at a time."""

    def expectations(X, y):
        return model.likelihood.variational_expectations(X, *model.predict_f(X), y)

    return float(in_blocks(expectations, X, ys).sum() - model.prior_kl().numpy())


def probabilities(model, X: np.ndarray, classes: int) -> np.ndarray:
    """Probability of every class, in columns."""
    p = in_blocks(lambda X: model.predict_y(X)[0], X)
    return np.column_stack([1.0 - p, p]) if classes == 2 else p


def main() -> int:
    """Run one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--num-inducing", type=int, default=100, metavar="M")
    parser.add_argument("--steps", type=int, default=1000, metavar="K")
    parser.add_argument("--batch", type=int, default=256, metavar="B", help="all rows if there are fewer")
    parser.add_argument("--gamma", type=float, default=0.05, help="natural-gradient step size at the end of its rise")
    parser.add_argument("--gamma-start", type=float, default=1e-4)
    parser.add_argument("--gamma-steps", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=0.01, help="Adam's")
    parser.add_argument("--likelihood", choices=("robustmax", "softmax"), default="robustmax", help="three classes up")
    parser.add_argument("--epsilon", type=float, default=1e-3, help="RobustMax's share of wrong labels")
    parser.add_argument("--learn-epsilon", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of the batches")
    parser.add_argument("--warm-up", action="store_true", help="fit 50 toy rows first, so that TensorFlow has started")
    parser.add_argument("--split", type=int, default=0, metavar="SEED", help="of the rows' permutation")
    options = parser.parse_args()
    tf.random.set_seed(options.seed)

    if options.warm_up:
        X = np.random.default_rng(0).normal(size=(50, 2))
        fit(X, X[:, 0] > 0.0, 2, argparse.Namespace(**vars(options) | WARM_UP), {})
    X, y = load(options.table)
    train, test = split(y, options.split)
    classes, labels = np.unique(y[train], return_inverse=True)
    figures = dict(
        library=f"gpflow {gpflow.__version__}",
        table=name_of(options.table),
        split=options.split,
        likelihood="bernoulli" if len(classes) == 2 else options.likelihood,
        N=len(y),
        N_train=len(train),
        classes=len(classes),
        M=options.num_inducing,
        batch=min(options.batch, len(train)),
        steps=options.steps,
        gamma=options.gamma,
    )
    progress = {}
    start = time.perf_counter()
    try:
        model, transform = fit(X[train], labels, len(classes), options, progress)
        Xt = transform(X[test])
        result = dict(
            D=Xt.shape[1],
            **scores(probabilities(model, Xt, len(classes)), classes, y[test]),
            bound_per_row=bound(model, transform(X[train]), labels_for(len(classes), labels)) / len(train),
        )
        if not np.isfinite(result["test_log_density"]):
            result["error"] = "predictions are not finite"
    except Exception as error:  # a crash is a result of the comparison, not of this script
        result = dict(error=error_text(error), seconds_until_error=time.perf_counter() - start)
    print(as_line(figures | progress | result))
    return int("error" in result)


if __name__ == "__main__":
    sys.exit(main())
