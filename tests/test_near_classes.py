"""What the classes of near rows tell beyond a fit with pseudo-points (`posteriors.NearClasses`; methods o)."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import OptimizeResult, minimize
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_digits

from pseudopoint import GPClassifier, to_onnx
from pseudopoint.data import dataset
from pseudopoint.kernels import Matern32
from pseudopoint.likelihoods import Bernoulli, Offset, Softmax, WithNearClasses
from pseudopoint.posteriors import NearClasses
from pseudopoint.recipes import near_rows

pytestmark = pytest.mark.usefixtures("brief_search")

SMALL: dict[str, Any] = {"num_inducing": 15, "max_iter": 10, "input_warp": "none"}


def some_near(count=8, N=40, D=3, C=3, variance=1.5) -> NearClasses:
    rng = np.random.default_rng(0)
    log_p = log_softmax(rng.normal(size=(N, C)), axis=1)
    weight = rng.integers(1, 4, N).astype(float)
    kernel = Matern32(np.array([0.5, 1.0, 2.0]), variance)
    X, y = rng.normal(size=(N, D)), rng.integers(0, C, N).astype(float)
    return NearClasses(kernel=kernel, X=X, log_p=log_p, y=y, weight=weight, count=count)


def matern32(near, X, Z):
    r = np.sqrt(3 * np.sum(((X[:, None] - Z) / near.kernel.lengthscale) ** 2, axis=-1))
    return float(near.kernel.variance) * (1 + r) * np.exp(-r)


def at_the_mode(near, x, rows):
    """h(x) = k(x, J) α at the α that maximises Σ wᵢ log P(yᵢ | Kα) − ½ tr αᵀKα, by BFGS (methods o)."""
    X, log_p, weight = near.X[rows], near.log_p[rows], near.weight[rows]
    K, Y = matern32(near, X, X), np.eye(log_p.shape[1])[near.y[rows].astype(int)]

    def loss(flat):
        alpha = flat.reshape(Y.shape)
        h = K @ alpha
        log = log_softmax(log_p + h, axis=1)
        slope = weight[:, None] * (np.exp(log) - Y)
        return -weight @ np.sum(Y * log, axis=1) + 0.5 * np.sum(alpha * h), (K @ (slope + alpha)).ravel()

    alpha = minimize(loss, np.zeros(Y.size), jac=True, method="BFGS", options={"gtol": 1e-9}).x.reshape(Y.shape)
    return matern32(near, x[None], X)[0] @ alpha


def nearest(near, x):
    return np.argsort(np.sum(((near.X - x) / near.kernel.lengthscale) ** 2, axis=1))[: near.count]


@pytest.fixture(scope="module")
def places():
    return np.random.default_rng(1).normal(size=(70, 3))  # more than one block


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("variance, steps, tolerance", [(0.3, 20, 1e-5), (1.5, 20, 1e-2), (20.0, 2000, 1e-5)])
def test_h_is_at_the_mode_of_dense_algebra(places, classes, variance, steps, tolerance, monkeypatch):
    monkeypatch.setattr("pseudopoint.posteriors.near_rows.STEPS", steps)
    near = some_near(C=classes, variance=variance)
    h, none = near(places)
    assert h.shape == none.shape == (classes, 70) and not none.any()
    expected = [at_the_mode(near, x, nearest(near, x)) for x in places]
    np.testing.assert_allclose(h.T, expected, atol=tolerance)
    np.testing.assert_allclose(np.sum(h, axis=0), 0, atol=1e-12)


def test_each_step_raises_the_density(places, monkeypatch):
    """Böhning's bound: whatever the variance, more steps are no worse."""
    near, x = some_near(count=39, variance=200.0), places[:1]
    rows, reached = nearest(near, x[0]), []
    X, log_p, weight, y = near.X[rows], near.log_p[rows], near.weight[rows], near.y[rows].astype(int)
    K = matern32(near, X, X)
    for steps in (1, 2, 5, 10, 20, 40):
        monkeypatch.setattr("pseudopoint.posteriors.near_rows.STEPS", steps)
        h = np.asarray(near.given(X, np.tile(rows, (len(X), 1)), np.tile(weight, (len(X), 1)))[0]).T
        density = weight @ log_softmax(log_p + h, axis=1)[np.arange(len(y)), y]
        reached.append(density - 0.5 * np.sum(h * np.linalg.solve(K + 1e-9 * np.eye(len(K)), h)))
    assert (np.diff(reached) > 0).all()


