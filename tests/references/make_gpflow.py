"""Write gpflow.json: what GPflow computes for small fixed inputs, references for the tests. Run by hand, not by tests.

    pip install "gpflow==2.11.2" "tensorflow==2.21.0" "tf-keras==2.21.0" "numpy<2" "setuptools<81"
    python tests/references/make_gpflow.py

Written with Python 3.11.7, GPflow 2.11.2, TensorFlow 2.21.0, TensorFlow Probability 0.25.0, tf-keras 2.21.0 and NumPy
1.26.4; the JSON repeats the versions it was made with. Everything is float64. Inputs are rounded to 6 decimals BEFORE
GPflow sees them, so that the JSON holds exactly what was used; outputs keep all digits. GPflow adds its jitter, an
absolute number, to Kuu; here it is 1e-6 times the kernel's variance, which is the library's relative jitter
1e-6 mean(diag Kuu). Exact regression (GPR) uses no jitter.
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

SEED, N, D, M, S, BATCH = 20180301, 25, 2, 7, 5, 10
LENGTHSCALES, VARIANCE, NOISE = [0.7, 1.9], 1.7, 0.13
ALPHA, PERIOD, LINEAR_VARIANCES = 0.8, [1.1, 2.3], [1.7, 0.4]
JITTER = 1e-6 * VARIANCE


def make_inputs() -> dict[str, np.ndarray]:
    """Draw data, inducing inputs, test inputs and a random q(u), and round them."""
    rng = np.random.default_rng(SEED)
    X = rng.uniform(-2.0, 2.0, (N, D))
    y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + np.sqrt(NOISE) * rng.normal(size=N)
    Z, X_test = X[rng.choice(N, M, replace=False)] + 0.3 * rng.normal(size=(M, D)), rng.uniform(-2.5, 2.5, (S, D))
    q_mu = rng.normal(size=M)
    q_sqrt = np.tril(0.3 * rng.normal(size=(M, M)), -1) + np.diag(rng.uniform(0.3, 1.2, M))
    inputs = dict(X=X, y=y, Z=Z, X_test=X_test, q_mu=q_mu, q_sqrt=q_sqrt)
    return {name: np.round(value, 6) for name, value in inputs.items()}


def matern52() -> gpflow.kernels.Kernel:
    """Make the kernel of all models below."""
    return gpflow.kernels.Matern52(variance=VARIANCE, lengthscales=LENGTHSCALES)


def kernel_matrices(X: np.ndarray, Z: np.ndarray) -> dict:
    """Evaluate K(X, Z) for every kernel, with the formula GPflow 2.11.2 has in its source; r² = Σ_d (x_d-z_d)²/l_d²."""
    k, ard = gpflow.kernels, dict(variance=VARIANCE, lengthscales=LENGTHSCALES)
    periodic = k.Periodic(k.SquaredExponential(**ard), period=PERIOD)
    cases = {
        "squared_exponential": (k.SquaredExponential(**ard), ard, "v exp(-r²/2)"),
        "matern12": (k.Matern12(**ard), ard, "v exp(-r)"),
        "matern32": (k.Matern32(**ard), ard, "v (1 + √3 r) exp(-√3 r)"),
        "matern52": (k.Matern52(**ard), ard, "v (1 + √5 r + 5r²/3) exp(-√5 r)"),
        "rational_quadratic": (
            k.RationalQuadratic(alpha=ALPHA, **ard),
            ard | dict(alpha=ALPHA),
            "v (1 + r²/(2 alpha))^(-alpha)",
        ),
        "periodic": (
            periodic,
            ard | dict(period=PERIOD),
            "v exp(-½ Σ_d sin²(π (x_d-z_d)/p_d) / l_d²): ½, where GPML (4.31) has 2; its lengthscale l is GPML's l/2",
        ),
        "linear": (k.Linear(variance=VARIANCE), dict(variance=VARIANCE), "v Σ_d x_d z_d; no lengthscale"),
        "linear_ard": (k.Linear(variance=LINEAR_VARIANCES), dict(variance=LINEAR_VARIANCES), "Σ_d v_d x_d z_d"),
        "constant": (k.Constant(variance=VARIANCE), dict(variance=VARIANCE), "v; no lengthscale"),
    }
    return {
        name: dict(parameters=parameters, formula=formula, K_XZ=kernel.K(X, Z).numpy())
        for name, (kernel, parameters, formula) in cases.items()
    }


def prediction(model: gpflow.models.GPModel, X_test: np.ndarray) -> dict[str, np.ndarray]:
    """Mean and variance of the latent function, without observation noise."""
    mean, var = model.predict_f(X_test)
    return dict(mean=mean.numpy()[:, 0], var=var.numpy()[:, 0])


def svgp(Z: np.ndarray, whiten: bool, q_mu: np.ndarray | None = None, q_sqrt: np.ndarray | None = None):
    """Make an SVGP with a Gaussian likelihood; q is N(0, I) where none is given."""
    return gpflow.models.SVGP(
        matern52(),
        gpflow.likelihoods.Gaussian(NOISE),
        gpflow.inducing_variables.Collapsed(Z),
        q_mu=None if q_mu is None else q_mu[:, None],
        q_sqrt=None if q_sqrt is None else q_sqrt[None],
        whiten=whiten,
        num_data=N,
    )


def regression(X: np.ndarray, y: np.ndarray, Z: np.ndarray, X_test: np.ndarray) -> dict:
    """Exact and collapsed sparse regression."""
    gpr = gpflow.models.GPR((X, y[:, None]), matern52(), noise_variance=NOISE)
    sgpr = gpflow.models.SGPR((X, y[:, None]), matern52(), Z, noise_variance=NOISE)
    exact = dict(log_marginal_likelihood=gpr.log_marginal_likelihood().numpy(), **prediction(gpr, X_test))
    sparse = dict(elbo=sgpr.elbo().numpy(), upper_bound=sgpr.upper_bound().numpy(), **prediction(sgpr, X_test))
    return dict(gpr=exact, sgpr=sparse)


def fixed_q(X: np.ndarray, y: np.ndarray, Z: np.ndarray, X_test: np.ndarray, q_mu, q_sqrt) -> dict:
    """SVGP at the random q: whitened, q is the distribution of v with u = chol(Kuu) v; unwhitened, that of u."""
    out = {}
    for name, whiten in (("whitened", True), ("unwhitened", False)):
        model = svgp(Z, whiten, q_mu, q_sqrt)
        full, part = model.elbo((X, y[:, None])), model.elbo((X[:BATCH], y[:BATCH, None]))
        bounds = dict(elbo=full.numpy(), elbo_minibatch=part.numpy(), prior_kl=model.prior_kl().numpy())
        out[name] = bounds | prediction(model, X_test)
    return out


def natural_gradient(X: np.ndarray, y: np.ndarray, Z: np.ndarray, gamma: float, steps: int) -> dict:
    """Whitened q from N(0, I), full batch: q and the bound before the first and after every step."""
    model, iterates = svgp(Z, True), []
    loss, optimizer = (
        model.training_loss_closure((X, y[:, None]), compile=False),
        gpflow.optimizers.NaturalGradient(gamma),
    )
    for step in range(steps + 1):
        if step:
            optimizer.minimize(loss, [(model.q_mu, model.q_sqrt)])
        q = dict(q_mu=model.q_mu.numpy()[:, 0], q_sqrt=model.q_sqrt.numpy()[0])
        iterates.append(dict(step=step, elbo=-loss().numpy(), **q))
    return dict(gamma=gamma, parameterisation="natural (XiNat)", whiten=True, iterates=iterates)


def plain(value):
    """Turn arrays into nested lists of floats."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def main() -> None:
    """Compute everything and write the file beside this one."""
    gpflow.config.set_default_float(np.float64)
    gpflow.config.set_default_jitter(JITTER)
    inputs = make_inputs()
    X, y, Z, X_test = (inputs[name] for name in ("X", "y", "Z", "X_test"))
    modules = dict(gpflow=gpflow, tensorflow=tf, tensorflow_probability=tfp, numpy=np)
    about = dict(
        versions=dict(python=platform.python_version()) | {name: m.__version__ for name, m in modules.items()},
        seed=SEED,
        dtype="float64",
        rounding="inputs are rounded to 6 decimals before use",
        model=dict(
            kernel="matern52", variance=VARIANCE, lengthscales=LENGTHSCALES, noise_variance=NOISE, mean_function="zero"
        ),
        jitter=dict(value=JITTER, rule="1e-6 * variance, added to the diagonal of Kuu; none in gpr"),
        minibatch=dict(rows=list(range(BATCH)), num_data=N, scale=N / BATCH),
        predictions="mean and variance of f at X_test, without observation noise",
    )
    result = dict(
        about=about,
        inputs=inputs,
        kernels=kernel_matrices(X, Z),
        **regression(X, y, Z, X_test),
        svgp=fixed_q(**inputs),
        natural_gradient=dict(
            short=natural_gradient(X, y, Z, gamma=0.1, steps=5), unit=natural_gradient(X, y, Z, gamma=1.0, steps=1)
        ),
    )
    text = json.dumps(plain(result), indent=1, ensure_ascii=False, allow_nan=False)
    text = re.sub(r"\[([^\[\]{}\"]*)\]", lambda row: f"[{' '.join(row[1].split())}]", text)  # a row of numbers, a line
    Path(__file__).with_name("gpflow.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
