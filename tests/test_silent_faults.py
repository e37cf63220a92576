"""Faults that users met without a word from the library, each by its symptom: what is computed now, or what is said."""

# Settings are unpacked from dictionaries, and learned state has no declaration: a type checker can follow neither.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportOptionalMemberAccess=false

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from fits import COLLAPSED, EXACT, METHODS, N, table

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.data import Standardiser
from pseudopoint.estimators import base
from pseudopoint.kernels import RBF, Linear, Matern52
from pseudopoint.likelihoods import AbstractLikelihood, Moments, Poisson

pytestmark = pytest.mark.edge

FAR = [1e4, -1e9, 9.97e36, 1e160, -1.7e308]


def counts(X):
    return np.random.default_rng(1).poisson(np.exp(np.sin(X[:, 0])))


def labels(X):
    return np.where(np.sin(2 * X[:, 0]) > 0, "up", "down")


FITS = {
    "exact": lambda X, y: GPRegressor(**EXACT, effort="fast").fit(X, y),
    "collapsed": lambda X, y: GPRegressor(**COLLAPSED, effort="fast").fit(X, y),
    "svgp": lambda X, y: GPRegressor(**METHODS["svgp"], effort="fast").fit(X, y),
    "single": lambda X, y: GPRegressor(**EXACT, dtype="float32", effort="fast").fit(X, y),
    "kernel": lambda X, y: GPRegressor(
        RBF(1.0).on(0) + Matern52([2.0, 40.0]), method="exact", max_iter=20, effort="fast"
    ).fit(X, y),
    "orthogonal": lambda X, y: GPRegressor(posterior="orthogonal", num_inducing=6, max_iter=5, effort="fast").fit(X, y),
    "student_t": lambda X, y: GPRegressor(likelihood="student_t", max_iter=5, effort="fast").fit(X, y),
    "poisson": lambda X, y: GPRegressor(likelihood="poisson", max_iter=5, effort="fast").fit(X, counts(X)),
    "logit": lambda X, y: GPClassifier(max_iter=5, effort="fast").fit(X, labels(X)),
    "softmax": lambda X, y: GPClassifier(likelihood="softmax", max_iter=20, effort="fast").fit(X, labels(X)),
}


def everything(model, X):
    """All that is predicted for each row, [N, …]."""
    if isinstance(model, GPClassifier):
        return model.predict_proba(X)
    columns = [*model.predict(X, return_std=True), *model.predict_interval(X).T, *model.sample_y(X, 2, 0).T]
    return np.column_stack([*columns, *model.paths(2, 0)(X), model.log_density(X, np.full(len(X), 1.0))])


# --- One far row changes every other row of its block ---


@pytest.mark.parametrize("name", FITS)
def test_what_is_predicted_for_a_row_does_not_depend_on_the_rows_beside_it(name):
    X, y = table()
    model, rows = FITS[name](X, y), X[:7]
    alone = everything(model, rows)
    tolerance = 1e-5 if name == "single" else 1e-12
    for far in FAR:
        for beside in ([far, 1.0], [X[0, 0], far], [far, -far]):
            together = everything(model, np.vstack([rows, [beside]]))
            assert np.isfinite(together[7]).all() or not isinstance(model, GPClassifier)
            scale = np.abs(alone).max(axis=0) + alone.std(axis=0)
            assert (np.abs(together[:7] - alone) <= tolerance * scale).all(), (name, far, beside)


def test_rows_of_no_prior_variance_are_drawn():
    X, y = table()
    model = GPRegressor(Linear(1.0), max_iter=5, scale_target=False, effort="fast").fit(X, y)
    draws = model.sample_y(np.vstack([np.zeros((1, 2)), X[:3]]), 4, 0)
    assert np.isfinite(draws).all() and np.allclose(draws[0], 0)


