"""Faults that a reader found in optimisers, posteriors, kernels and units: each a family, and each a wrong number that
nothing told of."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint import GPClassifier, GPRegressor, kernels
from pseudopoint.bounds import collapsed, elbo, shrunk
from pseudopoint.data import Standardiser, dataset
from pseudopoint.gaussians import Expectation, MeanChol, MeanPrecision, Natural, NaturalChol, NaturalLog
from pseudopoint.kernels import RBF, by_equality
from pseudopoint.likelihoods import Bernoulli, Gaussian, NegativeBinomial, StudentT, quantile
from pseudopoint.optimise.minibatch.loop import fit, start
from pseudopoint.optimise.minibatch.stopping import adam_until_flat
from pseudopoint.optimise.named import Options, in_coordinates, optimise
from pseudopoint.optimise.result import FitError
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, IndependentLatents, Model, Whitened, freed
from pseudopoint.recipes.families import FAMILIES
from pseudopoint.sampling import paths

rng = np.random.default_rng(0)
X = rng.uniform(-3, 3, (120, 1))
Y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=120)
Z = np.linspace(-3, 3, 9)[:, None]
HELD: dict[str, Any] = {"method": "svgp", "inducing": Z, "num_inducing": 9, "learn_inducing": False, "effort": "fast"}


# --- updates ---------------------------------------------------------------------------------------------------------


@pytest.mark.edge
@pytest.mark.parametrize("posterior", sorted(FAMILIES))
def test_new_rows_move_every_posterior(posterior):
    old = X[:, 0] < 0
    model = GPRegressor(RBF(0.8), posterior=posterior, max_iter=60, **HELD).fit(X[old], Y[old])
    before = model.score(X[~old], Y[~old])
    size = model.predictor_.s.shape
    for part in np.array_split(np.flatnonzero(~old), 2):
        model.partial_fit(X[part], Y[part])
    assert before < 0.5 and model.score(X[~old], Y[~old]) > 0.95
    assert model.predictor_.s.shape == size  # however often rows come


@pytest.mark.edge
@pytest.mark.parametrize("added", [0, 3])
def test_an_update_of_the_efficient_posterior_is_that_of_its_gaussian_by_numpy(added):
    """u ~ N(m, S) before, y = Au + noise of σ² + dᵢ or σ²: the q of the bound, in the model's scaled units."""
    old = X[:, 0] < 0
    model = GPRegressor(RBF(0.8), posterior="diagonal", max_iter=60, **HELD).fit(X[old], Y[old])
    predictor = jax.tree.map(jnp.asarray, model.predictor_)
    at = jnp.asarray(Z)
    m, S = (np.asarray(x) for x in (predictor(at)[0], predictor.covariance(at)))
    new, s2 = X[~old], float(np.asarray(model.likelihood_.variance))
    K, scale = np.asarray(predictor.kernel(at, at)), model.standardiser_
    A = np.linalg.solve(K + 1e-10 * np.eye(len(Z)), np.asarray(predictor.kernel(at, jnp.asarray(new)))).T
    precision = np.linalg.inv(S) + A.T @ A / s2
    e = scale.target(Y[~old]) - A @ m
    best = m + np.linalg.solve(precision, A.T @ e / s2)
    model.update(new, Y[~old], new_inducing=added)
    if added == 0:  # with more points the process between the old ones has its say too
        mean, std = model.predict_latent(Z, return_std=True)
        np.testing.assert_allclose(scale.target(mean), best, atol=2e-3)
        np.testing.assert_allclose((std / scale.target_scale) ** 2, np.diag(np.linalg.inv(precision)), atol=2e-4)
    assert model.score(new, Y[~old]) > 0.95


