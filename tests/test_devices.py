"""Rows shared among four devices give the numbers of one device: bounds, gradients, natural steps and whole fits."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytestmark = pytest.mark.edge

CODE = """
import json
import jax
import numpy as np
from pseudopoint import GPRegressor
from pseudopoint.bounds import ELBO, collapsed, elbo, summed_gradient
from pseudopoint.data import dataset
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Gaussian, Poisson, Softmax
from pseudopoint.optimise.fullbatch import converge
from pseudopoint.optimise.minibatch import NaturalGradient
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, IndependentLatents, Model, Whitened

jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
N, M, D = 4099, 15, 2  # no multiple of the number of devices
X, Z = rng.uniform(-2, 2, (N, D)), rng.uniform(-2, 2, (M, D))
f = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
y, counts = f + 0.3 * rng.normal(size=N), rng.poisson(np.exp(f)).astype(float)
weight = rng.integers(0, 3, N).astype(float)
rows, rare = dataset(X, y, weight, 0.1 * rng.random(N)), dataset(X, counts, weight)
few = dataset(X[:50], counts[:50])
kernel = RBF(np.array([0.8, 1.3]), 1.5)
q = MeanPrecision(rng.normal(size=M), np.eye(M) + np.ones((M, M)))
model = lambda likelihood, posterior: cast(Model(kernel, likelihood, posterior), "float64")
gaussian = model(Gaussian(0.1), Collapsed(Z))
poisson = model(Poisson(), Whitened(Z, q))

each = MeanPrecision(rng.normal(size=(3, M)), np.broadcast_to(np.eye(M), (3, M, M)).copy())
softmax = model(Softmax(3), IndependentLatents(base=Whitened(Z, each)))
classes = dataset(X, rng.integers(0, 3, N).astype(float), weight)

def slopes(bound, model, data, tight=True):
    numbers = trainable(model)
    value = lambda parts: bound(numbers.rebuild(parts), data).choose(tight)
    return jax.jit(jax.value_and_grad(value))(numbers.parts)

def step(model):
    stepper = NaturalGradient(lambda t: 0.5)
    info = jax.jit(stepper.step)(model, stepper.init(model, N), rare, 3 * N)
    return info[0].posterior.q, info[2]

of_rows = lambda model, data: elbo(model, data, 2 * N)
numbers = trainable(poisson)

values = {
    "shared": len(jax.jit(lambda: collapsed(gaussian, rows).value)().devices()),
    "few": len(jax.jit(lambda: elbo(poisson, few, 50).value)().devices()),
    "collapsed": slopes(collapsed, gaussian, rows),
    "standard": slopes(collapsed, gaussian, rows, False),
    "elbo": slopes(of_rows, poisson, rare),
    "natural step": step(poisson),
    "joint steps": jax.jit(lambda model: converge(model, classes, steps=3).posterior.q)(softmax),
    "elbo, by chunks": summed_gradient(ELBO, True, lambda *_: 0.0, numbers, numbers.vector, (rare, None))[:2],
}
jax.config.update("jax_enable_x64", False)
options = {"effort": "fast", "kernel": "rbf", "num_inducing": 15, "max_iter": 3}
fitted = GPRegressor(likelihood="poisson", method="collapsed", **options).fit(X, counts)
values["fit"] = fitted.bound_, fitted.predict(X[:7], return_std=True)
flat = lambda tree: np.concatenate([np.ravel(leaf).astype(float) for leaf in jax.tree.leaves(tree)]).tolist()
print(json.dumps({name: flat(value) for name, value in values.items()}))
"""


def values_on(devices: int) -> dict[str, list[float]]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags}
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_four_devices_give_the_numbers_of_one():
    """The fit takes full passes: steps of L-BFGS-B on the bound at its best q, which natural steps find at each."""
    with ThreadPoolExecutor(2) as pool:
        one, four = pool.map(values_on, [1, 4])
    assert (one.pop("shared"), four.pop("shared")) == ([1], [4])
    assert one.pop("few") == four.pop("few") == [1]
    for name, value in one.items():
        value = np.array(value)
        np.testing.assert_allclose(four[name], value, rtol=1e-10, atol=1e-10 * np.abs(value).max(), err_msg=name)
