"""On a GPU: exact, collapsed and minibatch work beside GPyTorch, and whole fits.

    python benchmarks/gpu.py                 sizes for one large GPU, some eight minutes
    python benchmarks/gpu.py --small         the same code on a CPU, sizes that only show that it runs

Rows of D = 8 columns, RBF with a lengthscale a column. Sides take turns in one process, each on the same arrays, which
lie on the device; a turn ends when its result is on the host. `seconds` has quartiles over the rounds.

- `exact`: log evidence a row and its gradient. GPyTorch once by Cholesky factors and once by its own choice, which is
  conjugate gradients beyond 800 rows.
- `collapsed`: Titsias' collapsed bound a row and its gradient, with respect to pseudo-points too.
- `step`: minibatches of 1,000 rows; natural gradients of q and Adam for all else, from one backward pass.
- `fit`: GPRegressor from raw arrays to the fitted model, compilation included, and the log density of 5,000 new rows,
  of the target in standard deviations. GPyTorch: as many steps of Adam as its tutorials take, with the same M.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # GPyTorch needs memory too

import gpytorch
import jax
import numpy as np
import optax
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import InducingPointKernel, RBFKernel, ScaleKernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from gpytorch.variational import NaturalVariationalDistribution, VariationalStrategy
from linear_operator.utils.errors import NotPSDError
from provenance import ROOT, provenance

from pseudopoint import GPRegressor
from pseudopoint.bounds import collapsed, marginal
from pseudopoint.data import dataset
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Gaussian
from pseudopoint.optimise.minibatch import NaturalGradient, constant
from pseudopoint.optimise.minibatch.loop import fit, start
from pseudopoint.params import cast
from pseudopoint.posteriors import Collapsed, Model, Whitened

D, B, NOISE = 8, 1000, 0.09
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
Turn = Callable[[], float]


def rows(N: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and a target with noise of variance 0.09."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (N, D))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * np.cos(3 * X[:, 3])
    return X, f + NOISE**0.5 * rng.standard_normal(N)


# --- ours ------------------------------------------------------------------------------------------------------------


def model_of(dtype: str, posterior=None) -> Model:
    """The model whose numbers both sides have."""
    parts = (RBF(np.full(D, 2.0), 1.0), Gaussian(NOISE)) + (() if posterior is None else (posterior,))
    return jax.device_put(cast(Model(*parts), dtype))


def our_slopes(bound, posterior, X, y, dtype) -> Turn:
    model, data = model_of(dtype, posterior), jax.device_put(dataset(X, y, dtype=dtype))
    slopes = jax.jit(lambda model, data: jax.value_and_grad(lambda m: bound(m, data).standard)(model))

    def turn():
        value, slope = slopes(model, data)
        jax.block_until_ready(slope)
        return float(value) / len(y)

    return turn


def our_steps(Z, X, y, dtype, steps) -> Turn:
    M = len(Z)
    posterior = Whitened(Z, MeanPrecision(np.zeros(M), np.eye(M)))
    stepper, data = NaturalGradient(constant(0.1), optax.adam(1e-3), (), True), dataset(X, y, dtype=dtype)
    state = [start(model_of(dtype, posterior), stepper, data, 0)]

    def turn():
        state[0], history = fit(state[0], stepper, data, steps=steps, batch_size=B, segment=steps)
        jax.block_until_ready(state[0].model)
        return history[-1].bound / len(y)

    return turn


def our_fit(settings, X, y, new) -> dict:
    model = GPRegressor(effort="fast", **settings)
    began = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - began
    density = float(np.mean(model.log_density(*new)) + np.log(y.std()))
    return {"seconds": seconds, "log_density": density, "iterations": int(model.n_iter_)}


# --- GPyTorch --------------------------------------------------------------------------------------------------------


def tensors(dtype: str, *arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.as_tensor(x, dtype=getattr(torch, dtype), device=DEVICE) for x in arrays]


def kernel_of(lengthscale: float = 2.0):
    kernel = ScaleKernel(RBFKernel(ard_num_dims=D))
    kernel.outputscale, kernel.base_kernel.lengthscale = 1.0, lengthscale
    return kernel


class OfAllRows(gpytorch.models.ExactGP):
    """Exact, or with points: Titsias' sparse regression."""

    def __init__(self, X, y, likelihood, Z=None):
        super().__init__(X, y, likelihood)
        self.mean = ZeroMean()
        self.kernel = kernel_of() if Z is None else InducingPointKernel(kernel_of(), Z, likelihood)

    def forward(self, x):
        return MultivariateNormal(self.mean(x), self.kernel(x))