def test_a_process_in_free_directions_is_the_same_one():
    posterior = FAMILIES["diagonal"].start(Z, Z[:0], RBF(0.8))
    posterior = jax.tree.map(jnp.asarray, cast(posterior, jnp.float64))
    model = cast(Model(RBF(0.8), Gaussian(0.1), posterior), jnp.float64)
    p, at = model.predictor(), jnp.asarray(X)
    q = freed(p)
    assert not np.any(np.asarray(p.s) > 0) and np.all(np.asarray(q.s) > 0)
    for a, b in zip(p(at), q(at), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


# --- units -----------------------------------------------------------------------------------------------------------


@pytest.mark.edge
@pytest.mark.parametrize("unit", [1e-30, 1e-19, 3e16, 1e30])
def test_a_kernel_object_may_have_any_unit(unit):
    fitted = lambda u: GPRegressor(RBF(2.0 * u), method="exact", effort="fast", max_iter=40).fit(X * u, Y)
    one, other = fitted(1.0), fitted(unit)
    np.testing.assert_allclose(other.bound_, one.bound_, rtol=1e-6)
    np.testing.assert_allclose(other.kernel_.lengthscale / unit, one.kernel_.lengthscale, rtol=1e-3)


@pytest.mark.edge
@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "laplace", "heteroscedastic"])
@pytest.mark.parametrize("size", [1e6, 1e12])
def test_a_target_that_is_not_scaled_may_have_any_unit(likelihood, size):
    settings = {"scale_target": False, "effort": "fast", "num_inducing": 20, "likelihood": likelihood, "max_iter": 60}
    one, other = (GPRegressor(**settings).fit(X, Y * unit) for unit in (1.0, size))
    assert other.score(X, Y * size) > 0.95
    np.testing.assert_allclose(other.bound_ + len(X) * np.log(size), one.bound_, atol=1.0)


@pytest.mark.edge
def test_a_target_below_the_least_noise_is_refused():
    for y in (1e-5 * Y, 1e-9 * np.column_stack([Y, Y])):
        with pytest.raises(ValueError, match=r"the target is \d.* from 0 .*, too small for scale_target=False"):
            GPRegressor(scale_target=False, effort="fast").fit(X, y)
    zero = GPRegressor(scale_target=False, effort="fast", max_iter=3).fit(X, 0 * Y)
    assert np.abs(zero.predict(X)).max() < 1e-3
    assert GPRegressor(effort="fast", max_iter=20).fit(X, 1e-9 * Y).score(X, 1e-9 * Y) > 0.9


@pytest.mark.parametrize("likelihood", [StudentT(0.5, 3.0), NegativeBinomial(1.0, 2.0)])
def test_shapes_stay_where_their_densities_have_digits(likelihood):
    every = trainable(cast(likelihood, jnp.float64))
    far = every.rebuild(jnp.full(every.size, 60.0))
    shape = far.degrees if isinstance(likelihood, StudentT) else far.shape
    assert 1e7 < shape < 1.1e8


# --- optimisers ------------------------------------------------------------------------------------------------------


@pytest.mark.edge
@pytest.mark.parametrize("optimiser", ["NGD", "sites"])
@pytest.mark.parametrize("posterior", ["orthogonal", "hybrid", "solve"])
def test_an_optimiser_of_q_alone_refuses_a_posterior_that_has_more(optimiser, posterior):
    with pytest.raises(FitError, match="to learn besides q, which this optimiser would leave"):
        GPRegressor(optimiser=optimiser, posterior=posterior, num_inducing=6, max_iter=5).fit(X, Y)


@pytest.mark.edge
def test_what_adam_moves_beside_natural_steps_is_in_coordinates_for_it():
    settings = {"posterior": "solve", "num_inducing": 6, "num_mean_inducing": 20, "learn_inducing": False}
    model = GPRegressor(optimiser="NGD+Adam", max_iter=400, **settings).fit(X, Y)
    assert model.score(X, Y) > 0.95


@pytest.mark.parametrize("coordinates", [MeanChol, MeanPrecision, Natural, NaturalChol, NaturalLog, Expectation])
@pytest.mark.parametrize("to", [MeanChol, MeanPrecision, Natural])
def test_coordinates_change_for_several_functions(coordinates, to):
    M, C = 4, 3
    L = np.tril(rng.normal(size=(C, M, M))) + 3 * np.eye(M)
    precision = jnp.asarray(L @ np.swapaxes(L, 1, 2))
    q = MeanPrecision(jnp.asarray(rng.normal(size=(C, M))), precision)
    q = jax.vmap(lambda q: coordinates.from_natural(q.to_natural()))(q)
    model = Model(RBF(1.0), Bernoulli(), IndependentLatents(Whitened(jnp.asarray(Z[:M]), q)))
    moved = in_coordinates(model, to).posterior.base.q
    assert isinstance(moved, to)
    np.testing.assert_allclose(jax.vmap(lambda q: q.to_natural().precision())(moved), precision, rtol=1e-8)