def test_a_prediction_that_overflows_is_one_sentence():
    X, y = table()
    model = GPRegressor(Linear(1.0) + RBF(3.0), max_iter=5, effort="fast").fit(X, y)
    with pytest.raises(
        ValueError, match=r"predicted for row 1 is no finite number: its values, such as 1e\+300, are too far"
    ):
        model.predict(np.array([[5.0, -100.0], [1e300, 1e300]]), return_std=True)


def test_a_row_far_from_all_data_gets_the_prior():
    model = FITS["exact"](*table())
    s = model.standardiser_
    for far in FAR[1:]:
        mean, std = model.predict([[far, far]], return_std=True)
        prior = s.target_scale * np.sqrt(float(model.kernel_.variance) + float(model.likelihood_.variance))
        np.testing.assert_allclose([mean[0], std[0]], [s.target_mean, prior], rtol=1e-6)
    draws = model.sample_y(np.full((1, 2), 1e200), 4000, 0)
    f_std = s.target_scale * np.sqrt(float(model.kernel_.variance))
    assert abs(draws.std() / f_std - 1) < 0.05 and abs(draws.mean() - s.target_mean) < 0.1 * f_std


@pytest.mark.parametrize("far", [1e7, -999999.0, 9.97e36, 1e300])
@pytest.mark.parametrize("method", ["exact", "collapsed"])
def test_a_far_row_in_training_changes_nothing_for_the_others_and_is_said(method, far):
    X, y = table()
    spoiled, z = np.vstack([X, [[far, X[0, 1]]]]), np.append(y, y.mean())
    plain, model = FITS[method](X, y), FITS[method](pd.DataFrame(spoiled, columns=["a", "b"]), z)
    error = model.predict(pd.DataFrame(X, columns=["a", "b"])) - plain.predict(X)
    assert np.abs(error).max() < 0.2 * y.std() and np.abs(error).mean() < 0.05 * y.std()
    assert f"column 'a': 1 of {N + 1} rows are far from all others (such as {far:g})" in " ".join(model.notes_)
    assert not any("far from" in note for note in plain.notes_)


# --- A refused or interrupted refit leaves the estimator as it was ---


class Stop(BaseException):
    pass


def interrupted(model, X, y, monkeypatch, at, error):
    """A fit that is interrupted when the `at`-th of some steps is reached."""
    count = 0

    def step(function):
        def counting(*args, **keywords):
            nonlocal count
            count += 1
            if count == at:
                raise error
            return function(*args, **keywords)

        return counting

    with monkeypatch.context() as patch:
        for owner, name in ((base, "validated"), (base, "merge_duplicates"), (base, "fit_model")):
            patch.setattr(owner, name, step(getattr(owner, name)))
        patch.setattr(Standardiser, "learn", staticmethod(step(Standardiser.learn)))
        patch.setattr(type(model), "_keep", step(type(model)._keep))
        model.fit(X, y, progress=step(lambda record: None))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ValueError, Stop])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 7])
def test_a_fit_that_ends_in_an_exception_leaves_the_estimator_as_it_was(at, error, monkeypatch):
    X, y = table()
    frame = pd.DataFrame(np.column_stack([X, X[:, 0]]), columns=["a", "b", "c"])
    for estimator, first, second in (
        (GPRegressor(likelihood="ordinal", max_iter=3, effort="fast"), np.round(y / 10), np.round(y / 5)),
        (GPClassifier(max_iter=3, effort="fast"), labels(X), np.where(y > 50, "a", "b")),
    ):
        model = estimator.fit(X, first)
        before, p = dict(vars(model)), model.predict(X)
        with pytest.raises(error):
            interrupted(model, frame, second, monkeypatch, at, error)
        assert vars(model).keys() == before.keys() and all(vars(model)[name] is before[name] for name in before)
        assert (model.predict(X) == p).all()


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (np.full((20, 3), np.nan), np.arange(20) % 2),
        (np.ones((20, 3)), np.linspace(0, 1, 20)),
        (np.ones((20, 3)), np.arange(19) % 2),
    ],
)
def test_a_refused_refit_puts_no_new_labels_on_the_old_model(X, y):
    rows, _ = table()
    model = GPClassifier(max_iter=3, effort="fast").fit(rows, labels(rows))
    with pytest.raises(ValueError):
        model.fit(X, y)
    assert model.classes_.tolist() == ["down", "up"] and model.n_features_in_ == 2
    assert set(model.predict(rows)) <= {"down", "up"}


