"""Tables are padded to a grid of sizes: this changes no number, and tables of like size share programs."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from conformance import LIKELIHOODS
from likelihood_rows import targets

from pseudopoint import GPClassifier, GPRegressor, compilation
from pseudopoint.bounds import collapsed, collapsed_orthogonal, collapsed_solve, elbo, laplace, marginal
from pseudopoint.compilation import bucket
from pseudopoint.data import dataset
from pseudopoint.estimators import serving
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.optimise.minibatch import loop
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, CollapsedDecoupled, Exact, Model, SolveGP, Whitened
from pseudopoint.recipes import objectives, settings
from pseudopoint.recipes.families import FAMILIES, several
from pseudopoint.recipes.objectives import padded_to_bucket, profile
from pseudopoint.starts import inducing

N, M, D = 25, 6, 2  # a bucket of 26 rows follows
RNG = np.random.default_rng(0)
X, Z, O = RNG.normal(size=(N, D)), RNG.normal(size=(M, D)), RNG.normal(size=(4, D))


# --- The grid ---


def test_buckets_rise_by_less_than_an_eighth_and_are_their_own_buckets():
    sizes = [bucket(n) for n in range(1, 20_000)]
    assert all(n <= size < 1.12 * n + 1e-9 for n, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes) and all(bucket(size) == size for size in sizes)
    assert len(set(sizes)) < 80 and sizes[:9] == list(range(1, 10)) and bucket(0) == 1


# --- No number changes ---


def rows_of(likelihood) -> tuple[np.ndarray, np.ndarray]:
    """Targets of a likelihood, and weights."""
    return np.resize(np.asarray(targets(likelihood), float), N), RNG.uniform(0.5, 2.0, N)


def value_and_gradient(function, model):
    """Of a model, as a function of the data, which is compiled for each number of rows."""
    numbers = trainable(model)
    run = jax.jit(jax.value_and_grad(lambda parts, data: function(numbers.rebuild(parts), data)))
    return lambda data: run(numbers.parts, data)


def close(ours, truth, tolerance=1e-12):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(truth), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * (1 + np.max(np.abs(b), initial=0)))


def same_when_padded(function, model, y, weight, compiled_once=False):
    """Beside the rows alone, or by one program for less time, beside another row in the place of the padding."""
    data = dataset(X, y, weight, RNG.uniform(0, 0.1, N))
    more = padded_to_bucket(data)
    assert len(more) == 26 == len(data) + 1 and more.weight[-1] == 0
    of = value_and_gradient(function, cast(model, "float64"))
    other = jax.tree.map(lambda x, at: x.at[-1].set(at[7]), more, data)
    close(of(more), of(replace(other, weight=more.weight) if compiled_once else data))


standard = lambda points: MeanPrecision(np.zeros(len(points)), np.eye(len(points)))
GAUSSIAN = {
    "exact": (marginal, Exact()),
    "collapsed": (collapsed, Collapsed(Z)),
    "orthogonal": (collapsed_orthogonal, CollapsedDecoupled(Z, O)),
    "solve": (collapsed_solve, SolveGP(Z, O, standard(Z), standard(O))),
}


@pytest.mark.parametrize("tight", [True, False])
@pytest.mark.parametrize("name", GAUSSIAN)
def test_bounds_in_closed_form_are_the_same(name, tight):
    bound, posterior = GAUSSIAN[name]
    function = lambda model, data: bound(model, data).choose(tight)
    same_when_padded(function, Model(Matern52(np.full(D, 1.5)), Gaussian(0.2), posterior), *rows_of(Gaussian()))


IN_BOTH_SIZES = "gaussian", "poisson", "softmax_3"


def test_likelihoods_in_both_sizes_are_some_of_all():
    assert set(IN_BOTH_SIZES) < set(LIKELIHOODS)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_bounds_of_every_likelihood_are_the_same(name):
    likelihood: Any = LIKELIHOODS[name]().likelihood
    y, weight = rows_of(likelihood)
    model = Model(Matern52(np.full(D, 1.5)), likelihood, several(Whitened(Z, standard(Z)), likelihood.latents))
    rows = y, weight, name not in IN_BOTH_SIZES
    same_when_padded(lambda model, data: elbo(model, data, len(data)).value, model, *rows)
    if likelihood.latents == 1:
        same_when_padded(lambda model, data: profile(model, data)[0], model, *rows)
        if likelihood.smooth and likelihood.gaussian_noise is None:
            exact = Model(model.kernel, likelihood, Exact())
            same_when_padded(lambda model, data: laplace(model, data).value, exact, *rows)


FITS: dict[str, tuple[Any, dict[str, Any]]] = {
    "exact": (GPRegressor, {}),
    "collapsed": (GPRegressor, {"method": "collapsed"}),
    "orthogonal": (GPRegressor, {"posterior": "orthogonal"}),
    "svgp in batches": (GPRegressor, {"method": "svgp", "batch_size": 40}),
    "laplace": (GPRegressor, {"method": "laplace", "likelihood": "poisson"}),
    "profile": (GPRegressor, {"method": "collapsed", "likelihood": "poisson"}),
    "minibatches": (GPRegressor, {"method": "svgp", "likelihood": "poisson"}),
    "classes": (GPClassifier, {"dtype": "float64"}),  # iterations in float32 follow the rounding of its sums
    "classes in batches": (GPClassifier, {"dtype": "float64", "method": "svgp"}),
    **{f"family {name}": (GPRegressor, {"posterior": name, "method": "svgp"}) for name in FAMILIES},
}


def fitted(name, rows=101):
    cls, options = FITS[name]
    rng = np.random.default_rng(1)
    X = rng.normal(size=(rows, 2))
    y = rng.poisson(np.exp(np.sin(X[:, 0]))).astype(float)
    X = np.concatenate([X, X[:1]])  # a row that is there twice: weights are not all equal
    y = np.append(y, y[0])
    y = y % 3 if cls is GPClassifier else y
    return cls(num_inducing=10, max_iter=4, random_state=0, effort="fast", **options).fit(X, y), X


@pytest.mark.edge
@pytest.mark.parametrize("name", FITS)
def test_fits_are_the_same(name, monkeypatch):
    model, X = fitted(name)
    for module in (loop, inducing, objectives, serving, settings):
        monkeypatch.setattr(module, "bucket", lambda count: count)
    plain, _ = fitted(name)
    np.testing.assert_allclose(model.bound_, plain.bound_, rtol=1e-9)
    predict = lambda m: m.predict_proba(X) if isinstance(m, GPClassifier) else np.column_stack(m.predict(X, True))
    np.testing.assert_allclose(predict(model), predict(plain), rtol=1e-7)
    assert len(model.predictor_.Zv) == len(plain.predictor_.Zv)


# --- Programs ---

COMPILED: list[str] = []


def listen(event, duration_secs, **about):
    if event.endswith("backend_compile_duration"):
        COMPILED.append(str(about.get("fun_name")))


jax.monitoring.register_event_duration_secs_listener(listen)


@pytest.mark.edge
@pytest.mark.parametrize("name", FITS)
def test_tables_of_a_bucket_share_all_programs(name):
    assert bucket(94) == bucket(101) == 104
    for _ in range(2):  # the number of programs depends on the data, too: how long a line search is, and the like
        fitted(name)
    COMPILED.clear()
    model, X = fitted(name, 94)
    assert COMPILED == []
    model.predict(X[:1])
    model.predict(X)
    COMPILED.clear()
    for rows in (1, 2, 3, 17, 33, 64, 94):
        model.predict(X[:rows])
    model, _ = fitted(name, 97)
    model.predict(X[:7])
    assert COMPILED == []


@pytest.mark.edge
@pytest.mark.parametrize("name", ["exact", "laplace", "classes"])
def test_after_a_warm_up_no_prediction_compiles(name, tmp_path):
    model, X = fitted(name)
    model.save(tmp_path / "model")
    model = type(model).load(tmp_path / "model").warm_up()
    COMPILED.clear()
    for rows in (1, 2, 50, 3000):
        many = np.resize(X, (rows, 2))
        if isinstance(model, GPClassifier):
            model.predict_proba(many)
        else:
            model.predict(many)
            model.predict(many, return_std=True)
            model.predict_interval(many)
    assert COMPILED == []


@pytest.mark.edge
def test_a_process_that_fits_for_days_holds_a_bounded_number_of_programs(monkeypatch):
    monkeypatch.setattr(compilation, "MOST", 5)  # which drops what other tests have compiled: this one is the last
    held = []
    for rows in range(20, 80, 10):  # a bucket for each
        fitted("exact", rows)
        held.append(sum(made._cache_size() for made in compilation._PROGRAMS))
    assert max(held) < 12
