"""Columns of categories by a kernel with one lengthscale a column: what it is, when it is taken, and what follows."""

from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pandas as pd
import pytest
from scipy.optimize import minimize

from pseudopoint import GPClassifier, GPRegressor, Tied, to_onnx
from pseudopoint.bounds import marginal
from pseudopoint.commands import fit_table
from pseudopoint.commands.about import lengthscales
from pseudopoint.data import Standardiser, dataset
from pseudopoint.kernels import RBF, Additive, Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.params import cast
from pseudopoint.posteriors import Model
from pseudopoint.recipes import Ties
from pseudopoint.recipes.categories import occam
from pseudopoint.recipes.objectives import OfBound, curvature
from pseudopoint.recipes.prior import LengthscalePrior
from pseudopoint.tables import TableEncoder

pytestmark = pytest.mark.edge

C = 20
PLAIN: dict[str, Any] = {"max_iter": 20, "likelihood": "gaussian", "input_warp": "none", "target_warp": "none"}
SHARED, EACH = "one lengthscale a column", "one lengthscale a category"


def table(seed=0, N=140, categories=C):
    """A number, a column of categories of unequal shares with an effect each, and the target."""
    effect = np.random.default_rng(99).normal(size=categories)
    rng = np.random.default_rng(seed)
    code = rng.choice(categories, N, p=np.arange(1, categories + 1) / np.sum(np.arange(1, categories + 1)))
    x = rng.uniform(-2, 2, N)
    frame = pd.DataFrame({"size": x, "kind": [f"k{i:02d}" for i in code]})
    return frame, effect[code] + np.sin(2 * x) + 0.2 * rng.normal(size=N)


def choice(model):
    """What a fit says of its columns of categories; None where nothing was tried."""
    rows = zip(model.selection_["part"], model.selection_["choice"], model.selection_["chosen"], strict=True)
    return next((choice for part, choice, taken in rows if part == "categories" and taken), None)


