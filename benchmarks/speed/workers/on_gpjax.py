"""GPJax, by its own steps: the bodies of `gpjax.fit` and `gpjax.fit_natgrads` in one compiled scan.

`gpjax.fit` itself compiles anew on every call and draws rows with replacement; here the program is compiled once, and
the rows are those of everybody.
"""

from importlib.metadata import version

import equinox as eqx
import gpjax as gpx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as npd
import optax
import serve
from gpjax.natural_gradients import natural_gradient_step, partition_variational
from gpjax.objectives import collapsed_elbo, elbo
from gpjax.variational_families import (
    CollapsedVariationalGaussian,
    DualVariationalGaussian,
    WhitenedVariationalGaussian,
)
from serve import Curve, Task

CHUNK = 10_000


class Probit(gpx.likelihoods.Bernoulli):
    """Φ(f) without GPJax's share of 1e-3, so that the likelihood is everybody's."""

    def link_function(self, f):
        return npd.BernoulliProbs(0.5 * (1 + jax.scipy.special.erf(f / jnp.sqrt(2.0))))


LIKELIHOODS = {
    "gaussian": lambda p: gpx.likelihoods.Gaussian(jnp.sqrt(jnp.asarray(p["noise"]))),
    "bernoulli": lambda p: Probit(),
    "studentt": lambda p: gpx.likelihoods.StudentT(jnp.asarray(p["degrees"]), jnp.asarray(p["scale"])),
}


def prior_of(p):
    kernel = gpx.kernels.RBF(lengthscale=jnp.asarray(p["lengthscale"]), variance=jnp.asarray(p["variance"]))
    return gpx.gps.Prior(mean_function=gpx.mean_functions.Zero(), kernel=kernel, jitter=float(p["jitter"]))


def negative_elbo(q, batch):
    return -elbo(q, batch)


