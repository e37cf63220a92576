"""The exact evidence on the host: the numbers of `marginal` and of JAX's gradient, in fewer operations."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import threading
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import KERNELS
from operations import operations
from threadpoolctl import ThreadpoolController

from pseudopoint import FitError, GPRegressor
from pseudopoint.bounds import (
    covariance_on_host,
    evidence_on_host,
    exact,
    exact_on_host,
    given_evidence,
    marginal,
    marginal_on_host,
)
from pseudopoint.compilation import program
from pseudopoint.data import dataset, padded
from pseudopoint.kernels import RBF, AbstractKernel, Constant, Matern52, squared_distance
from pseudopoint.kernels.base import Positive
from pseudopoint.likelihoods import Gaussian
from pseudopoint.linalg import Tiles, workers
from pseudopoint.params import cast, positive
from pseudopoint.posteriors import Model
from pseudopoint.processes import one_blas_thread
from pseudopoint.recipes import Settings, fit_model, methods, precision, starts

N, D = 110, 3


def rows(dtype="float64", seed=0, size=N):
    """Rows with weights and noise of their own, padded with rows of weight zero."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(size, D))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=size)
    weight, noise = rng.integers(1, 4, size=size).astype(float), rng.uniform(0, 0.1, size=size)
    return padded(dataset(X, y, weight, noise, dtype=dtype), size + 9)


def on_host(model, data):
    """The value and its gradient in all numbers of the model."""
    given = evidence_on_host(model, data)
    return jax.jit(jax.value_and_grad(lambda model: given_evidence(model, (data, given)).value))(model)


by_jax = jax.jit(jax.value_and_grad(lambda model, data: marginal(model, data).value))


def alike(ours, theirs, tolerance):
    """Every array within a share of the largest number of all."""
    most = max(float(np.max(np.abs(x))) for x in jax.tree.leaves(theirs))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * most)


def test_the_evidence_of_levels_is_that_of_columns():
    rng, model = np.random.default_rng(1), cast(Model(Matern52(np.ones(D), 1.3), Gaussian(0.2)), np.float64)
    data, levels = rows(size=40), rng.normal(size=(3, 2))
    codes = rng.integers(0, 3, size=len(data)).astype(float)
    with_y = lambda y: eqx.tree_at(lambda data: data.y, data, jnp.asarray(y))
    columns = [on_host(model, with_y(y)) for y in levels[codes.astype(int)].T]
    zeros = on_host(model, with_y(np.zeros(len(data))))
    given = evidence_on_host(model, with_y(codes), levels)
    found = jax.jit(jax.value_and_grad(lambda model: given_evidence(model, (with_y(codes), given)).value))(model)
    expected = jax.tree.map(lambda a, b, c: a + b - c, *columns, zeros)
    alike(found, expected, 1e-12)


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(covariance_on_host, "SIZE", 32)


@pytest.mark.parametrize("name", KERNELS)
def test_value_gradient_and_predictor_are_those_of_the_compiled_evidence(name, small_tiles):
    with jax.enable_x64(True):
        model, data = cast(Model(KERNELS[name](D), Gaussian(0.1)), "float64"), rows()
        (value, gradient), (expected, slopes) = on_host(model, data), by_jax(model, data)
        np.testing.assert_allclose(value, expected, rtol=1e-10)
        alike(gradient, slopes, 1e-10)
        solution, new = marginal_on_host(model, data), jnp.asarray(data.X[:20] + 0.1)
        np.testing.assert_allclose([solution.value, solution.upper()], expected, rtol=1e-10)
        alike(solution.predictor()(new), marginal(model, data).predictor()(new), 1e-10)
        assert len(solution.predictor().alpha) == N


def test_rows_of_weight_zero_may_stand_anywhere(small_tiles):
    with jax.enable_x64(True):
        model, data = cast(Model(RBF(0.9, 1.7), Gaussian(0.1)), "float64"), rows()
        mixed = jax.tree.map(lambda x: x[np.random.default_rng(1).permutation(len(data))], data)
        for ours, theirs in zip(on_host(model, mixed), on_host(model, data), strict=True):
            alike(ours, theirs, 1e-12)


@pytest.mark.parametrize("x64", [False, True])
def test_float32_is_computed_in_float32(x64, small_tiles):
    with jax.enable_x64(True):
        model, data = cast(Model(Matern52(0.9, 1.7), Gaussian(0.1)), "float64"), rows()
        expected, slopes = by_jax(model, data)
    with jax.enable_x64(x64):
        value, gradient = on_host(*cast((model, data), "float32"))
    assert {x.dtype for x in jax.tree.leaves((value, gradient))} == {np.dtype("float32")}
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    alike(gradient, cast(slopes, np.float32), 1e-4)