class OfBatches(gpytorch.models.ApproximateGP):
    """SVGP with natural parameters."""

    def __init__(self, Z, distribution=NaturalVariationalDistribution):
        super().__init__(VariationalStrategy(self, Z, distribution(len(Z)), learn_inducing_locations=True))
        self.mean, self.kernel = ZeroMean(), kernel_of()

    def forward(self, x):
        return MultivariateNormal(self.mean(x), self.kernel(x))


def gaussian():
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = NOISE
    return likelihood


def their_slopes(X, y, dtype, Z=None, factors=False) -> Turn:
    X, y, *Z = tensors(dtype, X, y, *([] if Z is None else [Z]))
    likelihood = gaussian()
    model = OfAllRows(X, y, likelihood, *Z).to(X)
    likelihood.to(X)
    mll = ExactMarginalLogLikelihood(likelihood, model)
    model.train(), likelihood.train()

    def turn():
        model.zero_grad()
        size = 10**9 if factors else 800
        with gpytorch.settings.max_cholesky_size(size), gpytorch.settings.fast_computations(*3 * (not factors,)):
            value = mll(model(X), y)
            value.backward()
        return float(value.detach())

    return turn


def their_steps(Z, X, y, dtype, steps) -> Turn:
    X, y, Z = tensors(dtype, X, y, Z)
    likelihood, model, N = gaussian().to(X), OfBatches(Z).to(X), len(y)
    mll = VariationalELBO(likelihood, model, num_data=N)
    natural = gpytorch.optim.NGD(model.variational_parameters(), num_data=N, lr=0.1)
    adam = torch.optim.Adam([*model.hyperparameters(), *likelihood.parameters()], lr=1e-3)
    model.train(), likelihood.train()

    def turn():
        value = torch.zeros(())
        for _ in range(steps):
            batch = torch.randint(N, (B,), device=DEVICE)
            natural.zero_grad(), adam.zero_grad()
            value = mll(model(X[batch]), y[batch])
            (-value).backward()
            natural.step(), adam.step()
        return float(value)

    return turn


def their_fit(kind, M, steps, rate, X, y, new) -> dict:
    began = time.perf_counter()
    mean, scale = y.mean(), y.std()
    inputs, target, tests = tensors("float32", X, (y - mean) / scale, new[0])
    likelihood = gaussian().to(inputs)
    if kind == "exact":
        model = OfAllRows(inputs, target, likelihood).to(inputs)
        mll = ExactMarginalLogLikelihood(likelihood, model)
    else:
        chosen = np.random.default_rng(0).choice(len(y), M, replace=False)
        model = OfBatches(inputs[chosen], gpytorch.variational.CholeskyVariationalDistribution).to(inputs)
        mll = VariationalELBO(likelihood, model, num_data=len(y))
    adam = torch.optim.Adam([*model.parameters(), *([] if kind == "exact" else likelihood.parameters())], lr=rate)
    model.train(), likelihood.train()
    for _ in range(steps):
        part = slice(None) if kind == "exact" else torch.randint(len(y), (B,), device=DEVICE)
        adam.zero_grad()
        loss = -mll(model(inputs[part]), target[part])
        loss.backward()
        adam.step()
    seconds = time.perf_counter() - began
    model.eval(), likelihood.eval()
    with torch.no_grad():
        of_y = likelihood(model(tests))
        f, s2 = (np.asarray(x.cpu(), float) for x in (of_y.mean, of_y.variance))
    z = (new[1] - mean) / scale
    density = float(np.mean(-0.5 * np.log(2 * np.pi * s2) - 0.5 * (z - f) ** 2 / s2))
    return {"seconds": seconds, "log_density": density, "iterations": steps}


