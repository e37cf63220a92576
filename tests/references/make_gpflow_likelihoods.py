"""Write gpflow_likelihoods.json: what GPflow says of a few rows with each likelihood. Run by hand, not by tests.

    pip install "gpflow==2.11.2" "tensorflow==2.21.0" "tf-keras==2.21.0" "numpy<2" "setuptools<81"
    python tests/references/make_gpflow_likelihoods.py

Written with Python 3.11.7, GPflow 2.11.2, TensorFlow 2.21.0, TensorFlow Probability 0.25.0, tf-keras 2.21.0 and NumPy
1.26.4; the JSON repeats the versions it was made with. Everything is float64 and nothing is random. Where GPflow has no
closed form it takes Gauss–Hermite quadrature with 20 nodes. Its Beta is given the logistic link, which is ours; its
Gamma has mean shape · e^f, which is ours with scale = shape. A NaN is stored as null.
"""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

import json
import os
import platform
import re
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # TensorFlow Probability does not import with Keras 3
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

MEAN, VARIANCE = np.array([-1.2, 0.0, 0.7, 2.1]), np.array([0.05, 0.3, 1.0, 0.5])
MEANS = np.array([[0.3, -0.8, 1.1], [0.0, 0.2, -0.1], [1.5, 1.0, -0.5], [-2.0, 0.4, 0.9]])
VARIANCES = np.array([[0.1, 0.4, 0.2], [1.0, 0.5, 0.3], [0.2, 0.2, 0.6], [0.7, 0.3, 0.05]])
REAL, COUNTS, POSITIVE = [0.3, -0.5, 1.0, 4.0], [0, 1, 3, 9], [0.1, 1.5, 0.7, 12.0]
BINARY, UNIT, CLASSES = [0, 1, 1, 0], [0.2, 0.5, 0.9, 0.7], [0, 2, 1, 2]


def ordinal() -> gpflow.likelihoods.Ordinal:
    """Make four classes with scale 0.6."""
    likelihood = gpflow.likelihoods.Ordinal(np.array([-1.0, 0.2, 1.3]))
    likelihood.sigma.assign(0.6)
    return likelihood


def cases() -> dict:
    """Make every likelihood, the parameters by our names, and the targets."""
    likelihoods = gpflow.likelihoods
    robustmax = likelihoods.MultiClass(3, invlink=likelihoods.RobustMax(3, epsilon=1e-3))
    return {
        "student_t": (likelihoods.StudentT(scale=0.8, df=4.0), dict(scale=0.8, degrees=4.0), REAL),
        "bernoulli_probit": (likelihoods.Bernoulli(), dict(link="probit"), BINARY),
        "bernoulli_logit": (likelihoods.Bernoulli(invlink=tf.sigmoid), dict(link="logit"), BINARY),
        "poisson": (likelihoods.Poisson(), dict(scale=1.0), COUNTS),
        "gamma": (likelihoods.Gamma(shape=1.7), dict(scale=1.7, shape=1.7), POSITIVE),
        "exponential": (likelihoods.Exponential(), dict(scale=1.0), POSITIVE),
        "beta": (likelihoods.Beta(invlink=tf.sigmoid, scale=6.0), dict(scale=6.0), UNIT),
        "ordinal": (ordinal(), dict(edges=[-1.0, 0.2, 1.3], scale=0.6), [0, 1, 2, 3]),
        "robustmax": (robustmax, dict(members=3, epsilon=1e-3), CLASSES),
    }


def answers(likelihood: gpflow.likelihoods.Likelihood, mean: np.ndarray, variance: np.ndarray, y: list) -> dict:
    """Evaluate the three functions of every row; mean and variance are [N, latents]."""
    X, Y = np.zeros((len(mean), 1)), np.array(y, float)[:, None]
    first, spread = likelihood.predict_mean_and_var(X, mean, variance)
    return dict(
        expectation=likelihood.variational_expectations(X, mean, variance, Y).numpy(),
        log_density=likelihood.predict_log_density(X, mean, variance, Y).numpy(),
        mean=first.numpy().squeeze(),
        variance=spread.numpy().squeeze(),
    )


def far_out() -> dict:
    """Evaluate at |f| = 30 what GPflow clips: its probit, and the ordered classes."""
    at, tiny = np.array([[-30.0], [30.0]]), np.full((2, 1), 1e-12)
    rows = dict(bernoulli_probit=(gpflow.likelihoods.Bernoulli(), [1, 0]), ordinal=(ordinal(), [3, 0]))
    return {name: answers(likelihood, at, tiny, y) for name, (likelihood, y) in rows.items()}


def nan_to_none(value):
    """Turn arrays into nested lists of floats, and NaN, which JSON lacks, into None."""
    if isinstance(value, dict):
        return {key: nan_to_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_none(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return nan_to_none(value.tolist())
    return None if isinstance(value, float) and np.isnan(value) else value


def main() -> None:
    """Compute everything and write the file beside this one."""
    gpflow.config.set_default_float(np.float64)
    modules = dict(gpflow=gpflow, tensorflow=tf, tensorflow_probability=tfp, numpy=np)
    versions = dict(python=platform.python_version()) | {name: m.__version__ for name, m in modules.items()}
    result = dict(
        about=dict(versions=versions, dtype="float64", quadrature="Gauss-Hermite, 20 nodes"),
        one=dict(mean=MEAN, variance=VARIANCE),
        several=dict(mean=MEANS, variance=VARIANCES),
        likelihoods={},
        far_out=far_out(),
    )
    for name, (likelihood, parameters, y) in cases().items():
        f = (MEANS, VARIANCES) if name == "robustmax" else (MEAN[:, None], VARIANCE[:, None])
        result["likelihoods"][name] = dict(parameters=parameters, y=y, **answers(likelihood, *f, y))
    text = json.dumps(nan_to_none(result), indent=1, ensure_ascii=False, allow_nan=False)
    text = re.sub(r"\[([^\[\]{}\"]*)\]", lambda row: f"[{' '.join(row[1].split())}]", text)  # a row of numbers, a line
    Path(__file__).with_name("gpflow_likelihoods.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
