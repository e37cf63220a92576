"""More pseudo-points in the end: where they come, that the bound rises, and that all kinds of noise keep theirs."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint import GPRegressor
from pseudopoint.bounds import collapsed, elbo
from pseudopoint.data import dataset
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.kernels import RBF, Matern52
from pseudopoint.likelihoods import (
    Around,
    Bernoulli,
    Gaussian,
    Heteroscedastic,
    HeteroscedasticStudentT,
    Poisson,
    StudentT,
)
from pseudopoint.means import LinearMean
from pseudopoint.params import cast
from pseudopoint.posteriors import Collapsed, Model, Whitened
from pseudopoint.recipes import growth, methods, objectives, precision
from pseudopoint.recipes import noise as noise_of_rows
from pseudopoint.recipes.growth import MOST, ROWS_A_POINT, affordable_points, beside_prior, most_points
from pseudopoint.recipes.methods import fit_model
from pseudopoint.recipes.noise import VaryingNoise
from pseudopoint.recipes.prior import LengthscalePrior
from pseudopoint.recipes.settings import HeavyTails
from pseudopoint.recipes.starts import Warm
from pseudopoint.starts.inducing import _pivots, added

N, FEW = 600, 52  # rows, and pseudo-points at first
MORE = N // ROWS_A_POINT  # in the end
RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 3, (N, 2))
ROUGH = np.sin(3 * X[:, 0]) * np.cos(3 * X[:, 1])  # 52 points do not follow it
KERNEL = Matern52(np.full(2, 1.0), 1.0)


def settings(**options: Any) -> Any:
    chosen: dict[str, Any] = {"method": "collapsed", "near_rows": False} | options
    return GPRegressor(**chosen)._settings()


def standardised(y):
    return dataset(X, (y - y.mean()) / y.std(), dtype="float64")


def fitted(y, grows=True, warm=None, **options):
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        if not grows:
            patch.setattr(methods, "most_points", lambda fitted, *_: len(fitted.model.posterior.Z))
        data = standardised(y)
        return fit_model(KERNEL, Gaussian(0.1), data, settings(**options), warm=warm), data


@pytest.fixture(scope="module", autouse=True)
def few_iterations():
    """Points grow alike after 40 iterations in place of 200."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (methods, noise_of_rows):
            patch.setattr(module, "most_iterations", lambda *_: 40)
        yield


@pytest.fixture(scope="module")
def of_few_points():
    return fitted(TARGETS["one variance"][0], grows=False, likelihood="gaussian")


def test_points_that_are_added_come_after_the_others_and_are_rows():
    Z = RNG.normal(size=(7, 2))
    with jax.enable_x64(True):
        more = added(KERNEL, Z, X, 20, 0)
        again = added(KERNEL, Z, X, 20, 0)
        few = added(KERNEL, Z, np.repeat(X[:3], 5, axis=0), 20, 0)
    np.testing.assert_array_equal(more[:7], Z)
    np.testing.assert_array_equal(more, again)
    assert len(np.unique(more, axis=0)) == len(more) == 20 and set(map(tuple, more[7:])) <= set(map(tuple, X))
    assert len(few) == 10  # no row twice


def test_points_after_given_ones_are_those_of_greatest_variance_that_a_dense_covariance_leaves():
    both = np.concatenate([RNG.normal(size=(4, 2)), X[:60]])
    with jax.enable_x64(True):
        rows = _pivots(KERNEL, both, 9, None, 4)
        K = np.asarray(KERNEL(jax.numpy.asarray(both), jax.numpy.asarray(both)))
    chosen = [0, 1, 2, 3]
    while len(chosen) < 9:
        left = np.diag(K - K[:, chosen] @ np.linalg.solve(K[np.ix_(chosen, chosen)], K[chosen]))
        chosen.append(int(np.argmax(left)))
    np.testing.assert_array_equal(rows, chosen)


TARGETS: dict[str, tuple[np.ndarray, Any, Any]] = {
    "one variance": (ROUGH + 0.1 * RNG.normal(size=N), None, Gaussian),
    "depends on x": (ROUGH + (0.02 + 0.3 * (X[:, 0] > 0)) * RNG.normal(size=N), None, Heteroscedastic),
    "depends on x, heavy tails": (
        ROUGH + (0.02 + 0.15 * (X[:, 0] > 0)) * np.random.default_rng(5).standard_t(2.2, size=N),
        None,
        HeteroscedasticStudentT,
    ),
    "heavy tails": (
        ROUGH + 0.05 * RNG.standard_t(2, size=N),
        Warm(Model(Matern52(np.full(2, 0.4), 1.0), Gaussian(0.02)), HeavyTails(3.0, 0.5)),
        StudentT,
    ),
}


