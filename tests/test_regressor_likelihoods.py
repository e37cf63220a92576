"""GPRegressor with every likelihood: predictions, intervals and densities in the target's own units; bad targets."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import numpy as np
import pytest
from scipy.stats import binom

from pseudopoint import GPRegressor
from pseudopoint.estimators.targets import REGRESSION as TARGETS
from pseudopoint.likelihoods import Ordinal, Softmax, StudentT

N = 300
SETTINGS = {"num_inducing": 15, "max_iter": 25, "method": "collapsed"}


@pytest.mark.parametrize(("likelihood", "steps"), [("gaussian", 2000), ("poisson", 3000)])
def test_minibatches_take_more_steps_where_rows_say_less(likelihood, steps):
    X, y = np.arange(12.0)[:, None], np.arange(12) % 4
    few = {"method": "svgp", "kernel": "rbf", "num_inducing": 2, "batch_size": 4}
    model = GPRegressor(likelihood=likelihood, **few, effort="fast").fit(X, y)
    assert model.history_["total"][0] == steps
    assert model.n_iter_ == steps or (likelihood == "poisson" and "the bound was flat" in model.reason_)
    named = GPRegressor(likelihood=likelihood, optimiser="NGD+Adam", **few, effort="fast").fit(X, y)
    assert named.n_iter_ == 2000


def latent(X):
    return np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]


REGRESSION = [name for name in TARGETS if name != "auto"]


def table(name, n=N, seed=0):
    """Rows drawn from the likelihood, in units of its own."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    f = latent(X)
    draws = {
        "gaussian": lambda: 1e3 + 50 * (f + 0.3 * rng.normal(size=n)),
        "heteroscedastic": lambda: 1e3 + 50 * (f + np.exp(X[:, 0] - 1) * rng.normal(size=n)),
        "heteroscedastic_student_t": lambda: 1e3 + 50 * (f + 0.5 * np.exp(X[:, 0] - 1) * rng.standard_t(4, size=n)),
        "student_t": lambda: 1e3 + 50 * (f + 0.2 * rng.standard_t(3, size=n)),
        "laplace": lambda: 1e3 + 50 * (f + rng.laplace(scale=0.3, size=n)),
        "poisson": lambda: rng.poisson(20 * np.exp(f)).astype(float),
        "negative_binomial": lambda: rng.poisson(20 * np.exp(f) * rng.gamma(3.0, 1 / 3, size=n)).astype(float),
        "gamma": lambda: 1e-3 * np.exp(f) * rng.gamma(4.0, 0.25, size=n),
        "exponential": lambda: 1e-3 * np.exp(f) * rng.exponential(size=n),
        "beta": lambda: rng.beta(8 / (1 + np.exp(-f)), 8 / (1 + np.exp(f))).clip(1e-6, 1 - 1e-6),
        "ordinal": lambda: np.array([1.0, 2.0, 3.5, 5.0])[np.digitize(f + 0.4 * rng.normal(size=n), [-1, 0, 1])],
    }
    return X, draws[name]()


@pytest.fixture(scope="module")
def fitted():
    return {name: GPRegressor(likelihood=name, **SETTINGS, effort="fast").fit(*table(name)) for name in REGRESSION}


EACH = pytest.mark.parametrize("name", REGRESSION)


@EACH
def test_intervals_hold_what_they_promise_in_units_of_the_target(fitted, name):
    X, y = table(name, 400, 1)
    low, high = fitted[name].predict_interval(X, 0.9).T
    mean, std = fitted[name].predict(X, return_std=True)
    assert np.isfinite([low, high, mean, std]).all() and (low <= high).all() and (std > 0).all()
    inside = int(((low <= y) & (y <= high)).sum())
    # Discrete targets hold more than was asked; a fit of 300 rows is off by a little.
    assert inside >= binom.ppf(1e-6, 400, 0.87)
    if name not in ("poisson", "negative_binomial", "ordinal"):
        assert inside <= binom.ppf(1 - 1e-6, 400, 0.93)
    assert np.mean((mean - y) ** 2) < np.var(y)
    assert abs(np.mean(((y - mean) / std) ** 2) - 1) < (2 if "student_t" in name or name == "heteroscedastic" else 0.5)


@EACH
def test_densities_are_those_of_the_target_s_own_units(fitted, name):
    model = fitted[name]
    row = np.array([[0.3, -0.4]])
    density = lambda y: float(np.exp(model.log_density(row, np.array([y])))[0])
    mean, std = (float(a[0]) for a in model.predict(row, return_std=True))
    if name == "ordinal":
        total, first = sum(map(density, model.levels_)), sum(y * density(y) for y in model.levels_)
    elif name in ("poisson", "negative_binomial"):
        counts = np.arange(0.0, 2048.0)
        p = np.exp(model.log_density(np.repeat(row, len(counts), axis=0), counts))
        total, first = p.sum(), counts @ p
    else:
        ends = (mean - 30 * std, mean + 30 * std)
        if name in ("gamma", "exponential"):
            ends = (1e-12 * mean, mean + 40 * std)
        if name == "beta":
            ends = (1e-9, 1 - 1e-9)
        x, w = np.polynomial.legendre.leggauss(12)
        edges = np.unique(
            np.concatenate(
                [np.linspace(*ends, 60), mean + std * np.linspace(-4, 4, 60).clip(*[(e - mean) / std for e in ends])]
            )
        )
        y = (0.5 * (edges[1:] + edges[:-1])[:, None] + 0.5 * np.diff(edges)[:, None] * x).ravel()
        weights = (0.5 * np.diff(edges)[:, None] * w).ravel()
        p = np.exp(model.log_density(np.repeat(row, len(y), axis=0), y))
        total, first = weights @ p, weights @ (y * p)
    np.testing.assert_allclose(total, 1, rtol=2e-3)
    np.testing.assert_allclose(first, mean, rtol=5e-3, atol=5e-3 * std)


