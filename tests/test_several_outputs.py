"""Estimators of several outputs, against dense NumPy oracles made of what the estimator learned."""

import numpy as np
import oracles as o
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.utils.estimator_checks import check_regressor_multioutput

from pseudopoint import GPRegressor
from pseudopoint.estimators import outputs
from pseudopoint.estimators.choosing import FEWEST
from pseudopoint.kernels import RBF
from pseudopoint.processes import computing

pytestmark = pytest.mark.edge

N, P = 24, 2
FAST = {"effort": "fast", "max_iter": 8, "kernel": "rbf"}
rng = np.random.default_rng(3)
X = rng.uniform(0, 6, (N, 1))
Y = np.column_stack([np.sin(X[:, 0]), 50 - 9 * np.sin(X[:, 0] + 0.3)]) + rng.normal(size=(N, P)) * [0.1, 1.0]
NEW, WEIGHT = np.linspace(0, 6, 5)[:, None], rng.integers(1, 3, N).astype(float)
GAPS = Y.copy()
GAPS[10:, 1] = GAPS[3, 0] = np.nan


@pytest.fixture(scope="module")
def mixed():
    return GPRegressor(outputs="coregionalised", **FAST).fit(X, GAPS, WEIGHT)


@pytest.fixture(scope="module")
def alike():
    return GPRegressor(**FAST).fit(X, Y)


def covariances(model, A, B):
    """[P, N, P, M] of the scaled outputs."""
    a, b = (model.standardiser_.inputs(x) for x in (A, B))
    if model.outputs == "independent":
        return np.einsum("pq,nm->pnqm", np.eye(P), o.rbf(a, b, *scales(model.kernel_)))
    W, parts = model.kernel_.W, [o.rbf(a, b, *scales(part)) for part in model.kernel_.kernels]
    return np.einsum("pk,qk,knm->pnqm", W, W, np.stack(parts))


def scales(kernel):
    return kernel.lengthscale, kernel.variance


def dense(model, targets, weight):
    """Mean [N, P] and covariance [N, P, N, P] of the outputs at NEW, their gaps removed; and the log evidence."""
    s, there = model.standardiser_, ~np.isnan(targets.T.ravel())
    K = covariances(model, X, X).reshape(N * P, -1)[there][:, there]
    y = ((targets - s.target_mean) / s.target_scale).T.ravel()[there]
    noise, w = np.repeat(model.likelihood_.variance, N)[there], np.tile(weight, P)[there]
    A = covariances(model, NEW, X).reshape(5 * P, -1)[:, there]
    C = K + np.diag(noise / w)
    prior = covariances(model, NEW, NEW).reshape(5 * P, -1) + np.diag(np.repeat(model.likelihood_.variance, 5))
    mean = (A @ np.linalg.solve(C, y)).reshape(P, 5).T * s.target_scale + s.target_mean
    cov = (prior - A @ np.linalg.solve(C, A.T)).reshape(P, 5, P, 5).transpose(1, 0, 3, 2)
    # Seen w times instead of once with variance σ²/w
    more = 0.5 * np.sum((w - 1) * np.log(2 * np.pi * noise) + np.log(w))
    return mean, cov * s.target_scale[:, None, None] * s.target_scale, o.exact_log_evidence(K, noise / w, y) - more


@pytest.mark.parametrize("which", ["mixed", "alike"])
def test_predictions_are_those_of_the_dense_form_with_gaps_as_rows_removed(which, request):
    model = request.getfixturevalue(which)
    targets, weight = (GAPS, WEIGHT) if which == "mixed" else (Y, np.ones(N))
    mean, cov, evidence = dense(model, targets, weight)
    np.testing.assert_allclose(model.bound_, evidence, rtol=1e-9)
    ours, std = model.predict(NEW, return_std=True)
    np.testing.assert_allclose(ours, mean, rtol=1e-7)
    np.testing.assert_allclose(model.predict(NEW, return_cov=True)[1], cov, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(std, np.sqrt(np.diag(cov.reshape(10, 10)).reshape(5, P)), rtol=1e-7)
    ends = model.predict_interval(NEW, 0.8)
    np.testing.assert_allclose(ends, np.stack(norm.interval(0.8, mean, std), axis=-1), rtol=1e-6)
    some = np.where(np.arange(10).reshape(5, P) == 3, np.nan, mean + 0.5)
    np.testing.assert_allclose(model.log_density(NEW, some), norm.logpdf(some, mean, std), rtol=1e-6)
    f, std_f = model.predict_latent(NEW, return_std=True)
    noise = model.likelihood_.variance * model.standardiser_.target_scale**2
    np.testing.assert_allclose(f, mean, rtol=1e-7)
    np.testing.assert_allclose(std_f**2 + noise, std**2, rtol=1e-6)


def test_draws_have_the_joint_covariance_of_the_outputs(mixed, alike):
    for model in (mixed, alike):
        drawn = model.sample_y(NEW[:2], 20_000)
        assert drawn.shape == (2, P, 20_000)
        mean, cov = model.predict(NEW[:2], return_cov=True)
        noise = model.likelihood_.variance * model.standardiser_.target_scale**2
        noisy = model.sample_y(NEW[:2], 20_000, noise=True) - drawn
        np.testing.assert_allclose(noisy.var(axis=-1), np.tile(noise, (2, 1)), rtol=0.05)
        cov = cov.reshape(4, 4) - np.diag(np.tile(noise, 2))
        of_draws, spread = np.cov(drawn.reshape(4, -1)), np.sqrt(np.diag(cov))
        np.testing.assert_allclose(of_draws / spread / spread[:, None], cov / spread / spread[:, None], atol=0.05)
        np.testing.assert_allclose(drawn.mean(axis=-1), mean, atol=4 * spread.max() / 20_000**0.5)


def test_a_file_holds_them_and_a_table_names_them(mixed, tmp_path):
    mixed.save(tmp_path / "model")
    again = GPRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(NEW), mixed.predict(NEW))
    frame, targets = pd.DataFrame({"x": X[:, 0], "kind": "a"}), pd.DataFrame(GAPS, columns=["up", "down"])
    targets.loc[3, "down"] = np.nan  # a row without any output
    model = GPRegressor(outputs="coregionalised", **FAST).fit(frame, targets)
    assert model.outputs_ == ["up", "down"] and mixed.outputs_ == ["y0", "y1"]
    assert any("1 rows were dropped" in note for note in model.notes_)
    assert np.shape(model.predict(frame)) == (N, P)
    assert model.score(frame[:10], Y[:10]) > 0.5


