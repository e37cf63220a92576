"""The prior of lengthscales: its formula, what a fit under it solves, and what it is for."""

# Parts of fitted models are reached by name, which a type checker cannot follow.
# pyright: reportAttributeAccessIssue=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.bounds import marginal
from pseudopoint.data import dataset
from pseudopoint.kernels import RBF, Linear, Matern32, Periodic, White
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Model
from pseudopoint.recipes import Settings
from pseudopoint.recipes.prior import LengthscalePrior


def around(kernel, spread):
    return LengthscalePrior.around(kernel, Settings(lengthscale_prior=spread, effort="fast"))


def test_the_penalty_is_that_of_a_log_normal_density_of_every_lengthscale():
    make = lambda a, b, c, d: cast(
        RBF(np.array([a, b])) * Matern32(c).on(0) + Periodic(d, 3.0).on(1) + Linear(1.0) + White(0.1), jnp.float64
    )
    start, now = np.array([1.0, 2.0, 0.5, 4.0]), np.array([3.0, 0.7, 0.5, 40.0])
    expected = 0.5 * np.sum((np.log(now / start) / 1.3) ** 2)
    np.testing.assert_allclose(around(make(*start), 1.3).penalty(make(*now)), expected, rtol=1e-12)


def test_an_infinite_spread_is_no_prior_and_neither_is_a_kernel_without_lengthscales():
    kernel = cast(RBF(np.array([1.0, 2.0])), jnp.float64)
    moved = cast(RBF(np.array([30.0, 0.01])), jnp.float64)
    value, slope = jax.value_and_grad(around(kernel, np.inf).penalty)(moved)
    assert value == 0.0 and not slope.lengthscale.any()
    assert around(cast(Linear(1.0), jnp.float64), 1.0).penalty(cast(Linear(5.0), jnp.float64)) == 0.0


def test_another_spread_compiles_nothing_new(caplog):
    X, y = few_rows_many_columns(0)
    GPRegressor(lengthscale_prior=1.0, max_iter=2, effort="fast").fit(X, y)
    with jax.log_compiles():
        GPRegressor(lengthscale_prior=np.inf, max_iter=2, effort="fast").fit(X, y)
        assert "Compiling" not in caplog.text
        GPRegressor(max_iter=2, effort="fast").fit(X[:-10], y[:-10])
        assert "Compiling" in caplog.text  # that of other shapes is seen


def few_rows_many_columns(seed, N=40, D=20):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D))
    return X, np.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.5 * rng.normal(size=N)


def test_a_fit_ends_where_the_evidence_and_the_prior_balance():
    X, y = few_rows_many_columns(0)
    s, D = 0.8, X.shape[1]
    model = GPRegressor(lengthscale_prior=s, effort="fast").fit(X, y)
    learned = cast(Model(model.kernel_, model.likelihood_), jnp.float64)
    data = dataset((X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std())
    numbers = trainable(learned)
    slope = numbers.rebuild(jax.grad(lambda x: marginal(numbers.rebuild(x), data).value)(numbers.vector))
    # ∂ log p(y)/∂ log ℓ = log(ℓ/ℓ₀)/s², ℓ₀ = √D; `rebuild` took the slopes for logarithms
    balance = np.log(model.kernel_.lengthscale / np.sqrt(D)) / s**2
    np.testing.assert_allclose(np.log(slope.kernel.lengthscale), balance, atol=1e-3)
    # and what is reported is the evidence, without the prior
    np.testing.assert_allclose(model.bound_, marginal(learned, data).value, rtol=1e-9)


def test_without_a_prior_the_evidence_is_higher_and_predictions_of_few_rows_are_worse():
    gains = []
    for seed in range(4):
        X, y = few_rows_many_columns(seed)
        new, truth = few_rows_many_columns(100 + seed, N=400)
        free, held = (GPRegressor(lengthscale_prior=s, effort="fast").fit(X, y) for s in (np.inf, 1.5))
        assert free.bound_ > held.bound_
        gains.append(np.mean(held.log_density(new, truth) - free.log_density(new, truth)))
    assert np.mean(gains) > 0.05


@pytest.mark.parametrize("method", ["laplace", "collapsed", "svgp"])
def test_classifiers_have_it_too(method):
    X, y = few_rows_many_columns(0)
    settings = {"method": method, "num_inducing": 20, "max_iter": 60}
    spreads = [
        np.std(np.log(GPClassifier(lengthscale_prior=s, **settings, effort="fast").fit(X, y > 0).kernel_.lengthscale))
        for s in (0.1, 1.5, np.inf)
    ]
    assert spreads[0] < 0.1 < spreads[1] < spreads[2]
