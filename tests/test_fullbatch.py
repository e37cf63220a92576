"""Objectives, L-BFGS-B and its rounds, on functions whose maximum is known and at walls of NaN."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint.data import dataset
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.optimise.fullbatch import FitError, Objective, lbfgsb, lbfgsb_in_rounds
from pseudopoint.optimise.fullbatch.rounds import ROUND, units
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


def valley(point, data):
    """Rosenbrock's: long, narrow and bent, with its maximum `data` at x = 1."""
    x, y = point.x[:-1], point.x[1:]
    return data - jnp.sum(100 * (y - x**2) ** 2 + (1 - x) ** 2) - (point.scale - 3) ** 2


def unreachable(point, data):
    return point.x[0] * jnp.nan


def scaled(point, data):
    """`hill`, of a thousand rows."""
    return 1000 * hill(point, data)


def watched(function):
    """The function, and a list of (x, data, value) that grows with each evaluation."""
    seen = []

    def watching(point, data):
        value = function(point, data)
        note = lambda *at: seen.append(tuple(np.array(part) for part in at))
        jax.debug.callback(note, point.x, jnp.asarray(data, point.x.dtype), value)
        return value

    return watching, seen


def test_the_maximum_of_a_concave_function_is_found():
    result = lbfgsb(Objective(hill, at(5.0, 5.0, 5.0), 7.0))
    np.testing.assert_allclose(result.model.x, TOP, atol=1e-4)
    np.testing.assert_allclose(result.model.scale, np.e, rtol=1e-4)
    np.testing.assert_allclose(result.bound, 7.0, rtol=1e-9)
    assert result.converged and result.rejected == 0
    assert result.bound == float(jax.jit(hill)(result.model, 7.0))  # the model is the one whose bound is reported


def test_what_is_frozen_stays():
    result = lbfgsb(Objective(hill, at(5.0, 5.0, 5.0, frozen=[lambda p: p.scale]), 7.0))
    assert float(result.model.scale) == 3.0
    np.testing.assert_allclose(result.model.x, TOP, atol=1e-4)


@pytest.mark.parametrize("probe", [None, 7.0], ids=["plain", "in units"])
def test_a_box_is_kept_to_and_its_best_point_found(probe):
    bound, seen = watched(hill)
    lower, upper = np.array([-np.inf, -0.5, -np.inf, -np.inf]), np.full(4, np.inf)
    optimise = lbfgsb if probe is None else partial(lbfgsb_in_rounds, probe=probe)
    result = optimise(Objective(bound, at(5.0, 5.0, 5.0), 7.0), box=(lower, upper))
    # With x₁ at its side, the best of the others solves the quadratic's own equations.
    rest = TOP[[0, 2]] - np.linalg.solve(CURVATURE[np.ix_([0, 2], [0, 2])], CURVATURE[[0, 2], 1] * (-0.5 - TOP[1]))
    np.testing.assert_allclose(result.model.x, [rest[0], -0.5, rest[1]], atol=1e-3)
    np.testing.assert_allclose(result.model.scale, np.e, atol=1e-3)
    inside = np.array([x[1] >= -0.5 - 1e-9 for x, *_ in seen])
    assert inside.all() if probe is None else inside.mean() > 0.5  # units are measured on both sides


def test_the_scale_changes_tolerances_and_not_the_bound():
    result = lbfgsb(Objective(scaled, at(5.0, 5.0, 5.0), 7.0, scale=1000.0))
    one = lbfgsb(Objective(hill, at(5.0, 5.0, 5.0), 7.0))
    np.testing.assert_allclose(result.bound, 7000.0, rtol=1e-9)
    assert abs(result.evaluations - one.evaluations) <= 2