def test_an_estimator_that_was_never_fitted_stays_so():
    model = GPRegressor(effort="fast")
    with pytest.raises(ValueError):
        model.fit(np.ones((5, 2)), np.full(5, np.nan))
    assert vars(model) == vars(GPRegressor(effort="fast"))


# --- Far from all data the base rate ---


@pytest.mark.parametrize("method", ["laplace", "collapsed", "svgp"])
def test_far_from_all_data_a_classifier_says_the_base_rate(method):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (1000, 2))
    y = (np.arange(1000) % 250 == 0).astype(int)
    settings = {"method": method, "max_iter": 100 if method == "svgp" else 5}
    model = GPClassifier(**settings, effort="fast").fit(
        X[:300] if method == "laplace" else X, y[:300] if method == "laplace" else y
    )
    far = model.predict_proba([[1e6, 1e6]])[0, 1]
    assert 1e-4 < far < 0.03 and model.mean_ < -2


def test_far_from_all_data_every_likelihood_says_what_is_usual():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (150, 1))
    wave = np.sin(X[:, 0])
    far = np.full((1, 1), 1e6)
    targets = {
        "poisson": rng.poisson(50 * np.exp(0.3 * wave)),
        "negative_binomial": rng.poisson(50 * np.exp(0.3 * wave)),
        "gamma": 1000 * np.exp(0.3 * wave) * rng.gamma(10, 0.1, 150),
        "exponential": 1000 * np.exp(0.3 * wave) * rng.exponential(size=150),
        "beta": (0.05 + 0.01 * wave + 0.005 * rng.uniform(-1, 1, 150)),
        "student_t": 500 + wave + 0.1 * rng.standard_t(3, 150),
        "laplace": 500 + wave + 0.1 * rng.laplace(size=150),
        "heteroscedastic": 500 + wave + 0.1 * rng.normal(size=150),
        "heteroscedastic_student_t": 500 + wave + 0.1 * rng.standard_t(3, 150),
    }
    for likelihood, y in targets.items():
        for scale_target in (True, False) if likelihood in list(targets)[5:] else (True,):
            model = GPRegressor(likelihood=likelihood, scale_target=scale_target, max_iter=10, effort="fast").fit(X, y)
            assert 0.8 < float(model.predict(far)[0] / np.mean(y)) < 1.3, (likelihood, scale_target)


def test_three_classes_of_which_one_is_rare():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (200, 2))
    y = np.where(np.arange(200) % 100 == 0, "rare", np.where(np.sin(X[:, 0]) > 0, "up", "down"))
    model = GPClassifier(method="collapsed", num_inducing=10, max_iter=3, effort="fast").fit(X, y)
    far = dict(zip(model.classes_, model.predict_proba([[1e6, 1e6]])[0], strict=True))
    assert far["rare"] < 0.1 and far["up"] > 0.2 and far["down"] > 0.2 and model.mean_.shape == (3,)


# --- Weights that sum to 1 ---


def test_weights_that_sum_to_one_are_said_and_the_remedy_works():
    X, y = table()
    model = GPRegressor(**EXACT, effort="fast").fit(X, y, np.full(N, 1 / N))
    assert (
        f"sample_weight sums to 1 for {N} rows" in model.notes_[0] and f"multiply the weights by {N}" in model.notes_[0]
    )
    assert GPRegressor(**EXACT, effort="fast").fit(X, y, np.full(N, 1 / N) * N).score(X, y) > 0.8
    for weight in (None, np.full(N, 2.0), np.arange(N) % 2.0):
        assert not any(
            "sample_weight" in note for note in GPRegressor(**EXACT, max_iter=3, effort="fast").fit(X, y, weight).notes_
        )