@pytest.fixture(scope="module", autouse=True)
def few_kernels():
    """A search of one kernel, as the choice of others is not the point."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("pseudopoint.recipes.search"), "GRAMMAR", ())
        yield


@pytest.fixture(scope="module")
def fitted():
    X, y = table()
    return X, y, GPRegressor(**PLAIN).fit(X, y)


# --- the kernel ---


def of_categories(N=60):
    """The 0/1 columns of a table, standardised, with its ties; squared distances of the numbers, and for both columns
    of categories which rows differ."""
    frame, y = table(N=N, categories=4)
    frame["mark"] = np.where(np.arange(N) % 3 == 0, "a", "b")
    encoder, _ = TableEncoder.learn(frame.assign(y=y), "y")
    X = encoder.inputs(frame)[0]
    scaling = Standardiser.learn(X, y, np.ones(N), True, True)
    size, cells = frame["size"].to_numpy() / np.std(frame["size"]), frame[["kind", "mark"]].to_numpy().T
    differ = cells[:, :, None] != cells[:, None, :]
    return scaling.inputs(X), Ties.of(encoder.categories, scaling), np.subtract.outer(size, size) ** 2, differ


LENGTHS = np.array([0.7, 1.3, 2.1])


@pytest.mark.parametrize(
    "make, profile",
    [
        (RBF, lambda r2: np.exp(-r2 / 2)),
        (Matern52, lambda r2: (1 + np.sqrt(5 * r2) + 5 * r2 / 3) * np.exp(-np.sqrt(5 * r2))),
    ],
)
def test_on_the_0_1_columns_of_a_column_the_tied_kernel_is_a_kernel_of_its_categories(make, profile):
    X, ties, squares, differ = of_categories()
    assert ties is not None and ties.groups == (0, 1, 1, 1, 1, 2, 2) and ties.num_groups == 3
    with jax.enable_x64(True):
        K = np.asarray(ties.of_kernel(make(LENGTHS, 1.7))(*2 * [jnp.asarray(X)]))
    # Over pairs of rows, S² = Σ p(1 − p) is the share that differs.
    r2 = squares / LENGTHS[0] ** 2 + sum(2 * d / np.mean(d) / l**2 for d, l in zip(differ, LENGTHS[1:], strict=True))
    np.testing.assert_allclose(K, 1.7 * profile(r2), atol=1e-12)


def test_of_an_additive_kernel_a_column_of_categories_is_a_constant_and_a_covariance_of_equal_categories():
    X, ties, squares, differ = of_categories()
    assert ties is not None
    v = np.array([0.5, 0.8, 1.1])
    with jax.enable_x64(True):
        both, one = ties.of_kernel(Additive(LENGTHS, v) + Matern52(LENGTHS)), ties.of_kernel(Matern52(LENGTHS))
        K = np.asarray(both(*2 * [jnp.asarray(X)]) - one(*2 * [jnp.asarray(X)]))
    expected = v[0] * np.exp(-squares / 2 / LENGTHS[0] ** 2)
    for d, count, l, variance in zip(differ, (4, 2), LENGTHS[1:], v[1:], strict=True):
        expected += variance * np.where(d, count - 2 + 2 * np.exp(-1 / 2 / np.mean(d) / l**2), count)
    np.testing.assert_allclose(K, expected, atol=1e-12)


def test_a_kernel_of_the_user_is_tied_and_counts_its_columns():
    X, y = table(N=60, categories=4)
    X = np.column_stack([X["size"], X["kind"].to_numpy()[:, None] == np.unique(X["kind"])])
    quick: dict[str, Any] = {"method": "exact", "effort": "fast", "max_iter": 5}
    model = GPRegressor(Tied(Matern52(np.ones(2)), (0, 1, 1, 1, 1)), **quick).fit(X, y)
    assert np.shape(model.kernel_.kernel.lengthscale) == (2,) and (np.asarray(model.kernel_.scale) == 1).all()
    assert repr(model.kernel_).startswith("Tied(kernel=Matern52(lengthscale=[")
    drawn = model.paths(2000, 0)(X[:3])
    np.testing.assert_allclose(drawn.mean(axis=0), model.predict_latent(X[:3]), atol=0.1)
    with pytest.raises(ValueError, match="a kernel ties 3 columns, but the inputs have 5"):
        GPRegressor(Tied(Matern52(np.ones(2)), (0, 1, 1))).fit(X, y)
    with pytest.raises(ValueError, match=r"groups=\(0, 2\) must number the groups"):
        Tied(Matern52(np.ones(2)), (0, 2))


def test_every_part_of_a_sum_is_tied_and_lengthscales_merge_so_that_mean_distances_stay():
    ties = Ties((0, 1, 1), np.array([1.0, 0.6, 0.8]))
    kernel: Any = ties.of_kernel(Additive(np.ones(2), np.ones(2)) + Matern52(np.ones(2)))
    assert [type(part) for part in kernel.kernels] == [Tied, Tied] and kernel.kernels[1].scales[0].shape == (2,)
    np.testing.assert_allclose(ties.merged(np.array([3.0, 2.0, 4.0])), [3, (1 / 4 + 1 / 16) ** -0.5])
    np.testing.assert_allclose(kernel.kernels[1].widths(3), [1, 1 / 0.6, 1 / 0.8])


# --- the evidence ---


def test_the_evidence_with_lengthscales_integrated_out_is_that_of_quadrature():
    # ∫ p(y | ℓ) p(log ℓ) d log ℓ over both lengthscales of a Gaussian process, by a grid and dense NumPy.
    rng, s, noise = np.random.default_rng(0), 1.5, 0.01
    X = rng.normal(size=(40, 2))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=40)

    def log_joint(log):
        Z = X / np.exp(log)
        K = np.exp(-0.5 * np.sum((Z[:, None] - Z) ** 2, axis=-1)) + noise * np.eye(40)
        _, logdet = np.linalg.slogdet(K)
        return -0.5 * (y @ np.linalg.solve(K, y) + logdet + 40 * np.log(2 * np.pi) + np.sum(np.square(log)) / s**2)

    grid = np.linspace(-3, 3, 61)
    values = np.array([[log_joint((a, b)) for b in grid] for a in grid])
    total = np.sum(np.exp(values - values.max())) * (grid[1] - grid[0]) ** 2
    exact = values.max() + np.log(total / (2 * np.pi * s**2))
    best = minimize(lambda log: -log_joint(log), grid[list(np.unravel_index(np.argmax(values), values.shape))])
    with jax.enable_x64(True):
        model = cast(Model(RBF(np.exp(best.x), 1.0), Gaussian(noise)), np.float64)
        prior = LengthscalePrior((np.ones(2),), np.asarray(s))
        H = curvature(OfBound(marginal), prior, model, dataset(X, y, dtype=np.float64), np.arange(2))
    assert abs(-best.fun - occam(H, s) - exact) < 0.1 and occam(H, s) > 1


def test_a_number_that_the_rows_tell_nothing_of_costs_nothing():
    assert occam(np.eye(3) / 1.5**2, 1.5) == pytest.approx(0)
    assert occam(np.diag([1 / 1.5**2, 8 / 1.5**2, -1.0]), 1.5) == pytest.approx(np.log(8) / 2)


# --- the choice ---


def test_a_column_of_many_categories_gets_one_lengthscale_and_is_predicted_better(fitted, monkeypatch):
    X, y, model = fitted
    assert choice(model) == SHARED
    assert "Tied" in repr(model.kernel_)
    with monkeypatch.context() as patch:
        patch.setattr(Ties, "of", lambda *_: None)
        each = GPRegressor(**PLAIN).fit(X, y)
    assert choice(each) is None
    new, truth = table(1, 2000)
    known = new["kind"].isin(X["kind"]).to_numpy()
    new, truth = new[known], truth[known]
    assert np.mean(model.log_density(new, truth)) > np.mean(each.log_density(new, truth)) + 0.03
    assert np.isfinite(model.selection_["log_density"]).all()


def test_a_column_of_which_one_category_differs_keeps_a_lengthscale_for_each():
    rng = np.random.default_rng(0)
    code, x = rng.integers(0, 5, 250), rng.uniform(-2, 2, 250)
    y = np.where(code == 0, np.sin(4 * x), np.cos(3 * x)) + 0.05 * rng.normal(size=250)
    X = pd.DataFrame({"x": x, "kind": [f"k{i}" for i in code]})
    assert choice(GPRegressor(**PLAIN).fit(X, y)) == EACH


def test_the_same_seed_gives_the_same_model_and_order_of_columns_and_names_of_categories_do_not_matter(fitted):
    X, y, model = fitted
    again = GPRegressor(**PLAIN).fit(X, y)
    assert again.bound_ == model.bound_ and np.array_equal(again.predict(X), model.predict(X))
    other = X[["kind", "size"]].assign(kind=[f"z{99 - int(kind[1:])}" for kind in X["kind"]])
    moved = GPRegressor(**PLAIN).fit(other, y)
    assert choice(moved) == SHARED
    np.testing.assert_allclose(moved.bound_, model.bound_, rtol=1e-3)
    np.testing.assert_allclose(moved.predict(other), model.predict(X), atol=1e-2)


def test_it_is_saved_and_loaded_bit_for_bit_exported_and_explained(fitted, tmp_path):
    X, y, model = fitted
    model.save(tmp_path / "model")
    loaded = GPRegressor.load(tmp_path / "model")
    assert np.array_equal(loaded.predict(X), model.predict(X))
    assert np.array_equal(loaded.log_density(X, y), model.log_density(X, y)) and repr(loaded.kernel_) == repr(
        model.kernel_
    )
    names = to_onnx(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    given = {"size": X["size"].to_numpy()[:, None], "kind": X["kind"].to_numpy(object)[:, None]}
    out = session.run(None, {each.name: given[each.name] for each in session.get_inputs()})
    np.testing.assert_allclose(np.ravel(np.asarray(out[names.index("target_mean")])), model.predict(X), atol=1e-6)
    found = model.effects(X, [[0], *model.encoder_.categories])
    assert len(found.effects[1].values) == len(model.encoder_.categories[0]) and 0.3 < found.effects[1].first < 1


def test_the_command_line_says_what_was_chosen_and_a_lengthscale_for_every_feature(tmp_path):
    X, y = table()
    X.assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    result = fit_table(tmp_path / "t.csv", "y", test_fraction=0.0, out=tmp_path / "m", **PLAIN)
    assert result["chosen"]["categories"] == SHARED
    model = GPRegressor.load(tmp_path / "m")
    found = lengthscales(model)
    assert found is not None and len(found) == len(result["features"])
    kinds = np.array([in_units for _, in_units in list(found.values())[1:]], float)
    np.testing.assert_allclose(kinds, kinds[0])  # of 0 and 1


@pytest.mark.parametrize("more", [{"kernel": "matern52"}, {"lengthscale_prior": np.inf}, {"effort": "fast"}])
def test_nothing_is_tried_for_a_kernel_by_name_without_a_prior_and_without_a_search(more: dict[str, Any]):
    X, y = table()
    settings: dict[str, Any] = PLAIN | {"max_iter": 2} | more
    assert choice(GPRegressor(**settings).fit(X, y)) is None


def test_nothing_is_tried_for_arrays_and_for_two_categories():
    X, y = table(N=60, categories=2)
    arrays = np.column_stack([X["size"], X["kind"] == "k00", X["kind"] == "k01"])
    for inputs in (X, arrays):
        settings: dict[str, Any] = PLAIN | {"max_iter": 2}
        assert choice(GPRegressor(**settings).fit(inputs, y)) is None


def test_classes_have_the_choice_too_and_gaps_are_one_more_category():
    X, y = table(N=80, categories=4)
    X["kind"] = X["kind"].where(np.arange(80) % 9 > 0)
    model = GPClassifier(max_iter=2, input_warp="none").fit(X, y > 0)
    assert choice(model) in (SHARED, EACH) and model.encoder_.categories == [tuple(range(1, 6))]