def test_a_rate_falls_to_zero_though_steps_are_rejected():
    """One row in 120 makes the gradient of its batches infinite."""
    from pseudopoint.optimise.minibatch import NaturalGradient, averaging

    y = Y.copy()
    y[7] = 1e200
    data = dataset(X, y, dtype="float64")
    optimiser = adam_until_flat(0.01)
    stepper = NaturalGradient(averaging(120, 20, 5.0, 0.1), optimiser)
    q = MeanPrecision(jnp.zeros(9), jnp.eye(9))
    model = cast(Model(RBF(1.0), StudentT(0.3), Whitened(jnp.asarray(Z), q)), jnp.float64)
    state, _ = fit(start(model, stepper, data), stepper, data, steps=600, batch_size=20, until_flat=True)
    at = state.stepper_state.optimiser[-1]
    assert state.rejected > 20 and int(at.made) == state.step == int(at.begin + at.length)


def test_a_number_of_steps_is_what_was_asked_for():
    model = cast(
        Model(RBF(1.0), Gaussian(0.1), Whitened(jnp.asarray(Z), MeanPrecision(jnp.zeros(9), jnp.eye(9)))), "f8"
    )
    data = dataset(X, Y, dtype="float64")
    still = optimise("Adam", model, data, Options(steps=20, batch_size=60, learning_rate=0.0))
    np.testing.assert_array_equal(still.model.kernel.lengthscale, 1.0)


@pytest.mark.edge
def test_the_bound_that_is_reported_is_the_one_that_was_asked_for():
    for posterior in ("orthogonal", "solve", "unwhitened"):
        model = GPRegressor(RBF(1.0), posterior=posterior, bound="vfe", max_iter=20, **HELD).fit(X, Y)
        assert model.bound_ == model.bound_vfe_, posterior


@pytest.mark.edge
def test_a_fit_that_ends_at_its_limit_has_not_converged():
    labels = np.where(Y > 0, "up", "down")
    from pseudopoint.recipes import families

    least = pytest.MonkeyPatch()
    with least.context() as patch:
        patch.setattr(families, "MORE_STEPS", 50)
        model = GPClassifier(method="svgp", num_inducing=6, effort="fast").fit(X, labels)
    assert not model.converged_ and any("limit of 50 iterations" in note for note in model.notes_)


def test_rows_of_no_weight_do_not_loosen_the_bound():
    q = MeanPrecision(jnp.zeros(9), 2 * jnp.eye(9))
    model = cast(Model(RBF(0.3), Bernoulli(), Whitened(jnp.asarray(Z), q)), jnp.float64)
    labels = np.where(Y[:40] > 0, 1.0, 0.0)
    few = dataset(X[:20], labels[:20], dtype="float64")
    padded = dataset(X[:40], labels, np.repeat([1.0, 0.0], 20), dtype="float64")
    one, other = (shrunk(model, data) for data in (few, padded))
    np.testing.assert_allclose(other.posterior.v, one.posterior.v, rtol=1e-12)
    bound = lambda at, data: float(elbo(at, data, len(data)).value)
    np.testing.assert_allclose(bound(other, padded), bound(one, few), rtol=1e-12)


def test_paths_are_of_one_target():
    model = cast(Model(RBF(1.0), Gaussian(0.1), Collapsed(jnp.asarray(Z))), jnp.float64)
    two = collapsed(
        model, dataset(X, np.column_stack([Y, -Y]), np.ones(120), np.zeros(120), dtype="float64")
    ).predictor()
    with pytest.raises(TypeError, match="paths are of one target"):
        paths(two, 0, 3)


# --- kernels that ask whether inputs are equal -----------------------------------------------------------------------


CODES = np.array([0.0, 3, 7, 11, 101, 1003])


@pytest.mark.edge
@pytest.mark.parametrize("unit", [1.0, 0.1, 0.7])
@pytest.mark.parametrize(
    "more", [{"method": "exact"}, {"method": "collapsed", "num_inducing": 6}, {"dtype": "float32"}]
)
def test_codes_are_known_again_whatever_their_numbers(unit, more):
    code = np.random.default_rng(3).integers(0, 6, 150)
    x, effect = (CODES * unit)[code][:, None], 3 * np.random.default_rng(4).normal(size=6)
    y = effect[code] + 0.1 * np.random.default_rng(5).normal(size=150)
    model = GPRegressor(kernels.Hamming(1.0), effort="fast", max_iter=40, **more).fit(x, y)
    means = np.array([y[code == k].mean() for k in range(6)])
    np.testing.assert_allclose(model.predict((CODES * unit)[:, None]), means, atol=0.05)
    assert set(np.ravel(model.predictor_.Zv)) <= set(np.ravel(x.astype(model._precision)))