# --- A likelihood that gives NaN ---


class LogNormal(AbstractLikelihood):
    """log y ~ N(f, 1)."""

    def log_prob(self, f, y):
        return -jnp.log(y) - 0.5 * (jnp.log(y) - f) ** 2

    def moments(self, f):
        return Moments(jnp.exp(f + 0.5), jnp.exp(f))


def test_a_likelihood_that_gives_nan_is_named_with_the_row_and_the_value():
    X, y = table()
    y[3] = 20.0
    with pytest.raises(
        ValueError, match=r"LogNormal gives log p\(y \| f = 0\) = nan for the target .* in row 0"
    ) as error:
        GPRegressor(likelihood=LogNormal(), effort="fast").fit(X, np.append(-5.0, y[1:]))
    assert "positive definite" not in str(error.value) and "when scaled (scale_target=False" in str(error.value)
    with pytest.raises(ValueError, match=r"= nan for the target -5 in row 7 \(1 such rows\)"):
        GPRegressor(likelihood=LogNormal(), scale_target=False, effort="fast").fit(X, np.insert(np.abs(y[1:]), 7, -5.0))
    assert np.isfinite(
        GPRegressor(likelihood=LogNormal(), scale_target=False, max_iter=3, effort="fast").fit(X, np.abs(y)).predict(X)
    ).all()


# --- What was silent ---


def test_a_fit_that_ends_at_its_limit_says_so():
    X, y = table()
    assert "ended at its limit of 2 iterations" in " ".join(
        GPRegressor(**EXACT, max_iter=2, effort="fast").fit(X, y).notes_
    )
    assert not any("limit" in note for note in GPRegressor(**EXACT, effort="fast").fit(X, y).notes_)
    assert "ended at its limit of 2 iterations" in " ".join(
        GPClassifier(max_iter=2, effort="fast").fit(X, labels(X)).notes_
    )


def test_rows_that_were_merged_are_said():
    X, y = table()
    model = GPRegressor(**EXACT, max_iter=3, effort="fast").fit(np.vstack([X, X[:10]]), np.append(y, y[:10]))
    assert f"{N + 10} rows, of which {N} differ" in " ".join(model.notes_)
    assert not any("differ" in note for note in GPRegressor(**EXACT, max_iter=3, effort="fast").fit(X, y).notes_)


def test_a_target_of_few_values_whose_intervals_hold_too_much_is_said():
    X, _ = table(n=300)
    steps = np.round(np.sin(2 * (X[:, 0] - 5)))
    said = [note for note in GPRegressor(max_iter=20, effort="fast").fit(X, steps).notes_ if "different values" in note]
    assert said and "the target has 3 different values in 300 rows" in said[0]
    noisy = np.round(np.sin(2 * (X[:, 0] - 5)) + 10 * np.random.default_rng(0).normal(size=300))
    assert not any("different values" in note for note in GPRegressor(max_iter=20, effort="fast").fit(X, noisy).notes_)
    assert not any(
        "different" in note
        for note in GPRegressor(likelihood=Poisson(), max_iter=3, effort="fast").fit(X, steps + 1).notes_
    )


# --- Constant targets and numbers of any size ---


@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
def test_counts_that_are_all_zero_are_predicted(likelihood):
    X, _ = table()
    model = GPRegressor(likelihood=likelihood, max_iter=20, effort="fast").fit(X, np.zeros(N))
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(std).all() and (mean < 0.01).all() and (model.predict_interval(X) == 0).all()
    assert "the target is 0 in every row" in model.notes_[-1]


