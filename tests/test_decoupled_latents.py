"""The orthogonally decoupled family with several latent functions: each one's joint step of the mean, on one basis."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast`; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles as o
import pytest
from jaxtyping import Float
from lattice import LENGTHSCALE, VARIANCE, close, precision_form, problem, random_q

from pseudopoint import bounds
from pseudopoint.data import dataset, take
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian, Heteroscedastic, Softmax
from pseudopoint.likelihoods.base import AbstractLikelihood, Latent, Moments, PerRow
from pseudopoint.optimise.minibatch import ExactMean, JointMean, NaturalGradient, OrthogonalNaturalGradient, constant
from pseudopoint.params import Number, cast, trainable
from pseudopoint.posteriors import IndependentLatents, Model, Orthogonal, Whitened

N, M, G, B = 24, 6, 5, 8
with jax.enable_x64(True):
    P = problem(3, N, M, weighted=True)
    ROWS = P.data()
rng = np.random.default_rng(11)
O, a = rng.normal(size=(G, 2)), 0.5 * rng.normal(size=(3, G))
QS = [random_q(c, M) for c in range(3)]


def stacked(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def each(c) -> Orthogonal:
    """The posterior of latent function c."""
    return cast(Orthogonal(P.Z, O, precision_form(*QS[c]), a[c], jitter=0.0), jnp.float64)


def several(likelihood, kernel=None) -> Model:
    """Any q and any a of each latent function; with kernels of their own if they are given."""
    C = likelihood.latents
    own = lambda p: [p.q, p.a]
    posterior = eqx.tree_at(own, each(0), stacked([own(each(c)) for c in range(C)]))
    latents = IndependentLatents(base=posterior, separate=kernel is not None)
    return cast(Model(kernel or Matern52(LENGTHSCALE, VARIANCE), likelihood, latents), jnp.float64)


@partial(jax.jit, static_argnums=3)
def steps(stepper, model, batch, count=1):
    """The model after so many steps, the states before and after, and what is known of each step."""

    def body(carry, _):
        *carry, info = stepper.step(*carry, batch, N)
        return tuple(carry), info

    state = stepper.init(model, N)
    (end, after), info = jax.lax.scan(body, (model, state), length=count)
    return end, state, after, info


class SideBySide(AbstractLikelihood):
    """Every row seen through all latent functions, by each with Gaussian noise of its own."""

    concave: ClassVar[bool] = True
    variance: Float[Number, " C"]
    noise: PerRow = 0.0

    @property
    def latents(self) -> int:
        """C."""
        return len(self.variance)

    def at(self, rows: Any) -> "SideBySide":
        """With noise of the rows."""
        return SideBySide(self.variance, rows.noise)

    def log_prob(self, f: Latent, y: PerRow) -> PerRow:
        """The sum of all."""
        return sum(Gaussian(v + self.noise).log_prob(f[c], y) for c, v in enumerate(self.variance))

    def moments(self, f: Latent) -> Moments:
        """Of the first."""
        return Gaussian(self.variance[0]).moments(f[0])

    def expectation(self, mean: Latent, variance: Latent, y: PerRow) -> PerRow:
        """The sum of all."""
        return sum(Gaussian(v + self.noise).expectation(mean[c], variance[c], y) for c, v in enumerate(self.variance))


@pytest.mark.parametrize(
    ("rule", "separate"), [(JointMean(), False), (JointMean(), True), (ExactMean(), False)], ids=str
)
def test_functions_of_independent_likelihoods_step_as_single_ones_side_by_side(rule, separate):
    noises, scales = np.array([0.15, 0.4]), (1.0, 1.7 if separate else 1.0)
    stepper = OrthogonalNaturalGradient(constant(0.4), mean=rule, tight=False)
    kernels = [cast(Matern52(scale * LENGTHSCALE, VARIANCE), jnp.float64) for scale in scales]
    model = several(SideBySide(noises), stacked(kernels) if separate else None)
    new, _, state, info = steps(stepper, model, ROWS, 2)
    assert not info.rejected.any()
    single = [Model(kernels[c], cast(Gaussian(noises[c]), jnp.float64), each(c)) for c in range(2)]
    single = [steps(stepper, model, ROWS, 2) for model in single]
    for c, (alone, _, after, _) in enumerate(single):
        ours = jax.tree.map(lambda x, c=c: x[c], (new.posterior.base.q, new.posterior.base.a, state.rule))
        for mine, truth in zip(
            jax.tree.leaves(ours), jax.tree.leaves((alone.posterior.q, alone.posterior.a, after.rule)), strict=True
        ):
            close(mine, truth, 1e-11)
    close(info.bound, sum(of[3].bound for of in single), 1e-11)
    close(info.gradient_norm**2, sum(of[3].gradient_norm ** 2 for of in single), 1e-11)


# --- Against dense formulas -------------------------------------------------------------------------------------------


def softmax_slopes(f, y):
    """E p, αᵢ, βᵢ and ωᵢ by averages over the grid."""
    p = np.exp(f - f.max(0))
    p /= p.sum(0)
    own = (np.arange(len(f))[:, None] == y)[:, None, :]

    def curvature(average):
        likely = average(p)
        return np.where(likely.max(0) > 0.5, 2 * average(p * (1 - p)), likely)

    return own - p, p * (1 - p), curvature


def heteroscedastic_slopes(f, y, scale=0.4):
    """The same for N(y; f₁, s² e^{2f₂})."""
    precision = np.exp(-2 * f[1]) / scale**2
    misfit = (y - f[0]) ** 2 * precision
    beta = np.stack([precision, 2 * misfit])
    slope = np.stack([(y - f[0]) * precision, misfit - 1])
    return slope, beta, lambda average: np.maximum(average(beta), np.array([[0.0], [2.0]]))


CASES = {
    "softmax": (Softmax(3), np.digitize(P.y, [-0.5, 0.5]).astype(float), softmax_slopes),
    "heteroscedastic": (Heteroscedastic(0.4), P.y, heteroscedastic_slopes),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_that_of_each_function_s_own_dense_system(name):
    likelihood, y, slopes = CASES[name]
    C, gamma, rows = likelihood.latents, 0.3, np.arange(B)
    model, data = several(likelihood), dataset(P.X, y, P.weight)
    new, _, _, info = steps(OrthogonalNaturalGradient(constant(gamma)), model, take(data, rows))
    assert not info.rejected.any()
    # In v of Z and in a itself, where the prior of a is C.
    k = lambda A, B: o.matern52(A, B, LENGTHSCALE, VARIANCE)
    L = np.linalg.cholesky(k(P.Z, P.Z))
    A, A_O = np.linalg.solve(L, k(P.Z, P.X[rows])), np.linalg.solve(L, k(P.Z, O))
    c, K_a = k(O, P.X[rows]) - A_O.T @ A, k(O, O) - A_O.T @ A_O
    phi = np.concatenate([A, c])
    prior = np.block([[np.eye(M), np.zeros((M, G))], [np.zeros((G, M)), K_a]])
    # f on a grid of 40 nodes for each function and row, [C, 40^C, B].
    mean = np.stack([A.T @ QS[i][0] + c.T @ a[i] for i in range(C)])
    variance = np.stack([np.sum(A * (QS[i][1] @ A), 0) + VARIANCE - np.sum(A**2, 0) for i in range(C)])
    x, w = np.polynomial.hermite_e.hermegauss(40)
    grid = np.stack([g.ravel() for g in np.meshgrid(*[x] * C)])
    weight = np.prod(np.stack([g.ravel() for g in np.meshgrid(*[w / w.sum()] * C)]), 0)
    f = mean[:, None] + np.sqrt(variance)[:, None] * grid[:, :, None]
    average = lambda values: np.einsum("q,cqb->cb", weight, np.broadcast_to(values, f.shape))
    slope, beta, curvature = slopes(f, y[rows])
    alpha, beta, omega = (N / B * P.weight[rows] * of for of in (average(slope), average(beta), curvature(average)))
    for i in range(C):
        m, S = QS[i]
        precision = np.linalg.inv(S)
        before = prior.copy()
        before[:M, :M] = precision
        J = (1 - gamma) * before + gamma * (prior + (phi * omega[i]) @ phi.T)
        step = gamma * np.linalg.solve(J, phi @ alpha[i] - prior @ np.concatenate([m, a[i]]))
        ours = new.posterior.base
        close(ours.q.mean[i] - m, step[:M], 1e-6)
        close(ours.a[i] - a[i], step[M:], 1e-6)
        close(ours.q.precision[i], (1 - gamma) * precision + gamma * (np.eye(M) + (A * beta[i]) @ A.T), 1e-6)
        assert np.abs(step[M:]).max() > 1e-2


# --- Many steps -------------------------------------------------------------------------------------------------------


def test_full_steps_of_softmax_climb_from_the_prior_to_where_the_bound_has_no_slope():
    rng = np.random.default_rng(2)
    X = rng.uniform(-2, 2, size=(N * 5, 2))
    f = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.5 * np.sin(5 * X[:, 1])
    data = dataset(X, np.digitize(f + rng.logistic(0, 0.2, len(f)), [-0.5, 0.5]).astype(float))
    q = MeanPrecision(np.zeros((3, M)), np.stack([np.eye(M)] * 3))
    kernel = Matern52(np.array([0.7, 0.5]), np.asarray(1.5))
    posterior = Orthogonal(X[:M], X[M:30], q, np.zeros((3, 24)))
    model = cast(Model(kernel, Softmax(3), IndependentLatents(base=posterior)), jnp.float64)

    @jax.jit
    def climb(model):
        def body(stepper, carry, _):
            model, state, info = stepper.step(*carry, data, len(data))
            return (model, state), jnp.where(info.rejected, jnp.nan, info.bound)

        def course(stepper, model, count):
            return jax.lax.scan(partial(body, stepper), (model, stepper.init(model, len(data))), length=count)

        full = OrthogonalNaturalGradient(constant(1.0))
        (end, _), path = course(full, model, 80)
        (stay, _), level = course(OrthogonalNaturalGradient(constant(1.0), mean=ExactMean()), end, 5)
        (_, _), without = course(NaturalGradient(constant(1.0)), model, 80)
        return end, path, stay, level, without

    @jax.jit
    def slopes(model):
        own = lambda m: (m.posterior.base.q, m.posterior.base.a)
        value = lambda parts: bounds.elbo(eqx.tree_at(own, model, parts), data, len(data)).value
        return jnp.stack([jnp.abs(slope).max() for slope in jax.tree.leaves(jax.grad(value)(own(model)))])

    end, path, stay, level, without = climb(model)
    assert np.isfinite(path).all() and (np.diff(path) > -1e-9).all()
    assert (slopes(end) < 1e-5 * slopes(model)).all()
    assert path[-1] > without[-1] + 5 > path[0] + 20  # O is worth something, and so is Z
    # The optimum is one of the other rules too.
    close(level, np.full(5, path[-1]), 1e-9)
    close(stay.posterior.base.a, end.posterior.base.a, 1e-5)


# --- What is shared, and what is rejected -----------------------------------------------------------------------------


def factorised(jaxpr, looped=False):
    """(size, whether inside a map) of every Cholesky factor that a program makes. A loop of retries is none."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "cholesky":
            found.append((eqn.outvars[0].aval.shape, looped))
        inner = looped or eqn.primitive.name == "scan"
        for sub in jax.tree.leaves(tuple(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(sub, "eqns") or hasattr(getattr(sub, "jaxpr", None), "eqns"):
                found += factorised(sub if hasattr(sub, "eqns") else sub.jaxpr, inner)
    return found


def test_they_share_one_basis_and_its_factors():
    stepper = OrthogonalNaturalGradient(constant(0.3))
    data = dataset(P.X, CASES["softmax"][1], P.weight)
    one = lambda model, data: stepper.step(model, stepper.init(model, N), data, N)[0]
    single = Model(cast(Matern52(LENGTHSCALE, VARIANCE), jnp.float64), cast(Gaussian(0.15), jnp.float64), each(0))
    alone = factorised(jax.make_jaxpr(one)(single, ROWS).jaxpr)
    of = factorised(jax.make_jaxpr(one)(several(Softmax(3)), data).jaxpr)
    count = lambda found, size, looped: found.count(((size, size), looped))
    # K_uu and C as for one function, those of P and of J one after another, and none for all at once.
    assert count(of, G, False) == count(alone, G, False) > 0 and count(of, G, True) == 0
    assert count(of, M + G, False) == 0 < count(of, M + G, True)
    assert {shape for shape, _ in of} == {(M, M), (G, G), (M + G, M + G)}


def test_hyperparameters_get_the_gradient_of_the_elbo_in_the_same_pass_and_a_bad_batch_is_undone():
    stepper, (likelihood, y, _) = (
        OrthogonalNaturalGradient(constant(0.3), hyper_optimiser=optax.sgd(1e-3)),
        CASES["softmax"],
    )
    batch = jax.tree.map(jnp.asarray, take(dataset(P.X, y, P.weight), np.arange(B)))
    hyper = lambda model: trainable(model, lambda m: m.posterior.base.q, lambda m: m.posterior.base.a)
    model = several(likelihood)
    at = hyper(model)
    value, slope = jax.jit(jax.value_and_grad(lambda v: bounds.elbo(at.rebuild(v), batch, N).value))(at.vector)
    new, _, _, info = steps(stepper, model, batch)
    close((hyper(new).vector - at.vector) / 1e-3, slope, 1e-9)
    close(info.bound[0], value, 1e-11)
    assert np.abs(slope).min() > 1e-4
    bad = eqx.tree_at(lambda d: d.weight, batch, batch.weight.at[2].set(jnp.nan))
    same, before, after, info = steps(stepper, model, bad)
    assert info.rejected.all() and after.guard.scale == 0.5
    for mine, old in zip(jax.tree.leaves((same, after[:-1])), jax.tree.leaves((model, before[:-1])), strict=True):
        np.testing.assert_array_equal(mine, old)


def test_several_of_another_family_are_refused():
    q = stacked([cast(precision_form(*of), jnp.float64) for of in QS])
    with pytest.raises(TypeError, match="needs the posterior Orthogonal, or IndependentLatents of it"):
        OrthogonalNaturalGradient(constant(0.5)).init(P.model(IndependentLatents(base=Whitened(P.Z, q))), N)
