"""What GPflow 2.11 computes for the same inputs (`references/make_gpflow.py`): every stored number but the kernel
matrices, which are in `test_kernels.py`."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

import json
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint.bounds import collapsed, elbo, expected_log_likelihood, marginal
from pseudopoint.data import dataset
from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.optimise.minibatch import NaturalGradient
from pseudopoint.posteriors import Collapsed, Exact, Model, Unwhitened, Whitened

STORED = json.loads((Path(__file__).parent / "references" / "gpflow.json").read_text(encoding="utf-8"))
INPUTS = {name: np.array(value) for name, value in STORED["inputs"].items()}
X, y, Z, X_test = (INPUTS[name] for name in ("X", "y", "Z", "X_test"))
N, M = len(y), len(Z)
ABOUT = STORED["about"]["model"]
JITTER = STORED["about"]["jitter"]["value"] / ABOUT["variance"]  # ours is relative


def model(posterior=None):
    kernel = Matern52(np.array(ABOUT["lengthscales"]), ABOUT["variance"])
    return Model(kernel, Gaussian(ABOUT["noise_variance"]), posterior or Exact())


@jax.jit
def predict(predictor):
    return dict(zip(("mean", "var"), predictor(jnp.asarray(X_test)), strict=True))


# --- our numbers, under the names of the file ------------------------------------------------------------------------


@cache
def gpr():
    solution = marginal(model(), dataset(X, y))
    return {"log_marginal_likelihood": solution.value, **predict(solution.predictor())}


@cache
def sgpr():
    of = collapsed(model(Collapsed(Z, jitter=JITTER)), dataset(X, y))
    return {"elbo": of.standard, "upper_bound": of.upper(), **predict(of.predictor())}


@jax.jit
def at_fixed_q(model, data, batch):
    value, part = elbo(model, data, N).standard, elbo(model, batch, N).standard
    expected, _ = expected_log_likelihood(model, data, N, tight=False)
    return {"elbo": value, "elbo_minibatch": part, "prior_kl": expected - value}, model.predictor()


@cache
def svgp():
    q = MeanChol(INPUTS["q_mu"], INPUTS["q_sqrt"])
    rows = np.array(STORED["about"]["minibatch"]["rows"])
    out = {}
    for name, family in (("whitened", Whitened), ("unwhitened", Unwhitened)):
        bounds, predictor = at_fixed_q(model(family(Z, q, JITTER)), dataset(X, y), dataset(X[rows], y[rows]))
        out[name] = {**bounds, **predict(predictor)}
    return out


def natural(gamma):
    return NaturalGradient(lambda t: gamma, hyper_optimiser=None, tight=False)


@jax.jit
def init(model):
    return natural(1.0).init(model, N)


@jax.jit
def step(gamma, model, state, data):
    return natural(gamma).step(model, state, data, N)


@cache
def natural_gradient():
    out = {}
    for name, run in STORED["natural_gradient"].items():
        iterate = model(Whitened(Z, MeanPrecision(np.zeros(M), np.eye(M)), JITTER))
        state, iterates = init(iterate), []
        for number in range(len(run["iterates"])):
            new, state, info = step(run["gamma"], iterate, state, dataset(X, y))
            q = iterate.posterior.q
            q_sqrt = np.linalg.cholesky(np.linalg.inv(np.asarray(q.precision)))
            iterates.append({"step": number, "elbo": info.bound, "q_mu": q.mean, "q_sqrt": q_sqrt})
            iterate = new
        out[name] = {"iterates": iterates}
    return out


OURS = {"gpr": gpr, "sgpr": sgpr, "svgp": svgp, "natural_gradient": natural_gradient}


# --- the comparison --------------------------------------------------------------------------------------------------


def leaves(tree: Any, path: tuple = ()) -> list[tuple]:
    """The paths of all numbers and arrays of numbers below a node."""
    if isinstance(tree, dict):
        return [leaf for key, child in tree.items() for leaf in leaves(child, (*path, key))]
    if isinstance(tree, list) and tree and isinstance(tree[0], dict):
        return [leaf for i, child in enumerate(tree) for leaf in leaves(child, (*path, i))]
    return [path]


def at(tree: Any, path: tuple) -> Any:
    for key in path:
        tree = tree[key]
    return tree


SETTINGS = {"gamma", "parameterisation", "whiten"}
VALUES = [
    (part, *path)
    for part in STORED
    if part not in {"about", "inputs", "kernels"}
    for path in leaves(STORED[part])
    if path[-1] not in SETTINGS
]


@pytest.mark.parametrize("path", VALUES, ids=lambda path: "-".join(map(str, path)))
def test_value_agrees_with_gpflow(path):
    part, *rest = path
    np.testing.assert_allclose(at(OURS[part](), tuple(rest)), at(STORED, path), rtol=1e-9, atol=1e-10)


def test_the_reference_was_made_with_the_jitter_that_is_compared():
    assert np.isclose(JITTER, 1e-6, rtol=1e-12)
    assert "1e-6 * variance" in STORED["about"]["jitter"]["rule"]