def test_a_block_more_or_less_and_padding_change_nothing(places):
    near, more = some_near(), 9
    pad = lambda each: np.pad(each, [(0, more), *[(0, 0)] * (each.ndim - 1)])
    longer = replace(near, **{name: pad(getattr(near, name)) for name in ("X", "log_p", "y", "weight")})
    whole = np.asarray(near(places)[0])
    np.testing.assert_allclose(longer(places)[0], whole, rtol=1e-12)
    np.testing.assert_allclose(near(places[:5])[0], whole[:, :5], rtol=1e-10)


def seen_twice():
    """The same rows, of which five were seen twice: by weights of 2, and as rows of their own."""
    near, both = replace(some_near(), weight=np.ones(40)), np.r_[np.arange(40), np.arange(5)]
    rows = {name: getattr(near, name)[both] for name in ("X", "log_p", "y", "weight")}
    return replace(near, weight=np.where(np.arange(40) < 5, 2.0, 1.0)), replace(near, **rows)


def test_a_row_of_twice_the_weight_is_two_rows():
    X = np.random.default_rng(1).normal(size=(4, 3))
    every = lambda near: np.tile(np.arange(len(near.X)), (4, 1))
    heavy, twice = (np.asarray(near.given(X, every(near), near.weight[every(near)])[0]) for near in seen_twice())
    np.testing.assert_allclose(heavy, twice, atol=1e-9)


@pytest.mark.parametrize("rows, others", [(np.arange(5), (40, 44)), (np.arange(5, 9), (39, 44))])
def test_of_a_row_that_was_seen_twice_one_is_left_out(rows, others):
    found = []
    for near, count in zip(seen_twice(), others, strict=True):
        near = replace(near, count=count)
        found.append(np.asarray(near.left_out(rows, near_rows._nearest(near, rows))[0]))
    np.testing.assert_allclose(*found, atol=1e-9)


def test_weights_that_are_no_counts_leave_a_row_out_whole():
    near, rows = some_near(), np.arange(12)
    near = replace(near, weight=1.1 * near.weight)  # such as those that balance classes
    assert not np.any(np.asarray(near_rows._nearest(near, rows)) == rows[:, None])


@pytest.mark.parametrize("variance", [0.5, 50.0])
def test_the_slope_of_the_density_of_rows_left_out(variance):
    near, rows = some_near(), np.arange(12)
    of_rows = near_rows._nearest(near, rows)
    vector = np.log([variance, 0.7, 1.2, 2.5])
    value, slope = near_rows._slopes(vector, near, rows, of_rows)
    at = lambda v: float(near_rows._slopes(v, near, rows, of_rows)[0])
    steps = 1e-5 * np.eye(4)
    np.testing.assert_allclose(slope, [(at(vector + e) - at(vector - e)) / 2e-5 for e in steps], rtol=1e-5, atol=1e-8)
    moved = near_rows._at(vector, near)
    assert float(moved.kernel.variance) == pytest.approx(variance)
    h, apart = moved.left_out(rows, of_rows)[0], vector[1:] - vector[1:].mean()
    log_p = log_softmax(near.log_p[rows] + h.T, axis=1)[rows, near.y[rows].astype(int)]
    weight = near.weight[rows]
    np.testing.assert_allclose(value, -(weight @ log_p - 0.5 * apart @ apart) / weight.sum(), rtol=1e-10)


@pytest.mark.parametrize("inner", [Bernoulli(), Offset(Bernoulli(), np.asarray(0.3)), Softmax(3)])
def test_other_odds(inner):
    rng = np.random.default_rng(0)
    C, L, rows = inner.classes, inner.latents, 6
    own = [jnp.asarray(rng.normal(size=(L, rows))), jnp.asarray(rng.uniform(0.1, 1, (L, rows)))]
    h = jnp.asarray(rng.normal(size=(C, rows)))
    mean, variance = jnp.concatenate([own[0], h]), jnp.concatenate([own[1], jnp.zeros((C, rows))])
    moved: Any = WithNearClasses(inner)
    before = inner.log_probabilities(*(each if L > 1 else each[0] for each in own))
    p = np.exp(moved.log_probabilities(mean, variance))
    np.testing.assert_allclose(p, softmax(before + h, axis=0), rtol=1e-10)
    y = rng.integers(0, C, rows)
    density = moved.log_density(mean, variance, y.astype(float))
    np.testing.assert_allclose(density, np.log(p[y, np.arange(rows)]), rtol=1e-10)
    np.testing.assert_array_equal(moved.latent(mean, variance)[0], own[0] if L > 1 else own[0][0])
    assert moved.latents == L + C and moved.classes == C


# --- Fits ------------------------------------------------------------------------------------------------------------


