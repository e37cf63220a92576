"""Sums over rows: the derivative written by hand is that of the slow sums, and does not lose what cancels."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint.bounds import collapsed
from pseudopoint.bounds.row_sums import chunk_size, feature_sums, whitened_sums
from pseudopoint.data import dataset
from pseudopoint.kernels import RBF, Matern32
from pseudopoint.likelihoods import Gaussian
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, Model, features, prior_factor

N, M, D = 50, 6, 2
rng = np.random.default_rng(0)
X, Z = rng.normal(size=(N, D)), rng.normal(size=(M, D))
y, precision = rng.normal(size=N), rng.random(N) * (rng.random(N) < 0.8)
slopes = rng.normal(size=(M, M)), rng.normal(size=M), rng.normal(), rng.normal(size=N)


def sums(kernel, Z, X, precision, y, chunk, slow):
    Kuu = prior_factor(kernel, Z, 1e-8)
    basis = partial(features, kernel, Kuu, Z)
    how = partial(feature_sums, basis, chunk) if slow else partial(whitened_sums, kernel, Kuu, Z, chunk)
    return how(X, precision, y)


@pytest.mark.parametrize("chunk", [None, 12])
def test_the_derivative_in_every_argument_is_that_of_the_slow_sums(chunk):
    at = cast((RBF(np.array([0.8, 1.3]), 1.5) + Matern32(np.array(0.7), 0.4), Z, X, precision, y), "float64")

    def weighted(*arguments, used, chunk, slow):
        values = sums(*arguments, chunk, slow)
        return sum(jnp.sum(values[i] * slopes[i]) for i in used)

    # Once with a slope in every sum, once with none in d, which takes a way of its own.
    say = lambda chunk, slow: [
        jax.value_and_grad(partial(weighted, used=used, chunk=chunk, slow=slow), range(5))(*at)
        for used in (range(4), range(3))
    ]
    ours, theirs = jax.jit(lambda: (say(chunk, False), say(None, True)))()
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.max(np.abs(b)))


def test_sums_do_not_depend_on_the_chunks():
    at = cast((RBF(np.array([0.8, 1.3]), 1.5), Z, X, precision, y), "float64")
    whole, parts, slow = jax.jit(lambda: [sums(*at, *how) for how in ((None, False), (12, False), (12, True))])()
    for a, b, c in zip(whole, parts, slow, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(c, a, rtol=1e-12, atol=1e-12)


def test_chunks_of_rows_of_weight_zero_are_passed_over():
    """What they hold is never computed: as inputs they may be anything."""
    weight = np.repeat([1.0, 0.0, 1.0, 0.0], [20, 10, 10, 10])
    model = cast(Model(RBF(np.array([0.8, 1.3]), 1.5), Gaussian(0.1), Collapsed(Z)), "float64")
    numbers, bad = trainable(model), np.where(weight[:, None] > 0, X, np.nan)
    say = lambda data: jax.value_and_grad(lambda v: collapsed(numbers.rebuild(v), data, 10).value)(numbers.vector)
    seen = weight > 0
    for a, b in zip(say(dataset(bad, y, weight)), say(dataset(X[seen], y[seen])), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_an_ill_conditioned_bound_has_a_gradient_to_six_digits():
    # cond(K_uu) = 1e8 and a noise of 1e-6: the order of rows, which means nothing, moved a gradient that met what
    # cancels in the residuals by 2e-5 of itself, and that of the slow sums by 2e-6.
    X = rng.normal(size=(2000, D))
    y = np.sin(X[:, 0]) + 1e-3 * rng.normal(size=2000)
    start = trainable(cast(Model(RBF(np.full(D, 3.0), 2.0), Gaussian(1e-6), Collapsed(X[:60] + 0.01)), "float64"))
    slope = jax.jit(jax.grad(lambda x, data: collapsed(start.rebuild(x), data, 500).value))
    order = rng.permutation(2000)
    one, two = slope(start.vector, dataset(X, y)), slope(start.vector, dataset(X[order], y[order]))
    assert jnp.linalg.norm(one - two) < 5e-7 * jnp.linalg.norm(one)


@pytest.mark.parametrize("N", [1, 8192, 20_000])
@pytest.mark.parametrize("K", [0, 1, 64, 207, 500, 3000])
def test_chunks_are_alike_cover_all_rows_and_stay_small(N, K):
    size = chunk_size(N, K)
    chunks = -(-N // size)
    assert 1 <= size <= N and size * chunks - N < chunks  # none more than a row short
    assert chunks == 1 or size <= 2048