@pytest.mark.parametrize("noise", TARGETS)
def test_the_bound_rises_and_predictions_are_better_under_every_noise(noise):
    y, warm, likelihood = TARGETS[noise]
    options = {} if noise.startswith("depends on x") else {"likelihood": "gaussian"}
    (more, _), (few, _) = (fitted(y, grows, warm, **options) for grows in (True, False))
    assert isinstance(more.model.likelihood, likelihood) and isinstance(few.model.likelihood, likelihood)
    assert len(few.model.posterior.Z) == FEW < 2 * FEW < len(more.model.posterior.Z) <= MORE
    assert more.bound > few.bound + 10
    assert (
        [trial[:4] for trial in more.trials] == [trial[:4] for trial in few.trials]
        and more.notes[: len(few.notes)] == few.notes
        and f"{MORE} in the end" in more.notes[-1]
    )
    new = RNG.uniform(-3, 3, (300, 2))
    truth = (np.sin(3 * new[:, 0]) * np.cos(3 * new[:, 1]) - y.mean()) / y.std()
    with jax.enable_x64(True):
        predictors: list[Any] = [more.predictor, few.predictor]
        means = [each.parts[0] if noise.startswith("depends on x") else each for each in predictors]
        errors = [float(np.mean((np.asarray(mean(jax.numpy.asarray(new))[0]) - truth) ** 2)) for mean in means]
    assert errors[0] < errors[1]


PULSE = 3 * np.sin(3 * X[:, 0]) * np.cos(3 * X[:, 1])
WITHOUT_CLOSED_FORM: dict[str, tuple[Any, np.ndarray, str]] = {
    "classes, full passes": (Bernoulli("logit"), 1.0 * (RNG.random(N) < 1 / (1 + np.exp(-PULSE))), "collapsed"),
    "classes, minibatches": (Bernoulli("probit"), 1.0 * (RNG.random(N) < 1 / (1 + np.exp(-PULSE))), "svgp"),
    "counts, full passes": (Poisson(), 1.0 * RNG.poisson(np.exp(PULSE / 2)), "collapsed"),
}


@pytest.mark.parametrize("case", WITHOUT_CLOSED_FORM)
def test_the_bound_rises_and_f_is_nearer_under_likelihoods_without_a_closed_form(case):
    likelihood, y, method = WITHOUT_CLOSED_FORM[case]
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        data = dataset(X, y, dtype="float64")
        fit = lambda: fit_model(KERNEL, likelihood, data, settings(method=method))
        more = fit()
        patch.setattr(methods, "most_points", lambda fitted, *_: len(fitted.model.posterior.Z))
        few = fit()
        again = elbo(more.model, data, N).value
        f = [np.asarray(fitted.predictor(data.X)[0]) for fitted in (more, few)]
    assert len(few.model.posterior.Z) == FEW and len(more.model.posterior.Z) == MORE
    assert more.bound > few.bound + 10 and abs(float(again) - more.bound) < 1e-6 * N
    truth = PULSE / 2 if case.startswith("counts") else PULSE
    errors = [1 - np.corrcoef(each, truth)[0, 1] for each in f]
    assert errors[0] < errors[1]
    assert (
        len(more.history) == len(few.history)
        and more.notes[: len(few.notes)] == few.notes
        and f"{MORE} in the end" in more.notes[-1]
    )


def test_under_likelihoods_without_a_closed_form_points_are_added_where_residual_variance_costs():
    smooth = 1.0 * (RNG.random(N) < 1 / (1 + np.exp(-X[:, 0])))
    with jax.enable_x64(True):
        data = dataset(X, smooth, dtype="float64")
        fitted = fit_model(KERNEL, Bernoulli("logit"), data, settings(max_iter=20))
        assert most_points(fitted, data, settings(), "collapsed") == FEW
        rough = fitted._replace(model=eqx.tree_at(lambda m: m.kernel.lengthscale, fitted.model, np.full(2, 0.2)))
        assert most_points(rough, data, settings(), "collapsed") == MORE
        assert most_points(rough, data, settings(num_inducing=50), "collapsed") == FEW


def test_q_beside_the_prior_of_more_points_is_the_same_process():
    few, more = 7, 19
    Z, root = RNG.normal(size=(more, 2)), RNG.normal(size=(few, few))
    q = MeanPrecision(RNG.normal(size=few), np.eye(few) + root @ root.T)
    with jax.enable_x64(True):
        data = dataset(X, 1.0 * (PULSE > 0), dtype="float64")
        models = [
            Model(KERNEL, Bernoulli("logit"), Whitened(jnp.asarray(Z[: len(each.mean)]), each))
            for each in (jax.tree.map(jnp.asarray, q), beside_prior(jax.tree.map(jnp.asarray, q), more))
        ]
        bounds = [float(elbo(model, data, N).value) for model in models]
        marginals = [model.posterior.project(KERNEL).marginals(data.X) for model in models]
    np.testing.assert_allclose(bounds[1], bounds[0], rtol=1e-8)
    np.testing.assert_allclose(marginals[1].mean, marginals[0].mean, atol=1e-7)
    total = [each.explained + each.residual for each in marginals]
    np.testing.assert_allclose(total[1], total[0], atol=1e-7)


