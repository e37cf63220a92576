"""Effects of inputs: brute force at small size, functions that are recovered, and shares that sum to one."""

from typing import Any

import numpy as np
import pytest

from pseudopoint import RBF, GPClassifier, GPRegressor, Linear
from pseudopoint.estimators.effects import POINTS

pytestmark = pytest.mark.edge

PARTS = [lambda t: 3 * np.sin(2 * t), lambda t: t**2, lambda t: -t, lambda t: 0 * t]
FAST = {"effort": "fast", "max_iter": 20}


def rows(n=120, seed=0):
    """Rows with a sum of functions of single columns; the fourth does nothing."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 4)) * [1, 1, 1, 50]
    return X, 10 + sum(g(x) for g, x in zip(PARTS, X.T, strict=True)) + 0.3 * rng.standard_normal(n)


def smooth(lengthscale=1.0) -> Any:
    return sum((4.0 * RBF(lengthscale)).on(j) for j in range(3))


@pytest.fixture(scope="module")
def additive():
    """A fit that knows that f is a sum of functions of the first three columns."""
    return GPRegressor(smooth(), **FAST).fit(*rows())


@pytest.fixture(scope="module")
def general():
    return GPRegressor(method="collapsed", num_inducing=12, **FAST).fit(*rows())


@pytest.fixture(scope="module")
def classes():
    X, y = rows(90)
    labels = np.digitize(y, [9, 12])
    return X, GPClassifier(method="svgp", num_inducing=6, max_iter=5, batch_size=90).fit(X, labels)


def set_to(X, columns, values):
    moved = X.copy()
    moved[:, list(columns)] = values
    return moved


# --- A curve and its uncertainty ---


@pytest.mark.parametrize("name", ["additive", "general"])
def test_mean_and_deviation_are_those_of_an_average_of_the_joint_posterior(name, request):
    model, (X, _) = request.getfixturevalue(name), rows()
    found = model.effects(X, rows=20, level=0.8)
    assert len(found.rows) == 20
    np.testing.assert_allclose(found.level, model.predict(found.rows).mean(), rtol=1e-9)
    for effect in found.effects:
        for p in (0, 11, POINTS - 1):
            moved = set_to(found.rows, effect.columns, effect.values[p])
            mean, cov = model.predict(np.vstack([moved, found.rows])), joint(model, moved, found.rows)
            w = np.repeat([1 / 20, -1 / 20], 20)
            np.testing.assert_allclose(effect.mean[p], w @ mean, atol=1e-8)
            np.testing.assert_allclose(effect.std[p] ** 2, w @ cov @ w, rtol=1e-4, atol=1e-9)
    effect = found.effects[0]
    np.testing.assert_allclose(effect.upper - effect.mean, 1.2815515655446004 * effect.std, rtol=1e-9)
    np.testing.assert_allclose(effect.mean - effect.lower, 1.2815515655446004 * effect.std, rtol=1e-9)


def joint(model, *parts):
    """The covariance of f: that of y without the noise on the diagonal."""
    X = np.vstack(parts)
    cov = model.predict(X, return_cov=True)[1]
    np.fill_diagonal(cov, model.predict_latent(X, return_std=True)[1] ** 2)
    return cov


def test_the_parts_of_a_sum_are_recovered_within_their_intervals():
    inside = []
    for seed in range(2):
        X, y = rows(120, seed)
        found = GPRegressor(smooth(), **FAST).fit(X, y).effects(X)
        for g, effect in zip(PARTS, found.effects, strict=True):
            truth = g(effect.values[:, 0]) - g(found.rows[:, effect.columns[0]]).mean()
            inside += [np.mean((effect.lower <= truth) & (truth <= effect.upper))]
            assert np.abs(effect.mean - truth).max() < 0.6
    assert 0.8 <= np.mean(inside)


def test_with_fewer_rows_intervals_are_wider(additive):
    few = GPRegressor(smooth(), **FAST).fit(*rows(40)).effects(rows(40)[0])
    many = additive.effects(rows(40)[0])
    assert few.effects[0].std.mean() > 1.2 * many.effects[0].std.mean()


def test_a_linear_function_has_lines():
    X, _ = rows(60)
    model = GPRegressor(Linear(1.0), **FAST).fit(X[:, :2], X[:, 0] * 2 - X[:, 1])
    for slope, effect in zip((2, -1), model.effects(X[:, :2]).effects, strict=True):
        np.testing.assert_allclose(np.diff(effect.mean) / np.diff(effect.values[:, 0]), slope, rtol=1e-2)


def test_a_warped_target_has_the_effects_of_its_predictions():
    X, y = rows(80)
    model = GPRegressor(kernel="rbf", target_warp="log", input_warp="none", max_iter=5).fit(X, np.exp(y / 5))
    found = model.effects(X, rows=16)
    assert model.likelihood_.warped is not None
    check_means(model, found, lambda rows: np.reshape(model.predict(rows), (-1, 1)))


def test_noise_that_depends_on_inputs_leaves_the_effects_of_predictions():
    X, y = rows(60)
    model = GPRegressor(likelihood="heteroscedastic", num_inducing=5, method="svgp", **FAST).fit(X, y)
    check_means(model, model.effects(X, rows=16), lambda rows: np.reshape(model.predict(rows), (-1, 1)))


def test_classes_have_effects_on_the_probability_at_the_mean_of_f(classes):
    X, model = classes

    def softmax(rows):
        p = np.exp(model.predict_latent(rows))
        return p / p.sum(axis=1, keepdims=True)

    found = model.effects(X, rows=16)
    check_means(model, found, softmax)
    np.testing.assert_allclose(sum(e.mean.sum(axis=1) for e in found.effects), 0, atol=1e-12)
    assert found.effects[0].std.shape == (POINTS, 3) and np.all(found.effects[0].std > 0)


def check_means(model, found, predicted):
    level = predicted(found.rows).mean(axis=0)
    np.testing.assert_allclose(found.level, level, rtol=1e-7)
    for effect in found.effects:
        for p in (0, len(effect.values) - 1):
            truth = predicted(set_to(found.rows, effect.columns, effect.values[p])).mean(axis=0) - level
            np.testing.assert_allclose(np.atleast_1d(effect.mean[p]), truth, rtol=1e-6, atol=1e-8)


# --- Shares ---


def brute_force(model, found):
    """First-order and total shares by their definitions, from `predict` alone."""
    X, base = found.rows, model.predict(found.rows)
    own, total = [], []
    for effect in found.effects:
        h = np.array([model.predict(set_to(X, effect.columns, row[list(effect.columns)])) for row in X])
        own.append(h.mean(axis=1))
        total.append(np.mean([np.var(row) for row in h.T]) / np.var(h))
    sizes = np.var(own, axis=1)
    return np.corrcoef(np.sum(own, axis=0), base)[0, 1] ** 2 * sizes / sizes.sum(), np.array(total)


def test_shares_are_their_definitions_and_sum_to_one(general):
    found = general.effects(rows()[0], rows=16)
    shares = np.array([(e.first, e.total) for e in found.effects]).T
    np.testing.assert_allclose(shares, brute_force(general, found), rtol=1e-6, atol=1e-9)
    assert shares[0].sum() + found.together == pytest.approx(1)
    assert found.together > 0 and np.all((shares >= 0) & (shares <= 1))


def test_no_share_is_negative_where_columns_work_against_each_other():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 1)) + 0.1 * rng.standard_normal((60, 2))
    found = GPRegressor(1.0 * Linear() + 1e-4 * RBF(5.0), **FAST).fit(X, 3 * X[:, 0] - 2 * X[:, 1]).effects(X)
    first, total = np.array([(e.first, e.total) for e in found.effects]).T
    assert np.all((first >= 0) & (first <= 1) & (total >= 0) & (total <= 1)) and first[0] > first[1] > 0.1
    assert first.sum() + found.together == pytest.approx(1)


def test_of_a_sum_nothing_is_left_and_a_column_that_does_nothing_has_nothing(additive):
    found = additive.effects(rows()[0])
    assert sum(e.first for e in found.effects) == pytest.approx(1) and abs(found.together) < 1e-9
    idle = found.effects[3]
    assert abs(idle.first) < 1e-12 and abs(idle.total) < 1e-12
    assert np.abs(idle.mean).max() < 1e-9 and idle.std.max() < 1e-6
    assert [e.total > 0.02 for e in found.effects] == [True, True, True, False]


def test_columns_that_belong_together_are_one_effect():
    rng = np.random.default_rng(1)
    kind = rng.integers(0, 3, 80)
    X = np.column_stack([rng.uniform(-1, 1, 80), np.eye(3)[kind]])
    model = GPRegressor(**FAST).fit(X, np.array([0.0, 2.0, 5.0])[kind] + 0.1 * rng.standard_normal(80))
    found = model.effects(X, groups=[[0], [1, 2, 3]])
    number, category = found.effects
    assert category.columns == (1, 2, 3)
    assert {tuple(row) for row in category.values} == {(1, 0, 0), (0, 1, 0), (0, 0, 1)}
    heights = dict(zip(map(tuple, category.values), category.mean, strict=True))
    assert heights[0, 0, 1] - heights[1, 0, 0] == pytest.approx(5, abs=0.3)
    assert number.total < 0.02 < 0.9 < category.total


def test_few_values_are_taken_as_they_are_and_many_in_even_steps(additive):
    X = rows(60)[0]
    X[:, 1] = np.round(X[:, 1])
    found = additive.effects(X)
    assert found.effects[1].values[:, 0].tolist() == [-2, -1, 0, 1, 2] and len(found.effects[1].mean) == 5
    steps = np.diff(found.effects[0].values[:, 0])
    assert len(steps) == POINTS - 1 and np.ptp(steps) < 1e-12


def test_a_constant_function_has_shares_of_zero():
    X = rows(30)[0]
    found = GPRegressor(**FAST).fit(X, np.ones(30)).effects(X)
    assert [e.first for e in found.effects] == [0] * 4 and np.isfinite(found.effects[0].std).all()


def test_one_class_has_no_effects():
    X = rows(30)[0]
    found = GPClassifier().fit(X, ["a"] * 30).effects(X)
    assert all(np.all(e.mean == 0) and np.all(e.std == 0) for e in found.effects)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"groups": [[0], [1]]}, "must name each of the 4 columns, 0 to 3, once"),
        ({"groups": [[0], [0, 1, 2, 3]]}, "once"),
        ({"level": 1.0}, "between 0 and 1"),
        ({"rows": 0}, "rows=0 must be a positive whole number"),
    ],
)
def test_what_makes_no_sense_is_refused(additive, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        additive.effects(rows()[0], **options)
