"""Where pseudo-points start: distinct, repeatable, and as good as the literature says."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import oracles as o
import pytest

from pseudopoint.data import dataset
from pseudopoint.kernels import RBF, Linear, Matern52, White
from pseudopoint.likelihoods import Gaussian
from pseudopoint.names import PLACEMENTS
from pseudopoint.optimise.fullbatch import Objective, lbfgsb
from pseudopoint.optimise.named import tight
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, Model
from pseudopoint.recipes import Settings, fit_model
from pseudopoint.recipes.candidates import sample_of
from pseudopoint.recipes.starts import RACE_ITERATIONS
from pseudopoint.starts.inducing import candidates, greedy_variance, kmeans, random, rpcholesky

EACH = pytest.mark.parametrize("method", [name for name in PLACEMENTS if name != "auto"])


def kernel(lengthscale=1.0, variance=1.7):
    return cast(RBF(lengthscale, variance), jnp.float64)


def starts(method, X, M, seed=0, y=None):
    return candidates(method, kernel(), dataset(X, np.zeros(len(X)) if y is None else y), M, seed)


def one(method, X, M, seed=0):
    (points,) = starts(method, X, M, seed).values()
    return points


def rows(N=60, D=2, seed=0):
    return np.random.default_rng(seed).normal(size=(N, D))


def count_distinct(Z):
    return len(np.unique(Z, axis=0))


# --- What every method owes ---


@EACH
def test_M_distinct_points_by_seed(method):
    X = rows()
    Z = one(method, X, 7)
    assert Z.shape == (7, 2) and count_distinct(Z) == 7 and np.isfinite(Z).all()
    assert (X.min(axis=0) <= Z.min(axis=0)).all() and (Z.max(axis=0) <= X.max(axis=0)).all()
    assert np.array_equal(Z, one(method, X, 7))
    assert method == "greedy" or not np.array_equal(Z, one(method, X, 7, seed=1))


@EACH
@pytest.mark.parametrize("M", [4, 10, 200])
def test_fewer_points_where_rows_repeat(method, M):
    four = rows(4)
    X = np.tile(four, (15, 1))
    Z = one(method, X, M)
    assert {tuple(z) for z in Z} == {tuple(x) for x in four} and len(Z) == 4


@EACH
def test_no_more_points_than_rows(method):
    X = rows(6)
    Z = one(method, X, 50)
    assert sorted(map(tuple, Z)) == sorted(map(tuple, X))


@EACH
def test_one_row_seen_often_is_one_point(method):
    assert np.array_equal(one(method, np.ones((9, 2)), 3), np.ones((1, 2)))


def test_auto_tries_three_and_points_of_ones_own_lose_their_duplicates():
    assert set(starts("auto", rows(), 5)) == {"kmeans", "rpcholesky", "greedy"}
    many = np.random.default_rng(0).normal(size=(5001, 2))
    assert set(starts("auto", many, 5)) == {"kmeans"}
    Z = rows(3)
    (own,) = starts(np.concatenate([Z, Z[:2]]), rows(), 99).values()
    assert {tuple(z) for z in own} == {tuple(z) for z in Z} and len(own) == 3


def test_an_unknown_method_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match="'kmean' is unknown: use one of auto, kmeans, rpcholesky, greedy, random"):
        starts("kmean", rows(), 5)


def test_a_sample_keeps_rows_together_and_in_order_and_never_repeats_one():
    X = np.arange(50.0)[:, None]
    data = dataset(X, 2 * X[:, 0], weight=3.3 * X[:, 0], noise=4 * X[:, 0])
    few = data.sample(20, 0)
    x = np.asarray(few.X)[:, 0]
    assert len(few) == 20 and (np.diff(x) > 0).all()
    for array, factor in [(few.y, 2), (few.weight, 3.3), (few.noise, 4)]:
        assert np.array_equal(array, factor * x)
    assert data.sample(50, 0) is data


# --- Pivoted Cholesky ---


def residual_trace(Z, X, lengthscale):
    """tr(K − Q), densely, with no more jitter than the Nyström matrix needs to be invertible."""
    Kuf, Kuu = o.rbf(Z, X, lengthscale, 1.7), o.rbf(Z, Z, lengthscale, 1.7)
    return 1.7 * len(X) - np.trace(Kuf.T @ np.linalg.solve(Kuu + 1e-10 * np.eye(len(Z)), Kuf))


def greedy_by_definition(K, M):
    """Rows of greatest conditional variance, each time from the dense Schur complement (Burt et al. 2020)."""
    chosen, left = [], K.copy()
    for _ in range(M):
        i = int(np.argmax(np.diag(left)))
        chosen.append(i)
        left = K - K[:, chosen] @ np.linalg.solve(K[np.ix_(chosen, chosen)], K[chosen])
    return chosen


@pytest.mark.parametrize("seed", range(3))
def test_greedy_variance_is_max_pivoted_cholesky(seed):
    X = rows(40, 2, seed)
    k = cast(Matern52(np.array([0.8, 1.3]), np.asarray(1.7)), jnp.float64)
    K = o.matern52(X, X, np.array([0.8, 1.3]), 1.7)
    assert np.array_equal(greedy_variance(k, X, 12), X[greedy_by_definition(K, 12)])


def test_pivots_stop_where_nothing_is_left_to_explain():
    # With one long lengthscale 40 rows are explained by a handful to 1e-9 of the variance.
    X = rows(40)
    Z = greedy_variance(kernel(lengthscale=50.0), X, 40)
    assert 3 <= len(Z) < 20
    K = o.rbf(X, X, 50.0, 1.7)
    left = K - o.nystrom(o.rbf(Z, X, 50.0, 1.7), o.rbf(Z, Z, 50.0, 1.7) + 1e-12 * np.eye(len(Z)))
    assert np.diag(left).max() < 1e-7


def test_white_noise_in_the_kernel_does_not_make_a_row_twice_a_point():
    k = cast(RBF(1.0, 1.0) + White(0.5), jnp.float64)
    X = np.tile(rows(5), (4, 1))
    for Z in (greedy_variance(k, X, 12), rpcholesky(k, X, 12, 0, lloyd_steps=0)):
        assert len(Z) == count_distinct(Z) == 5


def heavy_tails(seed, N=500, D=3):
    return np.random.default_rng(seed).standard_t(3, size=(N, D))


def test_random_pivots_are_drawn_in_proportion_to_conditional_variance():
    # A linear kernel of one input: d = x² at first, and nothing is left after one pivot.
    X = np.sqrt(np.arange(1.0, 5.0))[:, None]
    k = cast(Linear(1.0), jnp.float64)
    drawn = [rpcholesky(k, X, 3, seed, lloyd_steps=0) for seed in range(400)]
    assert all(len(Z) == 1 for Z in drawn)
    share = np.mean([[Z[0, 0] == x for x in X[:, 0]] for Z in drawn], axis=0)
    expected = np.arange(1, 5) / 10
    assert (np.abs(share - expected) < 3 * np.sqrt(expected * (1 - expected) / 400)).all()


@pytest.mark.parametrize(("lloyd_steps", "share"), [(0, 0.95), (5, 0.8)])
def test_randomly_pivoted_points_leave_less_unexplained_than_random_ones(lloyd_steps, share):
    # In clusters of very different sizes: random rows fall where most rows are.
    X = np.concatenate([rows(440, seed=1), rows(30, seed=2) + 8, rows(30, seed=3) - 8])
    k = kernel(lengthscale=1.0)
    ours = [residual_trace(rpcholesky(k, X, 20, seed, lloyd_steps), X, 1.0) for seed in range(40)]
    others = [residual_trace(random(X, 20, seed), X, 1.0) for seed in range(40)]
    assert np.mean(ours) < share * np.mean(others)
    quartiles = [0.25, 0.5, 0.75]
    assert (np.quantile(ours, quartiles) <= np.quantile(others, quartiles)).all()


def test_randomly_pivoted_points_keep_up_with_kmeans_in_heavy_tails_where_greedy_does_not():
    # methods (e): k-means is best here, greedy variance chases the outliers.
    X, k, l = heavy_tails(0), kernel(lengthscale=2.0), 2.0
    ours = np.mean([residual_trace(rpcholesky(k, X, 30, seed), X, l) for seed in range(3)])
    centres = np.mean([residual_trace(kmeans(X, 30, seed), X, l) for seed in range(3)])
    assert ours <= 1.1 * centres
    assert residual_trace(greedy_variance(k, X, 30), X, l) > 1.5 * centres


# --- Auto ---


def test_auto_goes_on_from_the_start_whose_bound_climbs_highest():
    rng = np.random.default_rng(0)
    X = rng.standard_t(3, size=(80, 2))
    data = dataset(X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=80))
    model = cast(Model(RBF(np.ones(2), 1.0), Gaussian(0.1)), jnp.float64)
    climbed = {}
    for name, Z in candidates("auto", model.kernel, data, 5, 0).items():
        runner = Model(model.kernel, model.likelihood, Collapsed(jnp.asarray(Z)))
        objective = Objective(tight, trainable(runner), data, scale=80.0)
        climbed[name] = lbfgsb(objective, max_iter=RACE_ITERATIONS).bound
    assert max(climbed.values()) - min(climbed.values()) > 0.1  # the starts do differ
    settings = Settings(
        method="collapsed",
        num_inducing=5,
        initial="robust",
        max_iter=1,
        lengthscale_prior=np.inf,
        dtype="float64",
        effort="fast",
    )
    fitted = fit_model(model.kernel, Gaussian(0.1), data, settings)
    assert max(climbed, key=lambda name: climbed[name]) in fitted.notes[0]
    assert fitted.bound >= max(climbed.values())


def test_clusters_do_not_depend_on_the_units_of_columns():
    X = np.random.default_rng(0).normal(size=(200, 3))
    units = np.array([1.0, 2.0**20, 2.0**-30])
    np.testing.assert_array_equal(kmeans(units * X, 10, 0), units * kmeans(X, 10, 0))
    kernel = RBF(units * 1.5)
    np.testing.assert_allclose(rpcholesky(kernel, units * X, 10, 0), units * rpcholesky(RBF(1.5), X, 10, 0), rtol=1e-9)


def test_a_sample_of_rows_that_were_seen_often_is_one_of_all_that_weights_count():
    weight = np.r_[np.full(3, 500.0), np.ones(1500)]
    data = dataset(np.arange(1503.0)[:, None], np.zeros(1503), weight, dtype="float64")
    for few in (data.sample(300, 0), sample_of(data, 300, 0)):
        times = dict(zip(np.asarray(few.X)[:, 0].astype(int).tolist(), np.asarray(few.weight).tolist(), strict=True))
        assert sum(times.values()) == 300 and all(times[k] <= weight[k] for k in times)
        assert all(20 < times[k] < 85 for k in range(3))  # 50, with a standard deviation of 6
    for other in (np.ones(1503), np.where(weight > 1, 500.5, 1.0)):  # rows as they are, each at most once
        few = replace(data, weight=other).sample(300, 0)
        assert len(few) == 300 and set(np.asarray(few.weight)) <= set(other)
    assert data.sample(1503, 0) is data
