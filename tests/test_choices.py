"""What a search by evidence chooses, that it does not depend on order and units, and what becomes of its warps."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from pseudopoint import GPRegressor
from pseudopoint.estimators.choosing import FEWEST
from pseudopoint.optimise.fullbatch import FitError
from pseudopoint.recipes.search import SAMPLE

pytestmark = pytest.mark.edge

N = 90


def table(seed=0, noise=0.1):
    """Inputs of two columns, the second with a long tail, and a smooth function of them."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(-2, 2, N), np.exp(1.5 * rng.normal(size=N))])
    return X, np.sin(2 * X[:, 0]) + np.log(X[:, 1]) + noise * rng.normal(size=N)


def chosen(model, part):
    """The choice for a part: the last one that was taken, that is not what there was before."""
    selection = model.selection_
    rows = zip(selection["part"], selection["choice"], selection["chosen"], strict=True)
    taken = [choice for at, choice, is_chosen in rows if at == part and is_chosen and choice != "as before"]
    return taken[-1] if taken else None


@pytest.fixture(scope="module")
def fitted():
    X, y = table()
    return X, y, GPRegressor().fit(X, y)


def test_a_table_of_logarithms_has_its_long_column_warped(fitted):
    X, y, model = fitted
    plain = GPRegressor(effort="fast").fit(X, y)
    assert chosen(model, "inputs") != "none" and model.standardiser_.warps[1] is not None
    assert model.bound_ > plain.bound_ + 5
    new, truth = table(1, 0.0)
    assert np.mean(model.log_density(new, truth)) > np.mean(plain.log_density(new, truth)) + 0.1
    assert not plain.selection_["part"]


def test_the_same_seed_gives_the_same_model(fitted):
    X, y, model = fitted
    again = GPRegressor().fit(X, y)
    assert again.bound_ == model.bound_
    assert np.array_equal(again.predict(X), model.predict(X))


def test_order_of_rows_and_columns_and_units_do_not_matter(fitted):
    X, y, model = fitted
    order = np.random.default_rng(3).permutation(N)
    scale, shift = np.array([[1e3, 1e-4]]), np.array([[5.0, 0.0]])  # the zero of a column is one of its facts
    other = GPRegressor().fit((X * scale + shift)[order][:, ::-1], 100 * y[order] - 7)
    assert [chosen(other, part) for part in ("start", "inputs", "target", "kernel")] == [
        chosen(model, part) for part in ("start", "inputs", "target", "kernel")
    ]
    np.testing.assert_allclose(other.bound_, model.bound_, rtol=1e-3)
    new = (X * scale + shift)[:, ::-1]
    np.testing.assert_allclose((np.asarray(other.predict(new)) + 7) / 100, model.predict(X), atol=1e-2)


def test_a_lognormal_target_is_warped_and_its_predictions_are_positive():
    X, y = table(2, 0.3)
    y = np.exp(y)
    model, plain = (GPRegressor(effort=effort).fit(X, y) for effort in ("balanced", "fast"))
    new, latent = table(3, 0.0)
    truth = np.exp(latent + 0.3 * np.random.default_rng(0).normal(size=N))
    assert model.likelihood_.warped is not None
    assert np.mean(model.log_density(new, truth)) > np.mean(plain.log_density(new, truth)) + 0.3
    log = GPRegressor(target_warp="log").fit(X, y)
    assert (log.predict_interval(new, 0.99) > 0).all() and np.isneginf(log.log_density(new, -truth)).all()
    inside = (log.predict_interval(new, 0.9) - truth[:, None] < 0).sum(axis=1) == 1
    assert 0.8 < inside.mean() <= 1


@pytest.mark.parametrize("word", ["yeo_johnson", "sinh_arcsinh"])
def test_a_warp_by_name_is_taken_as_it_is(word: Any):
    X, y = table()
    model = GPRegressor(target_warp=word, input_warp="rank_normal", kernel="matern52").fit(X, y)
    assert chosen(model, "target") == word and chosen(model, "inputs") == "rank_normal"
    assert chosen(model, "kernel") is None and type(model.kernel_).__name__ == "Matern52"
    mean, covariance = model.predict(X[:5], return_cov=True)
    np.testing.assert_allclose(mean, model.predict(X[:5]), rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance)), model.predict(X[:5], return_std=True)[1], rtol=1e-6)


def test_a_search_that_is_left_no_choice_is_the_fit_without_one():
    X, y = table()
    fixed = GPRegressor("matern52", likelihood="gaussian", input_warp="none", target_warp="none").fit(X, y)
    fast = GPRegressor("matern52", likelihood="gaussian", effort="fast").fit(X, y)
    np.testing.assert_allclose(fixed.bound_, fast.bound_, atol=1e-2)
    np.testing.assert_allclose(fixed.predict(X), fast.predict(X), atol=1e-3)


