"""The inner loop: Anderson's acceleration against linear algebra, and `converge` against natural steps one by one.

That it is finite and climbs from the prior for every likelihood, and that the profile's gradient is right, is tested in
`test_guarded_steps.py`.
"""

# Fields take floats and NumPy arrays and become JAX arrays in `cast`; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint import bounds
from pseudopoint.bounds import AtRows
from pseudopoint.data import dataset
from pseudopoint.devices import Devices
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import RobustMax, Softmax, StudentT
from pseudopoint.optimise.fullbatch import converge
from pseudopoint.optimise.fullbatch.anderson import Memory
from pseudopoint.optimise.fullbatch.inner import EXACTNESS, _full_step
from pseudopoint.optimise.minibatch import NaturalGradient, constant
from pseudopoint.optimise.minibatch.energy import with_q
from pseudopoint.params import cast
from pseudopoint.posteriors import IndependentLatents, Model, Whitened

N, M = 60, 10


def test_of_an_affine_map_as_many_changes_as_dimensions_find_the_fixed_point():
    # As GMRES does (Walker and Ni 2011, theorem 2.2): n changes determine an affine map of n dimensions.
    rng = np.random.default_rng(0)
    n = 5
    A, b = rng.normal(size=(n, n)), rng.normal(size=n)
    assert np.abs(np.linalg.eigvals(A)).max() > 1  # plain steps diverge
    x = jnp.zeros(n)
    memory = Memory.start(x, x, n)
    for step in range(n + 1):
        image = A @ x + b
        memory = memory.seen(image - x, image)
        if step == 0:
            np.testing.assert_array_equal(memory.leap(), image)  # no change is known
        x = memory.leap()
    np.testing.assert_allclose(x, np.linalg.solve(np.eye(n) - A, b), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(memory.forget().leap(), memory.image)


def test_the_oldest_change_is_dropped():
    rng = np.random.default_rng(1)
    F, images = rng.normal(size=(6, 4)), rng.normal(size=(6, 3))
    memory = Memory.start(jnp.zeros(4), jnp.zeros(3), 2)
    for residual, image in zip(F, images, strict=True):
        memory = memory.seen(jnp.asarray(residual), jnp.asarray(image))
    c = np.linalg.lstsq(np.diff(F, axis=0)[-2:].T, F[-1], rcond=None)[0]
    np.testing.assert_allclose(memory.leap(), images[-1] - c @ np.diff(images, axis=0)[-2:], rtol=1e-8)


def setting(likelihood, variance):
    """Three overlapping classes, or a curve with outliers, and q at the prior."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    f = X[:, 0] + np.sin(2 * X[:, 1]) + 0.5 * rng.standard_t(3, N)
    y = f if likelihood.latents == 1 else np.digitize(f, [-0.5, 0.7]).astype(float)
    lead = () if likelihood.latents == 1 else (likelihood.latents,)
    q = MeanPrecision(np.zeros((*lead, M)), np.broadcast_to(np.eye(M), (*lead, M, M)).copy())
    posterior = IndependentLatents(base=Whitened(X[:M], q)) if lead else Whitened(X[:M], q)
    return cast(Model(Matern52(np.ones(2), variance), likelihood, posterior), jnp.float64), dataset(X, y)


CASES = {
    "softmax": (Softmax(3), 1.0),
    "softmax of variance 4": (Softmax(3), 4.0),
    "robustmax": (RobustMax(3), 1.0),
    "student_t": (StudentT(0.3, 3.0), 2.0),
}
EVALUATIONS = (1, 2, 3, 4, 6, 9, 14, 20, 100)


@cache
def paths(name):
    """The bound that `converge` reaches with so many evaluations, and that before each of 500 plain steps."""
    return tuple(np.asarray(path) for path in _paths(*setting(*CASES[name])))


@jax.jit
def _paths(model, data):
    stepper = NaturalGradient(constant(1.0))

    def plain(at, _):
        *there, info = stepper.step(*at, data, N)
        return tuple(there), info.bound

    bound = lambda steps: bounds.elbo(converge(model, data, tolerance=1e-11, steps=steps), data, N).value
    _, path = jax.lax.scan(plain, (model, stepper.init(model, N)), length=500)
    return jax.lax.map(bound, jnp.asarray(EVALUATIONS)), path


@pytest.mark.parametrize("name", CASES)
def test_the_bound_never_falls_on_its_way_to_the_optimum_of_plain_steps(name):
    climbed, path = paths(name)
    assert np.isfinite(climbed).all() and np.diff(climbed).min() > -1e-8
    assert climbed[0] == pytest.approx(path[0], abs=1e-9)  # at the prior
    if name == "robustmax":
        assert climbed[-1] > path.max()  # there full plain steps go round in circles, and optima are several
    else:
        assert climbed[-1] == pytest.approx(path.max(), abs=1e-6)


def test_three_classes_take_a_tenth_of_the_steps_that_are_blind_to_each_other():
    climbed, path = paths("softmax of variance 4")
    enough = path.max() - 1e-6
    assert climbed[EVALUATIONS.index(9)] > enough > path[99]


def test_coupled_means_take_the_newton_step_of_methods_d_5():
    """m ← m + H⁻¹ ∂E/∂m with H = I + Σᵢ wᵢ (diag(πᵢ) − πᵢπᵢᵀ) ⊗ aᵢaᵢᵀ, formed and solved in NumPy, up to the residual
    at which conjugate gradients end."""
    model, data = setting(Softmax(3), 4.0)
    rng, C = np.random.default_rng(3), 3
    weight = rng.uniform(0.2, 2, N)
    data = dataset(data.X, data.y, weight)
    mean, root = rng.normal(size=(C, M)), rng.normal(size=(C, M, 2 * M))
    q = MeanPrecision(mean, np.eye(M) + root @ root.mT)
    moved = converge(with_q(model, q), data, steps=1).posterior.q.mean  # the start itself: nothing was evaluated before
    np.testing.assert_array_equal(moved, mean)

    K, Kuf = (np.asarray(model.kernel(data.X[:M], X)) for X in (data.X[:M], data.X))
    A = np.linalg.solve(np.linalg.cholesky(K), Kuf)
    S = np.linalg.inv(q.precision)
    v = 4.0 - np.sum(A**2, 0) + np.einsum("mn,cmk,kn->cn", A, S, A)
    slopes = model.likelihood.expectation_gradients(jnp.asarray(mean @ A), jnp.asarray(v), data.y)[0]
    pi = (np.arange(C)[:, None] == np.asarray(data.y)) - np.asarray(slopes)
    np.testing.assert_allclose(pi.sum(0), 1, atol=1e-6)
    W = np.einsum("cn,cd->cdn", pi, np.eye(C)) - np.einsum("cn,dn->cdn", pi, pi)
    H = np.eye(C * M) + np.einsum("n,cdn,mn,kn->cmdk", weight, W, A, A).reshape(C * M, C * M)
    dm = np.einsum("mn,n,cn->cm", A, weight, slopes) - mean
    step = np.asarray(newton_step(with_q(model, q), data))
    np.testing.assert_array_less(np.linalg.norm(H @ step.ravel() - dm.ravel()), EXACTNESS * np.linalg.norm(dm))
    best = np.linalg.solve(H, dm.ravel())
    np.testing.assert_allclose(step.ravel() @ H @ best, best @ H @ best, rtol=1e-2)


@jax.jit
def newton_step(model, data):
    at = AtRows.of(model, data)
    return _full_step(at, Devices(1), at.posterior.q, True)[1].mean - at.posterior.q.mean


def test_the_best_means_of_coupled_functions_sum_to_zero():
    """Their slopes do, Σ_c ([yᵢ = c] − π_c) = 0; from a start where they do not, of a signal so strong that the prior
    hardly tells."""
    model, data = setting(Softmax(3), 400.0)
    q = MeanPrecision(np.full((3, M), 5.0), np.broadcast_to(np.eye(M), (3, M, M)).copy())
    best = jax.jit(lambda model: converge(model, data, tolerance=1e-12))(with_q(model, q))
    np.testing.assert_allclose(np.sum(best.posterior.q.mean, axis=0), 0, atol=1e-4)
