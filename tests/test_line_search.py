"""Line searches on functions whose minimum is known or that end in NaN."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pseudopoint.optimise.fullbatch import (
    LBFGS,
    AbstractDirection,
    FitError,
    Gradient,
    Objective,
    Transformed,
    line_search,
)
from pseudopoint.optimise.fullbatch.line_search import Point, brent
from pseudopoint.params import cast, trainable

A = np.array([[3.0, 1.0, 0.0, 0.5], [1.0, 20.0, 5.0, 0.0], [0.0, 5.0, 2.0, 0.0], [0.5, 0.0, 0.0, 0.4]])
TOP = np.array([0.3, -1.2, 2.0, 0.7])
P = len(TOP)


class Vector(eqx.Module):
    x: object


def at(*x):
    return trainable(cast(Vector(np.array(x, float)), jnp.float64))


def hill(model, data):
    """data − ½ (x − TOP)ᵀA(x − TOP)."""
    away = model.x - TOP
    return data - 0.5 * away @ A @ away


def cut_off(model, data):
    """Rises up to a wall of NaN at x₁ = 1, behind which its maximum lies."""
    return jnp.where(model.x[0] < 1, -((model.x[0] - 2) ** 2), jnp.nan) - (model.x[1] - 3) ** 2


def lying(model, data):
    """Falls where its gradient says that it rises."""
    return model.x[0] - 2 * jax.lax.stop_gradient(model.x[0])


class Always(AbstractDirection):
    """A direction that is the same everywhere."""

    way: tuple[float, ...] = eqx.field(static=True)

    def init(self, numbers):
        return None

    def __call__(self, at, state):
        return np.array(self.way), None


class Uphill(AbstractDirection):
    """The wrong way."""

    def init(self, numbers):
        return None

    def __call__(self, at, state):
        return at.gradient, None


def assert_told(result, limit=60):
    """What every run owes: a bound that never falls, finite numbers, time that goes on."""
    history = result.history
    assert [r.step for r in history] == list(range(1, len(history) + 1))
    assert (np.diff([r.bound for r in history]) > 0).all() and history[-1].bound <= result.bound
    assert all(np.isfinite(r.gradient_norm) and r.step_size > 0 for r in history)
    assert (np.diff([r.seconds for r in history]) > 0).all() and history[0].seconds > 0
    assert (np.diff([r.rejected for r in history]) >= 0).all() and history[-1].rejected <= result.rejected
    assert result.evaluations <= 1 + (len(history) + 2) * 2 * (limit + 2)


# --- Brent ---


class Counted:
    def __init__(self, function):
        self.function, self.calls, self.infinite = function, 0, 0

    def __call__(self, t):
        value = self.function(t)
        self.calls, self.infinite = self.calls + 1, self.infinite + np.isinf(value)
        return value


@pytest.mark.parametrize("best", [1e-9, 3e-3, 1.0, 7.3, 4e6])
@pytest.mark.parametrize("guess", [1e-3, 1.0, 50.0])
def test_the_minimum_of_a_parabola_is_found_from_any_guess(best, guess):
    phi = Counted(lambda t: (t / best - 1) ** 2)
    t, value = brent(phi, 1.0, guess)
    np.testing.assert_allclose(t, best, rtol=1e-6)
    assert value == phi(t) and phi.calls <= 61


@pytest.mark.parametrize("guess", [1e-4, 0.5, 2.0, 1e5])
def test_a_minimum_right_before_a_wall_is_found(guess):
    phi = Counted(lambda t: (t - 0.9) ** 4 if t < 0.91 else np.inf)
    t, _ = brent(phi, 0.9**4, guess)
    assert abs(t - 0.9) < 0.01 and phi.infinite >= 1


def test_where_the_minimum_is_behind_the_wall_the_wall_is_gone_to():
    phi = Counted(lambda t: (t - 2) ** 2 if t < 1 else np.inf)
    t, value = brent(phi, 4.0, 1.0)
    assert 1 - 1e-4 < t < 1 and value == phi(t)


def test_of_a_function_that_is_nowhere_lower_nothing_is_returned():
    for phi in (lambda t: 1.0 + t, lambda t: np.inf, lambda t: 1.0):
        counted = Counted(phi)
        assert brent(counted, 1.0, 1.0) == (0.0, 1.0) and counted.calls <= 20


def test_a_function_without_a_minimum_ends_at_the_limit():
    phi = Counted(lambda t: -t)
    t, value = brent(phi, 0.0, 1.0, limit=15)
    assert t >= 2.0**13 and value == -t and phi.calls <= 16


def test_the_limit_is_kept_to():
    phi = Counted(lambda t: abs(t - np.pi) ** 1.1)  # no parabola fits
    brent(phi, np.pi**1.1, 1.0, limit=12)
    assert phi.calls <= 13


# --- Steps whose length is known ---


@pytest.mark.parametrize("way", [(1.0, 0.0, 0.0, 0.0), (-2.0, 1.0, 30.0, 0.1), (1e-4, 0.0, 3e-4, 0.0)])
def test_on_a_quadratic_a_step_has_the_length_in_closed_form(way):
    # t = dᵀA(TOP − x) / dᵀAd
    d, start = np.array(way), np.zeros(P)
    expected = d @ A @ (TOP - start) / (d @ A @ d)
    if expected < 0:
        d, expected = -d, -expected
    result = line_search(Objective(hill, at(*start), 5.0), Always(tuple(d.tolist())), max_iter=1)
    (record,) = result.history
    np.testing.assert_allclose(record.step_size, expected, rtol=1e-6)
    np.testing.assert_allclose(result.model.x, start + expected * d, rtol=1e-6)


def test_steepest_ascent_makes_cauchys_steps():
    # t = ‖g‖² / gᵀAg
    x, steps = np.zeros(P), []
    for _ in range(6):
        g = A @ (TOP - x)
        steps.append(g @ g / (g @ A @ g))
        x = x + steps[-1] * g
    result = line_search(Objective(hill, at(*np.zeros(P)), 5.0), Gradient(), max_iter=6)
    np.testing.assert_allclose([r.step_size for r in result.history], steps, rtol=1e-4)
    np.testing.assert_allclose(result.model.x, x, rtol=1e-4)
    assert not result.converged
    assert_told(result)


def test_a_search_begins_where_the_last_one_ended():
    # Steps of about 1e5: found once by doubling, and from there on near the last one.
    result = line_search(Objective(hill, at(*np.zeros(P)), 5.0), Transformed(optax.sgd(1e-6)), max_iter=10)
    assert len(result.history) == 10 and all(r.step_size > 1e4 for r in result.history)
    assert result.evaluations <= 20 + 10 * 15


def test_lbfgs_with_exact_steps_ends_a_quadratic_after_about_as_many_steps_as_it_has_numbers():
    result = line_search(Objective(hill, at(*np.zeros(P)), 5.0), LBFGS())
    assert result.converged and len(result.history) <= P + 2
    np.testing.assert_allclose(result.bound, 5.0, rtol=1e-9)
    np.testing.assert_allclose(result.model.x, TOP, atol=1e-4)
    assert_told(result)
    gradient = line_search(Objective(hill, at(*np.zeros(P)), 5.0), Gradient(), max_iter=P + 2)
    assert 5 - result.bound < 1e-6 * (5 - gradient.bound)


def test_the_two_loops_are_the_bfgs_matrix():
    # H ← (I − ρsyᵀ)H(I − ρysᵀ) + ρssᵀ, ρ = 1/sᵀy, from H₀ = (sᵀy/yᵀy) I of the newest pair (Nocedal and Wright 6.17).
    rng = np.random.default_rng(0)
    direction, start = LBFGS(pairs=3), at(*np.zeros(P))
    f = Objective(hill, start, 0.0)
    points = rng.normal(size=(6, P))
    seen = [(s, A @ s) for s in np.diff(points, axis=0)]
    change, state = np.zeros(P), direction.init(start)
    for x in points:
        change, state = direction(Point(f, x, A @ x), state)
    s, y = seen[-1]
    H = s @ y / (y @ y) * np.eye(P)
    for s, y in seen[-3:]:
        V = np.eye(P) - np.outer(y, s) / (s @ y)
        H = V.T @ H @ V + np.outer(s, s) / (s @ y)
    np.testing.assert_allclose(change, -H @ A @ points[-1], rtol=1e-9)
    assert len(state.pairs) == 3


def test_pairs_of_negative_curvature_are_left_out():
    direction, start = LBFGS(), at(*np.zeros(P))
    f = Objective(hill, start, 0.0)
    x, g = np.ones(P), np.array([1.0, -2.0, 3.0, 0.5])
    _, state = direction(Point(f, x, g), direction.init(start))
    change, state = direction(Point(f, x + 1, g - 0.1), state)
    assert state.pairs == () and (change == -(g - 0.1)).all()
    _, state = direction(Point(f, x + 2, g + 0.5), state)
    assert len(state.pairs) == 1
    _, state = direction(Point(f, x + 3, g + 0.4), state)
    assert len(state.pairs) == 1 and (state.pairs[0][1] == (g + 0.5) - (g - 0.1)).all()


def test_optax_momentum_is_a_direction():
    # A trace of 0.5 doubles what all gradients so far agree on: d = −(g₂ + ½g₁) after two steps.
    direction, start = Transformed(optax.sgd(1.0, momentum=0.5)), at(*np.zeros(P))
    f = Objective(hill, start, 0.0)
    state = direction.init(start)
    g1, g2 = np.arange(4.0), np.array([1.0, 1.0, -1.0, 2.0])
    change, state = direction(Point(f, np.zeros(P), g1), state)
    np.testing.assert_allclose(change, -g1)
    change, state = direction(Point(f, np.ones(P), g2), state)
    np.testing.assert_allclose(change, -(g2 + 0.5 * g1))


ADAM, MOMENTUM = Transformed(optax.adam(1.0)), Transformed(optax.sgd(1.0, momentum=0.9))


@pytest.mark.parametrize("direction", [ADAM, MOMENTUM], ids=["adam", "momentum"])
def test_optax_directions_climb(direction):
    result = line_search(Objective(hill, at(*np.zeros(P)), 5.0), direction, max_iter=60)
    assert_told(result)
    assert result.bound > 5 - 1e-2


# --- Walls, and directions that lead nowhere ---


def test_up_to_a_wall():
    result = line_search(Objective(cut_off, at(0.0, 0.0), 0.0), Gradient())
    assert_told(result)
    assert result.rejected > 0 and result.converged
    x = np.asarray(result.model.x)
    assert 1 - 1e-3 < x[0] < 1


def test_a_direction_that_leads_downhill_is_replaced_by_the_gradient():
    wrong = line_search(Objective(hill, at(*np.zeros(P)), 5.0), Uphill(), max_iter=8)
    right = line_search(Objective(hill, at(*np.zeros(P)), 5.0), Gradient(), max_iter=8)
    assert_told(wrong)
    assert abs(wrong.bound - right.bound) < 1e-5 * (5 - right.bound)
    nan = line_search(Objective(hill, at(*np.zeros(P)), 5.0), Always((np.nan, 0.0, 0.0, 0.0)), max_iter=1)
    np.testing.assert_allclose(nan.bound, right.history[0].bound, rtol=1e-9)


def test_where_the_gradient_leads_nowhere_either_it_ends():
    result = line_search(Objective(lying, at(0.0), 0.0), LBFGS())
    assert result.converged and result.history == () and result.bound == 0 and result.evaluations <= 60


def test_at_the_top_nothing_is_tried():
    result = line_search(Objective(hill, at(*TOP), 5.0), Gradient())
    assert result.converged and result.evaluations == 1 and result.bound == 5


def test_a_start_without_a_value_is_a_fit_error():
    with pytest.raises(FitError, match="not finite"):
        line_search(Objective(cut_off, at(1.5, 0.0), 0.0), Gradient())


def test_progress_sees_the_records_as_they_are_made():
    seen = []
    objective = Objective(hill, at(*np.zeros(P)), 5.0, progress=seen.append, scale=2.0)
    result = line_search(objective, LBFGS(), max_iter=30)
    assert tuple(seen) == result.history and all(r.total == 30 for r in seen)
    np.testing.assert_allclose(result.bound, 5.0, rtol=1e-9)
