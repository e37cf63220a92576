"""What speeds predictions up changes none of them: prepared points, tiles, blocks of rows, what stays on the device.

Tests of the forms run in a float64 scope; those of estimators get by without.
"""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import gc
import tracemalloc
from copy import deepcopy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from conformance import KERNELS, rows
from fits import fit_each, new_rows

from pseudopoint import GPRegressor
from pseudopoint.bounds import collapsed, marginal
from pseudopoint.compilation import program
from pseudopoint.data import dataset
from pseudopoint.estimators import predictive, serving
from pseudopoint.kernels import AbstractKernel, Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.posteriors import Collapsed, Model, Predictor
from pseudopoint.processes import computing

N, M, D = 12, 5, 2
rng = np.random.default_rng(4)
X, Z, X_TEST = rng.normal(size=(N, D)), rng.normal(size=(M, D)), rng.normal(size=(7, D))
X_TEST[:3] = Z[:3]
DATA = (X, np.sin(X.sum(1)), rng.integers(1, 4, N).astype(float), rng.uniform(0.0, 0.5, N))
KERNEL = Matern52(np.array([0.8, 1.3]), 1.7)


@pytest.fixture(scope="module")
def fitted():
    """One fit of each method, for tests that only look."""
    return fit_each()


# --- Prepared points -------------------------------------------------------------------------------------------------


@jax.jit
def both(kernel, Z, X):
    return kernel(Z, X), kernel.from_prepared(kernel.prepare(Z), X)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_of_prepared_rows_is_the_kernel(name):
    direct, prepared = both(KERNELS[name](3), *rows())
    np.testing.assert_array_equal(prepared, direct)


@pytest.mark.parametrize("name", KERNELS)
def test_rows_that_are_not_numbers_stay_so_beside_prepared_ones(name):
    Z, X = rows()
    X[1] = np.nan
    direct, prepared = both(KERNELS[name](3), Z, X)
    np.testing.assert_array_equal(np.isnan(prepared), np.isnan(direct))


at = jax.jit(lambda predictor: predictor(jnp.asarray(X_TEST)))


def predictor_of(kernel):
    return jax.jit(collapsed)(Model(kernel, Gaussian(0.2), Collapsed(Z)), dataset(*DATA)).predictor()


def sorts(predictor):
    """How many sorts the program of a prediction has; the centre of points is a median."""
    return str(jax.make_jaxpr(at)(predictor)).count("sort[")


def test_the_centre_of_the_points_is_computed_once_and_not_at_each_prediction():
    predictor = predictor_of(KERNEL)
    assert sorts(predictor) == 1
    for precision in ("float64", "float32"):
        assert sorts(serving.served(predictor, precision)) == 0


