"""Our side: what a user calls, on the arrays that everyone gets."""

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import jax
import jax.numpy as jnp
import numpy as np
import optax
import serve
import threadpoolctl
from serve import Task

import pseudopoint
from pseudopoint import GPClassifier, GPRegressor, bounds
from pseudopoint.data import dataset, draw, take
from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Bernoulli, Gaussian, RobustMax, Softmax, StudentT
from pseudopoint.optimise.fullbatch.objective import Objective
from pseudopoint.optimise.minibatch import NaturalGradient, Optax, constant
from pseudopoint.optimise.minibatch.loop import fit, start
from pseudopoint.optimise.named import tight, vfe
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, IndependentLatents, Model, Whitened


def scope(dtype):
    """Precision, and one thread for LAPACK, as in our estimators."""
    jax.config.update("jax_enable_x64", str(dtype) == "float64")
    threadpoolctl.threadpool_limits(1, user_api="blas")


LIKELIHOODS = {
    "gaussian": lambda p: Gaussian(float(p["noise"])),
    "bernoulli": lambda p: Bernoulli("probit"),
    "studentt": lambda p: StudentT(float(p["scale"]), float(p["degrees"])),
    "robustmax": lambda p: RobustMax(10),
    "softmax": lambda p: Softmax(10),
}


def model_of(p, likelihood, natural):
    """The starting model, its q by precision or by Cholesky factor. Our jitter is relative to the variance."""
    root = p["root"].astype(float)
    if natural:
        q = MeanPrecision(p["mean"], np.linalg.inv(root @ root.swapaxes(1, 2)))
    else:
        q = MeanChol(p["mean"], root)
    latents = len(p["mean"])
    q = jax.tree.map(lambda x: x[0], q) if latents == 1 else q
    posterior = Whitened(p["Z"], q, jitter=float(p["jitter"] / p["variance"]))
    posterior = posterior if latents == 1 else IndependentLatents(posterior)
    return cast(Model(RBF(p["lengthscale"], float(p["variance"])), likelihood, posterior), p["X"].dtype)


def steps(p, variant, likelihood, optimiser, steps, gamma, rate):
    """`training.fit`, a segment a turn: drawing and moving rows, the compiled steps, the history."""
    scope(p["X"].dtype)
    natural = optimiser != "adam"
    model = model_of(p, LIKELIHOODS[likelihood](p), natural)
    is_tight, B = variant == "tight", p["rows"].shape[1]
    adam = optax.adam(rate)
    if natural:
        held = (lambda m: m.kernel, lambda m: m.likelihood) if optimiser == "ngd+adam of Z" else ()
        stepper = NaturalGradient(constant(gamma), None if optimiser == "natural" else adam, held, is_tight)
    else:
        stepper = Optax(adam, tight=is_tight)
    data = dataset(p["X"], p["y"])
    np.testing.assert_array_equal(draw(len(data), B, 0, 0, steps), p["rows"][:steps])
    state = [start(model, stepper, data, 0)]
    batch = take(data, p["rows"][0])
    bound = jax.jit(lambda model: bounds.elbo(model, batch, len(data)).choose(is_tight))

    def turn():
        state[0], _ = fit(state[0], stepper, data, steps=steps, batch_size=B, segment=steps)
        jax.block_until_ready(state[0].model)

    return Task(turn, lambda: bound(state[0].model), "training.fit", lambda: {"rejected": int(state[0].rejected)})


def collapsed(p, variant):
    """What L-BFGS-B calls once an evaluation (`fullbatch`), at points that differ a little each time."""
    scope(p["X"].dtype)
    points = Collapsed(p["Z"], jitter=float(p["jitter"] / p["variance"]))
    model = Model(RBF(p["lengthscale"], float(p["variance"])), Gaussian(float(p["noise"])), points)
    bound, numbers = tight if variant == "tight" else vfe, trainable(cast(model, p["X"].dtype))
    objective = Objective(bound, numbers, dataset(p["X"], p["y"]))
    first, count = np.array(objective.best), [0]

    def turn():
        count[0] += 1
        value, _ = objective(first + 1e-9 * (count[0] - 1))
        return {"value": -value}

    return Task(turn, None, "fullbatch.Objective")


def predict(p, variant):
    """GPRegressor.predict(return_std=True), or the jitted `Predictor` alone, which gives f and not y."""
    scope(p["X"].dtype)
    new = p.pop("new")
    with ProcessPoolExecutor(1, get_context("spawn")) as elsewhere:  # as a service has it: fitted before, not here
        model = elsewhere.submit(regressor, p).result()
    out = [None]
    if variant == "predictor":
        predictor, width = model.predictor_, min(len(new), 2048)
        f = jax.jit(lambda X: predictor(X))
        noise = float(model.likelihood_.variance)

        def turn():
            parts = []
            for a in range(0, len(new), width):
                rows = new[a : a + width]
                rows = np.concatenate([rows, np.repeat(rows[:1], width - len(rows), axis=0)])
                parts.append([np.asarray(x)[: len(new) - a] for x in f(rows)])
            mean, variance = (np.concatenate(column) for column in zip(*parts, strict=True))
            out[0] = mean, np.sqrt(variance + noise)
    else:

        def turn():
            out[0] = model.predict(new, return_std=True)

    return Task(turn, lambda: np.sum(out[0][0][:100] ** 2) + np.sum(out[0][1][:100]), "GPRegressor.predict")