def test_the_programs_hold_no_product_of_the_order_of_n_cubed():
    with jax.enable_x64(True):
        model, data = cast(Model(RBF(np.full(D, 2.0), 1.5), Gaussian(0.1)), "float64"), rows()
        B, X = 64, data.X[:64]
        tile = operations(covariance_on_host._tile, model.kernel, X, X)
        alphas = data.y[:B, None], data.y[:B, None]
        slopes = operations(covariance_on_host._slopes, model.kernel, X, X, jnp.ones((B, B)), alphas, jnp.asarray(0.5))
        given = evidence_on_host(model, data)
        rest = operations(jax.value_and_grad(lambda model: given_evidence(model, (data, given)).value), model)
    # (x, ‖x‖², 1) has D + 2 columns; one product forward, and two back; and one of the α.
    assert tile == {"products": (D + 2) * B**2}
    assert slopes == {"products": (3 * (D + 2) + 1) * B**2}
    assert rest["products"] <= 4 * len(data) and set(rest) <= {"products"}


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-11), ("float32", 1e-3)])
@pytest.mark.parametrize("size", [200, 70, 64, 1])
def test_tiles_hold_the_factor_the_inverse_and_solutions(size, dtype, tolerance):
    rng = np.random.default_rng(0)
    count = 20 if size == 1 else 200
    A = rng.normal(size=(count, count))
    K, b = (A @ A.T / count + np.eye(count)).astype(dtype), rng.normal(size=count).astype(dtype)
    tiles, lower = Tiles(count, size, np.dtype(dtype)), np.linalg.cholesky(K.astype(float))
    with one_blas_thread(), workers(tiles.count) as run:
        for i, j in tiles.pairs():
            tiles.tiles[i, j] = np.array(K[tiles.rows(i), tiles.rows(j)], order="F")
        assert tiles.factorise(run)
        np.testing.assert_allclose(tiles.half_logdet(), np.sum(np.log(np.diag(lower))), rtol=tolerance)
        np.testing.assert_allclose(tiles.solve(b[:, None])[:, 0], np.linalg.solve(K.astype(float), b), atol=tolerance)
        np.testing.assert_allclose(tiles.inverse_factor(run) @ lower, np.eye(count), atol=tolerance)
        tiles.invert(run)
    inverse = np.linalg.inv(K.astype(float))
    for i, j in tiles.pairs():
        assert tiles.tiles[i, j].dtype == dtype
        np.testing.assert_allclose(tiles.tiles[i, j], inverse[tiles.rows(i), tiles.rows(j)], atol=tolerance)


# --- What can go wrong ---


def test_a_jitter_is_raised_and_counted_as_in_a_compiled_program(small_tiles, monkeypatch):
    # K = 11ᵀ − 10⁻¹¹I has a factor with the last jitter of all.
    for module in (exact_on_host, exact):
        monkeypatch.setattr(module, "row_noise", lambda model, data: jnp.full_like(data.y, -1e-11))
        monkeypatch.setattr(module, "constants_of", lambda noise, data: 0.0)
    with jax.enable_x64(True):
        model = cast(Model(Constant(1.0), Gaussian(0.1)), "float64")
        data = dataset(np.zeros((40, 1)), np.ones(40), dtype="float64")
        compiled = marginal.__wrapped__  # which knows nothing of what was patched
        value, slopes = jax.value_and_grad(lambda model: compiled(model, data).value)(model)
        ours, gradient = on_host(model, data)
        jitter = marginal_on_host(model, data).predictor().jitter
        np.testing.assert_allclose(jitter, compiled(model, data).predictor().jitter, rtol=1e-9)
    assert jitter > 2e-11
    np.testing.assert_allclose(ours, value, rtol=1e-3)
    np.testing.assert_allclose(gradient.kernel.variance, slopes.kernel.variance, rtol=1e-3)


class Broken(AbstractKernel):
    """A squared exponential times a number that no kernel may have."""

    factor: float = eqx.field(static=True)
    variance: Positive = positive(default=1.0)

    def __call__(self, X, Z):
        return self.factor * self.variance * jnp.exp(-0.5 * squared_distance(X, Z))

    def diag(self, X):
        return self.variance * jnp.ones_like(X[:, 0])


