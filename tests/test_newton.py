"""Projected Newton on functions whose minimum is known, within boxes that cut it off, and on a collapsed bound."""

from itertools import product
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from lattice import problem

from pseudopoint.bounds import collapsed
from pseudopoint.optimise.fullbatch import FitError, Objective, lbfgsb, projected_newton
from pseudopoint.optimise.fullbatch.newton import Minimum, descend, eigen_corrected, hessian
from pseudopoint.params import cast, positive, trainable

EPS = float(np.finfo(float).eps)


class Descent:
    """A run of `descend`: where it ended, its iterations, and every point that it asked for."""

    def __init__(self, function, start, lower: Any = -np.inf, upper: Any = np.inf):
        start = np.asarray(start, float)
        lower, upper = (np.broadcast_to(np.asarray(side, float), start.shape) for side in (lower, upper))
        self.asked, self.path, self.norms = [start], [start], []

        def watched(x):
            self.asked.append(x.copy())
            return function(x)

        def notify(x, norm):
            self.path.append(x)
            self.norms.append(norm)

        value, gradient = function(start)
        at = Minimum(start, value, gradient, False)
        self.end = descend(watched, at, lower, upper, max_iter=60, notify=notify)
        self.iterations = len(self.norms)
        # Whatever the function: it stays in the box, goes down, and tells the truth about where it is.
        assert all((lower <= x).all() and (x <= upper).all() for x in self.asked)
        assert (np.diff([function(x)[0] for x in self.path]) < 0).all()
        assert self.end.value == function(self.end.x)[0] and (self.path[-1] == self.end.x).all()


def quadratic(A, b):
    """½ xᵀAx − bᵀx."""
    return lambda x: (0.5 * x @ A @ x - b @ x, A @ x - b)


def random_quadratic(seed, P=4):
    rng = np.random.default_rng(seed)
    R = rng.normal(size=(P, P)) * 10 ** rng.uniform(-1, 1, P)
    return R @ R.T + 0.1 * np.eye(P), 5 * rng.normal(size=P), rng.uniform(-1, 1, P)


def rosenbrock(x):
    """100 (x₂ − x₁²)² + (1 − x₁)²."""
    away = x[1] - x[0] ** 2
    return 100 * away**2 + (1 - x[0]) ** 2, np.array([-400 * x[0] * away - 2 * (1 - x[0]), 200 * away])


def boxed_minimum(A, b, lower, upper):
    """The lowest point of a convex quadratic in a box: the best feasible of all 3^P choices of what is at which."""
    best, lowest = np.full(len(b), np.nan), np.inf
    for sides in product((-1, 0, 1), repeat=len(b)):
        side = np.array(sides)
        x, moving = np.where(side < 0, lower, upper), side == 0
        x[moving] = np.linalg.solve(A[np.ix_(moving, moving)], b[moving] - A[np.ix_(moving, ~moving)] @ x[~moving])
        value = quadratic(A, b)(x)[0]
        if (lower <= x).all() and (x <= upper).all() and value < lowest:
            best, lowest = x, value
    return best


# --- Functions ---


@pytest.mark.parametrize("seed", range(3))
def test_a_quadratic_takes_one_step_or_two(seed):
    A, b, start = random_quadratic(seed)
    run = Descent(quadratic(A, b), start)
    np.testing.assert_allclose(run.end.x, np.linalg.solve(A, b), rtol=1e-7, atol=1e-7)
    assert run.end.converged and run.iterations <= 2
    assert len(run.asked) - 1 == run.iterations * (2 * 4 + 1)  # 2P gradients for the Hessian, and the full step


@pytest.mark.parametrize("seed", range(8))
def test_a_quadratic_in_a_box_ends_where_enumeration_of_active_sets_does(seed):
    A, b, start = random_quadratic(seed)
    lower, upper = np.full(4, -0.6), np.array([0.2, 0.5, 1.0, 0.05])
    expected = boxed_minimum(A, b, lower, upper)
    assert ((expected == lower) | (expected == upper)).any()
    run = Descent(quadratic(A, b), np.clip(start, lower, upper), lower, upper)
    np.testing.assert_allclose(run.end.x, expected, atol=1e-6)
    assert run.end.converged and run.iterations <= 15


def test_rosenbrock_without_a_box():
    run = Descent(rosenbrock, [-1.2, 1.0])
    np.testing.assert_allclose(run.end.x, [1, 1], atol=1e-5)
    assert run.end.converged and run.iterations <= 30