def regressor(p):
    """A GPRegressor whose hyperparameters are those of the file: one iteration, then the numbers are put in."""
    scope(p["X"].dtype)
    dtype = str(p["X"].dtype)
    model = GPRegressor(
        RBF(p["lengthscale"], float(p["variance"])), method="collapsed", inducing=p["Z"], learn_inducing=False,
        max_iter=1, scale_inputs=False, scale_target=False, dtype=dtype,
    ).fit(p["X"], p["y"])  # fmt: skip
    points = Collapsed(p["Z"], jitter=float(p["jitter"] / p["variance"]))
    exact = cast(Model(RBF(p["lengthscale"], float(p["variance"])), Gaussian(float(p["noise"])), points), p["X"].dtype)
    model.predictor_ = jax.tree.map(np.asarray, bounds.collapsed(exact, dataset(p["X"], p["y"])).predictor())
    model.likelihood_ = jax.tree.map(np.asarray, exact.likelihood)
    return model


def quality(p, variant, task, M, batch, budget, max_iter=None, settings=None):
    """An estimator with these settings from raw arrays; one turn is the whole fit, compilation included."""
    estimator, out = (GPRegressor if task == "regression" else GPClassifier), [None]

    def turn():
        out[0] = estimator(max_iter=max_iter, **(settings or {})).fit(p["X"], p["y"])

    def finish():
        model = out[0]
        density = float(np.mean(model.log_density(p["X_test"], p["y_test"])))
        density += np.log(p["y"].std()) if task == "regression" else 0.0
        points = model.inducing_points_
        facts = {
            "method": model.method_,
            "iterations": int(model.n_iter_),
            "M": 0 if points is None else len(points),
        }
        seconds = model.history_["seconds"]
        return {"density": density, "seconds_in_history": float(seconds[-1]) if len(seconds) else None} | facts

    return Task(turn, None, estimator.__name__, finish)


def cold(p, variant):
    """The first fit of a process, and its first prediction."""
    out, settings = [None], {"effort": variant} if variant else {}

    def turn():
        out[0] = GPRegressor(**settings).fit(p["X"], p["y"])
        out[0].predict(p["X_test"][:1], return_std=True)

    about = f"GPRegressor({', '.join(f'{name}={setting!r}' for name, setting in settings.items())})"
    return Task(turn, lambda: np.mean(out[0].log_density(p["X_test"], p["y_test"])), about)


def rates(p, variant, M, B, repeats):
    """Seconds of what no step can avoid (floor.py). Each is repeated in one compiled loop, as a step's parts are: a
    call from Python takes as long as a small product. LAPACK is measured with one thread and all; the better counts."""
    dtype = p["X"].dtype
    scope(dtype)
    rng = np.random.default_rng(0)
    square = jnp.asarray(np.linalg.qr(rng.normal(size=(M, M)))[0], dtype)  # orthogonal, so that powers stay bounded
    wide = jnp.asarray(rng.normal(size=(M, B)), dtype)
    P = jnp.asarray(np.eye(M) + np.ones((M, M)) / M, dtype)
    solve = lambda L: jax.lax.linalg.triangular_solve(L, jnp.eye(M, dtype=dtype), left_side=True, lower=True)
    again = lambda function, A: A.at[0, 0].add(0 * function(A)[0, 0])  # each waits for the one before
    products, factors = max(1, round(3e8 / (M * M * B))), max(1, round(1e8 / M**3))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    programs = {  # one repetition, where it begins, how many, LAPACK's threads
        "gemm": (lambda b: square @ b, wide, products, (1,)),
        "gemm_square": (lambda b: square @ b, square, factors, (1,)),
        "exp": (lambda x: jnp.exp(-x), wide, products, (1,)),
        "cholesky": (
            lambda A: again(lambda A: jnp.linalg.cholesky(A, symmetrize_input=False), A),
            P,
            factors,
            (1, cores),
        ),
        "inverse": (lambda A: again(solve, A), jnp.linalg.cholesky(P), factors, (1, cores)),
    }
    loops = {
        name: (_loop(body, count), start, count, threads) for name, (body, start, count, threads) in programs.items()
    }

    def turn():
        seconds = {}
        for name, (program, first, count, threads) in loops.items():
            medians = []
            for limit in threads:
                threadpoolctl.threadpool_limits(limit, user_api="blas")
                medians.append(_median(program, first, repeats) / count)
            seconds[name] = min(medians)
        threadpoolctl.threadpool_limits(1, user_api="blas")
        return {"rates": seconds}

    return Task(turn)


def _loop(body, count):
    return jax.jit(lambda x: jax.lax.fori_loop(0, count, lambda _, x: body(x), x))


def _median(program, first, repeats):
    jax.block_until_ready(program(first))
    durations = []
    for _ in range(repeats):
        before = time.perf_counter()
        jax.block_until_ready(program(first))
        durations.append(time.perf_counter() - before)
    return float(np.median(durations))


KINDS = {
    "steps": steps, "collapsed": collapsed, "predict": predict, "quality": quality, "cold": cold, "rates": rates,
}  # fmt: skip

if __name__ == "__main__":
    serve.serve(KINDS, {"pseudopoint": pseudopoint.__version__, "jax": jax.__version__, "numpy": np.__version__})