# --- in turns --------------------------------------------------------------------------------------------------------


def timed(sides: dict[str, Callable[[], Turn]], rounds: int):
    """(side, numbers) for each side; what one cannot do is its error."""
    ready, errors = {}, {}
    for side, make in sides.items():
        try:
            ready[side] = make()
            ready[side]()  # compiles
        except (RuntimeError, NotPSDError) as error:  # out of memory, or no factor: said in the row
            errors[side] = f"{type(error).__name__}: {error}"[:200]
            ready.pop(side, None)
    seconds: dict[str, list[float]] = {side: [] for side in ready}
    values = {}
    for _ in range(rounds):
        for side, turn in ready.items():
            began = time.perf_counter()
            values[side] = turn()
            seconds[side].append(time.perf_counter() - began)
    for side, each in seconds.items():
        yield side, {"value": values[side], "seconds": np.quantile(each, [0.25, 0.5, 0.75]).tolist()}
    yield from ((side, {"error": error}) for side, error in errors.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtypes", default="float64,float32")
    parser.add_argument("--only", default="exact,collapsed,step,fit")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu.jsonl")
    given = parser.parse_args()
    device = torch.cuda.get_device_name() if CUDA else "CPU"
    about = provenance() | {"device": device, "jax": jax.__version__, "gpytorch": gpytorch.__version__}

    def store(case, N, dtype, found, **more):
        for side, numbers in found:
            row = {"case": case, "who": side, "N": N, "dtype": dtype} | more | numbers | about
            print(json.dumps(row), flush=True)
            with given.out.open("a") as file:
                file.write(json.dumps(row) + "\n")

    exact, sparse, many = ((300,), (2000,), 3000) if given.small else ((2000, 5000, 10_000, 20_000), (100_000,), 10**6)
    Ms, steps = ((50,), 5) if given.small else ((500, 1000), 100)
    for dtype in given.dtypes.split(","):
        with jax.enable_x64(dtype == "float64"):
            for N in exact if "exact" in given.only else ():
                X, y = rows(N)
                sides = {
                    "ours": partial(our_slopes, marginal, None, X, y, dtype),
                    "gpytorch, Cholesky": partial(their_slopes, X, y, dtype, None, True),
                    "gpytorch": partial(their_slopes, X, y, dtype),
                }
                store("exact", N, dtype, timed(sides, given.rounds))
                torch.cuda.empty_cache()
            for M in Ms:
                Z = rows(M, 1)[0]
                for N in sparse if "collapsed" in given.only else ():
                    X, y = rows(N)
                    sides = {
                        "ours": partial(our_slopes, collapsed, Collapsed(Z), X, y, dtype),
                        "gpytorch": partial(their_slopes, X, y, dtype, Z),
                    }
                    store("collapsed", N, dtype, timed(sides, given.rounds), M=M)
                    torch.cuda.empty_cache()
                if "step" in given.only:
                    X, y = rows(many)
                    sides = {
                        "ours": partial(our_steps, Z, X, y, dtype, steps),
                        "gpytorch": partial(their_steps, Z, X, y, dtype, steps),
                    }
                    store("step", many, dtype, timed(sides, given.rounds), M=M, steps=steps)
                    torch.cuda.empty_cache()
    if "fit" in given.only:
        new = rows(5000, 2)
        fits = {"exact": (exact[0] if given.small else 5000, 50), "svgp": (many, 3000)}
        for kind, (N, count) in fits.items():
            X, y = rows(N)
            M = 50 if given.small else 300
            count = 5 if given.small else count
            settings = {"method": kind} | ({} if kind == "exact" else {"num_inducing": M})
            settings |= {"max_iter": 5} if given.small else {}
            found = [("ours", our_fit(settings, X, y, new))]
            rate = 0.1 if kind == "exact" else 0.01
            store("fit", N, "own choice", [*found, ("gpytorch", their_fit(kind, M, count, rate, X, y, new))], kind=kind)


if __name__ == "__main__":
    main()