@pytest.mark.parametrize("factor, words", [(-1.0, "not positive definite"), (np.nan, "NaN or infinity")])
def test_a_covariance_without_a_factor_ends_a_fit_in_one_sentence(factor, words, small_tiles):
    with jax.enable_x64(True), pytest.raises(FitError, match=words) as error:
        fit_model(Broken(factor), Gaussian(0.1), rows(), Settings(method="exact", dtype="float64", effort="fast"))
    assert "\n" not in str(error.value)


def test_a_fit_that_is_broken_off_leaves_blas_and_threads_as_they_were(small_tiles, monkeypatch):
    def stopped(self, b):
        raise KeyboardInterrupt

    monkeypatch.setattr(Tiles, "solve", stopped)
    libraries = ThreadpoolController().select(user_api="blas")
    with libraries.limit(limits=2):
        before = threading.active_count()
        with pytest.raises(KeyboardInterrupt):
            GPRegressor(method="exact", initial="robust", effort="fast").fit(rows().X, rows().y)
        assert {library["num_threads"] for library in libraries.info()} == {2}
        assert threading.active_count() == before


# --- Fits ---


def test_a_fit_that_starts_in_float32_ends_where_one_in_float64_does(monkeypatch):
    monkeypatch.setattr(starts, "FLOAT32_ROWS", 100)
    with jax.enable_x64(True):
        data = rows()
        run = partial(fit_model, Matern52(np.ones(D), 1.0), Gaussian(0.1), data)
        one, other = (run(Settings(method="exact", dtype=dtype, effort="fast")) for dtype in ("auto", "float64"))
    assert precision.FLOAT32_NOTE in one.notes and precision.FLOAT32_NOTE not in other.notes
    assert {x.dtype for x in jax.tree.leaves((one.model, one.predictor))} == {np.dtype("float64")}
    np.testing.assert_allclose(one.bound, other.bound, atol=1e-3)


def test_elsewhere_the_compiled_evidence_is_fitted_and_ends_at_the_same_model(monkeypatch):
    with jax.enable_x64(True):
        run = partial(
            fit_model, Matern52(np.ones(D), 1.0), Gaussian(0.1), rows(), Settings(method="exact", effort="fast")
        )
        ours = run()
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        theirs = run()
    np.testing.assert_allclose(ours.bound, theirs.bound, rtol=1e-8)
    assert len(theirs.predictor.alpha) >= len(ours.predictor.alpha) == N


@pytest.mark.edge
def test_a_large_table_begins_on_a_sample_and_ends_at_the_same_evidence(monkeypatch):
    X = np.random.default_rng(0).normal(size=(150, 2))
    y = np.sin(2 * X[:, 0]) + 0.2 * np.random.default_rng(1).normal(size=150)
    whole, rows = GPRegressor(method="exact", random_state=0, effort="fast").fit(X, y), []
    climb = methods.maximise
    monkeypatch.setattr(methods, "maximise", lambda *a, **k: rows.append(len(a[3])) or climb(*a, **k))
    monkeypatch.setattr(methods, "EXACT_SAMPLE", 60)
    sampled = GPRegressor(method="exact", random_state=0, effort="fast").fit(X, y)
    assert rows == [60, 150] and sampled.n_iter_ < whole.n_iter_
    np.testing.assert_allclose(sampled.bound_, whole.bound_, atol=0.1)
    again = GPRegressor(method="exact", random_state=0, effort="fast").fit(X, y)
    assert again.bound_ == sampled.bound_


def test_a_fit_after_a_search_ends_where_ten_iterations_gain_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 8))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=700)
    model = lambda: GPRegressor("rbf", input_warp="none", target_warp="none", likelihood="gaussian").fit(X, y)
    early = model()
    monkeypatch.setattr(methods, "least_gain", lambda data: 0.0)
    late = model()
    assert early.converged_ and early.n_iter_ < late.n_iter_
    assert late.bound_ - 0.5 < early.bound_ <= late.bound_


def test_tables_of_any_size_share_the_programs_of_tiles():
    """Beyond one tile; so that a search, its final fit and a cross-validation compile them once."""
    with jax.enable_x64(True):
        model = cast(Model(RBF(np.full(D, 0.9), 1.7), Gaussian(0.1)), "float64")
        programs: list[Any] = [program(covariance_on_host._tile), program(covariance_on_host._slopes, "brief")]
        sizes = []
        for size in (330, 500, 700, 1000):
            evidence_on_host(model, rows(size=size))
            sizes.append([each._cache_size() for each in programs])
    assert sizes[1:] == sizes[:1] * 3
