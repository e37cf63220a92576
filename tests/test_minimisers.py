"""L-BFGS-B on functions whose maximum is known, walls of NaN, and what it tells on the way."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint.data import dataset
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.optimise import fullbatch as minimisers
from pseudopoint.optimise.fullbatch import FitError, lbfgs, lbfgsb
from pseudopoint.optimise.fullbatch.objective import Objective
from pseudopoint.optimise.fullbatch.units import units
from pseudopoint.optimise.named import tight
from pseudopoint.optimise.result import Record
from pseudopoint.params import cast, positive, trainable
from pseudopoint.posteriors import Collapsed, Model

TOP = np.array([0.3, -1.2, 2.0])
CURVATURE = np.array([[3.0, 1.0, 0.0], [1.0, 50.0, 5.0], [0.0, 5.0, 2.0]])


class Point(eqx.Module):
    x: object
    scale: object = positive()


def at(*x, scale=3.0, frozen=()):
    return trainable(cast(Point(np.array(x, float), np.asarray(scale)), jnp.float64), *frozen)


def hill(point, data):
    """Concave in (x, log scale), with its maximum `data` at x = TOP and scale = e."""
    away = point.x - TOP
    return data - 0.5 * away @ CURVATURE @ away - (jnp.log(point.scale) - 1) ** 2


def walled(point, data):
    """Maximum 0 at x = 0.9, steep enough for the first step to cross the wall at 1, where NaN begins."""
    return jnp.where(point.x[0] < 1, -50 * (point.x[0] - 0.9) ** 2, jnp.nan) - (point.scale - 3) ** 2


def cut_off(point, data):
    """Rises up to a wall of NaN at x = 1, beyond which its maximum would lie."""
    return jnp.where(point.x[0] < 1, -((point.x[0] - 2) ** 2), jnp.nan) - (point.scale - 3) ** 2


def lying(point, data):
    """Falls where its gradient says that it rises: every step is for the worse."""
    return point.x[0] - 2 * jax.lax.stop_gradient(point.x[0])


def sharp(point, data):
    """Finite at 0, but with a derivative that is not."""
    return -jnp.sqrt(jnp.abs(point.x[0]))


def level(point, data):
    """So flat about its maximum that iterations gain ever less for long."""
    return data - jnp.sum((point.x * jnp.array([1.0, 2.0, 3.0])) ** 6) - (point.scale - 3) ** 2


def unreachable(point, data):
    return point.x[0] * jnp.nan


def scaled(point, data):
    """`hill`, of a thousand rows."""
    return 1000 * hill(point, data)


def test_the_maximum_of_a_concave_function_is_found():
    result = lbfgsb(hill, at(5.0, 5.0, 5.0), 7.0)
    np.testing.assert_allclose(result.model.x, TOP, atol=1e-4)
    np.testing.assert_allclose(result.model.scale, np.e, rtol=1e-4)
    np.testing.assert_allclose(result.bound, 7.0, rtol=1e-9)
    assert result.converged and result.rejected == 0
    assert result.bound == float(jax.jit(hill)(result.model, 7.0))  # the model is the one whose bound is reported


def test_what_is_frozen_stays():
    result = lbfgsb(hill, at(5.0, 5.0, 5.0, frozen=[lambda p: p.scale]), 7.0)
    assert float(result.model.scale) == 3.0
    np.testing.assert_allclose(result.model.x, TOP, atol=1e-4)


@pytest.mark.parametrize("probe", [None, 7.0], ids=["plain", "in units"])
def test_lbfgsb_stays_in_a_box_and_finds_the_best_point_of_it(probe):
    seen = []

    def watched(point, data):
        jax.debug.callback(lambda x: seen.append(np.array(x)), point.x)
        return hill(point, data)

    lower, upper = np.array([-np.inf, -0.5, -np.inf, -np.inf]), np.full(4, np.inf)
    result = lbfgsb(watched, at(5.0, 5.0, 5.0), 7.0, probe=probe, box=(lower, upper))
    # With x₁ at its side, the best of the others solves the quadratic's own equations.
    rest = TOP[[0, 2]] - np.linalg.solve(CURVATURE[np.ix_([0, 2], [0, 2])], CURVATURE[[0, 2], 1] * (-0.5 - TOP[1]))
    np.testing.assert_allclose(result.model.x, [rest[0], -0.5, rest[1]], atol=1e-3)
    np.testing.assert_allclose(result.model.scale, np.e, atol=1e-3)
    inside = np.array(seen)[:, 1] >= -0.5 - 1e-9
    assert inside.all() if probe is None else inside.mean() > 0.5  # units look around, wherever that is


def test_the_scale_changes_tolerances_and_not_the_bound():
    result, one = lbfgsb(scaled, at(5.0, 5.0, 5.0), 7.0, scale=1000.0), lbfgsb(hill, at(5.0, 5.0, 5.0), 7.0)
    np.testing.assert_allclose(result.bound, 7000.0, rtol=1e-9)
    assert abs(result.evaluations - one.evaluations) <= 2


def test_records_are_monotone_and_progress_sees_them_as_they_are_made():
    seen = []
    result = lbfgsb(hill, at(5.0, 5.0, 5.0), 7.0, progress=seen.append)
    assert tuple(seen) == result.history and all(type(record) is Record for record in seen)
    history = {name: np.array(column) for name, column in zip(Record._fields, zip(*seen, strict=True), strict=True)}
    assert history["step"].tolist() == list(range(1, len(seen) + 1))
    assert (np.diff(history["bound"]) >= 0).all() and (np.diff(history["seconds"]) >= 0).all()
    assert history["bound"][0] < history["bound"][-1] <= result.bound
    assert np.isfinite(history["gradient_norm"]).all() and (history["step_size"] > 0).all()
    assert history["gradient_norm"][-1] < 1e-3 * history["gradient_norm"][0]


def test_the_number_of_iterations_is_kept_to():
    result = lbfgsb(hill, at(5.0, 5.0, 5.0), 7.0, max_iter=3)
    assert len(result.history) == 3 and not result.converged
    assert result.bound < 7.0 - 1e-6


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_it_has_converged_where_ten_iterations_gain_less_than_enough_of_the_bound(scale):
    whole, brief = (lbfgsb(level, at(5.0, 5.0, 5.0), 7.0, scale=scale, enough=enough) for enough in (0.0, 0.1))
    gains = np.array([record.bound for record in whole.history])
    gains = gains[10:] - gains[:-10]
    assert brief.converged and len(brief.history) < len(whole.history)
    assert len(brief.history) == 10 + 1 + np.argmax(gains < 0.1)  # the first ten that do not
    first = lbfgsb(level, at(5.0, 5.0, 5.0), 7.0, scale=scale, enough=1e9)
    assert len(first.history) == 20  # not before it has its pairs
    assert brief.history[-1].bound == brief.bound == float(jax.jit(level)(brief.model, 7.0))
    assert whole.bound - 0.1 < brief.bound


@pytest.mark.parametrize("coarse", [None, lambda model: True], ids=["float64", "float32 first"])
def test_enough_is_asked_of_the_iterations_of_one_round_and_again_in_float64(coarse):
    result, rough = climbed(coarse, level, enough=0.01, scale=10.0)
    assert result.converged and result.bound > 7.0 - 0.05
    assert rough.any() == (coarse is not None) and not rough[-1]


def test_a_step_over_a_wall_is_undone_and_the_maximum_still_found():
    result = lbfgsb(walled, at(0.0), 0.0)
    assert result.rejected > 0
    np.testing.assert_allclose(result.model.x, 0.9, atol=1e-3)
    np.testing.assert_allclose(result.bound, 0.0, atol=1e-4)


def test_where_the_maximum_lies_behind_the_wall_the_best_point_before_it_is_returned():
    result = lbfgsb(cut_off, at(0.0), 0.0)
    x = float(result.model.x[0])
    assert result.rejected > 0 and 0.9 < x < 1
    assert result.bound == float(jax.jit(cut_off)(result.model, 0.0)) >= max(record.bound for record in result.history)


@pytest.mark.parametrize("bound", [walled, cut_off, lying])
def test_the_best_of_all_points_that_were_tried_is_returned(bound, monkeypatch):
    tried, evaluate = [], minimisers.objective.evaluated

    def watched(*arguments):
        value, gradient, carry = evaluate(*arguments)
        tried.append(float(value))
        return value, gradient, carry

    monkeypatch.setattr(minimisers.objective, "evaluated", watched)
    result = lbfgsb(bound, at(0.0), 0.0)
    assert result.bound == np.nanmax(tried) and len(tried) == result.evaluations
    assert result.rejected == np.isnan(tried).sum()


@pytest.mark.parametrize("bound", [unreachable, sharp])
def test_a_start_without_a_finite_bound_and_gradient_is_a_fit_error(bound):
    with pytest.raises(FitError, match="not finite at the initial hyperparameters"):
        lbfgsb(bound, at(0.0), 0.0)


# --- Units ---


class Plane(eqx.Module):
    """Points and a scale, as pseudo-points are beside hyperparameters."""

    Z: object
    scale: object = positive()


def bent(plane, data):
    """Quadratic in (Z, log scale), Hessian −(10⁴, 1) in the columns of Z and −81 in log scale, times `data`."""
    return -0.5 * data * (jnp.sum(jnp.array([1e4, 1.0]) * plane.Z**2) + 81 * jnp.log(plane.scale) ** 2)


def plane(Z, scale=2.0):
    return trainable(cast(Plane(np.array(Z, float), np.asarray(scale)), jnp.float64))


def test_units_are_the_fourth_root_of_the_curvature_alike_for_a_column_with_geometric_mean_1():
    climb = Objective(bent, plane(np.ones((3, 2))), 1.0)
    expected = np.array([10.0, 1.0] * 3 + [3.0]) ** -1
    expected /= np.exp(np.mean(np.log(expected)))
    np.testing.assert_allclose(units(climb, 1.0), expected, rtol=1e-6)
    np.testing.assert_allclose(units(climb, 7.0), expected, rtol=1e-6)  # whatever the bound's own unit
    assert climb.count == 0 and climb.lowest == np.inf  # a look that no search has seen


def flat_or_not(plane, data):
    """Straight in the first column of Z, and known at scale 2 alone."""
    known = jnp.where(jnp.abs(plane.scale - 2) < 1e-6, 0.0, jnp.nan)
    return jnp.sum(plane.Z[:, 0]) - jnp.sum(plane.Z[:, 1] ** 2) + known * plane.scale


def test_units_are_finite_where_a_bound_is_straight_or_not_known_and_1_where_it_is_straight_along_all():
    unit = units(Objective(flat_or_not, plane(np.ones((3, 2))), None), None)
    np.testing.assert_allclose(unit[0] / unit[1], 10.0, rtol=1e-6)  # (10⁻⁴)^-¼
    np.testing.assert_allclose(unit[6], unit[1], rtol=1e-6)
    straight = units(Objective(lambda plane, data: jnp.sum(plane.Z), plane(np.ones((3, 2))), None), None)
    np.testing.assert_array_equal(straight, np.ones(7))


def test_rounds_follow_one_another_in_one_history_each_in_units_of_where_it_begins(monkeypatch):
    begun, measure = [], lbfgs.units

    def watched(climb, data):
        begun.append((len(climb.history), data))
        return measure(climb, data)

    monkeypatch.setattr(lbfgs, "units", watched)
    monkeypatch.setattr(lbfgs, "ROUND", 2)
    short = lbfgsb(hill, at(5.0, 5.0, 5.0), 7.0, max_iter=8, probe=3.0)
    assert begun == [(0, 3.0), (2, 3.0), (6, 3.0)]  # 2, 4, and 2 of 8 iterations
    assert [record.step for record in short.history] == list(range(1, 9)) and not short.converged
    assert (np.diff([record.bound for record in short.history]) >= 0).all()
    result = lbfgsb(hill, at(5.0, 5.0, 5.0), 7.0, probe=3.0)
    np.testing.assert_allclose(result.bound, 7.0, rtol=1e-9)  # the bound of the data, not of the probe
    np.testing.assert_allclose(result.model.x, TOP, atol=1e-3)
    assert result.converged and len(begun) > 5
    np.testing.assert_allclose(lbfgsb(walled, at(0.0), 0.0, probe=0.0).model.x, 0.9, atol=1e-3)


def test_pseudo_points_and_hyperparameters_climb_faster_in_units():
    # 150 points on 8 columns: 1,210 numbers. 16 iterations are a round.
    gains = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1.7, 1.7, size=(1500, 8))
        f = np.sin(2 * X[:, 0] + X[:, 5]) * np.cos(2 * X[:, 1]) + np.sin(2 * X[:, 2] + X[:, 3]) * X[:, 4]
        f += np.cos(2 * X[:, 6] - X[:, 7])
        data = dataset(X, (f - f.mean()) / f.std() + 0.03 * rng.normal(size=1500))
        model = Model(Matern52(np.full(8, 8**0.5), 1.0), Gaussian(0.1), Collapsed(jnp.asarray(X[:150])))
        start = trainable(cast(model, jnp.float64))
        plain, quick = (lbfgsb(tight, start, data, max_iter=16, scale=1500.0, probe=probe) for probe in (None, data))
        gains.append(quick.bound - plain.bound)
    assert min(gains) > 100, gains


# --- Precision ---


def fine_hill(point, data):
    """`hill`, finite in float64 alone if `data` is infinite."""
    far = jnp.isinf(data) & (point.x.dtype == jnp.float32)
    return hill(point, jnp.where(far, jnp.nan, jnp.where(jnp.isinf(data), 7.0, data)))


def climbed(coarse, bound=hill, data=7.0, **options):
    """The result, and the precision of every evaluation."""
    seen, evaluate = [], minimisers.objective.evaluated

    def watched(compile_mode, bound, free, *rest):
        seen.append(free.dtype)
        return evaluate(compile_mode, bound, free, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minimisers.objective, "evaluated", watched)
        patch.setattr(lbfgs, "ROUND", 2)
        result = lbfgsb(bound, at(5.0, 5.0, 5.0), np.float64(data), probe=np.float64(3.0), coarse=coarse, **options)
    return result, np.array([dtype == jnp.float32 for dtype in seen])


def test_what_float32_does_not_see_any_more_is_climbed_in_float64():
    result, rough = climbed(lambda model: True)
    assert rough[0] and not rough[-1] and (np.diff(rough.astype(int)) <= 0).all()  # never back
    assert result.model.x.dtype == jnp.float64 and result.converged
    np.testing.assert_allclose(result.bound, 7.0, rtol=1e-9)
    np.testing.assert_allclose(result.model.x, TOP, atol=1e-3)
    assert [record.step for record in result.history] == list(range(1, len(result.history) + 1))


def test_rounds_are_in_float32_as_long_as_the_model_allows_it():
    asked = []

    def first_round_alone(model):
        asked.append(model.x.dtype)
        return len(asked) == 1

    result, rough = climbed(first_round_alone, max_iter=8)
    assert rough[0] and not rough[-1] and len(asked) == 2  # not asked again
    assert asked == [jnp.float64] * 2 and len(result.history) == 8
    assert result.bound == float(jax.jit(hill)(result.model, 7.0))  # as float64 has it
    whole, rough = climbed(lambda model: True, max_iter=4)
    assert rough.all() and len(whole.history) == 4 and not whole.converged
    assert whole.model.x.dtype == jnp.float64
    np.testing.assert_allclose(whole.bound, hill(whole.model, 7.0), rtol=1e-6)


@pytest.mark.parametrize("coarse", [None, lambda model: False])
def test_without_leave_no_evaluation_is_in_float32(coarse):
    result, rough = climbed(coarse)
    assert not rough.any()
    np.testing.assert_allclose(result.bound, 7.0, rtol=1e-9)


def test_a_start_that_is_not_finite_in_float32_is_climbed_from_in_float64():
    result, rough = climbed(lambda model: True, fine_hill, np.inf)
    assert rough.sum() == 1 and rough[0] and result.rejected == 1
    np.testing.assert_allclose(result.bound, 7.0, rtol=1e-9)