def adam_step(optimiser, carry, batch):
    """One step of `gpjax.fit`."""
    model, state = carry
    _, gradient = eqx.filter_value_and_grad(negative_elbo)(model, batch)
    updates, state = optimiser.update(gradient, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state


def natural_step(optimiser, gamma, carry, batch):
    """One step of `gpjax.fit_natgrads`; without an optimiser only its first half."""
    variational, hyper, state = carry
    variational, _ = natural_gradient_step(variational, hyper, batch, negative_elbo, jnp.asarray(gamma))
    if optimiser is None:
        return variational, hyper, state
    loss = lambda hyper: negative_elbo(eqx.combine(variational, hyper), batch)
    gradient = eqx.filter_grad(loss)(hyper)
    updates, state = optimiser.update(gradient, state, eqx.filter(hyper, eqx.is_array))
    return variational, eqx.apply_updates(hyper, updates), state


def trainer(q, X, y, optimiser, gamma, rate):
    """(numbers, rows [K, B]) ↦ numbers after K steps, compiled; the first numbers; numbers ↦ q."""
    adam = optax.adam(rate)
    if optimiser == "adam":
        first = (q, adam.init(eqx.filter(q, eqx.is_array)))
        step, whole = lambda carry, batch: adam_step(adam, carry, batch), lambda carry: carry[0]
    else:
        variational, hyper = partition_variational(q)
        adam = adam if optimiser == "ngd+adam" else None
        first = (variational, hyper, adam.init(eqx.filter(hyper, eqx.is_array)) if adam else ())
        step = lambda carry, batch: natural_step(adam, gamma, carry, batch)
        whole = lambda carry: eqx.combine(carry[0], carry[1])
    arrays, static = eqx.partition(first, eqx.is_array)
    # A plain list of strongly typed arrays: weak types and trees that differ in static fields would compile again.
    leaves, tree = jax.tree.flatten(arrays)
    leaves = [jnp.asarray(np.asarray(leaf)) for leaf in leaves]
    join = lambda leaves: eqx.combine(jax.tree.unflatten(tree, leaves), static)

    @jax.jit
    def many(leaves, X, y, rows):
        def body(leaves, rows):
            carry = step(join(leaves), gpx.Dataset(X[rows], y[rows], n_total=len(y)))
            new = jax.tree.leaves(eqx.filter(carry, eqx.is_array))
            return [a.astype(b.dtype) for a, b in zip(new, leaves, strict=True)], None

        return jax.lax.scan(body, leaves, rows)[0]

    return (lambda leaves, rows: many(leaves, X, y, rows)), leaves, lambda leaves: whole(join(leaves))


def steps(p, variant, likelihood, optimiser, steps, gamma, rate):
    """A turn is one compiled scan."""
    jax.config.update("jax_enable_x64", p["X"].dtype == np.float64)
    X, y = jnp.asarray(p["X"]), jnp.asarray(p["y"])[:, None]
    model, Z = prior_of(p) * LIKELIHOODS[likelihood](p), jnp.asarray(p["Z"])
    if variant == "dual":  # in sites: q(u) ∝ p(u) t(u)
        L = np.linalg.cholesky(np.asarray(model.prior.kernel.gram(Z).as_matrix()) + float(p["jitter"]) * np.eye(len(Z)))
        L_inverse, R_inverse = np.linalg.inv(L), np.linalg.inv(p["root_u"][0])
        K_inverse, P = L_inverse.T @ L_inverse, R_inverse.T @ R_inverse
        q = DualVariationalGaussian(model, Z, jnp.asarray(P @ p["mean_u"][0])[:, None], jnp.asarray(P - K_inverse))
    else:
        q = WhitenedVariationalGaussian(model, Z, jnp.asarray(p["mean"][0])[:, None], jnp.asarray(p["root"][0]))
    many, arrays, whole = trainer(q, X, y, optimiser, gamma, rate)
    at, rows = [0, arrays], p["rows"]
    first = gpx.Dataset(X[rows[0]], y[rows[0]], n_total=len(y))

    def turn():
        batches = rows[np.arange(at[0], at[0] + steps) % len(rows)]
        at[:] = at[0] + steps, jax.block_until_ready(many(at[1], batches))

    bound = eqx.filter_jit(elbo)
    return Task(turn, lambda: bound(whole(at[1]), first), "its step, in one compiled scan")


def collapsed(p, variant):
    """Value and gradient of collapsed_elbo, jitted, as fit_scipy has it."""
    jax.config.update("jax_enable_x64", p["X"].dtype == np.float64)
    data = gpx.Dataset(jnp.asarray(p["X"]), jnp.asarray(p["y"])[:, None])
    q = CollapsedVariationalGaussian(prior_of(p) * LIKELIHOODS["gaussian"](p), jnp.asarray(p["Z"]))
    arrays, static = eqx.partition(q, eqx.is_array)
    vector, unravel = jax.flatten_util.ravel_pytree(arrays)
    loss = lambda vector, data: -collapsed_elbo(eqx.combine(unravel(vector), static), data)
    program, count = jax.jit(jax.value_and_grad(loss)), [0]

    def turn():
        value, gradient = program(vector + 1e-9 * count[0], data)
        np.asarray(gradient)
        count[0] += 1
        return {"value": -float(value)}

    return Task(turn, None, "collapsed_elbo, jit(value_and_grad)")


def predict(p, variant):
    """A conditioned posterior, jitted, diagonal covariance, chunks of 10,000 rows."""
    jax.config.update("jax_enable_x64", p["X"].dtype == np.float64)
    data = gpx.Dataset(jnp.asarray(p["X"]), jnp.asarray(p["y"])[:, None])
    q = CollapsedVariationalGaussian(prior_of(p) * LIKELIHOODS["gaussian"](p), jnp.asarray(p["Z"]))
    posterior, new, out = q.condition(data), p["new"], [None]
    arrays, static = eqx.partition(posterior, eqx.is_array)
    width = min(len(new), CHUNK)

    @jax.jit
    def moments(arrays, X):
        at = eqx.combine(arrays, static)(X, covariance="diagonal")
        return at.mean.ravel(), at.variance

    def turn():
        parts = []
        for i in range(0, len(new), width):
            rows = new[i : i + width]
            rows = np.concatenate([rows, np.repeat(rows[:1], width - len(rows), axis=0)])
            parts.append([np.asarray(a)[: len(new) - i] for a in moments(arrays, rows)])
        mean, variance = (np.concatenate(column) for column in zip(*parts, strict=True))
        out[0] = mean, np.sqrt(variance + float(p["noise"]))

    return Task(turn, lambda: np.sum(out[0][0][:100] ** 2) + np.sum(out[0][1][:100]), "condition(data), jit")


def _standardised(p, task):
    varying = np.ptp(p["X"], axis=0) > 0
    mean, scale = p["X"][:, varying].mean(0), p["X"][:, varying].std(0)
    inputs = lambda X: jnp.asarray((X[:, varying] - mean) / scale)
    shift, size = (p["y"].mean(), p["y"].std()) if task == "regression" else (0.0, 1.0)
    target = lambda y: jnp.asarray((y - shift) / size)[:, None]
    return inputs(p["X"]), target(p["y"]), inputs(p["X_test"]), target(p["y_test"])


def quality(p, variant, task, M, batch, budget, **_):
    """fit_natgrads' steps (0.1, Adam 0.01) on permuted batches, 25 a program. Z: the first M rows."""
    jax.config.update("jax_enable_x64", True)
    out = {}

    def turn():
        curve = Curve(budget)
        out["curve"] = curve.rows
        X, y, Xt, yt = _standardised(p, task)
        D = X.shape[1]
        kernel = gpx.kernels.Matern52(lengthscale=jnp.full(D, np.sqrt(D)), variance=jnp.asarray(1.0))
        prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Constant(), kernel=kernel)
        regression = task == "regression"
        likelihood = gpx.likelihoods.Gaussian(jnp.sqrt(jnp.asarray(0.1))) if regression else gpx.likelihoods.Bernoulli()
        many, arrays, whole = trainer(
            WhitenedVariationalGaussian(prior * likelihood, X[:M]), X, y, "ngd+adam", 0.1, 0.01
        )
        marks, step, rng = serve.milestones(25, 100_000, 1.2), 0, np.random.default_rng(0)
        batches = _batches(rng, len(X), batch)
        for mark in marks:
            while step < mark:
                arrays = many(arrays, np.stack([next(batches) for _ in range(25)]))
                step += 25
            jax.block_until_ready(arrays)
            if not curve.look(step, lambda arrays=arrays: _density(whole(arrays), Xt, yt, task)):
                break

    return Task(turn, None, "GPJax natgrads", lambda: out)


