"""GPRegressor: the scikit-learn contract, the posterior it predicts, samples, files, seeds, weights.
Most tests share one shape of data, for each new one costs three compilations."""

# Settings are unpacked from dictionaries, and learned state has no declaration: a type checker can follow neither.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportOptionalMemberAccess=false
# pyright: reportAssignmentType=false

import subprocess
import sys

import jax
import numpy as np
import oracles as o
import pandas as pd
import pytest
from fits import COLLAPSED, EACH, EXACT, METHODS, SVGP, N, fit_each, new_rows, table
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_methods_subset_invariance,
    check_sample_weight_equivalence_on_dense_data,
    parametrize_with_checks,
)

from pseudopoint import GPRegressor, Matern52
from pseudopoint.persistence import ModelFileError

pytestmark = pytest.mark.edge


@pytest.fixture(scope="module")
def fitted():
    """One fit of each method, for tests that only look."""
    return fit_each()


# --- The contract ---


@parametrize_with_checks([GPRegressor(effort="fast")])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("check", [check_methods_subset_invariance, check_sample_weight_equivalence_on_dense_data])
def test_scikit_learn_contract_of_sparse_fits(check):
    check("GPRegressor", GPRegressor(**COLLAPSED | {"max_iter": 3}, effort="fast"))


def test_pipeline_grid_search_and_clone():
    X, y = table(n=3 * N // 2)
    pipeline = make_pipeline(StandardScaler(), GPRegressor(**EXACT, max_iter=4, effort="fast"))
    grid = {"gpregressor__initial_noise": [1e-3, 0.1], "gpregressor__kernel": [Matern52(np.ones(2), 2.0)]}
    search = GridSearchCV(pipeline, grid, cv=3, error_score="raise", refit=False).fit(X, y)
    assert search.best_score_ > 0.8 and np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert pipeline.fit(X[:N], y[:N]).predict(X).shape == (3 * N // 2,)
    model = clone(GPRegressor(**SVGP, kernel=Matern52(np.ones(2), 2.0), effort="fast"))
    assert model.get_params()["batch_size"] == 16 and not hasattr(model, "predictor_")


def test_tables_series_and_lists_are_the_arrays_they_hold(fitted):
    X, y = table()
    columns = ["length", "mass"]
    model = GPRegressor(**EXACT, effort="fast").fit(pd.DataFrame(X, columns=columns), pd.Series(y, name="target"))
    rows, _ = new_rows()
    expected = fitted["exact"].predict(rows)
    assert list(model.feature_names_in_) == columns and model.n_features_in_ == 2
    assert np.array_equal(model.predict(pd.DataFrame(rows, columns=columns)), expected)
    assert np.array_equal(
        GPRegressor(**EXACT, effort="fast").fit(X.tolist(), y.tolist()).predict(rows.tolist()), expected
    )
    with pytest.raises(ValueError, match="feature names"):
        model.predict(pd.DataFrame(rows, columns=columns[::-1]))


def test_a_model_that_is_not_fitted_says_so(tmp_path):
    for use in (
        GPRegressor(effort="fast").predict,
        GPRegressor(effort="fast").sample_y,
        GPRegressor(effort="fast").predict_latent,
        GPRegressor(effort="fast").predict_interval,
    ):
        with pytest.raises(NotFittedError):
            use(np.ones((2, 2)))
    with pytest.raises(NotFittedError):
        GPRegressor(effort="fast").save(tmp_path / "model")


# --- What comes out is the posterior ---


def dense_posterior(model, X, y, rows, weight=1.0, noise=0.0):
    """The oracles' mean and covariance of f at `rows` by the hyperparameters that a model has learned, and its bounds.

    Bounds are those of the scaled target: the evidence thrice for an exact model, else VFE, tight and upper.
    """
    s, k = model.standardiser_, model.kernel_
    covariance = lambda A, B: o.matern52(s.inputs(A), s.inputs(B), k.lengthscale, float(k.variance))
    row_noise = (float(model.likelihood_.variance) + noise / s.target_scale**2) / weight * np.ones(len(y))
    Ksf, Kss, t = covariance(rows, X), covariance(rows, rows), s.target(y)
    if model.inducing_points_ is None:
        Kff = covariance(X, X)
        mean, _ = o.exact_posterior(Kff, Ksf, np.diag(Kss), row_noise, t)
        joint = Kss - Ksf @ np.linalg.solve(Kff + np.diag(row_noise), Ksf.T)
        bounds = [o.exact_log_evidence(Kff, row_noise, t)] * 3
    else:
        Z = model.inducing_points_
        Kuf, Ksu, diag = covariance(Z, X), covariance(rows, Z), np.full(len(y), float(k.variance))
        Kuu = covariance(Z, Z) + float(model.predictor_.jitter) * np.eye(len(Z))
        m, S = o.optimal_q(Kuf, Kuu, row_noise, t)
        A = np.linalg.solve(Kuu, Ksu.T).T
        mean, joint = A @ m, Kss - A @ Ksu.T + A @ S @ A.T
        bounds = [bound(diag, Kuf, Kuu, row_noise, t) for bound in (o.vfe_bound, o.tight_bound, o.upper_bound)]
    return s.target_mean + s.target_scale * mean, s.target_scale**2 * joint, bounds


@EACH
def test_a_fit_predicts_the_dense_posterior_of_its_hyperparameters(fitted, settings):
    (X, y), (rows, _), model = table(), new_rows(), fitted[settings["method"]]
    mean, joint, bounds = dense_posterior(model, X, y, rows)
    noise = model.standardiser_.target_scale**2 * float(model.likelihood_.variance)
    predicted, std = model.predict(rows, return_std=True)
    np.testing.assert_allclose(predicted, mean, rtol=1e-8)
    np.testing.assert_allclose(std**2, np.diag(joint) + noise, rtol=1e-7)
    np.testing.assert_allclose([model.bound_vfe_, model.bound_, model.upper_bound_], bounds, rtol=1e-8)


def test_weights_and_noise_of_rows_enter_the_exact_posterior():
    (X, y), (rows, _) = table(), new_rows()
    rng = np.random.default_rng(1)
    weight, noise = rng.uniform(0.5, 3, N), rng.uniform(0, 20, N)
    model = GPRegressor(**EXACT, effort="fast").fit(X, y, weight, noise_variance=noise)
    mean, joint, _ = dense_posterior(model, X, y, rows, weight, noise)
    predicted, std = model.predict(rows, return_std=True)
    np.testing.assert_allclose(predicted, mean, rtol=1e-8)
    own = model.standardiser_.target_scale**2 * float(model.likelihood_.variance)
    np.testing.assert_allclose(std**2, np.diag(joint) + own, rtol=1e-7)


@EACH
def test_intervals_and_densities_are_those_of_the_predicted_normal(fitted, settings):
    model, (rows, y) = fitted[settings["method"]], new_rows()
    mean, std = model.predict(rows, return_std=True)
    assert np.array_equal(model.predict(rows), mean) and (std > 0).all()
    normal = norm(mean, std)
    for level in (0.5, 0.9, 0.999):
        interval = model.predict_interval(rows, level=level)
        np.testing.assert_allclose(interval, np.column_stack(normal.interval(level)), rtol=1e-12)
    np.testing.assert_allclose(model.log_density(rows, y), normal.logpdf(y), rtol=1e-10)
    assert np.array_equal(model.predict_interval(rows), model.predict_interval(rows, 0.9))


@EACH
def test_what_is_told_of_a_fit_is_consistent(fitted, settings):
    model = fitted[settings["method"]]
    X, y = table()
    assert model.score(X, y) > 0.8
    assert model.method_ == settings["method"] and model.reason_ == "chosen by the user"
    assert model.bound_vfe_ <= model.bound_ <= model.upper_bound_
    lengths = {len(column) for column in model.history_.values()}
    assert len(lengths) == 1 and model.history_["step"][-1] == model.n_iter_
    assert model.n_rejected_ == 0
    if settings is EXACT:
        assert model.inducing_points_ is None
    else:
        assert model.inducing_points_.shape == (8, 2)
        assert (np.abs(model.inducing_points_ - X.mean(axis=0)) < 4 * X.std(axis=0)).all()  # in the units of X


def test_inducing_points_on_every_row_make_a_sparse_fit_the_exact_one(fitted):
    (X, y), (rows, _) = table(), new_rows()
    everywhere = {"inducing": X, "learn_inducing": False, "initial": "robust"}
    model = GPRegressor(method="collapsed", **everywhere, effort="fast").fit(X, y)
    exact = fitted["exact"]
    np.testing.assert_allclose(np.unique(model.inducing_points_, axis=0), np.unique(X, axis=0), rtol=1e-12)
    # Nothing is lost but to the jitter, and the exact fit is at the maximum.
    assert exact.bound_ - 1e-3 < model.bound_ <= exact.bound_ <= model.upper_bound_ < exact.bound_ + 1e-2
    for a, b in zip(model.predict(rows, return_std=True), exact.predict(rows, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3)


@EACH
def test_samples_have_the_posterior_mean_and_covariance(fitted, settings):
    (X, y), (rows, _), model = table(), new_rows(6), fitted[settings["method"]]
    mean, covariance, _ = dense_posterior(model, X, y, rows)
    n = 20_000
    draws = model.sample_y(rows, n, random_state=3)
    assert draws.shape == (6, n)
    std = np.sqrt(np.diag(covariance))
    assert (np.abs(draws.mean(axis=1) - mean) < 4.5 * std / np.sqrt(n)).all()
    # Var of a sample covariance: (C_ii C_jj + C_ij²)/n.
    error = np.sqrt((np.outer(std, std) ** 2 + covariance**2) / n)
    assert (np.abs(np.cov(draws) - covariance) < 4.5 * error).all()


@EACH
def test_samples_repeat_by_seed(fitted, settings):
    model, (rows, _) = fitted[settings["method"]], new_rows(6)
    assert np.array_equal(model.sample_y(rows, 3, random_state=1), model.sample_y(rows, 3, random_state=1))
    assert not np.array_equal(model.sample_y(rows, 3, random_state=1), model.sample_y(rows, 3, random_state=2))
    assert np.isfinite(model.sample_y(np.tile(rows[:1], (6, 1)), 2)).all()  # a singular covariance


def test_samples_of_too_many_rows_are_refused(fitted):
    with pytest.raises(ValueError, match=r"5001 rows together need a 5001² matrix: pass at most 5000"):
        fitted["exact"].sample_y(np.ones((5001, 2)))


# --- Files ---

OWN_KERNEL = """
from jax import numpy as jnp
from pseudopoint.kernels import AbstractStationary, Positive, Scale
from pseudopoint.params import positive


class Cauchy(AbstractStationary):
    lengthscale: Scale = positive(default=1.0)
    variance: Positive = positive(default=1.0)

    def profile(self, r2):
        return 1 / (1 + r2)
"""

LOAD_ALL = """
import sys
from pathlib import Path
import numpy as np
folder = Path(sys.argv[1])
sys.path.insert(0, sys.argv[1])
from own_kernels import Cauchy
from pseudopoint import GPRegressor
rows = np.load(folder / "rows.npy")
for path in folder.glob("*.model"):
    model = GPRegressor.load(path, classes=[Cauchy])
    if path.stem == "table":
        import pandas as pd
        X = pd.DataFrame(rows, columns=list(model.feature_names_in_))
    else:
        X = rows
    parts = [*model.predict(X, return_std=True), *model.predict_interval(X).T, *model.sample_y(X, 2, 0).T]
    np.save(path.with_suffix(".npy"), np.array([*parts, model.log_density(X, parts[0] + 1)]))
"""


def test_a_fresh_process_loads_every_kind_of_model_and_predicts_every_bit(fitted, tmp_path, monkeypatch):
    (X, y), (rows, _) = table(), new_rows(7)
    (tmp_path / "own_kernels.py").write_text(OWN_KERNEL)
    monkeypatch.syspath_prepend(tmp_path)
    from own_kernels import Cauchy  # pyright: ignore[reportMissingImports]

    frame = pd.DataFrame(X, columns=["length", "mass"])
    models = {
        "sparse": fitted["svgp"],
        "table": GPRegressor(**EXACT, effort="fast").fit(frame, y),
        "own": GPRegressor(Cauchy(np.ones(2), 1.0), method="exact", max_iter=5, effort="fast").fit(X, y),
        "single": GPRegressor(**EXACT, dtype="float32", effort="fast").fit(X, y),
    }
    np.save(tmp_path / "rows.npy", rows)
    for name, model in models.items():
        model.save(tmp_path / f"{name}.model", classes=[Cauchy])
    run = subprocess.run([sys.executable, "-c", LOAD_ALL, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for name, model in models.items():
        x = pd.DataFrame(rows, columns=frame.columns) if name == "table" else rows
        parts = [*model.predict(x, return_std=True), *model.predict_interval(x).T, *model.sample_y(x, 2, 0).T]
        expected = np.array([*parts, model.log_density(x, parts[0] + 1)])
        assert np.load(tmp_path / f"{name}.npy").tobytes() == expected.tobytes(), name
    with pytest.raises(ModelFileError, match=r"Cauchy.*pass it in `classes`"):
        GPRegressor.load(tmp_path / "own.model")
    with pytest.raises(ModelFileError, match=r"Cauchy.*pass that class in `classes`"):
        models["own"].save(tmp_path / "again.model")


def test_a_loaded_model_has_all_state_and_can_be_fitted_again(fitted, tmp_path):
    model, path = fitted["collapsed"], tmp_path / "model"
    model.save(path, extra={"note": [1, "a"]})
    loaded, extra = GPRegressor.load_with_extra(path)
    assert extra == {"note": [1, "a"]} and loaded.get_params() == model.get_params()
    assert set(vars(loaded)) == set(vars(model))
    for name in ("bound_", "bound_vfe_", "upper_bound_", "n_iter_", "method_", "reason_", "notes_", "n_features_in_"):
        assert getattr(loaded, name) == getattr(model, name), name
    assert np.array_equal(loaded.inducing_points_, model.inducing_points_)
    assert jax.tree.structure(loaded.predictor_) == jax.tree.structure(model.predictor_)
    rows, _ = new_rows()
    assert np.array_equal(loaded.fit(*table()).predict(rows), model.predict(rows))


# --- One seed, one model; weights; refits ---


@EACH
def test_a_fit_depends_on_data_settings_and_seed_alone(fitted, settings):
    # Also not on what was fitted before with the same object.
    X, y = table()
    rows, _ = new_rows()
    before = fitted[settings["method"]]
    again = GPRegressor(**settings, effort="fast").fit(*table(seed=5)).fit(X, y)
    for a, b in zip(again.predict(rows, return_std=True), before.predict(rows, return_std=True), strict=True):
        assert np.array_equal(a, b)
    assert again.bound_ == before.bound_


def test_the_order_of_rows_does_not_matter(fitted):
    (X, y), (rows, _) = table(), new_rows()
    order = np.random.default_rng(0).permutation(N)
    for settings in (EXACT, COLLAPSED):
        shuffled = GPRegressor(**settings, effort="fast").fit(X[order], y[order])
        assert np.array_equal(shuffled.predict(rows), fitted[settings["method"]].predict(rows))


def test_another_seed_is_another_sparse_model(fitted):
    rows, _ = new_rows()
    other = GPRegressor(**SVGP, random_state=1, effort="fast").fit(*table())
    assert not np.array_equal(other.predict(rows), fitted["svgp"].predict(rows))
    generator = GPRegressor(**COLLAPSED, random_state=np.random.RandomState(1), effort="fast").fit(*table())
    assert np.isfinite(generator.predict(rows)).all()


@pytest.mark.parametrize("settings", [EXACT, COLLAPSED], ids=["exact", "collapsed"])
def test_a_weight_is_a_number_of_repetitions_and_zero_is_absence(fitted, settings):
    X, y = table()
    rows, _ = new_rows()
    weight = 1.0 + (X[:, 0] > 5.5)
    repeated = np.repeat(np.arange(N), weight.astype(int))
    weighted = GPRegressor(**settings, effort="fast").fit(X, y, weight)
    assert np.array_equal(
        GPRegressor(**settings, effort="fast").fit(X[repeated], y[repeated]).predict(rows), weighted.predict(rows)
    )
    assert not np.allclose(weighted.predict(rows), fitted[settings["method"]].predict(rows), rtol=1e-4)
    spoiled = np.append(y, [1e6, 1e6]), np.append(weight, [0.0, 0.0])
    absent = GPRegressor(**settings, effort="fast").fit(np.vstack([X, X[:2]]), *spoiled)
    assert np.array_equal(absent.predict(rows), weighted.predict(rows))


@EACH
def test_a_second_fit_of_the_same_shape_compiles_nothing(fitted, settings, caplog):
    model, (rows, _) = clone(fitted[settings["method"]]), new_rows()
    fitted[settings["method"]].predict(rows)
    with jax.log_compiles():
        jax.jit(lambda x: x + 1)(1.0)
        model.fit(*table(seed=4)).predict(rows)
    compiled = [record.getMessage()[:60] for record in caplog.records if record.getMessage().startswith("Compiling")]
    assert len(compiled) == 1, compiled  # the lambda, which shows that compilations are seen


@pytest.mark.parametrize("method", ["collapsed", "svgp"])
def test_points_that_stay_may_start_warm(method):
    X, y = table()
    model = GPRegressor(method=method, inducing=X[:6], learn_inducing=False, max_iter=5, effort="fast").fit(X, y)
    np.testing.assert_allclose(np.sort(model.inducing_points_, 0), np.sort(X[:6], 0), rtol=1e-12)


def test_progress_is_called_with_what_the_history_keeps():
    for settings in METHODS.values():
        seen = []
        model = GPRegressor(**settings, effort="fast").fit(*table(), progress=seen.append)
        assert [record.step for record in seen] == model.history_["step"].tolist()
        assert [record.bound for record in seen] == model.history_["bound"].tolist()