# --- Forms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [KERNEL, Matern52(np.array([0.8, 1.3]), 1e4)], ids=["", "variance 1e4"])
@pytest.mark.parametrize("rows", [M, 2, 1])
def test_the_triangular_predictor_is_the_same_also_in_tiles(kernel, rows, monkeypatch):
    monkeypatch.setattr(serving, "TILE", rows)
    predictor = predictor_of(kernel)
    served = serving.served(predictor, "float64")
    assert isinstance(served, serving.TriangularPredictor) and len(served.tiles) == min(M // rows, serving.TILES)
    assert not any(np.triu(row[-1], 1).any() for row in served.tiles)
    for ours, theirs in zip(at(served), at(predictor), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11 * float(kernel.variance))


@pytest.mark.parametrize("shared", [True, False])
def test_a_q_wider_than_the_prior_is_served_square_and_the_same(shared):
    s = np.append(np.ones(M - 1), 1.1)
    wide = Predictor(KERNEL, Z, rng.normal(size=M), Z, np.eye(M) / 10, s, np.array(0.0), shared)
    served = serving.served(wide, "float64")
    assert isinstance(served, serving.SquarePredictor)
    for ours, theirs in zip(at(served), at(wide), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-14)


def test_the_predictor_of_all_rows_is_triangular_as_it_is():
    predictor = jax.jit(marginal)(Model(KERNEL, Gaussian(0.2)), dataset(*DATA)).predictor()
    np.testing.assert_array_equal(serving.served(predictor, "float64").tiles[0][0], predictor.W)


class Triangle(AbstractKernel):
    """A kernel of a user's own, that prepares nothing: it is called as it is."""

    def __call__(self, X, Z):
        return jnp.exp(-jnp.sum(jnp.abs(X[:, None] - Z), axis=-1))

    def diag(self, X):
        return jnp.ones_like(X[:, 0])


def test_a_kernel_that_prepares_nothing_is_served_too():
    predictor = predictor_of(Triangle())
    for ours, theirs in zip(at(serving.served(predictor, "float64")), at(predictor), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.edge
def test_a_served_form_is_in_no_file(fitted, tmp_path):
    model, (rows, _) = fitted["collapsed"], new_rows()
    before = model.predict(rows, return_std=True)
    model.save(tmp_path / "model")
    assert b"Triangular" not in (tmp_path / "model").read_bytes()
    assert type(model.predictor_) is type(GPRegressor.load(tmp_path / "model").predictor_) is Predictor
    np.testing.assert_array_equal(GPRegressor.load(tmp_path / "model").predict(rows, return_std=True), before)


# --- Blocks, and what stays on the device ----------------------------------------------------------------------------


@pytest.mark.edge
def test_fifty_thousand_rows_are_predicted_in_blocks(fitted, monkeypatch):
    model, (rows, _) = fitted["exact"], new_rows(50_000)
    sizes, apply = [], serving.apply_learned
    monkeypatch.setattr(serving, "apply_learned", lambda *call: sizes.append(len(call[-1])) or apply(*call))
    monkeypatch.setattr(serving, "BLOCK", 1024 * serving.NODES)
    blocks = np.column_stack(model.predict(rows, return_std=True))
    assert len(sizes) == 49 and set(sizes) == {1024}
    some = np.arange(0, 50_000, 997)
    np.testing.assert_allclose(np.column_stack(model.predict(rows[some], return_std=True)), blocks[some], rtol=1e-10)
    one_by_one = [np.ravel(model.predict(rows[[i]], return_std=True)) for i in some[:5]]
    np.testing.assert_allclose(one_by_one, blocks[some[:5]], rtol=1e-10)
    np.testing.assert_allclose(model.predict(rows), blocks[:, 0], rtol=1e-12)


@pytest.mark.edge
def test_predictions_of_many_rows_need_little_more_memory_than_they_take(fitted):
    model, X = fitted["collapsed"], np.tile(new_rows(1_000)[0], (200, 1))
    model.warm_up()
    tracemalloc.start()  # knows NumPy's arrays, and not those of XLA, which are of one block
    mean, std = model.predict(X, return_std=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.2 * (mean.nbytes + std.nbytes)


@pytest.mark.edge
def test_a_mean_alone_needs_no_variance(fitted):
    kept, flops = serving.kept(fitted["exact"]), {}
    for function in (predictive.mean, predictive.moments):
        with computing("float64"):
            apply: Any = program(serving._apply, None, (0, 1))
            compiled = apply.lower(function, kept.structure, kept.leaves, np.zeros((64, 2))).compile()
        flops[function] = (compiled.cost_analysis() or {})["flops"]
    assert flops[predictive.mean] < 0.3 * flops[predictive.moments]


@pytest.mark.edge
def test_what_skips_scikit_learns_checks_predicts_the_same():
    X = np.random.default_rng(0).normal(size=(40, 3))
    model = GPRegressor(max_iter=3, effort="fast").fit(X, X[:, 0])
    mean = model.predict(X)
    for same in (X.tolist(), np.asfortranarray(X), X.astype(">f8"), pd.DataFrame(X).to_numpy()):
        np.testing.assert_allclose(model.predict(same), mean, rtol=1e-12)
    for bad in (X[:, :2], X[0], X[:0], [], [[1.0], [1.0, 2.0]]):
        with pytest.raises(ValueError, match="features|no columns|0 sample|no rows|differ in length"):
            model.predict(bad)


@pytest.mark.edge
def test_what_is_kept_on_the_device_is_that_of_the_last_fit_and_goes_with_the_model():
    X = np.random.default_rng(0).normal(size=(40, 3))
    model = GPRegressor(max_iter=3, effort="fast").fit(X, X[:, 0])
    model.predict(X)
    again, kept = model.fit(X, X[:, 1]).predict(X), len(serving._ON_DEVICE)
    np.testing.assert_array_equal(again, GPRegressor(max_iter=3, effort="fast").fit(X, X[:, 1]).predict(X))
    model.dtype = "float32"
    single = model.predict(X)
    assert (single != again).any()
    np.testing.assert_allclose(single, again, atol=1e-4)
    np.testing.assert_array_equal(deepcopy(model).predict(X), single)
    del model
    gc.collect()
    assert len(serving._ON_DEVICE) < kept