def test_records_are_monotone_and_progress_sees_them_as_they_are_made():
    seen = []
    result = lbfgsb(Objective(hill, at(5.0, 5.0, 5.0), 7.0, progress=seen.append), max_iter=50)
    assert tuple(seen) == result.history and all(type(record) is Record and record.total == 50 for record in seen)
    history = {name: np.array(column) for name, column in zip(Record._fields, zip(*seen, strict=True), strict=True)}
    assert history["step"].tolist() == list(range(1, len(seen) + 1))
    assert (np.diff(history["bound"]) >= 0).all() and (np.diff(history["seconds"]) >= 0).all()
    assert history["bound"][0] < history["bound"][-1] <= result.bound
    assert np.isfinite(history["gradient_norm"]).all() and (history["step_size"] > 0).all()
    assert history["gradient_norm"][-1] < 1e-3 * history["gradient_norm"][0]


def test_the_number_of_iterations_is_kept_to():
    result = lbfgsb(Objective(hill, at(5.0, 5.0, 5.0), 7.0), max_iter=3)
    assert len(result.history) == 3 and not result.converged
    assert result.bound < 7.0 - 1e-6


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_it_has_converged_where_ten_iterations_gain_less_than_asked(scale):
    objective = lambda: Objective(level, at(5.0, 5.0, 5.0), 7.0, scale=scale)
    climb = lambda min_gain, window=None: lbfgsb_in_rounds(objective(), min_gain=min_gain, window=window)
    whole, brief = climb(0.0), climb(0.1)
    start = float(jax.jit(level)(at(5.0, 5.0, 5.0).model, 7.0))
    bounds = np.array([start, *(record.bound for record in whole.history)])
    gains = bounds[10:] - bounds[:-10]
    assert brief.converged and len(brief.history) < len(whole.history)
    assert len(brief.history) == 10 + np.argmax(gains < 0.1)  # the first ten that do not
    assert len(climb(1e9).history) == 10  # more pairs than that tell nothing of three numbers
    assert len(climb(1e9, window=5).history) == 5 and climb(1e9, window=5).converged
    assert brief.history[-1].bound == brief.bound == float(jax.jit(level)(brief.model, 7.0))
    assert whole.bound - 0.1 < brief.bound


def test_without_a_probe_one_round_is_plain_lbfgsb():
    make = lambda: Objective(level, at(5.0, 5.0, 5.0), 7.0)
    plain, one = lbfgsb(make()), lbfgsb_in_rounds(make())
    assert [record.bound for record in one.history] == [record.bound for record in plain.history]
    assert one.converged == plain.converged and one.evaluations == plain.evaluations


def test_a_step_over_a_wall_is_undone_and_the_maximum_still_found():
    result = lbfgsb(Objective(walled, at(0.0), 0.0))
    assert result.rejected > 0
    np.testing.assert_allclose(result.model.x, 0.9, atol=1e-3)
    np.testing.assert_allclose(result.bound, 0.0, atol=1e-4)


def test_where_the_maximum_lies_behind_the_wall_the_best_point_before_it_is_returned():
    result = lbfgsb(Objective(cut_off, at(0.0), 0.0))
    x = float(result.model.x[0])
    assert result.rejected > 0 and 0.9 < x < 1
    assert result.bound == float(jax.jit(cut_off)(result.model, 0.0)) >= max(record.bound for record in result.history)


@pytest.mark.parametrize("function", [walled, cut_off, lying])
def test_the_best_of_all_points_that_were_tried_is_returned(function):
    bound, seen = watched(function)
    result = lbfgsb(Objective(bound, at(0.0), 0.0))
    tried = np.array([value for *_, value in seen])
    assert result.bound == np.nanmax(tried) and len(tried) == result.evaluations
    assert result.rejected == np.isnan(tried).sum()


@pytest.mark.parametrize("bound", [unreachable, sharp])
def test_a_start_without_a_finite_bound_and_gradient_is_a_fit_error(bound):
    with pytest.raises(FitError, match="not finite at the initial hyperparameters"):
        lbfgsb(Objective(bound, at(0.0), 0.0))


# --- Auxiliary output ---