@pytest.mark.parametrize("start", [(-1.2, 1.0), (0.5, -1.0), (-1.5, 2.0), (0.0, 0.0)])
def test_rosenbrock_in_a_box_that_cuts_off_its_minimum(start):
    # For x₁ ≤ ½ < 1 the lowest point has x₁ = ½ and x₂ = x₁².
    run = Descent(rosenbrock, start, [-1.5, -1.0], [0.5, 2.0])
    np.testing.assert_allclose(run.end.x, [0.5, 0.25], atol=1e-6)
    assert run.end.x[0] == 0.5 and run.end.converged and run.iterations <= 30
    assert run.norms[-1] < 1e-4  # of the projected gradient; the gradient itself is not small
    assert np.linalg.norm(run.end.gradient) > 0.5


def double_well(x):
    """Minima at (±1, 0), a saddle between them."""
    return x[0] ** 4 / 4 - x[0] ** 2 / 2 + x[1] ** 2 / 2 + x[0] * x[1] / 4, np.array(
        [x[0] ** 3 - x[0] + x[1] / 4, x[1] + x[0] / 4]
    )


@pytest.mark.parametrize("start", [(1e-3, 0.5), (-0.2, 0.0), (0.3, -1.0)])
def test_from_near_a_saddle_it_goes_to_a_minimum(start):
    run = Descent(double_well, start)
    # ∇f = 0 with x₂ = −x₁/4 and x₁² = 1 + 1/16.
    x = np.sqrt(17 / 16)
    np.testing.assert_allclose(np.abs(run.end.x), [x, x / 4], atol=1e-5)
    assert run.end.x[0] * run.end.x[1] < 0 and run.end.converged and run.iterations <= 12


def test_what_curves_downwards_goes_to_its_bound():
    run = Descent(lambda x: (x[0] ** 2 - x[1] ** 2, np.array([2 * x[0], -2 * x[1]])), [0.7, 0.1], -2, 3)
    np.testing.assert_allclose(run.end.x, [0, 3], atol=1e-6)
    assert run.end.converged and run.iterations <= 8


def test_a_minimum_at_a_corner_is_reached_exactly():
    A, b = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([9.0, -8.0])
    run = Descent(quadratic(A, b), [0.5, 0.5], 0, 1)
    assert run.end.x.tolist() == [1, 0] and run.end.converged and run.iterations <= 3


def test_what_is_held_is_not_probed():
    A, b = np.diag([1.0, 2.0, 3.0]), np.array([1.0, -5.0, 1.0])
    run = Descent(quadratic(A, b), [0.0, 0.0, 0.0], 0, 10)
    np.testing.assert_allclose(run.end.x, [1, 0, 1 / 3], atol=1e-7)
    assert len(run.asked) - 1 == run.iterations * (2 * 2 + 1) and all(x[1] == 0 for x in run.asked)


def test_a_start_on_the_bound_leaves_it_where_the_function_falls_inwards():
    run = Descent(quadratic(np.diag([1.0, 50.0]), np.array([2.0, 10.0])), [0.0, 0.0], 0, 5)
    np.testing.assert_allclose(run.end.x, [2, 0.2], atol=1e-7)
    assert run.iterations <= 2


def test_a_number_whose_bounds_are_equal_stays():
    A, b, _ = random_quadratic(1)
    lower, upper = np.array([-9, 0.3, -9, -9]), np.array([9, 0.3, 9, 9])
    run = Descent(quadratic(A, b), [0, 0.3, 0, 0], lower, upper)
    np.testing.assert_allclose(run.end.x, boxed_minimum(A, b, lower, upper), atol=1e-6)


def test_a_flat_direction_does_no_harm():
    run = Descent(lambda x: ((x.sum() - 1) ** 2, np.full(2, 2 * (x.sum() - 1))), [3.0, -1.0])
    np.testing.assert_allclose(run.end.value, 0, atol=1e-12)
    np.testing.assert_allclose(run.end.x, [2.5, -1.5], atol=1e-3)  # the nearest minimum: no step along the valley
    assert run.end.converged and run.iterations <= 2


def barrier(x):
    """x − log x, and (x₂ − 1)² if x₁ > 0; the Newton step from x₁ > 2 crosses the wall at 0."""
    if x[0] <= 0:
        return np.inf, np.zeros(2)
    return x[0] - np.log(x[0]) + (x[1] - 1) ** 2, np.array([1 - 1 / x[0], 2 * (x[1] - 1)])


def test_a_step_over_a_wall_behind_the_minimum_is_shortened():
    run = Descent(barrier, [3.0, 0.0])
    assert any(x[0] <= 0 for x in run.asked)
    np.testing.assert_allclose(run.end.x, [1, 1], atol=1e-5)
    assert run.end.converged and run.iterations <= 12