def test_points_and_minibatches_are_for_outputs_too(mixed):
    few = GPRegressor(outputs="coregionalised", num_latents=1, num_inducing=12, method="svgp", **FAST).fit(X, GAPS)
    assert few.inducing_points_.shape == (12, 2) and set(few.inducing_points_[:, 1]) == {0}
    assert few.kernel_.W.shape == (P, 1) and np.shape(few.predict(NEW)) == (5, P)
    kernel = GPRegressor(RBF(1.0), method="collapsed", inducing=X, learn_inducing=False, effort="fast", max_iter=3)
    sparse = kernel.fit(X, Y)  # a point at each row: the bound is the evidence
    np.testing.assert_allclose(sparse.bound_, sparse.upper_bound_, rtol=1e-4)
    assert sparse.inducing_points_.shape == X.shape
    apart = GPRegressor(**FAST).fit(X, GAPS)  # outputs without a common factor
    np.testing.assert_array_equal(apart.kernel_.W, np.eye(P))
    assert apart.predict(NEW, return_cov=True)[1][:, 0, :, 1].max() == 0


def test_a_search_serves_all_outputs():
    model = GPRegressor(max_iter=2, input_warp="none").fit(X, Y)
    assert N >= FEWEST and {"start", "kernel"} <= set(model.selection_["part"])


def test_scikit_learn_finds_several_outputs():
    check_regressor_multioutput("GPRegressor", GPRegressor(**FAST))  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"likelihood": "student_t"}, "likelihood='student_t' is for one output, and y has 2: use 'gaussian'"),
        ({"target_warp": "log"}, "target_warp='log' is for one output"),
        ({"posterior": "solve"}, "posterior='solve' is for one output"),
        ({"num_latents": 2}, "num_latents=2 is for outputs='coregionalised'"),
        ({"outputs": "coregionalised", "num_latents": 3}, "at most the number of outputs, here 2"),
        ({"outputs": "other"}, "outputs='other' is unknown: use one of independent, coregionalised"),
    ],
)
def test_settings_of_one_output_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        GPRegressor(**settings).fit(X, Y)


def test_questions_about_one_output_and_bad_targets_are_refused(mixed):
    for question in (mixed.paths, lambda: mixed.effects(X), lambda: mixed.loo_log_density(X, Y)):
        with pytest.raises(ValueError, match="one output"):
            question()
    with pytest.raises(ValueError, match=r"noise_variance is for one output"):
        mixed.fit(X, Y, noise_variance=np.ones(N))
    with pytest.raises(ValueError, match=r"the output y1 has no value in any row"):
        mixed.fit(X, np.column_stack([Y[:, 0], np.full(N, np.nan)]))
    with pytest.raises(ValueError, match=r"the output y0 holds inf in row 0"):
        mixed.fit(X, np.where(Y == Y[0, 0], np.inf, Y))
    with pytest.raises(ValueError, match=r"y has shape \(5,\), but it must be \(5, 2\)"):
        mixed.log_density(NEW, np.ones(5))
    with pytest.raises(ValueError, match="2501 rows together .* at most 2500"):
        mixed.sample_y(np.ones((2501, 1)))
    assert mixed.outputs_ == ["y0", "y1"]  # what was refused left the model as it was


@pytest.mark.parametrize("outputs", ["independent", "coregionalised"])
def test_an_output_of_one_value_is_predicted_as_that_and_said(outputs):
    constant, once = np.column_stack([Y, np.full(N, 100.0)]), np.column_stack([Y, np.full(N, np.nan)])
    once[2, 2] = 100
    for targets in (constant, once):
        model = GPRegressor(outputs=outputs, **FAST).fit(X, targets)
        mean, std = model.predict([[1.0], [60.0]], return_std=True)
        np.testing.assert_allclose(mean[:, 2], 100, rtol=1e-4)
        assert (std[:, 2] < 0.05).all() and (std[:, :2] > 0.05).all()
        assert "the output y2 is 100 in every row that has it: that is what is predicted of it" in model.notes_


def test_inducing_points_start_where_weights_are():
    """They started as if each row had been seen once."""
    settings = GPRegressor(inducing="kmeans", num_inducing=P)._settings()
    weight = np.where(X[:, 0] > 3, 1000.0, 1.0)
    with computing("float64"):
        Z = outputs._points(settings, RBF(1.0, 1.0), N, X, weight, None, P, P)
    np.testing.assert_allclose(Z[:, 0], np.average(X[:, 0], weights=weight), rtol=1e-10)