@pytest.mark.parametrize("unit", [1e-300, 1e-200, 1e200, 1e300])
def test_targets_and_inputs_of_any_size_are_learned(unit):
    X, y = table()
    plain = GPRegressor(**EXACT, effort="fast").fit(X, y)
    large = GPRegressor(**EXACT, effort="fast").fit(unit * (X - 5), unit * (y - 50))
    mean, std = large.predict(unit * (X - 5), return_std=True)
    expected, spread = plain.predict(X, return_std=True)
    np.testing.assert_allclose(mean / unit, expected - 50, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(std / unit, spread, rtol=1e-4)
    np.testing.assert_allclose(
        large.log_density(unit * (X - 5), unit * (y - 50)) + np.log(unit), plain.log_density(X, y), atol=1e-3
    )
    noisy = GPRegressor(**EXACT, max_iter=3, effort="fast").fit(
        X, unit * y, noise_variance=np.full(N, (unit if unit < 1 else 1.0) ** 2)
    )
    assert np.isfinite(noisy.predict(X)).all()


# --- Dates and durations ---

DAYS = np.datetime64("2024-01-01", "ns") + np.arange(30) * np.timedelta64(1, "D")
HOURS = np.arange(30) * np.timedelta64(1, "h")
LINE = np.arange(30.0)[:, None]


def without(values, row=3):
    values = values.copy()
    values[row] = "NaT"
    return values


@pytest.fixture(scope="module")
def of_durations():
    return GPRegressor("rbf", effort="fast", max_iter=20).fit(LINE, pd.Series(HOURS))


def test_not_a_time_among_inputs_was_a_number_far_from_all():
    y = np.sin(np.arange(30) / 3)
    model = GPRegressor("rbf", effort="fast", max_iter=20).fit(DAYS[:, None], y)
    with pytest.raises(ValueError, match="column 0 contains NaN in 1 of 30 rows, first in row 3"):
        model.fit(without(DAYS)[:, None], y)
    for missing in (without(DAYS)[:, None], list(without(DAYS)[:, None]), pd.DataFrame({"a": without(DAYS)})):
        with pytest.raises(ValueError, match="column 0 contains NaN in 1 of 30 rows, first in row 3"):
            model.predict(missing)
    in_days = model.predict(DAYS[:, None].astype("M8[D]"))  # whose numbers are others
    np.testing.assert_array_equal(in_days, model.predict(DAYS[:, None]))


def test_durations_are_days_and_none_of_them_is_missing_silently(of_durations):
    model, hours = of_durations, HOURS / np.timedelta64(1, "D")
    np.testing.assert_allclose(model.predict(LINE), hours, atol=0.1)
    assert model.score(LINE, HOURS) == pytest.approx(model.score(LINE, hours))
    np.testing.assert_allclose(model.log_density(LINE, HOURS), model.log_density(LINE, hours))
    np.testing.assert_allclose(model.loo_log_density(LINE, HOURS), model.loo_log_density(LINE, hours))
    two = np.column_stack([HOURS, without(HOURS)])
    several = GPRegressor("rbf", effort="fast", max_iter=2).fit(LINE, two)  # of which one is a gap
    assert np.abs(several.predict(LINE)).max() < 10
    for ask in (model.fit, model.update, model.log_density, model.loo_log_density):
        with pytest.raises(ValueError, match="target contains NaN in 1 of 30 rows, first in row 3"):
            ask(LINE, pd.Series(without(HOURS)))
        with pytest.raises(ValueError, match="must hold real numbers only: dates are none; give the days since"):
            ask(LINE, DAYS)


@pytest.mark.parametrize("name", ["sample_weight", "noise_variance"])
def test_dates_and_durations_are_no_weights_and_no_noise(of_durations, name):
    for ask in (of_durations.fit, of_durations.update):
        for values, what in ((DAYS, "dates"), (HOURS, "durations")):
            with pytest.raises(ValueError, match=f"{name} must hold real numbers only: {what} are none"):
                ask(LINE, HOURS, **{name: values})


def test_not_a_time_is_no_label():
    labels = without(np.where(np.arange(30) > 9, DAYS[0], DAYS[1]))
    with pytest.raises(ValueError, match="the target has no label in 1 of 30 rows"):
        GPClassifier("rbf", effort="fast").fit(LINE, labels)
