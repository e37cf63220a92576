"""What every family of posteriors must do, by its interface alone. A new one joins with a line in POSTERIORS."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from collections.abc import Callable
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles as o
import pytest
from conformance import finite_differences
from lattice import LENGTHSCALE, NOISE, VARIANCE, close, precision_form, problem, random_q
from model_files import assert_same
from programs import batched_factors

from pseudopoint import bounds
from pseudopoint.estimators import serving
from pseudopoint.gaussians import MeanChol, MeanCovariance, MeanDiagonal
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian, Heteroscedastic
from pseudopoint.optimise.minibatch import with_q
from pseudopoint.params import cast, trainable
from pseudopoint.persistence import load, save
from pseudopoint.posteriors import (
    AbstractPosterior,
    Decoupled,
    DiagonalPrecision,
    DirectPrecision,
    Hybrid,
    IndependentLatents,
    InverseHybrid,
    LogPrecision,
    Model,
    Orthogonal,
    Predictors,
    PseudoObservations,
    SoftplusPrecision,
    SolveGP,
    Unwhitened,
    Whitened,
)

N, M, G = 12, 5, 4
with jax.enable_x64(True):
    P = problem(5, N, M)
Z, XS = P.Z, jnp.asarray(P.Xs)
O = np.random.default_rng(12).normal(size=(G, 2))


def numbers(seed, size):
    return np.random.default_rng([13, seed]).normal(size=size)


def chol(seed, size):
    mean, cov = random_q(seed, size)
    return MeanChol(mean, np.linalg.cholesky(cov))


def weights(seed):
    """μ or θ, and g, of an O(M) family."""
    return numbers(seed, M), np.exp(numbers(seed + 1, M))


# By name, a member of the family that is neither the prior nor an optimum; another seed is another member.
POSTERIORS: dict[str, Callable[[int], AbstractPosterior]] = {
    "whitened": lambda seed: Whitened(Z, precision_form(*random_q(seed, M)), 0.0),
    "unwhitened": lambda seed: Unwhitened(Z, chol(seed, M), 0.0),
    "mean field": lambda seed: Whitened(Z, MeanDiagonal(numbers(seed, M), np.exp(numbers(seed + 1, M))), 0.0),
    "O(M), log g": lambda seed: DiagonalPrecision(Z, LogPrecision(*weights(seed)), 0.0),
    "O(M), softplus g": lambda seed: DiagonalPrecision(Z, SoftplusPrecision(*weights(seed)), 0.0),
    "O(M), g itself": lambda seed: DiagonalPrecision(Z, DirectPrecision(*weights(seed)), 0.0),
    "O(M), observations": lambda seed: DiagonalPrecision(Z, PseudoObservations(*weights(seed)), 0.0),
    "decoupled": lambda seed: Decoupled(
        Z, O, numbers(seed, G), np.eye(M) + np.tril(numbers(seed + 1, (M, M))), jitter=0.0
    ),
    "hybrid": lambda seed: Hybrid(Z, O, chol(seed, M), numbers(seed, G), jitter=0.0),
    "inverse hybrid": lambda seed: InverseHybrid(
        Z, O, numbers(seed, G), numbers(seed + 1, M), np.eye(M) + np.tril(numbers(seed + 2, (M, M))), jitter=0.0
    ),
    "orthogonal": lambda seed: Orthogonal(Z, O, chol(seed, M), numbers(seed, G), jitter=0.0),
    "solve": lambda seed: SolveGP(Z, O, chol(seed, M), chol(seed + 1, G), jitter=0.0),
}
EACH = pytest.mark.parametrize("name", POSTERIORS)


def made(name, seed=0):
    return cast(Model(Matern52(LENGTHSCALE, VARIANCE), Gaussian(NOISE), POSTERIORS[name](seed)), jnp.float64)


def points(posterior):
    """All points of a family: q(f) elsewhere is q there and the prior given it."""
    return jnp.concatenate([jnp.asarray(each) for each in posterior.points])


@jax.jit
def look(posterior, kernel):
    """KL, q(f) at the rows in all forms, and predictions at all points."""
    projection = posterior.project(kernel)
    marginals, predictor = projection.marginals(XS), projection.predictor()
    T = points(posterior)
    moments = projection.moments(XS)
    return (
        projection.divergence,
        marginals.moments,
        moments,
        predictor(XS),
        (predictor(T)[0], predictor.covariance(T)),
    )


@cache
def seen(name, seed=0):
    model = made(name, seed)
    return jax.tree.map(np.asarray, look(model.posterior, model.kernel))


@EACH
def test_marginals_moments_and_predictions_are_one(name):
    _, marginals, moments, predictions, _ = seen(name)
    for other in (moments, predictions):
        for ours, theirs in zip(marginals, other, strict=True):
            close(ours, theirs, 1e-11)
    assert (marginals[1] > 0).all()


@EACH
def test_predictions_as_served_are_the_same(name, monkeypatch):
    monkeypatch.setattr(serving, "TILE", 2)
    model = made(name)
    predictor = jax.jit(lambda m: m.posterior.project(m.kernel).predictor())(model)
    served = serving.served(predictor, "float64")
    form = type(served.own if isinstance(served, Predictors) else served)
    assert form is (serving.SquarePredictor if (predictor.s > 1).any() else serving.TriangularPredictor)
    for ours, theirs in zip(served(XS), predictor(XS), strict=True):
        close(ours, theirs, 1e-11)


@EACH
def test_divergence_is_that_of_the_dense_gaussians_at_all_points(name):
    """KL[q(f) ‖ p(f)] of the processes, as they agree given the values at all points (Matthews et al. 2016)."""
    divergence, *_, (mean, cov) = seen(name)
    T = np.asarray(points(made(name).posterior))
    close(divergence, o.gauss_kl(mean, cov, 0 * mean, o.matern52(T, T, LENGTHSCALE, VARIANCE)), 1e-9)


@EACH
def test_slopes_are_those_of_finite_differences(name):
    data, every = P.data(), trainable(made(name))
    bound = jax.jit(lambda vector: bounds.elbo(every.rebuild(vector), data, N).standard)
    along = numbers(9, len(every.vector))
    slope = jax.grad(bound)(every.vector) @ along
    (truth,) = finite_differences(lambda t: bound(every.vector + t * along), [np.zeros(())], 1e-3)
    close(slope, truth, 1e-6)


def two_functions(name, separate=False):
    """A model of two latent functions of the family, which may have a kernel each."""
    model = made(name)
    own = lambda p: [getattr(p, field) for field in p.own]
    twice = lambda tree: jax.tree.map(lambda x: jnp.stack([x, 2 * x]), tree)
    each = eqx.tree_at(own, model.posterior, twice(own(model.posterior)))
    kernel = twice(model.kernel) if separate else model.kernel
    return Model(kernel, Heteroscedastic(), IndependentLatents(base=each, separate=separate))


@EACH
@pytest.mark.parametrize("separate", [False, True])
def test_each_matrix_of_two_functions_is_factorised_alone(name, separate):
    model, data = two_functions(name, separate), P.data()
    every = trainable(model)
    bound = lambda vector: bounds.elbo(every.rebuild(vector), data, N).standard
    predictions = lambda vector: every.rebuild(vector).predictor()(XS)
    for function in (jax.value_and_grad(bound), predictions):
        assert not batched_factors(jax.make_jaxpr(function)(every.vector))


@EACH
@pytest.mark.parametrize("several", [False, True])
def test_with_another_q_at_known_rows_bounds_and_slopes_are_those_of_that_q(name, several):
    model = two_functions(name) if several else made(name)
    data, every = P.data(), trainable(model)

    def bound(vector, known):
        model = every.rebuild(vector)
        if not known:
            return bounds.elbo(model, data, N).choose(not several)
        other = with_q(model, jax.tree.map(lambda x: 2 * x, model.posterior.q))
        at = bounds.AtRows.of(other, data).with_q(model.posterior.q)
        return bounds.elbo_at(at, N).choose(not several)

    both = jax.jit(lambda vector: tuple(jax.value_and_grad(bound)(vector, known) for known in (True, False)))
    (ours, slope), (truth, gradient) = both(every.vector)
    close(ours, truth, 1e-12)
    close(slope, gradient, 1e-9)


DENSE = [name for name in POSTERIORS if hasattr(POSTERIORS[name](0).q, "covariance")]


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("name", DENSE)
def test_slopes_in_a_covariance_are_symmetric(name, tight):
    """Natural steps take them for it."""
    model = made(name)
    q = model.posterior.q
    energy = lambda S: bounds.energy(with_q(model, MeanCovariance(q.mean, S, known=True)), P.data(), N, tight=tight)
    slope = np.asarray(jax.jit(jax.grad(energy))(q.covariance()))
    assert np.abs(slope).max() > 0.1
    close(slope, slope.T, 1e-12)


@EACH
def test_several_functions_are_single_ones_side_by_side(name):
    pair = [made(name, seed) for seed in (0, 20)]
    own = lambda p: [getattr(p, field) for field in p.own]
    each = eqx.tree_at(own, pair[0].posterior, jax.tree.map(lambda *x: jnp.stack(x), *(own(m.posterior) for m in pair)))
    divergence, *several = jax.tree.map(np.asarray, look(IndependentLatents(base=each), pair[0].kernel))
    single = [seen(name, seed) for seed in (0, 20)]
    close(divergence, single[0][0] + single[1][0], 1e-11)
    for c in range(2):
        for ours, alone in zip(jax.tree.leaves(several), jax.tree.leaves(single[c][1:]), strict=True):
            close(ours[c], alone, 1e-11)


@EACH
def test_it_comes_back_from_a_file(name, tmp_path):
    save(tmp_path / "q", made(name).posterior, kind="posterior")
    assert_same(made(name).posterior, load(tmp_path / "q", kind="posterior"))