def test_a_fit_with_a_mean_function_has_no_fewer_points_where_the_likelihood_is_left_open(monkeypatch):
    asked = []
    monkeypatch.setattr(methods, "with_more_points", lambda fitted, *given: asked.append(given[-1]) or fitted)
    around = Around(Gaussian(0.1), LinearMean(np.zeros(2)))
    with jax.enable_x64(True):
        data = standardised(ROUGH)
        fits = [fit_model(KERNEL, around, data, settings(likelihood=name)) for name in ("gaussian", "auto")]
    assert asked == [MORE] * 2 and fits[0].bound == fits[1].bound


@pytest.mark.parametrize(
    "options",
    [{"num_inducing": 50}, {"inducing": X[:50]}, {"max_iter": 30}, {"effort": "fast"}, {"optimiser": "Adam"}],
    ids=str,
)
def test_whoever_chooses_points_or_iterations_has_no_more_of_them(options, of_few_points):
    result, data = of_few_points
    assert most_points(result, data, settings(), "collapsed") == MORE
    assert most_points(result, data, settings(**options), "collapsed") == FEW
    enough = result._replace(upper=result.bound + 0.01 * N)
    assert most_points(enough, data, settings(), "collapsed") == FEW


def test_more_rows_have_more_points_until_work_is_the_limit(of_few_points):
    result, _ = of_few_points
    result = result._replace(upper=np.inf)
    many = lambda rows: dataset(np.zeros((rows, 1)), np.zeros(rows), dtype="float64")
    with jax.enable_x64(True):
        counts = [most_points(result, many(rows), settings(), "collapsed") for rows in (1000, 6000, 30_000, 400_000)]
        thorough = most_points(result, many(30_000), settings(effort="thorough"), "collapsed")
    assert counts[0] == 500 and counts[1] == MOST["balanced"] and 500 < counts[2] < 1000 and counts[3] < 200
    assert thorough == MOST["thorough"]


def test_work_that_more_points_leave_is_spent_on_iterations(of_few_points):
    result, _ = of_few_points
    counts = []
    for rows in (1000, 8500, 30_000):
        M = affordable_points(result.model, rows, settings(), "collapsed")
        start = Model(KERNEL, result.model.likelihood, Collapsed(np.zeros((M, 2))))
        counts.append(growth._iterations(start, rows, settings()))
    assert counts[0] == growth.MOST_ITERATIONS and growth.FEWEST < counts[1] < counts[0]
    assert counts[2] == growth.FEWEST


def test_a_fit_whose_points_grow_next_ends_where_iterations_gain_little(monkeypatch):
    climb, ends = methods.maximise, []

    def watched(*given, **options):
        ends.append(options.get("min_gain"))
        return climb(*given, **options)

    monkeypatch.setattr(methods, "maximise", watched)
    data = fitted(ROUGH, likelihood="gaussian")[1]
    fitted(ROUGH, likelihood="gaussian", num_inducing=FEW)
    with jax.enable_x64(True):  # whose points do not grow
        fit_model(KERNEL, Heteroscedastic(0.3), data, settings(likelihood="heteroscedastic"))
    assert ends == [objectives.ROUGH * objectives.least_gain(data), None, None]


@pytest.mark.parametrize("leads", [np.inf, 0.0], ids=["gradients agree", "gradients differ"])
@pytest.mark.parametrize("noise", TARGETS)
def test_iterations_with_more_points_are_in_float32_where_its_gradient_is_right(noise, leads, monkeypatch):
    climb, seen = growth.maximise, []

    def watched(*given, **options):
        seen.append(options["float32_start"] is not None)
        return climb(*given, **options)

    monkeypatch.setattr(growth, "maximise", watched)
    monkeypatch.setattr(objectives, "LEADS", leads)
    y, warm, _ = TARGETS[noise]
    result, _ = fitted(y, True, warm, **({} if noise.startswith("depends on x") else {"likelihood": "gaussian"}))
    assert seen == [leads > 0] and len(result.model.posterior.Z) > FEW
    assert result.notes.count(precision.FLOAT32_NOTE) == seen.count(True)  # no other part of this fit is in float32


@pytest.mark.parametrize(("apart", "noise", "right"), [(1.0, 0.1, True), (0.5, 0.1, False), (1.0, 1e-6, False)])
def test_float32_leads_where_points_are_apart_and_noise_is_not_small(apart, noise, right):
    """Near points under a smooth kernel: their covariance, and the noise beside it, are rounded away in float32."""
    with jax.enable_x64(True):
        data = dataset(X, ROUGH, dtype="float64")
        Z = jnp.asarray(apart * np.stack(np.meshgrid(np.arange(-3, 4), np.arange(-3, 4)), -1).reshape(-1, 2), float)
        kernel = RBF(np.full(2, 1.0), 1.0)
        model = cast(Model(kernel, Gaussian(noise), Collapsed(Z)), jnp.float64)
        prior = LengthscalePrior.around(model.kernel, settings())
        assert objectives.float32_leads(objectives.OfBound(collapsed), prior, model, data) == right


def test_noise_that_doubles_the_squared_errors_of_rows_left_out_does_not_pay():
    result: Any = None
    assert VaryingNoise(result, 5.0, 1.0, 1.0).pays
    assert not VaryingNoise(result, 5.0, 1.0, 2.5).pays
    assert not VaryingNoise(result, 5.0, 1.0, 1.0, misses=True).pays
