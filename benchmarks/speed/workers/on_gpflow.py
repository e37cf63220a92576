"""GPflow, used as its documentation advises: compiled functions, SVGP with whiten=True, SGPR with SciPy's L-BFGS-B."""

import gpflow
import numpy as np
import serve
import tensorflow as tf
from serve import Curve, Task


def settings(p):
    """GPflow's precision and its (absolute) jitter."""
    gpflow.config.set_default_float(p["X"].dtype.type)
    gpflow.config.set_default_jitter(float(p["jitter"]))


def bernoulli(dtype):
    """Φ(x) without GPflow's share of 1e-3, so that the likelihood is everybody's; in float32 log 0 would come of it."""
    if dtype == np.float32:
        return gpflow.likelihoods.Bernoulli()
    return gpflow.likelihoods.Bernoulli(invlink=lambda x: 0.5 * (1.0 + tf.math.erf(x / np.sqrt(2.0))))


LIKELIHOODS = {
    "gaussian": lambda p: gpflow.likelihoods.Gaussian(float(p["noise"])),
    "bernoulli": lambda p: bernoulli(p["X"].dtype),
    "studentt": lambda p: gpflow.likelihoods.StudentT(float(p["scale"]), df=float(p["degrees"])),
    "robustmax": lambda p: gpflow.likelihoods.MultiClass(10),
    "softmax": lambda p: gpflow.likelihoods.Softmax(10),
}


def kernel_of(p):
    return gpflow.kernels.SquaredExponential(float(p["variance"]), p["lengthscale"])


def steps(p, variant, likelihood, optimiser, steps, gamma, rate):
    """One tf.function: a loop over the batches of a turn, rows gathered, NaturalGradient and Adam in turn."""
    settings(p)
    latents = len(p["mean"])
    model = gpflow.models.SVGP(
        kernel_of(p), LIKELIHOODS[likelihood](p), p["Z"], num_latent_gps=latents, whiten=True,
        q_mu=p["mean"].T, q_sqrt=p["root"], num_data=len(p["y"]),
    )  # fmt: skip
    X = tf.constant(p["X"])
    y = tf.constant(p["y"][:, None] if latents == 1 else p["y"][:, None].astype(np.int32))
    adam, natural = tf.keras.optimizers.Adam(rate), gpflow.optimizers.NaturalGradient(gamma)
    q = [(model.q_mu, model.q_sqrt)]
    if optimiser != "adam":
        gpflow.set_trainable(model.q_mu, False)
        gpflow.set_trainable(model.q_sqrt, False)
    if optimiser == "ngd+adam of Z":
        gpflow.set_trainable(model.kernel, False)
        gpflow.set_trainable(model.likelihood, False)
    adam.build(model.trainable_variables)

    @tf.function
    def step(rows):
        batch = tf.gather(X, rows), tf.gather(y, rows)
        loss = lambda: model.training_loss(batch)
        if optimiser != "adam":
            natural.minimize(loss, q)
        if optimiser != "natural":
            adam.minimize(loss, model.trainable_variables)

    batches, at = tf.constant(p["rows"].astype(np.int32)), [0]

    def turn():
        for i in range(at[0], at[0] + steps):
            step(batches[i % len(p["rows"])])
        at[0] += steps
        model.q_mu.numpy()

    first = tf.gather(X, p["rows"][0]), tf.gather(y, p["rows"][0])
    return Task(turn, lambda: model.elbo(first).numpy(), "tf.function a step, rows gathered")


def collapsed(p, variant):
    """SGPR: what gpflow.optimizers.Scipy calls once an evaluation, compiled."""
    settings(p)
    model = gpflow.models.SGPR((p["X"], p["y"][:, None]), kernel_of(p), p["Z"], noise_variance=float(p["noise"]))
    variables = model.trainable_variables

    @tf.function
    def evaluate():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = model.training_loss()
        return loss, tape.gradient(loss, variables)

    first, count = variables[-1].numpy(), [0]

    def turn():
        variables[-1].assign(first + 1e-9 * count[0])
        count[0] += 1
        loss, gradient = evaluate()
        [np.asarray(tf.convert_to_tensor(g)) for g in gradient]
        return {"value": -float(loss)}

    return Task(turn, None, "SGPR, tf.function")


CHUNK = 10_000


def predict(p, variant):
    """A cached posterior's predict_f in a tf.function, chunks of 10,000 rows."""
    settings(p)
    model = gpflow.models.SGPR((p["X"], p["y"][:, None]), kernel_of(p), p["Z"], noise_variance=float(p["noise"]))
    posterior, new, out, D = model.posterior(), p["new"], [None], p["X"].shape[1]
    compiled = tf.function(posterior.predict_f, input_signature=[tf.TensorSpec([None, D], p["X"].dtype)])

    def turn():
        parts = [[a.numpy() for a in compiled(new[i : i + CHUNK])] for i in range(0, len(new), CHUNK)]
        mean, variance = (np.concatenate(column)[:, 0] for column in zip(*parts, strict=True))
        out[0] = mean, np.sqrt(variance + float(p["noise"]))

    return Task(turn, lambda: np.sum(out[0][0][:100] ** 2) + np.sum(out[0][1][:100]), "posterior().predict_f")