def before_a_wall(x):
    """A quadratic that is undefined for x₁ > 1."""
    return quadratic(np.diag([3.0, 1.0]), np.array([0.0, 1.0]))(x) if x[0] <= 1 else (np.inf, np.zeros(2))


def test_a_probe_beyond_the_wall_is_replaced_by_a_one_sided_difference():
    run = Descent(before_a_wall, [1.0, 5.0])
    assert any(x[0] > 1 for x in run.asked)
    np.testing.assert_allclose(run.end.x, [0, 1], atol=1e-6)
    assert run.iterations <= 2


def on_a_line(x):
    """Defined for |x₁ − ¼| < 1e-6 alone; x₂ moves freely."""
    good = abs(x[0] - 0.25) < 1e-6
    return (x[1] ** 2, np.array([0.0, 2 * x[1]])) if good else (np.inf, np.zeros(2))


def test_what_cannot_be_probed_does_not_stop_the_others():
    run = Descent(on_a_line, [0.25, 4.0])
    np.testing.assert_allclose(run.end.x, [0.25, 0], atol=1e-6)
    x, everywhere = np.array([0.25, 4.0]), np.full(2, np.inf)
    H = hessian(on_a_line, Minimum(x, *on_a_line(x), False), -everywhere, everywhere, np.arange(2), EPS)
    np.testing.assert_allclose(H, 2 * np.eye(2), rtol=1e-9)  # as stiff as the stiffest that is known


def test_where_no_step_goes_down_it_ends_without_a_minimum():
    run = Descent(lambda x: (-x[0], np.ones(1)), [0.0])
    assert not run.end.converged and run.iterations == 0 and run.end.x == 0


def test_at_a_minimum_nothing_is_asked_for():
    run = Descent(rosenbrock, [1.0, 1.0])
    assert run.end.converged and len(run.asked) == 1


# --- The Hessian ---


@pytest.mark.parametrize("lower, tolerance", [(-np.inf, 1e-5), (0.0, 0.1)])
def test_the_hessian_is_that_of_the_function_also_at_a_bound(lower, tolerance):
    x = np.array([0.0, 0.7])
    expected = [[1200 * x[0] ** 2 - 400 * x[1] + 2, -400 * x[0]], [-400 * x[0], 200]]
    box = np.full(2, lower), np.full(2, np.inf)
    H = hessian(rosenbrock, Minimum(x, *rosenbrock(x), False), *box, np.arange(2), EPS)
    assert (H == H.T).all()
    np.testing.assert_allclose(H, expected, atol=tolerance)  # one-sided: an error of h ∂³f/2 ≈ 0.03


def test_the_corrected_hessian_is_positive_definite():
    rng = np.random.default_rng(0)
    for P in (1, 2, 5):
        for rank in range(P + 1):
            R, signs = rng.normal(size=(P, P)), rng.choice([-1.0, 1.0], P) * (np.arange(P) < rank)
            H = R @ np.diag(signs * 10 ** rng.uniform(-5, 5, P)) @ R.T
            H = 0.5 * (H + H.T)
            curvature, U = eigen_corrected(H, EPS)
            assert (curvature > 0).all() and curvature.max() <= 1.01e8 * curvature.min()
            np.testing.assert_allclose(U @ U.T, np.eye(P), atol=1e-12)
    H = np.array([[2.0, 0.5], [0.5, 1.0]])
    curvature, U = eigen_corrected(H, EPS)
    np.testing.assert_allclose(U * curvature @ U.T, H, rtol=1e-14)  # nothing to correct
    np.testing.assert_allclose(eigen_corrected(np.diag([3.0, -2.0]), EPS)[0].tolist(), [2, 3], rtol=1e-14)


# --- Models ---


class Point(eqx.Module):
    x: object
    scale: object = positive()


def at(*x, scale=3.0):
    return trainable(cast(Point(np.array(x, float), np.asarray(scale)), jnp.float64))


def hill(point, data):
    """Maximum `data` at x = (1, 2) and scale = e; NaN where log scale > 3."""
    away = point.x - jnp.array([1.0, 2.0])
    value = data - away @ away * (1 + away[0] ** 2) - (jnp.log(point.scale) - 1) ** 2
    return jnp.where(jnp.log(point.scale) > 3, jnp.nan, value)