@pytest.mark.edge
@pytest.mark.parametrize("inducing", ["kmeans", "rpcholesky", "greedy", "random"])
def test_inducing_points_of_codes_are_codes(inducing):
    table = np.column_stack(
        [np.random.default_rng(0).integers(0, 8, 600), np.random.default_rng(1).uniform(-1, 1, 600)]
    )
    y = 3 * np.cos(7 * table[:, 0]) + np.sin(5 * table[:, 1]) + 0.1 * np.random.default_rng(2).normal(size=600)
    settings = {"method": "collapsed", "num_inducing": 30, "max_iter": 15, "effort": "fast", "target_warp": "none"}
    model = GPRegressor("hamming(x0) + matern52(x1)", inducing=inducing, **settings).fit(table, y)
    scaled = model.standardiser_.inputs(table)
    assert set(np.asarray(model.predictor_.Zv)[:, 0]) <= set(scaled[:, 0])
    assert model.score(table, y) > 0.99


def test_which_kernels_ask():
    inside = RBF(1.0).on(0) + 2.0 * kernels.Hamming(1.0).on(1)
    assert by_equality(inside) and by_equality(kernels.White(1.0)) and not by_equality(RBF(1.0) * kernels.Linear(1.0))
    from pseudopoint.recipes.precision import float32_start_of, resolved_in_float32

    few = dataset(X, Y, dtype="float64")
    assert (
        float32_start_of(RBF(1.0), few, 120.0) is not None
        and float32_start_of(kernels.Hamming(1.0), few, 120.0) is None
    )
    at = lambda kernel: Model(kernel, Bernoulli(), Collapsed(jnp.asarray(Z)))
    assert resolved_in_float32(at(RBF(1.0)), 120) and not resolved_in_float32(at(kernels.Hamming(1.0)), 120)


def test_a_scaling_without_rounding_changes_no_digit():
    table = np.random.default_rng(0).normal(size=(50, 3)) * [1e-9, 0.7, 1e12] + [1e-8, 5, 3e13]
    exact = Standardiser.learn(table, table[:, 0], np.ones(50), True, True).without_rounding()
    np.testing.assert_array_equal(exact.points(exact.inputs(table)), table)
    assert 0.3 < exact.inputs(table).std(axis=0).min() and exact.inputs(table).std(axis=0).max() < 3


@pytest.mark.edge
@pytest.mark.parametrize(
    "kernel",
    [
        kernels.Changepoint((RBF(1.0), RBF(2.0)), 5.0, 1.0, column=5),
        RBF(1.0).on(0) * kernels.Coregion(np.ones((3, 1)), np.ones(3), column=5),
        kernels.Coregion(np.ones((2, 1)), np.ones(2), column=-3),
        kernels.Changepoint((RBF(1.0), RBF(2.0)), 5.0, 1.0, column=1).on(1),
        RBF(1.0).on(5),
    ],
)
def test_a_column_that_is_not_there_is_refused(kernel):
    with pytest.raises(ValueError, match=r"a kernel is on columns \(-?\d,\), but the inputs have"):
        GPRegressor(kernel, max_iter=3).fit(np.column_stack([X, X]), Y)


# --- predictions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.5, 0.99, 1 - 1e-7, 1 - 1e-9])
def test_intervals_of_symmetric_noise_are_symmetric(level):
    mean, variance = np.array([0.3, -2.0]), np.array([1e-3, 2.0])
    for likelihood in (StudentT(0.7, 2.5), StudentT(0.1, 30.0)):
        low, high = (quantile(likelihood, mean, variance, p) for p in (0.5 - 0.5 * level, 0.5 + 0.5 * level))
        np.testing.assert_allclose(high - mean, mean - low, rtol=1e-6)


@pytest.mark.edge
def test_effects_count_rows_by_their_weights():
    """y = 3xz: the slope in x is 3 times the mean of z, which weights turn round."""
    table = np.random.default_rng(0).uniform(-1, 1, (80, 2))
    y = 3 * table[:, 0] * table[:, 1]
    model = GPRegressor(method="exact", effort="fast", max_iter=30).fit(table, y)
    weight = np.where(table[:, 1] > 0.5, 20.0, 0.5)
    slope = lambda found: np.polyfit(found.effects[0].values[:, 0], found.effects[0].mean, 1)[0]
    for w in (weight, 20.5 - weight):
        exact = 3 * np.average(table[:, 1], weights=w)
        np.testing.assert_allclose(slope(model.effects(table, sample_weight=w)), exact, atol=0.15)