def _standardised(p, task):
    varying = np.ptp(p["X"], axis=0) > 0
    keep = lambda X: X[:, varying]
    mean, scale = keep(p["X"]).mean(0), keep(p["X"]).std(0)
    inputs = lambda X: (keep(X) - mean) / scale
    shift, size = (p["y"].mean(), p["y"].std()) if task == "regression" else (0.0, 1.0)
    target = lambda y: ((y - shift) / size)[:, None]
    return inputs(p["X"]), target(p["y"]), inputs(p["X_test"]), target(p["y_test"])


def quality(p, variant, task, M, batch, budget, **_):
    """A training from raw arrays. "sgpr": L-BFGS-B. "svgp": NaturalGradient(0.1) and Adam(0.01) on shuffled batches.

    Z: the first M rows of the (shuffled) training part, as the documentation starts it.
    """
    out = {}

    def turn():
        curve = Curve(budget)
        out["curve"] = curve.rows
        X, y, Xt, yt = _standardised(p, task)
        kernel = gpflow.kernels.Matern52(lengthscales=np.full(X.shape[1], np.sqrt(X.shape[1])))
        density = lambda: _density(model, Xt, yt, task)
        if variant == "sgpr":
            model = gpflow.models.SGPR((X, y), kernel, X[:M].copy(), noise_variance=0.1)
            _by_lbfgs(model, curve, density)
            return
        likelihood = gpflow.likelihoods.Gaussian(0.1) if task == "regression" else gpflow.likelihoods.Bernoulli()
        model = gpflow.models.SVGP(kernel, likelihood, X[:M].copy(), num_data=len(X))
        _by_batches(model, X, y, batch, curve, density)

    return Task(turn, None, f"GPflow {variant}", lambda: out)


def _density(model, Xt, yt, task):
    parts = [model.predict_y(Xt[i : i + CHUNK]) for i in range(0, len(Xt), CHUNK)]
    mean, variance = (np.concatenate(column) for column in zip(*parts, strict=True))
    return serve.log_normal(yt, mean, variance) if task == "regression" else serve.log_bernoulli(yt, mean)


class _Enough(Exception):
    pass


def _by_lbfgs(model, curve, density):
    marks = set(serve.milestones(5, 1000))

    def callback(step, variables, values):
        if step in marks:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            if not curve.look(step, density):
                raise _Enough

    try:
        gpflow.optimizers.Scipy().minimize(
            model.training_loss, model.trainable_variables, step_callback=callback, options={"maxiter": 1000}
        )
        curve.look(-1, density)
    except _Enough:
        pass


def _by_batches(model, X, y, batch, curve, density):
    data = tf.data.Dataset.from_tensor_slices((X, y)).repeat().shuffle(len(X), seed=0)
    batches = iter(data.batch(batch))
    gpflow.set_trainable(model.q_mu, False)
    gpflow.set_trainable(model.q_sqrt, False)
    natural, adam = gpflow.optimizers.NaturalGradient(0.1), tf.keras.optimizers.Adam(0.01)
    loss = model.training_loss_closure(batches, compile=False)

    @tf.function
    def step():
        natural.minimize(loss, [(model.q_mu, model.q_sqrt)])
        adam.minimize(loss, model.trainable_variables)

    marks = set(serve.milestones(25, 100_000, 1.2))
    for i in range(1, 100_001):
        step()
        if i in marks and not curve.look(i, density):
            break


def cold(p, variant):
    """GPR with SciPy's optimiser, one row predicted."""
    out = [None]

    def turn():
        X, y, Xt, _ = _standardised(p, "regression")
        D = X.shape[1]
        out[0] = gpflow.models.GPR(
            (X, y), gpflow.kernels.Matern52(lengthscales=np.full(D, np.sqrt(D))), noise_variance=0.1
        )
        gpflow.optimizers.Scipy().minimize(out[0].training_loss, out[0].trainable_variables)
        out[0].predict_y(Xt[:1])

    def density():
        _, _, Xt, yt = _standardised(p, "regression")
        return _density(out[0], Xt, yt, "regression") - np.log(p["y"].std())

    return Task(turn, density, "GPR, gpflow.optimizers.Scipy")


if __name__ == "__main__":
    kinds = {"steps": steps, "collapsed": collapsed, "predict": predict, "quality": quality, "cold": cold}
    serve.serve(kinds, {"gpflow": gpflow.__version__, "tensorflow": tf.__version__, "numpy": np.__version__})
