"""Priors of a user: densities, names, and that every kind of fit maximises bound + log prior."""

# Parts of fitted models are reached by name, which a type checker cannot follow.
# pyright: reportAttributeAccessIssue=false

import jax.numpy as jnp
import numpy as np
import pytest
from conformance import PRIORS
from scipy import optimize, stats

from pseudopoint import RBF, GPClassifier, GPRegressor, Periodic
from pseudopoint.priors import Gamma, HalfNormal, LogNormal, Normal, parsed

pytestmark = pytest.mark.edge

FAST = {"effort": "fast", "lengthscale_prior": np.inf}
TIGHT = {"lengthscale": LogNormal(np.log(2.0), 0.01)}


def rows(N=30):
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, 5, N))[:, None]
    return X, np.sin(X[:, 0]) + 0.3 * rng.normal(size=N)


@pytest.mark.parametrize("name", PRIORS)
def test_a_log_density_is_that_of_scipy(name):
    prior, density = PRIORS[name]
    x = jnp.array([0.03, 0.7, 4.0], jnp.float32)
    np.testing.assert_allclose(prior.log_density(x), density.logpdf(x), rtol=2e-5)
    words = f"a.b = {type(prior).__name__}({', '.join(map(str, prior.arguments().values()))})"
    np.testing.assert_array_equal(parsed(words)["a.b"].log_density(x), prior.log_density(x))


def test_an_exact_fit_is_the_dense_map():
    X, y = rows()
    priors = {"lengthscale": LogNormal(0.5, 0.3), "noise_variance": HalfNormal(0.1), "kernel.variance": Gamma(3.0, 2.0)}
    model = GPRegressor("rbf", priors=priors, **FAST).fit(X, y)
    x, z = (X - X.mean()) / X.std(), (y - y.mean()) / y.std()

    def log_prior(l, v, n):
        return (
            stats.lognorm(0.3, scale=np.exp(0.5)).logpdf(l)
            + stats.gamma(3, scale=0.5).logpdf(v)
            + (stats.halfnorm(scale=0.1).logpdf(n))
        )

    def loss(logs):
        l, v, n = np.exp(logs)
        K = v * np.exp(-0.5 * (x - x.T) ** 2 / l**2) + n * np.eye(len(x))
        return -stats.multivariate_normal(np.zeros(len(x)), K).logpdf(z) - log_prior(l, v, n)

    best = optimize.minimize(loss, np.zeros(3), method="BFGS")
    learned = model.kernel_.lengthscale[0], model.kernel_.variance, model.likelihood_.variance
    np.testing.assert_allclose(learned, np.exp(best.x), rtol=2e-3)
    np.testing.assert_allclose(model.bound_ + model.log_prior_, -best.fun, atol=1e-6)
    np.testing.assert_allclose(model.log_prior_, log_prior(*learned), atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "collapsed"},
        {"method": "svgp", "max_iter": 300, "batch_size": 20},
        {"method": "svgp", "posterior": "unwhitened", "max_iter": 300},
        {"likelihood": "student_t", "method": "laplace"},
        {"likelihood": "student_t", "method": "svgp", "max_iter": 200},
        {"checkpoint": True},
        {"checkpoint": True, "method": "svgp", "max_iter": 300},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_every_fit_has_the_prior(settings, tmp_path):
    folder = tmp_path if settings.get("checkpoint") else None
    given = {name: value for name, value in settings.items() if name != "checkpoint"}
    model = GPRegressor("rbf", priors=TIGHT, num_inducing=8, **FAST, **given).fit(*rows(), checkpoint=folder)
    np.testing.assert_allclose(model.kernel_.lengthscale, 2, rtol=0.04)


def test_classes_and_several_outputs_have_the_prior():
    X, y = rows()
    of_classes = GPClassifier("rbf", priors="lengthscale=LogNormal(0.693, 0.01)", num_inducing=8, **FAST).fit(X, y > 0)
    Y = np.column_stack([y, y**2])
    of_outputs = GPRegressor("rbf", priors=TIGHT, outputs="coregionalised", method="exact", **FAST).fit(X, Y)
    for kernel in (of_classes.kernel_, *of_outputs.kernel_.kernels):
        np.testing.assert_allclose(kernel.lengthscale, 2, rtol=0.04)


def test_numbers_of_a_kernel_object_are_in_the_units_of_x_and_a_path_names_one_part(tmp_path):
    X, y = rows()
    priors = {"kernels.0.lengthscale": Normal(3.0, 1e-3), "likelihood.variance": LogNormal(-2.0, 0.01)}
    model = GPRegressor(RBF(2.0) + Periodic(1.0, 1.0, 5.0), priors=priors, effort="fast").fit(X, y)
    np.testing.assert_allclose(model.kernel_.kernels[0].lengthscale, 3, rtol=1e-3)
    np.testing.assert_allclose(model.likelihood_.variance, np.exp(-2), rtol=0.05)
    model.save(tmp_path / "m.gp")
    again = GPRegressor.load(tmp_path / "m.gp")
    assert again.log_prior_ == model.log_prior_ and str(again.priors) == str(priors)


@pytest.mark.parametrize(
    "settings, sentence",
    [
        (
            {"priors": {"lenghtscale": LogNormal()}},
            "called 'lenghtscale': use kernel.lengthscale, kernel.var",
        ),
        ({"priors": "variance=LogNormal(0, 1)"}, "'variance' is kernel.variance and likelihood.variance: write which"),
        ({"priors": "lengthscale=Cauchy(1)"}, r"cannot be read from 'lengthscale=Cauchy\(1\)' on: write NAME=PRIOR"),
        ({"priors": "lengthscale=LogNormal(0, -1)"}, r"LogNormal\(0, -1\) is no prior: sigma=-1.0 must be positive"),
        ({"priors": {"lengthscale": 1.0}}, "must be a dict of priors by name"),
        ({"priors": TIGHT, "input_warp": "log"}, "input_warp='log' does not go together with priors"),
        ({"priors": TIGHT, "optimiser": "Adam"}, "has no priors: use optimiser='auto'"),
        ({"priors": TIGHT, "likelihood": "heteroscedastic"}, "without priors: use likelihood='gaussian'"),
        ({"priors": {"df": LogNormal()}, "likelihood": "student_t"}, "use kernel.lengthscale, kernel.variance, like"),
        (
            {"priors": {"constant": LogNormal()}, "likelihood": "poisson"},
            "priors: no number of this model is called",
        ),
    ],
)
def test_what_no_model_can_have_is_refused(settings, sentence):
    X, y = rows()
    with pytest.raises(ValueError, match=sentence):
        GPRegressor(**settings).fit(X, np.round(np.abs(y)))