def hill_with_aux(point, data):
    """`hill`, and one more than the scale; the place of the bound."""
    return hill(point, data), (point.scale + 1, point.x)


def one_more(point, aux):
    return eqx.tree_at(lambda p: p.scale, point, aux[0])


def test_the_auxiliary_output_is_that_of_the_best_point():
    result = lbfgsb(Objective(hill_with_aux, at(5.0, 5.0, 5.0), 7.0, has_aux=True))
    np.testing.assert_array_equal(result.aux[1], result.model.x)
    np.testing.assert_array_equal(result.aux[0], result.model.scale + 1)
    plain = lbfgsb(Objective(hill, at(5.0, 5.0, 5.0), 7.0))
    assert plain.aux is None and [r.bound for r in plain.history] == [r.bound for r in result.history]


def test_an_evaluation_resumes_from_the_best_point_so_far():
    # What resumes is held: it is 3 at first, and grows by 1 with every point that is better than all before.
    numbers = at(5.0, 5.0, 5.0, frozen=[lambda p: p.scale])
    objective = Objective(hill_with_aux, numbers, 7.0, has_aux=True, resume=one_more)
    values = [value for value, _ in (objective.start(), *(objective(k * TOP) for k in (0.0, 1.0, 0.5)))]
    assert values[2] < values[1] < values[0] and values[3] > values[2]
    assert float(objective.best_model().scale) == 3 + 3
    assert np.isfinite(objective.start_in_float32()[0])
    assert {x.dtype for x in jax.tree.leaves(objective.aux)} == {jnp.dtype("float32")}
    result = objective.result(True)
    assert {x.dtype for x in jax.tree.leaves((result.aux, result.model))} == {jnp.dtype("float64")}


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
    objective = Objective(bent, plane(np.ones((3, 2))), 1.0)
    expected = np.array([10.0, 1.0] * 3 + [3.0]) ** -1
    expected /= np.exp(np.mean(np.log(expected)))
    np.testing.assert_allclose(units(objective, 1.0), expected, rtol=1e-6)
    np.testing.assert_allclose(units(objective, 7.0), expected, rtol=1e-6)  # whatever the bound's own unit
    assert objective.evaluations == 0 and objective.lowest == np.inf  # measurements leave no trace


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


def test_rounds_of_twice_the_length_follow_one_another_in_one_history_each_with_units_of_its_own():
    records, begun = [], []

    def bound(point, data):
        note = lambda data: data == 3.0 and begun.append(len(records))
        jax.debug.callback(note, jnp.asarray(data))
        return valley(point, data)

    objective = Objective(bound, at(*np.zeros(30)), 7.0, progress=records.append)
    result = lbfgsb_in_rounds(objective, max_iter=60, probe=3.0)
    assert sorted(set(begun)) == [0, ROUND, 3 * ROUND]  # the probe is looked at between rounds alone
    assert [record.step for record in result.history] == list(range(1, 61)) and not result.converged
    assert (np.diff([record.bound for record in result.history]) >= 0).all()
    assert result.bound == float(jax.jit(valley)(result.model, 7.0))  # the bound of the data, not of the probe


def test_rounds_in_units_find_the_maximum_too():
    result = lbfgsb_in_rounds(Objective(hill, at(5.0, 5.0, 5.0), 7.0), probe=3.0)
    np.testing.assert_allclose(result.bound, 7.0, rtol=1e-9)
    np.testing.assert_allclose(result.model.x, TOP, atol=1e-3)
    assert result.converged
    walled_off = lbfgsb_in_rounds(Objective(walled, at(0.0), 0.0), probe=0.0)
    np.testing.assert_allclose(walled_off.model.x, 0.9, atol=1e-3)


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
        climb = lambda probe, start=start, data=data: lbfgsb_in_rounds(
            Objective(tight, start, data, scale=1500.0), max_iter=16, probe=probe
        )
        gains.append(climb(data).bound - climb(None).bound)
    assert min(gains) > 100, gains
