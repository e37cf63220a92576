"""Write gpflow_natural.json: GPflow's natural gradient in four coordinate systems. Run by hand, not by tests.

    pip install "gpflow==2.11.2" "tensorflow==2.21.0" "tf-keras==2.21.0" "numpy<2" "setuptools<81"
    python tests/references/make_gpflow_natural.py

Written with Python 3.11.7, GPflow 2.11.2, TensorFlow 2.21.0, TensorFlow Probability 0.25.0, tf-keras 2.21.0 and NumPy
1.26.4; the JSON repeats the versions it was made with. Inputs, kernel and jitter are those of make_gpflow.py, beside
this file; q is whitened and starts from N(0, I), all rows are in every step. GPflow has natural and mean/var-sqrt
coordinates; mean/var and natural-sqrt are given to it here as its `XiTransform` asks, and differentiated by it. The
Bernoulli likelihood has the logistic link, which GPflow does not clip, and 20 Gauss–Hermite nodes.
"""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

import json
import platform
import re
from pathlib import Path

import make_gpflow as base
import numpy as np

# That module sets the environment which TensorFlow needs before it is imported.
gpflow, tf = base.gpflow, base.tf
natgrad = gpflow.optimizers.natgrad
STEPS = 4


class XiMeanVar(natgrad.XiTransform):
    """(m, S)."""

    @staticmethod
    def meanvarsqrt_to_xi(mean, varsqrt):
        return mean, tf.linalg.matmul(varsqrt, varsqrt, transpose_b=True)

    @staticmethod
    def xi_to_meanvarsqrt(xi1, xi2):
        return xi1, tf.linalg.cholesky(xi2)

    @staticmethod
    def naturals_to_xi(nat1, nat2):
        return XiMeanVar.meanvarsqrt_to_xi(*natgrad.natural_to_meanvarsqrt(nat1, nat2))


class XiNatSqrt(natgrad.XiTransform):
    """(θ₁, L), LLᵀ = −Θ₂."""

    @staticmethod
    def meanvarsqrt_to_xi(mean, varsqrt):
        return XiNatSqrt.naturals_to_xi(*natgrad.meanvarsqrt_to_natural(mean, varsqrt))

    @staticmethod
    def xi_to_meanvarsqrt(xi1, xi2):
        return natgrad.natural_to_meanvarsqrt(xi1, -tf.linalg.matmul(xi2, xi2, transpose_b=True))

    @staticmethod
    def naturals_to_xi(nat1, nat2):
        return nat1, tf.linalg.cholesky(-nat2)


COORDINATES = {
    "natural": natgrad.XiNat(),
    "natural-sqrt": XiNatSqrt(),
    "mean/var": XiMeanVar(),
    "mean/var-sqrt": natgrad.XiSqrtMeanVar(),
}
# Longer first steps leave the cone in mean/var, S ← S + γ(S − SP*S) with the precision P* that the data ask for.
GAMMAS = {"gaussian": 0.005, "bernoulli": 0.1}


def run(inputs: dict[str, np.ndarray], name: str, xi: natgrad.XiTransform) -> list[dict]:
    """q and the bound before the first and after every step."""
    X, y, Z = inputs["X"], inputs["y"], inputs["Z"]
    model = base.svgp(Z, True)
    if name == "bernoulli":
        model.likelihood, y = gpflow.likelihoods.Bernoulli(invlink=tf.sigmoid), (y > 0).astype(float)
    loss, iterates = model.training_loss_closure((X, y[:, None]), compile=False), []
    optimizer = gpflow.optimizers.NaturalGradient(GAMMAS[name], xi_transform=xi)
    for step in range(STEPS + 1):
        if step:
            optimizer.minimize(loss, [(model.q_mu, model.q_sqrt)])
        q_sqrt = model.q_sqrt.numpy()[0]
        iterates.append(dict(elbo=-loss().numpy(), mean=model.q_mu.numpy()[:, 0], cov=q_sqrt @ q_sqrt.T))
    return iterates


def main() -> None:
    """Compute everything and write the file beside this one."""
    gpflow.config.set_default_float(np.float64)
    gpflow.config.set_default_jitter(base.JITTER)
    inputs = base.make_inputs()
    modules = dict(gpflow=gpflow, tensorflow=tf, tensorflow_probability=base.tfp, numpy=np)
    result = dict(
        about=dict(
            versions=dict(python=platform.python_version()) | {key: m.__version__ for key, m in modules.items()},
            inputs="X, y, Z, kernel, noise and jitter of gpflow.json; the Bernoulli's y is 1 where y > 0",
            gamma=GAMMAS,
        ),
        **{name: {key: run(inputs, name, xi) for key, xi in COORDINATES.items()} for name in GAMMAS},
    )
    text = json.dumps(base.plain(result), indent=1, ensure_ascii=False, allow_nan=False)
    text = re.sub(r"\[([^\[\]{}\"]*)\]", lambda row: f"[{' '.join(row[1].split())}]", text)  # a row of numbers, a line
    Path(__file__).with_name("gpflow_natural.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