def test_a_warped_model_is_saved_and_loaded_bit_for_bit(fitted, tmp_path):
    X, y, _ = fitted
    model = GPRegressor(target_warp="sinh_arcsinh", input_warp="rank_normal").fit(X, y)
    model.save(tmp_path / "model")
    loaded = GPRegressor.load(tmp_path / "model")
    for question in (lambda m: m.predict(X), lambda m: m.log_density(X, y), lambda m: m.predict_interval(X)):
        assert np.array_equal(question(loaded), question(model))
    assert loaded.selection_["choice"] == model.selection_["choice"]


def test_inducing_points_are_in_the_units_of_the_table():
    X, y = table()
    model = GPRegressor(input_warp="rank_normal", method="collapsed", num_inducing=10).fit(X, y)
    Z = model.inducing_points_
    np.testing.assert_allclose(model.standardiser_.points(model.standardiser_.inputs(Z)), Z, rtol=1e-8)
    assert Z[:, 1].min() > 0.3 * X[:, 1].min() - 0.5 and Z[:, 1].max() < 3 * X[:, 1].max()


def test_noise_that_depends_on_x_is_taken_where_rows_left_out_say_so():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (400, 1))
    noise = 0.05 + 0.5 * (X[:, 0] > 0)
    wave = lambda noise: np.sin(2 * X[:, 0]) + noise * rng.normal(size=400)
    settings: dict[str, Any] = {"kernel": "matern52", "input_warp": "none", "target_warp": "none"}
    varying, even = (GPRegressor(**settings).fit(X, wave(noise)) for noise in (noise, 0.3))
    assert chosen(varying, "noise") == "depends on x" and chosen(even, "noise") == "one variance"
    std = np.asarray(varying.predict([[-1.0], [1.0]], return_std=True)[1])
    assert std[0] < 0.12 and std[1] > 0.4
    assert chosen(GPRegressor(**settings, likelihood="gaussian").fit(X, wave(noise)), "noise") is None


def test_a_fast_wave_is_found_by_a_short_start():
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, 10, 300))[:, None]
    y = np.sin(10 * X[:, 0]) + 0.1 * rng.normal(size=300)
    grid = np.linspace(0.1, 9.9, 200)[:, None]
    model = GPRegressor(input_warp="none", target_warp="none", likelihood="gaussian").fit(X, y)
    assert np.var(model.predict(grid) - np.sin(10 * grid[:, 0])) < 0.02 * 0.5


def test_an_additive_function_of_many_columns_gets_an_additive_kernel():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 6))
    y = np.sum(np.sin(1.5 * X), axis=1) + 0.1 * rng.normal(size=N)
    model = GPRegressor(input_warp="none", target_warp="none", likelihood="gaussian").fit(X, y)
    assert chosen(model, "kernel") in ("additive", "orthogonal_additive")


def many_columns(text, count):
    """300 rows of so many numbers amid fifty columns of 0 and 1, or beside text of fifty words, and a target."""
    rng = np.random.default_rng(0)
    numbers, flags = rng.normal(size=(300, count)), rng.integers(0, 2, (300, 50))
    words = rng.integers(0, 50, 300)
    other = np.sin(words) if text else 0.3 * flags[:, :5].sum(axis=1)
    y = np.sin(5 * numbers[:, 0]) + 1.0 * (numbers[:, 1] > 1) + other + 0.1 * rng.normal(size=300)
    if not text:
        return np.column_stack([flags[:, :7], numbers, flags[:, 7:]]), y
    frame = pd.DataFrame(numbers, columns=[f"x{i}" for i in range(count)])
    return pd.concat([pd.Series([f"w{word}" for word in words], name="word"), frame], axis=1), y


ONE_NOISE: Any = {"input_warp": "none", "target_warp": "none", "likelihood": "gaussian", "max_iter": 10}