def test_the_maximum_of_a_bound_and_what_is_told_on_the_way():
    seen = []
    result = projected_newton(Objective(hill, at(3.0, -1.0), 7.0, progress=seen.append), max_iter=40)
    np.testing.assert_allclose(result.model.x, [1, 2], atol=1e-4)
    np.testing.assert_allclose(result.model.scale, np.e, rtol=1e-4)
    np.testing.assert_allclose(result.bound, 7.0, rtol=1e-8)
    assert result.converged and result.rejected == 0 and result.aux is None
    assert tuple(seen) == result.history and [r.step for r in seen] == list(range(1, len(seen) + 1))
    assert (np.diff([r.bound for r in seen]) >= 0).all() and seen[-1].bound <= result.bound
    assert (np.diff([r.seconds for r in seen]) >= 0).all() and seen[0].seconds > 0
    assert all(np.isfinite(r.gradient_norm) and r.step_size > 0 and r.total == 40 for r in seen)
    assert seen[-1].gradient_norm < 1e-3 * seen[0].gradient_norm
    assert result.evaluations >= len(seen) * (2 * 3 + 1) + 1


def test_a_box_is_in_unconstrained_numbers_and_a_start_outside_is_moved_into_it():
    # The start (bound 6.99) is better than all the box has, and must not come back.
    start = Objective(hill, at(1.0, 1.9, scale=np.e), 7.0)
    result = projected_newton(start, box=([-5, -5, -5], [0.5, 5, np.log(2)]))
    np.testing.assert_allclose(result.model.x, [0.5, 2], atol=1e-5)
    np.testing.assert_allclose(result.model.scale, 2.0, rtol=1e-12)
    np.testing.assert_allclose(result.bound, 7 - 0.25 * 1.25 - (np.log(2) - 1) ** 2, rtol=1e-8)
    assert result.converged and result.history[-1].gradient_norm < 1e-4  # of the projected gradient


def test_trial_points_without_a_value_are_counted():
    result = projected_newton(Objective(hill, at(1.0, 2.0, scale=np.exp(2.99995)), 7.0))
    assert result.rejected >= 1
    np.testing.assert_allclose(result.bound, 7.0, rtol=1e-8)


def test_the_number_of_iterations_is_kept_to():
    result = projected_newton(Objective(hill, at(3.0, -1.0), 7.0), max_iter=2)
    assert len(result.history) == 2 and not result.converged


def test_a_start_without_a_value_is_a_fit_error_and_an_empty_box_a_value_error():
    with pytest.raises(FitError, match="not finite"):
        projected_newton(Objective(hill, at(0.0, 0.0, scale=np.exp(4)), 7.0))
    with pytest.raises(ValueError, match="box is empty"):
        projected_newton(Objective(hill, at(0.0, 0.0), 7.0), box=(1, 0))


def vfe(model, data):
    return collapsed(model, data).standard


def test_means_pn_ends_where_means_l_bfgs_b_does():
    # Izmailov 3.3: the collapsed bound with fixed Z, two lengthscales, variance and noise.
    p = problem(1, N=80, M=8)
    start = trainable(p._replace(noise=np.zeros(80)).sparse(), lambda m: m.posterior.Z)
    data, N = p._replace(noise=np.zeros(80)).data(), 80.0
    assert start.vector.shape == (4,)
    of = lambda numbers: Objective(vfe, numbers, data, scale=N)
    newton, quasi = projected_newton(of(start)), lbfgsb(of(start))
    assert newton.converged and quasi.converged and len(newton.history) <= 12
    assert newton.bound > float(vfe(start.model, data)) + 0.01 * N  # there was something to gain
    np.testing.assert_allclose(newton.bound / N, quasi.bound / N, rtol=0, atol=1e-6)
    assert newton.bound >= quasi.bound - 1e-6
    # In a box that cuts off its noise, the bound is that of the noise held at the border.
    edge = np.log(2 * float(newton.model.likelihood.variance))
    lower = np.full(4, -np.inf)
    lower[_place(start)] = edge
    boxed = projected_newton(of(start), box=(lower, np.inf))
    lowest = start.bijectors[-1].lower + np.exp(edge)
    np.testing.assert_allclose(boxed.model.likelihood.variance, lowest, rtol=1e-12)
    held = trainable(boxed.model, lambda m: m.posterior.Z, lambda m: m.likelihood)
    assert boxed.converged and boxed.bound < newton.bound
    np.testing.assert_allclose(boxed.bound / N, lbfgsb(of(held)).bound / N, rtol=0, atol=1e-6)


def _place(start):
    """Where the likelihood's variance is in the vector."""
    moved = start.rebuild(start.vector + jnp.arange(4.0) + 1)
    return int(np.rint(np.log(float(moved.likelihood.variance / start.model.likelihood.variance)))) - 1
