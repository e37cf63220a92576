"""Sums over chunks are sums over rows: every bound, its gradient and a whole fit come out as in one piece."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint.bounds import COLLAPSED, ELBO, collapsed, collapsed_report, elbo, elbo_report, summed_gradient
from pseudopoint.data import Dataset, dataset
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Bernoulli, Gaussian, Softmax, StudentT
from pseudopoint.optimise.minibatch import NaturalGradient, averaging
from pseudopoint.optimise.minibatch.loop import fit, start
from pseudopoint.optimise.named import adam
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, Model
from pseudopoint.recipes.families import FAMILIES, several
from pseudopoint.rows import Rows, recut

N, M, D = 37, 5, 2
rng = np.random.default_rng(3)
X = rng.normal(size=(N, D))
Y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=N)
Z = jnp.asarray(X[:M])
LIKELIHOODS = {
    "gaussian": (Gaussian(0.2), Y),
    "student_t": (StudentT(0.4), Y),
    "bernoulli": (Bernoulli(), (Y > 0).astype(float)),
    "softmax": (Softmax(3), np.digitize(Y, [-0.5, 0.5]).astype(float)),
}


def rows(y=Y) -> Dataset:
    return dataset(X, y, rng.integers(1, 3, N).astype(float), np.linspace(0, 0.1, N))


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr("pseudopoint.data.CHUNK", 8)


def gaussian_model() -> Model:
    return cast(Model(Matern52([0.8, 1.3], 1.1), Gaussian(0.2), Collapsed(Z)), jnp.float64)


def close(a, b, tolerance=1e-10):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), a, b)


@pytest.mark.parametrize("sizes", [[37], [1] * 37, [0, 5, 0, 0, 20, 12, 0], [8, 8, 8, 8, 5]])
@pytest.mark.parametrize("size", [1, 8, 36, 37, 100])
def test_pieces_are_cut_anew_and_no_row_is_lost(sizes, size):
    ends = np.cumsum([0, *sizes])
    pieces = ((X[a:b], np.arange(a, b)) for a, b in zip(ends[:-1], ends[1:], strict=True))
    found = list(recut(pieces, size, N))
    np.testing.assert_array_equal(np.concatenate([numbers for _, numbers in found]), np.arange(N))
    assert {len(numbers) for _, numbers in found[:-1]} <= {min(size, N)}
    assert all(np.array_equal(x, X[numbers]) for x, numbers in found)


def test_a_table_in_memory_is_one_of_the_rows():
    data = rows()
    assert isinstance(data, Rows) and (len(data), data.num_columns) == (N, D)
    assert data.total_weight == np.sum(np.asarray(data.weight))


@pytest.mark.parametrize("tight", [True, False])
def test_the_collapsed_bound_of_chunks_is_that_of_all_rows(tight):
    data, model = rows(), gaussian_model()
    numbers = trainable(model)

    @jax.jit
    def whole(parts):
        return collapsed(numbers.rebuild(parts), data).choose(tight)

    value, gradient = jax.value_and_grad(whole)(numbers.parts)
    nothing = lambda model, prior: 0.0
    found, slopes, _ = summed_gradient(COLLAPSED, tight, nothing, numbers, numbers.vector, (data, ()))
    close(found, value)
    close(slopes, gradient)


def test_the_report_of_chunks_is_that_of_all_rows():
    data, model = rows(), gaussian_model()
    at = collapsed(model, data)
    value, standard, upper, predictor = collapsed_report(model, data)
    close((value, standard, upper), (at.value, at.standard, at.upper()))
    close(predictor(Z), at.predictor()(Z))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_elbo_of_chunks_is_that_of_all_rows(name):
    likelihood, y = LIKELIHOODS[name]
    data = rows(y)
    posterior = several(FAMILIES["whitened"].start(Z, None, Matern52([0.8, 1.3], 1.1)), likelihood.latents)
    model: Any = cast(Model(Matern52([0.8, 1.3], 1.1), likelihood, posterior), jnp.float64)
    numbers = trainable(model)

    @jax.jit
    def whole(parts):
        at = elbo(numbers.rebuild(parts), data, N)
        return at.value, at.standard

    value, gradient = jax.value_and_grad(lambda parts: whole(parts)[0])(numbers.parts)
    nothing = lambda model, prior: 0.0
    found, slopes, _ = summed_gradient(ELBO, True, nothing, numbers, numbers.vector, (data, ()))
    close(found, value)
    close(slopes, gradient)
    close(elbo_report(model, data)[:2], whole(numbers.parts))


def test_a_run_that_was_stopped_goes_on_bit_for_bit():
    data, model = rows(), gaussian_model()
    posterior = FAMILIES["whitened"].start(Z, None, model.kernel)
    model = cast(Model(model.kernel, model.likelihood, posterior), jnp.float64)
    stepper = NaturalGradient(averaging(N, 8), adam(0.02, 40))
    kept = []
    options: dict[str, Any] = {"steps": 40, "batch_size": 8, "segment": 10}
    state, history = fit(start(model, stepper, data, 5), stepper, data, keep=lambda *at: kept.append(at), **options)
    for stopped, made in kept:
        again, records = fit(stopped, stepper, data, made=made, **options)
        jax.tree.map(
            np.testing.assert_array_equal, (again.model, again.stepper_state), (state.model, state.stepper_state)
        )
        assert [record[:5] for record in records] == [record[:5] for record in history]
