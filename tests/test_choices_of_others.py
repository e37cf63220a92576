"""What a search by evidence chooses where the target is a class, a count or another number without normal noise."""

import sys

import jax
import numpy as np
import pytest

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.likelihoods import Bernoulli, Gaussian, Poisson, Softmax
from pseudopoint.starts.responses import response

pytestmark = pytest.mark.edge

N, BRIEF = 120, 15


def inputs(seed=0):
    """Two columns, the second with a long tail, and a smooth function of them."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(-2, 2, N), np.exp(2 * rng.normal(size=N))])
    return X, np.sin(2 * X[:, 0]) + np.log(X[:, 1])


def taken(model, part):
    """The choices for a part."""
    rows = zip(*(model.selection_[name] for name in ("part", "choice", "chosen")), strict=True)
    return [choice for at, choice, chosen in rows if at == part and chosen]


@pytest.fixture(scope="module")
def three():
    """Three classes, and the default fit to them."""
    X, f = inputs()
    y = np.digitize(f, [-1, 1])
    return X, y, GPClassifier(max_iter=BRIEF).fit(X, y)


def test_the_coordinates_of_classes_are_those_of_their_label_columns():
    y, weight = np.array([0, 1, 2, 2, 1, 2.0]), np.array([1, 2, 1, 1, 1, 3.0])
    codes, levels = response(Softmax(3), y, weight)
    assert levels is not None and levels.shape == (3, 2)
    labels = np.eye(3)[y.astype(int)]
    labels -= np.average(labels, axis=0, weights=weight)
    labels /= np.sqrt(np.average(np.sum(labels**2, axis=1), weights=weight))
    Y = levels[codes.astype(int)]
    np.testing.assert_allclose(Y @ Y.T, labels @ labels.T, atol=1e-12)  # all that an evidence reads of them


def test_other_targets_are_the_function_that_fits_each_row_best():
    y, weight = np.array([0, 1, 5, 2.0]), np.ones(4)
    with jax.enable_x64(True):
        found, levels = response(Poisson(2.0), y, weight)
    expected = np.log((y + 0.5) / 2)
    assert levels is None
    np.testing.assert_allclose(found, (expected - expected.mean()) / expected.std())
    np.testing.assert_allclose(response(Gaussian(0.1), y, weight)[0], (y - y.mean()) / y.std())
    _, two = response(Bernoulli(), np.array([0, 1, 1, 1.0]), weight)
    assert two is not None and two.shape == (2, 1)


def test_classes_have_their_long_column_warped_and_are_better_predicted(three):
    X, y, model = three
    plain = GPClassifier(effort="fast", max_iter=BRIEF).fit(X, y)
    new, f = inputs(1)
    assert not plain.selection_["part"] and model.standardiser_.warps[1] is not None
    gain = model.log_density(new, np.digitize(f, [-1, 1])) - plain.log_density(new, np.digitize(f, [-1, 1]))
    assert np.mean(gain) > 0.05 and model.bound_ > plain.bound_ + 5


def test_order_of_rows_and_columns_units_and_labels_do_not_matter(three):
    X, y, model = three
    order = np.random.default_rng(3).permutation(N)
    names = np.array(["a", "b", "c"])
    other = GPClassifier(max_iter=BRIEF).fit((X * [[1e3, 1e-4]])[order][:, ::-1], names[y][order])
    assert [taken(other, part) for part in ("start", "inputs", "kernel")] == [
        taken(model, part) for part in ("start", "inputs", "kernel")
    ]
    np.testing.assert_allclose(other.predict_proba((X * [[1e3, 1e-4]])[:, ::-1]), model.predict_proba(X), atol=0.02)


def test_a_model_of_classes_is_saved_and_loaded_bit_for_bit(three, tmp_path):
    X, _, model = three
    model.save(tmp_path / "model")
    assert np.array_equal(GPClassifier.load(tmp_path / "model").predict_proba(X), model.predict_proba(X))


def test_counts_have_their_long_column_warped():
    X, f = inputs(2)
    y = np.random.default_rng(0).poisson(np.exp(f.clip(-5, 4)))
    model, plain = (
        GPRegressor(likelihood="poisson", effort=effort, max_iter=BRIEF).fit(X, y) for effort in ("balanced", "fast")
    )
    assert model.standardiser_.warps[1] is not None and model.bound_ > plain.bound_ + 5


def test_a_warp_by_name_is_taken_for_classes():
    X, f = inputs()
    model = GPClassifier("rbf", input_warp="log", max_iter=3).fit(X, f > 0)
    assert taken(model, "inputs") == ["log"] and not taken(model, "kernel")
    assert type(model.kernel_).__name__ == "RBF"


def test_each_column_of_a_wide_table_is_not_searched_by_itself(monkeypatch):
    monkeypatch.setattr(sys.modules["pseudopoint.recipes.search"], "WIDE", 2)
    X, f = inputs()
    model = GPClassifier(max_iter=3).fit(X, f > 0)
    assert "by column" not in model.selection_["choice"] and "additive" not in model.selection_["choice"]


@pytest.mark.parametrize("count, searched", [(4, True), (9, False)])
def test_columns_of_few_values_count_less_for_what_is_wide(count, searched, monkeypatch):
    """Two columns of numbers beside 0/1 columns: 2 × 6 is below the limit of 4 × 4, and 2 × 11 is not."""
    search, asked = sys.modules["pseudopoint.recipes.search"], []
    by_column = search._Search._by_column
    monkeypatch.setattr(search._Search, "_by_column", lambda *given: asked.append(1) or by_column(*given))
    monkeypatch.setattr(search, "WIDE", 4)
    X, f = inputs()
    marks = np.random.default_rng(1).integers(0, 2, (N, count))
    GPClassifier(max_iter=3).fit(np.column_stack([X, marks]), f > 0)
    assert bool(asked) == searched
