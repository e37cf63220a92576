"""Which method a table gets, by its rows and its likelihood; and where a sparse fit starts."""

# Parts of kernels are reached by name, which a type checker cannot follow.
# pyright: reportAttributeAccessIssue=false

from functools import partial

import jax
import numpy as np
import oracles as o
import pytest

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.bounds import collapsed, marginal
from pseudopoint.compilation import bucket
from pseudopoint.data import dataset
from pseudopoint.datasets import load
from pseudopoint.likelihoods import Bernoulli, Gaussian, Heteroscedastic, Poisson, RobustMax, Softmax
from pseudopoint.optimise.named import tight
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, Model
from pseudopoint.recipes import (
    Settings,
    choose_method,
    choose_num_inducing,
    fit_model,
    methods,
    objectives,
    precision,
    starts,
)
from pseudopoint.recipes.objectives import OfBound, box_around, maximise, subset
from pseudopoint.recipes.prior import LengthscalePrior
from pseudopoint.starts import inducing
from pseudopoint.starts.hyperparameters import named_kernel, robust

COLLAPSED = OfBound(collapsed)


@pytest.mark.parametrize(
    ("likelihood", "ends"),
    [
        (Gaussian(0.1), [("exact", 4000), ("collapsed", 50_000), ("svgp", np.inf)]),
        (Bernoulli(), [("collapsed", 5000), ("svgp", np.inf)]),
        (Heteroscedastic(), [("exact", 4000), ("collapsed", 50_000), ("svgp", np.inf)]),
        (Softmax(3), [("collapsed", 1333), ("svgp", np.inf)]),
        (Softmax(26), [("collapsed", 153), ("svgp", np.inf)]),
        (RobustMax(3), [("collapsed", 222), ("svgp", np.inf)]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_small_tables_take_full_passes_and_large_ones_minibatches(likelihood, ends):
    first = 1
    for method, last in ends:
        for N in (first, min(last, 10**9)):
            chosen, why = choose_method(int(N), likelihood)
            assert chosen == method and f"{int(N)} rows" in why
        first = last + 1


def naval():
    """2,000 rows of NAVAL, standardised, and a model's start: an exact fit of 500 rows takes the variance to 200."""
    table = load("naval")
    rows = np.random.default_rng(0).permutation(len(table.y))[:2000]
    X, y = (np.asarray(a, float)[rows] for a in (table.X, table.y))
    X, y = X[:, X.std(0) > 1e-9], (y - y.mean()) / y.std()
    X = (X - X.mean(0)) / X.std(0)
    kernel = named_kernel("matern52", *robust(X, y), X.shape[1])
    return cast(Model(kernel, Gaussian(0.1)), "float64"), dataset(X, y, dtype="float64")


@pytest.mark.parametrize("by_the_bound, dtype", [(False, "float64"), (True, "float64"), (True, "float32")])
def test_a_warm_start_keeps_back_what_few_rows_cannot_know(by_the_bound, dtype, monkeypatch):
    if by_the_bound:
        monkeypatch.setattr(starts, "RACE_ROWS", 300)
    with jax.enable_x64(True):
        model, data = naval()
        prior = LengthscalePrior.around(model.kernel, Settings(effort="fast"))
        warm = starts._warm(model, data, Settings(num_inducing=300, effort="fast"), prior, dtype)
        assert marginal(warm, few(data)).value > marginal(model, few(data)).value + 10
    assert {x.dtype for x in jax.tree.leaves(warm)} == {np.dtype("float64")}
    assert warm.kernel.variance <= model.kernel.variance
    assert warm.likelihood.variance >= model.likelihood.variance
    assert (np.asarray(warm.kernel.lengthscale) <= 2 * np.sqrt(data.X.shape[1])).all()
    assert np.ptp(np.log(warm.kernel.lengthscale)) > 0.5  # which columns matter it does know


def few(data):
    return cast(data.sample(300, 1), "float64")


def test_a_box_holds_points_and_lets_the_kernel_move_within_reach():
    with jax.enable_x64(True):
        model, data = naval()
        prior, rows = LengthscalePrior.around(model.kernel, Settings(effort="fast")), few(data)
        start = Model(model.kernel, model.likelihood, Collapsed(rows.X[:20]))
        box = box_around(trainable(start), kernel=np.log(1.5), likelihood=np.inf, posterior=0.0)
        learned = maximise(COLLAPSED, prior, start, rows, 30, None, box=box).model
    np.testing.assert_array_equal(learned.posterior.Z, start.posterior.Z)
    factor = np.abs(np.log(learned.kernel.lengthscale / start.kernel.lengthscale))
    np.testing.assert_allclose(factor.max(), np.log(1.5), rtol=1e-9)
    assert np.abs(np.log(learned.likelihood.variance / start.likelihood.variance)) > np.log(1.5)


@pytest.mark.parametrize("seed", [0, 2, 8])
def test_a_warm_start_takes_no_column_for_labels(seed):
    """From these rows L-BFGS-B alone takes one column, of 18 values, to a lengthscale of 0.008 and less."""
    with jax.enable_x64(True):
        model, data = naval()
        prior = LengthscalePrior.around(model.kernel, Settings(effort="fast"))
        warm = starts._warm(model, data, Settings(random_state=seed, effort="fast"), prior, "float64")
    values = np.unique(data.X[:, 11])
    assert len(values) == 18 and np.diff(values).min() > 0.09
    assert np.min(warm.kernel.lengthscale) >= 0.0999 * np.min(model.kernel.lengthscale) > 0.09


def test_many_rows_start_from_one_fit_of_a_sample(monkeypatch):
    monkeypatch.setattr(objectives, "chunk_size", lambda N, M: 150)
    for module in (starts, inducing, objectives):
        monkeypatch.setattr(module, "RACE_ROWS", 300)
    with jax.enable_x64(True):
        model, data = naval()
        prior, settings = (
            LengthscalePrior.around(model.kernel, Settings(effort="fast")),
            Settings(num_inducing=20, dtype="float64", effort="fast"),
        )
        start, notes, float32_start = starts.start_sparse(model, data, settings, prior)
        assert float32_start is None  # unless asked for
        assert notes == ("inducing points: 20, started by kmeans (warm)",)
        warm = starts._warm(model, data, settings, prior, "float64")
        plain = Model(warm.kernel, warm.likelihood, Collapsed(inducing.kmeans(np.asarray(data.X), 20, 0)))
        assert tight(start, data) > tight(plain, data) + 0.1 * len(data)  # of all rows, though of few it was learned
        short, _, _ = starts.start_sparse(model, data, settings._replace(max_iter=1), prior)
        assert tight(plain, data) < tight(short, data) < tight(start, data)  # a short fit has a short start
        signs = dataset(data.X, np.asarray(data.y) > 0, dtype="float64")
        binary = cast(Model(model.kernel, Bernoulli()), "float64")
        notes = starts.start_raced(binary, signs, settings._replace(max_iter=1), prior)[1]
    assert notes == ("inducing points: 20, started by kmeans",)


def test_a_subset_for_a_collapsed_bound_is_whole_chunks_of_all_rows(monkeypatch):
    monkeypatch.setattr(objectives, "chunk_size", lambda N, M: 160)
    monkeypatch.setattr(objectives, "RACE_ROWS", 300)
    with jax.enable_x64(True):
        _, data = naval()
        part = subset(COLLAPSED, data, 20, 0, 300)
        assert len(part) == bucket(len(data)) and np.count_nonzero(part.weight) == 320
        for rows in (160, 320):  # of a subset too, whose other rows weigh nothing
            assert np.count_nonzero(subset(COLLAPSED, part, 20, 0, rows).weight) == rows
        assert subset(COLLAPSED, part, 20, 0, 310) is part
        assert np.count_nonzero(subset(COLLAPSED, data, 20, 0, 1, 0.5).weight) == 1120  # of half of 2,000
        assert len(subset(objectives.profile, data, 20, 0, 160)) == 300


def test_a_sparse_fit_ends_where_ten_iterations_gain_little_and_an_exact_one_does_not():
    with jax.enable_x64(True):
        data, kernel = waves(0.2, 200), named_kernel("matern52", 1.0, 1.0, 2)
        model = cast(Model(kernel, Gaussian(0.1)), "float64")
        prior = LengthscalePrior.around(kernel, Settings(effort="fast"))
        sparse = Model(model.kernel, model.likelihood, Collapsed(data.X[:20]))
        assert len(trainable(sparse).vector) > objectives.FEW >= len(trainable(model).vector)
        result = maximise(COLLAPSED, prior, sparse, data, 300, None)
        exact = maximise(OfBound(marginal), prior, model, data, 300, None)
    last = [record.bound for record in result.history[-11:]]
    assert result.converged and last[-1] - last[0] < objectives.MIN_GAIN < last[-1] - result.history[0].bound
    assert not np.array_equal(result.model.posterior.Z, sparse.posterior.Z)
    assert exact.converged and exact.history[-1].gradient_norm < 1e-4


@pytest.mark.parametrize("latents", [1, 2, 5, 6, 10, 26, 1000])
def test_many_latent_functions_have_as_many_points_as_a_step_affords(latents):
    cost = lambda M: latents * M**2 * (512 + M)
    for N in (40, 900, 5000, 18_000, 10**8):
        one, M = choose_num_inducing(N), choose_num_inducing(N, latents)
        assert min(N, 50) <= M <= one
        assert M == one or cost(M) <= 4e8 < cost(M + 1) or M == 50


@pytest.mark.parametrize("likelihood", [Bernoulli(), Softmax(26)])
def test_a_fit_counts_its_latent_functions(likelihood):
    data = dataset(np.zeros((18_000, 1)), np.zeros(18_000), dtype="float32")
    M = starts.num_points(Model(named_kernel("rbf", 1.0, 1.0, 1), likelihood), data, Settings())
    assert M == choose_num_inducing(18_000, likelihood.latents) == (289 if likelihood.latents == 1 else 152)


def test_many_points_start_warm_from_the_exact_evidence_of_as_many_rows(monkeypatch):
    monkeypatch.setattr(starts, "RACE_ROWS", 300)
    with jax.enable_x64(True):
        model, data = naval()
        start, few = starts._on_few_rows(model, data, Settings(num_inducing=200, random_state=3, effort="fast"))
        own = jax.tree.map(lambda x: x[:200], few)
        # At noise enough beside the points' jitter, which the exact evidence has none of.
        np.testing.assert_allclose(tight(start, few), marginal(model, own).value, rtol=1e-5)
        assert len(few) == len(data) and np.count_nonzero(few.weight) == 200
        start, few = starts._on_few_rows(model, data, Settings(num_inducing=149, effort="fast"))
        assert start is model and len(few) == starts.WARM_ROWS


@pytest.mark.parametrize("M, learn_inducing", [(23, True), (153, True), (153, False)])
def test_a_sample_and_all_rows_share_one_program(M, learn_inducing, monkeypatch, caplog):
    """Compilation is most of a short fit. The large programs are the bound and the end; with few points, also the exact
    evidence of few rows."""
    for module in (starts, inducing, objectives):
        monkeypatch.setattr(module, "RACE_ROWS", 300)
    with jax.enable_x64(True):
        model, data = naval()
        settings = Settings(
            method="collapsed",
            num_inducing=M,
            learn_inducing=learn_inducing,
            max_iter=20,
            dtype="float64",
            effort="fast",
        )
        with jax.log_compiles():
            fit_model(model.kernel, model.likelihood, data, settings)
    compiled = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Compiling")]
    bounds = [message for message in compiled if "_value_and_gradient" in message]
    few = [message for message in bounds if f"[{bucket(500)},14]" in message]  # unless an earlier test has compiled it
    assert len(bounds) - len(few) == 1 and len(few) <= (M < starts.ENOUGH_POINTS), bounds
    assert len(compiled) < 20, compiled  # and few of single operations


# --- Starts in float32 ---


def waves(noise, N=900, labels=False):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(N, 2))
    y = np.sin(2 * X[:, 0]) + np.cos(3 * X[:, 1]) + noise * rng.normal(size=N)
    return dataset(X, y > 0 if labels else y / y.std(), dtype="float64")


def test_float32_is_enough_as_long_as_it_resolves_one_beside_the_rows():
    allows = precision.Float32Start(1000.0)
    eps = np.finfo(np.float32).eps
    sparse = lambda noise: Model(named_kernel("rbf", 1.0, 2.0, 1), Gaussian(noise), Collapsed(np.zeros((3, 1))))
    assert allows(sparse(1.01 * 1000 * 2 * eps)) and not allows(sparse(0.99 * 1000 * 2 * eps))


def test_what_rows_do_not_foretell_of_each_other_is_the_noise_and_what_they_cannot_know():
    smooth, noisy = precision.leave_one_out_error(waves(0.0, 300)), precision.leave_one_out_error(waves(0.5, 300))
    assert 0 < smooth < 1e-6
    share = 0.25 / (0.25 + 0.96)  # of y's variance, which `waves` makes 1
    assert 0.9 * share < noisy < 1.4 * share
    few = waves(0.5, 300)
    in_other_units = dataset(1e3 * few.X + 7, 10 * few.y - 3, dtype="float64")
    np.testing.assert_allclose(precision.leave_one_out_error(in_other_units), 100 * noisy, rtol=1e-9)
    alike = dataset(np.ones((20, 2)), np.ones(20), dtype="float64")
    assert precision.leave_one_out_error(alike) == 0.0
    bad = dataset(np.full((20, 2), np.nan), np.ones(20), dtype="float64")
    assert precision.leave_one_out_error(bad) == 0.0  # the fit says what is wrong


def test_a_row_is_foretold_by_the_process_of_the_others():
    few = waves(0.3, 40)
    X, y = ((x - x.mean(0)) / x.std(0) for x in (np.asarray(few.X), np.asarray(few.y)))
    K, evidence, error = o.rbf, [], []
    for lengthscale in np.sqrt(2) * 2.0 ** np.arange(-2, 3):
        for noise in 10.0 ** np.arange(-8, 2):
            G = K(X, X, lengthscale, 1.0) + noise * np.eye(40)
            scale = y @ np.linalg.solve(G, y) / 40
            evidence.append(-40 * np.log(scale) - np.linalg.slogdet(G)[1])
            others = [np.delete(np.arange(40), i) for i in range(40)]
            error.append([y[i] - G[i, j] @ np.linalg.solve(G[np.ix_(j, j)], y[j]) for i, j in enumerate(others)])
    expected = np.mean(np.square(error[int(np.argmax(evidence))])) * np.var(few.y)
    np.testing.assert_allclose(precision.leave_one_out_error(few), expected, rtol=1e-6)


def test_a_start_in_float32_is_allowed_where_rows_do_not_foretell_each_other():
    with jax.enable_x64(True):
        kernel = named_kernel("rbf", 0.3, 1.0, 2)
        assert precision.float32_start_of(kernel, waves(0.1, 300), 1e4)
        assert precision.float32_start_of(kernel, waves(0.1, 300), 1e6) is None  # ε N k is 0.1
        assert precision.float32_start_of(kernel, waves(0.0, 300), 1e4) is None


@pytest.mark.parametrize("labels", [False, True])
def test_a_large_table_starts_in_float32_and_ends_in_float64_where_float64_does(labels, monkeypatch):
    for module in (starts, inducing, methods):
        monkeypatch.setattr(module, "RACE_ROWS", 300)
    likelihood = Bernoulli() if labels else Gaussian(0.1)
    with jax.enable_x64(True):
        data, kernel = waves(0.2, labels=labels), named_kernel("matern52", 1.0, 1.0, 2)
        settings = Settings(method="svgp" if labels else "collapsed", num_inducing=30, max_iter=60, effort="fast")
        one, other = (
            fit_model(kernel, likelihood, data, settings._replace(dtype=dtype)) for dtype in ("auto", "float64")
        )
        named = settings._replace(optimiser="NGD+Adam", max_iter=2, method="auto")
        assert precision.FLOAT32_NOTE not in fit_model(kernel, likelihood, data, named).notes  # as the papers have it
    assert precision.FLOAT32_NOTE in one.notes and precision.FLOAT32_NOTE not in other.notes
    assert {x.dtype for x in jax.tree.leaves((one.model, one.predictor))} == {np.dtype("float64")}
    np.testing.assert_allclose(one.bound, other.bound, rtol=0, atol=0.002 * len(data))


def test_a_table_without_noise_is_fitted_in_float64(monkeypatch):
    for module in (starts, inducing):
        monkeypatch.setattr(module, "RACE_ROWS", 300)
    with jax.enable_x64(True):
        model, data = naval()
        settings = Settings(method="collapsed", num_inducing=100, max_iter=3, effort="fast")
        fitted = fit_model(model.kernel, Gaussian(0.1), data, settings)
    assert precision.FLOAT32_NOTE not in fitted.notes


def test_counts_and_other_likelihoods_of_any_curvature_are_fitted_in_float64():
    Z = np.zeros((3, 1))
    kernel = named_kernel("rbf", 1.0, 1.0, 1)
    assert precision.resolved_in_float32(Model(kernel, Bernoulli(), Collapsed(Z)), 1e6)
    assert not precision.resolved_in_float32(Model(kernel, Bernoulli(), Collapsed(Z)), 1e8)
    assert not precision.resolved_in_float32(Model(kernel, Poisson(), Collapsed(Z)), 10)


def test_a_collapsed_bound_of_float32_has_no_column_in_float64_within_a_scope_of_float64():
    with jax.enable_x64(True):
        data = cast(waves(0.2), "float32")
        start = cast(Model(named_kernel("matern52", 1.0, 1.0, 2), Gaussian(0.1), Collapsed(data.X[:20])), "float32")
        numbers = trainable(start)
        slope = jax.value_and_grad(lambda parts: tight(numbers.rebuild(parts), data))
        text = str(jax.make_jaxpr(slope)(numbers.parts))
    assert "f32[20,20]" in text and "f64[2" not in text and "f64[900" not in text


@pytest.mark.parametrize(
    "estimator, host", [(GPRegressor, 4), (partial(GPClassifier, method="laplace"), 3)], ids=["exact", "laplace"]
)
def test_a_small_fit_compiles_three_programs_and_those_for_a_covariance_on_the_host(estimator, host, caplog):
    """What a first fit feels most is compilation: what is done before the objective and after is no operation by
    itself."""
    X = np.random.default_rng(0).normal(size=(41, 2))  # a shape that no other test has compiled
    with jax.log_compiles():
        estimator(max_iter=3, effort="fast").fit(X, X[:, 0] > 0)
    compiled = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Compiling")]
    compiled = [message for message in compiled if "<lambda>" not in message]  # the question to XLA, once a process
    # Unconstrained numbers, value and gradient, the model of the best. On the host: noise, tiles, their slopes and the
    # constants; Laplace's method has its rows' slopes, a line search and the slopes of its covariance.
    assert len(compiled) <= 3 + host, compiled