@EACH
def test_the_right_likelihood_beats_the_gaussian_one(fitted, name):
    if name in ("gaussian", "ordinal"):
        pytest.skip("is the Gaussian one" if name == "gaussian" else "a probability is no density")
    if name in ("poisson", "negative_binomial"):
        pytest.skip("a probability is no density")
    X, y = table(name, 1000, 2)
    plain = GPRegressor(**SETTINGS, effort="fast").fit(*table(name))
    assert fitted[name].log_density(X, y).mean() > plain.log_density(X, y).mean()


@EACH
def test_samples_have_the_moments_of_the_mean(fitted, name):
    rows = table(name, 5, 3)[0]
    draws = fitted[name].sample_y(rows, 4000, random_state=0)
    assert draws.shape == (5, 4000) and np.isfinite(draws).all()
    mean, std = fitted[name].predict(rows, return_std=True)
    np.testing.assert_allclose(draws.mean(axis=1), mean, atol=0.1 * std.max())


@EACH
def test_files_and_minibatches(fitted, name, tmp_path):
    X, _ = table(name, 20, 4)
    fitted[name].save(tmp_path / "model")
    again = GPRegressor.load(tmp_path / "model")
    assert np.array_equal(again.predict_interval(X), fitted[name].predict_interval(X))
    small = GPRegressor(
        likelihood=name, method="svgp", num_inducing=15, batch_size=64, max_iter=100, effort="fast"
    ).fit(*table(name))
    assert small.n_rejected_ == 0 and small.score(*table(name, 400, 1)) > 0.1


def test_outliers_do_not_move_a_student_t_fit():
    X, y = table("gaussian")
    bad = y.copy()
    bad[::20] += 5000
    rows, _ = table("gaussian", 200, 5)
    truth = 1e3 + 50 * latent(rows)
    errors = [
        np.sqrt(
            np.mean((GPRegressor(likelihood=name, **SETTINGS, effort="fast").fit(X, bad).predict(rows) - truth) ** 2)
        )
        for name in ("student_t", "gaussian")
    ]
    assert errors[0] < 15 and errors[0] < 0.3 * errors[1]


def test_an_object_is_a_likelihood_too():
    X, y = table("ordinal")
    codes = np.searchsorted([1.0, 2.0, 3.5, 5.0], y)
    model = GPRegressor(likelihood=Ordinal([-1.0, 0.0, 1.0]), **SETTINGS, effort="fast").fit(X, codes)
    assert model.predict(X).min() >= 0 and model.predict(X).max() <= 3
    model = GPRegressor(likelihood=StudentT(0.3, 4.0), **SETTINGS, effort="fast").fit(*table("student_t"))
    assert float(model.likelihood_.degrees) != 4.0


REFUSED = [
    ("poisson", -1.0, r"-1 in row 7 \(1 such rows\).*counts 0, 1, 2"),
    ("negative_binomial", 2.5, "2.5 in row 7.*counts"),
    ("gamma", 0.0, "0 in row 7.*numbers above 0"),
    ("exponential", -3.0, "-3 in row 7.*numbers above 0"),
    ("beta", 1.0, "1 in row 7.*proportions between 0 and 1"),
    ("beta", 0.0, "0 in row 7.*proportions"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_a_target_that_the_likelihood_does_not_describe_is_refused(name, value, message):
    X, y = table(name)
    y[7] = value
    with pytest.raises(ValueError, match=message):
        GPRegressor(likelihood=name, effort="fast").fit(X, y)


def test_other_bad_questions_are_refused(fitted):
    X, y = table("gaussian")
    with pytest.raises(ValueError, match="likelihood='normal' is unknown: use one of auto, gaussian"):
        GPRegressor(likelihood="normal", effort="fast").fit(X, y)
    with pytest.raises(ValueError, match="Softmax is for classes: use GPClassifier"):
        GPRegressor(likelihood=Softmax(3), effort="fast").fit(X, y)
    with pytest.raises(ValueError, match="300 different values"):
        GPRegressor(likelihood="ordinal", effort="fast").fit(X, y)
    with pytest.raises(ValueError, match="noise_variance has no meaning for the likelihood poisson"):
        GPRegressor(likelihood="poisson", effort="fast").fit(*table("poisson"), noise_variance=np.ones(N))
    with pytest.raises(ValueError, match="method='laplace' needs .*smooth"):
        GPRegressor(likelihood="laplace", method="laplace", effort="fast").fit(X, y)
    with pytest.raises(ValueError, match="use method='exact'"):
        GPRegressor(method="laplace", effort="fast").fit(X, y)
    with pytest.raises(ValueError, match="a level that the fit did not see"):
        fitted["ordinal"].log_density(X[:1], np.array([2.2]))


def test_laplace_s_approximation_for_counts():
    X, y = table("poisson")
    model = GPRegressor(likelihood="poisson", method="laplace", max_iter=20, effort="fast").fit(X, y)
    assert model.method_ == "laplace" and model.inducing_points_ is None
    near = GPRegressor(likelihood="poisson", method="collapsed", num_inducing=60, max_iter=20, effort="fast").fit(X, y)
    rows, _ = table("poisson", 50, 6)
    np.testing.assert_allclose(model.predict(rows), near.predict(rows), rtol=0.15)
    assert abs(model.bound_ - near.bound_) < 10