def rows_of(seed, count, classes):
    """A chequered plane, of which pseudo-points cannot hold every square."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (count, 2))
    y = (np.floor(4 * X[:, 0]) + np.floor(4 * X[:, 1])).astype(int) % classes
    return X, np.where(rng.random(count) < 0.05, rng.integers(0, classes, count), y)


N = 800


@pytest.fixture(autouse=True, scope="module")
def fewer_rows():
    """Near rows of classes from N rows on, learned by 200 rows and judged by 500: programs compiled with the flags of
    tests are slow."""
    assert near_rows.FEWEST == 2000  # as the documents say
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"FEWEST": N, "SAMPLE": 200, "JUDGES": 500}.items():
            patch.setattr(near_rows, name, value)
        yield


@pytest.fixture(scope="module", params=[2, 3])
def tables(request):
    return rows_of(0, N, request.param), rows_of(1, 500, request.param)


@pytest.fixture(scope="module")
def model(tables):
    return GPClassifier(**SMALL).fit(*tables[0])


@pytest.fixture(scope="module")
def plain(tables):
    return GPClassifier(**SMALL, near_rows=False).fit(*tables[0])


def test_near_rows_are_taken_where_they_tell_of_classes(model, plain, tables):
    X, y = tables[1]
    assert isinstance(model.near_rows_, NearClasses) and plain.near_rows_ is None
    assert model.log_density(X, y).mean() > plain.log_density(X, y).mean() + 0.1
    assert model.score(X, y) > plain.score(X, y) + 0.05
    assert ("near rows", "the 64 nearest", True) in zip(
        model.selection_["part"], model.selection_["choice"], model.selection_["chosen"], strict=True
    )
    assert model.bound_ == plain.bound_
    told = lambda fitted: fitted.predict_latent(X, return_std=True)
    np.testing.assert_allclose(told(model), told(plain), rtol=1e-9)  # those of the fit


def test_predictions_are_those_of_the_formula(model, plain, tables):
    X = tables[1][0][:70]
    h = np.asarray(model.near_rows_(model.standardiser_.inputs(X))[0])
    p = softmax(plain.predict_log_proba(X) + h.T, axis=1)
    np.testing.assert_allclose(model.predict_proba(X), p, rtol=1e-6)
    one = np.concatenate([model.predict_proba(X[i : i + 1]) for i in range(3)])
    np.testing.assert_allclose(one, p[:3], rtol=1e-6)


def test_far_from_all_rows_the_prediction_is_that_of_the_fit(model, plain):
    X = np.array([[300.0, -300.0], [1e6, 1e6]])
    np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(X), rtol=1e-6)


def test_probabilities_are_calibrated(model, tables):
    X, y = tables[1]
    p = model.predict_proba(X)
    assert abs(p.max(axis=1).mean() - np.mean(model.predict(X) == y)) < 0.06


def test_the_order_of_rows_changes_nothing(model, tables):
    (X, y), order = tables[0], np.random.default_rng(2).permutation(N)
    again = GPClassifier(**SMALL).fit(X[order], y[order])
    np.testing.assert_allclose(again.predict_proba(tables[1][0]), model.predict_proba(tables[1][0]), atol=1e-5)


def test_a_saved_model_predicts_bit_for_bit_and_an_updated_one_too(model, tables, tmp_path):
    (X, y), path = tables[1], tmp_path / "model.safetensors"
    updated = model._copy().update(X[:400], y[:400])
    assert np.sum(updated.near_rows_.weight > 0) == N + 400
    assert updated.log_density(X[:400], y[:400]).mean() > model.log_density(X[:400], y[:400]).mean()
    seen, near = updated.near_rows_.weight > 0, updated.near_rows_
    moments = jax.tree.map(jnp.asarray, updated.predictor_)(jnp.asarray(near.X[seen]))
    likelihood = jax.tree.map(jnp.asarray, updated._observed())
    expected = likelihood.log_probabilities(*map(jnp.asarray, moments))
    np.testing.assert_allclose(near.log_p[seen].T, expected, atol=1e-8)
    np.testing.assert_array_equal(near.kernel.lengthscale, model.near_rows_.kernel.lengthscale)
    for each in (model, updated):
        each.save(path)
        np.testing.assert_array_equal(GPClassifier.load(path).predict_proba(X), each.predict_proba(X))


def test_a_table_of_which_near_rows_tell_nothing_does_without():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    y = rng.random(N) < 1 / (1 + np.exp(-X[:, 0] - X[:, 1]))
    fitted = GPClassifier(**SMALL).fit(X, y)
    assert fitted.near_rows_ is None and "near rows" in fitted.selection_["part"]


BRIEF: dict[str, Any] = SMALL | {"max_iter": 2}


def is_compared(settings, rows=N) -> bool:
    fitted = GPClassifier(**BRIEF | settings).fit(*rows_of(0, rows, 2))
    compared = "near rows" in (fitted.selection_ or {"part": []})["part"]
    assert compared or fitted.near_rows_ is None
    return compared


def test_by_default_they_are_compared():
    assert is_compared({})


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel": "matern52"},
        {"likelihood": "logit"},
        {"effort": "fast"},
        {"near_rows": False},
        {"num_inducing": N // 4 + 1},
    ],
)
def test_what_leaves_them_out(settings):
    assert not is_compared(settings)


def test_few_rows_leave_them_out():
    assert not is_compared({}, rows=N - 1)


def test_a_row_that_the_fit_holds_for_impossible_is_no_end():
    likelihood, rows = Bernoulli(), near_rows.dataset(np.zeros((2, 1)), np.array([0.0, 1.0]), np.ones(2))
    near = near_rows.made(likelihood, np.array([[1e6, 1e6], [1.0, 1.0]]), rows, 1)
    assert isinstance(near, NearClasses) and np.isfinite(near.log_p).all()


def test_threads_predict_at_the_same_time(model, tables):
    """Batches of factors that wait for each other would end it (`linalg.many`)."""
    X, p = tables[1][0], model.predict_proba(tables[1][0])
    with ThreadPoolExecutor(4) as pool:
        for each in pool.map(lambda _: model.predict_proba(X), range(24), timeout=120):
            np.testing.assert_array_equal(each, p)


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_weights_of_all_rows(share, tables):
    (X, y), weight = tables[0], np.full(N, share)
    fitted = GPClassifier(**BRIEF).fit(X, y, weight)
    assert np.isfinite(fitted.predict_log_proba(tables[1][0])).all()


def test_a_second_fit_under_warm_start_learns_them_again_and_pickles_predict_alike(model, tables):
    again = model._copy().set_params(warm_start=True).fit(*tables[0])
    assert again.near_rows_ is not None
    X = tables[1][0]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again)).predict_proba(X), again.predict_proba(X))


def test_a_setting_that_is_no_truth_value_is_refused(tables):
    with pytest.raises(ValueError, match="near_rows"):
        GPClassifier().set_params(near_rows="yes").fit(*tables[0])


def test_what_is_not_known_of_such_a_model_is_refused(model, tmp_path):
    with pytest.raises(ValueError, match="near_rows=False"):
        to_onnx(model, tmp_path / "model.onnx")


@pytest.mark.parametrize("columns", [64, 16])
def test_a_round_that_the_rows_chosen_after_it_do_not_confirm_is_not_taken(columns):
    digits: Any = load_digits()
    X, y = digits.data[:, np.random.default_rng(1).permutation(64)[:columns]], digits.target % 2.0
    near = near_rows.made(Bernoulli(), np.zeros((2, len(y))), dataset(X, y), 32)
    nearest, slopes = near_rows.program(near_rows._nearest), near_rows.program(near_rows._slopes)
    rows, losses = np.arange(200), []
    for rounds in range(5):
        at = near_rows.learned(near, rows, near_rows.ROUNDS_OF_CLASSES[:rounds], 3.0)
        vector = np.log(np.r_[at.kernel.variance, at.kernel.lengthscale])
        losses.append(float(slopes(vector, near, rows, nearest(at, rows))[0]))
    assert np.all(np.diff(losses) <= 1e-9)
    assert losses[-1] < 0.5 * losses[0]


def test_of_a_step_that_goes_too_far_a_part_is_taken_or_nothing(monkeypatch):
    near, rows = replace(some_near(count=19, N=20), weight=np.ones(20)), np.arange(20)  # all others are near
    begin, end = (near_rows.learned(near, rows, rounds).kernel for rounds in ((), (30,)))
    vector = lambda kernel: np.log(np.r_[kernel.variance, kernel.lengthscale])
    start, step = vector(begin), vector(end) - vector(begin)
    nearest, far, slopes = near_rows._nearest(near, rows), 1.0, near_rows.program(near_rows._slopes)
    loss = lambda at: float(slopes(at, near, rows, nearest)[0])
    too_far = lambda *given, **options: OptimizeResult(x=given[1] + far * step)
    monkeypatch.setattr(near_rows, "minimize", too_far)
    taken = []
    for far in (0.0, 1.0, 3.0, 5.0, 40.0, np.nan):
        taken.append(next((share for share in (1.0, 0.5, 0.25) if loss(start + share * far * step) < loss(start)), 0.0))
        ours = vector(near_rows.learned(near, rows, (30,)).kernel)
        np.testing.assert_allclose(ours, start + (taken[-1] * far * step if taken[-1] else 0.0), rtol=1e-9)
    assert taken == [0.0, 1.0, 0.5, 0.25, 0.0, 0.0]