@pytest.mark.parametrize("text", [False, True])
def test_columns_of_many_values_get_functions_of_their_own_in_a_table_of_many_columns(text, tmp_path):
    X, y = many_columns(text, 2)
    model = GPRegressor(**ONE_NOISE).fit(X, y)
    assert chosen(model, "kernel") == "matern52 + matern32 of 2 columns"
    *parts, of_all = model.kernel_.kernels
    assert text or [part.columns for part in parts] == [(7,), (8,)]
    assert len(parts) == 2
    assert (type(of_all).__name__ == "Tied") == text
    model.save(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(GPRegressor.load(tmp_path / "model.safetensors").predict(X), model.predict(X))


def test_of_more_than_sixteen_columns_of_many_values_none_has_a_function_of_its_own():
    model = GPRegressor(**ONE_NOISE).fit(*many_columns(False, 17))
    assert not any("columns" in choice for choice in model.selection_["choice"])


@pytest.mark.parametrize(
    ("settings", "exact"),
    [
        ({}, True),
        ({"method": "collapsed", "num_inducing": 20, "max_iter": 5}, False),
        ({"likelihood": "student_t", "num_inducing": 20, "max_iter": 5}, False),  # sparse, though rows are few
    ],
)
def test_a_function_of_pairs_and_threes_gets_the_kernel_of_products_where_the_fit_is_exact(settings, exact):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5))
    y = np.sin(X[:, 0]) * X[:, 1] + np.cos(X[:, 2]) * X[:, 3] * X[:, 4] + 0.02 * rng.normal(size=300)
    settings = {"input_warp": "none", "target_warp": "none", "likelihood": "gaussian"} | settings
    model = GPRegressor(**settings).fit(X, y)
    assert (model.method_ == "exact") == exact
    assert (chosen(model, "kernel") == "orthogonal_additive") == exact
    assert ("orthogonal_additive" in model.selection_["choice"]) == exact


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"effort": "fast"}, "effort='fast'"),
        ({"scale_inputs": False}, "scale_inputs=False"),
        ({"optimiser": "Adam"}, "optimiser='Adam'"),
        ({"posterior": "solve"}, "posterior='solve'"),
    ],
)
def test_a_warp_that_does_not_go_together_with_another_setting_is_refused(settings: dict[str, Any], reason):
    X, y = table()
    with pytest.raises(
        ValueError, match=rf"input_warp='log' does not go together with {reason}: use input_warp='none'"
    ):
        GPRegressor(input_warp="log", **settings).fit(X, y)


def test_a_warp_by_name_that_no_column_may_have_is_refused_and_other_columns_stay_as_they_are():
    rng = np.random.default_rng(0)
    signed, wide, few = rng.normal(size=60), np.exp(rng.normal(size=60)), rng.integers(0, 3, 60).astype(float)
    y = signed + np.log(wide) + 0.1 * rng.normal(size=60)
    of = lambda word, *X: GPRegressor("rbf", input_warp=word, target_warp="none", max_iter=2).fit(np.column_stack(X), y)
    for X in ((signed, few), (-wide, few), (10 + few, 100 + signed)):
        with pytest.raises(
            FitError, match="input_warp='log' needs a column of 8 different values or more that are all"
        ):
            of("log", *X)
    for word in ("yeo_johnson", "rank_normal"):
        with pytest.raises(FitError, match=f"input_warp='{word}' needs a column of 8 different values or more, and"):
            of(word, few, few[::-1])
    model = of("log", signed, wide, few)
    assert [warp is not None for warp in model.standardiser_.warps] == [False, True, False]
    assert "input_warp='log' is not for these columns, which stay as they are: 0, 2" in model.notes_
    assert not any("input_warp" in note for note in of("rank_normal", signed, wide).notes_)


def test_a_warp_of_the_target_needs_normal_noise():
    X, y = table()
    with pytest.raises(ValueError, match="target_warp='log' does not go together with the likelihood StudentT"):
        GPRegressor(target_warp="log", likelihood="student_t").fit(X, y)


def test_a_logarithm_is_neither_taken_nor_given_where_one_row_of_all_is_zero(monkeypatch):
    monkeypatch.setitem(SAMPLE, "balanced", 30)  # which holds that row or not
    X, y = table(2, 0.3)
    y = np.exp(y)
    y[7] = 0.0
    model = GPRegressor(kernel="matern52", likelihood="gaussian").fit(X, y)
    assert np.isfinite(model.bound_) and chosen(model, "target") != "log"
    with pytest.raises(ValueError, match="target_warp='log' needs a target above 0 in every row: use another warp"):
        GPRegressor(target_warp="log").fit(X, y)


def test_known_noise_and_a_warp_of_the_target_do_not_go_together():
    X, y = table()
    with pytest.raises(ValueError, match="target_warp='log' does not go together with noise_variance"):
        GPRegressor(target_warp="log").fit(X, np.exp(y), noise_variance=np.full(N, 0.1))
    model = GPRegressor().fit(X, np.exp(y), noise_variance=np.full(N, 0.1))
    assert model.likelihood_.warped is None


def test_few_rows_are_fitted_without_a_search():
    X, y = table()
    assert not GPRegressor().fit(X[: FEWEST - 1], y[: FEWEST - 1]).selection_["part"]


def test_a_fit_in_single_precision_is_searched_in_double(fitted):
    X, y, model = fitted
    single = GPRegressor(dtype="float32").fit(X, y)
    assert chosen(single, "inputs") == chosen(model, "inputs")
    assert single.predictor_.alpha.dtype == np.float32
    np.testing.assert_allclose(single.predict(X), model.predict(X), atol=0.05)


def test_the_report_shows_what_was_tried(fitted, tmp_path):
    from pseudopoint.commands.about import trials
    from pseudopoint.report import Report, write_report

    _, _, model = fitted
    write_report(tmp_path / "r.html", Report(title="t", trials=trials(model)))
    page = (tmp_path / "r.html").read_text()
    assert "What was tried" in page and f"<b>{chosen(model, 'kernel')}</b>" in page and "kernel: " in page