def _batches(rng, N, B):
    while True:
        order = rng.permutation(N)
        for i in range(N // B):
            yield order[i * B : (i + 1) * B]


@eqx.filter_jit
def _moments(q, X):
    at = q.condition(None)(X, covariance="diagonal")
    return at.mean.ravel(), at.variance


def _density(q, X, y, task):
    mean, variance = (np.asarray(a) for a in _moments(q, X))
    if task == "regression":
        return serve.log_normal(y, mean, variance + np.asarray(gpx.parameters.val(q.model.likelihood.obs_stddev)) ** 2)
    p = q.model.likelihood.link_function(jnp.asarray(mean / np.sqrt(1 + variance))).probs
    return serve.log_bernoulli(y, p)


def cold(p, variant):
    """fit_scipy or fit_lbfgs on conjugate_mll, one row predicted."""
    jax.config.update("jax_enable_x64", True)
    out = [None, None]

    def turn():
        X, y, Xt, _ = _standardised(p, "regression")
        D, data = X.shape[1], gpx.Dataset(X, y)
        kernel = gpx.kernels.Matern52(lengthscale=jnp.full(D, np.sqrt(D)))
        prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Constant(), kernel=kernel)
        model = prior * gpx.likelihoods.Gaussian(jnp.sqrt(jnp.asarray(0.1)))
        loss = lambda model, data: -gpx.objectives.conjugate_mll(model, data)
        if variant == "scipy":
            model, _ = gpx.fit_scipy(model=model, objective=loss, train_data=data, verbose=False)
        else:
            model, _ = gpx.fit_lbfgs(model=model, objective=loss, train_data=data)
        out[:] = model, data
        model.condition(data)(Xt[:1], covariance="diagonal").mean.block_until_ready()

    def density():
        _, _, Xt, yt = _standardised(p, "regression")
        at = out[0].condition(out[1])(Xt, covariance="diagonal")
        noise = np.asarray(gpx.parameters.val(out[0].likelihood.obs_stddev)) ** 2
        return serve.log_normal(yt, at.mean, np.asarray(at.variance) + noise) - np.log(p["y"].std())

    return Task(turn, density, f"fit_{variant} on conjugate_mll")


if __name__ == "__main__":
    kinds = {"steps": steps, "collapsed": collapsed, "predict": predict, "quality": quality, "cold": cold}
    serve.serve(kinds, {"gpjax": version("gpjax"), "jax": jax.__version__, "numpy": np.__version__})
